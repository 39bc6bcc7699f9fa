# SPDX-License-Identifier: Apache-2.0

"""The policies of host aggregates."""

from __future__ import annotations

from migrator.api.policies import base

INDEX = 'os_compute_api:os-aggregates:index'

RULES = [base.rule(INDEX, base.ADMIN, 'List the host aggregates; the list is always empty.', 'GET /os-aggregates')]
