# SPDX-License-Identifier: Apache-2.0

"""The fake Placement against the real one: random requests to both, and each special case by itself.

MIGRATOR_SEQUENCES is the number of sequences, and MIGRATOR_FIRST_SEQUENCE the number of the first one. A sequence
depends only on its number, so that a failed one can be repeated by itself.
"""

import contextlib
import json
import os
import subprocess
import sys
import uuid

import pytest
import webob
from keystoneauth1 import exceptions as ks_exceptions

from migrator import exception
from migrator.objects.request import for_amounts
from migrator.placement_client import allocation_state, allocations, candidates, providers
from migrator.placement_client.client import DUPLICATE_NAME, PlacementClient
from migrator.testing import placement_faults
from migrator.testing.fake_placement.service import FakePlacement
from migrator.testing.placement import InProcessPlacement, Request
from tests.unit.testing.both_placements import Both, comparable, headers, send
from tests.unit.testing.random_requests import CONFLICT, NO_ROOM, TRAPS, Sequence

SEQUENCES = int(os.environ.get('MIGRATOR_SEQUENCES', '75'))
FIRST = int(os.environ.get('MIGRATOR_FIRST_SEQUENCE', '739'))
#: In these sequences every trap occurs.
ENOUGH = range(739, 813)
DONE, GONE = (204, None), (200, {'allocations': {}})


@pytest.fixture(scope='module')
def both(tmp_path_factory):
    with InProcessPlacement(tmp_path_factory.mktemp('placement')) as real, contextlib.closing(Both(real)) as found:
        yield found


# A free machine runs about forty sequences per second. The limit allows for a busy one.
@pytest.mark.slow
@pytest.mark.timeout(120 + SEQUENCES)
def test_random_requests_get_same_responses_from_fake_and_real_placement(both):
    both.counts.clear()
    for number in range(FIRST, FIRST + SEQUENCES):
        try:
            Sequence(both, number).run()
        except AssertionError as error:
            raise AssertionError(f'sequence {number} differs') from error
    all_of_them = set(ENOUGH) <= set(range(FIRST, FIRST + SEQUENCES))
    assert not all_of_them or not {trap for trap in TRAPS if not both.counts[trap]}


# --- special cases, each against both --------------------------------------------------------------------------------


class Hosts:
    """Two hosts with room for 4 VCPU each, in both Placements; every response is compared."""

    def __init__(self, both):
        both.start_empty()
        self.both = both
        self.first, self.second = (self.provider(inventory={'VCPU': {'total': 4}}) for _ in range(2))
        self.instance, self.migration = str(uuid.uuid4()), str(uuid.uuid4())

    def provider(self, inventory=None, parent=None):
        one = str(uuid.uuid4())
        body = {'uuid': one, 'name': one, 'parent_provider_uuid': parent}
        assert self.both.ask('POST', '/resource_providers', body)[0] == 200
        if inventory is not None:
            assert self.inventory(one, inventory)[0] == 200
        return one

    def inventory(self, provider, inventory, offset=0):
        generation = self.generation(provider) + offset
        body = {'resource_provider_generation': generation, 'inventories': inventory}
        return self.both.ask('PUT', f'/resource_providers/{provider}/inventories', body)

    def generation(self, provider):
        return self.both.ask('GET', f'/resource_providers/{provider}')[1]['generation']

    @staticmethod
    def body(held, generation, consumer_type='INSTANCE'):
        return {
            'allocations': {provider: {'resources': resources} for provider, resources in held.items()},
            'consumer_generation': generation,
            'consumer_type': consumer_type,
            'project_id': 'blue',
            'user_id': 'ada',
        }

    def put(self, consumer, held, generation):
        return self.both.ask('PUT', f'/allocations/{consumer}', self.body(held, generation))

    def post(self, **writes):
        bodies = {getattr(self, consumer): self.body(*wanted) for consumer, wanted in writes.items()}
        return self.both.ask('POST', '/allocations', bodies)

    def show(self, consumer):
        status, document = self.both.ask('GET', f'/allocations/{consumer}')
        assert status == 200
        held = {provider: entry['resources'] for provider, entry in document['allocations'].items()}
        return held, document.get('consumer_generation')


