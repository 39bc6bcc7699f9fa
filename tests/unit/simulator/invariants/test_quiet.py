# SPDX-License-Identifier: Apache-2.0

"""Planted violations of the invariants that hold after faults have stopped."""

import pytest

from migrator.objects import protocol
from tests.unit.simulator import planting


def test_i1_power_state_differs_from_row(cloud):
    planting.sql(cloud, 'UPDATE instances SET power_state = 3')
    assert planting.found(cloud) == {'I1'}
    assert planting.found(cloud, quiet=False) == set()


def test_i1_guest_paused_by_user_must_stay_paused(cloud):
    hypervisor = cloud.world.hypervisors['host2']
    hypervisor.pause(cloud.instance.uuid)
    assert planting.found(cloud) == set()
    hypervisor.guests[cloud.instance.uuid].state = 'running'
    assert planting.found(cloud) == {'I1'}


def test_i1_ignores_power_loss_of_a_copy_that_was_left_behind(cloud):
    hypervisor = cloud.world.hypervisors['host1']
    with cloud.world.lock:
        cloud.world.record('host1', 'shutdown', cloud.instance.uuid, 'power')
    planting.sql(cloud, "UPDATE instances SET host = 'host1'")
    hypervisor.guests[cloud.instance.uuid] = cloud.world.hypervisors['host2'].guests.pop(cloud.instance.uuid)
    assert 'I1' not in planting.found(cloud)


def test_i1_instance_in_error_without_failed_migration(cloud):
    planting.sql(cloud, "UPDATE instances SET vm_state = 'error'")
    assert planting.found(cloud) == {'I1'}
    assert planting.found(cloud, quiet=False) == set()


def test_i2_node_of_another_host(cloud):
    planting.sql(cloud, "UPDATE instances SET node = 'host1'")
    assert planting.found(cloud) == {'I2'}


@pytest.mark.parametrize('how', ['gone', 'waiting'])
def test_i2_guest_not_on_host_of_row(cloud, how):
    guests = cloud.world.hypervisors['host2'].guests
    if how == 'gone':
        del guests[cloud.instance.uuid]
    else:
        guests[cloud.instance.uuid].state = protocol.GuestState.WAITING
    assert planting.found(cloud) == {'I2'}


@pytest.mark.parametrize('consumer', ['unknown', 'ended migration'])
def test_i3_orphan_consumer(cloud, consumer):
    planting.write(cloud, planting.UNKNOWN if consumer == 'unknown' else cloud.migration.uuid, 'host1', None)
    assert planting.found(cloud) == {'I3'}
    assert planting.found(cloud, quiet=False) == set()


def test_i3_instance_holds_more_than_flavor(cloud):
    planting.write(cloud, cloud.instance.uuid, 'host2', planting.generation(cloud, cloud.instance.uuid), MEMORY_MB=1024)
    assert planting.found(cloud) == {'I3'}


def test_i3_instance_holds_flavor_on_other_host(cloud):
    # The guest on host2 is then not covered, which is I5.
    planting.write(cloud, cloud.instance.uuid, 'host3', planting.generation(cloud, cloud.instance.uuid))
    assert planting.found(cloud) == {'I3', 'I5'}


def test_i7_migration_in_progress_and_not_stuck(cloud):
    planting.accept(cloud)
    assert planting.found(cloud) == {'I7'}
    assert planting.found(cloud, quiet=False) == set()


def test_i7_stuck_migration_with_reason_is_allowed(cloud):
    planting.accept(cloud)
    planting.sql(cloud, "UPDATE migrations SET stuck_kind = 'unknown-guest' WHERE uuid = ?", planting.UNKNOWN)
    assert planting.found(cloud) == set()


def test_i18_part_left_at_source(cloud):
    planting.leave(cloud, 'host1', 'directory')
    # No allocation covers it, which is I5. A host that is down is exempt from I5, but not from I18.
    assert planting.found(cloud) == {'I5', 'I18'}
    planting.fence_off(cloud, 'host1')
    assert planting.found(cloud) == {'I18'}
    assert planting.found(cloud, quiet=False) == set()


def test_i18_host_with_deferred_cleanup_is_exempt(cloud):
    planting.leave(cloud, 'host1', 'directory')
    planting.defer(cloud, 'host1')
    planting.fence_off(cloud, 'host1')
    assert planting.found(cloud) == set()


def test_i18_deferred_cleanup_of_host_that_is_up_must_be_blocked(cloud):
    planting.defer(cloud, 'host1')
    assert planting.found(cloud) == {'I18'}
    assert planting.found(cloud, quiet=False) == set()
    planting.sql(cloud, "UPDATE cleanups SET alarm = 'look at host1'")
    assert planting.found(cloud) == set()


def test_i18_part_left_at_destination(cloud):
    planting.leave(cloud, 'host2', 'receiving process')
    assert planting.found(cloud) == {'I18'}


def test_i18_guest_does_not_survive_restart(cloud):
    cloud.world.hypervisors['host2'].guests[cloud.instance.uuid].persistent = False
    assert planting.found(cloud) == {'I18'}
