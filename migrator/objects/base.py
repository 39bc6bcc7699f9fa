# SPDX-License-Identifier: Apache-2.0

"""Plain frozen data that travels as JSON, with a name and a version.

An object goes over the wire as ``{"object": name, "version": "1.0", "data": {...}}``. A receiver that is older than
the sender ignores unknown fields. A receiver that is newer fills missing fields with their defaults. So a new field
needs a default (minor version), and no field is ever renamed or changes its meaning.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import enum
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from migrator import exception

D = TypeVar('D')
T = TypeVar('T', bound='Versioned')
_REGISTRY: dict[str, type[Versioned]] = {}
#: The types whose values travel as they are. Most values are of one of them.
_PLAIN = frozenset({str, int, float, bool, type(None)})
#: The keys of the form of an object, and of a time.
_OBJECT, _TIME = frozenset({'object', 'version', 'data'}), frozenset({'time'})
#: Returns the names of the fields of a class, in order. Each command, report and row asks for them.
fields: Callable[[Any], dict[str, None]] = functools.cache(
    lambda cls: dict.fromkeys(field.name for field in dataclasses.fields(cls))
)


def with_fields(cls: type[D], values: Mapping[str, Any]) -> D:
    """Return the object of a dataclass, of which every field is given.

    The generated ``__init__`` of a frozen one sets its fields one by one, which takes four times as long.
    """
    made = object.__new__(cls)
    vars(made).update(values)
    return made


def of_stored(cls: type[D], values: Mapping[str, Any]) -> D:
    """Return the object of a dataclass from stored values, without those that this release does not know."""
    return cls(**{name: values[name] for name in fields(cls) if name in values})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Versioned:
    """The base of every object. A subclass is registered under its name when it is defined."""

    VERSION: ClassVar[str] = '1.0'

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _REGISTRY[cls.__name__] = cls

    def replace(self: T, **changes: Any) -> T:
        """Return a copy with some fields changed."""
        if hasattr(self, '__post_init__') or not changes.keys() <= fields(type(self)).keys():
            return dataclasses.replace(self, **changes)
        return with_fields(type(self), vars(self) | changes)

    def to_primitive(self) -> dict[str, Any]:
        """Return the JSON-safe form."""
        data = {name: to_primitive(getattr(self, name)) for name in fields(type(self))}
        return {'object': type(self).__name__, 'version': self.VERSION, 'data': data}

    @classmethod
    def from_primitive(cls: type[T], primitive: dict[str, Any]) -> T:
        """Return the object that :meth:`to_primitive` wrote.

        :raises ValueError: the primitive belongs to another object, or to another major version.
        """
        if primitive.get('object') != cls.__name__:
            raise ValueError(f'the primitive is a {primitive.get("object")!r}: expected a {cls.__name__}')
        if str(primitive.get('version')).split('.')[0] != cls.VERSION.split('.')[0]:
            raise ValueError(f'{cls.__name__} {primitive.get("version")} is not compatible with {cls.VERSION}')
        known = fields(cls)
        data = {name: from_primitive(value) for name, value in primitive['data'].items() if name in known}
        return with_fields(cls, data) if len(data) == len(known) and not hasattr(cls, '__post_init__') else cls(**data)


def to_primitive(value: Any) -> Any:
    """Return a JSON-safe form of a value that may hold objects, times and enumerations."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Versioned):
        return value.to_primitive()
    if isinstance(value, datetime.datetime):
        return {'time': value.isoformat()}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): to_primitive(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_primitive(item) for item in value]
    if isinstance(value, (str, int, float)):
        return value
    raise TypeError(f'{type(value).__name__} cannot go over the wire')


def cannot_travel(value: Any) -> str | None:
    """Return the place and type of the first part that :func:`to_primitive` refuses, or None."""
    return _first_refused(value, '')


def _first_refused(value: Any, where: str) -> str | None:
    parts: Iterable[tuple[str, Any]]
    if isinstance(value, Versioned):
        dot = '.' if where else ''
        parts = ((f'{dot}{field.name}', getattr(value, field.name)) for field in dataclasses.fields(value))
    elif isinstance(value, dict):
        parts = ((f'[{key!r}]', item) for key, item in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = ((f'[{number}]', item) for number, item in enumerate(value))
    else:
        try:
            to_primitive(value)
        except TypeError:
            return f'{where or "something"} of type {type(value).__name__}'
        return None
    return next(filter(None, (_first_refused(item, where + place) for place, item in parts)), None)


def from_primitive(value: Any) -> Any:
    """Return the value that :func:`to_primitive` wrote. Lists stay lists, and enumerations stay strings."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        if value.keys() == _OBJECT:
            return _REGISTRY[value['object']].from_primitive(value)
        if value.keys() == _TIME:
            return datetime.datetime.fromisoformat(value['time'])
        return {key: from_primitive(item) for key, item in value.items()}
    return [from_primitive(item) for item in value] if isinstance(value, list) else value


def text(value: str, limit: int | None = None) -> str:
    """Return a text in a form that every database can store.

    Characters that no encoding has, such as an invalid byte from a driver, are escaped.

    :param limit: the greatest length in characters; a longer text is cut and ends with three dots. None: no limit.
    """
    if not value.isascii():
        value = value.encode('utf-8', 'backslashreplace').decode()
    value = value.replace('\0', '\\x00')
    return value if limit is None or len(value) <= limit else f'{value[: limit - 3]}...'


def printable(text: str) -> str:
    """Return a text for a log line or a terminal, as one line without control characters."""
    if text.isprintable():
        return text
    return ''.join(one if one.isprintable() else one.encode('unicode_escape').decode() for one in text)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most like another, as the end of an error; empty if none is like it."""
    near = difflib.get_close_matches(word, [*known], n=1)
    return f'; is {near[0]} meant?' if near else ''


def no_host(host: str, known: Iterable[str]) -> exception.ComputeHostNotFound:
    """Return the error about an unknown host, which names the known one that is most like it."""
    near = nearest(host, sorted(known))
    message = f'Compute host {host} could not be found{near}' if near else None
    return exception.ComputeHostNotFound(message, host=host)


def count(number: int, one: str, more: str | None = None) -> str:
    """Return a number with its noun, such as ``1 guest`` or ``2 guests``.

    :param one: the words after 1.
    :param more: the words after any other number; None: ``one`` and an s.
    """
    return f'{number} {one if number == 1 else more or f"{one}s"}'
