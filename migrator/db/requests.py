# SPDX-License-Identifier: Apache-2.0

"""Wishes: what the API and migrator-manage ask of a migration's owner.

They are guarded by status, or by the migration's being stuck, and the owner acts on them.
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
    """The columns of ``migrations`` that are not their owner's."""

    def __init__(self, engine: engines.Engine) -> None:
        self._engine = engine

    @engines.retried
    def request_abort(self, context: RequestContext, migration: Migration, statuses: Collection[str]) -> bool:
        """Write that somebody wants a migration aborted, and the instance action: the promise behind a 202.

        :param statuses: in which it may be.
        :returns: whether it was written; False: it had been asked for before, and nothing was changed.
        :raises migrator.exception.InvalidMigrationState: it is in none of these statuses, by now.
        """
        values = {'abort_requested_at': types.now(), 'abort_requested_by': context.user_id or 'unknown'}
        return self._request(context, migration, statuses, values, actions.LIVE_MIGRATION_CANCEL, 'abort')

    @engines.retried
    def request_force_complete(self, context: RequestContext, migration: Migration, statuses: Collection[str]) -> bool:
        """Write that somebody wants a migration's guest to move now, whatever it still copies.

        :param statuses: in which it may be.
        :returns: whether it was written; False: it had been asked for before, and nothing was changed.
        :raises migrator.exception.InvalidMigrationState: it is in none of these statuses, by now.
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
            status, asked = session.execute(sa.select(_T.c.status, request).where(_T.c.uuid == migration.uuid)).one()
            if asked is not None and status in IN_PROGRESS:
                return False
            raise exception.InvalidMigrationState(
                migration_id=migration.id,
                instance_uuid=migration.instance_uuid,
                state=status,
                method=method,
                wanted=' or '.join(statuses),
            )

    # --- of one that is stuck ----------------------------------------------------------------------------------------

    @engines.retried
    def request_retry(self, migration: Migration, who: str) -> None:
        """Write that somebody wants a migration that is stuck to be looked at anew, all tries forgotten.

        :param who: for the story.
        :raises migrator.exception.NotStuck: it is not stuck, by now, or it is being abandoned.
        """
        values = {'retry_requested_at': types.now(), 'retry_requested_by': who}
        with self._engine.writer() as session:
            self._of_stuck(session, migration, values)

    @engines.retried
    def request_abandon(self, migration: Migration, guest_on: str, who: str) -> None:
        """Write that somebody wants a migration that is stuck to end in error, the books saying what he says.

        :param guest_on: the host that runs the guest, by his word.
        :param who: for the story.
        :raises migrator.exception.NotStuck: it is not stuck, by now.
        :raises migrator.exception.AbandonedOtherwise: it is being abandoned already, with the guest on another host.
        """
        values = {'abandon_requested_at': types.now(), 'abandon_requested_by': who, 'abandon_guest_on': guest_on}
        with self._engine.writer() as session:
            row = session.execute(sa.select(_T, types.now().label('now')).where(_T.c.uuid == migration.uuid)).one()
            if row.abandon_guest_on is None or row.status not in IN_PROGRESS:
                takes_part = sa.or_(_T.c.source_compute == guest_on, _T.c.dest_compute == guest_on)
                self._of_stuck(session, migration, values, takes_part)
            elif row.abandon_guest_on != guest_on:
                when = times.ago(row.abandon_requested_at, types.aware(row.now))
                raise exception.AbandonedOtherwise(
                    uuid=migration.uuid, host=row.abandon_guest_on, who=row.abandon_requested_by, when=when
                )

    @staticmethod
    def _of_stuck(session: Any, migration: Migration, values: dict[str, Any], *conditions: Any) -> None:
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
            asked = times.ago(row.abandon_requested_at, now)
            what = f'it is being abandoned, with the guest on {row.abandon_guest_on}, as was asked {asked}.'
        raise exception.NotStuck(uuid=migration.uuid, what=what)
