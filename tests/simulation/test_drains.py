# SPDX-License-Identifier: Apache-2.0

"""Random runs in which hosts are drained, beside whatever else happens to their guests.

Each drain requests only what it may, ends, and calls only an empty host empty (I25). MIGRATOR_DRAIN_SEEDS=N runs N
seeds.
"""

import os

import pytest

from migrator.simulator import drain_workloads, runs

SEEDS, CHUNK = int(os.environ.get('MIGRATOR_DRAIN_SEEDS', '30')), 5

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize('first', range(1, 1 + SEEDS, CHUNK))
def test_every_drain_keeps_its_rules_and_ends(first, backend, record_property):
    seeds = range(first, min(first + CHUNK, 1 + SEEDS))
    for seed in seeds:
        plan = drain_workloads.of_drains(seed)
        found = runs.run(backend, plan)
        assert not found.violations, runs.described(*runs.shorten(backend, plan, found))
    record_property('seeds', len(seeds))
