# SPDX-License-Identifier: Apache-2.0

"""The log of each migration's saga, the events of all logs, and how far notifications were sent.

The log is read in order, and appended to in the guard's transaction.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry

from migrator import exception
from migrator.db import models
from migrator.db.maintenances import rows
from migrator.db.sql import columns, drain_rows
from migrator.db.sql.engine import Engine, retried
from migrator.db.sql.statements import Prepared
from migrator.objects import FINAL, Migration, protocol
from migrator.saga.log import Entry, EntryKind

_L = models.SAGA_LOG
_INSERT = Prepared(sa.insert(_L))
_LOGS = sa.select(_L).where(_L.c.migration.in_(sa.bindparam('uuids', expanding=True)))
_LOGS = _LOGS.order_by(_L.c.migration, _L.c.seq)
_ENTRIES, _STATUSES = Prepared(_LOGS), Prepared(_LOGS.where(_L.c.kind == EntryKind.STATUS.value))


def read(session: Any, uuids: Sequence[str], only_statuses: bool = False) -> dict[str, list[Entry]]:
    """Return the logs of migrations by uuid, each in the order of ``seq``.

    :param only_statuses: return only the entries of a new status.
    """
    found: dict[str, list[Entry]] = {uuid: [] for uuid in uuids}
    for row in session.execute(_STATUSES if only_statuses else _ENTRIES, {'uuids': list(uuids)}):
        found[row.migration].append(models.of_row(Entry, row))
    return found


def append(session: Any, known: Migration, entries: Sequence[Entry], epoch: int | None = None) -> None:
    """Append entries to a migration's log, in the transaction that has written ``log_seq``.

    :param known: the migration as its owner knows it. The entries come after its ``log_seq``.
    :param epoch: the epoch of the entries; None: the epoch of ``known``.
    :raises migrator.exception.NotOwner: the log has grown since ``known`` was read.
    """
    rows = [
        {
            'migration': known.uuid,
            'seq': known.log_seq + number,
            'conductor': known.owner,
            'epoch': known.epoch if epoch is None else epoch,
            'attempt': entry.attempt,
            'kind': str(entry.kind),
            'step': entry.step,
            'payload': dict(entry.payload),
        }
        for number, entry in enumerate(entries, 1)
    ]
    try:
        if rows:
            session.execute(_INSERT, rows)
    except DBDuplicateEntry:
        raise exception.NotOwner(migration_uuid=known.uuid, owner=known.owner, epoch=known.epoch) from None


def sent_to_boot(session: Any, uuids: Sequence[str], boot_id: str) -> list[str]:
    """Return the migrations whose command was first sent to this boot of their source."""
    query = sa.select(_L.c.migration, _L.c.payload)
    query = query.where(_L.c.migration.in_([*uuids]), _L.c.kind == EntryKind.INTENT)
    found = ((uuid, payload.get('input') or {}) for uuid, payload in session.execute(query))
    return [uuid for uuid, input_ in found if input_.get('source_boot_id') == boot_id]


def history(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return the history of a migration's statuses as JSON: ``status``, ``at``, ``owner`` and ``epoch``."""
    return [
        {
            'status': entry.payload['status'],
            'at': entry.at.isoformat() if entry.at is not None else None,
            'owner': entry.conductor,
            'epoch': entry.epoch,
        }
        for entry in entries
        if entry.kind == EntryKind.STATUS
    ]


# --- the logs of all migrations and drains, in the order of time ------------------------------------------------------

#: Seconds for which an event is held back, since the transactions of earlier ones may not be committed yet.
SETTLED = 2.0
#: Seconds by which the row of a migration or drain may seem older than the newest event of its log.
_MARGIN = 60.0


class Event(NamedTuple):
    """One entry of the log of a migration or a drain.

    :ivar at: the time by the database's clock. Events are in the order of ``at``, ``uuid`` and ``seq``.
    :ivar uuid: of the migration or the drain.
    :ivar of: ``migration`` or ``drain``.
    :ivar step: the step of a saga that it concerns, or None.
    """

    at: datetime.datetime
    uuid: str
    seq: int
    of: str
    kind: str
    step: str | None
    payload: Mapping[str, Any]


def settled(session: Any) -> datetime.datetime:
    """Return the time up to which :func:`events_after` returns events now."""
    return columns.aware(session.execute(sa.select(columns.later(-SETTLED))).scalar_one())


def events_after(session: Any, at: datetime.datetime, uuid: str, seq: int, limit: int) -> list[Event]:
    """Return the events that follow one in the order of time, of migrations, drains and maintenances.

    Those of the last :data:`SETTLED` seconds are held back. One whose transaction took longer to commit may be missing.

    :param at: with ``uuid`` and ``seq`` the event.
    :param limit: the greatest number of events.
    """
    changed = at - datetime.timedelta(seconds=_MARGIN)
    migrations = models.MIGRATIONS
    # All have an index on what is sought, or few rows; the logs themselves have none on the time.
    of_migrations = sa.select(migrations.c.uuid).where(migrations.c.changed_at >= changed)
    of_drains, of_maintenances = (
        sa.select(table.c.uuid).where(sa.func.coalesce(table.c.updated_at, table.c.created_at) >= changed)
        for table in (drain_rows.DRAINS, rows.MAINTENANCES)
    )
    no_step: Any = sa.literal('', columns.Text(64))
    parts = [
        sa.select(
            *(log.c.at, key.label('uuid'), log.c.seq, sa.literal(of).label('of'), log.c.kind),
            *(step.label('step'), log.c.payload),
        ).where(
            key.in_(which),
            log.c.at <= columns.later(-SETTLED),
            sa.or_(
                log.c.at > at,
                sa.and_(log.c.at == at, sa.or_(key > uuid, sa.and_(key == uuid, log.c.seq > seq))),
            ),
        )
        for of, log, key, step, which in (
            ('migration', _L, _L.c.migration, _L.c.step, of_migrations),
            ('drain', drain_rows.LOG, drain_rows.LOG.c.drain, no_step, of_drains),
            ('maintenance', rows.LOG, rows.LOG.c.maintenance, no_step, of_maintenances),
        )
    ]
    both = sa.union_all(*parts).subquery()
    query = sa.select(both).order_by(both.c.at, both.c.uuid, both.c.seq).limit(limit)
    return [
        Event(row.at, row.uuid, row.seq, row.of, row.kind, row.step or None, row.payload)
        for row in session.execute(query)
    ]


