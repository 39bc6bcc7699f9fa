# SPDX-License-Identifier: Apache-2.0
"""One deferred cleanup by itself: its row with owner and epoch, two conductors, and the host.

It begins when a migration has ended and its cleanup at D is deferred. The cleanup was written in epoch 1; then D came
back, and has seen the migration's epoch 2, of its owner (left). When the cleanup is done, another migration of the same
instance may come to D and prepare it: no command of the cleanup may touch that. An operator may also start the guest
itself at D: then the host answers that it is here, the cleanup needs an operator, and the guest stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.simulation.model.search import FAULT, USER, Invariant, Rule, Step, System

NO_OWNER = 2
_SIDES = ('left', 'right')


class Row(NamedTuple):
    """The row of cleanups; ``state``: ``pending``, cleaned_up, blocked."""

    state: str = 'pending'
    epoch: int = 1
    owner: int = NO_OWNER


class Host(NamedTuple):
    """D. ``holds``: debris (of the ended migration), nothing, prepared (by the next one), guest.

    ``seen``, ``of``: the newest epoch of the ended migration in this boot, and whose. ``done``: the epoch in which this
    boot has cleaned; it answers the same command again with the same result. ``known``: the boot that the database has.
    """

    up: bool = True
    boot: int = 1
    known: int = 1
    holds: str = 'debris'
    seen: int = 2
    of: int = 0
    done: int = 0


class Conductor(NamedTuple):
    """A conductor. ``at``: idle, send, wait, answered; the epoch in which it holds the cleanup; D's boot."""

    at: str = 'idle'
    epoch: int = 0
    boot: int = 0
    answer: str = ''
    paused: bool = False


class Order(NamedTuple):
    """A call on its way to D."""

    epoch: int
    boot: int
    owner: int


class Budget(NamedTuple):
    """Faults that are left, and whether another migration, or the guest, may still come."""

    crashes: int
    messages: int
    visits: int = 1


def system(crashes: int, messages: int, plants: frozenset[str] = frozenset()) -> System:
    """Return the system to be searched.

    :param plants: old-epoch (the host looks at no epoch), two-owners (a conductor takes the cleanup from any owner, in
        its epoch), active (the host does not look before it cleans), stale (a refused command is sent again unchanged).
    """
    rules = [
        Rule(('host', 'budget'), _host_fails),
        Rule(('host',), _host_starts, lambda host: not host.up or host.known != host.boot),
        Rule(('row', 'host', 'budget'), _visit, lambda row: row.state != 'blocked'),
        Rule(('net', 'host'), lambda net, host: _late(net, host, plants), bool),
    ]
    for index in (0, 1):
        me, other = _SIDES[index], _SIDES[1 - index]
        conduct = _Conduct(index, plants)
        rules += [
            Rule((me, 'row', 'host', other), conduct.take, lambda one: one.at == 'idle' and not one.paused),
            Rule((me, 'net'), conduct.send, lambda one: one.at == 'send' and not one.paused),
            Rule((me, 'net', 'host', 'budget'), conduct.wait, lambda one: one.at == 'wait'),
            Rule((me, 'row'), conduct.commit, lambda one: one.at == 'answered' and not one.paused),
            Rule((me, 'row', 'budget'), conduct.fail),
        ]
    start = {
        'row': Row(),
        'host': Host(),
        'left': Conductor(),
        'right': Conductor(),
        'net': (),
        'budget': Budget(crashes, messages),
    }
    return System(
        start=start,
        rules=tuple(rules),
        invariants=(),
        finished=Invariant(('row', 'host'), lambda row, host: '' if row.state != 'pending' and host.up else 'pending'),
        quiet=Invariant(('row', 'host'), _at_rest),
        sketch=_sketch,
    )


def _sketch(world: Mapping[str, Any]) -> str:
    return f'{world["row"].state}; D holds {world["host"].holds}'


def _at_rest(row: Row, host: Host) -> str:
    if row.state == 'pending':
        return 'the cleanup is left'
    return 'cleaned up, and the debris is there' if row.state == 'cleaned_up' and host.holds == 'debris' else ''


# --- D ---------------------------------------------------------------------------------------------------------------


def take(host: Host, order: Order, plants: frozenset[str]) -> tuple[Host, str, str]:
    """Return D after an order to clean, its answer, and what is broken."""
    if order.boot != host.boot:
        return host, 'refused', ''
    older = order.epoch < host.seen or (order.epoch == host.seen and host.of not in (NO_OWNER, order.owner))
    if older and 'old-epoch' not in plants:
        return host, f'seen {host.seen}', ''
    host = host._replace(seen=max(host.seen, order.epoch), of=order.owner)
    if host.done == order.epoch and not older:
        return host, 'done', ''
    if host.holds == 'guest':
        if 'active' in plants:
            return host._replace(holds='nothing', done=order.epoch), 'done', 'a cleanup destroys an active guest'
        return host, 'here', ''
    broken = 'a cleanup tears down what another migration has prepared' if host.holds == 'prepared' else ''
    return host._replace(holds='nothing', done=order.epoch), 'done', broken


