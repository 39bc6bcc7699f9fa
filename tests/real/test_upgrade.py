# SPDX-License-Identifier: Apache-2.0

"""The upgrade of a schema of an earlier release, with rows in it."""

import datetime
import pathlib

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from migrator import exception
from migrator.db import models
from migrator.db.schema import sync

NEW_IN_MIGRATIONS = {'drain', 'priority', 'confirm_requested_at', 'revert_requested_at', 'old_flavor', 'new_flavor'}
DRAINS = ('drains', 'drain_members', 'drain_log')


def upgrade(database, revision):
    config = Config()
    config.set_main_option('script_location', str(pathlib.Path(sync.__file__).parent))
    with database.engine.sa_engine.begin() as connection:
        config.attributes['connection'] = connection
        command.upgrade(config, revision)


def test_an_upgrade_adds_columns_and_keeps_rows_and_lists_them_by_their_last_change(url, new_database):
    made = new_database(url)
    upgrade(made, '0006')
    with pytest.raises(exception.SchemaTooOld, match='0006'):
        sync.check(made.engine)
    early, late = (datetime.datetime(2026, 1, day, tzinfo=datetime.UTC) for day in (1, 2))
    times = {'new': (late, None), 'changed': (early, late), 'old': (early, None), 'done': (early, early)}
    old_rows = {table: [old_row(table, name, *at) for name, at in times.items()] for table in OLD_ROWS}
    with made.engine.writer() as session:
        for table, rows in old_rows.items():
            session.execute(sa.insert(table).values(rows))
    columns = columns_of(made)

    assert sync.sync(made.engine) == sync.head()

    after = columns_of(made)
    new = {'flavors', 'guest_definitions', 'guest_differences', 'notified', 'slot_lock', *DRAINS}
    assert after.keys() - columns.keys() == new
    added = {table: {name for name, *_ in after[table] - found} for table, found in columns.items()}
    wanted = {'instances': {'changed_at'}, 'migrations': {'changed_at', *NEW_IN_MIGRATIONS}, 'services': {'slots'}}
    wanted['compute_nodes'] = {'cold_migrations'}
    assert {table: names for table, names in added.items() if names} == wanted
    assert all(found <= after[table] for table, found in columns.items())
    with made.engine.reader() as session:
        for table, rows in old_rows.items():
            wanted = sorted((row['uuid'], row['created_at'], row['updated_at']) for row in rows)
            query = sa.select(table.c.uuid, table.c.created_at, table.c.updated_at).order_by(table.c.uuid)
            assert [tuple(row) for row in session.execute(query)] == wanted
    for each in (made.instances, made.migrations):
        assert {one.uuid for one in each.list(changes_since=late)} == {'new', 'changed'}
        assert {one.uuid for one in each.list(changes_since=early)} == set(times)
    made.services.report('source', 'nova-compute', 1)
    assert list(made.definitions.outdated(1, 60, 10)['source']) == sorted(times, key=list(times).index)


def test_the_steps_of_a_migration_in_progress_become_its_log(url, new_database):
    made = new_database(url)
    upgrade(made, '0004')
    at = datetime.datetime(2026, 1, 1, 0, 0, 0, 5, datetime.UTC)
    written = {'owner': 'c1', 'epoch': 2, 'attempt': 1}
    history = [{'status': 'preparing', 'at': at.isoformat(), 'owner': 'c1', 'epoch': 2}]
    moving = OLD_ROWS[models.MIGRATIONS] | written | {'status': 'preparing', 'in_progress_instance_uuid': 'new'}
    moving |= {'uuid': 'm1', 'project_id': 'blue', 'user_id': 'ada', 'hidden': False, 'force': False}
    moving |= {'disk_over_commit': False, 'history': history, 'created_at': at}
    step = {'saga': 'm1', 'step': 'check', 'direction': 'do', 'state': 'intent', 'tries': 1, 'started_at': at} | written
    with made.engine.writer() as session:
        for name, values in {'migrations': moving, 'saga_steps': step | {'input': {'from': 'source'}}}.items():
            kinds = {'history': sa.JSON(), 'input': sa.JSON(), 'created_at': models.UTCDateTime()}
            kinds['started_at'] = models.UTCDateTime()
            table = sa.table(name, *(sa.column(column, kinds.get(column)) for column in values))
            session.execute(sa.insert(table).values(values))

    sync.sync(made.engine)

    found = [(one.kind, one.step, one.at, one.payload) for one in made.migrations.read_log('m1')]
    assert found == [
        ('status', None, at, {'status': 'preparing'}),
        ('intent', 'check', at, {'input': {'from': 'source'}}),
    ]
    assert made.migrations.get('m1').log_seq == 2
    (taken,) = made.takeovers.adopt(['m1'], 'c2').owned
    assert [entry.kind for entry in taken.entries] == ['status', 'intent']


@pytest.mark.parametrize('server', ['mariadb'], indirect=True)
def test_tables_that_ignored_the_case_of_texts_are_converted(server_url, new_database):
    made = new_database(server_url)
    with made.engine.writer() as session:
        session.exec_driver_sql('ALTER TABLE services CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci')
    made.services.report('host', 'nova-compute', 1)
    made.services.report('Host', 'nova-compute', 1)
    assert [one.host for one in made.services.list()] == ['host']
    sync.sync(made.engine)
    made.services.report('Host', 'nova-compute', 1)
    assert [one.host for one in made.services.list()] == ['host', 'Host']


OLD_ROWS = {
    models.INSTANCES: {
        'name': 'vm', 'flavor': {'name': 'm1'}, 'host': 'source', 'node': 'source', 'vm_state': 'active',
        'power_state': 1,
    },
    models.MIGRATIONS: {
        'instance_uuid': 'new', 'migration_type': 'live-migration', 'status': 'completed', 'source_compute': 'source',
        'source_node': 'source', 'strategy': 'migration-owned',
    },
}  # fmt: skip


def old_row(table, name, created_at, updated_at):
    times = {'created_at': created_at, 'updated_at': updated_at}
    return {'uuid': name, 'project_id': 'blue', 'user_id': 'ada', **times, **OLD_ROWS[table]}


def columns_of(database):
    """Return table -> its columns, each with its type and whether it may be null."""
    inspector = sa.inspect(database.engine.sa_engine)
    return {
        table: {(one['name'], str(one['type']), one['nullable']) for one in inspector.get_columns(table)}
        for table in inspector.get_table_names()
    }
