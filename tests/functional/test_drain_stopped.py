# SPDX-License-Identifier: Apache-2.0

"""Drains that also move the guests that are shut off, through REST."""

import pytest

from migrator.objects import GuestState
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.virt.cold_migration import ColdMigration
from tests.functional import migration_requests, state
from tests.functional.faults import faults
from tests.functional.migration_requests import refused, until
from tests.functional.test_cold_migration import act as act_on
from tests.functional.test_cold_migration import finish
from tests.functional.test_drain import DRAINS, act, drain, ends, host_of, is_disabled, show, statuses

pytestmark = pytest.mark.simulated(reason='it injects faults at one host, and lets single seconds pass')


def boot_stopped(cloud, name, host='host1'):
    instance = cloud.boot(name, host)
    stop(cloud, instance, host)
    return instance


def stop(cloud, instance, host='host1'):
    cloud.world.hypervisors[host].shut_off(instance.uuid)
    cloud.database.instances.update(instance.uuid, vm_state='stopped', power_state=4)


def plan(cloud, **more):
    response = cloud.request('POST', DRAINS, {'host': 'host1', 'dry_run': True, **more})
    assert response.status_int == 200, response.text
    return response.json['plan']


def member(shown, name):
    (found,) = (one for one in shown['members'] if one['name'] == name)
    return found


def test_shut_off_guest_leaves_shut_off_and_comes_back_with_the_restore(cloud):
    off, on = boot_stopped(cloud, 'off'), cloud.boot('on', 'host1')
    planned = {guest['name']: guest for guest in plan(cloud, include_stopped=True)['guests']}
    assert {name: one['migration_type'] for name, one in planned.items()} == {
        'off': 'migration',
        'on': 'live-migration',
    }
    assert all(one['can_move'] and one['destination'] for one in planned.values())
    accepted = drain(cloud, include_stopped=True)
    assert accepted['include_stopped'] is True
    uuid = accepted['uuid']
    ended = ends(cloud, uuid)
    assert (ended['status'], statuses(ended)) == ('completed', {'off': 'moved', 'on': 'moved'}), ended
    moved_to = host_of(cloud, off)
    assert member(ended, 'off')['destination'] == moved_to != 'host1'
    assert cloud.world.hypervisors[moved_to].guests[off.uuid].state == GuestState.SHUTDOWN
    assert cloud.world.active_on(off.uuid) == []
    assert [row.status for row in cloud.migrations(off)] == ['confirmed']
    found = state.server(cloud, off)
    assert (found['status'], found['OS-EXT-STS:task_state']) == ('SHUTOFF', None)
    assert state.allocations(cloud) == {one.uuid: {host_of(cloud, one): state.CLAIM} for one in (off, on)}
    # No user has confirmed it, so there is no action of that.
    assert [one.action for one in cloud.database.actions.list(off.uuid)] == ['migrate']
    assert [one.result for one in cloud.database.actions.list(off.uuid)] == ['Success']
    assert act(cloud, uuid, 'restore').status_int == 202
    restored = ends(cloud, uuid)
    assert restored['status'] == 'restored', restored
    assert {host_of(cloud, one) for one in (off, on)} == {'host1'}
    assert cloud.world.hypervisors['host1'].guests[off.uuid].state == GuestState.SHUTDOWN
    assert [row.status for row in cloud.migrations(off)] == ['confirmed', 'confirmed']


def test_without_the_request_the_remedy_names_it(cloud):
    off = boot_stopped(cloud, 'off')
    (guest,) = plan(cloud)['guests']
    assert not guest['can_move']
    assert '--include-stopped' in guest['obstacle']['remedy']
    ended = ends(cloud, drain(cloud)['uuid'])
    assert (ended['status'], ended['include_stopped'], statuses(ended)) == ('incomplete', False, {'off': 'blocked'})
    assert '--include-stopped' in ended['message']
    assert cloud.migrations(off) == []


def test_plan_names_a_shut_off_guest_that_no_other_host_would_start(cloud):
    off = boot_stopped(cloud, 'off')
    cloud.database.definitions.store('host1', {off.uuid: {'unstartable': 'it has a TPM'}}, 0)
    (planned,) = plan(cloud, include_stopped=True)['guests']
    assert (planned['can_move'], planned['obstacle']['kind']) == (False, 'immovable')
    assert planned['obstacle']['reason'] == 'It cannot be moved cold: it has a TPM.'


def test_shut_off_guest_that_fails_is_tried_elsewhere_a_limited_number_of_times(cloud):
    off = boot_stopped(cloud, 'off')
    for host in ('host2', 'host3'):
        faults(cloud, host).fail('finish_migration', 'planned: no disk', sticky=True)
    ended = ends(cloud, drain(cloud, include_stopped=True, max_attempts=2)['uuid'])
    assert (ended['status'], statuses(ended)) == ('incomplete', {'off': 'failed'})
    failed = member(ended, 'off')
    assert (failed['attempts'], sorted(failed['tried'])) == (2, ['host2', 'host3'])
    assert 'planned: no disk' in failed['reason']
    assert cloud.world.hypervisors['host1'].guests[off.uuid].state == GuestState.SHUTDOWN
    assert state.allocations(cloud) == {off.uuid: {'host1': state.CLAIM}}


