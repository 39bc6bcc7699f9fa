# SPDX-License-Identifier: Apache-2.0

"""Instances, and the state of an instance and its migrations in words, for the message of an error.

The text names no host, because the caller may not be allowed to know it.
"""

from __future__ import annotations

import builtins
import datetime
import functools
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry

from migrator import exception
from migrator.context import RequestContext
from migrator.db import actions, cleanups, models
from migrator.db.sql import columns
from migrator.db.sql.engine import Engine, retried
from migrator.db.sql.statements import Prepared
from migrator.objects import (
    ARRIVED,
    DELETING,
    ENDS,
    OWN_TASKS,
    Flavor,
    Instance,
    Migration,
    MigrationStatus,
    MigrationType,
    remedies,
    times,
)

_T, _M, _D = models.INSTANCES, models.MIGRATIONS, models.GUEST_DEFINITIONS
_S = MigrationStatus
_ONE = Prepared(sa.select(_T).where(_T.c.uuid == sa.bindparam('of')))
_LISTING = models.Listing(_T, changes_since=_T.c.changed_at >= sa.bindparam('changes_since'))
_STANDING = Prepared(
    sa.select(_M, columns.now().label('now'))
    .where(_M.c.instance_uuid == sa.bindparam('guest'))
    .order_by(_M.c.id != sa.bindparam('named'), _M.c.in_progress_instance_uuid.is_(None), _M.c.id.desc())
    .limit(1)
)
_TOO_LATE_TO_ABORT = (_S.RUNNING_POST_COPY, _S.POST_MIGRATING)

#: The greatest number of uuids in one query.
_BATCH = 500


