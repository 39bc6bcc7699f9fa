# SPDX-License-Identifier: Apache-2.0

"""Moves and reverts of an allocation, against the real Placement."""

import dataclasses
import threading

import pytest

from migrator import exception
from migrator.objects.migration import Strategy
from migrator.objects.request import for_amounts
from migrator.placement_client import allocation_state, allocations, candidates, providers
from migrator.placement_client.allocation_state import PairState
from migrator.placement_client.client import PlacementClient
from migrator.testing.placement_faults import Fault, FaultyAdapter

FLAVOR = {'VCPU': 2, 'MEMORY_MB': 512}
FIRST = allocations.FIRST_GENERATION


@pytest.fixture
def faulty(in_process):
    return FaultyAdapter(in_process.adapter())


@pytest.fixture
def pair(world, new_pair):
    """An instance on its source, about to move."""
    return new_pair({world.host('source'): FLAVOR}, {world.host('destination'): FLAVOR})


@pytest.fixture
def owned(client):
    return allocations.strategy_for(client, 'migration-owned')


@pytest.fixture
def doubled(client):
    return allocations.strategy_for(client, Strategy.DOUBLED)


@pytest.fixture(params=list(Strategy))
def either(request, client):
    return allocations.strategy_for(client, request.param)


def held(client, *consumers):
    return [allocations.read(client, one.uuid).allocations for one in consumers]


def move(strategy, pair):
    seen = strategy.observe(pair)
    strategy.move(pair, instance_generation=seen.instance.generation)


def release(strategy, pair):
    seen = strategy.observe(pair)
    strategy.release(pair, instance_generation=seen.instance.generation, migration_generation=seen.migration.generation)


def revert(strategy, pair):
    seen = strategy.observe(pair)
    strategy.revert(pair, instance_generation=seen.instance.generation, migration_generation=seen.migration.generation)


def count_requests(in_process, act):
    before = len(in_process.requests)
    act()
    return len(in_process.requests) - before


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_consumer_that_does_not_exist_holds_nothing_and_has_no_generation(client, new_consumer):
    one = new_consumer()
    assert allocations.read(client, one.uuid) == allocation_state.ConsumerAllocations(uuid=one.uuid)


def test_a_consumer_is_read_as_it_was_written(client, pair):
    seen = allocations.read(client, pair.instance.uuid)
    assert seen.allocations == pair.source
    assert seen.generation == FIRST
    assert (seen.project_id, seen.user_id, seen.consumer_type) == ('blue', 'ada', 'INSTANCE')


def test_a_pair_that_changes_while_it_is_read_is_read_again(in_process, client, owned, pair):
    """Otherwise a move between the two GETs would show a pair that never existed."""
    writer = allocations.MigrationOwned(PlacementClient(in_process.adapter()))

    def interfere(_method, url):
        if url.endswith(pair.migration.uuid):
            in_process.before_request = None
            writer.move(pair, instance_generation=FIRST)

    in_process.before_request = interfere
    assert owned.observe(pair).state is PairState.MOVED


def test_a_pair_that_changes_during_every_read_is_a_conflict(in_process, owned, pair):
    writer = allocations.MigrationOwned(PlacementClient(in_process.adapter()))
    generation = FIRST

    def interfere(_method, url):
        nonlocal generation
        if url.endswith(pair.migration.uuid):
            in_process.before_request = None
            writer.rewrite_source(pair, instance_generation=generation)
            generation += 1
            in_process.before_request = interfere

    in_process.before_request = interfere
    with pytest.raises(exception.PlacementConflict):
        owned.observe(pair)


# --- the two ways, both strategies -----------------------------------------------------------------------------------


def test_after_move_and_release_only_the_instance_holds_the_destination(client, either, pair):
    assert either.observe(pair).state is PairState.NOT_MOVED
    move(either, pair)
    assert either.observe(pair).state is PairState.MOVED
    release(either, pair)
    assert either.observe(pair).state is PairState.RELEASED
    assert held(client, pair.instance, pair.migration) == [pair.destination, {}]


def test_after_move_and_revert_only_the_instance_holds_the_source(client, either, pair):
    move(either, pair)
    revert(either, pair)
    assert either.observe(pair).state is PairState.NOT_MOVED
    assert held(client, pair.instance, pair.migration) == [pair.source, {}]


