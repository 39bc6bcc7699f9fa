# SPDX-License-Identifier: Apache-2.0

"""A prepared statement does what SQLAlchemy does with the same statement, and fails as it does."""

from __future__ import annotations

import contextlib
import datetime
import pathlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry, DBError

from migrator import exception, executors
from migrator.db.sql import columns
from migrator.db.sql import engine as engines
from migrator.db.sql.engine import Engine
from migrator.db.sql.statements import Prepared
from migrator.db.sql.watching import watch

TABLE = sa.Table(
    'rows_of_a_test',
    sa.MetaData(),
    sa.Column('id', sa.Integer(), primary_key=True),
    sa.Column('name', columns.Text(5), unique=True, key='called'),
    sa.Column('at', columns.UTCDateTime(), default=columns.now()),
    sa.Column('document', columns.Json()),
    sa.Column('number', columns.Whole(), default=7),
    sa.Column('changed_at', columns.UTCDateTime(), onupdate=columns.now()),
)
INSERT = sa.insert(TABLE)
ALL = sa.select(TABLE).order_by(TABLE.c.id)
NAMED = ALL.where(TABLE.c.called.in_(sa.bindparam('names', expanding=True)), TABLE.c.number < sa.bindparam('most'))
AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=datetime.UTC)
ROW = {'called': 'too long', 'at': AT, 'document': {'a': [1.5, None, 'x']}, 'number': 1 << 40}


@pytest.fixture
def threads() -> executors.Threads:
    return executors.NativeThreads()


@pytest.fixture(params=['prepared', 'through SQLAlchemy'])
def engine(request: pytest.FixtureRequest, threads: executors.Threads) -> Iterator[Engine]:
    made = Engine('sqlite://', threads)
    # As with [database] connection_debug, which would also have it log them.
    made.shows_statements = request.param != 'prepared'
    with made.writer() as session:
        TABLE.create(session._through_sqlalchemy())
    yield made
    made.dispose()


def rows(engine: Engine, statement: Any = ALL, **given: Any) -> list[tuple[Any, ...]]:
    with engine.reader() as session:
        return [tuple(row) for row in session.execute(Prepared(statement), given)]


def test_values_are_converted_both_ways_and_defaults_are_set(engine):
    insert = Prepared(INSERT)
    with engine.writer() as session:
        assert session.execute(insert, ROW).rowcount == 1
        session.execute(insert, {'called': 'b', 'document': None})
    (_, *first), (_, *second) = rows(engine)
    assert first == ['to...', AT, {'a': [1.5, None, 'x']}, (1 << 31) - 1, None]
    assert (second[0], second[2:]) == ('b', [None, 7, None])
    assert second[1].tzinfo is datetime.UTC


def test_rows_have_the_names_of_columns(engine):
    with engine.writer() as session:
        session.execute(Prepared(INSERT), ROW)
    with engine.reader() as session:
        row = session.execute(Prepared(ALL)).one()
        count = session.execute(Prepared(sa.select(sa.func.count().label('found')).select_from(TABLE))).one()
    assert (row.called, row.number, count.found) == ('to...', (1 << 31) - 1, 1)


@pytest.mark.parametrize('names', [[], ['a'], ['a', 'c'], ['c', 'b', 'a', 'none']])
def test_a_list_has_any_length(engine, names):
    with engine.writer() as session:
        session.execute(Prepared(INSERT), [{'called': name, 'number': number} for number, name in enumerate('abc')])
    found = [row[1] for row in rows(engine, NAMED, names=names, most=2)]
    assert found == [name for name in 'ab' if name in names]


def test_an_update_sets_the_columns_that_an_execution_names_and_what_the_statement_has(engine):
    update = Prepared(sa.update(TABLE).where(TABLE.c.called == sa.bindparam('of')).values(at=columns.now()))
    with engine.writer() as session:
        session.execute(Prepared(INSERT), ROW)
        assert session.execute(update, {'of': 'to...', 'number': 3}).rowcount == 1
        assert session.execute(update, {'of': 'to...', 'document': [1]}).rowcount == 1
        assert session.execute(update, {'of': 'nobody', 'number': 4}).rowcount == 0
    ((_, called, at, document, number, changed_at),) = rows(engine)
    assert (called, document, number) == ('to...', [1], 3)
    assert (at.tzinfo, at > AT, changed_at > AT) == (datetime.UTC, True, True)


def test_a_duplicate_is_classified_and_writes_nothing(engine):
    def twice() -> None:
        with engine.writer() as session:
            session.execute(Prepared(INSERT), {'called': 'a'})
            session.execute(Prepared(INSERT), {'called': 'a'})

    with pytest.raises(DBDuplicateEntry):
        twice()
    assert rows(engine) == []


def test_a_wrong_statement_is_an_error_of_the_program(engine):
    nowhere = sa.Table('nowhere', sa.MetaData(), sa.Column('id', sa.Integer()))
    with pytest.raises((DBError, exception.DatabaseUnreachable), match='nowhere'):
        rows(engine, sa.select(nowhere))
    assert rows(engine) == []


def test_a_parameter_without_a_value_is_named(engine):
    with pytest.raises((KeyError, DBError), match='most'):
        rows(engine, NAMED, names=['a'])


