# SPDX-License-Identifier: Apache-2.0

"""Slots: how many migrations may come in at a host, be in progress, or be prepared at a source.

A migration takes its slots in the commit that chooses its destination, and keeps them until it ends. No table has the
slots: the rows of the migrations in progress are counted. See ``doc/source/decisions/0027-slots.rst``.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg

from migrator import exception, executors
from migrator.db import models
from migrator.db.sql import columns
from migrator.db.sql.drain_rows import DRAINS, MEMBERS
from migrator.db.sql.engine import Engine
from migrator.db.sql.statements import Prepared
from migrator.drain import forecast
from migrator.objects import ARRIVED, COMPUTE_BINARY, Migration, MigrationStatus, MigrationType
from migrator.objects.drain import MemberStatus
from migrator.objects.reasons import WaitKind

_T = models.MIGRATIONS
_S = models.SERVICES
_IN_PROGRESS = models.IN_PROGRESS
#: The API writes a requested destination when it accepts a migration, but never its node. A migration that tries
#: another destination has none for a moment, and keeps its slots of the cluster and of the source.
_ADMITTED = sa.or_(_T.c.dest_node.is_not(None), _T.c.attempt > 1)
_WAITS = sa.and_(
    _IN_PROGRESS,
    _T.c.dest_node.is_(None),
    # Without a wait, its conductor has not looked yet. A younger one must not take its slot meanwhile.
    sa.or_(_T.c.wait_kind.is_(None), _T.c.wait_kind == WaitKind.SLOT.value),
    _T.c.stuck_kind.is_(None),
    _T.c.abort_requested_at.is_(None),
    _T.c.abandon_requested_at.is_(None),
    # The next owner looks soon. Without one the migration must not hold back others.
    models.alive(_T.c.owner),
)
_ADMITTED_ROWS = Prepared(
    sa.select(
        *(_T.c.source_compute, _T.c.dest_compute, _T.c.dest_node, _T.c.migration_type, _T.c.status, _T.c.outcome),
        sa.func.count().label('number'),
    )
    .where(_IN_PROGRESS, _ADMITTED)
    .group_by(*(_T.c.source_compute, _T.c.dest_compute, _T.c.dest_node, _T.c.migration_type, _T.c.status, _T.c.outcome))
)
_WAITERS = Prepared(
    sa.select(
        *(_T.c.id, _T.c.uuid, _T.c.source_compute, _T.c.requested_host, _T.c.attempt, _T.c.migration_type),
        *(_T.c.drain, _T.c.priority, _T.c.created_at, _S.c.slots),
    )
    .outerjoin(_S, sa.and_(_S.c.host == _T.c.source_compute, _S.c.binary == COMPUTE_BINARY))
    .where(_WAITS)
)

_KINDS = (_T.c.source_compute, _T.c.dest_compute, _T.c.dest_node, _T.c.attempt, _T.c.status, _T.c.outcome)
_BY_HOST = Prepared(
    sa.select(*_KINDS, _T.c.migration_type, sa.func.count().label('number'))
    .where(_IN_PROGRESS)
    .group_by(*_KINDS, _T.c.migration_type)
)

#: The newest migrations that have completed. Other conditions would make the database read on until enough meet them.
_COMPLETED = Prepared(
    sa.select(
        *(_T.c.drain, _T.c.source_compute, _T.c.dest_compute, _T.c.migration_type),
        *(_T.c.running_at, _T.c.updated_at, models.INSTANCES.c.flavor),
    )
    .outerjoin(models.INSTANCES, models.INSTANCES.c.uuid == _T.c.instance_uuid)
    .where(_T.c.status == MigrationStatus.COMPLETED.value)
    .order_by(_T.c.created_at.desc(), _T.c.id.desc())
    .limit(forecast.RECORDED)
)

#: The live migrations that copy.
_COPYING = Prepared(
    sa.select(_T.c.source_compute, _T.c.dest_compute, _T.c.running_at).where(
        _IN_PROGRESS,
        _T.c.migration_type == MigrationType.LIVE_MIGRATION.value,
        _T.c.status.in_([status.value for status in forecast.MOVING]),
        _T.c.running_at.is_not(None),
    )
)
_LIMIT = Prepared(sa.select(_S.c.slots).where(_S.c.host == sa.bindparam('of'), _S.c.binary == COMPUTE_BINARY))
_LIMITS = Prepared(
    sa.select(_S.c.host, _S.c.slots).where(
        _S.c.binary == COMPUTE_BINARY, _S.c.host.in_(sa.bindparam('hosts', expanding=True))
    )
)
_NOW = Prepared(sa.select(columns.now()))
_LOCK = Prepared(sa.update(models.SLOT_LOCK).values(taken=models.SLOT_LOCK.c.taken + 1))

#: How many drains are read for the times that their guests took.
_NEWEST_DRAINS = 20

#: A bounded number: its kind, and the host if the kind has one.
Axis = tuple[str, str]
CLUSTER: Axis = ('cluster', '')


def into(host: str) -> Axis:
    """Return the axis of what comes in at a host."""
    return ('inbound', host)


def out_of(host: str) -> Axis:
    """Return the axis of what leaves a host."""
    return ('source', host)


#: The bounds for the guests of drains, unless the site has others: per destination, and per source beyond its
#: ``max_concurrent_live_migrations``. So a guest that has to wait holds no prepared destination.
INBOUND_OF_DRAINS, AHEAD_OF_DRAINS = 2, 1
#: Seconds by which each step of a drain's priority brings its guests forward in the order. Those of a lower priority
#: wait for so much longer, and no longer.
AGEING = 600.0
#: Seconds by which each slot that a drained host has moves its further guests back in the order.
SHARE = 60.0


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The bounds of the configuration.

    :ivar inbound: per destination; 0: no bound.
    :ivar cluster: in the whole cluster; 0: no bound.
    :ivar ahead: per source, beyond its ``max_concurrent_live_migrations``; -1: no bound.
    """

    inbound: int = 0
    cluster: int = 0
    ahead: int = -1

    @classmethod
    def of(cls, conf: cfg.ConfigOpts) -> Bounds:
        """Return the bounds of a configuration."""
        return cls(
            inbound=conf.max_concurrent_inbound_live_migrations,
            cluster=conf.conductor.max_cluster_live_migrations,
            ahead=conf.conductor.prepare_ahead,
        )

    def at_once(self, limit: int) -> int:
        """Return the lower of a limit of migrations that run at once and of the bound of the cluster."""
        return min(limit, self.cluster or limit)

    def of_drains(self) -> Bounds:
        """Return the bounds for the guests of drains, which have some where the site has none."""
        return dataclasses.replace(
            self, inbound=self.inbound or INBOUND_OF_DRAINS, ahead=AHEAD_OF_DRAINS if self.ahead < 0 else self.ahead
        )


