# SPDX-License-Identifier: Apache-2.0

"""A compute service that is killed and started again, whatever its hypervisor did meanwhile.

Each state that :mod:`migrator.conductor.migration.settle_table` knows of a host is brought about here for real. A
row that is added there fails here until this file says how it comes about and what becomes of it.
"""

import pytest

from migrator.conductor.migration import settle_table
from migrator.conductor.migration.settle_table import Observed
from migrator.objects.protocol import GuestState
from tests.functional import migration_requests, state
from tests.functional.faults import LONG, boot_failing, faults, migrate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.simulated(reason='it kills a service, and acts on hypervisors, at single moments'),
]


def hypervisor(cloud, host):
    return cloud.world.hypervisors[host]


def running(cloud, phase='copying', **fields):
    """Have a server whose move is held in a phase of its job; to host2."""
    instance = cloud.boot('one', 'host1', **fields)
    stall = faults(cloud, 'host1').stall(phase, instance_uuid=instance.uuid, sticky=True)
    migrate(cloud, instance, 'host2')
    cloud.simulation.run_until(stall.reached.is_set)
    if phase not in ('live_migration', 'starting'):
        state.when(cloud, instance, 'running', 'running (post-copy)', 'post-migrating')
    return instance


def unattended(cloud, phase='copying'):
    """Have a server whose move is held in a phase of its job, and whose source's service is dead."""
    instance = running(cloud, phase)
    state.kill(cloud, 'host1')
    return instance


def queued(cloud):
    """Have a server that waits behind another one, whose job is held; both to host2."""
    other = cloud.boot('other', 'host1')
    faults(cloud, 'host1').stall('copying', instance_uuid=other.uuid, sticky=True)
    migrate(cloud, other, 'host2')
    state.when(cloud, other, 'running')
    instance = cloud.boot('one', 'host1')
    migrate(cloud, instance, 'host2')
    state.when(cloud, instance, 'queued')
    return instance


def job_fails(cloud, instance):
    """Have a job fail, and end, while its service is down."""
    with cloud.world.lock:
        hypervisor(cloud, 'host1').jobs[instance.uuid].fail('the link was lost')
    migration_requests.go_on(cloud)
    cloud.simulation.run_until(lambda: not hypervisor(cloud, 'host1').jobs)


def job_goes_on(cloud, instance):
    """Have a job go on to its end while its service is down."""
    migration_requests.go_on(cloud)
    cloud.simulation.run_until(lambda: not hypervisor(cloud, 'host1').jobs)


# --- what the source's driver says when its service is back ----------------------------------------------------------
# Each brings it about and returns the server; the service of the source is dead before what is done to the hypervisor.


def here(cloud):
    """It waited behind another one, whose job has ended meanwhile; it is queued again, and moves."""
    instance = queued(cloud)
    state.kill(cloud, 'host1')
    job_goes_on(cloud, instance)
    return instance, 'completed'


def here_but_it_had_run(cloud):
    """Its job failed while the service was down: it is never begun a second time."""
    instance = unattended(cloud)
    job_fails(cloud, instance)
    return instance, 'failed'


def waits(cloud):
    """It waited behind a job that still runs, and waits behind it again."""
    instance = queued(cloud)
    state.kill(cloud, 'host1')
    return instance, 'queued'


def started_and_no_job(cloud):
    """The driver had been called and there was no job yet: the call is cancelled and queued again."""
    instance = unattended(cloud, 'starting')
    return instance, 'queued'


def job(cloud):
    """Its job runs: it is attached to."""
    instance = unattended(cloud)
    return instance, 'running'


def cut_over_with_a_job(cloud):
    """It is in the middle of its cut-over."""
    instance = unattended(cloud, 'cutover')
    return instance, 'running'


def cut_over_without_a_job(cloud):
    """Its job failed in the switchover and left it paused; the destination waits: it is resumed."""
    instance = running(cloud, 'cutover')
    hypervisor(cloud, 'host1').leave_paused = True
    state.kill(cloud, 'host1')
    job_fails(cloud, instance)
    assert hypervisor(cloud, 'host1').describe(instance.uuid).state == GuestState.CUTOVER
    return instance, 'failed'


def moved(cloud):
    """Its job completed meanwhile: the driver of the destination reports that it runs the guest."""
    instance = unattended(cloud)
    job_goes_on(cloud, instance)
    assert hypervisor(cloud, 'host1').describe(instance.uuid).state == GuestState.CUTOVER
    return instance, 'completed'


