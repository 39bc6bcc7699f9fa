# SPDX-License-Identifier: Apache-2.0


"""The services as an operator runs them: processes on RabbitMQ, a database and Placement over HTTP."""

from __future__ import annotations

import pytest

from tests.functional import state
from tests.real.cloud import ProcessCloud
from tests.real.site import Shape, Site

pytestmark = pytest.mark.slow


@pytest.fixture
def site(workspace, server, rabbitmq, placement_http):
    made = Site(workspace, Shape(hosts=2), rabbitmq, server, placement_http)
    yield made
    made.end()


@pytest.fixture
def cloud(site):
    # All at once and in no order: each waits for what it needs.
    site.start()
    made = ProcessCloud(site, site.tap())
    made.simulation.run_until(made.up)
    yield made
    made.close()


def test_a_migration_completes_and_every_service_ends_with_0_on_sigterm(site, cloud):
    instance = cloud.boot('guest', 'host1', dirty_rate=50.0)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait()
    state.completed(cloud, instance, 'host2')
    cloud.judge(set())
    sent = cloud.tap.recorder.per_migration()[cloud.migrations(instance)[0].uuid]
    assert (sent['call'], sent['reply']) == (6, 6)
    # Three ends of steps are in the replies if the hosts are quick.
    assert 3 <= sent['cast'] <= 6

    # The log of each says by which request or migration a line was caused, and no password.
    assert instance.uuid in site.services['conductor1'].log.read_text()
    for each in site.services.values():
        log = each.log.read_text()
        assert 'guessed' not in log
        assert 'Traceback' not in log
    for each in site.processes:
        each.stop()
        assert each.status == 0, each.tail()
