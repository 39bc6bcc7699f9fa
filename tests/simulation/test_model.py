# SPDX-License-Identifier: Apache-2.0
"""The models are complete in their bounds, and able to find planted bugs."""

from __future__ import annotations

import os

import pytest

from migrator.db.slots import Bounds
from tests.simulation.model import __main__, cleanups, evacuation, plants, search, slots, tenure, world

LONG = pytest.mark.skipif(os.environ.get('MIGRATOR_LONG') != '1', reason='takes minutes: MIGRATOR_LONG=1 runs it')
#: Seconds; on one core of a machine that does other things as well.
PATIENCE = pytest.mark.timeout(1800)

VARIANTS = {
    'one crash, two messages': world.Variant(crashes=1, messages=2),
    'two candidates, one crash': world.Variant(crashes=1, messages=0, candidates=2),
    'two candidates, two messages': world.Variant(crashes=0, messages=2, candidates=2),
    'a stop, one message': world.Variant(crashes=0, messages=1, stops=1),
    'a stop, one crash': world.Variant(crashes=1, messages=0, aborts=0, stops=1),
    'a hang, one message': world.Variant(crashes=0, messages=1, hangs=1),
    'a hang, two candidates': world.Variant(crashes=0, messages=0, hangs=1, candidates=2),
}
LONG_VARIANTS = {
    'two crashes': world.Variant(crashes=2, messages=0),
    'two candidates, one crash, one message': world.Variant(crashes=1, messages=1, candidates=2),
    'a stop, one crash, an abort': world.Variant(crashes=1, messages=0, stops=1),
    'a hang, one crash': world.Variant(crashes=1, messages=0, hangs=1),
    'a hang, one crash, one message': world.Variant(crashes=1, messages=1, hangs=1),
    'a hang, a stop, one message': world.Variant(crashes=0, messages=1, stops=1, hangs=1),
}


def explored(system: search.System, name: str, until: str | None = None) -> search.Found:
    """Search all of it, and say how much that was.

    :param until: stop at the first broken invariant whose text contains this.
    """
    found = search.search(system, limit=20_000_000, until=until)
    print(f'\n{name}: {__main__.show(found, brief=True)}')
    is_found = until is not None and any(until in word for word in found.violations)
    assert found.complete or is_found, f'{name}: cut at {found.states} states'
    return found


def is_well(found: search.Found) -> None:
    """Nothing is broken, and an end stays in reach of every state."""
    reported = __main__.show(found)
    assert not found.violations, reported
    assert not found.traps, reported
    assert found.finished, 'no end was reached at all'


@PATIENCE
@pytest.mark.parametrize('name', VARIANTS)
def test_no_invariant_is_broken_and_nothing_is_a_trap(name):
    found = explored(world.system(VARIANTS[name]), name)
    is_well(found)
    ends = {sketch.split()[0] for sketch in found.quiet if 'hangs' not in sketch}
    assert ends == {'completed', 'failed', 'cancelled'}


@LONG
@PATIENCE
@pytest.mark.parametrize('name', LONG_VARIANTS)
def test_the_same_where_it_takes_longer(name):
    is_well(explored(world.system(LONG_VARIANTS[name]), name))


@PATIENCE
@pytest.mark.parametrize('name', plants.PLANTS)
def test_a_planted_mistake_is_caught(name):
    plant = plants.PLANTS[name]
    found = explored(world.system(plant.planted(name)), f'planted: {plant.what}', plant.caught)
    caught = {**found.traps, **found.violations}
    fitting = [(len(trace), word) for word, (_count, trace) in caught.items() if plant.caught in word]
    assert fitting, f'not caught: {plant.what}; found instead: {sorted(caught)}'
    print('caught in {} steps: {}'.format(*min(fitting)))


def test_cleanup_is_run_once_and_removes_no_valid_guest():
    is_well(explored(cleanups.system(crashes=2, messages=2), 'one cleanup, two crashes, two messages'))


@pytest.mark.parametrize(
    ('plant', 'word'),
    [
        ('old-epoch', 'what another migration has prepared'),
        ('two-owners', 'what another migration has prepared'),
        ('active', 'destroys an active guest'),
        ('stale', 'pending'),
    ],
)
def test_planted_bug_of_cleanups_is_caught(plant, word):
    found = explored(cleanups.system(2, 1, frozenset({plant})), f'planted: {plant}', word)
    caught = {**found.traps, **found.violations}
    fitting = [(len(trace), what) for what, (_count, trace) in caught.items() if word in what]
    assert fitting, sorted(caught)
    print('caught in {} steps: {}'.format(*min(fitting)))


@pytest.mark.parametrize('kind', ['restore', 'remove'])
def test_a_cleanup_and_the_next_migration_of_the_guest_never_act_on_it_together(kind):
    is_well(explored(tenure.system(kind, crashes=1, messages=1), f'a cleanup ({kind}) and the next migration'))