def _late(net: tuple[Order, ...], host: Host, plants: frozenset[str]) -> Iterator[Step]:
    for order in net:
        if host.up:
            after, answer, broken = take(host, order, plants)
            yield Step(f'late {order} arrives: {answer}', {'host': after, 'net': _without(net, order)}, broken=broken)


def _without(net: tuple[Order, ...], order: Order) -> tuple[Order, ...]:
    return tuple(other for other in net if other != order)


def _host_fails(host: Host, budget: Budget) -> Iterator[Step]:
    if host.up and budget.crashes:
        less = budget._replace(crashes=budget.crashes - 1)
        yield Step('FAULT D is killed', {'host': host._replace(up=False), 'budget': less}, FAULT)


def _host_starts(host: Host) -> Iterator[Step]:
    if not host.up:
        fresh = host._replace(up=True, boot=host.boot + 1, seen=0, of=NO_OWNER, done=0)
        yield Step('D starts', {'host': fresh})
    else:
        yield Step('D is registered', {'host': host._replace(known=host.boot)})


def _visit(row: Row, host: Host, budget: Budget) -> Iterator[Step]:
    if not budget.visits or not host.up:
        return
    less = budget._replace(visits=0)
    if row.state == 'cleaned_up' and host.holds == 'nothing':
        # While the cleanup is deferred, D is no destination for the instance.
        prepared = host._replace(holds='prepared')
        yield Step('USER another migration prepares D', {'host': prepared, 'budget': less}, USER)
    if host.holds == 'debris':
        yield Step('USER starts the guest at D', {'host': host._replace(holds='guest'), 'budget': less}, USER)


# --- conductors ------------------------------------------------------------------------------------------------------


class _Conduct:
    def __init__(self, index: int, plants: frozenset[str]) -> None:
        self.index, self.side, self.plants = index, _SIDES[index], plants

    def take(self, me: Conductor, row: Row, host: Host, other: Conductor) -> Iterator[Step]:
        """A sweep: adopt the cleanup if no live conductor owns it, and command the boot of D that is known."""
        if row.state != 'pending':
            return
        mine = row
        if row.owner != self.index:
            if row.owner == 1 - self.index and not other.paused and 'two-owners' not in self.plants:
                return
            epoch = row.epoch if 'two-owners' in self.plants else row.epoch + 1
            mine = row._replace(owner=self.index, epoch=epoch)
        after = Conductor('send', mine.epoch, host.known)
        yield Step(f'{self.side} has the cleanup in epoch {mine.epoch}', {self.side: after, 'row': mine})

    def send(self, me: Conductor, net: tuple[Order, ...]) -> Iterator[Step]:
        order = Order(me.epoch, me.boot, self.index)
        on_their_way = tuple(sorted({*net, order}))
        yield Step(f'{self.side} sends {order}', {self.side: me._replace(at='wait'), 'net': on_their_way})

    def wait(self, me: Conductor, net: tuple[Order, ...], host: Host, budget: Budget) -> Iterator[Step]:
        order, idle = Order(me.epoch, me.boot, self.index), Conductor(paused=me.paused)
        if order not in net or not host.up:
            yield Step(f'{self.side} has no answer', {self.side: idle})
            return
        after, answer, broken = take(host, order, self.plants)
        changes = {self.side: me._replace(at='answered', answer=answer), 'host': after, 'net': _without(net, order)}
        yield Step(f'{order}: {answer} -> {self.side}', changes, broken=broken)
        if budget.messages:
            less = budget._replace(messages=budget.messages - 1)
            yield Step(f'FAULT {order} is on its way for long', {self.side: idle, 'budget': less}, FAULT)
            gone = {self.side: idle, 'budget': less, 'net': _without(net, order)}
            yield Step(f'FAULT {order} is lost', gone, FAULT)
            yield Step(f'FAULT {order}: {answer}, the answer is lost', {**gone, 'host': after}, FAULT)

    def commit(self, me: Conductor, row: Row) -> Iterator[Step]:
        """Forget the cleanup, block it, or raise its epoch, if the row is still its own in its epoch."""
        same = row.state == 'pending' and row.owner == self.index and row.epoch == me.epoch
        if 'two-owners' in self.plants:
            same = row.state == 'pending' and row.epoch == me.epoch
        after = row
        if same and me.answer == 'done':
            after = row._replace(state='cleaned_up')
        elif same and me.answer == 'here':
            after = row._replace(state='blocked')
        elif same and me.answer.startswith('seen') and not self.plants & {'stale', 'two-owners'}:
            after = row._replace(epoch=max(row.epoch, int(me.answer.split()[1])) + 1)
        yield Step(f'{self.side} takes in: {me.answer}', {self.side: Conductor(), 'row': after})

    def fail(self, me: Conductor, row: Row, budget: Budget) -> Iterator[Step]:
        if me.paused:
            yield Step(f'{self.side} wakes', {self.side: me._replace(paused=False)})
        elif budget.crashes and me.at != 'idle':
            less = budget._replace(crashes=budget.crashes - 1)
            freed = row._replace(owner=NO_OWNER) if row.owner == self.index else row
            yield Step(f'FAULT {self.side} crashes', {self.side: Conductor(), 'row': freed, 'budget': less}, FAULT)
            yield Step(f'FAULT {self.side} is paused', {self.side: me._replace(paused=True), 'budget': less}, FAULT)
