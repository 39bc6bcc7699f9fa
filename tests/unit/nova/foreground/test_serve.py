# SPDX-License-Identifier: Apache-2.0

"""The page of ``migrator-drain serve``: who may use it, what it shows, and which processes it starts."""

import argparse
import json
import os
import pathlib
import re
import signal
import socket

import pytest
import webob
from keystoneauth1 import exceptions
from webob.client import SendRequest

from migrator.nova.foreground import detached, serve, session, state
from migrator.runtime import http_server

SECRET = 'the-secret'
OWN = '/migrator/v1'


class Page:
    """The application, and the drains that processes were started for."""

    def __init__(self, operator):
        self.begun, self.refuses, self.while_begun = [], None, lambda: None
        given = argparse.Namespace(os_cloud=None, os_region_name=None, state=str(operator.path), json=False, port=0)
        conf = session.make_conf(operator.path)
        self.session = session.Session(conf, given, operator.threads, path=operator.path, connect=operator.connect)
        self.app = serve.make_app(self.session, SECRET, self.begin)

    def begin(self, _asked, uuid):
        self.while_begun()
        if self.refuses is not None:
            raise detached.NotBegun(self.refuses)
        self.begun.append(uuid)
        return detached.Begun(4711, pathlib.Path('log'))

    def ask(self, path, body=None, token=SECRET, **headers):
        given = {'Host': '127.0.0.1:8779', 'X-Auth-Token': token} | headers
        more = {} if body is None else {'method': 'POST', 'json_body': body}
        return webob.Request.blank(path, headers=given, **more).get_response(self.app)

    def get(self, path):
        answer = self.ask(f'{OWN}{path}')
        assert answer.status_int == 200, answer.text
        return answer.json

    def post(self, path, body, status=202):
        answer = self.ask(f'{OWN}{path}', body)
        assert answer.status_int == status, answer.text
        return answer.json

    def kinds(self):
        return [line['kind'] for line in self.get('/attention')['attention']]


@pytest.fixture
def page(operator):
    made = Page(operator)
    yield made
    made.session.close()


def left(operator, nova, guests=2):
    """Return the uuid of a drain of host1 whose process has left."""
    for number in range(guests):
        nova.ticks[nova.add_guest(f'guest{number}')] = 1000
    operator.threads.on_sleep = lambda: nova.rows and os.kill(os.getpid(), signal.SIGTERM)
    assert operator.run('start', 'host1')[0] == 143
    operator.threads.on_sleep = lambda: None
    return operator.json('list')['drains'][0]['uuid']


@pytest.mark.parametrize(
    ('headers', 'status'),
    [
        ({}, 200),
        ({'Host': 'localhost:9000', 'Origin': 'http://localhost:9000'}, 200),
        ({'Host': '[::1]:9000'}, 200),
        ({'Host': 'evil.example:8779'}, 403),
        ({'Host': ''}, 200),  # no browser leaves it out
        ({'Host': '', 'Origin': 'http://evil.example'}, 403),
        ({'Origin': 'http://evil.example'}, 403),
        ({'Origin': 'http://127.0.0.1:1'}, 403),
        ({'Origin': 'null'}, 403),
        ({'X-Auth-Token': 'admin'}, 401),
        ({'X-Auth-Token': 'the-secret\xe9'}, 401),
        ({'X-Auth-Token': ''}, 401),
    ],
)
def test_it_answers_its_own_page_on_loopback_with_the_secret(page, headers, status):
    assert page.ask(f'{OWN}/drains', **headers).status_int == status


def test_files_of_the_page_are_for_loopback_too(page):
    assert page.ask(serve.PAGE, token='').status_int == 200
    assert page.ask(serve.PAGE, Host='evil.example').status_int == 403
    assert page.get('/ui/settings.json') == {
        'acts': True,
        'of_nova': True,
        'of_services': False,
        'drain_command': f'migrator-drain --state {page.session.path}',
    }


def test_drain_is_planned_and_started_in_a_process_of_its_own(page, nova):
    nova.add_guest('guest0')
    plan = page.post('/drains', {'host': 'host1', 'dry_run': True}, 200)['plan']
    assert plan['can_move'] == 1
    assert page.begun == []
    uuid = page.post('/drains', {'host': 'host1'})['drain']['uuid']
    assert page.begun == [uuid]
    for body in ({'host': 'nope', 'dry_run': True}, {'host': 'nope'}):
        assert 'Compute host nope could not be found' in str(page.post('/drains', body, 400))


