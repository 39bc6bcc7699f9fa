# SPDX-License-Identifier: Apache-2.0

"""Aborts, from REST to the driver: when they are accepted, their result, and their races.

That an abort is refused in some statuses and below some microversions is tested at the API alone.
"""

import pytest

from tests.functional import migration_requests, state
from tests.functional.faults import LONG, AtCommit, faults, migrate

DRIVER_CALLS = ('live_migration', 'live_migration_abort', 'rollback_live_migration_at_source')
#: What starting or aborting a job leaves in the hypervisors' log.
JOB = ('job started', 'abort asked')

IN_ANY_CASE = [pytest.param(status, id=status) for status in ('accepted', 'preparing', 'queued', 'running')]


def end(cloud, instance, within=60):
    """Let the cloud run until a server's newest migration has ended; return how many seconds that took."""
    asked = cloud.simulation.time
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].ended, timeout=within)
    return cloud.simulation.time - asked


# --- when it is taken ------------------------------------------------------------------------------------------------


@pytest.mark.nova_bug('post-copy-in-no-list')
@pytest.mark.cloud(post_copy=True)
@pytest.mark.parametrize('status', ['running (post-copy)', 'post-migrating'])
def test_abort_with_guest_at_destination_returns_400_with_reason(cloud, status):
    """What is in post-copy was in none of three lists, and the answers were wrong."""
    instance = cloud.boot('one', 'host1')
    migration_requests.TO[status](cloud, instance)
    migration_requests.refused(
        migration_requests.abort(cloud, instance), 400, status, 'runs at the destination already'
    )
    assert state.in_progress(cloud, instance)[0]['status'] == status
    migration_requests.go_on(cloud)
    cloud.wait()
    state.moved(cloud, instance, 'host2')
    assert cloud.migrations(instance)[-1].abort_requested_at is None


def capped(cloud, host='host1', version=2):
    """Start the compute service of a host anew, as one of an older release."""
    state.kill(cloud, host)
    cloud.options['compute.service_version_cap'] = version
    state.restart(cloud, host)
    del cloud.options['compute.service_version_cap']


@pytest.mark.parametrize('version', ['2.24', '2.80'])
@pytest.mark.simulated(reason='it starts a service with another option')
def test_running_migration_on_old_host_is_aborted(cloud, version):
    capped(cloud)
    instance = cloud.boot('one', 'host1')
    before = state.everything(cloud)
    migration_requests.running(cloud, instance)
    assert migration_requests.abort(cloud, instance, version).status_int == 202
    end(cloud, instance)
    migration_requests.cancelled(cloud, instance, before)


@pytest.mark.simulated(reason='it starts a service with another option, and writes a request past the API')
def test_queued_migration_on_old_host_is_aborted_when_it_runs(cloud):
    """The API accepted it without the host's version: nothing is sent that the host lacks."""
    capped(cloud)
    instance = cloud.boot('one', 'host1')
    first = migration_requests.queued(cloud, instance)
    row = cloud.migrations(instance)[-1]
    cloud.database.requests.request_abort(migration_requests.context(), row, ['queued'])
    cloud.simulation.advance(12)
    assert state.migration(cloud, instance)['status'] == 'queued'
    sent = [message for message in cloud.recorder.messages if message.method == 'live_migration_abort']
    assert sent == []
    assert 'too old' not in (cloud.migrations(instance)[-1].stuck_reason or '')
    faults(cloud, 'host1').stall('copying', instance_uuid=instance.uuid)
    migration_requests.go_on_with(cloud, first)
    end(cloud, instance)
    assert state.history(cloud, instance)[-2:] == ['running', 'cancelled']
    state.moved(cloud, instance, 'host1')
    cloud.wait()


# --- what it leaves --------------------------------------------------------------------------------------------------