@dataclasses.dataclass(frozen=True)
class Waiter:
    """A migration that wants slots: one that waits for them, or one whose destination is being chosen."""

    id: int
    uuid: str
    source: str
    requested_host: str | None
    is_retry: bool
    is_live: bool
    #: Whether a drain has requested it.
    is_drained: bool = False
    #: When it was accepted, in seconds, less the priority of its drain.
    since: float = 0.0

    @classmethod
    def of(cls, row: Any) -> Waiter:
        """Return a row of ``migrations``, or a migration, as a waiter."""
        is_live = row.migration_type == MigrationType.LIVE_MIGRATION
        since = (row.created_at.timestamp() if row.created_at else 0.0) - AGEING * row.priority
        of = (row.source_compute, row.requested_host, row.attempt > 1, is_live, row.drain is not None, since)
        return cls(row.id, row.uuid, *of)

    @property
    def axes(self) -> list[Axis]:
        """The axes on which it needs a slot, except for a destination of its own choice.

        Only a live migration leaves a queue and copies memory. A next attempt has kept the other slots.
        """
        found = [] if not self.is_live or self.is_retry else [CLUSTER, out_of(self.source)]
        return found if self.requested_host is None else [*found, into(self.requested_host)]


class Watch:
    """When each axis last had no free slot, as one conductor has seen it.

    :ivar limits: host -> the ``max_concurrent_live_migrations`` that this conductor has written last.
    """

    def __init__(self, clock: executors.Clock) -> None:
        self._clock = clock
        self._full_at: dict[Axis, float] = {}
        self.limits: dict[str, int] = {}
        self._since = self._seen_at = self._while = -math.inf

    def note(self, slots: Slots, interval: float) -> None:
        """Note the slots at this moment.

        :param interval: seconds between two looks of each conductor at those that wait.
        """
        now = self._clock.monotonic()
        if now - self._seen_at > interval:
            # It is not known what happened since the last look.
            self._since = now
        self._seen_at, self._while = now, 2 * interval
        self._full_at |= dict.fromkeys(slots.full(), now)

    def was_full(self, axis: Axis) -> bool:
        """Return whether an axis may have had no free slot since each conductor last looked."""
        return self._clock.monotonic() - max(self._since, self._full_at.get(axis, -math.inf)) < self._while