def shut_off(cloud):
    """Its user has shut it off, and so its job failed: it stays shut off, where it is."""
    instance = unattended(cloud)
    hypervisor(cloud, 'host1').shut_off(instance.uuid)
    migration_requests.go_on(cloud)
    return instance, 'failed'


def absent_and_runs_at_the_destination(cloud):
    """What was left at the source is gone, and the destination runs it."""
    instance = unattended(cloud)
    job_goes_on(cloud, instance)
    hypervisor(cloud, 'host1').delete(instance.uuid)
    return instance, 'completed'


def post_copy_broken_off(cloud):
    """Neither host has all of its memory."""
    hypervisor(cloud, 'host1').post_copy = hypervisor(cloud, 'host2').post_copy = True
    instance = cloud.boot('one', 'host1', dirty_rate=100_000)
    faults(cloud, 'host1').stall('postcopy', sticky=True)
    migrate(cloud, instance, 'host2')
    state.when(cloud, instance, 'running')
    # the source's own events and answers are lost, so that no conductor knows that it arrived
    cloud.bus.faults = lambda message: 'lose' if message.sender in ('compute:host1', 'compute:host2') else None
    state.kill(cloud, 'host1')
    with cloud.world.lock:
        hypervisor(cloud, 'host1').jobs[instance.uuid].force_complete()
    cloud.simulation.run_until(lambda: hypervisor(cloud, 'host1').jobs[instance.uuid].in_post_copy)
    hypervisor(cloud, 'host1').break_post_copy(instance.uuid)
    cloud.bus.faults = lambda message: None
    return instance, 'stuck'


SOURCE = {
    Observed.HERE: [here],
    Observed.RETURNED: [here_but_it_had_run],
    Observed.WAITS: [waits],
    Observed.STARTED: [started_and_no_job],
    Observed.JOB: [job],
    Observed.CUTOVER_JOB: [cut_over_with_a_job],
    Observed.CUTOVER: [cut_over_without_a_job, moved],
    Observed.SHUT_OFF: [shut_off],
    Observed.ABSENT: [absent_and_runs_at_the_destination],
    Observed.BROKEN: [post_copy_broken_off],
}


def cases(table, how):
    return [
        pytest.param(observed, act, id=act.__name__ if act else observed.name)
        for observed in table
        for act in how.get(observed, [None])
    ]


@pytest.mark.breaks('I1', 'I2', 'I3', 'I5', reason='in some of these the test takes a guest from its hypervisor')
@pytest.mark.parametrize(('observed', 'happens'), cases(settle_table.SOURCE, SOURCE))
def test_migration_continues_after_a_restart_of_the_source_in_any_state(cloud, observed, happens):
    assert happens is not None, f'no case brings a source to report "{observed}", and what becomes of it'
    instance, status = happens(cloud)
    begun = len(cloud.world.effects('job started', instance.uuid))
    state.restart(cloud, 'host1')
    if status == 'stuck':
        cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].stuck_reason, timeout=120)
        assert observed in cloud.migrations(instance)[-1].stuck_reason
        assert state.server(cloud, instance)['status'] == 'MIGRATING'
        assert any('is stuck' in line for line in cloud.monitor.logs), 'an operator is needed'
        return
    if status in ('queued', 'running'):
        cloud.simulation.advance(10)
        assert state.in_progress(cloud, instance)[0]['status'] == status
        migration_requests.go_on(cloud)
        status = 'completed'
    cloud.wait(LONG)
    assert state.migration(cloud, instance)['status'] == status
    assert state.host_of(cloud, instance) == ('host2' if status == 'completed' else 'host1')
    power = GuestState.SHUTDOWN if happens is shut_off else GuestState.RUNNING
    assert hypervisor(cloud, state.host_of(cloud, instance)).describe(instance.uuid).state == power
    assert state.allocations(cloud)[instance.uuid] == {state.host_of(cloud, instance): state.CLAIM}
    assert len(cloud.world.effects('job started', instance.uuid)) <= max(begun, 1), 'a move is begun once'


