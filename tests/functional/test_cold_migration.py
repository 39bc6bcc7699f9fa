# SPDX-License-Identifier: Apache-2.0

"""A guest is powered off, started elsewhere, and stays there or goes back as its user decides."""

import pytest

from migrator.conductor import audit, registry
from migrator.objects import GuestState
from tests.functional import state
from tests.functional.faults import LONG, faults

pytestmark = pytest.mark.simulated(reason='it kills hosts, and looks at the fake hypervisors')

CONFIRM, REVERT = 'confirmResize', 'revertResize'


def act(cloud, instance, action, arguments=None):
    """Request an action of a server, and return the status of the answer."""
    body = {action: arguments}
    return cloud.request('POST', f'/servers/{instance.uuid}/action', body, version='2.80').status_int


def newest(cloud, instance):
    """Return a server's newest migration as the database has it."""
    return cloud.migrations(cloud.database.instances.get(instance.uuid))[-1]


def finish(cloud, instance, host=None):
    """Cold-migrate a server, and return its migration once it waits for its user."""
    assert act(cloud, instance, 'migrate', None if host is None else {'host': host}) == 202
    cloud.simulation.run_until(lambda: newest(cloud, instance).status == 'finished')
    return newest(cloud, instance)


def is_clean(cloud):
    """Return whether neither the audit nor the comparison of guests finds anything, a minute later."""
    cloud.simulation.advance(61)
    return not audit.audit(cloud.database, cloud.placement_client) and not cloud.database.differences.list()


def shown(cloud, instance):
    """Return the status, the vm_state and the task_state of a server."""
    found = state.server(cloud, instance)
    return found['status'], found['OS-EXT-STS:vm_state'], found['OS-EXT-STS:task_state']


def test_a_disabled_host_that_is_named_is_refused(cloud):
    instance = cloud.boot('one', 'host1')
    cloud.database.services.update(cloud.database.services.get_compute('host2').id, disabled=True)
    assert act(cloud, instance, 'migrate', {'host': 'host2'}) == 202
    cloud.wait()
    assert (newest(cloud, instance).status, state.host_of(cloud, instance)) == ('failed', 'host1')
    assert newest(cloud, instance).failure == 'Compute service of host2 is unavailable at this time: it is disabled'


@pytest.mark.breaks('I22', reason='a user shuts the guest off, which the database learns with the move')
@pytest.mark.parametrize(('decision', 'host'), [(CONFIRM, 'host2'), (REVERT, 'host1')])
def test_a_guest_that_its_host_has_shut_off_stays_so_and_the_database_follows(cloud, decision, host):
    instance = cloud.boot('one', 'host1')
    cloud.world.hypervisors['host1'].shut_off(instance.uuid)
    assert act(cloud, instance, 'migrate', {'host': 'host2'}) == 202
    cloud.simulation.run_until(lambda: newest(cloud, instance).status == 'finished')
    assert cloud.world.active_on(instance.uuid) == []
    assert act(cloud, instance, decision) in (202, 204)
    cloud.wait()
    assert (shown(cloud, instance), state.host_of(cloud, instance)) == (('SHUTOFF', 'stopped', None), host)
    assert cloud.world.active_on(instance.uuid) == []
    assert is_clean(cloud)


