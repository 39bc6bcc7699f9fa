# SPDX-License-Identifier: Apache-2.0

"""``/migrator/v1/services``: the services that report, with the leases of conductors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import webob

from migrator.api import common
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
    shown = (
        'uuid', 'host', 'binary', 'version', 'status', 'disabled_reason', 'state', 'forced_down', 'last_seen_up',
        'down_since', 'boot_id', 'identity', 'refused', 'replaced',
    )  # fmt: skip
    listed = [
        {
            **{name: one[name] for name in shown},
            'lease': one['lease'] and _lease(one['lease']),
            'cleanups': {'pending': one['debts'], 'blocked': one['alarms']},
            'differences': len(one['differences']),
        }
        for one in found['services']
    ]
    whole = {'services': listed, 'now': found['now'], 'no_reports_because': found['unheard']}
    return answer(common.with_times(whole))


def _lease(lease: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lease of a conductor, where the document of ``migrator-manage`` has an older name."""
    return {'incarnations' if name == 'lives' else name: value for name, value in lease.items()}