class Slots:
    """The slots at one moment: those that are taken, and the migrations that wait for one.

    :param limits: host -> its ``max_concurrent_live_migrations``.
    """

    def __init__(
        self, bounds: Bounds, taken: Mapping[Axis, int], limits: Mapping[str, int], waiters: Iterable[Waiter]
    ) -> None:
        self._taken, self._limits = taken, limits
        #: Whether a drain has requested a migration -> the bounds for it.
        self._bounds = {False: bounds, True: bounds.of_drains()}
        self.waiters = sorted(waiters, key=self._place)

    def _place(self, one: Waiter) -> tuple[bool, bool, float, int]:
        """Return the sort key of a waiter.

        What its source can run at once comes before what is only prepared ahead. Then the oldest comes first, where a
        priority counts as age, and each slot of a drained host as the opposite.
        """
        runs_at_once = not one.is_live or self._taken.get(out_of(one.source), 0) < self._limits.get(one.source, 1)
        share = self._taken.get(out_of(one.source), 0) if one.is_drained else 0
        return (not one.is_retry, not runs_at_once, one.since + SHARE * share, one.id)

    def _bound(self, axis: Axis, is_drained: bool) -> int | None:
        (kind, host), bounds = axis, self._bounds[is_drained]
        if kind == 'inbound':
            return bounds.inbound or None
        if kind == 'cluster':
            return bounds.cluster or None
        return None if bounds.ahead < 0 else self._limits.get(host, 1) + bounds.ahead

    def is_full(self, axis: Axis, kept: int = 0, is_drained: bool = False) -> bool:
        """Return whether an axis has no free slot.

        :param kept: the number of free slots that are kept for others.
        :param is_drained: whether the slot is for a guest of a drain.
        """
        bound = self._bound(axis, is_drained)
        return bound is not None and self._taken.get(axis, 0) + kept >= bound

    def full(self) -> Iterator[Axis]:
        """Yield the axes without a free slot."""
        is_drained = any(one.is_drained for one in self.waiters)
        return (axis for axis in self._taken if self.is_full(axis, is_drained=is_drained))

    def allowance_of(self, one: Waiter, was_full: Callable[[Axis], bool]) -> Allowance:
        """Return what a migration may take now.

        A free slot is kept for each earlier migration that waits for it and could take it. One that has requested no
        host may find no candidate there, so a slot is kept for it only for a while.

        :param was_full: whether an axis had no free slot a short while ago.
        """
        kept: collections.Counter[Axis] = collections.Counter()
        choosers: list[Waiter] = []
        place = self._place(one)
        for other in self.waiters:
            if self._place(other) >= place:
                break
            axes = other.axes
            if other.uuid == one.uuid or any(self.is_full(axis, kept[axis], other.is_drained) for axis in axes):
                continue
            if other.requested_host is None:
                choosers.append(other)
                axes = [axis for axis in axes if was_full(axis)]
            kept.update(axes)
        return Allowance(self, one, kept, choosers, was_full)

    def due(self, candidates: Mapping[str, Sequence[str]]) -> Iterator[str]:
        """Yield those of some migrations that may find their slots free now, in their order.

        :param candidates: uuid -> the candidates of the migration that had no free slot; empty: not known.
        """
        kept: collections.Counter[Axis] = collections.Counter()
        for one in self.waiters:
            axes = one.axes
            if any(self.is_full(axis, kept[axis], one.is_drained) for axis in axes):
                continue
            hosts = candidates.get(one.uuid)
            if one.requested_host is None and hosts:
                into_hosts = ((host, into(host)) for host in hosts)
                free = next(
                    (host for host, axis in into_hosts if not self.is_full(axis, kept[axis], one.is_drained)), None
                )
                if free is None:
                    continue
                axes = [*axes, into(free)]
            kept.update(axes)
            if hosts is not None:
                yield one.uuid

    def explain(self, axis: Axis, kept: int, is_drained: bool) -> str:
        """Return in words which slot is not free, how many are taken, and the bound."""
        kind, host = axis
        what = {
            'inbound': f'an inbound slot at {host}',
            'cluster': 'a slot of the cluster',
            'source': f'a slot at source {host}',
        }[kind]
        older = f', and {kept} kept for earlier migrations' if kept else ''
        return f'{what}: {self._taken.get(axis, 0)} of {self._bound(axis, is_drained)}{older}'