def test_a_guest_moves_and_the_migration_holds_the_source_until_it_is_confirmed(cloud):
    instance = cloud.boot('one', 'host1')
    migration = finish(cloud, instance, 'host2')
    assert shown(cloud, instance) == ('VERIFY_RESIZE', 'resized', None)
    assert state.host_of(cloud, instance) == 'host2'
    assert cloud.world.active_on(instance.uuid) == ['host2']
    assert cloud.world.hypervisors['host1'].guests[instance.uuid].state == GuestState.SHUTDOWN
    held = {instance.uuid: {'host2': state.CLAIM}, migration.uuid: {'host1': state.CLAIM}}
    assert state.allocations(cloud) == held
    # A user may take longer than any other wait may last, and nothing is stuck.
    cloud.simulation.advance(600)
    assert newest(cloud, instance) == migration
    assert state.allocations(cloud) == held
    assert is_clean(cloud)
    assert act(cloud, instance, CONFIRM) == 204
    cloud.wait()
    assert newest(cloud, instance).status == 'confirmed'
    assert shown(cloud, instance) == ('ACTIVE', 'active', None)
    assert instance.uuid not in cloud.world.hypervisors['host1'].guests
    assert state.allocations(cloud) == {instance.uuid: {'host2': state.CLAIM}}
    names = ['confirmResize', 'migrate']
    found = state.get(cloud, f'/servers/{instance.uuid}/os-instance-actions')['instanceActions']
    assert [one['action'] for one in found] == names
    assert [one.result for one in cloud.database.actions.list(instance.uuid)] == ['Success', 'Success']


def test_a_reverted_guest_runs_at_its_source_again_with_its_allocation(cloud):
    instance = cloud.boot('one', 'host1')
    finish(cloud, instance)
    assert act(cloud, instance, REVERT) == 202
    assert shown(cloud, instance) == ('REVERT_RESIZE', 'resized', 'resize_reverting')
    cloud.wait()
    assert newest(cloud, instance).status == 'reverted'
    assert shown(cloud, instance) == ('ACTIVE', 'active', None)
    assert cloud.world.active_on(instance.uuid) == ['host1'] == [state.host_of(cloud, instance)]
    assert state.allocations(cloud) == {instance.uuid: {'host1': state.CLAIM}}
    # It can move again.
    finish(cloud, instance)
    assert act(cloud, instance, CONFIRM) == 204
    cloud.wait()


@pytest.mark.parametrize(('decision', 'home'), [(CONFIRM, 'host2'), (REVERT, 'host1')])
def test_a_guest_that_is_shut_off_stays_so(cloud, decision, home):
    instance = cloud.boot('one', 'host1')
    cloud.world.hypervisors['host1'].shut_off(instance.uuid)
    cloud.database.instances.update(instance.uuid, vm_state='stopped', power_state=4)
    finish(cloud, instance, 'host2')
    assert cloud.world.active_on(instance.uuid) == []
    assert act(cloud, instance, decision) in (202, 204)
    cloud.wait()
    assert shown(cloud, instance) == ('SHUTOFF', 'stopped', None)
    assert cloud.world.hypervisors[home].guests[instance.uuid].state == GuestState.SHUTDOWN
    assert cloud.world.active_on(instance.uuid) == []


def test_a_guest_that_no_host_can_start_is_restored_and_its_source_keeps_its_allocation(cloud):
    instance = cloud.boot('one', 'host1')
    for host in ('host2', 'host3'):
        faults(cloud, host).fail('finish_migration', 'planned: no disk', sticky=True)
    assert act(cloud, instance, 'migrate') == 202
    cloud.wait()
    found = newest(cloud, instance)
    # The third attempt has found no candidate.
    assert (found.status, found.attempt) == ('failed', 3)
    assert 'planned: no disk' in found.failure
    assert cloud.world.active_on(instance.uuid) == ['host1']
    assert shown(cloud, instance) == ('ACTIVE', 'active', None)
    assert state.allocations(cloud) == {instance.uuid: {'host1': state.CLAIM}}


def test_a_guest_that_runs_again_at_its_source_is_not_started_elsewhere(cloud):
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, 'host1').stall('migrate_disk_and_power_off', after=True)
    assert act(cloud, instance, 'migrate', {'host': 'host2'}) == 202
    cloud.simulation.run_until(stall.reached.is_set)
    guest = cloud.world.hypervisors['host1'].guests[instance.uuid]
    with cloud.world.lock:
        cloud.world.hypervisors['host1'].set_state(guest, GuestState.RUNNING, 'user')
    stall.release()
    cloud.wait()
    found = newest(cloud, instance)
    assert found.status == 'failed'
    assert 'although it had powered the guest off' in found.failure
    assert cloud.world.active_on(instance.uuid) == ['host1']


