# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator

import pytest

from migrator.testing.simulation.threads import Simulation
from tests.unit.compute.scene import Scene


@pytest.fixture
def scene(seed: int | None) -> Iterator[Scene]:
    with Simulation(seed=seed) as simulation:
        made = Scene(simulation)
        yield made
        assert made.world.violations == []
