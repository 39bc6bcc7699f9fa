# SPDX-License-Identifier: Apache-2.0


"""Failures of any part: the migration ends, its guest runs once, and the allocations are right."""

import pytest

from migrator.objects import protocol
from migrator.testing.placement_faults import Fault
from tests.functional import state
from tests.functional.faults import (
    COMMITS,
    COMMITS_BACK,
    LONG,
    AtCommit,
    boot_failing,
    by_turns,
    faults,
    migrate,
    refuse,
)

# --- before the guest moves ------------------------------------------------------------------------------------------


@pytest.mark.nova_bug(1712411, 1969980)
@pytest.mark.cloud(hosts=4)
def test_a_candidate_that_fails_its_check_is_left_clean_and_the_next_one_is_used(cloud):
    """A rejected candidate kept its allocation."""
    instance = cloud.boot('one', 'host1')
    for host in ('host2', 'host3'):
        # the check fails after it has made its file
        faults(cloud, host).fail('check_can_live_migrate_destination', after=True)
    migrate(cloud, instance)
    cloud.wait()
    state.completed(cloud, instance, 'host4')
    assert [effect.host for effect in cloud.world.effects('check file removed', instance.uuid)] == ['host4']
    assert [effect.host for effect in cloud.world.effects('removed', instance.uuid)] == ['host2', 'host3', 'host1']


@pytest.mark.nova_bug(1470420, 1714237, 1715182, 1841411)
@pytest.mark.parametrize('phase', ['check_can_live_migrate_destination', 'pre_live_migration'])
@pytest.mark.parametrize('after', [False, True])
def test_all_candidates_failed_restores_previous_state(cloud, phase, after):
    """The destination's allocation leaked on a rollback. A healthy guest was left in ERROR."""
    instance = cloud.boot('one', 'host1')
    for host in ('host2', 'host3'):
        faults(cloud, host).fail(phase, f'{host} has a bad day', after=after)
    before = migrate(cloud, instance)
    cloud.wait()
    state.failed(cloud, instance, before, 'Every candidate was tried')
    for host in ('host2', 'host3'):
        assert f'{host} has a bad day' in state.result(cloud, instance)[1]


@pytest.mark.simulated(reason='it decides which host refuses the guest')
def test_the_source_is_named_that_refused_a_candidate(cloud):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host1').fail('check_can_live_migrate_source', 'it has a tape')
    faults(cloud, 'host3').fail('pre_live_migration', 'host3 has a bad day')
    migrate(cloud, instance)
    cloud.wait()
    message = state.result(cloud, instance)[1]
    assert 'host2: refused by the source: ' in message
    assert '; host3: ' in message
    assert 'host3: refused by' not in message


@pytest.mark.nova_bug(1714237, 1715182, 1778206, 1889108, 1944619)
@pytest.mark.parametrize('phase', ['check_can_live_migrate_destination', 'pre_live_migration'])
@pytest.mark.parametrize('after', [False, True])
@pytest.mark.simulated(reason='it decides what becomes of single requests to Placement')
def test_named_host_failed_tries_no_other_host(cloud, phase, after):
    """What failed in the preparation must not touch the source, nor leave a thing behind."""
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host3').fail(phase, 'the disk is full', after=after)
    before = migrate(cloud, instance, 'host3')
    source_before = len([effect for effect in cloud.world.log if effect.host == 'host1'])
    cloud.wait()
    state.failed(cloud, instance, before, 'the disk is full')
    assert len([effect for effect in cloud.world.log if effect.host == 'host1']) == source_before
    assert cloud.adapter.sent.count(('POST', '/allocations')) == 2, 'one move, one move back'


@pytest.mark.cloud(options={'migrate_max_retries': 0})
def test_with_no_retries_allowed_one_candidate_is_tried_only(cloud):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host2').fail('check_can_live_migrate_destination', 'no')
    before = migrate(cloud, instance)
    cloud.wait()
    state.failed(cloud, instance, before, 'host2')


PHASES = ('check_can_live_migrate_destination', 'check_can_live_migrate_source', 'pre_live_migration')


@pytest.mark.parametrize('phase', PHASES)
@pytest.mark.simulated(reason='it reaches into a service')
def test_driver_result_that_is_no_json_fails_the_step_with_a_reason(cloud, monkeypatch, phase):
    """The host could never answer, and the migration stayed where it was despite every abort."""
    instance = cloud.boot('one', 'host1')
    driver = cloud.computes['host1' if phase.endswith('source') else 'host2'].driver
    method = getattr(driver, phase)
    odd = {'destination': {'x': object()}}
    monkeypatch.setattr(driver, phase, lambda *arguments: method(*arguments).replace(**odd))
    before = migrate(cloud, instance, 'host2')
    cloud.wait()
    why = f"{phase} returned destination['x'] of type object: correct the driver to return serializable data"
    state.failed(cloud, instance, before, why)


