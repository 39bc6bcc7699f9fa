# SPDX-License-Identifier: Apache-2.0

"""The database as one object, with an attribute for each noun; flavors; the purge of old migrations.

A migration stays while it is in progress, while a pending cleanup names it, and while it has the highest tenure of its
instance. A host that starts is sent that tenure, and :func:`migrator.db.cleanups.tenure_after_all` counts on from it
when a deleted instance is created again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry

from migrator import exception, executors
from migrator.db import (
    actions,
    cleanups,
    conductors,
    drains,
    instances,
    machines,
    migrations,
    models,
    services,
    slots,
)
from migrator.db.guests import definitions, differences
from migrator.db.maintenances.store import Maintenances
from migrator.db.sql import beginnings, columns, due
from migrator.db.sql.engine import Engine, OneSession, retried
from migrator.drain import forecast
from migrator.objects import FINAL, Flavor, Migration
from migrator.objects.drain import Direction, Drain, Member, MemberStatus

_T, _L = models.MIGRATIONS, models.SAGA_LOG
_A, _D, _F, _N = models.INSTANCE_ACTIONS, models.CLEANUPS, models.FLAVORS, models.NOTIFIED
_FINAL = [status.value for status in FINAL]
#: Is called with the number of rows that were deleted.
Advance = Callable[[int], None]
#: Why the end of a guest that moves while it is shut off is not known, nor that of its drain.
_COLD = 'A guest that is shut off moves by a cold migration. How long one takes is not recorded.'


class Database:
    """All tables.

    :param connection: an SQLAlchemy URL; SQLite serves a single process only.
    :param threads: the source of uuids, and of SQLite's time.
    :param engine: an engine to share; without it a new one is opened.
    :param options: further ``[database]`` options of oslo.db.
    """

    def __init__(
        self, connection: str, threads: executors.Threads, engine: Engine | None = None, **options: Any
    ) -> None:
        self.threads = threads
        self.engine = engine or Engine(connection, threads, **options)
        self.instances = instances.Instances(self.engine)
        self.definitions = definitions.Definitions(self.engine)
        self.differences = differences.Differences(self.engine)
        self.migrations = migrations.Migrations(self.engine, threads)
        self.takeovers = conductors.Takeovers(self.engine)
        self.slots = slots.SlotReader(self.engine)
        self.services = services.Services(self.engine, threads)
        self.conductors = conductors.Conductors(self.engine, self.services)
        self.requests = actions.Requests(self.engine)
        self.cleanups = cleanups.Cleanups(self.engine)
        self.actions = actions.Actions(self.engine)
        self.drains = drains.Drains(self.engine)
        self.purge = Purge(self.engine)

    @property
    def maintenances(self) -> Maintenances:
        """The maintenances of hosts."""
        return Maintenances(self.engine)

    @property
    def machines(self) -> machines.Machines:
        """The machines of compute hosts, and those that were refused."""
        return machines.Machines(self.engine)

    @property
    def flavors(self) -> Flavors:
        """The flavors that guests can be resized to, beside those that guests have."""
        return Flavors(self.engine)

    @contextlib.contextmanager
    def one_session(self) -> Iterator[Database]:
        """Yield a database that only reads, and that reads everything in one session."""
        with self.engine.reader() as session:
            held: Any = OneSession(session)
            yield Database('', self.threads, engine=held)

    def due(self, owner: str, kept: float) -> due.Due:
        """Return what a sweep of a conductor has to read now; see :func:`migrator.db.sql.due.read`."""
        return due.read(self.engine, owner, kept)

    def knows_host(self, name: str) -> bool:
        """Return whether a service or any row of another table names a host, which may be deleted by now."""
        return bool(
            self.services.list(host=name)
            or self.instances.list({'host': name}, limit=1)
            or self.migrations.list({'host': name}, limit=1)
            or self.drains.list(name, limit=1)
            or self.cleanups.list(host=name)
        )

    def beginnings(self, table: str, text: str) -> list[str]:
        """Return the uuids of a table that begin with a text of at least four characters."""
        return beginnings.uuids(self.engine, models.Base.metadata.tables[table], text)

    def places(
        self, bounds: slots.Bounds, found: Sequence[Migration]
    ) -> tuple[datetime.datetime, dict[str, forecast.Place]]:
        """Return the present time, and uuid -> the place of a migration in its queue, with its times.

        Other migrations that leave the same hosts are in the result too. Those of one host are in their order.
        """
        sources = sorted({one.source_compute for one in found if one.in_progress})
        leaving = self.migrations.list({'source_compute': sources}, in_progress=True) if sources else []
        # Some may have ended since they were read.
        rows = {one.uuid: one for one in [*found, *leaving]}
        guests = sorted({one.instance_uuid for one in rows.values()})
        sizes = {one.uuid: one.flavor.memory_mb for one in self.instances.list({'uuid': guests})} if guests else {}
        by_source: dict[str, list[Migration]] = {}
        for one in rows.values():
            by_source.setdefault(one.source_compute, []).append(one)
        now, limits, past, running = self.slots.recorded(sources)
        places: dict[str, forecast.Place] = {}
        for source, each in by_source.items():
            at_once = bounds.at_once(limits.get(source, 1))
            outlook = forecast.Outlook(now, at_once, past, running, bounds.inbound)
            places |= forecast.of_host(outlook, each, sizes)
        return now, places

    def places_of_drain(
        self, bounds: slots.Bounds, drain: Drain, members: Sequence[Member]
    ) -> tuple[datetime.datetime, forecast.Expected, dict[str, forecast.Place], list[Migration]]:
        """Return the present time, and the expected times of a drain and of each member by its guest.

        :param members: all of the drain.
        :returns: also the newest migrations of the members that move.
        """
        marks = [member.mark for member in members if member.status == MemberStatus.MOVING and member.mark]
        rows = self.migrations.list({'uuid': marks}) if marks else []
        now, limits, past, running = self.slots.recorded([drain.host])
        is_back = drain.direction == Direction.BACK and bool(limits)
        inbound = bounds.of_drains().inbound
        # A host of another control plane has reported no limit.
        at_once = inbound if is_back else limits.get(drain.host, drain.parallel or 1)
        outlook = forecast.Outlook(now, bounds.at_once(at_once), past, running, inbound)
        cold = self._cold(drain, members, rows)
        live = [one for one in members if one.instance_uuid not in cold]
        whole, places = forecast.of_drain(outlook, drain, live, rows)
        unknown = forecast.Expected(reason=_COLD)
        places |= {uuid: forecast.Place(None, one.reason, unknown) for uuid, one in cold.items()}
        return now, unknown if cold and not drain.paused else whole, places, rows

    def _cold(self, drain: Drain, members: Sequence[Member], rows: Iterable[Migration]) -> dict[str, Member]:
        """Return the members of a drain that move while they are shut off, and those that wait for that."""
        if drain.ended or not drain.include_stopped:
            return {}
        cold = {row.instance_uuid for row in rows if row.is_cold and row.in_progress}
        # The migrations of another control plane have no rows here.
        going = {MemberStatus.WAITING, MemberStatus.MOVING} if not rows else {MemberStatus.WAITING}
        cold |= {one.instance_uuid for one in members if one.is_cold and one.status in going}
        return {one.instance_uuid: one for one in members if one.instance_uuid in cold}

    def retry(self, migration: Migration, blocked: Sequence[cleanups.Cleanup], who: str) -> None:
        """Request that a stuck migration is observed again, or unblock the cleanups of an ended one.

        :param blocked: the blocked cleanups of a migration that has ended.
        :param who: the user who requests it, for the timeline.
        :raises migrator.exception.NotStuck: the migration is no longer stuck, or it is being abandoned.
        """
        if migration.ended:
            self.cleanups.try_again(blocked)
        else:
            self.requests.request_retry(migration, who)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


class Flavors:
    """The rows of ``flavors``, beside those that guests have (:meth:`.instances.Instances.flavors`)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def list(self) -> list[Flavor]:
        """Return the flavors, by name."""
        with self._engine.reader() as session:
            return [Flavor(**row.flavor) for row in session.execute(sa.select(_F).order_by(_F.c.name))]

    def create(self, flavor: Flavor) -> None:
        """Add a flavor.

        :raises migrator.exception.Conflict: a flavor has this name.
        """
        try:
            with self._engine.writer() as session:
                session.execute(sa.insert(_F).values(name=flavor.name, flavor=flavor))
        except DBDuplicateEntry:
            raise exception.Conflict(
                f'Flavor {flavor.name} already exists: delete it first, or choose another name.'
            ) from None

    def delete(self, name: str) -> None:
        """Delete a flavor. The guests that have it keep it.

        :raises migrator.exception.NotFound: no flavor has this name.
        """
        with self._engine.writer() as session:
            if not session.execute(sa.delete(_F).where(_F.c.name == name)).rowcount:
                raise exception.NotFound(f'Flavor {name} could not be found: look at "flavor list".')


