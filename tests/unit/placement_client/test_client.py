# SPDX-License-Identifier: Apache-2.0

"""Requests and their errors, against the real Placement, over HTTP if the transport matters."""

import concurrent.futures
import contextlib
import json
import logging
import socket
import threading
import time
import types
import uuid
from http import server as http_server
from wsgiref import simple_server

import pytest
import requests
from keystoneauth1 import adapter as ks_adapter
from keystoneauth1 import session as ks_session
from keystoneauth1 import token_endpoint
from oslo_config import cfg

from migrator import exception
from migrator.conf import keystone
from migrator.placement_client import client as placement
from migrator.testing.placement import make_response
from migrator.testing.placement_faults import Fault, FaultyAdapter

CONSUMER = '/allocations/11111111-1111-1111-1111-111111111111'
PASSWORD = 'correct-horse'


class _Quiet(simple_server.WSGIRequestHandler):
    def log_message(self, *_args):
        pass


@contextlib.contextmanager
def served(app):
    """Serve a WSGI application on a port of its own; yield its URL."""
    server = simple_server.make_server('127.0.0.1', 0, app, handler_class=_Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={'poll_interval': 0.01})
    thread.start()
    try:
        yield f'http://127.0.0.1:{server.server_port}'
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def url(in_process):
    with served(in_process.app) as where:
        yield where


class Identity:
    """The part of Keystone that a password needs; its token is the administrator of Placement's noauth2."""

    def __init__(self):
        self.url = ''
        self.placement_url = ''
        self.logins = 0

    def app(self, environ, start_response):
        headers = [('Content-Type', 'application/json')]
        if environ['PATH_INFO'].endswith('/auth/tokens'):
            self.logins += 1
            asked = json.loads(environ['wsgi.input'].read(int(environ['CONTENT_LENGTH'])))
            if asked['auth']['identity']['password']['user']['password'] != PASSWORD:
                start_response('401 Unauthorized', headers)
                return [json.dumps({'error': {'code': 401, 'message': 'it was not you', 'title': 'no'}}).encode()]
            start_response('201 Created', [*headers, ('X-Subject-Token', 'admin')])
            endpoint = {'interface': 'public', 'region_id': 'r', 'region': 'r', 'id': 'p', 'url': self.placement_url}
            catalog = [{'type': 'placement', 'name': 'placement', 'id': 'p', 'endpoints': [endpoint]}]
            token = {'expires_at': '2999-01-01T00:00:00Z', 'methods': ['password'], 'catalog': catalog}
            return [json.dumps({'token': token}).encode()]
        start_response('200 OK', headers)
        links = [{'rel': 'self', 'href': f'{self.url}/v3/'}]
        return [json.dumps({'version': {'id': 'v3.14', 'status': 'stable', 'links': links}}).encode()]


@pytest.fixture
def identity(url):
    one = Identity()
    one.placement_url = url
    with served(one.app) as where:
        one.url = where
        yield one


def configured(tmp_path, **options):
    lines = ['[placement]', *(f'{name} = {value}' for name, value in options.items())]
    file = tmp_path / 'migrator.conf'
    file.write_text('\n'.join(lines))
    conf = cfg.ConfigOpts()
    keystone.PLACEMENT.register_opts(conf)
    conf(['--config-file', str(file)], default_config_files=[], default_config_dirs=[])
    return conf


def with_password(identity, password=PASSWORD):
    return {
        'auth_type': 'password',
        'auth_url': f'{identity.url}/v3',
        'username': 'migrator',
        'password': password,
        'project_name': 'service',
        'user_domain_id': 'default',
        'project_domain_id': 'default',
    }


def closed_port():
    with socket.socket() as one:
        one.bind(('127.0.0.1', 0))
        return one.getsockname()[1]


def client_at(where):
    session = ks_session.Session(auth=token_endpoint.Token(where, 'admin'), timeout=0.2)
    return placement.PlacementClient(ks_adapter.Adapter(session, service_type='placement'))


class Canned:
    """An adapter that always returns the same response."""

    def __init__(self, status, body=b'', headers=()):
        self.answer = make_response(None, status, headers, body)
        self.asked = []

    def request(self, url, method, **kwargs):
        self.asked.append((method, url, kwargs))
        return self.answer


def refusal(status, code):
    return json.dumps({'errors': [{'status': status, 'title': 'T', 'detail': 'why\n so', 'code': code}]}).encode()


# --- requests --------------------------------------------------------------------------------------------------------


