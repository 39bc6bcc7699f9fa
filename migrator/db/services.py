# SPDX-License-Identifier: Apache-2.0

"""Services and hypervisors: last reports, boots, and resources."""

from __future__ import annotations

import builtins
import dataclasses
import datetime
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from migrator import exception, executors
from migrator.db import models
from migrator.db.maintenances import turns
from migrator.db.sql import columns
from migrator.db.sql.engine import Engine, retried
from migrator.db.sql.statements import Prepared
from migrator.objects import (
    ARRIVED,
    COMPUTE_BINARY,
    CURRENT_VERSION,
    ComputeNode,
    MigrationStatus,
    Service,
    base,
)

_T = models.SERVICES
_N = models.COMPUTE_NODES
_NOW = Prepared(sa.select(columns.now()))
_NOT_PLACED = Prepared(sa.select(_N).where(~_N.c.in_placement))
_ROOTS = Prepared(sa.select(_N.c.uuid, _N.c.host))
_SOME_ROOTS = Prepared(sa.select(_N.c.uuid, _N.c.host).where(_N.c.uuid.in_(sa.bindparam('uuids', expanding=True))))
#: The hypervisor of an instance's host, in a query for others. It is made once, since an alias copies every column.
_SOURCE = _N.alias('source')
_BOOTS = Prepared(
    sa.select(_T.c.host, _T.c.boot_id).where(
        _T.c.host.in_(sa.bindparam('hosts', expanding=True)), _T.c.binary == COMPUTE_BINARY
    )
)
_ITS_SERVICE = sa.select(_T).where(_T.c.binary == COMPUTE_BINARY, _T.c.host == sa.bindparam('of'))
_COMPUTE = Prepared(_ITS_SERVICE)
_LOCK_BOOT = Prepared(_ITS_SERVICE.with_only_columns(_T.c.boot_id).with_for_update())
_ITS_NODE = _N.c.host == sa.bindparam('of')
_LOCK_NODE = Prepared(sa.select(_N).where(_ITS_NODE).with_for_update())
_UPDATE_NODE, _INSERT_NODE = Prepared(sa.update(_N).where(_ITS_NODE)), Prepared(sa.insert(_N))
_NOTE_PLACED = Prepared(sa.update(_N).where(_N.c.id == sa.bindparam('of')).values(in_placement=True))
FORCED_DOWN = Prepared(sa.select(_T.c.host).where(_T.c.binary == COMPUTE_BINARY, _T.c.forced_down == sa.true()))
_UP: dict[str, Any] = {'last_seen_up': columns.now(), 'down_since': None}
#: The parameters name further columns to write.
_REPORT = Prepared(
    sa.update(_T).where(_T.c.host == sa.bindparam('of'), _T.c.binary == sa.bindparam('kind')).values(_UP)
)
_FIRST_REPORT = Prepared(sa.insert(_T).values(_UP))
#: The boots that heartbeats have reported, and are registered.
_REPORTED = (
    _T.c.binary == COMPUTE_BINARY,
    _T.c.host.in_(sa.bindparam('hosts', expanding=True)),
    # No two hosts have the same boot_id.
    _T.c.boot_id.in_(sa.bindparam('boots', expanding=True)),
    # A late heartbeat does not bring back a boot that has stopped.
    _T.c.last_seen_up.is_not(None),
)
_REPORTED_AT = columns.later('since')
_HEARTBEATS = Prepared(
    sa.update(_T)
    .where(*_REPORTED)
    .values(
        last_seen_up=_REPORTED_AT,
        # A report does not end what was declared after it was sent.
        down_since=sa.case((_T.c.down_since > _REPORTED_AT, _T.c.down_since), else_=sa.null()),
    )
)
_REPORTED_HOSTS = Prepared(sa.select(_T.c.host).where(*_REPORTED))
_MAY_BE_DOWN = (_T.c.binary == COMPUTE_BINARY, _T.c.last_seen_up.is_not(None))
_IS_LATE = sa.and_(
    _T.c.down_since.is_(None),
    # A report from the future came before the database's clock was set back.
    sa.or_(_T.c.last_seen_up < columns.later('past'), _T.c.last_seen_up > columns.later('future')),
)
_MARK_DOWN = Prepared(sa.update(_T).values(down_since=columns.now()).where(*_MAY_BE_DOWN, _IS_LATE))
_DOWN_AND_LATE = sa.func.count(_T.c.down_since), sa.func.count(sa.case((_IS_LATE, 1)))
_COUNT_DOWN = Prepared(sa.select(*_DOWN_AND_LATE).where(*_MAY_BE_DOWN))
_LOWEST = sa.select(_T.c.version).where(_T.c.binary == COMPUTE_BINARY).order_by(_T.c.version).limit(1)
#: The lowest version of the compute services, or that of this release if there are none.
LOWEST_VERSION = sa.func.coalesce(_LOWEST.scalar_subquery(), CURRENT_VERSION)
_LOWEST_OF_ALL = Prepared(sa.select(LOWEST_VERSION))
#: The statuses in which a migration does not copy yet.
_BEFORE_COPY = [
    status.value for status in (MigrationStatus.ACCEPTED, MigrationStatus.PREPARING, MigrationStatus.QUEUED)
]
#: The statuses of a cold migration that comes in no more.
_ARRIVED = [status.value for status in ARRIVED]
#: The columns that name the hosts of a migration.
_HOSTS = ('source_compute', 'dest_compute')


