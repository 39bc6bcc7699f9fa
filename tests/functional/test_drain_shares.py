# SPDX-License-Identifier: Apache-2.0

"""How drains that begin together share the slots."""

import itertools

import pytest

from migrator.drain import run
from tests.functional.migration_requests import until
from tests.functional.test_drain import drain, ends, show

pytestmark = pytest.mark.simulated(reason='it lets single seconds pass')


@pytest.mark.cloud(options={'max_concurrent_live_migrations': 4})
def test_third_and_further_migrations_of_a_drain_are_requested_a_few_seconds_apart(cloud):
    cloud.world.hypervisors['host1'].set_link(4.0)
    for number in range(6):
        cloud.boot(f'guest{number}', 'host1', memory_mb=100)
    uuid = drain(cloud)['uuid']
    until(cloud, lambda: sum(one['status'] == 'moving' for one in show(cloud, uuid)['members']) == 5)
    accepted = sorted(row.created_at for row in cloud.migrations())
    pauses = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(accepted[1:])]
    assert min(pauses) >= run.SPACING, pauses
    assert ends(cloud, uuid)['status'] == 'completed'
