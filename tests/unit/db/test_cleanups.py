# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import pytest

from migrator import exception
from migrator.db import cleanups
from migrator.db.cleanups import Cleanup
from migrator.db.migrations import Write
from tests.unit.db import conftest

Scene = conftest.Scene


def defer(scene: Scene, host: str, step: str = 'post') -> Cleanup:
    known = scene.owned()
    cleanup = Cleanup(
        host=host,
        migration_uuid=known.uuid,
        instance_uuid=known.instance_uuid,
        step=step,
        reason='it is down',
        epoch=known.epoch,
        owner=known.owner,
        input={'migrate_data': {'a': 1}},
    )
    scene.database.migrations.commit(known, Write(cleanups=[cleanup]))
    return cleanup


def test_a_cleanup_is_read_as_it_was_written(scene: Scene) -> None:
    cleanup = defer(scene, 'host1')
    found = scene.database.cleanups.list()[0]
    assert found.created_at == conftest.START
    assert found.id > 0
    assert cleanups.dataclasses.replace(found, id=0, created_at=None) == cleanup


def test_cleanups_are_listed_by_host_and_by_instance_oldest_first(scene: Scene) -> None:
    first, second, third = defer(scene, 'host1'), defer(scene, 'host2'), defer(scene, 'host1')
    uuids = [cleanup.instance_uuid for cleanup in scene.database.cleanups.list(host='host1')]
    assert uuids == [first.instance_uuid, third.instance_uuid]
    found = scene.database.cleanups.list(instance_uuid=second.instance_uuid)
    assert [cleanup.host for cleanup in found] == ['host2']
    assert scene.database.cleanups.list(host='host2', instance_uuid=first.instance_uuid) == []


def test_a_host_has_one_cleanup_for_each_step_of_a_migration(scene: Scene) -> None:
    cleanup = defer(scene, 'host1')
    with scene.database.engine.writer() as session:
        cleanups.write(session, cleanups.dataclasses.replace(cleanup, reason='it is slow'))
    assert [found.reason for found in scene.database.cleanups.list()] == ['it is slow']


def test_a_blocked_cleanup_is_neither_adopted_nor_deleted_by_its_last_owner(scene: Scene) -> None:
    defer(scene, 'host9')
    other = defer(scene, 'host9')
    before = scene.database.cleanups.list()[0]
    taken = scene.database.cleanups.adopt(before, str(before.owner))
    assert taken is not None
    with scene.database.engine.writer() as session:
        cleanups.hold(session, before.instance_uuid, 'look first')
    assert scene.database.cleanups.adopt(before, str(before.owner)) is None
    assert scene.database.cleanups.raise_epoch(taken, 99) is None
    scene.database.cleanups.forget(taken)
    held, free = scene.database.cleanups.list()
    assert (held.blocked_because, held.epoch) == ('look first', before.epoch + 1)
    assert (free.blocked_because, free.migration_uuid) == (None, other.migration_uuid)


def test_a_living_owner_keeps_a_cleanup_until_its_lease_ends(scene: Scene) -> None:
    defer(scene, 'host9')
    (cleanup,) = scene.database.cleanups.list()
    other = scene.conductor('other', lease=1000)
    assert scene.database.cleanups.adopt(cleanup, other) is None
    assert scene.database.cleanups.list() == [cleanup]
    scene.clock.seconds = 15
    adopted = scene.database.cleanups.adopt(cleanup, other)
    assert adopted is not None
    assert (adopted.owner, adopted.epoch) == (other, cleanup.epoch + 1)
    assert scene.database.cleanups.list() == [adopted]


