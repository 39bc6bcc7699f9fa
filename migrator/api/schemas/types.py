# SPDX-License-Identifier: Apache-2.0

"""The types that the schemas use."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

#: Nova accepts all of these as booleans.
_TRUE = (True, 'True', 'TRUE', 'true', '1', 'ON', 'On', 'on', 'YES', 'Yes', 'yes')
_FALSE = (False, 'False', 'FALSE', 'false', '0', 'OFF', 'Off', 'off', 'NO', 'No', 'no')

# Without `type` the numbers 1 and 0 would pass as True and False.
BOOLEAN: Schema = {'type': ['boolean', 'string'], 'enum': [*_TRUE, *_FALSE], 'description': 'true or false'}

HOST: Schema = {
    'type': 'string',
    'minLength': 1,
    'maxLength': 255,
    'pattern': r'^[a-zA-Z0-9._-]*\Z',
    'description': 'the name of a host, of letters, digits, dots, hyphens and underscores',
}
HOST_OR_NULL: Schema = {
    **HOST,
    'type': ['string', 'null'],
    'description': f'{HOST["description"]}, or null to let migrator choose',
}

REASON: Schema = {'type': 'string', 'minLength': 1, 'maxLength': 255, 'description': 'a text of 1 to 255 characters'}


def closed(properties: Schema, required: list[str] | None = None) -> Schema:
    """Return the schema of an object that has only these properties.

    :param required: the properties that must be present.
    """
    schema: Schema = {'type': 'object', 'properties': properties, 'additionalProperties': False}
    if required:
        schema['required'] = required
    return schema


def action(name: str, arguments: Schema) -> Schema:
    """Return the schema of a body that requests one action."""
    return closed({name: arguments}, [name])


# --- query parameters: each is a list, because a request may repeat it -----------------------------------------------


def many(item: Schema) -> Schema:
    """Return the schema of a parameter that may be repeated."""
    return {'type': 'array', 'items': item}


def once(item: Schema) -> Schema:
    """Return the schema of a parameter that may not be repeated."""
    return {'type': 'array', 'items': item, 'maxItems': 1, 'description': 'one value'}


ANY = many({'type': 'string'})
TEXT = many({'type': 'string', 'minLength': 1, 'maxLength': 255})
REGEX = many({'type': 'string', 'format': 'regex', 'maxLength': 255, 'description': 'a regular expression'})
MOMENT: Schema = {
    'type': 'string', 'format': 'date-time', 'description': 'a time in ISO 8601, such as 2026-01-31T13:00:00Z',
}  # fmt: skip
_NUMBER: Schema = {'type': 'string', 'pattern': r'^[0-9]{1,255}\Z', 'description': 'a whole number, 0 or more'}
NUMBER = many(_NUMBER)
PAGE: Schema = {'limit': NUMBER, 'marker': ANY}
PAGE_ONCE: Schema = {'limit': once(_NUMBER), 'marker': once({'type': 'string'})}


def parameters(properties: Schema, unknown: bool = True) -> Schema:
    """Return the schema of a query string.

    :param unknown: whether other parameters are allowed, and ignored.
    """
    return {'type': 'object', 'properties': properties, 'additionalProperties': unknown}
