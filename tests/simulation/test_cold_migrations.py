# SPDX-License-Identifier: Apache-2.0

"""Random runs with cold migrations and resizes, beside other migrations of the same guests.

MIGRATOR_COLD_SEEDS=N runs N seeds of cold migrations, and half as many of resizes.
"""

import os

import pytest

from migrator.simulator import cold_workloads, runs

SEEDS, CHUNK = int(os.environ.get('MIGRATOR_COLD_SEEDS', '10')), 5

pytestmark = pytest.mark.timeout(1200)


def judged(backend, plan):
    found = runs.run(backend, plan)
    assert not found.violations, runs.described(*runs.shorten(backend, plan, found))
    return found


@pytest.mark.parametrize('first', range(1, 1 + SEEDS, CHUNK))
def test_cold_migrations_end_in_order_whatever_their_users_answer(first, backend, record_property):
    seeds = range(first, min(first + CHUNK, 1 + SEEDS))
    for seed in seeds:
        judged(backend, cold_workloads.of_cold_migrations(seed))
    record_property('seeds', len(seeds))


@pytest.mark.parametrize('first', range(1, 1 + SEEDS // 2, CHUNK))
def test_resizes_end_in_order_whatever_their_users_answer(first, backend, record_property):
    seeds = range(first, min(first + CHUNK, 1 + SEEDS // 2))
    for seed in seeds:
        judged(backend, cold_workloads.of_resizes(seed))
    record_property('seeds', len(seeds))