def test_each_write_is_one_request(in_process, either, pair):
    generations = {'instance_generation': FIRST + 1, 'migration_generation': FIRST}
    assert count_requests(in_process, lambda: either.move(pair, instance_generation=FIRST)) == 1
    assert count_requests(in_process, lambda: either.revert(pair, **generations)) == 1
    assert count_requests(in_process, lambda: either.rewrite_source(pair, instance_generation=FIRST + 2)) == 1
    assert count_requests(in_process, lambda: either.move(pair, instance_generation=FIRST + 3)) == 1
    generations['instance_generation'] = FIRST + 4
    assert count_requests(in_process, lambda: either.release(pair, **generations)) == 1


def test_the_migration_is_a_consumer_of_its_own_type_with_the_first_generation(client, owned, pair):
    move(owned, pair)
    seen = allocations.read(client, pair.migration.uuid)
    assert (seen.consumer_type, seen.generation) == ('MIGRATION', FIRST)
    assert allocations.read(client, pair.instance.uuid).generation == FIRST + 1


def test_a_doubled_move_leaves_the_migration_without_allocation(client, doubled, pair):
    move(doubled, pair)
    assert held(client, pair.instance, pair.migration) == [{**pair.source, **pair.destination}, {}]


def test_the_next_candidate_is_moved_to_after_a_revert(client, world, either, pair):
    move(either, pair)
    revert(either, pair)
    second = dataclasses.replace(pair, destination={world.host('second'): FLAVOR})
    move(either, second)
    assert either.observe(second).state is PairState.MOVED
    assert either.observe(pair).state is PairState.UNKNOWN


@pytest.mark.nova_bug('66297f0c4a')
def test_a_nested_allocation_moves_and_comes_back_whole(client, world, either, new_pair):
    """nova 66297f0c4a: the allocations of child providers were left behind."""
    roots = [world.host('nested'), world.host('nested')]
    source, destination = ({root: FLAVOR, world.host('gpu', root, PGPU=1): {'PGPU': 1}} for root in roots)
    nested = new_pair(source, destination)
    move(either, nested)
    revert(either, nested)
    assert held(client, nested.instance, nested.migration) == [source, {}]
    move(either, nested)
    release(either, nested)
    assert held(client, nested.instance, nested.migration) == [destination, {}]
    assert not any(used for provider in source for used in providers.usages(client, provider).values())


# --- generations -----------------------------------------------------------------------------------------------------


def test_a_stale_generation_of_the_instance_is_a_conflict_and_changes_nothing(client, either, pair):
    either.rewrite_source(pair, instance_generation=FIRST)
    with pytest.raises(exception.PlacementConflict):
        either.move(pair, instance_generation=FIRST)
    assert held(client, pair.instance, pair.migration) == [pair.source, {}]


def test_a_stale_generation_of_the_migration_is_a_conflict_and_changes_nothing(client, owned, pair):
    """nova 53ca096750: without consumer generations the later writer won."""
    move(owned, pair)
    with pytest.raises(exception.PlacementConflict):
        owned.revert(pair, instance_generation=FIRST + 1, migration_generation=FIRST + 1)
    assert owned.observe(pair).state is PairState.MOVED


def test_a_second_revert_is_a_conflict_and_changes_nothing(client, owned, pair):
    """nova 55f4552621: reverting what was reverted already."""
    move(owned, pair)
    seen = owned.observe(pair)
    revert(owned, pair)
    with pytest.raises(exception.PlacementConflict):
        owned.revert(pair, instance_generation=seen.instance.generation, migration_generation=seen.migration.generation)
    assert owned.observe(pair).state is PairState.NOT_MOVED


def test_a_second_release_is_a_conflict_and_leaves_no_empty_consumer(client, owned, pair):
    move(owned, pair)
    release(owned, pair)
    with pytest.raises(exception.PlacementConflict):
        owned.release(pair, instance_generation=FIRST + 1, migration_generation=FIRST)
    allocations.claim(client, pair.migration, pair.source, generation=None)


def test_no_write_of_the_pair_accepts_a_null_generation_for_the_instance(in_process, either, pair):
    """Launchpad 1848343: a null generation would recreate the consumer of a deleted instance."""
    writes = [
        lambda: either.move(pair, instance_generation=None),
        lambda: either.rewrite_source(pair, instance_generation=None),
        lambda: either.revert(pair, instance_generation=None, migration_generation=FIRST),
        lambda: allocations.remove(either.client, pair.instance, generation=None),
    ]
    before = len(in_process.requests)
    for write in writes:
        with pytest.raises(ValueError, match='null'):
            write()
    assert len(in_process.requests) == before


