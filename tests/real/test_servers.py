# SPDX-License-Identifier: Apache-2.0

"""The servers of this folder's tests start, report failures, and leave nothing behind."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.real import plugin
from tests.real.servers import process

HERE = pathlib.Path(__file__).parent


@pytest.fixture
def script(workspace):
    """Start Python programs."""
    made = []

    def make(text, **options):
        one = process.Script(workspace, 'script', ['-c', text], **options)
        made.append(one)
        return one

    yield make
    for one in made:
        one.kill()


def test_ports_are_given_once():
    ports = [process.free_port() for _ in range(20)]
    assert len(set(ports)) == 20
    assert not any(process.listens(port) for port in ports)


def test_process_that_ends_before_it_is_ready_is_reported_with_its_last_output(script):
    one = script('print("no such file"); raise SystemExit(3)', ready=lambda each: False)
    with pytest.raises(process.ServerError, match=r'(?s)ended with 3 before it was ready.*no such file'):
        one.start()


def test_process_that_never_gets_ready_is_reported_with_its_last_output(script):
    one = script('import time; print("waiting"); time.sleep(100)', ready=lambda each: False)
    one.start_timeout = 5
    with pytest.raises(process.ServerError, match=r'(?s)waited 5 s in vain: script to be ready.*waiting'):
        one.start()


def test_process_that_ignores_its_signal_is_killed_and_reported(script):
    text = 'import signal, time; signal.signal(15, signal.SIG_IGN); print("deaf"); time.sleep(100)'
    one = script(text, ready=lambda each: 'deaf' in each.tail())
    one.stop_timeout = 0.5
    one.start()
    with pytest.raises(process.ServerError, match=r'waited 0\.5 s in vain: script to end'):
        one.stop()
    assert not one.running


def test_the_children_of_one_that_is_stopped_end_too(script):
    child = 'import signal; signal.pause()'
    text = (
        'import signal, subprocess, sys; '
        f'c = subprocess.Popen([sys.executable, "-c", {child!r}], start_new_session=True); '
        'print(f"child {c.pid} lives"); signal.pause()'
    )
    one = script(text, ready=lambda each: 'lives' in each.tail())
    one.start()
    number = one.tail().split()[-2]
    assert pathlib.Path('/proc', number).exists()
    one.kill()
    assert (
        not pathlib.Path('/proc', number).exists() or 'State:\tZ' in pathlib.Path('/proc', number, 'status').read_text()
    )


def test_missing_server_skips_with_the_package_and_fails_in_ci(monkeypatch):
    monkeypatch.setattr(plugin.rabbitmqs, 'binaries', lambda: None)
    monkeypatch.delenv('CI', raising=False)
    assert plugin.missing()['rabbitmq'] == 'RabbitMQ (rabbitmq-server)'
    with pytest.raises(pytest.skip.Exception, match=r'left out, for there is no RabbitMQ .*make test-real'):
        plugin.need('rabbitmq')
    monkeypatch.setenv('CI', 'true')
    with pytest.raises(pytest.fail.Exception, match='CI is to leave nothing out'):
        plugin.need('rabbitmq')


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGKILL])
def test_a_session_that_is_interrupted_leaves_nothing_behind(postgresql, rabbitmq, placement_http, tmp_path, number):
    """The fixtures are asked for only so that this is left out where they are."""
    note = tmp_path / 'root'
    arguments = ['-m', 'pytest', '-q', '-p', 'no:cacheprovider', str(HERE / 'never_ends.py')]
    with (tmp_path / 'output').open('wb') as output:
        session = subprocess.Popen(
            [sys.executable, *arguments], env=os.environ | {'MIGRATOR_TEST_NOTE': str(note)}, cwd=HERE.parents[1],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        process.wait_until(lambda: note.exists() or session.poll() is not None, 'the servers to run', 60)
        root = pathlib.Path(note.read_text())
        # gunicorn and a worker or two, postgres and its own, epmd, and the many of RabbitMQ
        assert len(process.left_of(root)) > 8
        session.send_signal(number)
        session.wait(60)
        process.wait_until(lambda: not process.left_of(root) and not root.exists(), 'everything to be gone', 30)
    finally:
        session.kill()
        session.wait()
