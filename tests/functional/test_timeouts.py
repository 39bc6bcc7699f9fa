# SPDX-License-Identifier: Apache-2.0

"""Moves that take longer than they may, and drivers that hang."""

import pytest

from migrator.db.actions import LIVE_MIGRATION_CANCEL, LIVE_MIGRATION_FORCE_COMPLETE
from tests.functional import migration_requests, state
from tests.functional.faults import LONG, faults, migrate

pytestmark = [pytest.mark.slow, pytest.mark.simulated(reason='it lets the seconds of a time-out pass')]

PER_GIB = 'libvirt.live_migration_completion_timeout'
ACTION = 'libvirt.live_migration_timeout_action'
#: A guest of 512 MiB counts as 2 GiB, so that it may take 20 s.
TEN = {PER_GIB: 10}
WHO = 'the time-out of 20 s (live_migration_completion_timeout)'
#: Seconds from a time-out to its end: the next look, the request, the abort, the way back.
SOON = 10


def hung(cloud, name='one', phase='copying', **fields):
    """Have a server whose guest is being moved and does not get on; return it, and what was before."""
    instance = cloud.boot(name, 'host1', **fields)
    faults(cloud, 'host1').stall(phase, instance_uuid=instance.uuid, sticky=True)
    before = migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    return instance, before


def never_converging(cloud):
    """Have a server whose guest changes its memory faster than it can be copied."""
    instance = cloud.boot('one', 'host1', dirty_rate=100_000)
    migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    return instance


# --- abort -----------------------------------------------------------------------------------------------------------


@pytest.mark.cloud(options=TEN)
def test_migration_beyond_its_timeout_is_aborted_and_the_action_shows_why(cloud):
    instance, before = hung(cloud)
    cloud.simulation.advance(19)
    assert state.in_progress(cloud, instance)[0]['status'] == 'running'
    cloud.wait(SOON)
    migration_requests.cancelled(cloud, instance, before)
    assert cloud.migrations(instance)[-1].abort_requested_by == WHO
    (action,) = migration_requests.actions(cloud, instance, LIVE_MIGRATION_CANCEL)
    assert action['user_id'] == WHO
    assert (
        migration_requests.actions(cloud, instance, 'live-migration')[0]['message'] == f'Aborted: requested by {WHO}.'
    )


@pytest.mark.cloud(options=TEN)
def test_the_server_may_be_moved_again_and_the_next_move_has_its_own_time(cloud):
    instance, before = hung(cloud)
    cloud.simulation.advance(15)
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.wait(SOON)
    migration_requests.cancelled(cloud, instance, before)
    migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    cloud.simulation.advance(19)
    assert state.in_progress(cloud, instance)[0]['status'] == 'running'
    cloud.wait(SOON)
    assert state.migration(cloud, instance)['status'] == 'cancelled'


@pytest.mark.cloud(options=TEN)
def test_time_in_the_queue_does_not_count_for_the_timeout(cloud):
    first, _before = hung(cloud)
    cloud.set_option('host1', PER_GIB, 0)
    second = cloud.boot('two', 'host1')
    migrate(cloud, second)
    state.when(cloud, second, 'queued')
    cloud.set_option('host2', PER_GIB, 1)
    cloud.simulation.advance(60)
    assert state.in_progress(cloud, second)[0]['status'] == 'queued'
    cloud.set_option('host1', PER_GIB, 10)
    cloud.wait(SOON)
    assert state.migration(cloud, first)['status'] == 'cancelled'
    state.completed(cloud, second, state.host_of(cloud, second))


@pytest.mark.cloud(options=TEN)
def test_the_time_goes_on_over_a_restart_of_the_source(cloud):
    instance, before = hung(cloud)
    cloud.simulation.advance(12)
    state.kill(cloud, 'host1')
    cloud.simulation.advance(3)
    state.restart(cloud, 'host1')
    assert state.in_progress(cloud, instance)[0]['status'] == 'running'
    # anew it would have 20 s from here
    cloud.wait(5 + SOON - 1)
    migration_requests.cancelled(cloud, instance, before)


@pytest.mark.cloud(options=TEN)
def test_timeout_during_an_outage_of_the_conductor_is_applied_after_it(cloud):
    instance, before = hung(cloud)
    state.kill(cloud, 'conductor1')
    cloud.simulation.advance(60)
    assert state.in_progress(cloud, instance)[0]['status'] == 'running'
    cloud.start_conductor('conductor1')
    cloud.wait(30)
    migration_requests.cancelled(cloud, instance, before)


@pytest.mark.cloud(options=TEN)
@pytest.mark.parametrize('fault', ['lose', 'lose_answer', 'duplicate', 'refuse', 30.0])
def test_no_single_message_that_is_lost_late_or_doubled_loses_a_time_out(cloud, fault):
    instance, before = hung(cloud)
    left = [fault]
    cloud.bus.faults = lambda message: (
        left.pop() if left and (message.method, message.kind) == ('live_migration_timed_out', 'call') else None
    )
    cloud.wait(60)
    assert not left
    migration_requests.cancelled(cloud, instance, before)


