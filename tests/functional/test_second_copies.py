# SPDX-License-Identifier: Apache-2.0

"""No guest is started, restored or declared lost against what another host reports."""

import pytest

from tests.functional import migration_requests, state
from tests.functional.faults import faults
from tests.functional.test_evacuation import boot, evacuate, lose
from tests.functional.test_moved_by_hand import by_hand, placement_of_the_cloud, stored

pytestmark = [
    pytest.mark.simulated(reason='it moves guests without the control plane, and lets single seconds pass'),
    pytest.mark.breaks(
        'I2', 'I3', 'I4', 'I5', 'I15', 'I18', 'I22', reason='the test moves guests without the control plane'
    ),
]

MINUTE = 60
__all__ = ['placement_of_the_cloud']


def failed(cloud, instance):
    """Return why a guest's newest migration has failed, which has left the guest alone."""
    cloud.wait()
    row = cloud.migrations(instance)[-1]
    assert row.status == 'failed', row.status
    assert cloud.database.instances.get(instance.uuid).vm_state == 'active'
    return row.failure


@pytest.mark.parametrize('seconds', [1, 2 * MINUTE])
def test_evacuation_of_a_guest_that_another_host_runs_is_refused_and_reconcile_follows(cloud, operator, seconds):
    instance = boot(cloud, 'one', 'host1')
    by_hand(cloud, instance, 'host1', 'host2')
    cloud.simulation.advance(seconds)
    lose(cloud, 'host1')
    cloud.simulation.advance(2 * MINUTE)
    assert stored(cloud) == {'one': 'moved'}
    evacuate(cloud, instance)
    failure = failed(cloud, instance)
    assert 'host2 has the guest (running)' in failure
    assert 'migrator-manage instance reconcile' in failure
    assert cloud.world.active_on(instance.uuid) == ['host2']
    status, text = operator('instance', 'reconcile', '--yes')
    assert (status, '1 done, 0 left' in text) == (0, True), text
    assert (state.host_of(cloud, instance), stored(cloud)) == ('host2', {})
    assert state.allocations(cloud)[instance.uuid] == {'host2': state.CLAIM}


def test_evacuation_waits_for_an_unreachable_host_that_was_last_seen_with_the_guest(cloud):
    instance = boot(cloud, 'one', 'host1')
    by_hand(cloud, instance, 'host1', 'host2')
    cloud.simulation.run_until(lambda: stored(cloud), timeout=2 * MINUTE)
    state.kill(cloud, 'host2')
    lose(cloud, 'host1')
    cloud.simulation.advance(2 * MINUTE)
    evacuation = evacuate(cloud, instance, 'host3')
    cloud.simulation.advance(2 * MINUTE)
    row = cloud.database.migrations.get(evacuation.uuid)
    assert (row.status, row.wait_kind, row.wait_hosts) == ('accepted', 'elsewhere', ['host2'])
    assert 'host2 to report whether the guest is there (it was seen there (running))' in row.waits_for
    cloud.start_compute('host2')
    assert 'host2 has the guest (running)' in failed(cloud, instance)


def test_evacuation_of_a_guest_that_its_own_host_did_not_have_waits_for_every_host_that_has_not_answered(cloud):
    instance = boot(cloud, 'one', 'host1')
    state.kill(cloud, 'host3')
    cloud.simulation.advance(2 * MINUTE)
    by_hand(cloud, instance, 'host1', 'host3')
    cloud.simulation.run_until(lambda: stored(cloud), timeout=2 * MINUTE)
    lose(cloud, 'host1')
    cloud.simulation.advance(2 * MINUTE)
    assert stored(cloud) == {'one': 'missing'}
    evacuation = evacuate(cloud, instance, 'host2')
    cloud.simulation.advance(2 * MINUTE)
    row = cloud.database.migrations.get(evacuation.uuid)
    assert (row.status, row.wait_kind, row.wait_hosts) == ('accepted', 'elsewhere', ['host3'])
    assert cloud.world.active_on(instance.uuid) == ['host3']
    cloud.start_compute('host3')
    assert 'host3 has the guest (running)' in failed(cloud, instance)