def test_a_source_that_dies_after_the_confirmation_removes_its_copy_when_it_is_back(cloud):
    instance = cloud.boot('one', 'host1')
    finish(cloud, instance, 'host2')
    stall = faults(cloud, 'host1').stall('confirm_migration_at_source')
    assert act(cloud, instance, CONFIRM) == 204
    cloud.simulation.run_until(stall.reached.is_set)
    state.kill(cloud, 'host1')
    state.force_down(cloud, 'host1')
    cloud.wait(LONG)
    assert newest(cloud, instance).status == 'confirmed'
    assert [one.step for one in cloud.database.cleanups.list()] == ['confirm_migration_at_source']
    state.force_down(cloud, 'host1', False)
    faults(cloud, 'host1').clear()
    cloud.start_compute('host1')
    cloud.simulation.advance(60)
    assert not cloud.database.cleanups.list()
    assert instance.uuid not in cloud.world.hypervisors['host1'].guests


def test_a_copy_is_not_removed_before_the_destination_reports_the_guest(cloud):
    instance = cloud.boot('one', 'host1')
    finish(cloud, instance, 'host2')
    with cloud.world.lock:
        cloud.world.hypervisors['host2'].guests.pop(instance.uuid)
    assert act(cloud, instance, CONFIRM) == 204
    cloud.simulation.run_until(lambda: newest(cloud, instance).stuck_reason)
    why = newest(cloud, instance).stuck_reason
    assert 'Destination host2 does not have the guest, so the copy at source host1 is kept' in why
    assert 'compute service' not in why
    assert f'migrator-manage migration abandon {newest(cloud, instance).uuid} --guest-on' in why
    assert instance.uuid in cloud.world.hypervisors['host1'].guests
    # The operator ends it where the guest is.
    cloud.database.requests.request_abandon(newest(cloud, instance), 'host1', 'ada')
    cloud.wait(LONG)
    assert newest(cloud, instance).status == 'error'
    assert cloud.database.instances.get(instance.uuid).host == 'host1'
    assert state.allocations(cloud) == {instance.uuid: {'host1': state.CLAIM}}


def test_a_revert_waits_while_the_destination_may_run_the_guest(cloud):
    instance = cloud.boot('one', 'host1')
    finish(cloud, instance, 'host2')
    state.kill(cloud, 'host2')
    assert act(cloud, instance, REVERT) == 202
    cloud.simulation.run_until(lambda: newest(cloud, instance).stuck_reason, timeout=LONG)
    assert 'may run the guest' in newest(cloud, instance).stuck_reason
    assert newest(cloud, instance).status == 'finished'
    assert cloud.world.active_on(instance.uuid) == ['host2']
    # The fenced host ends its copy when it is back.
    cloud.world.hypervisors['host2'].power_off()
    state.force_down(cloud, 'host2')
    cloud.wait(LONG)
    assert newest(cloud, instance).status == 'reverted'
    assert cloud.world.active_on(instance.uuid) == ['host1']
    cloud.world.hypervisors['host2'].power_on()
    cloud.start_compute('host2')
    cloud.simulation.advance(60)
    assert not cloud.database.cleanups.list()
    assert instance.uuid not in cloud.world.hypervisors['host2'].guests