@dataclasses.dataclass(frozen=True)
class Purged:
    """The number of deleted rows of each table."""

    migrations: int = 0
    saga_log: int = 0
    instance_actions: int = 0

    def __add__(self, other: Purged) -> Purged:
        return Purged(*(getattr(self, field.name) + getattr(other, field.name) for field in dataclasses.fields(self)))


#: Migrations that one transaction deletes, so that no other transaction waits long for it.
PURGE_BATCH = 100
#: The same for drains.
_DRAINS_BATCH = 50
#: Seconds for which a migration is kept whose notifications could not be sent. Then they are dropped.
_UNSENT = 24 * 3600.0


def _ended(before: datetime.datetime) -> Any:
    # No write changes a migration after it has ended. Nearly all have such a status, so its index does not help.
    return sa.and_(columns.unindexed(_T.c.status).in_(_FINAL), models.ENDED, _T.c.changed_at < before)


def _purgeable(before: datetime.datetime) -> Any:
    other = _T.alias()
    later = sa.or_(other.c.tenure > _T.c.tenure, sa.and_(other.c.tenure == _T.c.tenure, other.c.id > _T.c.id))
    is_unsent = sa.exists().where(_N.c.migration == _T.c.uuid, _N.c.open == sa.true())
    return sa.and_(
        _ended(before),
        # Its notifications are sent for a day.
        sa.or_(_T.c.changed_at < columns.later(-_UNSENT), ~is_unsent),
        ~sa.exists().where(_D.c.migration_uuid == _T.c.uuid),
        sa.exists().where(other.c.instance_uuid == _T.c.instance_uuid, later),
    )


