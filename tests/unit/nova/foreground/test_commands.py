# SPDX-License-Identifier: Apache-2.0

"""migrator-drain: its verbs, its signals and its state."""

import ast
import contextlib
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys

import pytest

from migrator.cmd import drain
from migrator.nova.foreground import state
from tests import templates


def test_start_empties_the_host_and_shows_each_event(operator, nova):
    names = [f'guest{number}' for number in range(3)]
    for name in names:
        nova.add_guest(name)
    status, out = operator.run('start', 'host1', '--reason', 'new firmware')
    assert status == 0, out
    for name in names:
        mine = [line.split()[2] for line in out.splitlines() if f'  {name}: ' in line]
        assert mine == ['waiting', 'moving', 'moved']
    assert 'drain: completed (3 of 3 guests moved. host1 is empty.' in out.splitlines()[-1]
    assert nova.on('host1') == []
    assert nova.services['host1']['status'] == 'disabled'
    assert nova.services['host1']['disabled_reason'].endswith(': new firmware')
    assert [(one['host'], one['status'], one['guests']['moved']) for one in operator.json('list')['drains']] == [
        ('host1', 'completed', 3)
    ]


def test_state_is_for_this_user_only(operator):
    operator.path = operator.path.parent / 'new' / 'lab.sqlite'
    assert operator.run('list')[0] == 0
    assert operator.path.stat().st_mode & 0o777 == 0o600
    assert operator.path.parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(operator.path.parent) == ['lab.sqlite']


def test_ctrl_c_pauses_and_the_printed_command_goes_on(operator, nova):
    for number in range(3):
        nova.add_guest(f'guest{number}')
    interrupts = iter([False, True])
    operator.threads.on_sleep = lambda: next(interrupts, False) and os.kill(os.getpid(), signal.SIGINT)
    status, out = operator.run('start', 'host1')
    assert status == 130
    assert 'Interrupted: waiting for 1 migration in progress. Ctrl-C again leaves the rest to Nova.' in out
    assert 'waiting for 0 migrations' not in out
    assert operator.err.splitlines()[1] == 'It is paused. No migration is in progress.'
    assert len(nova.rows) == 1
    assert nova.row(nova.rows[0]['instance_uuid'])['status'] == 'completed'
    go_on = operator.err.splitlines()[2].removeprefix('To go on: ').strip()
    assert operator.pastes(go_on)[0] == 0
    assert nova.on('host1') == []


def test_ctrl_c_before_the_drain_is_accepted_changes_nothing(operator, nova):
    nova.add_guest('guest0')
    nova.before = lambda _method, _path: os.kill(os.getpid(), signal.SIGINT)
    assert operator.run('start', 'host1')[0] == 130
    nova.before = lambda _method, _path: None
    assert operator.json('list') == {'drains': []}
    assert nova.services['host1']['status'] == 'enabled'


def test_resume_from_another_terminal_ends_the_wait_after_ctrl_c(operator, nova):
    nova.add_guest('guest0')
    busy = nova.add_guest('guest1')
    nova.servers[busy]['task_state'] = 'rebooting'  # so that for a while no migration is in progress

    def resume():
        assert drain.main(['--state', str(operator.path), 'resume'], operator.threads, operator.connect) == 1

    actions = iter([(1, lambda: os.kill(os.getpid(), signal.SIGINT)), (3, resume)])
    after, action = next(actions)

    def both_terminals():
        nonlocal after, action
        if operator.threads.clock.seconds >= after:
            act, (after, action) = action, next(actions, (60, lambda: nova.servers[busy].update(task_state=None)))
            act()

    operator.threads.on_sleep = both_terminals
    status, out = operator.run('start', 'host1')
    assert (status, nova.on('host1')) == (0, [])
    assert 'drain: completed (2 of 2 guests moved.' in out


@pytest.mark.parametrize('signals', [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM,)])
def test_second_ctrl_c_or_a_termination_leaves_at_once(operator, nova, signals):
    for number in range(2):
        nova.ticks[nova.add_guest(f'guest{number}')] = 100
    sent = iter(signals)

    def interrupt():
        if nova.rows:
            os.kill(os.getpid(), next(sent))

    operator.threads.on_sleep = interrupt
    status, _ = operator.run('start', 'host1')
    assert status == 128 + signals[-1]
    assert operator.err.splitlines()[1] == 'The command has left. Nova goes on with 1 migration.'
    assert [row['status'] in ('completed', 'cancelled') for row in nova.rows] == [False]
    operator.threads.on_sleep = lambda: None
    nova.ticks.clear()
    nova.rows[0]['ticks'] = 1
    status, out = operator.run('resume')
    assert status == 0
    assert 'drain: accepted' not in out  # the first command has shown it
    assert len(nova.rows) == 2


