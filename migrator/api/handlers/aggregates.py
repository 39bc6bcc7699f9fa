# SPDX-License-Identifier: Apache-2.0

"""Host aggregates: always an empty list, which `openstack hypervisor show` needs."""

from __future__ import annotations

import webob

from migrator.api.policies.aggregates import INDEX
from migrator.api.request import Request, answer


def index(request: Request) -> webob.Response:
    """Return an empty list of host aggregates."""
    request.authorize(INDEX)
    return answer({'aggregates': []})
