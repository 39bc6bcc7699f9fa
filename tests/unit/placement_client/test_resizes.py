# SPDX-License-Identifier: Apache-2.0

import dataclasses

import pytest

from migrator import exception
from migrator.objects.migration import Strategy
from migrator.placement_client import allocation_state, allocations, providers, resizes
from migrator.placement_client.client import PlacementClient
from migrator.testing.placement_faults import Fault, FaultyAdapter

SMALL, LARGE = {'VCPU': 5, 'MEMORY_MB': 512}, {'VCPU': 6, 'MEMORY_MB': 1024}


@pytest.fixture(params=['on one host', 'to another'])
def pair(request, world, new_pair):
    """An instance that gets another flavor."""
    old = world.host('old', VCPU=16, MEMORY_MB=4096)
    return new_pair({old: SMALL}, {old if request.param == 'on one host' else world.host('new'): LARGE})


@pytest.fixture
def resize(client, pair):
    return resize_of(client, pair)


def resize_of(client, pair, *strategy):
    """Return a resize that never sleeps."""
    return resizes.Resize(client, pair, *strategy, sleep=lambda seconds: None)


def held(client, pair):
    """Return the allocations of the instance and of the migration."""
    return [allocations.read(client, one.uuid).allocations for one in (pair.instance, pair.migration)]


def test_until_it_is_confirmed_or_reverted_the_migration_holds_the_old_allocation(client, resize, pair):
    resize.move()
    assert held(client, pair) == [pair.destination, pair.source]


def test_after_confirm_only_the_new_allocation_is_left(client, resize, pair):
    resize.move()
    resize.confirm()
    assert held(client, pair) == [pair.destination, {}]


def test_after_revert_only_the_old_allocation_is_left(client, resize, pair):
    resize.move()
    resize.revert()
    assert held(client, pair) == [pair.source, {}]


@pytest.mark.parametrize('end', ['confirm', 'revert'])
def test_each_method_may_be_repeated_and_writes_only_what_is_needed(in_process, client, pair, end):
    for _ in range(2):
        # A new object, as in another process, which knows only the pair.
        resize_of(client, pair).move()
    for _ in range(2):
        getattr(resize_of(client, pair), end)()
    writes = [request.method for request in in_process.requests if request.method != 'GET']
    once = ['POST', 'PUT'] if end == 'confirm' else ['POST', 'POST', 'PUT']
    assert writes[-len(once) :] == once
    assert held(client, pair) == [pair.destination if end == 'confirm' else pair.source, {}]


def test_a_reverted_resize_may_be_moved_again(client, resize, pair):
    resize.move()
    resize.revert()
    resize.move()
    resize.confirm()
    assert held(client, pair) == [pair.destination, {}]


def test_both_fit_on_one_host_though_the_sum_is_more_than_one_consumer_may_hold(client, world, new_pair):
    host = world.host('one', VCPU={'total': 16, 'max_unit': 8}, MEMORY_MB=4096)
    pair = new_pair({host: SMALL}, {host: LARGE})
    with pytest.raises(exception.NoValidHost, match='migration-owned allocations'):
        resize_of(client, pair, Strategy.DOUBLED).move()
    assert held(client, pair) == [pair.source, {}]
    resize_of(client, pair).move()
    assert providers.usages(client, host)['VCPU'] == 11
    resize_of(client, pair).confirm()
    assert providers.usages(client, host)['VCPU'] == 6


@pytest.mark.parametrize('end', ['confirm', 'revert'])
def test_the_doubled_strategy_works_between_two_hosts(client, world, new_pair, end):
    old, new = world.host('old'), world.host('new')
    pair = new_pair({old: SMALL}, {new: LARGE})
    resize = resize_of(client, pair, Strategy.DOUBLED)
    resize.move()
    assert held(client, pair) == [{old: SMALL, new: LARGE}, {}]
    getattr(resize, end)()
    assert held(client, pair) == [pair.destination if end == 'confirm' else pair.source, {}]


def test_the_same_flavor_on_the_same_host_is_no_resize(client, pair):
    with pytest.raises(exception.NoValidHost, match='the same resources'):
        resize_of(client, dataclasses.replace(pair, destination=pair.source)).move()


def test_without_room_nothing_changes(client, world, pair):
    full = world.host('full', VCPU=6, MEMORY_MB=512)
    crowded = dataclasses.replace(pair, destination={full: LARGE})
    with pytest.raises(exception.PlacementRefused):
        resize_of(client, crowded).move()
    assert held(client, pair) == [pair.source, {}]


@pytest.mark.parametrize(
    ('done', 'wanted', 'said'),
    [
        ((), 'confirm', 'not moved'),
        (('move', 'confirm'), 'revert', 'released'),
        (('move', 'confirm'), 'move', 'released'),
        (('move', 'revert'), 'confirm', 'not moved'),
    ],
)
def test_an_impossible_change_is_refused_and_changes_nothing(client, resize, pair, done, wanted, said):
    for one in done:
        getattr(resize, one)()
    before = held(client, pair)
    with pytest.raises(exception.AllocationsUnexpected, match=f'are {said}: instance {pair.instance.uuid} holds'):
        getattr(resize, wanted)()
    assert held(client, pair) == before


