# SPDX-License-Identifier: Apache-2.0

"""``/migrator/v1/services``: the services that report, with the leases of conductors."""

from __future__ import annotations

import webob

from migrator.api.policies import base
from migrator.api.request import Request, answer
from migrator.api.schemas import types
from migrator.objects import COMPUTE_BINARY, CONDUCTOR_BINARY
from migrator.views import services

LIST = 'migrator:services:index'

RULES = [base.rule(LIST, base.ADMIN, 'List the services, with the leases of conductors.', 'GET /migrator/v1/services')]

_BINARIES = [COMPUTE_BINARY, CONDUCTOR_BINARY]
INDEX_QUERY = {
    1: types.parameters(
        {
            'host': types.TEXT,
            'binary': types.many({'type': 'string', 'enum': _BINARIES, 'description': ' or '.join(_BINARIES)}),
        },
        unknown=False,
    )
}


def index(request: Request) -> webob.Response:
    """List the services by binary and host."""
    given = request.given
    request.authorize(LIST)
    lease = request.services.conf.conductor.lease
    found = services.document(request.services.database, lease, given.get('binary'), given.get('host'))
    return answer(found)
