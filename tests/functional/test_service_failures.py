# SPDX-License-Identifier: Apache-2.0

"""Failures of messages, processes and hosts: each migration ends, and its guest runs once."""

import pytest

from tests.functional import state
from tests.functional.faults import COMMITS, COMMITS_BACK, LONG, AtCommit, boot_failing, by_turns, faults, migrate

pytestmark = pytest.mark.slow

# --- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.nova_bug(1786346, 1901707)
@pytest.mark.simulated(reason='it decides what becomes of single messages')
def test_migration_with_all_events_lost_is_finished_by_polls(cloud):
    """An event that never comes."""
    instance = cloud.boot('one', 'host1')
    cloud.bus.faults = lambda message: 'lose' if message.method == 'step_ended' else None
    migrate(cloud, instance)
    cloud.wait()
    state.completed(cloud, instance, 'host2')
    assert cloud.simulation.time < 60


@pytest.mark.nova_bug(1786346, 1788014, 1901707)
@pytest.mark.simulated(reason='it decides what becomes of single messages')
def test_rollback_with_all_events_lost_is_finished_by_polls(cloud):
    """An event that never comes, then a failure."""
    instance = cloud.boot('one', 'host1')
    cloud.bus.faults = lambda message: 'lose' if message.method == 'step_ended' else None
    faults(cloud, 'host1').fail('copying')
    before = migrate(cloud, instance)
    cloud.wait()
    state.failed(cloud, instance, before, '')


@pytest.mark.nova_bug(1786346, 1901707)
@pytest.mark.simulated(reason='it decides what becomes of single messages')
def test_events_that_come_twice_or_late_change_nothing(cloud):
    """An event that comes too late."""
    instance = cloud.boot('one', 'host1')
    # Two questions and their answers, and a poll, are six messages: every third would be the same one of them for ever.
    cloud.bus.faults = lambda message: {0: 'duplicate', 2: 7.0, 3: 7.0}.get(message.number % 5)
    migrate(cloud, instance)
    cloud.wait()
    state.completed(cloud, instance, state.host_of(cloud, instance))


@pytest.mark.simulated(reason='it decides what becomes of single messages')
def test_migration_with_lost_wake_up_is_taken_up_by_sweep(cloud):
    """A killed conductor left it `accepted` for ever, which no API could abort."""
    instance = cloud.boot('one', 'host1')
    cloud.bus.faults = lambda message: 'lose' if message.method == 'live_migrate' else None
    migrate(cloud, instance)
    assert state.in_progress(cloud, instance)[0]['status'] == 'accepted'
    cloud.simulation.advance(6)
    cloud.wait()
    state.completed(cloud, instance, 'host2')


#: The crash matrix has the other calls. After a check that is not answered another candidate is tried, and there are no
#: others on its paths.
CALLS = ['check_can_live_migrate_destination', 'check_can_live_migrate_source', 'live_migration']


def on_the_first(cloud, method, fault):
    """Have something done to the first call of a method; all others arrive."""
    faults_left = [fault]

    def on(message):
        wanted = (message.method, message.kind) == (method, 'call')
        return faults_left.pop() if wanted and faults_left else None

    cloud.bus.faults = on


#: 90 s is past the time-out of every call that is answered at once.
MESSAGE_FAULTS = ['lose', 'lose_answer', 'duplicate', 90.0, 'refuse']


@pytest.mark.nova_bug(1435633, 1786346, 1901707, 2044235, 'dd952f9fdf', 'f628dc9099')
@pytest.mark.parametrize('fault', MESSAGE_FAULTS)
@pytest.mark.parametrize('method', CALLS)
@pytest.mark.simulated(reason='it decides what becomes of single messages')
def test_no_single_message_that_is_lost_late_or_doubled_harms_a_migration(cloud, method, fault):
    """Time-outs, and what arrives after them."""
    instance = cloud.boot('one', 'host1')
    on_the_first(cloud, method, fault)
    migrate(cloud, instance)
    cloud.wait(LONG)
    cloud.simulation.advance(90 if fault == 90.0 else 0)
    state.completed(cloud, instance, state.host_of(cloud, instance))
    assert cloud.world.violations == []


