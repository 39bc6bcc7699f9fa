# SPDX-License-Identifier: Apache-2.0

"""Both audits: guests that are not where the database has them, and wrong allocations in Placement."""

from __future__ import annotations

import webob

from migrator.api import common
from migrator.api.policies import base
from migrator.api.request import Request, answer
from migrator.api.schemas import types
from migrator.views import differences

LIST_DIFFERENCES, LIST_FINDINGS = 'migrator:differences:index', 'migrator:findings:index'

RULES = [
    base.rule(
        LIST_DIFFERENCES,
        base.ADMIN,
        'List the guests that are not where the database has them.',
        'GET /migrator/v1/differences',
    ),
    base.rule(LIST_FINDINGS, base.ADMIN, 'List the wrong allocations in Placement.', 'GET /migrator/v1/findings'),
]

DIFFERENCES_QUERY = {1: types.parameters(types.PAGE, unknown=False)}


def list_differences(request: Request) -> webob.Response:
    """List the guests that are not where the database has them, by name."""
    request.authorize(LIST_DIFFERENCES)
    size, found = common.page_size(request), request.services.database.differences.list()
    found = common.after(common.marker(request), found, 'instance_uuid')[:size]
    links = common.next_link(request, 'differences_links', size, [one.instance_uuid for one in found])
    shown = differences.documents(request.services.database, found)
    return answer({'differences': shown} | links)


def list_findings(request: Request) -> webob.Response:
    """Audit the allocations in Placement now, and list the wrong ones, each with its remedy."""
    request.authorize(LIST_FINDINGS)
    return answer({'findings': request.services.conductor.audit(request.context)})
