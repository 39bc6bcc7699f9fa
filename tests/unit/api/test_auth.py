# SPDX-License-Identifier: Apache-2.0

"""Authentication: noauth2, and keystonemiddleware."""

import pytest
import webob
from keystoneauth1 import fixture as ks_fixture
from keystonemiddleware import fixture as middleware_fixture

from migrator.api import app, auth
from migrator.conductor.tasks import sagas


def test_request_without_token_returns_401(world):
    before = world.rows()
    for method, path in (('GET', '/servers'), ('POST', '/servers/x/action'), ('GET', '/nonsense'), ('GET', '/')):
        response = world.ask(method, path + '/', token=None)
        if path != '/':
            world.refuses(response, 401, 'unauthorized', 'X-Auth-Token', since=before)
            assert response.headers['WWW-Authenticate']
    world.refuses(world.ask('GET', '/servers', token=':blue'), 401, 'unauthorized')


@pytest.mark.parametrize(
    ('token', 'user', 'project', 'is_admin'),
    [
        ('admin', 'admin', 'admin', True),
        ('admin:blue', 'admin', 'blue', True),
        ('ada:blue', 'ada', 'blue', False),
        ('ada', 'ada', 'ada', False),
        ('ada:admin', 'ada', 'admin', False),
    ],
)
def test_noauth2_token_sets_user_project_and_role(world, token, user, project, is_admin):
    guest = world.guest(project=project)
    assert world.ask('POST', f'/servers/{guest.uuid}/action', {'lock': None}, token=token).status_int == 202
    assert world.ask('GET', '/os-services', token=token).status_int == (200 if is_admin else 403)
    if is_admin:
        world.migrate(guest, token=token)
        assert world.database.migrations.list()[0].user_id == user


@pytest.mark.parametrize(
    ('name', 'status'),
    [
        ('localhost', 200),
        ('LOCALHOST.:8774', 200),
        ('127.0.0.1:8774', 200),
        ('127.8.9.1', 200),
        ('[::1]:8774', 200),
        ('mine.example:8774', 200),
        ('10.0.0.7', 200),
        ('', 200),
        ('evil.example', 403),
        ('evil.example:8774', 403),
        ('localhost.evil.example', 403),
        ('127.0.0.1.evil.example', 403),
        ('evil.example:80:80', 403),
        ('10.0.0.8', 403),
        ('::1.evil.example', 403),
        ('<b>\x1b[2J', 403),
    ],
)
def test_noauth2_answers_only_under_known_names(world, name, status):
    world.conf.set_override('host_names', ['api.test', 'Mine.example', '10.0.0.7'], group='api')
    served = app.make_app(world.conf, world.database, world.conductor, world.threads, sagas())
    for path in ('/v2.1/servers', '/migrator/v1/ui'):
        request = webob.Request.blank(path, headers={'X-Auth-Token': 'admin', 'Host': name})
        response = request.get_response(served)
        assert response.status_int == status
        if status == 403:
            assert '[api] host_names' in response.json['forbidden']['message']
            assert '\x1b' not in response.text


@pytest.fixture
def keystone(world, tmp_path):
    """The world behind keystonemiddleware, with a Keystone that knows three tokens."""
    (tmp_path / 'api.conf').write_text('[keystone_authtoken]\nwww_authenticate_uri = http://keystone.test/v3\n')
    world.conf(['--config-file', str(tmp_path / 'api.conf')], project='migrator')
    with middleware_fixture.AuthTokenFixture() as tokens:
        world.conf.set_override('auth_strategy', 'keystone', group='api')
        world.app = app.make_app(world.conf, world.database, world.conductor, world.threads, sagas())
        for user, project, roles in (
            ('root', 'red', ['admin', 'manager', 'member', 'reader']),
            ('eve', 'blue', ['manager', 'member', 'reader']),
            ('bob', 'blue', ['reader']),
        ):
            token = ks_fixture.V3Token(user_id=user, user_name=user)
            token.set_project_scope(id=project, name=project)
            for role in roles:
                token.add_role(name=role)
            tokens.add_token(token, token_id=f'token-of-{user}')
        yield world


def test_keystone_token_sets_user_project_and_roles(keystone):
    guest = keystone.guest(project='blue')
    assert keystone.get('/servers', token='token-of-bob')['servers'][0]['name'] == 'vm'
    assert keystone.get('/servers', token='token-of-root')['servers'] == []
    assert keystone.ask('GET', '/os-services', token='token-of-root').status_int == 200
    keystone.refuses(keystone.migrate(guest, token='token-of-bob'), 403, 'forbidden')
    assert keystone.migrate(guest, token='token-of-eve').status_int == 202
    row = keystone.database.migrations.list()[0]
    assert (row.user_id, row.project_id) == ('eve', 'blue')


def test_token_unknown_to_keystone_returns_401(keystone):
    for token in (None, 'token-of-no-user'):
        response = keystone.ask('GET', '/servers', token=token)
        assert response.status_int == 401
        assert response.headers['WWW-Authenticate'].startswith('Keystone')
        assert response.headers['X-OpenStack-Request-Id']


def test_with_keystone_discovery_still_needs_no_token(keystone):
    assert keystone.ask('GET', '/', token=None).status_int == 200


def test_with_keystone_an_internal_error_has_novas_form(keystone, monkeypatch):
    response = keystone.ask('GET', '/servers/x', token='token-of-root', version='2.30')
    keystone.refuses(response, 404, 'itemNotFound', 'x')
    assert response.headers['OpenStack-API-Version'] == 'compute 2.30'


def test_headers_that_keystonemiddleware_sets_cannot_be_forged(keystone):
    response = keystone.ask('GET', '/os-services', token='token-of-bob', X_Roles='admin', X_Project_Id='red')
    keystone.refuses(response, 403, 'forbidden')


def test_with_noauth2_keystone_headers_are_ignored(world):
    response = world.ask('GET', '/os-services', token='bob:blue', X_Roles='admin', X_User_Id='admin')
    world.refuses(response, 403, 'forbidden')


def test_keystone_is_not_asked_before_the_first_request(world, monkeypatch):
    world.conf.set_override('auth_strategy', 'keystone', group='api')
    handle = auth.of_conf(world.conf)(lambda request: webob.Response())
    assert callable(handle)
    assert 'keystone_authtoken' not in world.conf
