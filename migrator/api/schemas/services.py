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

"""How services may be listed and changed."""

from __future__ import annotations

from migrator.api.schemas import types

INDEX = {
    1: types.parameters({'host': types.ANY, 'binary': types.ANY}),
    75: types.parameters({'host': types.ANY, 'binary': types.ANY}, unknown=False),
}

_OF_HOST = {
    'host': types.HOST,
    'binary': {'type': 'string', 'minLength': 1, 'maxLength': 255, 'description': 'nova-compute'},
}
_V2_1 = {**_OF_HOST, 'disabled_reason': types.REASON}

#: PUT /os-services/{enable,disable,disable-log-reason,force-down}
UPDATE_BY_ACTION = {
    1: types.closed(_V2_1, ['host', 'binary']),
    11: types.closed({**_V2_1, 'forced_down': types.BOOLEAN}, ['host', 'binary']),
}

#: PUT /os-services/{uuid}
UPDATE = {
    53: types.closed(
        {
            'status': {'type': 'string', 'enum': ['enabled', 'disabled'], 'description': 'enabled or disabled'},
            'disabled_reason': types.REASON,
            'forced_down': types.BOOLEAN,
        }
    )
}
