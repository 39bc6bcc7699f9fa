# SPDX-License-Identifier: Apache-2.0

"""The policies of a server's live migrations in progress."""

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
        FORCE_COMPLETE, base.PROJECT_MANAGER_OR_ADMIN, 'Force the completion of a running live migration.',
        f'POST {_ONE}/action (force_complete)',
    ),
    base.rule(DELETE, base.PROJECT_MANAGER_OR_ADMIN, 'Abort a live migration.', f'DELETE {_ONE}'),
]  # fmt: skip
