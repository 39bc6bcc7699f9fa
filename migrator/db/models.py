# SPDX-License-Identifier: Apache-2.0

"""The tables, and the conversion of their rows to objects.

``doc/source/writers.rst`` lists the writers.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects import sqlite

from migrator import exception, objects
from migrator.db.sql import columns
from migrator.db.sql.statements import Prepared
from migrator.objects import base

T = TypeVar('T')


class Base(orm.DeclarativeBase):
    """The base of every table."""

    type_annotation_map = {  # noqa: RUF012 -- SQLAlchemy reads this attribute
        datetime.datetime: columns.UTCDateTime(),
        dict[str, Any]: columns.Json(),
        list[Any]: columns.Json(),
        bool: sa.Boolean(),
    }


class Times:
    """The times when a row was created and last changed, by the clock of the database."""

    created_at: orm.Mapped[datetime.datetime] = orm.mapped_column(default=columns.now())
    updated_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(onupdate=columns.now())


class Listed(Times):
    """The same, for a table that is listed by its newest rows or by its last changes.

    An index serves each of the two, so that a list costs the same however many rows there are.
    """

    #: The last change, which includes the creation. The database computes it, so that no writer can forget it. It is
    #: never NULL, but MariaDB does not take NOT NULL for a computed column.
    changed_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        sa.Computed('coalesce(updated_at, created_at)', persisted=True), index=True
    )


def _uuid(**options: Any) -> orm.Mapped[str]:
    return orm.mapped_column(columns.Text(36), **options)


class Instance(Listed, Base):
    """A guest whose allocation migrator keeps."""

    __tablename__ = 'instances'
    __table_args__ = (sa.Index('ix_instances_newest', 'created_at', 'id'),)

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    uuid: orm.Mapped[str] = _uuid(unique=True)
    name: orm.Mapped[str] = orm.mapped_column(columns.Text(255), index=True)
    project_id: orm.Mapped[str] = orm.mapped_column(columns.Text(255), index=True)
    user_id: orm.Mapped[str] = orm.mapped_column(columns.Text(255))
    host: orm.Mapped[str] = orm.mapped_column(columns.Text(255), index=True)
    node: orm.Mapped[str] = orm.mapped_column(columns.Text(255))
    flavor: orm.Mapped[dict[str, Any]] = orm.mapped_column()
    vm_state: orm.Mapped[str] = orm.mapped_column(columns.Text(64))
    power_state: orm.Mapped[int] = orm.mapped_column(columns.Whole())
    task_state: orm.Mapped[str | None] = orm.mapped_column(columns.Text(64))
    locked_by: orm.Mapped[str | None] = orm.mapped_column(columns.Text(64))
    locked_reason: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))
    launched_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    #: Rises with each migration of the instance, and with each cleanup that runs outside of a migration.
    tenure: orm.Mapped[int] = orm.mapped_column(default=0, server_default='0')


class Migration(Listed, Base):
    """A migration: the request, its progress, its owner and its epoch."""

    __tablename__ = 'migrations'
    __table_args__ = (
        sa.Index('ix_migrations_newest', 'created_at', 'id'),
        sa.Index('ix_migrations_status', 'status', 'created_at', 'id'),
        sa.Index('ix_migrations_instance_uuid', 'instance_uuid', 'tenure'),
        # MariaDB has no partial index, so the second column finds the few in progress among all of an owner or host.
        sa.Index('ix_migrations_owner', 'owner', 'in_progress_instance_uuid'),
        sa.Index('ix_migrations_source_compute', 'source_compute', 'in_progress_instance_uuid'),
        sa.Index('ix_migrations_dest_compute', 'dest_compute', 'in_progress_instance_uuid'),
    )

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    uuid: orm.Mapped[str | None] = _uuid(unique=True)
    instance_uuid: orm.Mapped[str] = _uuid()
    #: The instance's uuid while in progress, NULL afterwards. Unique, so that an instance has at most one in progress.
    in_progress_instance_uuid: orm.Mapped[str | None] = _uuid(unique=True)
    project_id: orm.Mapped[str] = orm.mapped_column(columns.Text(255))
    user_id: orm.Mapped[str] = orm.mapped_column(columns.Text(255))
    migration_type: orm.Mapped[str] = orm.mapped_column(columns.Text(32))
    status: orm.Mapped[str] = orm.mapped_column(columns.Text(32))
    source_compute: orm.Mapped[str] = orm.mapped_column(columns.Text(255))
    source_node: orm.Mapped[str] = orm.mapped_column(columns.Text(255))
    dest_compute: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))
    dest_node: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))
    dest_host: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))
    hidden: orm.Mapped[bool] = orm.mapped_column(default=False)

    request_id: orm.Mapped[str | None] = orm.mapped_column(columns.Text(64))
    requested_host: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))
    force: orm.Mapped[bool] = orm.mapped_column(default=False)
    allows_disabled: orm.Mapped[bool] = orm.mapped_column(default=False)
    block_migration: orm.Mapped[bool | None] = orm.mapped_column()
    disk_over_commit: orm.Mapped[bool] = orm.mapped_column(default=False)
    drain: orm.Mapped[str | None] = _uuid()
    priority: orm.Mapped[int] = orm.mapped_column(columns.Whole(), server_default='0')
    old_flavor: orm.Mapped[dict[str, Any] | None] = orm.mapped_column()
    new_flavor: orm.Mapped[dict[str, Any] | None] = orm.mapped_column()

    strategy: orm.Mapped[str] = orm.mapped_column(columns.Text(32))
    outcome: orm.Mapped[str | None] = orm.mapped_column(columns.Text(16))
    owner: orm.Mapped[str | None] = _uuid()
    epoch: orm.Mapped[int] = orm.mapped_column(default=0)
    attempt: orm.Mapped[int] = orm.mapped_column(default=1)
    #: The tenure of the instance when this migration, or a cleanup of it, last raised it.
    tenure: orm.Mapped[int] = orm.mapped_column(default=0, server_default='0')
    checked_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    queued_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    running_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    failure: orm.Mapped[str | None] = orm.mapped_column(columns.Text())
    failure_kind: orm.Mapped[str | None] = orm.mapped_column(columns.Text(32))
    stuck_kind: orm.Mapped[str | None] = orm.mapped_column(columns.Text(32))
    stuck_hosts: orm.Mapped[list[Any] | None] = orm.mapped_column()
    stuck_words: orm.Mapped[dict[str, Any] | None] = orm.mapped_column()
    wait_kind: orm.Mapped[str | None] = orm.mapped_column(columns.Text(32))
    wait_hosts: orm.Mapped[list[Any] | None] = orm.mapped_column()
    wait_words: orm.Mapped[dict[str, Any] | None] = orm.mapped_column()
    #: The ``seq`` of the newest entry of the migration's log. The owner appends at the next one.
    log_seq: orm.Mapped[int] = orm.mapped_column(default=0, server_default='0')

    abort_requested_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    abort_requested_by: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))
    abort_cause: orm.Mapped[str | None] = orm.mapped_column(columns.Text(16))
    abort_status: orm.Mapped[str | None] = orm.mapped_column(columns.Text(32))
    abort_text: orm.Mapped[str | None] = orm.mapped_column(columns.Text())
    cancelled_by_stop: orm.Mapped[bool] = orm.mapped_column(default=False, server_default=sa.false())
    force_complete_requested_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    confirm_requested_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    revert_requested_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    retry_requested_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    retry_requested_by: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))
    abandon_requested_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    abandon_requested_by: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))
    abandon_guest_on: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))

    downtime: orm.Mapped[float | None] = orm.mapped_column(sa.Double())
    memory_total: orm.Mapped[int | None] = orm.mapped_column(columns.Whole(64))
    memory_processed: orm.Mapped[int | None] = orm.mapped_column(columns.Whole(64))
    memory_remaining: orm.Mapped[int | None] = orm.mapped_column(columns.Whole(64))
    disk_total: orm.Mapped[int | None] = orm.mapped_column(columns.Whole(64))
    disk_processed: orm.Mapped[int | None] = orm.mapped_column(columns.Whole(64))
    disk_remaining: orm.Mapped[int | None] = orm.mapped_column(columns.Whole(64))


class SagaLog(Base):
    """The log of each migration: rows are only added. A step's intent is committed before it is sent."""

    __tablename__ = 'saga_log'

    migration: orm.Mapped[str] = _uuid(primary_key=True)
    seq: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
    at: orm.Mapped[datetime.datetime] = orm.mapped_column(default=columns.now())
    conductor: orm.Mapped[str | None] = _uuid()
    epoch: orm.Mapped[int] = orm.mapped_column()
    attempt: orm.Mapped[int] = orm.mapped_column()
    kind: orm.Mapped[str] = orm.mapped_column(columns.Text(16))
    step: orm.Mapped[str | None] = orm.mapped_column(columns.Text(64))
    payload: orm.Mapped[dict[str, Any]] = orm.mapped_column()