@pytest.mark.nova_bug(1714237, 1715182, 1841411, 1949808, 1960412)
@pytest.mark.parametrize('status', IN_ANY_CASE)
@pytest.mark.simulated(reason='it loses messages, and has hypervisors take their time')
def test_an_aborted_server_is_exactly_as_it_was(cloud, status):
    """A queued abort left the server migrating, and its allocation at the destination."""
    instance = cloud.boot('one', 'host1', dirty_rate=50)
    other = migration_requests.TO['queued'](cloud, instance) if status == 'queued' else None
    if other is None:
        before = state.everything(cloud)
        migration_requests.TO[status](cloud, instance)
    else:
        before = migration_requests.without(cloud, instance)
    assert migration_requests.abort(cloud, instance).status_int == 202
    end(cloud, instance)
    migration_requests.cancelled(cloud, instance, before)
    if other is not None:
        assert cloud.migrations(other)[-1].status == 'running', 'the other one is not disturbed'


@pytest.mark.nova_bug(1949808, 1960412)
@pytest.mark.simulated(reason='it counts the calls of a driver')
def test_queued_migration_is_cancelled_without_a_driver_call(cloud):
    """Only the Future was cancelled. The queue decides: the hypervisor never sees it."""
    instance = cloud.boot('one', 'host1')
    first = migration_requests.queued(cloud, instance)
    counted = [migration_requests.calls(cloud, 'host1', phase, instance) for phase in DRIVER_CALLS]
    assert state.guests(cloud, instance).keys() == {'host1', 'host3'}, 'a queued one holds its prepared destination'
    before = migration_requests.without(cloud, instance)
    assert migration_requests.abort(cloud, instance).status_int == 202
    assert end(cloud, instance) < 1
    migration_requests.cancelled(cloud, instance, before)
    assert migration_requests.effects(cloud, instance, *JOB) == []
    migration_requests.go_on_with(cloud, first)
    cloud.wait()
    cloud.simulation.advance(30)
    assert [one.count for one in counted[:2]] == [0, 0], 'neither then nor later'
    assert migration_requests.effects(cloud, instance, *JOB) == []
    state.completed(cloud, first, 'host2')


@pytest.mark.simulated(reason='it looks into a queue')
def test_abort_of_one_queued_migration_keeps_the_order_of_the_others(cloud):
    instances = [cloud.boot(f'vm{number}', 'host1') for number in range(5)]
    stall = faults(cloud, 'host1').stall('copying', instance_uuid=instances[0].uuid)
    for instance in instances:
        migrate(cloud, instance)
        state.when(cloud, instance, 'running' if instance is instances[0] else 'queued')
    cloud.simulation.advance(1)
    assert migration_requests.abort(cloud, instances[2]).status_int == 202
    end(cloud, instances[2])
    waiting = [cloud.migrations(instances[number])[-1].uuid for number in (1, 3, 4)]
    assert cloud.waiting()['host1'] == waiting
    stall.release()
    cloud.wait()
    started = [one.instance_uuid for one in cloud.world.effects('job started')]
    assert started == [instances[number].uuid for number in (0, 1, 3, 4)]
    state.moved(cloud, instances[2], 'host1')


@pytest.mark.nova_bug('abort-waits-for-preparation')
@pytest.mark.parametrize('after', [0.0, 0.05, 3.33, 9.7])
@pytest.mark.simulated(reason='it measures the clock')
def test_abort_during_preparation_is_undone_within_a_second(cloud, after):
    """It was answered in 0.03 s, and took effect when the preparation had run to its end."""
    instance = cloud.boot('one', 'host1')
    before = state.everything(cloud)
    migration_requests.preparing(cloud, instance, seconds=30)
    cloud.simulation.advance(after)
    parts = state.guests(cloud, instance)
    assert migration_requests.abort(cloud, instance).status_int == 202
    assert end(cloud, instance) <= 1
    migration_requests.cancelled(cloud, instance, before)
    assert migration_requests.effects(cloud, instance, *JOB) == []
    if after > 9:
        assert 'host2' in parts, 'there was something to remove'


