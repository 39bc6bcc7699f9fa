# SPDX-License-Identifier: Apache-2.0

"""``/migrator/v1/hosts``: the compute hosts with their slots, and the migrations of one."""

from __future__ import annotations

from typing import Any

import webob

from migrator.api import common, schemas
from migrator.api.own import cleanups, migrations
from migrator.api.policies import base
from migrator.api.request import Request, answer
from migrator.api.schemas import types
from migrator.db.slots import Bounds, Load
from migrator.objects import COMPUTE_BINARY
from migrator.views import differences

LIST, SHOW = 'migrator:hosts:index', 'migrator:hosts:show'

RULES = [
    base.rule(LIST, base.ADMIN, 'List the compute hosts with their slots.', 'GET /migrator/v1/hosts'),
    base.rule(SHOW, base.ADMIN, 'Show a host with its migrations.', 'GET /migrator/v1/hosts/{name}'),
]

INDEX_QUERY = {1: types.parameters({**types.PAGE, 'busy': types.many(types.BOOLEAN)}, unknown=False)}


def index(request: Request) -> webob.Response:
    """List the compute hosts by name."""
    given = request.given
    request.authorize(LIST)
    database, size = request.services.database, common.page_size(request)
    now, loads, counts = database.services.now(), database.slots.loads(), database.cleanups.counts()
    drains = {drain.host: drain.uuid for drain in database.drains.list(in_progress=True)}
    bounds, lease = Bounds.of(request.services.conf), request.services.conf.conductor.lease
    busy, found = schemas.flag(given, 'busy'), []
    for service in sorted(database.services.list(COMPUTE_BINARY), key=lambda service: service.host):
        load, (pending, blocked) = loads.get(service.host, Load()), counts.get(service.host, (0, 0))
        shown: dict[str, Any] = {
            'name': service.host,
            'up': service.is_up(now, lease),
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
    links = common.next_link(request, 'hosts_links', size, [shown['name'] for shown in found])
    return answer({'hosts': found} | links)


def show(request: Request, name: str) -> webob.Response:
    """Show a compute host: the migrations that leave it, in their order, and those that come in."""
    request.authorize(SHOW)
    database = request.services.database
    service = database.services.get_compute(name)
    here = database.migrations.list({'host': name}, in_progress=True)
    leaving = migrations.in_order(request, [one for one in here if one.source_compute == name])
    return answer(
        {
            'host': {
                'name': name,
                'up': service.is_up(database.services.now(), request.services.conf.conductor.lease),
                'disabled': service.disabled,
                'disabled_reason': service.disabled_reason,
                'boot_id': service.boot_id,
                'limit': database.slots.limit_of(name),
                'migrations': leaving,
                'inbound': [one.uuid for one in here if one.source_compute != name],
                'cleanups': [
                    cleanups.view(one) | {'alarm': one.blocked_because} for one in database.cleanups.list(host=name)
                ],
                'differences': [
                    one | {'since': common.iso(one['since'])}
                    for one in differences.documents(database, database.differences.list(name))
                ],
            }
        }
    )