def test_a_host_that_may_run_a_reverted_guest_is_not_forced_up_before_it_has_ended_that(cloud):
    instance = cloud.boot('one', 'host1')
    finish(cloud, instance, 'host2')
    state.kill(cloud, 'host2')
    state.force_down(cloud, 'host2')  # wrongly: the guest runs there
    assert act(cloud, instance, REVERT) == 202
    cloud.wait(LONG)
    assert cloud.world.active_on(instance.uuid) == ['host1', 'host2']
    service = cloud.database.services.get_compute('host2')

    def force_up():
        return cloud.request('PUT', f'/os-services/{service.uuid}', {'forced_down': False})

    cloud.start_compute('host2')
    response = force_up()
    assert response.status_int == 400
    reason = response.json['badRequest']['message']
    assert newest(cloud, instance).uuid in reason
    assert 'may still run the guests of cold migrations that were reverted' in reason
    cloud.simulation.advance(60)
    assert cloud.world.active_on(instance.uuid) == ['host1']
    assert force_up().status_int == 200


def test_a_conductor_that_is_killed_at_any_time_is_replaced(cloud):
    instance = cloud.boot('one', 'host1')
    finish(cloud, instance, 'host2')
    cloud.kill('conductor1')
    cloud.start_conductor('conductor2')
    cloud.simulation.advance(60)
    assert newest(cloud, instance).status == 'finished'
    assert act(cloud, instance, REVERT) == 202
    cloud.wait()
    assert newest(cloud, instance).status == 'reverted'


def test_what_needs_the_source_is_refused_while_it_is_down_and_nothing_else_moves_the_guest(cloud):
    instance = cloud.boot('one', 'host1')
    finish(cloud, instance, 'host2')
    for action, arguments in (
        ('migrate', None),
        ('os-migrateLive', {'host': None, 'block_migration': 'auto'}),
        ('evacuate', {}),
        ('os-resetState', {'state': 'active'}),
    ):
        assert act(cloud, instance, action, arguments) == 409, action
    state.force_down(cloud, 'host1')
    assert act(cloud, instance, CONFIRM) == act(cloud, instance, REVERT) == 409
    state.force_down(cloud, 'host1', False)
    cloud.simulation.advance(20)
    assert act(cloud, instance, CONFIRM) == 204
    assert act(cloud, instance, REVERT) == 400
    cloud.wait()
    assert newest(cloud, instance).status == 'confirmed'
    assert act(cloud, instance, CONFIRM) == 409


def test_a_finished_migration_whose_source_never_comes_back_can_be_abandoned(cloud):
    instance = cloud.boot('one', 'host1')
    migration = finish(cloud, instance, 'host2')
    path, body = f'/migrator/v1/migrations/{migration.uuid}', {'abandon': {'guest_on': 'host2'}}
    # Its user can decide.
    assert cloud.request('POST', f'{path}/action', body).status_int == 409
    cloud.world.hypervisors['host1'].power_off()
    cloud.kill('host1')
    state.force_down(cloud, 'host1')
    assert act(cloud, instance, CONFIRM) == act(cloud, instance, REVERT) == 409
    steps = cloud.request('GET', f'{path}/timeline').json['timeline']['next']
    assert any('--guest-on host2' in line for line in steps)
    assert cloud.request('POST', f'{path}/action', body).status_int == 202
    cloud.simulation.run_until(lambda: newest(cloud, instance).status == 'error')
    assert state.host_of(cloud, instance) == 'host2'
    assert cloud.world.active_on(instance.uuid) == ['host2']
    assert state.allocations(cloud) == {instance.uuid: {'host2': state.CLAIM}}
    assert [(one.host, one.step) for one in cloud.database.cleanups.list()] == [
        ('host1', 'confirm_migration_at_source')
    ]
    assert is_clean(cloud)
    # If the source comes back after all, it removes its copy.
    cloud.world.hypervisors['host1'].power_on()
    cloud.start_compute('host1')
    state.force_down(cloud, 'host1', False)
    assert is_clean(cloud)
    assert cloud.database.cleanups.list() == []
    assert instance.uuid not in cloud.world.hypervisors['host1'].guests