@pytest.mark.cloud(options=TEN)
def test_timeout_with_abort_after_cutover_changes_nothing_and_is_reported(cloud):
    instance, _before = hung(cloud)
    abort = faults(cloud, 'host1').stall('live_migration_abort')
    cloud.simulation.run_until(abort.reached.is_set, timeout=30)
    faults(cloud, 'host1').clear('copying')
    cloud.simulation.run_until(lambda: 'host2' in cloud.world.active_on(instance.uuid), timeout=30)
    abort.release()
    cloud.wait(60)
    migration_requests.too_late(cloud, instance)


@pytest.mark.cloud(options=TEN)
def test_timeout_after_guest_has_arrived_requests_no_abort(cloud):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host1').stall('arrived', sticky=True)
    migrate(cloud, instance)
    cloud.simulation.advance(60)
    assert cloud.migrations(instance)[-1].abort_requested_at is None
    migration_requests.go_on(cloud)
    cloud.wait(60)
    state.completed(cloud, instance, 'host2')


@pytest.mark.cloud(options=TEN, post_copy=True)
def test_a_guest_that_runs_at_its_destination_already_is_not_aborted_however_long_its_memory_takes(cloud):
    instance = never_converging(cloud)
    faults(cloud, 'host1').stall('postcopy', sticky=True)
    assert migration_requests.force_complete(cloud, instance).status_int == 202
    state.when(cloud, instance, 'running (post-copy)')
    cloud.simulation.advance(60)
    assert cloud.migrations(instance)[-1].abort_requested_at is None
    migration_requests.go_on(cloud)
    cloud.wait(60)
    assert state.migration(cloud, instance)['status'] == 'completed'
    state.moved(cloud, instance, 'host2')


@pytest.mark.cloud(options=TEN)
def test_earlier_abort_request_of_a_user_keeps_its_requester(cloud):
    instance = cloud.boot('one', 'host1')
    # the hypervisor hangs in the abort, too
    stalls = [faults(cloud, 'host1').stall(phase, sticky=True) for phase in ('copying', 'live_migration_abort')]
    before = migrate(cloud, instance)
    state.when(cloud, instance, 'running')
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.advance(60)
    assert state.in_progress(cloud, instance)[0]['status'] == 'running'
    stalls[1].release()
    cloud.wait(SOON)
    migration_requests.cancelled(cloud, instance, before)
    assert cloud.migrations(instance)[-1].abort_requested_by == migration_requests.WHO


# --- force_complete --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'end',
    [
        pytest.param(
            'pause', marks=pytest.mark.cloud(options={**TEN, ACTION: 'force_complete'}, auto_converge_after=0)
        ),
        pytest.param(
            'post-copy',
            marks=pytest.mark.cloud(options={**TEN, ACTION: 'force_complete'}, auto_converge_after=0, post_copy=True),
        ),
    ],
)
def test_migration_beyond_its_timeout_is_force_completed_and_the_action_shows_it(cloud, end):
    instance = never_converging(cloud)
    cloud.simulation.advance(18)
    assert state.in_progress(cloud, instance)[0]['status'] == 'running'
    cloud.wait(SOON)
    assert state.migration(cloud, instance)['status'] == 'completed'
    state.moved(cloud, instance, 'host2')
    assert bool(migration_requests.effects(cloud, instance, 'last page arrived')) == (end == 'post-copy')
    (action,) = migration_requests.actions(cloud, instance, LIVE_MIGRATION_FORCE_COMPLETE)
    assert action['user_id'] == WHO
    assert migration_requests.verdict(cloud, instance, LIVE_MIGRATION_FORCE_COMPLETE) == ('Success', None)


@pytest.mark.cloud(options={**TEN, ACTION: 'force_complete'}, auto_converge_after=0)
def test_the_action_may_be_changed_while_a_move_runs(cloud):
    instance = never_converging(cloud)
    cloud.simulation.advance(10)
    cloud.set_option('host1', ACTION, 'abort')
    cloud.wait(20)
    assert state.migration(cloud, instance)['status'] == 'cancelled'
    assert migration_requests.actions(cloud, instance, LIVE_MIGRATION_FORCE_COMPLETE) == []


@pytest.mark.cloud(options={**TEN, ACTION: 'force_complete'}, auto_converge_after=0)
def test_a_move_that_cannot_be_made_to_complete_can_still_be_aborted(cloud):
    instance, before = hung(cloud)
    cloud.simulation.advance(40)
    assert state.in_progress(cloud, instance)[0]['status'] == 'running'
    assert cloud.migrations(instance)[-1].force_complete_requested_at is not None
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.wait(SOON)
    migration_requests.cancelled(cloud, instance, before)


# --- drivers that hang -----------------------------------------------------------------------------------------------

#: A driver's call, or a phase of a job, that hangs for one guest and for ever.
HANGS = ['get_guest', 'live_migration', 'copying', 'live_migration_abort']
TWO = {'max_concurrent_live_migrations': 2}