@pytest.fixture
def hosts(both):
    return Hosts(both)


def refused(status, code):
    return status, [(status, code)]


def test_emptied_consumer_is_deleted_and_restarts_at_generation_1(hosts):
    claim = {hosts.first: {'VCPU': 1}}
    assert hosts.put(hosts.instance, claim, None) == DONE
    assert hosts.put(hosts.instance, claim, 1) == DONE
    assert hosts.show(hosts.instance) == (claim, 2)
    assert hosts.put(hosts.instance, {}, 2) == DONE
    assert hosts.put(hosts.instance, claim, 3) == refused(409, CONFLICT)
    assert hosts.put(hosts.instance, claim, None) == DONE
    assert hosts.show(hosts.instance) == (claim, 1)


def test_null_or_stale_generation_of_existing_consumer_is_conflict(hosts):
    claim = {hosts.first: {'VCPU': 1}}
    assert hosts.put(hosts.instance, claim, 0) == refused(409, CONFLICT)
    assert hosts.put(hosts.instance, claim, None) == DONE
    for stale in (None, 0, 2):
        assert hosts.put(hosts.instance, {hosts.second: {'VCPU': 1}}, stale) == refused(409, CONFLICT)
    assert hosts.show(hosts.instance) == (claim, 1)


def test_write_without_room_has_other_code_than_conflict(hosts):
    assert hosts.put(hosts.instance, {hosts.first: {'VCPU': 5}}, None) == refused(409, NO_ROOM)
    assert hosts.put(hosts.instance, {hosts.first: {'VCPU': 4}}, None) == DONE
    assert hosts.put(hosts.migration, {hosts.first: {'VCPU': 1}}, None) == refused(409, NO_ROOM)
    assert hosts.show(hosts.migration) == ({}, None)


def test_post_can_use_room_that_other_consumer_frees_in_it(hosts):
    full = {hosts.first: {'VCPU': 4}}
    assert hosts.put(hosts.instance, full, None) == DONE
    assert hosts.post(migration=(full, None), instance=({hosts.second: {'VCPU': 4}}, 1)) == DONE
    assert hosts.post(migration=({hosts.second: {'VCPU': 4}}, 1), instance=(full, 2)) == DONE
    assert hosts.post(instance=({**full, hosts.second: {'VCPU': 1}}, 3), migration=({}, 2)) == DONE
    assert hosts.show(hosts.migration) == ({}, None)


def test_post_with_one_stale_consumer_writes_nothing_and_creates_no_consumer(hosts):
    claim = {hosts.first: {'VCPU': 1}}
    assert hosts.put(hosts.instance, claim, None) == DONE
    assert hosts.post(migration=(claim, None), instance=({hosts.second: {'VCPU': 1}}, 7)) == refused(409, CONFLICT)
    assert hosts.show(hosts.instance) == (claim, 1)
    assert hosts.put(hosts.migration, claim, None) == DONE


def test_late_duplicate_of_move_is_conflict_since_instance_was_never_empty(hosts):
    source, destination = {hosts.first: {'VCPU': 2}}, {hosts.second: {'VCPU': 2}}
    assert hosts.put(hosts.instance, source, None) == DONE
    move = {'migration': (source, None), 'instance': (destination, 1)}
    assert hosts.post(**move) == DONE
    assert hosts.post(instance=(source, 2), migration=({}, 1)) == DONE
    assert hosts.post(**move) == refused(409, CONFLICT)
    assert hosts.show(hosts.instance) == (source, 3)


def test_unknown_provider_leaves_empty_consumer_that_refuses_null_generation(hosts):
    claim = {hosts.first: {'VCPU': 1}}
    assert hosts.put(hosts.instance, {str(uuid.uuid4()): {'VCPU': 1}}, None) == refused(400, NO_ROOM)
    assert hosts.show(hosts.instance) == ({}, None)
    assert hosts.put(hosts.instance, claim, None) == refused(409, CONFLICT)
    assert hosts.both.ask('DELETE', f'/allocations/{hosts.instance}') == refused(404, NO_ROOM)
    assert hosts.put(hosts.instance, claim, 0) == DONE
    assert hosts.show(hosts.instance) == (claim, 1)