@pytest.mark.simulated(reason='it reaches into a service')
def test_unknown_guest_state_from_driver_is_waited_for_with_reason(cloud, monkeypatch):
    """An unknown state was taken for a report that the guest is absent."""
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, 'host1').stall('copying')
    migrate(cloud, instance, 'host2')
    cloud.simulation.run_until(stall.reached.is_set)
    with monkeypatch.context() as patched:
        driver = cloud.computes['host1'].driver
        patched.setattr(driver, 'get_guest', lambda uuid: protocol.Guest(instance_uuid=uuid, state='active'))
        cloud.simulation.advance(100)
        (migration,) = cloud.migrations(instance)
        assert migration.status == 'running'
        assert 'host1 answers, but its hypervisor has not reported the guest for a long time' in migration.stuck_reason
        assert 'the log of the compute service there' in migration.stuck_reason
    stall.release()
    cloud.wait()
    state.completed(cloud, instance, 'host2')


def test_a_source_that_fails_its_check_always_fails_the_migration_and_nothing_else(cloud):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host1').fail('check_can_live_migrate_source', 'the storage is odd', sticky=True)
    before = migrate(cloud, instance)
    cloud.wait()
    state.failed(cloud, instance, before, 'the storage is odd')


@pytest.mark.nova_bug(1435633, 2044235)
@pytest.mark.parametrize('phase', ['check_can_live_migrate_destination', 'check_can_live_migrate_source'])
@pytest.mark.simulated(reason='it waits for a host to be given up, which takes minutes')
def test_a_host_that_hangs_in_its_check_and_is_killed_counts_as_failing(cloud, phase):
    """A check without an answer is a check that failed, not an instance in ERROR."""
    instance = cloud.boot('one', 'host1')
    host = 'host2' if phase.endswith('destination') else 'host1'
    stall = faults(cloud, host).stall(phase)
    before = migrate(cloud, instance)
    cloud.simulation.run_until(stall.reached.is_set)
    state.kill(cloud, host)
    stall.release()
    if host == 'host1':
        state.restart(cloud, host)
    cloud.wait(LONG)
    if host == 'host1':
        assert state.migration(cloud, instance)['status'] in ('completed', 'failed')
        if state.migration(cloud, instance)['status'] == 'failed':
            state.failed(cloud, instance, before, 'check_can_live_migrate_source')
    else:
        assert state.migration(cloud, instance)['status'] == 'completed'
        assert state.host_of(cloud, instance) == 'host3'


@pytest.mark.simulated(reason='it waits for a host to be given up, which takes minutes')
def test_a_destination_that_hangs_in_its_preparation_and_dies_is_given_up_for_the_next(cloud):
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, 'host2').stall('pre_live_migration', after=True)
    migrate(cloud, instance)
    cloud.simulation.run_until(stall.reached.is_set)
    state.kill(cloud, 'host2')
    cloud.wait(LONG)
    assert state.host_of(cloud, instance) == 'host3'
    assert state.allocations(cloud)[instance.uuid] == {'host3': state.CLAIM}
    assert [cleanup.host for cleanup in cloud.database.cleanups.list()] == ['host2'], 'what it left is on its account'


@pytest.mark.nova_bug('dd952f9fdf', 'f628dc9099')
@pytest.mark.simulated(reason='it lets minutes pass')
def test_a_destination_that_hangs_in_its_preparation_is_waited_for(cloud):
    """A destination that is slow is no reason for a time-out."""
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, 'host2').stall('pre_live_migration')
    migrate(cloud, instance)
    cloud.simulation.advance(150)
    assert state.server(cloud, instance)['status'] == 'MIGRATING'
    assert state.in_progress(cloud, instance)[0]['status'] == 'preparing'
    stall.release()
    cloud.wait()
    state.completed(cloud, instance, 'host2')


# --- while it moves --------------------------------------------------------------------------------------------------


