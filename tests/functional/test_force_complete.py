# SPDX-License-Identifier: Apache-2.0

"""Force complete, from REST to the driver: post-copy if possible, else a pause; and its races."""

import pytest

from tests.functional import migration_requests, state
from tests.functional.faults import LONG, AtCommit, faults, migrate

#: Dirties its memory faster than the link carries it, and nothing throttles it: its copy does not end by itself.
BUSY = {'memory_mb': 1024, 'dirty_rate': 2000.0}
NEVER = {'auto_converge_after': 0}


def busy(cloud):
    """Have a migration that does not end by itself; return its instance."""
    instance = cloud.boot('one', 'host1', **BUSY)
    migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    cloud.simulation.advance(5)
    assert state.in_progress(cloud, instance)[0]['status'] == 'running'
    return instance


def states(cloud, instance, host='host1'):
    """Return the states in which a guest has been at a host."""
    known = ('running', 'paused', 'paused for cut-over')
    return [
        one.effect
        for one in cloud.world.log
        if (one.instance_uuid, one.host) == (instance.uuid, host)
        if one.effect in known
    ]


# --- what it does ----------------------------------------------------------------------------------------------------


@pytest.mark.nova_bug(1580609)
@pytest.mark.cloud(**NEVER)
@pytest.mark.parametrize('version', ['2.22', '2.80'])
def test_a_guest_that_never_ends_its_copy_is_paused_and_arrives(cloud, version):
    """A guest stayed paused after force complete; it runs where it has arrived."""
    instance = busy(cloud)
    cloud.simulation.advance(60)
    assert state.in_progress(cloud, instance)[0]['status'] == 'running', 'it would go on for ever'
    response = migration_requests.force_complete(cloud, instance, version)
    assert (response.status_int, response.body) == (202, b'')
    cloud.wait(30)
    migration_requests.completed(cloud, instance)
    assert 'running (post-copy)' not in state.history(cloud, instance)
    assert states(cloud, instance) == ['running', 'paused for cut-over']
    assert migration_requests.verdict(cloud, instance, 'live_migration_force_complete') == ('Success', None)


@pytest.mark.nova_bug('post-copy-in-no-list')
@pytest.mark.cloud(post_copy=True, **NEVER)
def test_hypervisor_with_post_copy_switches_to_it(cloud):
    """It was in none of the lists of what is in progress, so that it could not be shown."""
    instance = busy(cloud)
    stall = faults(cloud, 'host1').stall('postcopy')
    assert migration_requests.force_complete(cloud, instance).status_int == 202
    state.when(cloud, instance, 'running (post-copy)')
    assert state.in_progress(cloud, instance)[0]['status'] == 'running (post-copy)'
    assert state.migration(cloud, instance)['links']
    assert state.host_of(cloud, instance) == 'host2', 'it runs there already'
    stall.release()
    cloud.wait(30)
    migration_requests.completed(cloud, instance)
    assert state.history(cloud, instance)[-3:] == ['running (post-copy)', 'post-migrating', 'completed']
    assert migration_requests.verdict(cloud, instance, 'live_migration_force_complete') == ('Success', None)


@pytest.mark.cloud(**NEVER)
@pytest.mark.parametrize('can', ['host1', 'host2'])
def test_guest_is_paused_if_only_one_host_has_post_copy(cloud, can):
    cloud.world.hypervisors[can].post_copy = True
    instance = busy(cloud)
    assert migration_requests.force_complete(cloud, instance).status_int == 202
    cloud.wait(30)
    migration_requests.completed(cloud, instance)
    assert 'running (post-copy)' not in state.history(cloud, instance)


