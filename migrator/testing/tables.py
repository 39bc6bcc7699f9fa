# SPDX-License-Identifier: Apache-2.0

"""Repeated reads of whole tables of a SQLite file, which keep the objects of unchanged rows.

A monitor of a simulated cloud reads all tables after every commit, and a test that waits for a status reads the
migrations after every event. A session and a query for each read would cost more than everything else that they do.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

from migrator.db import cleanups, drains, models, services
from migrator.objects import Drain, Member, Service
from migrator.saga import log

#: Table -> its model, and the function that converts a row to an object.
TABLES: dict[str, tuple[type[models.Base], Callable[[Any], Any]]] = {
    'migrations': (models.Migration, models.migration),
    'instances': (models.Instance, models.instance),
    'saga_log': (models.SagaLog, functools.partial(models.of_row, log.Entry)),
    'cleanups': (models.Cleanup, functools.partial(models.of_row, cleanups.Cleanup)),
    'services': (models.Service, functools.partial(models.of_row, Service)),
    'conductors': (models.Conductor, functools.partial(models.of_row, services.ConductorBoot)),
    'compute_nodes': (models.ComputeNode, models.node),
    'drains': (drains.DrainRow, functools.partial(models.of_row, Drain)),
    'drain_members': (drains.DrainMember, functools.partial(models.of_row, Member)),
}


class Row:
    """A row with its columns as attributes.

    :ivar object: the object that the methods of the table return for the row.
    """

    object: Any

    def __init__(self, **columns: Any) -> None:
        vars(self).update(columns)

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError; the method only shows a type checker that there are more attributes."""
        raise AttributeError(name)


class Tables:
    """The tables of a SQLite file, read by one connection that is opened when it is needed.

    :param file: the database. Its tables must exist when the first one is read.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None
        self._tables = {name: _Table(*found) for name, found in TABLES.items()}
        #: What was read since the last commit of anyone else, whose number is the version.
        self._read: dict[str, list[Row]] = {}
        self._version: int | None = None

    def read(self, table: str) -> list[Row]:
        """Return every row of a table, in the order in which they were inserted."""
        if self._connection is None:
            self._connection = sqlite3.connect(f'file:{self._file}?mode=ro', uri=True, isolation_level=None)
            self._version = None
        (version,) = self._connection.execute('PRAGMA data_version').fetchone()
        if version != self._version:
            self._version = version
            self._read.clear()
        if table not in self._read:
            self._read[table] = list(self._tables[table].read(self._connection))
        return list(self._read[table])

    def close(self) -> None:
        """Close the connection; the next read opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Table:
    def __init__(self, model: type[models.Base], convert: Callable[[Any], Any]) -> None:
        self._processors = models.from_sqlite(model)
        names = ', '.join(f'"{name}"' for name, _, _ in self._processors)
        self._query = f'SELECT rowid, {names} FROM "{model.__tablename__}" ORDER BY rowid'  # noqa: S608 -- the schema's own names
        self._convert = convert
        self._known: dict[int, tuple[tuple[Any, ...], Row]] = {}

    def read(self, connection: sqlite3.Connection) -> Iterator[Row]:
        known, self._known = self._known, {}
        for raw in connection.execute(self._query):
            before = known.get(raw[0])
            row = before[1] if before is not None and before[0] == raw else self._row(raw[1:])
            self._known[raw[0]] = raw, row
            yield row

    def _row(self, raw: tuple[Any, ...]) -> Row:
        row = Row(
            **{
                name: value if process is None else process(value)
                for (_, name, process), value in zip(self._processors, raw, strict=True)
            }
        )
        row.object = self._convert(row)
        return row
