# SPDX-License-Identifier: Apache-2.0

"""The databases on which figures are measured, and what counts the use that a cloud makes of one."""

from __future__ import annotations

import contextlib
import gc
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa

from migrator import executors
from migrator.db import models
from migrator.db.sql.engine import Engine
from migrator.db.sql.watching import watch
from migrator.testing import backends, tables
from migrator.testing.fake_placement import service

SQLITE, POSTGRESQL, MARIADB = 'sqlite', 'postgresql', 'mariadb'
NAMES = (SQLITE, POSTGRESQL, MARIADB)


class _Backend(backends.Backend):
    """A database with its schema, and the fake Placement.

    :param url: of the database.
    """

    def __init__(self, directory: str, url: str) -> None:
        super().__init__(directory)
        self._url = url
        if not url.startswith('sqlite'):
            self.tables: Any = _Tables(url)

    def placement(self) -> Any:
        """Return the fake Placement, which takes 10,000 providers in no time."""
        return service.FakePlacement()

    def _new_engine(self, threads: executors.Threads) -> Engine:
        fast = {'sqlite_synchronous': False} if self._url.startswith('sqlite') else {}
        return Engine(self._url, threads, **fast)


class _Tables:
    """See :class:`migrator.testing.tables.Tables`, for a database on a server."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url)

    def read(self, table: str) -> list[Any]:
        """Return every row of a table, in the order in which they were inserted."""
        model, convert = tables.TABLES[table]
        query = sa.select(model.__table__).order_by(*model.__table__.primary_key.columns)
        with self._engine.connect() as connection:
            return [types.SimpleNamespace(object=convert(row)) for row in connection.execute(query)]

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()


class Site:
    """Where the clouds of one run have their databases.

    :param server: the database server; None: SQLite, in this process.
    """

    def __init__(self, exits: contextlib.ExitStack, server: Any = None) -> None:
        self._exits = exits
        self._server = server
        self._made = 0

    def backend(self) -> backends.Backend:
        """Return an empty database with a Placement of its own."""
        self._made += 1
        directory = self._exits.enter_context(tempfile.TemporaryDirectory(dir=backends.in_memory()))
        if self._server is None:
            return _Backend(directory, f'sqlite:///{directory}/migrator.sqlite')
        return _Backend(directory, self._server.create_database(f'figures{self._made}'))

    def cpu(self) -> float:
        """Return the CPU seconds of this process and of the server so far."""
        if self._server is None:
            return time.process_time()
        from benchmarks import on_services

        return time.process_time() + on_services.cpu_of(self._server.pid)

    @property
    def turn(self) -> float:
        """The CPU seconds from which a measurement is exact: the kernel counts a server's in hundredths."""
        return 0.02 if self._server is None else 0.2


def analyze(engine: sa.Engine) -> None:
    """Let a server count the rows of its tables, as it does by itself some time after they were inserted."""
    if engine.dialect.name == SQLITE:
        return
    names = ', '.join(models.Base.metadata.tables)
    with engine.connect() as connection:
        connection.exec_driver_sql('ANALYZE' if engine.dialect.name == POSTGRESQL else f'ANALYZE TABLE {names}')
        connection.commit()


def missing(name: str) -> str | None:
    """Say what a database needs that is not installed; None if nothing."""
    if name == SQLITE:
        return None
    from tests.real.servers import mariadb, postgresql

    return {POSTGRESQL: postgresql, MARIADB: mariadb}[name].missing()


@contextlib.contextmanager
def site(name: str) -> Iterator[Site]:
    """Start the server of a database, if it has one, and end it."""
    with contextlib.ExitStack() as exits:
        if name == SQLITE:
            yield Site(exits)
            return
        from tests.real.servers import mariadb, postgresql, process

        workspace = process.Workspace()
        exits.callback(workspace.close)
        server = {POSTGRESQL: postgresql.PostgreSQL, MARIADB: mariadb.MariaDB}[name](workspace)
        server.start()
        yield Site(exits, server)


class Counter:
    """What a cloud sends to its database, as soon as :meth:`counting` has begun.

    :ivar statements: including those that check a connection.
    :ivar rows: that were fetched.
    :ivar commits: of transactions.
    :ivar texts: each statement with its parameters.

    :param counts: whether what runs now counts.
    """

    def __init__(self, engine: Engine, counts: Callable[[], bool] = lambda: True) -> None:
        self._counts = counts
        self._on = False
        self.begin()
        watch(engine, self._note_statement, lambda: self._add('commits'), self._note_result)
        take = engine.take

        def taken() -> Any:
            connection = take()
            self._count_rows_of(connection.driver_connection)
            return connection

        engine.take = taken  # type: ignore[method-assign]  # the rows of SQLite are counted by its connections

    def begin(self) -> None:
        """Forget what was counted."""
        self.statements = self.rows = self.commits = 0
        self.texts: list[tuple[str, Any]] = []

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count from zero within the block."""
        self.begin()
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def _add(self, what: str, number: int = 1) -> None:
        if self._on and self._counts():
            setattr(self, what, getattr(self, what) + number)

    def _note_statement(self, text: str, parameters: Any) -> None:
        if self._on and self._counts():
            self.statements += 1
            self.texts.append((text, parameters))

    def _note_result(self, cursor: Any) -> None:
        # What SQLite fetches is counted row by row.
        if cursor.description is not None and cursor.rowcount > 0:
            self._add('rows', cursor.rowcount)

    def _count_rows_of(self, connection: Any) -> None:
        if hasattr(connection, 'row_factory'):
            connection.row_factory = self._on_row if self._on else None

    def _on_row(self, _cursor: Any, row: Any) -> Any:
        self._add('rows')
        return row


def least(cpu: Callable[[], float], functions: list[Callable[[], Any]], rounds: int, least_: float) -> list[float]:
    """Return the least CPU seconds of one call of each function.

    They take turns, so that a busy machine slows down all of them.

    :param rounds: how often it is the turn of each.
    :param least_: the CPU seconds that one turn should take at least; 0: a turn is one call.
    """
    repeats = []
    for function in functions:
        began = cpu()
        function()
        took = max(cpu() - began, 1e-6)
        repeats.append(max(1, min(1000, int(least_ / took))))
    gc.collect()
    gc.disable()
    try:
        found = [float('inf')] * len(functions)
        for _ in range(rounds):
            for place, (function, repeat) in enumerate(zip(functions, repeats, strict=True)):
                began = cpu()
                for _ in range(repeat):
                    function()
                found[place] = min(found[place], (cpu() - began) / repeat)
            gc.collect()
        return found
    finally:
        gc.enable()