@pytest.mark.cloud(**NEVER)
def test_asking_twice_is_answered_alike_and_done_once(cloud):
    instance = busy(cloud)
    stall = faults(cloud, 'host1').stall('cutover')
    assert migration_requests.force_complete(cloud, instance).status_int == 202
    row = cloud.migrations(instance)[-1]
    assert migration_requests.force_complete(cloud, instance, token='admin:other').status_int == 202
    assert cloud.migrations(instance)[-1].force_complete_requested_at == row.force_complete_requested_at
    cloud.simulation.run_until(stall.reached.is_set)
    assert migration_requests.force_complete(cloud, instance).status_int == 202
    cloud.simulation.advance(1)
    stall.release()
    cloud.wait(30)
    migration_requests.completed(cloud, instance)
    assert len(migration_requests.effects(cloud, instance, 'force complete asked')) == 1
    (found,) = migration_requests.actions(cloud, instance, 'live_migration_force_complete')
    assert (found['user_id'], found['project_id']) == ('admin', 'admin')


@pytest.mark.cloud(**NEVER)
def test_only_the_one_that_was_meant_is_completed(cloud):
    cloud.set_option('host1', 'max_concurrent_live_migrations', 2)
    instance = busy(cloud)
    other = cloud.boot('other', 'host1', **BUSY)
    migrate(cloud, other)
    state.when(cloud, other, 'running')
    assert migration_requests.force_complete(cloud, instance).status_int == 202
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].ended)
    assert state.host_of(cloud, instance) == 'host2'
    assert state.in_progress(cloud, other)[0]['status'] == 'running'
    assert migration_requests.force_complete(cloud, other).status_int == 202
    cloud.wait()
    migration_requests.completed(cloud, instance)
    migration_requests.completed(cloud, other, 'host3')


# --- trouble ---------------------------------------------------------------------------------------------------------


@pytest.mark.cloud(**NEVER)
@pytest.mark.simulated(reason='it decides what becomes of single messages')
def test_request_whose_wake_up_is_lost_is_found_by_the_sweep(cloud):
    instance = busy(cloud)
    cloud.bus.faults = lambda message: 'lose' if message.method == 'wake' else None
    assert migration_requests.force_complete(cloud, instance).status_int == 202
    cloud.wait(20)
    migration_requests.completed(cloud, instance)


@pytest.mark.nova_bug(1786346, 1901707)
@pytest.mark.cloud(**NEVER)
@pytest.mark.parametrize('fault', ['lose', 'lose_answer', 'duplicate', 3.0, 90.0, 'refuse'])
@pytest.mark.simulated(reason='it decides what becomes of single messages')
def test_request_lost_delayed_or_doubled_on_its_way_is_carried_out_once(cloud, fault):
    """The request was sent once, and if it was lost the copy went on for ever."""
    instance = busy(cloud)
    left = [fault]
    cloud.bus.faults = lambda message: (
        left.pop() if message.method == 'live_migration_force_complete' and left else None
    )
    assert migration_requests.force_complete(cloud, instance).status_int == 202
    cloud.wait(LONG)
    cloud.simulation.advance(100 if fault == 90.0 else 0)
    migration_requests.completed(cloud, instance)


@pytest.mark.cloud(**NEVER)
def test_a_driver_that_fails_to_do_it_is_asked_again_as_long_as_there_is_the_job(cloud):
    instance = busy(cloud)
    for _ in range(2):
        faults(cloud, 'host1').fail('live_migration_force_complete', 'the monitor is busy')
    assert migration_requests.force_complete(cloud, instance).status_int == 202
    cloud.wait(30)
    migration_requests.completed(cloud, instance)


@pytest.mark.cloud(**NEVER)
def test_hanging_force_complete_delays_no_other_migration_and_can_be_aborted(cloud):
    instance = busy(cloud)
    before = migration_requests.without(cloud, instance, waits=False)
    stall = faults(cloud, 'host1').stall('live_migration_force_complete', sticky=True)
    assert migration_requests.force_complete(cloud, instance).status_int == 202
    cloud.simulation.run_until(stall.reached.is_set)
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].ended)
    stall.release()
    cloud.simulation.advance(30)
    migration_requests.cancelled(cloud, instance, before)
    result, message = migration_requests.verdict(cloud, instance, 'live_migration_force_complete')
    assert (result, message) == ('Error', 'Aborted: requested by admin.')
    assert states(cloud, instance) == ['running'], 'it was never paused, and is not now'