@dataclasses.dataclass(frozen=True)
class Allowance:
    """What one migration may take now.

    :ivar kept: axis -> the number of free slots that are kept for earlier migrations.
    :ivar choosers: the earlier migrations that could take a slot at any of their candidates.
    """

    slots: Slots
    one: Waiter
    kept: collections.Counter[Axis]
    choosers: Sequence[Waiter]
    was_full: Callable[[Axis], bool]

    def check(self, host: str | None) -> None:
        """Raise unless the migration may take its slots now.

        :param host: the destination; None: it is not chosen yet.
        :raises migrator.exception.NoSlot: a slot is not free, or is kept for an earlier migration.
        """
        for axis in dataclasses.replace(self.one, requested_host=host).axes:
            kept = self.kept[axis]
            if axis[0] == 'inbound' and self.choosers and self.was_full(axis):
                kept += sum(other.source != host for other in self.choosers)
            drained = self.one.is_drained
            if self.slots.is_full(axis, kept, drained):
                shown = 0 if self.slots.is_full(axis, 0, drained) else kept
                raise exception.NoSlot(
                    what=self.slots.explain(axis, shown, drained), hosts=[axis[1]] if axis[1] else []
                )

    def has_slot(self, host: str) -> bool:
        """Return whether the migration may take a host as its destination now."""
        try:
            self.check(host)
        except exception.NoSlot:
            return False
        return True


@dataclasses.dataclass(frozen=True)
class Request:
    """The slots that a commit takes, together with the destination that it writes."""

    bounds: Bounds
    was_full: Callable[[Axis], bool]


@dataclasses.dataclass
class Load:
    """How many slots of a host the migrations in progress use.

    :ivar limit: how many live migrations may leave the host at once, as it has reported.
    :ivar running: how many of them copy their memory now.
    :ivar prepared: how many have a destination and do not copy yet.
    :ivar waiting: how many wait for a slot, and hold nothing.
    :ivar inbound: how many migrations have the host as their destination.
    """

    limit: int = 1
    running: int = 0
    prepared: int = 0
    waiting: int = 0
    inbound: int = 0

    @property
    def is_busy(self) -> bool:
        """Whether any migration in progress uses it or waits for it."""
        return self.running + self.prepared + self.waiting + self.inbound > 0


