# SPDX-License-Identifier: Apache-2.0

"""An instance that its embedding service deletes during its migration, which migrator refuses.

The consumer that is gone stays gone, nothing of the guest is left anywhere, and the migration ends.
"""

import contextlib
import sqlite3

import pytest

from migrator import exception
from migrator.conductor import registry
from tests.functional import migration_requests, state
from tests.functional.faults import LONG, faults, migrate

pytestmark = pytest.mark.simulated(reason='it deletes a row past every guard, at single moments')

#: Where a migration is held when its instance is deleted: at the source, and at the destination.
SOURCE = ['check_can_live_migrate_source', 'live_migration', 'starting', 'copying', 'cutover']
DESTINATION = ['check_can_live_migrate_destination', 'pre_live_migration']
ARRIVED = ['arrived', 'post_live_migration_at_source']


def delete(cloud, instance):
    """Delete an instance as a service would that does not ask: its row, its allocation, and its guest."""
    with pytest.raises(exception.MigrationInProgress):
        registry.delete_instance(cloud.database, cloud.placement_client, instance.uuid)
    with contextlib.closing(sqlite3.connect(cloud.backend.directory / 'migrator.sqlite')) as connection, connection:
        connection.execute('DELETE FROM instances WHERE uuid = ?', [instance.uuid])
    cloud.placement.adapter().delete(f'/allocations/{instance.uuid}')
    for hypervisor in cloud.world.hypervisors.values():
        if instance.uuid in hypervisor.guests:
            hypervisor.delete(instance.uuid)


def held(cloud, host, phase):
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, host).stall(phase, instance_uuid=instance.uuid, sticky=True)
    migrate(cloud, instance, 'host2')
    cloud.simulation.run_until(stall.reached.is_set)
    return instance


def gone(cloud, instance):
    """Assert that nothing is left of an instance, nor of its migration but that it has ended."""
    row = cloud.migrations()[-1]
    assert row.ended, (row.status, row.stuck_reason, row.waits_for)
    assert state.allocations(cloud) == {}
    assert state.guests(cloud, instance) == {}
    assert not cloud.database.cleanups.list()
    return row


@pytest.mark.nova_bug(1848343)
@pytest.mark.breaks('I1', 'I2', 'I14', 'I15', reason='the test takes away the row and every copy of the guest')
@pytest.mark.parametrize(
    ('host', 'phase'), [*(('host1', phase) for phase in SOURCE), *(('host2', phase) for phase in DESTINATION)]
)
def test_before_it_has_moved_the_migration_is_unwound_and_nothing_is_left(cloud, host, phase):
    instance = held(cloud, host, phase)
    delete(cloud, instance)
    migration_requests.go_on(cloud)
    cloud.wait(LONG)
    assert gone(cloud, instance).status == 'failed'


@pytest.mark.breaks('I1', 'I2', 'I14', 'I15', reason='the test takes away the row and every copy of the guest')
def test_instance_deleted_in_queue_fails_its_migration(cloud):
    instance = cloud.boot('one', 'host1')
    first = migration_requests.queued(cloud, instance)
    delete(cloud, instance)
    migration_requests.go_on(cloud)
    cloud.wait(LONG)
    found = [one for one in cloud.migrations() if one.instance_uuid == instance.uuid]
    assert [one.status for one in found] == ['failed']
    assert state.guests(cloud, instance) == {}
    assert set(state.allocations(cloud)) == {first.uuid}


@pytest.mark.breaks('I1', 'I2', 'I14', 'I15', reason='the test takes away the row and every copy of the guest')
def test_instance_deleted_while_conductor_is_down_is_unwound_after_restart(cloud):
    instance = held(cloud, 'host1', 'copying')
    state.kill(cloud, 'conductor1')
    delete(cloud, instance)
    migration_requests.go_on(cloud)
    cloud.start_conductor('conductor2')
    cloud.wait(LONG)
    assert gone(cloud, instance).status == 'failed'


@pytest.mark.nova_bug(1848343)
@pytest.mark.breaks('I1', 'I2', 'I14', 'I15', reason='the test takes away the row and every copy of the guest')
@pytest.mark.parametrize('phase', ARRIVED)
def test_instance_deleted_late_leaves_no_allocation_and_at_most_a_stuck_reason(cloud, phase):
    instance = held(cloud, 'host1', phase)
    delete(cloud, instance)
    migration_requests.go_on(cloud)
    cloud.simulation.advance(60)
    row = cloud.migrations()[-1]
    assert row.ended or 'look' in row.stuck_reason
    assert instance.uuid not in state.allocations(cloud)
