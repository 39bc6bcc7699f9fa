# SPDX-License-Identifier: Apache-2.0

"""Every URL with its minor versions, and the function that dispatches requests.

The URLs of nova that migrator does not serve are in the same table, after those that it serves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import webob

from migrator import exception
from migrator.api import common, schemas
from migrator.api.handlers import (
    hypervisors,
    instance_actions,
    migrations,
    not_served,
    server_actions,
    server_migrations,
    servers,
    services,
)
from migrator.api.handlers.derived import availability_zones, diagnostics, flavors, groups
from migrator.api.own.routes import OWN
from migrator.api.request import Request, wrong_method
from migrator.api.route import Route
from migrator.api.schemas import answers, queries

_S = '/servers/{server_id}'
_M = '/servers/{server_id}/migrations/{migration_id}'
_H = '/os-hypervisors/{hypervisor_id}'
_F = '/flavors/{flavor_id}'

_NONE = schemas.types.NO_PARAMETERS
_ACCEPTED = {202: answers.NOTHING}

ROUTES = (
    Route('GET', '/servers', servers.index, query=schemas.servers.INDEX, answers={200: answers.SERVERS}),
    Route('GET', '/servers/detail', servers.detail, query=schemas.servers.INDEX, answers={200: answers.SERVERS_DETAIL}),
    Route('GET', f'{_S}', servers.show, query=_NONE, answers={200: answers.SERVER}),
    Route(
        'POST',
        f'{_S}/action',
        server_actions.act,
        bodies=(
            schemas.server_actions.MIGRATE_LIVE,
            schemas.server_actions.EVACUATE,
            schemas.server_actions.MIGRATE,
            schemas.server_actions.RESIZE,
            schemas.server_actions.CONFIRM_RESIZE,
            schemas.server_actions.REVERT_RESIZE,
            schemas.server_actions.RESET_STATE,
            schemas.server_actions.LOCK,
            schemas.server_actions.UNLOCK,
        ),
        answers=dict.fromkeys((200, 202, 204), answers.NOTHING),  # evacuate; most; confirmResize
    ),
    Route('GET', f'{_S}/diagnostics', diagnostics.show, query=_NONE, answers={200: answers.DIAGNOSTICS}),
    Route(
        'GET',
        f'{_S}/migrations',
        server_migrations.index,
        since=23,
        query=_NONE,
        answers={200: answers.SERVER_MIGRATIONS},
    ),
    Route('GET', f'{_M}', server_migrations.show, since=23, query=_NONE, answers={200: answers.SERVER_MIGRATION}),
    Route('DELETE', f'{_M}', server_migrations.delete, since=24, answers=_ACCEPTED),
    Route(
        'POST',
        f'{_M}/action',
        server_migrations.act,
        since=22,
        bodies=(schemas.server_migrations.FORCE_COMPLETE,),
        answers=_ACCEPTED,
    ),
    Route(
        'GET',
        f'{_S}/os-instance-actions',
        instance_actions.index,
        query=queries.INSTANCE_ACTIONS,
        answers={200: answers.INSTANCE_ACTIONS},
    ),
    Route(
        'GET',
        f'{_S}/os-instance-actions/{{request_id}}',
        instance_actions.show,
        query=_NONE,
        answers={200: answers.INSTANCE_ACTION},
    ),
    Route('GET', '/os-migrations', migrations.index, query=queries.MIGRATIONS, answers={200: answers.MIGRATIONS}),
    Route('GET', '/os-services', services.index, query=schemas.services.INDEX, answers={200: answers.SERVICES}),
    Route(
        'PUT',
        '/os-services/{service_id}',
        services.update,
        bodies=(schemas.services.UPDATE,),
        answers={200: answers.SERVICE},
    ),
    Route('DELETE', '/os-services/{service_id}', services.delete, answers={204: answers.NOTHING}),
    Route('GET', '/os-hypervisors', hypervisors.index, query=queries.HYPERVISORS, answers={200: answers.HYPERVISORS}),
    Route(
        'GET',
        '/os-hypervisors/detail',
        hypervisors.detail,
        query=queries.HYPERVISORS,
        answers={200: answers.HYPERVISORS_DETAIL},
    ),
    Route('GET', '/os-hypervisors/statistics', hypervisors.statistics, until=87),
    Route('GET', f'{_H}', hypervisors.show, query=queries.HYPERVISOR, answers={200: answers.HYPERVISOR}),
    Route('GET', f'{_H}/uptime', hypervisors.uptime, until=87),
    Route('GET', f'{_H}/search', hypervisors.search, until=52),
    Route('GET', f'{_H}/servers', hypervisors.servers, until=52),
    Route('GET', '/os-availability-zone', availability_zones.index, query=_NONE, answers={200: answers.ZONES}),
    Route(
        'GET',
        '/os-availability-zone/detail',
        availability_zones.detail,
        query=_NONE,
        answers={200: answers.ZONES_DETAIL},
    ),
    Route('GET', '/os-aggregates', groups.list_aggregates, query=_NONE, answers={200: answers.AGGREGATES}),
    Route(
        'GET',
        '/os-server-groups',
        groups.list_server_groups,
        query=queries.SERVER_GROUPS,
        answers={200: answers.SERVER_GROUPS},
    ),
    Route('GET', '/os-server-groups/{server_group_id}', groups.show_server_group, query=_NONE),
    Route('GET', '/flavors', flavors.index, query=schemas.flavors.INDEX, answers={200: answers.FLAVORS}),
    Route('GET', '/flavors/detail', flavors.detail, query=schemas.flavors.INDEX, answers={200: answers.FLAVORS_DETAIL}),
    Route('GET', _F, flavors.show, query=_NONE, answers={200: answers.FLAVOR}),
    Route('GET', f'{_F}/os-extra_specs', flavors.list_extra_specs, query=_NONE, answers={200: answers.EXTRA_SPECS}),
    Route(
        'GET', f'{_F}/os-extra_specs/{{key}}', flavors.show_extra_spec, query=_NONE, answers={200: answers.EXTRA_SPEC}
    ),
)

LEFT_TO_NOVA = tuple(Route(method, path, not_served.refuse) for method, path in not_served.URLS)


def dispatch(request: Request) -> webob.Response:
    """Call the handler of a request, after a check of its query, and return its answer.

    :raises migrator.exception.Invalid: the route's schema does not allow the query.
    :raises migrator.exception.NotFound: the API does not have the URL, or not in this version.
    :raises webob.exc.HTTPMethodNotAllowed: migrator's own API has the URL with other methods.
    :raises webob.exc.HTTPNotImplemented: nova has the URL, and migrator does not serve it.
    """
    table, path = _table_of(request)
    method = 'GET' if request.method == 'HEAD' else request.method
    others = []
    for route, pattern in table:
        found = pattern.fullmatch(path)
        if found and route.method != method:
            others.append(route.method)
        elif found:
            request.environ['migrator.route'] = ('/migrator/v1' if request.is_own else '/v2.1') + route.path
            if not route.since <= request.version.minor <= route.until:
                raise exception.NotFound(
                    f'{method} {route.path} is available from version 2.{route.since}'
                    + (f' to 2.{route.until}' if route.until < 1000 else '')
                    + f', and the request has version {request.version}.'
                )
            names = found.groupdict()
            if 'uuid' in names:
                names['uuid'] = common.usual_uuid(names['uuid'])
            if route.query is not None:
                request.environ['migrator.given'] = schemas.query(request, route.query)
            return route.handler(request, **names)
    if others and request.is_own:
        raise wrong_method(request, others)
    raise _no_such_url(request)


def _table_of(request: Request) -> tuple[Sequence[tuple[Route, re.Pattern[str]]], str]:
    """Return the compiled routes of a request's API, and the path below its version."""
    path: str = request.path_info
    if request.is_own and '\x00' not in path:
        return _COMPILED_OWN, path.removeprefix('/migrator/v1').rstrip('/')
    return _COMPILED, _below_version(request)


