# SPDX-License-Identifier: Apache-2.0

"""The JSON schemas of requests by version, a module for each resource, and how they are applied.

The ``description`` of a schema names the allowed values. The answer to an invalid request quotes it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

import jsonschema
from oslo_utils import strutils, timeutils, uuidutils

from migrator import exception
from migrator.api.request import Request, check_text
from migrator.objects import base

#: First minor version -> the schema from there on.
Table = Mapping[int, Mapping[str, Any]]

_FORMATS = jsonschema.FormatChecker(formats=())


def moment(text: str) -> datetime.datetime:
    """Return the time in a parameter, aware.

    :raises ValueError: it is not a time, or is out of range in UTC.
    """
    try:
        return timeutils.parse_isotime(text).astimezone(datetime.UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def pattern(text: str) -> re.Pattern[str]:
    """Return the regular expression in a parameter.

    :raises ValueError: it is not a valid one.
    """
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from None


_FORMATS.checks('uuid')(uuidutils.is_uuid_like)
_FORMATS.checks('date-time', raises=ValueError)(lambda value: not isinstance(value, str) or moment(value))
_FORMATS.checks('regex', raises=ValueError)(lambda value: value != '' and pattern(value) is not None)


#: The most parameters of a query, and the most values of one parameter: each is checked against its schema, and a
#: regular expression is compiled.
MOST_PARAMETERS = 100
MOST_VALUES = 10


def boolean(value: Any) -> bool:
    """Return a boolean of the API, in any of its spellings."""
    return bool(strutils.bool_from_string(value, strict=True))


def flag(given: Mapping[str, str], name: str) -> bool | None:
    """Return a boolean parameter, or None if it is not given."""
    return boolean(given[name]) if name in given else None


def body(request: Request, table: Table) -> Any:
    """Return the document in a request's body.

    :param table: its schemas by version.
    :raises migrator.exception.Invalid: the schema of the request's version does not allow it.
    """
    document = request.json_document()
    check(request, table, document)
    return document


def query(request: Request, table: Table) -> dict[str, str]:
    """Return the parameters that the version's schema knows. A repeated one has its last value.

    :raises migrator.exception.Invalid: a value is not allowed, or the version does not allow unknown parameters.
    """
    given: dict[str, list[str]] = {}
    try:
        if len(request.GET) > MOST_PARAMETERS:
            raise exception.Invalid(
                f'The query string has {len(request.GET)} parameters: send at most {MOST_PARAMETERS}.'
            )
        for name, value in request.GET.items():
            given.setdefault(name, []).append(value)
    except UnicodeDecodeError:
        raise exception.Invalid('The query string is not UTF-8.') from None
    for name, values in given.items():
        if len(values) > MOST_VALUES:
            shown = base.text(name, 200)
            raise exception.Invalid(f'Parameter {shown} has {len(values)} values: send at most {MOST_VALUES}.')
    for name, values in given.items():
        for value in (name, *values):
            check_text(base.text(name, 200), value)
    schema = check(request, table, given)
    return {name: values[-1] for name, values in given.items() if name in schema['properties']}


def at(table: Table, minor: int) -> Mapping[str, Any]:
    """Return the schema of a minor version."""
    return table[max(first for first in table if first <= minor)]


def check(request: Request, table: Table, document: Any) -> Mapping[str, Any]:
    """Check a document against the schema of the request's version, and return the schema.

    :raises migrator.exception.ValidationError: the document is not valid; the message names the field, its value and
        the allowed values.
    """
    schema = at(table, request.version.minor)
    found = jsonschema.Draft202012Validator(schema, format_checker=_FORMATS).iter_errors(document)
    error = jsonschema.exceptions.best_match(found)
    if error is not None:
        path = '.'.join(str(part) for part in error.absolute_path if not isinstance(part, int))
        where = f'field/attribute {path}' if path else 'the request'
        raise exception.ValidationError(
            f'Invalid input for {where}. Value: {_short(error.instance)}. {_detail(error, request)}'
        )
    return schema


def _detail(error: jsonschema.ValidationError, request: Request) -> str:
    message = str(error.message)
    if error.validator == 'additionalProperties':
        allowed = ', '.join(sorted(error.schema['properties'])) or 'none'
        return f'{message}. {"Allowed" if request.is_own else f"At version {request.version} these are"}: {allowed}.'
    allowed = error.schema.get('description')
    if allowed and error.validator in ('enum', 'pattern'):  # its message is longer, and says no more
        return f'Allowed: {allowed}.'
    return f'{_short(message)}. Allowed: {allowed}.' if allowed else f'{_short(message)}.'


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f'{text[:200]}...'
