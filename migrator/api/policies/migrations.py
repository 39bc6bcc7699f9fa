# SPDX-License-Identifier: Apache-2.0

"""The policies of the list of migrations."""

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