@pytest.mark.nova_bug(1662626, 1786346, 1901707, 'dd952f9fdf', 'f628dc9099')
@pytest.mark.parametrize('fault', MESSAGE_FAULTS)
@pytest.mark.parametrize('method', ['live_migration', 'rollback_live_migration_at_source'])
@pytest.mark.simulated(reason='it decides what becomes of single messages')
def test_no_single_message_that_is_lost_late_or_doubled_harms_a_rollback(cloud, method, fault):
    """The same, on the way back."""
    instance = boot_failing(cloud)
    on_the_first(cloud, method, fault)
    before = migrate(cloud, instance, 'host2')
    cloud.wait(LONG)
    cloud.simulation.advance(90 if fault == 90.0 else 0)
    state.failed(cloud, instance, before, '')


@pytest.mark.nova_bug('06d25926a1')
@pytest.mark.simulated(reason='it decides what becomes of single messages')
def test_a_broker_that_is_away_for_a_minute_costs_time_only(cloud):
    """The broker is down when the guest has moved."""
    instance = cloud.boot('one', 'host1', memory_mb=2048)
    migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    until = cloud.simulation.time + 60
    cloud.bus.faults = lambda message: 'refuse' if cloud.simulation.time < until else None
    cloud.wait(LONG)
    state.completed(cloud, instance, 'host2')


# --- processes: conductors -------------------------------------------------------------------------------------------


def kill_conductor_at(cloud, number, moment):
    """Kill the conductor at one of its commits, and start another one when that has happened."""
    victim = cloud.processes['conductor1']
    at = AtCommit(cloud, number, moment, lambda: cloud.simulation.kill(victim))

    def inject_and_take_over():
        cloud.simulation.run_until(lambda: at.injected)
        del cloud.conductors['conductor1']
        cloud.start_conductor('conductor2')
        cloud.wait(LONG)

    return inject_and_take_over


@pytest.mark.nova_bug(1397153, 'accepted-without-conductor')
@pytest.mark.parametrize('moment', ['begin', 'committed'])
@pytest.mark.parametrize('number', COMMITS)
@pytest.mark.simulated(reason='it acts at single commits')
def test_migration_is_finished_when_conductor_is_killed_at_any_commit(cloud, number, moment):
    """Nothing stays half done."""
    instance = cloud.boot('one', 'host1')
    finish = kill_conductor_at(cloud, number, moment)
    migrate(cloud, instance)
    finish()
    state.completed(cloud, instance, state.host_of(cloud, instance))
    assert len(cloud.world.effects('job started', instance.uuid)) == 1


@pytest.mark.nova_bug(1397153, 1662626, 1714237, 1715182)
@pytest.mark.parametrize(('number', 'moment'), by_turns(COMMITS_BACK))
@pytest.mark.simulated(reason='it acts at single commits')
def test_rollback_is_finished_when_conductor_is_killed_at_any_commit(cloud, number, moment):
    """The same, on the way back."""
    instance = boot_failing(cloud)
    finish = kill_conductor_at(cloud, number, moment)
    before = migrate(cloud, instance)
    finish()
    state.failed(cloud, instance, before, '')


@pytest.mark.simulated(reason='it reaches into a service')
def test_a_conductor_that_was_paused_past_its_lease_writes_nothing_when_it_wakes(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=8192)
    migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    cloud.simulation.pause(cloud.processes['conductor1'])
    cloud.start_conductor('conductor2')
    cloud.simulation.advance(17)
    cloud.simulation.resume(cloud.processes['conductor1'])
    cloud.wait(LONG)
    state.completed(cloud, instance, 'host2')
    entries = cloud.history_of(cloud.migrations(instance)[0])
    assert [entry['epoch'] for entry in entries] == sorted(entry['epoch'] for entry in entries)


@pytest.mark.simulated(reason='it lets minutes pass')
def test_migration_of_only_conductor_waits_and_is_finished_after_its_restart(cloud):
    instance = cloud.boot('one', 'host1')
    migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    state.kill(cloud, 'conductor1')
    cloud.simulation.advance(600)
    assert state.server(cloud, instance)['status'] == 'MIGRATING'
    cloud.start_conductor('conductor1')
    cloud.wait(LONG)
    state.completed(cloud, instance, 'host2')