@pytest.mark.simulated(reason='it has hypervisors take their time')
def test_no_other_destination_is_tried_for_one_that_was_aborted(cloud):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host2').fail('pre_live_migration', 'no')
    stall = faults(cloud, 'host2').stall('rollback_live_migration_at_destination')
    before = state.everything(cloud)
    migrate(cloud, instance)
    cloud.simulation.run_until(stall.reached.is_set)
    assert migration_requests.abort(cloud, instance).status_int == 202
    stall.release()
    cloud.wait()
    migration_requests.cancelled(cloud, instance, before)
    assert {one.host for one in cloud.world.log if one.instance_uuid == instance.uuid} == {'host1', 'host2'}


@pytest.mark.nova_bug(1780973, 1841411, 1939545)
def test_a_guest_that_its_user_has_paused_is_paused_after_the_abort(cloud):
    """Put back what was there, not what is usual."""
    instance = cloud.boot('one', 'host1', vm_state='paused')
    cloud.world.hypervisors['host1'].pause(instance.uuid)
    before = state.everything(cloud)
    migration_requests.running(cloud, instance)
    assert migration_requests.abort(cloud, instance).status_int == 202
    end(cloud, instance)
    assert state.everything(cloud) == before
    assert state.guests(cloud, instance)['host1'][0] == 'paused'


@pytest.mark.nova_bug(1267862, 1561357, 1669054, 1797580)
def test_an_aborted_server_can_be_moved_at_once(cloud):
    """Nothing of the first request is in the way of the next."""
    instance = cloud.boot('one', 'host1')
    migration_requests.running(cloud, instance)
    assert migration_requests.abort(cloud, instance).status_int == 202
    end(cloud, instance)
    migration_requests.go_on(cloud)
    migrate(cloud, instance)
    cloud.wait()
    state.completed(cloud, instance, 'host2')


# --- asking twice ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('status', IN_ANY_CASE)
@pytest.mark.simulated(reason='it loses messages, and has hypervisors take their time')
def test_asking_twice_is_answered_alike_and_done_once(cloud, status):
    instance = cloud.boot('one', 'host1')
    migration_requests.TO[status](cloud, instance)
    row = cloud.migrations(instance)[-1]
    for token in (migration_requests.WHO, 'admin:other', migration_requests.WHO):
        assert migration_requests.abort(cloud, instance, token=token).status_int == 202
        assert migration_requests.at(cloud, row).abort_requested_by == migration_requests.WHO
    asked_at = migration_requests.at(cloud, row).abort_requested_at
    end(cloud, instance)
    migration_requests.refused(migration_requests.abort(cloud, instance), 409)
    ended = migration_requests.at(cloud, row)
    assert (ended.abort_requested_at, ended.abort_verdict) == (asked_at, 'cancelled')
    assert len(migration_requests.actions(cloud, instance, 'live_migration_cancel')) == 1
    assert len(migration_requests.effects(cloud, instance, 'abort asked')) == (status == 'running')
    assert [one for one in migration_requests.effects(cloud, instance, 'removed') if one[0] == 'host1'] == []
    migration_requests.go_on(cloud)
    cloud.wait()


def test_asking_again_after_it_was_too_late_is_answered_as_the_first_time_until_the_end(cloud):
    instance = cloud.boot('one', 'host1')
    arrived = faults(cloud, 'host1').stall('arrived')
    post = faults(cloud, 'host1').stall('post_live_migration_at_source')
    migrate(cloud, instance)
    cloud.simulation.run_until(arrived.reached.is_set)
    assert state.migration(cloud, instance)['status'] == 'running'
    assert migration_requests.abort(cloud, instance).status_int == 202
    arrived.release()
    state.when(cloud, instance, 'post-migrating')
    assert migration_requests.abort(cloud, instance).status_int == 202
    post.release()
    cloud.wait()
    migration_requests.too_late(cloud, instance)
    assert 'the guest had moved' in migration_requests.verdict(cloud, instance)[1]
    migration_requests.completed(cloud, instance)
    migration_requests.refused(migration_requests.abort(cloud, instance), 409)


# --- what the actions show -------------------------------------------------------------------------------------------


