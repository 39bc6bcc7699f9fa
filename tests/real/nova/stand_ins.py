# SPDX-License-Identifier: Apache-2.0

"""Stand-ins for Keystone, Glance and Neutron: what a nova needs whose guests have no network.

Keystone knows one user, whose token is the word ``admin``: that is what a Placement takes whose ``auth_strategy`` is
``noauth2``. Glance has one image, Neutron has nothing.
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Mapping
from typing import Any
from wsgiref import simple_server

import webob
import webob.dec

from tests.real.servers import process

USER, PASSWORD, PROJECT, REGION, TOKEN = 'admin', 'guessed', 'admin', 'RegionOne', 'admin'
IMAGE = '8a8f8a2c-53b5-4b0e-9d0e-5a5f6f0c1d11'
ROLES = ('admin', 'manager', 'member', 'reader', 'service')
DOMAIN = {'id': 'default', 'name': 'Default'}
PICTURE = {
    'id': IMAGE,
    'name': 'image',
    'status': 'active',
    'visibility': 'public',
    'container_format': 'bare',
    'disk_format': 'raw',
    'min_ram': 0,
    'min_disk': 0,
    'size': 1,
    'owner': PROJECT,
    'tags': [],
    'created_at': '2026-01-01T00:00:00Z',
    'updated_at': '2026-01-01T00:00:00Z',
}


class Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True


class Quiet(simple_server.WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Log nothing."""


class StandIns:
    """The three services, served by a thread of this process at one port.

    :param endpoints: the catalog: type of a service -> its URL; those of the three are added.
    """

    def __init__(self, endpoints: Mapping[str, str]) -> None:
        self.port = process.free_port()
        self.url = f'http://{process.HOST}:{self.port}'
        mine = {'identity': f'{self.url}/v3', 'image': f'{self.url}/image', 'network': f'{self.url}/network'}
        self._endpoints = {**mine, **endpoints}
        self._server = simple_server.make_server(process.HOST, self.port, self._answer, Server, Quiet)
        threading.Thread(target=self._server.serve_forever, name='stand-ins', daemon=True).start()

    @property
    def cloud(self) -> dict[str, Any]:
        """What clouds.yaml says of the user."""
        auth = {
            'auth_url': f'{self.url}/v3',
            'username': USER,
            'password': PASSWORD,
            'project_name': PROJECT,
            'user_domain_id': DOMAIN['id'],
            'project_domain_id': DOMAIN['id'],
        }
        return {'auth': auth, 'region_name': REGION}

    def close(self) -> None:
        """End the thread."""
        self._server.shutdown()
        self._server.server_close()

    @webob.dec.wsgify
    def _answer(self, request: webob.Request) -> webob.Response:
        match (request.method, *request.path_info.strip('/').split('/')):
            case ('POST', 'v3', 'auth', 'tokens'):
                return self._token(request)
            case ('GET', 'v3', 'auth', 'tokens'):
                valid = request.headers.get('X-Subject-Token') == TOKEN
                return (
                    self._token_of_user() if valid else self._json(404, error={'code': 404, 'message': 'no such token'})
                )
            case ('GET', ''):
                return self._json(300, versions={'values': [self._version('v3.14', '/v3/')]})
            case ('GET', 'v3'):
                return self._json(200, version=self._version('v3.14', '/v3/'))
            case ('GET', 'image'):
                return self._json(300, versions=[self._version('v2.15', '/image/v2/')])
            case ('GET', 'image', 'v2', 'images', str(image)) if image == IMAGE:
                return self._json(200, **PICTURE)
            case ('GET', 'image', 'v2', 'schemas', 'image'):
                return self._json(200, name='image', properties={key: {} for key in PICTURE})
            case ('GET', 'network'):
                return self._json(200, versions=[self._version('v2.0', '/network/v2.0/')])
            case ('GET', 'network', 'v2.0', str(plural)):
                return self._json(200, **{plural.replace('-', '_'): []})
        return self._json(
            404, error={'code': 404, 'message': f'the stand-in has no {request.method} {request.path_info}'}
        )

    def _version(self, name: str, path: str) -> dict[str, Any]:
        return {'id': name, 'status': 'CURRENT', 'links': [{'rel': 'self', 'href': f'{self.url}{path}'}]}

    def _token(self, request: webob.Request) -> webob.Response:
        identity = request.json['auth']['identity']
        user = identity.get('password', {}).get('user', {})
        known = (user.get('name'), user.get('password')) == (USER, PASSWORD)
        if not known and identity.get('token', {}).get('id') != TOKEN:
            return self._refuse(401, 'The request you have made requires authentication.')
        answer = self._token_of_user()
        answer.status = 201
        return answer

    def _token_of_user(self) -> webob.Response:
        """Return a token of the project; it ends with the process."""
        interfaces = ('public', 'internal', 'admin')
        catalog = [
            {
                'type': kind,
                'name': kind,
                'id': kind,
                'endpoints': [
                    {'id': f'{kind}-{one}', 'interface': one, 'url': url, 'region': REGION, 'region_id': REGION}
                    for one in interfaces
                ],
            }
            for kind, url in self._endpoints.items()
        ]
        token = {
            'methods': ['password'],
            'user': {'id': USER, 'name': USER, 'domain': DOMAIN, 'password_expires_at': None},
            'project': {'id': PROJECT, 'name': PROJECT, 'domain': DOMAIN},
            'is_domain': False,
            'roles': [{'id': role, 'name': role} for role in ROLES],
            'issued_at': '2026-01-01T00:00:00.000000Z',
            'expires_at': '2099-01-01T00:00:00.000000Z',
            'audit_ids': [USER],
            'catalog': catalog,
        }
        answer = self._json(200, token=token)
        answer.headers['X-Subject-Token'] = TOKEN
        return answer

    def _json(self, status: int, /, **body: Any) -> webob.Response:
        return webob.Response(json=body, status=status)

    def _refuse(self, status: int, message: str) -> webob.Response:
        return self._json(status, error={'code': status, 'message': message})