def test_unknown_resource_class_leaves_no_consumer(hosts):
    assert hosts.put(hosts.instance, {hosts.first: {'CUSTOM_NONE': 1}}, None) == refused(400, NO_ROOM)
    assert hosts.put(hosts.instance, {hosts.first: {'VCPU': 1}}, None) == DONE


def test_delete_needs_no_generation_and_changes_no_provider(hosts):
    assert hosts.put(hosts.instance, {hosts.first: {'VCPU': 1}}, None) == DONE
    before = hosts.generation(hosts.first)
    assert hosts.both.ask('DELETE', f'/allocations/{hosts.instance}') == DONE
    assert hosts.generation(hosts.first) == before
    assert hosts.both.ask('DELETE', f'/allocations/{hosts.instance}') == refused(404, NO_ROOM)
    assert hosts.both.ask('GET', f'/allocations/{hosts.instance}') == GONE


def test_write_raises_generation_of_named_providers_only(hosts):
    before = hosts.generation(hosts.first), hosts.generation(hosts.second)
    assert hosts.put(hosts.instance, {hosts.first: {'VCPU': 1}}, None) == DONE
    assert hosts.put(hosts.instance, {hosts.second: {'VCPU': 1}}, 1) == DONE
    assert (hosts.generation(hosts.first), hosts.generation(hosts.second)) == (before[0] + 1, before[1] + 1)
    assert hosts.put(hosts.instance, {}, 2) == DONE
    assert (hosts.generation(hosts.first), hosts.generation(hosts.second)) == (before[0] + 1, before[1] + 2)


@pytest.mark.parametrize(
    ('fields', 'amounts'),
    [
        ({'total': 9, 'min_unit': 2}, {1: False, 2: True}),
        ({'total': 9, 'max_unit': 2}, {2: True, 3: False}),
        ({'total': 9, 'step_size': 3}, {3: True, 4: False}),
        ({'total': 9, 'reserved': 7}, {2: True, 3: False}),
        ({'total': 3, 'allocation_ratio': 1.5}, {4: True, 5: False}),
    ],
)
def test_allocation_follows_units_and_capacity_of_inventory(hosts, fields, amounts):
    provider = hosts.provider({'VCPU': fields})
    for amount, fits in amounts.items():
        answer = hosts.put(hosts.instance, {provider: {'VCPU': amount}}, None)
        assert answer == (DONE if fits else refused(409, NO_ROOM))
        hosts.both.ask('DELETE', f'/allocations/{hosts.instance}')


def test_consumer_above_capacity_may_write_same_or_less(hosts):
    assert hosts.put(hosts.instance, {hosts.first: {'VCPU': 3}}, None) == DONE
    assert hosts.inventory(hosts.first, {'VCPU': {'total': 1}})[0] == 200
    assert hosts.put(hosts.instance, {hosts.first: {'VCPU': 3}}, 1) == DONE
    assert hosts.put(hosts.instance, {hosts.first: {'VCPU': 4}}, 2) == refused(409, NO_ROOM)
    assert hosts.put(hosts.instance, {hosts.first: {'VCPU': 2}}, 2) == DONE
    assert hosts.put(hosts.migration, {hosts.first: {'VCPU': 1}}, None) == refused(409, NO_ROOM)


def test_inventory_in_use_cannot_be_removed_and_stale_write_is_conflict(hosts):
    assert hosts.put(hosts.instance, {hosts.first: {'VCPU': 1}}, None) == DONE
    assert hosts.inventory(hosts.first, {}) == refused(409, 'placement.inventory.inuse')
    assert hosts.inventory(hosts.first, {'VCPU': {'total': 9}}, offset=-1) == refused(409, CONFLICT)
    assert hosts.inventory(hosts.first, {'VCPU': {'total': 9, 'reserved': 10}}) == refused(400, NO_ROOM)
    assert hosts.inventory(hosts.first, {'VCPU': {'total': 9, 'reserved': 9}})[0] == 200
    assert hosts.both.ask('DELETE', f'/resource_providers/{hosts.first}') == refused(
        409, 'placement.resource_provider.inuse'
    )