def test_server_actions_show_user_time_and_result_of_an_abort(cloud):
    instance = cloud.boot('one', 'host1')
    migration_requests.running(cloud, instance)
    response = migration_requests.abort(cloud, instance, token='admin:admins')
    (found,) = migration_requests.actions(cloud, instance, 'live_migration_cancel')
    assert found['request_id'] == response.headers['X-OpenStack-Request-Id']
    assert (found['user_id'], found['project_id'], found['message']) == ('admin', 'admins', None)
    assert found['events'][0]['result'] is None, 'it is not known yet'
    asked = found['start_time']
    end(cloud, instance)
    (found,) = migration_requests.actions(cloud, instance, 'live_migration_cancel')
    assert (found['start_time'], found['events'][0]['result']) == (asked, 'Success')
    (whole,) = migration_requests.actions(cloud, instance, 'live-migration')
    assert whole['message'] == 'Aborted: requested by admin.'
    events = {event['event']: event['result'] for event in whole['events']}
    assert events['conductor_live_migrate_instance'] == 'Error'
    assert events['compute_live_migration'] == 'Error'
    assert events['compute_pre_live_migration_undo'] == 'Success'


@pytest.mark.parametrize('status', IN_ANY_CASE)
@pytest.mark.simulated(reason='it loses messages, and has hypervisors take their time')
def test_while_it_is_unwound_the_lists_show_it_in_progress_and_then_cancelled(cloud, status):
    instance = cloud.boot('one', 'host1')
    migration_requests.TO[status](cloud, instance)
    stall = faults(cloud, 'host2').stall('rollback_live_migration_at_destination')
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.advance(0.5)
    if stall.reached.is_set():
        assert state.migration(cloud, instance)['status'] == state.in_progress(cloud, instance)[0]['status'] == status
        assert state.server(cloud, instance)['status'] == 'MIGRATING'
        stall.release()
    end(cloud, instance)
    assert state.migration(cloud, instance)['status'] == 'cancelled'
    assert state.in_progress(cloud, instance) == []
    assert state.server(cloud, instance)['status'] == 'ACTIVE'
    migration_requests.go_on(cloud)
    cloud.wait()


# --- races -----------------------------------------------------------------------------------------------------------


def judge(cloud, instance, before, taken):
    """Assert that a race has one end, that the world agrees with it, and that its action shows it.

    :param taken: the answers to the aborts.
    """
    row = cloud.migrations(instance)[-1]
    started = migration_requests.effects(cloud, instance, 'job started')
    assert len(started) <= 1
    if 202 not in taken:
        assert row.status == 'completed'
        assert set(taken) <= {400, 409}
        assert migration_requests.actions(cloud, instance, 'live_migration_cancel') == []
        state.moved(cloud, instance, 'host2')
    elif row.status == 'completed':
        migration_requests.too_late(cloud, instance)
    else:
        migration_requests.cancelled(cloud, instance, before)
        assert 'job completed' not in {
            effect for _, effect in migration_requests.effects(cloud, instance, 'job completed')
        }
    assert cloud.world.violations == []


@pytest.mark.nova_bug(1580609, 1841411)
@pytest.mark.parametrize('hundredths', [*range(212, 262, 4), 265, 270, 300])
@pytest.mark.simulated(reason='it acts at single instants')
def test_whenever_it_comes_around_the_cut_over_it_is_cancelled_or_completed_and_never_both_or_neither(
    cloud, hundredths
):
    """At the last moment."""
    instance = cloud.boot('one', 'host1', memory_mb=2048, dirty_rate=200)
    before = migrate(cloud, instance)
    cloud.simulation.advance(hundredths / 100)
    response = migration_requests.abort(cloud, instance)
    cloud.wait()
    judge(cloud, instance, before, [response.status_int])


class Asks:
    """A user who requests an abort in a thread of its own; ``taken`` are the answers."""

    def __init__(self, cloud, instance):
        self.taken = []
        self._cloud = cloud
        self._instance = instance

    def __call__(self):
        self._cloud.world.threads.start(self._ask, name='user')

    def _ask(self):
        self.taken.append(migration_requests.abort(self._cloud, self._instance).status_int)