@pytest.mark.parametrize('instead', [None, ValueError('of a library')])
def test_termination_that_a_library_swallows_leaves_nevertheless(operator, nova, monkeypatch, instead):
    from migrator.operator.watch import subjects

    nova.ticks[nova.add_guest('guest0')] = 100
    look = subjects.Drain.look

    def interrupted(shown):
        if nova.rows:
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
            if instead is not None:
                raise instead
        return look(shown)

    monkeypatch.setattr(subjects.Drain, 'look', interrupted)
    assert operator.run('start', 'host1')[0] == 143
    assert operator.err.splitlines()[1] == 'The command has left. Nova goes on with 1 migration.'


def test_cancel_aborts_and_enables_the_host(operator, nova):
    nova.ticks[nova.add_guest('guest0')] = 1000

    def leave():
        if nova.rows and nova.rows[0]['status'] == 'running':
            os.kill(os.getpid(), signal.SIGTERM)

    operator.threads.on_sleep = leave
    assert operator.run('start', 'host1')[0] == 143
    operator.threads.on_sleep = lambda: None
    status, out = operator.run('cancel', '--abort-running')
    assert status == 1
    assert 'drain: cancelled (Cancelled; 0 of 1 guest had moved.' in out
    assert nova.services['host1']['status'] == 'enabled'
    assert nova.on('host1') == ['guest0']


def test_shut_off_guests_leave_and_come_back_if_they_are_included(operator, nova):
    nova.add_guest('runs')
    off = nova.add_guest('off', vm_state='stopped')
    assert operator.run('plan', 'host1')[0] == 1
    planned = operator.json('plan', 'host1', '--include-stopped')['guests']
    assert {one['name']: one['migration_type'] for one in planned} == {'runs': 'live-migration', 'off': 'migration'}
    assert operator.run('start', 'host1', '--include-stopped')[0] == 0
    assert (nova.on('host1'), nova.servers[off]['vm_state']) == ([], 'stopped')
    assert operator.run('restore', 'host1')[0] == 0
    assert nova.on('host1') == ['off', 'runs']
    assert [row['status'] for row in nova.rows if row['instance_uuid'] == off] == ['confirmed', 'confirmed']


def test_restore_brings_back_what_has_moved(operator, nova):
    nova.add_guest('guest0')
    assert operator.run('start', 'host1')[0] == 0
    assert operator.run('restore', operator.json('list')['drains'][0]['uuid'])[0] == 0
    assert nova.on('host1') == ['guest0']
    assert nova.services['host1']['status'] == 'enabled'


def test_retry_moves_what_the_drain_has_left(operator, nova):
    guest = nova.add_guest('guest0')
    nova.servers[guest]['locked'] = True
    assert operator.run('start', 'host1', '--deadline', '1m')[0] == 1
    nova.servers[guest]['locked'] = False
    stays = nova.add_guest('guest1')
    assert operator.run('retry', 'host1')[0] == 1  # the other guest keeps the host from being empty
    assert (nova.truth[guest] != 'host1', nova.truth[stays]) == (True, 'host1')
    (drain, _) = operator.json('list')['drains']
    assert drain['only_guests'] == [guest]
    assert operator.run('retry', 'host1')[0] == 0  # all that is on the host now
    assert operator.run('retry', 'host1')[0] == 1
    assert 'all of its guests have left the host' in operator.err


def test_nova_that_is_away_is_reported_and_asked_again(operator, nova):
    from tests.unit.nova.drained import lose

    nova.add_guest('guest0')

    def away():
        nova.before = lose(('GET', '/os-migrations')) if operator.threads.clock.seconds < 20 else lambda *_: None

    operator.threads.on_sleep = away
    status, out = operator.run('start', 'host1')
    assert status == 0
    assert 'drain: waits (Nova is not reachable: GET /os-migrations:' in out


