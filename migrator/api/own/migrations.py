# SPDX-License-Identifier: Apache-2.0

"""``/migrator/v1/migrations``: the migrations, their timelines, and requests for a stuck one."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import webob
from oslo_log import log as logging

from migrator import exception
from migrator.api import common, schemas
from migrator.api.policies import base
from migrator.api.request import Request, answer
from migrator.api.schemas import types
from migrator.db import saga_log
from migrator.db.api import Database, count_to_purge, purge_migrations
from migrator.db.slots import Bounds
from migrator.objects import Migration, MigrationStatus
from migrator.views import explain, timeline, unstick

LOG = logging.getLogger(__name__)

_ROOT = 'migrator:migrations:'
LIST, SHOW, PURGE = f'{_ROOT}index', f'{_ROOT}show', f'{_ROOT}purge'
ACTIONS = ('retry', 'abandon')

RULES = [
    base.rule(LIST, base.ADMIN, 'List the migrations of every project.', 'GET /migrator/v1/migrations'),
    base.rule(
        SHOW,
        base.ADMIN,
        'Show a migration with its place in the queue, and its timeline.',
        'GET /migrator/v1/migrations/{uuid}',
        'GET /migrator/v1/migrations/{uuid}/timeline',
    ),
    *(
        base.rule(
            f'{_ROOT}{name}', base.ADMIN, f'Request to {name} a stuck migration.',
            'POST /migrator/v1/migrations/{uuid}/action',
        )
        for name in ACTIONS
    ),
    base.rule(PURGE, base.ADMIN, 'Delete migrations that have ended.', 'POST /migrator/v1/migrations/action'),
]  # fmt: skip

_FLAG = types.many(types.BOOLEAN)
_FILTERS = ('host', 'drain', 'instance_uuid')
_STATUSES = [status.value for status in MigrationStatus]
INDEX_QUERY = {
    1: types.parameters(
        {
            **types.PAGE,
            **dict.fromkeys(_FILTERS, types.TEXT),
            'status': types.many({'type': 'string', 'enum': _STATUSES, 'description': ', '.join(_STATUSES)}),
            'in_progress': _FLAG,
            'stuck': _FLAG,
            'expected': _FLAG,
        },
        unknown=False,
    )
}
ACTION_BODY = {
    1: types.one_action(
        {
            'retry': types.options({'dry_run': types.DRY_RUN}),
            'abandon': types.closed({'guest_on': types.HOST, 'dry_run': types.DRY_RUN}, ['guest_on']),
        }
    )
}
PURGE_BODY = {1: types.one_action({'purge': types.PURGE})}


def index(request: Request) -> webob.Response:
    """List migrations, the newest first. With ``expected``, also their places and expected times."""
    given = request.given
    request.authorize(LIST)
    database, size = request.services.database, common.page_size(request)
    filters: dict[str, Any] = {name: given[name] for name in _FILTERS if name in given}
    for name in filters.keys() - {'host'}:
        filters[name] = common.usual_uuid(filters[name])
    if 'status' in given:
        filters['status'] = request.GET.getall('status')
    in_progress, stuck = schemas.flag(given, 'in_progress'), schemas.flag(given, 'stuck')
    if stuck is not None:
        filters['stuck'] = stuck
    if stuck and in_progress is None:
        in_progress = True  # no other one is stuck, and there is an index of these
    found = database.migrations.list(filters, in_progress, size, common.marker(request))
    links = common.next_link(request, 'migrations_links', size, [migration.uuid for migration in found])
    if schemas.flag(given, 'expected'):
        # A forecast plays the queues of the whole site, which takes about a second of CPU for thousands of migrations.
        newest = {one.uuid: number for number, one in enumerate(found)}
        shown = sorted(in_order(request, found), key=lambda view: newest[view['uuid']])
    else:
        shown = views(database, found)
    return answer({'migrations': shown} | links)


def views(database: Database, found: Sequence[Migration]) -> list[dict[str, Any]]:
    """Return migrations as JSON, with the names of their guests and the times of their statuses."""
    if not found:
        return []
    logs = database.migrations.read_logs([one.uuid for one in found], only_statuses=True)
    instances = database.instances.list({'uuid': sorted({one.instance_uuid for one in found})})
    names = {instance.uuid: instance.name for instance in instances}
    return [_view(one, names.get(one.instance_uuid), saga_log.history(logs[one.uuid])) for one in found]


def in_order(request: Request, found: Sequence[Migration]) -> list[dict[str, Any]]:
    """Return migrations as JSON, each with its place in the queue and its expected times, in their order."""
    database = request.services.database
    now, places = database.places(Bounds.of(request.services.conf), found)
    shown = {view['uuid']: view for view in views(database, found)}
    return [
        shown[uuid]
        | {
            'position': place.position,
            'waits_for': place.waits_for,
            'expected': place.expected.document(now, common.iso),
        }
        for uuid, place in places.items()
        if uuid in shown
    ]


def _view(one: Migration, name: str | None, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    shown = ('id', 'uuid', 'instance_uuid', 'status', 'outcome', 'attempt', 'drain', 'requested_host')
    reasons = ('waits_for', 'wait_kind', 'stuck_reason', 'stuck_kind', 'failure')
    figures = ('memory_total', 'memory_processed', 'memory_remaining', 'disk_total', 'disk_processed', 'disk_remaining')
    times = ('created_at', 'updated_at', 'queued_at', 'running_at', 'abort_requested_at')
    return {
        **{key: getattr(one, key) for key in (*shown, *reasons)},
        **{f'{key}_hosts': getattr(one, f'{key}_hosts') or [] for key in ('wait', 'stuck')},
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


def show(request: Request, uuid: str) -> webob.Response:
    """Show a migration: its place in the queue, its expected times, its progress and its steps."""
    request.authorize(SHOW)
    return _shown(request, timeline.find(request.services.database, uuid))


def _shown(request: Request, migration: Migration, status: int = 200) -> webob.Response:
    (view,) = in_order(request, [migration])
    requested = {
        'requested_at': common.iso(migration.abort_requested_at),
        'requested_by': migration.abort_requested_by,
        'verdict': migration.abort_verdict,
    }
    abandoned = {
        'requested_at': common.iso(migration.abandon_requested_at),
        'requested_by': migration.abandon_requested_by,
        'guest_on': migration.abandon_guest_on,
    }
    steps = [
        {
            **{name: getattr(one, name) for name in ('step', 'direction', 'state', 'attempt', 'tries')},
            **{name: common.iso(getattr(one, name)) for name in ('started_at', 'ended_at')},
        }
        for one in request.services.database.migrations.steps(migration.uuid)
    ]
    more = {
        'owner': migration.owner,
        'epoch': migration.epoch,
        'abort': requested if migration.abort_requested_at is not None else None,
        'abandon': abandoned if migration.abandon_requested_at is not None else None,
        'retry_requested_at': common.iso(migration.retry_requested_at),
        'steps': steps,
    }
    return answer({'migration': view | more}, status)


def show_timeline(request: Request, uuid: str) -> webob.Response:
    """Show what a migration waits for, its events in words, and what happens next."""
    request.authorize(SHOW)
    facts = _facts(request, uuid)
    found = timeline.document(facts)
    shown = {
        'migration_uuid': facts.migration.uuid,
        'instance_uuid': facts.migration.instance_uuid,
        'status': facts.migration.status,
        'waits': found['waits'],
        'events': [
            {'at': line.at, 'conductor': line.server, 'epoch': line.epoch, 'what': line.what}
            for line in explain.lines(facts)
        ],
        'next': explain.next_(facts),
        **{name: found[name] for name in ('now', 'owner', 'hosts', 'requests')},
    }
    return answer({'timeline': common.with_times(shown)})


def act(request: Request, uuid: str) -> webob.Response:
    """Request the retry or the abandonment of a stuck migration. With ``dry_run``, return only the plan."""
    wanted: Mapping[str, Any] = schemas.body(request, ACTION_BODY)
    ((action, arguments),) = wanted.items()
    request.authorize(f'{_ROOT}{action}')
    given, services, facts = arguments or {}, request.services, _facts(request, uuid)
    who = request.context.user_id or 'an operator'
    if action == 'retry':
        if given.get('dry_run'):
            return answer({'dry_run': True, 'plan': unstick.plan_retry(facts)})
        services.database.retry(facts.migration, unstick.check_retry(facts), who)
    else:
        guest_on = given['guest_on']
        unstick.check_abandon(facts, guest_on)
        if given.get('dry_run'):
            held = functools.partial(services.conductor.read_allocations, request.context)
            return answer({'dry_run': True, 'plan': [*unstick.plan_abandon(facts, guest_on, held)]})
        services.database.requests.request_abandon(facts.migration, guest_on, who)
    _wake(request, facts.migration)
    return _shown(request, services.database.migrations.get(facts.migration.uuid), 202)


def act_on_all(request: Request) -> webob.Response:
    """Delete migrations that ended before a time. With ``dry_run``, only count them."""
    given = schemas.body(request, PURGE_BODY)['purge']
    request.authorize(PURGE)
    database, before = request.services.database, schemas.moment(given['before'])
    counts = count_to_purge(database, before, given.get('max_rows', types.MOST_PURGED))
    found = purge_migrations(database, before, counts, given.get('dry_run', False))
    del found['saga_steps']
    return answer({'purge': common.with_times(found)})


def _facts(request: Request, uuid: str) -> timeline.Facts:
    services = request.services
    return timeline.gather(services.database, uuid, services.conf.conductor.lease, services.sagas)


def _wake(request: Request, migration: Migration) -> None:
    request.concerns(migration)
    owner = migration.owner
    server = request.services.database.conductors.server_of(owner) if owner is not None else None
    try:
        request.services.conductor.wake(request.context, migration.uuid, server)
    except exception.MigratorException as error:
        # The request is committed, so the sweep of its owner finds it.
        LOG.warning('Could not wake a conductor for a migration; the next sweep of its owner finds it: %s', error)
