# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""An instance that is taken out of the books while it is migrated, by a service that does not ask, stays gone."""

import pytest

from migrator.conductor import instances
from migrator.placement_client import allocations
from migrator.testing import grounds
from migrator.testing.cloud import SimulatedCloud
from migrator.testing.director import Director
from migrator.testing.watcher import Watcher


def forget(cloud, instance):
    """Take it out, past everything that would refuse that while it is migrated."""
    with cloud.engine.writer() as session:
        session.connection().exec_driver_sql('DELETE FROM instances WHERE uuid = ?', (instance.uuid,))
    held = allocations.read(cloud.placement_client, instance.uuid)
    allocations.remove(cloud.placement_client, instances.consumer_of(instance), generation=held.generation)


@pytest.fixture
def moving(tmp_path):
    """A guest in the middle of its copy, which goes no further until its stall is released."""
    cloud = SimulatedCloud(tmp_path, hosts=2, ground=grounds.Ground(tmp_path))
    watcher, director = Watcher(cloud), Director(cloud)
    faults = cloud.world.hypervisors['host1'].faults
    stall = faults.stall('copying', sticky=True)
    instance = cloud.boot('one', 'host1')
    director.migrate(instance)
    assert director.until_status(instance, 'running')
    yield cloud, director, watcher, instance, stall
    watcher.close()
    cloud.stop()


@pytest.mark.nova_bug(1848343)
def test_an_instance_that_was_deleted_before_its_move_failed_holds_nothing(moving):
    """A deleted instance had allocations again."""
    cloud, director, watcher, instance, stall = moving
    cloud.world.hypervisors['host1'].faults.fail('cutover', 'planned: the link is lost')
    forget(cloud, instance)
    stall.release()
    assert director.until(lambda: not cloud.world.hypervisors['host1'].jobs)
    director.finish()
    assert [row.status for row in cloud.migrations()] == ['failed']
    assert allocations.read(cloud.placement_client, instance.uuid).allocations == {}
    assert director.judge(watcher) == []


@pytest.mark.nova_bug(1848343)
def test_an_instance_that_was_deleted_before_its_move_completed_holds_nothing(moving):
    """A deleted instance had allocations again."""
    cloud, director, watcher, instance, stall = moving
    forget(cloud, instance)
    stall.release()
    director.finish()
    assert [row.status for row in cloud.migrations()] == ['completed']
    assert allocations.read(cloud.placement_client, instance.uuid).allocations == {}
    assert director.judge(watcher) == []
