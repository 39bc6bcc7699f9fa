# SPDX-License-Identifier: Apache-2.0

"""The development identity."""

import pytest
import webob
from keystoneauth1 import session as ks_session
from keystoneauth1.identity import v3

from migrator.api import devidentity

ENDPOINTS = {'compute': 'http://127.0.0.1:8774/v2.1', 'placement': 'http://127.0.0.1:8778'}


def ask(path, method='GET', body=None, remote='127.0.0.1'):
    request = webob.Request.blank(path, method=method, base_url='http://127.0.0.1:5000')
    request.remote_addr = remote
    if body is not None:
        request.json_body = body
    return request.get_response(devidentity.make_app(ENDPOINTS))


def password(user, project=None):
    body = {'auth': {'identity': {'methods': ['password'], 'password': {'user': {'name': user, 'password': 'x'}}}}}
    if project:
        body['auth']['scope'] = {'project': {'name': project, 'domain': {'name': 'Default'}}}
    return body


@pytest.mark.parametrize(
    ('user', 'project', 'token'),
    [
        ('admin', None, 'admin'),
        ('admin', 'admin', 'admin'),
        ('admin', 'blue', 'admin:blue'),
        ('ada', 'blue', 'ada:blue'),
        ('ada', None, 'ada:ada'),
    ],
)
def test_token_is_issued_without_a_password_check(user, project, token):
    response = ask('/v3/auth/tokens', 'POST', password(user, project))
    assert response.status_int == 201
    assert response.headers['X-Subject-Token'] == token
    issued = response.json['token']
    assert issued['user']['name'] == user
    assert issued['project']['name'] == (project or user)
    assert ('admin' in {role['name'] for role in issued['roles']}) == (user == 'admin')


def test_every_answer_is_marked(world):
    for response in (ask('/'), ask('/v3'), ask('/v3/auth/tokens', 'POST', password('admin')), ask('/v3/users')):
        assert response.headers['X-Migrator-Development-Identity'] == devidentity.MARK
    assert ask('/v3').json['version']['description'] == devidentity.MARK


@pytest.mark.parametrize('remote', ['10.1.2.3', '', '::ffff:10.1.2.3', '2001:db8::1'])
def test_request_from_another_machine_returns_403(remote):
    assert ask('/v3/auth/tokens', 'POST', password('admin'), remote).status_int == 403


@pytest.mark.parametrize('body', [{}, [], {'auth': {}}, {'auth': {'identity': {'password': {'user': {}}}}}, 'x'])
def test_malformed_request_returns_400(body):
    assert ask('/v3/auth/tokens', 'POST', body).status_int == 400


@pytest.mark.parametrize('name', ['a\nb: c', 'a:b', '\u20ac', 'a' * 256, {'a': 'b'}, 7, ' '])
def test_name_that_does_not_fit_into_a_token_returns_400(name):
    for body in (password(name), password('ada', name)):
        response = ask('/v3/auth/tokens', 'POST', body)
        assert response.status_int == 400
        assert 'Give a password' in response.json['badRequest']['message']


def test_a_body_that_is_not_json_and_a_path_that_is_not_utf_8_are_answered_in_novas_form():
    request = webob.Request.blank('/v3/auth/tokens', method='POST', content_type='application/xml', body=b'<a/>')
    request.remote_addr = '127.0.0.1'
    response = request.get_response(devidentity.make_app(ENDPOINTS))
    assert response.status_int == 415
    assert 'application/json' in response.json['badMediaType']['message']
    assert response.headers['X-Migrator-Development-Identity'] == devidentity.MARK
    response = ask('/v3/%ff')
    assert response.status_int == 400
    assert 'UTF-8' in response.json['badRequest']['message']


def test_unknown_url_returns_404():
    assert ask('/v3/users').status_int == 404
    assert ask('/v2.0/tokens', 'POST', {}).status_int == 404


def test_keystoneauth_gets_token_and_endpoint(served):
    auth = v3.Password(
        auth_url=served.auth_url, username='admin', password='x', project_name='admin',
        user_domain_name='Default', project_domain_name='Default',
    )  # fmt: skip
    session = ks_session.Session(auth=auth)
    session.session.trust_env = False
    assert session.get_endpoint(service_type='compute', interface='public') == served.url
    assert session.get_token() == 'admin'
    assert session.get('/servers', endpoint_filter={'service_type': 'compute'}).json() == {'servers': []}