@pytest.mark.breaks('I1', 'I2', 'I3', 'I5', reason='the test takes the guest from its hypervisor')
def test_a_guest_that_neither_host_has_any_more_ends_in_error_and_is_started_nowhere(cloud):
    instance = unattended(cloud)
    job_fails(cloud, instance)
    hypervisor(cloud, 'host1').delete(instance.uuid)
    hypervisor(cloud, 'host2').delete(instance.uuid)
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    assert state.migration(cloud, instance)['status'] == 'error'
    assert state.server(cloud, instance)['status'] == 'ERROR'
    assert state.guests(cloud, instance) == {}


@pytest.mark.breaks('I1', 'I2', 'I3', 'I5', reason='the test takes the guest from its hypervisor')
def test_a_guest_that_the_source_lost_and_the_destination_only_waits_for_is_stuck_and_starts_nowhere(cloud):
    instance = unattended(cloud)
    job_fails(cloud, instance)
    hypervisor(cloud, 'host1').delete(instance.uuid)
    state.restart(cloud, 'host1')
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].stuck_reason, timeout=120)
    assert [state for state, _, _ in state.guests(cloud, instance).values()] == ['waiting']
    # an operator has found it, and put it back: it is a known case again, and goes on by itself
    hypervisor(cloud, 'host1').spawn(instance)
    cloud.wait(LONG)
    assert state.migration(cloud, instance)['status'] == 'failed'
    assert state.host_of(cloud, instance) == 'host1'


# --- the same of the destination -------------------------------------------------------------------------------------


def prepared(cloud):
    """What was prepared has outlived the service, and is used."""
    instance = queued(cloud)
    state.kill(cloud, 'host2')
    return instance, 'completed'


def preparing(cloud):
    """It was in the middle of the preparation, which is asked for again."""
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, 'host2').stall('pre_live_migration')
    migrate(cloud, instance, 'host2')
    cloud.simulation.run_until(stall.reached.is_set)
    state.kill(cloud, 'host2')
    stall.release()
    return instance, 'completed'


def runs(cloud):
    """The guest arrived while the service of the destination was dead."""
    instance = running(cloud)
    state.kill(cloud, 'host2')
    job_goes_on(cloud, instance)
    return instance, 'completed'


def nothing_prepared(cloud):
    """What was prepared is gone: it is prepared again."""
    instance = queued(cloud)
    state.kill(cloud, 'host2')
    hypervisor(cloud, 'host2').delete(instance.uuid)
    return instance, 'completed'


DESTINATION = {
    Observed.WAITING: [prepared],
    Observed.PREPARING: [preparing],
    Observed.RUNS: [runs],
    Observed.ABSENT: [nothing_prepared],
    Observed.BROKEN: [post_copy_broken_off],
}


@pytest.mark.parametrize(('observed', 'happens'), cases(settle_table.DESTINATION, DESTINATION))
@pytest.mark.breaks('I1', 'I2', 'I3', 'I5', reason='in one of these the test breaks a guest')
def test_migration_continues_after_a_restart_of_the_destination_in_any_state(cloud, observed, happens):
    assert happens is not None, f'no case brings a destination to report "{observed}", and what becomes of it'
    instance, status = happens(cloud)
    state.restart(cloud, 'host1' if status == 'stuck' else 'host2')
    if status == 'stuck':
        cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].stuck_reason, timeout=120)
        return
    migration_requests.go_on(cloud)
    cloud.wait(LONG)
    assert state.migration(cloud, instance)['status'] == status
    assert cloud.world.active_on(instance.uuid) == ['host2']
    assert len(cloud.world.effects('job started', instance.uuid)) == 1


# --- on the way back, and after the move -----------------------------------------------------------------------------


@pytest.mark.parametrize('host', ['host1', 'host2'])
def test_a_host_that_restarts_on_the_way_back_still_undoes_its_part(cloud, host):
    instance = boot_failing(cloud)
    step = f'rollback_live_migration_at_{"source" if host == "host1" else "destination"}'
    stall = faults(cloud, host).stall(step)
    before = migrate(cloud, instance, 'host2')
    cloud.simulation.run_until(stall.reached.is_set)
    state.kill(cloud, host)
    stall.release()
    state.restart(cloud, host)
    cloud.wait(LONG)
    state.failed(cloud, instance, before, '')


