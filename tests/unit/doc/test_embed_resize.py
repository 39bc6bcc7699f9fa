# SPDX-License-Identifier: Apache-2.0

"""The code of the page on embedding that keeps a resize's allocations runs, against Placement."""

import uuid
import wsgiref.simple_server

import pytest

from migrator.placement_client import allocation_state, allocations
from migrator.testing.placement import InProcessPlacement

OLD, NEW = {'VCPU': 1, 'MEMORY_MB': 512}, {'VCPU': 2, 'MEMORY_MB': 1024}


class _Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *_args):
        """Say nothing: stderr is the test's."""


@pytest.fixture
def endpoint(tmp_path, threads):
    with (
        InProcessPlacement(tmp_path) as placement,
        wsgiref.simple_server.make_server('127.0.0.1', 0, placement.app, handler_class=_Quiet) as server,
    ):
        threads.start(server.serve_forever, name='placement')
        yield f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


@pytest.fixture
def example(page):
    return page('embed_resize')


@pytest.fixture
def placement(tmp_path, endpoint, example):
    file = tmp_path / 'importer.conf'
    file.write_text(f'[placement]\nauth_type = none\nendpoint_override = {endpoint}\n')
    return example.connect(['--config-file', str(file)])


@pytest.fixture
def row(placement):
    """An instance that holds its old flavor on a host with room for both, and the row of its resize."""
    host, instance_uuid = str(uuid.uuid4()), str(uuid.uuid4())
    placement.post('/resource_providers', {'uuid': host, 'name': 'host'})
    inventories = {'VCPU': {'total': 4}, 'MEMORY_MB': {'total': 2048}}
    placement.put(
        f'/resource_providers/{host}/inventories', {'resource_provider_generation': 0, 'inventories': inventories}
    )
    instance = allocation_state.Consumer(
        uuid=instance_uuid, consumer_type=allocation_state.INSTANCE, project_id='demo', user_id='ada'
    )
    allocations.claim(placement, instance, {host: OLD}, generation=None)
    return {
        'instance_uuid': instance_uuid,
        'migration_uuid': str(uuid.uuid4()),
        'project_id': 'demo',
        'user_id': 'ada',
        'old': {host: OLD},
        'new': {host: NEW},
    }


@pytest.mark.parametrize(('end', 'kept'), [('confirm', 'new'), ('revert', 'old')])
def test_a_resize_is_moved_and_ended_by_what_the_database_has_of_it_alone(example, placement, row, end, kept):
    def held():
        return [allocations.read(placement, row[name]).allocations for name in ('instance_uuid', 'migration_uuid')]

    example.resize_of(placement, row).move()
    assert held() == [row['new'], row['old']]
    getattr(example.resize_of(placement, row), end)()
    assert held() == [row[kept], {}]