def test_a_pair_without_destination_cannot_be_moved(either, pair):
    unplanned = dataclasses.replace(pair, destination=None)
    with pytest.raises(ValueError):
        either.move(unplanned, instance_generation=FIRST)


@pytest.mark.nova_bug(1848343)
def test_an_instance_deleted_before_the_move_stays_gone(client, either, pair):
    allocations.remove(client, pair.instance, generation=FIRST)
    for write in (either.move, either.rewrite_source):
        with pytest.raises(exception.PlacementConflict):
            write(pair, instance_generation=FIRST)
    assert held(client, pair.instance, pair.migration) == [{}, {}]


@pytest.mark.nova_bug(1836754, 1848343)
def test_an_instance_deleted_during_the_move_stays_gone(client, owned, pair):
    move(owned, pair)
    allocations.remove(client, pair.instance, generation=FIRST + 1)
    with pytest.raises(exception.PlacementConflict):
        owned.revert(pair, instance_generation=FIRST + 1, migration_generation=FIRST)
    assert owned.observe(pair).state is PairState.CLAIM_MISSING
    release(owned, pair)
    assert held(client, pair.instance, pair.migration) == [{}, {}]


def test_a_consumer_left_empty_by_a_killed_placement_is_taken_over(client, owned, pair):
    """Placement creates a consumer and its allocations in two transactions; a kill may come between."""
    body = allocations.Write(consumer=pair.migration, allocations={}, generation=None).body()
    client.put(f'/allocations/{pair.migration.uuid}', body)
    assert owned.observe(pair).state is PairState.NOT_MOVED
    with pytest.raises(exception.PlacementConflict):
        owned.move(pair, instance_generation=FIRST)
    owned.move(pair, instance_generation=FIRST, migration_generation=allocations.ORPHAN_GENERATION)
    assert owned.observe(pair).state is PairState.MOVED


def test_the_orphan_generation_changes_neither_an_existing_nor_a_deleted_consumer(client, owned, pair):
    with pytest.raises(exception.PlacementConflict):
        owned.move(pair, instance_generation=FIRST, migration_generation=allocations.ORPHAN_GENERATION)
    with pytest.raises(exception.PlacementConflict):
        owned.rewrite_source(pair, instance_generation=allocations.ORPHAN_GENERATION)
    assert owned.observe(pair).state is PairState.NOT_MOVED


def test_an_empty_allocation_with_a_null_generation_is_never_sent(client, new_consumer, pair):
    with pytest.raises(ValueError):
        allocations.claim(client, new_consumer(), {}, generation=None)
    with pytest.raises(ValueError):
        allocations.write_all(
            client, [allocations.Write(consumer=new_consumer(), allocations={'p': {}}, generation=None)]
        )


# --- room ------------------------------------------------------------------------------------------------------------


def test_a_destination_without_room_is_a_refusal_and_changes_nothing(client, world, either, pair):
    full = dataclasses.replace(pair, destination={world.host('small', VCPU=1, MEMORY_MB=512): FLAVOR})
    with pytest.raises(exception.PlacementRefused) as caught:
        either.move(full, instance_generation=FIRST)
    assert caught.value.kwargs['status'] == 409
    assert held(client, pair.instance, pair.migration) == [pair.source, {}]
    assert allocations.read(client, pair.instance.uuid).generation == FIRST


def test_a_destination_whose_root_lacks_a_nested_resource_refuses_the_claim(world, owned, new_pair):
    """The 2018 thread: from a provider without children to one that needs them."""
    source = {world.host('flat', VCPU=4, PGPU=1): {'VCPU': 2, 'PGPU': 1}}
    root = world.host('nested', VCPU=4)
    world.host('gpu', root, PGPU=1)
    forced = new_pair(source, allocation_state.forced_claim(source, root))
    with pytest.raises(exception.PlacementRefused):
        move(owned, forced)
    assert owned.observe(forced).state is PairState.NOT_MOVED


@pytest.mark.nova_bug('fd351903a1')
def test_a_forced_move_from_a_sharing_provider_is_refused_at_once(client, world, new_consumer):
    storage = world.host('storage', traits=['MISC_SHARES_VIA_AGGREGATE'], DISK_GB=100)
    root = world.host('source')
    world.share(storage, root)
    instance = new_consumer()
    allocations.claim(client, instance, {root: FLAVOR, storage: {'DISK_GB': 10}}, generation=None)
    with pytest.raises(exception.ForcedWithNestedAllocations) as caught:
        allocation_state.forced_claim(allocations.read(client, instance.uuid).allocations, world.host('destination'))
    assert storage in str(caught.value)
    assert root in str(caught.value)