def test_evacuation_names_the_unreachable_hosts_in_its_log_and_does_not_wait_for_them(cloud):
    instance = boot(cloud, 'one', 'host1')
    state.kill(cloud, 'host3')
    lose(cloud, 'host1')
    cloud.simulation.advance(2 * MINUTE)
    evacuation = evacuate(cloud, instance, 'host2')
    cloud.wait()
    (sent,) = [one for one in cloud.database.migrations.steps(evacuation.uuid) if one.step == 'evacuate']
    assert sent.input['not_asked'] == ['host3']
    assert cloud.world.active_on(instance.uuid) == ['host2']


def test_one_round_of_lists_serves_all_evacuations_of_a_host(cloud):
    guests = [boot(cloud, f'guest{number}', 'host1') for number in range(5)]
    lose(cloud, 'host1')
    cloud.simulation.advance(2 * MINUTE)
    before = len([one for one in cloud.recorder.messages if one.method == 'list_guests' and one.kind == 'call'])
    for instance in guests:
        evacuate(cloud, instance, 'host2')
    cloud.simulation.run_until(lambda: all(cloud.migrations(one)[-1].queued_at for one in guests), timeout=9)
    after = len([one for one in cloud.recorder.messages if one.method == 'list_guests' and one.kind == 'call'])
    assert after - before == 2
    cloud.wait()


@pytest.mark.parametrize('seconds', [1, 2 * MINUTE])
def test_cold_migration_of_a_guest_that_another_host_runs_powers_nothing_off(cloud, seconds):
    instance = boot(cloud, 'one', 'host1')
    cloud.world.hypervisors['host1'].shut_off(instance.uuid)
    by_hand(cloud, instance, None, 'host3')
    cloud.simulation.advance(seconds)
    response = cloud.request('POST', f'/servers/{instance.uuid}/action', {'migrate': {'host': 'host2'}})
    assert response.status_int == 202, response.text
    assert 'host3 has the guest (running)' in failed(cloud, instance)
    assert cloud.world.active_on(instance.uuid) == ['host3']
    by_hand(cloud, instance, 'host3', None)
    cloud.world.hypervisors['host1'].resume(instance.uuid)


def test_revert_of_a_guest_that_was_moved_from_its_destination_restores_nothing(cloud):
    instance = boot(cloud, 'one', 'host1')
    action = f'/servers/{instance.uuid}/action'
    assert cloud.request('POST', action, {'migrate': {'host': 'host2'}}).status_int == 202
    migration_requests.until(cloud, lambda: state.migration(cloud, instance)['status'] == 'finished')
    by_hand(cloud, instance, 'host2', 'host3')
    assert cloud.request('POST', action, {'revertResize': None}).status_int == 202
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].stuck_reason, timeout=120)
    assert 'host3 has the guest (running)' in cloud.migrations(instance)[-1].stuck_reason
    assert cloud.world.active_on(instance.uuid) == ['host3']
    by_hand(cloud, instance, 'host3', 'host2')
    cloud.wait()
    assert (cloud.migrations(instance)[-1].status, cloud.world.active_on(instance.uuid)) == ('reverted', ['host1'])


def test_returning_source_restores_nothing_that_the_destination_runs(cloud):
    instance = boot(cloud, 'one', 'host1')
    stall = faults(cloud, 'host1').stall('revert_migration_at_source', sticky=True)
    faults(cloud, 'host2').fail('finish_migration', sticky=True)
    action = f'/servers/{instance.uuid}/action'
    assert cloud.request('POST', action, {'migrate': {'host': 'host2'}}).status_int == 202
    cloud.simulation.run_until(stall.reached.is_set, timeout=120)
    state.kill(cloud, 'host1')
    cloud.wait()
    assert [one.step for one in cloud.database.cleanups.list()] == ['revert_migration_at_source']
    by_hand(cloud, instance, None, 'host2')
    faults(cloud, 'host1').clear()
    cloud.start_compute('host1')
    cloud.simulation.advance(MINUTE)
    (cleanup,) = cloud.database.cleanups.list()
    assert 'it is active on host2' in cleanup.blocked_because
    assert cloud.world.active_on(instance.uuid) == ['host2']
    by_hand(cloud, instance, 'host2', None)
    cloud.database.cleanups.try_again([cleanup])
    cloud.simulation.advance(MINUTE)
    assert cloud.world.active_on(instance.uuid) == ['host1']