def test_allocations_that_another_writer_changed_are_refused(client, resize, pair):
    resize.move()
    seen = allocations.read(client, pair.instance.uuid)
    other = {uuid: {'VCPU': 1} for uuid in pair.destination}
    allocations.claim(client, pair.instance, other, generation=seen.generation)
    for wanted in (resize.move, resize.confirm, resize.revert):
        with pytest.raises(exception.AllocationsUnexpected, match='are unknown'):
            wanted()
    assert held(client, pair) == [other, pair.source]


@pytest.mark.parametrize('method', ['move', 'confirm', 'revert'])
@pytest.mark.parametrize('fault', [Fault.TIMEOUT_DONE, Fault.TIMEOUT_NOT_DONE, Fault.ERROR_DONE, Fault.CONFLICT])
def test_each_method_may_be_called_again_after_a_lost_response(in_process, client, pair, method, fault):
    faulty = FaultyAdapter(in_process.adapter())
    if method != 'move':
        resize_of(client, pair).move()
    faulty.inject(fault, url='^/allocations')
    resize = resize_of(PlacementClient(faulty), pair)
    try:
        getattr(resize, method)()
    except exception.PlacementUnreachable:
        getattr(resize, method)()
    else:
        assert fault is Fault.CONFLICT, 'it was not configured'
    assert (
        held(client, pair)
        == {
            'move': [pair.destination, pair.source],
            'confirm': [pair.destination, {}],
            'revert': [pair.source, {}],
        }[method]
    )


def test_a_late_move_fails_after_the_revert(in_process, client, pair):
    faulty = FaultyAdapter(in_process.adapter())
    faulty.inject(Fault.TIMEOUT_LATE, url='^/allocations')
    with pytest.raises(exception.PlacementUnreachable):
        resize_of(PlacementClient(faulty), pair).move()
    resize_of(client, pair).revert()
    faulty.deliver()
    assert held(client, pair) == [pair.source, {}]


def test_with_constant_conflicts_it_gives_up_after_growing_pauses(in_process, pair):
    faulty = FaultyAdapter(in_process.adapter())
    faulty.inject(Fault.CONFLICT, url='^/allocations', times=100)
    pauses = []
    with pytest.raises(exception.PlacementConflict):
        resizes.Resize(PlacementClient(faulty), pair, sleep=pauses.append).move()
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8]


UUID = '0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d'


@pytest.fixture
def refused(new_consumer):
    """Return a function that returns the error of a resize of a wrong pair, without any request."""
    instance, migration = new_consumer(), new_consumer(allocation_state.MIGRATION)
    right = allocation_state.Pair(
        instance=instance, migration=migration, source={UUID: SMALL}, destination={UUID: LARGE}
    )

    def refused(**wrong):
        with pytest.raises(exception.ValidationError) as raised:
            resize_of(PlacementClient(None), dataclasses.replace(right, **wrong))
        return str(raised.value)

    return refused


@pytest.mark.parametrize('amount', [1.5, 2.0, True, False, '2', -1, None])
@pytest.mark.parametrize('side', ['source', 'destination'])
def test_an_amount_that_is_not_a_whole_number_is_refused_without_a_request(refused, side, amount):
    assert refused(**{side: {UUID: {'VCPU': amount}}}) == (
        f"Invalid input for field/attribute pair.{side}['{UUID}']['VCPU']. Value: {amount!r}. "
        'Give a whole number of 0 or more.'
    )


@pytest.mark.parametrize('uuid', ['seven', UUID.upper(), UUID.replace('-', ''), '', None])
@pytest.mark.parametrize('whose', ['pair.instance.uuid', 'pair.migration.uuid', 'pair.source', 'pair.destination'])
def test_the_refusal_of_an_invalid_uuid_names_the_field(refused, new_consumer, whose, uuid):
    side = whose.split('.')[1]
    is_consumer = side in ('instance', 'migration')
    said = refused(**{side: dataclasses.replace(new_consumer(), uuid=uuid) if is_consumer else {uuid: SMALL}})
    assert f'field/attribute {whose}' in said
    assert f'Value: {uuid!r}. Give a uuid' in said
    assert 'in lower case' in said


def test_one_uuid_for_both_consumers_is_refused(refused, new_consumer):
    both = new_consumer()
    said = refused(instance=both, migration=both)
    assert 'pair.migration.uuid' in said
    assert 'This is the uuid of the instance: give one' in said


@pytest.mark.parametrize('nothing', [{}, {UUID: {}}, {UUID: {'VCPU': 0}}])
def test_a_pair_without_a_source_is_refused(refused, nothing):
    said = refused(source=nothing)
    assert 'pair.source' in said
    assert 'Give the allocation that the instance holds before the move' in said
