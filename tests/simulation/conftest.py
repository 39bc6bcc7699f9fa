# SPDX-License-Identifier: Apache-2.0

"""What the simulations print when all is over: how much they have tried, and how fast."""

import collections
import gc

import pytest

from migrator.simulator import matrix, runs, scenarios

#: What tests count with ``record_property``, summed up over all of them, and over the processes that ran them.
COUNTED = ('cells', 'pairs', 'planted', 'caught', 'seeds', 'faults', 'audited')


@pytest.fixture(scope='session')
def _shared():
    with matrix.backend() as found:
        yield found


@pytest.fixture(scope='module')
def backend(_shared):
    """What the clouds of all modules in this process stand on, one after the other."""
    runs.hurry()
    try:
        yield _shared
    finally:
        gc.enable()


@pytest.fixture
def judged(backend):
    """Return a function that runs a plan, and fails with the shortest plan that breaks something."""

    def run(plan):
        found = runs.run(backend, plan)
        assert not found.violations, runs.described(*runs.shorten(backend, plan, found))
        return found

    return run


@pytest.fixture(scope='session')
def _known():
    return {}


@pytest.fixture
def cells(backend, _known):
    """Return a function that returns the cells of paths; each path is run for them once in this process."""

    def cells_of(*paths):
        for path in paths:
            if path not in _known:
                _known[path] = matrix.cells(backend, [scenarios.BY_NAME[path]])
        return [cell for path in paths for cell in _known[path]]

    return cells_of


def pytest_terminal_summary(terminalreporter):
    sums = collections.Counter()
    seconds = collections.Counter()
    for report in terminalreporter.getreports('passed') + terminalreporter.getreports('failed'):
        for name, value in getattr(report, 'user_properties', ()):
            if name in COUNTED and report.when == 'call':
                sums[name] += value
                seconds[name] += report.duration
    for name in COUNTED:
        if sums[name]:
            rate = f' ({sums[name] / seconds[name]:.1f} a second in each process)' if seconds[name] else ''
            terminalreporter.write_line(f'simulated: {sums[name]} {name}{rate}')
