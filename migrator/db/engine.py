# SPDX-License-Identifier: Apache-2.0

"""Connections and transactions."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import sqlalchemy as sa
from oslo_db import exception as db_exception
from oslo_db.sqlalchemy import enginefacade
from sqlalchemy import orm

from migrator import exception, executors
from migrator.db import types

R = TypeVar('R')

#: Somebody holds a lock for longer than we may wait; and: the operator has chosen an isolation in which a transaction
#: may come too late. PostgreSQL's codes.
_LOCK_NOT_AVAILABLE = '55P03'
_SERIALIZATION_FAILURE = '40001'
#: The database takes no changes: PostgreSQL's code, MySQL's, and what SQLite's begins with. MySQL has one code for
#: all options that forbid a statement.
_READ_ONLY = '25006'
_READ_ONLY_NUMBERS = (1792, 1836)
_OPTION_FORBIDS = 1290
_READ_ONLY_FILE = 'SQLITE_READONLY'
#: What SQLAlchemy puts before a driver's text.
_OF_CLASS = re.compile(r'^\([\w.]+\) ')


@enginefacade.transaction_context_provider
class _Scope:
    """What oslo.db hangs a session on; a new one for each transaction."""


class Engine:
    """One database, for one process.

    :param connection: an SQLAlchemy URL. SQLite serves a single process only.
    :param threads: SQLite asks its clock for the time; the others have one of their own.
    :param lease: seconds of ``[conductor] lease``. On PostgreSQL nothing waits for a lock, or holds one idly, for as
        long as a third of that: a conductor that hangs in one place must not lose its lease in all others.
    :param keep_connections: on SQLite, keep the connections that are open instead of opening one for each transaction:
        faster by a third, and :meth:`dispose` closes them.
    :param options: more of oslo.db's ``[database]`` options.
    """

    reads_only = False

    def __init__(
        self,
        connection: str,
        threads: executors.Threads,
        lease: float = 15.0,
        keep_connections: bool = False,
        **options: Any,
    ) -> None:
        self._threads = threads
        self._keep_connections = keep_connections
        self._patience = lease / 4
        self._facade = enginefacade.transaction_context()
        self._facade.configure(connection=connection, **options)
        # SQLite lets one transaction write at a time, and answers "locked" to a reader that then wants to write.
        self._one_writer: Any = (
            executors.NativeThreads().lock() if connection.startswith('sqlite') else contextlib.nullcontext()
        )
        #: Called with a word at each boundary; for tests, which count and inject faults there.
        self.boundary: Callable[[str], None] = lambda what: None
        #: Called as soon as a transaction is committed, before anybody else can do anything; for who watches.
        self.on_commit: Callable[[], None] = lambda: None

    @functools.cached_property
    def sa_engine(self) -> sa.Engine:
        """SQLAlchemy's engine."""
        with translated():
            engine: sa.Engine = self._facade.writer.get_engine()
        if engine.dialect.name == 'sqlite':
            sa.event.listen(engine, 'connect', self._on_sqlite_connect)
        elif engine.dialect.name == 'postgresql':
            sa.event.listen(engine, 'connect', self._on_postgresql_connect)
        else:
            return engine
        # oslo.db has opened one connection to try the URL; it must be like the others.
        engine.dispose()
        if self._keep_connections:
            # oslo.db has no option for it: it takes a NullPool for SQLite's files, whose listeners have to come along.
            old = engine.pool
            engine.pool = sa.pool.QueuePool(
                old._creator, pool_size=64, max_overflow=-1, dialect=engine.dialect, _dispatch=old.dispatch
            )
        return engine

    @property
    def connections_in_use(self) -> int:
        """How many connections are being used at this moment, where they are kept open."""
        pool = self.sa_engine.pool
        return pool.checkedout() if isinstance(pool, sa.pool.QueuePool) else 0

    def _prepare(self) -> None:
        # The first look makes the engine, and hangs our function on its connections.
        self.sa_engine  # noqa: B018 -- a cached property

    def _on_sqlite_connect(self, connection: Any, _record: Any) -> None:
        connection.create_function('migrator_later', 1, lambda s: types.sqlite_later(self._threads.clock.now(), s))
        # Readers then never wait for the writer, nor the writer for them.
        connection.execute('PRAGMA journal_mode = WAL')
        connection.execute('PRAGMA busy_timeout = 30000')

    def _on_postgresql_connect(self, connection: Any, _record: Any) -> None:
        milliseconds = str(max(1, int(self._patience * 1000)))
        with connection.cursor() as cursor:
            for name in ('lock_timeout', 'idle_in_transaction_session_timeout'):
                cursor.execute('SELECT set_config(%s, %s, false)', (name, milliseconds))
        # What is set in a transaction that is then rolled back was never set.
        connection.commit()

    @contextlib.contextmanager
    def reader(self) -> Iterator[orm.Session]:
        """Open a session that only reads."""
        self._prepare()
        with gives_way_no_more(), translated(), self._facade.reader.using(_Scope()) as session:
            yield session

    @contextlib.contextmanager
    def writer(self) -> Iterator[orm.Session]:
        """Open a transaction; it is committed at the end of the block, or rolled back if the block raises.

        Nothing but SQL happens inside the block.
        """
        self._prepare()
        self.boundary('begin')
        with translated(), self._one_writer, self._facade.writer.using(_Scope()) as session:
            yield session
        self.on_commit()
        self.boundary('committed')

    def dispose(self) -> None:
        """Close every connection."""
        self.sa_engine.dispose()