@dataclasses.dataclass(frozen=True)
class Place:
    """A compute host as a possible destination.

    :ivar uuid: the root provider of its tree in Placement.
    :ivar service: its compute service.
    :ivar maintenance: the one that has it out of service; None: none has.
    :ivar has_cleanup: whether it has a deferred cleanup of the instance.
    :ivar hypervisor: the type and version of its hypervisor.
    :ivar cold_migrations: the types of cold migrations that its driver supports; None: not known.
    :ivar source_hypervisor: the same of the instance's host; None: that host has not reported a hypervisor.
    """

    host: str
    node: str
    uuid: str
    service: Service
    maintenance: str | None
    has_cleanup: bool
    hypervisor: tuple[str, int]
    cold_migrations: Sequence[str] | None
    source_hypervisor: tuple[str, int] | None


class Services:
    """The rows of ``services`` and ``compute_nodes``."""

    def __init__(self, engine: Engine, threads: executors.Threads) -> None:
        self._engine = engine
        self._threads = threads

    @retried
    def report(self, host: str, binary: str, version: int, boot_id: str | None = None) -> None:
        """Write that a service is up.

        The first report creates the row. A ``boot_id`` of None leaves the stored one unchanged.
        """
        with self._engine.writer() as session:
            self.write_report(session, host, binary, version, boot_id)

    def write_report(
        self,
        session: Any,
        host: str,
        binary: str,
        version: int,
        boot_id: str | None,
        slots: int | None = None,
        **of_boot: Any,
    ) -> None:
        """Write the report of a service within an open transaction.

        :param slots: the number of live migrations that may leave the host at once; None: the stored one stays.
        :param of_boot: further columns, whose old values are of an earlier boot.
        """
        values = {'version': version, 'slots': slots, 'boot_id': boot_id}
        values = {name: value for name, value in values.items() if value is not None} | of_boot
        if not session.execute(_REPORT, {'of': host, 'kind': binary, **values}).rowcount:
            uuid = self._threads.new_uuid()
            session.execute(_FIRST_REPORT, {'uuid': uuid, 'host': host, 'binary': binary, **values})

    @retried
    def heartbeats(self, boots: Mapping[str, str], age: float) -> set[str]:
        """Write that compute services are up in their registered boots.

        :param boots: host -> the boot_id of its report.
        :param age: the seconds since the oldest of the reports.
        :returns: the hosts of which nothing was written: their registered boot is another one, or has stopped.
        """
        given = {'hosts': builtins.list(boots), 'boots': builtins.list(boots.values())}
        with self._engine.writer() as session:
            found = session.execute(_HEARTBEATS, {**given, 'since': -age})
            if found.rowcount == len(boots):
                return set()
            return boots.keys() - set(session.execute(_REPORTED_HOSTS, given).scalars())

    @retried
    def write_slots(self, host: str, boot_id: str, slots: int) -> None:
        """Write how many live migrations may leave a host at once, as its registered boot has reported."""
        mine = (_T.c.host == host, _T.c.binary == COMPUTE_BINARY, _T.c.boot_id == boot_id)
        with self._engine.writer() as session:
            session.execute(sa.update(_T).where(*mine).values(slots=slots))

    @retried
    def call_down(self, seconds: float) -> int:
        """Declare the compute services down that have not reported for a time, and return how many are down.

        Only a conductor that was reachable for the whole time may call this.

        :param seconds: the time without a report.
        """
        given = {'past': -seconds, 'future': seconds}
        with self._engine.reader() as session:
            down, late = session.execute(_COUNT_DOWN, given).one()
        if not late:
            return int(down)
        with self._engine.writer() as session:
            session.execute(_MARK_DOWN, given)
            return int(session.execute(_COUNT_DOWN, given).one()[0])

    def lock_boot(self, session: Any, host: str) -> str | None:
        """Lock the row of a host's compute service until the transaction ends, and return its boot_id."""
        boot_id: str | None = session.execute(_LOCK_BOOT, {'of': host}).scalar()
        return boot_id

    def write_stopped(self, session: Any, host: str, binary: str, where: Any) -> None:
        """Write a planned stop of a service within an open transaction.

        The service is down until it reports again.

        :param where: a condition for the row; if it is false, nothing is written.
        """
        session.execute(sa.update(_T).where(_T.c.host == host, _T.c.binary == binary, where).values(last_seen_up=None))

    def write_node(self, session: Any, node: ComputeNode) -> None:
        """Write a hypervisor within an open transaction, and mark its providers for a write to Placement."""
        values = models.values_of(node) | {'providers': base.to_primitive(node.providers), 'in_placement': False}
        if not session.execute(_UPDATE_NODE, {'of': node.host, **values}).rowcount:
            session.execute(_INSERT_NODE, values)

    def list(self, binary: str | None = None, host: str | builtins.list[str] | None = None) -> builtins.list[Service]:
        """Return the services, by id.

        :param host: only those of this host, or of these hosts.
        """
        given: dict[str, Any] = {'of_binary': binary} if binary else {}
        if host not in (None, ''):
            given['of_hosts'] = [host] if isinstance(host, str) else host
        with self._engine.reader() as session:
            return [models.of_row(Service, row) for row in session.execute(_listed(*given), given)]

    def get(self, service_id: int | str) -> Service:
        """Return one service by its integer id or its uuid.

        :raises migrator.exception.ServiceNotFound: no service has this id.
        """
        column = _T.c.id if isinstance(service_id, int) else _T.c.uuid
        with self._engine.reader() as session:
            row = session.execute(sa.select(_T).where(column == service_id)).one_or_none()
            if row is None:
                raise exception.ServiceNotFound(service_id=service_id)
            return models.of_row(Service, row)

    def get_compute(self, host: str) -> Service:
        """Return the compute service of a host.

        :raises migrator.exception.ComputeHostNotFound: the host has no compute service.
        """
        with self._engine.reader() as session:
            row = session.execute(_COMPUTE, {'of': host}).one_or_none()
            if row is None:
                raise exception.ComputeHostNotFound(host=host)
            return models.of_row(Service, row)

    def lowest_version(self) -> int:
        """Return the lowest version of the compute services, or that of this release if there are none."""
        with self._engine.reader() as session:
            return int(session.execute(_LOWEST_OF_ALL).scalar_one())

    def forced_down(self) -> set[str]:
        """Return the compute hosts that an operator has declared forced down."""
        with self._engine.reader() as session:
            return set(session.execute(FORCED_DOWN).scalars())

    @retried
    def update(self, service_id: int, **values: Any) -> None:
        """Change the columns that an operator may change: disabled, disabled_reason, forced_down.

        A service that is forced down is down from now on, until it reports.
        """
        if values.get('forced_down'):
            values['down_since'] = columns.now()
        with self._engine.writer() as session:
            session.execute(sa.update(_T).where(_T.c.id == service_id).values(**values))

    @retried
    def delete(self, service: Service) -> bool:
        """Delete a service, and for a compute service also the host's hypervisor and deferred cleanups.

        If it is not deleted, the host's providers are marked for a write to Placement, from which the caller has
        deleted them.

        :returns: whether it was deleted. False: the service has reported since it was read, or the host has an instance
            or a migration in progress.
        """
        moving, guests, cleanups = models.MIGRATIONS, models.INSTANCES, models.CLEANUPS
        here = [_T.c.id == service.id, _T.c.last_seen_up.is_not_distinct_from(service.last_seen_up)]
        is_compute = service.binary == COMPUTE_BINARY
        if is_compute:
            on_its_way = sa.or_(moving.c.source_compute == service.host, moving.c.dest_compute == service.host)
            here += [
                ~sa.exists().where(models.IN_PROGRESS, on_its_way),
                ~sa.exists().where(guests.c.host == service.host),
            ]
        with self._engine.writer() as session:
            deleted = session.execute(sa.delete(_T).where(*here))
            if deleted.rowcount and is_compute:
                session.execute(sa.delete(_N).where(_N.c.host == service.host))
                session.execute(sa.delete(cleanups).where(cleanups.c.host == service.host))
            elif is_compute:
                session.execute(sa.update(_N).where(_N.c.host == service.host).values(in_placement=False))
            return bool(deleted.rowcount)

    def list_nodes(
        self, limit: int | None = None, marker: str | None = None, host: str | None = None
    ) -> builtins.list[ComputeNode]:
        """Return the hypervisors, by id.

        :param host: only those of this host.
        :param marker: the uuid of the last hypervisor of the previous page.
        :raises migrator.exception.MarkerNotFound: no hypervisor has the marker's uuid.
        """
        given = {name: value for name, value in {'of_host': host, 'most': limit}.items() if value is not None}
        with self._engine.reader() as session:
            if marker is not None:
                given['after'] = session.execute(sa.select(_N.c.id).where(_N.c.uuid == marker)).scalar()
                if given['after'] is None:
                    raise exception.MarkerNotFound(marker=marker)
            return [models.node(row) for row in session.execute(_nodes(*given), given)]

    def nodes_to_place(self) -> builtins.list[ComputeNode]:
        """Return the hypervisors whose last reported providers are not yet known to be in Placement."""
        with self._engine.reader() as session:
            return [models.node(row) for row in session.execute(_NOT_PLACED)]

    @retried
    def note_placed(self, node: ComputeNode) -> bool:
        """Mark a hypervisor's providers as written; return False if the host has reported others meanwhile."""
        with self._engine.writer() as session:
            row = session.execute(_LOCK_NODE, {'of': node.host}).one_or_none()
            if row is None:
                return True
            if (row.uuid, models.node(row).providers) != (node.uuid, node.providers):
                return False
            session.execute(_NOTE_PLACED, {'of': row.id})
            return True

    def get_node(self, node_id: int | str) -> ComputeNode:
        """Return one hypervisor by its integer id or its uuid.

        :raises migrator.exception.HypervisorNotFound: no hypervisor has this id.
        """
        column = _N.c.id if isinstance(node_id, int) else _N.c.uuid
        with self._engine.reader() as session:
            row = session.execute(sa.select(_N).where(column == node_id)).one_or_none()
            if row is None:
                raise exception.HypervisorNotFound(hypervisor_id=node_id)
            return models.node(row)

    def places(
        self, instance_uuid: str, uuids: Sequence[str] | None = None, host: str | builtins.list[str] | None = None
    ) -> builtins.list[Place]:
        """Return compute hosts as possible destinations of an instance.

        :param uuids: only hosts whose root provider is among these.
        :param host: only this host, or these hosts.
        """
        given: dict[str, Any] = {'guest': instance_uuid}
        if uuids is not None:
            given['of_roots'] = builtins.list(uuids)
        if host is not None:
            given['of_hosts'] = [host] if isinstance(host, str) else host
        with self._engine.reader() as session:
            return [
                Place(
                    host=row.host,
                    node=row.node,
                    uuid=row.root,
                    service=models.of_row(Service, row),
                    maintenance=row.maintenance,
                    has_cleanup=bool(row.has_cleanup),
                    hypervisor=(row.hypervisor_type, row.hypervisor_version),
                    cold_migrations=row.cold_migrations,
                    source_hypervisor=((row.source_type, row.source_version) if row.source_type is not None else None),
                )
                for row in session.execute(_places(*given), given)
            ]

    def roots(self, uuids: Collection[str] | None = None) -> dict[str, str]:
        """Return the root provider of each hypervisor -> its host.

        :param uuids: only of these root providers, at most some thousands; None: all.
        """
        with self._engine.reader() as session:
            rows = session.execute(_ROOTS) if uuids is None else session.execute(_SOME_ROOTS, {'uuids': [*uuids]})
            return {row.uuid: row.host for row in rows}

    def inbound(self) -> dict[str, tuple[int, int]]:
        """Return host -> how many migrations in progress go to it, and how many of them do not copy yet.

        Hosts without any are left out.
        """
        with self._engine.reader() as session:
            return {host: (int(count), int(waiting)) for host, count, waiting in session.execute(_inbound())}

    def now(self) -> datetime.datetime:
        """Return the database's time."""
        with self._engine.reader() as session:
            return columns.aware(session.execute(_NOW).scalar_one())


