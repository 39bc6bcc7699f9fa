# SPDX-License-Identifier: Apache-2.0

"""Repeated reads of whole tables of a SQLite file, which keep the objects of unchanged rows.

A monitor of a simulated cloud reads all tables after every commit, and a test that waits for a status reads the
migrations after every event. A session and a query for each read would cost more than everything else that they do.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Iterable
from typing import Any

from migrator.db import cleanups, conductors, models
from migrator.db.guests import differences
from migrator.db.maintenances import rows
from migrator.db.sql import drain_rows
from migrator.drain.maintenance.turns import Maintenance, Turn
from migrator.objects import Drain, Member, Service, base
from migrator.objects.difference import Difference
from migrator.saga import log

#: Table -> its model, and the function that converts a row to an object.
TABLES: dict[str, tuple[type[models.Base], Callable[[Any], Any]]] = {
    'migrations': (models.Migration, models.migration),
    'instances': (models.Instance, models.instance),
    'saga_log': (models.SagaLog, functools.partial(models.of_row, log.Entry)),
    'cleanups': (models.Cleanup, functools.partial(models.of_row, cleanups.Cleanup)),
    'services': (models.Service, functools.partial(models.of_row, Service)),
    'conductors': (models.Conductor, functools.partial(models.of_row, conductors.ConductorBoot)),
    'compute_nodes': (models.ComputeNode, models.node),
    'drains': (drain_rows.DrainRow, functools.partial(models.of_row, Drain)),
    'drain_members': (drain_rows.DrainMember, functools.partial(models.of_row, Member)),
    'maintenances': (rows.MaintenanceRow, functools.partial(models.of_row, Maintenance)),
    'maintenance_turns': (rows.MaintenanceTurn, functools.partial(models.of_row, Turn)),
    'guest_differences': (differences.GuestDifference, functools.partial(models.of_row, Difference)),
}
#: The columns that have another form in an object.
_CONVERTED = frozenset({'flavor', 'old_flavor', 'new_flavor', 'providers'})
#: The tables whose rows are never changed, and deleted by a purge alone.
_ONLY_GROW = ('saga_log',)


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
        return self.read_all((table,))[table]

    def read_all(self, tables: Iterable[str]) -> dict[str, list[Row]]:
        """Return table -> its rows, for some tables."""
        if self._connection is None:
            self._connection = sqlite3.connect(f'file:{self._file}?mode=ro', uri=True, isolation_level=None)
            self._version = None
        (version,) = self._connection.execute('PRAGMA data_version').fetchone()
        if version != self._version:
            self._version = version
            self._read.clear()
        for table in tables:
            if table not in self._read:
                self._read[table] = list(self._tables[table].read(self._connection))
        return {table: list(self._read[table]) for table in tables}

    def forget(self) -> None:
        """Forget all rows, since the tables were emptied."""
        for table in self._tables.values():
            table.known.clear()

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
        self._newer = self._query.replace(' ORDER BY', ' WHERE rowid > ? ORDER BY')
        self._count = f'SELECT count(*) FROM "{model.__tablename__}"'  # noqa: S608 -- the schema's own name
        self._only_grows = model.__tablename__ in _ONLY_GROW
        self._convert = convert
        #: Number of a row -> its form in the file, and the row.
        self.known: dict[int, tuple[tuple[Any, ...], Row]] = {}
        self._rows: list[Row] = []

    def read(self, connection: sqlite3.Connection) -> list[Row]:
        if self._only_grows and self.known:
            newer = connection.execute(self._newer, (next(reversed(self.known)),)).fetchall()
            (count,) = connection.execute(self._count).fetchone()
            if count == len(self.known) + len(newer):
                rows = [self._row(raw[1:]) for raw in newer]
                self.known |= {raw[0]: (raw, row) for raw, row in zip(newer, rows, strict=True)}
                self._rows += rows
                return self._rows
        known, self.known = self.known, {}
        self._rows = []
        for raw in connection.execute(self._query):
            before = known.get(raw[0])
            if before is None:
                row = self._row(raw[1:])
            else:
                row = before[1] if before[0] == raw else self._changed(before[0][1:], before[1], raw[1:])
            self.known[raw[0]] = raw, row
            self._rows.append(row)
        return self._rows

    def _row(self, raw: tuple[Any, ...]) -> Row:
        row = Row(
            **{
                name: value if process is None else process(value)
                for (_, name, process), value in zip(self._processors, raw, strict=True)
            }
        )
        row.object = self._convert(row)
        return row

    def _changed(self, before: tuple[Any, ...], known: Row, raw: tuple[Any, ...]) -> Row:
        """Return a row of which another form is known; most writes change few of its columns."""
        changes = {
            name: value if process is None or value is None else process(value)
            for (_, name, process), old, value in zip(self._processors, before, raw, strict=True)
            if old != value
        }
        row = Row()
        vars(row).update(vars(known), **changes)
        kind = type(known.object)
        if changes.keys() & _CONVERTED:
            row.object = self._convert(row)
        else:
            fields = base.fields(kind)
            of_object = {name: value for name, value in changes.items() if name in fields}
            row.object = base.with_fields(kind, vars(known.object) | of_object)
        return row