def test_what_is_prepared_and_what_is_not_share_a_transaction(engine):
    def fail() -> None:
        with engine.writer() as session:
            session.execute(Prepared(INSERT), {'called': 'a'})
            session.execute(sa.insert(TABLE).values(called='b'))
            assert [row.called for row in session.execute(Prepared(ALL))] == ['a', 'b']
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with engine.writer() as session:
        session.execute(sa.insert(TABLE).values(called='c'))
        session.execute(Prepared(INSERT), {'called': 'd'})
    assert [row[1] for row in rows(engine)] == ['c', 'd']


def test_each_statement_and_commit_is_watched_once(engine):
    seen: list[str] = []
    end = watch(engine, lambda text, _values: seen.append(text.split()[0]), lambda: seen.append('commit'))
    with engine.writer() as session:
        session.execute(Prepared(INSERT), {'called': 'a'})
    with engine.writer() as session:
        session.execute(sa.insert(TABLE).values(called='b'))
        session.execute(Prepared(ALL))
    end()
    rows(engine)
    assert seen == ['INSERT', 'commit', 'INSERT', 'SELECT', 'commit']


def test_statements_are_timed(threads, tmp_path):
    engine = Engine(f'sqlite:///{tmp_path}/x.sqlite', threads)
    taken: list[float] = []
    engine.on_statement = taken.append
    with engine.writer() as session:
        session.execute(sa.text('CREATE TABLE t (a INTEGER)'))
        session.execute(Prepared(sa.select(sa.literal(1))))
    engine.dispose()
    assert len(taken) == 2


class Killed(BaseException):
    """A thread is killed."""


class Dying:
    """A connection, and its cursor, whose thread is killed within a statement."""

    def cursor(self) -> Dying:
        """Return itself."""
        return self

    def execute(self, *_: Any) -> None:
        """Be killed."""
        raise Killed

    def close(self) -> None:
        """Do nothing."""


def test_a_thread_that_is_killed_within_a_statement_leaves_no_open_transaction(threads, tmp_path):
    engine = Engine(f'sqlite:///{tmp_path}/x.sqlite', threads)
    with engine.writer() as session:
        TABLE.create(session._through_sqlalchemy())
    drivers: list[Any] = []

    def die() -> None:
        with engine.writer() as session:
            session.execute(Prepared(INSERT), {'called': 'a'})
            drivers.append(session._driver)
            session._driver = Dying()
            session.execute(Prepared(ALL))

    with pytest.raises(Killed):
        die()
    with pytest.raises(sqlite3.ProgrammingError, match='closed'):
        drivers[0].execute('SELECT 1')
    assert engine.connections_in_use == 0
    assert rows(engine) == []
    engine.dispose()


def test_after_a_refused_statement_the_transaction_is_still_one(engine):
    def insert_three() -> None:
        with engine.writer() as session:
            session.execute(Prepared(INSERT), {'called': 'b'})
            with contextlib.suppress(DBDuplicateEntry):
                session.execute(Prepared(INSERT), {'called': 'b'})
            session.execute(Prepared(INSERT), {'called': 'c'})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        insert_three()
    assert rows(engine) == []


def test_a_session_executes_nothing_after_its_block(engine):
    with engine.reader() as session:
        session.execute(Prepared(ALL))
    for statement in (Prepared(ALL), ALL):
        with pytest.raises(sa.exc.ResourceClosedError):
            session.execute(statement)


@pytest.fixture
def on_file(threads: executors.Threads, tmp_path: pathlib.Path) -> Iterator[Engine]:
    made = Engine(f'sqlite:///{tmp_path}/x.sqlite', threads)
    with made.writer() as session:
        TABLE.create(session._through_sqlalchemy())
    yield made
    made.dispose()


def test_a_rollback_that_fails_is_converted_and_frees_the_writer(on_file, monkeypatch):
    def fail(_connection: object) -> None:
        raise sqlite3.OperationalError('disk I/O error')

    def write() -> None:
        with on_file.writer() as session:
            session.execute(sa.insert(TABLE).values(called='a'))
            monkeypatch.setattr(on_file.sa_engine.dialect, 'do_rollback', fail)
            raise ZeroDivisionError

    with pytest.raises(exception.DatabaseUnreachable, match='disk'):
        write()
    monkeypatch.undo()
    with on_file.writer() as session:
        session.execute(Prepared(INSERT), {'called': 'b'})
    assert [row[1] for row in rows(on_file)] == ['b']
    assert on_file.connections_in_use == 0


def test_no_more_connections_stay_open_than_a_pool_would_keep(on_file):
    with contextlib.ExitStack() as stack:
        for _ in range(80):
            stack.enter_context(on_file.reader())
    assert on_file.connections_in_use == 0
    assert len(on_file._idle) == 64


def test_a_connection_that_outlasts_dispose_is_closed(on_file):
    with on_file.reader() as session:
        session.execute(Prepared(ALL))
        on_file.dispose()
    assert (on_file._idle, on_file.connections_in_use) == ([], 0)
    assert rows(on_file) == []


def test_users_cannot_have_an_engine_keep_any_number_of_statements(on_file, monkeypatch):
    monkeypatch.setattr(engines, '_MOST_FORMS', 3)
    for number in range(7):
        assert rows(on_file, sa.select(sa.literal(number))) == [(number,)]
    assert len(on_file._forms) <= 3


def test_only_now_is_a_part_of_a_statement():
    with pytest.raises(ValueError, match='at has the new value'):
        columns.set_to_now({'at': columns.later(5)})
    assert columns.set_to_now({'at': columns.now(), 'number': 1}) == ['at']
