# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import datetime
import uuid

import pytest
import sqlalchemy as sa

from migrator import context, exception, executors
from migrator.db import actions, migrations, models
from migrator.db.api import Database
from migrator.objects import instance, migration
from tests import templates
from tests.reasons import stuck_for
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
        actions.finish(session, migration.uuid, {'another': None})
    assert scene.database.actions.list(migration.instance_uuid)[0].result is None
    scene.clock.seconds = 3
    for message in ('no room', None):
        with scene.database.engine.writer() as session:
            actions.finish(session, migration.uuid, {actions.LIVE_MIGRATION: message})
    found = scene.database.actions.list(migration.instance_uuid)[0]
    assert (found.result, found.message) == (actions.ERROR, 'no room')
    assert found.finish_time == conftest.START + datetime.timedelta(seconds=3)


@pytest.mark.parametrize(
    ('fields', 'result', 'message'),
    [
        ({'status': 'done', 'outcome': 'forward'}, 'Success', None),
        ({'status': 'failed', 'failure': 'no room'}, 'Error', 'no room'),
        ({'status': 'error'}, 'Error', 'The migration ended error.'),
    ],
)
def test_end_of_an_evacuation_finishes_its_action(
    scene: Scene, fields: dict[str, str], result: str, message: str | None
) -> None:
    instance, owner = scene.instance(vm_state='error'), scene.conductor()
    wanted = scene.wanted(instance, migration_type='evacuation')
    states = {'task_state': 'rebuilding', 'vm_states': ['error']}
    asked = context.admin_context('req-one')
    scene.database.migrations.accept(asked, wanted, actions.EVACUATE, **states)
    known = scene.adopt(wanted.uuid, owner).migration
    known, _ = scene.database.migrations.commit(known, migrations.Write(fields={'status': 'preparing'}))
    assert scene.database.actions.get(instance.uuid, 'req-one').finish_time is None
    scene.clock.seconds = 3
    scene.database.migrations.commit(known, migrations.Write(fields=dict(fields)))
    found = scene.database.actions.get(instance.uuid, 'req-one')
    assert (found.action, found.result, found.message) == ('evacuate', result, message)
    assert found.finish_time == conftest.START + datetime.timedelta(seconds=3)
    assert scene.database.instances.get(instance.uuid).task_state is None


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
        scene.database.actions.list(instance.uuid, marker='req-unknown')


def test_changes_since_and_before(scene: Scene) -> None:
    migration = scene.migration()
    after = conftest.START + datetime.timedelta(seconds=1)
    assert scene.database.actions.list(migration.instance_uuid, changes_since=after) == []
    assert len(scene.database.actions.list(migration.instance_uuid, changes_before=after)) == 1


RUNNING = ['running']


@pytest.fixture
def database(tmp_path):
    made = Database(f'sqlite:///{templates.database(tmp_path)}', executors.NativeThreads())
    yield made
    made.close()


@pytest.fixture
def ada():
    return context.RequestContext(user_id='ada', project_id='blue', overwrite=False)


@pytest.fixture
def running(database, ada):
    guest = instance.Instance(
        uuid=str(uuid.uuid4()), name='vm', project_id='blue', user_id='ada', host='source', node='source',
        flavor=instance.Flavor(name='m1'),
    )  # fmt: skip
    database.instances.create(guest)
    one = migration.Migration(
        uuid=str(uuid.uuid4()), instance_uuid=guest.uuid, project_id='blue', user_id='ada', source_compute='source',
        source_node='source',
    )  # fmt: skip
    database.migrations.accept(ada, one, 'live-migration')
    change(database, one, status='running')
    return database.migrations.get(one.uuid)


def change(database, one, **values):
    table = models.MIGRATIONS
    with database.engine.writer() as session:
        session.execute(sa.update(table).where(table.c.uuid == one.uuid).values(**values))


REQUESTS = pytest.mark.parametrize(
    ('method', 'column', 'action'),
    [
        ('request_abort', 'abort_requested_at', 'live_migration_cancel'),
        ('request_force_complete', 'force_complete_requested_at', 'live_migration_force_complete'),
    ],
)


@REQUESTS
def test_a_request_is_written_once_with_its_action(database, ada, running, method, column, action):
    request = getattr(database.requests, method)
    assert request(ada, running, RUNNING) is True
    first = getattr(database.migrations.get(running.uuid), column)
    assert first is not None
    assert request(ada, running, RUNNING) is False
    assert getattr(database.migrations.get(running.uuid), column) == first
    assert [each.action for each in database.actions.list(running.instance_uuid)] == [action, 'live-migration']


