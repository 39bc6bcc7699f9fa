# SPDX-License-Identifier: Apache-2.0

"""Two clouds in which tests plant violations.

They are made once. After each test everything that the test may have changed is restored.
"""

import pytest

from tests.unit.simulator import planting


@pytest.fixture(scope='session')
def completed_cloud(tmp_path_factory):
    with planting.simulated(tmp_path_factory.mktemp('completed')) as cloud:
        cloud.instance = cloud.boot('one', 'host1')
        assert cloud.live_migrate(cloud.instance, host='host2').status_int == 202
        cloud.wait()
        cloud.simulation.run()
        (cloud.migration,) = cloud.migrations()
        assert cloud.migration.status == 'completed'
        yield cloud


@pytest.fixture(scope='session')
def copying_cloud(tmp_path_factory):
    with planting.simulated(tmp_path_factory.mktemp('copying')) as cloud:
        cloud.instance, second = cloud.boot('one', 'host1'), cloud.boot('two', 'host1')
        cloud.world.hypervisors['host1'].faults.stall('copying')
        for instance in (cloud.instance, second):
            assert cloud.live_migrate(instance, host='host2').status_int == 202
        cloud.simulation.advance(1)
        cloud.migration, cloud.second = cloud.migrations()
        assert (cloud.migration.status, cloud.second.status) == ('running', 'queued')
        yield cloud


@pytest.fixture
def cloud(completed_cloud):
    """The cloud in which one migration has completed, from host1 to host2."""
    with planting.put_back(completed_cloud):
        yield completed_cloud


@pytest.fixture
def copying(copying_cloud):
    """The cloud in which one migration copies, from host1 to host2, and a second one waits behind it."""
    with planting.put_back(copying_cloud):
        yield copying_cloud
