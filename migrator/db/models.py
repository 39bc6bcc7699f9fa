# SPDX-License-Identifier: Apache-2.0

"""The tables, and the conversion of their rows to objects. ARCHITECTURE.rst lists the writers."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects import sqlite

from migrator import exception, objects
from migrator.db import types
from migrator.objects import base
from migrator.saga import log

T = TypeVar('T')


class Base(orm.DeclarativeBase):
    """The base of every table."""

    type_annotation_map = {  # noqa: RUF012 -- SQLAlchemy reads this attribute
        datetime.datetime: types.UTCDateTime(),
        dict[str, Any]: types.Json(),
        list[Any]: types.Json(),
        bool: sa.Boolean(),
    }


class Times:
    """The times when a row was created and last changed, by the clock of the database."""

    created_at: orm.Mapped[datetime.datetime] = orm.mapped_column(default=types.now())
    updated_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(onupdate=types.now())


def _uuid(**options: Any) -> orm.Mapped[str]:
    return orm.mapped_column(types.Text(36), **options)


class Instance(Times, Base):
    """A guest whose allocation migrator keeps."""

    __tablename__ = 'instances'

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    uuid: orm.Mapped[str] = _uuid(unique=True)
    name: orm.Mapped[str] = orm.mapped_column(types.Text(255), index=True)
    project_id: orm.Mapped[str] = orm.mapped_column(types.Text(255), index=True)
    user_id: orm.Mapped[str] = orm.mapped_column(types.Text(255))
    host: orm.Mapped[str] = orm.mapped_column(types.Text(255), index=True)
    node: orm.Mapped[str] = orm.mapped_column(types.Text(255))
    flavor: orm.Mapped[dict[str, Any]] = orm.mapped_column()
    vm_state: orm.Mapped[str] = orm.mapped_column(types.Text(64))
    power_state: orm.Mapped[int] = orm.mapped_column(types.Whole())
    task_state: orm.Mapped[str | None] = orm.mapped_column(types.Text(64))
    locked_by: orm.Mapped[str | None] = orm.mapped_column(types.Text(64))
    locked_reason: orm.Mapped[str | None] = orm.mapped_column(types.Text(255))
    launched_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    #: Rises with each migration of the instance, and with each cleanup that runs outside of a migration.
    tenure: orm.Mapped[int] = orm.mapped_column(default=0, server_default='0')


class Migration(Times, Base):
    """A migration: the request, its progress, its owner and its epoch."""

    __tablename__ = 'migrations'

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    uuid: orm.Mapped[str | None] = _uuid(unique=True)
    instance_uuid: orm.Mapped[str] = _uuid(index=True)
    #: The instance's uuid while in progress, NULL afterwards. Unique, so that an instance has at most one in progress.
    in_progress_instance_uuid: orm.Mapped[str | None] = _uuid(unique=True)
    project_id: orm.Mapped[str] = orm.mapped_column(types.Text(255))
    user_id: orm.Mapped[str] = orm.mapped_column(types.Text(255))
    migration_type: orm.Mapped[str] = orm.mapped_column(types.Text(32))
    status: orm.Mapped[str] = orm.mapped_column(types.Text(32), index=True)
    source_compute: orm.Mapped[str] = orm.mapped_column(types.Text(255), index=True)
    source_node: orm.Mapped[str] = orm.mapped_column(types.Text(255))
    dest_compute: orm.Mapped[str | None] = orm.mapped_column(types.Text(255), index=True)
    dest_node: orm.Mapped[str | None] = orm.mapped_column(types.Text(255))
    dest_host: orm.Mapped[str | None] = orm.mapped_column(types.Text(255))
    hidden: orm.Mapped[bool] = orm.mapped_column(default=False)

    request_id: orm.Mapped[str | None] = orm.mapped_column(types.Text(64))
    requested_host: orm.Mapped[str | None] = orm.mapped_column(types.Text(255))
    force: orm.Mapped[bool] = orm.mapped_column(default=False)
    block_migration: orm.Mapped[bool | None] = orm.mapped_column()
    disk_over_commit: orm.Mapped[bool] = orm.mapped_column(default=False)

    strategy: orm.Mapped[str] = orm.mapped_column(types.Text(32))
    outcome: orm.Mapped[str | None] = orm.mapped_column(types.Text(16))
    owner: orm.Mapped[str | None] = _uuid(index=True)
    epoch: orm.Mapped[int] = orm.mapped_column(default=0)
    attempt: orm.Mapped[int] = orm.mapped_column(default=1)
    #: The tenure of the instance when this migration, or a cleanup of it, last raised it.
    tenure: orm.Mapped[int] = orm.mapped_column(default=0, server_default='0')
    checked_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    queued_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    running_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    failure: orm.Mapped[str | None] = orm.mapped_column(types.Text())
    stuck_reason: orm.Mapped[str | None] = orm.mapped_column(types.Text())
    waits_for: orm.Mapped[str | None] = orm.mapped_column(types.Text())
    #: The ``seq`` of the newest entry of the migration's log. The owner appends at the next one.
    log_seq: orm.Mapped[int] = orm.mapped_column(default=0, server_default='0')

    abort_requested_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    abort_requested_by: orm.Mapped[str | None] = orm.mapped_column(types.Text(255))
    abort_verdict: orm.Mapped[str | None] = orm.mapped_column(types.Text())
    force_complete_requested_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    retry_requested_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    retry_requested_by: orm.Mapped[str | None] = orm.mapped_column(types.Text(255))
    abandon_requested_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    abandon_requested_by: orm.Mapped[str | None] = orm.mapped_column(types.Text(255))
    abandon_guest_on: orm.Mapped[str | None] = orm.mapped_column(types.Text(255))

    memory_total: orm.Mapped[int | None] = orm.mapped_column(types.Whole(64))
    memory_processed: orm.Mapped[int | None] = orm.mapped_column(types.Whole(64))
    memory_remaining: orm.Mapped[int | None] = orm.mapped_column(types.Whole(64))
    disk_total: orm.Mapped[int | None] = orm.mapped_column(types.Whole(64))
    disk_processed: orm.Mapped[int | None] = orm.mapped_column(types.Whole(64))
    disk_remaining: orm.Mapped[int | None] = orm.mapped_column(types.Whole(64))


class SagaLog(Base):
    """The log of each migration: rows are only added. A step's intent is committed before it is sent."""

    __tablename__ = 'saga_log'

    migration: orm.Mapped[str] = _uuid(primary_key=True)
    seq: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
    at: orm.Mapped[datetime.datetime] = orm.mapped_column(default=types.now())
    conductor: orm.Mapped[str | None] = _uuid()
    epoch: orm.Mapped[int] = orm.mapped_column()
    attempt: orm.Mapped[int] = orm.mapped_column()
    kind: orm.Mapped[str] = orm.mapped_column(types.Text(16))
    step: orm.Mapped[str | None] = orm.mapped_column(types.Text(64))
    payload: orm.Mapped[dict[str, Any]] = orm.mapped_column()


