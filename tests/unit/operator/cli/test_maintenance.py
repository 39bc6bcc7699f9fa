# SPDX-License-Identifier: Apache-2.0

"""Maintenances by the commands, against the API of a simulated cloud, and work by real commands."""

import fcntl
import os
import pathlib
import select
import signal
import struct
import sys
import types
from urllib import parse

import pytest

from migrator import executors
from migrator.operator.cli.parser import Parser
from migrator.operator.maintenance import supervisor, verbs, work
from migrator.operator.osc import maintenance as osc
from migrator.operator.watch import errors

LONG = 900


class Client:
    """The API of a cloud; ``away`` holds the errors of the next requests."""

    def __init__(self, cloud):
        self.cloud, self.away = cloud, []

    def request(self, method, path, body=None, **query):
        if self.away:
            raise self.away.pop(0)
        found = self.cloud.request(method, f'/migrator/v1{path}?{parse.urlencode(query)}', body)
        if found.status_int >= 400:
            (error,) = found.json.values()
            refused = errors.ApiInvalid if found.status_int == 400 else errors.ApiRefused
            raise refused(url=path, reason=error['message'])
        return found.json


@pytest.fixture
def client(operator, monkeypatch):
    made = Client(operator.cloud)
    monkeypatch.setattr(verbs, 'connect', lambda asked: made)
    return made


def openstack(client, command, *words):
    """Run a command of openstack host maintenance with ``-f json``, and return its document."""
    run = command(types.SimpleNamespace(client_manager=types.SimpleNamespace(migrator=client)), None)
    names, values = run.take_action(run.get_parser('openstack host maintenance').parse_args(['-f', 'json', *words]))
    return {
        name: getattr(value, 'machine_readable', lambda v=value: v)() for name, value in zip(names, values, strict=True)
    }


def statuses(operator, uuid):
    return {one['host']: one['status'] for one in operator.json('maintenance', 'show', uuid)['hosts']}


def until(operator, uuid, **wanted):
    operator.cloud.simulation.run_until(lambda: wanted.items() <= statuses(operator, uuid).items(), timeout=LONG)


def restart(cloud, host):
    cloud.kill(host)
    cloud.start_compute(host)


def test_hosts_are_planned_started_claimed_and_ended_by_commands(operator, client):
    cloud = operator.cloud
    for number in range(2):
        cloud.boot(f'guest{number}', 'host1')
    words = ('host1', 'host2', '--in-order', '--returned-by', 'restart', '--work-timeout', '90m')
    assert '2 guests in 2 moves: 1.0 for each' in operator.observed('maintenance', 'plan', *words)
    accepted = operator.observed('maintenance', 'start', *words)
    (one,) = operator.json('maintenance', 'list', '--in-progress')['maintenances']
    uuid = one['uuid']
    assert accepted == (
        f'Maintenance {uuid} of 2 hosts is accepted. See it: migrator-manage --config-file {operator.file} maintenance '
        f'show {uuid}\n'
    )
    assert one['work_timeout'] == 5400
    assert f'{uuid}  running  2 waiting' in operator.observed('maintenance', 'list')
    until(operator, uuid, host1='ready')
    shown = operator.observed('maintenance', 'show', 'host1')
    assert f'maintenance begin {uuid} host1' in shown
    status, _ = operator.status('maintenance', 'begin', 'host1', 'host2')
    assert (status, 'wait until it is ready' in operator.err) == (1, True)
    claim = operator.json('maintenance', 'begin', uuid, 'host1')['claim']
    assert openstack(client, osc.BeginMaintenance, uuid, 'host1', '--claim', claim)['claim'] == claim
    status, _ = operator.status('maintenance', 'done', uuid, 'host1', '--claim', uuid)
    assert (status, f'has the claim {claim}' in operator.err) == (1, True)
    assert operator.observed('maintenance', 'done', uuid, 'host1', '--claim', claim) == 'host1 is returning.\n'
    restart(cloud, 'host1')
    until(operator, uuid, host1='done', host2='ready')
    claim = openstack(client, osc.BeginMaintenance, uuid, 'host2')['claim']
    operator.json('maintenance', 'fail', uuid, 'host2', '--claim', claim, '--reason', 'the disk is broken')
    cloud.simulation.advance(30)
    shown = operator.observed('maintenance', 'show', uuid)
    assert 'Its work has failed: the disk is broken. Mend it.' in shown
    assert f'maintenance skip {uuid} host2 --stays-disabled' in shown
    assert openstack(client, osc.ShowMaintenance, uuid) == operator.json('maintenance', 'show', uuid)
    assert openstack(client, osc.SkipMaintenance, uuid, 'host2', '--stays-disabled')['status'] == 'skipped'


