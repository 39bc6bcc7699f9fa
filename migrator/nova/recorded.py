# SPDX-License-Identifier: Apache-2.0

"""How long completed live migrations of a stock Nova took."""

from __future__ import annotations

import datetime
from collections.abc import MutableMapping, Sequence

from migrator.drain import forecast
from migrator.nova.client import Nova
from migrator.nova.resources import NovaMigration

#: The greatest number of completed migrations from which the times of others are expected. Each may need a request.
RECORDED = 50
_LIVE = 'live-migration'


def completed(nova: Nova, sizes: MutableMapping[str, int], source: str | None = None) -> list[forecast.Past]:
    """Return the newest live migrations that have completed, of guests that exist.

    Nova does not show when a migration began to copy, and by default a source runs one at a time. So a migration that
    was requested during another one of its source may have waited for the end of that. There are two readings: each
    migration counts from its request, or from the end of the one before it. The one whose times differ less is used.

    :param sizes: guest -> its memory in MiB, as far as known; what is read is added.
    :param source: of one source only; None: of all.
    """
    rows = nova.migrations(source=source, status='completed', type=_LIVE, limit=RECORDED)
    for row in rows:
        if row.instance_uuid not in sizes:
            server = nova.server(row.instance_uuid)
            sizes[row.instance_uuid] = server.flavor.memory_mb if server is not None else 0
    found = [past for row in rows if (past := _past(row, sizes[row.instance_uuid], row.created_at)) is not None]
    in_turn = _in_turn(rows, sizes)
    same = len(in_turn) == len(found) > 0
    return in_turn if same and forecast.spread(in_turn) < forecast.spread(found) else found


def _in_turn(rows: Sequence[NovaMigration], sizes: MutableMapping[str, int]) -> list[forecast.Past]:
    """Return the migrations as if each source had run one at a time."""
    found: list[forecast.Past] = []
    free: dict[str | None, datetime.datetime] = {}
    timed = [(row.updated_at, row.id, row.created_at, row) for row in rows if row.updated_at and row.created_at]
    for ended, _, created, row in sorted(timed, key=lambda each: each[:2]):
        past = _past(row, sizes[row.instance_uuid], max(created, free.get(row.source_compute, created)))
        free[row.source_compute] = ended
        if past is not None:
            found.append(past)
    return found


def _past(row: NovaMigration, size_mb: int, began: datetime.datetime | None) -> forecast.Past | None:
    if began is None or row.updated_at is None or not size_mb or row.updated_at <= began:
        return None
    source = row.source_compute or ''
    return forecast.Past(source, size_mb, (row.updated_at - began).total_seconds(), source, began.timestamp())
