# SPDX-License-Identifier: Apache-2.0

"""Conductors: the leases of their boots, and takeovers of migrations that no living conductor owns.

All migrations of one source belong to one conductor, its *holder*: the living conductor that owns migrations in
progress from it. No table has the holders. The rows of the migrations show them, so a source with nothing in progress
has no holder. A source without a holder goes to the conductor that holds the fewest. This is a matter of cost: two
owners of migrations of one source are safe, since each migration has its own guard. See
``doc/source/decisions/0030-one-conductor-per-source.rst``.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from migrator.db import models, saga_log
from migrator.db.services import Services, boot_columns, boots_in
from migrator.db.sql import columns
from migrator.db.sql.engine import Engine, retried
from migrator.db.sql.statements import Prepared
from migrator.objects import COMPUTE_BINARY, CONDUCTOR_BINARY, CURRENT_VERSION, Instance, Migration, MigrationType
from migrator.saga import log

_T = models.MIGRATIONS
_C = models.CONDUCTORS
_S = models.SERVICES
_I = models.INSTANCES
_RENEW = sa.update(_C).where(_C.c.id == sa.bindparam('me'), _C.c.lease_until > columns.now())
_RENEW_REACHABLE = Prepared(_RENEW.values(lease_until=columns.later('lease'), broker_away_since=None))
_RENEW_AWAY = Prepared(_RENEW.values(lease_until=columns.later('lease'), broker_away_since=columns.later('away')))
_REACHABLE = (_C.c.lease_until > columns.now(), _C.c.broker_away_since.is_(None))
_FIRST = Prepared(sa.select(_C.c.id).where(*_REACHABLE).order_by(_C.c.id).limit(1))
#: Seconds for which an ended boot is kept, because timelines look up the names of conductors here.
KEPT = 30 * 24 * 3600.0


_ALL_BOOTS = Prepared(sa.select(_C).order_by(_C.c.lease_until.desc(), _C.c.id))
_FORGET_ENDED = Prepared(
    sa.delete(_C).where(
        _C.c.lease_until < columns.later(-KEPT),
        ~sa.exists().where(models.MIGRATIONS.c.owner == _C.c.id, models.IN_PROGRESS),
        ~sa.exists().where(models.CLEANUPS.c.owner == _C.c.id),
    )
)
_REGISTER = Prepared(sa.insert(_C).values(lease_until=columns.later('lease')))


@dataclasses.dataclass(frozen=True)
class ConductorBoot:
    """One boot of a conductor, which may have ended.

    :ivar server: the RPC server name for events. The conductor's next boot has the same name.
    :ivar lease_until: the end of the lease by the database's clock. The boot lives until then.
    :ivar broker_away_since: since when it cannot reach the broker; None: it can.
    """

    id: str
    server: str
    lease_until: datetime.datetime
    broker_away_since: datetime.datetime | None = None


class Conductors:
    """The rows of ``conductors``."""

    def __init__(self, engine: Engine, services: Services) -> None:
        self._engine = engine
        self._services = services

    @retried
    def register(self, conductor_id: str, server: str, lease: float) -> None:
        """Begin a boot, and delete those that ended long ago and that no work in progress names.

        :param server: the RPC server name for events.
        :param lease: seconds until the lease ends.
        """
        with self._engine.writer() as session:
            session.execute(_FORGET_ENDED)
            session.execute(_REGISTER, {'id': conductor_id, 'server': server, 'lease': lease})

    @retried
    def renew(self, conductor_id: str, lease: float, server: str | None = None, broker_away: float = 0) -> bool:
        """Extend a lease that has not run out.

        :param server: also report this service as up, if the lease was extended.
        :param broker_away: seconds for which it has not reached the broker; 0: it can.
        :returns: whether the lease was extended. If not, the boot has ended: take a new id, and own nothing.
        """
        with self._engine.writer() as session:
            given = {'me': conductor_id, 'lease': lease}
            found = (
                session.execute(_RENEW_AWAY, {**given, 'away': -broker_away})
                if broker_away
                else session.execute(_RENEW_REACHABLE, given)
            )
            if found.rowcount and server is not None:
                binary, version = CONDUCTOR_BINARY, CURRENT_VERSION
                self._services.write_report(session, server, binary, version, None)
            return bool(found.rowcount)

    @retried
    def retire(self, conductor_id: str, server: str | None = None) -> None:
        """End a boot, so that other conductors may take over its migrations at once.

        :param server: also write this service as stopped, unless another boot with this name lives.
        """
        with self._engine.writer() as session:
            session.execute(sa.update(_C).where(_C.c.id == conductor_id).values(lease_until=columns.now()))
            if server is not None:
                another = sa.exists().where(_C.c.server == server, _C.c.lease_until > columns.now())
                self._services.write_stopped(session, server, CONDUCTOR_BINARY, ~another)

    def first(self) -> str | None:
        """Return the living conductor that does the work which only one of all conductors has to do, or None.

        A conductor that cannot reach the broker does not count. While conductors come and go, two of them may do the
        work once.
        """
        with self._engine.reader() as session:
            found: str | None = session.execute(_FIRST).scalar()
            return found

    def server_of(self, conductor_id: str) -> str | None:
        """Return the RPC server name of a living conductor, or None."""
        query = sa.select(_C.c.server).where(_C.c.id == conductor_id, _C.c.lease_until > columns.now())
        with self._engine.reader() as session:
            found: str | None = session.execute(query).scalar_one_or_none()
            return found

    def owner_of(self, migration_uuid: str) -> str | None:
        """Return the RPC server name of the living conductor that owns a migration, or None."""
        migrations = models.MIGRATIONS
        query = sa.select(_C.c.server).join(migrations, migrations.c.owner == _C.c.id)
        query = query.where(migrations.c.uuid == migration_uuid, _C.c.lease_until > columns.now())
        with self._engine.reader() as session:
            found: str | None = session.execute(query).scalar_one_or_none()
            return found

    def list(self) -> builtins.list[ConductorBoot]:
        """Return every known boot, the one with the latest lease first."""
        with self._engine.reader() as session:
            return [models.of_row(ConductorBoot, row) for row in session.execute(_ALL_BOOTS)]


# --- takeovers --------------------------------------------------------------------------------------------------------

_IN_PROGRESS = models.IN_PROGRESS
#: The prefix of an instance's columns in a row that also has the columns of its migration.
_OF_INSTANCE = 'of_instance_'
_PENDING = sa.exists().where(
    models.CLEANUPS.c.host == _T.c.source_compute, models.CLEANUPS.c.instance_uuid == _T.c.instance_uuid
)
_FORCED_DOWN = sa.exists().where(
    _S.c.host == _T.c.source_compute, _S.c.binary == COMPUTE_BINARY, _S.c.forced_down == sa.true()
)
_D = models.GUEST_DEFINITIONS
#: What the destination's check of a live migration needs.
_DEFINITION = (
    sa.select(_D.c.definition)
    .where(
        _D.c.instance_uuid == _T.c.instance_uuid,
        _D.c.host == _T.c.source_compute,
        _T.c.migration_type == MigrationType.LIVE_MIGRATION,
        _T.c.checked_at.is_(None),
    )
    .scalar_subquery()
)
_READ = (
    sa.select(
        *(_T, _PENDING.label('has_source_cleanup'), _FORCED_DOWN.label('source_forced_down'), *boot_columns(_T)),
        _DEFINITION.label('stored_definition'),
        *(column.label(_OF_INSTANCE + column.name) for column in _I.c),
    )
    .outerjoin(_I, _I.c.uuid == _T.c.instance_uuid)
    .where(_T.c.uuid.in_(sa.bindparam('uuids', expanding=True)))
    .order_by(columns.unindexed(_T.c.id))
)
_ANY = Prepared(_READ)
_OWNED = Prepared(_READ.where(_IN_PROGRESS, _T.c.owner == sa.bindparam('me')))
_NO_LIVING_OWNER = sa.or_(_T.c.owner.is_(None), ~models.alive(_T.c.owner))
ORPHANS = Prepared(
    sa.select(_T.c.source_compute, _T.c.uuid)
    .where(_IN_PROGRESS, _NO_LIVING_OWNER, _T.c.uuid.is_not(None))
    .order_by(columns.unindexed(_T.c.id))
)
#: The most migrations that one transaction takes.
AT_ONCE = 500


def _may_take(conductors: Any) -> Any:
    """Return the condition that a conductor may get migrations.

    One that cannot reach the broker keeps those that it owns. Others could not reach it either. One that renews its
    lease so late may have died, and keeps what it owns until the lease ends.
    """
    return sa.and_(conductors.c.lease_until > columns.later('late'), conductors.c.broker_away_since.is_(None))


_THEIRS, _OTHERS = _T.alias('theirs'), _C.alias('others')
_SOURCE = sa.select(_THEIRS.c.source_compute).where(_THEIRS.c.uuid == sa.bindparam('one')).scalar_subquery()
_HOLDER = (
    sa.select(_T.c.owner)
    .join(_OTHERS, _OTHERS.c.id == _T.c.owner)
    .where(_T.c.source_compute == _SOURCE, _IN_PROGRESS, _may_take(_OTHERS))
    .limit(1)
    .scalar_subquery()
)
_SOURCES = (
    sa.select(sa.func.count(sa.distinct(_T.c.source_compute)))
    .where(_T.c.owner == _C.c.id, _IN_PROGRESS)
    .correlate(_C)
    .scalar_subquery()
)
#: A row of the caller's server with another id is an earlier boot of the caller, which has ended.
_CANDIDATES = sa.select(_C.c.id, _C.c.server, (_C.c.id == _HOLDER).label('holds')).where(
    _may_take(_C), sa.or_(_C.c.server != sa.bindparam('my_server'), _C.c.id == sa.bindparam('me'))
)
_CONDUCTORS = Prepared(_CANDIDATES)
_CONDUCTORS_WITH_SOURCES = Prepared(_CANDIDATES.add_columns(_SOURCES.label('sources')))
_LOCK_SOURCE = Prepared(sa.select(_S.c.id).where(_S.c.host == _SOURCE, _S.c.binary == COMPUTE_BINARY).with_for_update())
_TAKE = Prepared(
    sa.update(_T)
    .where(_T.c.uuid.in_(sa.bindparam('uuids', expanding=True)), _IN_PROGRESS, _NO_LIVING_OWNER)
    .values(owner=sa.bindparam('new_owner'), epoch=_T.c.epoch + 1)
)


@dataclasses.dataclass(frozen=True)
class Owned:
    """A migration as a conductor reads it when it becomes the owner."""

    migration: Migration
    instance: Instance | None
    entries: list[log.Entry]
    #: Whether earlier migrations of the instance have left a cleanup at its source. No later one can leave any.
    has_source_cleanup: bool = True
    #: Whether its source is forced down; None: not read.
    source_forced_down: bool | None = None
    #: Host -> its boot_id, in the epoch of the migration.
    boots: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    #: What the source has reported of the guest; {}: nothing, or a check of the destination needs it no more.
    definition: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Taken:
    """Migrations that have just got an owner.

    :ivar owned: those that the caller owns now.
    :ivar server: the RPC server name of their owner, if that is another conductor; None: it is the caller.
    """

    owned: list[Owned]
    server: str | None = None


class Takeovers:
    """The owners of the rows of ``migrations``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def orphans(self) -> list[list[str]]:
        """Return the uuids of the migrations in progress that no living conductor owns.

        :returns: lists of at most :data:`AT_ONCE` migrations of one source, each list oldest first.
        """
        by_source: dict[str, list[str]] = collections.defaultdict(list)
        with self._engine.reader() as session:
            for source, uuid in session.execute(ORPHANS):
                by_source[source].append(uuid)
        groups = by_source.values()
        return [uuids[first : first + AT_ONCE] for uuids in groups for first in range(0, len(uuids), AT_ONCE)]

    def sources(self) -> dict[str, int]:
        """Return conductor -> the number of sources of its migrations in progress, of those that have any."""
        query = sa.select(_T.c.owner, sa.func.count(sa.distinct(_T.c.source_compute)))
        with self._engine.reader() as session:
            found = session.execute(query.where(_IN_PROGRESS).group_by(columns.unindexed(_T.c.owner)))
            return {owner: int(number) for owner, number in found if owner is not None}

    @retried
    def adopt(self, uuids: Sequence[str], me: str, my_server: str | None = None, lease: float = 0) -> Taken | None:
        """Give migrations of one source without a living owner a new one, and raise their epochs by one.

        :param me: the conductor that calls this.
        :param my_server: its RPC server name. The holder of the source becomes the owner, or else the conductor that
            holds the fewest sources. None: ``me`` becomes the owner, even if another conductor
            holds the source.
        :param lease: seconds for which a conductor renews its lease. One that has not renewed it for half of that
            gets nothing, since it may have died.
        :returns: None if other conductors were faster, or if the migrations have ended.
        """
        with self._engine.writer() as session:
            owner, server = (me, None) if my_server is None else _choose(session, uuids[0], me, my_server, lease)
            if not session.execute(_TAKE, {'uuids': [*uuids], 'new_owner': owner}).rowcount:
                return None
            return Taken([], server) if owner != me else Taken(read_owned(session, uuids, owner))