def test_parent_cannot_be_deleted_and_tree_cannot_have_loop(hosts):
    child = hosts.provider({'VCPU': {'total': 1}}, parent=hosts.first)
    url = f'/resource_providers/{hosts.first}'
    assert hosts.both.ask('DELETE', url) == refused(409, 'placement.resource_provider.cannot_delete_parent')
    circle = {'name': 'circle', 'parent_provider_uuid': child}
    assert hosts.both.ask('PUT', url, circle) == refused(400, NO_ROOM)
    assert hosts.both.ask('PUT', url, {'name': hosts.second}) == refused(409, DUPLICATE_NAME)
    own = {'uuid': hosts.first, 'name': 'own', 'parent_provider_uuid': hosts.first}
    assert hosts.both.ask('POST', '/resource_providers', own) == refused(400, NO_ROOM)
    moved = hosts.both.ask('PUT', url, {'name': hosts.first, 'parent_provider_uuid': hosts.second})
    assert moved[1]['root_provider_uuid'] == hosts.second
    assert hosts.both.ask('GET', f'/resource_providers/{child}')[1]['root_provider_uuid'] == hosts.second


def test_shared_storage_is_not_lent_if_query_names_its_own_tree(hosts):
    hosts.both.start_empty()
    storage, host = hosts.provider({'DISK_GB': {'total': 9}}), hosts.provider({'VCPU': {'total': 4}})
    aggregate = str(uuid.uuid4())
    for provider in (storage, host):
        body = {'aggregates': [aggregate], 'resource_provider_generation': 1}
        assert hosts.both.ask('PUT', f'/resource_providers/{provider}/aggregates', body)[0] == 200
    body = {'traits': [candidates.SHARING_TRAIT], 'resource_provider_generation': 2}
    assert hosts.both.ask('PUT', f'/resource_providers/{storage}/traits', body)[0] == 200
    for in_tree, touched in (('', {storage, host}), (f'&in_tree={storage}', set())):
        found = hosts.both.ask('GET', f'/allocation_candidates?resources=DISK_GB:1&resources1=VCPU:1{in_tree}')[1]
        assert set(found['provider_summaries']) == touched


@pytest.mark.parametrize(
    ('method', 'url', 'json', 'status'),
    [
        ('GET', '/nowhere', None, 404),
        ('PUT', '/resource_providers', {}, 405),
        ('DELETE', '/usages', None, 405),
        ('PUT', '/allocations/host1', Hosts.body({}, None), 400),
        ('PUT', f'/allocations/{uuid.UUID(int=1)}', None, 415),
        ('PUT', f'/allocations/{uuid.UUID(int=1)}', Hosts.body({}, None, 'instance'), 400),
        ('POST', '/allocations', {}, 400),
        ('GET', '/allocation_candidates', None, 400),
        ('GET', '/allocation_candidates?resources=VCPU', None, 400),
        ('GET', '/allocation_candidates?resources=VCPU:1&limit=0', None, 400),
        ('GET', '/allocation_candidates?resources=VCPU:1&in_tree=host1', None, 400),
        ('GET', '/allocation_candidates?resources1=VCPU:1&resources2=VCPU:1', None, 400),
        ('GET', '/allocation_candidates?resources=VCPU:1&in_tree1=' + str(uuid.UUID(int=1)), None, 400),
        ('GET', '/resource_providers?in_tree=host1', None, 400),
        ('GET', '/resource_providers?color=red', None, 400),
        ('POST', '/resource_providers', {'name': ''}, 400),
        ('PUT', '/traits/FAST', None, 400),
        ('GET', '/traits', None, 200),
    ],
)
def test_invalid_request_has_same_status_in_both(hosts, method, url, json, status):
    assert hosts.both.ask(method, url, json)[0] == status


@pytest.mark.parametrize('typed_first', [False, True])
def test_write_of_a_version_without_consumer_types_keeps_the_type(hosts, typed_first):
    if typed_first:
        assert hosts.put(hosts.instance, {hosts.first: {'VCPU': 1}}, None) == DONE
    body = hosts.body({hosts.second: {'VCPU': 2}}, 1 if typed_first else None)
    assert hosts.both.ask('PUT', f'/allocations/{hosts.instance}', body, '1.36')[0] == 400
    del body['consumer_type']
    assert hosts.both.ask('PUT', f'/allocations/{hosts.instance}', body, '1.36') == DONE
    hosts.show(hosts.instance)
    found = hosts.both.ask('GET', f'/allocations/{hosts.instance}')[1]['consumer_type']
    assert found == ('INSTANCE' if typed_first else 'unknown')


