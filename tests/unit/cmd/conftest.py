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

from __future__ import annotations

import socket

import pytest

from tests.unit.cmd import managing


@pytest.fixture
def unused_port():
    """A loopback port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


@pytest.fixture
def operator(tmp_path, backend, capsys, request):
    """Who runs migrator-manage on a simulated cloud of three hosts."""
    marker = request.node.get_closest_marker('cloud')
    made = managing.Operator(tmp_path, backend, capsys, **{'hosts': 3, **(marker.kwargs if marker else {})})
    capsys.readouterr()
    yield made
    made.close()
