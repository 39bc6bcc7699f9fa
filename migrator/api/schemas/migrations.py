# SPDX-License-Identifier: Apache-2.0

"""The schema of the list of migrations."""

from __future__ import annotations

from migrator.api.schemas import types

_FILTERS = {
    'hidden': types.ANY,
    'host': types.ANY,
    'instance_uuid': types.ANY,
    'source_compute': types.ANY,
    'status': types.ANY,
    'migration_type': types.ANY,
}
_V2_59 = {
    **_FILTERS,
    **types.PAGE_ONCE,
    'changes-since': types.once(types.MOMENT),
}
_V2_66 = {**_V2_59, 'changes-before': types.once(types.MOMENT)}
_V2_80 = {**_V2_66, **dict.fromkeys(('user_id', 'project_id'), types.once({'type': 'string'}))}

INDEX = {
    1: types.parameters(_FILTERS),
    59: types.parameters(_V2_59, unknown=False),
    66: types.parameters(_V2_66, unknown=False),
    80: types.parameters(_V2_80, unknown=False),
}