def test_hosts_and_groups_of_a_file_are_those_of_the_request(operator, client, tmp_path):
    file = tmp_path / 'hosts'
    file.write_text('# rack by rack\n[rack1]\nhost1\n host2  # the second\n\n[rack2]\nhost3\n')
    words = (
        '--file',
        file,
        '--except',
        'host2',
        '--per-group',
        '1',
        '--drain-max-attempts',
        '2',
        '--reserve',
        'VCPU=4',
    )
    found = operator.json('maintenance', 'start', *words)
    assert [one['host'] for one in found['hosts']] == ['host1', 'host3']
    assert found['groups'] == {'rack1': ['host1', 'host2'], 'rack2': ['host3']}
    assert (found['drain'], found['reserve'], found['per_group']) == ({'max_attempts': 2}, {'VCPU': 4}, 1)
    assert operator.json('maintenance', 'cancel', found['uuid'])['status'] == 'cancelling'
    operator.cloud.simulation.advance(30)
    assert len(openstack(client, osc.StartMaintenance, '--all')['hosts']) == 3


@pytest.mark.parametrize(
    ('text', 'words', 'said'),
    [
        ('', [], 'Option HOST is missing: name hosts, or give --all or --file.'),
        ('', ['host1', '--except', 'host1'], 'Option HOST is missing: leave out fewer.'),
        (
            '',
            ['host1', '--except', 'hots1'],
            'Option --except is hots1: no host of the maintenance has this name; is host1 meant?',
        ),
        ('host1 host2\n', ['--file', 'hosts'], 'line 1 has more than a host: give one in each line.'),
        ('host1\n\x1b[2J\n', ['--file', 'hosts'], 'line 2: '),
        ('', ['--file', 'no-such-file'], 'Option --file is no-such-file: FileNotFoundError'),
        ('', ['host9'], 'Compute host host9 could not be found'),
        ('', ['host1', '--window', 'at night'], 'Invalid input for window'),
        ('', ['host1', '--wait-for-room', '1w'], "'1w' is not a span of at most 100 days, such as 90s, 30m, 4h or 2d"),
        ('', ['host1', '--reserve', 'VCPU'], "'VCPU' is no resource class with =N, such as VCPU=64"),
    ],
)
def test_wrong_request_is_refused_with_what_to_do(operator, client, tmp_path, monkeypatch, text, words, said):
    monkeypatch.chdir(tmp_path)
    pathlib.Path('hosts').write_text(text)
    assert operator.status('maintenance', 'plan', *words) == (2, '')
    assert said in operator.err.replace("'missing'", 'missing').replace("is 'h", 'is h').replace("1':", '1:').replace(
        "'no-such-file'", 'no-such-file'
    )


# --- work by commands ------------------------------------------------------------------------------------------------


