# SPDX-License-Identifier: Apache-2.0

"""The policies of a server's actions and their events."""

from __future__ import annotations

from migrator.api.policies import base

LIST = 'os_compute_api:os-instance-actions:list'
SHOW = 'os_compute_api:os-instance-actions:show'
EVENTS = 'os_compute_api:os-instance-actions:events'
DETAILS = 'os_compute_api:os-instance-actions:events:details'

_ONE = 'GET /servers/{server_id}/os-instance-actions/{request_id}'

RULES = [
    base.rule(LIST, base.PROJECT_READER_OR_ADMIN, 'List actions.', 'GET /servers/{server_id}/os-instance-actions'),
    base.rule(SHOW, base.PROJECT_READER_OR_ADMIN, 'Show one action, and from 2.51 its events.', _ONE),
    base.rule(DETAILS, base.ADMIN, 'Show from 2.84 on why each event of an action has failed.', _ONE),
    base.rule(EVENTS, base.ADMIN, "Show an action's events with their tracebacks, and from 2.62 their hosts.", _ONE),
]
