# SPDX-License-Identifier: Apache-2.0

"""Provider trees that follow a report, in the real Placement."""

import dataclasses
import uuid

import pytest

from migrator import exception
from migrator.objects.service import ProviderInventory
from migrator.placement_client import allocations, providers
from migrator.placement_client.client import PlacementClient
from migrator.testing.placement_faults import Fault, FaultyAdapter


def new(name='host', parent=None, inventory=None, traits=()):
    return ProviderInventory(
        uuid=str(uuid.uuid4()),
        name=f'{name}-{uuid.uuid4()}',
        parent_uuid=parent,
        inventory=inventory or {},
        traits=list(traits),
    )


def never(_seconds):
    raise AssertionError('the call must not sleep')


def writes(in_process):
    return [request for request in in_process.requests if request.method != 'GET']


@pytest.fixture
def tree():
    root = new(inventory={'VCPU': {'total': 8, 'allocation_ratio': 4.0}}, traits=['HW_CPU_X86_VMX'])
    numa = new('numa', root.uuid, {'MEMORY_MB': {'total': 1024, 'reserved': 24}})
    gpu = new('gpu', numa.uuid, {'CUSTOM_FANCY': {'total': 2}}, ['CUSTOM_GOLD', 'HW_NUMA_ROOT'])
    return [root, numa, gpu]


def test_a_tree_is_made_with_inventory_custom_classes_and_traits(client, tree):
    assert providers.ensure_tree(client, tree, sleep=never) is True
    root, numa, gpu = tree
    found = providers.read_tree(client, gpu.uuid)
    assert [(one.uuid, one.name, one.parent_uuid, one.root_uuid) for one in found] == [
        (one.uuid, one.name, one.parent_uuid, root.uuid) for one in tree
    ]
    assert providers.read_inventory(client, root.uuid)['VCPU']['allocation_ratio'] == 4.0
    assert providers.read_inventory(client, numa.uuid)['MEMORY_MB']['reserved'] == 24
    assert providers.read_inventory(client, gpu.uuid)['CUSTOM_FANCY']['total'] == 2
    assert providers.read_traits(client, gpu.uuid) == ['CUSTOM_GOLD', 'HW_NUMA_ROOT']


def test_children_may_be_reported_before_their_parents(client, tree):
    assert providers.ensure_tree(client, list(reversed(tree)), sleep=never) is True
    assert len(providers.read_tree(client, tree[0].uuid)) == 3


def test_the_same_report_again_writes_nothing(client, in_process, tree):
    providers.ensure_tree(client, tree, sleep=never)
    before = writes(in_process)
    generations = [one.generation for one in providers.read_tree(client, tree[0].uuid)]
    assert providers.ensure_tree(client, tree, sleep=never) is False
    assert writes(in_process) == before
    assert [one.generation for one in providers.read_tree(client, tree[0].uuid)] == generations


def test_a_report_that_spells_out_the_defaults_writes_nothing(client, in_process):
    one = new(inventory={'VCPU': {'total': 8}})
    providers.ensure_tree(client, [one], sleep=never)
    full = {'total': 8, 'reserved': 0, 'min_unit': 1, 'max_unit': 2147483647, 'step_size': 1, 'allocation_ratio': 1.0}
    before = writes(in_process)
    assert providers.ensure_tree(client, [one.replace(inventory={'VCPU': full})], sleep=never) is False
    assert writes(in_process) == before


def test_only_what_differs_is_written(client, in_process, tree):
    providers.ensure_tree(client, tree, sleep=never)
    before = len(writes(in_process))
    changed = [tree[0], tree[1].replace(inventory={'MEMORY_MB': {'total': 2048}}), tree[2]]
    assert providers.ensure_tree(client, changed, sleep=never) is True
    assert [one.url for one in writes(in_process)[before:]] == [f'/resource_providers/{tree[1].uuid}/inventories']
    assert providers.read_inventory(client, tree[1].uuid)['MEMORY_MB']['total'] == 2048


