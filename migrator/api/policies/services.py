# SPDX-License-Identifier: Apache-2.0

"""The policies of services."""

from __future__ import annotations

from migrator.api.policies import base

LIST = 'os_compute_api:os-services:list'
UPDATE = 'os_compute_api:os-services:update'
DELETE = 'os_compute_api:os-services:delete'

RULES = [
    base.rule(LIST, base.ADMIN, 'List the services.', 'GET /os-services'),
    base.rule(
        UPDATE,
        base.ADMIN,
        'Enable a service, disable it, or declare its host down.',
        'PUT /os-services/{service_id}',
    ),
    base.rule(DELETE, base.ADMIN, 'Delete a service that is gone for good.', 'DELETE /os-services/{service_id}'),
]