class SlotReader:
    """The slots, as counted from the rows of ``migrations``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def read(self, bounds: Bounds, source: str | None = None) -> Slots:
        """Return the slots at this moment.

        :param source: the source of a migration that wants slots and does not wait yet.
        """
        with self._engine.reader() as session:
            return _read(session, bounds, source)

    def loads(self) -> dict[str, Load]:
        """Return compute host -> its slots in use, for every host with a compute service."""
        services = sa.select(_S.c.host, _S.c.slots).where(_S.c.binary == COMPUTE_BINARY)
        with self._engine.reader() as session:
            found = {row.host: Load(row.slots or 1) for row in session.execute(services)}
            rows = session.execute(_BY_HOST).all()
        for row in rows:
            destination, source = found.get(row.dest_compute), found.get(row.source_compute)
            if destination is not None and row.dest_node is not None and row.status not in ARRIVED:
                destination.inbound += row.number
            if source is None or row.migration_type != MigrationType.LIVE_MIGRATION:
                continue
            if row.dest_node is None and row.attempt == 1:
                source.waiting += row.number
            elif row.status in (MigrationStatus.RUNNING, MigrationStatus.RUNNING_POST_COPY):
                source.running += row.number
            elif row.outcome is None:
                source.prepared += row.number
        return found

    def limit_of(self, host: str) -> int:
        """Return how many live migrations may leave a host at once, as it has reported; 1 if it has not."""
        with self._engine.reader() as session:
            return int(session.execute(_LIMIT, {'of': host}).scalar() or 1)

    def recorded(
        self, hosts: Sequence[str]
    ) -> tuple[datetime.datetime, dict[str, int], list[forecast.Past], list[forecast.Past]]:
        """Return what forecasts follow from: the time, host -> its limit, what has completed, what runs.

        :returns: the limit is how many live migrations may leave the host at once; a host that has not reported it is
            left out.
        """
        with self._engine.reader() as session:
            now = columns.aware(session.execute(_NOW).scalar_one())
            rows = session.execute(_LIMITS, {'hosts': [*hosts]}) if hosts else ()
            limits = {row.host: int(row.slots) for row in rows if row.slots}
            rows = session.execute(_COMPLETED).all()
            copying = session.execute(_COPYING).all()
            if not rows:  # another control plane may move the guests
                return now, limits, _moved_by_drains(session), []
        past = [
            forecast.Past(
                row.drain or row.source_compute,
                int(row.flavor['memory_mb']),
                (row.updated_at - row.running_at).total_seconds(),
                row.source_compute,
                row.running_at.timestamp(),
                row.dest_compute or '',
            )
            for row in rows
            if row.migration_type == MigrationType.LIVE_MIGRATION and row.flavor is not None
            if row.running_at is not None and row.updated_at is not None
        ]
        running = [
            forecast.Past(
                row.source_compute,
                0,
                max(0.0, (now - row.running_at).total_seconds()),
                row.source_compute,
                row.running_at.timestamp(),
                row.dest_compute or '',
            )
            for row in copying
        ]
        return now, limits, past, running


_D, _P = DRAINS.c, MEMBERS.c
#: The others may have moved guests that were shut off.
_NEWEST_UUIDS = Prepared(
    sa.select(_D.uuid)
    .where(_D.include_stopped.is_(False))
    .order_by(_D.created_at.desc(), _D.id.desc())
    .limit(_NEWEST_DRAINS)
)
_MOVED_AT_ONCE = Prepared(
    sa.select(MEMBERS)
    .where(_P.drain.in_(sa.bindparam('uuids', expanding=True)))
    .where(_P.status == MemberStatus.MOVED.value, _P.attempts == 1, _P.began_at.is_not(None), _P.ended_at.is_not(None))
    .order_by(_P.ended_at.desc())
    .limit(forecast.RECORDED)
)


def _moved_by_drains(session: Any) -> list[forecast.Past]:
    """Return how long the guests took that the newest drains have moved at the first attempt."""
    uuids = session.execute(_NEWEST_UUIDS).scalars().all()
    return [
        forecast.Past(
            row.drain,
            row.size_mb,
            (row.ended_at - row.began_at).total_seconds(),
            row.source,
            row.began_at.timestamp(),
        )
        for row in session.execute(_MOVED_AT_ONCE, {'uuids': uuids})
    ]


def take(session: Any, known: Migration, fields: Mapping[str, Any], request: Request) -> None:
    """Raise unless a migration may take its slots in this transaction, which writes its destination.

    Transactions that take slots run one after the other, from here to their commit.

    :param fields: what the transaction writes, with the destination.
    :raises migrator.exception.NoSlot: a slot is not free, or is kept for an earlier migration.
    """
    # An update, and no SELECT FOR UPDATE: under a stricter isolation level it fails if another one was faster.
    session.execute(_LOCK)
    slots = _read(session, request.bounds, known.source_compute)
    slots.allowance_of(Waiter.of(known), request.was_full).check(fields['dest_compute'])


def used_by(row: Any) -> list[Axis]:
    """Return the axes on which a migration in progress uses a slot.

    :param row: a row of ``migrations``, or a migration, that has chosen a destination once.
    """
    found = [into(row.dest_compute)] if row.dest_node is not None and row.status not in ARRIVED else []
    if row.migration_type == MigrationType.LIVE_MIGRATION:
        found.append(CLUSTER)
        if row.outcome is None or row.status == MigrationStatus.RUNNING_POST_COPY:
            found.append(out_of(row.source_compute))
    return found


def _read(session: Any, bounds: Bounds, source: str | None) -> Slots:
    taken: collections.Counter[Axis] = collections.Counter()
    for row in session.execute(_ADMITTED_ROWS):
        for axis in used_by(row):
            taken[axis] += row.number
    waiting = session.execute(_WAITERS).all()
    waiters = [Waiter.of(row) for row in waiting]
    limits = {row.source_compute: row.slots or 1 for row in waiting}
    if source is not None and source not in limits:
        limits[source] = session.execute(_LIMIT, {'of': source}).scalar() or 1
    return Slots(bounds, taken, limits, waiters)