@pytest.mark.nova_bug(1488435, 1714237, 1715182, 1757292, 1780973, 1841411, 1939545, 'error-after-clean-rollback')
@pytest.mark.parametrize('phase', ['live_migration', 'starting', 'copying', 'cutover'])
@pytest.mark.parametrize('leave_paused', [False, True])
def test_a_driver_that_fails_leaves_the_guest_running_where_it_was(cloud, phase, leave_paused):
    """Roll back to exactly what was, the guest running and the server ACTIVE."""
    instance = cloud.boot('one', 'host1', dirty_rate=50)
    cloud.world.hypervisors['host1'].leave_paused = leave_paused
    faults(cloud, 'host1').fail(phase, 'the hypervisor has a bad day')
    before = migrate(cloud, instance)
    cloud.wait()
    state.failed(cloud, instance, before, 'bad day' if phase in ('live_migration', 'starting') else 'hypervisor')
    assert cloud.world.active_on(instance.uuid) == ['host1']


@pytest.mark.nova_bug(1780973, 1841411, 1939545)
def test_a_guest_that_was_paused_by_its_user_is_still_paused_after_a_failed_cut_over(cloud):
    """Put back what was there, not what is usual."""
    instance = cloud.boot('one', 'host1', vm_state='paused')
    cloud.world.hypervisors['host1'].pause(instance.uuid)
    cloud.world.hypervisors['host1'].leave_paused = True
    faults(cloud, 'host1').fail('cutover')
    before = migrate(cloud, instance)
    cloud.wait()
    state.failed(cloud, instance, before, '')
    assert state.server(cloud, instance)['status'] == 'PAUSED'


@pytest.mark.nova_bug(1905944, 1982284)
def test_driver_failure_during_running_job_still_completes(cloud):
    """The watcher died, and the guest went on to the destination."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    faults(cloud, 'host1').fail('live_migration', after=True)
    faults(cloud, 'host1').fail('attach_live_migration')
    migrate(cloud, instance)
    cloud.wait()
    state.completed(cloud, instance, 'host2')


@pytest.mark.nova_bug(1644248)
def test_a_copy_that_is_slow_but_moves_is_never_given_up(cloud):
    """False "no progress" aborts."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    cloud.world.hypervisors['host1'].set_link(60.0)
    migrate(cloud, instance)
    cloud.wait(LONG)
    state.completed(cloud, instance, 'host2')


@pytest.mark.nova_bug(1662626, 1969980)
def test_a_rollback_that_fails_a_few_times_is_tried_again_until_it_is_clean(cloud):
    """A cleanup that raised left the server in MIGRATING for ever."""
    instance = boot_failing(cloud)
    for host in ('host1', 'host2'):
        for _ in range(3):
            faults(cloud, host).fail(f'rollback_live_migration_at_{"source" if host == "host1" else "destination"}')
    before = migrate(cloud, instance)
    cloud.wait()
    state.failed(cloud, instance, before, '')


@pytest.mark.cloud(options={'conductor.post_max_attempts': 3})
def test_host_with_a_deferred_cleanup_of_a_server_is_no_destination_for_it(cloud):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host2').fail('rollback_live_migration_at_destination', sticky=True)
    faults(cloud, 'host1').fail('copying')
    migrate(cloud, instance)
    cloud.wait(LONG)
    migrate(cloud, instance)
    cloud.wait()
    assert state.host_of(cloud, instance) == 'host3'


# --- after it has moved ----------------------------------------------------------------------------------------------


@pytest.mark.nova_bug(1379581, 1628606, 1662626, 1879787, 2000069)
@pytest.mark.parametrize('after', [False, True])
@pytest.mark.parametrize(
    ('host', 'phase'),
    [('host1', 'post_live_migration_at_source'), ('host2', 'post_live_migration_at_destination')],
)
def test_a_post_step_that_fails_once_is_done_again_and_the_server_is_at_its_new_host_meanwhile(
    cloud, host, phase, after
):
    """The guest runs at the destination, and every post step fails once."""
    instance = cloud.boot('one', 'host1')
    faults(cloud, host).fail(phase, after=after)
    migrate(cloud, instance)
    state.when(cloud, instance, 'post-migrating')
    assert state.host_of(cloud, instance) == 'host2'
    assert state.in_progress(cloud, instance)[0]['status'] == 'post-migrating'
    cloud.wait()
    state.completed(cloud, instance, 'host2')
    assert cloud.database.cleanups.list() == []


