# SPDX-License-Identifier: Apache-2.0

"""The model of two migrations from one source: their owners and their inbound slots.

Each destination, D and E, has one inbound slot. Two conductors take ownership (``db/conductors.py``) and choose
destinations (:func:`migrator.db.slots.take`). A transaction is two steps, between which anything may happen: it takes
its lock and reads, and it commits. The order of those that wait is the product's own :class:`migrator.db.slots.Slots`.

Left out: epochs (an owner is one boot of a conductor), a second adoption by one conductor at the same moment,
and a conductor that begins while another one adopts (``doc/source/decisions/0030-one-conductor-per-source.rst``).
"""

from __future__ import annotations

import collections
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from migrator.db import slots
from migrator.objects import MigrationStatus, MigrationType
from tests.simulation.model.search import FAULT, USER, Invariant, Rule, Step, System

NO_OWNER = 2
_SIDES, _HOSTS = ('left', 'right'), ('D', 'E')


class Row(NamedTuple):
    """A migration. ``state``: open, stuck, ended. ``kept``: a slot that a planted mistake keeps."""

    requested: str = ''
    owner: int = NO_OWNER
    dest: str = ''
    tried: str = ''
    state: str = 'open'
    kept: str = ''


class Adoption(NamedTuple):
    """A transaction that gives migrations an owner; None: it has to lock the source and to look again."""

    of: tuple[int, ...]
    owner: int | None


class Conductor(NamedTuple):
    """A conductor. ``state``: up, paused, killed. ``granted``: the host to be written, per migration."""

    state: str = 'up'
    lease: bool = True
    adoption: Adoption | None = None
    granted: tuple[str, str] = ('', '')


class Locks(NamedTuple):
    """The conductor that has locked the source, and the conductor and migration with ``slot_lock``."""

    source: int | None = None
    slots: tuple[int, int] | None = None


class Budget(NamedTuple):
    """Faults that are left: crashes of conductors, attempts that fail, migrations that get stuck."""

    crashes: int
    failures: int
    stuck: int


Rows, Both = tuple[Row, ...], tuple[Conductor, Conductor]


def system(
    budget: Budget, bounds: slots.Bounds, requested: tuple[str, str] = ('', ''), plants: frozenset[str] = frozenset()
) -> System:
    """Return the system to be searched.

    :param requested: the host that each migration requests; '': any.
    :param plants: slots-unlocked, source-unlocked (no lock), stuck-free (a stuck migration's slot is not counted),
        kept-slot (an attempt keeps its slot until the next one has another), begin-early (what is left out happens).
    """
    rules = [Rule(('rows',), _retry)]
    for index, side in enumerate(_SIDES):
        conduct = _Conduct(index, bounds, plants)
        rules += [
            Rule((*_SIDES, 'rows', 'locks'), conduct.adopt),
            Rule((*_SIDES, 'rows', 'locks'), conduct.choose),
            Rule((side, 'rows', 'budget'), conduct.go_on),
            Rule((side, 'locks', 'budget'), conduct.fail),
            Rule((*_SIDES, 'rows'), conduct.lose_lease),
        ]
    start = {'rows': tuple(Row(host) for host in requested), **dict.fromkeys(_SIDES, Conductor())}
    over = Invariant((*_SIDES, 'rows'), lambda left, right, rows: _going_on((left, right), rows, bounds))
    return System(
        start={**start, 'locks': Locks(), 'budget': budget},
        rules=tuple(rules),
        invariants=(Invariant(('rows',), _i23),),
        finished=over,
        quiet=over,
        sketch=_sketch,
    )


def _sketch(world: Mapping[str, Any]) -> str:
    return ', '.join(row.state for row in world['rows'])


def _i23(rows: Rows) -> str:
    inbound = [row.dest for row in rows if row.dest]
    return 'two migrations have an inbound slot at one host' if len(inbound) > len(set(inbound)) else ''


def _going_on(both: Both, rows: Rows, bounds: slots.Bounds) -> str:
    """Return '' if each migration has ended, is stuck, or waits for a slot that a stuck one has."""
    for of, row in enumerate(rows):
        allowance = _allowance(both, rows, bounds, of)
        waits = not row.dest and not any(allowance.has_slot(host) for host in _candidates(row))
        if row.state == 'open' and not (waits and any(other.state == 'stuck' for other in rows)):
            return 'a migration goes on, or waits for a slot that no stuck one has'
    return ''


