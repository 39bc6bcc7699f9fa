# SPDX-License-Identifier: Apache-2.0

"""The spans of a migration and its steps, which its conductor records once they are committed."""

from __future__ import annotations

import contextlib
import datetime

from migrator import context, tracing
from migrator.objects import Migration, MigrationStatus
from migrator.saga import log

_FAILED = (MigrationStatus.FAILED, MigrationStatus.ERROR)


class Spans:
    """The spans of one migration.

    :param server: the name of the conductor.
    """

    def __init__(self, tracer: tracing.Tracer, server: str, uuid: str) -> None:
        self._tracer = tracer
        self._server = server
        self._uuid = uuid
        self._migration = tracing.of_migration(uuid)

    def within(self, key: tuple[int, str, str]) -> contextlib.AbstractContextManager[None]:
        """Return the context in which what this thread does is part of a step."""
        return context.about(traceparent=tracing.of_step(self._uuid, *key).header)

    def end_step(self, record: log.StepRecord, seconds: float, ago: float) -> None:
        """Record a step whose result is committed.

        :param seconds: how long it took.
        :param ago: how many seconds ago it ended.
        """
        ended = self._tracer.now() - datetime.timedelta(seconds=ago)
        began = ended - datetime.timedelta(seconds=seconds)
        if record.started_at is not None:  # an earlier owner may have begun it
            began = min(began, record.started_at)
        attributes: dict[str, str | int] = {
            'migrator.conductor': self._server,
            'migrator.attempt': record.attempt,
            'migrator.result': str(record.state),
        }
        reason = (record.result or {}).get('reason')
        if reason is not None:
            attributes['migrator.reason'] = str(reason)
        name = f'undo {record.step}' if record.direction == log.UNDO else record.step
        place = tracing.of_step(self._uuid, *record.key)
        failed = record.state == log.StepState.FAILED
        self._tracer.export(tracing.Span(name, self._migration, began, ended, place, failed, attributes))

    def end_migration(self, row: Migration) -> None:
        """Record a migration that is no longer in progress."""
        now = self._tracer.now()
        attributes: dict[str, str | int] = {
            'migrator.migration': row.uuid,
            'migrator.instance': row.instance_uuid,
            'migrator.status': row.status,
            'migrator.source': row.source_compute,
            'migrator.destination': row.dest_compute or '',
            'migrator.attempts': row.attempt,
            'migrator.request_id': row.request_id or '',
            'migrator.conductor': self._server,
        }
        began, failed = min(row.created_at or now, now), row.status in _FAILED
        span = tracing.Span(row.migration_type, None, began, now, self._migration, failed, attributes)
        self._tracer.export(span)
