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

#: An answer that has the id of a resource below its URL -> the parameter of the resource, and where the id is.
_NAMED = {
    'GET /v2.1/flavors': ('flavor_id', '/flavors/0/id'),
    'GET /v2.1/os-hypervisors': ('hypervisor_id', '/hypervisors/0/id'),
    'GET /v2.1/os-services': ('service_id', '/services/0/id'),
    'GET /v2.1/servers': ('server_id', '/servers/0/id'),
    'GET /v2.1/servers/{server_id}/migrations': ('migration_id', '/migrations/0/id'),
    'GET /v2.1/servers/{server_id}/os-instance-actions': ('request_id', '/instanceActions/0/request_id'),
    'GET /migrator/v1/cleanups': ('cleanup_id', '/cleanups/0/id'),
    'GET /migrator/v1/drains': ('uuid', '/drains/0/uuid'),
    'GET /migrator/v1/hosts': ('name', '/hosts/0/name'),
    'GET /migrator/v1/maintenances': ('uuid', '/maintenances/0/uuid'),
    'GET /migrator/v1/migrations': ('uuid', '/migrations/0/uuid'),
    'POST /migrator/v1/drains': ('uuid', '/drain/uuid'),
    'POST /migrator/v1/maintenances': ('uuid', '/maintenance/uuid'),
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
    for path, route in _current():
        paths.setdefault(path, {})[route.method.lower()] = _operation(path, route)
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


def _current() -> Iterator[tuple[str, Route]]:
    """Yield the path of each URL, and its route."""
    for route in routes.ROUTES:
        if route.since <= _LATEST <= route.until:
            yield f'/v2.1{route.path}', route
    for route in OWN:
        yield f'/migrator/v1{route.path}', route


def _id(path: str, route: Route) -> str:
    words = re.findall(r'\w+', path.replace('/v2.1', '').replace('/migrator/v1', 'migrator'))
    return '_'.join([route.method.lower(), *words])


def _operation(path: str, route: Route) -> dict[str, Any]:
    summary = (route.handler.__doc__ or '').partition('\n')[0]
    found: dict[str, Any] = {
        'operationId': _id(path, route),
        'summary': summary,
        'parameters': [*_parameters(path, route)],
        'responses': {str(status): answer for status, answer in _answers(path, route)},
    }
    bodies = [schemas.at(table, _LATEST) for table in route.bodies]
    if bodies:
        schema = bodies[0] if len(bodies) == 1 else {'anyOf': bodies}
        found['requestBody'] = {'required': True, 'content': {'application/json': {'schema': schema}}}
    return found


def _parameters(path: str, route: Route) -> Iterator[dict[str, Any]]:
    if path.startswith('/v2.1'):
        yield {'$ref': '#/components/parameters/Version'}
    for name in re.findall(r'\{(\w+)\}', path):
        yield {'name': name, 'in': 'path', 'required': True, 'schema': {'type': 'string', 'minLength': 1}}
    known = schemas.at(route.query, _LATEST)['properties'] if route.query else {}
    for name, schema in known.items():
        yield {'name': name, 'in': 'query', 'schema': schema}


def _answers(path: str, route: Route) -> Iterator[tuple[int | str, dict[str, Any]]]:
    for status, schema in route.answers.items():
        answer: dict[str, Any] = {'description': http.HTTPStatus(status).phrase}
        if schema is not None:
            answer['content'] = {route.media: {'schema': schema}}
        links = _links(path, route)
        # Beside others, 200 is the answer to a dry run, which creates nothing.
        if links and (status != 200 or len(route.answers) == 1):
            answer['links'] = links
        yield status, answer
    for statuses in ('4XX', '5XX'):
        yield statuses, {'$ref': '#/components/responses/Error'}


def _links(path: str, route: Route) -> dict[str, Any]:
    """Return what a client may request with the ids of a request and of its answer."""
    given = {name: f'$request.path.{name}' for name in re.findall(r'\{(\w+)\}', path)}
    if path.endswith('}/action'):  # what it has changed
        below = path.removesuffix('/action')
    elif f'{route.method} {path}' in _NAMED:
        name, pointer = _NAMED[f'{route.method} {path}']
        below, given[name] = f'{path}/{{{name}}}', f'$response.body#{pointer}'
    else:
        return {}
    return {
        _id(other, one): {'operationId': _id(other, one), 'parameters': given}
        for other, one in _current()
        if (other == below or other.startswith(f'{below}/')) and {*re.findall(r'\{(\w+)\}', other)} <= {*given}
    }


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
