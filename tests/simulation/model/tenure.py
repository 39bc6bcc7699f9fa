# SPDX-License-Identifier: Apache-2.0

"""The model of two migrations of one guest at one host: the cleanup of the first, and the second.

It begins when migration 1 has ended and its cleanup at S is deferred. ``restore``: the guest is at S, where it has to
be resumed. ``remove``: the guest is elsewhere, and S has a copy that has to go; an embedding service may bring the
guest back to S. Migration 2 of the guest leaves from S. Two conductors sweep, and either may run migration 2. Epochs
are left out: they order what is sent for one migration, and :mod:`tests.simulation.model.cleanups` has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.simulation.model.search import FAULT, USER, Invariant, Rule, Step, System

NO_OWNER = 2
_SIDES = ('left', 'right')


class Row(NamedTuple):
    """The database.

    ``cleanup``: ``pending``, done, blocked; with the tenure in which it was last taken up, and its owner. ``second``:
    none, accepted, clear (nothing is left at S), sent, ended; with its copy of the tenure, and its owner. ``at``: where
    the database has the guest, S or X.
    """

    tenure: int = 1
    cleanup: str = 'pending'
    cleanup_tenure: int = 1
    cleanup_owner: int = NO_OWNER
    second: str = 'none'
    second_tenure: int = 0
    second_owner: int = NO_OWNER
    at: str = 'S'


class Host(NamedTuple):
    """S.

    ``holder`` has the tenure ``seen``: migration 1 or 2. ``has``: leftover, nothing, guest (whole: no cleanup may touch
    it). ``job``: migration 2 has it in hand. ``cleaned``: this boot reports that the cleanup is done.
    """

    up: bool = True
    boot: int = 1
    known: int = 1
    seen: int = 1
    holder: int = 1
    has: str = 'leftover'
    job: bool = False
    cleaned: bool = False


class Order(NamedTuple):
    """A command on its way to S. ``what``: clean, carry (the cleanup, in the name of migration 2), move."""

    what: str
    of: int
    tenure: int
    boot: int


class Conductor(NamedTuple):
    """A conductor.

    ``order``: what it has committed to send, and not sent. ``refused``: the tenure with which S refused.
    """

    order: Order | None = None
    refused: tuple[int, int] | None = None
    paused: bool = False


class Budget(NamedTuple):
    """Faults that are left, and whether the embedding service may still act."""

    crashes: int
    messages: int
    visits: int


def system(kind: str, crashes: int, messages: int, plants: frozenset[str] = frozenset()) -> System:
    """Return the system to be searched.

    :param kind: of the cleanup: restore or remove.
    :param plants: no-tenure (S does not compare tenures), beside (the sweep does not look at migration 2, which waits
        for nothing), anywhere (no conductor looks where the database has the guest).
    """
    rules = [
        Rule(('row',), _accept, lambda row: row.second == 'none' and row.at == 'S'),
        Rule(('net', 'host', 'row', 'left', 'right'), lambda *parts: _arrive(kind, plants, *parts), bool),
        Rule(('host', 'row'), _end, lambda host: host.job and host.up),
        Rule(('host', 'budget'), _fail),
        Rule(('host', 'row'), _start, lambda host: not host.up or host.known != host.boot),
    ]
    if kind == 'remove':
        reads = ('row', 'host', 'net', 'left', 'right', 'budget')
        rules.append(Rule(reads, lambda *parts: _bring_back(plants, *parts), lambda row: row.at == 'X'))
    for index, me in enumerate(_SIDES):
        conduct = _Conduct(index, kind, plants)
        rules += [
            Rule((me, 'row', 'host', _SIDES[1 - index]), conduct.decide, lambda one: one == Conductor()),
            Rule((me, 'net', 'budget'), conduct.send, lambda one: one.order is not None and not one.paused),
            Rule((me, 'row'), conduct.outbid, lambda one: one.refused is not None and not one.paused),
            Rule((me, 'row', 'host'), conduct.take_in, lambda one: not one.paused),
            Rule((me, 'row', 'budget'), conduct.fail),
        ]
    start = {
        'row': Row(at='S' if kind == 'restore' else 'X'),
        'host': Host(),
        'left': Conductor(),
        'right': Conductor(),
        'net': (),
        'budget': Budget(crashes, messages, 1),
    }
    return System(
        start=start,
        rules=tuple(rules),
        invariants=(),
        finished=Invariant(('row', 'host'), _over),
        quiet=Invariant(('row', 'host'), _over),
        sketch=_sketch,
    )


def _sketch(world: Mapping[str, Any]) -> str:
    row = world['row']
    return f'the cleanup is {row.cleanup}, the second migration {row.second}'


def _over(row: Row, host: Host) -> str:
    if row.cleanup == 'pending' or not host.up:
        return 'the cleanup is not done'
    if row.cleanup == 'blocked':
        return ''
    return '' if row.second in ('ended', 'none') else 'the second migration goes on'


# --- users, and S ----------------------------------------------------------------------------------------------------


def _accept(row: Row) -> Iterator[Step]:
    tenure = row.tenure + 1
    after = row._replace(tenure=tenure, second='accepted', second_tenure=tenure)
    yield Step(f'migration 2 is accepted with tenure {tenure}', {'row': after})


def _bring_back(
    plants: frozenset[str],
    row: Row,
    host: Host,
    net: tuple[Order, ...],
    left: Conductor,
    right: Conductor,
    budget: Budget,
) -> Iterator[Step]:
    # A command on its way to S cannot be called back: that is left out.
    reported = [order for order in (*net, left.order, right.order) if order is not None]
    if budget.visits and row.second == 'none' and not reported:
        held = row.cleanup == 'pending' and 'anywhere' not in plants
        cleanup = 'blocked' if held else row.cleanup
        after = row._replace(at='S', tenure=row.tenure + 1, cleanup=cleanup)
        changes = {'row': after, 'host': host._replace(has='guest'), 'budget': budget._replace(visits=0)}
        yield Step('USER the guest is brought back to S', changes, USER)


def _arrive(
    kind: str, plants: frozenset[str], net: tuple[Order, ...], host: Host, row: Row, left: Conductor, right: Conductor
) -> Iterator[Step]:
    for order in net:
        if not host.up:
            return
        rest = tuple(other for other in net if other != order)
        if order.boot != host.boot:
            yield Step(f'{order} is for another boot', {'net': rest})
            continue
        lower = order.tenure < host.seen or (order.tenure == host.seen and order.of != host.holder)
        if lower and 'no-tenure' not in plants:
            reported = {
                side: one._replace(refused=(order.of, host.seen))
                for side, one, index in (('left', left, 0), ('right', right, 1))
                if index == (row.cleanup_owner if order.of == 1 else row.second_owner) and not one.order
            }
            yield Step(f'{order} is refused: S has seen {host.seen}', {'net': rest, **reported})
            continue
        after, broken = host._replace(seen=max(order.tenure, host.seen), holder=order.of), ''
        if order.what == 'move':
            after = after._replace(job=True)
        else:
            if order.what == 'clean' and host.job:
                broken = 'a cleanup acts on a guest that another migration has in hand'
            if kind == 'remove' and row.at == 'S' and host.has == 'guest':
                broken = 'a cleanup removes the guest from where the database has it'
            after = after._replace(has='nothing' if kind == 'remove' else 'guest', cleaned=True)
        yield Step(f'S does {order}', {'host': after, 'net': rest}, broken=broken)


def _end(host: Host, row: Row) -> Iterator[Step]:
    yield Step('migration 2 has ended', {'host': host._replace(job=False), 'row': row._replace(second='ended')})


def _fail(host: Host, budget: Budget) -> Iterator[Step]:
    if host.up and budget.crashes:
        less = budget._replace(crashes=budget.crashes - 1)
        yield Step('FAULT S is killed', {'host': host._replace(up=False, cleaned=False), 'budget': less}, FAULT)


def _start(host: Host, row: Row) -> Iterator[Step]:
    if not host.up:
        fresh = host._replace(up=True, boot=host.boot + 1, seen=0, holder=0)
        yield Step('S starts', {'host': fresh})
    else:
        # The answer to compute_started has the tenure of the guest, and the migration that holds it.
        second = row.second_tenure == row.tenure
        reported = max(row.tenure, host.seen)
        yield Step(
            'S is registered', {'host': host._replace(known=host.boot, seen=reported, holder=2 if second else 1)}
        )


# --- conductors ------------------------------------------------------------------------------------------------------


class _Conduct:
    def __init__(self, index: int, kind: str, plants: frozenset[str]) -> None:
        self.index, self.side, self.kind, self.plants = index, _SIDES[index], kind, plants

    def _mine(self, owner: int, other: Conductor) -> bool:
        return owner in (self.index, NO_OWNER) or (owner == 1 - self.index and other.paused)

    def decide(self, me: Conductor, row: Row, host: Host, other: Conductor) -> Iterator[Step]:
        """A sweep: have the cleanup run, or migration 2 go on; what it commits is sent in another step."""
        going_on = row.second in ('accepted', 'clear', 'sent')
        free = not (going_on and row.at == 'S') or 'beside' in self.plants
        if row.cleanup == 'pending' and free and self._mine(row.cleanup_owner, other):
            taken = row
            if row.cleanup_owner != self.index:
                tenure = row.tenure + 1
                taken = row._replace(tenure=tenure, cleanup_tenure=tenure, cleanup_owner=self.index)
            if self.kind == 'remove' and row.at == 'S' and 'anywhere' not in self.plants:
                yield Step(f'{self.side} blocks the cleanup', {'row': taken._replace(cleanup='blocked')})
            else:
                order = Order('clean', 1, taken.cleanup_tenure, host.known)
                yield Step(f'{self.side} is to send {order}', {'row': taken, self.side: me._replace(order=order)})
        if going_on and self._mine(row.second_owner, other):
            yield from self._go_on(me, row._replace(second_owner=self.index), host)

    def _go_on(self, me: Conductor, row: Row, host: Host) -> Iterator[Step]:
        waits = row.cleanup == 'pending' and 'beside' not in self.plants
        if row.second == 'accepted' and row.cleanup == 'blocked':
            yield Step('migration 2 is stuck', {'row': row}, stuck='the cleanup is blocked')
        elif row.second == 'accepted' and not waits:
            yield Step('nothing is left at S', {'row': row._replace(second='clear')})
        elif row.second == 'accepted':
            order = Order('carry', 2, row.second_tenure, host.known)
            yield Step(f'{self.side} is to send {order}', {'row': row, self.side: me._replace(order=order)})
        else:
            order = Order('move', 2, row.second_tenure, host.known)
            reported = row._replace(second='sent')
            yield Step(f'{self.side} is to send {order}', {'row': reported, self.side: me._replace(order=order)})

    def send(self, me: Conductor, net: tuple[Order, ...], budget: Budget) -> Iterator[Step]:
        order = me.order
        assert order is not None
        sent = tuple(sorted({*net, order}))
        yield Step(f'{self.side} sends {order}', {self.side: Conductor(), 'net': sent})
        if budget.messages:
            less = budget._replace(messages=budget.messages - 1)
            yield Step(f'FAULT {order} is lost', {self.side: Conductor(), 'budget': less}, FAULT)
            # Once it arrives now, and once when it likes.
            twice = {self.side: me, 'net': sent, 'budget': less}
            yield Step(f'FAULT {order} is sent twice', twice, FAULT)

    def outbid(self, me: Conductor, row: Row) -> Iterator[Step]:
        """Raise the tenure above what S has seen, under the guard of its row."""
        assert me.refused is not None
        of, seen = me.refused
        tenure = max(row.tenure, seen) + 1
        after = row
        going_on = row.second in ('accepted', 'clear', 'sent')
        # What is refused may have been sent before it was raised.
        if of == 2 and going_on and row.second_owner == self.index and seen > row.second_tenure:
            after = row._replace(tenure=tenure, second_tenure=tenure)
        elif (
            of == 1
            and row.cleanup == 'pending'
            and row.cleanup_owner == self.index
            and seen > row.cleanup_tenure
            and not (going_on and row.at == 'S')
        ):
            after = row._replace(tenure=tenure, cleanup_tenure=tenure)
        yield Step(f'{self.side} outbids {seen}', {self.side: me._replace(refused=None), 'row': after})

    def take_in(self, me: Conductor, row: Row, host: Host) -> Iterator[Step]:
        """Take in, by the event or the next answer, that S has done the cleanup."""
        carried = row.second == 'accepted' and row.second_owner == self.index
        if host.cleaned and row.cleanup == 'pending' and (row.cleanup_owner == self.index or carried):
            yield Step(f'{self.side} takes in that it is done', {'row': row._replace(cleanup='done')})

    def fail(self, me: Conductor, row: Row, budget: Budget) -> Iterator[Step]:
        if me.paused:
            yield Step(f'{self.side} wakes', {self.side: me._replace(paused=False)})
        elif budget.crashes and me != Conductor():
            less = budget._replace(crashes=budget.crashes - 1)
            yield Step(f'FAULT {self.side} is paused', {self.side: me._replace(paused=True), 'budget': less}, FAULT)
            freed = row._replace(
                cleanup_owner=NO_OWNER if row.cleanup_owner == self.index else row.cleanup_owner,
                second_owner=NO_OWNER if row.second_owner == self.index else row.second_owner,
            )
            yield Step(f'FAULT {self.side} crashes', {self.side: Conductor(), 'row': freed, 'budget': less}, FAULT)
