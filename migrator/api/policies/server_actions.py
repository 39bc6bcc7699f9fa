# SPDX-License-Identifier: Apache-2.0

"""The policies of migrations, of evacuation, of locks, and of the reset of a state."""

from __future__ import annotations

from migrator.api.policies import base

MIGRATE_LIVE = 'os_compute_api:os-migrate-server:migrate_live'
MIGRATE_LIVE_HOST = 'os_compute_api:os-migrate-server:migrate_live:host'
MIGRATE = 'os_compute_api:os-migrate-server:migrate'
MIGRATE_HOST = 'os_compute_api:os-migrate-server:migrate:host'
RESIZE = 'os_compute_api:servers:resize'
CONFIRM_RESIZE = 'os_compute_api:servers:confirm_resize'
REVERT_RESIZE = 'os_compute_api:servers:revert_resize'
EVACUATE = 'os_compute_api:os-evacuate'
RESET_STATE = 'os_compute_api:os-admin-actions:reset_state'
LOCK = 'os_compute_api:os-lock-server:lock'
UNLOCK = 'os_compute_api:os-lock-server:unlock'
UNLOCK_OVERRIDE = 'os_compute_api:os-lock-server:unlock:unlock_override'

_ACTION = 'POST /servers/{server_id}/action'

RULES = [
    base.rule(
        MIGRATE_LIVE, base.PROJECT_MANAGER_OR_ADMIN, 'Live-migrate a server to a host that migrator chooses.',
        f'{_ACTION} (os-migrateLive)',
    ),
    base.rule(
        MIGRATE_LIVE_HOST, base.ADMIN, 'Live-migrate a server to a host that the request names.',
        f'{_ACTION} (os-migrateLive)',
    ),
    base.rule(
        MIGRATE, base.PROJECT_MANAGER_OR_ADMIN, 'Cold-migrate a server to a host that migrator chooses.',
        f'{_ACTION} (migrate)',
    ),
    base.rule(
        MIGRATE_HOST, base.ADMIN, 'Cold-migrate a server to a host that the request names.', f'{_ACTION} (migrate)'
    ),
    base.rule(RESIZE, base.PROJECT_MEMBER_OR_ADMIN, 'Resize a server.', f'{_ACTION} (resize)'),
    base.rule(
        CONFIRM_RESIZE, base.PROJECT_MEMBER_OR_ADMIN, 'Confirm the resize or cold migration of a server.',
        f'{_ACTION} (confirmResize)',
    ),
    base.rule(
        REVERT_RESIZE, base.PROJECT_MEMBER_OR_ADMIN, 'Revert the resize or cold migration of a server.',
        f'{_ACTION} (revertResize)',
    ),
    base.rule(EVACUATE, base.ADMIN, 'Evacuate a server from a host that is down.', f'{_ACTION} (evacuate)'),
    base.rule(RESET_STATE, base.ADMIN, 'Reset the state of a server.', f'{_ACTION} (os-resetState)'),
    base.rule(LOCK, base.PROJECT_MEMBER_OR_ADMIN, 'Lock a server.', f'{_ACTION} (lock)'),
    base.rule(UNLOCK, base.PROJECT_MEMBER_OR_ADMIN, 'Unlock a server.', f'{_ACTION} (unlock)'),
    base.rule(UNLOCK_OVERRIDE, base.ADMIN, 'Unlock a server that another user has locked.', f'{_ACTION} (unlock)'),
]  # fmt: skip