@pytest.mark.nova_bug(1475411, 1628606, 1843639, 2000069)
@pytest.mark.cloud(options={'conductor.post_max_attempts': 3})
@pytest.mark.parametrize(
    ('host', 'phase'),
    [('host1', 'post_live_migration_at_source'), ('host2', 'post_live_migration_at_destination')],
)
@pytest.mark.simulated(reason='it waits for a host to be given up, which takes minutes')
def test_post_step_that_always_fails_is_deferred_and_the_migration_completes(cloud, host, phase):
    """The server does not wait for a host that cannot clean up."""
    instance = cloud.boot('one', 'host1')
    fault = faults(cloud, host).fail(phase, 'the disk is full', sticky=True)
    migrate(cloud, instance)
    cloud.wait(LONG)
    assert fault.count == 3
    assert state.migration(cloud, instance)['status'] == 'completed'
    assert state.result(cloud, instance) == ('Success', None)
    assert (state.server(cloud, instance)['status'], state.host_of(cloud, instance)) == ('ACTIVE', 'host2')
    assert state.allocations(cloud) == {instance.uuid: {'host2': state.CLAIM}}
    assert cloud.world.active_on(instance.uuid) == ['host2']
    (cleanup,), row = cloud.database.cleanups.list(), cloud.migrations(instance)[-1]
    assert (cleanup.host, cleanup.step, cleanup.migration_uuid, cleanup.epoch) == (host, phase, row.uuid, row.epoch)
    assert 'the disk is full' in cleanup.reason
    assert cleanup.input['migrate_data']


# --- Placement -------------------------------------------------------------------------------------------------------