def reverted_while_both_hosts_are_away(cloud):
    """Return a guest that was reverted, and still has to be started at host1; a copy of it runs at host2."""
    instance = boot(cloud, 'one', 'host1')
    action = f'/servers/{instance.uuid}/action'
    assert cloud.request('POST', action, {'migrate': {'host': 'host2'}}).status_int == 202
    migration_requests.until(cloud, lambda: state.migration(cloud, instance)['status'] == 'finished')
    state.kill(cloud, 'host2')  # its service alone: the guest runs on
    assert cloud.request('POST', action, {'revertResize': None}).status_int == 202
    stall = faults(cloud, 'host1').stall('revert_migration_at_source', sticky=True)
    cloud.simulation.advance(2 * MINUTE)
    state.force_down(cloud, 'host2')
    cloud.simulation.run_until(stall.reached.is_set, timeout=2 * MINUTE)
    state.kill(cloud, 'host1')
    cloud.wait()
    faults(cloud, 'host1').clear()
    return instance


def test_a_reverted_guest_is_started_after_the_copy_of_its_fenced_destination_has_ended(cloud):
    instance = reverted_while_both_hosts_are_away(cloud)
    left = {one.step for one in cloud.database.cleanups.list()}
    assert left == {'revert_migration_at_source', 'revert_migration_at_destination'}
    cloud.start_compute('host1')
    cloud.start_compute('host2')
    cloud.simulation.run_until(lambda: not cloud.database.cleanups.list(), timeout=5 * MINUTE)
    assert cloud.world.active_on(instance.uuid) == ['host1']


def test_a_move_to_the_host_of_such_a_copy_says_that_an_operator_is_needed(cloud):
    """The copy is ended by no cleanup while a migration names its host."""
    instance = reverted_while_both_hosts_are_away(cloud)
    action = f'/servers/{instance.uuid}/action'
    cloud.start_compute('host1')
    cloud.simulation.advance(3)
    cloud.start_compute('host2')
    assert cloud.request('POST', action, {'migrate': {'host': 'host2'}}).status_int == 202
    cloud.simulation.advance(10 * MINUTE)
    row = cloud.migrations(instance)[-1]
    assert row.stuck_kind == 'blocked-cleanup'
    by_hand(cloud, instance, 'host2', None)
    blocked = [one for one in cloud.database.cleanups.list() if one.blocked_because is not None]
    cloud.database.cleanups.try_again(blocked)
    cloud.wait()


@pytest.mark.parametrize('phase', [None, 'live_migration'])
def test_guest_that_another_host_runs_is_not_declared_lost(cloud, phase):
    instance = boot(cloud, 'one', 'host1')
    if phase is None:
        by_hand(cloud, instance, 'host1', 'host3')
        assert cloud.live_migrate(instance, 'host2').status_int == 202
    else:
        stall = faults(cloud, 'host1').stall(phase)
        assert cloud.live_migrate(instance, 'host2').status_int == 202
        cloud.simulation.run_until(stall.reached.is_set)
        by_hand(cloud, instance, 'host1', 'host3')
        stall.release()
    cloud.simulation.advance(1)
    assert failed(cloud, instance)
    assert cloud.world.active_on(instance.uuid) == ['host3']


