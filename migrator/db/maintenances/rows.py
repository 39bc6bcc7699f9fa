# SPDX-License-Identifier: Apache-2.0

"""The tables of maintenances, of their turns and of their logs."""

from __future__ import annotations

import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from migrator.db import models
from migrator.db.sql import columns
from migrator.db.sql.columns import Json, Text, Whole
from migrator.objects.drain import LONGEST_ERROR


class MaintenanceRow(models.Times, models.Base):
    """A maintenance; see :class:`migrator.drain.maintenance.turns.Maintenance`."""

    __tablename__ = 'maintenances'
    __table_args__ = (sa.Index('ix_maintenances_newest', 'created_at', 'id'),)

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    uuid: orm.Mapped[str] = orm.mapped_column(Text(36), unique=True)
    reason: orm.Mapped[str | None] = orm.mapped_column(Text(255))
    in_order: orm.Mapped[bool] = orm.mapped_column()
    prefer: orm.Mapped[str] = orm.mapped_column(Text(8))
    parallel: orm.Mapped[int] = orm.mapped_column(Whole())
    groups: orm.Mapped[dict[str, Any]] = orm.mapped_column(Json())
    per_group: orm.Mapped[int | None] = orm.mapped_column(Whole())
    max_failures: orm.Mapped[int] = orm.mapped_column(Whole())
    deadline: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    window: orm.Mapped[str | None] = orm.mapped_column(Text(64))
    reserve: orm.Mapped[dict[str, Any]] = orm.mapped_column(Json())
    wait_for_room: orm.Mapped[float | None] = orm.mapped_column(sa.Double())
    returned_by: orm.Mapped[str] = orm.mapped_column(Text(8))
    settle: orm.Mapped[float | None] = orm.mapped_column(sa.Double())
    work_timeout: orm.Mapped[float] = orm.mapped_column(sa.Double())
    return_timeout: orm.Mapped[float] = orm.mapped_column(sa.Double())
    guests: orm.Mapped[str] = orm.mapped_column(Text(8))
    stopped: orm.Mapped[str | None] = orm.mapped_column(Text(8))
    despite_trouble: orm.Mapped[bool] = orm.mapped_column()
    of_drains: orm.Mapped[dict[str, Any]] = orm.mapped_column(Json())
    requested_by: orm.Mapped[str | None] = orm.mapped_column(Text(255))
    project_id: orm.Mapped[str | None] = orm.mapped_column(Text(255))
    status: orm.Mapped[str] = orm.mapped_column(Text(32))
    paused: orm.Mapped[bool] = orm.mapped_column()
    forgiven: orm.Mapped[int] = orm.mapped_column(Whole())
    is_late: orm.Mapped[bool] = orm.mapped_column()
    cancel_requested_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    cancel_requested_by: orm.Mapped[str | None] = orm.mapped_column(Text(255))
    no_room_since: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    owner: orm.Mapped[str | None] = orm.mapped_column(Text(36))
    epoch: orm.Mapped[int] = orm.mapped_column()
    #: It rises with each write, by the number of its events or by 1, so that the log may lack numbers.
    log_seq: orm.Mapped[int] = orm.mapped_column()
    waits_for: orm.Mapped[str | None] = orm.mapped_column(Text())
    wait_error: orm.Mapped[str | None] = orm.mapped_column(Text(LONGEST_ERROR))
    message: orm.Mapped[str | None] = orm.mapped_column(Text())
    ended_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(index=True)


class MaintenanceTurn(models.Base):
    """A host of a maintenance; see :class:`migrator.drain.maintenance.turns.Turn`."""

    __tablename__ = 'maintenance_turns'

    maintenance: orm.Mapped[str] = orm.mapped_column(Text(36), primary_key=True)
    host: orm.Mapped[str] = orm.mapped_column(Text(255), primary_key=True)
    #: The host while the maintenance is in progress, NULL afterwards. Unique, so that a host has at most one.
    in_progress_host: orm.Mapped[str | None] = orm.mapped_column(Text(255), unique=True)
    position: orm.Mapped[int] = orm.mapped_column(Whole())
    group: orm.Mapped[str] = orm.mapped_column(Text(255))
    status: orm.Mapped[str] = orm.mapped_column(Text(16))
    is_out: orm.Mapped[bool] = orm.mapped_column()
    drain: orm.Mapped[str | None] = orm.mapped_column(Text(36), index=True)
    last_drain: orm.Mapped[str | None] = orm.mapped_column(Text(36))
    moves: orm.Mapped[dict[str, Any]] = orm.mapped_column(Json())
    claim: orm.Mapped[str | None] = orm.mapped_column(Text(36))
    claimed_by: orm.Mapped[str | None] = orm.mapped_column(Text(255))
    claimed_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    kernel: orm.Mapped[str | None] = orm.mapped_column(Text(64))
    boot: orm.Mapped[str | None] = orm.mapped_column(Text(36))
    was_worked_on: orm.Mapped[bool] = orm.mapped_column()
    work_ended_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    waits_since: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    settles_from: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    seen_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    began_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    ready_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    ended_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    reason: orm.Mapped[str | None] = orm.mapped_column(Text())


class MaintenanceLog(models.Base):
    """The log of each maintenance: rows are only added."""

    __tablename__ = 'maintenance_log'

    maintenance: orm.Mapped[str] = orm.mapped_column(Text(36), primary_key=True)
    seq: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
    at: orm.Mapped[datetime.datetime] = orm.mapped_column(default=columns.now())
    kind: orm.Mapped[str] = orm.mapped_column(Text(16))
    payload: orm.Mapped[dict[str, Any]] = orm.mapped_column(Json())


MAINTENANCES: Any = MaintenanceRow.__table__
TURNS: Any = MaintenanceTurn.__table__
LOG: Any = MaintenanceLog.__table__
