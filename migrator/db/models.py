# SPDX-License-Identifier: Apache-2.0

"""The tables. Who may write which column is in ARCHITECTURE.rst."""

from __future__ import annotations

import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from migrator.db import types


class Base(orm.DeclarativeBase):
    """The base of every table."""

    type_annotation_map = {  # noqa: RUF012 -- SQLAlchemy reads it as it stands
        datetime.datetime: types.UTCDateTime(),
        dict[str, Any]: types.Json(),
        list[Any]: types.Json(),
        bool: sa.Boolean(),
    }


class Times:
    """When a row was made and last changed, by the database's clock."""

    created_at: orm.Mapped[datetime.datetime] = orm.mapped_column(default=types.now())
    updated_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(onupdate=types.now())


def _uuid(**options: Any) -> orm.Mapped[str]:
    return orm.mapped_column(types.Text(36), **options)


class Instance(Times, Base):
    """A guest that migrator keeps the books of."""

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
    #: Rises with each migration of the instance, and with each cleanup that none of them carries out.
    tenure: orm.Mapped[int] = orm.mapped_column(default=0, server_default='0')


class Migration(Times, Base):
    """A migration: what was asked, where it stands, whose it is, and in which epoch."""

    __tablename__ = 'migrations'

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    uuid: orm.Mapped[str | None] = _uuid(unique=True)
    instance_uuid: orm.Mapped[str] = _uuid(index=True)
    #: The instance's uuid while in progress, NULL after: so the database holds "at most one in progress" by itself.
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
    #: A copy of the instance's when this migration, or a cleanup of it, last took the instance in hand.
    tenure: orm.Mapped[int] = orm.mapped_column(default=0, server_default='0')
    checked_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    queued_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    running_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    failure: orm.Mapped[str | None] = orm.mapped_column(types.Text())
    stuck_reason: orm.Mapped[str | None] = orm.mapped_column(types.Text())
    waits_for: orm.Mapped[str | None] = orm.mapped_column(types.Text())
    #: The place of its newest entry in the log. Its owner appends at the next one.
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
    """The log of each migration's saga: rows are added, and none is changed. An intent is committed before the act."""

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
    """A life of a conductor, and until when it may be taken for alive."""

    __tablename__ = 'conductors'

    id: orm.Mapped[str] = _uuid(primary_key=True)
    server: orm.Mapped[str] = orm.mapped_column(types.Text(255))
    lease_until: orm.Mapped[datetime.datetime] = orm.mapped_column()
    #: Since when it cannot reach the broker.
    broker_away_since: orm.Mapped[datetime.datetime | None] = orm.mapped_column()


class Service(Times, Base):
    """A service that reports."""

    __tablename__ = 'services'
    __table_args__ = (sa.UniqueConstraint('host', 'binary', name='uniq_services'),)

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    uuid: orm.Mapped[str] = _uuid(unique=True)
    host: orm.Mapped[str] = orm.mapped_column(types.Text(255))
    binary: orm.Mapped[str] = orm.mapped_column(types.Text(64))
    version: orm.Mapped[int] = orm.mapped_column(types.Whole())
    boot_id: orm.Mapped[str | None] = _uuid()
    last_seen_up: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    #: Since when a conductor that could be reached all the time has heard nothing of it for long.
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
    #: Whether Placement has been seen to have these providers.
    in_placement: orm.Mapped[bool] = orm.mapped_column(default=True, server_default=sa.true())


class HostCleanup(Base):
    """What a host still owes for a migration that has ended without it."""

    __tablename__ = 'host_debts'
    __table_args__ = (sa.UniqueConstraint('host', 'migration_uuid', 'step', name='uniq_host_debts'),)

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
    """What somebody asked of an instance, and what came of it."""

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


#: What the queries are made of: no session keeps objects of rows, nor looks for what has changed in them.
INSTANCES: Any = Instance.__table__
MIGRATIONS: Any = Migration.__table__
SAGA_LOG: Any = SagaLog.__table__
CONDUCTORS: Any = Conductor.__table__
SERVICES: Any = Service.__table__
COMPUTE_NODES: Any = ComputeNode.__table__
HOST_DEBTS: Any = HostCleanup.__table__
INSTANCE_ACTIONS: Any = InstanceAction.__table__