def test_a_guest_whose_second_destination_is_fenced_is_restored_once_more(cloud):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host2').fail('finish_migration', 'planned: no disk', sticky=True)
    stall = faults(cloud, 'host3').stall('finish_migration', sticky=True)
    assert act(cloud, instance, 'migrate') == 202
    cloud.simulation.run_until(stall.reached.is_set)
    state.kill(cloud, 'host3')
    cloud.world.hypervisors['host3'].power_off()
    state.force_down(cloud, 'host3')
    cloud.wait(LONG)
    assert newest(cloud, instance).status == 'failed'
    assert cloud.world.active_on(instance.uuid) == ['host1']


@pytest.mark.breaks('I1', 'I2', 'I3', 'I5', reason='an operator abandons it with the guest where it does not run')
def test_abandoned_on_the_source_a_running_copy_at_a_destination_that_is_down_is_kept(cloud, operator):
    instance = cloud.boot('one', 'host1')
    migration = finish(cloud, instance, 'host2')
    state.kill(cloud, 'host2')
    assert act(cloud, instance, REVERT) == 202
    cloud.simulation.run_until(lambda: newest(cloud, instance).stuck_reason, timeout=LONG)
    assert operator('migration', 'abandon', migration.uuid, '--guest-on', 'host1', '--yes')[0] == 0
    (cleanup,) = cloud.database.cleanups.list()
    assert (cleanup.host, cleanup.step) == ('host2', 'revert_migration_at_destination')
    assert 'host2 is down and may run the guest' in cleanup.blocked_because
    cloud.start_compute('host2')
    cloud.simulation.advance(60)
    assert cloud.world.active_on(instance.uuid) == ['host2']
    # A retry does not end it either.
    assert 'stops no guest that could run' in operator('migration', 'retry', migration.uuid, '--dry-run')[1]
    assert operator('migration', 'retry', migration.uuid)[0] == 0
    cloud.simulation.run_until(lambda: cloud.database.cleanups.list()[0].blocked_because, timeout=60)
    assert 'the guest is there and could run' in cloud.database.cleanups.list()[0].blocked_because
    assert cloud.world.active_on(instance.uuid) == ['host2']


def test_a_copy_of_disks_may_last_while_its_source_reports_it(cloud):
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, 'host1').stall('migrate_disk_and_power_off', sticky=True)
    # The answer to the command is lost, so that the wait begins without a report.
    lost = ['lose_answer']
    cloud.bus.faults = lambda message: (
        lost.pop() if lost and (message.method, message.kind) == ('migrate_disk_and_power_off', 'call') else None
    )
    assert act(cloud, instance, 'migrate', {'host': 'host2'}) == 202
    cloud.simulation.run_until(stall.reached.is_set)
    cloud.simulation.advance(600)
    found = newest(cloud, instance)
    assert not lost
    assert (found.status, found.stuck_reason) == ('migrating', None)
    assert found.waits_for.startswith('for host1 to end migrate_disk_and_power_off, since ')
    # A source that dies is waited for as long as in any other step.
    state.kill(cloud, 'host1')
    cloud.simulation.advance(240)
    assert newest(cloud, instance).stuck_reason is None
    cloud.simulation.run_until(lambda: newest(cloud, instance).stuck_reason, timeout=300)
    assert 'waited too long for host1 to end migrate_disk' in newest(cloud, instance).stuck_reason
    faults(cloud, 'host1').clear()
    cloud.start_compute('host1')
    cloud.simulation.run_until(lambda: newest(cloud, instance).status == 'finished', timeout=60)
    assert act(cloud, instance, CONFIRM) == 204
    cloud.wait()


