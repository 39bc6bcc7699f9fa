# SPDX-License-Identifier: Apache-2.0

"""Requests of users: instance actions with their results, and requests to a migration's owner.

A request to an owner is written only if the migration has a suitable status, or is stuck. The owner carries it out.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from migrator import exception
from migrator.context import RequestContext
from migrator.db import models
from migrator.db.sql import columns
from migrator.db.sql.engine import Engine, retried
from migrator.db.sql.statements import Prepared
from migrator.objects import ARRIVED, IN_PROGRESS, Migration, MigrationStatus, MigrationType, times
from migrator.objects.migration import AbortCause, verdict

_T, _M, _I = models.INSTANCE_ACTIONS, models.MIGRATIONS, models.INSTANCES
_S = MigrationStatus

LIVE_MIGRATION = 'live-migration'
LIVE_MIGRATION_CANCEL = 'live_migration_cancel'
LIVE_MIGRATION_FORCE_COMPLETE = 'live_migration_force_complete'
EVACUATE = 'evacuate'
MIGRATE = 'migrate'
RESIZE = 'resize'
CONFIRM_RESIZE = 'confirmResize'
REVERT_RESIZE = 'revertResize'
LOCK = 'lock'
UNLOCK = 'unlock'
RESET_STATE = 'resetState'

#: The task_state of an instance, as in nova, while its cold migration is being reverted.
REVERTING = 'resize_reverting'
#: The type of a migration -> the action that requests it.
ACTION_OF = {
    MigrationType.LIVE_MIGRATION.value: LIVE_MIGRATION,
    MigrationType.EVACUATION.value: EVACUATE,
    MigrationType.MIGRATION.value: MIGRATE,
    MigrationType.RESIZE.value: RESIZE,
}

#: The conditions that a migration is stuck, and that a cold migration waits for its user.
_IS_STUCK = _M.c.stuck_kind.is_not(None)
_WAITS_FOR_USER = sa.and_(
    _M.c.status == _S.FINISHED.value, _M.c.confirm_requested_at.is_(None), _M.c.revert_requested_at.is_(None)
)
_INSERT = Prepared(sa.insert(_T))
_INSERT_DONE = Prepared(sa.insert(_T).values(finish_time=columns.now()))

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
    row = {'action': action, 'instance_uuid': instance_uuid, 'migration_uuid': migration_uuid}
    row |= {'request_id': context.request_id, 'user_id': context.user_id, 'project_id': context.project_id}
    session.execute(_INSERT, row)


def record(session: Any, context: RequestContext, action: str, instance_uuid: str) -> None:
    """Write an action that ends within its transaction, and moves no guest."""
    row = {'action': action, 'instance_uuid': instance_uuid, 'migration_uuid': None, 'result': SUCCESS}
    row |= {'request_id': context.request_id, 'user_id': context.user_id, 'project_id': context.project_id}
    session.execute(_INSERT_DONE, row)


def finish(session: Any, migration_uuid: str, messages: Mapping[str, str | None]) -> None:
    """Write the results of actions within the transaction that ends their migration.

    :param messages: action -> why it failed; None: it succeeded.
    """
    actions = [*messages]
    given: dict[str, Any] = {'of': migration_uuid, 'actions': actions}
    for number, action in enumerate(actions):
        given |= {f'action{number}': action, f'message{number}': messages[action]}
        given[f'result{number}'] = ERROR if messages[action] else SUCCESS
    session.execute(_finish(len(actions)), given)


@functools.cache
def _finish(actions: int) -> Prepared:
    def of(column: Any, name: str) -> Any:
        # Typed, so that the column's type cuts and escapes the texts of hosts and drivers.
        whens = [
            (_T.c.action == sa.bindparam(f'action{number}'), sa.bindparam(f'{name}{number}', type_=column.type))
            for number in range(actions)
        ]
        return sa.case(*whens)

    mine = (_T.c.migration_uuid == sa.bindparam('of'), _T.c.action.in_(sa.bindparam('actions', expanding=True)))
    query = sa.update(_T).where(*mine, _T.c.finish_time.is_(None)).values(finish_time=columns.now())
    return Prepared(query.values(message=of(_T.c.message, 'message'), result=of(_T.c.result, 'result')))


@functools.cache
def _listed(*given: str) -> Prepared:
    """Return the query for actions; the names of its parameters say by what it selects."""
    changed = sa.func.coalesce(_T.c.finish_time, _T.c.start_time)
    which = {
        'of': _T.c.instance_uuid == sa.bindparam('of'),
        'since': changed >= sa.bindparam('since', type_=columns.UTCDateTime()),
        'until': changed <= sa.bindparam('until', type_=columns.UTCDateTime()),
        'before': _T.c.id < sa.bindparam('before'),
    }
    query = sa.select(_T).where(*(condition for name, condition in which.items() if name in given))
    query = query.order_by(_T.c.id.desc())
    return Prepared(query.limit(sa.bindparam('most', type_=sa.Integer())) if 'most' in given else query)


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
        given = {'of': instance_uuid, 'since': changes_since, 'until': changes_before, 'most': limit}
        given = {name: value for name, value in given.items() if value is not None}
        with self._engine.reader() as session:
            if marker is not None:
                given['before'] = session.execute(
                    sa.select(_T.c.id).where(_T.c.instance_uuid == instance_uuid, _T.c.request_id == marker)
                ).scalar()
                if given['before'] is None:
                    raise exception.MarkerNotFound(marker=marker)
            return [models.of_row(Action, row) for row in session.execute(_listed(*given), given)]

    def get(self, instance_uuid: str, request_id: str) -> Action:
        """Return the action of a request.

        :raises migrator.exception.ActionNotFound: the instance has no action of this request.
        """
        query = sa.select(_T).where(_T.c.instance_uuid == instance_uuid, _T.c.request_id == request_id)
        with self._engine.reader() as session:
            row = session.execute(query.order_by(_T.c.id.desc()).limit(1)).one_or_none()
            if row is None:
                raise exception.ActionNotFound(request_id=request_id, instance_uuid=instance_uuid)
            return models.of_row(Action, row)


def finish_all(session: Any, known: Migration, status: str, fields: Mapping[str, Any]) -> None:
    """Write the results of the actions that end with a new status of their migration."""
    if status in IN_PROGRESS and status != _S.FINISHED:
        return
    ended = f'The migration ended {status}.'
    good = status in (_S.DONE, _S.COMPLETED, _S.FINISHED, _S.CONFIRMED, _S.REVERTED)
    reason = None if good else fields.get('failure', known.failure) or ended
    messages = {ACTION_OF[known.migration_type]: reason}
    if known.confirm_requested_at is not None:
        messages[CONFIRM_RESIZE] = reason
    if known.revert_requested_at is not None:
        messages[REVERT_RESIZE] = reason
    if known.abort_requested_at is not None:
        late = status != MigrationStatus.CANCELLED
        how = verdict(fields.get('abort_status'), fields.get('abort_text')) or ended
        messages[LIVE_MIGRATION_CANCEL] = how if late else None
    if known.force_complete_requested_at is not None:
        messages[LIVE_MIGRATION_FORCE_COMPLETE] = reason
    finish(session, known.uuid, messages)


class Requests:
    """The columns of ``migrations`` that hold requests, which the owner does not write."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @retried
    def request_abort(
        self,
        context: RequestContext,
        migration: Migration,
        statuses: Collection[str],
        cause: AbortCause = AbortCause.USER,
    ) -> bool:
        """Write the request to abort a migration, and its instance action, before the API answers 202.

        :param statuses: the statuses in which the request is accepted.
        :returns: whether it was written. False: the same request was there before, and nothing was changed.
        :raises migrator.exception.InvalidMigrationState: the migration has another status by now.
        """
        values = {'abort_requested_at': columns.now(), 'abort_requested_by': context.user_id or 'unknown'}
        values['abort_cause'] = cause.value
        return self._request(context, migration, statuses, values, LIVE_MIGRATION_CANCEL, 'abort')

    @retried
    def request_force_complete(self, context: RequestContext, migration: Migration, statuses: Collection[str]) -> bool:
        """Write the request to switch the guest over now, whatever is still to be copied.

        :param statuses: the statuses in which the request is accepted.
        :returns: whether it was written. False: the same request was there before, and nothing was changed.
        :raises migrator.exception.InvalidMigrationState: the migration has another status by now.
        """
        values = {'force_complete_requested_at': columns.now()}
        action = LIVE_MIGRATION_FORCE_COMPLETE
        return self._request(context, migration, statuses, values, action, 'force_complete')

    @retried
    def request_decision(self, context: RequestContext, migration: Migration, action: str) -> None:
        """Write the request to confirm or to revert a cold migration, before the API answers 202.

        :param action: :data:`CONFIRM_RESIZE` or :data:`REVERT_RESIZE`.
        :raises migrator.exception.InvalidMigrationState: the migration is not finished any more, or one of the two was
            requested before.
        """
        confirms = action == CONFIRM_RESIZE
        requests = (_M.c.confirm_requested_at, _M.c.revert_requested_at)
        with self._engine.writer() as session:
            values = {requests[not confirms].name: columns.now()}
            waits = sa.and_(_M.c.uuid == migration.uuid, _WAITS_FOR_USER)
            if not session.execute(sa.update(_M).where(waits).values(**values)).rowcount:
                state = session.execute(sa.select(_M.c.status).where(_M.c.uuid == migration.uuid)).scalar_one()
                raise exception.InvalidMigrationState(
                    migration_id=migration.id,
                    instance_uuid=migration.instance_uuid,
                    state='being confirmed or reverted' if state in ARRIVED else state,
                    method=action,
                    wanted=_S.FINISHED.value,
                )
            if not confirms:
                session.execute(sa.update(_I).where(_I.c.uuid == migration.instance_uuid).values(task_state=REVERTING))
            start(session, context, action, migration.instance_uuid, migration.uuid)

    def _request(
        self,
        context: RequestContext,
        migration: Migration,
        statuses: Collection[str],
        values: dict[str, Any],
        action: str,
        method: str,
    ) -> bool:
        request = next(_M.c[column] for column in values if column.endswith('_at'))
        with self._engine.writer() as session:
            written = session.execute(
                sa.update(_M)
                .where(_M.c.uuid == migration.uuid, _M.c.status.in_(list(statuses)), request.is_(None))
                .values(**values)
            )
            if written.rowcount:
                start(session, context, action, migration.instance_uuid, migration.uuid)
                return True
            status, requested_at = session.execute(
                sa.select(_M.c.status, request).where(_M.c.uuid == migration.uuid)
            ).one()
            if requested_at is not None and status in IN_PROGRESS:
                return False
            raise exception.InvalidMigrationState(
                migration_id=migration.id,
                instance_uuid=migration.instance_uuid,
                state=status,
                method=method,
                wanted=' or '.join(statuses),
            )

    # --- requests for a stuck migration -------------------------------------------------------------------------------

    @retried
    def request_retry(self, migration: Migration, who: str) -> None:
        """Write the request to observe a stuck migration again, with its count of tries reset.

        :param who: the user who requests it, for the timeline.
        :raises migrator.exception.NotStuck: the migration is no longer stuck, or it is being abandoned.
        """
        values = {'retry_requested_at': columns.now(), 'retry_requested_by': who}
        with self._engine.writer() as session:
            self._write_if_stuck(session, migration, values, _IS_STUCK)

    @retried
    def request_abandon(self, migration: Migration, guest_on: str, who: str) -> None:
        """Write the request to end a migration in error that is stuck, or that waits for its user.

        The instance will be at the host that the operator names.

        :param guest_on: the host that has the guest, as the operator states.
        :param who: the user who requests it, for the timeline.
        :raises migrator.exception.NotStuck: the migration is no longer stuck, and does not wait for its user.
        :raises migrator.exception.AbandonedOtherwise: it is being abandoned already, with the guest on another host.
        """
        values = {'abandon_requested_at': columns.now(), 'abandon_requested_by': who, 'abandon_guest_on': guest_on}
        with self._engine.writer() as session:
            row = session.execute(sa.select(_M, columns.now().label('now')).where(_M.c.uuid == migration.uuid)).one()
            if row.abandon_guest_on is None or row.status not in IN_PROGRESS:
                takes_part = sa.or_(_M.c.source_compute == guest_on, _M.c.dest_compute == guest_on)
                self._write_if_stuck(session, migration, values, takes_part, sa.or_(_IS_STUCK, _WAITS_FOR_USER))
            elif row.abandon_guest_on != guest_on:
                when = times.ago(row.abandon_requested_at, columns.aware(row.now))
                raise exception.AbandonedOtherwise(
                    uuid=migration.uuid, host=row.abandon_guest_on, who=row.abandon_requested_by, when=when
                )

    @staticmethod
    def _write_if_stuck(session: Any, migration: Migration, values: dict[str, Any], *conditions: Any) -> None:
        stuck = (
            _M.c.uuid == migration.uuid,
            _M.c.status.in_([status.value for status in IN_PROGRESS]),
            _M.c.abandon_requested_at.is_(None),
            *conditions,
        )
        if session.execute(sa.update(_M).where(*stuck).values(**values)).rowcount:
            return
        row = session.execute(sa.select(_M, columns.now().label('now')).where(_M.c.uuid == migration.uuid)).one()
        now = columns.aware(row.now)
        what = f'it is {row.status}, accepted {times.ago(row.created_at, now)}, and goes on by itself.'
        if row.status not in IN_PROGRESS:
            what = f'it ended {row.status} {times.ago(row.updated_at, now)}.'
        elif row.abandon_guest_on is not None:
            requested = times.ago(row.abandon_requested_at, now)
            raise exception.NotStuck(
                f'Migration {migration.uuid} is being abandoned already, with the guest on {row.abandon_guest_on}, as '
                f'requested {requested}. Wait for it to end.'
            )
        raise exception.NotStuck(uuid=migration.uuid, what=what)