def test_every_request_names_the_microversion_and_forbids_retries():
    adapter = Canned(200, b'{}')
    client = placement.PlacementClient(adapter)
    client.get('/a')
    client.post('/a', {'b': 1})
    client.put('/a', {'b': 1})
    client.delete('/a')
    assert [method for method, _, _ in adapter.asked] == ['GET', 'POST', 'PUT', 'DELETE']
    for _, _, kwargs in adapter.asked:
        assert kwargs['headers']['OpenStack-API-Version'] == 'placement 1.39'
        assert (kwargs['raise_exc'], kwargs['connect_retries'], kwargs['status_code_retries']) == (False, 0, 0)


def test_placement_answers_in_the_microversion_that_was_asked_for(client):
    assert client.get(CONSUMER).headers['OpenStack-API-Version'] == f'placement {placement.MICROVERSION}'


def test_missing_document_is_none_or_refused(client):
    url = f'/resource_providers/{uuid.uuid4()}'
    assert client.read_or_none(url) is None
    with pytest.raises(exception.PlacementRefused) as caught:
        client.read(url)
    assert caught.value.kwargs['status'] == 404


# --- errors ----------------------------------------------------------------------------------------------------------


def test_a_stale_generation_is_a_conflict_by_its_code(client, world):
    url = f'/resource_providers/{world.host()}/inventories'
    with pytest.raises(exception.PlacementConflict) as caught:
        client.put(url, {'resource_provider_generation': 77, 'inventories': {}})
    assert caught.value.kwargs['placement_code'] == 'placement.concurrent_update'


@pytest.mark.parametrize(
    ('status', 'code', 'wanted'),
    [
        (409, 'placement.concurrent_update', exception.PlacementConflict),
        (409, 'placement.undefined_code', exception.PlacementRefused),
        (409, None, exception.PlacementRefused),
        (400, 'placement.concurrent_update', exception.PlacementRefused),
        (404, 'placement.undefined_code', exception.PlacementRefused),
        (401, None, exception.PlacementUnauthorized),
        (403, None, exception.PlacementUnauthorized),
        (408, None, exception.PlacementUnreachable),
        (429, None, exception.PlacementUnreachable),
        (500, 'placement.undefined_code', exception.PlacementUnreachable),
        (502, None, exception.PlacementUnreachable),
        (503, None, exception.PlacementUnreachable),
    ],
)
def test_status_and_code_decide_the_error(status, code, wanted):
    with pytest.raises(wanted, match='why so') as caught:
        placement.PlacementClient(Canned(status, refusal(status, code))).post('/allocations', {})
    assert type(caught.value) is wanted
    assert caught.value.kwargs['status'] == status


def test_the_text_of_a_refusal_decides_nothing():
    body = json.dumps({'errors': [{'detail': 'placement.concurrent_update', 'code': 'placement.undefined_code'}]})
    with pytest.raises(exception.PlacementRefused):
        placement.PlacementClient(Canned(409, body.encode())).put('/allocations/x', {})


@pytest.mark.parametrize('body', [b'<html>Bad Gateway</html>', b'', b'[]', b'{"errors": {}}', b'{"errors": ["x"]}'])
def test_the_status_decides_an_error_without_placement_s_json(body):
    with pytest.raises(exception.PlacementUnreachable, match='502'):
        placement.PlacementClient(Canned(502, body)).get('/')
    with pytest.raises(exception.PlacementRefused, match='409'):
        placement.PlacementClient(Canned(409, body)).get('/')


@pytest.mark.parametrize(('status', 'body'), [(200, b'<html>Welcome</html>'), (404, b'<html>Not Found</html>')])
def test_a_server_that_is_not_placement_is_unreachable(status, body):
    with pytest.raises(exception.PlacementUnreachable, match='endpoint_override'):
        placement.PlacementClient(Canned(status, body)).read('/allocations/x')


@pytest.mark.parametrize('body', [b'{"planned": 1}', b'{"allocations": null}'])
def test_a_reply_without_allocations_does_not_say_that_nothing_is_held(body):
    with pytest.raises(exception.PlacementUnreachable, match='not Placement'):
        placement.PlacementClient(Canned(200, body)).holders('x')


def test_the_error_of_an_old_placement_names_the_needed_microversion():
    with pytest.raises(exception.PlacementRefused, match=r'1\.39'):
        placement.PlacementClient(Canned(406, refusal(406, None))).get('/')


def test_a_closed_port_is_unreachable():
    with pytest.raises(exception.PlacementUnreachable) as caught:
        client_at(f'http://127.0.0.1:{closed_port()}').get('/')
    assert caught.value.code == 503


def test_a_missing_response_is_unreachable_and_is_not_retried():
    connections = []
    with socket.create_server(('127.0.0.1', 0)) as unreachable:
        unreachable.settimeout(0.2)
        with pytest.raises(exception.PlacementUnreachable, match='timed out'):
            client_at(f'http://127.0.0.1:{unreachable.getsockname()[1]}').put('/allocations/x', {})
        with contextlib.suppress(TimeoutError):
            while True:
                connections.append(unreachable.accept()[0])
    assert len(connections) == 1
    connections[0].close()


