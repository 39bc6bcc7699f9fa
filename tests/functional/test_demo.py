# SPDX-License-Identifier: Apache-2.0

"""migrator-demo as a user runs it."""

import json
import re
import signal
import socket
import stat
import subprocess
import sys

import pytest
import requests

from migrator.demo import options, summary
from tests import forked
from tests.functional import commands
from tests.functional.rehearsals import SMALL, Rehearsal, breaks

pytestmark = pytest.mark.slow

#: What one migration may cost, on average.
LIMITS = {'placement_requests': 4, 'rpc_messages': 20, 'sql_statements': 40, 'commits': 16}
CHECK = commands.ROOT / '.ci' / 'check_demo.py'


def ask(url, token=None):
    """Send a GET, and return its right answer."""
    answer = requests.get(url, headers={'X-Auth-Token': token} if token else {}, timeout=commands.PATIENCE)
    answer.raise_for_status()
    return answer


#: Done before a demo: without the pause before a second attempt the same happens, and sooner.
AT_ONCE = 'from migrator.drain import run; run.FIRST_PAUSE = 0.1'


def failed_of(report):
    """Return the migration of a report that has failed."""
    (failed,) = (one for one in report['migrations'] if one['status'] == 'failed')
    return failed


def wrapped(first, *words):
    """Return the command line of a demo before which something else is done."""
    program = f'import signal, sys\nfrom migrator.cmd import demo\n{first}\nsys.exit(demo.main())'
    return [sys.executable, '-u', '-c', program, *words]


def drains(tmp_path, *words, **more):
    """Run a demo that empties a host, to its end."""
    options = {'env': commands.environment(tmp_path, **more), 'cwd': tmp_path, 'timeout': commands.PATIENCE}
    return forked.run(wrapped(AT_ONCE, *words), **options)


