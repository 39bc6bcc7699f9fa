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

"""Who may list migrations."""

from __future__ import annotations

from migrator.api.policies import base

INDEX = 'os_compute_api:os-migrations:index'
INDEX_ALL_PROJECTS = 'os_compute_api:os-migrations:index:all_projects'
INDEX_HOST = 'os_compute_api:os-migrations:index:host'

_LIST = 'GET /os-migrations'

RULES = [
    base.rule(INDEX, base.PROJECT_MANAGER_OR_ADMIN, 'List migrations, without their hosts.', _LIST),
    base.rule(INDEX_ALL_PROJECTS, base.ADMIN, 'List the migrations of every project.', _LIST),
    base.rule(INDEX_HOST, base.ADMIN, 'List migrations with their hosts, and filter by them.', _LIST),
]
