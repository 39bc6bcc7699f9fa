# SPDX-License-Identifier: Apache-2.0

"""Allocation candidates, from the real Placement."""

import pytest

from migrator import exception
from migrator.objects.instance import Flavor
from migrator.objects.request import Group, Request, for_amounts
from migrator.placement_client import allocations, candidates
from migrator.placement_client.candidates import get_candidates

SMALL = {'VCPU': 2, 'MEMORY_MB': 512}


def asked(policy=None, **groups):
    """Return the request for SMALL, and for more groups by suffix."""
    found = {'': SMALL, **{suffix.removeprefix('of'): amounts for suffix, amounts in groups.items()}}
    return Request(tuple((suffix, Group(tuple(one.items()))) for suffix, one in found.items()), policy)


WITH_DISK = for_amounts({**SMALL, 'DISK_GB': 10})


def test_without_room_there_are_no_candidates(client, world):
    world.host(VCPU=1, MEMORY_MB=512)
    assert get_candidates(client, asked()) == []


def test_each_host_with_room_is_a_candidate(client, world):
    hosts = {world.host(), world.host()}
    world.host('small', VCPU=1, MEMORY_MB=512)
    found = get_candidates(client, asked())
    assert {one.compute_roots for one in found} == {(host,) for host in hosts}
    assert all(one.allocations == {one.roots[0]: SMALL} for one in found)


def test_candidates_keep_order_of_placement(client, world):
    for _ in range(5):
        world.host()
    answer = client.read('/allocation_candidates?resources=VCPU:2,MEMORY_MB:512')
    wanted = [list(request['allocations']) for request in answer['allocation_requests']]
    assert [list(one.allocations) for one in get_candidates(client, asked())] == wanted
    assert [[root] for root in candidates.by_compute_root(get_candidates(client, asked()))] == wanted


def test_the_limit_bounds_the_candidates(client, world):
    for _ in range(3):
        world.host()
    assert len(get_candidates(client, asked(), limit=2)) == 2
    assert len(get_candidates(client, asked(), limit=None)) == 3


def test_a_nested_tree_is_found_and_its_claim_fits(client, world, new_consumer):
    root = world.host()
    gpus = [world.host('gpu', root, PGPU=1) for _ in range(2)]
    world.host('without a gpu')
    flavor = Flavor(name='f', vcpus=2, root_gb=0, extra_specs={'resources_GPU:PGPU': '1'})
    found = get_candidates(client, flavor.request)
    assert {frozenset(one.allocations) for one in found} == {frozenset({root, gpu}) for gpu in gpus}
    assert all(one.roots == one.compute_roots == (root,) for one in found)
    assert {root: found} == candidates.by_compute_root(found)
    allocations.claim(client, new_consumer(), found[0].allocations, generation=None)
    left = get_candidates(client, flavor.request)
    assert [one.allocations for one in left] == [found[1].allocations]


@pytest.mark.parametrize(('policy', 'ways'), [('none', 4), ('isolate', 2)])
def test_several_numbered_groups_carry_the_policy(client, world, policy, ways):
    root = world.host()
    for _ in range(2):
        world.host('gpu', root, PGPU=2)
    assert len(get_candidates(client, asked(policy, of1={'PGPU': 1}, of2={'PGPU': 1}))) == ways


def test_a_named_host_is_requested_by_its_tree(client, world):
    wanted, _other = world.host(), world.host()
    assert [one.compute_roots for one in get_candidates(client, asked(), in_tree=wanted)] == [(wanted,)]


def test_a_named_host_with_a_nested_tree_is_requested_in_every_group(client, world):
    wanted, other = world.host(), world.host()
    world.host('gpu', wanted, PGPU=1)
    world.host('gpu', other, PGPU=1)
    found = get_candidates(client, asked(_GPU={'PGPU': 1}), in_tree=wanted)
    assert [one.compute_roots for one in found] == [(wanted,)]


def test_a_named_host_without_room_has_no_candidates(client, world):
    world.host()
    assert get_candidates(client, asked(), in_tree=world.host(VCPU=1, MEMORY_MB=512)) == []


@pytest.fixture
def sharing(world):
    """Two hosts without local disk, and the storage that both share."""
    storage = world.host('storage', traits=[candidates.SHARING_TRAIT], DISK_GB=100)
    hosts = [world.host(), world.host()]
    world.share(storage, *hosts)
    return storage, hosts


def test_a_sharing_provider_is_no_compute_root(client, sharing):
    storage, hosts = sharing
    found = get_candidates(client, WITH_DISK)
    assert {one.compute_roots for one in found} == {(host,) for host in hosts}
    assert all(one.sharing_roots == {storage} and set(one.roots) == {storage, *one.compute_roots} for one in found)
    assert set(candidates.by_compute_root(found)) == set(hosts)


def test_a_named_host_that_uses_a_sharing_provider_is_found(client, sharing):
    """Placement's in_tree alone finds nothing here, because the sharing provider is not in the tree."""
    _storage, hosts = sharing
    for host in hosts:
        assert [one.compute_roots for one in get_candidates(client, WITH_DISK, in_tree=host, limit=1)] == [(host,)]


def test_a_candidate_without_a_compute_root_or_with_several_is_left_out():
    odd = [
        candidates.Candidate(allocations={}, roots=('a', 'b')),
        candidates.Candidate(allocations={}, roots=('s',), sharing_roots=frozenset({'s'})),
    ]
    assert candidates.by_compute_root(odd) == {}


def test_an_unknown_resource_class_is_refused(client):
    with pytest.raises(exception.PlacementRefused, match='CUSTOM_NONE'):
        get_candidates(client, for_amounts({'CUSTOM_NONE': 1}))


def test_a_request_for_no_resources_is_refused(client):
    with pytest.raises(exception.PlacementRefused):
        get_candidates(client, Request(()))
