# SPDX-License-Identifier: Apache-2.0

"""The purge of migrations and drains that ended before a time, in batches beside running services."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from migrator.db.api import Database, Purged

#: Migrations that one transaction deletes, so that no other transaction waits long for it.
PURGE_BATCH = 100
#: The same for drains.
_DRAINS = 50

Advance = Callable[[int], None]


def count_migrations(database: Database, before: datetime.datetime, most: int | None) -> tuple[int, int, int]:
    """Return how many migrations can be purged, how many this purge deletes, and how many stay.

    :param before: only migrations that ended before.
    :param most: the greatest number to delete; None: all.
    """
    found, kept = database.purge.count(before)
    return found, found if most is None else min(found, most), kept


def migrations(
    database: Database,
    before: datetime.datetime,
    counts: tuple[int, int, int],
    dry_run: bool,
    advance: Advance = lambda deleted: None,
) -> dict[str, Any]:
    """Delete migrations that ended before a time, with logs and actions, the oldest first; return JSON.

    :param counts: from :func:`count_migrations`.
    :param dry_run: whether to delete nothing.
    :param advance: is called with the number of deleted migrations after each batch.
    """
    found, wanted, kept = counts
    gone, last, ids = Purged(), 0, [0]
    while ids and gone.migrations < wanted and not dry_run:
        ids = database.purge.next(before, last, min(PURGE_BATCH, wanted - gone.migrations))
        if ids:
            now_gone = database.purge.delete(before, ids)
            gone, last = gone + now_gone, ids[-1]
            advance(now_gone.migrations)
    left = found - gone.migrations
    document = {'before': before, 'dry_run': dry_run, 'found': found, 'purged': gone.migrations, 'left': left}
    # The second is the older name of the first.
    rows = {'saga_log': gone.saga_log, 'saga_steps': gone.saga_log, 'instance_actions': gone.instance_actions}
    return document | rows | {'kept': kept}


def drains(
    database: Database,
    before: datetime.datetime,
    found: int,
    dry_run: bool,
    most: int | None = None,
    advance: Advance = lambda deleted: None,
) -> dict[str, Any]:
    """Delete drains that ended before a time with their guests and events, the oldest first. Return JSON.

    :param found: how many there are, from :meth:`migrator.db.drains.Drains.count_ended`.
    :param dry_run: whether to delete nothing.
    :param most: the greatest number to delete; None: all.
    :param advance: is called with the number of deleted drains after each batch.
    """
    gone, deleted = 0, 1
    while deleted and not dry_run and (most is None or gone < most):
        deleted = database.drains.purge(before, _DRAINS if most is None else min(_DRAINS, most - gone))
        gone += deleted
        advance(deleted)
    return {'before': before, 'dry_run': dry_run, 'found': found, 'purged': gone}
