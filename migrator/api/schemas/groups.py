# SPDX-License-Identifier: Apache-2.0

"""The schema of the list of server groups."""

from __future__ import annotations

from migrator.api.schemas import types

_V2_1 = {'all_projects': types.ANY, 'limit': types.SIZE, 'offset': types.SIZE}

SERVER_GROUPS = {1: types.parameters(_V2_1), 75: types.parameters(_V2_1, unknown=False)}
