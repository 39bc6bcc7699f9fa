# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import os
import pathlib
import sqlite3
import sys

import pytest
import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import exception as db_exception
from oslo_db import options as oslo_db_options

from migrator import exception, executors
from migrator.db.sql.engine import (
    Engine,
    engine_from_conf,
    retried,
    translated,
)
from migrator.db.sql.options import register_opts, without_password
from migrator.db.sql.watching import watch
from tests import forked
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
        engine = Engine(connection, executors.NativeThreads(), max_retries=0)
        with pytest.raises(exception.DatabaseUnreachable) as caught, engine.reader() as session:
            session.execute(sa.text('SELECT 1'))
        assert 'secret' not in str(caught.value)
        assert '\n' not in str(caught.value)

    def test_a_file_that_is_not_a_database_is_never_a_bare_sqlite_error(self, tmp_path: pathlib.Path) -> None:
        file = tmp_path / 'broken.sqlite'
        file.write_text('this is not a database, but a text that is long enough to be read as a header' * 20)
        engine = Engine(f'sqlite:///{file}', executors.NativeThreads())
        with pytest.raises((exception.DatabaseUnreachable, db_exception.DBError)), engine.reader() as session:
            session.execute(sa.text('SELECT 1 FROM migrations'))

    def test_a_locked_database_is_unreachable(self, scene: conftest.Scene) -> None:
        engine = scene.database.engine
        _without_patience(engine)
        other = sqlite3.connect(scene.connection.removeprefix('sqlite:///'))
        other.execute('BEGIN IMMEDIATE')
        try:
            with pytest.raises(exception.DatabaseUnreachable, match='locked'), engine.writer():
                pass
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
        with pytest.raises(exception.DatabaseReadOnly), translated():
            raise db_exception.DBError(sa.exc.InternalError('', {}, Exception(number, text)))

    def test_a_refusal_by_another_option_of_mariadb_is_not_read_only(self) -> None:
        text = 'The MariaDB server is running with the --skip-grant-tables option so it cannot execute this statement'
        with pytest.raises(db_exception.DBError), translated():
            raise db_exception.DBError(sa.exc.InternalError('', {}, Exception(1290, text)))

    def test_a_lock_that_mariadb_did_not_get_in_time_is_not_waited_for_again(self) -> None:
        text = 'Lock wait timeout exceeded; try restarting transaction'
        tries: list[int] = []

        @retried
        def transaction() -> None:
            tries.append(1)
            with translated():
                raise db_exception.DBDeadlock(sa.exc.OperationalError('', {}, Exception(1205, text)))

        with pytest.raises(exception.DatabaseUnreachable, match=text):
            transaction()
        assert len(tries) == 1

    def test_a_duplicate_and_a_programming_error_are_not_translated(self, scene: conftest.Scene) -> None:
        scene.conductor()
        with pytest.raises(db_exception.DBDuplicateEntry), scene.database.engine.writer() as session:
            session.execute(sa.text('INSERT INTO conductors SELECT * FROM conductors'))


def _without_patience(engine: Engine) -> None:
    """Let the engine wait for no other writer of its file."""
    sa.event.listen(engine.sa_engine, 'connect', lambda connection, _: connection.execute('PRAGMA busy_timeout = 1'))
    engine.dispose()


def _write_and_raise(engine: Engine) -> None:
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

        @retried
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

        @retried
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


@pytest.fixture
def conf():
    conf = cfg.ConfigOpts()
    register_opts(conf)
    conf([], project='migrator', default_config_files=[], default_config_dirs=[])
    return conf


@pytest.fixture
def threads():
    return executors.NativeThreads()


def test_the_engine_has_the_options_of_the_section(conf, threads, tmp_path):
    conf.set_override('connection', f'sqlite:///{tmp_path}/x.sqlite', 'database')
    engine = engine_from_conf(conf, threads, max_retries=0)
    with engine.writer() as session:
        session.execute(sa.text('CREATE TABLE t (a INTEGER)'))
    engine.dispose()
    assert (tmp_path / 'x.sqlite').exists()


def test_the_engine_knows_every_option_of_the_section(conf, threads, tmp_path, recwarn):
    conf.set_override('connection', f'sqlite:///{tmp_path}/x.sqlite', 'database')
    conf.set_override('max_pool_size', 7, 'database')
    engine_from_conf(conf, threads).dispose()
    assert not [warning for warning in recwarn if 'not supported' in str(warning.message)]


@pytest.mark.parametrize('connection', [None, '', 'nowhere', 'nosuch://host/x', 'postgresql+nosuch://host/x'])
def test_the_error_for_an_invalid_connection_names_the_option(conf, threads, connection):
    conf.set_override('connection', connection, 'database')
    with pytest.raises(exception.ConfigurationError, match=r'\[database\] connection is'):
        engine_from_conf(conf, threads)


@pytest.mark.parametrize('driver', ['', '+pymysql'])
def test_a_url_that_begins_with_mariadb_is_refused_with_the_right_one(conf, threads, driver):
    conf.set_override('connection', f'mariadb{driver}://u:secret@host/x', 'database')
    with pytest.raises(exception.ConfigurationError, match=r'mysql\+pymysql://') as caught:
        engine_from_conf(conf, threads)
    assert 'secret' not in str(caught.value)


def test_registered_options_are_copies(conf):
    theirs = {opt.name: opt for opt in oslo_db_options.database_opts}
    before = theirs['connection'].default  # which another library in this process may have set
    conf.set_default('connection', 'sqlite:////of/mine', 'database')
    assert theirs['connection'].default == before


