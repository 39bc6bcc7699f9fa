# SPDX-License-Identifier: Apache-2.0

"""The table of pair states, cell by cell; it is pure and needs no Placement."""

import itertools

import pytest

from migrator import exception
from migrator.objects.migration import Strategy
from migrator.placement_client import allocation_state
from migrator.placement_client.allocation_state import PairState

SOURCE = {'s-root': {'VCPU': 2, 'MEMORY_MB': 512}, 's-gpu': {'PGPU': 1}}
DESTINATION = {'d-root': {'VCPU': 2, 'MEMORY_MB': 512}, 'd-gpu': {'PGPU': 1}}
OTHER = {'x-root': {'VCPU': 2, 'MEMORY_MB': 512}}
NOTHING: dict[str, dict[str, int]] = {}
BOTH = {**SOURCE, **DESTINATION}

HELD = {'nothing': NOTHING, 'source': SOURCE, 'destination': DESTINATION, 'both': BOTH, 'other': OTHER}

MEANINGS = {
    Strategy.MIGRATION_OWNED: {
        ('source', 'nothing'): PairState.NOT_MOVED,
        ('destination', 'source'): PairState.MOVED,
        ('destination', 'nothing'): PairState.RELEASED,
        ('nothing', 'source'): PairState.CLAIM_MISSING,
    },
    Strategy.DOUBLED: {
        ('source', 'nothing'): PairState.NOT_MOVED,
        ('both', 'nothing'): PairState.MOVED,
        ('destination', 'nothing'): PairState.RELEASED,
    },
}


@pytest.mark.parametrize('strategy', list(Strategy))
@pytest.mark.parametrize(('instance', 'migration'), list(itertools.product(HELD, HELD)))
def test_every_pair_of_the_table_has_its_state_and_every_other_pair_is_unknown(strategy, instance, migration):
    wanted = MEANINGS[strategy].get((instance, migration), PairState.UNKNOWN)
    assert allocation_state.observe_pair(HELD[instance], HELD[migration], SOURCE, DESTINATION, strategy) is wanted


@pytest.mark.parametrize('strategy', list(Strategy))
@pytest.mark.parametrize(('instance', 'migration'), list(itertools.product(HELD, HELD)))
def test_without_an_intent_no_pair_counts_as_moved_or_released(strategy, instance, migration):
    seen = allocation_state.observe_pair(HELD[instance], HELD[migration], SOURCE, None, strategy)
    wanted = MEANINGS[strategy].get((instance, migration), PairState.UNKNOWN)
    assert seen is (PairState.UNKNOWN if wanted in (PairState.MOVED, PairState.RELEASED) else wanted)


def test_a_destination_of_an_older_intent_is_unknown():
    assert allocation_state.observe_pair(OTHER, SOURCE, SOURCE, DESTINATION, 'migration-owned') is PairState.UNKNOWN


def test_half_of_a_nested_allocation_is_not_the_allocation():
    half = {'s-root': SOURCE['s-root']}
    assert allocation_state.observe_pair(half, NOTHING, SOURCE, DESTINATION, 'migration-owned') is PairState.UNKNOWN


def test_zero_amounts_and_empty_providers_make_no_difference():
    padded = {**SOURCE, 'gone': {}, 's-root': {**SOURCE['s-root'], 'DISK_GB': 0}}
    assert (
        allocation_state.observe_pair(padded, {'gone': {}}, SOURCE, DESTINATION, 'migration-owned')
        is PairState.NOT_MOVED
    )


@pytest.mark.parametrize('strategy', list(Strategy))
def test_a_source_that_equals_the_destination_is_unknown(strategy):
    assert allocation_state.observe_pair(SOURCE, NOTHING, SOURCE, SOURCE, strategy) is PairState.UNKNOWN
    assert allocation_state.observe_pair(SOURCE, SOURCE, SOURCE, SOURCE, strategy) is PairState.UNKNOWN


@pytest.mark.parametrize('strategy', list(Strategy))
def test_an_instance_that_never_held_anything_is_unknown(strategy):
    assert allocation_state.observe_pair(NOTHING, NOTHING, NOTHING, DESTINATION, strategy) is PairState.UNKNOWN


def test_a_resize_within_one_provider_is_recognised_by_its_amounts():
    small, large = {'host': {'VCPU': 2}}, {'host': {'VCPU': 4}}
    assert allocation_state.observe_pair(large, small, small, large, 'migration-owned') is PairState.MOVED
    assert allocation_state.observe_pair(small, NOTHING, small, large, 'migration-owned') is PairState.NOT_MOVED
    assert allocation_state.observe_pair(large, NOTHING, small, large, 'migration-owned') is PairState.RELEASED


def test_a_doubled_pair_adds_up_on_a_shared_provider():
    source = {'s-root': {'VCPU': 2}, 'storage': {'DISK_GB': 10}}
    destination = {'d-root': {'VCPU': 2}, 'storage': {'DISK_GB': 10}}
    doubled = {'s-root': {'VCPU': 2}, 'd-root': {'VCPU': 2}, 'storage': {'DISK_GB': 20}}
    assert allocation_state.total([source, destination]) == doubled
    assert allocation_state.observe_pair(doubled, NOTHING, source, destination, 'doubled') is PairState.MOVED


def test_observing_leaves_its_arguments_alone():
    source = {'s': {'VCPU': 1}}
    destination = {'d': {'VCPU': 1}}
    allocation_state.observe_pair({}, {}, source, destination, 'doubled')
    assert (source, destination) == ({'s': {'VCPU': 1}}, {'d': {'VCPU': 1}})


def test_a_forced_move_claims_the_same_at_the_root_of_the_destination():
    assert allocation_state.forced_claim({'s-root': {'VCPU': 2}}, 'd-root') == {'d-root': {'VCPU': 2}}


@pytest.mark.nova_bug('fd351903a1')
def test_a_forced_move_of_a_nested_allocation_is_refused_and_the_providers_are_named():
    """nova fd351903a1: a forced move lost the nested resources."""
    with pytest.raises(exception.ForcedWithNestedAllocations, match=r's-gpu, s-root.*sharing') as caught:
        allocation_state.forced_claim(SOURCE, 'd-root')
    assert isinstance(caught.value, exception.NoValidHost)


def test_a_forced_move_of_an_instance_without_allocation_is_refused():
    """Launchpad 1729356."""
    with pytest.raises(exception.NoValidHost, match='holds no allocation'):
        allocation_state.forced_claim({}, 'd-root')
