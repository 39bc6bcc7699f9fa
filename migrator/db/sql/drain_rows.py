# SPDX-License-Identifier: Apache-2.0

"""The tables of drains, of their members and logs, and of what a drain had done before each restore."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from migrator.db import models
from migrator.db.sql import columns
from migrator.db.sql.columns import Json, Text, Whole
from migrator.db.sql.engine import Engine
from migrator.db.sql.statements import Prepared
from migrator.objects.drain import LONGEST_ERROR, Drain, Member


class DrainRow(models.Times, models.Base):
    """A drain: the request, its progress, its owner and its epoch."""

    __tablename__ = 'drains'
    __table_args__ = (sa.Index('ix_drains_newest', 'created_at', 'id'),)

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    uuid: orm.Mapped[str] = orm.mapped_column(Text(36), unique=True)
    host: orm.Mapped[str] = orm.mapped_column(Text(255), index=True)
    #: The host while the drain is in progress, NULL afterwards. Unique, so that a host has at most one in progress.
    in_progress_host: orm.Mapped[str | None] = orm.mapped_column(Text(255), unique=True)
    reason: orm.Mapped[str | None] = orm.mapped_column(Text(255))
    order: orm.Mapped[str] = orm.mapped_column(Text(32))
    priorities: orm.Mapped[dict[str, Any] | None] = orm.mapped_column(Json())
    priority: orm.Mapped[int] = orm.mapped_column(Whole(), default=0)
    parallel: orm.Mapped[int | None] = orm.mapped_column(Whole())
    max_attempts: orm.Mapped[int] = orm.mapped_column(Whole())
    destinations: orm.Mapped[list[Any] | None] = orm.mapped_column(Json())
    planned: orm.Mapped[dict[str, Any] | None] = orm.mapped_column(Json())
    deadline: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    include_stopped: orm.Mapped[bool] = orm.mapped_column(default=False, server_default=sa.false())
    spread: orm.Mapped[bool] = orm.mapped_column(default=False, server_default=sa.false())
    locked: orm.Mapped[str] = orm.mapped_column(Text(8))
    only_guests: orm.Mapped[list[Any] | None] = orm.mapped_column(Json())
    retry_of: orm.Mapped[str | None] = orm.mapped_column(Text(36))
    requested_by: orm.Mapped[str | None] = orm.mapped_column(Text(255))
    project_id: orm.Mapped[str | None] = orm.mapped_column(Text(255))
    request_id: orm.Mapped[str | None] = orm.mapped_column(Text(64))
    status: orm.Mapped[str] = orm.mapped_column(Text(32))
    direction: orm.Mapped[str] = orm.mapped_column(Text(8))
    paused: orm.Mapped[bool] = orm.mapped_column(default=False)
    has_disabled_host: orm.Mapped[bool] = orm.mapped_column(default=False)
    cancel_requested_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    cancel_requested_by: orm.Mapped[str | None] = orm.mapped_column(Text(255))
    cancel_running: orm.Mapped[bool] = orm.mapped_column(default=False)
    owner: orm.Mapped[str | None] = orm.mapped_column(Text(36))
    epoch: orm.Mapped[int] = orm.mapped_column(default=0)
    #: The ``seq`` of the newest event of the drain's log.
    log_seq: orm.Mapped[int] = orm.mapped_column(default=0)
    checks: orm.Mapped[list[Any]] = orm.mapped_column(Json())
    waits_for: orm.Mapped[str | None] = orm.mapped_column(Text())
    wait_error: orm.Mapped[str | None] = orm.mapped_column(Text(LONGEST_ERROR))
    message: orm.Mapped[str | None] = orm.mapped_column(Text())
    began_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    emptied_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    ended_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()


class DrainMember(models.Base):
    """A guest of a drain; see :class:`migrator.objects.drain.Member`."""

    __tablename__ = 'drain_members'

    drain: orm.Mapped[str] = orm.mapped_column(Text(36), primary_key=True)
    instance_uuid: orm.Mapped[str] = orm.mapped_column(Text(36), primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(Text(255))
    position: orm.Mapped[int] = orm.mapped_column()
    size_mb: orm.Mapped[int] = orm.mapped_column(Whole(64))
    is_cold: orm.Mapped[bool] = orm.mapped_column(default=False)
    status: orm.Mapped[str] = orm.mapped_column(Text(16))
    attempts: orm.Mapped[int] = orm.mapped_column(Whole())
    mark: orm.Mapped[str | None] = orm.mapped_column(Text(128))
    tried: orm.Mapped[list[Any]] = orm.mapped_column(Json())
    source: orm.Mapped[str] = orm.mapped_column(Text(255))
    destination: orm.Mapped[str | None] = orm.mapped_column(Text(255))
    not_before: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    began_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    ended_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column()
    reason: orm.Mapped[str | None] = orm.mapped_column(Text())
    remedy: orm.Mapped[str | None] = orm.mapped_column(Text())
    progress: orm.Mapped[dict[str, Any] | None] = orm.mapped_column(Json())


class DrainLog(models.Base):
    """The log of each drain: rows are only added."""

    __tablename__ = 'drain_log'

    drain: orm.Mapped[str] = orm.mapped_column(Text(36), primary_key=True)
    seq: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
    at: orm.Mapped[datetime.datetime] = orm.mapped_column(default=columns.now())
    conductor: orm.Mapped[str | None] = orm.mapped_column(Text(36))
    kind: orm.Mapped[str] = orm.mapped_column(Text(16))
    payload: orm.Mapped[dict[str, Any]] = orm.mapped_column(Json())


class DrainRun(models.Base):
    """What a drain had done when a user requested its restore, which begins with the same rows anew."""

    __tablename__ = 'drain_runs'

    drain: orm.Mapped[str] = orm.mapped_column(Text(36), primary_key=True)
    #: The ``seq`` of that request in the log.
    seq: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
    record: orm.Mapped[dict[str, Any]] = orm.mapped_column(Json())


DRAINS: Any = DrainRow.__table__
MEMBERS: Any = DrainMember.__table__
LOG: Any = DrainLog.__table__
RUNS: Any = DrainRun.__table__

MEMBERS_OF = Prepared(
    sa.select(MEMBERS)
    .where(MEMBERS.c.drain == sa.bindparam('of'))
    .order_by(MEMBERS.c.position, MEMBERS.c.instance_uuid)
)
#: What a restore replaces in a drain and in its members, and what their order needs.
_OF_RUN = ('status', 'direction', 'checks', 'message', 'began_at', 'ended_at')
_OF_MEMBER = (
    *('instance_uuid', 'name', 'position', 'size_mb', 'status', 'attempts', 'mark', 'source', 'destination'),
    *('began_at', 'ended_at', 'reason'),
)


@dataclasses.dataclass(frozen=True)
class Run:
    """What a drain, or an earlier restore of it, had done when a restore was requested.

    :ivar seq: the ``seq`` of that request in the log.
    :ivar drain: the drain as it was then.
    :ivar members: its guests as they were then.
    """

    seq: int
    drain: Drain
    members: Sequence[Member]


def keep_run(session: Any, drain: Drain) -> None:
    """Keep what a drain has done, for its report: the restore that is requested begins with the same rows."""
    members = [models.of_row(Member, row) for row in session.execute(MEMBERS_OF, {'of': drain.uuid})]
    record = {
        'drain': {name: _plain(getattr(drain, name)) for name in _OF_RUN},
        'members': [{name: _plain(getattr(one, name)) for name in _OF_MEMBER} for one in members],
    }
    session.execute(sa.insert(RUNS).values(drain=drain.uuid, seq=drain.log_seq + 1, record=record))


def read_runs(engine: Engine, drain: Drain) -> list[Run]:
    """Return what a drain had done at each request of a restore, the oldest first."""
    query = sa.select(RUNS.c.seq, RUNS.c.record).where(RUNS.c.drain == drain.uuid).order_by(RUNS.c.seq)
    with engine.reader() as session:
        return [
            Run(
                row.seq,
                drain.replace(**_times(row.record['drain'])),
                [Member(**_times(one)) for one in row.record['members']],
            )
            for row in session.execute(query)
        ]


def retries(engine: Engine, uuids: Sequence[str]) -> dict[str, str]:
    """Return drain -> the drain that is its retry, of those that have one."""
    query = sa.select(DRAINS.c.retry_of, DRAINS.c.uuid).where(DRAINS.c.retry_of.in_([*uuids]))
    with engine.reader() as session:
        return {row.retry_of: row.uuid for row in session.execute(query)}


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.datetime) else value


def _times(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a record, with times instead of their texts."""
    return {
        name: datetime.datetime.fromisoformat(value) if value is not None and name.endswith('_at') else value
        for name, value in record.items()
    }
