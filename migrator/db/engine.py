# SPDX-License-Identifier: Apache-2.0

"""Connections and transactions of the database, and the options of ``[database]``.

An import registers nothing. :func:`register_opts` registers the options on a given ConfigOpts.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import re
import select
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db.exception import CantStartEngineError, DBConnectionError, DBDeadlock, DBDuplicateEntry, DBError
from oslo_db.options import database_opts
from oslo_db.sqlalchemy import enginefacade

from migrator import exception, executors
from migrator.db import models

R = TypeVar('R')

#: Codes of PostgreSQL. The first: another transaction holds a lock for longer than this one may wait. The second: under
#: an isolation level that the operator has chosen, another transaction was faster.
_LOCK_NOT_AVAILABLE = '55P03'
_SERIALIZATION_FAILURE = '40001'
#: MariaDB's code for a lock that another transaction holds for longer than this one may wait.
_LOCK_WAIT_TIMEOUT = 1205
#: Codes of a database that is read-only: PostgreSQL's, MySQL's, and the beginning of SQLite's. MySQL has one code for
#: all options that forbid a statement.
_READ_ONLY = '25006'
_READ_ONLY_NUMBERS = (1792, 1836)
_OPTION_FORBIDS = 1290
_READ_ONLY_FILE = 'SQLITE_READONLY'
#: The connections to a file of SQLite that stay open. More are opened when they are needed, and closed after their use.
_KEPT = 64
#: Seconds after which a connection that was not used is tested before its next transaction.
_IDLE = 1.0
#: The class name that SQLAlchemy puts before a driver's text.
_CLASS_PREFIX = re.compile(r'^\([\w.]+\) ')


class Engine:
    """One database, for one process. The owner disposes it, which closes the connections.

    :param connection: an SQLAlchemy URL. SQLite serves a single process only.
    :param threads: the source of SQLite's time. The other databases have their own clock.
    :param lease: seconds of ``[conductor] lease``. On a database server no transaction waits for a lock, or holds one
        idly, for as long as a third of that. So a conductor with one hanging transaction does not lose its lease.
    :param options: further ``[database]`` options of oslo.db.
    """

    reads_only = False

    def __init__(self, connection: str, threads: executors.Threads, lease: float = 15.0, **options: Any) -> None:
        self._threads = threads
        self._patience = lease / 4
        self._facade = enginefacade.transaction_context()
        # thread_checkin ends each transaction with sleep(0), so that other green threads run.
        self._facade.configure(connection=connection, thread_checkin=executors.is_green(), **options)
        # SQLite lets one transaction write at a time. A thread that waits here does not poll the file.
        self._one_writer: Any = (
            executors.NativeThreads().lock() if connection.startswith('sqlite') else contextlib.nullcontext()
        )
        #: Called with the name of each transaction boundary. Tests count them and inject faults there.
        self.boundary: Callable[[str], None] = lambda what: None
        #: Called as soon as a transaction is committed, before any other thread can act. Monitors use it.
        self.on_commit: Callable[[], None] = lambda: None
        #: Called with the seconds of each SQL statement, if it is set before the first one.
        self.on_statement: Callable[[float], None] | None = None

    @functools.cached_property
    def sa_engine(self) -> sa.Engine:
        """The engine of SQLAlchemy."""
        with translated():
            engine: sa.Engine = self._facade.writer.get_engine()
        if self.on_statement is not None:
            sa.event.listen(engine, 'before_cursor_execute', self._before_statement)
            sa.event.listen(engine, 'after_cursor_execute', self._after_statement)
        if engine.dialect.name == 'sqlite':
            sa.event.listen(engine, 'connect', self._on_sqlite_connect)
        elif engine.dialect.name == 'postgresql':
            sa.event.listen(engine, 'connect', self._on_postgresql_connect)
        elif engine.dialect.name == 'mysql':
            sa.event.listen(engine, 'connect', self._on_mariadb_connect)
        else:
            return engine
        if engine.dialect.name == 'postgresql':
            # oslo.db sends a SELECT before each transaction, which costs half as much as a short transaction does.
            engine.pool._pre_ping = False
            sa.event.listen(engine, 'checkin', self._on_checkin)
            sa.event.listen(engine, 'checkout', self._on_checkout)
        # oslo.db opened one connection to test the URL, without the listeners above. Replace it.
        engine.dispose()
        if isinstance(engine.pool, sa.pool.NullPool):
            # oslo.db opens a file of SQLite again for each transaction, which takes a third of the transaction's time.
            # The new pool needs the listeners of the old one, as they replace the connections of a parent process.
            old = engine.pool
            engine.pool = sa.pool.QueuePool(
                old._creator, _KEPT, max_overflow=-1, use_lifo=True, dialect=engine.dialect, _dispatch=old.dispatch
            )
        return engine

    @property
    def connections_in_use(self) -> int:
        """The number of connections in use. A database in memory has one connection, which does not count."""
        pool = self.sa_engine.pool
        return pool.checkedout() if isinstance(pool, sa.pool.QueuePool) else 0

    def _before_statement(self, *args: Any) -> None:
        args[4].migrator_began = self._threads.clock.monotonic()

    def _after_statement(self, *args: Any) -> None:
        if self.on_statement is not None:
            self.on_statement(self._threads.clock.monotonic() - args[4].migrator_began)

    def _on_checkin(self, _connection: Any, record: Any) -> None:
        record.info['used_at'] = self._threads.clock.monotonic()

    def _on_checkout(self, connection: Any, record: Any, _proxy: Any) -> None:
        """Test a connection that was idle for long or that the server may have closed.

        If it is broken, SQLAlchemy replaces all that are as old.
        """
        used_at = record.info.get('used_at')
        if used_at is None or (self._threads.clock.monotonic() - used_at < _IDLE and not _has_input(connection)):
            return
        dialect = self.sa_engine.dialect
        try:
            dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error as error:
            raise sa.exc.InvalidatePoolError from error

    def _on_sqlite_connect(self, connection: Any, _record: Any) -> None:
        # "Deterministic" means for SQLite that it calls the function once in a statement, and not for each row.
        connection.create_function('migrator_later', 1, self._sqlite_later, deterministic=True)
        # With a write-ahead log readers never wait for the writer, nor the writer for them.
        connection.execute('PRAGMA journal_mode = WAL')
        connection.execute('PRAGMA busy_timeout = 30000')

    def _sqlite_later(self, seconds: float) -> str:
        return models.sqlite_later(self._threads.clock.now(), seconds)

    def _on_postgresql_connect(self, connection: Any, _record: Any) -> None:
        milliseconds = str(max(1, int(self._patience * 1000)))
        with connection.cursor() as cursor:
            for name in ('lock_timeout', 'idle_in_transaction_session_timeout'):
                cursor.execute('SELECT set_config(%s, %s, false)', (name, milliseconds))
        # A rollback would undo the settings.
        connection.commit()

    def _on_mariadb_connect(self, connection: Any, _record: Any) -> None:
        # MariaDB has whole seconds only.
        seconds = max(1, int(self._patience))
        # oslo.db chooses one with three bytes for a character.
        connection.set_character_set('utf8mb4')
        with connection.cursor() as cursor:
            # Under MariaDB's default, REPEATABLE READ, a transaction reads all rows as they were at its first read,
            # also after it has waited for a lock. PostgreSQL's default is READ COMMITTED.
            cursor.execute('SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED')
            # The clock of migrator.db.models.later depends on the time zone. lock_wait_timeout is the limit for the
            # locks of whole tables.
            cursor.execute(
                "SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = %s, lock_wait_timeout = %s,"
                ' idle_transaction_timeout = %s',
                (seconds, seconds, seconds),
            )

    @contextlib.contextmanager
    def reader(self) -> Iterator[sa.Connection]:
        """Open a session, which is a connection of SQLAlchemy Core, that only reads."""
        with deadlocks_translated(), translated(), self.sa_engine.connect() as session:
            if self.sa_engine.dialect.name == 'sqlite':
                _begin_on_sqlite(session)
            yield session

    @contextlib.contextmanager
    def writer(self) -> Iterator[sa.Connection]:
        """Open a transaction that is committed at the end of the block, or rolled back if the block raises.

        The block contains only SQL.
        """
        engine = self.sa_engine
        self.boundary('begin')
        begin = _write_on_sqlite if engine.dialect.name == 'sqlite' else sa.Engine.begin
        with translated(), self._one_writer, begin(engine) as session:
            yield session
        self.on_commit()
        self.boundary('committed')

    def check(self) -> None:
        """Read something.

        :raises migrator.exception.DatabaseUnreachable: the database is unreachable.
        """
        with self.reader() as session:
            session.execute(sa.select(1))

    def dispose(self) -> None:
        """Close every connection. The engine connects again when it is used again."""
        if 'sa_engine' in vars(self):
            self.sa_engine.dispose()


def _begin_on_sqlite(session: sa.Connection) -> None:
    """Begin a transaction that reads all as it is at its first read.

    oslo.db would send BEGIN as an expression, which costs as much as a short query.
    """
    session.info['in_transaction'] = True
    session.begin()
    driver: Any = session.connection.driver_connection
    driver.execute('BEGIN')


@contextlib.contextmanager
def _write_on_sqlite(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a transaction that no other process can write in.

    SQLite refuses a write at once, with "locked", if another process has written since the transaction's first read.
    """
    with engine.connect() as session:
        session.info['in_transaction'] = True  # oslo.db sends BEGIN otherwise
        with session.begin():
            session.exec_driver_sql('BEGIN IMMEDIATE')
            yield session


