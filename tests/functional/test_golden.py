# SPDX-License-Identifier: Apache-2.0

"""The timelines of the main paths, as ``migrator-manage migration show`` prints them.

Each is a file in ``golden``, in which uuids, times and spans of time have the same names in every run.
``MIGRATOR_GOLDEN=write`` writes them anew; read what has changed as an operator on call reads it.
"""

import os
import pathlib

import pytest

from migrator.conductor.migration import settle
from migrator.testing.placement_faults import Fault
from tests.functional import migration_requests, state
from tests.functional.faults import LONG, faults
from tests.functional.managing import normal

pytestmark = pytest.mark.simulated(reason='it prints times, and lets minutes pass')

GOLDEN = pathlib.Path(__file__).with_name('golden')


@pytest.fixture
def golden(request):
    """Compare a timeline with the one in the file of this test's name."""

    def compare(text, name=None):
        path = GOLDEN / f'{name or request.node.name.removeprefix("test_")}.txt'
        if os.environ.get('MIGRATOR_GOLDEN') == 'write':
            path.write_text(text)
        assert text == path.read_text(), f'{path.name} has changed; MIGRATOR_GOLDEN=write writes it anew'

    return compare


def test_the_names_are_the_same_in_every_run():
    uuids = [f'{digit * 8}-0000-4000-8000-000000000000' for digit in 'abc']
    text = f'Timeline\n\n{uuids[0]} 2026-01-01 00:00:07  61 s left    x  req-{uuids[1]} {uuids[2]} {uuids[2]}'
    text += ' 2 min 3 s 0.5 of 4.0 GiB'
    assert normal(text, {uuids[0]: 'MIGRATION'}) == (
        'Timeline\n\nMIGRATION YYYY-MM-DD HH:MM:SS  N s left  x  REQUEST-1 UUID-1 UUID-1 N s N of 4.0 GiB'
    )


def test_every_golden_timeline_has_its_test():
    reported = {name.removeprefix('test_') for name in globals() if name.startswith('test_')}
    assert {path.stem for path in GOLDEN.glob('*.txt')} <= reported


# --- the main paths --------------------------------------------------------------------------------------------------


def test_completed(cloud, operator, golden):
    instance = cloud.boot('one', 'host1')
    assert cloud.live_migrate(instance).status_int == 202
    cloud.wait()
    state.completed(cloud, instance, 'host2')
    golden(operator.shows(instance))


def test_pre_fails_and_the_next_candidate_is_used(cloud, operator, golden):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host2').fail('pre_live_migration', 'no such bridge: br-int', after=True)
    assert cloud.live_migrate(instance).status_int == 202
    cloud.wait()
    state.completed(cloud, instance, 'host3')
    golden(operator.shows(instance))


def test_driver_fails(cloud, operator, golden):
    instance = cloud.boot('one', 'host1', memory_mb=2048)
    faults(cloud, 'host1').fail('copying', 'the stream broke')
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait()
    assert state.migration(cloud, instance)['status'] == 'failed'
    golden(operator.shows(instance))


def test_waits_in_the_queue(cloud, operator, golden):
    instance = cloud.boot('one', 'host1')
    migration_requests.queued(cloud, instance)
    cloud.simulation.advance(5)
    golden(operator.shows(instance))
    migration_requests.go_on(cloud)


def test_abort_queued(cloud, operator, golden):
    instance = cloud.boot('one', 'host1')
    migration_requests.queued(cloud, instance)
    cloud.simulation.advance(5)
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].ended)
    assert state.migration(cloud, instance)['status'] == 'cancelled'
    golden(operator.shows(instance))
    migration_requests.go_on(cloud)


def test_abort_running(cloud, operator, golden):
    instance = cloud.boot('one', 'host1')
    migration_requests.running(cloud, instance)
    cloud.simulation.advance(5)
    assert migration_requests.abort(cloud, instance).status_int == 202
    migration_requests.go_on(cloud)
    cloud.wait()
    assert state.migration(cloud, instance)['status'] == 'cancelled'
    golden(operator.shows(instance))


def test_abort_loses_to_cut_over(cloud, operator, golden):
    instance = cloud.boot('one', 'host1', memory_mb=2048)
    stall = faults(cloud, 'host1').stall('live_migration_abort')
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    state.when(cloud, instance, 'running')
    cloud.simulation.advance(1)
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.wait()
    stall.release()
    assert state.migration(cloud, instance)['status'] == 'completed'
    golden(operator.shows(instance))