class Notified(Base):
    """How far the notifications about each migration were sent; see :mod:`migrator.db.saga_log`."""

    __tablename__ = 'notified'

    migration: orm.Mapped[str] = _uuid(primary_key=True)
    seq: orm.Mapped[int] = orm.mapped_column()
    #: Whether more may follow; NULL: no more follows, so the index finds the few rows that are open.
    open: orm.Mapped[bool | None] = orm.mapped_column(index=True)
    at: orm.Mapped[datetime.datetime] = orm.mapped_column(default=columns.now(), onupdate=columns.now())


class Conductor(Base):
    """A boot of a conductor, and its lease."""

    __tablename__ = 'conductors'

    id: orm.Mapped[str] = _uuid(primary_key=True)
    server: orm.Mapped[str] = orm.mapped_column(columns.Text(255))
    lease_until: orm.Mapped[datetime.datetime] = orm.mapped_column()
    #: The time since when the conductor cannot reach the broker.
    broker_away_since: orm.Mapped[datetime.datetime | None] = orm.mapped_column()


class Service(Times, Base):
    """A compute service or a conductor."""

    __tablename__ = 'services'
    __table_args__ = (
        sa.UniqueConstraint('host', 'binary', name='uniq_services'),
        sa.Index('ix_services_version', 'version', 'binary'),
        sa.Index('ix_services_forced_down', 'forced_down', 'binary'),
    )

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    uuid: orm.Mapped[str] = _uuid(unique=True)
    host: orm.Mapped[str] = orm.mapped_column(columns.Text(255))
    binary: orm.Mapped[str] = orm.mapped_column(columns.Text(64))
    version: orm.Mapped[int] = orm.mapped_column(columns.Whole())
    boot_id: orm.Mapped[str | None] = _uuid()
    kernel: orm.Mapped[str | None] = orm.mapped_column(columns.Text(64))
    last_seen_up: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    #: When an operator or a conductor declared the service down (:class:`migrator.objects.Service`).
    down_since: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    disabled: orm.Mapped[bool] = orm.mapped_column(default=False)
    disabled_reason: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))
    forced_down: orm.Mapped[bool] = orm.mapped_column(default=False)
    #: The identity of a compute host's machine. Two hosts cannot have the same.
    identity: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255), unique=True)
    refused_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    refused_host: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))
    refused_identity: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))
    #: The max_concurrent_live_migrations that a compute service has reported; None: it has not reported one.
    slots: orm.Mapped[int | None] = orm.mapped_column(columns.Whole())


