# SPDX-License-Identifier: Apache-2.0

"""Host aggregates: migrator has none, and `openstack hypervisor show` does not go on without being told so."""

from __future__ import annotations

import webob

from migrator.api import request as api_request
from migrator.api.policies.aggregates import INDEX


def index(request: api_request.Request) -> webob.Response:
    """List the host aggregates, which is an empty list."""
    request.authorize(INDEX)
    return api_request.answer({'aggregates': []})