@REQUESTS
@pytest.mark.parametrize('status', ['post-migrating', 'completed'])
def test_a_request_in_a_later_status_is_refused_and_not_written(database, ada, running, method, column, action, status):
    change(database, running, status=status)
    with pytest.raises(exception.InvalidMigrationState) as caught:
        getattr(database.requests, method)(ada, running, RUNNING)
    assert status in caught.value.message
    assert getattr(database.migrations.get(running.uuid), column) is None
    assert len(database.actions.list(running.instance_uuid)) == 1


@REQUESTS
def test_a_repeated_request_changes_nothing_until_the_end(database, ada, running, method, column, action):
    request = getattr(database.requests, method)
    request(ada, running, RUNNING)
    change(database, running, status='post-migrating')
    assert request(ada, running, RUNNING) is False
    change(database, running, status='cancelled')
    with pytest.raises(exception.InvalidMigrationState):
        request(ada, running, RUNNING)


def test_an_abort_request_has_its_user(database, ada, running):
    database.requests.request_abort(ada, running, RUNNING)
    assert database.migrations.get(running.uuid).abort_requested_by == 'ada'


def test_write_of_owner_that_missed_abort_is_refused(database, ada, running):
    from migrator.db import migrations

    change(database, running, owner='other', epoch=1)
    known = database.migrations.get(running.uuid)
    database.requests.request_abort(ada, running, RUNNING)
    with pytest.raises(exception.NotOwner):
        database.migrations.commit(known, migrations.Write(fields={'attempt': 2}))


# --- a stuck migration -----------------------------------------------------------------------------------------------


@pytest.fixture
def stuck(database, running):
    change(database, running, **stuck_for('odd'))
    return database.migrations.get(running.uuid)


def test_a_retry_request_of_a_stuck_migration_has_its_user(database, stuck):
    database.requests.request_retry(stuck, 'ada')
    found = database.migrations.get(stuck.uuid)
    assert found.retry_requested_at is not None
    assert (found.retry_requested_by, found.stuck_reason) == ('ada', 'odd')


def test_a_stuck_migration_can_be_abandoned_once_on_one_of_its_hosts(database, stuck):
    with pytest.raises(exception.NotStuck):
        database.requests.request_abandon(stuck, 'elsewhere', 'ada')
    database.requests.request_abandon(stuck, 'source', 'ada')
    first = database.migrations.get(stuck.uuid)
    assert (first.abandon_guest_on, first.abandon_requested_by) == ('source', 'ada')
    database.requests.request_abandon(stuck, 'source', 'bob')
    assert database.migrations.get(stuck.uuid) == first
    with pytest.raises(
        exception.AbandonedOtherwise, match=r'on source already, as ada asked \d+ s ago: wait for it to end'
    ):
        database.requests.request_abandon(stuck, 'destination', 'bob')
    with pytest.raises(
        exception.NotStuck, match=r'is being abandoned already, with the guest on source, as requested \d+ s ago'
    ):
        database.requests.request_retry(stuck, 'bob')


@pytest.mark.parametrize(('status', 'words'), [('running', 'it is running'), ('error', r'it ended error \d+ s ago')])
def test_a_request_for_a_migration_that_is_not_stuck_is_refused(database, running, status, words):
    change(database, running, status=status)
    before = database.migrations.get(running.uuid)
    for request in (
        lambda: database.requests.request_retry(running, 'ada'),
        lambda: database.requests.request_abandon(running, 'source', 'ada'),
    ):
        with pytest.raises(exception.NotStuck, match=words):
            request()
    assert database.migrations.get(running.uuid) == before


def test_a_migration_that_waits_for_its_user_can_be_abandoned_but_not_retried(database, running):
    change(database, running, status='finished')
    with pytest.raises(exception.NotStuck, match='it is finished'):
        database.requests.request_retry(running, 'ada')
    database.requests.request_abandon(running, 'source', 'ada')
    assert database.migrations.get(running.uuid).abandon_guest_on == 'source'


def test_an_owner_that_clears_a_retry_request_keeps_a_later_one(database, stuck):
    database.requests.request_retry(stuck, 'ada')
    known = database.migrations.get(stuck.uuid)
    change(database, stuck, retry_requested_at=known.retry_requested_at + datetime.timedelta(seconds=1))
    with pytest.raises(exception.NotOwner):
        database.migrations.commit(known, migrations.Write(fields={'retry_requested_at': None}))
    assert database.migrations.get(stuck.uuid).retry_requested_at > known.retry_requested_at
