# SPDX-License-Identifier: Apache-2.0

"""An instance that a service deletes during its migration stays deleted."""

import pytest
import sqlalchemy as sa

from migrator.conductor import registry
from migrator.placement_client import allocations
from migrator.simulator.actors.operator import Operator
from migrator.simulator.monitor import Monitor
from migrator.testing import backends
from migrator.testing.cloud import SimulatedCloud


def forget(cloud, instance):
    """Take it out, past everything that would refuse that while it is migrated."""
    with cloud.database.engine.writer() as session:
        session.execute(sa.text('DELETE FROM instances WHERE uuid = :uuid'), {'uuid': instance.uuid})
    held = allocations.read(cloud.placement_client, instance.uuid)
    allocations.remove(cloud.placement_client, registry.consumer_of(instance), generation=held.generation)


@pytest.fixture
def moving(tmp_path):
    """A guest in the middle of its copy, which goes no further until its stall is released."""
    cloud = SimulatedCloud(tmp_path, hosts=2, backend=backends.Backend(tmp_path))
    monitor, operator = Monitor(cloud), Operator(cloud)
    faults = cloud.world.hypervisors['host1'].faults
    stall = faults.stall('copying', sticky=True)
    instance = cloud.boot('one', 'host1')
    operator.user.migrate(instance)
    assert operator.user.until_status(instance, 'running')
    yield cloud, operator, monitor, instance, stall
    monitor.close()
    cloud.stop()


@pytest.mark.nova_bug(1848343)
def test_an_instance_that_was_deleted_before_its_move_failed_holds_nothing(moving):
    """A deleted instance had allocations again."""
    cloud, operator, monitor, instance, stall = moving
    cloud.world.hypervisors['host1'].faults.fail('cutover', 'planned: the link is lost')
    forget(cloud, instance)
    stall.release()
    assert operator.user.until(lambda: not cloud.world.hypervisors['host1'].jobs)
    operator.finish()
    assert [row.status for row in cloud.migrations()] == ['failed']
    assert allocations.read(cloud.placement_client, instance.uuid).allocations == {}
    assert operator.judge(monitor) == []


@pytest.mark.nova_bug(1848343)
def test_an_instance_that_was_deleted_before_its_move_completed_holds_nothing(moving):
    """A deleted instance had allocations again."""
    cloud, operator, monitor, instance, stall = moving
    forget(cloud, instance)
    stall.release()
    operator.finish()
    assert [row.status for row in cloud.migrations()] == ['completed']
    assert allocations.read(cloud.placement_client, instance.uuid).allocations == {}
    assert operator.judge(monitor) == []
