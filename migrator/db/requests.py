# SPDX-License-Identifier: Apache-2.0

"""Requests of the API and of migrator-manage to the owner of a migration.

A request is written only if the migration has a suitable status, or is stuck. The owner carries it out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from migrator import exception
from migrator.context import RequestContext
from migrator.db import actions, models, types
from migrator.db import engine as engines
from migrator.objects import IN_PROGRESS, Migration, times

_T = models.MIGRATIONS


class Requests:
    """The columns of ``migrations`` that hold requests, which the owner does not write."""

    def __init__(self, engine: engines.Engine) -> None:
        self._engine = engine

    @engines.retried
    def request_abort(self, context: RequestContext, migration: Migration, statuses: Collection[str]) -> bool:
        """Write the request to abort a migration, and its instance action, before the API answers 202.

        :param statuses: the statuses in which the request is accepted.
        :returns: whether it was written. False: the same request was there before, and nothing was changed.
        :raises migrator.exception.InvalidMigrationState: the migration has another status by now.
        """
        values = {'abort_requested_at': types.now(), 'abort_requested_by': context.user_id or 'unknown'}
        return self._request(context, migration, statuses, values, actions.LIVE_MIGRATION_CANCEL, 'abort')

    @engines.retried
    def request_force_complete(self, context: RequestContext, migration: Migration, statuses: Collection[str]) -> bool:
        """Write the request to switch the guest over now, whatever is still to be copied.

        :param statuses: the statuses in which the request is accepted.
        :returns: whether it was written. False: the same request was there before, and nothing was changed.
        :raises migrator.exception.InvalidMigrationState: the migration has another status by now.
        """
        values = {'force_complete_requested_at': types.now()}
        action = actions.LIVE_MIGRATION_FORCE_COMPLETE
        return self._request(context, migration, statuses, values, action, 'force_complete')

    def _request(
        self,
        context: RequestContext,
        migration: Migration,
        statuses: Collection[str],
        values: dict[str, Any],
        action: str,
        method: str,
    ) -> bool:
        request = next(_T.c[column] for column in values if column.endswith('_at'))
        with self._engine.writer() as session:
            written: Any = session.execute(
                sa.update(_T)
                .where(_T.c.uuid == migration.uuid, _T.c.status.in_(list(statuses)), request.is_(None))
                .values(**values)
            )
            if written.rowcount:
                actions.start(session, context, action, migration.instance_uuid, migration.uuid)
                return True
            status, requested_at = session.execute(
                sa.select(_T.c.status, request).where(_T.c.uuid == migration.uuid)
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

    @engines.retried
    def request_retry(self, migration: Migration, who: str) -> None:
        """Write the request to observe a stuck migration again, with its count of tries reset.

        :param who: the user who requests it, for the timeline.
        :raises migrator.exception.NotStuck: the migration is no longer stuck, or it is being abandoned.
        """
        values = {'retry_requested_at': types.now(), 'retry_requested_by': who}
        with self._engine.writer() as session:
            self._write_if_stuck(session, migration, values)

    @engines.retried
    def request_abandon(self, migration: Migration, guest_on: str, who: str) -> None:
        """Write the request to end a stuck migration in error.

        The instance will be at the host that the operator names.

        :param guest_on: the host that has the guest, as the operator states.
        :param who: the user who requests it, for the timeline.
        :raises migrator.exception.NotStuck: the migration is no longer stuck.
        :raises migrator.exception.AbandonedOtherwise: it is being abandoned already, with the guest on another host.
        """
        values = {'abandon_requested_at': types.now(), 'abandon_requested_by': who, 'abandon_guest_on': guest_on}
        with self._engine.writer() as session:
            row = session.execute(sa.select(_T, types.now().label('now')).where(_T.c.uuid == migration.uuid)).one()
            if row.abandon_guest_on is None or row.status not in IN_PROGRESS:
                takes_part = sa.or_(_T.c.source_compute == guest_on, _T.c.dest_compute == guest_on)
                self._write_if_stuck(session, migration, values, takes_part)
            elif row.abandon_guest_on != guest_on:
                when = times.ago(row.abandon_requested_at, types.aware(row.now))
                raise exception.AbandonedOtherwise(
                    uuid=migration.uuid, host=row.abandon_guest_on, who=row.abandon_requested_by, when=when
                )

    @staticmethod
    def _write_if_stuck(session: Any, migration: Migration, values: dict[str, Any], *conditions: Any) -> None:
        stuck = (
            _T.c.uuid == migration.uuid,
            _T.c.stuck_reason.is_not(None),
            _T.c.status.in_([status.value for status in IN_PROGRESS]),
            _T.c.abandon_requested_at.is_(None),
            *conditions,
        )
        written: Any = session.execute(sa.update(_T).where(*stuck).values(**values))
        if written.rowcount:
            return
        row = session.execute(sa.select(_T, types.now().label('now')).where(_T.c.uuid == migration.uuid)).one()
        now = types.aware(row.now)
        what = f'it is {row.status}, accepted {times.ago(row.created_at, now)}, and goes on by itself.'
        if row.status not in IN_PROGRESS:
            what = f'it ended {row.status} {times.ago(row.updated_at, now)}.'
        elif row.abandon_guest_on is not None:
            requested = times.ago(row.abandon_requested_at, now)
            what = f'it is being abandoned, with the guest on {row.abandon_guest_on}, as requested {requested}.'
        raise exception.NotStuck(uuid=migration.uuid, what=what)