class Conductor(Base):
    """An incarnation of a conductor, and its lease."""

    __tablename__ = 'conductors'

    id: orm.Mapped[str] = _uuid(primary_key=True)
    server: orm.Mapped[str] = orm.mapped_column(types.Text(255))
    lease_until: orm.Mapped[datetime.datetime] = orm.mapped_column()
    #: The time since when the conductor cannot reach the broker.
    broker_away_since: orm.Mapped[datetime.datetime | None] = orm.mapped_column()


class Service(Times, Base):
    """A compute service or a conductor."""

    __tablename__ = 'services'
    __table_args__ = (sa.UniqueConstraint('host', 'binary', name='uniq_services'),)

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    uuid: orm.Mapped[str] = _uuid(unique=True)
    host: orm.Mapped[str] = orm.mapped_column(types.Text(255))
    binary: orm.Mapped[str] = orm.mapped_column(types.Text(64))
    version: orm.Mapped[int] = orm.mapped_column(types.Whole())
    boot_id: orm.Mapped[str | None] = _uuid()
    last_seen_up: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    #: When a conductor that was reachable all the time declared the service down, after too long without a report.
    down_since: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    disabled: orm.Mapped[bool] = orm.mapped_column(default=False)
    disabled_reason: orm.Mapped[str | None] = orm.mapped_column(types.Text(255))
    forced_down: orm.Mapped[bool] = orm.mapped_column(default=False)


class ComputeNode(Times, Base):
    """A hypervisor, and the root of its tree of resource providers."""

    __tablename__ = 'compute_nodes'

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    uuid: orm.Mapped[str] = _uuid(unique=True)
    host: orm.Mapped[str] = orm.mapped_column(types.Text(255), unique=True)
    node: orm.Mapped[str] = orm.mapped_column(types.Text(255))
    hypervisor_type: orm.Mapped[str] = orm.mapped_column(types.Text(64))
    hypervisor_version: orm.Mapped[int] = orm.mapped_column(types.Whole())
    host_ip: orm.Mapped[str] = orm.mapped_column(types.Text(64))
    cpu_info: orm.Mapped[dict[str, Any]] = orm.mapped_column()
    providers: orm.Mapped[list[Any]] = orm.mapped_column()
    #: Whether a conductor has written these providers to Placement.
    in_placement: orm.Mapped[bool] = orm.mapped_column(default=True, server_default=sa.true())


