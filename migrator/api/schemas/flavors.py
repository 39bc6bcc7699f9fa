# SPDX-License-Identifier: Apache-2.0

"""The schema of the lists of flavors."""

from __future__ import annotations

from migrator.api.schemas import types

#: The keys by which nova sorts flavors -> the attribute of a flavor here. The others have one value for all flavors.
SORT_KEYS = {
    'created_at': None,
    'description': None,
    'disabled': None,
    'ephemeral_gb': 'ephemeral_gb',
    'flavorid': 'name',
    'id': 'name',
    'is_public': None,
    'memory_mb': 'memory_mb',
    'name': 'name',
    'root_gb': 'root_gb',
    'rxtx_factor': None,
    'swap': 'swap',
    'updated_at': None,
    'vcpu_weight': None,
    'vcpus': 'vcpus',
}

_ONE_OF = {'type': 'string', 'description': ', '.join(SORT_KEYS)}
_V2_1 = {
    **types.PAGE,
    'is_public': types.ANY,
    'minRam': types.ANY,
    'minDisk': types.ANY,
    'sort_key': types.many({**_ONE_OF, 'enum': list(SORT_KEYS)}),
    'sort_dir': types.many({'type': 'string', 'enum': ['asc', 'desc'], 'description': 'asc or desc'}),
}

INDEX = {
    1: types.parameters(_V2_1),
    75: types.parameters(_V2_1, unknown=False),
    102: types.parameters({**_V2_1, 'name': types.REGEX}, unknown=False),
}
