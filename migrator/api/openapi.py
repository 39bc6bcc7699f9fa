# SPDX-License-Identifier: Apache-2.0

"""The OpenAPI document of both APIs, made from the table of URLs and from the schemas that validate.

``python -m migrator.api.openapi`` prints it. It describes the newest version of the Compute API: a request of an
older one gets an answer without what later versions have added.
"""

from __future__ import annotations

import functools
import http
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import webob

from migrator.api import errors, microversions, routes, schemas
from migrator.api.own.routes import OWN
from migrator.api.request import Request, wrong_method
from migrator.api.route import Route
from migrator.api.schemas import types

PATH = '/migrator/v1/openapi.json'

_LATEST = microversions.MAXIMUM.minor
_ERROR = {
    'type': 'object',
    'minProperties': 1,
    'maxProperties': 1,
    'propertyNames': {'enum': sorted({*errors.FAULTS.values(), 'computeFault'})},
    'additionalProperties': {
        'type': 'object',
        'properties': {'code': {'type': 'integer'}, 'message': {'type': 'string'}},
        'required': ['code', 'message'],
    },
}
_VERSION = {
    'name': microversions.STANDARD_HEADER,
    'in': 'header',
    'required': True,
    'description': 'the version that this document describes',
    'schema': {'const': f'{microversions.SERVICE_TYPE} {microversions.MAXIMUM}'},
}


def serve(request: Request) -> webob.Response:
    """Answer a request for :data:`PATH`, which needs no token.

    :raises webob.exc.HTTPMethodNotAllowed: it is neither GET nor HEAD.
    """
    if request.method not in ('GET', 'HEAD'):
        raise wrong_method(request, ['GET'])
    return webob.Response(text=text(), content_type='application/json', charset='UTF-8')


@functools.cache
def text() -> str:
    """Return the document as JSON."""
    return json.dumps(document(), indent=1) + '\n'


def document() -> dict[str, Any]:
    """Return the document."""
    paths: dict[str, dict[str, Any]] = {}
    current = [route for route in routes.ROUTES if route.since <= _LATEST <= route.until]
    for prefix, table in (('/v2.1', current), ('/migrator/v1', OWN)):
        for route in table:
            paths.setdefault(f'{prefix}{route.path}', {})[route.method.lower()] = _operation(prefix, route)
    return {
        'openapi': '3.1.0',
        'info': {
            'title': 'migrator',
            'version': str(microversions.MAXIMUM),
            'summary': 'Live migration: what is served of the Compute API, and /migrator/v1',
            'license': {'name': 'Apache-2.0', 'identifier': 'Apache-2.0'},
        },
        'security': [{'token': []}],
        'paths': _portable(paths),
        'components': {
            'securitySchemes': {'token': {'type': 'apiKey', 'in': 'header', 'name': 'X-Auth-Token'}},
            'schemas': {'Boolean': types.BOOLEAN},
            'parameters': {'Version': _VERSION},
            'responses': {'Error': {'description': 'An error.', 'content': {'application/json': {'schema': _ERROR}}}},
        },
    }


def _operation(prefix: str, route: Route) -> dict[str, Any]:
    words = re.findall(r'\w+', f'{prefix}{route.path}'.replace('/v2.1', '').replace('/migrator/v1', 'migrator'))
    summary = (route.handler.__doc__ or '').partition('\n')[0]
    found: dict[str, Any] = {
        'operationId': '_'.join([route.method.lower(), *words]),
        'summary': summary,
        'parameters': [*_parameters(prefix, route)],
        'responses': {str(status): answer for status, answer in _answers(route)},
    }
    bodies = [schemas.at(table, _LATEST) for table in route.bodies]
    if bodies:
        schema = bodies[0] if len(bodies) == 1 else {'anyOf': bodies}
        found['requestBody'] = {'required': True, 'content': {'application/json': {'schema': schema}}}
    return found


def _parameters(prefix: str, route: Route) -> Iterator[dict[str, Any]]:
    if prefix == '/v2.1':
        yield {'$ref': '#/components/parameters/Version'}
    for name in re.findall(r'\{(\w+)\}', route.path):
        yield {'name': name, 'in': 'path', 'required': True, 'schema': {'type': 'string', 'minLength': 1}}
    known = schemas.at(route.query, _LATEST)['properties'] if route.query else {}
    for name, schema in known.items():
        yield {'name': name, 'in': 'query', 'schema': schema}


def _answers(route: Route) -> Iterator[tuple[int | str, dict[str, Any]]]:
    for status, schema in route.answers.items():
        content = {} if schema is None else {'content': {route.media: {'schema': schema}}}
        yield status, {'description': http.HTTPStatus(status).phrase, **content}
    for statuses in ('4XX', '5XX'):
        yield statuses, {'$ref': '#/components/responses/Error'}


def _portable(part: Any) -> Any:
    r"""Return a part of the document with ``$`` for the ``\Z`` of Python, and a reference for each boolean."""
    if part == types.BOOLEAN:
        return {'$ref': '#/components/schemas/Boolean'}
    if isinstance(part, Mapping):
        return {
            name: value.replace(r'\Z', '$') if name == 'pattern' and isinstance(value, str) else _portable(value)
            for name, value in part.items()
        }
    if isinstance(part, Iterable) and not isinstance(part, str):
        return [_portable(each) for each in part]
    return part


if __name__ == '__main__':
    sys.stdout.write(text())
