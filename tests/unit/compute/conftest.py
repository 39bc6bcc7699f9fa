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

from collections.abc import Iterator

import pytest

from migrator.testing import threads as sim_threads
from tests.unit.compute import scene as scene_module


@pytest.fixture
def scene(seed: int | None) -> Iterator[scene_module.Scene]:
    with sim_threads.Simulation(seed=seed) as simulation:
        made = scene_module.Scene(simulation)
        yield made
        assert made.world.violations == []
