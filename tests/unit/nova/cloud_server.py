# SPDX-License-Identifier: Apache-2.0

"""A small cloud on loopback, whose catalog depends on the user.

It has an identity service, several Novas and Placements. They answer only what a client asks to find its way: tokens,
versions, and the first list of each service.
"""

from __future__ import annotations

import json

from migrator.runtime import http_server

PROJECT = '0f1e2d3c4b5a49788796a5b4c3d2e1f0'
PASSWORD = 'a secret'
#: Catalog -> (type, name of the service, interface, region, path of the endpoint).
CATALOGS = {
    'plain': [('compute', 'nova', 'public', 'RegionOne', '/nova/v2.1')],
    'slash': [('compute', 'nova', 'public', 'RegionOne', '/nova/v2.1/')],
    'unversioned': [('compute', 'nova', 'public', 'RegionOne', '/nova')],
    'unversioned-slash': [('compute', 'nova', 'public', 'RegionOne', '/nova/')],
    'with-project': [('compute', 'nova', 'public', 'RegionOne', f'/nova/v2.1/{PROJECT}')],
    'root-only': [('compute', 'nova', 'public', 'RegionOne', '/root-only/v2.1')],
    'root-only-unversioned': [('compute', 'nova', 'public', 'RegionOne', '/root-only')],
    'root-only-project': [('compute', 'nova', 'public', 'RegionOne', f'/root-only/v2.1/{PROJECT}')],
    'other-links': [('compute', 'nova', 'public', 'RegionOne', '/other-links')],
    'legacy': [('compute', 'nova', 'public', 'RegionOne', f'/nova/v2/{PROJECT}')],
    'interfaces': [
        ('compute', 'nova', 'admin', 'RegionOne', '/nova-admin/v2.1'),
        ('compute', 'nova', 'internal', 'RegionOne', '/nova-internal/v2.1'),
        ('compute', 'nova', 'public', 'RegionOne', '/nova/v2.1'),
        ('placement', 'placement', 'internal', 'RegionOne', '/placement-internal'),
    ],
    'regions': [
        ('compute', 'nova', 'public', 'RegionTwo', '/nova-two/v2.1'),
        ('compute', 'nova', 'public', 'RegionOne', '/nova/v2.1'),
        ('placement', 'placement', 'public', 'RegionTwo', '/placement-two'),
    ],
    'types': [
        ('compute', 'nova', 'public', 'RegionOne', '/silent/v2.1'),
        ('computev21', 'nova', 'public', 'RegionOne', '/nova/v2.1'),
        ('placement-two', 'placement', 'public', 'RegionOne', '/placement-two'),
    ],
    'names': [
        ('compute', 'nova-cells', 'public', 'RegionOne', '/silent/v2.1'),
        ('compute', 'nova', 'public', 'RegionOne', '/nova/v2.1'),
    ],
    'old-placement': [
        ('compute', 'nova', 'public', 'RegionOne', '/nova/v2.1'),
        ('placement', 'placement', 'public', 'RegionOne', '/placement-old'),
    ],
    'reader': [('compute', 'nova', 'public', 'RegionOne', '/nova/v2.1')],
    'no-compute': [],
    'silent': [('compute', 'nova', 'public', 'RegionOne', '/silent/v2.1')],
    'web': [('compute', 'nova', 'public', 'RegionOne', '/web/v2.1')],
}
#: The paths of the servers that do not answer as a Nova.
_AWAY, _WEB = '/silent', '/web'