@pytest.mark.breaks(
    'I1', 'I2', 'I3', 'I5', reason='the test deletes the instance, or moves its row, while its host is away'
)
@pytest.mark.parametrize('deleted', [True, False])
def test_a_source_that_returns_does_not_start_a_guest_that_has_no_place_there_any_more(cloud, operator, deleted):
    instance = cloud.boot('one', 'host1')
    migration = finish(cloud, instance, 'host2')
    stall = faults(cloud, 'host1').stall('revert_migration_at_source')
    assert act(cloud, instance, REVERT) == 202
    cloud.simulation.run_until(stall.reached.is_set)
    state.kill(cloud, 'host1')
    cloud.wait(LONG)
    assert newest(cloud, instance).status == 'reverted'
    assert [one.step for one in cloud.database.cleanups.list()] == ['revert_migration_at_source']
    if deleted:
        registry.delete_instance(cloud.database, cloud.placement_client, instance.uuid)
    else:
        cloud.database.instances.update(instance.uuid, host='host3', node='host3')
    faults(cloud, 'host1').clear()
    cloud.start_compute('host1')
    cloud.simulation.run_until(lambda: cloud.database.cleanups.list()[0].blocked_because, timeout=60)
    why = 'the instance was deleted' if deleted else 'the database has the instance on host3'
    assert f'would restore the guest at host1, but {why}' in cloud.database.cleanups.list()[0].blocked_because
    assert cloud.world.active_on(instance.uuid) == []
    # The operator has destroyed what is left there.
    cloud.world.hypervisors['host1'].delete(instance.uuid)
    assert operator('migration', 'retry', migration.uuid)[0] == 0
    cloud.simulation.run_until(lambda: not cloud.database.cleanups.list(), timeout=60)


def test_a_start_that_fails_after_the_guest_runs_is_finished_and_not_undone(cloud):
    instance = cloud.boot('one', 'host1')
    fault = faults(cloud, 'host2').fail('finish_migration', 'planned: not persisted', after=True)
    finish(cloud, instance, 'host2')
    finished = [one for one in cloud.recorder.messages if (one.method, one.kind) == ('finish_migration', 'call')]
    assert (fault.count, len(finished)) == (1, 2)
    assert act(cloud, instance, REVERT) == 202
    cloud.wait()
    # A host that never finishes it makes the migration stuck, and the guest is left alone.
    fault = faults(cloud, 'host2').fail('finish_migration', 'planned: not persisted', after=True, sticky=True)
    assert act(cloud, instance, 'migrate', {'host': 'host2'}) == 202
    cloud.simulation.run_until(lambda: newest(cloud, instance).stuck_reason, timeout=LONG)
    assert 'finish_migration at host2, which has failed (' in newest(cloud, instance).stuck_reason
    assert 'planned: not persisted' in newest(cloud, instance).stuck_reason
    assert 5 < fault.count < 20
    assert cloud.world.active_on(instance.uuid) == ['host2']
    faults(cloud, 'host2').clear()
    cloud.simulation.run_until(lambda: newest(cloud, instance).status == 'finished', timeout=120)
    assert newest(cloud, instance).stuck_reason is None
    assert act(cloud, instance, CONFIRM) == 204
    cloud.wait()


def test_a_confirmation_names_a_destination_that_is_down(cloud):
    instance = cloud.boot('one', 'host1')
    finish(cloud, instance, 'host2')
    state.kill(cloud, 'host2')
    assert act(cloud, instance, CONFIRM) == 204
    cloud.simulation.run_until(lambda: newest(cloud, instance).stuck_reason, timeout=LONG)
    why = newest(cloud, instance).stuck_reason
    assert 'Destination host2 is down, so the copy at source host1 is kept: start the compute service of host2' in why
    cloud.start_compute('host2')
    cloud.wait()
    assert newest(cloud, instance).status == 'confirmed'


