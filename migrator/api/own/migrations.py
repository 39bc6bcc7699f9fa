# SPDX-License-Identifier: Apache-2.0

"""``/migrator/v1/migrations``: the migrations, their timelines, and requests for a stuck one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import webob
from oslo_log import log as logging

from migrator import exception
from migrator.api import common, schemas
from migrator.api.policies import base
from migrator.api.request import Request, answer
from migrator.api.schemas import types
from migrator.db.api import count_to_purge, purge_migrations
from migrator.db.slots import Bounds
from migrator.objects import Migration, MigrationStatus
from migrator.views import migrations, names, timeline, unstick

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
            'changes_since': types.many(types.MOMENT),
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
    since = schemas.moment(given['changes_since']) if 'changes_since' in given else None
    found = database.migrations.list(filters, in_progress, size, common.marker(request), changes_since=since)
    links = common.next_link(request, 'migrations_links', size, [migration.uuid for migration in found])
    shown = migrations.documents(database, found)
    if schemas.flag(given, 'expected'):
        # A forecast plays the queues of the whole site, which takes about a second of CPU for thousands of migrations.
        now, places = database.places(Bounds.of(request.services.conf), found)
        shown = migrations.placed(shown, places, now)
    return answer({'migrations': shown} | links)


def show(request: Request, uuid: str) -> webob.Response:
    """Show a migration: its place in the queue, its expected times, its progress and its steps."""
    request.authorize(SHOW)
    return _shown(request, _find(request, uuid))


def _shown(request: Request, migration: Migration, status: int = 200) -> webob.Response:
    services = request.services
    shown = migrations.document(services.database, Bounds.of(services.conf), migration)
    return answer({'migration': shown}, status)


def show_timeline(request: Request, uuid: str) -> webob.Response:
    """Show what a migration waits for, its events in words, and what happens next."""
    request.authorize(SHOW)
    return answer({'timeline': migrations.timeline(_facts(request, _find(request, uuid)))})


def act(request: Request, uuid: str) -> webob.Response:
    """Request the retry or the abandonment of a stuck migration. With ``dry_run``, return only the plan."""
    wanted: Mapping[str, Any] = schemas.body(request, ACTION_BODY)
    ((action, arguments),) = wanted.items()
    request.authorize(f'{_ROOT}{action}')
    given, services, facts = (
        arguments or {},
        request.services,
        _facts(request, names.migration(request.services.database, uuid, whole=True, hint=request.may(LIST))),
    )
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
    return answer({'purge': found})


def _find(request: Request, text: str) -> Migration:
    """Return a migration by any of its names; a caller who may not list them has to give its uuid or id."""
    return names.migration(request.services.database, text, whole=not request.may(LIST))


def _facts(request: Request, migration: Migration) -> timeline.Facts:
    services = request.services
    return timeline.gather(services.database, migration, services.conf.conductor.lease, services.sagas)


def _wake(request: Request, migration: Migration) -> None:
    request.concerns(migration)
    owner = migration.owner
    server = request.services.database.conductors.server_of(owner) if owner is not None else None
    try:
        request.services.conductor.wake(request.context, migration.uuid, server)
    except exception.MigratorException as error:
        # The request is committed, so the sweep of its owner finds it.
        LOG.warning('Could not wake a conductor for a migration; the next sweep of its owner finds it: %s', error)
