# SPDX-License-Identifier: Apache-2.0

"""A fork behaves as a new interpreter does: each test asks both, and compares what they did."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests import forked

#: Modules that cost nothing: what is tested here is the server, and not what it imports.
MODULES = ('json',)


def both(argv, **options):
    """Run a command in a fork and in a new interpreter; return (exit status, stdout, stderr) if equal."""
    fork = forked.run(argv, modules=MODULES, timeout=60, **options)
    fresh = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, **options)
    seen = [(one.returncode, one.stdout, one.stderr) for one in (fork, fresh)]
    assert seen[0] == seen[1]
    return seen[0]


def script(text):
    return [sys.executable, '-c', text]


#: Waits for a signal, also for one that comes between the line and the wait: no pause() would see that one.
WAIT = """
import signal, socket, sys
ours, theirs = socket.socketpair()
theirs.setblocking(False)
signal.set_wakeup_fd(theirs.fileno())
{}
print('waits', flush=True)
ours.recv(1)
"""


@pytest.fixture
def start():
    """Start scripts in forks, and let none outlive the test."""
    started = []

    def start(source, **options):
        started.append(forked.Process(script(source), modules=MODULES, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ('text', 'status'),
    [
        ('pass', 0),
        ('import sys; sys.exit()', 0),
        ('import sys; sys.exit(3)', 3),
        ('import sys; sys.exit(-1)', 255),
        ('import sys; sys.exit(True)', 1),
        ('import sys; sys.exit("it is wrong")', 1),
        ('import os; os._exit(7)', 7),
        ('import os, signal; os.kill(os.getpid(), signal.SIGTERM)', -signal.SIGTERM),
        ('import signal; signal.raise_signal(signal.SIGKILL)', -signal.SIGKILL),
        ('import sys, threading, time; threading.Thread(target=lambda: print(time.sleep(0.1))).start()', 0),
        ('import atexit, sys; atexit.register(print, "at its end"); sys.exit(4)', 4),
        ('import sys; print("no line end", end=""); sys.stderr.write("nor here")', 0),
    ],
)
def test_exit_status_and_output_are_those_of_an_interpreter(text, status):
    assert both(script(text))[0] == status


@pytest.mark.parametrize(
    ('text', 'status'), [('1 / 0', 1), ('raise KeyboardInterrupt', -signal.SIGINT), ('import no.such.module', 1)]
)
def test_an_uncaught_error_is_a_traceback_with_the_same_last_line_and_status(text, status):
    fork = forked.run(script(text), modules=MODULES)
    fresh = subprocess.run(script(text), capture_output=True, text=True, check=False)
    assert fork.returncode == fresh.returncode == status
    assert 'Traceback' in fork.stderr
    assert fork.stderr.splitlines()[-1] == fresh.stderr.splitlines()[-1]


@pytest.mark.parametrize('unbuffered', [{}, {'PYTHONUNBUFFERED': '1'}], ids=['buffered', 'unbuffered'])
@pytest.mark.parametrize('text', ['print("lost")', 'import sys; print("lost"); sys.exit(3)'])
def test_output_that_cannot_be_written_is_the_same_error(text, unbuffered):
    seen = []
    for run in (forked.run, subprocess.run):
        options = {'modules': MODULES} if run is forked.run else {'stderr': subprocess.PIPE, 'text': True}
        with open('/dev/full', 'wb') as full:
            done = run(script(text), stdout=full, env={**os.environ, **unbuffered}, **options)
        seen.append((done.returncode, done.stderr.splitlines()[-1]))
    assert seen[0] == seen[1]
    assert 'No space left on device' in seen[0][1]


def test_forked_process_has_own_arguments_directory_environment_and_input(tmp_path):
    look = 'import os, sys; print(sys.argv, os.getcwd(), sorted(os.environ.items()), sys.path[0], sys.stdin.read())'
    env = {'PATH': os.environ['PATH'], 'HOME': str(tmp_path), 'LC_ALL': 'C.UTF-8', 'OS_TOKEN': 'admin'}
    status, out, _ = both([*script(look), 'one', '--two'], cwd=tmp_path, env=env, input='said\n')
    assert status == 0
    assert f"['-c', 'one', '--two'] {tmp_path} " in out
    assert 'said' in out


def test_temporary_files_are_where_the_environment_says(tmp_path):
    look = script('import tempfile; print(tempfile.gettempdir())')
    assert both(look, env={**os.environ, 'TMPDIR': str(tmp_path)})[1] == f'{tmp_path}\n'


def test_a_module_is_main_and_finds_what_is_beside_it_and_in_the_path(tmp_path):
    (tmp_path / 'here').mkdir()
    (tmp_path / 'there').mkdir()
    (tmp_path / 'here' / 'beside.py').write_text('print(__name__)')
    (tmp_path / 'there' / 'far.py').write_text('print(__name__)')
    text = """
