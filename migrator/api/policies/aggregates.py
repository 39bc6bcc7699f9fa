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

"""Who may look at the host aggregates."""

from __future__ import annotations

from migrator.api.policies import base

INDEX = 'os_compute_api:os-aggregates:index'

RULES = [base.rule(INDEX, base.ADMIN, 'List the host aggregates, of which there are none.', 'GET /os-aggregates')]
