# SPDX-License-Identifier: Apache-2.0

"""Random runs in which one guest is migrated again and again, from and to hosts with pending cleanups.

MIGRATOR_AGAIN=N runs N seeds.
"""

import os

import pytest

from migrator.simulator import runs, workloads

SEEDS, CHUNK = int(os.environ.get('MIGRATOR_AGAIN', '60')), 5

pytestmark = pytest.mark.timeout(1200)


def judged(backend, seed):
    plan = workloads.of_second_migrations(seed)
    found = runs.run(backend, plan)
    assert not found.violations, runs.described(*runs.shorten(backend, plan, found))
    return found


@pytest.mark.parametrize('first', range(1, 1 + SEEDS, CHUNK))
def test_migrations_of_one_guest_after_one_another_end_in_order(first, backend, record_property):
    seeds = range(first, min(first + CHUNK, 1 + SEEDS))
    for seed in seeds:
        judged(backend, seed)
    record_property('seeds', len(seeds))


def test_these_runs_reach_what_they_are_for(backend):
    """A migration waits for an earlier cleanup at its source, runs it, and is stuck if it is blocked."""
    seen = set()
    for seed in (33, 230):
        seen |= judged(backend, seed).states
    reported = '\n'.join(sorted(seen))
    for what in (
        'the deferred cleanup of migration',
        'Ran deferred cleanup rollback_live_migration_at_source',
        'which is blocked',
    ):
        assert what in reported, what
