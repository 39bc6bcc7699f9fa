# SPDX-License-Identifier: Apache-2.0

"""Random runs that empty a host while hypervisors hang and operators handle what is stuck.

MIGRATOR_NIGHTS=N runs N seeds. Seeds that were red once are in ``tests/seeds/red-bad-nights.txt``.
"""

import os
import pathlib

import pytest

from migrator.simulator import runs, workloads

SEEDS, CHUNK = int(os.environ.get('MIGRATOR_NIGHTS', '60')), 5
RED = pathlib.Path(__file__).parent.parent / 'seeds' / 'red-bad-nights.txt'

pytestmark = pytest.mark.timeout(1200)


def were_red():
    lines = [line for line in RED.read_text().splitlines() if line and not line.startswith('#')]
    return [int(line.split(maxsplit=1)[0]) for line in lines]


def judged(backend, seed):
    plan = workloads.of_a_bad_night(seed)
    found = runs.run(backend, plan)
    assert not found.violations, runs.described(*runs.shorten(backend, plan, found))
    return found


@pytest.mark.parametrize('first', range(1, 1 + SEEDS, CHUNK))
def test_every_bad_night_ends_in_order(first, backend, record_property):
    seeds = range(first, min(first + CHUNK, 1 + SEEDS))
    for seed in seeds:
        judged(backend, seed)
    record_property('seeds', len(seeds))


@pytest.mark.parametrize('seed', were_red())
def test_seeds_that_were_red_stay_green(seed, backend):
    judged(backend, seed)


def test_these_nights_reach_what_they_are_for(backend):
    """Some migrations need an operator, some that are stuck go on by themselves, and some are abandoned."""
    seen = set()
    for seed in (71, 150):
        seen |= judged(backend, seed).states
    reported = '\n'.join(sorted(seen))
    for what in ('has not reported the guest', 'has waited too long for', 'is no longer stuck', 'Abandoning migration'):
        assert what in reported, what