def test_an_unknown_provider_is_a_refusal(client, owned, pair):
    nowhere = dataclasses.replace(pair, destination={'11111111-1111-1111-1111-111111111111': FLAVOR})
    with pytest.raises(exception.PlacementRefused) as caught:
        owned.move(nowhere, instance_generation=FIRST)
    assert caught.value.kwargs['status'] == 400


def test_move_with_remembered_generation_writes_amounts_that_instance_no_longer_holds(client, owned, pair):
    """The generations of a consumer begin anew if it is deleted and created again."""
    remembered = allocations.read(client, pair.instance.uuid).generation
    owned.write([allocations.removal(pair.instance, remembered)])
    smaller = {provider: {'VCPU': 1, 'MEMORY_MB': 256} for provider in pair.source}
    allocations.claim(client, pair.instance, smaller, generation=None)
    owned.move(pair, instance_generation=remembered)
    assert held(client, pair.migration) == [pair.source]


def test_write_is_accepted_for_storage_that_is_not_shared_with_the_host(client, world, new_consumer):
    """A write compares no aggregates, so only candidates that were just read say what a guest may use."""
    storage, root = world.host('storage', traits=[candidates.SHARING_TRAIT], DISK_GB=100), world.host('destination')
    wanted, claim = {**FLAVOR, 'DISK_GB': 10}, {root: FLAVOR, storage: {'DISK_GB': 10}}
    assert candidates.get_candidates(client, for_amounts(wanted), in_tree=root) == []
    instance = new_consumer()
    allocations.claim(client, instance, claim, generation=None)
    assert held(client, instance) == [claim]
    world.share(storage, root)
    found = candidates.get_candidates(client, for_amounts(wanted), in_tree=root)
    assert [one.allocations for one in found] == [claim]


def test_a_move_from_an_exactly_full_source_can_be_reverted(client, world, either, new_pair):
    leaving = new_pair({world.host('full', VCPU=2, MEMORY_MB=512): FLAVOR}, {world.host('destination'): FLAVOR})
    move(either, leaving)
    revert(either, leaving)
    assert either.observe(leaving).state is PairState.NOT_MOVED
    move(either, leaving)
    release(either, leaving)
    assert held(client, leaving.instance) == [leaving.destination]


def test_a_resize_within_one_provider_needs_migration_owned_allocations(client, world, owned, doubled, new_pair):
    host = world.host('one', VCPU=6)
    resize = new_pair({host: {'VCPU': 2}}, {host: {'VCPU': 4}})
    with pytest.raises(exception.NoValidHost, match='migration-owned'):
        move(doubled, resize)
    move(owned, resize)
    assert owned.observe(resize).state is PairState.MOVED
    assert providers.usages(client, host) == {'VCPU': 6}
    revert(owned, resize)
    move(owned, resize)
    release(owned, resize)
    assert held(client, resize.instance) == [{host: {'VCPU': 4}}]


def test_a_move_to_the_same_resources_of_the_same_provider_is_refused(either, pair):
    with pytest.raises(exception.NoValidHost):
        move(either, dataclasses.replace(pair, destination=pair.source))


# --- late and doubled messages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(('end', 'state'), [(release, PairState.RELEASED), (revert, PairState.NOT_MOVED)])
def test_a_late_duplicate_of_the_move_after_the_end_is_refused(faulty, either, pair, end, state):
    faulty.inject(Fault.DUPLICATED, url='^/allocations')
    type(either)(PlacementClient(faulty)).move(pair, instance_generation=FIRST)
    end(either, pair)
    assert [answer.status_code for answer in faulty.deliver()] == [409]
    assert either.observe(pair).state is state