# --- processes: computes ---------------------------------------------------------------------------------------------


@pytest.mark.nova_bug(1753676, 'killed-compute-leaves-queued')
def test_queue_of_a_killed_source_is_restored_in_order(cloud):
    """In nova a compute that is killed leaves what waits ``queued`` for ever."""
    instances = [cloud.boot(f'vm{number}', 'host1', memory_mb=2048) for number in range(4)]
    for instance in instances:
        migrate(cloud, instance)
        cloud.simulation.advance(0.1)
    assert state.migration(cloud, instances[0])['status'] == 'running'
    for instance in instances[1:]:
        state.when(cloud, instance, 'queued')
    state.kill(cloud, 'host1')
    cloud.simulation.advance(1)
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    for instance in instances:
        state.completed(cloud, instance, state.host_of(cloud, instance))
    started = [effect.instance_uuid for effect in cloud.world.effects('job started')]
    assert started == [instance.uuid for instance in instances], 'each once, first in, first out'


@pytest.mark.nova_bug(1753676)
@pytest.mark.parametrize('down_for', [0.5, 5, 30])
def test_a_source_that_is_killed_while_it_copies_finds_its_job_again_or_its_guest_gone(cloud, down_for):
    """The watcher died and the transfer went on by itself; no split brain."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    state.kill(cloud, 'host1')
    cloud.simulation.advance(down_for)
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    state.completed(cloud, instance, 'host2')
    assert len(cloud.world.effects('job started', instance.uuid)) == 1


@pytest.mark.nova_bug(1753676)
def test_a_source_that_is_killed_before_its_hypervisor_has_the_job_starts_it_once(cloud):
    """The driver call of an earlier boot may still start a job; it is waited for or aborted."""
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, 'host1').stall('starting')
    migrate(cloud, instance)
    cloud.simulation.run_until(stall.reached.is_set)
    state.kill(cloud, 'host1')
    state.restart(cloud, 'host1')
    stall.release()
    cloud.wait(LONG)
    state.completed(cloud, instance, 'host2')
    assert len(cloud.world.effects('job started', instance.uuid)) == 1


@pytest.mark.parametrize('prepared', [True, False])
def test_a_destination_that_restarts_between_its_preparation_and_the_copy_still_receives_the_guest(cloud, prepared):
    """What was prepared survives a restart of the service; where it does not, it is prepared again."""
    first, second = (cloud.boot(name, 'host1', memory_mb=4096) for name in ('first', 'second'))
    # until it is ready again the second must not have its turn: the copy would only fail
    stall = faults(cloud, 'host1').stall('copying', instance_uuid=first.uuid)
    migrate(cloud, first, 'host3')
    migrate(cloud, second, 'host2')
    state.when(cloud, second, 'queued')
    destination = cloud.world.hypervisors['host2']
    state.kill(cloud, 'host2')
    if not prepared:
        destination.delete(second.uuid)
    state.restart(cloud, 'host2')
    cloud.simulation.run_until(lambda: second.uuid in destination.guests)
    assert state.in_progress(cloud, second)[0]['status'] == 'queued'
    stall.release()
    cloud.wait(LONG)
    state.completed(cloud, first, 'host3')
    state.completed(cloud, second, 'host2')


@pytest.mark.parametrize('host', ['host1', 'host2'])
def test_a_host_that_restarts_while_the_destination_prepares_is_asked_again(cloud, host):
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, 'host2').stall('pre_live_migration')
    migrate(cloud, instance)
    cloud.simulation.run_until(stall.reached.is_set)
    state.kill(cloud, host)
    stall.release()
    state.restart(cloud, host)
    cloud.wait(LONG)
    state.completed(cloud, instance, 'host2')


@pytest.mark.parametrize('host', ['host1', 'host2'])
@pytest.mark.parametrize('status', ['queued', 'running'])
@pytest.mark.simulated(reason='it decides what becomes of single messages')
def test_unreachable_host_is_not_down_and_its_migrations_wait(cloud, host, status):
    instance = cloud.boot('one', 'host1', memory_mb=8192)
    stall = faults(cloud, 'host1').stall('starting' if status == 'queued' else 'copying')
    migrate(cloud, instance)
    state.when(cloud, instance, status)
    # its heartbeats arrive, its answers do not
    cloud.bus.faults = lambda message: (
        'lose' if f'.{host}' in str(message.target) or message.method == 'step_ended' else None
    )
    cloud.simulation.advance(200)
    assert state.in_progress(cloud, instance)[0]['status'] == status
    assert state.service(cloud, host)['state'] == 'up'
    cloud.bus.faults = lambda message: None
    stall.release()
    cloud.wait(LONG)
    state.completed(cloud, instance, 'host2')


# --- whole hosts -----------------------------------------------------------------------------------------------------


@pytest.mark.simulated(reason='it waits for a host to be given up, which takes minutes')
def test_a_destination_that_loses_its_power_in_the_copy_leaves_the_guest_where_it_was(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    before = migrate(cloud, instance, 'host2')
    state.when(cloud, instance, 'running')
    cloud.world.hypervisors['host2'].power_off()
    state.kill(cloud, 'host2')
    cloud.wait(LONG)
    assert state.migration(cloud, instance)['status'] == 'failed'
    after = state.everything(cloud)
    assert after['servers'] == before['servers']
    assert after['allocations'] == before['allocations']
    assert cloud.world.active_on(instance.uuid) == ['host1']
    assert [cleanup.host for cleanup in cloud.database.cleanups.list()] == ['host2']


@pytest.mark.simulated(reason='it lets minutes pass')
def test_a_destination_that_hangs_and_is_fenced_in_the_copy_has_its_job_aborted(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    faults(cloud, 'host1').stall('copying')
    before = migrate(cloud, instance, 'host2')
    state.when(cloud, instance, 'running')
    state.kill(cloud, 'host2')
    cloud.simulation.advance(200)
    assert state.in_progress(cloud, instance)[0]['status'] == 'running', (
        'its service is down, its hypervisor may not be'
    )
    state.force_down(cloud, 'host2')
    cloud.wait(LONG)
    assert state.migration(cloud, instance)['status'] == 'failed'
    assert state.everything(cloud)['servers'] == before['servers']
    assert cloud.world.active_on(instance.uuid) == ['host1']


@pytest.mark.nova_bug(1724172, 1753676, 1848343)
@pytest.mark.simulated(reason='it lets minutes pass')
def test_a_source_that_loses_its_power_and_is_fenced_ends_in_error_with_nothing_left_elsewhere(cloud):
    """The guest is lost; the server can be evacuated, and says so."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    cloud.world.hypervisors['host1'].power_off()
    state.kill(cloud, 'host1')
    cloud.simulation.advance(200)
    waits = cloud.migrations(instance)[0]
    assert (waits.status, waits.stuck_reason) == ('running', None), 'its hypervisor may go on copying'
    assert 'once the host is fenced, declare it forced down' in waits.waits_for
    state.force_down(cloud, 'host1')
    cloud.wait(LONG)
    assert state.migration(cloud, instance)['status'] == 'error'
    shown = state.server(cloud, instance)
    assert (shown['status'], shown['OS-EXT-SRV-ATTR:host']) == ('ERROR', 'host1')
    assert shown['OS-EXT-STS:task_state'] is None
    assert state.allocations(cloud) == {instance.uuid: {'host1': state.CLAIM | {'MEMORY_MB': 4096}}}
    assert list(state.guests(cloud, instance)) == ['host1']


def test_a_guest_that_its_user_shuts_off_in_the_copy_stays_shut_off_where_it_was(cloud):
    """The user acts on the guest behind our back."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    before = migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    cloud.world.hypervisors['host1'].shut_off(instance.uuid)
    cloud.wait()
    assert state.migration(cloud, instance)['status'] == 'failed'
    assert state.allocations(cloud) == before['allocations']
    assert state.guests(cloud, instance) == {'host1': ('shutdown', False, before['guests'][instance.uuid]['host1'][2])}