def test_a_resource_class_that_is_no_longer_reported_is_removed(client, tree):
    providers.ensure_tree(client, tree, sleep=never)
    bare = [tree[0], tree[1].replace(inventory={}), tree[2]]
    providers.ensure_tree(client, bare, sleep=never)
    assert providers.read_inventory(client, tree[1].uuid) == {}


@pytest.mark.parametrize(
    ('reported', 'absent', 'left'),
    [
        (['HW_CPU_X86_AVX'], [], ['CUSTOM_GOLD', 'HW_CPU_X86_AVX', 'HW_CPU_X86_VMX', 'STORAGE_DISK_SSD']),
        (['HW_CPU_X86_AVX'], ['HW_CPU_X86_VMX'], ['CUSTOM_GOLD', 'HW_CPU_X86_AVX', 'STORAGE_DISK_SSD']),
        (['CUSTOM_FAST'], [], ['CUSTOM_FAST', 'CUSTOM_GOLD', 'HW_CPU_X86_VMX', 'STORAGE_DISK_SSD']),
        ([], ['HW_CPU_X86_SSE'], ['CUSTOM_GOLD', 'HW_CPU_X86_VMX', 'STORAGE_DISK_SSD']),
        # A Placement that is older than a trait knows nothing of it.
        (
            ['COMPUTE_OF_LATER', 'HW_CPU_X86_AVX'],
            [],
            ['CUSTOM_GOLD', 'HW_CPU_X86_AVX', 'HW_CPU_X86_VMX', 'STORAGE_DISK_SSD'],
        ),
    ],
)
def test_traits_that_an_operator_has_set_stay(client, tree, reported, absent, left):
    providers.ensure_tree(client, tree, sleep=never)
    url = f'/resource_providers/{tree[0].uuid}/traits'
    client.put('/traits/CUSTOM_GOLD')
    set_by_hand = ['HW_CPU_X86_VMX', 'CUSTOM_GOLD', 'STORAGE_DISK_SSD']
    generation = client.read(url)['resource_provider_generation']
    client.put(url, {'resource_provider_generation': generation, 'traits': set_by_hand})
    report = [tree[0].replace(traits=reported, absent_traits=absent), *tree[1:]]
    providers.ensure_tree(client, report, sleep=never)
    assert providers.read_traits(client, tree[0].uuid) == left
    assert providers.ensure_tree(client, report, sleep=never) is False


def test_a_renamed_host_keeps_its_provider(client):
    one = new()
    providers.ensure_tree(client, [one], sleep=never)
    assert providers.ensure_tree(client, [one.replace(name='renamed')], sleep=never) is True
    assert [found.name for found in providers.read_tree(client, one.uuid)] == ['renamed']


def test_a_provider_reported_below_another_parent_moves_there(client, tree):
    providers.ensure_tree(client, tree, sleep=never)
    providers.ensure_tree(client, [tree[0], tree[1], tree[2].replace(parent_uuid=tree[0].uuid)], sleep=never)
    parents = {one.uuid: one.parent_uuid for one in providers.read_tree(client, tree[0].uuid)}
    assert parents[tree[2].uuid] == tree[0].uuid


def test_a_child_of_another_service_stays(client, tree):
    providers.ensure_tree(client, tree, sleep=never)
    bandwidth = new('agent', tree[0].uuid, {'NET_BW_EGR_KILOBIT_PER_SEC': {'total': 1000}}, ['CUSTOM_PHYSNET'])
    providers.ensure_tree(client, [bandwidth], sleep=never)
    providers.ensure_tree(client, [tree[0].replace(traits=[])], sleep=never)
    assert bandwidth.uuid in {one.uuid for one in providers.read_tree(client, tree[0].uuid)}
    assert providers.read_traits(client, bandwidth.uuid) == ['CUSTOM_PHYSNET']
    assert providers.read_inventory(client, bandwidth.uuid)['NET_BW_EGR_KILOBIT_PER_SEC']['total'] == 1000


