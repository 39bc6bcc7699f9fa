# SPDX-License-Identifier: Apache-2.0

"""Instance actions: the requests of users for an instance, and their results."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import sqlalchemy as sa

from migrator import exception
from migrator.context import RequestContext
from migrator.db import models, types
from migrator.db.engine import Engine

_T = models.INSTANCE_ACTIONS

LIVE_MIGRATION = 'live-migration'
LIVE_MIGRATION_CANCEL = 'live_migration_cancel'
LIVE_MIGRATION_FORCE_COMPLETE = 'live_migration_force_complete'

SUCCESS = 'Success'
ERROR = 'Error'


@dataclasses.dataclass(frozen=True)
class Action:
    """One row of ``instance_actions``; times are in UTC."""

    action: str
    instance_uuid: str
    request_id: str
    user_id: str | None = None
    project_id: str | None = None
    migration_uuid: str | None = None
    start_time: datetime.datetime | None = None
    finish_time: datetime.datetime | None = None
    message: str | None = None
    result: str | None = None


def start(session: Any, context: RequestContext, action: str, instance_uuid: str, migration_uuid: str | None) -> None:
    """Write the start of an action within the transaction that accepts the request."""
    session.execute(
        sa.insert(_T).values(
            action=action,
            instance_uuid=instance_uuid,
            migration_uuid=migration_uuid,
            request_id=context.request_id,
            user_id=context.user_id,
            project_id=context.project_id,
        )
    )


def finish(session: Any, action: str, migration_uuid: str, message: str | None) -> None:
    """Write the result of an action within the transaction that ends its migration.

    :param message: why the action failed; None: it succeeded.
    """
    session.execute(
        sa.update(_T)
        .where(_T.c.migration_uuid == migration_uuid, _T.c.action == action, _T.c.finish_time.is_(None))
        .values(finish_time=types.now(), message=message, result=ERROR if message else SUCCESS)
    )


class Actions:
    """The rows of ``instance_actions``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def list(
        self,
        instance_uuid: str,
        limit: int | None = None,
        marker: str | None = None,
        changes_since: datetime.datetime | None = None,
        changes_before: datetime.datetime | None = None,
    ) -> list[Action]:
        """Return an instance's actions, the newest first.

        :param marker: the request id of the last action of the previous page.
        :raises migrator.exception.MarkerNotFound: no action has the marker's request id.
        """
        query = sa.select(_T).where(_T.c.instance_uuid == instance_uuid).order_by(_T.c.id.desc())
        changed = sa.func.coalesce(_T.c.finish_time, _T.c.start_time)
        if changes_since is not None:
            query = query.where(changed >= changes_since)
        if changes_before is not None:
            query = query.where(changed <= changes_before)
        with self._engine.reader() as session:
            if marker is not None:
                last = session.execute(
                    sa.select(_T.c.id).where(_T.c.instance_uuid == instance_uuid, _T.c.request_id == marker)
                ).scalar()
                if last is None:
                    raise exception.MarkerNotFound(marker=marker)
                query = query.where(_T.c.id < last)
            if limit is not None:
                query = query.limit(limit)
            return [_action(row) for row in session.execute(query)]

    def get(self, instance_uuid: str, request_id: str) -> Action:
        """Return the action of a request.

        :raises migrator.exception.ActionNotFound: the instance has no action of this request.
        """
        query = sa.select(_T).where(_T.c.instance_uuid == instance_uuid, _T.c.request_id == request_id)
        with self._engine.reader() as session:
            row = session.execute(query.order_by(_T.c.id.desc()).limit(1)).one_or_none()
            if row is None:
                raise exception.ActionNotFound(request_id=request_id, instance_uuid=instance_uuid)
            return _action(row)


def _action(row: Any) -> Action:
    return Action(**{field.name: getattr(row, field.name) for field in dataclasses.fields(Action)})
