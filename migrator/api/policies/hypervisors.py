# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Who may look at the hypervisors."""

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
    base.rule(UPTIME, base.ADMIN, 'Show how long one has been up.', 'GET /os-hypervisors/{hypervisor_id}/uptime'),
    base.rule(SEARCH, base.ADMIN, 'Find hypervisors by name.', 'GET /os-hypervisors/{pattern}/search'),
    base.rule(SERVERS, base.ADMIN, 'List the servers of some.', 'GET /os-hypervisors/{pattern}/servers'),
]
