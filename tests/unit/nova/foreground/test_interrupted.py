# SPDX-License-Identifier: Apache-2.0

"""A drain whose terminal, output or process is gone."""

import errno
import os
import signal

import pytest

from migrator.nova.foreground import detached
from migrator.operator.watch import commands
from migrator.operator.watch.screen import Lines


@pytest.fixture
def killed(operator, nova):
    """A drain of host1 whose process has left, and its uuid."""
    for number in range(2):
        nova.ticks[nova.add_guest(f'guest{number}')] = 1000
    operator.threads.on_sleep = lambda: nova.rows and os.kill(os.getpid(), signal.SIGTERM)
    assert operator.run('start', 'host1')[0] == 143
    operator.threads.on_sleep = lambda: None
    return operator.json('list')['drains'][0]['uuid']


def test_drain_that_no_process_runs_is_interrupted_and_shows_no_end(operator, killed):
    status, out = operator.run('list')
    assert status == 0
    assert 'interrupted: 0 of 2 moved' in out
    assert 'running' not in out
    status, out = operator.run('show', killed)
    assert f'No process runs it. To go on: migrator-drain --state {operator.path} resume {killed}' in out
    assert 'When it ends is not known. No process runs it.' in out
    shown = operator.json('show', killed)
    assert (shown['status'], shown['pid']) == ('interrupted', None)
    assert {str(one['expected']['end']) for one in shown['members']} == {'None'}


def test_process_that_runs_a_drain_is_shown_with_its_pid(operator, nova):
    nova.add_guest('guest0')
    found = []
    operator.threads.on_sleep = lambda: found.append(operator.inside('list'))
    assert operator.run('start', 'host1')[0] == 0
    (one,) = found[0]['drains']
    assert (one['status'], one['pid']) == ('running', os.getpid())
    (one,) = operator.json('list')['drains']
    assert (one['status'], one['pid']) == ('completed', None)


def test_terminal_that_is_closed_pauses_the_drain(operator, nova):
    for number in range(3):
        nova.ticks[nova.add_guest(f'guest{number}')] = 5
    sent = iter([signal.SIGHUP])
    operator.threads.on_sleep = lambda: nova.rows and os.kill(os.getpid(), next(sent, 0))
    assert operator.run('start', 'host1')[0] == 130
    assert [one['status'] for one in operator.json('list')['drains']] == ['paused']
    assert {row['status'] for row in nova.rows} == {'completed'}, 'what was requested has ended'
    assert 'guest2' in nova.on('host1')
    assert operator.run('resume')[0] == 0
    assert nova.on('host1') == []


class Output:
    """An output that fails as soon as a guest is on its way."""

    def __init__(self, nova, error):
        self.nova, self.error = nova, error

    def write(self, _text):
        if self.nova.rows:
            raise self.error

    def flush(self):
        pass


@pytest.mark.parametrize('error', [BrokenPipeError(errno.EPIPE, 'gone'), OSError(errno.EIO, 'no terminal')])
def test_output_that_is_closed_pauses_the_drain(operator, nova, monkeypatch, error):
    for number in range(4):
        nova.add_guest(f'guest{number}')
    output = Output(nova, error)
    monkeypatch.setattr(commands, 'make_view', lambda _as_json: Lines(output, output))
    assert operator.run('start', 'host1')[0] == 130
    assert [one['status'] for one in operator.json('list')['drains']] == ['paused']
    assert len(nova.rows) < 4
    assert {row['status'] for row in nova.rows} == {'completed'}


def test_disk_that_is_full_under_the_output_does_not_stop_the_drain(operator, nova, monkeypatch):
    nova.add_guest('guest0')
    output = Output(nova, OSError(errno.ENOSPC, 'No space left on device'))
    monkeypatch.setattr(commands, 'make_view', lambda _as_json: Lines(output, output))
    assert operator.run('start', 'host1')[0] == 0
    assert nova.on('host1') == []


def test_process_that_cannot_run_a_detached_drain_is_reported_with_its_log(operator, nova, monkeypatch):
    nova.add_guest('guest0')
    for name in [name for name in os.environ if name.startswith('OS_')]:
        monkeypatch.delenv(name)
    monkeypatch.setenv('HOME', str(operator.path.parent))
    status, _ = operator.run('start', 'host1', '--detach')  # another process does not have the Nova of this one
    assert status == 1
    log = next(operator.path.parent.glob('*.log'))
    assert f'the process that runs the drain has ended. It wrote to {log}:' in operator.err
    assert 'Name a cloud as for the openstack client' in operator.err
    last = operator.err.splitlines()[-1]
    assert log.stat().st_mode & 0o777 == 0o600
    assert operator.json('list')['drains'][0]['status'] == 'interrupted'
    assert last.startswith('To try again: migrator-drain ')
    assert last.endswith(f' resume {operator.json("list")["drains"][0]["uuid"]} --detach')
    assert operator.run('resume')[0] == 0


@pytest.mark.parametrize('verb', ['restore', 'retry', 'cancel'])
def test_each_verb_that_runs_a_drain_may_leave_it_to_another_process(operator, nova, monkeypatch, verb):
    begun = []

    def begin(_asked, uuid):
        begun.append(uuid)
        return detached.Begun(4711, operator.path)

    monkeypatch.setattr(detached, 'begin', begin)
    guest = nova.add_guest('guest0')
    if verb == 'retry':
        nova.servers[guest]['locked'] = True
    if verb == 'cancel':
        nova.ticks[guest] = 1000
        operator.threads.on_sleep = lambda: nova.rows and os.kill(os.getpid(), signal.SIGTERM)
    operator.run('start', 'host1')
    operator.threads.on_sleep = lambda: None
    status, out = operator.run(verb, *(() if verb == 'cancel' else ('host1',)), '--detach')
    assert status == 0, operator.err
    newest = operator.json('list')['drains'][0]
    assert begun == [newest['uuid']]
    assert f'Process 4711 runs drain {newest["uuid"]} of host1' in out
    assert newest['was'] == {'restore': 'restoring', 'retry': 'accepted', 'cancel': 'cancelling'}[verb]
