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

"""Who may look into a server's migrations and interfere."""

from __future__ import annotations

from migrator.api.policies import base

INDEX = 'os_compute_api:servers:migrations:index'
INDEX_HOST = 'os_compute_api:servers:migrations:index:host'
SHOW = 'os_compute_api:servers:migrations:show'
FORCE_COMPLETE = 'os_compute_api:servers:migrations:force_complete'
DELETE = 'os_compute_api:servers:migrations:delete'

_LIST = 'GET /servers/{server_id}/migrations'
_ONE = '/servers/{server_id}/migrations/{migration_id}'

RULES = [
    base.rule(INDEX, base.PROJECT_MANAGER_OR_ADMIN, 'List live migrations in progress, without their hosts.', _LIST),
    base.rule(INDEX_HOST, base.ADMIN, 'List live migrations in progress with their hosts.', _LIST),
    base.rule(SHOW, base.ADMIN, 'Show a live migration in progress.', f'GET {_ONE}'),
    base.rule(
        FORCE_COMPLETE, base.PROJECT_MANAGER_OR_ADMIN, 'Have a running live migration completed by force.',
        f'POST {_ONE}/action (force_complete)',
    ),
    base.rule(DELETE, base.PROJECT_MANAGER_OR_ADMIN, 'Abort a live migration.', f'DELETE {_ONE}'),
]  # fmt: skip
