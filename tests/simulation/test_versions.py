# SPDX-License-Identifier: Apache-2.0

"""Random runs in clouds of old or mixed compute versions, upgraded during migrations.

The lowest of them decides who holds the source's allocation; each migration keeps what it began with.
MIGRATOR_FLOORS=N takes every Nth only of the paths and of the seeds under each version, others for each version.
"""

import dataclasses
import os

import pytest

from migrator.objects import migration, service
from migrator.simulator import matrix, scenarios
from migrator.simulator.workloads import plans

SEEDS, CHUNK = 40, 10
#: Every Nth cell of each path under each floor.
EVERY = 83
#: Every Nth of the paths and of the seeds, others for each version.
SPACING = int(os.environ.get('MIGRATOR_FLOORS', '1'))
#: The paths on which something is aborted that does not run yet, which old computes cannot do: the request is refused.
NOT_ABORTED = ('abort queued', 'abort preparing', 'abort starting', 'restart with a queue')
#: The paths of resizes that leave a guest at its host, which doubled allocations do not allow.
RESIZED_HERE = ('resize here', 'resize here reverted', 'resize here retried')
#: The paths of single migrations.
SINGLE = [path for path in scenarios.PATHS if not path.name.startswith('drain')]

pytestmark = pytest.mark.timeout(900)


@pytest.mark.nova_bug(1377644)
@pytest.mark.parametrize('first', range(1, 1 + SEEDS, CHUNK))
def test_an_upgrade_under_running_migrations_ends_in_order(first, judged, record_property):
    for seed in range(first, first + CHUNK):
        judged(plans.of_an_upgrade(seed))
    record_property('seeds', CHUNK)


@pytest.mark.parametrize('version', [one for one in service.SERVICE_VERSIONS if one < service.CURRENT_VERSION])
def test_a_cloud_of_old_computes_ends_in_order(version, judged, record_property):
    seeds = range(1, 1 + CHUNK)[version % SPACING :: SPACING]
    for seed in seeds:
        plan = plans.of(seed)
        judged(dataclasses.replace(plan, options={**plan.options, 'compute.service_version_cap': version}))
    record_property('seeds', len(seeds))


def of_version(path, version):
    """Return a path in a cloud whose computes are of one version."""
    ends = path.ends
    if version < service.ABORTS_QUEUED and path.name in NOT_ABORTED:
        ends = tuple(migration.MigrationStatus.COMPLETED for _ in ends)
    if version < service.MIGRATION_OWNED and path.name in RESIZED_HERE:
        ends = tuple(migration.MigrationStatus.FAILED for _ in ends)
    return dataclasses.replace(path, options={**path.options, 'compute.service_version_cap': version}, ends=ends)


@pytest.mark.nova_bug(1377644)
@pytest.mark.parametrize(
    ('path', 'version'),
    [
        pytest.param(path, version, id=f'{path.name}-{version}')
        for number, path in enumerate(SINGLE)
        for version in service.SERVICE_VERSIONS
        if version < service.CURRENT_VERSION and (number + version) % SPACING == 0
    ],
)
def test_every_path_under_every_floor_ends_in_order_and_so_do_some_cells_of_it(path, version, backend, record_property):
    """The first thing that making the cells does is to see that without a fault it ends as it should."""
    path = of_version(path, version)
    chosen = matrix.cells(backend, [path])[version::EVERY]
    wrong = []
    for cell in chosen:
        result = matrix.run(backend, cell, path)
        wrong += [f'{cell}: {violation}' for violation in result.violations]
    record_property('cells', len(chosen))
    assert not wrong, '\n'.join(wrong)


def test_the_strategy_is_chosen_once_by_the_lowest_version(judged):
    """Some migrations of these runs begin before, and some after the floor has risen."""
    every = [plans.of_an_upgrade(seed) for seed in range(1, 1 + 10 * CHUNK)]
    doubled = [plan for plan in every if min(plan.versions.values()) < service.MIGRATION_OWNED]
    others = [plan for plan in every if plan not in doubled]
    seen = set()
    for old, chosen in ((True, doubled), (False, others)):
        for plan in chosen[: CHUNK // 2]:
            seen |= {(old, one) for one in judged(plan).strategies}
    assert (False, migration.Strategy.MIGRATION_OWNED) in seen
    assert (True, migration.Strategy.DOUBLED) in seen
    assert (False, migration.Strategy.DOUBLED) not in seen