@pytest.mark.nova_bug('53ca096750', '55f4552621')
@pytest.mark.parametrize('fault', [Fault.CONFLICT, Fault.TIMEOUT_LATE], ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize('method', ['GET', 'POST'])
@pytest.mark.simulated(reason='it decides what becomes of single requests to Placement')
def test_no_fault_of_a_single_request_to_placement_harms_a_migration(cloud, method, fault):
    """Observe again, never a blind resend; and what arrives late changes nothing."""
    instance = cloud.boot('one', 'host1')
    cloud.adapter.inject(fault, method=method, url='/allocations')
    migrate(cloud, instance)
    cloud.wait()
    state.completed(cloud, instance, 'host2')
    cloud.adapter.deliver()
    state.moved(cloud, instance, 'host2')


@pytest.mark.nova_bug(1714237, 1715182, '55f4552621')
@pytest.mark.parametrize('fault', [Fault.ERROR_DONE, Fault.DUPLICATED], ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize('request_', ['the move', 'the move back'])
@pytest.mark.simulated(reason='it decides what becomes of single requests to Placement')
def test_no_fault_of_a_single_request_to_placement_harms_a_rollback(cloud, request_, fault):
    """Whatever becomes of one request, the allocations end as they were."""
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host2').fail('pre_live_migration', 'the disk is full')
    before = state.everything(cloud)
    cloud.adapter.inject(fault, method='POST', url='/allocations', skip=int(request_ == 'the move back'))
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait()
    state.failed(cloud, instance, before, 'the disk is full')
    cloud.adapter.deliver()
    assert state.everything(cloud) == before


@pytest.mark.nova_bug('55f4552621')
@pytest.mark.simulated(reason='it decides what becomes of single requests to Placement')
def test_a_move_that_arrives_when_all_is_over_is_refused_by_its_generation(cloud):
    """The late move of a dead conductor would let an ended migration hold the source."""
    instance = cloud.boot('one', 'host1')
    cloud.adapter.inject(Fault.TIMEOUT_LATE, method='POST', url='/allocations')
    faults(cloud, 'host2').fail('pre_live_migration')
    before = migrate(cloud, instance, 'host2')
    cloud.wait()
    late = cloud.adapter.deliver()
    assert [answer.status_code for answer in late] == [409]
    assert state.everything(cloud) == before


@pytest.mark.nova_bug(1267862, 1713786)
@pytest.mark.simulated(reason='it decides what becomes of single requests to Placement')
def test_a_capacity_that_was_taken_meanwhile_is_a_refusal_and_the_next_candidate_is_used(cloud):
    """The claim is refused after the host was chosen."""
    instance = cloud.boot('one', 'host1')
    cloud.adapter.inject(Fault.REFUSED, method='POST', url='/allocations')
    migrate(cloud, instance)
    cloud.wait()
    state.completed(cloud, instance, 'host3')


@pytest.mark.nova_bug(1712008, 1713786)
@pytest.mark.simulated(reason='it decides what becomes of single requests to Placement')
def test_a_capacity_that_was_taken_at_the_named_host_fails_the_migration(cloud):
    """No destination without a claim."""
    instance = cloud.boot('one', 'host1')
    cloud.adapter.inject(Fault.REFUSED, method='POST', url='/allocations')
    before = migrate(cloud, instance, 'host2')
    cloud.wait()
    state.failed(cloud, instance, before, 'Placement refused the allocation at host2')


@pytest.mark.simulated(reason='it decides what becomes of single requests to Placement')
def test_a_placement_that_is_away_for_minutes_delays_a_rollback_and_no_more(cloud):
    instance = cloud.boot('one', 'host1', dirty_rate=900)
    stall = faults(cloud, 'host1').stall('copying')
    faults(cloud, 'host1').fail('copying')
    before = migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    cloud.adapter.away = True
    stall.release()
    # This is longer than any migration may wait without progress.
    cloud.simulation.advance(400)
    assert state.server(cloud, instance)['status'] == 'MIGRATING'
    row = cloud.migrations(instance)[0]
    assert row.stuck_reason is None
    assert row.waits_for.startswith('Placement is not reachable: ')
    assert '. Conductor conductor1 waits for it since 2026-01-01 00:00:0' in row.waits_for
    assert 'migrator-status upgrade check' in row.waits_for
    cloud.adapter.away = False
    cloud.wait(LONG)
    state.failed(cloud, instance, before, '')
    assert cloud.migrations(instance)[0].waits_for is None


@pytest.mark.nova_bug('53ca096750')
@pytest.mark.simulated(reason='it decides what becomes of single requests to Placement')
def test_consumer_with_a_concurrent_writer_is_not_overwritten(cloud):
    """Lost updates for want of a generation."""
    instance = cloud.boot('one', 'host1')
    cloud.adapter.inject(Fault.CONFLICT, method='POST', times=12)
    migrate(cloud, instance)
    cloud.wait()
    state.completed(cloud, instance, 'host2')


# --- the database ----------------------------------------------------------------------------------------------------


@pytest.mark.nova_bug(1397153, 1905944)
@pytest.mark.parametrize('status', ['preparing', 'queued', 'running', 'post-migrating'])
@pytest.mark.simulated(reason='it acts at single commits')
def test_a_database_that_refuses_for_five_seconds_in_the_middle_costs_time_only(cloud, status):
    """An error of the database while the guest moves must not end the watch."""
    instance = cloud.boot('one', 'host1', memory_mb=2048)
    stalls = {
        'preparing': faults(cloud, 'host2').stall('pre_live_migration'),
        'queued': faults(cloud, 'host1').stall('starting'),
        'running': faults(cloud, 'host1').stall('copying'),
        'post-migrating': faults(cloud, 'host1').stall('post_live_migration_at_source'),
    }
    for other, stall in stalls.items():
        if other != status:
            stall.release()
    migrate(cloud, instance)
    state.when(cloud, instance, status)
    outage = state.Outage(cloud, 5)
    stalls[status].release()
    cloud.wait()
    assert outage.refused
    state.completed(cloud, instance, 'host2')


@pytest.mark.nova_bug(1397153, 1905944)
@pytest.mark.parametrize(('number', 'moment'), by_turns(COMMITS))
@pytest.mark.simulated(reason='it acts at single commits')
def test_migration_completes_if_any_commit_fails_or_its_reply_is_lost(cloud, number, moment):
    """Nothing depends on the answer to a commit."""
    instance = cloud.boot('one', 'host1')
    at = AtCommit(cloud, number, moment, refuse)
    migrate(cloud, instance)
    cloud.wait()
    assert at.injected
    assert state.migration(cloud, instance)['status'] == 'completed'
    state.completed(cloud, instance, state.host_of(cloud, instance))


@pytest.mark.nova_bug(1397153, 1662626)
@pytest.mark.parametrize(('number', 'moment'), by_turns(COMMITS_BACK))
@pytest.mark.simulated(reason='it acts at single commits')
def test_rollback_is_complete_if_any_commit_fails_or_its_reply_is_lost(cloud, number, moment):
    """The same, on the way back."""
    instance = boot_failing(cloud)
    at = AtCommit(cloud, number, moment, refuse)
    before = migrate(cloud, instance)
    cloud.wait()
    assert at.injected
    state.failed(cloud, instance, before, '')


def surprise():
    raise RuntimeError('an unexpected error')


@pytest.mark.nova_bug(1397153, 'cfb99acd6a')
@pytest.mark.parametrize('number', [1, 4, 7])
@pytest.mark.simulated(reason='it acts at single commits')
def test_unexpected_error_delays_a_migration_by_a_few_seconds_only(cloud, number):
    """An unknown exception left the server MIGRATING, and its own handling failed."""
    instance = cloud.boot('one', 'host1')
    at = AtCommit(cloud, number, 'begin', surprise)
    migrate(cloud, instance)
    cloud.wait()
    assert at.injected
    state.completed(cloud, instance, state.host_of(cloud, instance))