@functools.cache
def _listed(*given: str) -> Prepared:
    """Return the query for services; the names of its parameters say by what it selects."""
    which = {'of_binary': _T.c.binary == sa.bindparam('of_binary'), 'of_hosts': _in_list(_T.c.host, 'of_hosts')}
    return Prepared(sa.select(_T).where(*(which[name] for name in given)).order_by(_T.c.id))


@functools.cache
def _nodes(*given: str) -> Prepared:
    """Return the query for hypervisors; the names of its parameters say by what it selects."""
    which = {'of_host': _N.c.host == sa.bindparam('of_host'), 'after': _N.c.id > sa.bindparam('after')}
    query = sa.select(_N).where(*(condition for name, condition in which.items() if name in given)).order_by(_N.c.id)
    return Prepared(query.limit(sa.bindparam('most', type_=sa.Integer())) if 'most' in given else query)


@functools.cache
def _inbound() -> Prepared:
    moving = models.MIGRATIONS
    # In the order of the index for this condition, SQLite does not scan the index of all destinations instead.
    in_progress = (
        sa.select(moving.c.dest_compute, moving.c.status)
        .where(models.IN_PROGRESS, moving.c.dest_compute.is_not(None), moving.c.status.not_in(_ARRIVED))
        .order_by(moving.c.in_progress_instance_uuid)
        .subquery()
    )
    before = sa.case((in_progress.c.status.in_(_BEFORE_COPY), 1), else_=0)
    query = sa.select(in_progress.c.dest_compute, sa.func.count(), sa.func.sum(before))
    return Prepared(query.group_by(in_progress.c.dest_compute))