def test_nova_that_is_away_is_named(page, nova):
    def away(_method, _path):
        raise exceptions.ConnectFailure('refused')

    nova.before = away
    answer = page.ask(f'{OWN}/drains', {'host': 'host1', 'dry_run': True})
    assert answer.status_int == 503
    assert 'Nova' in answer.text


def test_drain_that_no_process_runs_is_a_failure_with_its_command(page, operator, nova):
    uuid = left(operator, nova)
    assert [one['status'] for one in page.get('/drains')['drains']] == ['interrupted']
    assert page.get(f'/drains/{uuid}')['drain']['status'] == 'interrupted'
    members = page.get(f'/drains/{uuid}/members')
    assert members['expected']['reason'] == 'No process runs it.'
    assert [one['expected']['end'] for one in members['members']] == [None, None]
    (line,) = page.get('/attention')['attention']
    assert (line['title'], line['failed']) == ('Interrupted: the drain of host1', True)
    assert line['commands'] == [f'migrator-drain --state {operator.path} resume host1']
    assert line['commands'][0] in line['text']
    page.post(f'/drains/{uuid}/action', {'resume': None})
    assert page.begun == [uuid]
    nova.ticks.clear()
    for row in nova.rows:
        row['ticks'] = 1
    assert operator.pastes(line['commands'][0])[0] == 0, operator.err
    assert page.kinds() == []


def test_drain_that_a_process_runs_gets_no_second_one(page, operator, nova):
    uuid = left(operator, nova)
    with state.locked(page.session.lock_of(uuid)):
        assert page.kinds() == []
        (one,) = page.get('/drains')['drains']
        assert (one['status'], one['pid']) == ('running', os.getpid())
        page.post(f'/drains/{uuid}/action', {'pause': None})
        assert page.kinds() == ['drain-paused']
        page.post(f'/drains/{uuid}/action', {'resume': None})
    page.post(f'/drains/{uuid}/action', {'pause': None})
    assert page.begun == []
    page.post(f'/drains/{uuid}/action', {'cancel': {'abort_running': True}})
    assert page.begun == [uuid]


def test_process_that_cannot_run_a_drain_is_reported_and_the_drain_kept(page, nova):
    nova.add_guest('guest0')
    page.refuses = 'the process that runs the drain has ended.'
    answer = page.ask(f'{OWN}/drains', {'host': 'host1'})
    assert answer.status_int == 503
    assert 'The drain was accepted. the process' not in answer.text
    assert 'The drain was accepted, but the process that runs the drain has ended.' in answer.text
    assert page.kinds() == ['drain-paused']


def test_guest_that_failed_is_shown_with_a_command_of_this_program(page, operator, nova):
    guest = nova.add_guest('guest0')
    nova.fails[guest] = 'live'
    operator.run('start', 'host1', '--max-attempts', '1')
    text = json.dumps(page.get('/attention'))
    assert 'migrator-manage' not in text
    assert f'migrator-drain --state {operator.path} ' in text
    (uuid,) = [one['uuid'] for one in page.get('/drains')['drains']]
    again = page.post(f'/drains/{uuid}/action', {'retry': None})['drain']['uuid']
    assert page.begun == [again]


def test_url_with_a_secret_is_printed_and_a_signal_ends_the_page(operator, monkeypatch):
    listen, seen = http_server.listen, []

    def listening(app, host, port, **more):
        server = listen(app, host, port, **more)
        request = webob.Request.blank(serve.PAGE, base_url=server.url)
        seen.append((host, request.send(SendRequest()).status_int))
        os.kill(os.getpid(), signal.SIGTERM)
        return server

    monkeypatch.setattr(http_server, 'listen', listening)
    status, out = operator.run('serve')
    assert (status, seen) == (0, [('127.0.0.1', 200)])
    (url,) = [line for line in out.splitlines() if line.startswith('http://')]
    found = re.fullmatch(r'http://127\.0\.0\.1:\d+/migrator/v1/ui#token=([\w-]+)', url)
    assert len(found[1]) == 43, '256 bits'
    assert out != operator.run('serve')[1], 'each has another secret'


def test_port_that_is_taken_is_named(operator):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        status, _ = operator.run('serve', '--port', taken.getsockname()[1])
    assert status == 2
    assert '--port' in operator.err
    assert operator.run('serve', '--port', '65536')[0] == 2


