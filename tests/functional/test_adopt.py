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

"""Guests that a host has and the books do not know: they are adopted where that is asked for, and otherwise told of."""

from __future__ import annotations

import pytest

from migrator.objects import instance as instance_objects
from migrator.placement_client import allocations
from migrator.testing.placement_faults import Fault

pytestmark = [
    pytest.mark.simulated(reason='it puts guests past the books'),
    pytest.mark.breaks('I5', reason='a guest that is put past the books has no allocation yet'),
]

FLAVOR = instance_objects.Flavor(name='hand-made', vcpus=2, memory_mb=1024, root_gb=5)


def a_stranger(cloud, host='host1', flavor=FLAVOR):
    """Put a guest on a host of which nobody has told the books."""
    instance = instance_objects.Instance(
        uuid=cloud.new_uuid(), name='stranger', project_id='p', user_id='u', host=host, node=host, flavor=flavor
    )
    cloud.world.hypervisors[host].spawn(instance)
    return instance.uuid


def start_again(cloud, host='host1', **options):
    """Stop a compute service, and start it with other options."""
    cloud.computes.pop(host).cleanup_host()
    cloud.options.update(options)
    cloud.start_compute(host)
    cloud.simulation.run_until(cloud.up)
    cloud.simulation.advance(1)


def known(cloud):
    return {one.uuid: one for one in cloud.database.instances.list({})}


def test_a_guest_is_adopted_with_what_it_has_and_can_be_moved(cloud):
    uuid = a_stranger(cloud)
    before = cloud.world.hypervisors['host1'].describe(uuid)
    start_again(cloud, **{'compute.adopt_guests': True})
    found = known(cloud)[uuid]
    assert (found.host, found.vm_state, found.project_id) == ('host1', 'active', 'migrator')
    assert found.flavor.resources() == {'VCPU': 2, 'MEMORY_MB': 1024, 'DISK_GB': 5}
    node = next(node for node in cloud.database.services.list_nodes() if node.host == 'host1')
    held = allocations.read(cloud.placement_client, uuid).allocations
    assert held == {node.uuid: {'VCPU': 2, 'MEMORY_MB': 1024, 'DISK_GB': 5}}
    assert cloud.world.hypervisors['host1'].describe(uuid) == before
    body = {'os-migrateLive': {'host': None, 'block_migration': 'auto'}}
    assert cloud.request('POST', f'/servers/{uuid}/action', body).status_int == 202
    cloud.wait()
    assert known(cloud)[uuid].host != 'host1'


def test_a_second_start_adopts_nothing_twice(cloud):
    uuid = a_stranger(cloud)
    start_again(cloud, **{'compute.adopt_guests': True})
    first = known(cloud)
    start_again(cloud)
    assert known(cloud) == first
    assert uuid in first


def test_without_the_option_a_guest_is_told_of_and_left_alone(cloud, caplog):
    uuid = a_stranger(cloud)
    start_again(cloud)
    assert uuid not in known(cloud)
    assert f'no instance is known of: {uuid} (running)' in caplog.text
    assert '[compute] adopt_guests' in caplog.text


def test_a_guest_for_which_placement_has_no_room_is_told_of_and_its_neighbours_are_adopted(cloud, caplog):
    huge = instance_objects.Flavor(name='huge', vcpus=1, memory_mb=10_000_000, root_gb=1)
    too_big, other = a_stranger(cloud, flavor=huge), a_stranger(cloud)
    start_again(cloud, **{'compute.adopt_guests': True})
    assert set(known(cloud)) == {other}
    assert f'Guest {too_big} of host1 is not adopted' in caplog.text
    assert not allocations.read(cloud.placement_client, too_big).allocations


def test_placement_that_is_away_for_a_moment_is_waited_for(cloud):
    uuid = a_stranger(cloud)
    cloud.adapter.inject(Fault.UNREACHABLE, method='PUT', url=f'/allocations/{uuid}')
    start_again(cloud, **{'compute.adopt_guests': True})
    cloud.simulation.run_until(lambda: uuid in known(cloud))