def _retry(rows: Rows) -> Iterator[Step]:
    for of, row in enumerate(rows):
        if row.state == 'stuck':
            yield Step(f'USER retries migration {of}', {'rows': _with(rows, of, state='open')}, USER)


def _with(rows: Rows, of: int, **fields: Any) -> Rows:
    return (*rows[:of], rows[of]._replace(**fields), *rows[of + 1 :])


def _candidates(row: Row) -> list[str]:
    return [host for host in _HOSTS if host not in row.tried and row.requested in ('', host)]


def _allowance(
    both: Both, rows: Rows, bounds: slots.Bounds, of: int, plants: frozenset[str] = frozenset(), full: bool = False
) -> slots.Allowance:
    """Return what a migration may take now, from the rows as ``migrator.db.slots`` reads them."""
    taken: collections.Counter[slots.Axis] = collections.Counter(slots.into(row.kept) for row in rows if row.kept)
    all_ = [slots.Waiter(n, str(n), 'S', row.requested or None, bool(row.tried), True) for n, row in enumerate(rows)]
    waiters = []
    for row, waiter in zip(rows, all_, strict=True):
        seen: dict[str, Any] = {'source_compute': 'S', 'dest_compute': row.dest, 'dest_node': row.dest or None}
        seen |= {'migration_type': MigrationType.LIVE_MIGRATION, 'status': MigrationStatus.PREPARING, 'outcome': None}
        counted = row.state == 'open' or (row.state == 'stuck' and 'stuck-free' not in plants)
        if counted and (row.dest or row.tried):
            taken.update(slots.used_by(types.SimpleNamespace(**seen)))
        if row.state == 'open' and not row.dest and row.owner != NO_OWNER and both[row.owner].lease:
            waiters.append(waiter)
    return slots.Slots(bounds, taken, {}, waiters).allowance_of(all_[of], lambda _axis: full)


