# SPDX-License-Identifier: Apache-2.0
"""Calls: how a target takes one, what the conductor makes of the answer, and what can go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.simulation.model import hosts, placement
from tests.simulation.model.search import FAULT, Step
from tests.simulation.model.state import (
    FORWARD,
    NO_OWNER,
    WORK_ENDS,
    Allocations,
    Budget,
    Conductor,
    Destination,
    Message,
    Phase,
    Row,
    Source,
    Up,
    add,
    remove,
)

#: What is sent to get on; a decision against it needs a new epoch in which it is refused.
ADVANCING = frozenset({'check', 'pre', 'live'})
PLACEMENT = frozenset({'move', 'revert', 'rewrite', 'release', 'take', 'claim'})


# --- a host takes a command ------------------------------------------------------------------------------------------


def admit(host: Any, message: Message, owner: int, plants: frozenset[str]) -> tuple[Any, str]:
    """Return the host after it has looked at the head of a call, and '' or its refusal: StepRunner._admit.

    :param owner: whose call it is; NO_OWNER: that of an earlier owner, whose epoch had no other owner.
    """
    if host.up not in (Up.UP, Up.STOPPING, Up.EXITING):
        return host, 'refused: starting'
    if message.second != host.boot and 'c' not in plants:
        # It registers again: a call of an earlier boot may have been committed late.
        return (host._replace(up=Up.STARTING) if host.up == Up.UP else host), 'refused: boot'
    if message.first < host.seen:
        return host, f'seen {host.seen}'
    if message.first == host.seen:
        if owner != host.seen_of and NO_OWNER not in (owner, host.seen_of):
            return host, f'seen {host.seen}'
        return host, ''
    return host._replace(seen=message.first, seen_of=owner if message.to != 'E' else NO_OWNER), ''


def owner_of(message: Message, row: Row) -> int:
    """Return whose a migration's call is, as far as it can still matter."""
    return row.owner if message.first == row.epoch else NO_OWNER


def at_source(
    source: Source, message: Message, row: Row, owner: int, plants: frozenset[str]
) -> tuple[Source, str, str]:
    """Return the source after a command, its answer, and what is broken."""
    source, refused = admit(source, message, owner, plants)
    if refused:
        return source, refused, ''
    guest, work = source.guest, source.work
    if message.kind == 'live':
        if work:
            # At most once in each boot: the command is attached to what goes on, or answered with how that ended.
            return source, 'gone' if work == 'gone' else 'ok', ''
        if source.up != Up.UP:
            return source, 'stopping', ''
        return source._replace(work='queued', target=message.about, taken=message.first * ('i16' in plants)), 'ok', ''
    if message.kind == 'abort':
        return _end_move(source), 'ok', ''
    if message.kind == 'restore':
        source = _end_move(source)
        if source.work and source.work not in WORK_ENDS:
            return source, 'running', ''
        if source.guest in ('job', 'cutover'):
            return source, 'busy', ''
        if guest == 'absent':
            return source, 'gone', ''
        if guest == 'paused':
            return source._replace(guest='here'), 'ok', 'restored after forward' if row.outcome == FORWARD else ''
        return source, 'ok', ''
    assert message.kind == 'post'
    if work and work not in WORK_ENDS:
        return source, 'running', ''
    if guest in ('here', 'job', 'cutover'):
        return source, 'here', ''
    if guest == 'absent':
        return source, 'ok', ''
    return source._replace(guest='absent'), 'ok', '' if row.outcome == FORWARD else 'post step at S before forward'


def _end_move(source: Source) -> Source:
    if source.work in ('queued', 'called off'):
        return source._replace(work='cancelled')
    if source.work == 'started':
        return source._replace(work='unwanted')
    if source.guest == 'job' and source.work in ('calling', ''):
        return source._replace(guest='here', work='aborted' if source.work else '')
    return source


def at_destination(
    host: Destination, message: Message, row: Row, owner: int, plants: frozenset[str]
) -> list[tuple[Destination, str, str]]:
    """Return the ways in which a destination takes a command.

    Each is the destination after it, its answer, and what is broken.
    """
    host, refused = admit(host, message, owner, plants)
    if refused:
        return [(host, refused, '')]
    if message.kind == 'check':
        if host.guest not in ('none', 'checked') or host.work not in ('', 'checking'):
            return [(host, 'running', '')]
        if host.work == 'checking':
            return [(host, 'running', '')]
        done = host._replace(guest='checked')
        lasts = (host._replace(work='checking'), 'running', '')
        return [lasts] if host.hangs else [(done, 'ok', ''), (done, 'failed', ''), lasts]
    if message.kind == 'pre':
        if host.work == '' and host.guest != 'runs':
            return [(host._replace(work='preparing'), 'ok', '')]
        return [(host, 'failed' if host.work == 'failed' else 'ok', '')]
    if message.kind == 'clean':
        return [_clean(host, message, row)]
    assert message.kind == 'post'
    if host.hangs:
        return [(host, 'running', '')]
    if host.guest != 'runs':
        return [(host, 'gone', '')]
    return [(host, 'ok', '' if row.outcome == FORWARD else 'post step at D before forward')]


