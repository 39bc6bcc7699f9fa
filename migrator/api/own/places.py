# SPDX-License-Identifier: Apache-2.0

"""One migration or host at ``/migrator/v1``: places in the queue, and expected times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import webob

from migrator.api import common, schemas
from migrator.api.handlers.services import is_up
from migrator.api.own import overview
from migrator.api.policies import base
from migrator.api.request import Request, answer
from migrator.api.schemas import types
from migrator.db.slots import Bounds
from migrator.objects import Migration

SHOW, SHOW_HOST = 'migrator:migrations:show', 'migrator:hosts:show'

RULES = [
    base.rule(SHOW, base.ADMIN, 'Show a migration with its place in the queue.', 'GET /migrator/v1/migrations/{uuid}'),
    base.rule(SHOW_HOST, base.ADMIN, 'Show a host with its migrations.', 'GET /migrator/v1/hosts/{name}'),
]

NO_QUERY = {1: types.parameters({}, unknown=False)}


def show(request: Request, uuid: str) -> webob.Response:
    """Show a migration: its place in the queue, its expected times, its progress and its steps."""
    schemas.query(request, NO_QUERY)
    request.authorize(SHOW)
    database = request.services.database
    migration = database.migrations.get(uuid)
    (view,) = _placed(request, [migration])
    requested = {
        'requested_at': common.iso(migration.abort_requested_at),
        'requested_by': migration.abort_requested_by,
        'verdict': migration.abort_verdict,
    }
    steps = [
        {
            **{name: getattr(one, name) for name in ('step', 'direction', 'state', 'attempt', 'tries')},
            **{name: common.iso(getattr(one, name)) for name in ('started_at', 'ended_at')},
        }
        for one in database.migrations.steps(uuid)
    ]
    more = {'abort': requested if migration.abort_requested_at is not None else None, 'steps': steps}
    return answer({'migration': view | {'owner': migration.owner, 'epoch': migration.epoch} | more})


def show_host(request: Request, name: str) -> webob.Response:
    """Show a compute host: the migrations that leave it, in their order, and those that come in."""
    schemas.query(request, NO_QUERY)
    request.authorize(SHOW_HOST)
    database = request.services.database
    service = database.services.get_compute(name)
    here = database.migrations.list({'host': name}, in_progress=True)
    leaving = _placed(request, [one for one in here if one.source_compute == name])
    cleanups = database.cleanups.list(host=name)
    return answer(
        {
            'host': {
                'name': name,
                'up': is_up(request, service, database.services.now()),
                'disabled': service.disabled,
                'disabled_reason': service.disabled_reason,
                'boot_id': service.boot_id,
                'limit': database.slots.limit_of(name),
                'migrations': leaving,
                'inbound': [one.uuid for one in here if one.source_compute != name],
                'cleanups': [
                    {'migration_uuid': one.migration_uuid, 'step': one.step, 'reason': one.reason, 'alarm': one.alarm}
                    for one in cleanups
                ],
                'differences': [
                    one.as_dict() | {'since': common.iso(one.since)} for one in database.differences.list(name)
                ],
            }
        }
    )


def _placed(request: Request, found: Sequence[Migration]) -> list[dict[str, Any]]:
    """Return migrations of one source as JSON, in their order."""
    database = request.services.database
    now, places = database.places(Bounds.of(request.services.conf), found)
    views = {view['uuid']: view for view in overview.views(database, found)}
    return [
        views[uuid]
        | {
            'position': place.position,
            'waits_for': place.waits_for,
            'expected': place.expected.document(now, common.iso),
        }
        for uuid, place in places.items()
        if uuid in views
    ]
