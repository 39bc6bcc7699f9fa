# SPDX-License-Identifier: Apache-2.0

"""The work at a host runs once, whatever happens to the processes that start it and run it."""

import concurrent.futures
import contextlib
import datetime
import json
import os
import pathlib
import select
import signal
import stat
import subprocess
import sys
import textwrap

import pytest

from migrator import exception, executors
from migrator.operator.maintenance import supervisor
from migrator.operator.maintenance.supervisor import State

#: Seconds that are never reached.
LONG = 600
#: A command that reports that it runs, and ends when it may.
WAITING = 'echo $$ >ready; read x <go; exit 3'
BOOT = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Return work whose command has the pipes ``ready`` and ``go``; end its processes afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('PYTHONPATH', str(pathlib.Path(supervisor.__file__).parents[3]))
    for name in ('ready', 'go'):
        os.mkfifo(name)
    made = supervisor.Work(pathlib.Path('deep/work'))
    yield made
    # A test may have written the pid of another process. What it has started is in this directory.
    for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
        with contextlib.suppress(OSError):
            if pid != os.getpid() and os.readlink(f'/proc/{pid}/cwd') == str(tmp_path):
                os.kill(pid, signal.SIGKILL)


def leader(work):
    return json.loads((work.directory / 'begun').read_text())['pid']


def shell(script):
    return ['sh', '-c', script]


def ready():
    """Wait until the command reports, and return its pid."""
    return int(pathlib.Path('ready').read_text())


def go():
    pathlib.Path('go').write_text('\n')