@pytest.fixture
def beside(cloud, request):
    """A server whose driver hangs in a way that the test names, with an abort request if that hangs."""
    instance = cloud.boot('hangs', 'host1')
    if request.param in ('get_guest', 'live_migration_abort'):
        faults(cloud, 'host1').stall('copying', instance_uuid=instance.uuid, sticky=True)
        migrate(cloud, instance)
        state.when(cloud, instance, 'running')
        faults(cloud, 'host1').stall(request.param, instance_uuid=instance.uuid, sticky=True)
    else:
        faults(cloud, 'host1').stall(request.param, instance_uuid=instance.uuid, sticky=True)
        migrate(cloud, instance)
        state.when(cloud, instance, 'queued', 'running')
    cloud.simulation.advance(5)
    if request.param == 'live_migration_abort':
        assert migration_requests.abort(cloud, instance).status_int == 202
        cloud.simulation.advance(5)
    return instance


each_hang = pytest.mark.parametrize('beside', HANGS, indirect=True)


@each_hang
@pytest.mark.cloud(options=TWO)
def test_a_driver_that_hangs_for_one_guest_holds_up_no_other_guests_move(cloud, beside):
    others = [cloud.boot(f'vm{number}', 'host1') for number in range(3)]
    for other in others:
        migrate(cloud, other)
    cloud.simulation.run_until(lambda: not any(state.in_progress(cloud, other) for other in others), timeout=60)
    for other in others:
        assert state.migration(cloud, other)['status'] == 'completed'
        assert cloud.world.active_on(other.uuid) == [state.host_of(cloud, other)]
        assert state.host_of(cloud, other) != 'host1'
    migration_requests.go_on(cloud)


@each_hang
@pytest.mark.cloud(options=TWO)
def test_a_driver_that_hangs_for_one_guest_holds_up_no_poll_of_another(cloud, beside):
    other = cloud.boot('other', 'host1', memory_mb=32768)
    cloud.world.hypervisors['host1'].set_link(100.0)
    migrate(cloud, other)
    state.when(cloud, other, 'running')
    cloud.simulation.advance(10)
    first = state.in_progress(cloud, other)[0]['memory_processed_bytes']
    cloud.simulation.advance(10)
    assert state.in_progress(cloud, other)[0]['memory_processed_bytes'] > first > 0
    migration_requests.go_on(cloud)
    cloud.world.hypervisors['host1'].set_link(1000.0)
    cloud.wait(LONG)


@each_hang
@pytest.mark.cloud(options=TWO)
def test_a_driver_that_hangs_for_one_guest_holds_up_no_abort_of_another(cloud, beside):
    others = [cloud.boot(f'vm{number}', 'host1') for number in range(2)]
    for other in others:
        faults(cloud, 'host1').stall('copying', instance_uuid=other.uuid, sticky=True)
        migrate(cloud, other)
        cloud.simulation.advance(1)
    for other, status in zip(reversed(others), ['queued', 'running'], strict=True):
        state.when(cloud, other, status)
        assert migration_requests.abort(cloud, other).status_int == 202
        cloud.simulation.run_until(lambda: not state.in_progress(cloud, other), timeout=SOON)  # noqa: B023 -- run now
        assert state.migration(cloud, other)['status'] == 'cancelled'
        assert state.server(cloud, other)['status'] == 'ACTIVE'
        assert state.allocations(cloud)[other.uuid] == {'host1': state.CLAIM}
        assert state.guests(cloud, other).keys() == {'host1'}
    migration_requests.go_on(cloud)


@each_hang
@pytest.mark.cloud(options={**TWO, 'compute.stop_running': 'wait', 'compute.stop_timeout': 3})
def test_a_driver_that_hangs_holds_up_no_stop(cloud, beside):
    """The stop waits as long as the option says. A stop that takes 2 s more is a breach of I13."""
    stopped = []
    began = cloud.simulation.time
    compute = cloud.computes['host1']
    cloud.processes['host1'].start(lambda: stopped.append(compute.cleanup_host()), name='stop')
    cloud.simulation.run_until(lambda: stopped, timeout=5)
    assert cloud.simulation.time - began <= 5
    state.kill(cloud, 'host1')
    migration_requests.go_on(cloud)
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    assert len(cloud.world.active_on(beside.uuid)) == 1


@pytest.mark.cloud(options={**TEN, **TWO})
def test_a_time_out_is_acted_on_while_the_hypervisor_hangs_in_the_abort_of_another(cloud):
    first, _ = hung(cloud, 'one')
    faults(cloud, 'host1').stall('live_migration_abort', instance_uuid=first.uuid, sticky=True)
    second, _ = hung(cloud, 'two')
    cloud.simulation.run_until(lambda: not state.in_progress(cloud, second), timeout=60)
    assert state.migration(cloud, second)['status'] == 'cancelled'
    assert state.in_progress(cloud, first)[0]['status'] == 'running'
    migration_requests.go_on(cloud)
    cloud.wait(60)
    assert state.migration(cloud, first)['status'] in ('cancelled', 'completed')