class Cleanup(Base):
    """A deferred cleanup: a step that a host still has to do for a migration that went on without it."""

    __tablename__ = 'cleanups'
    __table_args__ = (sa.UniqueConstraint('host', 'migration_uuid', 'step', name='uniq_cleanups'),)

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    host: orm.Mapped[str] = orm.mapped_column(types.Text(255), index=True)
    migration_uuid: orm.Mapped[str] = _uuid()
    instance_uuid: orm.Mapped[str] = _uuid(index=True)
    step: orm.Mapped[str] = orm.mapped_column(types.Text(64))
    reason: orm.Mapped[str] = orm.mapped_column(types.Text())
    alarm: orm.Mapped[str | None] = orm.mapped_column(types.Text())
    owner: orm.Mapped[str | None] = _uuid()
    epoch: orm.Mapped[int] = orm.mapped_column()
    tenure: orm.Mapped[int] = orm.mapped_column(default=0, server_default='0')
    input: orm.Mapped[dict[str, Any] | None] = orm.mapped_column()
    created_at: orm.Mapped[datetime.datetime] = orm.mapped_column(default=types.now())


class InstanceAction(Base):
    """A request of a user for an instance, and its result."""

    __tablename__ = 'instance_actions'

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    action: orm.Mapped[str] = orm.mapped_column(types.Text(64))
    instance_uuid: orm.Mapped[str] = _uuid(index=True)
    migration_uuid: orm.Mapped[str | None] = _uuid(index=True)
    request_id: orm.Mapped[str] = orm.mapped_column(types.Text(64), index=True)
    user_id: orm.Mapped[str | None] = orm.mapped_column(types.Text(255))
    project_id: orm.Mapped[str | None] = orm.mapped_column(types.Text(255))
    start_time: orm.Mapped[datetime.datetime] = orm.mapped_column(default=types.now())
    finish_time: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    message: orm.Mapped[str | None] = orm.mapped_column(types.Text())
    result: orm.Mapped[str | None] = orm.mapped_column(types.Text(16))


#: The tables for queries. The queries use no ORM objects, so no session tracks changes.
INSTANCES: Any = Instance.__table__
MIGRATIONS: Any = Migration.__table__
SAGA_LOG: Any = SagaLog.__table__
CONDUCTORS: Any = Conductor.__table__
SERVICES: Any = Service.__table__
COMPUTE_NODES: Any = ComputeNode.__table__
CLEANUPS: Any = Cleanup.__table__
INSTANCE_ACTIONS: Any = InstanceAction.__table__


def matches(column: Any, value: Any) -> Any:
    """Return the condition that a column has a value, or any value of a list."""
    return column.in_(value) if isinstance(value, (list, tuple)) else column == value


def newest(
    session: Any, table: Any, query: Any, limit: int | None, marker: str | None, marker_project: str | None
) -> Sequence[Any]:
    """Return a page of a query, the newest rows first: by created_at, then id, both descending.

    :param marker: the uuid of the last row of the previous page; None: this is the first page.
    :param marker_project: the project that the marker must belong to; None: any.
    :raises migrator.exception.MarkerNotFound: no row of that project has the marker's uuid.
    """
    if marker is not None:
        last = session.execute(sa.select(table).where(table.c.uuid == marker)).one_or_none()
        if last is None or marker_project not in (None, last.project_id):
            raise exception.MarkerNotFound(marker=marker)
        query = query.where(sa.tuple_(table.c.created_at, table.c.id) < sa.tuple_(last.created_at, last.id))
    query = query.order_by(table.c.created_at.desc(), table.c.id.desc()).limit(limit)
    found: Sequence[Any] = session.execute(query).all()
    return found


def from_sqlite(model: type[Base]) -> list[tuple[str, Callable[[Any], Any] | None]]:
    """Return the columns of a table, each with its conversion of a value in SQLite, or None."""
    dialect, columns = sqlite.dialect(), model.__table__.columns
    return [(one.name, one.type.dialect_impl(dialect).result_processor(dialect, None)) for one in columns]


def _fields(cls: type[T], row: Any, prefix: str = '', **more: Any) -> T:
    values = {
        field.name: getattr(row, prefix + field.name)
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]  # every T here is a dataclass
        if field.name not in more
    }
    return cls(**values, **more)


def instance(row: Any, prefix: str = '') -> objects.Instance:
    """Convert a row of ``instances`` to an instance.

    :param prefix: the prefix of the column names in the row.
    """
    flavor = objects.Flavor(**getattr(row, f'{prefix}flavor'))
    return _fields(objects.Instance, row, prefix, flavor=flavor)


def migration(row: Any) -> objects.Migration:
    """Convert a row of ``migrations`` to a migration."""
    return _fields(objects.Migration, row)


def service(row: Any) -> objects.Service:
    """Convert a row of ``services`` to a service."""
    return _fields(objects.Service, row)


def node(row: Any) -> objects.ComputeNode:
    """Convert a row of ``compute_nodes`` to a compute node."""
    return _fields(objects.ComputeNode, row, providers=base.from_primitive(row.providers))


def entry(row: Any) -> log.Entry:
    """Convert a row of ``saga_log`` to an entry of the log."""
    return _fields(log.Entry, row)
