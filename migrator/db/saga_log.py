# SPDX-License-Identifier: Apache-2.0

"""The log of each migration's saga, read in order, and appended to in the guard's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry

from migrator import exception
from migrator.db import models
from migrator.objects import Migration
from migrator.saga.log import Entry, EntryKind

_L = models.SAGA_LOG
_INSERT = sa.insert(_L)


def read(session: Any, uuids: Sequence[str], only_statuses: bool = False) -> dict[str, list[Entry]]:
    """Return the logs of migrations by uuid, each in the order of ``seq``.

    :param only_statuses: return only the entries of a new status.
    """
    found: dict[str, list[Entry]] = {uuid: [] for uuid in uuids}
    query = sa.select(_L).where(_L.c.migration.in_(list(uuids))).order_by(_L.c.migration, _L.c.seq)
    if only_statuses:
        query = query.where(_L.c.kind == EntryKind.STATUS.value)
    for row in session.execute(query):
        found[row.migration].append(models.entry(row))
    return found


def append(session: Any, known: Migration, entries: Sequence[Entry], epoch: int | None = None) -> None:
    """Append entries to a migration's log, in the transaction that has written ``log_seq``.

    :param known: the migration as its owner knows it. The entries come after its ``log_seq``.
    :param epoch: the epoch of the entries; None: the epoch of ``known``.
    :raises migrator.exception.NotOwner: the log has grown since ``known`` was read.
    """
    if not entries:
        return
    values = [
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
        session.execute(_INSERT, values)
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