class Shift:
    """An operator who types ``maintenance work``, in a directory of its own."""

    def __init__(self, operator, client, directory):
        self.operator, self.client, self.directory = operator, client, directory
        self.cloud, self.said, self.restarted = operator.cloud, [], set()
        words = ('host1', 'host2', '--in-order', '--returned-by', 'restart', '--max-failures', '5')
        self.uuid = operator.json('maintenance', 'start', *words)['uuid']

    def script(self, text):
        """Return a command that runs a text of Python with the host in ``sys.argv[1]``."""
        path = self.directory / f'script{len(os.listdir(self.directory))}.py'
        path.write_text(f'import os, pathlib, sys\n{text}\n')
        return f'{sys.executable} {path} {{host}}'

    def worker(self, **commands):
        def act(action, given):
            return verbs.request_action(self.client, self.uuid, action, given)

        threads = executors.NativeThreads()
        made = work.Commands(**commands)
        return work.Worker(self.uuid, made, act, self.directory, threads, self.said.append)

    def works(self, **commands):
        """Work until the maintenance has ended, and return the status of each host, and its reason."""
        found = work.follow(self.worker(**commands), lambda: verbs.find(self.client, self.uuid), self.passes)
        return {one['host']: (one['status'], one['reason']) for one in found['hosts']}

    def passes(self, seconds):
        """Let commands that run end, hosts that are patched start anew, and time pass."""
        for path in self.directory.glob('*/*/*/*/lock'):
            with path.open('r+b') as lock:
                wanted = struct.pack('hhqqi4x', fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                fcntl.fcntl(lock, fcntl.F_OFD_SETLKW, wanted)
        for host, status in statuses(self.operator, self.uuid).items():
            if status == 'returning' and host not in self.restarted:
                self.restarted.add(host)
                restart(self.cloud, host)
        self.cloud.simulation.advance(seconds)

    def one(self, host, stage):
        """Return the only work of a stage at a host."""
        (path,) = self.directory.glob(f'*/{host}/*/{stage}')
        return supervisor.Work(path)

    def until_ready(self, host):
        until(self.operator, self.uuid, **{host: 'ready'})


@pytest.fixture
def shift(operator, client, tmp_path):
    directory = tmp_path / 'work'
    directory.mkdir()
    yield Shift(operator, client, directory)
    for path in directory.glob('*/*/*/*'):  # a test that fails may leave some
        for pid in supervisor.Work(path).living():
            os.kill(pid, signal.SIGKILL)


def test_each_host_is_checked_worked_on_and_verified_once(shift):
    trace = shift.directory / 'trace'
    note = f'pathlib.Path({str(trace)!r}).open("a").write(sys.argv[1] + "=" + os.environ["MIGRATOR_HOST"] + " {{}}\\n")'
    ends = shift.works(
        verify_every=0.0,
        check=shift.script(note.format('check')),
        run=shift.script(note.format('run')),
        verify=shift.script(f'{note.format("verify")}\nsys.exit({str(trace)!r} and trace.count("verify") < 2)'.replace(
            'trace.count', f'pathlib.Path({str(trace)!r}).read_text().count'
        )),
    )  # fmt: skip
    assert ends == {'host1': ('done', None), 'host2': ('done', None)}
    assert trace.read_text().splitlines() == [
        *('host1=host1 check', 'host1=host1 run', 'host1=host1 verify', 'host1=host1 verify'),
        *('host2=host2 check', 'host2=host2 run', 'host2=host2 verify'),
    ]
    assert oct(shift.one('host1', 'run').directory.stat().st_mode)[-3:] == '700'


def test_status_70_skips_a_host_and_any_other_is_a_failure_that_names_its_log(shift):
    ends = shift.works(run=shift.script('print("it is said"); sys.exit(70 if sys.argv[1] == "host1" else 3)'))
    assert ends['host1'][0] == 'skipped'
    log = shift.one('host2', 'run').log
    assert ends['host2'] == (
        'failed',
        f'Its work has failed: run: exit status 3. See {log}. Mend it. Then retry the host, or skip it.',
    )
    assert log.read_text() == 'it is said\n'


def test_call_that_was_killed_at_any_moment_is_followed_by_one_that_goes_on(shift):
    trace = shift.directory / 'trace'
    run = shift.script(f'pathlib.Path({str(trace)!r}).open("a").write(sys.argv[1] + "\\n")')
    shift.until_ready('host1')
    refusal = errors.ApiUnreachable(url='/', reason='no reply')

    def look(worker):
        return worker.look(verbs.find(shift.client, shift.uuid))

    class Killed(BaseException):
        pass

    # Each of these calls is killed one step later than the one before.
    def killed(*_args):
        raise Killed

    chosen = shift.worker(run=run)
    chosen._act = killed
    with pytest.raises(Killed):
        look(chosen)
    claimed = shift.worker(run=run)
    claimed._go_on = killed
    with pytest.raises(Killed):
        look(claimed)
    assert not trace.exists()
    begun = shift.worker(run=run)
    look(begun)
    shift.passes(0)
    reported = shift.worker(run=run)
    reported._act = killed
    with pytest.raises(Killed):
        look(reported)
    unreported = shift.worker(run=run)
    unreported._act = lambda *_args: (_ for _ in ()).throw(refusal)
    look(unreported)
    assert shift.works(run=run) == {'host1': ('done', None), 'host2': ('done', None)}
    assert trace.read_text() == 'host1\nhost2\n'
    assert len(os.listdir(next(shift.directory.glob('*/host1')))) == 1, 'one claim'


def test_work_whose_supervisor_is_gone_has_failed_and_is_not_retried_while_it_runs(shift, monkeypatch):
    shift.until_ready('host1')
    run = shift.script('os.close(os.open(os.environ["PIPE"], os.O_WRONLY)); os.open(os.environ["PIPE"], os.O_RDONLY)')
    pipe = shift.directory / 'pipe'
    os.mkfifo(pipe)
    monkeypatch.setenv('PIPE', str(pipe))
    worker = shift.worker(run=run)
    worker.look(verbs.find(shift.client, shift.uuid))
    pipe.open('rb').close()  # it runs
    mine = shift.one('host1', 'run')
    (leader, command) = sorted(mine.living())
    ended = {pid: os.pidfd_open(pid) for pid in (leader, command)}
    os.kill(leader, signal.SIGKILL)
    select.select([ended[leader]], [], [])
    worker.look(verbs.find(shift.client, shift.uuid))
    reason = next(one['reason'] for one in verbs.find(shift.client, shift.uuid)['hosts'] if one['host'] == 'host1')
    assert 'run was interrupted, begun at ' in reason
    assert f'Of it still runs: process {command}' in reason
    assert f'See {mine.log}' in reason
    status, _ = shift.operator.status('maintenance', 'retry', shift.uuid, 'host1', '--directory', shift.directory)
    assert (status, f'Cannot retry host1: its work still runs: process {command}.' in shift.operator.err) == (1, True)
    verbs.request_action(shift.client, shift.uuid, 'retry', {'host': 'host1'})  # as from another machine
    shift.until_ready('host1')
    worker.look(verbs.find(shift.client, shift.uuid))
    assert shift.said[-1].endswith(f'host1: earlier work still runs: process {command}. Wait for it, or end it')
    assert statuses(shift.operator, shift.uuid)['host1'] == 'ready'
    pipe.open('wb').close()  # it ends
    select.select([ended[command]], [], [])
    for descriptor in ended.values():
        os.close(descriptor)
    verbs.check_living(shift.directory, shift.uuid, 'host1')


def test_check_that_is_given_later_does_not_run_for_work_that_was_begun(shift):
    shift.until_ready('host1')
    shift.worker(run='true').look(verbs.find(shift.client, shift.uuid))
    assert shift.works(run='true', check=shift.script('sys.exit(70)')) == {
        'host1': ('done', None),
        'host2': ('skipped', 'It was skipped by admin.'),
    }


def test_check_of_an_earlier_call_is_waited_for_and_counts(shift):
    shift.until_ready('host1')
    shift.worker(run='true', check=shift.script('sys.exit(70)')).look(verbs.find(shift.client, shift.uuid))
    assert shift.works(run='true') == {'host1': ('skipped', 'It was skipped by admin.'), 'host2': ('done', None)}


def test_claim_whose_work_has_ended_is_given_to_no_other_work(shift):
    shift.until_ready('host1')
    shift.worker(run='true').look(verbs.find(shift.client, shift.uuid))
    ((claim,),) = [os.listdir(path) for path in shift.directory.glob('*/host1')]
    for action, given in (('fail', {'claim': claim}), ('retry', {})):
        verbs.request_action(shift.client, shift.uuid, action, {'host': 'host1', **given})
    shift.until_ready('host1')
    assert next(one for one in verbs.find(shift.client, shift.uuid)['hosts'] if one['host'] == 'host1')['claim'] is None
    with pytest.raises(errors.ApiRefused, match=f'work with the claim {claim} has ended. Choose another claim'):
        verbs.request_action(shift.client, shift.uuid, 'begin', {'host': 'host1', 'claim': claim})
    with pytest.raises(errors.ApiRefused, match='no work is in progress there'):
        verbs.request_action(shift.client, shift.uuid, 'skip', {'host': 'host1', 'claim': claim})


def test_disk_that_is_full_for_one_host_does_not_end_the_work_at_the_others(shift):
    shift.until_ready('host1')
    worker = shift.worker(run='true')
    worker._chosen = lambda host: (_ for _ in ()).throw(OSError(28, 'No space left on device'))
    assert not worker.look(verbs.find(shift.client, shift.uuid))
    assert 'No space left on device' in shift.said[-2]
    worker._say = lambda line: (_ for _ in ()).throw(OSError(28, 'No space left on device'))
    worker.note('host1', 'another line')
    assert shift.works(run='true') == {'host1': ('done', None), 'host2': ('done', None)}


def test_work_is_typed_with_its_options_and_exits_with_1_unless_all_is_done(operator, client, monkeypatch, tmp_path):
    uuid = operator.json('maintenance', 'start', 'host1', '--returned-by', 'restart')['uuid']
    seen = []

    def follow(worker, read, sleep):
        seen.append((worker._commands, worker._root))
        return read() | {'status': ends.pop()}

    ends = ['completed', 'incomplete']
    monkeypatch.setattr(work, 'follow', follow)
    words = ('--run', 'a {host}', '--verify', 'b', '--limit', '30m', '--verify-for', '2h', '--directory', tmp_path)
    assert [operator.status('maintenance', 'work', 'host1', *words)[0] for _ in range(2)] == [1, 0]
    assert seen[0] == (work.Commands(run='a {host}', verify='b', limit=1800, verify_for=7200), tmp_path / uuid)


def test_api_that_is_away_interrupts_nothing(shift):
    away, lost = errors.ApiUnreachable(url='http://api/', reason='refused'), []

    def passes(seconds):
        shift.passes(seconds)
        if not lost:
            lost.append(away)
            shift.client.away = [away]

    found = work.follow(shift.worker(run='true'), lambda: verbs.find(shift.client, shift.uuid), passes)
    assert found['status'] == 'completed'
    assert sum('refused' in line for line in shift.said) == 1


def test_directory_of_a_host_is_below_that_of_its_maintenance_whatever_its_name(tmp_path):
    uuid = '00000000-0000-4000-8000-000000000000'
    for host in ('..', '../x', '/etc', '.', 'a/../..', 'host1.example.org'):
        assert work._of_host(tmp_path / uuid, host).resolve().parent == (tmp_path / uuid).resolve()
    with pytest.raises(ValueError, match='UUID'):
        work.living(tmp_path, '../x', 'host1')


def test_command_that_cannot_be_split_or_is_missing_is_refused(refused):
    assert 'is not a command: No closing quotation' in refused('maintenance', 'work', 'x', '--run', 'a "b')
    assert 'it is empty: give a command' in refused('maintenance', 'work', 'x', '--run', ' ')
    assert 'the following arguments are required: --run' in refused('maintenance', 'work', 'x')
    parser = Parser()
    verbs.add_work(parser)
    given = parser.parse_args(['x', '--run', 'a b', '--limit', '30m'])
    assert verbs.commands_of(given) == work.Commands(run='a b', limit=1800)
