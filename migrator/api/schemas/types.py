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


def whole(**properties: Schema) -> Schema:
    """Return the schema of an object that has all of these properties, and no other."""
    return closed(properties, [*properties])


def each(names: str, schema: Schema) -> Schema:
    """Return properties that have the same schema.

    :param names: the names, with spaces between them.
    """
    return dict.fromkeys(names.split(), schema)


def or_null(schema: Schema) -> Schema:
    """Return the schema of a value that may also be null."""
    kinds = schema['type'] if isinstance(schema['type'], list) else [schema['type']]
    found = {**schema, 'type': [*kinds, 'null']}
    return found | {'enum': [*schema['enum'], None]} if 'enum' in schema else found


def action(name: str, arguments: Schema) -> Schema:
    """Return the schema of a body that requests one action."""
    return closed({name: arguments}, [name])


def many(item: Schema) -> Schema:
    """Return the schema of a list, or of a parameter that may be repeated."""
    return {'type': 'array', 'items': item}


# --- query parameters: each is a list, because a request may repeat it -----------------------------------------------


def once(item: Schema) -> Schema:
    """Return the schema of a parameter that may not be repeated."""
    return {'type': 'array', 'items': item, 'maxItems': 1, 'description': 'one value'}


ANY = many({'type': 'string'})
TEXT = many({'type': 'string', 'minLength': 1, 'maxLength': 255})
REGEX = many({'type': 'string', 'format': 'regex', 'maxLength': 255, 'description': 'a regular expression'})
MOMENT: Schema = {
    'type': 'string', 'format': 'date-time', 'description': 'a time in ISO 8601, such as 2026-01-31T13:00:00Z',
}  # fmt: skip
_WHOLE: Schema = {'type': 'string', 'description': 'a whole number, 0 or more'}
#: What a database can hold.
NUMBER = many({**_WHOLE, 'pattern': r'^[0-9]{1,9}\Z'})
#: As in nova, a size may be beyond what a page holds.
_SIZE: Schema = {**_WHOLE, 'pattern': r'^[0-9]{1,255}\Z'}
SIZE = many(_SIZE)
PAGE: Schema = {'limit': SIZE, 'marker': ANY}
PAGE_ONCE: Schema = {'limit': once(_SIZE), 'marker': once({'type': 'string'})}


def parameters(properties: Schema, unknown: bool = True) -> Schema:
    """Return the schema of a query string.

    :param unknown: whether other parameters are allowed, and ignored.
    """
    return {'type': 'object', 'properties': properties, 'additionalProperties': unknown}


#: Of a call of migrator's own without parameters.
NO_QUERY = {1: parameters({}, unknown=False)}
#: Of a call of nova's without parameters.
NO_PARAMETERS = {1: parameters({}), 102: parameters({}, unknown=False)}

# --- bodies of migrator's own API -------------------------------------------------------------------------------------

DRY_RUN: Schema = {'type': 'boolean', 'description': 'true or false'}
NOTHING: Schema = {'type': ['object', 'null'], 'properties': {}, 'additionalProperties': False, 'description': 'null'}
#: The most rows that one request deletes, so that it ends soon.
MOST_PURGED = 1000
PURGE = closed(
    {
        'before': {
            'type': 'string',
            'format': 'date-time',
            'description': 'a time such as 2026-12-24T18:00:00Z',
        },
        'max_rows': {
            'type': 'integer',
            'minimum': 1,
            'maximum': MOST_PURGED,
            'description': f'a whole number from 1 to {MOST_PURGED}',
        },
        'dry_run': DRY_RUN,
    },
    ['before'],
)


def options(properties: Schema) -> Schema:
    """Return the schema of the arguments of an action that may be left out, as null."""
    return {
        **closed(properties),
        'type': ['object', 'null'],
        'description': f'null, or an object with {", ".join(properties)}',
    }


def one_action(actions: Schema) -> Schema:
    """Return the schema of a body that requests one of some actions.

    :param actions: the name of each -> the schema of its arguments.
    """
    return closed(actions) | {'minProperties': 1, 'maxProperties': 1, 'description': f'one of {", ".join(actions)}'}