def _choose(session: Any, uuid: str, me: str, my_server: str, lease: float) -> tuple[str, str | None]:
    """Return the id and the RPC server name of the conductor that gets the migrations of a source.

    :param uuid: any migration of the source.
    """
    known = {'one': uuid, 'me': me, 'my_server': my_server, 'late': lease / 2}
    found = session.execute(_CONDUCTORS, known).all()
    if len(found) > 1 and not any(one.holds for one in found):
        # Conductors that get the first migrations of a source at the same moment must agree.
        session.execute(_LOCK_SOURCE, known)
        found = session.execute(_CONDUCTORS_WITH_SOURCES, known).all()
        found.sort(key=lambda one: (one.sources, one.id != me, one.id))
    chosen = next((one for one in found if one.holds), found[0] if found else None)
    return (me, None) if chosen is None or chosen.id == me else (chosen.id, chosen.server)


def read_owned(session: Any, uuids: Sequence[str], owner: str | None = None) -> list[Owned]:
    """Return migrations with their instances and logs, oldest first.

    :param owner: return only the migrations in progress that this conductor owns; None: return all.
    """
    rows = session.execute(_ANY if owner is None else _OWNED, {'uuids': [*uuids], 'me': owner}).all()
    # The first entry is that of the acceptance, which only the owner of an evacuation needs.
    begun = [row.uuid for row in rows if row.log_seq > 1 or row.migration_type == MigrationType.EVACUATION]
    entries = saga_log.read(session, begun) if begun else {}
    return [
        Owned(
            migration=models.migration(row),
            instance=models.instance(row, _OF_INSTANCE) if getattr(row, f'{_OF_INSTANCE}uuid') is not None else None,
            entries=entries.get(row.uuid, []),
            has_source_cleanup=bool(row.has_source_cleanup),
            source_forced_down=bool(row.source_forced_down),
            boots=boots_in(row),
            definition=row.stored_definition or {},
        )
        for row in rows
    ]
