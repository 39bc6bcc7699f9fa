# SPDX-License-Identifier: Apache-2.0

"""A planned stop of a compute service, with anything else hanging or away.

That no stop takes more than 2 s besides its configured wait is looked at in each of these (I13).
"""

import pytest

from tests.functional import migration_requests, state
from tests.functional.faults import LONG, faults, migrate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.simulated(reason='it stops a service within its process, and decides what becomes of messages'),
]

STOP_SECONDS = 2.0
KEEP = {'compute.stop_queued': 'keep'}
WAIT = {'compute.stop_running': 'wait', 'compute.stop_timeout': 30}


def begin_stop(cloud, host='host1'):
    """Begin the planned stop of a compute service; return a list that has its seconds when it is over."""
    began, took = cloud.simulation.time, []

    def stop():
        cloud.computes[host].cleanup_host()
        took.append(cloud.simulation.time - began)

    cloud.processes[host].start(stop, name='stop')
    return took


def stop(cloud, host='host1', within=STOP_SECONDS):
    """Stop a compute service as planned; its process ends with that."""
    took = begin_stop(cloud, host)
    cloud.simulation.run_until(lambda: took, timeout=60)
    assert took[0] <= within
    state.kill(cloud, host)


def queue(cloud, count=4, phase='copying'):
    """Have one server whose migration does not progress, others queued behind it, and the state before."""
    instances = [cloud.boot(f'vm{number}', 'host1') for number in range(count)]
    faults(cloud, 'host1').stall(phase, instance_uuid=instances[0].uuid, sticky=True)
    before = state.everything(cloud)
    for instance in instances:
        assert cloud.live_migrate(instance).status_int == 202
        cloud.simulation.advance(0.5)
    state.when(cloud, instances[0], 'running' if phase == 'copying' else 'queued')
    for instance in instances[1:]:
        state.when(cloud, instance, 'queued')
    return instances, before


def statuses(cloud, instances):
    return [state.migration(cloud, instance)['status'] for instance in instances]


def started(cloud):
    """Return the guests whose jobs have started, in order."""
    return [effect.instance_uuid for effect in cloud.world.effects('job started')]


def until_ended(cloud, instances, within=30):
    cloud.simulation.run_until(lambda: not any(state.in_progress(cloud, one) for one in instances), timeout=within)


def assert_cancelled_by_the_stop(cloud, instances, before):
    """Assert that what waited has ended, shows so, and has left nothing anywhere."""
    after = state.everything(cloud)
    for instance in instances:
        row = cloud.migrations(instance)[-1]
        assert (row.status, row.abort_requested_by) == ('cancelled', 'host stop')
        assert row.abort_verdict == 'cancelled: in the queue of its source, which was stopped'
        assert state.result(cloud, instance) == ('Error', 'Aborted: requested by host stop.')
        assert after['servers'][instance.uuid] == before['servers'][instance.uuid]
        assert after['guests'][instance.uuid] == before['guests'][instance.uuid]
        assert after['allocations'][instance.uuid] == before['allocations'][instance.uuid]
        assert row.uuid not in after['allocations']


# --- reports -----------------------------------------------------------------------------------------------------


def service_state(cloud, host):
    """Return the state of a host's compute service, as the API shows it."""
    (service,) = cloud.request('GET', f'/os-services?host={host}&binary=nova-compute').json['services']
    return service['state']


def test_a_host_that_is_stopped_is_down_at_once_and_no_destination_until_it_is_back(cloud):
    instance = cloud.boot('one', 'host1')
    cloud.simulation.advance(60)  # a conductor that has just begun takes no host for down
    stop(cloud, 'host2')
    assert service_state(cloud, 'host2') == 'down'
    cloud.live_migrate(instance, 'host2')
    cloud.wait()
    assert state.migration(cloud, instance)['status'] == 'failed'
    assert 'its compute service was stopped' in state.result(cloud, instance)[1]
    state.restart(cloud, 'host2')
    cloud.simulation.run_until(lambda: service_state(cloud, 'host2') == 'up', timeout=10)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait()
    state.completed(cloud, instance, 'host2')


