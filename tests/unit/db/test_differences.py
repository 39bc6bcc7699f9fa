# SPDX-License-Identifier: Apache-2.0

"""Differences are stored once; an instance follows its guest only if its row is as it was read."""

from __future__ import annotations

import pytest

from migrator import exception
from migrator.db.cleanups import Cleanup
from migrator.db.guests.differences import Placed
from migrator.objects import RECONCILING
from migrator.objects.difference import Difference
from tests.unit.db import conftest

Scene = conftest.Scene
STEP = 'post_live_migration_at_source'


def difference(placed: Placed, *hosts: str) -> Difference:
    seen = dict.fromkeys(hosts, 'running')
    return Difference(instance_uuid=placed.uuid, name=placed.name, host=placed.host, kind='moved', seen=seen)


def read(scene: Scene) -> Placed:
    """Store an instance, and return it as a comparison reads it a while later."""
    uuid = scene.instance().uuid
    scene.clock.seconds += 61
    return scene.database.differences.placed()[uuid]


def test_difference_is_new_once_until_it_changes_or_goes(scene: Scene) -> None:
    rows, placed = scene.database.differences, read(scene)
    found = difference(placed, 'host2')
    assert rows.replace([found]) == [found]
    (stored,) = rows.list()
    assert (stored.is_like(found), stored.since is not None) == (True, True)
    assert rows.replace([found]) == []
    assert [rows.list(host) for host in ('host1', 'host2', 'host3')] == [[stored], [stored], []]
    assert rows.replace([], kept=[placed.uuid]) == []
    assert rows.list() == [stored]
    assert rows.replace([elsewhere := difference(placed, 'host3')]) == [elsewhere]
    rows.replace([])
    assert rows.list() == []


def test_guests_that_are_new_or_busy_are_not_compared_and_those_in_migration_with_its_hosts(scene: Scene) -> None:
    placed = scene.database.differences.placed
    fresh, busy, moving = (scene.instance() for _ in range(3))
    assert placed() == {}
    scene.clock.seconds += 61
    scene.database.instances.update(busy.uuid, task_state='rebooting')
    migration = scene.migration(moving)
    assert {uuid: one.moves_between for uuid, one in placed().items()} == {
        fresh.uuid: frozenset(),
        moving.uuid: {*filter(None, (migration.source_compute, migration.dest_compute))},
    }
    assert placed([busy.uuid]) == {}
    assert scene.database.differences.unknown([fresh.uuid, 'unregistered']) == {'unregistered'}


def test_row_follows_only_after_it_has_begun_to(scene: Scene) -> None:
    rows, placed = scene.database.differences, read(scene)
    assert not rows.follow(placed, 'host2', 'node2')
    assert rows.begin_to_follow(placed, 'host2')
    assert rows.begin_to_follow(placed, 'host2'), 'a repeated call does the same'
    assert scene.database.instances.get(placed.uuid).task_state == RECONCILING
    assert rows.follow(placed, 'host2', 'node2')
    row = scene.database.instances.get(placed.uuid)
    assert (row.host, row.node, row.task_state) == ('host2', 'node2', None)
    assert rows.follow(placed, 'host2', 'node2'), 'another operator has done the same'
    assert not rows.begin_to_follow(placed, 'host3')


def test_row_that_could_not_follow_is_free_again(scene: Scene) -> None:
    rows, placed = scene.database.differences, read(scene)
    assert rows.begin_to_follow(placed, 'host2')
    rows.give_up(placed)
    row = scene.database.instances.get(placed.uuid)
    assert (row.host, row.task_state) == ('host1', None)


@pytest.mark.parametrize('ended', [False, True])
def test_migration_accepted_since_the_row_was_read_refuses_the_follow(scene: Scene, ended: bool) -> None:
    rows, placed = scene.database.differences, read(scene)
    migration = scene.migration(scene.database.instances.get(placed.uuid))
    if ended:
        from migrator.db.migrations import Write

        owned = scene.adopt(migration.uuid, scene.conductor())
        scene.database.migrations.commit(owned.migration, Write({'status': 'cancelled'}))
        assert scene.database.instances.get(placed.uuid).task_state is None
    assert not rows.begin_to_follow(placed, 'host2')
    assert scene.database.instances.get(placed.uuid).host == 'host1'


def test_cleanup_that_would_remove_the_guest_is_blocked_or_refuses_the_follow(scene: Scene) -> None:
    from migrator.db import cleanups

    rows, placed = scene.database.differences, read(scene)
    waits = Cleanup(
        host='host2', migration_uuid='m1', instance_uuid=placed.uuid, step=STEP, reason='host2 was down', epoch=1
    )
    with scene.database.engine.writer() as session:
        cleanups.write(session, waits)
    assert rows.begin_to_follow(placed, 'host2')
    (blocked,) = scene.database.cleanups.list()
    assert blocked.blocked_because is not None
    rows.give_up(placed)
    with scene.database.engine.writer() as session:
        cleanups.write(session, Cleanup(**{**vars(waits), 'owner': 'c1'}))
    with pytest.raises(exception.CleanupInProgress):
        rows.begin_to_follow(placed, 'host2')
    assert scene.database.instances.get(placed.uuid).task_state is None


def test_one_living_conductor_that_reaches_the_broker_is_first(scene: Scene) -> None:
    conductors = scene.database.conductors
    assert conductors.first() is None
    for name in ('a', 'b', 'c'):
        conductors.register(name, f'server-{name}', 10)
    assert conductors.first() == 'a'
    conductors.renew('a', 10, broker_away=5)
    assert conductors.first() == 'b'
    conductors.retire('b')
    assert conductors.first() == 'c'
    scene.clock.seconds += 11
    assert conductors.first() is None
