# SPDX-License-Identifier: Apache-2.0

"""Drains whose guests have a destination from a plan."""

import pytest

from migrator.objects.drain import Drain
from tests.functional.faults import faults
from tests.functional.test_drain import ends, host_of, statuses

pytestmark = pytest.mark.simulated(reason='it writes the row of a drain itself')


def planned(cloud, where):
    """Have host1 drained, each guest to the host where a plan has it, and return the drain at its end.

    :param where: pairs of a guest and its host.
    """
    uuid = cloud.new_uuid()
    cloud.database.drains.accept(Drain(uuid=uuid, host='host1', planned={one.uuid: to for one, to in where}))
    return ends(cloud, uuid)


@pytest.mark.cloud(hosts=4)
def test_each_guest_goes_where_the_plan_has_it_even_if_it_has_to_wait_for_a_slot(cloud):
    where = [(cloud.boot(f'guest{number}', 'host1'), 'host4') for number in range(5)]
    where.append((cloud.boot('other', 'host1'), 'host3'))
    assert planned(cloud, where)['status'] == 'completed'
    assert [host_of(cloud, one) for one, _ in where] == [to for _, to in where]


def test_guest_goes_elsewhere_if_its_planned_host_is_full_or_it_has_failed_there(cloud):
    cloud.boot('big', 'host3', memory_mb=60000)
    large, bad = cloud.boot('large', 'host1', memory_mb=8192), cloud.boot('bad', 'host1')
    faults(cloud, 'host3').fail('check_can_live_migrate_destination', instance_uuid=bad.uuid, sticky=True)
    ended = planned(cloud, [(large, 'host3'), (bad, 'host3')])
    assert statuses(ended) == {'large': 'moved', 'bad': 'moved'}
    assert {host_of(cloud, one) for one in (large, bad)} == {'host2'}
