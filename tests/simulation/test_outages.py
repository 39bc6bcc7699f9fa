# SPDX-License-Identifier: Apache-2.0

"""Random runs in which the broker, Placement or every conductor goes away, for seconds or for minutes.

Nothing may fail or be stuck for that, and no host that lives may be called down. MIGRATOR_OUTAGE_SEEDS=N runs N seeds.
"""

import os

import pytest

from migrator.simulator import runs, workloads

SEEDS, CHUNK = int(os.environ.get('MIGRATOR_OUTAGE_SEEDS', '30')), 5

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize('first', range(1, 1 + SEEDS, CHUNK))
def test_an_outage_of_the_broker_or_of_all_conductors_ends_in_order(first, backend, record_property):
    seeds = range(first, min(first + CHUNK, 1 + SEEDS))
    for seed in seeds:
        plan = workloads.of_outages(seed)
        found = runs.run(backend, plan)
        assert not found.violations, runs.described(*runs.shorten(backend, plan, found))
    record_property('seeds', len(seeds))
