# SPDX-License-Identifier: Apache-2.0

"""Aborts during faults: with anything lost, late, hung or dead, the abort works or says why not."""

import pytest

from migrator.virt import driver
from tests.functional import migration_requests, state
from tests.functional.faults import LONG, AtCommit, by_turns, faults, migrate
from tests.functional.test_abort import end

pytestmark = pytest.mark.slow

STATUSES = ['preparing', 'queued', 'running']


def begin(cloud, status):
    """Bring a migration to a status. Return its instance, the one before it, and the expected rest."""
    instance = cloud.boot('one', 'host1')
    before = state.everything(cloud)
    other = migration_requests.TO[status](cloud, instance)
    return instance, other, migration_requests.without(cloud, instance) if other else before


# --- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('status', ['accepted', *STATUSES])
@pytest.mark.simulated(reason='it decides what becomes of single messages')
def test_an_abort_whose_wake_up_is_lost_is_found_by_the_sweep(cloud, status):
    instance, _, before = begin(cloud, status)
    cloud.bus.faults = lambda message: 'lose' if message.method == 'wake' else None
    assert migration_requests.abort(cloud, instance).status_int == 202
    assert end(cloud, instance) < 7
    migration_requests.cancelled(cloud, instance, before)


@pytest.mark.nova_bug(1786346, 1901707, 'dd952f9fdf', 'f628dc9099')
@pytest.mark.parametrize('fault', ['lose', 'lose_answer', 'duplicate', 3.0, 90.0, 'refuse'])
@pytest.mark.parametrize('status', ['queued', 'running'])
@pytest.mark.simulated(reason='it decides what becomes of single messages')
def test_no_abort_that_is_lost_late_or_doubled_on_its_way_to_the_source_is_forgotten(cloud, status, fault):
    """Early, late, never; and a time-out that leads to the next."""
    instance, other, before = begin(cloud, status)
    left = [fault]
    cloud.bus.faults = lambda message: left.pop() if message.method == 'live_migration_abort' and left else None
    assert migration_requests.abort(cloud, instance).status_int == 202
    end(cloud, instance, within=LONG)
    assert left == []
    migration_requests.cancelled(cloud, instance, before)
    cloud.simulation.advance(100 if fault == 90.0 else 0)
    assert state.everything(cloud) == before
    if other:
        assert cloud.migrations(other)[-1].status == 'running'


@pytest.mark.nova_bug(1786346, 1788014, 1901707)
@pytest.mark.parametrize('status', STATUSES)
@pytest.mark.simulated(reason='it decides what becomes of single messages')
def test_abort_with_all_events_lost_is_finished_by_polls(cloud, status):
    """An event that never comes."""
    instance, _, before = begin(cloud, status)
    cloud.bus.faults = lambda message: 'lose' if message.method == 'step_ended' else None
    assert migration_requests.abort(cloud, instance).status_int == 202
    end(cloud, instance)
    migration_requests.cancelled(cloud, instance, before)


# --- the driver ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('after', [False, True])
def test_a_driver_that_fails_to_abort_is_asked_again_as_long_as_there_is_the_job(cloud, after):
    """The abort was sent once, and the guest moved although the request was in time."""
    instance, _, before = begin(cloud, 'running')
    for _ in range(2):
        faults(cloud, 'host1').fail('live_migration_abort', 'the monitor is busy', after=after)
    assert migration_requests.abort(cloud, instance).status_int == 202
    assert end(cloud, instance) < 20
    migration_requests.cancelled(cloud, instance, before)


def test_driver_that_cannot_abort_completes_and_the_action_says_so(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=8192)
    faults(cloud, 'host1').fail('live_migration_abort', 'it cannot', sticky=True)
    migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.wait()
    migration_requests.too_late(cloud, instance)