def test_allocations_survive_an_update_of_the_inventory(client, tree, new_consumer):
    providers.ensure_tree(client, tree, sleep=never)
    one = new_consumer()
    allocations.claim(client, one, {tree[0].uuid: {'VCPU': 2}}, generation=None)
    providers.ensure_tree(client, [tree[0].replace(inventory={'VCPU': {'total': 16}})], sleep=never)
    assert providers.usages(client, tree[0].uuid) == {'VCPU': 2}
    assert providers.allocations_on(client, tree[0].uuid) == {one.uuid: {'VCPU': 2}}


def test_inventory_in_use_cannot_be_removed_by_a_report(client, tree, new_consumer):
    providers.ensure_tree(client, tree, sleep=never)
    allocations.claim(client, new_consumer(), {tree[0].uuid: {'VCPU': 2}}, generation=None)
    with pytest.raises(exception.PlacementRefused) as caught:
        providers.ensure_tree(client, [tree[0].replace(inventory={})], sleep=never)
    assert caught.value.kwargs['placement_code'] == 'placement.inventory.inuse'


def test_a_report_may_be_lower_than_the_allocations(client, tree, new_consumer):
    providers.ensure_tree(client, tree, sleep=never)
    allocations.claim(client, new_consumer(), {tree[0].uuid: {'VCPU': 6}}, generation=None)
    assert providers.ensure_tree(client, [tree[0].replace(inventory={'VCPU': {'total': 4}})], sleep=never) is True


def test_a_name_that_another_provider_has_is_a_refusal(client):
    one = new()
    providers.ensure_tree(client, [one], sleep=never)
    with pytest.raises(exception.PlacementRefused, match=one.name) as caught:
        providers.ensure_tree(client, [one.replace(uuid=str(uuid.uuid4()))], sleep=never)
    assert caught.value.kwargs['placement_code'] == 'placement.duplicate_name'


def test_an_unknown_parent_is_a_refusal(client):
    with pytest.raises(exception.PlacementRefused):
        providers.ensure_tree(client, [new(parent=str(uuid.uuid4()))], sleep=never)


def test_a_cycle_of_parents_is_an_error_before_any_request(client, in_process):
    one, two = new(), new()
    circle = [one.replace(parent_uuid=two.uuid), two.replace(parent_uuid=one.uuid)]
    with pytest.raises(ValueError, match=one.uuid):
        providers.ensure_tree(client, circle, sleep=never)
    assert not in_process.requests


# --- concurrent writers -----------------------------------------------------------------------------------------------


def test_a_concurrent_write_in_between_is_read_again(client, in_process):
    one = new(inventory={'VCPU': {'total': 8}}, traits=['CUSTOM_GOLD'])
    racer = PlacementClient(in_process.adapter())
    slept = []

    def interfere(method, url):
        if method == 'PUT' and url.endswith('/inventories'):
            in_process.before_request = None
            providers.ensure_tree(racer, [one.replace(inventory={'VCPU': {'total': 4}})], sleep=never)

    in_process.before_request = interfere
    assert providers.ensure_tree(client, [one], sleep=slept.append) is True
    assert len(slept) == 1
    assert providers.read_inventory(client, one.uuid)['VCPU']['total'] == 8


def test_a_concurrent_writer_that_creates_the_same_provider_is_no_error(client, in_process):
    one = new(inventory={'VCPU': {'total': 8}})
    racer = PlacementClient(in_process.adapter())
    slept = []

    def interfere(method, _url):
        if method == 'POST':
            in_process.before_request = None
            providers.ensure_tree(racer, [one], sleep=never)

    in_process.before_request = interfere
    assert providers.ensure_tree(client, [one], sleep=slept.append) is False
    assert len(slept) == 1