class Instances:
    """The rows of ``instances``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @retried
    def create(self, instance: Instance) -> Instance:
        """Register an instance.

        :raises migrator.exception.InstanceExists: an instance has this uuid.
        :raises migrator.exception.CleanupInProgress: a cleanup at its host removes the remains of the guest now.
        """
        values = models.values_of(instance)
        del values['tenure']
        if instance.launched_at is None:
            del values['launched_at']
        try:
            with self._engine.writer() as session:
                session.execute(_insert('launched_at' not in values), {**values, 'guest': instance.uuid})
                cleanups.hold_at(session, instance.uuid, instance.host)
        except DBDuplicateEntry:
            with self._engine.reader() as session:
                facts = _existing(session, instance.uuid)
            raise exception.InstanceExists(instance_uuid=instance.uuid, facts=facts) from None
        return self.get(instance.uuid)

    def get(self, uuid: str) -> Instance:
        """Return one instance.

        :raises migrator.exception.InstanceNotFound: no instance has this uuid.
        """
        found = self.find(uuid)
        if found is None:
            raise exception.InstanceNotFound(instance_uuid=uuid)
        return found

    def find(self, uuid: str) -> Instance | None:
        """Return one instance, or None if no instance has this uuid."""
        with self._engine.reader() as session:
            row = session.execute(_ONE, {'of': uuid}).one_or_none()
            return models.instance(row) if row is not None else None

    def list(
        self,
        filters: Mapping[str, Any] | None = None,
        limit: int | None = None,
        marker: str | None = None,
        marker_project: str | None = None,
        changes_since: datetime.datetime | None = None,
    ) -> list[Instance]:
        """Return instances, the newest first.

        :param filters: column -> value, or list of values; equality only.
        :param marker: the uuid of the last instance of the previous page.
        :param marker_project: the project that the marker must belong to; None: any project.
        :raises migrator.exception.MarkerNotFound: no instance of that project has the marker's uuid.
        """
        wanted = dict(filters or {})
        if changes_since is not None:
            wanted['changes_since'] = changes_since
        with self._engine.reader() as session:
            found = _LISTING.page(session, wanted, limit, marker, marker_project, changes_since is not None)
            return [models.instance(row) for row in found]

    def flavors(self, project_id: str | None = None) -> builtins.list[Flavor]:
        """Return the flavors that instances have, by name.

        Instances may have different flavors of one name. Then the flavor is that of the newest instance.

        :param project_id: only those of the instances of this project; None: of all.
        """
        # Not every database compares JSON, and each compares texts.
        text = sa.cast(_T.c.flavor, sa.Text).label('written')
        query = sa.select(text, sa.func.max(_T.c.id).label('newest')).group_by(text).order_by('newest')
        if project_id is not None:
            query = query.where(_T.c.project_id == project_id)
        with self._engine.reader() as session:
            found = [Flavor(**json.loads(row.written)) for row in session.execute(query)]
        by_name = {flavor.name: flavor for flavor in found}
        return [by_name[name] for name in sorted(by_name)]

    def flavors_of(self, uuids: Collection[str]) -> dict[str, Flavor]:
        """Return instance -> its flavor, for those of some instances that exist."""
        wanted, found = sorted(uuids), dict[str, Flavor]()
        with self._engine.reader() as session:
            for start in range(0, len(wanted), _BATCH):
                query = sa.select(_T.c.uuid, _T.c.flavor).where(_T.c.uuid.in_(wanted[start : start + _BATCH]))
                found |= {row.uuid: Flavor(**row.flavor) for row in session.execute(query)}
        return found

    @retried
    def page(self, after: str, limit: int) -> Sequence[Instance]:
        """Return the next instances in the order of their uuids, for a walk over all of them.

        :param after: the uuid of the last instance of the previous page, which may be deleted by now; '' begins.
        """
        query = sa.select(_T).where(_T.c.uuid > after).order_by(_T.c.uuid).limit(limit)
        with self._engine.reader() as session:
            return [models.instance(row) for row in session.execute(query)]

    def update(self, uuid: str, **values: Any) -> None:
        """Change columns of one instance: its lock, or the power state that an embedding service reports.

        :raises migrator.exception.InstanceNotFound: no instance has this uuid.
        """
        with self._engine.writer() as session:
            if not session.execute(sa.update(_T).where(_T.c.uuid == uuid).values(**values)).rowcount:
                raise exception.InstanceNotFound(instance_uuid=uuid)

    @retried
    def set_lock(self, context: RequestContext, uuid: str, locked_by: str | None, reason: str | None = None) -> None:
        """Lock or unlock an instance, and record that as an action of a user.

        :param locked_by: ``owner`` or ``admin``; None: the instance is unlocked.
        :raises migrator.exception.InstanceNotFound: no instance has this uuid.
        """
        with self._engine.writer() as session:
            change = sa.update(_T).where(_T.c.uuid == uuid).values(locked_by=locked_by, locked_reason=reason)
            if not session.execute(change).rowcount:
                raise exception.InstanceNotFound(instance_uuid=uuid)
            actions.record(session, context, actions.UNLOCK if locked_by is None else actions.LOCK, uuid)

    @retried
    def reset_state(self, context: RequestContext, uuid: str, vm_state: str) -> None:
        """Set an instance's vm_state, clear its task_state, and record that as an action of a user.

        :raises migrator.exception.MigrationInProgress: the instance has a migration in progress.
        :raises migrator.exception.InstanceNotFound: no instance has this uuid.
        """
        with self._engine.writer() as session:
            self._change(session, uuid, sa.update(_T).values(vm_state=vm_state, task_state=None))
            actions.record(session, context, actions.RESET_STATE, uuid)

    @retried
    def begin_delete(self, uuid: str) -> None:
        """Set an instance's task_state to deleting, so that no migration of it is accepted any more.

        The call may be repeated.

        :raises migrator.exception.MigrationInProgress: the instance has a migration in progress.
        :raises migrator.exception.InstanceNotFound: no instance has this uuid.
        """
        with self._engine.writer() as session:
            self._change(session, uuid, sa.update(_T).values(task_state=DELETING))

    @retried
    def delete(self, uuid: str) -> None:
        """Delete the row of an instance.

        :raises migrator.exception.MigrationInProgress: the instance has a migration in progress.
        :raises migrator.exception.InstanceNotFound: no instance has this uuid.
        """
        with self._engine.writer() as session:
            self._change(session, uuid, sa.delete(_T))
            session.execute(sa.delete(_D).where(_D.c.instance_uuid == uuid))

    def invalid_state(self, instance_uuid: str, **more: Any) -> exception.InstanceInvalidState:
        """Return the error of :func:`invalid_state`, for a caller without a session."""
        with self._engine.reader() as session:
            return invalid_state(session, instance_uuid, **more)

    @staticmethod
    def _change(session: Any, uuid: str, statement: Any) -> None:
        """Change an instance, or raise if it has a migration in progress or does not exist."""
        if session.execute(statement.where(_T.c.uuid == uuid, ~has_migration(uuid))).rowcount:
            return
        if session.execute(sa.select(_T.c.id).where(_T.c.uuid == uuid)).scalar() is not None:
            raise exception.MigrationInProgress(instance_uuid=uuid, facts=standing(session, uuid))
        raise exception.InstanceNotFound(instance_uuid=uuid)


@functools.cache
def _insert(launched_now: bool) -> Prepared:
    """Return the insert of an instance. Its tenure is above that of an earlier one of its uuid."""
    values: dict[str, Any] = {'launched_at': columns.now()} if launched_now else {}
    return Prepared(sa.insert(_T).values(values | {'tenure': cleanups.tenure_after_all(sa.bindparam('guest'))}))


def has_migration(uuid: str) -> Any:
    """Return the condition that an instance has a migration in progress."""
    return sa.select(_M.c.id).where(_M.c.in_progress_instance_uuid == uuid).exists()


def standing(session: Any, instance_uuid: str, migration_id: int | None = None) -> str:
    """Return the state of a migration of an instance, since when, and what to do.

    :param migration_id: the migration. With None, or if the instance has no such migration: the one in progress, or
        else the last one.
    """
    row = session.execute(_STANDING, {'guest': instance_uuid, 'named': migration_id or 0}).one_or_none()
    if row is None:
        return 'it has no migration.'
    now = columns.aware(row.now)
    if row.status == _S.DONE:
        ended = times.ago(row.updated_at or row.created_at, now)
        return f'evacuation {row.id} was done {ended}, and its source still has to clean up.'
    if row.status in ENDS:
        ended = f'ended {row.status} {times.ago(row.updated_at or row.created_at, now)}'
        if row.id == migration_id:
            return f'migration {row.id} {ended} and cannot be changed any more.'
        return f'its last migration, {row.id}, {ended}.'
    return f'migration {row.id}, accepted {times.ago(row.created_at, now)}, is {row.status}{_advice(row)}.'


def _advice(row: Any) -> str:
    if row.stuck_kind is not None:
        return f' and stuck: {remedies.offer(remedies.Kind.SHOW_MIGRATION, migration=row.id)}'
    if row.abort_requested_at is not None:
        return ' and is being aborted: wait for it to end'
    if row.status in ARRIVED and row.confirm_requested_at is None and row.revert_requested_at is None:
        return ': confirm or revert it first'
    if row.migration_type != MigrationType.LIVE_MIGRATION:
        return ': wait for it to end'
    if row.status in _TOO_LATE_TO_ABORT:
        return ': wait for it to end, which no abort can prevent'
    return ': wait for it to end, or abort it'


def _existing(session: Any, instance_uuid: str) -> str:
    """Return a text that says which instance has this uuid, and what to do."""
    row = session.execute(sa.select(_T, columns.now().label('now')).where(_T.c.uuid == instance_uuid)).one_or_none()
    if row is None:
        return 'it was deleted meanwhile; try again.'
    age = times.ago(row.created_at, columns.aware(row.now))
    return f'it is {row.name} on {row.host}, {row.vm_state}, created {age}; delete it first, or keep it as it is.'


def refusal(session: Any, migration: Migration, vm_states: Sequence[str]) -> exception.MigratorException:
    """Return the error for an instance whose migration cannot be accepted."""
    row = session.execute(sa.select(_T).where(_T.c.uuid == migration.instance_uuid)).one_or_none()
    if row is None:
        return exception.InstanceNotFound(instance_uuid=migration.instance_uuid)
    attr, state = ('vm_state', row.vm_state) if row.vm_state not in vm_states else ('task_state', row.task_state)
    if attr == 'task_state' and (state is None or (migration.is_evacuation and state not in OWN_TASKS)):
        attr, state = 'host', row.host
    wanted = vm_states if attr == 'vm_state' else ()
    return invalid_state(session, migration.instance_uuid, attr, state, migration.action, wanted)


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
    facts = standing(session, instance_uuid, migration_id)
    if wanted:
        facts = f'it has to be {" or ".join(wanted)}; {facts}'
    elif attr == 'task_state' and state != 'migrating':
        facts = f'that has to end first; {facts}'
    return exception.InstanceInvalidState(
        instance_uuid=instance_uuid, attr=attr, state=state, method=method, facts=facts
    )
