# SPDX-License-Identifier: Apache-2.0

"""How far the notifications about each migration were sent."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from migrator.db import models, saga_log
from migrator.db.migrations import Write
from migrator.objects import Migration
from tests.unit.db import conftest

Scene = conftest.Scene
DAY = 24 * 3600.0


def end(scene: Scene, migration: Migration, status: str = 'failed') -> None:
    scene.database.migrations.commit(migration, Write(fields={'status': status}))


def rows(scene: Scene) -> saga_log.Notified:
    return saga_log.Notified(scene.database.engine)


def unsent(scene: Scene) -> dict[str, int]:
    """Look, and return the migrations with something to send, with the entry after which it begins."""
    while rows(scene).look(DAY):
        pass
    return {one.migration.uuid: one.seq for one in rows(scene).unsent(100)}


def test_the_first_look_begins_at_the_present_ends_of_the_logs(scene: Scene) -> None:
    ended, moving = scene.owned(), scene.owned()
    end(scene, ended)
    assert unsent(scene) == {}
    end(scene, moving)
    assert unsent(scene) == {moving.uuid: moving.log_seq}
    assert unsent(scene).keys() == {moving.uuid}, 'until it is recorded'


def test_a_migration_that_began_and_ended_between_two_looks_is_found(scene: Scene) -> None:
    assert unsent(scene) == {}
    scene.clock.seconds += 3600
    one = scene.owned()
    end(scene, one)
    assert unsent(scene) == {one.uuid: 0}


def test_what_is_recorded_is_not_found_again(scene: Scene) -> None:
    assert unsent(scene) == {}
    one = scene.owned()
    assert unsent(scene) == {one.uuid: 0}
    (found,) = rows(scene).unsent(100)
    assert rows(scene).advance(found)
    assert unsent(scene) == {}
    end(scene, one)
    (found,) = rows(scene).unsent(100)
    assert found.seq == one.log_seq
    assert rows(scene).advance(found)
    assert not rows(scene).advance(found), 'another conductor has recorded it'
    scene.clock.seconds += 3600
    assert unsent(scene) == {}


def test_switched_on_again_after_months_only_the_last_day_is_found(scene: Scene) -> None:
    assert unsent(scene) == {}
    scene.clock.seconds += 3600
    end(scene, scene.owned())
    scene.clock.seconds += 90 * DAY
    new = scene.owned()
    assert unsent(scene) == {new.uuid: 0}
    with scene.database.engine.reader() as session:
        known = session.execute(sa.select(models.NOTIFIED.c.migration)).scalars().all()
    assert sorted(known) == sorted([saga_log._LOOKED, new.uuid])


def test_an_evacuation_of_before_the_first_look_begins_where_it_was_found(scene: Scene) -> None:
    old = scene.owned()
    with scene.database.engine.writer() as session:
        session.execute(sa.update(models.MIGRATIONS).values(status='done', in_progress_instance_uuid=None))
    scene.clock.seconds += 3600
    assert unsent(scene) == {}
    scene.clock.seconds += 3600
    assert scene.database.cleanups.complete_evacuation(scene.database.migrations.get(old.uuid))
    assert unsent(scene) == {}


def test_a_clock_that_was_set_back_hides_no_migration(scene: Scene) -> None:
    scene.clock.seconds += 7200
    assert unsent(scene) == {}
    scene.clock.seconds -= 7200
    new = scene.owned()
    end(scene, new)
    assert unsent(scene) == {new.uuid: 0}


def test_a_look_takes_some_at_a_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saga_log, '_AT_ONCE', 2)
    before = [scene.owned().uuid for _ in range(3)]
    assert unsent(scene) == {}
    after = [scene.owned().uuid for _ in range(3)]
    assert unsent(scene) == dict.fromkeys(after, 0)
    assert not unsent(scene).keys() & set(before)


def test_the_purge_of_a_migration_removes_its_row(scene: Scene) -> None:
    assert unsent(scene) == {}
    instance = scene.instance()
    first, last = scene.owned(instance=instance), None
    end(scene, first)
    last = scene.owned(instance=instance)
    end(scene, last)
    assert unsent(scene).keys() == {first.uuid, last.uuid}
    scene.clock.seconds += 60
    before = scene.database.services.now()
    assert scene.database.purge.next(before, 0, 10) == []
    assert scene.database.purge.delete(before, [first.id, last.id]).migrations == 0, (
        'its notifications wait for the bus'
    )
    scene.clock.seconds += DAY
    assert scene.database.purge.delete(before, [first.id, last.id]).migrations == 1
    with scene.database.engine.reader() as session:
        left = session.execute(sa.select(models.NOTIFIED.c.migration).where(models.NOTIFIED.c.open)).scalars().all()
    assert left == [last.uuid]