_MAINTENANCE = turns.out_by(_N.c.host).label('maintenance')


@functools.cache
def _places(*given: str) -> Prepared:
    """Return the query for possible destinations; the names of its parameters say by what it selects."""
    cleanup = models.CLEANUPS
    guest: Any = sa.bindparam('guest')
    has_cleanup = sa.exists().where(cleanup.c.host == _N.c.host, cleanup.c.instance_uuid == guest)
    # For a join PostgreSQL would read the index of all hosts.
    its_host = sa.select(models.INSTANCES.c.host).where(models.INSTANCES.c.uuid == guest)
    source = sa.select(_SOURCE).where(_SOURCE.c.host == its_host.scalar_subquery())
    which = {'of_roots': _in_list(_N.c.uuid, 'of_roots'), 'of_hosts': _in_list(_N.c.host, 'of_hosts')}
    return Prepared(
        sa.select(
            _T,
            _N.c.node,
            _N.c.hypervisor_type,
            _N.c.hypervisor_version,
            _N.c.cold_migrations,
            source.with_only_columns(_SOURCE.c.hypervisor_type).scalar_subquery().label('source_type'),
            source.with_only_columns(_SOURCE.c.hypervisor_version).scalar_subquery().label('source_version'),
            _N.c.uuid.label('root'),
            _MAINTENANCE,
            has_cleanup.label('has_cleanup'),
        )
        .join(_T, sa.and_(_T.c.host == _N.c.host, _T.c.binary == COMPUTE_BINARY))
        .where(*(condition for name, condition in which.items() if name in given))
        .order_by(_N.c.host)
    )


def _in_list(column: Any, name: str) -> Any:
    return column.in_(sa.bindparam(name, expanding=True))


# --- the boots of a migration's hosts, in the transactions of its owner ----------------------------------------------


def read_boots(session: Any, hosts: Sequence[str]) -> dict[str, str | None]:
    """Return the boot_ids of compute hosts."""
    if not hosts:
        return {}
    return {row.host: row.boot_id for row in session.execute(_BOOTS, {'hosts': [*hosts]})}


def boot_columns(migrations: sa.Table) -> builtins.list[Any]:
    """Return columns with the boot_ids of a migration's hosts, for the statement that reads its row."""
    boots = sa.select(_T.c.boot_id).where(_T.c.binary == COMPUTE_BINARY)
    return [boots.where(_T.c.host == migrations.c[host]).scalar_subquery().label(f'boot_of_{host}') for host in _HOSTS]


def boots_in(row: Any) -> dict[str, str | None]:
    """Return the boot_ids in a row that has the :func:`boot_columns`."""
    return {getattr(row, host): getattr(row, f'boot_of_{host}') for host in _HOSTS if getattr(row, host)}
