# SPDX-License-Identifier: Apache-2.0

"""The upgrade of a schema of the release before, with rows in it."""

import datetime
import pathlib

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from migrator import exception
from migrator.db import models
from migrator.db.schema import sync


def test_an_upgrade_adds_columns_and_keeps_rows_and_lists_them_by_their_last_change(url, new_database):
    made = new_database(url)
    config = Config()
    config.set_main_option('script_location', str(pathlib.Path(sync.__file__).parent))
    with made.engine.sa_engine.begin() as connection:
        config.attributes['connection'] = connection
        command.upgrade(config, '0006')
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
    assert after.keys() - columns.keys() == {'guest_definitions', 'slot_lock'}
    added = {table: {name for name, *_ in after[table] - found} for table, found in columns.items()}
    wanted = {'instances': {'changed_at'}, 'migrations': {'changed_at'}, 'services': {'slots'}}
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
    assert made.definitions.outdated(1, 60, 10) == {'source': sorted(times, key=list(times).index)}


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
