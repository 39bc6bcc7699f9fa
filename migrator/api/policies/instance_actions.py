# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Who may read what was asked of a server, and what came of it."""

from __future__ import annotations

from migrator.api.policies import base

LIST = 'os_compute_api:os-instance-actions:list'
SHOW = 'os_compute_api:os-instance-actions:show'
EVENTS = 'os_compute_api:os-instance-actions:events'

_ONE = 'GET /servers/{server_id}/os-instance-actions/{request_id}'

RULES = [
    base.rule(LIST, base.PROJECT_READER_OR_ADMIN, 'List actions.', 'GET /servers/{server_id}/os-instance-actions'),
    base.rule(SHOW, base.PROJECT_READER_OR_ADMIN, 'Show one action, and from 2.51 its events.', _ONE),
    base.rule(EVENTS, base.ADMIN, "Show an action's events with their tracebacks, and from 2.62 their hosts.", _ONE),
]
