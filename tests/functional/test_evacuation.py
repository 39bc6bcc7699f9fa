# SPDX-License-Identifier: Apache-2.0

"""Guests of a dead host are brought back once each, and their source cleans up when it returns."""

import pytest

from migrator.conductor import registry
from migrator.objects import GuestState
from migrator.placement_client import providers
from tests.functional import state, test_drain
from tests.functional.faults import LONG, faults

pytestmark = pytest.mark.simulated(reason='it kills hosts with their guests')


def lose(cloud, host):
    """Cut the power of a host, and declare it forced down."""
    state.kill(cloud, host)
    cloud.world.hypervisors[host].power_off()
    state.force_down(cloud, host)


def come_back(cloud, host):
    """Switch a host on, and start its service, while it is still forced down."""
    cloud.world.hypervisors[host].power_on()
    cloud.start_compute(host)


def evacuate(cloud, instance, to=None, version='2.80'):
    """Request an evacuation, and return it."""
    body = {'evacuate': {'host': to} if to is not None else {}}
    response = cloud.request('POST', f'/servers/{instance.uuid}/action', body, version=version)
    assert response.status_int == 200, response.text
    return cloud.migrations(cloud.database.instances.get(instance.uuid))[-1]


def status(cloud, evacuation):
    """Return the status of an evacuation."""
    return cloud.database.migrations.get(evacuation.uuid).status


def boot(cloud, *args, **kwargs):
    """Boot a guest, and let a conductor fetch its definition."""
    instance = cloud.boot(*args, **kwargs)
    cloud.simulation.advance(20)
    assert cloud.database.definitions.get(instance.uuid, instance.host)
    return instance


def test_a_guest_of_a_dead_host_is_brought_back_and_its_source_cleans_up(cloud):
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    evacuation = evacuate(cloud, instance, 'host2')
    cloud.wait()
    assert status(cloud, evacuation) == 'done'
    assert cloud.world.active_on(instance.uuid) == ['host2']
    assert state.host_of(cloud, instance) == 'host2'
    come_back(cloud, 'host1')
    cloud.simulation.advance(60)
    assert status(cloud, evacuation) == 'completed'
    assert cloud.world.active_on(instance.uuid) == ['host2']
    assert cloud.world.hypervisors['host1'].guests.get(instance.uuid) is None


@pytest.mark.parametrize('vm_state', ['active', 'error'])
def test_from_2_95_on_the_guest_is_shut_off_at_its_destination(cloud, vm_state):
    instance = boot(cloud, 'one', 'host1')
    cloud.database.instances.update(instance.uuid, vm_state=vm_state)
    lose(cloud, 'host1')
    evacuation = evacuate(cloud, instance, 'host2', version='2.95')
    assert cloud.database.instances.get(instance.uuid).vm_state == vm_state
    cloud.wait()
    assert status(cloud, evacuation) == 'done'
    assert cloud.world.hypervisors['host2'].guests[instance.uuid].state == GuestState.SHUTDOWN
    found = cloud.database.instances.get(instance.uuid)
    assert (found.host, found.vm_state, found.power_state, found.task_state) == ('host2', 'stopped', 4, None)


def test_a_running_copy_of_a_source_that_was_never_dead_is_ended(cloud):
    instance = boot(cloud, 'one', 'host1')
    state.kill(cloud, 'host1')
    state.force_down(cloud, 'host1')
    evacuation = evacuate(cloud, instance)
    cloud.wait()
    assert status(cloud, evacuation) == 'done'
    cloud.start_compute('host1')
    cloud.simulation.advance(60)
    assert status(cloud, evacuation) == 'completed'
    assert cloud.world.active_on(instance.uuid) == [state.host_of(cloud, instance)]


def test_a_source_that_returns_before_the_start_keeps_its_guest(cloud):
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    for host in ('host2', 'host3'):
        faults(cloud, host).stall('check_can_evacuate', sticky=True)
    evacuation = evacuate(cloud, instance)
    cloud.simulation.advance(5)
    assert status(cloud, evacuation) == 'preparing'
    come_back(cloud, 'host1')
    cloud.wait(LONG)
    found = cloud.database.migrations.get(evacuation.uuid)
    assert (found.status, found.failure) == ('failed', 'host1 was started, so it is not dead.')
    assert state.host_of(cloud, instance) == 'host1'


def test_a_guest_stays_if_its_host_has_reported_since_it_was_forced_down(cloud):
    """The host was forced down by mistake, and runs its guests."""
    instance = boot(cloud, 'one', 'host1')
    state.force_down(cloud, 'host1')
    cloud.simulation.advance(20)
    evacuation = evacuate(cloud, instance, 'host2')
    cloud.wait()
    assert status(cloud, evacuation) == 'failed'
    failure = cloud.database.migrations.get(evacuation.uuid).failure
    assert 'after it was forced down' in failure
    assert 'force it down again' in failure
    assert cloud.world.active_on(instance.uuid) == ['host1']