def test_token_without_rights_returns_403_in_both(both):
    real, fake = (send(one.adapter('no-rights'), 'GET', '/resource_providers') for one in (both.real, both.fake))
    assert comparable(real) == comparable(fake) == refused(403, NO_ROOM)


# --- the fake by itself ----------------------------------------------------------------------------------------------


@pytest.fixture
def fake():
    with FakePlacement('nowhere') as running:
        yield running


@pytest.fixture
def client(fake):
    return PlacementClient(fake.adapter())


def make_provider(client, vcpus=4):
    one = str(uuid.uuid4())
    client.post('/resource_providers', {'uuid': one, 'name': one})
    body = {'resource_provider_generation': 0, 'inventories': {'VCPU': {'total': vcpus}}}
    client.put(f'/resource_providers/{one}/inventories', body)
    return one


def test_fake_serves_placement_client(client):
    source, destination = make_provider(client), make_provider(client)
    instance, migration = (
        allocation_state.Consumer(uuid=str(uuid.uuid4()), consumer_type=kind, project_id='blue', user_id='ada')
        for kind in (allocation_state.INSTANCE, allocation_state.MIGRATION)
    )
    claim = {'VCPU': 2}
    allocations.claim(client, instance, {source: claim}, generation=None)
    found = candidates.get_candidates(client, for_amounts(claim))
    assert {one.compute_roots for one in found} == {(source,), (destination,)}
    writer = allocations.MigrationOwned(client)
    pair = allocation_state.Pair(
        instance=instance, migration=migration, source={source: claim}, destination={destination: claim}
    )
    writer.move(pair, instance_generation=1)
    seen = writer.observe(pair)
    assert (seen.state, seen.instance.generation) == (allocation_state.PairState.MOVED, 2)
    writer.release(pair, instance_generation=2, migration_generation=1)
    assert writer.observe(pair).state == allocation_state.PairState.RELEASED
    assert (providers.usages(client, source), providers.usages(client, destination)) == ({'VCPU': 0}, claim)
    with pytest.raises(exception.PlacementConflict):
        allocations.claim(client, instance, {source: claim}, generation=1)
    with pytest.raises(exception.PlacementRefused, match='exhausted'):
        allocations.claim(client, instance, {source: {'VCPU': 5}}, generation=2)


def test_faulty_adapter_wraps_adapter_of_fake(fake):
    faulty = placement_faults.FaultyAdapter(fake.adapter())
    client = PlacementClient(faulty)
    provider = make_provider(client)
    consumer = allocation_state.Consumer(
        uuid=str(uuid.uuid4()), consumer_type=allocation_state.INSTANCE, project_id='blue', user_id='ada'
    )
    faulty.inject(placement_faults.Fault.DUPLICATED, method='PUT', url='^/allocations')
    allocations.claim(client, consumer, {provider: {'VCPU': 1}}, generation=None)
    assert [answer.status_code for answer in faulty.deliver()] == [409]


def test_requests_are_recorded_in_order_and_can_be_deleted(fake, client):
    client.get('/resource_providers?name=x')
    client.get('/nowhere', allow=(404,))
    assert fake.requests == [Request('GET', '/resource_providers?name=x', 200), Request('GET', '/nowhere', 404)]
    del fake.requests[1:]
    client.get('/traits')
    assert [one.url for one in fake.requests] == ['/resource_providers?name=x', '/traits']


def test_hook_is_called_before_request_and_without_lock():
    class Lock:
        held = 0
        entered = 0

        def __enter__(self):
            self.held += 1
            self.entered += 1

        def __exit__(self, *_exc_info):
            self.held -= 1

    lock, seen = Lock(), []

    def hook(method, url):
        seen.append((method, url, len(fake.requests), lock.held))
        raise ConnectionError(url)

    fake = FakePlacement(lock=lock)
    fake.adapter().get('/traits', headers=headers())
    fake.before_request = hook
    with pytest.raises(ConnectionError):
        fake.adapter().get('/traits', headers=headers())
    assert (seen, lock.entered, len(fake.requests)) == ([('GET', '/traits', 1, 0)], 1, 1)


