# SPDX-License-Identifier: Apache-2.0
"""What must be true when all is over: planted, and found."""

import pytest

from migrator.objects import protocol
from tests.unit.simulator import planting


def test_i1_a_guest_in_another_power_state_than_the_row_says(cloud):
    planting.sql(cloud, 'UPDATE instances SET power_state = 3')
    assert planting.found(cloud) == {'I1'}
    assert planting.found(cloud, quiet=False) == set()


def test_i1_a_guest_that_its_user_has_paused_is_to_stay_paused(cloud):
    hypervisor = cloud.world.hypervisors['host2']
    hypervisor.pause(cloud.instance.uuid)
    assert planting.found(cloud) == set()
    hypervisor.guests[cloud.instance.uuid].state = 'running'
    assert planting.found(cloud) == {'I1'}


def test_i1_an_instance_in_error_though_its_migration_is_not(cloud):
    planting.sql(cloud, "UPDATE instances SET vm_state = 'error'")
    assert planting.found(cloud) == {'I1'}
    assert planting.found(cloud, quiet=False) == set()


def test_i2_an_instance_that_is_said_to_be_on_another_hosts_node(cloud):
    planting.sql(cloud, "UPDATE instances SET node = 'host1'")
    assert planting.found(cloud) == {'I2'}


@pytest.mark.parametrize('how', ['gone', 'waiting'])
def test_i2_a_guest_that_is_not_where_the_row_says(cloud, how):
    guests = cloud.world.hypervisors['host2'].guests
    if how == 'gone':
        del guests[cloud.instance.uuid]
    else:
        guests[cloud.instance.uuid].state = protocol.GuestState.WAITING
    assert planting.found(cloud) == {'I2'}


@pytest.mark.parametrize('consumer', ['nobody', 'the ended migration'])
def test_i3_a_consumer_without_a_reason(cloud, consumer):
    planting.write(cloud, planting.UNKNOWN if consumer == 'nobody' else cloud.migration.uuid, 'host1', None)
    assert planting.found(cloud) == {'I3'}
    assert planting.found(cloud, quiet=False) == set()


def test_i3_an_instance_that_holds_more_than_its_flavor(cloud):
    planting.write(cloud, cloud.instance.uuid, 'host2', planting.generation(cloud, cloud.instance.uuid), MEMORY_MB=1024)
    assert planting.found(cloud) == {'I3'}


def test_i3_an_instance_that_holds_its_flavor_elsewhere(cloud):
    # That host2 has it uncovered is I5.
    planting.write(cloud, cloud.instance.uuid, 'host3', planting.generation(cloud, cloud.instance.uuid))
    assert planting.found(cloud) == {'I3', 'I5'}


def test_i7_a_migration_that_has_not_ended_and_does_not_say_why(cloud):
    planting.accept(cloud)
    assert planting.found(cloud) == {'I7'}
    assert planting.found(cloud, quiet=False) == set()


def test_i7_stuck_says_why(cloud):
    planting.accept(cloud)
    planting.sql(cloud, "UPDATE migrations SET stuck_reason = 'look at host2' WHERE uuid = ?", planting.UNKNOWN)
    assert planting.found(cloud) == set()


def test_i18_debris_at_the_source(cloud):
    planting.leave(cloud, 'host1', 'directory')
    # Which nothing covers: I5. A host that is down is excused from that, but not from this.
    assert planting.found(cloud) == {'I5', 'I18'}
    planting.fence_off(cloud, 'host1')
    assert planting.found(cloud) == {'I18'}
    assert planting.found(cloud, quiet=False) == set()


def test_i18_unless_a_debt_says_so(cloud):
    planting.leave(cloud, 'host1', 'directory')
    planting.defer(cloud, 'host1')
    planting.fence_off(cloud, 'host1')
    assert planting.found(cloud) == set()


def test_i18_a_debt_of_a_host_that_is_up_is_paid_or_has_an_alarm(cloud):
    planting.defer(cloud, 'host1')
    assert planting.found(cloud) == {'I18'}
    assert planting.found(cloud, quiet=False) == set()
    planting.sql(cloud, "UPDATE host_debts SET alarm = 'look at host1'")
    assert planting.found(cloud) == set()


def test_i18_what_is_left_of_the_move_where_the_guest_has_gone(cloud):
    planting.leave(cloud, 'host2', 'receiving process')
    assert planting.found(cloud) == {'I18'}


def test_i18_a_guest_that_would_not_survive_a_restart(cloud):
    cloud.world.hypervisors['host2'].guests[cloud.instance.uuid].persistent = False
    assert planting.found(cloud) == {'I18'}