def test_migration_waits_as_long_for_a_stopped_host_as_for_an_unreachable_one(cloud):
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, 'host1').stall('copying', sticky=True)
    cloud.simulation.advance(100)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.simulation.run_until(stall.reached.is_set)
    stop(cloud, 'host2')
    assert service_state(cloud, 'host2') == 'down'
    migration_requests.go_on(cloud)
    cloud.simulation.advance(20)
    assert state.in_progress(cloud, instance)
    assert cloud.database.cleanups.list() == []
    state.restart(cloud, 'host2')
    cloud.wait(LONG)
    state.completed(cloud, instance, 'host2')


# --- what waits ------------------------------------------------------------------------------------------------------


@pytest.mark.nova_bug('stop-cancels-what-waits')
@pytest.mark.parametrize('phase', ['copying', 'live_migration', 'starting'])
def test_stop_cancels_queued_migrations_and_running_ones_go_on(cloud, phase):
    (runs, *waiting), before = queue(cloud, 6, phase)
    stop(cloud)
    until_ended(cloud, waiting)
    assert_cancelled_by_the_stop(cloud, waiting, before)
    assert state.in_progress(cloud, runs)
    migration_requests.go_on(cloud)
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    state.completed(cloud, runs, 'host2')
    assert started(cloud) == [runs.uuid]


@pytest.mark.cloud(options=KEEP)
def test_kept_queue_goes_on_in_order_after_the_restart(cloud):
    instances, _before = queue(cloud)
    stop(cloud)
    cloud.simulation.advance(10)
    assert statuses(cloud, instances) == ['running', 'queued', 'queued', 'queued']
    assert cloud.migrations(instances[1])[-1].abort_requested_at is None
    migration_requests.go_on(cloud)
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    assert statuses(cloud, instances) == ['completed'] * 4
    assert started(cloud) == [instance.uuid for instance in instances], 'each once, first in, first out'


@pytest.mark.cloud(options=KEEP)
def test_kept_migration_can_be_aborted_while_the_host_is_stopped(cloud):
    (runs, first, second, third), _before = queue(cloud)
    stop(cloud)
    assert migration_requests.abort(cloud, second).status_int == 202
    cloud.simulation.advance(5)
    migration_requests.go_on(cloud)
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    assert statuses(cloud, [runs, first, second, third]) == ['completed', 'completed', 'cancelled', 'completed']
    assert started(cloud) == [runs.uuid, first.uuid, third.uuid]


def test_a_service_that_is_stopped_twice_is_stopped(cloud):
    (_runs, *waiting), before = queue(cloud)
    assert not begin_stop(cloud)
    stop(cloud)
    until_ended(cloud, waiting)
    assert_cancelled_by_the_stop(cloud, waiting, before)
    migration_requests.go_on(cloud)


# --- lost reports ----------------------------------------------------------------------------------------------------


def unresponsive(cloud, fault, *methods):
    """Inject a fault into what the host sends: of some methods, or of all if none is named."""
    cloud.bus.faults = lambda message: (
        fault if message.sender == 'compute:host1' and (not methods or message.method in methods) else None
    )


@pytest.mark.parametrize('fault', ['lose', 'refuse'])
@pytest.mark.parametrize('down_for', [0, 10])
def test_with_a_broker_that_is_away_it_takes_no_longer_and_what_waited_is_queued_again_at_the_next_start(
    cloud, fault, down_for
):
    instances, _before = queue(cloud)
    unresponsive(cloud, fault)
    stop(cloud)
    cloud.bus.faults = lambda message: None
    cloud.simulation.advance(down_for)
    assert statuses(cloud, instances[1:]) == ['queued'] * 3
    migration_requests.go_on(cloud)
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    assert statuses(cloud, instances) == ['completed'] * 4
    assert started(cloud) == [instance.uuid for instance in instances]


