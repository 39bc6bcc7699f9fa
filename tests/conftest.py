# SPDX-License-Identifier: Apache-2.0

"""Where the simulated clouds of the tests keep their data: ``backend``, as if new for each test.

A :class:`~migrator.testing.backends.SharedGround` keeps its engines from test to test, and with them all that
SQLAlchemy has compiled, which costs more than a migration does. Its Placement is the fake one, which
``tests/unit/testing/fake_placement/test_service.py`` holds to the real one. The real one is there:

- in a test that is marked ``@pytest.mark.real_placement``, always;
- with ``--real-placement``, in every test that has a cloud of these; the others, and those that are marked, are left
  out. ``make test-real`` runs the functional tests so;
- with ``-p tests.real.over_http``, in every test.

MIGRATOR_EVERY in the environment keeps every Nth test only, where tests run again on other parts.

And the seed of the simulated schedule, ``seed``. A test whose subject is the order of threads is marked
``@pytest.mark.seeds(None, 1, 2)`` and runs once with each. Without it the thread that is ready first runs first, or
MIGRATOR_SEED in the environment is the seed of them all.
"""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
from collections.abc import Callable, Iterator

import pytest

from migrator.testing import backends, placement


class Backends:
    """The backends of one test process, by what their Placement is."""

    def __init__(self) -> None:
        self._free: dict[bool, list[backends.SharedBackend]] = {False: [], True: []}
        self._exits = contextlib.ExitStack()

    def take(self, real_placement: bool) -> backends.SharedBackend:
        """Return one that no other test uses, and make it if all are in use.

        :param real_placement: whether its clouds get the real Placement.
        """
        free = self._free[real_placement]
        if free:
            return free.pop()
        directory = self._exits.enter_context(tempfile.TemporaryDirectory(dir=backends.in_memory()))
        # looked up when it is called: tests.real.over_http puts another one in its place
        real = (lambda at: placement.InProcessPlacement(at)) if real_placement else None
        made = backends.SharedBackend(directory, real)
        self._exits.callback(made.close)
        return made

    def give_back(self, backend: backends.SharedBackend, real_placement: bool) -> None:
        """Take back what :meth:`take` has returned."""
        self._free[real_placement].append(backend)

    def close(self) -> None:
        """Close all of them."""
        self._exits.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption('--real-placement', action='store_true', help='simulated clouds get the real Placement')


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line('markers', 'seeds(*seeds): run this test once with each of these seeds')


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker('seeds')
    if marker is not None and 'seed' in metafunc.fixturenames:
        metafunc.parametrize('seed', marker.args)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = list(items)
    if config.getoption('--real-placement'):
        chosen = [
            item
            for item in items
            if 'cloud' in getattr(item, 'fixturenames', ()) and item.get_closest_marker('real_placement') is None
        ]
    chosen = chosen[:: int(os.environ.get('MIGRATOR_EVERY', '1'))]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


def pytest_collection_finish() -> None:
    # Garbage collections took a tenth of the time: most of what they looked at are modules and tests, which stay.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


@pytest.fixture
def seed() -> int | None:
    """The seed of the schedule; None: first come, first served."""
    wanted = os.environ.get('MIGRATOR_SEED')
    return int(wanted) if wanted else None


@pytest.fixture(scope='session')
def _backends() -> Iterator[Backends]:
    made = Backends()
    yield made
    made.close()


@pytest.fixture
def new_backend(request: pytest.FixtureRequest, _backends: Backends) -> Iterator[Callable[[], backends.SharedBackend]]:
    """Return a function that returns a backend of this test's own, a new one at each call."""
    config = request.config
    marked = request.node.get_closest_marker('real_placement') is not None
    real = marked or config.getoption('--real-placement') or config.pluginmanager.hasplugin('tests.real.over_http')
    taken: list[backends.SharedBackend] = []

    def take() -> backends.SharedBackend:
        taken.append(_backends.take(real))
        return taken[-1]

    yield take
    for one in taken:
        _backends.give_back(one, real)


@pytest.fixture
def backend(new_backend: Callable[[], backends.SharedBackend]) -> backends.SharedBackend:
    """Return what the cloud of this test stands on."""
    return new_backend()
