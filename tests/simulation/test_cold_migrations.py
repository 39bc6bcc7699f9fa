# SPDX-License-Identifier: Apache-2.0

"""Random runs with cold migrations, beside live migrations and evacuations of the same guests.

MIGRATOR_COLD_SEEDS=N runs N seeds.
"""

import os

import pytest

from migrator.simulator import cold_workloads, runs

SEEDS, CHUNK = int(os.environ.get('MIGRATOR_COLD_SEEDS', '10')), 5

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize('first', range(1, 1 + SEEDS, CHUNK))
def test_cold_migrations_end_in_order_whatever_their_users_answer(first, backend, record_property):
    seeds = range(first, min(first + CHUNK, 1 + SEEDS))
    for seed in seeds:
        plan = cold_workloads.of_cold_migrations(seed)
        found = runs.run(backend, plan)
        assert not found.violations, runs.described(*runs.shorten(backend, plan, found))
    record_property('seeds', len(seeds))