def test_poll_during_an_unreported_stop_undoes_nothing(cloud):
    """Work that the stop cancelled without an abort request was shown as cancelled, and failed."""
    instances, _before = queue(cloud)
    unresponsive(cloud, 'lose', 'compute_stopping', 'step_ended')
    took = begin_stop(cloud)
    # the process is still there, and answers its owner's polls for a while
    compute = cloud.computes['host1']
    compute._served.stop = lambda: None
    cloud.simulation.run_until(lambda: took)
    cloud.simulation.advance(10)
    assert statuses(cloud, instances[1:]) == ['queued'] * 3
    state.kill(cloud, 'host1')
    cloud.bus.faults = lambda message: None
    migration_requests.go_on(cloud)
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    assert statuses(cloud, instances) == ['completed'] * 4


def test_queued_migrations_are_cancelled_though_answer_to_stop_is_lost(cloud):
    (runs, *waiting), before = queue(cloud)
    unresponsive(cloud, 'lose_answer', 'compute_stopping')
    stop(cloud)
    cloud.simulation.advance(10)
    migration_requests.go_on(cloud)
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    assert_cancelled_by_the_stop(cloud, waiting, before)
    assert started(cloud) == [runs.uuid]


def test_abort_during_an_unreported_stop_cancels_at_once(cloud):
    (_runs, first, *_others), before = queue(cloud)
    unresponsive(cloud, 'lose', 'compute_stopping')
    took = begin_stop(cloud)
    cloud.computes['host1']._served.stop = lambda: None
    cloud.simulation.run_until(lambda: took)
    assert migration_requests.abort(cloud, first).status_int == 202
    until_ended(cloud, [first], within=10)
    assert state.migration(cloud, first)['status'] == 'cancelled'
    assert state.everything(cloud)['guests'][first.uuid] == before['guests'][first.uuid]
    state.kill(cloud, 'host1')
    migration_requests.go_on(cloud)
    cloud.bus.faults = lambda message: None
    state.restart(cloud, 'host1')
    cloud.wait(LONG)


@pytest.mark.parametrize('options', [{}, KEEP])
def test_without_a_conductor_it_takes_no_longer_and_the_queue_survives_both(cloud, options):
    instances, _before = queue(cloud)
    for name, value in options.items():
        cloud.set_option('host1', name, value)
    state.kill(cloud, 'conductor1')
    stop(cloud)
    cloud.start_conductor('conductor1')
    migration_requests.go_on(cloud)
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    assert statuses(cloud, instances) == ['completed'] * 4
    assert started(cloud) == [instance.uuid for instance in instances]


# --- what runs -------------------------------------------------------------------------------------------------------


@pytest.mark.cloud(options=WAIT)
def test_stop_can_wait_for_running_migrations(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=8192)
    migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    took = begin_stop(cloud)
    cloud.simulation.run_until(lambda: took, timeout=40)
    assert cloud.world.active_on(instance.uuid) == ['host2']
    assert 5 < took[0] < 12, 'as long as the copy takes'
    state.kill(cloud, 'host1')
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    state.completed(cloud, instance, 'host2')


@pytest.mark.cloud(options=WAIT)
def test_stop_waits_for_running_migrations_at_most_stop_timeout(cloud):
    (runs, *waiting), before = queue(cloud)
    stop(cloud, within=30 + STOP_SECONDS)
    assert_cancelled_by_the_stop(cloud, waiting, before)
    assert cloud.world.hypervisors['host1'].jobs.keys() == {runs.uuid}
    migration_requests.go_on(cloud)
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    assert state.migration(cloud, runs)['status'] == 'completed'
    assert started(cloud) == [runs.uuid]


# --- what arrives meanwhile ------------------------------------------------------------------------------------------


