# SPDX-License-Identifier: Apache-2.0

"""The real Placement in this process."""

import subprocess
import sys
import threading
import time
import uuid

import pytest

from migrator.placement_client import allocation_state, allocations, providers
from migrator.placement_client.client import PlacementClient
from migrator.testing.placement import InProcessPlacement, Request


def make_provider(running):
    one = str(uuid.uuid4())
    PlacementClient(running.adapter()).post('/resource_providers', {'uuid': one, 'name': one})
    return one


def provider_uuids(running):
    found = PlacementClient(running.adapter()).read('/resource_providers')['resource_providers']
    return {entry['uuid'] for entry in found}


def standard_traits(running):
    return len(PlacementClient(running.adapter()).read('/traits')['traits'])


def test_each_start_in_new_directory_is_empty_and_complete(tmp_path):
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        with InProcessPlacement(folder) as running:
            assert provider_uuids(running) == set()
            assert standard_traits(running) > 100
            make_provider(running)


def test_second_start_takes_less_than_one_second(tmp_path):
    (tmp_path / 'first').mkdir()
    InProcessPlacement(tmp_path / 'first').close()
    began = time.monotonic()
    InProcessPlacement(tmp_path).close()
    assert time.monotonic() - began < 1


def test_two_placements_at_once_are_separate(tmp_path):
    for name in ('a', 'b'):
        (tmp_path / name).mkdir()
    with InProcessPlacement(tmp_path / 'a') as first, InProcessPlacement(tmp_path / 'b') as second:
        one, other = make_provider(first), make_provider(second)
        assert provider_uuids(first) == {one}
        assert provider_uuids(second) == {other}


def test_written_provider_is_there_after_restart(tmp_path):
    with InProcessPlacement(tmp_path) as running:
        one = make_provider(running)
    with InProcessPlacement(tmp_path) as running:
        assert provider_uuids(running) == {one}


def test_requests_are_recorded_in_order(tmp_path):
    with InProcessPlacement(tmp_path) as running:
        client = PlacementClient(running.adapter())
        client.get('/resource_providers?name=x')
        client.get('/nowhere', allow=(404,))
        assert running.requests == [
            Request('GET', '/resource_providers?name=x', 200),
            Request('GET', '/nowhere', 404),
        ]


def test_hook_is_called_before_request_and_without_lock(tmp_path):
    lock = threading.Lock()
    seen = []

    def hook(method, url):
        assert not lock.locked()
        seen.append((method, url, len(running.requests)))

    with InProcessPlacement(tmp_path, lock=lock, before_request=hook) as running:
        PlacementClient(running.adapter()).get('/traits')
    assert seen == [('GET', '/traits', 0)]


def test_given_lock_is_held_during_each_request(tmp_path):
    class Counting:
        entered = 0

        def __enter__(self):
            self.entered += 1

        def __exit__(self, *_exc_info):
            pass

    lock = Counting()
    with InProcessPlacement(tmp_path, lock=lock) as running:
        before = lock.entered
        provider_uuids(running)
        assert lock.entered == before + 1


def test_requests_of_eight_threads_are_all_done(tmp_path):
    with InProcessPlacement(tmp_path) as running:
        made = []
        threads = [threading.Thread(target=lambda: made.append(make_provider(running))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert provider_uuids(running) == set(made)
        assert len(made) == 8


@pytest.mark.parametrize('module', ['migrator.testing.placement', 'migrator.testing.placement_faults'])
def test_import_does_not_import_placement(module):
    code = f'import sys, {module}; sys.exit("placement" in sys.modules)'
    assert subprocess.run([sys.executable, '-c', code], check=False).returncode == 0


def test_emptied_placement_equals_new_one(tmp_path):
    (tmp_path / 'new').mkdir()
    with InProcessPlacement(tmp_path) as running, InProcessPlacement(tmp_path / 'new') as new:
        client = PlacementClient(running.adapter())
        root = make_provider_with(client)
        client.put('/resource_classes/CUSTOM_GOLD', None)
        client.put('/traits/CUSTOM_FAST', None)
        consumer = allocation_state.Consumer(
            uuid=str(uuid.uuid4()), consumer_type='INSTANCE', project_id='p', user_id='u'
        )
        allocations.claim(client, consumer, {root: {'VCPU': 2}}, generation=None)
        running.before_request = lambda method, url: pytest.fail('the hook is still called')
        running.empty()
        assert running.requests == []
        for path in ('/resource_providers', '/resource_classes', '/traits', f'/allocations/{consumer.uuid}'):
            assert PlacementClient(running.adapter()).read(path) == PlacementClient(new.adapter()).read(path), path
        allocations.claim(client, consumer, {make_provider_with(client): {'VCPU': 2}}, generation=None)


def make_provider_with(client):
    one = str(uuid.uuid4())
    client.post('/resource_providers', {'uuid': one, 'name': one})
    body = {'resource_provider_generation': 0, 'inventories': {'VCPU': {'total': 4}}}
    client.put(f'/resource_providers/{one}/inventories', body)
    return one


def test_contents_equal_responses_of_api(tmp_path):
    with InProcessPlacement(tmp_path) as running:
        client = PlacementClient(running.adapter())
        root, child = (str(uuid.uuid4()) for _ in range(2))
        client.post('/resource_providers', {'uuid': root, 'name': 'root'})
        client.post('/resource_providers', {'uuid': child, 'name': 'child', 'parent_provider_uuid': root})
        for one, name in ((root, 'VCPU'), (child, 'VGPU')):
            body = {'resource_provider_generation': 0, 'inventories': {name: {'total': 4, 'allocation_ratio': 1.5}}}
            client.put(f'/resource_providers/{one}/inventories', body)
        consumer = allocation_state.Consumer(
            uuid=str(uuid.uuid4()), consumer_type='INSTANCE', project_id='p', user_id='u'
        )
        allocations.claim(client, consumer, {root: {'VCPU': 2}, child: {'VGPU': 1}}, generation=None)
        found = running.contents()
        listed = {one.uuid: (one.name, one.root_uuid) for one in providers.list_providers(client)}
        assert {one.uuid: (one.name, one.root) for one in found.values()} == listed
        for one in (root, child):
            assert found[one].inventory == providers.read_inventory(client, one)
            assert found[one].holders == providers.allocations_on(client, one)
