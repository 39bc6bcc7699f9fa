# SPDX-License-Identifier: Apache-2.0
"""The state of an instance and its migrations in words, for the message of an error.

The text names no host, because the caller may not be allowed to know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from migrator import exception
from migrator.db import models, types
from migrator.db.engine import Engine
from migrator.objects import ENDS, MigrationStatus, times

_I, _T = models.INSTANCES, models.MIGRATIONS
_S = MigrationStatus
_TOO_LATE_TO_ABORT = (_S.RUNNING_POST_COPY, _S.POST_MIGRATING)


def of(session: Any, instance_uuid: str, migration_id: int | None = None) -> str:
    """Return the state of a migration of an instance, since when, and what to do.

    :param migration_id: the migration. With None, or if the instance has no such migration: the one in progress, or
        else the last one.
    """
    query = (
        sa.select(_T, types.now().label('now'))
        .where(_T.c.instance_uuid == instance_uuid)
        .order_by(_T.c.id != (migration_id or 0), _T.c.in_progress_instance_uuid.is_(None), _T.c.id.desc())
        .limit(1)
    )
    row = session.execute(query).one_or_none()
    if row is None:
        return 'it has no migration.'
    now = types.aware(row.now)
    if row.status in ENDS:
        ended = f'ended {row.status} {times.ago(row.updated_at or row.created_at, now)}'
        if row.id == migration_id:
            return f'migration {row.id} {ended} and cannot be changed any more.'
        return f'its last migration, {row.id}, {ended}.'
    return f'migration {row.id}, accepted {times.ago(row.created_at, now)}, is {row.status}{_advice(row)}.'


def _advice(row: Any) -> str:
    if row.stuck_reason is not None:
        return f' and stuck: ask an operator to look at it (migrator-manage migration show {row.id})'
    if row.abort_requested_at is not None:
        return ' and is being aborted: wait for it to end'
    if row.status in _TOO_LATE_TO_ABORT:
        return ': wait for it to end, which no abort can prevent'
    return ': wait for it to end, or abort it'


def existing(session: Any, instance_uuid: str) -> str:
    """Return a text that says which instance has this uuid, and what to do."""
    row = session.execute(sa.select(_I, types.now().label('now')).where(_I.c.uuid == instance_uuid)).one_or_none()
    if row is None:
        return 'it was deleted meanwhile; try again.'
    age = times.ago(row.created_at, types.aware(row.now))
    return f'it is {row.name} on {row.host}, {row.vm_state}, created {age}; delete it first, or keep it as it is.'


def invalid_state(
    session: Any,
    instance_uuid: str,
    attr: str,
    state: str | None,
    method: str,
    wanted: Sequence[str] = (),
    migration_id: int | None = None,
) -> exception.InstanceInvalidState:
    """Return the error for an instance in the wrong state.

    :param wanted: the states in which the request is possible.
    :param migration_id: the migration that the request named, if any.
    """
    facts = of(session, instance_uuid, migration_id)
    if wanted:
        facts = f'it has to be {" or ".join(wanted)}; {facts}'
    elif attr == 'task_state' and state != 'migrating':
        facts = f'that has to end first; {facts}'
    return exception.InstanceInvalidState(
        instance_uuid=instance_uuid, attr=attr, state=state, method=method, facts=facts
    )


class Standing:
    """The errors of this module for a caller without a session."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def invalid_state(self, instance_uuid: str, **more: Any) -> exception.InstanceInvalidState:
        """Return the error of :func:`invalid_state`."""
        with self._engine.reader() as session:
            return invalid_state(session, instance_uuid, **more)