@pytest.mark.cloud(options=WAIT)
@pytest.mark.parametrize('named', [None, 'host2'])
def test_migration_that_arrives_during_the_stop_is_refused_and_undone(cloud, named):
    (runs,), _ = queue(cloud, 1)
    late = cloud.boot('late', 'host1')
    stalls = [faults(cloud, host).stall('pre_live_migration', instance_uuid=late.uuid) for host in ('host2', 'host3')]
    before = migrate(cloud, late, named)
    cloud.simulation.run_until(lambda: any(stall.reached.is_set() for stall in stalls))
    took = begin_stop(cloud)
    cloud.simulation.advance(2)
    assert not took, 'it waits for what runs'
    for stall in stalls:
        stall.release()
    until_ended(cloud, [late], within=20)
    assert not took
    assert state.migration(cloud, late)['status'] == 'failed'
    assert 'is stopping' in state.result(cloud, late)[1]
    after = state.everything(cloud)
    for part in ('servers', 'guests', 'allocations'):
        assert after[part][late.uuid] == before[part][late.uuid]
    assert started(cloud) == [runs.uuid]
    migration_requests.go_on(cloud)
    cloud.wait(LONG)


def test_migration_that_arrives_after_the_stop_waits_for_the_restart(cloud):
    """No conductor runs any more: it ends, or goes on when the host is back."""
    late = cloud.boot('late', 'host1')
    stalls = [faults(cloud, host).stall('pre_live_migration', instance_uuid=late.uuid) for host in ('host2', 'host3')]
    migrate(cloud, late)
    cloud.simulation.run_until(lambda: any(stall.reached.is_set() for stall in stalls))
    stop(cloud)
    for stall in stalls:
        stall.release()
    cloud.simulation.advance(20)
    assert state.in_progress(cloud, late)[0]['status'] == 'queued'
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    state.completed(cloud, late, state.host_of(cloud, late))


@pytest.mark.seeds(1, 2, 3, 4, 5, 6)
@pytest.mark.cloud(options={'max_concurrent_live_migrations': 2})
def test_stop_while_migrations_arrive_ends_each_and_loses_none(cloud, seed):
    instances = [cloud.boot(f'vm{number}', 'host1') for number in range(6)]
    for instance in instances[:3]:
        migrate(cloud, instance)
    cloud.simulation.advance(0.05 * seed)
    took = begin_stop(cloud)
    for instance in instances[3:]:
        migrate(cloud, instance)
        cloud.simulation.advance(0.02 * seed)
    cloud.simulation.run_until(lambda: took)
    assert took[0] <= STOP_SECONDS
    state.kill(cloud, 'host1')
    cloud.simulation.advance(3)
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    for instance in instances:
        status = state.migration(cloud, instance)['status']
        assert status in ('completed', 'cancelled', 'failed')
        assert state.server(cloud, instance)['status'] == 'ACTIVE'
        assert cloud.world.active_on(instance.uuid) == [state.host_of(cloud, instance)]
        assert (state.host_of(cloud, instance) == 'host1') == (status != 'completed')


def test_work_of_an_earlier_boot_is_polled_before_it_is_undone(cloud):
    """Only the hypervisors know the work of an earlier boot: a guest was left
    paused, or taken for unmoved though the destination ran it.
    """
    (runs, waits), before = queue(cloud, 2)
    state.kill(cloud, 'host1')
    state.restart(cloud, 'host1')
    cloud.simulation.run_until(lambda: cloud.migrations(waits)[-1].uuid in cloud.waiting()['host1'])
    stop(cloud)
    assert cloud.migrations(waits)[-1].abort_requested_by == 'host stop'
    state.restart(cloud, 'host1')
    until_ended(cloud, [waits], within=120)
    row = cloud.migrations(waits)[-1]
    assert (row.status, row.abort_verdict) == ('cancelled', 'cancelled')
    assert state.everything(cloud)['guests'][waits.uuid] == before['guests'][waits.uuid]
    migration_requests.go_on(cloud)
    cloud.wait(LONG)
    state.completed(cloud, runs, 'host2')
