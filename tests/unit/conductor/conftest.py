# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from migrator.testing import backends
from tests.unit.conductor.stage import Stage


@pytest.fixture
def build(new_backend: Callable[[], backends.SharedBackend]) -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def make(**options: Any) -> Stage:
        made.append(Stage(new_backend(), **options))
        return made[-1]

    yield make
    for stage in made:
        stage.cloud.stop()


@pytest.fixture
def stage(build: Callable[..., Stage]) -> Stage:
    return build()


@pytest.fixture
def still(build: Callable[..., Stage]) -> Stage:
    """Return a stage whose conductor neither sweeps nor polls, so that only the test acts."""
    return build(options={'conductor.sweep_interval': 1e6, 'conductor.poll_interval': 1e6, 'conductor.lease': 1e6})