def _clean(host: Destination, message: Message, row: Row) -> tuple[Destination, str, str]:
    """A rollback at the destination: it ends what stands before it, waits for that, and then cleans."""
    if host.guest == 'runs':
        return host, 'here', 'rollback at the destination, which runs the guest'
    sent = row.phase == Phase.LIVE_INTENDED and row.destination == message.to and not row.ended
    broken = 'D cleaned while nothing is settled and step 5 was sent' if sent and row.outcome == '' else ''
    ours = row.outcome == FORWARD and row.destination == message.to
    broken = broken or ('D cleaned after forward' if ours and host.guest != 'none' else '')
    if host.hangs and (host.guest, host.work) == ('none', ''):
        # It has nothing to clean when the hypervisor answers.
        return host, 'running', broken
    if host.hangs or host.work in ('checking', 'preparing', 'clearing'):
        return host._replace(work='clearing'), 'running', broken
    return host._replace(guest='none', work=''), 'ok', broken


# --- the answer ------------------------------------------------------------------------------------------------------


def answered(me: Conductor, message: Message, answer: str) -> Conductor:
    """Return the conductor after an answer."""
    kind, run = message.kind, me._replace(at=('run',))
    if kind in PLACEMENT:
        if answer == 'taken':
            after = {
                'move': 'moved',
                'claim': 'moved',
                'release': 'released',
                'revert': 'returned',
                'rewrite': 'returned',
            }
            return me._replace(at=(after.get(kind, 'run'),), orphan=False)
        return run._replace(orphan=kind == 'move' and not me.orphan)
    if answer.startswith('refused'):
        return me._replace(at=('refused',))
    if answer.startswith('seen'):
        return me._replace(at=('refused', int(answer.split()[1])))
    if kind == 'check':
        # If it still runs, it is sent again.
        return me._replace(at=({'ok': 'checked', 'failed': 'unchecked'}.get(answer, 'moved'),))
    if kind in ('pre', 'live') and answer in ('failed', 'stopping'):
        return run._replace(must_abort=True)
    if kind in ('clean', 'restore', 'post') and answer == 'ok':
        return me._replace(at=('did', kind, message.to))
    if kind in ('clean', 'restore', 'post') and answer in ('here', 'gone'):
        return me._replace(at=('argues', f'{message.to} refuses {kind}: {answer}'))
    return run


def timed_out(me: Conductor, message: Message, plants: frozenset[str]) -> Conductor:
    """Return the conductor when no answer comes."""
    run = me._replace(at=('run',), orphan=False)
    if message.kind == 'check':
        return run._replace(at=('unchecked',))
    if message.kind == 'live' and 'e' in plants:
        return me._replace(at=('back by time-out',))
    if message.kind in ('clean', 'restore', 'post'):
        # The host is asked before the command is sent again; if it is down, its cleanup is deferred.
        return me._replace(at=('ask once', message.kind, message.to))
    return run


# --- rules -----------------------------------------------------------------------------------------------------------


Taker = Callable[[Any, Message, Row], list[tuple[Any, str, str]]]


def arrive(take: Taker, part: str, to: str, side: str, plants: frozenset[str]) -> Callable[..., Iterator[Step]]:
    """Return the rule by which the call that a conductor waits for arrives at one target.

    :param take: the target takes one: what it is after that, its answer, what is broken.
    """

    def steps(me: Conductor, net: tuple[Message, ...], target: Any, row: Row, budget: Budget) -> Iterator[Step]:
        message = me.at[1]
        if message.to != to or message not in net or (to != 'P' and target.up in (Up.DEAD, Up.UNREACHABLE)):
            return
        rest = remove(net, message)
        less = budget._replace(messages=budget.messages - 1)
        for after, answer, broken in take(target, message, row):
            changes = {part: after, 'net': rest, side: answered(me, message, answer)}
            yield Step(f'{message}: {answer} -> {side}', changes, broken=broken)
            if budget.messages and not broken:
                lost = {part: after, 'net': rest, side: timed_out(me, message, plants), 'budget': less}
                yield Step(f'FAULT {message}: {answer}, the answer to {side} is lost', lost, FAULT)
                if to == 'P':
                    twice = {part: after, side: answered(me, message, answer), 'budget': less}
                    yield Step(f'FAULT {message}: {answer} -> {side}, a duplicate is on its way', twice, FAULT)
        orphan = placement.leave_orphan(target, message) if to == 'P' and budget.messages else None
        if orphan is not None:
            left_over = {part: orphan, 'net': rest, side: timed_out(me, message, plants), 'budget': less}
            yield Step(f'FAULT Placement dies over {message}, leaving an empty consumer', left_over, FAULT)

    return steps