class OneSession:
    """Stands in for an engine where all that is read is to be read in one session, and nothing is written."""

    reads_only = True

    def __init__(self, session: orm.Session) -> None:
        self._session = session

    @contextlib.contextmanager
    def reader(self) -> Iterator[orm.Session]:
        """Return the session."""
        yield self._session


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn the loss of the database into an error of ours.

    :raises migrator.exception.DatabaseUnreachable: it is away, or refuses to serve.
    :raises migrator.exception.DatabaseReadOnly: it is there, and takes no changes.
    """
    try:
        yield
    except (db_exception.DBConnectionError, db_exception.CantStartEngineError, sa.exc.TimeoutError) as error:
        raise exception.DatabaseUnreachable(reason=_first_line(error)) from None
    except (db_exception.DBError, sa.exc.DBAPIError) as error:
        if isinstance(error, (db_exception.DBDuplicateEntry, db_exception.DBDeadlock)):
            raise
        inner = getattr(error, 'inner_exception', None) or getattr(error, 'orig', None) or error
        if _sqlstate(inner) == _SERIALIZATION_FAILURE:
            # oslo.db has no name for it, and what helps is the same.
            raise db_exception.DBDeadlock(inner) from error
        if _is_read_only(inner):
            raise exception.DatabaseReadOnly(reason=_first_line(inner)) from None
        if _is_away(inner) or _sqlstate(inner) == _LOCK_NOT_AVAILABLE:
            raise exception.DatabaseUnreachable(reason=_first_line(inner)) from None
        raise


@contextlib.contextmanager
def gives_way_no_more() -> Iterator[None]:
    """Turn a transaction's having had to give way to another, for the last time, into an error of ours.

    :raises migrator.exception.DatabaseUnreachable: it serves, but not us.
    """
    try:
        yield
    except db_exception.DBDeadlock as error:
        reason = f'it let other transactions go first each time ({_first_line(error)})'
        raise exception.DatabaseUnreachable(reason=reason) from None


def _is_away(error: BaseException) -> bool:
    original = getattr(error, 'orig', None) or error
    return type(original).__name__ == 'OperationalError'


def _is_read_only(error: BaseException) -> bool:
    original = getattr(error, 'orig', None) or error
    number = original.args[0] if original.args else None
    if number == _OPTION_FORBIDS:
        return re.search('read.only', str(original), re.IGNORECASE) is not None
    of_file = str(getattr(original, 'sqlite_errorname', '')).startswith(_READ_ONLY_FILE)
    return of_file or number in _READ_ONLY_NUMBERS or _sqlstate(error) == _READ_ONLY


def _sqlstate(error: BaseException) -> str | None:
    """Return PostgreSQL's code of an error; psycopg2 has another word for it than psycopg."""
    original = getattr(error, 'orig', None) or error
    return getattr(original, 'pgcode', None) or getattr(original, 'sqlstate', None)


def _first_line(error: BaseException) -> str:
    # Further lines quote the statement and its parameters, which may hold what a log should not.
    first = _OF_CLASS.sub('', (str(error).strip().splitlines() or [type(error).__name__])[0])
    # SQLite's word, also for a disk that is full.
    return f'{first}: look whether its disk is full' if first == 'disk I/O error' else first


def retried(method: Callable[..., R]) -> Callable[..., R]:
    """Run a method that is one transaction again, should the database have made it give way to another.

    What it returns raises :class:`~migrator.exception.DatabaseUnreachable` when it has had to give way each time.
    """
    from oslo_db import api as db_api

    patient: Callable[..., R] = db_api.wrap_db_retry(
        max_retries=5, retry_on_deadlock=True, retry_interval=0.1, inc_retry_interval=True, max_retry_interval=2
    )(method)

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> R:
        with gives_way_no_more():
            return patient(*args, **kwargs)

    return wrapped
