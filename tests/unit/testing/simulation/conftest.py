# SPDX-License-Identifier: Apache-2.0

import pytest

from migrator.testing.simulation.threads import Simulation


@pytest.fixture
def simulation():
    with Simulation(None) as simulation:
        yield simulation


@pytest.fixture
def process(simulation):
    return simulation.process('service')