def test_a_broken_connection_is_unreachable_and_is_not_retried():
    connections = []
    with socket.create_server(('127.0.0.1', 0)) as rude:
        rude.settimeout(30)

        def hang_up():
            with contextlib.suppress(TimeoutError):
                while True:
                    one = rude.accept()[0]
                    rude.settimeout(0.2)
                    connections.append(one)
                    one.recv(10)
                    one.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(exception.PlacementUnreachable):
            client_at(f'http://127.0.0.1:{rude.getsockname()[1]}').post('/allocations', {})
        thread.join()
    assert len(connections) == 1


def test_a_503_is_not_tried_again(in_process):
    """keystoneauth1 can try a 503 again by itself, and a write may have been done."""
    faulty = FaultyAdapter(in_process.adapter())
    faulty.inject(Fault.ERROR_DONE)
    with pytest.raises(exception.PlacementUnreachable):
        placement.PlacementClient(faulty).get(CONSUMER)
    assert len(in_process.requests) == 1


@pytest.mark.parametrize('error', [OSError('no route'), requests.exceptions.InvalidURL('no url')])
def test_an_error_that_keystoneauth1_lets_through_is_unreachable(error):
    class Broken:
        def request(self, _url, _method, **_kwargs):
            raise error

    with pytest.raises(exception.PlacementUnreachable):
        placement.PlacementClient(Broken()).get('/')


def test_the_error_of_a_user_without_rights_says_where_to_look(in_process):
    with pytest.raises(exception.PlacementUnauthorized, match=r'403.*\[placement\].*admin'):
        placement.PlacementClient(in_process.adapter('nobody')).get(CONSUMER)


# --- from the configuration ------------------------------------------------------------------------------------------


@pytest.mark.parametrize('auth_type', ['none', 'noauth'])
def test_without_authentication_it_is_the_administrator_of_noauth2(tmp_path, url, auth_type):
    conf = configured(tmp_path, auth_type=auth_type, endpoint_override=url)
    assert placement.client_from_conf(conf).read(CONSUMER) == {'allocations': {}}


def test_a_token_of_the_administrator_works(tmp_path, url):
    conf = configured(tmp_path, auth_type='admin_token', token='admin', endpoint=url)
    assert placement.client_from_conf(conf).read(CONSUMER) == {'allocations': {}}


def test_a_password_works_and_the_address_comes_from_the_catalog(tmp_path, identity, in_process):
    client = placement.client_from_conf(configured(tmp_path, **with_password(identity)))
    assert client.read(CONSUMER) == {'allocations': {}}
    client.read(CONSUMER)
    assert identity.logins == 1
    assert [request.url for request in in_process.requests if request.url != '/'] == [CONSUMER, CONSUMER]


def test_endpoint_override_goes_before_the_catalog(tmp_path, identity, url):
    identity.placement_url = f'http://127.0.0.1:{closed_port()}'
    conf = configured(tmp_path, endpoint_override=url, **with_password(identity))
    assert placement.client_from_conf(conf).read(CONSUMER) == {'allocations': {}}


def test_a_wrong_password_is_a_clear_error_without_the_password(tmp_path, identity, in_process, caplog):
    caplog.set_level(logging.DEBUG)
    client = placement.client_from_conf(configured(tmp_path, **with_password(identity, 'battery-staple')))
    with pytest.raises(exception.PlacementUnauthorized, match=r'it was not you.*credentials') as caught:
        client.get(CONSUMER)
    assert isinstance(caught.value, exception.PlacementUnreachable)
    assert 'battery-staple' not in str(caught.value) + caplog.text
    assert not in_process.requests


def test_no_password_and_no_token_is_ever_logged(tmp_path, identity, caplog):
    caplog.set_level(logging.DEBUG)
    # Another test may have set the log levels of a service for the whole process, which would hide the token.
    for name in ('keystoneauth', 'keystoneauth.session'):
        caplog.set_level(logging.DEBUG, logger=name)
    conf = configured(tmp_path, **with_password(identity))
    placement.client_from_conf(conf).read(CONSUMER)
    assert 'REQ: curl' in caplog.text
    assert PASSWORD not in caplog.text
    assert 'X-Auth-Token: admin' not in caplog.text


def test_a_password_in_the_address_is_left_out_of_the_error(tmp_path):
    where = f'http://ada:{PASSWORD}@127.0.0.1:{closed_port()}'
    client = placement.client_from_conf(configured(tmp_path, auth_type='none', endpoint_override=where))
    with pytest.raises(exception.PlacementUnreachable, match=r'\*\*\*@127') as caught:
        client.get('/')
    assert PASSWORD not in str(caught.value)


