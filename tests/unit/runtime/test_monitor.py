# SPDX-License-Identifier: Apache-2.0

"""What a service shows of its health, without a token."""

import contextlib
import io
import json
import types

import prometheus_client
import pytest
from prometheus_client import parser

from migrator.runtime import monitor
from migrator.testing.simulation.threads import Simulation


def ask(app, path, method='GET'):
    """Send a request to a WSGI application; return its status, its headers and its body."""
    seen = []
    environ = {'REQUEST_METHOD': method, 'PATH_INFO': path, 'QUERY_STRING': '', 'wsgi.input': io.BytesIO()}
    body = b''.join(app(environ, lambda *what: seen.append(what)))
    ((status, headers),) = seen
    return int(status[:3]), dict(headers), body.decode()


class Service:
    """A service in simulated threads."""

    def __init__(self, simulation):
        self.simulation = simulation
        self.threads = simulation.process('service')
        self.stopping = self.threads.event()
        self.monitor = monitor.Monitor('migrator-conductor', self.threads, self.stopping)
        self.monitor.started = self.monitor.is_served = True
        self.app = self.monitor.make_app()

    def watch(self, what, check, **more):
        """Watch something, and let it be checked once."""
        self.monitor.watch(what, check, **more)
        self.simulation.run_ready()

    def health(self):
        status, headers, body = ask(self.app, '/healthcheck')
        assert headers['Content-Type'] == 'application/json'
        return status, json.loads(body)


@pytest.fixture
def service():
    with Simulation(seed=1) as simulation:
        yield Service(simulation)


def fail():
    raise RuntimeError('hush: the password is in this message')


def test_service_is_ready_when_what_it_needs_answers(service):
    service.watch('database', lambda: None)
    service.watch('Placement', fail, needed=False)
    assert service.health() == (
        200,
        {
            'service': 'migrator-conductor',
            'started': True,
            'ready': True,
            'checks': {
                'database': {'result': 'ok', 'needed': True},
                'Placement': {'result': 'away', 'needed': False},
            },
        },
    )


@pytest.mark.parametrize('check', [fail, lambda: False])
def test_what_is_needed_and_away_is_named_without_the_reason(service, check):
    service.watch('database', lambda: None)
    service.watch('message broker', check)
    status, body = service.health()
    assert (status, body['ready']) == (503, False)
    assert [what for what, one in body['checks'].items() if one['result'] == 'away'] == ['message broker']
    assert 'hush' not in str(body)


def test_check_that_hangs_counts_as_away(service):
    gate = service.threads.event()
    service.watch('database', gate.wait)
    assert service.health()[1]['checks']['database']['result'] == 'unknown'
    service.simulation.advance(monitor.PATIENCE + 1)
    status, body = service.health()
    assert (status, body['checks']['database']['result']) == (503, 'away')
    gate.set()
    service.simulation.run_ready()
    assert service.health()[0] == 200


def test_result_follows_the_next_check(service):
    results = [True, False, True]
    service.watch('database', lambda: results.pop(0))
    found = [service.health()[0]]
    for _ in range(2):
        service.simulation.advance(monitor.INTERVAL)
        found.append(service.health()[0])
    assert found == [200, 503, 200]


def test_service_that_has_not_started_or_is_stopping_is_live_and_not_ready(service):
    service.monitor.started = False
    assert service.health()[0] == 503
    service.monitor.started = True
    assert service.health()[0] == 200
    service.stopping.set()
    assert service.health()[0] == 503
    assert ask(service.app, '/healthcheck/live')[0] == 200


def test_nothing_is_checked_while_the_health_is_not_served(service):
    service.monitor.is_served = False
    service.monitor.watch('database', fail)
    assert service.health()[1]['checks'] == {}


def test_checks_are_metrics_too(service):
    service.watch('database', lambda: None)
    service.watch('Placement', fail, needed=False)
    prometheus_client.Gauge('migrator_migrations_held', 'One of a part.', registry=service.monitor.registry)
    status, headers, text = ask(service.app, '/metrics')
    assert (status, headers['Content-Type'].startswith('text/plain')) == (200, True)
    found = {family.name: family.samples for family in parser.text_string_to_metric_families(text)}
    assert {one.labels['what']: one.value for one in found['migrator_check_ok']} == {'database': 1, 'Placement': 0}
    assert found['migrator_started'][0].value == 1
    assert {'migrator_migrations_held', 'process_resident_memory_bytes'} <= set(found)


@pytest.mark.parametrize('path', ['/', '/metrics/', '/healthcheck/', '/favicon.ico', ''])
def test_nothing_else_is_served(service, path):
    status, _, text = ask(service.app, path)
    assert (status, '/healthcheck' in text) == (404, True)


@pytest.mark.parametrize('path', ['/metrics', '/healthcheck', '/healthcheck/live', '/favicon.ico'])
def test_head_is_answered_as_get_without_a_body(service, path):
    status, headers, text = ask(service.app, path)
    got, lines, body = ask(service.app, path, 'HEAD')
    assert (got, body, lines['Content-Type']) == (status, '', headers['Content-Type'])
    if path != '/metrics':  # the figures of the process change
        assert lines['Content-Length'] == str(len(text))


def test_health_is_not_changed_by_a_request(service):
    status, headers, _ = ask(service.app, '/healthcheck', 'POST')
    assert (status, headers['Allow']) == (405, 'GET, HEAD')


def test_api_answers_the_health_itself_and_passes_the_rest_on(service):
    app = service.monitor.around(lambda environ, start: (start('200 OK', []), [b'the API'])[1])
    assert ask(app, '/v2.1')[2] == 'the API'
    assert json.loads(ask(app, '/healthcheck')[2])['ready'] is True


class Slow:
    """A remote service that takes two seconds, and then answers or not."""

    def __init__(self, threads, answer):
        self.threads = threads
        self.answer = answer

    def call(self, context, target, method, **args):
        return self.request(method, 'call')

    def request(self, url, method, **more):
        self.threads.sleep(2)
        if self.answer is None:
            raise ConnectionError('it is away')
        return self.answer


@pytest.mark.parametrize(('status', 'code', 'result'), [(200, '200', 'answered'), (None, 'none', 'failed')])
def test_requests_and_calls_are_measured_also_without_an_answer(service, status, code, result):
    remote = Slow(service.threads, None if status is None else types.SimpleNamespace(status_code=status))
    adapter, rpc = service.monitor.timed_adapter(remote), service.monitor.timed_rpc(remote)

    def send():
        for one in (lambda: adapter.request('/usages', 'GET'), lambda: rpc.call(None, None, 'ping', a=1)):
            with contextlib.suppress(ConnectionError):
                assert one() is remote.answer

    service.threads.start(send, name='send')
    service.simulation.advance(4)
    value = service.monitor.registry.get_sample_value
    assert value('migrator_placement_request_seconds_sum', {'method': 'GET', 'code': code}) == 2
    assert value('migrator_rpc_call_seconds_sum', {'method': 'ping', 'result': result}) == 2