@pytest.fixture
def elsewhere(operator):
    """Another process that holds the lock of a drain."""
    script = 'import sys, pathlib; from migrator.nova.foreground import state\n'
    script += 'with state.locked(pathlib.Path(sys.argv[1])) as pid: print(pid, flush=True); sys.stdin.read()'
    started = []

    def hold(uuid):
        path = f'{operator.path}.{uuid}.lock'
        process = subprocess.Popen(
            [sys.executable, '-c', script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == 'None\n'
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


def test_other_process_that_runs_the_drain_is_named_until_it_is_killed(operator, nova, elsewhere):
    nova.add_guest('guest0')
    operator.threads.on_sleep = lambda: os.kill(os.getpid(), signal.SIGTERM)
    assert operator.run('start', 'host1')[0] == 143
    operator.threads.on_sleep = lambda: None
    process = elsewhere(operator.json('list')['drains'][0]['uuid'])
    status, out = operator.run('pause')
    assert status == 0
    assert f'is run by process {process.pid}, which acts on requests within 2 s.' in out
    assert operator.run('resume')[0] == 1  # the drain has not ended: what is typed after && must not run
    assert f'is run by process {process.pid}' in operator.err
    assert nova.on('host1') == ['guest0']
    process.kill()
    process.wait()
    assert operator.run('resume')[0] == 0
    assert nova.on('host1') == []


def test_lock_that_its_holder_has_removed_is_taken_anew(tmp_path):
    path = tmp_path / 'one.lock'
    with state.locked(path) as first:
        assert first is None
        path.unlink()
        with state.locked(path) as second:
            assert second is None
    assert state.holder(path) is None


def test_invalid_requests_exit_with_1_and_change_nothing(operator, nova):
    nova.add_guest('guest0')
    for words, said in {
        ('start', 'nowhere'): 'nowhere',
        ('start', 'host1', '--destination', 'host1'): 'host1 is the host to empty',
        (
            'start',
            'host1',
            '--order',
            'priority',
            '--guest-priority',
            f'{"0" * 8}-0000-4000-8000-{"0" * 12}=1',
        ): 'guest',
        ('resume',): 'No drain is in progress.',
    }.items():
        assert operator.run(*words)[0] == 1, words
        assert said in operator.err
        assert operator.err.count('\n') == 1
    assert operator.json('list') == {'drains': []}
    assert nova.services['host1']['status'] == 'enabled'


def test_cloud_that_does_not_let_in_changes_nothing(operator, nova):
    def refuse(method, path):
        from keystoneauth1 import exceptions

        raise exceptions.Unauthorized('The request you have made requires authentication.')

    nova.before = refuse
    assert operator.run('start', 'host1')[0] == 3
    assert 'check the credentials. The user needs the role admin' in operator.err
    assert operator.json('list') == {'drains': []}


def test_nova_that_is_too_old_is_named_with_its_versions(operator, nova):
    nova.newest = (2, 60)
    assert operator.run('start', 'host1')[0] == 1
    assert '2.60' in operator.err
    assert '2.65 is needed' in operator.err


def test_two_drains_in_progress_have_to_be_named(operator, nova):
    operator.threads.on_sleep = lambda: os.kill(os.getpid(), signal.SIGTERM)
    for host in ('host1', 'host2'):
        nova.add_guest(f'on-{host}', host)
        assert operator.run('start', host)[0] == 143
    operator.threads.on_sleep = lambda: None
    assert operator.run('resume')[0] == 1
    assert '2 drains are in progress' in operator.err
    assert operator.run('start', 'host1')[0] == 1
    assert 'has a drain in progress' in operator.err or 'in progress' in operator.err
    for one in operator.json('list')['drains']:
        operator.run('resume', one['uuid'])
    assert nova.on('host3') == ['on-host1', 'on-host2']


def test_file_that_is_no_database_is_reported_in_one_line(operator):
    operator.path.write_text('no database, but long enough for a header of one ........')
    assert operator.run('list')[0] == 2
    detail = 'it cannot be read ((sqlite3.DatabaseError) file is not a database): name another one.'
    assert operator.err == f"migrator-drain: Option --state is '{operator.path}': {detail}\n"


def test_database_of_another_program_is_refused_and_not_changed(operator):
    operator.path.unlink()
    with contextlib.closing(sqlite3.connect(operator.path)) as other:
        other.execute('CREATE TABLE photos (id INTEGER)')
    for words in (('list',), ('start', 'host1')):
        assert operator.run(*words)[0] == 2
        detail = 'it has tables of another program, such as photos: name another one, which is empty.'
        assert operator.err == f"migrator-drain: Option --state is '{operator.path}': {detail}\n"
    with contextlib.closing(sqlite3.connect(operator.path)) as other:
        assert other.execute('SELECT name FROM sqlite_master').fetchall() == [('photos',)]


@pytest.mark.parametrize('found', ['0001', '0018', 'baseline_000000000000'])
def test_state_of_another_commit_is_refused_and_not_changed(operator, found):
    assert operator.run('list')[0] == 0
    with contextlib.closing(sqlite3.connect(operator.path)) as state, state:
        state.execute('UPDATE alembic_version SET version_num = ?', (found,))
    before = operator.path.read_bytes()
    for words in (('list',), ('start', 'host1')):
        assert operator.run(*words)[0] == 2
        assert f'another commit of migrator has written it (its schema is {found}, and this one needs' in operator.err
        assert 'let that commit finish what is in progress there, then name a new database.' in operator.err
    assert operator.path.read_bytes() == before


def test_watch_says_that_no_process_runs_the_drain(operator, nova):
    nova.add_guest('guest0')
    operator.threads.on_sleep = lambda: os.kill(os.getpid(), signal.SIGTERM)
    assert operator.run('start', 'host1')[0] == 143
    go_on = operator.err.splitlines()[2].removeprefix('To go on: ').strip()

    def stop():
        raise KeyboardInterrupt

    operator.threads.on_sleep = stop
    assert operator.run('watch')[0] == 130
    assert f'No process runs it. To go on: {go_on}' in operator.err


@pytest.mark.parametrize(
    ('given', 'environ', 'file'),
    [
        (('lab', None), {}, 'lab.sqlite'),
        (('lab', 'north/1'), {'OS_CLOUD': 'other'}, 'lab-north_1.sqlite'),
        ((None, None), {'OS_CLOUD': 'other', 'OS_REGION_NAME': 'south'}, 'other-south.sqlite'),
        ((None, None), {'OS_AUTH_URL': 'http://keystone:5000/v3'}, 'keystone_5000.sqlite'),
        ((None, None), {}, 'cloud.sqlite'),
    ],
)
def test_each_cloud_has_a_state_of_its_own(given, environ, file):
    assert state.default_path(*given, environ | {'XDG_STATE_HOME': '/x'}) == pathlib.Path('/x/migrator') / file


def test_plan_names_destinations_and_obstacles_and_changes_nothing(operator, nova):
    nova.add_guest('free')
    nova.add_guest('kept', locked=True)
    status, out = operator.run('plan', 'host1')
    assert status == 1
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert 'host2' in rows['free']
    assert 'It is locked.' in rows['kept']
    assert '1 guest of host1 can move, 1 cannot.' in out
    assert operator.json('list') == {'drains': []}
    assert nova.services['host1']['status'] == 'enabled'


def test_drain_that_spreads_its_guests_does_so_after_it_is_resumed(operator, nova):
    for number in range(4):
        nova.add_guest(f'guest{number}')
    nova.add_guest('other', 'host3')
    operator.threads.on_sleep = lambda: os.kill(os.getpid(), signal.SIGTERM)
    assert operator.run('start', 'host1', '--spread')[0] == 143
    operator.threads.on_sleep = lambda: None
    go_on = next(line for line in operator.err.splitlines() if line.startswith('To go on: '))
    assert operator.json('show', 'host1')['spread'] is True
    assert operator.pastes(go_on.removeprefix('To go on: '))[0] == 0
    assert {row['wanted'] for row in nova.rows} == {'host2', 'host3'}


def test_json_prints_the_events_line_by_line(operator, nova):
    nova.add_guest('guest0')
    _, out = operator.run('start', 'host1', '--json')
    events = [json.loads(line) for line in out.splitlines()]
    assert [one['status'] for one in events if one['kind'] == 'member'] == ['waiting', 'moving', 'moved']
    assert [one['seq'] for one in events] == [*range(1, len(events) + 1)]
    uuid = operator.json('list')['drains'][0]['uuid']
    assert operator.run('watch', uuid, '--json') == (0, out)


def test_list_imports_only_what_reads_the_state(tmp_path):
    templates.database(tmp_path).rename(tmp_path / 'x.sqlite')
    program = (
        'import sys; from migrator.cmd import drain; status = drain.main(sys.argv[1:]); '
        "print(status, sorted({one.partition('.')[0] for one in sys.modules}))"
    )
    words = ['--state', str(tmp_path / 'x.sqlite'), 'list']
    found = subprocess.run([sys.executable, '-c', program, *words], capture_output=True, text=True, check=True)
    status, _, modules = found.stdout.splitlines()[-1].partition(' ')
    assert status == '0'
    assert not {'alembic', 'keystoneauth1', 'openstack', 'requests', 'eventlet'} & {*ast.literal_eval(modules)}