def test_an_identity_service_that_is_down_is_unreachable(tmp_path, identity):
    options = {**with_password(identity), 'auth_url': f'http://127.0.0.1:{closed_port()}/v3'}
    with pytest.raises(exception.PlacementUnreachable) as caught:
        placement.client_from_conf(configured(tmp_path, **options)).get('/')
    assert not isinstance(caught.value, exception.PlacementUnauthorized)


def test_a_catalog_without_placement_is_unreachable(tmp_path, identity):
    conf = configured(tmp_path, region_name='elsewhere', **with_password(identity))
    with pytest.raises(exception.PlacementUnreachable, match='endpoint'):
        placement.client_from_conf(conf).get('/')


@pytest.mark.parametrize(
    ('options', 'said'),
    [
        ({}, 'auth_type'),
        ({'auth_type': 'telepathy'}, 'no such plug-in'),
        ({'auth_type': 'none'}, 'endpoint_override'),
        ({'auth_type': 'none', 'endpoint_override': 'x:8778'}, "endpoint_override is 'x:8778': it is not the URL"),
        (
            {
                'auth_type': 'password',
                'username': 'u',
                'password': PASSWORD,
                'auth_url': f'u:{PASSWORD}@keystone',
            },
            'auth_url is .* it is not the URL',
        ),
        ({'auth_type': 'password', 'password': PASSWORD}, 'auth_url'),
        ({'auth_type': 'none', 'endpoint_override': 'http://x', 'valid_interfaces': 'sideways'}, 'sideways'),
        (
            {
                'auth_type': 'none',
                'endpoint_override': 'http://x',
                'certfile': '/a',
                'version': '1',
                'min_version': '1',
            },
            r'\[placement\] is invalid: .*version',
        ),
        (
            {'auth_type': 'none', 'endpoint_override': 'http://x', 'timeout': 'x'},
            r"\[placement\] timeout is 'x': .*give ",
        ),
        ({'auth_type': 'none', 'endpoint_override': 'http://x', 'timeout': ''}, r"\[placement\] timeout is ''"),
    ],
)
def test_the_error_of_an_invalid_configuration_names_the_option(tmp_path, options, said):
    with pytest.raises(exception.ConfigurationError, match=said) as caught:
        placement.client_from_conf(configured(tmp_path, **options))
    assert PASSWORD not in str(caught.value)


def test_no_option_is_registered_on_the_global_configuration(tmp_path, url):
    placement.client_from_conf(configured(tmp_path, auth_type='none', endpoint_override=url))
    assert 'placement' not in cfg.CONF


def test_a_clock_that_is_set_back_delays_no_request(tmp_path, url, monkeypatch):
    """keystoneauth1's rate limiter slept until the wall clock reached its earlier time again."""
    client = placement.client_from_conf(configured(tmp_path, auth_type='none', endpoint_override=url))
    yesterday = time.time() - 86400
    slept = []
    clock = types.SimpleNamespace(time=lambda: yesterday, sleep=slept.append)
    monkeypatch.setattr('keystoneauth1._fair_semaphore.time', clock)
    assert client.read('/resource_providers') == {'resource_providers': []}
    assert slept == []


class _Together(http_server.BaseHTTPRequestHandler):
    """A handler that answers when the barrier is full, and counts the connections."""

    protocol_version = 'HTTP/1.1'
    connections = 0

    def setup(self):
        super().setup()
        type(self).connections += 1

    def do_GET(self):
        self.barrier.wait(timeout=30)
        self.send_response(200)
        self.send_header('Content-Length', '2')
        self.end_headers()
        self.wfile.write(b'{}')

    def log_message(self, *_args):
        pass


class _Patient(http_server.ThreadingHTTPServer):
    request_queue_size = 128


def test_each_concurrent_migration_keeps_its_connection(tmp_path, caplog):
    sagas = 64
    handler = type('Together', (_Together,), {'barrier': threading.Barrier(sagas)})
    with _Patient(('127.0.0.1', 0), handler) as placement_:
        threading.Thread(target=placement_.serve_forever, kwargs={'poll_interval': 0.01}).start()
        where = f'http://127.0.0.1:{placement_.server_port}'
        client = placement.client_from_conf(configured(tmp_path, auth_type='none', endpoint_override=where))
        with concurrent.futures.ThreadPoolExecutor(sagas) as pool:
            for _ in range(2):
                answers = [pool.submit(client.get, '/') for _ in range(sagas)]
                assert {one.result().status_code for one in answers} == {200}
        client.adapter.session.session.close()
        placement_.shutdown()
    assert handler.connections == sagas
    assert 'pool is full' not in caplog.text
