# SPDX-License-Identifier: Apache-2.0

"""The schemas of the actions on a server."""

from __future__ import annotations

from migrator.api.schemas import types

_AUTO = {
    **types.BOOLEAN,
    'enum': [*types.BOOLEAN['enum'], 'auto'],
    'description': "true, false, or 'auto' to let the hosts decide",
}
_V2_1 = {
    'host': types.HOST_OR_NULL,
    'block_migration': types.BOOLEAN,
    'disk_over_commit': types.BOOLEAN,
}
_V2_25 = {'host': types.HOST_OR_NULL, 'block_migration': _AUTO}
_V2_30 = {**_V2_25, 'force': types.BOOLEAN}

MIGRATE_LIVE = {
    1: types.action('os-migrateLive', types.closed(_V2_1, ['host', 'block_migration', 'disk_over_commit'])),
    25: types.action('os-migrateLive', types.closed(_V2_25, ['host', 'block_migration'])),
    30: types.action('os-migrateLive', types.closed(_V2_30, ['host', 'block_migration'])),
    68: types.action('os-migrateLive', types.closed(_V2_25, ['host', 'block_migration'])),
}

_EVACUATE_V2_1 = {
    'host': types.HOST,
    'onSharedStorage': types.BOOLEAN,
    'adminPass': {'type': 'string', 'description': 'a password, which has no effect'},
}
_EVACUATE_V2_14 = {name: value for name, value in _EVACUATE_V2_1.items() if name != 'onSharedStorage'}
_EVACUATE_V2_29 = {**_EVACUATE_V2_14, 'force': types.BOOLEAN}

EVACUATE = {
    1: types.action('evacuate', types.closed(_EVACUATE_V2_1, ['onSharedStorage'])),
    14: types.action('evacuate', types.closed(_EVACUATE_V2_14)),
    29: types.action('evacuate', types.closed(_EVACUATE_V2_29)),
    68: types.action('evacuate', types.closed(_EVACUATE_V2_14)),
}

#: As in nova, anything is accepted and ignored.
_ANYTHING: types.Schema = {}

MIGRATE = {
    1: _ANYTHING,
    56: types.action(
        'migrate',
        {
            'type': ['object', 'null'],
            'properties': {'host': types.HOST_OR_NULL},
            'additionalProperties': False,
            'description': 'null, or an object with a host',
        },
    ),
}
_RESIZE = {
    'flavorRef': {'type': ['string', 'integer'], 'minLength': 1, 'description': 'the id of a flavor'},
    'OS-DCF:diskConfig': {'type': 'string', 'enum': ['AUTO', 'MANUAL'], 'description': 'AUTO or MANUAL; has no effect'},
}
RESIZE = {1: types.action('resize', types.closed(_RESIZE, ['flavorRef']))}
CONFIRM_RESIZE = {1: types.action('confirmResize', _ANYTHING)}
REVERT_RESIZE = {1: types.action('revertResize', _ANYTHING)}

_STATE = {'type': 'string', 'enum': ['active', 'error'], 'description': 'active or error'}

RESET_STATE = {1: types.action('os-resetState', types.closed({'state': _STATE}, ['state']))}

LOCK = {
    1: types.action('lock', _ANYTHING),
    73: types.action(
        'lock',
        {
            'type': ['null', 'object'],
            'properties': {'locked_reason': types.REASON},
            'additionalProperties': False,
            'description': 'null, or an object with a locked_reason',
        },
    ),
}
UNLOCK = {1: types.action('unlock', _ANYTHING)}
