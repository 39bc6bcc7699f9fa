# SPDX-License-Identifier: Apache-2.0

"""The policies of servers."""

from __future__ import annotations

from migrator.api.policies import base

INDEX = 'os_compute_api:servers:index'
DETAIL = 'os_compute_api:servers:detail'
INDEX_ALL = 'os_compute_api:servers:index:get_all_tenants'
DETAIL_ALL = 'os_compute_api:servers:detail:get_all_tenants'
SHOW = 'os_compute_api:servers:show'
DIAGNOSTICS = 'os_compute_api:os-server-diagnostics'
HOST_STATUS = 'os_compute_api:servers:show:host_status'
EXTENDED_ATTRIBUTES = 'os_compute_api:os-extended-server-attributes'

_DETAILS = ('GET /servers/detail', 'GET /servers/{server_id}')

RULES = [
    base.rule(INDEX, base.PROJECT_READER_OR_ADMIN, 'List servers.', 'GET /servers'),
    base.rule(DETAIL, base.PROJECT_READER_OR_ADMIN, 'List servers with details.', 'GET /servers/detail'),
    base.rule(INDEX_ALL, base.ADMIN, 'List the servers of every project.', 'GET /servers'),
    base.rule(DETAIL_ALL, base.ADMIN, 'List the servers of every project with details.', 'GET /servers/detail'),
    base.rule(SHOW, base.PROJECT_READER_OR_ADMIN, 'Show a server.', 'GET /servers/{server_id}'),
    base.rule(DIAGNOSTICS, base.ADMIN, 'Show what a server uses.', 'GET /servers/{server_id}/diagnostics'),
    base.rule(HOST_STATUS, base.ADMIN, "Show the status of a server's host.", *_DETAILS),
    base.rule(EXTENDED_ATTRIBUTES, base.ADMIN, 'Show the host of a server.', *_DETAILS),
]