class CloudServer:
    """A WSGI application that is such a cloud.

    :ivar url: the address.
    :ivar asked: the paths of the first lists that were read.
    """

    def __init__(self):
        self.asked: list[str] = []
        self._server = http_server.listen(self, '127.0.0.1', 0)
        self.url, self.stop = self._server.url, self._server.stop

    def __call__(self, environ, start_response):
        path = environ['PATH_INFO']
        body = environ['wsgi.input'].read(int(environ.get('CONTENT_LENGTH') or 0))
        status, headers, document = self._answer(path, body)
        text = document if isinstance(document, str) else json.dumps(document)
        kind = 'text/html' if isinstance(document, str) else 'application/json'
        start_response(status, [('Content-Type', kind), *headers])
        return [text.encode()]

    def _answer(self, path, body):
        if path.startswith(_AWAY):
            return '503 Service Unavailable', [], {'error': {'message': 'no backend'}}
        if path.startswith(_WEB):
            return '200 OK', [], '<html>hello</html>'
        if path.startswith('/identity'):
            return self._identity(path, body)
        if path.endswith(('/os-services', '/resource_providers')):
            self.asked.append(path)
            return '200 OK', [], {'services': [], 'resource_providers': []}
        if path.startswith('/placement'):
            version = {
                'id': 'v1.0',
                'min_version': '1.0',
                'max_version': '1.39',
                'links': [{'rel': 'self', 'href': ''}],
            }
            if path.strip('/') != 'placement-old':
                version['status'] = 'CURRENT'
            return '200 OK', [], {'versions': [version]}
        return self._nova(path)

    def _nova(self, path):
        prefix, _, rest = path.strip('/').partition('/')
        if not prefix:
            return '404 Not Found', [], '<html>nothing</html>'
        at = 'http://controller:8774' if prefix == 'other-links' else f'{self.url}/{prefix}'
        at = f'{at}/{prefix}' if prefix == 'other-links' else at
        known = {
            'v2': {'id': 'v2.0', 'status': 'SUPPORTED', 'version': '', 'min_version': ''},
            'v2.1': {'id': 'v2.1', 'status': 'CURRENT', 'version': '2.90', 'min_version': '2.1'},
        }
        for name, one in known.items():
            one['links'] = [{'rel': 'self', 'href': f'{at}/{name}/'}]
        if not rest:
            return '200 OK', [], {'versions': [*known.values()]}
        if rest in known and prefix != 'root-only':
            return '200 OK', [], {'version': known[rest]}
        return '404 Not Found', [], {'itemNotFound': {'code': 404, 'message': 'The resource could not be found.'}}

    def _identity(self, path, body):
        version = {'id': 'v3.14', 'status': 'stable', 'links': [{'rel': 'self', 'href': f'{self.url}/identity/v3/'}]}
        if path == '/identity/v3/auth/tokens':
            return self._token(json.loads(body)['auth'])
        if path.strip('/') == 'identity':
            return '300 Multiple Choices', [], {'versions': {'values': [version]}}
        return '200 OK', [], {'version': version}

    def _token(self, asked):
        given = asked['identity']
        user = given.get('password', {}).get('user', {})
        if 'token' in given:
            user = {'name': given['token']['id'], 'password': PASSWORD, 'domain': {}}
        if 'application_credential' in given:
            one = given['application_credential']
            user = {'name': one['id'], 'password': one['secret'], 'domain': {}}
        missing = 'domain' not in user or (
            'project' in asked.get('scope', {}) and 'domain' not in asked['scope']['project']
        )
        if user.get('password') != PASSWORD or user.get('name') not in CATALOGS or missing:
            return '401 Unauthorized', [], {'error': {'code': 401, 'message': 'The request requires authentication.'}}
        roles = ('member', 'reader') if user['name'] == 'reader' else ('admin',)
        token = {
            'methods': [*given['methods']],
            'expires_at': '2099-01-01T00:00:00.000000Z',
            'issued_at': '2026-01-01T00:00:00.000000Z',
            'user': {'id': 'u', 'name': user['name'], 'domain': {'id': 'default', 'name': 'Default'}},
            'project': {'id': PROJECT, 'name': 'admin', 'domain': {'id': 'default', 'name': 'Default'}},
            'roles': [{'id': name, 'name': name} for name in roles],
            'catalog': self._catalog(user['name']),
        }
        return '201 Created', [('X-Subject-Token', 'token-of-the-lab')], {'token': token}

    def _catalog(self, name):
        rows = [*CATALOGS[name]]
        if not any(row[0] == 'placement' and row[3] == 'RegionOne' and row[2] == 'public' for row in rows):
            rows.append(('placement', 'placement', 'public', 'RegionOne', '/placement'))
        found: dict[tuple[str, str], list[dict]] = {}
        for kind, service, interface, region, path in rows:
            one = {'id': f'{interface}-{path}', 'interface': interface, 'region': region, 'region_id': region}
            found.setdefault((kind, service), []).append(one | {'url': f'{self.url}{path}'})
        return [
            {'type': kind, 'name': service, 'id': f'{kind}-{service}', 'endpoints': endpoints}
            for (kind, service), endpoints in found.items()
        ]
