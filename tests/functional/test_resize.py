# SPDX-License-Identifier: Apache-2.0

"""A guest is moved to another host with another flavor, and keeps it or goes back as its user decides."""

import pytest

from migrator.objects import Flavor
from tests.functional import state
from tests.functional.faults import faults
from tests.functional.test_cold_migration import CONFIRM, REVERT, act, is_clean, newest, shown

pytestmark = pytest.mark.simulated(reason='it kills hosts, and looks at the fake hypervisors')

LARGE = Flavor(name='large', vcpus=4, memory_mb=2048, root_gb=20)
#: What LARGE claims.
ROOM = LARGE.resources()


@pytest.fixture
def guest(cloud):
    """A guest of a small flavor, beside a larger flavor."""
    cloud.database.flavors.create(LARGE)
    return cloud.boot('one', 'host1')


def resize(cloud, instance):
    """Resize a server, and return its migration once it waits for its user."""
    assert act(cloud, instance, 'resize', {'flavorRef': 'large'}) == 202
    cloud.simulation.run_until(lambda: newest(cloud, instance).status == 'finished')
    return newest(cloud, instance)


def sizes(cloud, instance):
    """Return the flavor of a server, and the processors and the memory of its copies by host."""
    copies = {
        host: (one.guests[instance.uuid].vcpus, one.guests[instance.uuid].memory_mb)
        for host, one in cloud.world.hypervisors.items()
        if instance.uuid in one.guests
    }
    return cloud.database.instances.get(instance.uuid).flavor.name, copies


def test_each_consumer_holds_the_amounts_of_one_flavor_until_the_resize_is_confirmed(cloud, guest):
    small = (guest.flavor.vcpus, guest.flavor.memory_mb)
    migration = resize(cloud, guest)
    home = migration.dest_compute
    assert migration.migration_type == 'resize'
    assert shown(cloud, guest) == ('VERIFY_RESIZE', 'resized', None)
    assert sizes(cloud, guest) == ('large', {'host1': small, home: (4, 2048)})
    assert state.allocations(cloud) == {guest.uuid: {home: ROOM}, migration.uuid: {'host1': state.CLAIM}}
    assert is_clean(cloud)
    assert act(cloud, guest, CONFIRM) == 204
    cloud.wait()
    assert newest(cloud, guest).status == 'confirmed'
    assert sizes(cloud, guest) == ('large', {home: (4, 2048)})
    assert state.allocations(cloud) == {guest.uuid: {home: ROOM}}
    actions = state.get(cloud, f'/servers/{guest.uuid}/os-instance-actions')['instanceActions']
    assert [one['action'] for one in actions] == ['confirmResize', 'resize']
    assert is_clean(cloud)


def test_a_reverted_resize_gives_the_old_flavor_back(cloud, guest):
    small = (guest.flavor.vcpus, guest.flavor.memory_mb)
    resize(cloud, guest)
    assert act(cloud, guest, REVERT) == 202
    cloud.wait()
    assert newest(cloud, guest).status == 'reverted'
    assert sizes(cloud, guest) == (guest.flavor.name, {'host1': small})
    assert state.allocations(cloud) == {guest.uuid: {'host1': state.CLAIM}}
    assert is_clean(cloud)
    shown_ids = state.get(cloud, '/os-migrations')['migrations'][0]
    numbers = (guest.flavor.number, LARGE.number)
    assert (shown_ids['old_instance_type_id'], shown_ids['new_instance_type_id']) == numbers
    # It can be resized again.
    resize(cloud, guest)
    assert act(cloud, guest, CONFIRM) == 204
    cloud.wait()


def test_a_resize_that_fails_leaves_the_guest_with_its_flavor(cloud, guest):
    for host in ('host2', 'host3'):
        faults(cloud, host).fail('finish_migration', 'planned: no disk', sticky=True)
    assert act(cloud, guest, 'resize', {'flavorRef': 'large'}) == 202
    cloud.wait()
    assert newest(cloud, guest).status == 'failed'
    assert sizes(cloud, guest)[0] == guest.flavor.name
    assert cloud.world.active_on(guest.uuid) == ['host1']
    assert state.allocations(cloud) == {guest.uuid: {'host1': state.CLAIM}}


def test_a_resize_needs_room_for_the_new_flavor(cloud, guest):
    cloud.database.flavors.create(LARGE.replace(name='huge', vcpus=1000))
    assert act(cloud, guest, 'resize', {'flavorRef': 'huge'}) == 202
    cloud.wait()
    found = newest(cloud, guest)
    assert found.status == 'failed'
    assert 'host2: it has 16 of VCPU free, and 1000 are needed' in found.failure


@pytest.mark.parametrize('home', ['host1', 'host2'])
def test_an_abandoned_resize_leaves_the_flavor_of_the_host_with_the_guest(cloud, guest, home):
    faults(cloud, 'host3').fail('check_can_migrate_destination', 'planned: not here', sticky=True)
    migration = resize(cloud, guest)
    assert migration.dest_compute == 'host2'
    if home == 'host1':
        with cloud.world.lock:
            cloud.world.hypervisors['host2'].guests.pop(guest.uuid)
    cloud.database.requests.request_abandon(migration, home, 'ada')
    cloud.simulation.run_until(lambda: newest(cloud, guest).status == 'error')
    flavor, room = (guest.flavor.name, state.CLAIM) if home == 'host1' else ('large', ROOM)
    assert sizes(cloud, guest)[0] == flavor
    assert state.host_of(cloud, guest) == home
    assert state.allocations(cloud) == {guest.uuid: {home: room}}
