# SPDX-License-Identifier: Apache-2.0

"""The page on embedding, over RabbitMQ: host1 in a native process, host2 in a patched one."""

import pathlib
import sys

import pytest

from tests.real import site as sites
from tests.real.cloud import ProcessCloud

PROGRAM = str(pathlib.Path(__file__).with_name('embedding_service.py'))
HOW = {'host1': 'native', 'host2': 'patched'}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Embedding(sites.Service):
    """A process of an importing service."""

    def command(self):
        return [sys.executable, PROGRAM, HOW[self.name], self.name, self.world, '--config-file', str(self.file)]


class Site(sites.Site):
    """A site whose computes are embedded in other services."""

    def add(self, kind, name):
        if kind != 'compute':
            return super().add(kind, name)
        made = self.services[name] = Embedding(self.workspace, kind, name, self.configure(name))
        made.world = self.world_path
        return made


@pytest.fixture
def cloud(workspace, postgresql, rabbitmq, placement_http):
    shape = sites.Shape(hosts=2, world=('--vcpus', '64'))
    site = Site(workspace, shape, rabbitmq, postgresql, placement_http)
    site.start()
    cloud = ProcessCloud(site)
    cloud.simulation.run_until(cloud.up)
    yield cloud
    cloud.close()
    site.end()


def statuses(cloud, *guests):
    return [cloud.migrations(guest)[0].status for guest in guests]


def become(cloud, *wanted):
    """Wait until guests have statuses, given pair by pair."""
    guests, expected = wanted[::2], list(wanted[1::2])
    cloud.simulation.run_until(lambda: statuses(cloud, *guests) == expected)


def test_a_native_host_and_a_patched_one_serve_each_other_through_a_restart_of_the_broker(cloud, rabbitmq):
    for host, threads in (('host1', '_thread'), ('host2', 'eventlet.green.thread')):
        assert f'Started service, in threads of {threads}' in cloud.site.services[host].log.read_text()
    there, back = cloud.boot('there', 'host1'), cloud.boot('back', 'host2')
    assert cloud.live_migrate(there, host='host2').status_int == 202
    assert cloud.live_migrate(back, host='host1').status_int == 202
    become(cloud, there, 'completed', back, 'completed')
    for host in HOW:
        assert 'Traceback' not in cloud.site.services[host].log.read_text()

    # a queue at the patched host, and a broker that goes and comes
    stall = cloud.world.hypervisors['host2'].faults.stall('copying')
    second, third = cloud.boot('second', 'host2'), cloud.boot('third', 'host2')
    for guest, status in ((there, 'running'), (second, 'queued'), (third, 'queued')):
        assert cloud.live_migrate(guest, host='host1').status_int == 202
        cloud.simulation.run_until(lambda guest=guest, status=status: cloud.migrations(guest)[-1].status == status)
    rabbitmq.stop()
    rabbitmq.start()
    migration = cloud.migrations(second)[0]
    assert cloud.request('DELETE', f'/servers/{second.uuid}/migrations/{migration.id}').status_int == 202
    become(cloud, second, 'cancelled')
    stall.release()
    become(cloud, third, 'completed')
    cloud.wait()
    assert [each.status for each in cloud.migrations(there)] == ['completed', 'completed']
    assert {cloud.database.instances.get(guest.uuid).host for guest in (there, back, third)} == {'host1'}
    cloud.judge(set())
    cloud.forget()

    cloud.set_option('host2', 'max_concurrent_live_migrations', 3)
    for host in HOW:
        service = cloud.site.services[host]
        service.stop()
        assert service.status == 0, service.tail()