@pytest.mark.parametrize('host', ['host1', 'host2'])
def test_a_host_that_restarts_in_its_post_step_does_it_again(cloud, host):
    instance = cloud.boot('one', 'host1')
    step = f'post_live_migration_at_{"source" if host == "host1" else "destination"}'
    stall = faults(cloud, host).stall(step, after=True)
    migrate(cloud, instance, 'host2')
    cloud.simulation.run_until(stall.reached.is_set)
    state.kill(cloud, host)
    stall.release()
    state.restart(cloud, host)
    cloud.wait(LONG)
    state.completed(cloud, instance, 'host2')
    assert cloud.database.cleanups.list() == []


# --- split brain, and unknown guests -----------------------------------------------------------------------


@pytest.mark.breaks('I1', 'I5', reason='the test runs the guest a second time')
def test_a_guest_that_runs_on_both_hosts_is_stuck_and_neither_copy_is_touched(cloud):
    instance = unattended(cloud)
    job_goes_on(cloud, instance)
    hypervisor(cloud, 'host1').delete(instance.uuid)
    hypervisor(cloud, 'host1').spawn(instance)
    held = state.allocations(cloud)
    state.restart(cloud, 'host1')
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].stuck_reason, timeout=120)
    cloud.simulation.advance(30)
    assert sorted(cloud.world.active_on(instance.uuid)) == ['host1', 'host2']
    assert state.allocations(cloud) == held, 'both are covered until the operator has decided'
    assert state.server(cloud, instance)['status'] == 'MIGRATING'
    assert any('is stuck' in line and 'Both hosts have the guest' in line for line in cloud.monitor.logs)
    # the operator ends one of them: a known case again, which goes on by itself
    hypervisor(cloud, 'host1').delete(instance.uuid)
    cloud.world.violations.clear()
    cloud.wait(LONG)
    assert state.migration(cloud, instance)['status'] == 'completed'


@pytest.mark.breaks('I5', reason='the guest has no owner, so that nothing covers it')
def test_a_guest_that_the_database_does_not_know_is_named_and_never_touched(cloud):
    instance = cloud.boot('one', 'host1')
    stray = instance.replace(uuid=cloud.new_uuid())
    hypervisor(cloud, 'host1').spawn(stray)
    was = hypervisor(cloud, 'host1').describe(stray.uuid), hypervisor(cloud, 'host1').residue(stray.uuid)
    state.kill(cloud, 'host1')
    state.restart(cloud, 'host1')
    (line,) = [line for line in cloud.monitor.logs if 'Unknown guests on host' in line]
    assert 'host1' in line
    assert f'{stray.uuid} (running)' in line
    assert '[compute] adopt_guests' in line
    assert instance.uuid not in line
    migrate(cloud, instance)
    cloud.wait()
    assert (hypervisor(cloud, 'host1').describe(stray.uuid), hypervisor(cloud, 'host1').residue(stray.uuid)) == was
    assert stray.uuid not in state.allocations(cloud)


# --- the queue over a restart, and limits that change ----------------------------------------------------------------


def many(cloud, count, **fields):
    """Have servers asked to leave host1 one after the other, none of which gets on."""
    instances = [cloud.boot(f'vm{number}', 'host1', **fields) for number in range(count)]
    faults(cloud, 'host1').stall('copying', sticky=True)
    for instance in instances:
        migrate(cloud, instance, 'host2')
        cloud.simulation.advance(0.5)
    for instance in instances:
        state.when(cloud, instance, 'queued', 'running')
    return instances


def jobs(cloud):
    return len(hypervisor(cloud, 'host1').jobs)


def order(cloud, instances):
    """Return the numbers of the servers whose jobs have started, in order."""
    numbers = {instance.uuid: number for number, instance in enumerate(instances)}
    return [numbers[effect.instance_uuid] for effect in cloud.world.effects('job started')]


@pytest.mark.parametrize('times', [1, 3])
def test_restart_keeps_the_order_of_the_queue_and_the_slot_of_a_running_migration(cloud, times):
    instances = many(cloud, 5)
    for _ in range(times):
        state.kill(cloud, 'host1')
        cloud.simulation.advance(1)
        state.restart(cloud, 'host1')
        cloud.simulation.advance(5)
        assert jobs(cloud) == 1, 'the job that was found holds the only slot'
        assert len(cloud.waiting()['host1']) == 4
    migration_requests.go_on(cloud)
    cloud.wait(LONG)
    assert order(cloud, instances) == [0, 1, 2, 3, 4]
    for instance in instances:
        assert state.migration(cloud, instance)['status'] == 'completed'


