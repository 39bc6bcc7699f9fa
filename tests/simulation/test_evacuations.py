# SPDX-License-Identifier: Apache-2.0

"""Random runs in which hosts are lost, also during live migrations, and their guests are evacuated.

MIGRATOR_EVACUATIONS=N runs N seeds.
"""

import os

import pytest

from migrator.simulator import runs, workloads

SEEDS, CHUNK = int(os.environ.get('MIGRATOR_EVACUATIONS', '60')), 5

pytestmark = pytest.mark.timeout(1200)


def judged(backend, seed):
    plan = workloads.of_evacuations(seed)
    found = runs.run(backend, plan)
    assert not found.violations, runs.described(*runs.shorten(backend, plan, found))
    return found


@pytest.mark.parametrize('first', range(1, 1 + SEEDS, CHUNK))
def test_evacuations_and_live_migrations_of_the_same_guests_end_in_order(first, backend, record_property):
    seeds = range(first, min(first + CHUNK, 1 + SEEDS))
    for seed in seeds:
        judged(backend, seed)
    record_property('seeds', len(seeds))