def test_driver_failure_before_the_abort_is_shown_as_a_failure(cloud):
    """The driver's result decides. Either way the server is as it was."""
    instance = cloud.boot('one', 'host1', memory_mb=4096, dirty_rate=200)
    before = state.everything(cloud)
    stall = faults(cloud, 'host1').stall('live_migration_abort', sticky=True)
    faults(cloud, 'host1').fail('cutover', 'the link broke')
    migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    assert migration_requests.abort(cloud, instance).status_int == 202
    end(cloud, instance)
    stall.release()
    row = cloud.migrations(instance)[-1]
    assert row.status == 'failed'
    assert row.abort_verdict.startswith('failed: ')
    assert migration_requests.verdict(cloud, instance) == ('Error', row.abort_verdict)
    assert state.everything(cloud) == before


def test_hanging_abort_in_driver_delays_no_other_work(cloud):
    instance, waits = cloud.boot('one', 'host1', memory_mb=16384), cloud.boot('two', 'host1')
    stall = faults(cloud, 'host1').stall('live_migration_abort', instance_uuid=instance.uuid, sticky=True)
    migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    migrate(cloud, waits)
    state.when(cloud, waits, 'queued')
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.run_until(stall.reached.is_set)
    assert migration_requests.abort(cloud, waits).status_int == 202
    assert end(cloud, waits) < 1
    assert state.migration(cloud, waits)['status'] == 'cancelled'
    assert state.in_progress(cloud, instance)[0]['status'] == 'running'
    end(cloud, instance)
    stall.release()
    migration_requests.too_late(cloud, instance)


@pytest.mark.parametrize('status', ['queued', 'running'])
@pytest.mark.simulated(reason='it has a hypervisor hang for a long time')
def test_abort_does_not_wait_for_destination_whose_hypervisor_hangs(cloud, status):
    """The abort was not sent while the destination did not report the guest, and the guest moved."""
    instance, _, before = begin(cloud, status)
    row = cloud.migrations(instance)[-1]
    stall = faults(cloud, row.dest_compute).stall('get_guest', instance_uuid=instance.uuid, sticky=True)
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.advance(10)
    assert instance.uuid not in cloud.world.hypervisors['host1'].jobs
    assert row.uuid not in cloud.waiting()['host1']
    assert cloud.migrations(instance)[-1].in_progress, 'it is not settled without the destination'
    stall.release()
    end(cloud, instance)
    migration_requests.cancelled(cloud, instance, before)


@pytest.mark.simulated(reason='it kills a conductor, and has a hypervisor hang for a long time')
def test_abort_after_takeover_does_not_wait_for_destination_whose_hypervisor_hangs(cloud):
    """The new owner first waited for both hosts, and the guest moved."""
    instance, _, before = begin(cloud, 'running')
    stall = faults(cloud, 'host2').stall('get_guest', instance_uuid=instance.uuid, sticky=True)
    cloud.bus.faults = lambda message: 'lose' if message.method == 'wake' else None
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.start_conductor('conductor2')
    state.kill(cloud, 'conductor1')
    cloud.simulation.advance(40)
    assert instance.uuid not in cloud.world.hypervisors['host1'].jobs
    assert cloud.migrations(instance)[-1].in_progress, 'it is not settled without the destination'
    stall.release()
    end(cloud, instance)
    migration_requests.cancelled(cloud, instance, before)


@pytest.mark.nova_bug('abort-lost-while-queueing')
@pytest.mark.simulated(reason='it lets a driver hang')
def test_an_abort_between_the_slot_and_the_job_is_not_lost(cloud):
    """If the worker came first, the next abort of the running migration was swallowed."""
    instance = cloud.boot('one', 'host1')
    before = state.everything(cloud)
    stall = faults(cloud, 'host1').stall('starting')
    migrate(cloud, instance)
    cloud.simulation.run_until(stall.reached.is_set)
    assert state.migration(cloud, instance)['status'] == 'queued'
    assert cloud.waiting()['host1'] == []
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.advance(3)
    stall.release()
    end(cloud, instance)
    migration_requests.cancelled(cloud, instance, before)


