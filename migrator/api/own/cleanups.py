# SPDX-License-Identifier: Apache-2.0

"""``/migrator/v1/cleanups``: the deferred cleanups of hosts, and requests for a blocked one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import webob

from migrator import exception
from migrator.api import common, schemas
from migrator.api.policies import base
from migrator.api.request import Request, answer
from migrator.api.schemas import types
from migrator.db.cleanups import Cleanup
from migrator.views import cleanups

_ROOT = 'migrator:cleanups:'
LIST, SHOW = f'{_ROOT}index', f'{_ROOT}show'

RULES = [
    base.rule(LIST, base.ADMIN, 'List the deferred cleanups of hosts.', 'GET /migrator/v1/cleanups'),
    base.rule(SHOW, base.ADMIN, 'Show a deferred cleanup.', 'GET /migrator/v1/cleanups/{id}'),
    *(
        base.rule(f'{_ROOT}{name}', base.ADMIN, f'{what} a blocked cleanup.', 'POST /migrator/v1/cleanups/{id}/action')
        for name, what in (('retry', 'Unblock'), ('discard', 'Delete'))
    ),
]

INDEX_QUERY = {
    1: types.parameters(
        {
            'limit': types.SIZE,
            'marker': types.NUMBER,
            'host': types.TEXT,
            'instance_uuid': types.TEXT,
            'migration_uuid': types.TEXT,
            'blocked': types.many(types.BOOLEAN),
        },
        unknown=False,
    )
}
_ARGUMENTS = types.options({'dry_run': types.DRY_RUN})
ACTION_BODY = {1: types.one_action({'retry': _ARGUMENTS, 'discard': _ARGUMENTS})}


def index(request: Request) -> webob.Response:
    """List deferred cleanups, the oldest first."""
    given = request.given
    request.authorize(LIST)
    size, after = common.page_size(request), int(given.get('marker', 0))
    uuids = {name: common.usual_uuid(given[name]) for name in ('instance_uuid', 'migration_uuid') if name in given}
    blocked = schemas.flag(given, 'blocked')
    found = [
        one
        for one in request.services.database.cleanups.list(given.get('host'), **uuids)
        if one.id > after and blocked in (None, one.blocked_because is not None)
    ][:size]
    links = common.next_link(request, 'cleanups_links', size, [str(one.id) for one in found])
    return answer({'cleanups': [cleanups.document(one) for one in found]} | links)


def show(request: Request, cleanup_id: str) -> webob.Response:
    """Show a deferred cleanup."""
    request.authorize(SHOW)
    return answer({'cleanup': cleanups.document(_find(request, cleanup_id))})


def act(request: Request, cleanup_id: str) -> webob.Response:
    """Unblock a cleanup, so that it runs again, or delete it. With ``dry_run``, return only the plan."""
    wanted: Mapping[str, Any] = schemas.body(request, ACTION_BODY)
    ((action, arguments),) = wanted.items()
    request.authorize(f'{_ROOT}{action}')
    database = request.services.database
    cleanup = database.cleanups.blocked(_find(request, cleanup_id).id)
    plan, do, done = (
        (cleanups.plan_retry, database.cleanups.retry_or_refuse, cleanups.retried)
        if action == 'retry'
        else (cleanups.plan_discard, database.cleanups.discard_or_refuse, cleanups.discarded)
    )  # fmt: skip
    if (arguments or {}).get('dry_run'):
        return answer({'dry_run': True, 'plan': [plan(cleanup)]})
    do(cleanup)
    return answer({'message': done(cleanup)}, 202 if action == 'retry' else 200)


def _find(request: Request, cleanup_id: str) -> Cleanup:
    number = common.integer_id(cleanup_id)
    for one in request.services.database.cleanups.list():
        if one.id == number:
            return one
    raise exception.NotFound(f'No cleanup has the id {cleanup_id}, or it has been done meanwhile.')
