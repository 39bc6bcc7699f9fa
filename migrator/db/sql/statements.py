# SPDX-License-Identifier: Apache-2.0

"""Statements that an engine compiles once, how it sends them, and what they return."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

#: The most values of lists with which the text of a statement is kept.
_SHORT = 50


class Prepared:
    """A statement of SQLAlchemy that each engine compiles once for the same names of parameters.

    SQLAlchemy caches the text of a statement, and yet spends ten times as long on an execution as the driver of SQLite.

    :param statement: a SELECT, INSERT, UPDATE or DELETE, which has parameters for all that varies.
    """

    def __init__(self, statement: Any) -> None:
        self.statement = statement


class Form:
    """A prepared statement as one engine sends it, for some names of parameters.

    :param names: the parameters that its executions give.
    """

    def __init__(self, statement: Any, dialect: Any, names: Sequence[str]) -> None:
        self._dialect = dialect
        self._compiled = compiled = statement.compile(dialect=dialect, column_keys=names)
        self._constants = {name: bind.effective_value for bind, name in compiled.bind_names.items()}
        self._constants |= {column.key: _scalar(column.default) for column in compiled.insert_prefetch}
        self._constants |= {column.key: _scalar(column.onupdate) for column in compiled.update_prefetch}
        self.has_rows = bool(compiled._result_columns)
        keys = {name: bind.key for bind, name in compiled.bind_names.items()}
        #: The name of a parameter in the text -> that in an execution, for those that vary.
        self._given = {name: key for name, key in keys.items() if key in names or compiled.binds[name].required}
        self._lists = [key for name, key in self._given.items() if compiled.binds[name] in compiled.post_compile_params]
        #: The lengths of the lists -> the text, and for each of its parameters how to get its value.
        self._texts: dict[tuple[int, ...], tuple[str, list[tuple[Any, ...]]]] = {}
        self._row: Any = None
        self._converters: list[tuple[int, Any]] = []

    def bind(self, parameters: Mapping[str, Any]) -> tuple[str, Any]:
        """Return the text and the values for the driver."""
        lengths = tuple([len(parameters[key]) for key in self._lists]) if self._lists else ()
        found = self._texts.get(lengths)
        if found is None:
            found = self._expanded(parameters)
            if sum(lengths) <= _SHORT:
                self._texts[lengths] = found
        text, fields = found
        values = [
            constant
            if key is None
            else (parameters[key] if index is None else parameters[key][index])
            if process is None
            else process(parameters[key] if index is None else parameters[key][index])
            for _name, key, index, process, constant in fields
        ]
        if self._compiled.positional:
            return text, tuple(values)
        return text, {field[0]: value for field, value in zip(fields, values, strict=True)}

    def result(self, rows: Sequence[Sequence[Any]], cursor: Any) -> Rows:
        """Return the result of an execution.

        :param rows: as the driver has returned them.
        """
        if not self.has_rows:
            return Rows((), cursor.rowcount)
        columns = self._compiled._result_columns
        if self._row is None:
            found = (
                column.type._cached_result_processor(self._dialect, described[1])
                for column, described in zip(columns, cursor.description, strict=True)
            )
            self._converters = [(index, one) for index, one in enumerate(found) if one is not None]
            names = [getattr(column.objects[0], 'key', column.keyname) for column in columns]
            self._row = _named(names)
        return Rows(map(self._row, self._converted(rows)), cursor.rowcount)

    def _converted(self, rows: Sequence[Sequence[Any]]) -> Iterator[Sequence[Any]]:
        for row in rows:
            values = list(row)
            for index, convert in self._converters:
                values[index] = convert(values[index])
            yield values

    def _expanded(self, parameters: Mapping[str, Any]) -> tuple[str, list[tuple[Any, ...]]]:
        compiled = self._compiled
        given = {name: parameters[key] for name, key in self._given.items()}
        state = compiled.construct_expanded_state(self._constants | given, escape_names=False)
        of = {one: (name, index) for name, each in state.parameter_expansion.items() for index, one in enumerate(each)}
        fields = []
        for one in state.positiontup if compiled.positional else state.parameters:
            name, index = of.get(one, (one, None))
            process = compiled.binds[name].type._cached_bind_processor(self._dialect)
            key = self._given.get(name)
            value = None if key is not None else state.parameters[one]
            fields.append((one, key, index, process, process(value) if process and key is None else value))
        return state.statement, fields


class Rows(list[Any]):
    """The rows that a prepared statement has returned, each a named tuple.

    The methods are those of SQLAlchemy's Result.

    :ivar rowcount: the number of rows that an INSERT, UPDATE or DELETE has matched.
    """

    def __init__(self, rows: Iterable[Any], rowcount: int = -1) -> None:
        super().__init__(rows)
        self.rowcount = rowcount

    def all(self) -> list[Any]:
        """Return all rows."""
        return self

    def scalars(self) -> Rows:
        """Return the first column of all rows."""
        return Rows(row[0] for row in self)

    def first(self) -> Any:
        """Return the first row, or None."""
        return self[0] if self else None

    def scalar(self) -> Any:
        """Return the first column of the first row, or None."""
        return self[0][0] if self else None

    def one_or_none(self) -> Any:
        """Return the only row, or None if there is none."""
        if len(self) > 1:
            raise sa.exc.MultipleResultsFound('Multiple rows were found when one or none was required')
        return self.first()

    def one(self) -> Any:
        """Return the only row."""
        if not self:
            raise sa.exc.NoResultFound('No row was found when one was required')
        return self.one_or_none()

    def scalar_one(self) -> Any:
        """Return the first column of the only row."""
        return self.one()[0]

    def scalar_one_or_none(self) -> Any:
        """Return the first column of the only row, or None if there is none."""
        row = self.one_or_none()
        return None if row is None else row[0]


def _scalar(default: Any) -> Any:
    if not default.is_scalar:
        raise TypeError(f'{default} of a column is computed for each row: a prepared statement has one value')
    return default.arg


def _named(names: Sequence[str]) -> Callable[[Iterable[Any]], Any]:
    """Return what makes a row of its values."""
    namedtuple: Any = collections.namedtuple  # mypy wants the names in the text
    make: Callable[[Iterable[Any]], Any] = namedtuple('Row', names, rename=True)._make
    return make
