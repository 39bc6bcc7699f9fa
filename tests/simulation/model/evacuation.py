# SPDX-License-Identifier: Apache-2.0
"""The model of one evacuation: a source that may come back, two candidates, and two conductors.

It begins when the allocation is moved and the first candidate is checked. The source S is down, with a copy
that is shut off or runs. A candidate starts the guest, or fails to. Placement is one bit: whether the migration
holds the source's allocation. The model has the pivot, the return of the source, the next candidate, and the cleanup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.simulation.model.search import FAULT, USER, Invariant, Rule, Step, System

NO_OWNER = 2
_SIDES = ('left', 'right')
_CANDIDATES = ('D1', 'D2')


class Row(NamedTuple):
    """The database.

    ``status``: preparing, forward (the outcome is committed), done, completed, failed. ``intended``: whether the start
    at the present candidate is intended. ``came``: whether S was registered after that intent. ``abort``: requested by
    the start of S. ``cleanup``: none, deferred, done. ``at``: where the database has the guest.
    """

    status: str = 'preparing'
    candidate: int = 0
    intended: bool = False
    came: bool = False
    abort: bool = False
    epoch: int = 1
    owner: int = 0
    cleanup: str = 'none'
    held: bool = True
    at: str = 'S'


class Source(NamedTuple):
    """S. ``back``: its service is registered. ``copy``: of the guest."""

    back: bool = False
    copy: bool = True


class Host(NamedTuple):
    """A candidate.

    ``seen``: the newest epoch in this boot. ``work``: how the start in the epoch ``tried`` has ended in this boot: '',
    done, failed. ``guest``: whether it was started here, which no boot forgets.
    """

    up: bool = True
    boot: int = 1
    known: int = 1
    seen: int = 1
    work: str = ''
    tried: int = 0
    guest: bool = False


class Order(NamedTuple):
    """A command on its way: ``start`` at a candidate, or ``clean`` at S."""

    what: str
    host: str
    epoch: int
    boot: int


class Conductor(NamedTuple):
    """A conductor.

    ``epoch``: of the evacuation that it runs; 0: none. ``settling``: it has raised the epoch, and sent nothing since.
    ``plan``: what it has decided and is about to commit, in the row as it has read it.
    """

    epoch: int = 0
    settling: bool = False
    plan: Row | None = None
    read: Row | None = None
    paused: bool = False


class Budget(NamedTuple):
    """Faults that are left, and how often a driver may still fail."""

    crashes: int
    messages: int
    failures: int


def system(crashes: int, messages: int, failures: int, plants: frozenset[str] = frozenset()) -> System:
    """Return the system to be searched.

    :param failures: how often a candidate may fail to start the guest.
    :param plants: no-abort (the start of S requests no abort), no-epoch (a candidate compares no epochs), unpolled (the
        cleanup is deferred with the intent, and sent without a poll), released-early (the allocation at the source is
        released with the end at the destination).
    """
    rules = [
        Rule(('source', 'row'), lambda source, row: _return(source, row, plants), lambda source: not source.back),
        Rule(('net', 'D1', 'D2', 'source', 'row', 'budget'), lambda *parts: _arrive(plants, *parts), bool),
        *(
            rule
            for name in _CANDIDATES
            for rule in (
                Rule((name, 'budget'), lambda host, budget, name=name: _die(name, host, budget)),
                Rule((name,), lambda host, name=name: _start(name, host), lambda h: not h.up or h.known != h.boot),
            )
        ),
    ]
    for index, me in enumerate(_SIDES):
        conduct = _Conduct(index, plants)
        rules += [
            Rule((me, 'row', _SIDES[1 - index]), conduct.take),
            Rule((me, 'row', 'source', 'D1', 'D2', 'net', 'budget'), conduct.decide, lambda one: not one.paused),
            Rule((me, 'row', 'source'), conduct.commit, lambda one: one.plan is not None and not one.paused),
            Rule((me, 'row', 'budget'), conduct.fail),
        ]
    start = {
        'row': Row(),
        'source': Source(),
        'D1': Host(),
        'D2': Host(),
        'left': Conductor(epoch=1),
        'right': Conductor(),
        'net': (),
        'budget': Budget(crashes, messages, failures),
    }
    return System(
        start=start,
        rules=tuple(rules),
        invariants=(Invariant(('row', 'source', 'D1', 'D2'), _broken),),
        finished=Invariant(('row', 'source'), _unfinished),
        quiet=Invariant(('row', 'source'), _unfinished),
        sketch=_sketch,
    )


def _sketch(world: Mapping[str, Any]) -> str:
    row, source = world['row'], world['source']
    return f'{row.status} at {row.at}; S is {"back" if source.back else "away"}'


def _unfinished(row: Row, source: Source) -> str:
    over = row.status in ('completed', 'failed') or (row.status == 'done' and not source.back)
    return '' if over else f'the evacuation is {row.status}'


def _broken(row: Row, source: Source, first: Host, second: Host) -> str:
    if first.guest and second.guest:
        return 'the guest was started twice'
    if not source.copy and not (first.guest or second.guest):
        return 'the last copy of the guest is removed'
    if row.status == 'failed' and (first.guest or second.guest or not source.copy):
        return 'the evacuation has failed, and the guest is not at its source alone'
    if row.status in ('forward', 'done') and not row.held:
        return 'the allocation at the source is released before the source has cleaned up'
    if row.status in ('completed', 'failed') and row.held:
        return 'an ended evacuation holds an allocation'
    if row.status == 'completed' and source.copy:
        return 'the evacuation is completed, and its source has a copy'
    return ''


# --- hosts -----------------------------------------------------------------------------------------------------------


def _return(source: Source, row: Row, plants: frozenset[str]) -> Iterator[Step]:
    """S starts, and its registration reads and writes the row in one transaction."""
    after = row
    if row.status in ('preparing', 'forward'):
        after = row._replace(epoch=row.epoch + 1, came=row.intended)
        if not row.intended and 'no-abort' not in plants:
            after = after._replace(abort=True)
    yield Step('USER S comes back', {'source': source._replace(back=True), 'row': after}, USER)


def _die(name: str, host: Host, budget: Budget) -> Iterator[Step]:
    if host.up and budget.crashes:
        less = budget._replace(crashes=budget.crashes - 1)
        yield Step(f'FAULT {name} is killed', {name: host._replace(up=False), 'budget': less}, FAULT)


def _start(name: str, host: Host) -> Iterator[Step]:
    if not host.up:
        yield Step(f'{name} starts', {name: host._replace(up=True, boot=host.boot + 1, seen=0, work='', tried=0)})
    else:
        yield Step(f'{name} is registered', {name: host._replace(known=host.boot)})


def _arrive(
    plants: frozenset[str],
    net: tuple[Order, ...],
    first: Host,
    second: Host,
    source: Source,
    row: Row,
    budget: Budget,
) -> Iterator[Step]:
    for order in net:
        rest = {'net': tuple(other for other in net if other != order)}
        if order.what == 'clean':
            if source.back:
                after = source._replace(copy=False)
                yield Step(f'S does {order}', {**rest, 'source': after, 'row': _cleaned(row)})
            continue
        host = first if order.host == 'D1' else second
        if not host.up:
            continue
        older = order.epoch < host.seen or (host.work and order.epoch == host.tried)
        if order.boot != host.boot or host.work == 'done' or (older and 'no-epoch' not in plants):
            yield Step(f'{order.host} refuses {order}, or has done it', rest)
            continue
        host = host._replace(seen=order.epoch, tried=order.epoch)
        yield Step(f'{order.host} does {order}', {**rest, order.host: host._replace(work='done', guest=True)})
        if budget.failures and not host.guest:
            less = budget._replace(failures=budget.failures - 1)
            yield Step(
                f'{order.host} fails in {order}', {**rest, order.host: host._replace(work='failed'), 'budget': less}
            )


def _cleaned(row: Row) -> Row:
    """The report of S. If it is lost, the next sweep has S report again."""
    return row._replace(cleanup='done') if row.cleanup == 'deferred' else row


# --- conductors ------------------------------------------------------------------------------------------------------


class _Conduct:
    def __init__(self, index: int, plants: frozenset[str]) -> None:
        self.index, self.side, self.plants = index, _SIDES[index], plants

    def take(self, me: Conductor, row: Row, other: Conductor) -> Iterator[Step]:
        """Take over an evacuation in progress without a living owner, or read the own one again."""
        if me.paused or me.plan is not None or row.status not in ('preparing', 'forward'):
            return
        free = row.owner == NO_OWNER or (row.owner == 1 - self.index and other.paused)
        if free:
            taken = row._replace(owner=self.index, epoch=row.epoch + 1)
            mine = Conductor(epoch=taken.epoch, settling=True)
            yield Step(f'{self.side} takes the evacuation over', {self.side: mine, 'row': taken})
        elif row.owner == self.index and me.epoch != row.epoch:
            yield Step(f'{self.side} reads the row again', {self.side: Conductor(row.epoch, settling=True)})

    def decide(
        self, me: Conductor, row: Row, source: Source, first: Host, second: Host, net: tuple[Order, ...], budget: Budget
    ) -> Iterator[Step]:
        if me.plan is not None:
            return
        if row.status in ('done', 'failed'):
            yield from self._clean(me, row, source, first if row.at == 'D1' else second, net)
        elif (row.owner, row.epoch) == (self.index, me.epoch) and row.status == 'forward':
            done = row._replace(status='done', held=row.held and 'released-early' not in self.plants)
            yield self._plan(me, row, done, 'ends it at the destination')
        elif (row.owner, row.epoch) == (self.index, me.epoch) and row.status == 'preparing':
            if not row.intended:
                yield from self._prepare(me, row, source)
            else:
                name = _CANDIDATES[row.candidate]
                yield from self._settle(me, row, name, first if name == 'D1' else second, net, budget)

    def _prepare(self, me: Conductor, row: Row, source: Source) -> Iterator[Step]:
        if row.abort or row.came:
            yield self._plan(me, row, row._replace(status='failed', held=False), 'gives up: S is back')
            return
        intended = row._replace(intended=True, came=False)
        if 'unpolled' in self.plants:
            intended = intended._replace(cleanup='deferred')
        yield self._plan(me, row, intended, 'intends the start')

    def _settle(
        self, me: Conductor, row: Row, name: str, host: Host, net: tuple[Order, ...], budget: Budget
    ) -> Iterator[Step]:
        """Poll the candidate, and decide; or send the command."""
        if not host.up or host.known != host.boot:
            return
        polled = host._replace(seen=max(host.seen, row.epoch))
        if host.guest:
            forward = row._replace(status='forward', cleanup='deferred', at=name)
            yield self._plan(me, row, forward, f'finds the guest at {name}', {name: polled})
        elif host.work == 'failed' and me.settling:
            back = row._replace(intended=False, candidate=1)
            if row.candidate == 1:
                back = row._replace(status='failed', held=False)
            yield self._plan(me, row, back, f'gives {name} up', {name: polled})
        elif host.work == 'failed':
            yield self._plan(me, row, row._replace(epoch=row.epoch + 1), 'raises the epoch', {name: polled})
        else:
            order = Order('start', name, row.epoch, host.known)
            if order in net:
                return
            sent = {self.side: me._replace(settling=False), name: polled}
            yield Step(f'{self.side} sends {order}', {**sent, 'net': tuple(sorted({*net, order}))})
            if budget.messages:
                less = budget._replace(messages=budget.messages - 1)
                yield Step(f'FAULT {order} is lost', {**sent, 'budget': less}, FAULT)

    def _clean(self, me: Conductor, row: Row, source: Source, host: Host, net: tuple[Order, ...]) -> Iterator[Step]:
        """A sweep of any conductor: the cleanup at S, or the completion."""
        order = Order('clean', 'S', row.epoch, 0)
        reported = (row.at != 'S' and host.up and host.guest) or 'unpolled' in self.plants
        if row.cleanup == 'deferred' and source.back and reported and order not in net:
            yield Step(f'{self.side} sends {order}', {'net': tuple(sorted({*net, order}))})
        if row.cleanup == 'done' and row.status == 'done':
            yield self._plan(me, row, row._replace(status='completed', held=False), 'completes it')

    def _plan(self, me: Conductor, row: Row, plan: Row, what: str, more: Mapping[str, Any] | None = None) -> Step:
        return Step(f'{self.side} {what}', {self.side: me._replace(plan=plan, read=row), **(more or {})})

    def commit(self, me: Conductor, row: Row, source: Source) -> Iterator[Step]:
        """Commit the plan if the row has the same owner, epoch, status and requests as it was read with."""
        plan, read = me.plan, me.read
        assert plan is not None
        assert read is not None
        same = (row.owner, row.epoch, row.status, row.abort) == (read.owner, read.epoch, read.status, read.abort)
        if not same:
            yield Step(f'{self.side} is refused', {self.side: Conductor(epoch=0)})
            return
        broken = ''
        if plan.intended and not read.intended and source.back:
            broken = 'the start is intended, and the source is back'
        raised = plan.epoch > read.epoch
        after = Conductor(plan.epoch, settling=me.settling or raised)
        yield Step(f'{self.side} commits', {self.side: after, 'row': plan}, broken=broken)

    def fail(self, me: Conductor, row: Row, budget: Budget) -> Iterator[Step]:
        if me.paused:
            yield Step(f'{self.side} wakes', {self.side: me._replace(paused=False)})
        elif budget.crashes and me.epoch:
            less = budget._replace(crashes=budget.crashes - 1)
            yield Step(f'FAULT {self.side} is paused', {self.side: me._replace(paused=True), 'budget': less}, FAULT)
            freed = row._replace(owner=NO_OWNER) if row.owner == self.index else row
            yield Step(f'FAULT {self.side} crashes', {self.side: Conductor(), 'row': freed, 'budget': less}, FAULT)
