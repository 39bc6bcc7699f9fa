# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from migrator import exception, executors
from migrator.db import models
from migrator.db.engine import Engine
from migrator.db.schema import sync
from tests.unit.db import conftest


@pytest.fixture
def empty(tmp_path: pathlib.Path) -> Iterator[Engine]:
    engine = Engine(f'sqlite:///{tmp_path}/empty.sqlite', executors.NativeThreads())
    yield engine
    engine.dispose()


def test_an_empty_database_is_upgraded_to_the_newest_schema(empty: Engine) -> None:
    assert sync.version(empty) is None
    assert sync.sync(empty) == sync.head() == sync.version(empty)
    sync.check(empty)


def upgrade(engine: Engine, revision: str) -> None:
    config = Config()
    config.set_main_option('script_location', str(pathlib.Path(sync.__file__).parent))
    with engine.sa_engine.begin() as connection:
        config.attributes['connection'] = connection
        command.upgrade(config, revision)


def columns_of(engine: Engine, table: str) -> set[str]:
    return {column['name'] for column in sa.inspect(engine.sa_engine).get_columns(table)}


def test_a_database_with_the_first_revision_of_drains_gets_the_later_columns(empty: Engine) -> None:
    upgrade(empty, '0011')
    before = {table: columns_of(empty, table) for table in ('drains', 'guest_definitions')}
    assert sync.sync(empty) == sync.head()
    assert {table: columns_of(empty, table) - known for table, known in before.items()} == {
        'drains': {'cancel_requested_by', 'include_stopped', 'priorities'},
        'guest_definitions': {'immovable'},
    }


def test_no_revision_since_0007_drops_or_changes_what_the_release_before_uses() -> None:
    taking = re.compile(r'\b(drop_(table|column|constraint)|rename_table|alter_column|batch_alter_table|execute)\b')
    revisions = sorted((pathlib.Path(sync.__file__).parent / 'versions').glob('0*.py'))
    taken = [revision.name for revision in revisions if taking.search(revision.read_text())]
    assert taken == ['0005_saga_log.py', '0006_cleanups.py']


def test_a_second_sync_changes_nothing(empty: Engine) -> None:
    sync.sync(empty)
    assert sync.sync(empty) == sync.head()


def test_the_schema_that_is_written_is_the_one_that_the_models_describe(scene: conftest.Scene) -> None:
    inspector = sa.inspect(scene.database.engine.sa_engine)
    assert set(models.Base.metadata.tables) == set(inspector.get_table_names()) - {'alembic_version'}
    for name, table in models.Base.metadata.tables.items():
        written = {column['name']: column for column in inspector.get_columns(name)}
        assert set(written) == {column.name for column in table.columns}, name
        for column in table.columns:
            assert written[column.name]['nullable'] == column.nullable, (name, column.name)
        unique = {tuple(one['column_names']) for one in inspector.get_unique_constraints(name)}
        unique |= {tuple(one['column_names']) for one in inspector.get_indexes(name) if one['unique']}
        for column in table.columns:
            if column.unique:
                assert (column.name,) in unique, (name, column.name)


def test_an_empty_schema_is_too_old(empty: Engine) -> None:
    with pytest.raises(exception.SchemaTooOld) as caught:
        sync.check(empty)
    assert 'db sync' in str(caught.value)


def test_a_schema_of_a_later_release_is_refused_and_unchanged(empty: Engine) -> None:
    sync.sync(empty)
    with empty.sa_engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    for act in (sync.check, sync.sync):
        with pytest.raises(exception.SchemaTooNew) as caught:
            act(empty)
        assert '9999' in str(caught.value)
    assert sync.version(empty) == '9999'


def test_a_database_that_is_away_is_unreachable() -> None:
    engine = Engine('sqlite:////nowhere/at/all/migrator.sqlite', executors.NativeThreads(), max_retries=0)
    for act in (sync.version, sync.check, sync.sync):
        with pytest.raises(exception.DatabaseUnreachable):
            act(engine)
