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

"""What everybody waits for is said once when it goes away, and once when it is back."""

from __future__ import annotations

import logging

import pytest

from migrator import exception
from migrator.conductor import outage
from migrator.testing import threads as sim_threads


def test_an_outage_is_one_warning_and_its_end_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger='migrator')
    with sim_threads.Simulation() as simulation:
        said = outage.Outage('Placement', simulation.process('conductor'))
        said.heard(None)
        for _ in range(3):
            said.heard(exception.PlacementUnreachable(reason='no route'))
        simulation.advance(42)
        said.heard(None)
        said.heard(None)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ('WARNING', 'Placement is not reachable: no route. What needs Placement waits for it.'),
        ('INFO', 'Placement answers again, after 42 s'),
    ]