@pytest.mark.simulated(reason='it makes a driver lie')
def test_a_driver_that_says_aborted_of_a_guest_that_has_moved_is_not_believed(cloud):
    """Its result decides, unless the destination runs the guest."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    faults(cloud, 'host1').lie('live_migration', driver.Verdict.ABORTED)
    arrived = faults(cloud, 'host1').stall('arrived')
    migrate(cloud, instance)
    cloud.simulation.run_until(arrived.reached.is_set)
    assert migration_requests.abort(cloud, instance).status_int == 202
    arrived.release()
    cloud.wait()
    migration_requests.too_late(cloud, instance)


@pytest.mark.simulated(reason='it measures the clock')
def test_a_source_that_hangs_in_its_check_holds_up_no_abort(cloud):
    """An abort takes effect during a check; it once took effect when the check had ended."""
    instance = cloud.boot('one', 'host1')
    before = state.everything(cloud)
    stall = faults(cloud, 'host1').stall('check_can_live_migrate_source')
    migrate(cloud, instance)
    cloud.simulation.run_until(stall.reached.is_set)
    cloud.simulation.advance(10)
    assert migration_requests.abort(cloud, instance).status_int == 202
    assert end(cloud, instance) <= 2
    migration_requests.cancelled(cloud, instance, before)
    stall.release()
    cloud.simulation.advance(10)
    assert state.everything(cloud) == before


@pytest.mark.parametrize('phase', ['check_can_live_migrate_destination', 'pre_live_migration'])
def test_a_destination_that_does_not_look_at_its_token_is_waited_for_and_then_cleaned(cloud, phase):
    instance = cloud.boot('one', 'host1')
    before = state.everything(cloud)
    stall = faults(cloud, 'host2').stall(phase)
    migrate(cloud, instance)
    cloud.simulation.run_until(stall.reached.is_set)
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.advance(20)
    assert state.in_progress(cloud, instance)[0]['status'] == 'preparing', 'no cleanup interferes with it'
    stall.release()
    end(cloud, instance)
    migration_requests.cancelled(cloud, instance, before)


@pytest.mark.nova_bug(1488435, 1662626)
@pytest.mark.parametrize('status', STATUSES)
@pytest.mark.simulated(reason='it has hypervisors take their time')
def test_a_rollback_that_fails_a_few_times_is_tried_again_until_it_is_clean(cloud, status):
    """A cleanup that raised left the server in MIGRATING for ever."""
    instance, _, before = begin(cloud, status)
    for _ in range(3):
        faults(cloud, cloud.migrations(instance)[-1].dest_compute).fail('rollback_live_migration_at_destination')
    assert migration_requests.abort(cloud, instance).status_int == 202
    end(cloud, instance)
    migration_requests.cancelled(cloud, instance, before)


# --- conductors ------------------------------------------------------------------------------------------------------


@pytest.mark.nova_bug('accepted-without-conductor')
@pytest.mark.parametrize('status', ['accepted', *STATUSES])
@pytest.mark.simulated(reason='it has hypervisors take their time')
def test_a_migration_whose_conductor_is_dead_can_be_aborted(cloud, status):
    """The conductor died, and the migration stayed `accepted`, which no API could abort."""
    instance, _, before = begin(cloud, status)
    state.kill(cloud, 'conductor1')
    assert migration_requests.abort(cloud, instance).status_int == 202
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.advance(5)
    assert state.in_progress(cloud, instance)[0]['status'] == status
    cloud.start_conductor('conductor2')
    end(cloud, instance)
    migration_requests.cancelled(cloud, instance, before)


#: Some of the conductor's commits between an abort and its end. The crash matrix has all of them.
COMMITS_OF_AN_ABORT = (1, 2, 4)


@pytest.mark.nova_bug(1397153, 1714237, 1715182, 1949808, 1960412)
@pytest.mark.parametrize(('number', 'moment'), by_turns(COMMITS_OF_AN_ABORT))
@pytest.mark.parametrize('status', ['queued', 'running'])
@pytest.mark.simulated(reason='it acts at single commits')
def test_abort_is_finished_when_conductor_is_killed_at_any_commit(cloud, status, number, moment):
    """Nothing stays half undone."""
    instance, _, before = begin(cloud, status)
    victim = cloud.processes['conductor1']
    at = AtCommit(cloud, number, moment, lambda: cloud.simulation.kill(victim))
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.run_until(lambda: at.injected or cloud.migrations(instance)[-1].ended)
    if at.injected:
        del cloud.conductors['conductor1']
        cloud.start_conductor('conductor2')
    end(cloud, instance, within=LONG)
    migration_requests.cancelled(cloud, instance, before)


@pytest.mark.parametrize('status', STATUSES)
@pytest.mark.simulated(reason='it pauses a process')
def test_a_conductor_that_slept_past_its_lease_while_it_was_aborted_undoes_nothing_when_it_wakes(cloud, status):
    instance, _, before = begin(cloud, status)
    cloud.simulation.pause(cloud.processes['conductor1'])
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.start_conductor('conductor2')
    end(cloud, instance, within=LONG)
    cloud.simulation.resume(cloud.processes['conductor1'])
    cloud.simulation.advance(30)
    migration_requests.cancelled(cloud, instance, before)


# --- computes --------------------------------------------------------------------------------------------------------


@pytest.mark.nova_bug(1753676)
@pytest.mark.parametrize('down_for', [0.0, 3.0])
@pytest.mark.parametrize('status', ['queued', 'running'])
@pytest.mark.simulated(reason='it kills a service at a single message')
def test_a_source_that_is_killed_when_the_abort_has_come_is_asked_when_it_is_back(cloud, status, down_for):
    """What runs goes on without its service; what waited is not queued again, for it is unwound."""
    instance, other, before = begin(cloud, status)
    injected = []

    def inject(message):
        if message.method == 'live_migration_abort' and not injected:
            injected.append(message)
            cloud.world.threads.start(lambda: state.kill(cloud, 'host1'), name='power')

    cloud.bus.faults = inject
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.run_until(lambda: injected and 'host1' not in cloud.processes)
    cloud.simulation.advance(down_for)
    state.restart(cloud, 'host1')
    end(cloud, instance, within=LONG)
    assert state.migration(cloud, instance)['status'] == 'cancelled'
    if other:
        assert migration_requests.effects(cloud, instance, 'job started') == []
        migration_requests.go_on(cloud)
        cloud.wait(LONG)
        state.completed(cloud, other, 'host2')
    else:
        migration_requests.cancelled(cloud, instance, before)


@pytest.mark.parametrize('status', STATUSES)
@pytest.mark.simulated(reason='it has hypervisors take their time')
def test_a_destination_that_restarts_while_it_is_unwound_is_cleaned_all_the_same(cloud, status):
    instance, _, before = begin(cloud, status)
    host = cloud.migrations(instance)[-1].dest_compute
    stall = faults(cloud, host).stall('rollback_live_migration_at_destination')
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.run_until(stall.reached.is_set)
    state.kill(cloud, host)
    stall.release()
    state.restart(cloud, host)
    end(cloud, instance, within=LONG)
    migration_requests.cancelled(cloud, instance, before)


@pytest.mark.parametrize('status', STATUSES)
@pytest.mark.simulated(reason='it waits for a host to be given up, which takes minutes')
def test_dead_destination_has_a_deferred_cleanup_and_the_server_is_free(cloud, status):
    instance, _, before = begin(cloud, status)
    host = cloud.migrations(instance)[-1].dest_compute
    state.kill(cloud, host)
    assert migration_requests.abort(cloud, instance).status_int == 202
    end(cloud, instance, within=LONG)
    assert state.migration(cloud, instance)['status'] == 'cancelled'
    after = state.everything(cloud)
    assert (after['servers'], after['allocations']) == (before['servers'], before['allocations'])
    assert [cleanup.host for cleanup in cloud.database.cleanups.list()] == [host]


@pytest.mark.breaks('I9', reason='every message to the source is lost for minutes')
@pytest.mark.simulated(reason='it lets minutes pass')
def test_abort_request_waits_for_an_unreachable_source(cloud):
    instance, _, before = begin(cloud, 'running')
    cloud.bus.faults = lambda message: (
        'lose' if '.host1' in str(message.target) or message.method == 'step_ended' else None
    )
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.advance(200)
    assert state.in_progress(cloud, instance)[0]['status'] == 'running'
    assert 'host1' in cloud.migrations(instance)[-1].waits_for
    cloud.bus.faults = lambda message: None
    end(cloud, instance, within=LONG)
    migration_requests.cancelled(cloud, instance, before)