class Purge:
    """The purge of migrations in batches, each in one short transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def count(self, before: datetime.datetime) -> tuple[int, int]:
        """Return how many migrations that ended before a time can be purged, and how many have to stay."""
        with self._engine.reader() as session:
            ended, found = (
                int(session.execute(sa.select(sa.func.count(_T.c.id)).where(which)).scalar_one())
                for which in (_ended(before), _purgeable(before))
            )
        return found, ended - found

    def next(self, before: datetime.datetime, after: int, count: int) -> list[int]:
        """Return the ids of the next migrations to purge, the oldest first.

        :param after: the last id of the previous batch; 0 for the first batch.
        :param count: the maximum number of ids.
        """
        query = sa.select(_T.c.id).where(_T.c.id > after, _purgeable(before)).order_by(_T.c.id).limit(count)
        with self._engine.reader() as session:
            return [int(id_) for (id_,) in session.execute(query)]

    @retried
    def delete(self, before: datetime.datetime, ids: Sequence[int]) -> Purged:
        """Delete those of the given migrations that can still be purged, in one transaction."""
        query = sa.select(_T.c.id, _T.c.uuid).where(_T.c.id.in_(list(ids)), _purgeable(before))
        with self._engine.writer() as session:
            # Two purges lock the rows in the same order, so that they cannot deadlock.
            found = session.execute(query.order_by(_T.c.id).with_for_update()).all()
            uuids = [row.uuid for row in found if row.uuid is not None]
            which = (_T.c.id.in_([row.id for row in found]), _L.c.migration.in_(uuids), _A.c.migration_uuid.in_(uuids))
            gone: list[Any] = [session.execute(sa.delete(each.left.table).where(each)) for each in which]
            session.execute(sa.delete(_N).where(_N.c.migration.in_(uuids)))
            return Purged(*(each.rowcount for each in gone))


def count_to_purge(database: Database, before: datetime.datetime, most: int | None) -> tuple[int, int, int]:
    """Return how many migrations can be purged, how many this purge deletes, and how many stay.

    :param before: only migrations that ended before.
    :param most: the greatest number to delete; None: all.
    """
    found, kept = database.purge.count(before)
    return found, found if most is None else min(found, most), kept


def purge_migrations(
    database: Database,
    before: datetime.datetime,
    counts: tuple[int, int, int],
    dry_run: bool,
    advance: Advance = lambda deleted: None,
) -> dict[str, Any]:
    """Delete migrations that ended before a time, with logs and actions, the oldest first; return JSON.

    :param counts: from :func:`count_to_purge`.
    :param dry_run: whether to delete nothing.
    :param advance: is called with the number of deleted migrations after each batch.
    """
    found, wanted, kept = counts
    gone, last, ids = Purged(), 0, [0]
    while ids and gone.migrations < wanted and not dry_run:
        ids = database.purge.next(before, last, min(PURGE_BATCH, wanted - gone.migrations))
        if ids:
            now_gone = database.purge.delete(before, ids)
            gone, last = gone + now_gone, ids[-1]
            advance(now_gone.migrations)
    left = found - gone.migrations
    document = {'before': before, 'dry_run': dry_run, 'found': found, 'purged': gone.migrations, 'left': left}
    # The second is the older name of the first.
    rows = {'saga_log': gone.saga_log, 'instance_actions': gone.instance_actions}
    return document | rows | {'kept': kept}


def purge_ended(
    rows: drains.Drains | Maintenances,
    before: datetime.datetime,
    found: int,
    dry_run: bool,
    most: int | None = None,
    advance: Advance = lambda deleted: None,
) -> dict[str, Any]:
    """Delete drains, or maintenances, that ended before a time, the oldest first. Return JSON.

    :param found: how many there are, from their ``count_ended``.
    :param dry_run: whether to delete nothing.
    :param most: the greatest number to delete; None: all.
    :param advance: is called with the number of those that were deleted after each batch.
    """
    gone, deleted = 0, 1
    while deleted and not dry_run and (most is None or gone < most):
        deleted = rows.purge(before, _DRAINS_BATCH if most is None else min(_DRAINS_BATCH, most - gone))
        gone += deleted
        advance(deleted)
    return {'before': before, 'dry_run': dry_run, 'found': found, 'purged': gone}
