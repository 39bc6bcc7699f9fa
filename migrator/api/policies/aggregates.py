# SPDX-License-Identifier: Apache-2.0

"""Who may look at the host aggregates."""

from __future__ import annotations

from migrator.api.policies import base

INDEX = 'os_compute_api:os-aggregates:index'

RULES = [base.rule(INDEX, base.ADMIN, 'List the host aggregates, of which there are none.', 'GET /os-aggregates')]