def test_cancel_undoes_the_move_of_a_shut_off_guest(cloud):
    off, later = boot_stopped(cloud, 'off'), boot_stopped(cloud, 'later')
    stall = faults(cloud, 'host1').stall('migrate_disk_and_power_off', instance_uuid=off.uuid)
    uuid = drain(cloud, include_stopped=True, parallel=1)['uuid']
    cloud.simulation.run_until(stall.reached.is_set)
    shown = show(cloud, uuid)
    assert statuses(shown) == {'off': 'moving', 'later': 'waiting'}
    # No number where nothing is known: not for those that move, nor for those that wait, nor for the drain.
    assert {str(one['expected']['end']) for one in (shown, *shown['members'])} == {'None'}
    assert all('cold migration' in one['expected']['reason'] for one in (shown, *shown['members']))
    assert act(cloud, uuid, 'cancel', {'abort_running': True}).status_int == 202
    cloud.simulation.advance(5)
    stall.release()
    ended = ends(cloud, uuid)
    assert (ended['status'], statuses(ended)) == ('cancelled', {'off': 'cancelled', 'later': 'cancelled'})
    assert [row.status for row in cloud.migrations(off)] == ['cancelled']
    assert host_of(cloud, off) == host_of(cloud, later) == 'host1'
    assert state.server(cloud, off)['status'] == 'SHUTOFF'
    assert state.allocations(cloud) == {one.uuid: {'host1': state.CLAIM} for one in (off, later)}
    assert not is_disabled(cloud, 'host1')


def test_cancel_lets_the_move_of_a_shut_off_guest_end_without_a_further_request(cloud):
    off = boot_stopped(cloud, 'off')
    stall = faults(cloud, 'host1').stall('migrate_disk_and_power_off', instance_uuid=off.uuid)
    uuid = drain(cloud, include_stopped=True)['uuid']
    cloud.simulation.run_until(stall.reached.is_set)
    assert act(cloud, uuid, 'cancel').status_int == 202
    stall.release()
    ended = ends(cloud, uuid)
    assert (ended['status'], statuses(ended)) == ('cancelled', {'off': 'moved'})
    assert state.server(cloud, off)['status'] == 'SHUTOFF'


def test_guest_is_moved_by_its_state_when_its_turn_comes(cloud):
    first, starts, stops = (cloud.boot(name, 'host1') for name in ('first', 'starts', 'stops'))
    stop(cloud, starts)
    faults(cloud, 'host1').stall('copying', instance_uuid=first.uuid, sticky=True)
    uuid = drain(cloud, include_stopped=True, parallel=1)['uuid']
    until(cloud, lambda: statuses(show(cloud, uuid)).get('first') == 'moving')
    cloud.database.instances.update(starts.uuid, vm_state='active', power_state=1)
    hypervisor = cloud.world.hypervisors['host1']
    with cloud.world.lock:
        hypervisor.set_state(hypervisor.guests[starts.uuid], GuestState.RUNNING, 'user')
    stop(cloud, stops)
    assert act(cloud, uuid, 'pause').status_int == 202
    migration_requests.go_on(cloud)
    until(cloud, lambda: statuses(show(cloud, uuid))['first'] == 'moved')
    assert cloud.migrations(starts) == cloud.migrations(stops) == []
    assert act(cloud, uuid, 'resume').status_int == 202
    assert ends(cloud, uuid)['status'] == 'completed'
    assert [row.status for row in cloud.migrations(starts)] == ['completed']
    assert [row.status for row in cloud.migrations(stops)] == ['confirmed']


def test_guest_that_runs_although_it_is_stopped_in_the_database_is_not_powered_off(cloud):
    instance = cloud.boot('one', 'host1')
    cloud.database.instances.update(instance.uuid, vm_state='stopped', power_state=4)
    ended = ends(cloud, drain(cloud, include_stopped=True, max_attempts=1)['uuid'])
    assert statuses(ended) == {'one': 'failed'}
    assert f'guest {instance.uuid} runs at host1, and is stopped in the database' in ended['message']
    assert cloud.world.active_on(instance.uuid) == ['host1']
    cloud.database.instances.update(instance.uuid, vm_state='active', power_state=1)


