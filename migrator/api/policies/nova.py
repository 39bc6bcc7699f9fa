# SPDX-License-Identifier: Apache-2.0

"""The policies of the Compute API, under nova's names."""

from __future__ import annotations

from oslo_policy import policy

from migrator.api.policies import base
from migrator.api.policies.base import (
    ADMIN,
    ANYONE,
    PROJECT_MANAGER_OR_ADMIN,
    PROJECT_MEMBER_OR_ADMIN,
    PROJECT_READER_OR_ADMIN,
)

# --- availability zones ----------------------------------------------------------------------------------------------

ZONES_LIST = 'os_compute_api:os-availability-zone:list'
ZONES_DETAIL = 'os_compute_api:os-availability-zone:detail'

# --- flavors; as in nova, every user may list and show them ----------------------------------------------------------

EXTRA_SPECS = 'os_compute_api:os-flavor-extra-specs:index'
EXTRA_SPEC = 'os_compute_api:os-flavor-extra-specs:show'
_FLAVORS = ('GET /flavors/detail', 'GET /flavors/{flavor_id}')
_SERVERS = ('GET /servers/detail', 'GET /servers/{server_id}')
_SPECS = 'GET /flavors/{flavor_id}/os-extra_specs'

# --- host aggregates and server groups -------------------------------------------------------------------------------

AGGREGATES = 'os_compute_api:os-aggregates:index'
SERVER_GROUPS = 'os_compute_api:os-server-groups:index'
SERVER_GROUPS_ALL = 'os_compute_api:os-server-groups:index:all_projects'
_GROUPS = 'GET /os-server-groups'

# --- hypervisors -----------------------------------------------------------------------------------------------------

HYPERVISORS_LIST = 'os_compute_api:os-hypervisors:list'
HYPERVISORS_LIST_DETAIL = 'os_compute_api:os-hypervisors:list-detail'
HYPERVISORS_STATISTICS = 'os_compute_api:os-hypervisors:statistics'
HYPERVISORS_SHOW = 'os_compute_api:os-hypervisors:show'
HYPERVISORS_UPTIME = 'os_compute_api:os-hypervisors:uptime'
HYPERVISORS_SEARCH = 'os_compute_api:os-hypervisors:search'
HYPERVISORS_SERVERS = 'os_compute_api:os-hypervisors:servers'

# --- a server's actions and their events -----------------------------------------------------------------------------

ACTIONS_LIST = 'os_compute_api:os-instance-actions:list'
ACTIONS_SHOW = 'os_compute_api:os-instance-actions:show'
ACTIONS_EVENTS = 'os_compute_api:os-instance-actions:events'
ACTIONS_DETAILS = 'os_compute_api:os-instance-actions:events:details'
_INSTANCE_ACTION = 'GET /servers/{server_id}/os-instance-actions/{request_id}'

# --- the list of migrations ------------------------------------------------------------------------------------------

MIGRATIONS_INDEX = 'os_compute_api:os-migrations:index'
MIGRATIONS_INDEX_ALL_PROJECTS = 'os_compute_api:os-migrations:index:all_projects'
MIGRATIONS_INDEX_HOST = 'os_compute_api:os-migrations:index:host'
_MIGRATIONS = 'GET /os-migrations'

# --- migrations, evacuation, locks, and the reset of a state ---------------------------------------------------------

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

# --- a server's live migrations in progress --------------------------------------------------------------------------

SERVER_MIGRATIONS_INDEX = 'os_compute_api:servers:migrations:index'
SERVER_MIGRATIONS_INDEX_HOST = 'os_compute_api:servers:migrations:index:host'
SERVER_MIGRATIONS_SHOW = 'os_compute_api:servers:migrations:show'
SERVER_MIGRATIONS_FORCE_COMPLETE = 'os_compute_api:servers:migrations:force_complete'
SERVER_MIGRATIONS_DELETE = 'os_compute_api:servers:migrations:delete'
_SERVER_MIGRATIONS = 'GET /servers/{server_id}/migrations'
_SERVER_MIGRATION = '/servers/{server_id}/migrations/{migration_id}'

# --- servers ---------------------------------------------------------------------------------------------------------

SERVERS_INDEX = 'os_compute_api:servers:index'
SERVERS_DETAIL = 'os_compute_api:servers:detail'
SERVERS_INDEX_ALL = 'os_compute_api:servers:index:get_all_tenants'
SERVERS_DETAIL_ALL = 'os_compute_api:servers:detail:get_all_tenants'
SERVERS_SHOW = 'os_compute_api:servers:show'
DIAGNOSTICS = 'os_compute_api:os-server-diagnostics'
HOST_STATUS = 'os_compute_api:servers:show:host_status'
EXTENDED_ATTRIBUTES = 'os_compute_api:os-extended-server-attributes'

# --- services --------------------------------------------------------------------------------------------------------

SERVICES_LIST = 'os_compute_api:os-services:list'
SERVICES_UPDATE = 'os_compute_api:os-services:update'
SERVICES_DELETE = 'os_compute_api:os-services:delete'

