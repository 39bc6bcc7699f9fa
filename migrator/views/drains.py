# SPDX-License-Identifier: Apache-2.0

"""Drains and their guests: their documents, in a list and whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from migrator.db.api import Database
from migrator.db.slots import Bounds
from migrator.db.sql import drain_rows
from migrator.drain.calibration import errors_of
from migrator.drain.request import NAMES
from migrator.objects import Migration
from migrator.objects.drain import Drain, Member, count_members, place

_SHOWN = (
    *('uuid', 'only_guests', 'retry_of', 'requested_by', 'direction', 'checks', 'waits_for', 'message'),
    *('created_at', 'updated_at', 'began_at', 'ended_at'),
)
_OF_MEMBER = (
    *('instance_uuid', 'name', 'status', 'attempts', 'source', 'destination', 'tried', 'reason', 'remedy', 'size_mb'),
    *('not_before', 'began_at', 'ended_at'),
)


def summaries(database: Database, found: Sequence[Drain]) -> list[dict[str, Any]]:
    """Return drains as a list shows them."""
    uuids = [one.uuid for one in found]
    counts, retries = database.drains.counts(uuids), drain_rows.retries(database.engine, uuids)
    return [_summary(one, counts[one.uuid], retries.get(one.uuid)) for one in found]


def _summary(drain: Drain, counts: Mapping[str, int], retried_by: str | None) -> dict[str, Any]:
    return {
        **{name: getattr(drain, name) for name in (*NAMES, *_SHOWN)},
        'status': drain.shown_status,
        'retried_by': retried_by,
        'host_disabled_by_drain': drain.has_disabled_host,
        'guests': dict(counts),
    }


def document(database: Database, bounds: Bounds, drain: Drain) -> dict[str, Any]:
    """Return a drain with its guests, in the order in which they leave."""
    found = in_order(drain, database.drains.read_members(drain.uuid))
    expected, shown = members(database, bounds, drain, found)
    newer = drain_rows.retries(database.engine, [drain.uuid]).get(drain.uuid)
    return _summary(drain, count_members(found), newer) | {'expected': expected, 'members': shown}


def in_order(drain: Drain, found: Sequence[Member]) -> list[Member]:
    """Return guests in the order in which they leave."""
    return sorted(found, key=lambda member: place(drain, member))


def members(
    database: Database, bounds: Bounds, drain: Drain, found: Sequence[Member]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the expected times of a drain, and its guests with theirs.

    :param found: all guests of the drain.
    """
    now, whole, places, rows = database.places_of_drain(bounds, drain, found)
    moving = {row.uuid: row for row in rows}
    hosts = {one.uuid: one.host for one in database.instances.list({'uuid': [*places]})} if places else {}
    shown = []
    for one in found:
        line = places[one.instance_uuid]
        migration = moving.get(one.mark or '')
        shown.append(
            {name: getattr(one, name) for name in _OF_MEMBER}
            | {
                'host': hosts.get(one.instance_uuid),
                'migration_uuid': one.mark,
                'migration': _shown_elsewhere(one) if migration is None else _progress(migration),
                'place': line.position,
                'waits_for': line.waits_for,
                'expected': line.expected.document(now),
            }
        )
    return whole.document(now), shown


def _progress(migration: Migration) -> dict[str, Any]:
    sizes = ('memory_total', 'memory_processed', 'memory_remaining')
    shown = ('uuid', 'status', 'waits_for', 'stuck_reason', 'wait_kind', 'stuck_kind')
    return {
        **{name: getattr(migration, name) for name in shown},
        'destination': migration.dest_compute,
        **{f'{name}_bytes': getattr(migration, name) for name in sizes},
        **{f'{name}_hosts': getattr(migration, f'{name}_hosts') or [] for name in ('wait', 'stuck')},
    }


def _shown_elsewhere(member: Member) -> dict[str, Any] | None:
    """Return what a stock Nova shows of the migration of a guest, as that of a migration here."""
    if member.progress is None:
        return None
    empty: dict[str, Any] = dict.fromkeys(('waits_for', 'stuck_reason', 'wait_kind', 'stuck_kind'))
    return {**empty, 'wait_hosts': [], 'stuck_hosts': [], **member.progress}


def calibration(database: Database, newest: int) -> dict[str, Any]:
    """Return how right the recorded expected ends of guests were: of all predictions, and of each drain.

    :param newest: how many of the newest drains count.
    """
    predictions = database.drains.predictions(newest)
    whole = errors_of([one for each in predictions.values() for one in each])
    found = [
        {'drain': uuid, 'host': database.drains.get(uuid).host} | errors_of(each) for uuid, each in predictions.items()
    ]
    return whole | {'drains': found}
