# SPDX-License-Identifier: Apache-2.0

"""The policies of hypervisors."""

from __future__ import annotations

from migrator.api.policies import base

LIST = 'os_compute_api:os-hypervisors:list'
LIST_DETAIL = 'os_compute_api:os-hypervisors:list-detail'
STATISTICS = 'os_compute_api:os-hypervisors:statistics'
SHOW = 'os_compute_api:os-hypervisors:show'
UPTIME = 'os_compute_api:os-hypervisors:uptime'
SEARCH = 'os_compute_api:os-hypervisors:search'
SERVERS = 'os_compute_api:os-hypervisors:servers'

RULES = [
    base.rule(LIST, base.ADMIN, 'List the hypervisors.', 'GET /os-hypervisors'),
    base.rule(LIST_DETAIL, base.ADMIN, 'List the hypervisors with details.', 'GET /os-hypervisors/detail'),
    base.rule(STATISTICS, base.ADMIN, 'Sum up the hypervisors.', 'GET /os-hypervisors/statistics'),
    base.rule(SHOW, base.ADMIN, 'Show one hypervisor.', 'GET /os-hypervisors/{hypervisor_id}'),
    base.rule(UPTIME, base.ADMIN, 'Show the uptime of a hypervisor.', 'GET /os-hypervisors/{hypervisor_id}/uptime'),
    base.rule(SEARCH, base.ADMIN, 'Find hypervisors by name.', 'GET /os-hypervisors/{pattern}/search'),
    base.rule(SERVERS, base.ADMIN, 'List the servers of hypervisors.', 'GET /os-hypervisors/{pattern}/servers'),
]
