# SPDX-License-Identifier: Apache-2.0

"""The policies of host aggregates and server groups."""

from __future__ import annotations

from migrator.api.policies import base

AGGREGATES = 'os_compute_api:os-aggregates:index'
SERVER_GROUPS = 'os_compute_api:os-server-groups:index'
SERVER_GROUPS_ALL = 'os_compute_api:os-server-groups:index:all_projects'

_GROUPS = 'GET /os-server-groups'

RULES = [
    base.rule(AGGREGATES, base.ADMIN, 'List the host aggregates; the list is always empty.', 'GET /os-aggregates'),
    base.rule(
        SERVER_GROUPS, base.PROJECT_READER_OR_ADMIN, 'List the server groups; the list is always empty.', _GROUPS
    ),
    base.rule(SERVER_GROUPS_ALL, base.ADMIN, 'List the server groups of every project.', _GROUPS),
]
