# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import json
import signal
import socket
import threading

import pytest
import requests

from migrator import executors, tracing
from migrator.cmd import api
from migrator.wsgi import api as wsgi_api
from tests.unit.cmd.processes import configure, eventually, refused, running


def url_of(service) -> str:
    return next(word for word in service.wait_for('The API is at').split() if word.startswith('http://'))


def test_api_answers_logs_each_request_and_exits_0_on_sigterm(tmp_path):
    with running(tmp_path, 'api', *configure(tmp_path, '[api]\nmetrics_port = 0'), fresh=True) as service:
        url, metrics = url_of(service), service.wait_for('The metrics are at').split()[-1]
        answer = requests.get(f'{url}/servers', headers={'X-Auth-Token': 'admin'}, timeout=30)
        assert answer.json() == {'servers': []}
        line = service.wait_for('"GET /v2.1/servers"')
        assert answer.headers['X-OpenStack-Request-Id'] in line
        assert 'status: 200' in line
        health = url.removesuffix('v2.1') + 'healthcheck'
        ready = eventually(lambda: requests.get(health, timeout=30).json(), lambda found: found['ready'])
        assert ready['checks'] == {'database': {'result': 'ok', 'needed': True}}
        assert 'healthcheck' not in service.text()
        requests.get(f'{url}/no-such-thing', headers={'X-Auth-Token': 'admin'}, timeout=30)
        text = requests.get(metrics, timeout=30).text
        assert 'request_seconds_count{code="200",method="GET",route="/v2.1/servers"} 1.0' in text
        assert 'request_seconds_count{code="404",method="GET",route="none"} 1.0' in text
        (counted,) = [
            line for line in text.splitlines() if line.startswith('migrator_database_statement_seconds_count')
        ]
        assert float(counted.split()[1]) > 0
        service.signal(signal.SIGTERM)
        assert service.status() == 0
        assert 'Traceback' not in service.text()


@pytest.mark.parametrize(('option', 'scheme'), [('', 'http'), ('enable_proxy_headers_parsing = true', 'https')])
def test_scheme_and_name_of_a_proxy_count_only_with_the_option(tmp_path, option, scheme):
    with running(tmp_path, 'api', *configure(tmp_path, f'[oslo_middleware]\n{option}')) as service:
        url = url_of(service).removesuffix('v2.1')
        answer = requests.get(url, headers={'X-Forwarded-Proto': 'https'}, timeout=30)
        link = answer.json()['versions'][0]['links'][0]['href']
        assert link == f'{scheme}{url.removeprefix("http")}v2.1/'
        # A page of another site can have a browser send either name.
        for name, of_proxy in (('evil.example', 'localhost'), ('localhost', 'evil.example')):
            answer = requests.get(url, headers={'Host': name, 'X-Forwarded-Host': of_proxy}, timeout=30)
            believed = of_proxy if option else name
            assert answer.status_code == (403 if 'evil.example' in (name, believed) else 200)


def test_port_in_use_exits_2_with_one_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, line = refused(tmp_path, 'api', *configure(tmp_path, f'[api]\nlisten_port = {port}'))
    assert status == 2
    assert f'Option [api] listen_port is {port}: something else listens there' in line


def test_foreign_and_public_noauth2_addresses_are_refused(tmp_path):
    elsewhere = '[api]\nlisten = 192.0.2.1\nnoauth2_beyond_loopback = true'
    status, line = refused(tmp_path, 'api', *configure(tmp_path, elsewhere))
    assert (status, "[api] listen is '192.0.2.1'" in line) == (2, True)
    status, line = refused(tmp_path, 'api', *configure(tmp_path, '[api]\nlisten = 0.0.0.0'))
    assert (status, '[api] auth_strategy' in line) == (2, True)


def test_event_streams_that_may_hold_all_threads_are_refused(tmp_path):
    status, line = refused(tmp_path, 'api', *configure(tmp_path, '[api]\nthreads = 8'))
    assert (status, 'max_event_streams' in line, 'there are 8 ([api] threads)' in line) == (2, True, True)


def test_line_break_in_a_path_makes_no_second_log_line():
    assert api._path({'PATH_INFO': '/a\nCRITICAL', 'QUERY_STRING': 'b=\r\x1b'}) == r'/a\nCRITICAL?b=\r\x1b'


def test_line_break_in_method_or_address_makes_no_second_log_line(caplog):
    environ = {'REQUEST_METHOD': 'GET\nCRITICAL', 'REMOTE_ADDR': '127.0.0.1\nCRITICAL', 'PATH_INFO': '/'}
    with caplog.at_level('INFO'):
        list(api.logged(lambda environ, start: (start('200 OK', []), [b''])[1])(environ, lambda *_: None))
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert 'GET\\nCRITICAL' in record.getMessage()


def test_request_for_a_migration_without_uuid_is_answered_and_not_traced():
    spans = []
    app = api.logged(
        lambda environ, start: (start('200 OK', []), [b'it'])[1],
        tracer=tracing.Tracer(executors.NativeThreads().clock, spans.append),
    )
    environ = {'REQUEST_METHOD': 'GET', 'PATH_INFO': '/', 'migrator.migration': None}
    assert app(environ, lambda *_: None) == [b'it']
    assert spans == []


def call(app, path='/') -> tuple[str, bytes, str]:
    import io

    errors, seen = io.StringIO(), []
    environ = {'REQUEST_METHOD': 'GET', 'PATH_INFO': path, 'wsgi.errors': errors, 'wsgi.url_scheme': 'http',
               'SERVER_NAME': 'localhost', 'SERVER_PORT': '80', 'wsgi.input': io.BytesIO()}  # fmt: skip
    body = b''.join(app(environ, lambda status, headers, *more: seen.append(status)))
    return seen[0], body, errors.getvalue()


def test_wsgi_module_creates_the_application_at_the_first_request(tmp_path, monkeypatch):
    monkeypatch.setattr(wsgi_api, '_made', [])
    monkeypatch.setenv('OS_MIGRATOR_CONFIG_DIR', str(tmp_path / 'nowhere'))
    status, body, errors = call(wsgi_api.application)
    assert status.startswith('503')
    assert b'computeFault' in body
    assert str(tmp_path / 'nowhere') in errors
    assert call(wsgi_api.application, '/healthcheck')[0].startswith('503')
    assert call(wsgi_api.application, '/healthcheck/live')[0] == '200 OK'
    monkeypatch.setattr(wsgi_api, '_make', lambda: lambda environ, start: (start('200 OK', []), [b'made'])[1])
    assert call(wsgi_api.application)[:2] == ('200 OK', b'made')


def test_probe_of_the_wsgi_module_begins_a_start_and_does_not_wait_for_it(monkeypatch):
    go, made = threading.Event(), threading.Event()

    def make():
        assert go.wait(60)
        made.set()
        return lambda environ, start: (start('200 OK', []), [b'made'])[1]

    monkeypatch.setattr(wsgi_api, '_made', [])
    monkeypatch.setattr(wsgi_api, '_make', make)
    status, body, _errors = call(wsgi_api.application, '/healthcheck')
    assert status.startswith('503')
    assert json.loads(body) == {'service': 'migrator-api', 'started': False, 'ready': False, 'checks': {}}
    go.set()
    assert made.wait(60)
    assert call(wsgi_api.application)[1] == b'made'