def test_a_guest_stays_if_its_host_came_back_and_is_forced_down_until_others_are_removed(cloud):
    first, second = boot(cloud, 'one', 'host1'), boot(cloud, 'two', 'host1')
    state.kill(cloud, 'host1')
    state.force_down(cloud, 'host1')
    evacuated = evacuate(cloud, first, 'host2')
    cloud.wait()
    cloud.start_compute('host1')
    cloud.simulation.advance(60)
    assert status(cloud, evacuated) == 'completed'
    evacuation = evacuate(cloud, second, 'host2')
    cloud.wait()
    assert status(cloud, evacuation) == 'failed'
    assert cloud.world.active_on(second.uuid) == ['host1']


def test_a_host_that_is_killed_after_all_and_forced_down_again_is_dead(cloud):
    instance = boot(cloud, 'one', 'host1')
    state.force_down(cloud, 'host1')
    cloud.simulation.advance(20)
    lose(cloud, 'host1')
    evacuation = evacuate(cloud, instance, 'host2')
    cloud.wait()
    assert status(cloud, evacuation) == 'done'


def test_a_guest_whose_next_host_dies_too_is_evacuated_again(cloud):
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    first = evacuate(cloud, instance, 'host2')
    cloud.simulation.run_until(lambda: status(cloud, first) == 'done')
    lose(cloud, 'host2')
    second = evacuate(cloud, instance, 'host3')
    cloud.wait()
    assert status(cloud, second) == 'done'
    for host in ('host1', 'host2'):
        come_back(cloud, host)
    cloud.simulation.advance(60)
    assert (status(cloud, first), status(cloud, second)) == ('completed', 'completed')
    assert cloud.world.active_on(instance.uuid) == ['host3']


def test_a_guest_is_evacuated_from_a_destination_that_died_while_it_started_the_guest(cloud, operator):
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    faults(cloud, 'host2').stall('evacuate')
    evacuation = evacuate(cloud, instance, 'host2')
    cloud.simulation.run_until(lambda: cloud.database.migrations.get(evacuation.uuid).queued_at is not None)
    lose(cloud, 'host2')
    cloud.simulation.advance(200)
    code, said = operator('migration', 'show', evacuation.uuid)
    assert code == 0
    assert 'abandon the migration with the guest on host2' in said
    assert operator('migration', 'abandon', evacuation.uuid, '--guest-on', 'host2', '--yes', '--wait', '60')[0] == 0
    again = evacuate(cloud, instance, 'host3')
    cloud.wait()
    assert status(cloud, again) == 'done'
    assert cloud.world.active_on(instance.uuid) == ['host3']


def test_each_destination_that_fails_is_followed_by_the_next(cloud):
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    faults(cloud, 'host2').fail('evacuate', 'no memory')
    evacuation = evacuate(cloud, instance)
    cloud.wait()
    assert status(cloud, evacuation) == 'done'
    assert cloud.world.active_on(instance.uuid) == ['host3']


def test_an_evacuation_without_a_destination_fails_with_the_reason_of_each_host(cloud):
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    for host in ('host2', 'host3'):
        faults(cloud, host).fail('evacuate', f'no memory at {host}', sticky=True)
    evacuation = evacuate(cloud, instance)
    cloud.wait()
    found = cloud.database.migrations.get(evacuation.uuid)
    assert found.status == 'failed'
    for host in ('host2', 'host3'):
        assert f'no memory at {host}' in found.failure
    assert state.host_of(cloud, instance) == 'host1'
    assert cloud.database.instances.get(instance.uuid).task_state is None


@pytest.mark.parametrize('victim', ['conductor1', 'host2'])
def test_a_kill_in_the_middle_of_the_start_starts_the_guest_once(cloud, victim):
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    stalled = faults(cloud, 'host2').stall('evacuate')
    evacuation = evacuate(cloud, instance, 'host2')
    cloud.simulation.advance(5)
    assert cloud.database.migrations.get(evacuation.uuid).queued_at is not None
    state.kill(cloud, victim)
    stalled.release()
    cloud.simulation.advance(5)
    (cloud.start_conductor if victim == 'conductor1' else cloud.start_compute)(victim)
    cloud.wait(LONG)
    assert status(cloud, evacuation) == 'done'
    assert cloud.world.active_on(instance.uuid) == ['host2']


def test_a_guest_that_was_shut_off_comes_back_shut_off(cloud):
    instance = boot(cloud, 'one', 'host1')
    cloud.world.hypervisors['host1'].shut_off(instance.uuid)
    cloud.database.instances.update(instance.uuid, vm_state='stopped', power_state=4)
    lose(cloud, 'host1')
    evacuation = evacuate(cloud, instance, 'host2')
    cloud.wait()
    assert status(cloud, evacuation) == 'done'
    assert cloud.world.hypervisors['host2'].guests[instance.uuid].state == GuestState.SHUTDOWN


