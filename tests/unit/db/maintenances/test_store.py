# SPDX-License-Identifier: Apache-2.0

"""The rows of maintenances: who may write what, and random days on a real database."""

import pytest

from migrator import exception
from migrator.drain.maintenance import errors
from migrator.drain.maintenance.turns import Maintenance, Turn
from migrator.objects.drain import Drain
from tests.unit.drain.maintenance import site as sites
from tests.unit.drain.maintenance.day import Day

#: How many random days have their rows in a database.
DAYS = 8


@pytest.fixture
def store(scene):
    return scene.database.maintenances


def accept(store, uuid, *hosts, **more):
    store.accept(Maintenance(uuid=uuid, **more), [Turn(host=host, position=place) for place, host in enumerate(hosts)])
    return store.get(uuid)


def test_row_has_all_that_was_requested_and_its_turns_are_in_order(store):
    wanted = Maintenance(
        uuid='m1', reserve={'VCPU': 3}, settle=90.5, window='22:00-06:00 UTC', of_drains={'locked': 'move'}
    )
    store.accept(wanted, [Turn(host='b', position=1, group='rack'), Turn(host='a', position=2, moves={'one': 'b'})])
    found = store.get('m1')
    assert found == wanted.replace(created_at=found.created_at, log_seq=1)
    assert store.read_turns('m1') == [
        Turn(host='b', position=1, group='rack'),
        Turn(host='a', position=2, moves={'one': 'b'}),
    ]
    assert [(one.seq, one.kind, one.payload['status']) for one in store.read_log('m1')] == [(1, 'status', 'running')]


def test_host_has_one_maintenance_at_a_time(store):
    first = accept(store, 'm1', 'a', 'b')
    with pytest.raises(errors.HostInMaintenance, match='Host b is in maintenance m1: wait until'):
        accept(store, 'm2', 'c', 'b')
    with pytest.raises(errors.MaintenanceNotFound, match='m2'):
        store.get('m2')
    store.write(first, {'status': 'incomplete', 'ended_at': store.now()}, [], [('status', {})])
    accept(store, 'm2', 'c', 'b')
    ended, turns = store.get('m1'), {turn.host: turn for turn in store.read_turns('m1')}
    with pytest.raises(errors.HostInMaintenance, match='Host b is in maintenance m2'):
        store.write(ended, {'status': 'running', 'ended_at': None}, [turns['b']], [('status', {})])
    assert (store.get('m1'), store.holders(['a', 'b', 'c'])) == (ended, {'b': 'm2', 'c': 'm2'})
    # Only the host that goes on has to be free.
    store.write(ended, {'status': 'running', 'ended_at': None}, [turns['a']], [('status', {})])
    assert store.holders(['a', 'b', 'c']) == {'a': 'm1', 'b': 'm2', 'c': 'm2'}


def test_host_that_is_drained_gets_no_maintenance_and_one_in_a_maintenance_no_drain(scene, store):
    drains = scene.database.drains
    drains.accept(Drain(uuid='d1', host='b'), has_service=False)
    with pytest.raises(exception.DrainInProgress, match='b'):
        accept(store, 'm1', 'a', 'b')
    first = accept(store, 'm1', 'a')
    turn = store.read_turns('m1')[0].replace(status='draining', is_out=True, drain='d2')
    for given, error in ((None, errors.HostInMaintenance), (('m1', 'a'), errors.TurnNotDue)):
        with pytest.raises(error, match='aintenance m1'):
            drains.accept(Drain(uuid='d2', host='a'), has_service=False, turn=given)
    first = store.write(first, {}, [turn], [])
    drains.accept(Drain(uuid='d2', host='a'), has_service=False, turn=('m1', 'a'))
    store.write(first, {'status': 'cancelled', 'ended_at': store.now()}, [], [('status', {})])
    with pytest.raises(errors.TurnNotDue, match='does not need drain d3 of a any more'):
        drains.accept(Drain(uuid='d3', host='a'), has_service=False, turn=('m1', 'a'))


def test_write_of_what_was_read_before_another_write_changes_nothing(store):
    old = accept(store, 'm1', 'a')
    turn = store.read_turns('m1')[0]
    new = store.write(old, {'paused': True}, [turn.replace(status='draining', is_out=True)], [('turn', {'host': 'a'})])
    assert (new.paused, new.log_seq) == (True, 2)
    for late in (old, new.replace(epoch=7)):
        with pytest.raises(errors.NotOwnerOfMaintenance):
            store.write(late, {'paused': False}, [turn], [('turn', {'host': 'a', 'late': True})])
    assert store.get('m1') == new.replace(created_at=old.created_at)
    assert [one.status for one in store.read_turns('m1')] == ['draining']
    assert [one.payload for one in store.read_log('m1', after=1)] == [{'host': 'a'}]


def test_write_without_an_event_makes_what_was_read_old_too(store):
    old = accept(store, 'm1', 'a')
    store.write(old, {'waits_for': 'room'}, [], [])
    with pytest.raises(errors.NotOwnerOfMaintenance):
        store.write(old, {'waits_for': None}, [], [])


def test_maintenance_without_a_living_owner_is_adopted_and_an_ended_one_is_not(store):
    accept(store, 'm1', 'a')
    ended = accept(store, 'm2', 'b')
    store.write(ended, {'status': 'completed', 'ended_at': store.now()}, [], [('status', {})])
    assert store.has_orphans()
    assert store.adopt('me') == 1
    assert [(store.get(uuid).owner, store.get(uuid).epoch) for uuid in ('m1', 'm2')] == [('me', 1), (None, 0)]
    assert (store.owned_by('me'), store.owned_by('other')) == (['m1'], [])


def test_list_has_pages_the_newest_first(store):
    for number in range(3):
        accept(store, f'm{number}', f'host{number}')
    assert [one.uuid for one in store.list(limit=2)] == ['m2', 'm1']
    assert [one.uuid for one in store.list(limit=2, marker='m1')] == ['m0']
    store.write(store.get('m1'), {'status': 'cancelled', 'ended_at': store.now()}, [], [('status', {})])
    assert [one.uuid for one in store.list(in_progress=True)] == ['m2', 'm0']
    assert [one.uuid for one in store.list(in_progress=False)] == ['m1']
    with pytest.raises(exception.MarkerNotFound):
        store.list(marker='nothing')


class Stored(sites.Store):
    """The store of a small site, whose rows are in a database."""

    def __init__(self, site, rows):
        super().__init__(site)
        self._rows = rows
        self.get, self.read_turns, self._insert = rows.get, rows.read_turns, rows.accept

    def adopt(self, _uuid):
        self._rows.adopt('me')

    def _write(self, *written):
        return self._rows.write(*written)


@pytest.mark.parametrize('seed', range(DAYS))
def test_random_day_is_the_same_on_a_database(scene, seed):
    day = Day(seed, lambda site: Stored(site, scene.database.maintenances))
    same = Day(seed)
    assert (day.live(), same.live()) == ([], [])
    assert (day.turns(), day.store.log) == (same.turns(), same.store.log)
