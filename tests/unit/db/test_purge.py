# SPDX-License-Identifier: Apache-2.0
"""The purge: the rows that it deletes, and the rows that stay."""

from __future__ import annotations

import datetime

import pytest
import sqlalchemy as sa

from migrator.db import cleanups, models
from migrator.db.cleanups import Cleanup
from migrator.db.migrations import Write
from migrator.objects import Instance, Migration
from migrator.saga import log
from tests.unit.db import conftest
from tests.unit.db.conftest import Scene


def at(seconds: float) -> datetime.datetime:
    return conftest.START + datetime.timedelta(seconds=seconds)


def ended(scene: Scene, instance: Instance, *cleanup_hosts: str, status: str = 'failed') -> Migration:
    """Create an ended migration with a log row, and a pending cleanup at each given host."""
    one = scene.owned(instance=instance)
    cleanups = [
        Cleanup(host, one.uuid, instance.uuid, 'post_live_migration_at_source', 'x', 1) for host in cleanup_hosts
    ]
    record = log.StepRecord(step='select_destination', direction=log.DO, state=log.StepState.DONE, attempt=1)
    scene.database.migrations.commit(one, Write(fields={'status': status}, records=[record], cleanups=cleanups))
    return scene.database.migrations.get(one.uuid)


def purge(scene: Scene, before: datetime.datetime, count: int = 100) -> list[int]:
    """Purge all purgeable migrations in batches; return the size of each batch."""
    last, taken = 0, []
    while ids := scene.database.purge.next(before, last, count):
        taken.append(scene.database.purge.delete(before, ids).migrations)
        last = ids[-1]
    return taken


def left(scene: Scene) -> list[int]:
    return sorted(one.id for one in scene.database.migrations.list())


def of_migrations(scene: Scene) -> set[str]:
    """Return the migrations that have a row in the log, or an action."""
    with scene.database.engine.reader() as session:
        steps = session.execute(sa.select(models.SAGA_LOG.c.migration)).scalars()
        return {*steps, *session.execute(sa.select(models.INSTANCE_ACTIONS.c.migration_uuid)).scalars()}


def test_purge_deletes_log_and_actions_and_keeps_the_last_migration(scene: Scene) -> None:
    instance = scene.instance()
    first, second, last = (ended(scene, instance) for _ in range(3))
    scene.clock.seconds += 60
    assert scene.database.purge.count(at(60)) == (2, 1)
    assert purge(scene, at(60)) == [2]
    assert left(scene) == [last.id]
    assert of_migrations(scene) == {last.uuid}
    assert scene.database.migrations.get(last.uuid) == last
    assert scene.database.purge.count(at(60)) == (0, 1)
    assert first.uuid != second.uuid


def test_migrations_that_ended_at_that_time_or_later_stay(scene: Scene) -> None:
    instance = scene.instance()
    first = ended(scene, instance)
    scene.clock.seconds += 60
    rest = [ended(scene, instance).id for _ in range(2)]
    assert purge(scene, at(0)) == []
    assert purge(scene, at(60)) == [1]
    assert left(scene) == rest
    assert first.id not in rest


def test_a_migration_accepted_long_ago_and_ended_now_stays(scene: Scene) -> None:
    instance = scene.instance()
    slow = scene.owned(instance=instance)
    scene.clock.seconds += 3600
    scene.database.migrations.commit(slow, Write(fields={'status': 'failed'}))
    ended(scene, instance)
    assert purge(scene, at(60)) == []


def test_an_evacuation_that_is_done_stays_until_it_is_completed(scene: Scene) -> None:
    instance = scene.instance()
    done = scene.owned(instance=instance, migration_type='evacuation')
    for status in ('preparing', 'done'):
        done, _ = scene.database.migrations.commit(done, Write(fields={'status': status}))
    ended(scene, instance)
    scene.clock.seconds += 60
    assert scene.database.purge.count(at(60)) == (0, 1)
    scene.database.migrations.commit(done, Write(fields={'status': 'completed'}))
    scene.clock.seconds += 60
    assert scene.database.purge.count(at(120)) == (1, 1)


def test_migrations_in_progress_or_with_a_pending_cleanup_stay(scene: Scene) -> None:
    instance = scene.instance()
    ended(scene, instance)
    owing = ended(scene, instance, 'host2')
    ended(scene, instance)
    moving = scene.owned(instance=instance)
    scene.clock.seconds += 60
    assert scene.database.purge.count(at(60)) == (2, 1)
    assert purge(scene, at(60)) == [2]
    assert left(scene) == [owing.id, moving.id]
    assert owing.uuid in of_migrations(scene)


def test_a_cleanup_that_is_deferred_before_the_deletion_is_respected(scene: Scene) -> None:
    instance = scene.instance()
    one, _ = ended(scene, instance), ended(scene, instance)
    scene.clock.seconds += 60
    ids = scene.database.purge.next(at(60), 0, 100)
    with scene.database.engine.writer() as session:
        cleanups.write(session, Cleanup('host2', one.uuid, instance.uuid, 'post_live_migration_at_source', 'x', 1))
    assert scene.database.purge.delete(at(60), ids).migrations == 0
    assert one.id in left(scene)


@pytest.mark.parametrize('deleted_before', [True, False])
def test_an_instance_that_is_created_again_gets_the_tenure_as_without_a_purge(
    scene: Scene, deleted_before: bool
) -> None:
    instance = scene.instance()
    for _ in range(5):
        ended(scene, instance)
    scene.clock.seconds += 60
    if deleted_before:
        scene.database.instances.delete(instance.uuid)
    assert purge(scene, at(60)) == [4]
    if not deleted_before:
        scene.database.instances.delete(instance.uuid)
    scene.instance(uuid=instance.uuid)
    again = ended(scene, instance)
    assert again.tenure == 7


def test_without_tenures_and_uuids_the_newest_migration_of_an_instance_stays(scene: Scene) -> None:
    instance, other = scene.instance(), scene.instance()
    rows = [ended(scene, instance).id for _ in range(3)] + [ended(scene, other).id]
    with scene.database.engine.writer() as session:
        session.execute(sa.update(models.MIGRATIONS).values(uuid=None, tenure=0, updated_at=at(0)))
    assert purge(scene, at(60)) == [2]
    assert left(scene) == rows[2:]


def test_batches_delete_the_oldest_first(scene: Scene) -> None:
    instance = scene.instance()
    kept = [ended(scene, instance).id for _ in range(8)][-1]
    scene.clock.seconds += 60
    assert purge(scene, at(60), count=3) == [3, 3, 1]
    assert left(scene) == [kept]


def test_deleted_rows_are_counted(scene: Scene) -> None:
    instance = scene.instance()
    for _ in range(3):
        ended(scene, instance)
    scene.clock.seconds += 60
    gone = scene.database.purge.delete(at(60), scene.database.purge.next(at(60), 0, 100))
    assert (gone.migrations, gone.saga_log, gone.instance_actions) == (2, 6, 2)