class OneSession:
    """A replacement for an engine that reads everything in one session and writes nothing."""

    reads_only = True

    def __init__(self, session: sa.Connection) -> None:
        self._session = session

    @contextlib.contextmanager
    def reader(self) -> Iterator[sa.Connection]:
        """Yield the session."""
        yield self._session


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Convert the errors of an unreachable database to migrator's exceptions.

    :raises migrator.exception.DatabaseUnreachable: the database is away, or refuses to serve.
    :raises migrator.exception.DatabaseReadOnly: the database is there and takes no changes.
    """
    try:
        yield
    except (DBConnectionError, CantStartEngineError, sa.exc.TimeoutError) as error:
        raise exception.DatabaseUnreachable(reason=_first_line(error)) from None
    except (DBError, sa.exc.DBAPIError) as error:
        inner = getattr(error, 'inner_exception', None) or getattr(error, 'orig', None) or error
        original = getattr(inner, 'orig', None) or inner
        if _number(original) == _LOCK_WAIT_TIMEOUT:
            # oslo.db takes this for a deadlock. Each retry would wait as long again, and the lease would run out.
            raise exception.DatabaseUnreachable(reason=_first_line(inner)) from None
        if isinstance(error, (DBDuplicateEntry, DBDeadlock)):
            raise
        if _sqlstate(original) == _SERIALIZATION_FAILURE:
            # oslo.db has no class for this error. The remedy is the same as for a deadlock: a retry.
            raise DBDeadlock(inner) from error
        if _is_read_only(original):
            raise exception.DatabaseReadOnly(reason=_first_line(inner)) from None
        if type(original).__name__ == 'OperationalError' or _sqlstate(original) == _LOCK_NOT_AVAILABLE:
            raise exception.DatabaseUnreachable(reason=_first_line(inner)) from None
        raise


@contextlib.contextmanager
def deadlocks_translated() -> Iterator[None]:
    """Convert the last deadlock of a transaction to migrator's exception.

    :raises migrator.exception.DatabaseUnreachable: the database serves, but let other transactions go first each time.
    """
    try:
        yield
    except DBDeadlock as error:
        reason = f'it let other transactions go first each time ({_first_line(error)})'
        raise exception.DatabaseUnreachable(reason=reason) from None


def _has_input(connection: Any) -> bool:
    """Return whether an idle server has sent something, such as the end of the connection."""
    try:
        return bool(select.select([connection], [], [], 0)[0])
    except (OSError, ValueError):  # it is closed, or its number is too high for select
        return True


def _number(error: BaseException) -> Any:
    """Return MariaDB's code of an error."""
    return error.args[0] if error.args else None