@pytest.mark.parametrize('undone', [False, True])
def test_a_destination_that_dies_while_it_ends_the_guest_is_named_with_the_exits(cloud, undone):
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, 'host2').stall('revert_migration_at_destination')
    if undone:
        faults(cloud, 'host2').fail('finish_migration', 'planned: no disk')
        assert act(cloud, instance, 'migrate', {'host': 'host2'}) == 202
    else:
        finish(cloud, instance, 'host2')
        assert act(cloud, instance, REVERT) == 202
    cloud.simulation.run_until(stall.reached.is_set)
    state.kill(cloud, 'host2')
    cloud.simulation.run_until(lambda: newest(cloud, instance).stuck_reason, timeout=LONG)
    reason = 'Destination host2 is down and may run the guest: start its compute service. Or, if its host is fenced, '
    assert newest(cloud, instance).stuck_reason == f'{reason}declare it forced down.'
    cloud.simulation.advance(60)
    assert newest(cloud, instance).stuck_reason == f'{reason}declare it forced down.'
    faults(cloud, 'host2').clear()
    cloud.start_compute('host2')
    cloud.wait()
    assert newest(cloud, instance).status == ('failed' if undone else 'reverted')


def test_a_guest_that_was_paused_is_written_as_running_once_it_is_started(cloud):
    instance = cloud.boot('one', 'host1')
    cloud.world.hypervisors['host1'].pause(instance.uuid)
    cloud.database.instances.update(instance.uuid, power_state=3)
    finish(cloud, instance, 'host2')
    assert cloud.database.instances.get(instance.uuid).power_state == 1
    # Its user has shut it off there. A revert starts it.
    cloud.world.hypervisors['host2'].shut_off(instance.uuid)
    cloud.database.instances.update(instance.uuid, power_state=4)
    assert act(cloud, instance, REVERT) == 202
    cloud.wait()
    assert cloud.world.active_on(instance.uuid) == ['host1']
    assert cloud.database.instances.get(instance.uuid).power_state == 1


WINDOW = 'resize_confirm_window'


@pytest.mark.cloud(options={WINDOW: 120})
def test_what_its_user_forgets_is_confirmed_after_the_window(cloud):
    instance = cloud.boot('one', 'host1')
    migration = finish(cloud, instance)
    cloud.simulation.advance(100)
    assert newest(cloud, instance).status == 'finished'
    cloud.wait()
    assert newest(cloud, instance).status == 'confirmed'
    assert state.host_of(cloud, instance) == migration.dest_compute
    response = cloud.request('GET', f'/servers/{instance.uuid}/os-instance-actions')
    (confirmed, _migrate) = response.json['instanceActions']
    assert (confirmed['action'], confirmed['user_id']) == (CONFIRM, 'migrator')
    assert is_clean(cloud)


@pytest.mark.breaks('I15', reason='the test writes the task of another user itself')
@pytest.mark.cloud(options={WINDOW: 60})
@pytest.mark.parametrize('why', ['locked', 'busy', 'source is away', 'reverted'])
def test_window_waits_for_what_forbids_a_confirmation(cloud, why):
    instance = cloud.boot('one', 'host1')
    finish(cloud, instance)
    match why:
        case 'locked':
            cloud.database.instances.update(instance.uuid, locked_by='owner')
        case 'busy':
            cloud.database.instances.update(instance.uuid, task_state='powering-off')
        case 'source is away':
            cloud.kill('host1')
        case _:
            assert act(cloud, instance, REVERT) == 202
    cloud.simulation.advance(300)
    assert newest(cloud, instance).status == ('reverted' if why == 'reverted' else 'finished')
    if why != 'reverted':
        cloud.database.instances.update(instance.uuid, locked_by=None, task_state=None)
        if why == 'source is away':
            cloud.start_compute('host1')
        cloud.simulation.advance(120)
        assert newest(cloud, instance).status == 'confirmed'


def test_without_the_window_nothing_is_confirmed(cloud):
    instance = cloud.boot('one', 'host1')
    finish(cloud, instance)
    cloud.simulation.advance(600)
    assert newest(cloud, instance).status == 'finished'
    assert act(cloud, instance, CONFIRM) == 204
    cloud.wait()
