# SPDX-License-Identifier: Apache-2.0

"""The schemas of the lists of hypervisors."""

from __future__ import annotations

from migrator.api.schemas import types

_WITH_SERVERS = {'with_servers': types.once(types.BOOLEAN)}
_V2_53 = {
    **types.PAGE_ONCE,
    **_WITH_SERVERS,
    'hypervisor_hostname_pattern': types.once({**types.HOST, 'description': 'a part of a name'}),
}

INDEX = {
    1: types.parameters({}),
    33: types.parameters(types.PAGE),
    53: types.parameters(_V2_53, unknown=False),
}
SHOW = {
    1: types.parameters({}),
    53: types.parameters(_WITH_SERVERS, unknown=False),
}
