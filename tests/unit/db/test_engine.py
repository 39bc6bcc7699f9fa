# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import pathlib
import sqlite3

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception

from migrator import exception, executors
from migrator.db import engine as engines
from tests.unit.db import conftest


class TestUnreachable:
    @pytest.mark.parametrize(
        'connection',
        [
            'sqlite:////nowhere/at/all/migrator.sqlite',
            'postgresql+psycopg2://migrator:secret@127.0.0.1:1/migrator',
        ],
    )
    def test_a_missing_database_is_unreachable_without_a_password_in_the_error(self, connection: str) -> None:
        if 'psycopg2' in connection:
            pytest.importorskip('psycopg2')
        engine = engines.Engine(connection, executors.NativeThreads(), max_retries=0)
        with pytest.raises(exception.DatabaseUnreachable) as caught, engine.reader() as session:
            session.execute(sa.text('SELECT 1'))
        assert 'secret' not in str(caught.value)
        assert '\n' not in str(caught.value)

    def test_a_file_that_is_not_a_database_is_never_a_bare_sqlite_error(self, tmp_path: pathlib.Path) -> None:
        file = tmp_path / 'broken.sqlite'
        file.write_text('this is not a database, but a text that is long enough to be read as a header' * 20)
        engine = engines.Engine(f'sqlite:///{file}', executors.NativeThreads())
        with pytest.raises((exception.DatabaseUnreachable, db_exception.DBError)), engine.reader() as session:
            session.execute(sa.text('SELECT 1 FROM migrations'))

    def test_a_locked_database_is_unreachable(self, scene: conftest.Scene) -> None:
        engine = scene.database.engine
        other = sqlite3.connect(scene.connection.removeprefix('sqlite:///'))
        other.execute('BEGIN IMMEDIATE')
        try:
            with pytest.raises(exception.DatabaseUnreachable) as caught:
                _write_without_patience(engine)
            assert 'locked' in str(caught.value)
        finally:
            other.close()

    def test_a_read_only_database_can_be_read_and_the_error_says_why(self, scene: conftest.Scene) -> None:
        conductor = scene.conductor()
        engine = scene.database.engine
        sa.event.listen(engine.sa_engine, 'connect', lambda connection, _: connection.execute('PRAGMA query_only = ON'))
        engine.dispose()
        with pytest.raises(exception.DatabaseReadOnly, match='The database is read-only') as caught:
            scene.conductor('conductor2')
        assert isinstance(caught.value, exception.DatabaseUnreachable)
        assert scene.database.conductors.server_of(conductor) == 'conductor1'

    @pytest.mark.parametrize(
        ('number', 'text'),
        [
            (1290, 'The MariaDB server is running with the --read-only option so it cannot execute this statement'),
            (1290, 'Der MariaDB-Server laeuft mit der Option --read-only und kann diese Anweisung nicht ausfuehren'),
            (1792, 'Cannot execute statement in a READ ONLY transaction'),
            (1836, 'Running in read-only mode'),
        ],
    )
    def test_a_refusal_of_a_read_only_mariadb_is_recognised(self, number: int, text: str) -> None:
        with pytest.raises(exception.DatabaseReadOnly), engines.translated():
            raise db_exception.DBError(sa.exc.InternalError('', {}, Exception(number, text)))

    def test_a_refusal_by_another_option_of_mariadb_is_not_read_only(self) -> None:
        text = 'The MariaDB server is running with the --skip-grant-tables option so it cannot execute this statement'
        with pytest.raises(db_exception.DBError), engines.translated():
            raise db_exception.DBError(sa.exc.InternalError('', {}, Exception(1290, text)))

    def test_a_duplicate_and_a_programming_error_are_not_translated(self, scene: conftest.Scene) -> None:
        scene.conductor()
        with pytest.raises(db_exception.DBDuplicateEntry), scene.database.engine.writer() as session:
            session.execute(sa.text('INSERT INTO conductors SELECT * FROM conductors'))


def _write_without_patience(engine: engines.Engine) -> None:
    with engine.writer() as session:
        session.execute(sa.text('PRAGMA busy_timeout = 1'))
        session.execute(sa.text("UPDATE instances SET name = ''"))


def _write_and_raise(engine: engines.Engine) -> None:
    with engine.writer() as session:
        session.execute(sa.text("UPDATE instances SET name = 'other'"))
        raise ZeroDivisionError


class TestTransactions:
    def test_a_block_that_raises_writes_nothing(self, scene: conftest.Scene) -> None:
        instance = scene.instance()
        with pytest.raises(ZeroDivisionError):
            _write_and_raise(scene.database.engine)
        assert scene.database.instances.get(instance.uuid).name == instance.name

    def test_each_transaction_has_a_boundary_before_and_after_it(self, scene: conftest.Scene) -> None:
        seen: list[str] = []
        scene.database.engine.boundary = seen.append
        scene.instance()
        assert seen == ['begin', 'committed']

    def test_a_failed_transaction_was_begun_and_not_committed(self, scene: conftest.Scene) -> None:
        seen: list[str] = []
        scene.database.engine.boundary = seen.append
        with pytest.raises(exception.InstanceNotFound):
            scene.database.instances.delete('nobody')
        assert seen == ['begin']

    def test_a_deadlock_is_retried(self) -> None:
        tries: list[int] = []

        @engines.retried
        def transaction() -> str:
            tries.append(1)
            if len(tries) < 3:
                raise db_exception.DBDeadlock
            return 'written'

        assert transaction() == 'written'
        assert len(tries) == 3

    def test_a_deadlock_on_every_try_is_unreachable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr('oslo_db.api.time.sleep', lambda seconds: None)
        tries: list[int] = []

        @engines.retried
        def transaction() -> None:
            tries.append(1)
            raise db_exception.DBDeadlock(sqlite3.OperationalError('deadlock detected\nof UPDATE secret'))

        with pytest.raises(exception.DatabaseUnreachable) as caught:
            transaction()
        assert len(tries) == 6
        assert 'let other transactions go first each time' in str(caught.value)
        assert 'deadlock detected' in str(caught.value)
        assert 'secret' not in str(caught.value)

    def test_a_deadlock_of_a_reader_is_unreachable(self, scene: conftest.Scene) -> None:
        with pytest.raises(exception.DatabaseUnreachable), scene.database.engine.reader():
            raise db_exception.DBDeadlock

    def test_readers_see_the_last_commit_during_a_write(self, scene: conftest.Scene) -> None:
        instance = scene.instance()
        with scene.database.engine.writer() as session:
            session.execute(sa.text("UPDATE instances SET name = 'other'"))
            assert scene.database.instances.get(instance.uuid).name == instance.name
        assert scene.database.instances.get(instance.uuid).name == 'other'