def await_end_of(pid):
    """Wait until a process, which need not be a child, has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(20_000), f'process {pid} does not end'
    finally:
        os.close(handle)


def ended(work):
    """Wait until the supervisor has ended, and return the result."""
    await_end_of(leader(work))
    assert work.state() == State.ENDED
    assert work.living() == []
    return work.result()


@pytest.mark.parametrize(
    ('argv', 'status', 'number', 'text'),
    [
        (shell('exit 70'), 70, None, 'exit status 70'),
        (shell('kill -KILL $$'), None, signal.SIGKILL, 'killed by SIGKILL'),
        (['/nowhere/command'], None, None, "not started: [Errno 2] No such file or directory: '/nowhere/command'"),
        (['/etc/passwd'], None, None, "not started: [Errno 13] Permission denied: '/etc/passwd'"),
    ],
)
def test_end_of_command_is_recorded(work, argv, status, number, text):
    assert (work.state(), work.result(), work.begun_at, work.living()) == (State.NEW, None, None, [])
    work.start(argv, {}, LONG)
    assert work.begun_at is not None
    result = ended(work)
    assert (result.status, result.signal, result.text) == (status, number, text)
    assert work.begun_at == result.began_at <= result.ended_at
    assert result.began_at.tzinfo is not None


def test_command_has_default_signals_and_no_descriptor_of_the_work_and_only_its_user_sees_the_files(work):
    script = 'echo "$WORD"; grep -E "Sig(Blk|Ign)" /proc/self/status; ls /proc/self/fd; cut -d" " -f1,5 /proc/$$/stat'
    work.start(shell(script), {'WORD': 'word'}, LONG)
    assert ended(work).text == 'exit status 0'
    word, blocked, ignored, *descriptors, group = work.log.read_text().splitlines()
    assert word == 'word'
    # The higher ones are real-time signals. Two belong to the C library, and may be ignored from the beginning.
    assert [int(line.split()[1], 16) & 0x7FFFFFFF for line in (blocked, ignored)] == [0, 0]
    assert descriptors == ['0', '1', '2', '3']  # the last is that of ls
    assert len({*group.split()}) == 1, 'the command has no process group of its own'
    for path in (work.directory.parent, work.directory, *work.directory.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_command_is_ended_at_its_limit(work):
    work.start(shell('read x <go'), {}, 0.01)
    result = ended(work)
    assert (result.timed_out, result.signal, result.text) == (True, signal.SIGTERM, 'ended after 0.01 s, its limit')


def test_sigterm_to_supervisor_kills_what_ignores_sigterm_and_is_recorded(work):
    work.start(shell('trap "" TERM; cat <go & echo $! >ready; wait'), {}, LONG, grace=0.05)
    child, supervises = ready(), leader(work)
    assert len(work.living()) == 3
    os.kill(supervises, signal.SIGTERM)
    result = ended(work)
    assert child not in supervisor._session(supervises)
    assert (result.stopped, result.timed_out, result.signal) == (True, False, signal.SIGKILL)
    assert result.text == 'ended because its supervisor got SIGTERM'


def test_sigint_and_sighup_to_supervisor_change_nothing_and_work_is_not_begun_twice(work):
    work.start(shell(WAITING), {}, LONG)
    ready()
    for number in (signal.SIGHUP, signal.SIGINT):
        os.kill(leader(work), number)
    assert work.state() == State.RUNNING
    with pytest.raises(exception.Conflict, match='Another process'):
        work.start(['true'], {}, LONG)
    go()
    assert ended(work).text == 'exit status 3'
    with pytest.raises(exception.Conflict, match='was begun already, at '):
        work.start(['true'], {}, LONG)


def test_work_goes_on_when_its_worker_is_killed_before_the_supervisor_has_begun(work):
    worker = f"""
        import os, pathlib, signal, subprocess
        from migrator.operator.maintenance import supervisor
        subprocess.Popen.wait = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        supervisor.Work(pathlib.Path('deep/work')).start({shell(WAITING)}, {{}}, {LONG})
    """
    ended_by = subprocess.run([sys.executable, '-c', textwrap.dedent(worker)], check=False).returncode
    assert ended_by == -signal.SIGKILL
    assert work.state() == State.RUNNING, 'there was a gap in which no process had the lock'
    ready()
    assert work.state() == State.RUNNING
    go()
    assert ended(work).text == 'exit status 3'


def test_work_is_interrupted_when_its_supervisor_is_killed_and_the_command_is_found(work):
    work.start(shell(WAITING), {}, LONG)
    pid = ready()
    assert work.living() == sorted([pid, leader(work)])
    os.kill(leader(work), signal.SIGKILL)
    await_end_of(leader(work))
    assert (work.state(), work.living(), work.result()) == (State.INTERRUPTED, [pid], None)
    with pytest.raises(exception.Conflict, match='was begun already, at '):
        work.start(['true'], {}, LONG)
    go()
    await_end_of(pid)
    assert (work.state(), work.living()) == (State.INTERRUPTED, [])


def test_daemon_that_the_command_leaves_behind_does_not_hold_the_lock(work):
    work.start(shell('cat <go & echo $! >ready'), {}, LONG)
    daemon = ready()
    await_end_of(leader(work))
    assert (work.state(), work.result().text, work.living()) == (State.ENDED, 'exit status 0', [daemon])
    (work.directory / 'result').unlink()
    assert work.state() == State.INTERRUPTED, 'the lock is held'


def test_of_two_workers_at_the_same_time_exactly_one_begins_the_work(work):
    def start():
        try:
            supervisor.Work(work.directory).start(shell('echo once'), {}, LONG)
        except exception.Conflict:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        one, other = pool.submit(start), pool.submit(start)
        assert {one.result(), other.result()} == {True, False}
    ended(work)
    assert work.log.read_text() == 'once\n'


def test_work_whose_supervisor_does_not_begin_stays_new_and_is_locked_meanwhile(work, monkeypatch):
    seen = []

    def look(*args, **kwargs):
        seen.append(work.state())
        with pytest.raises(exception.Conflict, match='Another process'):
            supervisor.Work(work.directory).start(['true'], {}, LONG)
        return real(*args, **kwargs)

    real = subprocess.Popen
    with monkeypatch.context() as patched:
        patched.setattr(sys, 'executable', 'false')
        patched.setattr(subprocess, 'Popen', look)
        with pytest.raises(exception.Invalid, match=r'has not begun it\. Look at .*/log'):
            work.start(['true'], {}, LONG)
        patched.setattr(sys, 'executable', '/nowhere/python')
        with pytest.raises(exception.Invalid, match='No such file'):
            work.start(['true'], {}, LONG)
    assert seen == [State.RUNNING] * 2
    assert work.state() == State.NEW


def test_supervisor_without_the_lock_begins_nothing(work):
    order = {'argv': ['true'], 'environment': {}, 'seconds': 1, 'grace': 1}
    work.directory.mkdir(parents=True)
    (work.directory / 'order').write_text(json.dumps(order))
    with pytest.raises(exception.Conflict, match='has no order or no lock, or was begun already'):
        work._begin(executors.SystemClock())
    assert work.state() == State.NEW


@pytest.mark.parametrize(
    ('argv', 'seconds'), [([], 1), (['true'], 0), (['true'], float('inf')), (['true', 'x' * 70_000], 1)]
)
def test_order_that_cannot_be_kept_is_refused(work, argv, seconds):
    with pytest.raises(exception.Invalid, match=r'a limit above 0|use a script'):
        work.start(argv, {}, seconds)
    assert work.state() == State.NEW


@pytest.mark.parametrize('name', ['begun', 'result'])
@pytest.mark.parametrize(
    'text', ['', '[]', '{}', 'null', '[' * 60_000, ' ' * 70_000, b'\xff', None], ids=lambda one: repr(one)[:6]
)
def test_damaged_file_is_refused(work, name, text):
    work.directory.mkdir(parents=True)
    path = work.directory / name
    if text is None:
        os.mkfifo(path)
    else:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for look in (work.state, work.living):
        with pytest.raises(exception.Invalid, match=f'/{name} cannot be read'):
            look()


@pytest.mark.parametrize(
    'change', [{'pid': '1'}, {'pid': True}, {'started': 1.0}, {'boot_id': None}, {'at': 'now'}, {'at': '2026-01-01'}]
)
def test_value_of_a_wrong_type_is_refused(work, change):
    record(work, **change)
    with pytest.raises(exception.Invalid, match='/begun cannot be read'):
        work.state()


def test_work_that_begins_between_two_looks_is_new_and_work_that_ends_has_ended(work, monkeypatch):
    def begin():
        record(work)
        return False

    def end():
        now = datetime.datetime.now(datetime.UTC)
        work._end(supervisor.Result(0, None, False, False, '', 1, now, now))
        return False

    monkeypatch.setattr(work, '_is_held', begin)
    assert work.state() == State.NEW
    monkeypatch.setattr(work, '_is_held', lambda: False)
    assert work.state() == State.INTERRUPTED
    monkeypatch.setattr(work, '_is_held', end)
    assert work.state() == State.ENDED


def record(work, **change):
    work.directory.mkdir(parents=True, exist_ok=True)
    begun = {'pid': os.getpid(), 'started': 1, 'boot_id': BOOT, 'at': '2026-01-01T00:00:00+00:00'}
    (work.directory / 'begun').write_text(json.dumps(begun | change))


def test_process_of_another_boot_or_with_the_reused_pid_is_none_of_the_work(work):
    with subprocess.Popen(['cat'], stdin=subprocess.PIPE, start_new_session=True) as other:
        started = supervisor._process(other.pid).started
        record(work, pid=other.pid, started=started)
        assert work.living() == [other.pid]
        assert work.begun_at == datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        record(work, pid=other.pid, started=started, boot_id='another')
        assert work.living() == []
        record(work, pid=other.pid, started=started - 1)
        assert work.living() == []
        other.stdin.close()
        other.wait()


def test_signal_without_a_name_has_its_number():
    now = datetime.datetime.now(datetime.UTC)
    assert supervisor.Result(None, 35, False, False, '', 1, now, now).text == 'killed by signal 35'
