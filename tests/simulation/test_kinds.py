# SPDX-License-Identifier: Apache-2.0

"""Random runs of each further kind of plan, whose variable says how many seeds are run.

CONTRIBUTING.rst says what each kind is for. Seeds that were red once are run by ``test_seeds.py``.
"""

import os

import pytest

from migrator.simulator import runs

#: Kind of plan -> number of seeds.
SEEDS = {
    kind: int(os.environ.get(variable, default))
    for kind, variable, default in (
        ('bad-nights', 'MIGRATOR_NIGHTS', '60'),
        ('second-migrations', 'MIGRATOR_AGAIN', '60'),
        ('outages', 'MIGRATOR_OUTAGE_SEEDS', '30'),
        ('evacuations', 'MIGRATOR_EVACUATIONS', '60'),
        ('bounds', 'MIGRATOR_BOUNDS_SEEDS', '30'),
        ('drains', 'MIGRATOR_DRAIN_SEEDS', '30'),
        ('cold-migrations', 'MIGRATOR_COLD_SEEDS', '10'),
        ('by-hand', 'MIGRATOR_HAND_SEEDS', '30'),
        ('hosts-away', 'MIGRATOR_AWAY_SEEDS', '10'),
        ('maintenances', 'MIGRATOR_MAINTENANCE_SEEDS', '20'),
    )
}
SEEDS['resizes'] = SEEDS['cold-migrations'] // 2
#: Seeds in each test, so that several processes share the work.
CHUNK = 5

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize(
    ('kind', 'seeds'),
    [
        pytest.param(kind, range(first, min(first + CHUNK, 1 + seeds)), id=f'{kind} from seed {first}')
        for kind, seeds in SEEDS.items()
        for first in range(1, 1 + seeds, CHUNK)
    ],
)
def test_every_run_ends_in_order(kind, seeds, judged, record_property):
    for seed in seeds:
        judged(runs.KINDS[kind](seed))
    record_property('seeds', len(seeds))


@pytest.mark.parametrize(
    ('kind', 'seeds', 'states'),
    [
        (
            'bad-nights',
            (71, 150),
            ('has not reported the guest', 'has waited too long for', 'is no longer stuck', 'Abandoning migration'),
        ),
        (
            'second-migrations',
            (33, 230),
            (
                'the deferred cleanup of migration',
                'Ran deferred cleanup rollback_live_migration_at_source',
                'which is blocked',
            ),
        ),
    ],
    ids=['some stuck migrations go on and some are abandoned', 'a migration waits for an earlier cleanup and runs it'],
)
def test_these_runs_reach_what_they_are_for(kind, seeds, states, judged):
    reported = '\n'.join(sorted(set().union(*(judged(runs.KINDS[kind](seed)).states for seed in seeds))))
    assert [state for state in states if state not in reported] == []
