# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator

import pytest

from migrator.testing.simulation.threads import Simulation
from tests.unit.testing.hypervisor.fake_bench import FakeBench


@pytest.fixture
def bench() -> Iterator[FakeBench]:
    with Simulation(seed=1) as simulation:
        made = FakeBench(simulation)
        yield made
        assert made.world.violations == []
