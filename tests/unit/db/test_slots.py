# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest
import sqlalchemy as sa

from migrator import exception
from migrator.db import models, slots
from migrator.db.migrations import Write
from migrator.db.slots import CLUSTER, Bounds, Slots, Waiter, into, out_of
from migrator.db.sql import columns
from migrator.objects import Flavor, Migration
from tests.reasons import stuck_for, waiting_for, waiting_for_slot
from tests.unit.db import conftest

Scene = conftest.Scene


def waiter(number: int, source: str = 'host1', to: str | None = None, **more: bool) -> Waiter:
    return Waiter(number, f'm{number}', source, to, more.get('is_retry', False), not more.get('is_evacuation', False))


def may(found: Slots, one: Waiter, host: str, recently: bool = False) -> bool:
    return found.allowance_of(one, lambda _axis: recently).has_slot(host)


class TestTurns:
    def test_nothing_is_refused_without_a_bound(self) -> None:
        found = Slots(Bounds(), {CLUSTER: 9, into('host2'): 9, out_of('host1'): 9}, {}, [waiter(1)])
        assert may(found, waiter(2), 'host2', recently=True)

    @pytest.mark.parametrize(
        ('bounds', 'what'),
        [
            (Bounds(inbound=2), 'for an inbound slot at host2: 2 of 2'),
            (Bounds(cluster=3), 'for a slot of the cluster: 3 of 3'),
            (Bounds(ahead=0), 'for a slot at source host1: 1 of 1'),
        ],
    )
    def test_a_full_axis_refuses_and_names_its_number_and_bound(self, bounds: Bounds, what: str) -> None:
        found = Slots(bounds, {CLUSTER: 3, into('host2'): 2, out_of('host1'): 1}, {}, [])
        with pytest.raises(exception.NoSlot) as caught:
            found.allowance_of(waiter(1), lambda _axis: False).check('host2')
        assert caught.value.message == what

    def test_prepare_ahead_counts_beyond_what_the_source_runs_at_once(self) -> None:
        limits = {'host1': 3}
        assert may(Slots(Bounds(ahead=1), {out_of('host1'): 3}, limits, []), waiter(1), 'host2')
        assert not may(Slots(Bounds(ahead=1), {out_of('host1'): 4}, limits, []), waiter(1), 'host2')

    def test_evacuation_is_bounded_at_its_destination_alone(self) -> None:
        found = Slots(Bounds(1, 1, 0), {CLUSTER: 1, out_of('host1'): 1, into('host2'): 1}, {}, [])
        assert not may(found, waiter(1, is_evacuation=True), 'host2')
        assert may(found, waiter(1, is_evacuation=True), 'host3')

    def test_next_attempt_needs_only_its_new_destination(self) -> None:
        found = Slots(Bounds(1, 1, 0), {CLUSTER: 1, out_of('host1'): 1}, {}, [waiter(1, to='host2')])
        assert may(found, waiter(9, is_retry=True), 'host2')

    def test_slot_that_an_older_one_needs_by_name_is_kept_for_it(self) -> None:
        found = Slots(Bounds(inbound=2), {into('host2'): 1}, {}, [waiter(1, to='host2')])
        assert not may(found, waiter(2), 'host2')
        assert may(found, waiter(2), 'host3')
        assert may(found, waiter(1, to='host2'), 'host2')

    def test_slot_is_not_kept_for_one_that_waits_for_another_slot_too(self) -> None:
        found = Slots(
            Bounds(inbound=2, ahead=0), {into('host2'): 1, out_of('host9'): 1}, {}, [waiter(1, 'host9', 'host2')]
        )
        assert may(found, waiter(2), 'host2')

    def test_slot_is_kept_for_an_older_one_without_a_requested_host_for_a_while(self) -> None:
        found = Slots(Bounds(inbound=1), {}, {}, [waiter(1, 'host9')])
        assert not may(found, waiter(2), 'host2', recently=True)
        assert may(found, waiter(2), 'host2', recently=False)
        assert may(found, waiter(2), 'host9', recently=True), 'that is the source of the older one'

    def test_what_a_source_can_run_at_once_comes_before_what_is_prepared_ahead(self) -> None:
        ahead, at_once = waiter(1, 'host1'), waiter(2, 'host8')
        found = Slots(Bounds(cluster=2), {CLUSTER: 1, out_of('host1'): 1}, {}, [ahead, at_once])
        assert may(found, at_once, 'host2', recently=True)
        assert not may(found, ahead, 'host2', recently=True)

    def test_older_one_of_another_source_does_not_wait_for_a_younger_one(self) -> None:
        waiters = [waiter(1, 'host1'), waiter(2, 'host8')]
        found = Slots(Bounds(cluster=1), {}, {}, waiters)
        assert may(found, waiters[0], 'host2', recently=True)
        assert not may(found, waiters[1], 'host2', recently=True)


