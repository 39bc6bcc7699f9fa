# SPDX-License-Identifier: Apache-2.0

"""The schemas of the list and of the changes of services."""

from __future__ import annotations

from migrator.api.schemas import types

INDEX = {
    1: types.parameters({'host': types.ANY, 'binary': types.ANY}),
    75: types.parameters({'host': types.ANY, 'binary': types.ANY}, unknown=False),
}

_OF_HOST = {
    'host': types.HOST,
    'binary': {'type': 'string', 'minLength': 1, 'maxLength': 255, 'description': 'nova-compute'},
}
_V2_1 = {**_OF_HOST, 'disabled_reason': types.REASON}

#: Below 2.53 PUT /os-services/{enable,disable,disable-log-reason,force-down}, then PUT /os-services/{uuid}.
UPDATE = {
    1: types.closed(_V2_1, ['host', 'binary']),
    11: types.closed({**_V2_1, 'forced_down': types.BOOLEAN}, ['host', 'binary']),
    53: types.closed(
        {
            'status': {'type': 'string', 'enum': ['enabled', 'disabled'], 'description': 'enabled or disabled'},
            'disabled_reason': types.REASON,
            'forced_down': types.BOOLEAN,
        }
    ),
}
