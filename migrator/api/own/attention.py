# SPDX-License-Identifier: Apache-2.0

"""``/migrator/v1/attention``: what needs an operator."""

from __future__ import annotations

import webob

from migrator.api import common
from migrator.api.policies import base
from migrator.api.request import Request, answer
from migrator.api.schemas import types
from migrator.views import attention

LIST = 'migrator:attention:index'

RULES = [base.rule(LIST, base.ADMIN, 'List what needs an operator.', 'GET /migrator/v1/attention')]

INDEX_QUERY = {1: types.parameters({'limit': types.PAGE['limit']}, unknown=False)}


def index(request: Request) -> webob.Response:
    """List what needs an operator, the most urgent kind first."""
    request.authorize(LIST)
    services, size = request.services, common.page_size(request)
    found = attention.documents(services.database, services.conf.conductor.lease)
    return answer({'attention': found[:size], 'count': len(found)})
