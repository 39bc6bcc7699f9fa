# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import datetime

import pytest

from migrator import exception
from migrator.db import actions
from tests.unit.db import conftest

Scene = conftest.Scene


def test_an_action_is_found_by_its_request_id(scene: Scene) -> None:
    instance = scene.instance()
    migration = scene.migration(instance, 'req-one')
    found = scene.database.actions.get(instance.uuid, 'req-one')
    assert (found.action, found.migration_uuid, found.start_time) == ('live-migration', migration.uuid, conftest.START)
    assert (found.finish_time, found.result) == (None, None)
    with pytest.raises(exception.ActionNotFound):
        scene.database.actions.get(instance.uuid, 'req-two')
    with pytest.raises(exception.ActionNotFound):
        scene.database.actions.get('nobody', 'req-one')


def test_finish_ends_only_the_named_action_and_only_once(scene: Scene) -> None:
    migration = scene.migration(scene.instance(), 'req-one')
    with scene.database.engine.writer() as session:
        actions.finish(session, 'another', migration.uuid, None)
    assert scene.database.actions.list(migration.instance_uuid)[0].result is None
    scene.clock.seconds = 3
    for message in ('no room', None):
        with scene.database.engine.writer() as session:
            actions.finish(session, actions.LIVE_MIGRATION, migration.uuid, message)
    found = scene.database.actions.list(migration.instance_uuid)[0]
    assert (found.result, found.message) == (actions.ERROR, 'no room')
    assert found.finish_time == conftest.START + datetime.timedelta(seconds=3)


def test_pages_have_the_newest_first(scene: Scene) -> None:
    instance = scene.instance()
    with scene.database.engine.writer() as session:
        from migrator import context

        for number in range(5):
            actions.start(session, context.admin_context(f'req-{number}'), 'act', instance.uuid, None)
    first = scene.database.actions.list(instance.uuid, limit=3)
    rest = scene.database.actions.list(instance.uuid, limit=3, marker=first[-1].request_id)
    assert [one.request_id for one in [*first, *rest]] == [f'req-{number}' for number in (4, 3, 2, 1, 0)]
    with pytest.raises(exception.MarkerNotFound):
        scene.database.actions.list(instance.uuid, marker='req-nobody')


def test_changes_since_and_before(scene: Scene) -> None:
    migration = scene.migration()
    after = conftest.START + datetime.timedelta(seconds=1)
    assert scene.database.actions.list(migration.instance_uuid, changes_since=after) == []
    assert len(scene.database.actions.list(migration.instance_uuid, changes_before=after)) == 1