class _Conduct:
    def __init__(self, index: int, bounds: slots.Bounds, plants: frozenset[str]) -> None:
        self.index, self.side, self.bounds, self.plants = index, _SIDES[index], bounds, plants

    def adopt(self, left: Conductor, right: Conductor, rows: Rows, locks: Locks) -> Iterator[Step]:
        """Look for the holder of the source. If it has no holder, lock it and look again. Commit."""
        both = (left, right)
        me, other, doing = both[self.index], both[1 - self.index], both[self.index].adoption
        in_progress = [of for of, row in enumerate(rows) if row.state != 'ended']
        orphans = [of for of in in_progress if rows[of].owner == NO_OWNER or not both[rows[of].owner].lease]
        holders = {rows[of].owner for of in in_progress if of not in orphans}
        if me.state != 'up':
            return
        if doing is None and me.lease:
            # The message of one migration, or a sweep.
            for group in {(of,) for of in orphans} | ({tuple(orphans)} if orphans else set()):
                for owner in holders or {None if other.lease else self.index}:
                    after = me._replace(adoption=Adoption(group, owner))
                    yield Step(f'{self.side} looks for the owner of {group}: {owner}', {self.side: after})
        elif doing and doing.owner is None and (locks.source is None or 'source-unlocked' in self.plants):
            # Without a holder both conductors hold as many sources, so the caller is chosen.
            after = me._replace(adoption=doing._replace(owner=min(holders, default=self.index)))
            held = locks if 'source-unlocked' in self.plants else locks._replace(source=self.index)
            yield Step(f'{self.side} locks the source and looks again', {self.side: after, 'locks': held})
        elif doing and doing.owner is not None:
            taken = set(orphans).intersection(doing.of)
            written = tuple(row._replace(owner=doing.owner) if of in taken else row for of, row in enumerate(rows))
            freed = locks._replace(source=None) if locks.source == self.index else locks
            changes = {self.side: me._replace(adoption=None), 'rows': written, 'locks': freed}
            i24 = taken and both[doing.owner].lease and holders and doing.owner not in holders
            broken = 'a conductor gets a migration of a source that another living one holds' if i24 else ''
            yield Step(f'{self.side} commits the owner {doing.owner} of {taken}', changes, broken=broken)

    def choose(self, left: Conductor, right: Conductor, rows: Rows, locks: Locks) -> Iterator[Step]:
        """Choose a destination: lock the slots, count them, and commit."""
        both, unlocked = (left, right), 'slots-unlocked' in self.plants
        me = both[self.index]
        for of, row in enumerate(rows) if me.state == 'up' else ():
            mine = row.owner == self.index and row.state == 'open' and not row.dest
            if me.granted[of]:
                written = _with(rows, of, dest=me.granted[of], kept='') if mine else rows
                freed = locks._replace(slots=None) if locks.slots == (self.index, of) else locks
                changes = {self.side: self._granted(me, of, ''), 'rows': written, 'locks': freed}
                yield Step(f'{self.side} commits host {me.granted[of]} of migration {of}', changes)
            elif mine and me.lease and (locks.slots is None or unlocked):
                # Time is left out: each axis may have had no free slot a short while ago, or not.
                allowances = [_allowance(both, rows, self.bounds, of, self.plants, full) for full in (False, True)]
                for host in _candidates(row):
                    if any(allowance.has_slot(host) for allowance in allowances):
                        held = locks if unlocked else locks._replace(slots=(self.index, of))
                        changes = {self.side: self._granted(me, of, host), 'locks': held}
                        yield Step(f'{self.side} counts a free slot at {host} for migration {of}', changes)

    @staticmethod
    def _granted(me: Conductor, of: int, host: str) -> Conductor:
        return me._replace(granted=(host, me.granted[1]) if of == 0 else (me.granted[0], host))

    def go_on(self, me: Conductor, rows: Rows, budget: Budget) -> Iterator[Step]:
        """Commit what becomes of a migration at its destination."""
        for of, row in enumerate(rows):
            if row.owner != self.index or me.state != 'up' or row.state != 'open' or not row.dest:
                continue
            yield Step(f'migration {of} has ended', {'rows': _with(rows, of, state='ended', dest='')})
            if budget.failures:
                kept, tried = row.dest if 'kept-slot' in self.plants else '', row.tried + row.dest
                again = {'tried': tried, 'kept': kept} if _candidates(row._replace(tried=tried)) else {'state': 'ended'}
                less = budget._replace(failures=budget.failures - 1)
                changes = {'rows': _with(rows, of, dest='', **again), 'budget': less}
                yield Step(f'FAULT migration {of} fails at {row.dest}', changes, FAULT)
            if budget.stuck:
                less = budget._replace(stuck=budget.stuck - 1)
                yield Step(
                    f'FAULT migration {of} is stuck', {'rows': _with(rows, of, state='stuck'), 'budget': less}, FAULT
                )

    def fail(self, me: Conductor, locks: Locks, budget: Budget) -> Iterator[Step]:
        if me.state == 'paused':
            yield Step(f'{self.side} wakes', {self.side: me._replace(state='up')})
        elif me.state == 'up' and budget.crashes:
            source = None if locks.source == self.index else locks.source
            rolled_back = Locks(source, None if locks.slots and locks.slots[0] == self.index else locks.slots)
            changes = {'locks': rolled_back, 'budget': budget._replace(crashes=budget.crashes - 1)}
            yield Step(f'FAULT {self.side} is killed', {self.side: Conductor('killed'), **changes}, FAULT)
            changes['locks'] = locks
            yield Step(f'FAULT {self.side} is paused', {self.side: me._replace(state='paused'), **changes}, FAULT)

    def lose_lease(self, left: Conductor, right: Conductor, rows: Rows) -> Iterator[Step]:
        """Let the lease of a conductor end that does not run, and begin the next boot."""
        me, other = (left, right) if self.index == 0 else (right, left)
        if me.lease and me.state != 'up':
            yield Step(f'the lease of {self.side} ends', {self.side: me._replace(lease=False)})
        elif not me.lease and me.state != 'paused' and not (me.adoption or any(me.granted)):
            if other.adoption and 'begin-early' not in self.plants:
                return
            freed = tuple(row._replace(owner=NO_OWNER) if row.owner == self.index else row for row in rows)
            yield Step(f'{self.side} begins its next boot', {self.side: Conductor(), 'rows': freed})