@pytest.mark.cloud(**NEVER)
@pytest.mark.parametrize('who', ['conductor1', 'host1'])
@pytest.mark.simulated(reason='it kills services')
def test_request_survives_a_restart_of_the_services(cloud, who):
    instance = busy(cloud)
    cloud.bus.faults = lambda message: 'lose' if message.method == 'wake' else None
    assert migration_requests.force_complete(cloud, instance).status_int == 202
    state.kill(cloud, who)
    cloud.bus.faults = lambda message: None
    if who == 'host1':
        state.restart(cloud, who)
    else:
        cloud.start_conductor('conductor2')
    cloud.wait(LONG)
    migration_requests.completed(cloud, instance)


# --- races -----------------------------------------------------------------------------------------------------------


@pytest.mark.nova_bug(1580609)
@pytest.mark.cloud(leave_paused=True)
@pytest.mark.parametrize('fails', [False, True])
@pytest.mark.parametrize('hundredths', range(212, 264, 4))
@pytest.mark.simulated(reason='it acts at single instants')
def test_force_complete_at_last_moment_is_harmless(cloud, hundredths, fails):
    """The guest was paused after the end, and stayed so."""
    instance = cloud.boot('one', 'host1', memory_mb=2048, dirty_rate=200)
    if fails:
        faults(cloud, 'host1').fail('cutover')
    before = migrate(cloud, instance)
    cloud.simulation.advance(hundredths / 100)
    taken = migration_requests.force_complete(cloud, instance).status_int
    cloud.wait()
    cloud.simulation.advance(30)
    if fails:
        assert state.migration(cloud, instance)['status'] == 'failed'
        assert state.everything(cloud) == before
    else:
        migration_requests.completed(cloud, instance)
    assert cloud.world.violations == []
    if taken == 202:
        result, _ = migration_requests.verdict(cloud, instance, 'live_migration_force_complete')
        assert result == ('Error' if fails else 'Success')
    else:
        assert taken in (400, 409)


@pytest.mark.cloud(leave_paused=True)
@pytest.mark.seeds(1, 2)
@pytest.mark.parametrize('number', range(4, 10))
@pytest.mark.simulated(reason='it acts at single commits')
def test_force_complete_of_a_failing_migration_shows_the_failure(cloud, number):
    """One during the rollback of a failure was answered 202, and its result was never shown."""
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host1').fail('cutover', 'the link broke')
    taken = []

    def ask():
        cloud.world.threads.start(
            lambda: taken.append(migration_requests.force_complete(cloud, instance).status_int), name='user'
        )

    at = AtCommit(cloud, number, 'committed', ask)
    before = migrate(cloud, instance)
    cloud.simulation.run_until(lambda: at.injected and taken)
    cloud.wait()
    assert state.everything(cloud) == before
    if taken == [202]:
        result, message = migration_requests.verdict(cloud, instance, 'live_migration_force_complete')
        assert (result, bool(message)) == ('Error', True)


@pytest.mark.cloud(**NEVER)
@pytest.mark.seeds(1, 2, 3)
@pytest.mark.parametrize('first', ['abort', 'force_complete'])
@pytest.mark.simulated(reason='it tries several schedules')
def test_abort_and_force_complete_end_once_and_both_actions_show_it(cloud, first):
    instance = busy(cloud)
    before = migration_requests.without(cloud, instance, waits=False)
    asks = [migration_requests.abort, migration_requests.force_complete]
    for ask in asks if first == 'abort' else asks[::-1]:
        cloud.world.threads.start(ask, cloud, instance, name='user')
    cloud.wait(30)
    row = cloud.migrations(instance)[-1]
    if row.status == 'completed':
        migration_requests.too_late(cloud, instance)
    else:
        migration_requests.cancelled(cloud, instance, before)
    for found in migration_requests.actions(cloud, instance, 'live_migration_force_complete'):
        assert found['events'][0]['result'] == ('Success' if row.status == 'completed' else 'Error')
    assert cloud.world.violations == []