def test_adopting_a_cleanup_raises_the_tenure_above_that_of_its_migration(scene: Scene) -> None:
    defer(scene, 'host9')
    (cleanup,) = scene.database.cleanups.list()
    assert (cleanup.tenure, scene.database.instances.get(cleanup.instance_uuid).tenure) == (0, 1)
    assert scene.database.cleanups.adopt(cleanup, 'another') is None, 'its owner lives'
    scene.clock.seconds = 100
    taken = scene.database.cleanups.adopt(cleanup, 'another')
    assert taken is not None
    assert taken.tenure == scene.database.instances.get(cleanup.instance_uuid).tenure == 2
    assert scene.database.migrations.get(cleanup.migration_uuid).tenure == 2
    again = scene.database.cleanups.raise_epoch(taken, seen=7, seen_tenure=40)
    assert again is not None
    assert (again.epoch, again.tenure) == (8, 41)
    assert scene.database.instances.get(cleanup.instance_uuid).tenure == 41


@pytest.mark.parametrize('host', ['host1', 'host2'])
def test_no_cleanup_is_adopted_at_a_host_of_a_migration_in_progress(scene: Scene, host: str) -> None:
    cleanup = defer(scene, host)
    known = scene.database.migrations.get(cleanup.migration_uuid)
    scene.database.migrations.commit(known, Write(fields={'dest_compute': 'host2'}))
    (cleanup,) = scene.database.cleanups.list()
    assert scene.database.cleanups.adopt(cleanup, str(cleanup.owner)) is None
    assert scene.database.instances.get(cleanup.instance_uuid).tenure == 1, 'nothing was written'


def test_an_instance_that_is_created_again_continues_the_tenure(scene: Scene) -> None:
    cleanup = defer(scene, 'host9')
    known = scene.database.migrations.get(cleanup.migration_uuid)
    scene.database.migrations.commit(known, Write(fields={'status': 'failed'}))
    (cleanup,) = scene.database.cleanups.list()
    scene.clock.seconds = 100
    taken = scene.database.cleanups.adopt(cleanup, 'another')
    assert taken is not None
    row = scene.database.instances.get(cleanup.instance_uuid)
    scene.database.instances.delete(row.uuid)
    assert scene.database.instances.create(row).tenure == taken.tenure + 1


def test_creating_an_instance_blocks_cleanups_that_would_remove_it(scene: Scene) -> None:
    cleanup = defer(scene, 'host9', step='post_live_migration_at_source')
    defer(scene, 'host9', step='rollback_live_migration_at_source')
    known = scene.database.migrations.get(cleanup.migration_uuid)
    scene.database.migrations.commit(known, Write(fields={'status': 'failed'}))
    row = scene.database.instances.get(cleanup.instance_uuid)
    scene.database.instances.delete(row.uuid)
    with pytest.raises(exception.CleanupInProgress, match='is running post_live_migration_at_source'):
        scene.database.instances.create(row.replace(host='host9'))
    assert [one.blocked_because for one in scene.database.cleanups.list()] == [None, None]
    scene.database.cleanups.let_go(scene.database.cleanups.list()[0])
    scene.database.instances.create(row.replace(host='host9'))
    blocked, other = scene.database.cleanups.list()
    assert 'has been created at host9 since' in str(blocked.blocked_because)
    assert other.blocked_because is None


def test_a_cleanup_that_is_done_is_deleted(scene: Scene) -> None:
    cleanup, other = defer(scene, 'host1'), defer(scene, 'host1')
    known = scene.database.migrations.get(cleanup.migration_uuid)
    scene.database.migrations.commit(
        known, Write(cleanups_run=[(known.uuid, 'host1', 'another'), (known.uuid, 'host1', cleanup.step)])
    )
    assert [found.migration_uuid for found in scene.database.cleanups.list()] == [other.migration_uuid]


def test_retry_unblocks_only_cleanups_as_the_operator_saw_them(scene: Scene) -> None:
    defer(scene, 'host1'), defer(scene, 'host1'), defer(scene, 'host2')
    for cleanup in scene.database.cleanups.list():
        scene.database.cleanups.block(cleanup, 'look')
    one, other, _third = scene.database.cleanups.list()
    # Between the list and the command, the cleanup is blocked for another reason.
    scene.database.cleanups.block(other, 'look again')
    assert scene.database.cleanups.try_again([one, other]) == 1
    assert scene.database.cleanups.try_again([one, other]) == 0
    assert [cleanup.blocked_because for cleanup in scene.database.cleanups.list()] == [None, 'look again', 'look']