# --- how far the notifications were sent ------------------------------------------------------------------------------

_N, _T = models.NOTIFIED, models.MIGRATIONS
#: The row of ``notified`` with this uuid has the time up to which every migration that has changed has a row.
_LOOKED = protocol.NO_UUID
#: Migrations that get a row in one transaction.
_AT_ONCE = 1000


class Unsent(NamedTuple):
    """A migration whose log has entries without their notifications.

    :ivar seq: the ``seq`` of the last entry whose notifications were sent; 0: none.
    """

    migration: Migration
    seq: int


def _is_open(status: str) -> bool | None:
    return None if status in FINAL else True


class Notified:
    """How far the notifications about each migration were sent: one row for each, beside its log.

    The rows are found without a search of the log. Every migration in progress gets a row, and so does every one that
    has changed since the last look. A row is open until the end of its migration was sent.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @retried
    def look(self, oldest: float) -> bool:
        """Give a row to each migration that has none and is in progress, or has changed since the last look.

        The first look begins at the present ends of their logs, so that nothing of the past is sent.

        :param oldest: the seconds after which a notification is not sent any more. What has changed only before then
            gets no row.
        :returns: whether there may be more such migrations.
        """
        with self._engine.reader() as session:
            looked = session.execute(sa.select(_N.c.at).where(_N.c.migration == _LOOKED)).scalar()
            now = columns.aware(session.execute(sa.select(columns.now())).scalar_one())
            # The clock of the database may have been set back.
            known = min(looked or now, now) - datetime.timedelta(seconds=_MARGIN)
            since = max(known, now - datetime.timedelta(seconds=oldest))
            without = sa.and_(_T.c.uuid.is_not(None), ~sa.exists().where(_N.c.migration == _T.c.uuid))
            parts = [
                sa.select(_T.c.uuid, _T.c.log_seq, _T.c.status, _T.c.created_at).where(which, without)
                for which in (models.IN_PROGRESS, _T.c.changed_at >= since)
            ]
            found = session.execute(sa.union(*parts).limit(_AT_ONCE)).all()
        is_whole = len(found) < _AT_ONCE
        if not found and looked is not None and now - looked < datetime.timedelta(seconds=_MARGIN):
            return False
        # One that was there at the last look and has no row had ended before the first look: what is left of an
        # evacuation may change it still.
        rows = [
            {'migration': row.uuid, 'seq': 0, 'open': True, 'at': now}
            if looked is not None and row.created_at >= known
            else {'migration': row.uuid, 'seq': row.log_seq, 'open': _is_open(row.status), 'at': now}
            for row in found
        ]
        try:
            with self._engine.writer() as session:
                if is_whole and looked is None:
                    rows.append({'migration': _LOOKED, 'seq': 0, 'open': None, 'at': now})
                elif is_whole:
                    session.execute(sa.update(_N).where(_N.c.migration == _LOOKED).values(at=now))
                if rows:
                    session.execute(sa.insert(_N), rows)
        except DBDuplicateEntry:
            return True  # another conductor has looked at the same moment
        return not is_whole

    def unsent(self, limit: int) -> list[Unsent]:
        """Return the migrations with entries whose notifications were not sent, the longest waiting first."""
        query = sa.select(_T, _N.c.seq.label('sent_seq')).join(_N, _N.c.migration == _T.c.uuid)
        query = query.where(_N.c.open == sa.true(), _T.c.log_seq > _N.c.seq).order_by(_N.c.at)
        with self._engine.reader() as session:
            return [Unsent(models.migration(row), row.sent_seq) for row in session.execute(query.limit(limit))]

    @retried
    def put_last(self, unsent: Unsent) -> bool:
        """Let all other migrations that wait go before one whose notifications could not be derived.

        :returns: False if another conductor has recorded something meanwhile. Then nothing is written.
        """
        return self._write(unsent, {'at': columns.now()})

    @retried
    def advance(self, unsent: Unsent) -> bool:
        """Record that the notifications up to the newest entry of a migration were sent.

        :param unsent: the migration as it was read before.
        :returns: False if another conductor has recorded something meanwhile. Then nothing is written.
        """
        row = unsent.migration
        return self._write(unsent, {'seq': row.log_seq, 'open': _is_open(row.status), 'at': columns.now()})

    def _write(self, unsent: Unsent, values: Mapping[str, Any]) -> bool:
        which = _N.c.migration == unsent.migration.uuid, _N.c.seq == unsent.seq
        query = sa.update(_N).where(*which).values(values)
        with self._engine.writer() as session:
            return bool(session.execute(query).rowcount)