def test_the_json_report_is_all_that_is_on_stdout_and_everything_in_it_is_right(tmp_path):
    ended = commands.demo(tmp_path, *SMALL, '--json', fresh=True)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert (report['drain']['status'], report['drain']['host'], report['left']) == ('completed', 'host1', 0)
    assert [check['left'] for check in report['drain']['checks']] == [[]] * 4
    assert sorted((one['status'], one['attempts']) for one in report['drain']['members']) == [
        ('moved', 1),
        ('moved', 2),
    ]
    assert sorted(one['status'] for one in report['migrations']) == ['completed', 'completed', 'failed']
    for one in report['migrations']:
        assert {'uuid', 'instance', 'source', 'destination', 'status', 'history'} <= set(one)
        assert one['source'] == 'host1' != one['destination']
        statuses = [entry['status'] for entry in one['history']]
        if one['status'] == 'completed':
            assert statuses == ['accepted', 'preparing', 'queued', 'running', 'post-migrating', 'completed']
        moments = [entry['at'] for entry in one['history']]
        assert moments == sorted(moments)
    first, second = [one for one in report['migrations'] if one['instance'] == failed_of(report)['instance']]
    assert first['destination'] != second['destination']
    judged = subprocess.run([sys.executable, CHECK], input=ended.stdout, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stderr
    assert report['audit']['findings'] == []
    assert report['audit']['looked_at']['consumers'] == 4
    counts = report['counts']['per_migration']
    assert set(counts) == set(LIMITS)
    for name, limit in LIMITS.items():
        assert 0 < counts[name] <= limit, counts
    assert '\x1b' not in ended.stderr
    assert commands.left_behind(tmp_path) == []


def test_killed_host_has_its_guests_evacuated_and_cleans_up_when_it_is_back(tmp_path):
    ended = commands.demo(tmp_path, *SMALL, '--kill', 'host1', '--json')
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report['killed'] == 'host1'
    assert len(report['migrations']) == 2
    for one in report['migrations']:
        assert one['source'] == 'host1' != one['destination']
        assert [entry['status'] for entry in one['history']] == ['accepted', 'preparing', 'done', 'completed']
    assert (report['audit']['findings'], report['violations'], report['refused']) == ([], [], [])
    assert commands.left_behind(tmp_path) == []


def test_lines_of_a_killed_host_say_what_happens_to_it(tmp_path):
    ended = commands.demo(tmp_path, *SMALL, '--kill', 'host2')
    assert ended.returncode == 0, ended.stderr
    assert 'host2 has lost its power, and is declared forced down' in ended.stdout
    assert '1 of 1 evacuation completed' in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith('Next: migrator-demo --serve ')
    statuses = re.findall(r'vm-\d+: ([a-z]+), host2 to ', ended.stdout)
    assert statuses == ['accepted', 'preparing', 'done', 'completed']


def test_each_migration_goes_on_at_once_when_its_copy_has_ended(tmp_path):
    command = wrapped(
        'from migrator.demo import cloud\ncloud.POLL_INTERVAL = 600\n'
        'cloud.DemoCloud.break_a_migration = lambda self: None',
        *('--hosts', '2', '--instances', '1', '--json'),
    )
    env = commands.environment(tmp_path)
    ended = forked.run(command, env=env, timeout=commands.PATIENCE)
    (migration,) = json.loads(ended.stdout)['migrations']
    assert migration['noticed_after'] < 60, migration['trace']
    said = [one['what'] for one in migration['trace'] if one['kind'] == 'message']
    assert not [one for one in said if 'poll' in one]
    assert sum(one.startswith(('call', 'cast', 'reply')) for one in said) == len(said) <= LIMITS['rpc_messages']


def test_output_that_is_no_terminal_has_plain_lines_in_any_environment(tmp_path):
    ended = drains(tmp_path, *SMALL, FORCE_COLOR='1', TTY_COMPATIBLE='1', TERM='xterm-256color', COLUMNS='40')
    assert ended.returncode == 0, ended.stderr
    assert '\x1b' not in ended.stdout + ended.stderr
    assert ended.stdout.isascii()
    lines = ended.stdout.splitlines()
    assert lines[0].startswith('Plan: empty host1')
    assert len(re.findall(r': moved to host[23]', ended.stdout)) == 2
    assert len(re.findall(r': waiting \(.* ended as failed', ended.stdout)) == 1
    assert re.search(r'Drain completed: 2 of 2 guests moved in .* at a second attempt; host1 is empty', ended.stdout)
    assert lines[-4].endswith('no findings.')
    named = [re.fullmatch(r'(?:Next:|     ) migrator-demo (.+?)  +\S.*', line)[1].split() for line in lines[-2:]]
    assert [words[0] for words in named] == ['--kill', '--serve']
    for words in named:
        options.parse(words)


def test_an_interrupted_demo_says_where_things_stand_and_leaves_nothing_behind(tmp_path):
    # A shell that starts a job in the background has it ignore SIGINT, and so may who runs this test.
    command = wrapped(
        'signal.signal(signal.SIGINT, signal.default_int_handler)', '--bandwidth', '16', '--dirty-rate', '0'
    )
    streams = {'stdout': forked.PIPE, 'stderr': forked.PIPE, 'text': True}
    process = forked.Process(command, env=commands.environment(tmp_path), **streams)
    try:
        for line in process.stdout:
            if line.rstrip().endswith(': moving'):
                break
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=commands.PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 130
    assert 'interrupted; migrations: ' in said
    assert 'Traceback' not in said
    assert commands.left_behind(tmp_path) == []


PLANT = """
from migrator.demo import cloud as demo_cloud
from migrator.placement_client import allocation_state, allocations
populate = demo_cloud.DemoCloud.populate

def and_plant(cloud):
    populate(cloud)
    new_uuid = cloud.world.threads.new_uuid()
    stranger = allocation_state.Consumer(uuid=new_uuid, consumer_type='X', project_id='p', user_id='u')
    # at the drained host it would be in the way of the drain
    (provider,) = (node.uuid for node in cloud.database.services.list_nodes() if node.host == 'host2')
    allocations.claim(cloud.placement_client, stranger, {provider: {'VCPU': 1}}, generation=None)

demo_cloud.DemoCloud.populate = and_plant
"""


@pytest.mark.nova_bug(1793569)
def test_wrong_allocations_are_reported_and_the_exit_status_is_1(tmp_path):
    env = commands.environment(tmp_path)
    ended = forked.run(wrapped(f'{AT_ONCE}\n{PLANT}', *SMALL), env=env, timeout=commands.PATIENCE)
    assert ended.returncode == 1, ended.stderr
    assert 'Drain completed: 2 of 2 guests moved' in ended.stdout
    assert ' 1 finding.' in ended.stdout
    assert 'unknown consumer' in ended.stdout
    assert 'Remedy: ' in ended.stdout
    assert 'Next: ' not in ended.stdout


def test_command_to_type_next_is_the_one_that_was_typed(tmp_path, monkeypatch):
    script = tmp_path / 'migrator-demo'
    script.touch(mode=0o755)
    for path, first, shown in [
        ('/usr/bin', '.venv/bin/migrator-demo', '.venv/bin/migrator-demo'),
        (str(tmp_path), str(script), 'migrator-demo'),
        ('/usr/bin', '/lib/migrator/cmd/demo.py', 'migrator-demo'),
    ]:
        monkeypatch.setenv('PATH', path)
        monkeypatch.setattr(sys, 'argv', [first])
        assert summary.command() == shown


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_served_cloud_answers_until_a_signal_stops_it(tmp_path, number):
    fresh = number == signal.SIGTERM
    with commands.Served(tmp_path, *SMALL, '--placement', '127.0.0.1:0', fresh=fresh) as served:
        answer = ask(served.url('Compute API') + '/servers', token='admin:demo')
        assert len(answer.json()['servers']) == 4
        assert '<html' in ask(served.url('Page')).text
        token, url = re.search(r"curl -H 'X-Auth-Token: (\S+)' (\S+/migrator/v1/migrations)", served.said).groups()
        assert ask(url, token=token).json() == {'migrations': []}
        answer = ask(served.url('Placement') + '/resource_providers', token='admin')
        assert len(answer.json()['resource_providers']) == 3
        assert len(commands.left_behind(tmp_path)) == 1
        answer = ask(served.exports()['OS_AUTH_URL'])
        assert 'development only' in answer.headers['X-Migrator-Development-Identity']
        assert 'FOR DEVELOPMENT ONLY' in served.said
        assert served.stop(number) == 0
        assert 'Traceback' not in served.said
    assert commands.left_behind(tmp_path) == []


def test_served_cloud_answers_healthcheck_without_a_token_as_the_api_does(tmp_path):
    with commands.Served(tmp_path, *SMALL) as served:
        api = served.url('Compute API').removesuffix('/v2.1')
        check = {'result': 'ok', 'needed': True}
        health = {'service': 'migrator-api', 'started': True, 'ready': True, 'checks': {'database': check}}
        assert ask(f'{api}/healthcheck').json() == health
        assert ask(f'{api}/healthcheck/live').json() == {'service': 'migrator-api', 'live': True}


def test_config_file_of_a_served_cloud_makes_migrator_manage_work_on_it(tmp_path):
    with commands.Served(tmp_path, *SMALL) as served:
        file = re.search(r'--config-file (\S+) drain start host1 --watch', served.said)[1]

        def manage(*words):
            command = [sys.executable, '-m', 'migrator.cmd.manage', '--config-file', file, *words]
            return forked.run(command, env=commands.environment(tmp_path), timeout=commands.PATIENCE)

        planned = manage('drain', 'plan', 'host1')
        assert '2 guests of host1 can move, 0 cannot.' in planned.stdout, planned.stderr
        started = manage('drain', 'start', 'host1', '--watch')
        assert (started.returncode, started.stderr) == (0, '')
        assert 'drain: completed' in started.stdout
        (drain,) = json.loads(manage('--json', 'drain', 'list').stdout)['drains']
        watched = manage('--json', 'watch', 'drain', drain['uuid'])
        assert (watched.returncode, json.loads(watched.stdout.splitlines()[-1])['status']) == (0, 'completed')


@pytest.mark.parametrize('option', ['--serve', '--placement'])
def test_port_in_use_is_reported_in_one_line_before_a_cloud_starts(tmp_path, option):
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        address = f'127.0.0.1:{taken.getsockname()[1]}'
        words = ['--serve', address] if option == '--serve' else ['--serve', '127.0.0.1:0', '--placement', address]
        command = wrapped('from migrator.demo import serve; serve.DemoCloud = None', *words)
        ended = forked.run(command, env=commands.environment(tmp_path), timeout=commands.PATIENCE)
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ''
    assert ended.stderr.count('\n') == 1, ended.stderr
    assert f'{option} is {address}' in ended.stderr
    assert commands.left_behind(tmp_path) == []


@pytest.fixture
def rehearsal(tmp_path):
    with commands.Served(tmp_path, *SMALL) as served:
        yield Rehearsal(tmp_path, served)
        assert served.stop() == 0
        assert 'Traceback' not in served.said


def test_commands_need_a_demo_and_only_its_user_may_use_them(tmp_path):
    assert '0 demos of yours are served' in breaks(tmp_path, 'kill', 'host2', status=3)
    with commands.Served(tmp_path, *SMALL):
        (path,) = (tmp_path / 'tmp').glob(f'{options.PREFIX}*/demo.socket')
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert 'the hosts are host1, host2, host3' in breaks(tmp_path, 'slow', 'host9', '2', status=1)
        assert 'Instance vm-9 could not be found' in breaks(tmp_path, 'move', 'vm-9', 'host1', status=1)
        breaks(tmp_path, 'kill', 'host2', '--power')
        assert 'host2 has no power' in breaks(tmp_path, 'move', 'vm-1', 'host2', status=1)


def test_services_and_hosts_of_a_served_cloud_die_and_come_back(rehearsal):
    lines, breaks, running = rehearsal.lines, rehearsal.breaks, rehearsal.running
    breaks('kill', 'conductor1')
    assert 'fence none' in lines('no-conductor')['no-conductor']['text']
    breaks('revive', 'conductor1')
    lines()
    assert 'Its guests go on' in breaks('kill', 'host2')
    assert 'host2 is dead already' in breaks('kill', 'host2', status=1)
    assert 'may still run.' in lines('host-down')['host-down']['text']
    breaks('revive', 'host2')
    lines()
    breaks('kill', 'host3', '--power')
    lines('host-down')
    rehearsal.force_down('host3', True)
    assert lines('forced-down')['forced-down']['failed']
    for one in running('host3'):
        rehearsal.act(one, 'evacuate', {})
    rehearsal.until(lambda: not running('host3'))
    breaks('revive', 'host3')
    rehearsal.until(lambda: 'back' in lines('forced-down')['forced-down']['title'])
    # The host first removes what was evacuated from it.
    rehearsal.until(lambda: not rehearsal.send('GET', '/migrator/v1/cleanups?host=host3')['cleanups'])
    rehearsal.until(lambda: not rehearsal.send('GET', '/migrator/v1/migrations?status=done')['migrations'])
    rehearsal.force_down('host3', False)
    lines()


def test_drain_of_a_served_cloud_meets_what_an_operator_has_to_mend(rehearsal):
    send, lines = rehearsal.send, rehearsal.lines
    moves, stays = rehearsal.running('host1')
    rehearsal.breaks('fail', 'host1', '1')
    rehearsal.act(moves, 'os-migrateLive', {'host': 'host2', 'block_migration': 'auto'})
    failed = lines('migration-failed')['migration-failed']
    assert 'could not move the guest. Try it again' in failed['text']
    assert f'openstack server migrate --live-migration {moves}' in failed['commands']
    rehearsal.act(stays, 'lock', token='demo:demo')
    rehearsal.breaks('slow', 'host1', '1000')
    drain = f'/migrator/v1/drains/{send("POST", "/migrator/v1/drains", {"host": "host1"})["drain"]["uuid"]}'
    # The failure before is that of no drain, so it stays until the guest has moved.
    blocked = lines('migration-failed', 'guest-blocked')['guest-blocked']
    assert blocked['commands'] == [f'openstack server unlock {stays}']
    send('POST', f'{drain}/action', {'pause': None})
    paused = lines('migration-failed', 'guest-blocked', 'drain-paused')['drain-paused']
    assert paused['commands'] == ['migrator-manage drain resume host1']
    send('POST', f'{drain}/action', {'resume': None})
    rehearsal.breaks('slow', 'host1', '1')
    incomplete = lines('drain-incomplete')['drain-incomplete']
    assert 'migrator-manage drain retry host1' in incomplete['commands']
    rehearsal.act(stays, 'unlock', token='demo:demo')
    again = send('POST', f'{drain}/action', {'retry': None})['drain']['uuid']
    assert 'migrator-manage drain restore host1' in lines('host-disabled')['host-disabled']['commands']
    send('POST', f'/migrator/v1/drains/{again}/action', {'restore': None})
    rehearsal.until(lambda: sorted(rehearsal.running('host1')) == sorted([moves, stays]))
    lines()
