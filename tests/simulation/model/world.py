# SPDX-License-Identifier: Apache-2.0
"""Puts the parts together: one migration, two conductors, its hosts, Placement."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from migrator.objects.migration import MigrationStatus as Status
from tests.simulation.model import cleanup, faults, hosts, messages, safety
from tests.simulation.model.conductor import Saga
from tests.simulation.model.search import Rule, Step, System
from tests.simulation.model.state import (
    IDLE,
    NO_OWNER,
    Allocations,
    Budget,
    Cleanup,
    Conductor,
    Destination,
    Message,
    Phase,
    Row,
    Source,
    StopReport,
    Up,
)

Net = tuple[Message, ...]
_CALM = (Up.UP, Up.DEAD, Up.UNREACHABLE, Up.STOPPING, Up.EXITING)


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is searched.

    :ivar crashes: of conductors and hosts, pauses and lost networks counted alike. :ivar messages: lost, late, doubled
        calls and answers. :ivar aborts: of the user. :ivar stops: planned stops of the source. :ivar hangs: of the
        hypervisor of D, each until an operator has repaired it.
    :ivar candidates: 1, or 2: a second destination, E, which never fails.
    :ivar late: begin when the intent of step 5 is committed. :ivar plants: planted mistakes, by name.
    """

    crashes: int = 1
    messages: int = 1
    aborts: int = 1
    stops: int = 0
    hangs: int = 0
    candidates: int = 1
    late: bool = False
    plants: frozenset[str] = frozenset()


def system(variant: Variant) -> System:
    """Return the system to be searched."""
    destinations = tuple(part for _name, part in _destinations(variant))
    return System(
        start=_start(variant),
        rules=tuple(_rules(variant)),
        invariants=safety.invariants(destinations),
        finished=safety.over(destinations, variant.hangs > 0),
        quiet=safety.rest(destinations),
        alike=(('row', 'left', 'right'), in_order, ('row', 'left', 'right', 'source', 'destination'), exchanged),
        sketch=sketch,
    )


def _start(variant: Variant) -> Mapping[str, Any]:
    start: dict[str, Any] = {
        'row': Row(),
        'allocations': Allocations(),
        'source': Source(),
        'destination': Destination(),
        'left': Conductor(at=('run',), epoch=1),
        'right': IDLE,
        'net': (),
        'budget': Budget(variant.crashes, variant.messages, variant.aborts, variant.stops, variant.hangs),
    }
    if variant.candidates > 1:
        start['second'] = Destination()
    if variant.late:
        start['row'] = Row(status=Status.QUEUED, phase=Phase.LIVE_INTENDED, destination='D')
        start['allocations'] = Allocations('D', 2, 'S', 1)
        start['source'] = Source(seen=1, seen_of=0)
        start['destination'] = Destination(seen=1, seen_of=0, guest='waiting', work='prepared')
        start['left'] = Conductor(at=('send', Message('live', 'S', 1, 1, 'D')), epoch=1)
    return start


# --- rules -----------------------------------------------------------------------------------------------------------


def _awake(me: Conductor) -> bool:
    return not me.paused and me.at[0] not in ('idle', 'send', 'wait')


def _looks_up(me: Conductor) -> bool:
    return _awake(me) and me.at != ('read late',)


def _sends(me: Conductor) -> bool:
    return not me.paused and me.at[0] == 'send'


def _waits(me: Conductor) -> bool:
    return not me.paused and me.at[0] == 'wait'


def _waits_for(to: str) -> Any:
    return lambda me: me.at[0] == 'wait' and me.at[1].to == to


def _on_its_way(to: str) -> Any:
    return lambda net: any(message.to == to for message in net)


def _rules(variant: Variant) -> Iterator[Rule]:
    for index in (0, 1):
        yield from _conductor_rules(Saga(index, variant.candidates, variant.plants), variant)
    yield from _host_rules(variant)
    yield from _call_rules(variant)
    yield Rule(('row', 'budget'), faults.user_aborts, lambda row: row.outcome == '' and not row.abort)


def _conductor_rules(saga: Saga, variant: Variant) -> Iterator[Rule]:
    me, other = saga.side, ('right', 'left')[saga.index]
    yield Rule((me, 'row', other), saga.adopt, lambda value: value == IDLE)
    yield Rule((me, 'row'), saga.look_up, _looks_up, first=True)
    yield Rule((me, 'row'), saga.at_row, _awake)
    yield Rule((me, 'row', 'source'), saga.ask_source, _awake)
    for name, part in _destinations(variant):

        def ask(value: Conductor, row: Row, host: Destination, name: str = name, part: str = part) -> Iterator[Step]:
            return saga.ask_destination(value, row, host, name, part)

        yield Rule((me, 'row', part), ask, _awake)
        yield Rule((me, part), messages.host_is_down(me, name, variant.plants), _waits)
    yield Rule((me, 'row', 'allocations'), saga.read_allocations, _awake)
    yield Rule((me, 'net', 'budget'), messages.send(me), _sends, first=True)
    yield Rule((me, 'net', 'budget'), messages.wait(me, variant.plants), _waits)
    yield Rule((me, 'source'), messages.host_is_down(me, 'S', variant.plants), _waits)
    yield Rule((me,), faults.conductor_wakes(me), lambda value: value.paused)
    fails = faults.conductor_fails(me, saga.index)
    yield Rule((me, 'row', 'budget'), fails, lambda value: value.at != ('idle',))
    for name, part in (('S', 'source'), ('D', 'destination')):
        has_cleanup = (
            (lambda row: row.cleanup_s is not None) if name == 'S' else (lambda row: row.cleanup_d is not None)
        )
        yield Rule(('row', part, me, other), cleanup.run_one(saga.index, name, variant.plants), has_cleanup)