def test_guest_that_waits_for_its_user_is_reported_with_the_commands(cloud):
    there, left = cloud.boot('there', 'host2'), cloud.boot('left', 'host1')
    finish(cloud, there, 'host1')
    finish(cloud, left, 'host2')
    (guest,) = plan(cloud, include_stopped=True)['guests']
    assert guest['obstacle']['reason'] == 'It is in VERIFY_RESIZE.'
    assert f'or resize: openstack server migration confirm {there.uuid}' in guest['obstacle']['remedy']
    (copy,) = plan(cloud)['copies']
    assert (copy['name'], copy['instance_uuid'], copy['guest_on']) == ('left', left.uuid, 'host2')
    assert copy['reason'] == 'It is in VERIFY_RESIZE at host2, and host1 keeps its old copy.'
    assert f'openstack server migration confirm {left.uuid}' in copy['remedy']
    ended = ends(cloud, drain(cloud, include_stopped=True)['uuid'])
    assert (ended['status'], statuses(ended)) == ('incomplete', {'there': 'blocked'})
    for one in (there, left):
        assert f'openstack server migration revert {one.uuid}' in ended['message']
        assert act_on(cloud, one, 'confirmResize') == 204
    cloud.wait()
    assert ends(cloud, drain(cloud, include_stopped=True)['uuid'])['status'] == 'completed'


def test_conductor_that_takes_over_ends_the_move(cloud):
    off = boot_stopped(cloud, 'off')
    stall = faults(cloud, 'host1').stall('migrate_disk_and_power_off', instance_uuid=off.uuid)
    uuid = drain(cloud, include_stopped=True)['uuid']
    cloud.simulation.run_until(stall.reached.is_set)
    state.kill(cloud, 'conductor1')
    stall.release()
    cloud.start_conductor('conductor2')
    ended = ends(cloud, uuid)
    assert (ended['status'], statuses(ended)) == ('completed', {'off': 'moved'})
    assert len(cloud.migrations(off)) == 1


class WarmDriver(FakeDriver):
    """The driver of a hypervisor that cannot move guests that are powered off."""

    check_can_migrate_source = ColdMigration.check_can_migrate_source
    check_can_migrate_destination = ColdMigration.check_can_migrate_destination
    migrate_disk_and_power_off = ColdMigration.migrate_disk_and_power_off


@pytest.fixture
def without_cold_migrations(cloud, monkeypatch):
    """Return a function that starts a compute service again, with a driver without cold migrations."""

    def restart(host):
        with monkeypatch.context() as patched:
            patched.setattr(
                cloud, 'driver_for', lambda host, _, threads: WarmDriver(cloud.world.hypervisors[host], threads)
            )
            state.kill(cloud, host)
            cloud.start_compute(host)
        cloud.simulation.run_until(cloud.up)

    return restart


def test_host_whose_driver_has_no_cold_migrations_is_named_in_the_plan_and_by_the_drain(cloud, without_cold_migrations):
    off = boot_stopped(cloud, 'off')
    cloud.boot('on', 'host1')
    without_cold_migrations('host1')
    planned = {guest['name']: guest for guest in plan(cloud, include_stopped=True)['guests']}
    why = 'host1 takes no part in cold migrations: the driver of its hypervisor supports no cold migrations.'
    assert planned['off']['obstacle'] == {
        'kind': 'state',
        'reason': f'It is shut off, and {why}',
        'remedy': 'Start the guest, so that it moves live.',
    }
    assert planned['on']['can_move']
    ended = ends(cloud, drain(cloud, include_stopped=True)['uuid'])
    assert statuses(ended) == {'off': 'blocked', 'on': 'moved'}
    assert why in ended['message']
    assert cloud.migrations(off) == []
    assert act_on(cloud, off, 'migrate') == 202
    cloud.wait()
    assert 'Source host1 cannot take part: the driver of its' in (cloud.migrations(off)[0].failure or '')


def test_destination_whose_driver_has_no_cold_migrations_is_left_out(cloud, without_cold_migrations):
    off = boot_stopped(cloud, 'off')
    cloud.boot('on', 'host1')
    without_cold_migrations('host2')
    planned = {guest['name']: guest['destination'] for guest in plan(cloud, include_stopped=True)['guests']}
    assert planned == {'off': 'host3', 'on': 'host2'}
    assert statuses(ends(cloud, drain(cloud, include_stopped=True)['uuid'])) == {'off': 'moved', 'on': 'moved'}
    assert host_of(cloud, off) == 'host3'
    (row,) = cloud.migrations(off)
    assert (row.status, row.attempt) == ('confirmed', 1)


def test_only_hosts_whose_drivers_have_no_cold_migrations_are_named_with_the_reason(cloud, without_cold_migrations):
    boot_stopped(cloud, 'off')
    for host in ('host2', 'host3'):
        without_cold_migrations(host)
    (guest,) = plan(cloud, include_stopped=True)['guests']
    assert (guest['can_move'], guest['obstacle']['kind']) == (False, 'no_destination')
    for host in ('host2', 'host3'):
        assert f'{host}: the driver of its hypervisor supports no cold migrations' in guest['obstacle']['reason']


def test_only_a_flag_is_accepted(cloud):
    refused(cloud.request('POST', DRAINS, {'host': 'host1', 'include_stopped': 'yes'}), 400, 'include_stopped')
