# SPDX-License-Identifier: Apache-2.0

"""Migrations: their documents, in a list, in the order of their queue, and whole; and their timelines."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from migrator.db import saga_log
from migrator.db.api import Database
from migrator.db.slots import Bounds
from migrator.drain.forecast import Place
from migrator.objects import Migration
from migrator.views import cleanups, explain
from migrator.views.timeline import Facts, waits

_SHOWN = ('id', 'uuid', 'instance_uuid', 'status', 'outcome', 'attempt', 'drain', 'requested_host', 'downtime')
_REASONS = ('waits_for', 'wait_kind', 'stuck_reason', 'stuck_kind', 'failure')
_FIGURES = (
    *('memory_total', 'memory_processed', 'memory_remaining'),
    *('disk_total', 'disk_processed', 'disk_remaining'),
)
_TIMES = ('created_at', 'updated_at', 'queued_at', 'running_at', 'abort_requested_at')


def documents(database: Database, found: Sequence[Migration]) -> list[dict[str, Any]]:
    """Return migrations with the names of their guests and the times of their statuses."""
    if not found:
        return []
    logs = database.migrations.read_logs([one.uuid for one in found], only_statuses=True)
    instances = database.instances.list({'uuid': sorted({one.instance_uuid for one in found})})
    names = {instance.uuid: instance.name for instance in instances}
    return [_document(one, names.get(one.instance_uuid), saga_log.history(logs[one.uuid])) for one in found]


def in_order(database: Database, bounds: Bounds, found: Sequence[Migration]) -> list[dict[str, Any]]:
    """Return migrations in the order of their queue, each with its place and its expected times."""
    now, places = database.places(bounds, found)
    shown = {one['uuid']: one for one in placed(documents(database, found), places, now)}
    return [shown[uuid] for uuid in places if uuid in shown]


def placed(
    shown: Sequence[Mapping[str, Any]], places: Mapping[str, Place], now: datetime.datetime
) -> list[dict[str, Any]]:
    """Return documents, each with its place in the queue and its expected times."""
    return [
        {
            **one,
            'position': places[one['uuid']].position,
            'waits_for': places[one['uuid']].waits_for,
            'expected': places[one['uuid']].expected.document(now),
        }
        for one in shown
    ]


def document(database: Database, bounds: Bounds, migration: Migration) -> dict[str, Any]:
    """Return a migration with its place, its steps, and what was requested of it."""
    (shown,) = in_order(database, bounds, [migration])
    steps = [
        {
            name: getattr(one, name)
            for name in ('step', 'direction', 'state', 'attempt', 'tries', 'started_at', 'ended_at')
        }
        for one in database.migrations.steps(migration.uuid)
    ]
    left = [
        one
        for one in database.cleanups.list(instance_uuid=migration.instance_uuid)
        if one.migration_uuid == migration.uuid
    ]
    more = {
        'owner': migration.owner,
        'epoch': migration.epoch,
        'allocations': migration.strategy,
        'abort': _requested(migration, 'abort', 'verdict'),
        'abandon': _requested(migration, 'abandon', 'guest_on'),
        'retry_requested_at': migration.retry_requested_at,
        'steps': steps,
    }
    return shown | more | {'cleanups': [cleanups.document(one) for one in left]}


def timeline(facts: Facts, program: str = explain.PROG) -> dict[str, Any]:
    """Return what a migration waits for, its events in words, and what happens next, as one JSON object.

    :param program: the beginning of each command in a text.
    """
    migration, owner = facts.migration, facts.owner
    return {
        'migration_uuid': migration.uuid,
        'instance_uuid': migration.instance_uuid,
        'status': migration.status,
        'now': facts.now,
        'waits': waits(facts),
        'events': [
            {'at': line.at, 'conductor': line.server, 'epoch': line.epoch, 'what': line.what}
            for line in explain.lines(facts)
        ],
        'next': explain.next_(facts, program),
        'owner': {
            'id': migration.owner,
            'server': facts.server_of(migration.owner),
            'epoch': migration.epoch,
            'lease_until': owner.lease_until if owner is not None else None,
            'living': owner is not None and owner.lease_until > facts.now,
        },
        'hosts': [_host(facts, role, host) for role, host in facts.hosts],
        'requests': [dataclasses.asdict(one) for one in facts.requests],
    }


def _host(facts: Facts, role: str, host: str) -> dict[str, Any]:
    service = facts.service_of(host)
    return {
        'role': role,
        'host': host,
        'state': 'up' if facts.is_up(host) else 'down',
        'forced_down': service.forced_down if service is not None else False,
        'last_seen_up': service.last_seen_up if service is not None else None,
    }


def _document(one: Migration, name: str | None, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        **{key: getattr(one, key) for key in (*_SHOWN, *_REASONS)},
        **{f'{key}_hosts': getattr(one, f'{key}_hosts') or [] for key in ('wait', 'stuck')},
        'type': one.migration_type,
        'instance_name': name,
        'source': one.source_compute,
        'destination': one.dest_compute,
        'progress': {f'{key}_bytes': getattr(one, key) for key in _FIGURES},
        **{key: getattr(one, key) for key in _TIMES},
        'statuses': [{'status': entry['status'], 'at': _moment(entry['at'])} for entry in history],
    }


def _moment(text: str | None) -> datetime.datetime | None:
    return None if text is None else datetime.datetime.fromisoformat(text)


def _requested(migration: Migration, what: str, more: str) -> dict[str, Any] | None:
    if getattr(migration, f'{what}_requested_at') is None:
        return None
    names = ('requested_at', 'requested_by', more)
    return {name: getattr(migration, f'{what}_{name}') for name in names}