def _is_read_only(error: BaseException) -> bool:
    number = _number(error)
    if number == _OPTION_FORBIDS:
        return re.search('read.only', str(error), re.IGNORECASE) is not None
    file_is_read_only = str(getattr(error, 'sqlite_errorname', '')).startswith(_READ_ONLY_FILE)
    return file_is_read_only or number in _READ_ONLY_NUMBERS or _sqlstate(error) == _READ_ONLY


def _sqlstate(error: BaseException) -> str | None:
    """Return PostgreSQL's code of an error; psycopg2 and psycopg have different names for it."""
    return getattr(error, 'pgcode', None) or getattr(error, 'sqlstate', None)


def _first_line(error: BaseException) -> str:
    # Further lines quote the statement and its parameters, which may contain secrets.
    first = _CLASS_PREFIX.sub('', (str(error).strip().splitlines() or [type(error).__name__])[0])
    # SQLite has the same text for a full disk.
    return f'{first}: check whether its disk is full' if first == 'disk I/O error' else first


def retried(method: Callable[..., R]) -> Callable[..., R]:
    """Wrap a method that is one transaction, so that it runs again after a deadlock.

    The wrapped method raises :class:`~migrator.exception.DatabaseUnreachable` if each try ends in a deadlock.
    """
    from oslo_db.api import wrap_db_retry

    retrying: Callable[..., R] = wrap_db_retry(
        max_retries=5, retry_on_deadlock=True, retry_interval=0.1, inc_retry_interval=True, max_retry_interval=2
    )(method)

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> R:
        with deadlocks_translated():
            return retrying(*args, **kwargs)

    return wrapped


GROUP = 'database'