@pytest.mark.seeds(1, 2, 3)
@pytest.mark.parametrize('number', range(1, 8))
@pytest.mark.simulated(reason='it acts at single commits')
def test_abort_at_any_commit_leads_to_one_end_state(cloud, number):
    instance = cloud.boot('one', 'host1', dirty_rate=200)
    ask = Asks(cloud, instance)
    at = AtCommit(cloud, number, ('begin', 'committed')[number % 2], ask)
    before = migrate(cloud, instance)
    cloud.simulation.run_until(lambda: at.injected and ask.taken)
    cloud.wait()
    judge(cloud, instance, before, ask.taken)


class AtMessage:
    """An act at the message with a given number, of those that a migration is made of."""

    def __init__(self, cloud, number, act):
        self.left = number
        self._act = act
        cloud.bus.faults = self._on

    def _on(self, message):
        if message.method not in ('compute_heartbeat', 'wake'):
            self.left -= 1
            if not self.left:
                self._act()


@pytest.mark.nova_bug(1786346, 1901707)
@pytest.mark.seeds(4, 5)
@pytest.mark.parametrize('number', range(1, 17))
@pytest.mark.simulated(reason='it acts at single messages')
def test_abort_at_any_message_leads_to_one_end_state(cloud, number):
    """Early, late, in between."""
    instance = cloud.boot('one', 'host1', dirty_rate=200)
    before = state.everything(cloud)
    ask = Asks(cloud, instance)
    AtMessage(cloud, number, ask)
    migrate(cloud, instance)
    cloud.simulation.run_until(lambda: ask.taken, timeout=LONG)
    cloud.wait()
    judge(cloud, instance, before, ask.taken)


@pytest.mark.nova_bug('abort-lost-while-queueing')
@pytest.mark.seeds(1, 2, 3, 4, 5, 6)
@pytest.mark.simulated(reason='it acts when a slot becomes free')
def test_abort_as_slot_becomes_free_is_not_lost(cloud):
    """An abort that came between two halves of the queueing was answered 202 and lost."""
    instance = cloud.boot('one', 'host1', memory_mb=8192)
    first = migration_requests.queued(cloud, instance)
    before = migration_requests.without(cloud, instance)
    ask = Asks(cloud, instance)
    cloud.simulation.on_checkpoint = lambda process, label: None
    migration_requests.go_on_with(cloud, first)
    ended = cloud.world.hypervisors['host1'].jobs[first.uuid].ended
    cloud.simulation.run_until(ended.is_set)
    ask()
    cloud.simulation.run_until(lambda: ask.taken and cloud.migrations(instance)[-1].ended)
    assert ask.taken == [202]
    assert cloud.migrations(instance)[-1].status == 'cancelled'
    cloud.wait()
    state.moved(cloud, instance, 'host1')
    assert state.everything(cloud)['allocations'][instance.uuid] == before['allocations'][instance.uuid]


@pytest.mark.seeds(1, 2)
@pytest.mark.parametrize('number', range(4, 10))
@pytest.mark.simulated(reason='it acts at single commits')
def test_action_shows_whether_the_abort_or_the_failure_came_first(cloud, number):
    """One during the rollback of a failure was answered 202, and its result was never shown."""
    instance = cloud.boot('one', 'host1')
    cloud.world.hypervisors['host1'].leave_paused = True
    faults(cloud, 'host1').fail('cutover', 'the link broke')
    ask = Asks(cloud, instance)
    at = AtCommit(cloud, number, 'committed', ask)
    before = migrate(cloud, instance)
    cloud.simulation.run_until(lambda: at.injected and ask.taken)
    cloud.wait()
    row = cloud.migrations(instance)[-1]
    assert state.everything(cloud) == before
    if ask.taken == [202]:
        assert row.status in ('cancelled', 'failed')
        assert row.abort_verdict.startswith(row.status)
        cancelled = row.status == 'cancelled'
        assert migration_requests.verdict(cloud, instance) == (
            ('Success', None) if cancelled else ('Error', row.abort_verdict)
        )
    else:
        assert (ask.taken, row.status, row.abort_verdict) == ([409], 'failed', None)