@pytest.mark.parametrize(
    ('text', 'without'),
    [
        ('postgresql://u:p@h/x', 'postgresql://***@h/x'),
        (
            'could not reach postgresql+psycopg2://u:p@ss@h/x: refused',
            'could not reach postgresql+psycopg2://***@h/x: refused',
        ),
        ('sqlite:////x.sqlite', 'sqlite:////x.sqlite'),
        ('ask me @ noon', 'ask me @ noon'),
    ],
)
def test_a_password_is_removed_from_a_text(text, without):
    assert without_password(text) == without


def test_watch_reports_statements_and_commits_but_no_transaction_control(tmp_path):
    engine = Engine(f'sqlite:///{tmp_path}/x.sqlite', executors.NativeThreads())
    seen = []
    end = watch(engine, lambda text, _values: seen.append(text), lambda: seen.append('a commit'))
    with engine.writer() as session:
        session.execute(sa.text('CREATE TABLE t (a INTEGER)'))
        session.execute(sa.text('INSERT INTO t VALUES (1)'))
    with engine.reader() as session:
        assert session.execute(sa.text('SELECT a FROM t')).scalar() == 1
    end()
    engine.check()
    engine.dispose()
    assert seen == ['CREATE TABLE t (a INTEGER)', 'INSERT INTO t VALUES (1)', 'a commit', 'SELECT a FROM t']


def _open_files(file: pathlib.Path) -> int:
    """Return how often this process has a file open."""
    names = (pathlib.Path('/proc/self/fd', name) for name in os.listdir('/proc/self/fd'))
    return sum(os.path.realpath(name) == str(file) for name in names)


@pytest.mark.skipif(not os.path.isdir('/proc/self/fd'), reason='needs /proc')
def test_a_sqlite_file_stays_open_between_transactions_and_is_closed_by_dispose(tmp_path, threads):
    file = tmp_path / 'x.sqlite'
    engine = Engine(f'sqlite:///{file}', threads)
    assert _open_files(file) == 0
    for number in range(3):
        with engine.writer() as session:
            session.execute(sa.text('CREATE TABLE IF NOT EXISTS t (a INTEGER)'))
            session.execute(sa.text('INSERT INTO t VALUES (:number)'), {'number': number})
            assert engine.connections_in_use == 1
        with engine.reader() as session:
            assert session.execute(sa.text('SELECT count(*) FROM t')).scalar() == number + 1
        assert (_open_files(file), engine.connections_in_use) == (1, 0)
    engine.dispose()
    assert _open_files(file) == 0
    with engine.reader() as session:
        assert session.execute(sa.text('SELECT count(*) FROM t')).scalar() == 3
    engine.dispose()
    assert _open_files(file) == 0


def test_dispose_of_an_unused_engine_does_not_connect(tmp_path, threads):
    Engine(f'sqlite:///{tmp_path}/x.sqlite', threads).dispose()
    assert not (tmp_path / 'x.sqlite').exists()


FORK = """
import os, sys
import sqlalchemy as sa
from migrator import executors
from migrator.db.sql.engine import Engine
engine = Engine(sys.argv[1], executors.NativeThreads())
with engine.writer() as session:
    session.execute(sa.text('CREATE TABLE t (a INTEGER)'))
opened = []
sa.event.listen(engine.sa_engine, 'connect', lambda connection, _: opened.append(connection))
child = os.fork()
if not child:
    try:
        with engine.writer() as session:
            session.execute(sa.text('INSERT INTO t VALUES (1)'))
    finally:
        os._exit(len(opened))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with engine.writer() as session:
    session.execute(sa.text('INSERT INTO t VALUES (2)'))
    print(session.execute(sa.text('SELECT count(*) FROM t')).scalar(), len(opened))
"""


def test_a_fork_opens_a_sqlite_file_for_itself(tmp_path):
    # In a process of its own, because one with threads, such as a test process, must not fork.
    done = forked.run([sys.executable, '-c', FORK, f'sqlite:///{tmp_path}/x.sqlite'], timeout=60)
    assert (done.stdout, done.returncode) == ('1\n2 0\n', 0), done.stderr


def test_a_transaction_that_reads_before_it_writes_lets_no_other_process_write_in_between(tmp_path, threads):
    mine, other = (Engine(f'sqlite:///{tmp_path}/x.sqlite', threads) for _ in range(2))
    with mine.writer() as session:
        session.execute(sa.text('CREATE TABLE t (a INTEGER)'))
    _without_patience(other)
    with mine.writer() as session:
        assert session.execute(sa.text('SELECT count(*) FROM t')).scalar() == 0
        with pytest.raises(exception.DatabaseUnreachable, match='locked'), other.writer() as late:
            late.execute(sa.text('INSERT INTO t VALUES (1)'))
        session.execute(sa.text('INSERT INTO t VALUES (2)'))
    with other.writer() as late:
        late.execute(sa.text('INSERT INTO t VALUES (1)'))
    with mine.reader() as session:
        assert session.execute(sa.text('SELECT a FROM t')).scalars().all() == [2, 1]
    for engine in (mine, other):
        engine.dispose()


def test_a_database_in_memory_is_kept_between_transactions(threads):
    engine = Engine('sqlite://', threads)
    with engine.writer() as session:
        session.execute(sa.text('CREATE TABLE t (a INTEGER)'))
    with engine.reader() as session:
        assert session.execute(sa.text('SELECT count(*) FROM t')).scalar() == 0
    engine.dispose()