def _destinations(variant: Variant) -> list[tuple[str, str]]:
    return [('D', 'destination'), ('E', 'second')][: variant.candidates]


def _host_rules(variant: Variant) -> Iterator[Rule]:
    plants = variant.plants

    def starts(host: Source | Destination) -> bool:
        return host.up not in _CALM

    for name, part in _destinations(variant):
        pair = ('source', part)
        yield Rule(pair, _named(hosts.queue, name), lambda host: bool(host.work) or host.pending)
        yield Rule(pair, _named(hosts.hypervisors, name, part), lambda host: host.guest in ('job', 'cutover'))
        yield Rule((*pair, 'net'), _named(hosts.start_source, name), lambda host: host.up == Up.DEAD)
        yield Rule((part,), _named(hosts.prepare, name, part), lambda host: bool(host.work))
    yield Rule(('destination', 'net'), hosts.start_destination, lambda host: host.up == Up.DEAD)
    for name, part in (('S', 'source'), ('D', 'destination')):
        yield Rule((part, 'row', 'left', 'right'), _named(hosts.register, name), starts)
        yield Rule((part,), _named(hosts.apply_answer, part, name), starts)
        yield Rule((part, 'budget'), _named(hosts.lose_answer, part, name), starts)
        yield Rule((part,), _named(faults.host_returns, part, name), lambda host: host.up == Up.UNREACHABLE)
    yield Rule(('source', 'budget', 'net', 'row'), faults.source_fails)
    yield Rule(('destination', 'budget', 'net', 'row'), faults.destination_fails)
    if variant.hangs:
        yield Rule(('destination', 'budget'), faults.hypervisor_hangs)
    if variant.stops:
        yield Rule(('source', 'budget'), hosts.begin_stop)
        report = _named(hosts.report_stop, plants)
        yield Rule(('source', 'row', 'left', 'right', 'net', 'budget'), report, lambda host: host.up == Up.STOPPING)
        yield Rule(('source',), hosts.exit_source, lambda host: host.up == Up.EXITING)


def _named(function: Any, *more: Any) -> Any:
    return lambda *parts: function(*parts, *more)


def _call_rules(variant: Variant) -> Iterator[Rule]:
    plants = variant.plants

    def at_source(host: Source, message: Message, row: Row) -> list[tuple[Source, str, str]]:
        return [messages.at_source(host, message, row, messages.owner_of(message, row), plants)]

    def at_destination(host: Destination, message: Message, row: Row) -> list[tuple[Destination, str, str]]:
        return messages.at_destination(host, message, row, messages.owner_of(message, row), plants)

    takers = [('S', 'source', at_source), ('P', 'allocations', messages.take_at_placement)]
    takers += [(name, part, at_destination) for name, part in _destinations(variant)]
    for to, part, take in takers:
        for side in ('left', 'right'):
            yield Rule(
                (side, 'net', part, 'row', 'budget'), messages.arrive(take, part, to, side, plants), _waits_for(to)
            )
        yield Rule(('net', part, 'left', 'right'), messages.forget(part, to), _on_its_way(to), first=True)
        late = messages.arrive_late(take, part, to)
        yield Rule(('net', part, 'left', 'right', 'row'), late, _on_its_way(to))
    yield Rule(('net', 'row', 'left', 'right'), _named(messages.late_boots, plants), _on_its_way('C'))


# --- symmetry --------------------------------------------------------------------------------------------------------


def in_order(row: Row, left: Conductor, right: Conductor) -> bool:
    """The conductors are alike: the owner is put left; without one, whichever comes first in some order.

    So names in a trace mean the owner (left) and the other (right), at that moment.
    """
    return row.owner == 0 or (row.owner == NO_OWNER and repr(left) <= repr(right))


def exchanged(
    row: Row, left: Conductor, right: Conductor, source: Source, destination: Destination
) -> Mapping[str, Any]:
    """The same state with the names of the conductors exchanged."""
    cleanups = {'cleanup_s': _swapped(row.cleanup_s), 'cleanup_d': _swapped(row.cleanup_d)}
    return {
        'row': row._replace(owner=_OTHER[row.owner], **cleanups),
        'left': right,
        'right': left,
        'source': _mirrored(source),
        'destination': _mirrored(destination),
    }


_OTHER = (1, 0, NO_OWNER)


def _swapped(cleanup: Cleanup | None) -> Cleanup | None:
    return cleanup._replace(owner=_OTHER[cleanup.owner]) if cleanup is not None else None


def _mirrored(host: Any) -> Any:
    up = host.up._replace(owner=_OTHER[host.up.owner]) if isinstance(host.up, StopReport) else host.up
    return host._replace(up=up, seen_of=_OTHER[host.seen_of])


def sketch(world: Mapping[str, Any]) -> str:
    """Describe a quiet state or a trap."""
    row, source, destination = world['row'], world['source'], world['destination']
    cleanups = ''.join(
        f', {name} has the deferred cleanup {cleanup.what}'
        for name, cleanup in (('S', row.cleanup_s), ('D', row.cleanup_d))
        if cleanup
    )
    hangs = ', whose hypervisor hangs' if destination.hangs else ''
    return f'{row.status} {row.outcome or "unsettled"}: S {source.guest}, D {destination.guest}{hangs}{cleanups}'
