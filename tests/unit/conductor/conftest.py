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

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from migrator.testing import grounds
from tests.unit.conductor import stage as stages


@pytest.fixture
def build(new_backend: Callable[[], grounds.SharedGround]) -> Iterator[Callable[..., stages.Stage]]:
    made: list[stages.Stage] = []

    def make(**options: Any) -> stages.Stage:
        made.append(stages.Stage(new_backend(), **options))
        return made[-1]

    yield make
    for stage in made:
        stage.cloud.stop()


@pytest.fixture
def stage(build: Callable[..., stages.Stage]) -> stages.Stage:
    return build()


@pytest.fixture
def still(build: Callable[..., stages.Stage]) -> stages.Stage:
    """Return a stage whose conductor neither sweeps nor polls, so that nothing happens but what the test does."""
    return build(options={'conductor.sweep_interval': 1e6, 'conductor.poll_interval': 1e6, 'conductor.lease': 1e6})
