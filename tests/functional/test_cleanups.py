# SPDX-License-Identifier: Apache-2.0

"""Deferred cleanups of a host that was away are run when it is back."""

import pytest

from migrator.conductor import registry
from migrator.objects import protocol
from migrator.objects.protocol import GuestState
from tests.functional import state

#: Seconds of the cloud's clock: longer than a dead host is waited for.
LONG = 600


def pending(cloud):
    return [(cleanup.host, cleanup.step) for cleanup in cloud.database.cleanups.list()]


def completed_without_its_source(cloud):
    """Migrate a server whose source dies while it copies; return the server."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    assert cloud.live_migrate(instance).status_int == 202
    state.when(cloud, instance, 'running')
    state.kill(cloud, 'host1')
    cloud.wait(LONG)
    assert state.migration(cloud, instance)['status'] == 'completed'
    assert state.host_of(cloud, instance) == 'host2'
    assert state.allocations(cloud) == {instance.uuid: {'host2': state.CLAIM | {'MEMORY_MB': 4096}}}
    assert pending(cloud) == [('host1', 'post_live_migration_at_source')]
    return instance


@pytest.mark.nova_bug(1753676, 2000069)
@pytest.mark.simulated(reason='it waits for a host to be given up, which takes minutes')
def test_returning_source_runs_its_cleanups_and_can_take_the_server_again(cloud):
    instance = completed_without_its_source(cloud)
    assert cloud.world.hypervisors['host1'].residue(instance.uuid)
    state.restart(cloud, 'host1')
    cloud.simulation.run_until(lambda: not pending(cloud), timeout=60)
    assert not cloud.world.hypervisors['host1'].residue(instance.uuid)
    assert cloud.live_migrate(instance, 'host1').status_int == 202
    cloud.wait(LONG)
    state.completed(cloud, instance, 'host1')


@pytest.mark.breaks('I1', reason='the user deletes the guest, so what is left of it is its last copy')
@pytest.mark.simulated(reason='it waits for a host to be given up, which takes minutes')
def test_cleanup_of_a_deleted_server_is_run(cloud):
    instance = completed_without_its_source(cloud)
    registry.delete_instance(cloud.database, cloud.placement_client, instance.uuid)
    cloud.world.hypervisors['host2'].delete(instance.uuid)
    state.restart(cloud, 'host1')
    cloud.simulation.run_until(lambda: not pending(cloud), timeout=60)
    assert not cloud.world.hypervisors['host1'].residue(instance.uuid)


@pytest.mark.nova_bug(1475411, 1488435, 1662626, 1843639)
@pytest.mark.cloud(options={'conductor.post_max_attempts': 2})
def test_cleanup_that_failed_too_often_leaves_the_server_free_and_is_run_later(cloud):
    instance = cloud.boot('one', 'host1')
    fault = cloud.world.hypervisors['host2'].faults
    fault.fail('rollback_live_migration_at_destination', 'it will not go', sticky=True)
    cloud.world.hypervisors['host1'].faults.fail('copying')
    before = state.everything(cloud)
    assert cloud.live_migrate(instance).status_int == 202
    cloud.wait(LONG)
    assert state.migration(cloud, instance)['status'] == 'failed'
    assert {**state.everything(cloud), 'guests': before['guests']} == before
    assert pending(cloud) == [('host2', 'rollback_live_migration_at_destination')]
    cloud.simulation.advance(30)
    assert pending(cloud) == [('host2', 'rollback_live_migration_at_destination')], 'it still fails'
    assert 'it will not go' in cloud.database.cleanups.list()[0].reason
    fault.clear()
    cloud.simulation.run_until(lambda: not pending(cloud), timeout=60)
    assert not cloud.world.hypervisors['host2'].residue(instance.uuid)


@pytest.mark.breaks('I1', 'I5', reason='the test runs the guest a second time, at the host with the cleanup')
@pytest.mark.simulated(reason='it waits for a host to be given up, which takes minutes')
def test_cleanup_at_host_that_runs_guest_is_blocked_and_guest_runs_on(cloud):
    instance = completed_without_its_source(cloud)
    cloud.world.hypervisors['host1'].delete(instance.uuid)
    cloud.world.hypervisors['host1'].spawn(instance)
    state.restart(cloud, 'host1')
    cloud.simulation.run_until(lambda: cloud.database.cleanups.list()[0].blocked_because, timeout=60)
    assert 'look which host runs it' in cloud.database.cleanups.list()[0].blocked_because
    cloud.simulation.advance(30)
    assert cloud.world.hypervisors['host1'].describe(instance.uuid).state == GuestState.RUNNING
    cloud.world.hypervisors['host1'].delete(instance.uuid)


def completed_at_a_host_that_died(cloud):
    """Migrate a server whose destination dies before its post step is done; return the server."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    cloud.world.hypervisors['host2'].faults.fail('post_live_migration_at_destination', 'not yet', sticky=True)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    state.when(cloud, instance, 'post-migrating')
    state.kill(cloud, 'host2')
    cloud.wait(LONG)
    cloud.world.hypervisors['host2'].faults.clear()
    assert state.migration(cloud, instance)['status'] == 'completed'
    assert state.host_of(cloud, instance) == 'host2'
    assert pending(cloud) == [('host2', 'post_live_migration_at_destination')]
    return instance