@pytest.mark.parametrize('path', ['forward', 'back'])
def test_a_late_duplicate_in_nova_s_two_request_form_corrupts_the_allocations(faulty, client, owned, pair, path):
    """Why the move is one POST: an emptied consumer is deleted, and its generation restarts.

    The migration takes the source and the instance is emptied; a second request claims the destination. A duplicate of
    the first request that arrives after the end finds the generations that it was written for.
    """
    nova = PlacementClient(faulty)
    faulty.inject(Fault.DUPLICATED, url='^/allocations')
    allocations.write_all(
        nova,
        [
            allocations.Write(consumer=pair.migration, allocations=pair.source, generation=None),
            allocations.Write(consumer=pair.instance, allocations={}, generation=FIRST),
        ],
    )
    assert owned.observe(pair).state is PairState.CLAIM_MISSING
    if path == 'forward':
        allocations.claim(nova, pair.instance, pair.destination, generation=None)
        release(owned, pair)
    else:
        owned.revert(pair, instance_generation=None, migration_generation=FIRST, recreate=True)
    assert owned.observe(pair).state in (PairState.RELEASED, PairState.NOT_MOVED)

    assert [answer.status_code for answer in faulty.deliver()] == [204]
    # The instance, alive on its host, holds nothing, and a migration that has ended holds the source.
    assert held(client, pair.instance, pair.migration) == [{}, pair.source]


@pytest.mark.parametrize('is_rewritten', [True, False])
def test_a_late_move_succeeds_after_the_end_unless_the_source_is_rewritten(faulty, either, pair, is_rewritten):
    """The reason why the first row of the table writes an allocation that is there already."""
    faulty.inject(Fault.TIMEOUT_LATE, url='^/allocations')
    with pytest.raises(exception.PlacementUnreachable):
        type(either)(PlacementClient(faulty)).move(pair, instance_generation=FIRST)
    assert either.observe(pair).state is PairState.NOT_MOVED
    if is_rewritten:
        either.rewrite_source(pair, instance_generation=either.observe(pair).instance.generation)
    assert [answer.status_code for answer in faulty.deliver()] == [409 if is_rewritten else 204]
    assert either.observe(pair).state is (PairState.NOT_MOVED if is_rewritten else PairState.MOVED)


@pytest.mark.parametrize(
    ('fault', 'state'),
    [
        (Fault.UNREACHABLE, PairState.NOT_MOVED),
        (Fault.TIMEOUT_NOT_DONE, PairState.NOT_MOVED),
        (Fault.ERROR_NOT_DONE, PairState.NOT_MOVED),
        (Fault.TIMEOUT_DONE, PairState.MOVED),
        (Fault.ERROR_DONE, PairState.MOVED),
    ],
)
def test_after_a_lost_answer_the_pair_shows_what_was_done(faulty, either, pair, fault, state):
    faulty.inject(fault, url='^/allocations')
    with pytest.raises(exception.PlacementUnreachable):
        type(either)(PlacementClient(faulty)).move(pair, instance_generation=FIRST)
    assert len(faulty.sent) == 1
    assert either.observe(pair).state is state


def test_two_moves_with_same_generation_have_one_winner(in_process, owned, pair, world):
    """Placement in process takes one request at a time; on PostgreSQL it does not serialise racers."""
    second = dataclasses.replace(pair, destination={world.host('second'): FLAVOR})
    outcomes = []

    def race(one):
        try:
            writer = allocations.MigrationOwned(PlacementClient(in_process.adapter()))
            writer.move(one, instance_generation=FIRST)
            outcomes.append('moved')
        except exception.PlacementConflict:
            outcomes.append('conflict')

    threads = [threading.Thread(target=race, args=(one,)) for one in (pair, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ['conflict', 'moved']


# --- nova's form, found and finished ---------------------------------------------------------------------------------


@pytest.fixture
def half_done(client, pair):
    allocations.write_all(
        client,
        [
            allocations.Write(consumer=pair.migration, allocations=pair.source, generation=None),
            allocations.Write(consumer=pair.instance, allocations={}, generation=FIRST),
        ],
    )
    return pair


def test_a_half_done_move_goes_forward_by_a_claim(client, owned, half_done):
    allocations.claim(client, half_done.instance, half_done.destination, generation=None)
    assert owned.observe(half_done).state is PairState.MOVED


def test_a_half_done_move_goes_back_only_with_recreate(client, owned, half_done):
    with pytest.raises(ValueError, match='null'):
        owned.revert(half_done, instance_generation=None, migration_generation=FIRST)
    owned.revert(half_done, instance_generation=None, migration_generation=FIRST, recreate=True)
    assert owned.observe(half_done).state is PairState.NOT_MOVED


def test_a_strategy_that_does_not_exist_is_an_error(client):
    with pytest.raises(ValueError):
        allocations.strategy_for(client, 'tripled')
