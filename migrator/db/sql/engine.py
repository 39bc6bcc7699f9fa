# SPDX-License-Identifier: Apache-2.0

"""Connections, transactions and prepared statements of the database."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import select
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db.exception import CantStartEngineError, DBConnectionError, DBDeadlock, DBDuplicateEntry, DBError
from oslo_db.sqlalchemy import enginefacade

from migrator import exception, executors
from migrator.db.sql import columns, options
from migrator.db.sql.statements import Form, Prepared, Rows

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
#: From this value on [database] connection_debug has statements logged.
_DEBUG = 50
#: The most prepared statements that an engine keeps compiled.
_MOST_FORMS = 1000
#: oslo.db marks a connection to SQLite with it, on which it need not send BEGIN.
_BEGUN = 'in_transaction'
#: The errors that :func:`translated` converts.
_DATABASE_ERRORS = (DBError, CantStartEngineError, sa.exc.TimeoutError, sa.exc.DBAPIError)
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
        self.threads = threads
        self._patience = lease / 4
        self._facade = enginefacade.transaction_context()
        # thread_checkin ends each transaction with sleep(0), so that other green threads run.
        self._is_green = executors.is_green()
        self._facade.configure(connection=connection, thread_checkin=self._is_green, **options)
        # SQLite lets one transaction write at a time. A thread that waits here does not poll the file.
        self.one_writer: Any = executors.NativeThreads().lock() if connection.startswith('sqlite') else None
        self._forms: dict[tuple[Any, ...], Form] = {}
        #: The time of SQLite's clock when it was asked last, and seconds -> the answer.
        self._later: tuple[Any, dict[float, str]] = None, {}
        #: Connections to SQLite that no transaction uses, each with the process that has opened it.
        self._idle: list[tuple[Any, int]] = []
        #: What :func:`watch` has added.
        self.watchers: list[tuple[Callable[[str, Any], None], Callable[[], None], Callable[[Any], None]]] = []
        #: Whether [database] connection_debug or connection_trace have SQLAlchemy show each statement.
        self.shows_statements = options.get('connection_debug', 0) >= _DEBUG or options.get('connection_trace', False)
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
        return pool.checkedout() - len(self._idle) if isinstance(pool, sa.pool.QueuePool) else 0

    def take(self) -> Any:
        """Return a connection of the pool for one transaction."""
        while True:
            try:
                connection, process = self._idle.pop()
            except IndexError:  # another thread may have taken the last one
                return self.sa_engine.raw_connection()
            if process == os.getpid():
                return connection

    def give_back(self, connection: Any) -> None:
        """Roll back what is not committed, and keep the connection for another transaction.

        One to a file of SQLite does not go back to the pool, whose listeners take longer than a short transaction.
        """
        driver = connection.dbapi_connection
        pool = self.sa_engine.pool
        is_kept = driver is not None and self.one_writer is not None and isinstance(pool, sa.pool.QueuePool)
        # After dispose() there is another pool.
        if not is_kept or len(self._idle) >= _KEPT or connection._pool is not pool:
            connection.close()
            return
        try:
            if driver.in_transaction:
                driver.rollback()
        except Exception as error:  # noqa: BLE001 -- whatever it is, the connection is of no use
            connection.invalidate(error)
            return
        self._idle.append((connection, os.getpid()))

    def let_others_run(self) -> None:
        """Let other green threads run, as oslo.db does when a connection goes back to the pool."""
        if self._is_green:
            self.threads.sleep(0)

    def form_of(self, statement: Prepared, parameters: Mapping[str, Any]) -> tuple[Form, str, Any]:
        """Return how to send a prepared statement, its text and its values."""
        key = (statement, *parameters)
        form = self._forms.get(key)
        if form is None:
            if len(self._forms) >= _MOST_FORMS:  # users choose what a list is filtered by
                self._forms.clear()
            form = self._forms[key] = Form(statement.statement, self.sa_engine.dialect, tuple(parameters))
        return form, *form.bind(parameters)

    def _before_statement(self, *args: Any) -> None:
        args[4].migrator_began = self.threads.clock.monotonic()

    def _after_statement(self, *args: Any) -> None:
        if self.on_statement is not None:
            self.on_statement(self.threads.clock.monotonic() - args[4].migrator_began)

    def _on_checkin(self, _connection: Any, record: Any) -> None:
        record.info['used_at'] = self.threads.clock.monotonic()

    def _on_checkout(self, connection: Any, record: Any, _proxy: Any) -> None:
        """Test a connection that was idle for long or that the server may have closed.

        If it is broken, SQLAlchemy replaces all that are as old.
        """
        used_at = record.info.get('used_at')
        if used_at is None or (self.threads.clock.monotonic() - used_at < _IDLE and not _has_input(connection)):
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
        now = self.threads.clock.now()
        at, answers = self._later
        if at != now:
            at, answers = self._later = now, {}
        answer = answers.get(seconds)
        if answer is None:
            answer = answers[seconds] = columns.sqlite_later(now, seconds)
        return answer

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
            # The clock of columns.later depends on the time zone. lock_wait_timeout is the limit for the locks of whole
            # tables.
            cursor.execute(
                "SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = %s, lock_wait_timeout = %s,"
                ' idle_transaction_timeout = %s',
                (seconds, seconds, seconds),
            )

    def reader(self) -> Session:
        """Return a transaction that only reads, on SQLite all as it is at its first read."""
        return Session(self, writes=False)

    def writer(self) -> Session:
        """Return a transaction that is committed at the end of the block, or rolled back if the block raises.

        The block contains only SQL.
        """
        return Session(self, writes=True)

    def check(self) -> None:
        """Read something.

        :raises migrator.exception.DatabaseUnreachable: the database is unreachable.
        """
        with self.reader() as session:
            session.execute(sa.select(1))

    def dispose(self) -> None:
        """Close every connection. The engine connects again when it is used again."""
        idle, self._idle = self._idle, []
        for connection, _process in idle:
            connection.close()
        if 'sa_engine' in vars(self):
            self.sa_engine.dispose()


class Session:
    """A transaction on one connection, for the length of a ``with`` block.

    A :class:`Prepared` statement goes straight to the driver. Another one goes through a Connection of SQLAlchemy, as
    do the errors of both, so that oslo.db classifies them.
    """

    def __init__(self, engine: Engine, writes: bool) -> None:
        self._engine = engine
        self._writes = writes
        self._lock = engine.one_writer if writes else None
        self._connection: sa.Connection | None = None
        self._driver: Any = None

    def __enter__(self) -> Session:
        """Begin the transaction."""
        engine = self._engine
        if self._writes:
            engine.sa_engine  # noqa: B018 -- connects first
            engine.boundary('begin')
        if self._lock is not None:
            self._lock.acquire()
        try:
            self._open(engine.sa_engine)
        except BaseException as error:
            if self._lock is not None:
                self._lock.release()
            self._translate(error)
            raise
        return self

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        """End the transaction.

        :raises migrator.exception.DatabaseUnreachable: the database is away, or refuses to serve.
        :raises migrator.exception.DatabaseReadOnly: the database is there and takes no changes.
        """
        try:
            try:
                if self._writes and error is None:
                    self._commit()
            finally:
                self._end()
        except BaseException as failed:
            self._translate(failed)
            raise
        if error is not None:
            self._translate(error)
        elif self._writes:
            self._engine.on_commit()
            self._engine.boundary('committed')

    def _end(self) -> None:
        """Roll back what is not committed, and give everything back, whatever fails."""
        self._driver = None
        try:
            if self._connection is not None and not self._connection.invalidated:
                if self._connection.in_transaction():
                    self._connection.rollback()
                self._proxy.info.pop(_BEGUN, None)
        finally:
            try:
                self._engine.give_back(self._proxy)
            finally:
                if self._lock is not None:
                    self._lock.release()
                self._engine.let_others_run()

    @property
    def dialect(self) -> sa.Dialect:
        """The dialect of the database."""
        return self._engine.sa_engine.dialect

    def execute(self, statement: Any, parameters: Any = None) -> Any:
        """Execute a statement and return its rows, or how many it has changed.

        :param parameters: parameter -> its value, or a list of such. An UPDATE or INSERT also sets the columns that are
            named here. For a statement that is not prepared, whatever SQLAlchemy takes.
        :returns: the rows, or how many it has changed: :class:`.statements.Rows`, or SQLAlchemy's Result.
        """
        engine = self._engine
        if self._driver is None:
            raise sa.exc.ResourceClosedError('The transaction has ended: execute within its block')
        many = None
        if isinstance(statement, Prepared):
            if isinstance(parameters, list) and len(parameters) == 1:
                (parameters,) = parameters
            many = parameters if isinstance(parameters, list) else None
            if engine.shows_statements or (many and engine.one_writer is None):
                statement = statement.statement  # SQLAlchemy sends many rows to a server in one message
        if not isinstance(statement, Prepared):
            return self._through_sqlalchemy().execute(statement, parameters or None)
        form, text, values = engine.form_of(statement, (many[0] if many else parameters) or {})
        if many:
            values = [form.bind(row)[1] for row in many]
        return self._run(form, text, values) if engine.on_statement is None else self._timed(form, text, values)

    def _timed(self, form: Form, text: str, values: Any) -> Any:
        began = self._engine.threads.clock.monotonic()
        done = self._run(form, text, values)
        if self._engine.on_statement is not None:
            self._engine.on_statement(self._engine.threads.clock.monotonic() - began)
        return done

    def _run(self, form: Form, text: str, values: Any) -> Rows:
        for statement, _commit, _executed in self._engine.watchers:
            statement(text, values)
        cursor: Any = None
        try:
            cursor = self._driver.cursor()
            (cursor.executemany if isinstance(values, list) else cursor.execute)(text, values)
            rows = cursor.fetchall() if form.has_rows else ()
        except BaseException as error:  # noqa: BLE001 -- a killed thread leaves the connection in an unknown state
            if cursor is not None and not isinstance(error, Exception):
                # A statement that is half done would keep its locks.
                with contextlib.suppress(Exception):
                    cursor.close()
            connection = self._through_sqlalchemy()
            if not connection.in_transaction():
                # Otherwise SQLAlchemy would roll back at once, and the block could go on outside of a transaction.
                connection.begin()
            connection._handle_dbapi_exception(error, text, values, cursor, None)
        for _statement, _commit, executed in self._engine.watchers:
            executed(cursor)
        found = form.result(rows, cursor)
        cursor.close()
        return found

    def _open(self, sa_engine: sa.Engine) -> None:
        try:
            self._proxy: Any = self._engine.take()
        except sa_engine.dialect.loaded_dbapi.Error as error:
            sa.Connection._handle_dbapi_exception_noconnection(error, sa_engine.dialect, sa_engine)
        self._driver = self._proxy.driver_connection
        if sa_engine.dialect.name == 'sqlite':
            # SQLite refuses a write at once, with "locked", if another process has written since the transaction's
            # first read. IMMEDIATE waits for the lock before it.
            begin = 'BEGIN IMMEDIATE' if self._writes else 'BEGIN'
            try:
                self._driver.execute(begin)
            except BaseException as error:  # noqa: BLE001 -- as above
                try:
                    self._through_sqlalchemy()._handle_dbapi_exception(error, begin, (), None, None)
                finally:
                    self._engine.give_back(self._proxy)

    def _through_sqlalchemy(self) -> sa.Connection:
        if self._connection is None:
            self._connection = sa.Connection(self._engine.sa_engine, connection=self._proxy)
        # oslo.db would send BEGIN otherwise.
        self._proxy.info[_BEGUN] = True
        return self._connection

    def _commit(self) -> None:
        if self._connection is not None and self._connection.in_transaction():
            self._connection.commit()
            return
        for _statement, commit, _executed in self._engine.watchers:
            commit()
        try:
            self._driver.commit()
        except BaseException as error:  # noqa: BLE001 -- as above
            self._through_sqlalchemy()._handle_dbapi_exception(error, None, None, None, None)

    def _translate(self, error: BaseException) -> None:
        if isinstance(error, _DATABASE_ERRORS):
            with contextlib.nullcontext() if self._writes else deadlocks_translated(), translated():
                raise error


class OneSession:
    """A replacement for an engine that reads everything in one session and writes nothing."""

    reads_only = True

    def __init__(self, session: Session) -> None:
        self._session = session

    @contextlib.contextmanager
    def reader(self) -> Iterator[Session]:
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
        raise _gave_up(error) from None


def _gave_up(error: DBDeadlock) -> exception.DatabaseUnreachable:
    reason = f'it let other transactions go first each time ({_first_line(error)})'
    return exception.DatabaseUnreachable(reason=reason)


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
        try:
            return retrying(*args, **kwargs)
        except DBDeadlock as error:
            raise _gave_up(error) from None

    return wrapped


def engine_from_conf(conf: cfg.ConfigOpts, threads: executors.Threads, **overrides: Any) -> Engine:
    """Return the engine of ``[database] connection``; it connects when it is first used.

    :param overrides: options of oslo.db that replace the configured ones, such as ``max_retries=0`` for an error at
        once.
    :raises migrator.exception.ConfigurationError: the URL is missing or invalid, or its driver is not installed.
    """
    connection, given = options.settings(conf, **overrides)
    return Engine(connection, threads, **given)