class SlotLock(Base):
    """The one row that a transaction locks while it takes slots; see :mod:`migrator.db.slots`."""

    __tablename__ = 'slot_lock'

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
    #: The number of such transactions.
    taken: orm.Mapped[int] = orm.mapped_column(columns.Whole(64), default=0, server_default='0')


class ComputeNode(Times, Base):
    """A hypervisor, and the root of its tree of resource providers."""

    __tablename__ = 'compute_nodes'

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    uuid: orm.Mapped[str] = _uuid(unique=True)
    host: orm.Mapped[str] = orm.mapped_column(columns.Text(255), unique=True)
    node: orm.Mapped[str] = orm.mapped_column(columns.Text(255))
    hypervisor_type: orm.Mapped[str] = orm.mapped_column(columns.Text(64))
    hypervisor_version: orm.Mapped[int] = orm.mapped_column(columns.Whole())
    host_ip: orm.Mapped[str] = orm.mapped_column(columns.Text(64))
    cpu_info: orm.Mapped[dict[str, Any]] = orm.mapped_column()
    providers: orm.Mapped[list[Any]] = orm.mapped_column()
    cold_migrations: orm.Mapped[list[Any] | None] = orm.mapped_column()
    #: Whether a conductor has written these providers to Placement.
    in_placement: orm.Mapped[bool] = orm.mapped_column(default=True, server_default=sa.true(), index=True)


