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

"""How migrations may be listed."""

from __future__ import annotations

from migrator.api.schemas import types

_FILTERS = {
    'hidden': types.ANY,
    'host': types.ANY,
    'instance_uuid': types.ANY,
    'source_compute': types.ANY,
    'status': types.ANY,
    'migration_type': types.ANY,
}
_V2_59 = {
    **_FILTERS,
    'limit': types.NUMBER,
    'marker': types.UUID,
    'changes-since': types.MOMENT,
}
_V2_66 = {**_V2_59, 'changes-before': types.MOMENT}
_V2_80 = {**_V2_66, 'user_id': types.TEXT, 'project_id': types.TEXT}

INDEX = {
    1: types.parameters(_FILTERS),
    59: types.parameters(_V2_59, unknown=False),
    66: types.parameters(_V2_66, unknown=False),
    80: types.parameters(_V2_80, unknown=False),
}
