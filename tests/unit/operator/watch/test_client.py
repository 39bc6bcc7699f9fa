# SPDX-License-Identifier: Apache-2.0

"""The client of /migrator/v1 on a real HTTP server, and which cloud it asks."""

import json
import logging
import socket
import types

import pytest
from keystoneauth1 import exceptions, noauth, session
from oslo_config import cfg

from migrator import exception
from migrator.conf import api
from migrator.operator.cli import command
from migrator.operator.osc import drain as osc_drain
from migrator.operator.watch import client, errors
from migrator.runtime import http_server


class Server:
    """A server that answers with one document, and records the requests."""

    def __init__(self):
        self.status, self.document, self.asked = '200 OK', {'drain': {}}, []
        self._server = http_server.listen(self, '127.0.0.1', 0)
        self.url, self.stop = self._server.url, self._server.stop

    def __call__(self, environ, start_response):
        path = environ['PATH_INFO'] + (f'?{environ["QUERY_STRING"]}' if environ['QUERY_STRING'] else '')
        self.asked.append((environ['REQUEST_METHOD'], path, environ.get('HTTP_X_AUTH_TOKEN')))
        start_response(self.status, [('Content-Type', 'application/json')])
        return [self.document if isinstance(self.document, bytes) else json.dumps(self.document).encode()]


@pytest.fixture
def server():
    server = Server()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def no_cloud(monkeypatch, tmp_path):
    monkeypatch.setenv('HOME', str(tmp_path))
    for name in ('OS_CLOUD', 'OS_AUTH_URL', 'OS_CLIENT_CONFIG_FILE'):
        monkeypatch.delenv(name, raising=False)


def make_conf(tmp_path, **options):
    conf = cfg.ConfigOpts()
    api.register_opts(conf)
    file = tmp_path / 'migrator.conf'
    file.write_text('[api]\n' + ''.join(f'{name} = {value}\n' for name, value in options.items()))
    conf(['--config-file', str(file)], project='migrator')
    return conf


@pytest.fixture
def asked(server, tmp_path):
    """The client of the server, which a configuration without Keystone names."""
    host, port = server.url.removeprefix('http://').split(':')
    return client.client_from_conf(make_conf(tmp_path, auth_strategy='noauth2', listen=host, listen_port=int(port)))


def test_configuration_without_keystone_names_its_own_api(server, asked):
    assert asked.get('/drains/1/events', after=3) == {'drain': {}}
    assert server.asked == [('GET', '/migrator/v1/drains/1/events?after=3', 'admin')]


def test_environment_names_a_cloud_as_for_the_openstack_client(server, monkeypatch, tmp_path):
    monkeypatch.setenv('OS_AUTH_TYPE', 'admin_token')
    monkeypatch.setenv('OS_ENDPOINT', f'{server.url}/compute/v2.1')
    monkeypatch.setenv('OS_TOKEN', 'mine')
    client.client_from_conf(make_conf(tmp_path)).get('/drains/1')
    assert server.asked == [('GET', '/compute/migrator/v1/drains/1', 'mine')]


def test_no_cloud_at_all_is_an_error_that_says_what_to_set(tmp_path):
    with pytest.raises(exception.ConfigurationError, match='OS_CLOUD'):
        client.client_from_conf(make_conf(tmp_path))


def test_refused_request_has_the_url_and_the_message_of_the_api(server, asked):
    server.status, server.document = '404 Not Found', {'itemNotFound': {'code': 404, 'message': 'No such drain.'}}
    with pytest.raises(errors.ApiRefused) as raised:
        asked.get('/drains/1')
    assert str(raised.value) == f'The request to {server.url}/migrator/v1/drains/1 failed: No such drain. (HTTP 404)'


@pytest.mark.parametrize(
    ('status', 'exits'), [('400 Bad Request', 2), ('404 Not Found', 1), ('409 Conflict', 1), ('503 Not Now', 3)]
)
def test_exit_status_says_whether_the_request_was_wrong(server, asked, capsys, status, exits):
    server.status, server.document = status, {'badRequest': {'code': 400, 'message': "'host1' fits several drains."}}
    with pytest.raises(exception.MigratorException) as raised:
        asked.get('/drains/host1')
    assert command.report('migrator-manage', raised.value) == exits
    app = types.SimpleNamespace(client_manager=types.SimpleNamespace(migrator=asked), LOG=logging.getLogger('osc'))
    show = osc_drain.ShowDrain(app, None)
    given = show.get_parser('show').parse_args(['host1'])
    if exits == 2:
        assert show.run(given) == 2
    else:
        with pytest.raises(type(raised.value)):
            show.run(given)


@pytest.mark.parametrize('status', ['500 Internal Server Error', '503 Service Unavailable'])
def test_api_that_cannot_serve_now_is_unreachable(server, asked, status):
    server.status, server.document = status, b'<html>not now</html>'
    with pytest.raises(errors.ApiUnreachable, match='not now'):
        asked.get('/drains/1')


def test_closed_port_is_unreachable(server, asked):
    server.stop()
    with pytest.raises(errors.ApiUnreachable) as raised:
        asked.get('/drains/1')
    said = f'The request to {server.url}/migrator/v1/drains/1 failed: Connection refused. Check that the service runs'
    assert str(raised.value).startswith(said)


def test_certificate_that_is_not_trusted_is_said_to_be_that(asked, monkeypatch):
    def request(*_words, **_more):
        raise exceptions.SSLError('certificate verify failed')

    monkeypatch.setattr(asked._adapter, 'request', request)
    with pytest.raises(
        errors.ApiUnreachable, match=r'not trusted \(SSLError: certificate verify failed\): name its CA'
    ):
        asked.get('/drains/1')


def test_api_that_accepts_and_does_not_answer_is_unreachable(monkeypatch, tmp_path):
    monkeypatch.setattr(client, 'TIMEOUT', 0.1)
    with socket.create_server(('127.0.0.1', 0)) as frozen:
        conf = make_conf(tmp_path, auth_strategy='noauth2', listen='127.0.0.1', listen_port=frozen.getsockname()[1])
        with pytest.raises(errors.ApiUnreachable, match=r'/drains/1 failed: no answer within 0\.1 s\. Check'):
            client.client_from_conf(conf).get('/drains/1')


def test_answer_that_is_not_json_is_refused(server, asked):
    server.document = b'<html>hello</html>'
    with pytest.raises(errors.ApiRefused, match='is it the API of migrator'):
        asked.get('/drains/1')


def test_catalog_without_a_compute_endpoint_is_refused_by_that_name():
    with pytest.raises(errors.ApiRefused, match='no compute endpoint'):
        client.Client(session.Session(auth=noauth.NoAuth())).get('/drains/1')
