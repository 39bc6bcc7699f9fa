# SPDX-License-Identifier: Apache-2.0

"""Two migrations of one guest in sequence: none acts on a guest that another one migrates."""

import pytest
from webob import exc

from migrator.conductor import registry
from migrator.conductor.migration import settle
from migrator.objects.protocol import GuestState
from tests.functional import migration_requests, state
from tests.functional.faults import LONG, faults

pytestmark = pytest.mark.simulated(reason='it waits for a host to be given up, which takes minutes')


def rows(cloud, instance):
    return [row for row in cloud.migrations() if row.instance_uuid == instance.uuid]


def deferred_restore(cloud, **guest):
    """Return a guest whose migration has failed, and whose source was killed before it could restore it."""
    instance = cloud.boot('one', 'host1', memory_mb=1024, **guest)
    faults(cloud, 'host1').fail('cutover')
    slow = faults(cloud, 'host2').stall('rollback_live_migration_at_destination')
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.simulation.run_until(slow.reached.is_set)
    state.kill(cloud, 'host1')
    slow.release()
    cloud.simulation.run_until(lambda: rows(cloud, instance)[0].ended, timeout=LONG)
    assert [cleanup.step for cleanup in cloud.database.cleanups.list()] == ['rollback_live_migration_at_source']
    return instance


def ask(cloud, instance, host=None):
    """Ask for the next migration until it is accepted."""
    cloud.simulation.run_until(lambda: cloud.live_migrate(instance, host).status_int == 202, timeout=60)
    return rows(cloud, instance)[-1].uuid


def aborts(cloud, instance):
    return cloud.world.effects('abort asked', instance.uuid)


@pytest.mark.parametrize('asked', ['before the sweep', 'after some seconds'])
def test_the_restore_of_an_earlier_migration_is_done_before_the_next_one_begins(cloud, asked):
    """It aborted the job of the next migration, or resumed the source while the destination ran the guest."""
    instance = deferred_restore(cloud, dirty_rate=100.0)
    state.restart(cloud, 'host1')
    if asked == 'after some seconds':
        cloud.simulation.advance(3)
    ask(cloud, instance, 'host3')
    cloud.wait(LONG)
    state.completed(cloud, instance, 'host3')
    assert aborts(cloud, instance) == []
    assert cloud.database.cleanups.list() == []


def test_migration_waiting_for_hanging_restore_can_be_aborted(cloud, operator):
    instance = deferred_restore(cloud)
    hang = faults(cloud, 'host1').stall('rollback_live_migration_at_source', sticky=True)
    state.restart(cloud, 'host1')
    ask(cloud, instance, 'host3')
    cloud.simulation.advance(100)
    second = rows(cloud, instance)[-1]
    first = rows(cloud, instance)[0].uuid
    why = f'for host1 to do rollback_live_migration_at_source, the deferred cleanup of migration {first}'
    assert (second.status, second.waits_for) == ('accepted', why)
    assert 'It waits: for host1 to do rollback_live_migration_at_source' in operator.shows(instance)
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.run_until(lambda: rows(cloud, instance)[-1].ended, timeout=60)
    assert rows(cloud, instance)[-1].status == 'cancelled'
    hang.release()
    cloud.simulation.run_until(lambda: not cloud.database.cleanups.list(), timeout=60)
    assert list(state.guests(cloud, instance)) == ['host1']