@pytest.mark.parametrize('restarts', [False, True])
def test_the_queue_has_the_order_of_requests_whichever_was_prepared_first(cloud, restarts):
    instances = [cloud.boot(f'vm{number}', 'host1') for number in range(4)]
    hypervisor(cloud, 'host1').faults.stall('copying', sticky=True)
    slow = hypervisor(cloud, 'host2').faults.stall('pre_live_migration', instance_uuid=instances[1].uuid)
    for instance in instances:
        assert cloud.live_migrate(instance, 'host2').status_int == 202
        cloud.simulation.advance(1)
    assert (jobs(cloud), len(cloud.waiting()['host1'])) == (1, 2), 'the second one is being prepared'
    slow.release()
    cloud.simulation.advance(5)
    assert len(cloud.waiting()['host1']) == 3
    if restarts:
        state.kill(cloud, 'host1')
        state.restart(cloud, 'host1')
        cloud.simulation.advance(5)
    migration_requests.go_on(cloud)
    cloud.wait(LONG)
    assert order(cloud, instances) == [0, 1, 2, 3]


def test_a_service_that_comes_back_with_a_lower_limit_starts_nothing_until_there_is_room(cloud):
    cloud.set_option('host1', 'max_concurrent_live_migrations', 3)
    instances = many(cloud, 6)
    assert jobs(cloud) == 3
    state.kill(cloud, 'host1')
    state.restart(cloud, 'host1')
    assert cloud.computes['host1']._runner.queue.limit == 1
    cloud.simulation.advance(10)
    assert jobs(cloud) == 3
    assert migration_requests.abort(cloud, instances[0]).status_int == 202
    cloud.simulation.run_until(lambda: jobs(cloud) == 2)
    cloud.simulation.advance(10)
    assert jobs(cloud) == 2, 'more than the limit still run'
    migration_requests.go_on(cloud)
    cloud.wait(LONG)
    began = order(cloud, instances)
    assert (sorted(began[:3]), began[3:]) == ([0, 1, 2], [3, 4, 5])


def test_a_limit_that_changes_loses_nothing_reorders_nothing_and_interrupts_nothing(cloud):
    instances = many(cloud, 8)
    assert jobs(cloud) == 1
    cloud.set_option('host1', 'max_concurrent_live_migrations', 4)
    cloud.simulation.run_until(lambda: jobs(cloud) == 4, timeout=1)
    running_then = set(hypervisor(cloud, 'host1').jobs)
    cloud.set_option('host1', 'max_concurrent_live_migrations', 2)
    cloud.simulation.advance(5)
    assert set(hypervisor(cloud, 'host1').jobs) == running_then
    assert migration_requests.abort(cloud, instances[1]).status_int == 202
    cloud.simulation.run_until(lambda: jobs(cloud) == 3)
    cloud.simulation.advance(5)
    # those that get their slots at once may begin in any order
    assert sorted(order(cloud, instances)) == [0, 1, 2, 3], 'three run and two may'
    for limit in (5, 1, 3):
        cloud.set_option('host1', 'max_concurrent_live_migrations', limit)
        cloud.simulation.run_ready()
    migration_requests.go_on(cloud)
    cloud.wait(LONG)
    began = order(cloud, instances)
    assert sorted(began) == list(range(8))
    assert all(abs(number - place) < 5 for place, number in enumerate(began)), began
    ended = [state.migration(cloud, instance)['status'] for instance in instances]
    assert ended == ['completed', 'cancelled', *['completed'] * 6]


def test_a_limit_that_cannot_be_is_logged_and_the_old_one_stays(cloud, tmp_path):
    instances = many(cloud, 3)
    path = tmp_path / 'migrator.conf'
    path.write_text('[DEFAULT]\nmax_concurrent_live_migrations = 0\n')
    conf = cloud.computes['host1'].conf
    conf.clear_override('max_concurrent_live_migrations')
    conf(['--config-file', str(path)], project='migrator')
    conf.mutate_config_files()
    cloud.computes['host1']._conf_mutated(conf, {})
    cloud.simulation.advance(5)
    assert jobs(cloud) == 1
    assert any('Keeping max_concurrent_live_migrations at 1' in line for line in cloud.monitor.logs)
    migration_requests.go_on(cloud)
    cloud.wait(LONG)
    assert order(cloud, instances) == [0, 1, 2]