import sys, beside, far
print(__name__, sys.argv, __file__, __spec__.name, sys.modules['__main__'].__dict__ is globals())
"""
    (tmp_path / 'here' / 'found.py').write_text(text)
    env = {**os.environ, 'PYTHONPATH': str(tmp_path / 'there')}
    status, out, _ = both([sys.executable, '-m', 'found', 'word'], cwd=tmp_path / 'here', env=env)
    assert (status, out.splitlines()[:2]) == (0, ['beside', 'far'])
    assert "['" + str(tmp_path / 'here' / 'found.py') + "', 'word']" in out


@pytest.mark.parametrize('named', [True, False])
def test_a_file_is_run_with_and_without_the_interpreter_named(tmp_path, named):
    file = tmp_path / 'command'
    file.write_text(f'#!{sys.executable}\nimport sys\nprint(__name__, __file__, sys.argv, sys.path[0])\n')
    file.chmod(0o755)
    assert both([*([sys.executable] if named else []), str(file), 'word'])[0] == 0


def test_an_option_of_the_interpreter_that_a_fork_cannot_take_is_refused():
    done = forked.run([sys.executable, '-O', '-c', 'pass'], modules=MODULES)
    assert done.returncode == 1
    assert 'a fork cannot take the option -O' in done.stderr


def test_forked_process_takes_signals_until_it_ends(start):
    text = WAIT.format('signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))')
    process = start(text, stdout=forked.PIPE, text=True)
    assert process.stdout.readline() == 'waits\n'
    assert process.poll() is None
    process.terminate()
    assert process.wait(60) == 9
    process.terminate()  # it has ended, and another process may have its number


def test_ctrl_c_reaches_forked_process(start):
    process = start(WAIT.format(''), stdout=forked.PIPE, stderr=forked.PIPE)
    assert process.stdout.readline() == b'waits\n'
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(60)
    assert (out, err.splitlines()[-1], process.returncode) == (b'', b'KeyboardInterrupt', -signal.SIGINT)


def test_forked_process_past_its_timeout_is_killed(start):
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run(script('import time; time.sleep(60)'), modules=MODULES, timeout=0.1)
    process = start('import time; time.sleep(60)', stdout=forked.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(0.1)


def test_change_of_module_stays_in_its_process():
    first = forked.run(script('import json; json.planted = 1; print(json.planted)'), modules=MODULES)
    second = forked.run(script('import json; print(hasattr(json, "planted"))'), modules=MODULES)
    assert (first.stdout, second.stdout) == ('1\n', 'False\n')


def test_forked_process_inherits_no_other_descriptors(start):
    start('import time; time.sleep(60)', stdout=forked.PIPE)
    found = forked.run(script('import os; print(sorted(os.listdir("/proc/self/fd"))[:-1])'), modules=MODULES)
    assert found.stdout == "['0', '1', '2']\n"


def test_all_end_with_the_process_that_has_started_them():
    sleep = 'import os, time; print(os.getpid(), flush=True); time.sleep(60)'
    text = f"""
import os, sys
from tests import forked
process = forked.Process([sys.executable, '-c', {sleep!r}], modules=('json',), stdout=forked.PIPE, text=True)
print(process.stdout.readline(), end='', flush=True)
os._exit(0)
"""
    done = subprocess.run(script(text), cwd=forked.ROOT, timeout=60, check=True, stdout=subprocess.PIPE, text=True)
    number = done.stdout.strip()
    assert number.isdecimal()
    until = time.monotonic() + 60
    while pathlib.Path('/proc', number).exists():
        assert time.monotonic() < until
        time.sleep(0.01)
