# SPDX-License-Identifier: Apache-2.0

"""Both audits: guests that are not where the database has them, and wrong allocations in Placement."""

from __future__ import annotations

import webob

from migrator import exception
from migrator.api import common, schemas
from migrator.api.policies import base
from migrator.api.request import Request, answer
from migrator.api.schemas import types

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


def list_findings(request: Request) -> webob.Response:
    """Audit the allocations in Placement now, and list the wrong ones, each with its remedy."""
    schemas.query(request, types.NO_QUERY)
    request.authorize(LIST_FINDINGS)
    return answer({'findings': request.services.conductor.audit(request.context)})
