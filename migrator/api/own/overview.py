# SPDX-License-Identifier: Apache-2.0

"""The lists of migrations, of compute hosts, and of guests that are not where the database has them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import webob

from migrator import exception
from migrator.api import common, schemas
from migrator.api.handlers.services import is_up
from migrator.api.policies import base
from migrator.api.request import Request, answer
from migrator.api.schemas import types
from migrator.db import saga_log
from migrator.db.api import Database
from migrator.db.slots import Bounds, Load
from migrator.objects import COMPUTE_BINARY, Migration

LIST_MIGRATIONS, LIST_HOSTS = 'migrator:migrations:index', 'migrator:hosts:index'
LIST_DIFFERENCES = 'migrator:differences:index'

RULES = [
    base.rule(LIST_MIGRATIONS, base.ADMIN, 'List the migrations of every project.', 'GET /migrator/v1/migrations'),
    base.rule(LIST_HOSTS, base.ADMIN, 'List the compute hosts with their slots.', 'GET /migrator/v1/hosts'),
    base.rule(
        LIST_DIFFERENCES,
        base.ADMIN,
        'List the guests that are not where the database has them.',
        'GET /migrator/v1/differences',
    ),
]

_FLAG = types.many(types.BOOLEAN)
_FILTERS = ('host', 'drain', 'instance_uuid')
MIGRATIONS_QUERY = {
    1: types.parameters(
        {**types.PAGE, **dict.fromkeys(_FILTERS, types.TEXT), 'in_progress': _FLAG, 'stuck': _FLAG}, unknown=False
    )
}
DIFFERENCES_QUERY = {1: types.parameters(types.PAGE, unknown=False)}
HOSTS_QUERY = {1: types.parameters({**types.PAGE, 'busy': _FLAG}, unknown=False)}


def list_migrations(request: Request) -> webob.Response:
    """List migrations, the newest first."""
    given = schemas.query(request, MIGRATIONS_QUERY)
    request.authorize(LIST_MIGRATIONS)
    database, size = request.services.database, common.page_size(request, given)
    filters: dict[str, Any] = {name: given[name] for name in _FILTERS if name in given}
    for name in filters.keys() - {'host'}:
        filters[name] = common.usual_uuid(filters[name])
    in_progress, stuck = _flag(given, 'in_progress'), _flag(given, 'stuck')
    if stuck is not None:
        filters['stuck'] = stuck
    if stuck and in_progress is None:
        in_progress = True  # no other one is stuck, and there is an index of these
    found = database.migrations.list(filters, in_progress, size, common.marker(given))
    links = common.next_link(request, size, [migration.uuid for migration in found])
    return answer({'migrations': views(database, found), **({'migrations_links': links} if links else {})})


def views(database: Database, found: Sequence[Migration]) -> list[dict[str, Any]]:
    """Return migrations as JSON, with the names of their guests and the times of their statuses."""
    if not found:
        return []
    logs = database.migrations.read_logs([one.uuid for one in found], only_statuses=True)
    instances = database.instances.list({'uuid': sorted({one.instance_uuid for one in found})})
    names = {instance.uuid: instance.name for instance in instances}
    return [_view(one, names.get(one.instance_uuid), saga_log.history(logs[one.uuid])) for one in found]


def _view(one: Migration, name: str | None, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    shown = ('uuid', 'instance_uuid', 'status', 'outcome', 'attempt', 'drain', 'requested_host')
    reasons = ('waits_for', 'stuck_reason', 'failure')
    figures = ('memory_total', 'memory_processed', 'memory_remaining', 'disk_total', 'disk_processed', 'disk_remaining')
    times = ('created_at', 'updated_at', 'queued_at', 'running_at', 'abort_requested_at')
    return {
        **{key: getattr(one, key) for key in (*shown, *reasons)},
        'type': one.migration_type,
        'instance_name': name,
        'source': one.source_compute,
        'destination': one.dest_compute,
        'progress': {f'{key}_bytes': getattr(one, key) for key in figures},
        **{key: common.iso(getattr(one, key)) for key in times},
        'statuses': [{'status': entry['status'], 'at': _time(entry['at'])} for entry in history],
    }


def _time(text: str | None) -> str | None:
    return None if text is None else common.iso(datetime.datetime.fromisoformat(text))


def list_hosts(request: Request) -> webob.Response:
    """List the compute hosts by name."""
    given = schemas.query(request, HOSTS_QUERY)
    request.authorize(LIST_HOSTS)
    database, size = request.services.database, common.page_size(request, given)
    now, loads, cleanups = database.services.now(), database.slots.loads(), database.cleanups.counts()
    drains = {drain.host: drain.uuid for drain in database.drains.list(in_progress=True)}
    bounds = Bounds.of(request.services.conf)
    busy, found = _flag(given, 'busy'), []
    for service in sorted(database.services.list(COMPUTE_BINARY), key=lambda service: service.host):
        load, (pending, blocked) = loads.get(service.host, Load()), cleanups.get(service.host, (0, 0))
        shown: dict[str, Any] = {
            'name': service.host,
            'up': is_up(request, service, now),
            'forced_down': service.forced_down,
            'disabled': service.disabled,
            'disabled_reason': service.disabled_reason,
            'drain': drains.get(service.host),
            'out': {name: getattr(load, name) for name in ('running', 'limit', 'prepared', 'waiting')},
            'in': {
                'taken': load.inbound,
                'bound': bounds.inbound or None,
                'bound_of_drains': bounds.of_drains().inbound,
            },
            'cleanups': {'pending': pending, 'blocked': blocked},
        }
        is_busy = load.is_busy or pending > 0 or shown['drain'] is not None or service.disabled or not shown['up']
        if busy in (None, is_busy):
            found.append(shown)
    if 'marker' in given:
        # A host that was deleted meanwhile still has its place in the order.
        found = [shown for shown in found if shown['name'] > given['marker']]
    found = found[:size]
    links = common.next_link(request, size, [shown['name'] for shown in found])
    return answer({'hosts': found, **({'hosts_links': links} if links else {})})


def list_differences(request: Request) -> webob.Response:
    """List the guests that are not where the database has them, by name."""
    given = schemas.query(request, DIFFERENCES_QUERY)
    request.authorize(LIST_DIFFERENCES)
    size = common.page_size(request, given)
    found = request.services.database.differences.list()
    marker = common.marker(given)
    if marker is not None:
        uuids = [one.instance_uuid for one in found]
        if marker not in uuids:
            raise exception.MarkerNotFound(marker=marker)
        found = found[uuids.index(marker) + 1 :]
    page = {'differences': [one.as_dict() | {'since': common.iso(one.since)} for one in found[:size]]}
    links = common.next_link(request, size, [one.instance_uuid for one in found[:size]])
    return answer(page | ({'differences_links': links} if links else {}))


def _flag(given: Mapping[str, str], name: str) -> bool | None:
    return schemas.boolean(given[name]) if name in given else None
