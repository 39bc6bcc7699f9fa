# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import datetime
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_utils import uuidutils

from migrator.db import api
from tests.unit.db import bare, conftest


def rows(scene: conftest.Scene) -> list[tuple[Any, ...]]:
    """Return the stored (id, uuid, updated_at)."""
    with scene.database.engine.reader() as session:
        query = 'SELECT id, uuid, updated_at FROM migrations ORDER BY id'
        return [tuple(row) for row in session.execute(sa.text(query))]


@pytest.fixture
def old(scene: conftest.Scene) -> conftest.Scene:
    """A database with three migrations without a uuid."""
    write(scene, 3)
    return scene


def write(scene: conftest.Scene, number: int) -> None:
    with scene.database.engine.writer() as session:
        bare.insert(lambda text: session.execute(sa.text(text)), number)


def test_a_migration_that_is_read_gets_a_uuid(old: conftest.Scene) -> None:
    found = old.database.migrations.get_by_id(2)
    assert uuidutils.is_uuid_like(found.uuid)
    assert old.database.migrations.get_by_id(2).uuid == found.uuid
    assert old.database.migrations.get(found.uuid).id == 2
    assert [uuid for _, uuid, _ in rows(old)] == [None, found.uuid, None]


def test_listed_migrations_get_a_uuid_each(old: conftest.Scene) -> None:
    mine = old.migration()
    listed = {one.id: one.uuid for one in old.database.migrations.list()}
    assert len(set(listed.values())) == 4
    assert listed[4] == mine.uuid
    assert rows(old) == [(id_, uuid, None) for id_, uuid in sorted(listed.items())]


def test_a_new_uuid_does_not_change_updated_at(old: conftest.Scene) -> None:
    old.clock.seconds = 3600
    later = conftest.START + datetime.timedelta(seconds=1800)
    assert old.database.migrations.fill_uuids(10) == 3
    assert old.database.migrations.list(changes_since=later) == []
    assert [one.updated_at for one in old.database.migrations.list()] == [None] * 3


def test_uuids_are_filled_in_batches_oldest_first(old: conftest.Scene) -> None:
    migrations = old.database.migrations
    assert migrations.count_without_uuid() == 3
    assert migrations.fill_uuids(2) == 2
    assert [uuid is None for _, uuid, _ in rows(old)] == [False, False, True]
    assert migrations.fill_uuids(2) == 1
    assert migrations.fill_uuids(2) == migrations.count_without_uuid() == 0


def test_two_concurrent_fills_agree_on_each_uuid(old: conftest.Scene) -> None:
    """The other process writes between the read and the write of this one."""
    other = api.Database(old.connection, old.threads)
    theirs: list[str] = []

    def meanwhile(what: str) -> None:
        old.database.engine.boundary = lambda what: None
        theirs.append(other.migrations.get_by_id(1).uuid)

    old.database.engine.boundary = meanwhile
    assert old.database.migrations.fill_uuids(3) == 2
    assert theirs == [old.database.migrations.get_by_id(1).uuid] == [other.migrations.get_by_id(1).uuid]
    assert len({one.uuid for one in other.migrations.list()}) == 3

    write(old, 1)
    old.database.engine.boundary = meanwhile
    assert other.migrations.get_by_id(4).uuid == old.database.migrations.get_by_id(4).uuid
    other.close()


def test_a_read_only_session_fills_no_uuids(old: conftest.Scene) -> None:
    with old.database.one_session() as database:
        assert [one.uuid for one in database.migrations.list()] == [None] * 3
    assert [uuid for _, uuid, _ in rows(old)] == [None] * 3


def test_a_migration_in_progress_is_adopted_once_it_has_a_uuid(scene: conftest.Scene) -> None:
    mine = scene.migration()
    with scene.database.engine.writer() as session:
        session.execute(sa.text('UPDATE migrations SET uuid = NULL'))
    assert scene.database.takeovers.orphans() == []
    assert scene.database.migrations.fill_uuids(10) == 1
    (found,) = scene.database.takeovers.orphans()
    assert found == [scene.database.migrations.list()[0].uuid]
    assert found[0] != mine.uuid
