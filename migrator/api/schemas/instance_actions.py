# SPDX-License-Identifier: Apache-2.0

"""The schema of the list of a server's actions."""

from __future__ import annotations

from migrator.api.schemas import types

_V2_58 = {**types.PAGE_ONCE, 'changes-since': types.once(types.MOMENT)}

INDEX = {
    1: types.parameters({}),
    58: types.parameters(_V2_58, unknown=False),
    66: types.parameters({**_V2_58, 'changes-before': types.once(types.MOMENT)}, unknown=False),
}