def test_attempts_are_bounded_and_each_waits_longer(in_process):
    one = new(inventory={'VCPU': {'total': 8}})
    faulty = FaultyAdapter(in_process.adapter())
    faulty.inject(Fault.CONFLICT, method='PUT', url='inventories', times=99)
    slept = []
    with pytest.raises(exception.PlacementConflict):
        providers.ensure_tree(PlacementClient(faulty), [one], sleep=slept.append, attempts=4)
    assert slept == sorted(set(slept))
    assert len(slept) == 3


@pytest.mark.parametrize('skip', range(13))
def test_the_next_report_finishes_a_partly_created_tree(in_process, client, tree, skip):
    faulty = FaultyAdapter(in_process.adapter())
    faulty.inject(Fault.TIMEOUT_DONE, skip=skip)
    with pytest.raises(exception.PlacementUnreachable):
        providers.ensure_tree(PlacementClient(faulty), tree, sleep=never)
    providers.ensure_tree(client, tree, sleep=never)
    assert providers.ensure_tree(client, tree, sleep=never) is False


# --- reading and deleting --------------------------------------------------------------------------------------------


def test_a_tree_that_is_not_there_is_empty(client):
    assert providers.read_tree(client, str(uuid.uuid4())) == []


def test_every_provider_is_listed(client, tree):
    other = new()
    providers.ensure_tree(client, [*tree, other], sleep=never)
    assert {one.uuid for one in providers.list_providers(client)} == {one.uuid for one in [*tree, other]}


def test_reading_a_missing_provider_is_a_refusal(client):
    for read in (providers.usages, providers.allocations_on, providers.read_inventory, providers.read_traits):
        with pytest.raises(exception.PlacementRefused) as caught:
            read(client, str(uuid.uuid4()))
        assert caught.value.kwargs['status'] == 404


def test_a_tree_is_deleted_with_all_its_children_and_twice_is_no_error(client, tree):
    """Launchpad 1852610 and 1829479: a dead host's provider stayed, and could not be deleted."""
    providers.ensure_tree(client, tree, sleep=never)
    providers.delete_tree(client, tree[0].uuid)
    assert providers.list_providers(client) == []
    providers.delete_tree(client, tree[0].uuid)


def test_a_tree_in_use_is_not_deleted_not_even_its_free_children(client, tree, new_consumer):
    providers.ensure_tree(client, tree, sleep=never)
    one = new_consumer()
    allocations.claim(client, one, {tree[0].uuid: {'VCPU': 2}}, generation=None)
    with pytest.raises(exception.ProviderInUse, match=one.uuid):
        providers.delete_tree(client, tree[0].uuid)
    assert len(providers.read_tree(client, tree[0].uuid)) == 3


@pytest.mark.parametrize('appears', ['allocation', 'child'])
def test_what_appears_while_a_tree_is_deleted_is_found(client, tree, new_consumer, monkeypatch, appears):
    providers.ensure_tree(client, tree, sleep=never)
    root, delete = tree[0], client.delete
    late, one = new('late', root.uuid), new_consumer()

    def slow(url, **more):
        if url.endswith(root.uuid):
            monkeypatch.undo()
            if appears == 'child':
                providers.ensure_tree(client, [late], sleep=never)
            else:
                allocations.claim(client, one, {root.uuid: {'VCPU': 2}}, generation=None)
        return delete(url, **more)

    monkeypatch.setattr(client, 'delete', slow)
    if appears == 'child':
        providers.delete_tree(client, root.uuid)
        assert providers.list_providers(client) == []
    else:
        with pytest.raises(exception.ProviderInUse, match=one.uuid):
            providers.delete_tree(client, root.uuid)
        assert [found.uuid for found in providers.list_providers(client)] == [root.uuid]


def test_a_provider_is_plain_data(client, tree):
    providers.ensure_tree(client, tree, sleep=never)
    with pytest.raises(dataclasses.FrozenInstanceError):
        providers.read_tree(client, tree[0].uuid)[0].name = 'x'
