# SPDX-License-Identifier: Apache-2.0

"""The policies of availability zones."""

from __future__ import annotations

from migrator.api.policies import base

LIST = 'os_compute_api:os-availability-zone:list'
DETAIL = 'os_compute_api:os-availability-zone:detail'

RULES = [
    base.rule(LIST, base.ANYONE, 'List the availability zones.', 'GET /os-availability-zone'),
    base.rule(DETAIL, base.ADMIN, 'List the zones with their services.', 'GET /os-availability-zone/detail'),
]