def test_a_guest_in_error_comes_back_active(cloud):
    instance = boot(cloud, 'one', 'host1')
    cloud.database.instances.update(instance.uuid, vm_state='error')
    lose(cloud, 'host1')
    evacuate(cloud, instance, 'host2')
    cloud.wait()
    assert cloud.database.instances.get(instance.uuid).vm_state == 'active'


def test_an_evacuated_guest_migrates_again_before_its_source_returns(cloud):
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    evacuation = evacuate(cloud, instance, 'host2')
    cloud.wait()
    assert cloud.live_migrate(instance, 'host3').status_int == 202
    cloud.wait()
    assert state.host_of(cloud, instance) == 'host3'
    come_back(cloud, 'host1')
    cloud.simulation.advance(60)
    assert status(cloud, evacuation) == 'completed'
    assert cloud.world.active_on(instance.uuid) == ['host3']


def test_a_copy_is_kept_until_the_guests_host_reports_it(cloud):
    instance = boot(cloud, 'one', 'host1')
    state.kill(cloud, 'host1')
    state.force_down(cloud, 'host1')
    evacuation = evacuate(cloud, instance, 'host2')
    cloud.wait()
    state.kill(cloud, 'host2')
    cloud.start_compute('host1')
    cloud.simulation.advance(120)
    assert status(cloud, evacuation) == 'done'
    assert instance.uuid in cloud.world.hypervisors['host1'].guests
    (cleanup,) = cloud.database.cleanups.list(host='host1')
    assert cleanup.blocked_because is None
    assert 'host2' in cleanup.reason
    cloud.start_compute('host2')
    cloud.simulation.advance(120)
    assert status(cloud, evacuation) == 'completed'


def test_a_doubled_allocation_becomes_the_migrations(cloud):
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    cloud.database.services.report('host3', 'nova-compute', 1)
    evacuation = evacuate(cloud, instance, 'host2')
    assert evacuation.strategy == 'doubled'
    cloud.wait()
    assert status(cloud, evacuation) == 'done'
    assert cloud.database.migrations.get(evacuation.uuid).strategy == 'migration-owned'
    come_back(cloud, 'host1')
    cloud.simulation.advance(60)
    assert status(cloud, evacuation) == 'completed'


def test_a_drain_that_was_left_on_waits_while_its_host_is_forced_down(cloud):
    guests = [boot(cloud, name, 'host1') for name in ('one', 'two')]
    uuid = test_drain.drain(cloud)['uuid']
    test_drain.act(cloud, uuid, 'pause')
    lose(cloud, 'host1')
    test_drain.act(cloud, uuid, 'resume')
    cloud.simulation.advance(60)
    shown = test_drain.show(cloud, uuid)
    assert 'Its host host1 is forced down.' in shown['waits_for']
    assert {(one['status'], one['attempts']) for one in shown['members']} == {('waiting', 0)}
    assert cloud.migrations() == []
    evacuations = [evacuate(cloud, guest) for guest in guests]
    cloud.wait()
    assert {status(cloud, one) for one in evacuations} == {'done'}
    cloud.simulation.advance(20)
    assert {one['status'] for one in test_drain.show(cloud, uuid)['members']} == {'gone'}


# --- what nova has had -----------------------------------------------------------------------------------------------


@pytest.mark.nova_bug(1713786)
@pytest.mark.parametrize('phase', ['check_can_evacuate', 'evacuate'])
def test_an_evacuation_that_fails_leaves_the_allocations_and_the_instance_as_they_were(cloud, phase):
    """Placement had accepted the claim, and it was never given back."""
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    before = state.everything(cloud)
    faults(cloud, 'host2').fail(phase, 'planned', sticky=True)
    evacuation = evacuate(cloud, instance, 'host2')
    cloud.wait()
    assert status(cloud, evacuation) == 'failed'
    after = state.everything(cloud)
    for found in (before, after):
        del found['waiting']
    assert after == before


@pytest.mark.nova_bug(1713783)
def test_a_returning_source_keeps_every_guest_whose_evacuation_failed(cloud):
    """A row that was left `accepted` looked like an evacuation that had been done."""
    instance, stays = boot(cloud, 'one', 'host1'), boot(cloud, 'two', 'host1')
    lose(cloud, 'host1')
    for host in ('host2', 'host3'):
        faults(cloud, host).fail('check_can_evacuate', 'planned', sticky=True)
    evacuation = evacuate(cloud, instance)
    cloud.wait()
    assert status(cloud, evacuation) == 'failed'
    come_back(cloud, 'host1')
    cloud.simulation.advance(60)
    assert set(cloud.world.hypervisors['host1'].guests) == {instance.uuid, stays.uuid}


