# SPDX-License-Identifier: Apache-2.0

"""The types of columns, and the database's clock.

The types change a value from a host, a driver or Placement so that the database can store it. An odd or too long text
must not keep a host from registering, or a migration from being settled. The REST API refuses such values before they
are stored (:meth:`migrator.api.request.Request.json_document`).
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext import compiler
from sqlalchemy.sql import functions

from migrator import objects
from migrator.objects import base

#: Maximum characters in a column of type TEXT. MySQL's holds 65,535 bytes, with four bytes for a character.
LONGEST_TEXT = 16_000
#: Maximum depth of nested objects and arrays in a column of type JSON, which is MariaDB's.
DEEPEST_JSON = 31


class UTCDateTime(sa.types.TypeDecorator[datetime.datetime]):
    """A time in UTC with microseconds, naive in the database and aware in Python.

    An aware time leaves a reader no doubt about the zone.
    """

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        """Return the type for a dialect; MySQL needs an option for the fraction of a second."""
        if dialect.name == 'mysql':
            from sqlalchemy.dialects import mysql

            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(sa.DateTime())

    def process_bind_param(self, value: datetime.datetime | None, dialect: Any) -> datetime.datetime | None:
        """Return the naive form, in UTC."""
        return None if value is None else value.astimezone(datetime.UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime.datetime | None, dialect: Any) -> datetime.datetime | None:
        """Return the aware form."""
        return None if value is None else value.replace(tzinfo=datetime.UTC)


class Text(sa.types.TypeDecorator[str]):
    """A text in which unstorable characters are escaped, and which is cut to the length of the column.

    :param length: the length of the column in characters; None for a column of type TEXT.
    """

    impl: Any = sa.String
    cache_ok = True

    def __init__(self, length: int | None = None) -> None:
        super().__init__()
        self.length = length
        self.impl = sa.Text() if length is None else sa.String(length)

    def process_bind_param(self, value: Any, dialect: Any) -> str | None:
        """Return the text as it is stored and compared."""
        return None if value is None else base.text(str(value), self.length or LONGEST_TEXT)


class Json(sa.types.TypeDecorator[Any]):
    """A JSON document in which NaN, infinity and values that are nested too deep become null.

    Texts are escaped as in :class:`Text`. A flavor is stored as its fields.
    """

    impl = sa.JSON
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        """Return the document as it is stored."""
        return _storable(dataclasses.asdict(value) if isinstance(value, objects.Flavor) else value, DEEPEST_JSON)


def _storable(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return base.text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (dict, list, tuple)) and not depth:
        return None
    if isinstance(value, dict):
        return {base.text(str(name)): _storable(item, depth - 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_storable(item, depth - 1) for item in value]
    return value


class Whole(sa.types.TypeDecorator[int]):
    """A whole number that is limited to the range of the column; anything else is stored as 0.

    :param bits: the size of the column, 32 or 64.
    """

    impl: Any = sa.Integer
    cache_ok = True

    def __init__(self, bits: int = 32) -> None:
        super().__init__()
        self.bits = bits
        self.impl = sa.Integer() if bits <= 32 else sa.BigInteger()

    def process_bind_param(self, value: Any, dialect: Any) -> int | None:
        """Return the number as it is stored and compared."""
        if value is None:
            return None
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            return 0
        most = 1 << self.bits - 1
        return min(max(number, -most), most - 1)


class later(functions.FunctionElement[datetime.datetime]):  # noqa: N801 -- an SQL function, in SQLAlchemy's spelling
    """The database's time of this statement plus some seconds; ``later(0)`` is now."""

    type = UTCDateTime()
    inherit_cache = True
    name = 'later'

    def __init__(self, seconds: float | str) -> None:
        self.is_now = seconds == 0
        if isinstance(seconds, str):  # the name of a parameter of the statement
            super().__init__(sa.bindparam(seconds, type_=sa.Float()))
        else:
            super().__init__(sa.bindparam('seconds', float(seconds), type_=sa.Float(), unique=True))


def now() -> later:
    """Return the expression for the database's present time, the only clock for leases."""
    return later(0)


def set_to_now(values: Mapping[str, Any]) -> list[str]:
    """Return the columns whose new value is :func:`now`.

    :raises ValueError: one is another time of the database, which a prepared statement does not have.
    """
    times = {name: value for name, value in values.items() if isinstance(value, later)}
    for name, value in times.items():
        if not value.is_now:
            raise ValueError(f'{name} has the new value {value}: only now() is possible')
    return [*times]


def _seconds(element: later, sql: Any, **kw: Any) -> str:
    return str(sql.process(element.clauses, **kw))


@compiler.compiles(later)
def _later(element: later, sql: Any, **kw: Any) -> str:
    # UTC_TIMESTAMP does not advance within a statement, and a statement may wait for a lock. SYSDATE is in the time
    # zone of the session, which the engine sets to UTC.
    return f'TIMESTAMPADD(MICROSECOND, {_seconds(element, sql, **kw)} * 1000000, SYSDATE(6))'


@compiler.compiles(later, 'sqlite')
def _later_sqlite(element: later, sql: Any, **kw: Any) -> str:
    return f'migrator_later({_seconds(element, sql, **kw)})'


@compiler.compiles(later, 'postgresql')
def _later_postgresql(element: later, sql: Any, **kw: Any) -> str:
    # now() does not advance within a transaction, and a transaction may wait for a lock.
    seconds = _seconds(element, sql, **kw)
    return f"(timezone('utc', clock_timestamp()) + {seconds} * interval '1 second')"


class unindexed(functions.FunctionElement[Any]):  # noqa: N801 -- an SQL function, in SQLAlchemy's spelling
    """A column for which SQLite uses no index; the other databases choose by their statistics.

    SQLite has no statistics. It sorts by an index although another one finds the few rows that the query wants, and it
    takes a unique column for one that is NULL in a single row.
    """

    inherit_cache = True
    name = 'unindexed'


@compiler.compiles(unindexed)
def _unindexed(element: unindexed, sql: Any, **kw: Any) -> str:
    return str(sql.process(element.clauses, **kw))


@compiler.compiles(unindexed, 'sqlite')
def _unindexed_sqlite(element: unindexed, sql: Any, **kw: Any) -> str:
    return f'+{sql.process(element.clauses, **kw)}'


def sqlite_later(now_: datetime.datetime, seconds: float) -> str:
    """Return the result of SQLite's ``migrator_later``: a text as SQLAlchemy stores times there."""
    moment = now_.astimezone(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return moment.replace(tzinfo=None).isoformat(' ', 'microseconds')


def aware(moment: datetime.datetime | str) -> datetime.datetime:
    """Return an aware time in UTC for a time that the database returned outside of a column."""
    found = datetime.datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