# --- older names, which nova still honours in a policy file ----------------------------------------------------------


def _older(name: str, check: str, since: str) -> policy.DeprecatedRule:
    reason = 'It was split into one rule for each operation.'
    return policy.DeprecatedRule(name, check, deprecated_reason=reason, deprecated_since=since)


_SERVICES = _older('os_compute_api:os-services', 'rule:admin_api', '21.0.0')
_HYPERVISORS = _older('os_compute_api:os-hypervisors', 'rule:admin_api', '21.0.0')
_ACTIONS = _older('os_compute_api:os-instance-actions', 'rule:admin_or_owner', '21.0.0')
#: Rule -> the older one, as in nova 34.
OLDER = {
    **dict.fromkeys((SERVICES_LIST, SERVICES_UPDATE, SERVICES_DELETE), _SERVICES),
    **dict.fromkeys(
        (HYPERVISORS_LIST, HYPERVISORS_LIST_DETAIL, HYPERVISORS_STATISTICS, HYPERVISORS_SHOW), _HYPERVISORS
    ),
    **dict.fromkeys((HYPERVISORS_UPTIME, HYPERVISORS_SEARCH, HYPERVISORS_SERVERS), _HYPERVISORS),
    **dict.fromkeys((ACTIONS_LIST, ACTIONS_SHOW), _ACTIONS),
    # An override of these let a user name the host, or see it, before there was a rule for that.
    MIGRATE_LIVE_HOST: _older(MIGRATE_LIVE, ADMIN, '32.0.0'),
    **dict.fromkeys((MIGRATIONS_INDEX_ALL_PROJECTS, MIGRATIONS_INDEX_HOST), _older(MIGRATIONS_INDEX, ADMIN, '32.0.0')),
    SERVER_MIGRATIONS_INDEX_HOST: _older(SERVER_MIGRATIONS_INDEX, ADMIN, '32.0.0'),
}


def rule(name: str, check: str, description: str, *operations: str) -> policy.DocumentedRuleDefault:
    """Return a documented rule with the older one of nova, if there is one."""
    return base.rule(name, check, description, *operations, older=OLDER.get(name))