def _no_such_url(request: Request) -> exception.NotFound:
    api = "Migrator's own API" if request.is_own else 'The compute API'
    hint = '. GET /migrator/v1/openapi.json lists those that it has.' if request.is_own else ''
    return exception.NotFound(f'{api} does not have this URL: {request.method} {request.path_info}{hint}')


def _below_version(request: Request) -> str:
    """Return the path after the version, without the project id that old catalogs insert."""
    path: str = request.path_info
    if '\x00' in path or not path.startswith('/v2.1/'):
        raise _no_such_url(request)
    path = path.removeprefix('/v2.1').rstrip('/')
    first, _, rest = path[1:].partition('/')
    if rest and first not in _COLLECTIONS and first == request.context.project_id:
        return f'/{rest}'
    if _PROJECT.fullmatch(first) and rest:
        raise exception.Invalid(
            f"Malformed request URL: its project {first} is not the token's: leave it out, or use a token of it."
        )
    return path


def _compile(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r'\{(\w+)\}', r'(?P<\1>[^/]+)', path))


_COMPILED = tuple((route, _compile(route.path)) for route in (*ROUTES, *LEFT_TO_NOVA))
_COMPILED_OWN = tuple((route, _compile(route.path)) for route in OWN)
_COLLECTIONS = {route.path.split('/')[1] for route, _ in _COMPILED}
_PROJECT = re.compile('[0-9a-f]{32}|[0-9a-f-]{36}')
