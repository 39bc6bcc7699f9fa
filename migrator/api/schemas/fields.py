# SPDX-License-Identifier: Apache-2.0

"""The schemas of the bodies that are described by fields; see :class:`migrator.drain.request.Field`."""

from __future__ import annotations

from collections.abc import Iterable

from migrator.api.schemas import types
from migrator.drain.maintenance.request import OF_DRAINS
from migrator.drain.request import Field, Kind
from migrator.objects.drain import MOST

#: The longest span in seconds, 100 days.
_LONGEST = 100 * 24 * 3600
#: What a resource class may be called in Placement.
_CLASS = r'^[A-Z0-9_]{1,255}\Z'
_HOSTS: types.Schema = {
    'type': 'array',
    'items': types.HOST,
    'minItems': 1,
    'maxItems': MOST,
    'uniqueItems': True,
    'description': f'a list of 1 to {MOST} different compute hosts',
}


def body(fields: Iterable[Field], *required: str) -> types.Schema:
    """Return the schema of a body with some fields and ``dry_run``.

    :param required: the names of the fields that it must have.
    """
    return types.closed({**{one.name: of(one) for one in fields}, 'dry_run': types.DRY_RUN}, [*required])


def of(field: Field) -> types.Schema:
    """Return the schema of a field of a request."""
    if field.kind is Kind.OF_DRAIN:
        names = ', '.join(one.name for one in OF_DRAINS)
        return types.closed({one.name: of(one) for one in OF_DRAINS}) | {'description': f'an object with {names}'}
    whole = {
        'type': 'integer',
        'minimum': field.least,
        'maximum': MOST,
        'description': f'a whole number from {field.least} to {MOST}',
    }
    schema: types.Schema = {
        Kind.HOST: types.HOST,
        Kind.TEXT: types.REASON,
        Kind.CHOICE: {'type': 'string', 'enum': [*field.choices], 'description': ', '.join(field.choices)},
        Kind.NUMBER: whole,
        Kind.NUMBERS: {
            'type': 'object',
            'additionalProperties': whole,
            'maxProperties': MOST,
            'description': f'at most {MOST} servers of the host by uuid, each with {whole["description"]}',
        },
        Kind.HOSTS: _HOSTS,
        Kind.MOMENT: {
            'type': 'string',
            'format': 'date-time',
            'description': 'a time such as 2026-12-24T18:00:00Z, or null',
        },
        Kind.FLAG: {'type': 'boolean', 'description': 'true or false'},
        Kind.SPAN: {
            'type': 'number',
            'minimum': field.least,
            'maximum': _LONGEST,
            'description': f'a number of seconds from {field.least} to {_LONGEST}',
        },
        Kind.WINDOW: {
            'type': 'string',
            'maxLength': 64,
            'description': 'a time of each day with a time zone, such as 22:00-06:00 Europe/Prague',
        },
        Kind.AMOUNTS: {
            'type': 'object',
            'propertyNames': {'pattern': _CLASS},
            'additionalProperties': {'type': 'integer', 'minimum': 1, 'maximum': 2**31 - 1},
            'maxProperties': 100,
            'description': 'at most 100 resource classes such as VCPU, each with a whole number from 1',
        },
        Kind.GROUPS: {
            'type': 'object',
            'propertyNames': {'minLength': 1, 'maxLength': 255},
            'additionalProperties': _HOSTS,
            'maxProperties': MOST,
            'description': f'at most {MOST} names of groups, each with {_HOSTS["description"]}',
        },
    }[field.kind]
    if not field.may_be_null:
        return schema
    null = {
        Kind.NUMBER: ', or null',
        Kind.HOSTS: ', or null for any host',
        Kind.SPAN: ', or null',
        Kind.WINDOW: ', or null',
    }.get(field.kind, '')
    return types.or_null(schema) | {'description': f'{schema["description"]}{null}'}
