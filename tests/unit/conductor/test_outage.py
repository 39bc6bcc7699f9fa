# SPDX-License-Identifier: Apache-2.0

"""Tests that an outage is logged once when it begins and once when it ends."""

from __future__ import annotations

import logging

import pytest

from migrator import exception
from migrator.conductor import outage
from migrator.testing.simulation.threads import Simulation


def test_outage_is_one_warning_and_its_end_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger='migrator')
    with Simulation() as simulation:
        placement = outage.Outage('Placement', simulation.process('conductor'))
        placement.heard(None)
        for _ in range(3):
            placement.heard(exception.PlacementUnreachable(reason='no route'))
        simulation.advance(42)
        placement.heard(None)
        placement.heard(None)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ('WARNING', 'Waiting for Placement: Placement is not reachable: no route'),
        ('INFO', 'No longer waiting for Placement, which answers again after 42 s'),
    ]
