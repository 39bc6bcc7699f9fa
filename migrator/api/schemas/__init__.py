# SPDX-License-Identifier: Apache-2.0

"""What a request may say, version by version: JSON schemas, one noun a file, and the one function that applies them.

A schema's ``description`` says what would do; it ends up in the answer to a request that does not.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

import jsonschema
from oslo_utils import strutils, timeutils, uuidutils

from migrator import exception
from migrator.api import request as api_request
from migrator.objects import base

#: First minor version -> the schema from there on.
Table = Mapping[int, Mapping[str, Any]]

_FORMATS = jsonschema.FormatChecker(formats=())


def moment(text: str) -> datetime.datetime:
    """Return the time that a parameter names, aware.

    :raises ValueError: it is no time, or one that no calendar has in UTC.
    """
    try:
        return timeutils.parse_isotime(text).astimezone(datetime.UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def pattern(text: str) -> re.Pattern[str]:
    """Return the regular expression that a parameter is.

    :raises ValueError: it is none.
    """
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from None


_FORMATS.checks('uuid')(uuidutils.is_uuid_like)
_FORMATS.checks('date-time', raises=ValueError)(moment)
_FORMATS.checks('regex', raises=ValueError)(pattern)


def boolean(value: Any) -> bool:
    """Return the truth that a boolean of the API says, in any of its many spellings."""
    return bool(strutils.bool_from_string(value, strict=True))


def body(request: api_request.Request, table: Table) -> Any:
    """Return what a request's body says.

    :param table: its schemas by version.
    :raises migrator.exception.Invalid: it says something else than the version's schema allows.
    """
    document = request.json_document()
    check(request, table, document)
    return document


def query(request: api_request.Request, table: Table) -> dict[str, str]:
    """Return the parameters of a request that its version's schema knows; of one given twice, the last.

    :raises migrator.exception.Invalid: a value is not allowed, or the version allows no unknown parameter.
    """
    try:
        given = {name: request.GET.getall(name) for name in request.GET}
    except UnicodeDecodeError:
        raise exception.Invalid('The query string is not UTF-8.') from None
    for name, values in given.items():
        for value in (name, *values):
            api_request.check_text(base.text(name, 200), value)
    schema = check(request, table, given)
    return {name: values[-1] for name, values in given.items() if name in schema['properties']}


def check(request: api_request.Request, table: Table, document: Any) -> Mapping[str, Any]:
    """Raise unless a document is what the request's version allows; return the schema.

    :raises migrator.exception.ValidationError: it is not; the message names the field, its value, and what would do.
    """
    schema = table[max(first for first in table if request.since(first))]
    found = jsonschema.Draft202012Validator(schema, format_checker=_FORMATS).iter_errors(document)
    error = jsonschema.exceptions.best_match(found)
    if error is not None:
        raise exception.ValidationError(
            path='.'.join(str(part) for part in error.absolute_path if not isinstance(part, int)) or 'the request',
            value=_short(error.instance),
            detail=_detail(error, request),
        )
    return schema


def _detail(error: jsonschema.ValidationError, request: api_request.Request) -> str:
    message = str(error.message)
    if error.validator == 'additionalProperties':
        allowed = ', '.join(sorted(error.schema['properties'])) or 'none'
        return f'{message}. At version {request.version} these are: {allowed}.'
    would_do = error.schema.get('description')
    return f'{_short(message)}. What would do: {would_do}.' if would_do else f'{_short(message)}.'


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f'{text[:200]}...'
