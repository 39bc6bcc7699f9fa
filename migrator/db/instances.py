# SPDX-License-Identifier: Apache-2.0

"""The rows of instances."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception

from migrator import exception
from migrator.db import cleanups, models, rows, standing, tenures, types
from migrator.db import engine as engines
from migrator.objects import Instance

_T = models.INSTANCES

#: The task_state of an instance, as in nova, while its row exists and its allocation may be gone.
DELETING = 'deleting'


class Instances:
    """The rows of ``instances``."""

    def __init__(self, engine: engines.Engine) -> None:
        self._engine = engine

    @engines.retried
    def create(self, instance: Instance) -> Instance:
        """Register an instance.

        :raises migrator.exception.InstanceExists: an instance has this uuid.
        :raises migrator.exception.CleanupInProgress: a cleanup at its host removes the remains of the guest now.
        """
        values = {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}
        values['flavor'] = dataclasses.asdict(instance.flavor)
        for automatic in ('id', 'created_at', 'updated_at'):
            del values[automatic]
        values['launched_at'] = instance.launched_at or types.now()
        values['tenure'] = tenures.after_all(instance.uuid)
        try:
            with self._engine.writer() as session:
                session.execute(sa.insert(_T).values(**values))
                cleanups.hold_at(session, instance.uuid, instance.host)
        except db_exception.DBDuplicateEntry:
            with self._engine.reader() as session:
                facts = standing.existing(session, instance.uuid)
            raise exception.InstanceExists(instance_uuid=instance.uuid, facts=facts) from None
        return self.get(instance.uuid)

    def get(self, uuid: str) -> Instance:
        """Return one instance.

        :raises migrator.exception.InstanceNotFound: no instance has this uuid.
        """
        with self._engine.reader() as session:
            row = session.execute(sa.select(_T).where(_T.c.uuid == uuid)).one_or_none()
            if row is None:
                raise exception.InstanceNotFound(instance_uuid=uuid)
            return rows.instance(row)

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
        query = sa.select(_T).order_by(_T.c.created_at.desc(), _T.c.id.desc())
        for column, value in (filters or {}).items():
            attribute = _T.c[column]
            query = query.where(attribute.in_(value) if isinstance(value, (list, tuple)) else attribute == value)
        if changes_since is not None:
            query = query.where(sa.func.coalesce(_T.c.updated_at, _T.c.created_at) >= changes_since)
        with self._engine.reader() as session:
            if marker is not None:
                last = session.execute(sa.select(_T).where(_T.c.uuid == marker)).one_or_none()
                if last is None or marker_project not in (None, last.project_id):
                    raise exception.MarkerNotFound(marker=marker)
                query = query.where(sa.tuple_(_T.c.created_at, _T.c.id) < sa.tuple_(last.created_at, last.id))
            if limit is not None:
                query = query.limit(limit)
            return [rows.instance(row) for row in session.execute(query)]

    @engines.retried
    def update(self, uuid: str, **values: Any) -> None:
        """Change columns of one instance: its lock, or the power state that an embedding service reports.

        :raises migrator.exception.InstanceNotFound: no instance has this uuid.
        """
        with self._engine.writer() as session:
            found: Any = session.execute(sa.update(_T).where(_T.c.uuid == uuid).values(**values))
            if not found.rowcount:
                raise exception.InstanceNotFound(instance_uuid=uuid)

    @engines.retried
    def begin_delete(self, uuid: str) -> None:
        """Set an instance's task_state to deleting, so that no migration of it is accepted any more.

        The call may be repeated.

        :raises migrator.exception.MigrationInProgress: the instance has a migration in progress.
        :raises migrator.exception.InstanceNotFound: no instance has this uuid.
        """
        with self._engine.writer() as session:
            found: Any = session.execute(
                sa.update(_T).where(_T.c.uuid == uuid, ~_has_migration(uuid)).values(task_state=DELETING)
            )
            if not found.rowcount:
                self._raise_why_not(session, uuid)

    @engines.retried
    def delete(self, uuid: str) -> None:
        """Delete the row of an instance.

        :raises migrator.exception.MigrationInProgress: the instance has a migration in progress.
        :raises migrator.exception.InstanceNotFound: no instance has this uuid.
        """
        with self._engine.writer() as session:
            found: Any = session.execute(sa.delete(_T).where(_T.c.uuid == uuid, ~_has_migration(uuid)))
            if not found.rowcount:
                self._raise_why_not(session, uuid)

    @staticmethod
    def _raise_why_not(session: Any, uuid: str) -> None:
        if session.execute(sa.select(_T.c.id).where(_T.c.uuid == uuid)).scalar() is not None:
            raise exception.MigrationInProgress(instance_uuid=uuid, facts=standing.of(session, uuid))
        raise exception.InstanceNotFound(instance_uuid=uuid)


def _has_migration(uuid: str) -> Any:
    return sa.select(models.MIGRATIONS.c.id).where(models.MIGRATIONS.c.in_progress_instance_uuid == uuid).exists()