class Cleanup(Base):
    """A deferred cleanup: a step that a host still has to do for a migration that went on without it."""

    __tablename__ = 'cleanups'
    __table_args__ = (sa.UniqueConstraint('host', 'migration_uuid', 'step', name='uniq_cleanups'),)

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    host: orm.Mapped[str] = orm.mapped_column(columns.Text(255), index=True)
    migration_uuid: orm.Mapped[str] = _uuid(index=True)
    instance_uuid: orm.Mapped[str] = _uuid(index=True)
    step: orm.Mapped[str] = orm.mapped_column(columns.Text(64))
    reason: orm.Mapped[str] = orm.mapped_column(columns.Text())
    blocked_because: orm.Mapped[str | None] = orm.mapped_column('alarm', columns.Text(), key='blocked_because')
    owner: orm.Mapped[str | None] = _uuid()
    epoch: orm.Mapped[int] = orm.mapped_column()
    tenure: orm.Mapped[int] = orm.mapped_column(default=0, server_default='0')
    input: orm.Mapped[dict[str, Any] | None] = orm.mapped_column()
    created_at: orm.Mapped[datetime.datetime] = orm.mapped_column(default=columns.now())


class GuestDefinition(Base):
    """What another host needs to start a guest without its source; see ``ComputeDriver.get_definition``."""

    __tablename__ = 'guest_definitions'

    instance_uuid: orm.Mapped[str] = _uuid(primary_key=True)
    host: orm.Mapped[str] = orm.mapped_column(columns.Text(255))
    definition: orm.Mapped[dict[str, Any]] = orm.mapped_column()
    #: What of the guest its hypervisor cannot live-migrate.
    immovable: orm.Mapped[str | None] = orm.mapped_column(columns.Text())
    unstartable: orm.Mapped[str | None] = orm.mapped_column(columns.Text())
    stored_at: orm.Mapped[datetime.datetime] = orm.mapped_column(default=columns.now())


class InstanceAction(Base):
    """A request of a user for an instance, and its result."""

    __tablename__ = 'instance_actions'

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    action: orm.Mapped[str] = orm.mapped_column(columns.Text(64))
    instance_uuid: orm.Mapped[str] = _uuid(index=True)
    migration_uuid: orm.Mapped[str | None] = _uuid(index=True)
    request_id: orm.Mapped[str] = orm.mapped_column(columns.Text(64), index=True)
    user_id: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))
    project_id: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))
    start_time: orm.Mapped[datetime.datetime] = orm.mapped_column(default=columns.now())
    finish_time: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    message: orm.Mapped[str | None] = orm.mapped_column(columns.Text())
    result: orm.Mapped[str | None] = orm.mapped_column(columns.Text(16))


class Flavor(Base):
    """A flavor that guests can be resized to, beside those that guests have."""

    __tablename__ = 'flavors'

    name: orm.Mapped[str] = orm.mapped_column(columns.Text(255), primary_key=True)
    flavor: orm.Mapped[dict[str, Any]] = orm.mapped_column()


#: The tables for queries. The queries use no ORM objects, so no session tracks changes.
INSTANCES: Any = Instance.__table__
MIGRATIONS: Any = Migration.__table__
SAGA_LOG: Any = SagaLog.__table__
NOTIFIED: Any = Notified.__table__
CONDUCTORS: Any = Conductor.__table__
SERVICES: Any = Service.__table__
SLOT_LOCK: Any = SlotLock.__table__
COMPUTE_NODES: Any = ComputeNode.__table__
CLEANUPS: Any = Cleanup.__table__
GUEST_DEFINITIONS: Any = GuestDefinition.__table__
INSTANCE_ACTIONS: Any = InstanceAction.__table__
FLAVORS: Any = Flavor.__table__

#: The condition that a migration is in progress, and that it has ended. The column is set and cleared together with the
#: status. SQLite does not use its index for ``IS NOT NULL``.
IN_PROGRESS: Any = MIGRATIONS.c.in_progress_instance_uuid > ''


def alive(owner: Any) -> Any:
    """Return the condition that an owner holds an unexpired lease."""
    return sa.exists().where(CONDUCTORS.c.id == owner, CONDUCTORS.c.lease_until > columns.now())


ENDED: Any = columns.unindexed(MIGRATIONS.c.in_progress_instance_uuid).is_(None)


