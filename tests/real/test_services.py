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


"""The services as an operator runs them: processes on RabbitMQ, PostgreSQL and Placement over HTTP."""

from __future__ import annotations

import pathlib
import time
import uuid

import pytest
import requests
from keystoneauth1 import adapter, session, token_endpoint

from migrator import executors
from migrator.conductor import instances
from migrator.db import api as db_api
from migrator.objects import instance as instance_objects
from migrator.placement_client import client as placement_client
from migrator.testing import fake_world_client
from tests.real.servers import process

HEADERS = {'X-Auth-Token': 'admin', 'OpenStack-API-Version': 'compute 2.80'}
HOSTS = ('host1', 'host2')

pytestmark = pytest.mark.slow


def service(ground, name, module, *arguments, word='serves'):
    """Return a service; it is ready when its log says so."""
    return process.Script(
        ground, name, ['-m', module, *arguments], ready=lambda each: word in each.log.read_text(errors='replace')
    )


class Site:
    """One conductor, one API, two computes and the world of their hypervisors."""

    def __init__(self, ground, directory: pathlib.Path, database_url, transport_url, placement_url) -> None:
        self.port = process.free_port()
        # short: the path of a unix socket has its limit
        self.world_path = str(ground.directory('w') / 's')
        # Providers of its own in the session's Placement.
        self.hosts = [f'{name}-{uuid.uuid4().hex[:6]}' for name in HOSTS]
        common = (
            f'[DEFAULT]\ntransport_url = {transport_url}\n{{default}}\n'
            f'[database]\nconnection = {database_url}\n'
            f'[placement]\nauth_type = none\nendpoint_override = {placement_url}\n'
            f'[api]\nauth_strategy = noauth2\nlisten_port = {self.port}\n'
            f'[compute]\ndriver = fake\n[fake]\nworld = {self.world_path}\n'
        )

        def configured(name):
            file = directory / f'{name}.conf'
            file.write_text(common.format(default=f'host = {name}'))
            return '--config-file', str(file)

        self.config = configured('conductor1')
        process.run(
            [process.sys.executable, '-m', 'migrator.cmd.manage', *self.config, 'db', 'sync'],
            directory,
            PYTHONPATH=str(pathlib.Path(__file__).resolve().parents[2]),
        )
        self.world_process = service(
            ground, 'fake-world', 'migrator.testing.fake_world_server', '--listen', self.world_path, word='The world is'
        )
        self.conductor = service(ground, 'conductor1', 'migrator.cmd.conductor', *configured('conductor1'))
        self.api = service(ground, 'api', 'migrator.cmd.api', *self.config)
        self.computes = [
            service(ground, host, 'migrator.cmd.compute', *configured(host)) for host in self.hosts
        ]  # fmt: skip
        self.services = [self.conductor, self.api, *self.computes]
        self.world = fake_world_client.FakeWorldClient(self.world_path)
        self.database = db_api.Database(database_url, executors.NativeThreads())
        token = token_endpoint.Token(placement_url, 'admin')
        self.placement = placement_client.PlacementClient(
            adapter.Adapter(session.Session(auth=token), service_type='placement')
        )

    def request(self, method, path, json=None):
        url = f'http://{process.HOST}:{self.port}/v2.1{path}'
        return requests.request(method, url, headers=HEADERS, json=json, timeout=30)

    def up(self):
        found = self.request('GET', '/os-services?binary=nova-compute').json()['services']
        return {one['host'] for one in found if one['state'] == 'up'} >= set(self.hosts)

    def boot(self, host):
        flavor = instance_objects.Flavor(name='small', vcpus=1, memory_mb=512, root_gb=1)
        wanted = instance_objects.Instance(
            uuid=str(uuid.uuid4()), name='guest', project_id='p', user_id='u', host=host, node=host, flavor=flavor
        )
        stored = instances.create(self.database, self.placement, wanted)
        self.world.spawn(host, stored, dirty_rate=50.0)
        return stored

    def migration(self, instance):
        return self.request('GET', f'/os-migrations?instance_uuid={instance.uuid}').json()['migrations'][0]


@pytest.fixture
def site(ground, tmp_path, database_url, rabbitmq, vhost, placement_http):
    made = Site(ground, tmp_path, database_url, rabbitmq.url(vhost), placement_http.url)
    yield made
    for each in (*made.services, made.world_process):
        if each.running:
            each.kill()
    made.database.close()


def test_a_migration_completes_and_every_service_ends_with_0_on_sigterm(site):
    # All at once and in no order: each waits for what it needs.
    for each in (*site.services, site.world_process):
        each.start(wait=False)
    for each in (*site.services, site.world_process):
        each.wait_ready()
    process.wait_until(site.up, 'the computes to be up')
    source, destination = site.hosts
    instance = site.boot(source)

    action = {'os-migrateLive': {'host': destination, 'block_migration': 'auto'}}
    answer = site.request('POST', f'/servers/{instance.uuid}/action', action)
    assert answer.status_code == 202, answer.text
    began = time.monotonic()
    ends = ('completed', 'failed', 'cancelled', 'error')
    process.wait_until(lambda: site.migration(instance)['status'] in ends, 'the migration to end', 60)
    print(f'completed in {time.monotonic() - began:.2f} s')

    assert site.migration(instance)['status'] == 'completed'
    assert site.database.instances.get(instance.uuid).host == destination
    world = site.world.look()
    assert world['violations'] == []
    assert world['hosts'][source]['guests'] == {}
    assert world['hosts'][destination]['guests'][instance.uuid]['state'] == 'running'
    holders = site.placement.read(f'/allocations/{instance.uuid}')['allocations']
    nodes = {node.host: node.uuid for node in site.database.services.list_nodes()}
    assert set(holders) == {nodes[destination]}

    # The log of each says by which request or migration a line was caused, and no password.
    assert instance.uuid in site.computes[0].log.read_text() or 'req-' in site.api.log.read_text()
    for each in site.services:
        log = each.log.read_text()
        assert 'guessed' not in log
        assert 'Traceback' not in log
    for each in (*site.services, site.world_process):
        each.stop()
        assert each.status == 0, each.tail()
