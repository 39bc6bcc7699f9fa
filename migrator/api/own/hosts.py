# SPDX-License-Identifier: Apache-2.0

"""``/migrator/v1/hosts``: the compute hosts with their slots, and the migrations of one."""

from __future__ import annotations

import webob

from migrator.api import common, schemas
from migrator.api.policies import base
from migrator.api.request import Request, answer
from migrator.api.schemas import types
from migrator.db.slots import Bounds
from migrator.views import hosts

LIST, SHOW = 'migrator:hosts:index', 'migrator:hosts:show'

RULES = [
    base.rule(LIST, base.ADMIN, 'List the compute hosts with their slots.', 'GET /migrator/v1/hosts'),
    base.rule(SHOW, base.ADMIN, 'Show a host with its migrations.', 'GET /migrator/v1/hosts/{name}'),
]

INDEX_QUERY = {1: types.parameters({**types.PAGE, 'busy': types.many(types.BOOLEAN)}, unknown=False)}


def index(request: Request) -> webob.Response:
    """List the compute hosts by name, in natural order."""
    given = request.given
    request.authorize(LIST)
    database, size = request.services.database, common.page_size(request)
    bounds, lease = Bounds.of(request.services.conf), request.services.conf.conductor.lease
    busy = schemas.flag(given, 'busy')
    found = [one for one, is_busy in hosts.documents(database, bounds, lease) if busy in (None, is_busy)]
    if 'marker' in given:
        # A host that was deleted meanwhile still has its place in the order.
        after = hosts.place(given['marker'])
        found = [shown for shown in found if hosts.place(shown['name']) > after]
    found = found[:size]
    links = common.next_link(request, 'hosts_links', size, [shown['name'] for shown in found])
    return answer({'hosts': found} | links)


def show(request: Request, name: str) -> webob.Response:
    """Show a compute host: the migrations that leave it, in their order, and those that come in."""
    request.authorize(SHOW)
    services = request.services
    lease = services.conf.conductor.lease
    return answer({'host': hosts.document(services.database, Bounds.of(services.conf), lease, name)})