@pytest.mark.parametrize(
    ('method', 'path', 'body', 'status'),
    [
        ('POST', '/resource_providers', {'name': 'host1'}, 200),
        ('GET', '/resource_providers?name=nowhere', None, 200),
        ('DELETE', '/allocations/00000000-0000-4000-8000-000000000001', None, 404),
        ('POST', '/resource_providers', {'nome': 'host1'}, 400),
    ],
)
def test_wsgi_application_responds_as_real_one(tmp_path, method, path, body, status):
    answers = []
    for one in (InProcessPlacement(tmp_path), FakePlacement()):
        with one:
            request = webob.Request.blank(path, method=method, headers={**headers(), 'X-Auth-Token': 'admin'})
            if body is not None:
                request.content_type, request.body = 'application/json', json.dumps(body).encode()
            answers.append(request.get_response(one.app))
    real, fake = answers
    assert (real.status_int, real.content_type) == (fake.status_int, fake.content_type) == (status, 'application/json')
    assert sorted(real.json.keys() - {'links'}) == sorted(fake.json)


def test_error_status_raises_unless_raise_exc_is_false(fake):
    with pytest.raises(ks_exceptions.NotFound):
        fake.adapter().delete(f'/allocations/{uuid.uuid4()}')
    assert fake.adapter().delete(f'/allocations/{uuid.uuid4()}', raise_exc=False).status_code == 404


def test_later_change_of_sent_or_returned_document_has_no_effect(client):
    provider = make_provider(client)
    url = f'/resource_providers/{provider}/inventories'
    found = client.read(url)
    found['inventories']['VCPU']['total'] = 7
    assert client.read(url)['inventories']['VCPU']['total'] == 4
    client.put(url, found)
    found['inventories']['VCPU']['total'] = 8
    assert client.read(url)['inventories']['VCPU']['total'] == 7


@pytest.mark.parametrize(
    ('method', 'url', 'version'),
    [
        ('GET', '/usages?project_id=blue', '1.39'),
        ('GET', '/allocation_candidates?resources=VCPU:1&member_of=in:00000000-0000-0000-0000-000000000001', '1.39'),
        ('GET', '/resource_providers', '1.10'),
    ],
)
def test_unimplemented_request_raises_and_is_not_recorded(fake, method, url, version):
    with pytest.raises(NotImplementedError, match=r'FakePlacement (does not implement|implements only)'):
        fake.adapter().request(url, method, microversion=version)
    assert fake.requests == []


_ORDER = """
import random, uuid
from migrator.objects.request import for_amounts
from migrator.placement_client import candidates, client
from migrator.testing.fake_placement.service import FakePlacement
adapter = client.PlacementClient(FakePlacement().adapter())
for number in range(20):
    one = str(uuid.UUID(int=number, version=4))
    adapter.post('/resource_providers', {'uuid': one, 'name': one})
    body = {'resource_provider_generation': 0, 'inventories': {'VCPU': {'total': 4}, 'MEMORY_MB': {'total': 4}}}
    adapter.put(f'/resource_providers/{one}/inventories', body)
print([one.roots for one in candidates.get_candidates(adapter, for_amounts({'VCPU': 1, 'MEMORY_MB': 1}), limit=5)])
"""


def test_order_of_candidates_is_same_in_every_process():
    outputs = {
        subprocess.run(
            [sys.executable, '-c', _ORDER],
            env={**os.environ, 'PYTHONHASHSEED': hash_seed, 'PYTHONPATH': os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
        ).stdout
        for hash_seed in ('0', '1', '2')
    }
    assert len(outputs) == 1


def test_import_of_fake_does_not_import_placement():
    code = 'import sys, migrator.testing.fake_placement.service; sys.exit("placement" in sys.modules)'
    assert subprocess.run([sys.executable, '-c', code], check=False).returncode == 0
