# SPDX-License-Identifier: Apache-2.0

"""What everybody waits for is said once when it goes away, and once when it is back."""

from __future__ import annotations

import logging

import pytest

from migrator import exception
from migrator.conductor import outage
from migrator.testing.simulation.threads import Simulation


def test_an_outage_is_one_warning_and_its_end_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger='migrator')
    with Simulation() as simulation:
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
