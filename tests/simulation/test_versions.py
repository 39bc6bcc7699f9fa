# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Random runs in clouds whose computes are of old versions, or of several, and are upgraded under running migrations.

The lowest of them decides who holds the source's allocation; each migration keeps what it began with.
"""

import dataclasses

import pytest

from migrator.objects import migration, service
from migrator.testing import plans, simulate

SEEDS, CHUNK = 40, 10

pytestmark = pytest.mark.timeout(900)


def judged(ground, plan):
    result = simulate.run(ground, plan)
    assert not result.violations, simulate.told(plan, result)
    return result


@pytest.mark.parametrize('first', range(1, 1 + SEEDS, CHUNK))
def test_an_upgrade_under_running_migrations_ends_in_order(first, ground, record_property):
    for seed in range(first, first + CHUNK):
        judged(ground, plans.of_an_upgrade(seed))
    record_property('seeds', CHUNK)


@pytest.mark.parametrize('version', [one for one in service.SERVICE_VERSIONS if one < service.CURRENT_VERSION])
def test_a_cloud_of_old_computes_ends_in_order(version, ground, record_property):
    for seed in range(1, 1 + CHUNK):
        plan = plans.of(seed)
        judged(ground, dataclasses.replace(plan, options={**plan.options, 'compute.service_version_cap': version}))
    record_property('seeds', CHUNK)


def test_the_strategy_is_chosen_once_by_the_lowest_version(ground):
    """Some migrations of these runs begin before, and some after the floor has risen."""
    seen = set()
    for seed in range(1, 1 + CHUNK):
        plan = plans.of_an_upgrade(seed)
        seen |= {(min(plan.versions.values()) == 1, one) for one in judged(ground, plan).strategies}
    assert (False, migration.Strategy.MIGRATION_OWNED) in seen
    assert (True, migration.Strategy.DOUBLED) in seen
    assert (False, migration.Strategy.DOUBLED) not in seen
