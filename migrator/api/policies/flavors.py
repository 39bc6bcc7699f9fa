# SPDX-License-Identifier: Apache-2.0

"""The policies of flavors. As in nova, every user may list and show flavors."""

from __future__ import annotations

from migrator.api.policies import base

EXTRA_SPECS = 'os_compute_api:os-flavor-extra-specs:index'
EXTRA_SPEC = 'os_compute_api:os-flavor-extra-specs:show'

_FLAVORS = ('GET /flavors/detail', 'GET /flavors/{flavor_id}')
_SERVERS = ('GET /servers/detail', 'GET /servers/{server_id}')
_SPECS = 'GET /flavors/{flavor_id}/os-extra_specs'

RULES = [
    base.rule(
        EXTRA_SPECS, base.PROJECT_READER_OR_ADMIN,
        "Show a flavor's extra specs: by themselves, from 2.47 on with a server, and from 2.61 on with the flavor.",
        _SPECS, *_FLAVORS, *_SERVERS,
    ),
    base.rule(EXTRA_SPEC, base.PROJECT_READER_OR_ADMIN, 'Show one extra spec of a flavor.', f'{_SPECS}/{{key}}'),
]  # fmt: skip