@pytest.mark.breaks('I2', reason='the test moves the guest by itself')
def test_a_guest_that_was_brought_back_is_not_removed_by_the_cleanup_that_is_pending_there(cloud, operator):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host1').fail('post_live_migration_at_source', 'the disk is busy', sticky=True)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait(LONG)
    assert [cleanup.host for cleanup in cloud.database.cleanups.list()] == ['host1']
    bring_back(cloud, instance)
    faults(cloud, 'host1').clear()
    cloud.simulation.advance(60)
    assert cloud.world.hypervisors['host1'].describe(instance.uuid).state == GuestState.SHUTDOWN
    (cleanup,) = cloud.database.cleanups.list()
    assert cleanup.blocked_because
    # The next migration of it waits for the operator, and goes on by itself.
    cloud.world.hypervisors['host1'].resume(instance.uuid)
    ask(cloud, instance, 'host3')
    cloud.simulation.run_until(lambda: rows(cloud, instance)[-1].stuck_reason, timeout=60)
    assert 'migrator-manage cleanup list' in rows(cloud, instance)[-1].stuck_reason
    assert operator('cleanup', 'discard', str(cleanup.id), '--yes')[0] == 0
    cloud.wait(LONG)
    state.completed(cloud, instance, 'host3')


def bring_back(cloud, instance):
    """Have an embedding service create the guest on host1 again, shut off, and delete it there."""
    row = cloud.database.instances.get(instance.uuid)
    registry.delete_instance(cloud.database, cloud.placement_client, instance.uuid)
    cloud.world.hypervisors['host2'].delete(instance.uuid)
    cloud.world.hypervisors['host1'].delete(instance.uuid)
    registry.create_instance(cloud.database, cloud.placement_client, row.replace(host='host1', node='host1'))
    cloud.world.hypervisors['host1'].spawn(row)
    cloud.world.hypervisors['host1'].shut_off(instance.uuid)


def test_a_force_complete_that_hangs_does_not_pause_the_next_migration(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=4096, dirty_rate=2000.0)
    hang = faults(cloud, 'host1').stall('live_migration_force_complete')
    faults(cloud, 'host1').stall('copying', sticky=True)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    state.when(cloud, instance, 'running')
    assert migration_requests.force_complete(cloud, instance).status_int == 202
    cloud.simulation.run_until(hang.reached.is_set, timeout=60)
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.run_until(lambda: rows(cloud, instance)[0].ended, timeout=LONG)
    assert rows(cloud, instance)[0].status == 'cancelled'
    faults(cloud, 'host1').stall('copying', sticky=True)
    ask(cloud, instance, 'host3')
    cloud.simulation.advance(20)
    assert len(cloud.world.effects('job started', instance.uuid)) == 1, 'the call of the first one has not returned'
    hang.release()
    state.when(cloud, instance, 'running')
    assert cloud.world.effects('force complete asked', instance.uuid) == []
    migration_requests.go_on(cloud)
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.wait(LONG)


def test_the_abandonment_of_the_next_migration_blocks_what_earlier_ones_have_left(cloud, operator, monkeypatch):
    """A cleanup of the first migration would have removed the guest from where the operator has seen it."""
    monkeypatch.setattr(settle, 'SECONDS_PER_GIB', 0)
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    faults(cloud, 'host1').fail('post_live_migration_at_source', 'the disk is busy', sticky=True)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait(LONG)
    migration_requests.running(cloud, cloud.database.instances.get(instance.uuid))
    cloud.world.hypervisors['host2'].power_off()
    state.kill(cloud, 'host2')
    cloud.simulation.run_until(lambda: rows(cloud, instance)[-1].stuck_reason, timeout=300)
    uuid, destination = rows(cloud, instance)[-1].uuid, rows(cloud, instance)[-1].dest_compute
    assert operator('migration', 'abandon', uuid, '--guest-on', destination, '--yes')[0] == 0
    blocked = {cleanup.host: bool(cleanup.blocked_because) for cleanup in cloud.database.cleanups.list()}
    assert blocked == {'host1': True, 'host2': True}


def test_a_host_with_a_pending_cleanup_is_no_destination_even_if_it_is_forced(cloud):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host1').fail('post_live_migration_at_source', 'the disk is busy', sticky=True)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait(LONG)
    body = {'os-migrateLive': {'host': 'host1', 'block_migration': 'auto', 'force': True}}
    answer = cloud.request('POST', f'/servers/{instance.uuid}/action', body, version='2.30')
    assert answer.status_int == exc.HTTPBadRequest.code
    assert 'host1' in answer.text
    faults(cloud, 'host1').clear()