@pytest.mark.parametrize(
    ('kind', 'plant', 'word'),
    [
        ('restore', 'no-tenure', 'in hand'),
        ('restore', 'beside', 'in hand'),
        ('remove', 'anywhere', 'where the database has it'),
    ],
)
def test_a_mistake_with_tenures_is_caught(kind, plant, word):
    found = explored(tenure.system(kind, 1, 1, frozenset({plant})), f'planted: {plant}', word)
    fitting = [(len(trace), what) for what, (_count, trace) in found.violations.items() if word in what]
    assert fitting, sorted({**found.traps, **found.violations})
    print('caught in {} steps: {}'.format(*min(fitting)))


def test_an_evacuation_starts_the_guest_once_and_its_source_keeps_the_last_copy():
    found = explored(evacuation.system(crashes=1, messages=1, failures=1), 'an evacuation, one crash, one message')
    is_well(found)
    assert {sketch.split()[0] for sketch in found.quiet} == {'completed', 'done', 'failed'}


@LONG
def test_the_same_with_two_crashes_and_two_failures():
    is_well(explored(evacuation.system(2, 1, 2), 'an evacuation, two crashes, one message, two failures'))


@pytest.mark.parametrize(
    ('plant', 'word'),
    [
        ('no-abort', 'the source is back'),
        ('no-epoch', 'started twice'),
        ('unpolled', 'the last copy'),
        ('released-early', 'released before'),
    ],
)
def test_a_mistake_of_an_evacuation_is_caught(plant, word):
    found = explored(evacuation.system(1, 1, 1, frozenset({plant})), f'planted: {plant}', word)
    fitting = [(len(trace), what) for what, (_count, trace) in found.violations.items() if word in what]
    assert fitting, sorted({**found.traps, **found.violations})
    print('caught in {} steps: {}'.format(*min(fitting)))


@pytest.mark.parametrize(
    ('budget', 'ahead', 'requested'),
    [
        (slots.Budget(crashes=1, failures=0, stuck=1), -1, ('D', 'D')),
        (slots.Budget(crashes=1, failures=1, stuck=0), -1, ('D', '')),
        (slots.Budget(crashes=0, failures=2, stuck=1), -1, ('', '')),
        (slots.Budget(crashes=0, failures=2, stuck=1), 0, ('', '')),
    ],
)
def test_two_migrations_of_one_source_never_share_a_slot_and_both_go_on(budget, ahead, requested):
    found = explored(slots.system(budget, Bounds(inbound=1, ahead=ahead), requested), f'slots, {budget}, {requested}')
    is_well(found)
    assert bool(budget.stuck) == any('open' in sketch for sketch in found.quiet), 'only a stuck one is waited for'


@pytest.mark.parametrize(
    ('plant', 'word'),
    [
        ('slots-unlocked', 'an inbound slot at one host'),
        ('source-unlocked', 'another living one holds'),
        ('begin-early', 'another living one holds'),
        ('stuck-free', 'an inbound slot at one host'),
        ('kept-slot', 'that no stuck one has'),
    ],
)
def test_a_mistake_with_slots_is_caught(plant, word):
    budget = slots.Budget(crashes=int(plant == 'begin-early'), failures=2, stuck=1)
    found = explored(slots.system(budget, Bounds(inbound=1), plants=frozenset({plant})), f'planted: {plant}', word)
    fitting = [(len(trace), what) for what, (_count, trace) in found.violations.items() if word in what]
    assert fitting, sorted({**found.traps, **found.violations})
    print('caught in {} steps: {}'.format(*min(fitting)))


class TestSearch:
    """The search itself, on something that fits on a napkin: a counter that may fall into a hole."""

    @staticmethod
    def system(hole: int) -> search.System:
        def steps(number: int):
            if number < 5 and number != hole:
                yield search.Step('up', {'number': number + 1})
            if number == hole:
                yield search.Step('a user helps', {'number': number + 1}, search.USER)

        return search.System(
            start={'number': 0},
            rules=(search.Rule(('number',), steps),),
            invariants=(search.Invariant(('number',), lambda number: 'four' if number == 4 else ''),),
            finished=search.Invariant(('number',), lambda number: '' if number == 5 else 'not yet'),
            quiet=search.Invariant(('number',), lambda number: '' if number == 5 else 'at rest too early'),
            sketch=lambda parts: f'at {parts["number"]}',
        )

    def test_a_broken_invariant_comes_with_the_shortest_trace_and_is_not_looked_behind(self):
        found = search.search(self.system(hole=9))
        assert found.violations == {'four': (1, ['up'] * 4)}
        assert found.states == 5

    def test_a_trap_is_what_needs_a_user(self):
        found = search.search(self.system(hole=2))
        assert set(found.traps) == set()  # the broken invariant behind it is reported by itself
        assert found.violations['at rest too early'] == (1, ['up', 'up'])

    def test_a_search_that_is_cut_says_so(self):
        assert not search.search(self.system(hole=9), limit=2).complete
