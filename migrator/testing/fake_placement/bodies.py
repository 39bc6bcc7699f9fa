# SPDX-License-Identifier: Apache-2.0

"""The request bodies that the fake Placement accepts, at the one microversion that it implements."""

from __future__ import annotations

import http
from typing import Any

import jsonschema
from oslo_utils import uuidutils

_MAX = 0x7FFFFFFF
_CLASS = '^[A-Z0-9_]+$'
_UUID_LIKE = '^[0-9a-fA-F-]{36}$'

#: The default fields of an inventory.
INVENTORY_DEFAULTS = {'reserved': 0, 'min_unit': 1, 'max_unit': _MAX, 'step_size': 1, 'allocation_ratio': 1.0}


def _is_uuid(value: object) -> bool:
    return not isinstance(value, str) or bool(uuidutils.is_uuid_like(value))


_formats = jsonschema.FormatChecker(formats=())
_formats.checks('uuid')(_is_uuid)


class RefusedError(Exception):
    """The error response to a request.

    :param status: the HTTP status.
    :param detail: a text for operators. Placement's own text is different.
    :param code: Placement's error code.
    """

    def __init__(self, status: int, detail: str, code: str = 'placement.undefined_code') -> None:
        super().__init__(detail)
        self.status = status
        self.code = code

    def document(self) -> dict[str, Any]:
        """Return the document of the response."""
        title = http.HTTPStatus(self.status).phrase
        return {'errors': [{'status': self.status, 'title': title, 'detail': str(self), 'code': self.code}]}


class Body:
    """A validator of request bodies.

    :param schema: a JSON schema.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._validator = jsonschema.Draft202012Validator(schema, format_checker=_formats)

    def read(self, body: Any) -> Any:
        """Return a valid body.

        :raises RefusedError: the body is invalid or missing.
        """
        if body is None:
            raise RefusedError(415, 'The media type None is not supported, use application/json')
        for error in self._validator.iter_errors(body):
            raise RefusedError(400, f'JSON does not validate: {error.json_path}: {error.message}')
        return body


def _object(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {
        'type': 'object',
        'properties': properties,
        'required': list(required),
        'additionalProperties': False,
        **more,
    }


def _map(pattern: str, values: dict[str, Any], least: int = 0) -> dict[str, Any]:
    return _object({}, patternProperties={pattern: values}, minProperties=least)


def _integer(minimum: int) -> dict[str, Any]:
    return {'type': 'integer', 'minimum': minimum, 'maximum': _MAX}


_GENERATION = {'resource_provider_generation': {'type': 'integer'}}
_PROVIDER = {
    'name': {'type': 'string', 'maxLength': 200},
    'parent_provider_uuid': {'type': ['string', 'null'], 'format': 'uuid'},
}
_TEXT = {'type': 'string', 'minLength': 1, 'maxLength': 255}
_INVENTORY = {
    'total': _integer(1),
    'reserved': _integer(0),
    'min_unit': _integer(1),
    'max_unit': _integer(1),
    'step_size': _integer(1),
    'allocation_ratio': {'type': 'number', 'maximum': 3.40282e38},
}
_HELD = {'generation': {'type': 'integer'}, 'resources': _map(_CLASS, {'type': 'integer', 'minimum': 1}, 1)}
_UNTYPED: dict[str, Any] = {
    'allocations': _map(_UUID_LIKE, _object(_HELD, 'resources')),
    'consumer_generation': {'type': ['integer', 'null']},
    'mappings': {'type': 'object', 'minProperties': 1},
    'project_id': _TEXT,
    'user_id': _TEXT,
}
_NEEDED = ('allocations', 'consumer_generation', 'project_id', 'user_id')
_WRITE = _object({**_UNTYPED, 'consumer_type': {**_TEXT, 'pattern': _CLASS}}, *_NEEDED, 'consumer_type')

UNTYPED_WRITE = Body(_object(_UNTYPED, *_NEEDED))
NEW_PROVIDER = Body(_object({**_PROVIDER, 'uuid': {'type': 'string', 'format': 'uuid'}}, 'name'))
PROVIDER = Body(_object(_PROVIDER, 'name'))
INVENTORIES = Body(
    _object(
        {**_GENERATION, 'inventories': _map(_CLASS, _object(_INVENTORY, 'total'))},
        *('inventories', 'resource_provider_generation'),
    )
)
TRAITS = Body(
    _object({**_GENERATION, 'traits': {'type': 'array', 'items': _TEXT}}, 'traits', 'resource_provider_generation')
)
AGGREGATES = Body(
    _object(
        {
            **_GENERATION,
            'aggregates': {'type': 'array', 'items': {'type': 'string', 'format': 'uuid'}, 'uniqueItems': True},
        },
        *('aggregates', 'resource_provider_generation'),
    )
)
CUSTOM_NAME = Body({**_TEXT, 'pattern': '^CUSTOM_[A-Z0-9_]+$'})
#: The allocations of one consumer.
WRITE = Body(_WRITE)
#: The allocations of several consumers.
WRITES = Body(_map(_UUID_LIKE, _WRITE, 1))