class TestDue:
    def test_as_many_as_there_are_free_slots_oldest_first(self) -> None:
        found = Slots(Bounds(inbound=1), {into('host2'): 1}, {}, [waiter(number) for number in (3, 1, 2)])
        candidates = ('host2', 'host3')
        assert list(found.due({'m1': candidates, 'm2': candidates, 'm3': candidates})) == ['m1']

    def test_none_whose_candidates_are_full(self) -> None:
        found = Slots(Bounds(inbound=1), {into('host2'): 1}, {}, [waiter(1), waiter(2)])
        assert list(found.due({'m1': ('host2',), 'm2': ('host3',)})) == ['m2']

    def test_only_migrations_of_this_conductor_and_slots_are_left_for_the_others(self) -> None:
        found = Slots(Bounds(cluster=2), {CLUSTER: 1}, {}, [waiter(1), waiter(2)])
        assert list(found.due({'m2': ()})) == []
        assert list(found.due({'m1': ()})) == ['m1']


def test_freed_slot_counts_as_full_until_each_conductor_has_looked(scene: Scene) -> None:
    watch, axis = slots.Watch(scene.clock), into('host2')
    full, free = (Slots(Bounds(inbound=1), {axis: number}, {}, []) for number in (1, 0))
    watch.note(free, 2.0)
    assert watch.was_full(axis), 'it is not known what was before'
    for at in range(1, 5):
        scene.clock.seconds = at
        watch.note(free, 2.0)
    assert not watch.was_full(axis)
    watch.note(full, 2.0)
    scene.clock.seconds = 5
    watch.note(free, 2.0)
    assert watch.was_full(axis)
    scene.clock.seconds = 8.5
    assert not watch.was_full(axis)


def admit(scene: Scene, known: Migration, host: str, bounds: Bounds) -> Migration:
    fields = {'status': 'preparing', 'dest_compute': host, 'dest_node': host}
    request = slots.Request(bounds, lambda _axis: False)
    return scene.database.migrations.commit(known, Write(fields=fields, slots=request))[0]


def wait(scene: Scene, known: Migration, text: str = 'a slot of the cluster: 1 of 1') -> None:
    assert scene.database.migrations.note_progress(known, waiting_for_slot(text))


