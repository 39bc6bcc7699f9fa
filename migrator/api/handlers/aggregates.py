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

"""Host aggregates: migrator has none, and `openstack hypervisor show` does not go on without being told so."""

from __future__ import annotations

import webob

from migrator.api import request as api_request
from migrator.api.policies import aggregates as policies


def index(request: api_request.Request) -> webob.Response:
    """List the host aggregates, which is an empty list."""
    request.authorize(policies.INDEX)
    return api_request.answer({'aggregates': []})