def test_planned_stop_with_a_queue(cloud, operator, golden):
    instance = cloud.boot('one', 'host1')
    migration_requests.queued(cloud, instance)
    cloud.simulation.advance(5)
    cloud.computes['host1'].cleanup_host()
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].ended, timeout=LONG)
    assert state.migration(cloud, instance)['status'] == 'cancelled'
    golden(operator.shows(instance))
    migration_requests.go_on(cloud)
    cloud.kill('host1')
    state.restart(cloud, 'host1')


def test_takeover(cloud, operator, golden):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    migration_requests.running(cloud, instance)
    cloud.start_conductor('conductor2')
    cloud.simulation.advance(5)
    state.kill(cloud, 'conductor1')
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].epoch > 1, timeout=60)
    migration_requests.go_on(cloud)
    cloud.wait()
    state.completed(cloud, instance, 'host2')
    golden(operator.shows(instance))


def test_conductor_is_gone(cloud, operator, golden):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    migration_requests.running(cloud, instance)
    state.kill(cloud, 'conductor1')
    cloud.simulation.advance(60)
    golden(operator.shows(instance))
    migration_requests.go_on(cloud)
    cloud.start_conductor('conductor1')


def test_post_step_is_tried_again(cloud, operator, golden):
    instance = cloud.boot('one', 'host1')
    for _ in range(3):
        faults(cloud, 'host1').fail('post_live_migration_at_source', 'the volume is busy')
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait()
    state.completed(cloud, instance, 'host2')
    golden(operator.shows(instance))


def test_post_step_as_a_deferred_cleanup(cloud, operator, golden):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    state.when(cloud, instance, 'running')
    state.kill(cloud, 'host1')
    cloud.wait(LONG)
    assert state.migration(cloud, instance)['status'] == 'completed'
    golden(operator.shows(instance))


@pytest.mark.cloud(post_copy=True)
def test_post_copy(cloud, operator, golden):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    faults(cloud, 'host1').stall('postcopy', sticky=True)
    assert cloud.live_migrate(instance).status_int == 202
    state.when(cloud, instance, 'running')
    cloud.simulation.advance(2)
    assert migration_requests.force_complete(cloud, instance).status_int == 202
    state.when(cloud, instance, 'running (post-copy)')
    cloud.simulation.advance(5)
    golden(operator.shows(instance), 'post_copy_goes_on')
    migration_requests.go_on(cloud)
    cloud.wait()
    migration_requests.completed(cloud, instance)
    golden(operator.shows(instance))


def test_placement_is_away(cloud, operator, golden):
    instance = cloud.boot('one', 'host1')
    cloud.adapter.inject(Fault.UNREACHABLE, times=1000)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.simulation.advance(20)
    golden(operator.shows(instance))
    cloud.adapter._plans.clear()
    cloud.wait()
    state.completed(cloud, instance, 'host2')
    away, back = 'Waiting for Placement: ', 'No longer waiting for Placement'
    said = [line for line in cloud.monitor.logs if away in line or back in line]
    assert [away in line for line in said] == [True, False], 'once when it went, and once when it was back'


@pytest.fixture(autouse=True)
def short_copies(monkeypatch):
    """A copy whose source is unreachable is late at once."""
    monkeypatch.setattr(settle, 'SECONDS_PER_GIB', 0)


def stuck(cloud):
    """Have a migration whose source has lost its power, and return the server."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    migration_requests.running(cloud, instance)
    cloud.world.hypervisors['host1'].power_off()
    state.kill(cloud, 'host1')
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].stuck_reason, timeout=300)
    cloud.simulation.advance(30)
    return instance


def test_stuck(cloud, operator, golden):
    golden(operator.shows(stuck(cloud)))


def test_stuck_and_retried(cloud, operator, golden):
    instance = stuck(cloud)
    uuid = cloud.migrations(instance)[-1].uuid
    status, text = operator('migration', 'retry', uuid)
    assert status == 1
    assert 'is still stuck' in text
    state.force_down(cloud, 'host1')
    cloud.simulation.advance(1)
    status, text = operator('migration', 'retry', uuid)
    assert (status, 'no longer stuck' in text) == (0, True), text
    cloud.wait(LONG)
    golden(operator.shows(instance))


@pytest.mark.parametrize('guest_on', ['host1', 'host2'])
def test_abandoned(cloud, operator, golden, guest_on):
    instance = stuck(cloud)
    uuid = cloud.migrations(instance)[-1].uuid
    status, text = operator('migration', 'abandon', uuid, '--guest-on', guest_on, '--yes')
    assert (status, 'It has ended error' in text) == (0, True), text
    golden(operator.shows(instance), f'abandoned_{guest_on}')


def test_post_copy_goes_on():
    """See :func:`test_post_copy`."""


def test_abandoned_host1():
    """See :func:`test_abandoned`."""


def test_abandoned_host2():
    """See :func:`test_abandoned`."""
