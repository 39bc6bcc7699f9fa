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

"""What Nova has and migrator leaves to it, said so."""

from __future__ import annotations

from typing import NoReturn

from migrator import exception
from migrator.api import request as api_request


def refuse(request: api_request.Request, what: str | None = None) -> NoReturn:
    """Say that migrator does not serve this.

    :param what: what it is, where the URL does not tell.
    :raises migrator.exception.NotServed: always.
    """
    raise exception.NotServed(what=what or f'{request.method} {request.path_info}')
