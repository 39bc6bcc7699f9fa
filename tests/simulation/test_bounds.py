# SPDX-License-Identifier: Apache-2.0

"""Random runs with bounds on what is in progress, which change meanwhile.

No bound is exceeded (I23), slots are given in their order (I28), and everything that waits for one gets it (I7).
MIGRATOR_BOUNDS_SEEDS=N runs N seeds.
"""

import os

import pytest

from migrator.simulator import runs, workloads

SEEDS, CHUNK = int(os.environ.get('MIGRATOR_BOUNDS_SEEDS', '30')), 5

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize('first', range(1, 1 + SEEDS, CHUNK))
def test_no_bound_is_exceeded_and_nothing_starves(first, backend, record_property):
    seeds = range(first, min(first + CHUNK, 1 + SEEDS))
    for seed in seeds:
        plan = workloads.of_bounds(seed)
        found = runs.run(backend, plan)
        assert not found.violations, runs.described(*runs.shorten(backend, plan, found))
    record_property('seeds', len(seeds))
