# SPDX-License-Identifier: Apache-2.0

"""Whole tables of a SQLite file, over and over: what has not changed since the last reading is not made again.

For who looks at a simulated cloud after every commit, where a session and a query for each table would cost more than
all that is being looked at.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy.dialects import sqlite

from migrator.db import cleanups, models, rows

#: Table -> its model, and what makes an object of a row.
TABLES: dict[str, tuple[type[models.Base], Callable[[Any], Any]]] = {
    'migrations': (models.Migration, rows.migration),
    'instances': (models.Instance, rows.instance),
    'saga_log': (models.SagaLog, rows.entry),
    'host_debts': (models.HostCleanup, cleanups.cleanup),
    'services': (models.Service, rows.service),
    'compute_nodes': (models.ComputeNode, rows.node),
}


class Row:
    """A row, its columns being attributes; ``object`` is what the methods of the tables return for it."""

    object: Any

    def __init__(self, **columns: Any) -> None:
        vars(self).update(columns)

    def __getattr__(self, name: str) -> Any:
        """Tell a type checker that there are columns; there is no other attribute."""
        raise AttributeError(name)


class Tables:
    """Reads tables by one connection of its own, opened when it is needed.

    :param file: the database; it has its tables when the first of them is read.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None
        self._tables = {name: _Table(*found) for name, found in TABLES.items()}

    def read(self, table: str) -> list[Row]:
        """Return every row of a table, in the order in which they were inserted."""
        if self._connection is None:
            self._connection = sqlite3.connect(f'file:{self._file}?mode=ro', uri=True, isolation_level=None)
        return list(self._tables[table].read(self._connection))

    def close(self) -> None:
        """Close the connection; the next reading opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Table:
    def __init__(self, model: type[models.Base], made: Callable[[Any], Any]) -> None:
        dialect = sqlite.dialect()
        columns = model.__table__.columns
        self._processors = [
            (column.name, column.type.dialect_impl(dialect).result_processor(dialect, None)) for column in columns
        ]
        names = ', '.join(f'"{column.name}"' for column in columns)
        self._query = f'SELECT rowid, {names} FROM "{model.__tablename__}" ORDER BY rowid'  # noqa: S608 -- the schema's own names
        self._made = made
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
                for (name, process), value in zip(self._processors, raw, strict=True)
            }
        )
        row.object = self._made(row)
        return row