class Listing:
    """Pages of a table, the newest rows first: by created_at, then id, both descending.

    Each kind of page is prepared once.

    :param conditions: what a page may be asked for beside the values of columns: name -> a condition, which may have a
        parameter of that name.
    """

    def __init__(self, table: Any, **conditions: Any) -> None:
        self._table = table
        self._conditions = conditions
        self._pages: dict[tuple[Any, ...], Prepared] = {}
        self._one = Prepared(sa.select(table).where(table.c.uuid == sa.bindparam('of')))

    def page(
        self,
        session: Any,
        filters: Mapping[str, Any],
        limit: int | None,
        marker: str | None,
        marker_project: str | None,
        few: bool = False,
    ) -> Sequence[Any]:
        """Return a page.

        :param filters: column -> its value, or a list of values; or the name of a condition -> its parameter, True if
            it has none.
        :param few: whether the query finds few rows by an index. They are sorted afterwards.
        :param marker: the uuid of the last row of the previous page; None: this is the first page.
        :param marker_project: the project that the marker must belong to; None: any.
        :raises migrator.exception.MarkerNotFound: no row of that project has the marker's uuid.
        """
        given = {name: [*value] if isinstance(value, (list, tuple)) else value for name, value in filters.items()}
        if limit is not None:
            given[_LIMIT] = limit
        if marker is not None:
            last = session.execute(self._one, {'of': marker}).one_or_none()
            if last is None or marker_project not in (None, last.project_id):
                raise exception.MarkerNotFound(marker=marker)
            given |= {_LAST_AT: last.created_at, _LAST_ID: last.id}
        kinds = (few, *((name, list if isinstance(value, list) else value is None) for name, value in given.items()))
        query = self._pages.get(kinds)
        if query is None:
            if len(self._pages) >= _MOST_PAGES:  # users choose what a list is filtered by
                self._pages.clear()
            query = self._pages[kinds] = Prepared(self._query(given, few))
        found: Sequence[Any] = session.execute(query, given).all()
        return found

    def _query(self, given: Mapping[str, Any], few: bool) -> Any:
        table = self._table
        query = sa.select(table)
        for name, value in given.items():
            if name in self._conditions:
                query = query.where(self._conditions[name])
            elif isinstance(value, list):
                query = query.where(table.c[name].in_(sa.bindparam(name, expanding=True)))
            elif name == _LIMIT:
                query = query.limit(sa.bindparam(name, type_=sa.Integer()))
            elif name == _LAST_AT:
                # MariaDB would read an index from its beginning for a comparison of tuples.
                last_at: Any = sa.bindparam(name, type_=table.c.created_at.type)
                earlier = sa.or_(table.c.created_at < last_at, table.c.id < sa.bindparam(_LAST_ID))
                query = query.where(table.c.created_at <= last_at, earlier)
            elif name != _LAST_ID:
                query = query.where(table.c[name].is_(None) if value is None else table.c[name] == sa.bindparam(name))
        created_at = columns.unindexed(table.c.created_at) if few else table.c.created_at
        return query.order_by(created_at.desc(), table.c.id.desc())


#: The most kinds of pages that stay prepared.
_MOST_PAGES = 200
_LIMIT, _LAST_AT, _LAST_ID = 'page_limit', 'page_last_at', 'page_last_id'


def from_sqlite(model: type[Base]) -> list[tuple[str, str, Callable[[Any], Any] | None]]:
    """Return the columns of a table: name, attribute, and the conversion of a value in SQLite or None."""
    dialect, columns = sqlite.dialect(), model.__table__.columns
    return [(one.name, one.key, one.type.dialect_impl(dialect).result_processor(dialect, None)) for one in columns]


def of_row(cls: type[T], row: Any, prefix: str = '', **more: Any) -> T:
    """Return the object of a dataclass from a row with a column for each of its fields.

    :param prefix: the prefix of the column names in the row.
    :param more: the fields that have another form in the row.
    """
    values = {name: getattr(row, prefix + name) for name in base.fields(cls) if name not in more}
    return base.with_fields(cls, values | more)


def values_of(one: Any) -> dict[str, Any]:
    """Return the columns of a new row for the object of a dataclass, without those that the database sets."""
    automatic = ('id', 'created_at', 'updated_at')
    return {name: getattr(one, name) for name in base.fields(type(one)) if name not in automatic}


def instance(row: Any, prefix: str = '') -> objects.Instance:
    """Convert a row of ``instances`` to an instance.

    :param prefix: the prefix of the column names in the row.
    """
    flavor = objects.Flavor(**getattr(row, f'{prefix}flavor'))
    return of_row(objects.Instance, row, prefix, flavor=flavor)


def migration(row: Any) -> objects.Migration:
    """Convert a row of ``migrations`` to a migration."""
    old, new = (flavor and objects.Flavor(**flavor) for flavor in (row.old_flavor, row.new_flavor))
    return of_row(objects.Migration, row, old_flavor=old, new_flavor=new)


def node(row: Any) -> objects.ComputeNode:
    """Convert a row of ``compute_nodes`` to a compute node."""
    return of_row(objects.ComputeNode, row, providers=base.from_primitive(row.providers))