@pytest.mark.nova_bug(1721652)
def test_a_source_cleans_up_before_any_conductor_knows_it(cloud):
    """The cleanup at start read a cache that was still empty."""
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    evacuation = evacuate(cloud, instance, 'host2')
    cloud.wait()
    state.kill(cloud, 'conductor1')
    cloud.world.hypervisors['host1'].power_on()
    cloud.start_conductor('conductor1')
    cloud.start_compute('host1')
    cloud.simulation.advance(60)
    assert status(cloud, evacuation) == 'completed'
    state.force_down(cloud, 'host1', False)
    state.moved(cloud, instance, 'host2')


@pytest.mark.nova_bug(1794996)
def test_a_source_starts_although_its_evacuated_guest_was_deleted(cloud):
    """The service did not start, because it looked up a server that was gone."""
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    evacuation = evacuate(cloud, instance, 'host2')
    cloud.wait()
    registry.delete_instance(cloud.database, cloud.placement_client, instance.uuid)
    cloud.world.hypervisors['host2'].delete(instance.uuid)
    come_back(cloud, 'host1')
    cloud.simulation.advance(60)
    assert status(cloud, evacuation) == 'completed'
    assert cloud.world.hypervisors['host1'].guests == {}
    assert state.allocations(cloud) == {}


@pytest.mark.nova_bug(1829479)
@pytest.mark.breaks('I4', 'I18', reason='the dead host is deleted with its cleanups, in several writes')
def test_a_dead_host_is_deleted_with_its_provider_after_its_guests_were_evacuated(cloud):
    """What was left of the evacuated guests in Placement kept the provider."""
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    evacuation = evacuate(cloud, instance, 'host2')
    cloud.wait()
    service = cloud.database.services.get_compute('host1')
    registry.delete_service(cloud.database, cloud.placement_client, service, 60.0)
    cloud.simulation.advance(30)
    assert status(cloud, evacuation) == 'completed'
    assert cloud.world.active_on(instance.uuid) == ['host2']
    assert 'host1' not in {one.name for one in providers.list_providers(cloud.placement_client)}


@pytest.mark.parametrize(
    ('version', 'arguments', 'ends'),
    [('2.28', {}, 'done'), ('2.29', {}, 'failed'), ('2.67', {'force': True}, 'done'), ('2.68', {}, 'failed')],
)
def test_a_disabled_host_that_is_named_is_taken_where_nova_forces_it(cloud, version, arguments, ends):
    instance = boot(cloud, 'one', 'host1')
    cloud.database.services.update(cloud.database.services.get_compute('host2').id, disabled=True)
    lose(cloud, 'host1')
    body = {'evacuate': {'host': 'host2', **arguments}}
    assert cloud.request('POST', f'/servers/{instance.uuid}/action', body, version=version).status_int == 200
    cloud.wait()
    found = cloud.migrations(instance)[-1]
    assert found.status == ends
    assert ('it is disabled' in str(found.failure)) == (ends == 'failed')


# --- force -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('version', ['2.29', '2.67'])
def test_a_forced_evacuation_copies_the_allocation(cloud, version):
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    body = {'evacuate': {'host': 'host2', 'force': True}}
    response = cloud.request('POST', f'/servers/{instance.uuid}/action', body, version=version)
    assert response.status_int == 200, response.text
    cloud.wait()
    assert status(cloud, cloud.migrations(instance)[-1]) == 'done'
    assert state.allocations(cloud)[instance.uuid] == {'host2': instance.flavor.resources()}


def test_a_start_that_fails_after_the_guest_runs_is_finished(cloud):
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    fault = faults(cloud, 'host2').fail('evacuate', 'planned: not persisted', after=True)
    evacuation = evacuate(cloud, instance, 'host2')
    cloud.wait()
    assert status(cloud, evacuation) == 'done'
    sent = [one for one in cloud.recorder.messages if (one.method, one.kind) == ('evacuate', 'call')]
    assert (fault.count, len(sent)) == (1, 2)
    assert cloud.world.active_on(instance.uuid) == ['host2']


def test_destination_where_the_start_fails_and_leaves_the_guest_shut_off_is_cleaned_and_the_next_one_tried(cloud):
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    cloud.world.hypervisors['host2'].faults.leave_shut_off = True
    faults(cloud, 'host2').fail('booting', 'planned: no such device', sticky=True)
    evacuation = evacuate(cloud, instance, None)
    cloud.wait()
    assert status(cloud, evacuation) == 'done'
    assert cloud.world.active_on(instance.uuid) == ['host3']
    assert instance.uuid not in cloud.world.hypervisors['host2'].guests
