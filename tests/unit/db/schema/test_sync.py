# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory

from migrator import exception, executors
from migrator.db import models
from migrator.db.schema import fingerprint, sync
from migrator.db.sql import columns
from migrator.db.sql.engine import Engine
from tests.unit.db import conftest


@pytest.fixture
def empty(tmp_path: pathlib.Path) -> Iterator[Engine]:
    engine = Engine(f'sqlite:///{tmp_path}/empty.sqlite', executors.NativeThreads())
    yield engine
    engine.dispose()


def execute(engine: Engine, statement: str) -> None:
    with engine.sa_engine.begin() as connection:
        connection.execute(sa.text(statement))


def written(engine: Engine) -> list[tuple[str, ...]]:
    """Return all that a file has of tables and indexes, and its version."""
    with engine.sa_engine.connect() as connection:
        made = connection.execute(sa.text('SELECT name, sql FROM sqlite_master ORDER BY name')).all()
        return [*map(tuple, made), (str(sync.version(engine)),)]


def test_an_empty_database_gets_the_schema(empty: Engine) -> None:
    assert sync.version(empty) is None
    assert sync.sync(empty) == sync.head() == sync.version(empty)
    sync.check(empty)


def test_a_second_sync_changes_nothing(empty: Engine) -> None:
    sync.sync(empty)
    before = written(empty)
    assert sync.sync(empty) == sync.head()
    assert written(empty) == before


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


def test_a_database_without_a_schema_is_refused_with_the_command(empty: Engine) -> None:
    with pytest.raises(exception.NoSchema, match="run 'migrator-manage db sync'"):
        sync.check(empty)


@pytest.mark.parametrize('found', ['0001', '0018', 'baseline_000000000000'])
def test_the_schema_of_another_commit_is_refused_and_unchanged(empty: Engine, found: str) -> None:
    """The first two are of the commits that had 18 revisions, the third of an earlier baseline."""
    sync.sync(empty)
    execute(empty, f"UPDATE alembic_version SET version_num = '{found}'")  # noqa: S608 -- a literal
    before = written(empty)
    for act in (sync.check, sync.sync):
        with pytest.raises(exception.OtherSchema) as caught:
            act(empty)
        assert str(caught.value) == (
            'The database cannot be used: another commit of migrator has written it (its schema is '
            f'{found}, and this one needs {sync.head()}), and nothing converts it: let that commit '
            'finish what is in progress there, then name a new database.'
        )
    assert written(empty) == before


def test_the_database_of_another_program_is_refused_and_unchanged(empty: Engine) -> None:
    """Nova has tables of the same names, and a version that alembic has written."""
    for table in ('alembic_version', 'instances', 'migrations', 'services'):
        execute(empty, f'CREATE TABLE {table} (version_num VARCHAR(32))')
    execute(empty, "INSERT INTO alembic_version VALUES ('ad2a2a5d0b2b')")
    before = written(empty)
    for act in (sync.check, sync.sync):
        with pytest.raises(exception.OtherSchema, match='tables of another program, such as alembic_version: name'):
            act(empty)
    assert written(empty) == before


def test_ironics_database_is_that_of_another_program(empty: Engine) -> None:
    for table in ('alembic_version', 'conductors', 'nodes'):
        execute(empty, f'CREATE TABLE {table} (version_num VARCHAR(32))')
    with pytest.raises(exception.OtherSchema, match='tables of another program, such as nodes: name'):
        sync.check(empty)


@pytest.mark.parametrize('written', [('alembic_version',), ('alembic_version', 'cleanups', 'conductors')])
def test_a_schema_that_is_written_in_part_is_no_other_program(empty: Engine, written: tuple[str, ...]) -> None:
    """MariaDB commits each table, the version first."""
    for table in written:
        execute(empty, f'CREATE TABLE {table} (version_num VARCHAR(32))')
    for act in (sync.check, sync.sync):
        with pytest.raises(exception.OtherSchema, match='or is written in part: try again, or else empty it'):
            act(empty)


def test_a_database_with_two_versions_is_refused_in_one_sentence(empty: Engine) -> None:
    execute(empty, 'CREATE TABLE alembic_version (version_num VARCHAR(32))')
    for version in ('one', 'two'):
        execute(empty, f"INSERT INTO alembic_version VALUES ('{version}')")  # noqa: S608 -- a literal
    for act in (sync.version, sync.check, sync.sync):
        with pytest.raises(exception.OtherSchema, match='it cannot be read'):
            act(empty)


def test_a_file_that_is_no_database_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / 'text').write_text('no database, but long enough for a header of one ........')
    engine = Engine(f'sqlite:///{tmp_path}/text', executors.NativeThreads(), max_retries=0)
    with pytest.raises(exception.OtherSchema, match=r'it cannot be read .*: name another one'):
        sync.check(engine)


CHANGES: dict[str, Callable[[sa.Table], object]] = {
    'a new column': lambda table: table.append_column(sa.Column('new', sa.Integer())),
    'a longer text': lambda table: setattr(table.c.name.type, 'length', 20),
    'a column that may be null': lambda table: setattr(table.c.name, 'nullable', False),
    'a key that counts': lambda table: setattr(table.c.id, 'autoincrement', False),
    'another type': lambda table: setattr(table.c.name, 'type', sa.String(10)),
    'a default': lambda table: setattr(table.c.name, 'server_default', sa.DefaultClause('x')),
    'an index': lambda table: sa.Index('ix', table.c.name),
    'a unique column': lambda table: table.append_constraint(sa.UniqueConstraint('name')),
}


@pytest.mark.parametrize('change', CHANGES)
def test_each_change_of_a_table_changes_the_name_of_the_schema(change: str) -> None:
    def name(changed: Callable[[sa.Table], object] = lambda table: None) -> str:
        metadata = sa.MetaData()
        both = sa.Column('id', sa.Integer(), primary_key=True), sa.Column('name', columns.Text(10))
        changed(sa.Table('table', metadata, *both))
        return fingerprint.of(metadata)

    assert name() == name()
    assert name(CHANGES[change]) != name()


def test_the_last_revision_is_the_schema_that_is_needed() -> None:
    config = Config()
    config.set_main_option('script_location', str(pathlib.Path(sync.__file__).parent))
    assert ScriptDirectory.from_config(config).get_heads() == [sync.head()]


def test_each_process_finds_the_same_name() -> None:
    program = 'from migrator.db.schema import fingerprint, sync; print(sync.head())'
    found = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == sync.head()


def test_a_database_that_is_away_is_unreachable() -> None:
    engine = Engine('sqlite:////nowhere/at/all/migrator.sqlite', executors.NativeThreads(), max_retries=0)
    for act in (sync.version, sync.check, sync.sync):
        with pytest.raises(exception.DatabaseUnreachable):
            act(engine)
