# SPDX-License-Identifier: Apache-2.0

"""The schema is upgraded while migrations are in progress and every conductor is stopped."""

import json
import sqlite3

import pytest

from migrator import executors
from migrator.db.engine import Engine
from migrator.db.schema import sync
from tests.functional import migration_requests, state
from tests.functional.faults import LONG, faults, migrate

pytestmark = pytest.mark.simulated(reason='it rewrites the database between two conductors')

CLEANUPS = """
CREATE TABLE host_debts (
    id INTEGER NOT NULL PRIMARY KEY, host VARCHAR(255) NOT NULL, migration_uuid VARCHAR(36) NOT NULL,
    instance_uuid VARCHAR(36) NOT NULL, step VARCHAR(64) NOT NULL, reason TEXT NOT NULL, alarm TEXT, owner VARCHAR(36),
    epoch INTEGER NOT NULL, input JSON, created_at DATETIME NOT NULL, tenure INTEGER DEFAULT '0' NOT NULL,
    CONSTRAINT uniq_host_debts UNIQUE (host, migration_uuid, step)
);
INSERT INTO host_debts (id, host, migration_uuid, instance_uuid, step, reason, alarm, owner, epoch, input, created_at,
    tenure) SELECT id, host, migration_uuid, instance_uuid, step, reason, alarm, owner, epoch, input, created_at, tenure
    FROM cleanups;
DROP TABLE cleanups;
CREATE INDEX ix_host_debts_host ON host_debts (host);
CREATE INDEX ix_host_debts_instance_uuid ON host_debts (instance_uuid);
"""
INDEXES = (
    'ix_services_version', 'ix_services_forced_down', 'ix_compute_nodes_in_placement', 'ix_instances_changed_at',
    'ix_instances_newest', 'ix_migrations_changed_at', 'ix_migrations_newest',
)  # fmt: skip
STEPS = """
CREATE TABLE saga_steps (
    id INTEGER PRIMARY KEY AUTOINCREMENT, saga VARCHAR(36) NOT NULL, step VARCHAR(64) NOT NULL,
    direction VARCHAR(8) NOT NULL, state VARCHAR(16) NOT NULL, epoch INTEGER NOT NULL, owner VARCHAR(36),
    attempt INTEGER NOT NULL, tries INTEGER NOT NULL, input JSON, result JSON, started_at DATETIME NOT NULL,
    ended_at DATETIME, first_owner VARCHAR(36), first_epoch INTEGER,
    CONSTRAINT uniq_saga_steps UNIQUE (saga, attempt, step, direction)
)
"""


def stored(moment):
    return None if moment is None else moment.strftime('%Y-%m-%d %H:%M:%S.%f')


def upgrade(file):
    """Upgrade the schema of a database, and return its version."""
    engine = Engine(f'sqlite:///{file}', executors.NativeThreads())
    try:
        return sync.sync(engine)
    finally:
        engine.dispose()


def downgrade(cloud):
    """Write the rows as the release before the log has them; return the file of the database."""
    file = cloud.backend.directory / 'migrator.sqlite'
    connection = sqlite3.connect(file)
    connection.executescript(CLEANUPS)
    connection.execute(STEPS)
    connection.execute("ALTER TABLE migrations ADD COLUMN history JSON NOT NULL DEFAULT '[]'")
    for migration in cloud.migrations():
        history = json.dumps(cloud.history_of(migration))
        connection.execute('UPDATE migrations SET history = ? WHERE uuid = ?', (history, migration.uuid))
        for step in cloud.database.migrations.steps(migration.uuid):
            connection.execute(
                'INSERT INTO saga_steps (saga, step, direction, state, epoch, owner, attempt, tries, input, result,'
                ' started_at, ended_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)',
                (
                    migration.uuid, step.step, step.direction, step.state, step.epoch, step.owner, step.attempt,
                    step.tries, json.dumps(step.input), json.dumps(step.result), stored(step.started_at),
                    stored(step.ended_at),
                ),
            )  # fmt: skip
    connection.execute('DROP TABLE saga_log')
    connection.execute('DROP TABLE guest_definitions')
    connection.execute('DROP TABLE slot_lock')
    for table in ('drains', 'drain_members', 'drain_log', 'guest_differences', 'flavors', 'notified'):
        connection.execute(f'DROP TABLE {table}')
    for column in ('drain', 'priority', 'confirm_requested_at', 'revert_requested_at', 'old_flavor', 'new_flavor'):
        connection.execute(f'ALTER TABLE migrations DROP COLUMN {column}')
    connection.execute('ALTER TABLE services DROP COLUMN slots')
    connection.execute('ALTER TABLE compute_nodes DROP COLUMN cold_migrations')
    connection.execute('ALTER TABLE migrations DROP COLUMN log_seq')
    for index in INDEXES:
        connection.execute(f'DROP INDEX {index}')
    for table in ('instances', 'migrations'):
        connection.execute(f'ALTER TABLE {table} DROP COLUMN changed_at')
    connection.execute("UPDATE alembic_version SET version_num = '0004'")
    connection.commit()
    connection.close()
    return file


@pytest.mark.parametrize('status', ['queued', 'running', 'post-migrating'])
def test_a_migration_in_progress_goes_on_after_the_upgrade(cloud, status):
    if status == 'queued':
        ahead = cloud.boot('ahead', 'host1')
        faults(cloud, 'host1').stall('copying', instance_uuid=ahead.uuid, sticky=True)
        migrate(cloud, ahead, 'host2')
        state.when(cloud, ahead, 'running')
    instance = cloud.boot('one', 'host1')
    phase = 'post_live_migration_at_source' if status == 'post-migrating' else 'copying'
    faults(cloud, 'host1').stall(phase, instance_uuid=instance.uuid, sticky=True)
    migrate(cloud, instance, 'host2')
    state.when(cloud, instance, status)
    state.kill(cloud, 'conductor1')
    (migration,) = cloud.migrations(instance)
    steps, history = cloud.database.migrations.steps(migration.uuid), cloud.history_of(migration)

    file = downgrade(cloud)
    assert upgrade(file) == sync.head()

    assert cloud.database.migrations.steps(migration.uuid) == steps
    assert cloud.history_of(migration) == history
    cloud.start_conductor('conductor2')
    migration_requests.go_on(cloud)
    cloud.wait(LONG)
    state.completed(cloud, instance, 'host2')
    seqs = [entry.seq for entry in cloud.database.migrations.read_log(migration.uuid)]
    assert seqs == list(range(1, len(seqs) + 1))


def test_deferred_cleanups_are_kept_by_the_upgrade(cloud):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host1').stall('post_live_migration_at_source', instance_uuid=instance.uuid, sticky=True)
    migrate(cloud, instance, 'host2')
    state.when(cloud, instance, 'post-migrating')
    state.kill(cloud, 'host1')
    cloud.wait(LONG)
    before = cloud.database.cleanups.list()
    assert [(one.host, one.step) for one in before] == [('host1', 'post_live_migration_at_source')]

    file = downgrade(cloud)
    upgrade(file)

    assert cloud.database.cleanups.list() == before
    with sqlite3.connect(file) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE tbl_name = 'cleanups'")}
    assert {'cleanups', 'ix_cleanups_host', 'ix_cleanups_instance_uuid'} <= names
    assert not {name for name in names if 'debts' in name}