RULES = [
    rule(ZONES_LIST, ANYONE, 'List the availability zones.', 'GET /os-availability-zone'),
    rule(ZONES_DETAIL, ADMIN, 'List the zones with their services.', 'GET /os-availability-zone/detail'),
    rule(
        EXTRA_SPECS, PROJECT_READER_OR_ADMIN,
        "Show a flavor's extra specs: by themselves, from 2.47 on with a server, and from 2.61 on with the flavor.",
        _SPECS, *_FLAVORS, *_SERVERS,
    ),
    rule(EXTRA_SPEC, PROJECT_READER_OR_ADMIN, 'Show one extra spec of a flavor.', f'{_SPECS}/{{key}}'),
    rule(AGGREGATES, ADMIN, 'List the host aggregates; the list is always empty.', 'GET /os-aggregates'),
    rule(SERVER_GROUPS, PROJECT_READER_OR_ADMIN, 'List the server groups; the list is always empty.', _GROUPS),
    rule(SERVER_GROUPS_ALL, ADMIN, 'List the server groups of every project.', _GROUPS),
    rule(HYPERVISORS_LIST, ADMIN, 'List the hypervisors.', 'GET /os-hypervisors'),
    rule(HYPERVISORS_LIST_DETAIL, ADMIN, 'List the hypervisors with details.', 'GET /os-hypervisors/detail'),
    rule(HYPERVISORS_STATISTICS, ADMIN, 'Sum up the hypervisors.', 'GET /os-hypervisors/statistics'),
    rule(HYPERVISORS_SHOW, ADMIN, 'Show one hypervisor.', 'GET /os-hypervisors/{hypervisor_id}'),
    rule(HYPERVISORS_UPTIME, ADMIN, 'Show the uptime of a hypervisor.', 'GET /os-hypervisors/{hypervisor_id}/uptime'),
    rule(HYPERVISORS_SEARCH, ADMIN, 'Find hypervisors by name.', 'GET /os-hypervisors/{pattern}/search'),
    rule(HYPERVISORS_SERVERS, ADMIN, 'List the servers of hypervisors.', 'GET /os-hypervisors/{pattern}/servers'),
    rule(ACTIONS_LIST, PROJECT_READER_OR_ADMIN, 'List actions.', 'GET /servers/{server_id}/os-instance-actions'),
    rule(ACTIONS_SHOW, PROJECT_READER_OR_ADMIN, 'Show one action, and from 2.51 its events.', _INSTANCE_ACTION),
    rule(
        ACTIONS_DETAILS, ADMIN,
        'Show why an action, and each event of it, has failed: texts of drivers, hosts and Placement, in message, '
        'traceback and details, and in the 400 of a live migration below 2.34. Others read sentences of a table.',
        _INSTANCE_ACTION,
    ),
    rule(
        ACTIONS_EVENTS, ADMIN,
        "Show an action's events below 2.51, whether they have failed (traceback), and from 2.62 their hosts.",
        _INSTANCE_ACTION,
    ),
    rule(MIGRATIONS_INDEX, PROJECT_MANAGER_OR_ADMIN, 'List migrations, without their hosts.', _MIGRATIONS),
    rule(MIGRATIONS_INDEX_ALL_PROJECTS, ADMIN, 'List the migrations of every project.', _MIGRATIONS),
    rule(MIGRATIONS_INDEX_HOST, ADMIN, 'List migrations with their hosts, and filter by them.', _MIGRATIONS),
    rule(
        MIGRATE_LIVE, PROJECT_MANAGER_OR_ADMIN, 'Live-migrate a server to a host that migrator chooses.',
        f'{_ACTION} (os-migrateLive)',
    ),
    rule(
        MIGRATE_LIVE_HOST, ADMIN, 'Live-migrate a server to a host that the request names.',
        f'{_ACTION} (os-migrateLive)',
    ),
    rule(
        MIGRATE, PROJECT_MANAGER_OR_ADMIN, 'Cold-migrate a server to a host that migrator chooses.',
        f'{_ACTION} (migrate)',
    ),
    rule(MIGRATE_HOST, ADMIN, 'Cold-migrate a server to a host that the request names.', f'{_ACTION} (migrate)'),
    rule(RESIZE, PROJECT_MEMBER_OR_ADMIN, 'Resize a server.', f'{_ACTION} (resize)'),
    rule(
        CONFIRM_RESIZE, PROJECT_MEMBER_OR_ADMIN, 'Confirm the resize or cold migration of a server.',
        f'{_ACTION} (confirmResize)',
    ),
    rule(
        REVERT_RESIZE, PROJECT_MEMBER_OR_ADMIN, 'Revert the resize or cold migration of a server.',
        f'{_ACTION} (revertResize)',
    ),
    rule(EVACUATE, ADMIN, 'Evacuate a server from a host that is down.', f'{_ACTION} (evacuate)'),
    rule(RESET_STATE, ADMIN, 'Reset the state of a server.', f'{_ACTION} (os-resetState)'),
    rule(LOCK, PROJECT_MEMBER_OR_ADMIN, 'Lock a server.', f'{_ACTION} (lock)'),
    rule(UNLOCK, PROJECT_MEMBER_OR_ADMIN, 'Unlock a server.', f'{_ACTION} (unlock)'),
    rule(UNLOCK_OVERRIDE, ADMIN, 'Unlock a server that another user has locked.', f'{_ACTION} (unlock)'),
    rule(
        SERVER_MIGRATIONS_INDEX, PROJECT_MANAGER_OR_ADMIN, 'List live migrations in progress, without their hosts.',
        _SERVER_MIGRATIONS,
    ),
    rule(SERVER_MIGRATIONS_INDEX_HOST, ADMIN, 'List live migrations in progress with their hosts.', _SERVER_MIGRATIONS),
    rule(SERVER_MIGRATIONS_SHOW, ADMIN, 'Show a live migration in progress.', f'GET {_SERVER_MIGRATION}'),
    rule(
        SERVER_MIGRATIONS_FORCE_COMPLETE, PROJECT_MANAGER_OR_ADMIN, 'Force the completion of a running live migration.',
        f'POST {_SERVER_MIGRATION}/action (force_complete)',
    ),
    rule(SERVER_MIGRATIONS_DELETE, PROJECT_MANAGER_OR_ADMIN, 'Abort a live migration.', f'DELETE {_SERVER_MIGRATION}'),
    rule(SERVERS_INDEX, PROJECT_READER_OR_ADMIN, 'List servers.', 'GET /servers'),
    rule(SERVERS_DETAIL, PROJECT_READER_OR_ADMIN, 'List servers with details.', 'GET /servers/detail'),
    rule(SERVERS_INDEX_ALL, ADMIN, 'List the servers of every project.', 'GET /servers'),
    rule(SERVERS_DETAIL_ALL, ADMIN, 'List the servers of every project with details.', 'GET /servers/detail'),
    rule(SERVERS_SHOW, PROJECT_READER_OR_ADMIN, 'Show a server.', 'GET /servers/{server_id}'),
    rule(DIAGNOSTICS, ADMIN, 'Show what a server uses.', 'GET /servers/{server_id}/diagnostics'),
    rule(HOST_STATUS, ADMIN, "Show the status of a server's host.", *_SERVERS),
    rule(EXTENDED_ATTRIBUTES, ADMIN, 'Show the host of a server.', *_SERVERS),
    rule(SERVICES_LIST, ADMIN, 'List the services.', 'GET /os-services'),
    rule(
        SERVICES_UPDATE, ADMIN, 'Enable a service, disable it, or declare its host down.',
        'PUT /os-services/{service_id}',
    ),
    rule(SERVICES_DELETE, ADMIN, 'Delete a service that is gone for good.', 'DELETE /os-services/{service_id}'),
]  # fmt: skip