@pytest.mark.breaks('I1', reason='the destination loses its power, and the guest with it')
@pytest.mark.simulated(reason='it waits for a host to be given up, which takes minutes')
def test_guest_lost_at_destination_after_move_blocks_its_cleanup(cloud):
    """It was sent at each sweep for ever, for a guest that no host had."""
    instance = completed_at_a_host_that_died(cloud)
    cloud.world.hypervisors['host2'].delete(instance.uuid)
    state.restart(cloud, 'host2')
    cloud.simulation.run_until(lambda: cloud.database.cleanups.list()[0].blocked_because, timeout=60)
    (cleanup,) = cloud.database.cleanups.list()
    assert 'the guest is not there, where the database has it: look which host has it' in cleanup.blocked_because
    assert instance.uuid in cleanup.reason, 'what the host said is there to be read'
    reported = count_reports(cloud)
    cloud.simulation.advance(60)
    assert count_reports(cloud) == reported, 'it is left alone'
    # The operator has started it there, from its disk.
    cloud.world.hypervisors['host2'].spawn(instance)
    assert cloud.database.cleanups.try_again([cleanup]) == 1
    cloud.simulation.run_until(lambda: not pending(cloud), timeout=60)


@pytest.mark.breaks('I1', 'I2', reason='the source loses its guest while its service is away')
@pytest.mark.simulated(reason='it waits for a host to be given up, which takes minutes')
@pytest.mark.parametrize('deleted', [False, True])
def test_guest_lost_at_source_before_restore_blocks_cleanup_unless_deleted(cloud, deleted):
    instance = cloud.boot('one', 'host1')
    cloud.world.hypervisors['host1'].faults.fail('copying')
    stall = cloud.world.hypervisors['host2'].faults.stall('rollback_live_migration_at_destination')
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.simulation.run_until(stall.reached.is_set)
    state.kill(cloud, 'host1')
    stall.release()
    cloud.wait(LONG)
    assert state.migration(cloud, instance)['status'] == 'failed'
    assert pending(cloud) == [('host1', 'rollback_live_migration_at_source')]
    if deleted:
        registry.delete_instance(cloud.database, cloud.placement_client, instance.uuid)
    cloud.world.hypervisors['host1'].delete(instance.uuid)
    state.restart(cloud, 'host1')
    if deleted:
        cloud.simulation.run_until(lambda: not pending(cloud), timeout=60)
        return
    cloud.simulation.run_until(lambda: cloud.database.cleanups.list()[0].blocked_because, timeout=60)
    assert 'the guest is not there, where the database has it' in cloud.database.cleanups.list()[0].blocked_because


def count_reports(cloud):
    return sum(one.method == 'post_live_migration_at_destination' for one in cloud.recorder.messages)


@pytest.mark.breaks('I1', reason='the user deletes the guest')
@pytest.mark.simulated(reason='it waits for a host to be given up, which takes minutes')
def test_cleanup_for_a_deleted_guest_is_forgotten(cloud):
    """It was sent at each sweep for ever, for a guest that could not be there."""
    instance = completed_at_a_host_that_died(cloud)
    registry.delete_instance(cloud.database, cloud.placement_client, instance.uuid)
    cloud.world.hypervisors['host2'].delete(instance.uuid)
    state.restart(cloud, 'host2')
    cloud.simulation.run_until(lambda: not pending(cloud), timeout=60)


@pytest.mark.breaks('I2', 'I3', 'I5', reason='the test moves the guest past migrator')
@pytest.mark.simulated(reason='it waits for a host to be given up, which takes minutes')
def test_cleanup_for_a_guest_started_elsewhere_is_forgotten(cloud):
    """As one is that an embedding service has evacuated while its host was away."""
    instance = completed_at_a_host_that_died(cloud)
    cloud.world.hypervisors['host2'].delete(instance.uuid)
    cloud.world.hypervisors['host3'].spawn(instance)
    cloud.database.instances.update(instance.uuid, host='host3', node='host3')
    state.restart(cloud, 'host2')
    cloud.simulation.run_until(lambda: not pending(cloud), timeout=60)


@pytest.mark.simulated(reason='it waits for a host to be given up, and sends to it in an epoch of its own')
def test_cleanup_older_than_the_epoch_of_the_host_is_run(cloud):
    """It refused for ever: each sweep sent it in the same epoch again."""
    instance = completed_without_its_source(cloud)
    (cleanup,) = cloud.database.cleanups.list()
    compute = cloud.start_compute('host1')
    cloud.simulation.run_until(lambda: compute._served)
    # As if another conductor had asked it in between.
    order = protocol.Command(
        migration_uuid=cleanup.migration_uuid,
        instance_uuid=cleanup.instance_uuid,
        step='poll',
        epoch=cleanup.epoch + 3,
        owner='another',
        reply_to='conductor1',
        boot_id=compute.boot_id,
    )
    hosts = cloud.conductors['conductor1'].tools.hosts
    assert hosts.poll('host1', [order])[0].epoch == cleanup.epoch + 3
    cloud.simulation.run_until(lambda: not pending(cloud), timeout=60)
    assert not cloud.world.hypervisors['host1'].residue(instance.uuid)