#: The options for the engine. The others configure the API layer of oslo.db, which is not used.
_ENGINE_OPTIONS = (
    'mysql_sql_mode',
    'mysql_wsrep_sync_wait',
    'connection_recycle_time',
    'connection_debug',
    'max_pool_size',
    'max_overflow',
    'pool_timeout',
    'sqlite_synchronous',
    'connection_trace',
    'max_retries',
    'retry_interval',
    'connection_parameters',
)
_EXAMPLE = 'postgresql+psycopg2://USER:PASSWORD@HOST/migrator'
#: The errors of a database that runs and refuses the connection on each try. They have no class of their own.
_REFUSES = re.compile(
    r'password authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) "[^"]*" does not exist'
    r'|Access denied|Unknown database|unable to open database file'
)
#: Everything up to the host. A password may contain an @.
_UP_TO_HOST = re.compile(r'//\S*@')


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the section ``[database]`` on the given ConfigOpts only."""
    # Copy the options, because oslo.db returns its own objects, and a changed default would apply everywhere.
    conf.register_opts(copy.deepcopy(database_opts), group=GROUP)


def engine_from_conf(conf: cfg.ConfigOpts, threads: executors.Threads, **overrides: Any) -> Engine:
    """Return the engine of ``[database] connection``; it connects when it is first used.

    :param conf: a configuration on which :func:`register_opts` was called.
    :param overrides: options of oslo.db that replace the configured ones, such as ``max_retries=0`` for an error at
        once.
    :raises migrator.exception.ConfigurationError: the URL is missing or invalid, or its driver is not installed.
    """
    settings = conf[GROUP]
    connection = settings.connection
    if not connection:
        raise _misconfigured(connection, f'give it a URL such as {_EXAMPLE}.')
    _check(connection)
    chosen = {name: getattr(settings, name) for name in _ENGINE_OPTIONS} | overrides
    return Engine(connection, threads, **{name: value for name, value in chosen.items() if value is not None})


def refusal(conf: cfg.ConfigOpts, error: exception.DatabaseUnreachable) -> exception.ConfigurationError | None:
    """Return the error for a database that runs and refuses the connection, or None if it is away."""
    if not _REFUSES.search(str(error)):
        return None
    shown = without_password(conf[GROUP].connection)
    return _misconfigured(shown, f'the database refuses the connection: {error.kwargs["reason"]}')


def without_password(text: str) -> str:
    """Return a text without the credentials of its URLs."""
    return _UP_TO_HOST.sub('//***@', text)


def _check(connection: str) -> None:
    try:
        dialect = sa.engine.make_url(connection).get_dialect()
    except sa.exc.NoSuchModuleError:
        scheme = connection.partition(':')[0]
        detail = f'SQLAlchemy knows no database {scheme!r}: give a URL such as {_EXAMPLE}.'
        raise _misconfigured(without_password(connection), detail) from None
    except (sa.exc.ArgumentError, ValueError):
        # In a malformed URL the place of the password is unknown, so only the beginning is shown.
        shown = connection if '@' not in connection else f'{connection[:4]}...'
        raise _misconfigured(shown, f'it is not the URL of a database: give one such as {_EXAMPLE}.') from None
    if dialect.name == 'mariadb':
        # oslo.db recognises a deadlock and a duplicate only by the other name.
        detail = 'begin it with mysql+pymysql://, which also stands for MariaDB.'
        raise _misconfigured(without_password(connection), detail)
    try:
        dialect.import_dbapi()
    except ImportError as error:
        detail = f'its driver is not installed ({error}): install it, or name another after a +, as in {_EXAMPLE}.'
        raise _misconfigured(without_password(connection), detail) from None


def _misconfigured(value: object, detail: str) -> exception.ConfigurationError:
    return exception.ConfigurationError(option=f'[{GROUP}] connection', value=value, detail=detail)


_CONTROL = ('BEGIN', 'COMMIT', 'ROLLBACK', 'SAVEPOINT', 'RELEASE')


def watch(engine: Engine, statement: Callable[[str], None], commit: Callable[[], None]) -> None:
    """Call two functions from now on, in the thread that uses the database.

    :param statement: called with each statement before it is sent, except those that begin and end transactions.
    :param commit: called before each commit.
    """

    def before_statement(_connection: Any, _cursor: Any, text: str, *_more: Any) -> None:
        # On SQLite a transaction that writes begins with a statement. Elsewhere the driver begins it, without an event.
        if not text.lstrip().upper().startswith(_CONTROL):
            statement(text)

    def before_commit(_connection: Any) -> None:
        commit()

    sa.event.listen(engine.sa_engine, 'before_cursor_execute', before_statement)
    sa.event.listen(engine.sa_engine, 'commit', before_commit)