def arrive_late(take: Taker, part: str, to: str) -> Callable[..., Iterator[Step]]:
    """Return the rule by which calls arrive that no conductor waits for any more."""

    def steps(net: tuple[Message, ...], target: Any, left: Conductor, right: Conductor, row: Row) -> Iterator[Step]:
        for message in net:
            if message.to != to or (to != 'P' and target.up in (Up.DEAD, Up.UNREACHABLE)):
                continue
            if message.late or ('wait', message) not in (left.at, right.at):
                for after, answer, broken in take(target, message, row):
                    changes = {part: after, 'net': remove(net, message)}
                    yield Step(f'late {message} arrives: {answer}', changes, broken=broken)

    return steps


def take_at_placement(allocations: Allocations, message: Message, row: Row) -> list[tuple[Allocations, str, str]]:
    """Placement takes a request."""
    after, taken = placement.write(allocations, message)
    return [(after, 'taken' if taken else '409', '')]


def wait(side: str, plants: frozenset[str]) -> Callable[..., Iterator[Step]]:
    """Return the rule by which a conductor that waits for an answer loses its call."""

    def steps(me: Conductor, net: tuple[Message, ...], budget: Budget) -> Iterator[Step]:
        message = me.at[1]
        after = timed_out(me, message, plants)
        if message not in net:
            # An equal one was taken for it, as by a duplicate.
            yield Step(f'{side}: no answer to {message}', {side: after})
        elif budget.messages:
            less = budget._replace(messages=budget.messages - 1)
            yield Step(
                f'FAULT {message} of {side} is lost', {side: after, 'net': remove(net, message), 'budget': less}, FAULT
            )
            late = add(remove(net, message), message._replace(late=True))
            delayed = {side: after, 'net': late, 'budget': less}
            yield Step(f'FAULT {message} of {side} is on its way for long', delayed, FAULT)

    return steps


def host_is_down(side: str, to: str, plants: frozenset[str]) -> Callable[..., Iterator[Step]]:
    """Return the rule by which a conductor waits in vain for a host that is away; the call may yet arrive."""

    def steps(me: Conductor, host: Source | Destination) -> Iterator[Step]:
        message = me.at[1]
        if message.to == to and host.up in (Up.DEAD, Up.UNREACHABLE):
            yield Step(f'{side}: {message} has no answer: {to} is {host.up}', {side: timed_out(me, message, plants)})

    return steps


def send(side: str) -> Callable[..., Iterator[Step]]:
    """Return the rule by which a conductor sends what it is about to send, or is paused just before.

    It goes first: a call that is sent early may arrive as late as one that is sent late. To be killed just before is
    the same as to be killed just after, with a call that arrives last of all.
    """

    def steps(me: Conductor, net: tuple[Message, ...], budget: Budget) -> Iterator[Step]:
        message = me.at[1]
        after = me._replace(at=('wait', message), settling=me.settling and message.kind not in ADVANCING)
        yield Step(f'{side} sends {message}', {side: after, 'net': add(net, message)})
        if budget.crashes:
            less = budget._replace(crashes=budget.crashes - 1)
            yield Step(
                f'FAULT {side} is paused before it sends', {side: me._replace(paused=True), 'budget': less}, FAULT
            )

    return steps


def forget(part: str, to: str) -> Callable[..., Iterator[Step]]:
    """Return the rule by which calls are dropped that can do nothing any more, whenever they arrive.

    A host has seen a newer epoch in the boot that is meant; Placement a newer generation of the instance. It goes
    first: to arrive in vain changes nothing.
    """

    def steps(net: tuple[Message, ...], target: Any, left: Conductor, right: Conductor) -> Iterator[Step]:
        for message in net:
            if message.to == to and ('wait', message) not in (left.at, right.at) and _is_vain(message, target):
                yield Step(f'late {message} is in vain', {'net': remove(net, message)})
                return

    return steps


def _is_vain(message: Message, target: Any) -> bool:
    if isinstance(target, Allocations):
        return message.kind in ('move', 'revert', 'rewrite') and message.first < target.instance_generation
    return message.second == target.boot and message.first < target.seen


def late_boots(
    net: tuple[Message, ...], row: Row, left: Conductor, right: Conductor, plants: frozenset[str]
) -> Iterator[Step]:
    """Calls of hosts that conductors commit late: compute_started of a dead boot, compute_stopping."""
    if left.paused and right.paused:
        return
    for message in net:
        if message.kind == 'stopping':
            after = hosts.request_by_stop(row, message, plants)
            yield Step('late compute_stopping of S is committed', {'row': after, 'net': remove(net, message)})
        elif message.kind == 'started':
            label = f'late compute_started of a dead boot of {message.about}'
            registered = row.boot_s if message.about == 'S' else row.boot_d
            # Another boot has registered since this one asked which it replaces.
            in_vain = registered != message.second and 'late-boot' not in plants
            after = row if in_vain else hosts.begin_boot(row, str(message.about), message.first)
            yield Step(label + ' is in vain' * in_vain, {'row': after, 'net': remove(net, message)})
