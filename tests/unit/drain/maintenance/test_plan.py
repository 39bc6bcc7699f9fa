# SPDX-License-Identifier: Apache-2.0

"""The plan of a maintenance: which host leaves service when, and where its guests go."""

import dataclasses

import pytest

from benchmarks import maintenance as fleets
from migrator.drain.maintenance.plan import Guest, Host, Limits, most_parallel, plan


def host(name, memory=100, group=''):
    return Host(name, {'MEMORY_MB': memory}, group)


def guest(uuid, at, memory=40, only=None):
    return Guest(uuid, at, {'MEMORY_MB': memory}, None if only is None else frozenset(only))


def steps(found):
    return [(step.host, dict(step.moves)) for step in found.steps]


@pytest.mark.parametrize('case', fleets.CASES, ids=str)
def test_guests_move_no_more_often_than_the_bound(case):
    found = plan(case.hosts, case.guests, case.worked_on, case.limits, case.in_order)
    assert found.fits
    assert found.moves / len(case.guests) == pytest.approx(found.bound, rel=0.001)
    assert sorted(step.host for step in found.steps) == sorted(case.worked_on)


@pytest.mark.parametrize('case', fleets.CASES, ids=str)
def test_no_host_gets_more_than_it_holds_and_none_that_is_out_of_service_gets_any(case):
    found = plan(case.hosts, case.guests, case.worked_on, case.limits, case.in_order)
    sizes = {one.uuid: one.needs['MEMORY_MB'] for one in case.guests}
    at = {one.uuid: one.host for one in case.guests}
    for step in found.steps:
        assert {uuid for uuid, where in at.items() if where == step.host} == step.moves.keys()
        assert len(step.beside) < case.limits.parallel
        assert {step.host, *step.beside}.isdisjoint(step.moves.values())
        at |= step.moves
        used = {}
        for uuid, where in at.items():
            used[where] = used.get(where, 0) + sizes[uuid]
        assert all(used.get(one.name, 0) <= one.capacity['MEMORY_MB'] for one in case.hosts)


def test_guests_of_the_first_host_go_to_one_that_waits_and_those_of_the_next_into_it():
    found = plan([host('a'), host('b')], [guest('one', 'a'), guest('two', 'b')], ['a', 'b'])
    assert steps(found) == [('a', {'one': 'b'}), ('b', {'one': 'a', 'two': 'a'})]
    assert [set(step.again) for step in found.steps] == [{'one'}, set()]
    assert (found.moves, found.bound) == (3, 1.5)


def test_spare_host_takes_the_first_guests_and_each_moves_once():
    found = plan([host('a'), host('b'), host('spare')], [guest('one', 'a'), guest('two', 'b')], ['a', 'b'])
    assert steps(found) == [('a', {'one': 'spare'}), ('b', {'two': 'spare'})]
    assert (found.moves, found.bound) == (2, 1.0)


def test_host_with_the_fewest_guests_is_the_first_unless_the_order_is_given():
    guests = [guest('one', 'a'), guest('two', 'a'), guest('three', 'b'), *(guest(f'c{n}', 'c', 10) for n in range(4))]
    hosts = [host('a'), host('b'), host('c')]
    assert plan(hosts, guests, ['a', 'b', 'c']).steps[0].host == 'b'
    given = plan(hosts, guests, ['c', 'a', 'b'], in_order=True)
    assert [step.host for step in given.steps] == ['c', 'a', 'b']


def test_guest_goes_only_where_it_may():
    guests = [guest('one', 'a', only=['a', 'c']), guest('two', 'b')]
    found = plan([host('a'), host('b'), host('c')], guests, ['a'])
    assert steps(found) == [('a', {'one': 'c'})]
    stays = plan([host('a'), host('b'), host('c')], guests, ['a', 'c'], in_order=True).steps
    assert [step.moves.get('one') for step in stays] == ['c', 'a']
    (step,) = plan([host('a'), host('b')], [guest('one', 'a', only=['a'])], ['a']).steps
    assert (step.fits, step.left) == (False, ('one',))


def test_guests_that_would_move_twice_wait_for_a_host_that_is_done_if_moves_count_more():
    case = fleets.equal(40, parallel=4, spare=0)
    fast, saving = (
        plan(case.hosts, case.guests, case.worked_on, dataclasses.replace(case.limits, saves_moves=saves))
        for saves in (False, True)
    )
    assert (fast.moves >= 800 + 80, saving.moves) == (True, 800 + 20)
    assert (saving.fits, saving.moves / 800) == (True, pytest.approx(saving.bound))


def test_hosts_of_one_group_leave_one_after_the_other():
    hosts = [host(name, group=name[0]) for name in ('x1', 'x2', 'y1', 'y2')]
    found = plan(hosts, [], ['x1', 'x2', 'y1', 'y2'], Limits(2, per_group=1), in_order=True)
    assert [step.host for step in found.steps] == ['x1', 'y1', 'x2', 'y2']
    assert all(step.host[0] not in {name[0] for name in step.beside} for step in found.steps)


def test_plan_names_what_is_short_of_the_reserve_and_which_parallel_fits():
    hosts = [host(name) for name in 'abcd']
    guests = [guest(f'of {one.name}', one.name, 50) for one in hosts]
    limits = Limits(1, reserve={'MEMORY_MB': 100})
    assert plan(hosts, guests, list('abcd'), limits).fits
    two = plan(hosts, guests, list('abcd'), Limits(2, reserve={'MEMORY_MB': 100}))
    assert not two.fits
    assert two.steps[1].short == ('MEMORY_MB',)
    assert most_parallel(hosts, guests, list('abcd'), limits, 4) == 1
    assert most_parallel(hosts, guests, list('abcd'), Limits(1, reserve={'MEMORY_MB': 101}), 4) == 0


def test_host_that_is_unknown_or_named_twice_is_refused():
    for names in (['b'], ['a', 'a']):
        with pytest.raises(ValueError, match=f"each named once: .*'{names[-1]}'"):
            plan([host('a')], [], names)


def test_guest_that_stays_takes_room_and_moves_nowhere():
    guests = [guest('off', 'a', 90, only=()), guest('one', 'b', 20)]
    found = plan([host('a'), host('b'), host('spare')], guests, ['b', 'a'], in_order=True)
    assert steps(found) == [('b', {'one': 'spare'}), ('a', {})]
    assert found.fits
    found = plan([host('a'), host('b')], guests, ['b'])
    assert (found.steps[0].left, found.steps[0].lacks) == (('one',), {'MEMORY_MB': 1})
