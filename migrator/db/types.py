# SPDX-License-Identifier: Apache-2.0

"""Column types and the one clock of the database, for every dialect.

What hosts, drivers and Placement say is stored as far as a database can hold it, which the types see to: a text that is
odd or too long must keep no host from registering, and no migration from being settled. A request to the REST API that
says such a thing is refused before (:meth:`migrator.api.request.Request.json_document`).
"""

from __future__ import annotations

import datetime
import math
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext import compiler
from sqlalchemy.sql import functions

from migrator.objects import base

#: Characters in a column of type TEXT, of which MySQL's holds 65,535 bytes, four a character.
LONGEST_TEXT = 16_000
#: Objects and arrays within each other in a column of type JSON.
DEEPEST_JSON = 50


class UTCDateTime(sa.types.TypeDecorator[datetime.datetime]):
    """A time in UTC with microseconds: stored naive, aware in Python, so that no reader can mistake its zone."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        """Give MySQL the fraction of a second that the others have anyway."""
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
    """A text: what no database can hold is escaped, and what is too long is cut.

    :param length: of the column, in characters; None: it is of type TEXT.
    """

    impl: Any = sa.String
    cache_ok = True

    def __init__(self, length: int | None = None) -> None:
        super().__init__()
        self.length = length
        self.impl = sa.Text() if length is None else sa.String(length)

    def process_bind_param(self, value: Any, dialect: Any) -> str | None:
        """Return the text that is stored, or looked for."""
        return None if value is None else base.text(str(value), self.length or LONGEST_TEXT)


class Json(sa.types.TypeDecorator[Any]):
    """A document: texts as in :class:`Text`, a number that is none is null, and what is nested too deep is left out."""

    impl = sa.JSON
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        """Return the document that is stored."""
        return _storable(value, DEEPEST_JSON)


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
    """A whole number: one that the column cannot hold is its nearest, and what is no number is 0.

    :param bits: of the column, 32 or 64.
    """

    impl: Any = sa.Integer
    cache_ok = True

    def __init__(self, bits: int = 32) -> None:
        super().__init__()
        self.bits = bits
        self.impl = sa.Integer() if bits <= 32 else sa.BigInteger()

    def process_bind_param(self, value: Any, dialect: Any) -> int | None:
        """Return the number that is stored, or looked for."""
        if value is None:
            return None
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            return 0
        most = 1 << self.bits - 1
        return min(max(number, -most), most - 1)


class later(functions.FunctionElement[datetime.datetime]):  # noqa: N801 -- an SQL function, in SQLAlchemy's spelling
    """The database's time of this statement, so many seconds from now: ``later(0)`` is now."""

    type = UTCDateTime()
    inherit_cache = True
    name = 'later'

    def __init__(self, seconds: float) -> None:
        super().__init__(sa.bindparam('seconds', float(seconds), type_=sa.Float(), unique=True))


def now() -> later:
    """Return the expression for the database's present time; the only clock that leases are held by."""
    return later(0)


def _seconds(element: later, sql: Any, **kw: Any) -> str:
    return str(sql.process(element.clauses, **kw))


@compiler.compiles(later)
def _later(element: later, sql: Any, **kw: Any) -> str:
    return f'TIMESTAMPADD(MICROSECOND, {_seconds(element, sql, **kw)} * 1000000, UTC_TIMESTAMP(6))'


@compiler.compiles(later, 'sqlite')
def _later_sqlite(element: later, sql: Any, **kw: Any) -> str:
    return f'migrator_later({_seconds(element, sql, **kw)})'


@compiler.compiles(later, 'postgresql')
def _later_postgresql(element: later, sql: Any, **kw: Any) -> str:
    # now() stands still within a transaction, which may be the very one that waited for a lock.
    seconds = _seconds(element, sql, **kw)
    return f"(timezone('utc', clock_timestamp()) + {seconds} * interval '1 second')"


def sqlite_later(now_: datetime.datetime, seconds: float) -> str:
    """Return what SQLite's ``migrator_later`` answers: text in the form in which SQLAlchemy stores times there."""
    moment = now_.astimezone(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return moment.replace(tzinfo=None).strftime('%Y-%m-%d %H:%M:%S.%f')


def aware(moment: datetime.datetime | str) -> datetime.datetime:
    """Return a time that the database answered outside a column, aware, in UTC."""
    found = datetime.datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
