# SPDX-License-Identifier: Apache-2.0

"""The schemas of the queries of hypervisors, server groups, a server's actions, and migrations."""

from __future__ import annotations

from migrator.api.schemas import types

_SINCE = {'changes-since': types.once(types.MOMENT)}
_BEFORE = {'changes-before': types.once(types.MOMENT)}

_WITH_SERVERS = {'with_servers': types.once(types.BOOLEAN)}
_HYPERVISORS_2_53 = {
    **types.PAGE_ONCE,
    **_WITH_SERVERS,
    'hypervisor_hostname_pattern': types.once({**types.HOST, 'description': 'a part of a name'}),
}
HYPERVISORS = {
    1: types.parameters({}),
    33: types.parameters(types.PAGE),
    53: types.parameters(_HYPERVISORS_2_53, unknown=False),
}
HYPERVISOR = {1: types.parameters({}), 53: types.parameters(_WITH_SERVERS, unknown=False)}

_GROUPS = {'all_projects': types.ANY, 'limit': types.SIZE, 'offset': types.SIZE}
SERVER_GROUPS = {1: types.parameters(_GROUPS), 75: types.parameters(_GROUPS, unknown=False)}

INSTANCE_ACTIONS = {
    1: types.parameters({}),
    58: types.parameters({**types.PAGE_ONCE, **_SINCE}, unknown=False),
    66: types.parameters({**types.PAGE_ONCE, **_SINCE, **_BEFORE}, unknown=False),
}

_FILTERS = dict.fromkeys(('hidden', 'host', 'instance_uuid', 'source_compute', 'status', 'migration_type'), types.ANY)
_MIGRATIONS_2_59 = {**_FILTERS, **types.PAGE_ONCE, **_SINCE}
_OWNERS = dict.fromkeys(('user_id', 'project_id'), types.once({'type': 'string'}))
MIGRATIONS = {
    1: types.parameters(_FILTERS),
    59: types.parameters(_MIGRATIONS_2_59, unknown=False),
    66: types.parameters({**_MIGRATIONS_2_59, **_BEFORE}, unknown=False),
    80: types.parameters({**_MIGRATIONS_2_59, **_BEFORE, **_OWNERS}, unknown=False),
}