def test_drain_that_waits_for_a_service_needs_an_operator(page, operator, nova):
    uuid = left(operator, nova)

    def refuses(_method, _path):
        raise exceptions.Unauthorized('expired')

    nova.before = refuses
    operator.threads.on_sleep = lambda: os.kill(os.getpid(), signal.SIGTERM)
    operator.run('resume')
    with state.locked(page.session.lock_of(uuid)):
        (line,) = page.get('/attention')['attention']
    assert page.kinds() == ['drain-paused'], 'nothing tries it again without a process'
    assert (line['kind'], line['failed']) == ('drain-waits', True)
    assert 'check the credentials' in line['text']
    assert line['commands'] == [f'migrator-drain --state {operator.path} show host1']


def test_guest_whose_host_is_dead_is_stuck(page, operator, nova):
    uuid = left(operator, nova, guests=1)
    nova.kill('host1')
    operator.threads.on_sleep = lambda: operator.threads.clock.seconds > 100 and os.kill(os.getpid(), signal.SIGTERM)
    operator.run('resume')
    with state.locked(page.session.lock_of(uuid)):
        (line,) = page.get('/attention')['attention']
    assert page.kinds() == ['drain-paused'], 'an old reading blames no host'
    assert (line['kind'], line['failed'], line['migration_uuid']) == ('stuck', True, None)
    assert line['title'] == 'Stuck: guest0, in the drain of host1'
    assert 'nova-compute at host1 has been down' in line['text']


def test_cancel_whose_process_is_gone_is_interrupted(page, operator, nova):
    uuid = left(operator, nova)
    page.post(f'/drains/{uuid}/action', {'pause': None})
    page.refuses = 'no process can run the drain.'
    page.post(f'/drains/{uuid}/action', {'cancel': {}}, 503)
    (line,) = page.get('/attention')['attention']
    assert line['text'].startswith('It was cancelling, and no process runs it.')
    assert page.get(f'/drains/{uuid}')['drain']['was'] == 'cancelling'


def test_slash_at_the_end_makes_no_difference(page, operator, nova):
    uuid = left(operator, nova)
    page.post(f'/drains/{uuid}/action/', {'pause': None})
    assert page.begun == []
    assert [line['kind'] for line in page.get('/attention/')['attention']] == ['drain-paused']
    page.post(f'/drains/{uuid}/action/', {'resume': None})
    assert page.begun == [uuid]
    assert page.get(f'/drains/{uuid}/members/')['expected']['reason'] == 'No process runs it.'


def test_evacuation_is_neither_restored_nor_retried(page, operator, nova):
    nova.add_guest('on-disk')
    nova.lose('host1')
    assert operator.run('evacuate', 'host1', '--fenced')[0] == 1
    (drain,) = page.get('/drains')['drains']
    assert drain['is_evacuation'] is True
    for action in ('restore', 'retry'):
        assert 'is an evacuation' in str(page.post(f'/drains/{drain["uuid"]}/action/', {action: None}, 400))
    assert page.begun == []
    lines = page.get('/attention')['attention']
    assert [command for line in lines for command in line['commands']] == [
        f'migrator-drain --state {operator.path} show host1'
    ]
    assert 'evacuation' in lines[0]['title']


def test_process_that_is_being_started_is_no_failure_and_is_started_once(page, operator, nova):
    uuid, seen = left(operator, nova), []

    def meanwhile():
        page.while_begun = lambda: None
        seen.extend(page.kinds())
        page.post(f'/drains/{uuid}/action', {'resume': None})

    page.while_begun = meanwhile
    page.post(f'/drains/{uuid}/action', {'resume': None})
    assert (seen, page.begun) == ([], [uuid])


def test_log_that_cannot_be_written_is_named(page, operator, nova):
    uuid = left(operator, nova)
    log = operator.path.with_name(f'{operator.path.name}.{uuid}.log')
    log.symlink_to('elsewhere')
    with pytest.raises(detached.NotBegun, match=re.escape(str(log))) as caught:
        detached.begin(page.session, uuid)
    assert f'migrator-drain --state {operator.path} resume {uuid}' in caught.value.message


def test_what_needs_services_is_refused_with_the_command_that_does_it(page, operator):
    answer = page.ask(f'{OWN}/findings')
    assert answer.status_int == 400
    assert f'migrator-drain --state {operator.path} audit' in answer.text