def test_instance_is_not_registered_on_one_host_while_another_was_seen_with_it(cloud, operator, capsys):
    instance = boot(cloud, 'one', 'host1')
    cloud.world.hypervisors['host1'].shut_off(instance.uuid)
    by_hand(cloud, instance, None, 'host2')
    cloud.simulation.run_until(lambda: stored(cloud), timeout=2 * MINUTE)
    cloud.database.instances.delete(instance.uuid)
    words = ('instance', 'create', '--uuid', instance.uuid, '--host', 'host1', '--project', 'p', '--user', 'u')
    with pytest.MonkeyPatch.context() as patched:
        said = []
        patched.setattr('sys.stderr.write', said.append)
        assert operator(*words, '--vcpus', '1', '--memory', '512', '--disk', '1')[0] == 1
    assert f'Guest {instance.uuid} was last seen on host2' in ''.join(said)
    by_hand(cloud, instance, 'host2', None)
    by_hand(cloud, instance, 'host1', None)


def test_copy_that_a_stuck_revert_has_found_is_not_forgotten_while_its_host_does_not_answer(cloud):
    instance = cloud.boot('one', 'host1')
    action = f'/servers/{instance.uuid}/action'
    assert cloud.request('POST', action, {'migrate': {'host': 'host2'}}).status_int == 202
    migration_requests.until(cloud, lambda: state.migration(cloud, instance)['status'] == 'finished')
    by_hand(cloud, instance, 'host2', 'host3')
    assert cloud.request('POST', action, {'revertResize': None}).status_int == 202
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].stuck_reason, timeout=120)
    assert stored(cloud) == {'one': 'moved'}
    state.kill(cloud, 'host3')
    cloud.simulation.advance(2 * MINUTE)
    row = cloud.migrations(instance)[-1]
    assert (row.status, row.wait_kind, row.wait_hosts) == ('finished', 'elsewhere', ['host3'])
    assert cloud.world.active_on(instance.uuid) == ['host3']
    cloud.start_compute('host3')
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].stuck_reason, timeout=120)
    by_hand(cloud, instance, 'host3', 'host2')
    cloud.wait()
    assert (cloud.migrations(instance)[-1].status, cloud.world.active_on(instance.uuid)) == ('reverted', ['host1'])


def test_guest_that_has_left_its_destination_before_the_start_is_known_is_not_started_again(cloud):
    instance = boot(cloud, 'one', 'host1')
    stall = faults(cloud, 'host2').stall('finish_migration', after=True)
    action = f'/servers/{instance.uuid}/action'
    assert cloud.request('POST', action, {'migrate': {'host': 'host2'}}).status_int == 202
    cloud.simulation.run_until(stall.reached.is_set, timeout=120)
    by_hand(cloud, instance, 'host2', 'host3')
    stall.release()
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].stuck_reason, timeout=120)
    row = cloud.migrations(instance)[-1]
    assert (row.stuck_kind, row.stuck_hosts) == ('other-copy', ['host2'])
    assert row.stuck_reason.startswith('host3 has the guest (running), so nothing is started at host2: look')
    assert cloud.world.active_on(instance.uuid) == ['host3']
    by_hand(cloud, instance, 'host3', 'host2')
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].status == 'finished', timeout=120)
    assert cloud.world.active_on(instance.uuid) == ['host2']
    assert cloud.request('POST', action, {'confirmResize': None}).status_int == 204
    cloud.wait()


def test_guest_that_is_moved_by_hand_between_check_and_power_off_is_not_started_elsewhere(cloud):
    instance = boot(cloud, 'one', 'host1')
    stall = faults(cloud, 'host1').stall('migrate_disk_and_power_off')
    action = f'/servers/{instance.uuid}/action'
    assert cloud.request('POST', action, {'migrate': {'host': 'host2'}}).status_int == 202
    cloud.simulation.run_until(stall.reached.is_set, timeout=120)
    cloud.world.hypervisors['host1'].shut_off(instance.uuid)
    by_hand(cloud, instance, None, 'host3')
    stall.release()
    assert 'has been shut off since the check' in failed(cloud, instance)
    assert cloud.world.active_on(instance.uuid) == ['host3']
    by_hand(cloud, instance, 'host3', None)
    cloud.world.hypervisors['host1'].resume(instance.uuid)