class TestAdmission:
    def test_refused_commit_writes_nothing(self, scene: Scene) -> None:
        first, second = scene.owned(), scene.owned()
        admit(scene, first, 'host2', Bounds(inbound=1))
        with pytest.raises(exception.NoSlot, match='for an inbound slot at host2: 1 of 1'):
            admit(scene, second, 'host2', Bounds(inbound=1))
        assert scene.database.migrations.get(second.uuid) == scene.database.migrations.get(second.uuid).replace(
            status='accepted', dest_compute=None, dest_node=None
        )

    def test_requested_destination_of_one_that_waits_takes_no_slot(self, scene: Scene) -> None:
        scene.owned(dest_compute='host2', requested_host='host2', **waiting_for('Placement: no answer'))
        admit(scene, scene.owned(), 'host2', Bounds(inbound=1))

    def test_slot_is_kept_for_an_older_one_whose_conductor_has_not_looked_yet(self, scene: Scene) -> None:
        older, younger = scene.owned(requested_host='host2'), scene.owned()
        with pytest.raises(exception.NoSlot, match='at host2: 0 of 1, and 1 kept for earlier migrations'):
            admit(scene, younger, 'host2', Bounds(inbound=1))
        admit(scene, older, 'host2', Bounds(inbound=1))

    def test_end_of_a_migration_frees_its_slots(self, scene: Scene) -> None:
        first, second, bounds = scene.owned(), scene.owned(), Bounds(1, 1, 0)
        first = admit(scene, first, 'host2', bounds)
        scene.database.migrations.commit(first, Write(fields={'status': 'failed'}))
        admit(scene, second, 'host2', bounds)

    def test_next_attempt_keeps_its_slot_of_the_cluster_and_frees_the_old_destination(self, scene: Scene) -> None:
        first = admit(scene, scene.owned(), 'host2', Bounds(1, 1))
        fields: dict[str, Any] = {'attempt': 2, 'dest_compute': None, 'dest_node': None}
        scene.database.migrations.commit(first, Write(fields=fields))
        with pytest.raises(exception.NoSlot, match='of the cluster: 1 of 1'):
            admit(scene, scene.owned(), 'host3', Bounds(1, 1))
        admit(scene, scene.owned(), 'host2', Bounds(1, 0))

    def test_source_has_the_limit_that_it_has_reported(self, scene: Scene) -> None:
        boot = scene.host('host1')
        scene.database.services.write_slots('host1', 'another boot', 9)
        scene.database.services.write_slots('host1', boot, 2)
        assert scene.database.services.heartbeats({'host1': boot}, 0.0) == set()
        for _ in range(2):
            admit(scene, scene.owned(), 'host2', Bounds(ahead=0))
        with pytest.raises(exception.NoSlot, match='for a slot at source host1: 2 of 2'):
            admit(scene, scene.owned(), 'host2', Bounds(ahead=0))

    def test_one_whose_outcome_is_known_holds_no_slot_of_its_source(self, scene: Scene) -> None:
        first = admit(scene, scene.owned(), 'host2', Bounds(ahead=0))
        scene.database.migrations.commit(first, Write(fields={'outcome': 'back'}))
        admit(scene, scene.owned(), 'host2', Bounds(ahead=0))

    @pytest.mark.parametrize('state', ['aborted', 'stuck', 'waits for Placement', 'has no living owner'])
    def test_slot_is_not_kept_for_an_older_one_that_does_not_wait_for_it(self, scene: Scene, state: str) -> None:
        older = scene.owned(requested_host='host2')
        wait(scene, older, 'an inbound slot at host2: 1 of 1')
        younger = scene.owned()
        with pytest.raises(exception.NoSlot, match='1 kept for earlier migrations'):
            admit(scene, younger, 'host2', Bounds(inbound=1))
        values: dict[str, Any] = {
            'aborted': {'abort_requested_at': conftest.START},
            'stuck': stuck_for('why'),
            'waits for Placement': waiting_for('The Placement service is not reachable'),
            'has no living owner': {'owner': 'gone'},
        }[state]
        table = models.MIGRATIONS
        with scene.database.engine.writer() as session:
            session.execute(sa.update(table).where(table.c.uuid == older.uuid).values(**values))
        admit(scene, younger, 'host2', Bounds(inbound=1))

    def test_many_at_once_take_no_more_than_the_bound(self, scene: Scene) -> None:
        known = [scene.owned() for _ in range(12)]

        def take(one: Migration) -> bool:
            try:
                admit(scene, one, 'host2', Bounds(inbound=3))
            except exception.NoSlot:
                return False
            return True

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            assert sum(pool.map(take, known)) == 3


class TestRecorded:
    def moved(self, scene: Scene, seconds: float, memory_mb: int = 1024, **fields: Any) -> None:
        """Store a migration that has completed after some seconds of copying."""
        instance = scene.instance(flavor=Flavor(name='small', memory_mb=memory_mb))
        migration = scene.owned(instance=instance, **fields)
        for status, more in (('preparing', {}), ('queued', {}), ('running', {'running_at': columns.now()})):
            migration, _ = scene.database.migrations.commit(migration, Write({'status': status, **more}))
        scene.clock.seconds += seconds
        for status in ('post-migrating', 'completed'):
            migration, _ = scene.database.migrations.commit(migration, Write({'status': status}))

    def test_has_the_durations_of_completed_live_migrations_the_newest_first(self, scene: Scene) -> None:
        self.moved(scene, 30)
        self.moved(scene, 60, 2048, drain='d1', dest_compute='host2')
        scene.owned()
        now, _, past, _ = scene.database.slots.recorded([])
        assert [(one.group, one.size_mb, one.seconds, one.source) for one in past] == [
            ('d1', 2048, 60, 'host1'),
            ('host1', 1024, 30, 'host1'),
        ]
        assert past[0].began - past[1].began == 30
        assert past[0].destination == 'host2'
        assert now == scene.clock.now()

    def test_has_the_live_migrations_that_copy(self, scene: Scene) -> None:
        self.moved(scene, 30)
        migration = scene.owned(dest_compute='host2')
        for status, more in (('preparing', {}), ('queued', {}), ('running', {'running_at': columns.now()})):
            assert scene.database.slots.recorded([])[3] == []
            migration, _ = scene.database.migrations.commit(migration, Write({'status': status, **more}))
        scene.clock.seconds += 20
        (running,) = scene.database.slots.recorded([])[3]
        assert (running.source, running.destination, running.seconds) == ('host1', 'host2', 20)

    def test_has_the_limits_that_hosts_have_reported(self, scene: Scene) -> None:
        scene.host('host1')
        with scene.database.engine.writer() as session:
            session.execute(sa.update(models.SERVICES).values(slots=4))
        assert scene.database.slots.recorded(['host1', 'unknown'])[1] == {'host1': 4}
        assert (Bounds().at_once(4), Bounds(cluster=3).at_once(4)) == (4, 3)
