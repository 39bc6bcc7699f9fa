# SPDX-License-Identifier: Apache-2.0

"""A development identity service: a catalog for clients that need one. It does not check passwords.

It answers only requests from this machine, and marks every answer as development only. The tokens are those of
``auth_strategy = noauth2``.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from typing import Any

import webob
import webob.dec
from oslo_context.context import generate_request_id

from migrator import exception
from migrator.api import auth, errors
from migrator.api.request import Request, answer
from migrator.conf import api

MARK = 'development only: no password is checked'
_FOR_EVER = datetime.datetime(2999, 12, 31, tzinfo=datetime.UTC).strftime('%Y-%m-%dT%H:%M:%S.%fZ')
#: A token is sent in a header, and a colon separates its two parts.
_NAME = re.compile('[!-9;-~]{1,255}')
_DOMAIN = {'id': 'default', 'name': 'Default'}
#: Service type -> its name in the catalog.
_NAMES = {'compute': 'nova', 'placement': 'placement', 'identity': 'keystone'}


def make_app(endpoints: Mapping[str, str]) -> Callable[..., Any]:
    """Return the WSGI application.

    :param endpoints: service type (compute, placement) -> URL, for the catalog.
    """

    def answer(request: webob.Request) -> webob.Response:
        request.environ['openstack.request_id'] = generate_request_id()
        try:
            response = _answer(request, endpoints)
        except Exception as error:  # noqa: BLE001 -- any error is answered in the API's form
            response = errors.of(error, request)
        response.headers['X-Migrator-Development-Identity'] = MARK
        return response

    return webob.dec.wsgify(answer, RequestClass=Request)  # type: ignore[no-any-return]  # WebOb has no types


def _answer(request: Any, endpoints: Mapping[str, str]) -> webob.Response:
    if not api.is_loopback(request.remote_addr or ''):
        raise exception.Forbidden('The development identity answers requests from its own machine only.')
    try:
        path = request.path_info.rstrip('/')
    except UnicodeDecodeError:
        raise exception.Invalid('The URL is not UTF-8.') from None
    version = {'id': 'v3.14', 'status': 'stable', 'updated': '2020-04-07T00:00:00Z', 'description': MARK}
    version['links'] = [{'rel': 'self', 'href': f'{request.application_url}/v3/'}]  # type: ignore[assignment]
    if request.method == 'GET' and path == '':
        return answer({'versions': {'values': [version]}}, 300)
    if request.method == 'GET' and path == '/v3':
        return answer({'version': version})
    if request.method == 'POST' and path == '/v3/auth/tokens':
        return _issue(request, dict(endpoints) | {'identity': f'{request.application_url}/v3'})
    raise exception.NotFound(f'The development identity does not serve {request.method} {path}: use keystone.')


def _issue(request: Any, endpoints: Mapping[str, str]) -> webob.Response:
    try:
        wanted = request.json_document()['auth']
        user = wanted['identity']['password']['user']
        name = user.get('name') or user['id']
        scope = wanted.get('scope')
        project = scope['project'].get('name') or scope['project']['id'] if isinstance(scope, dict) else name
        if not (_NAME.fullmatch(name) and _NAME.fullmatch(project)):
            raise ValueError
    except (KeyError, TypeError, AttributeError, ValueError):
        raise exception.Invalid(
            'Malformed authentication request. Give a password, and a project or nothing as the scope; names have 1 to '
            '255 printable ASCII characters without spaces and colons.'
        ) from None
    is_admin = name == 'admin'
    token = {
        'methods': ['password'],
        'user': {'id': name, 'name': name, 'domain': _DOMAIN, 'password_expires_at': None},
        'project': {'id': project, 'name': project, 'domain': _DOMAIN},
        'is_domain': False,
        'roles': [{'id': role, 'name': role} for role in (auth.ADMIN_ROLES if is_admin else auth.USER_ROLES)],
        'catalog': [_service(kind, url) for kind, url in endpoints.items()],
        'issued_at': _FOR_EVER.replace('2999-12-31', '2026-01-01'),
        'expires_at': _FOR_EVER,
        'audit_ids': ['development'],
    }
    response = answer({'token': token}, 201)
    response.headers['X-Subject-Token'] = name if is_admin and project == name else f'{name}:{project}'
    return response


def _service(kind: str, url: str) -> dict[str, Any]:
    each = {'region': 'RegionOne', 'region_id': 'RegionOne', 'url': url}
    interfaces = ('public', 'internal', 'admin')
    endpoints = [{'id': f'{kind}-{name}', 'interface': name, **each} for name in interfaces]
    return {'id': kind, 'type': kind, 'name': _NAMES.get(kind, kind), 'endpoints': endpoints}
