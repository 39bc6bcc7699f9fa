# SPDX-License-Identifier: Apache-2.0

"""The run of a service: its options, its start, its signals, and its end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import types

import pytest
from oslo_config import cfg

from migrator import exception, executors
from migrator.conf import service as service_conf
from migrator.objects import CURRENT_VERSION
from migrator.runtime import process, service, settings, signals
from tests import forked
from tests.unit.cmd.processes import configure, refused, running

# --- errors at the start: one line and a status -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('max_concurrent_live_migrations = many', ['[DEFAULT] max_concurrent_live_migrations', "'many'", '1 or more']),
        ('concurrency_backend = fibers', ['[DEFAULT] concurrency_backend', "'fibers'", 'auto or threading']),
        ('[conductor]\nlease = 0', ['[conductor] lease', "'0'", 'of 1 or more']),
        ('[conductor]\nsweep_interval =', ["[conductor] sweep_interval is ''", 'give a number of 0.1 or more']),
        ('report_interval =', ["[DEFAULT] report_interval is ''", 'give a whole number of 1 or more']),
        ('[api]\nlisten_port =', ["[api] listen_port is ''", '65535 at most.']),
        ('[api]\nlisten_port = 70000', ['[api] listen_port', "'70000'", '65535']),
        ('[database]\nconnection = postgrsql://u:hush@h/d', ['[database] connection', 'postgrsql://***@h/d']),
        ('transport_url = kaninchen://u:hush@h', ['[DEFAULT] transport_url', 'kaninchen://***@h', 'rabbit://']),
        ('[placement]\nauth_type = magic', ['[placement] auth_type', "'magic'"]),
        ('log_file = /proc/nothing/log', ['[DEFAULT] log_file', '/proc/nothing/log']),
    ],
)
def test_wrong_option_is_reported_with_value_and_accepted_values(text, words, tmp_path):
    status, line = refused(tmp_path, 'conductor', *configure(tmp_path, text))
    assert status == 2
    for word in ['migrator-conductor: ', *words]:
        assert word in line
    assert 'hush' not in line


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        (
            '[compute]\nservice_version_cap = 99',
            ['[compute] service_version_cap is 99', f'from 1 to {CURRENT_VERSION}'],
        ),
        (
            '[upgrade_levels]\ncompute = 9.9',
            ["[upgrade_levels] compute is '9.9'", 'give auto, or 1.0.'],
        ),
        ('[upgrade_levels]\nconductor = train', ["[upgrade_levels] conductor is 'train'", 'give auto, or 1.0.']),
    ],
    ids=['cap', 'compute', 'conductor'],
)
@pytest.mark.parametrize('module', ['api', 'compute', 'conductor'])
def test_every_service_refuses_a_version_that_this_release_does_not_have(module, text, words, tmp_path):
    status, line = refused(tmp_path, module, *configure(tmp_path, text, schema=False))
    assert status == 2
    for word in [f'migrator-{module}: ', *words]:
        assert word in line


def test_a_wrong_option_of_the_environment_is_named_too(tmp_path):
    status, line = refused(tmp_path, 'conductor', *configure(tmp_path), OS_CONDUCTOR__LEASE='soon')
    assert status == 2
    assert "Option [conductor] lease is 'soon'" in line


def test_missing_or_malformed_file_is_named(tmp_path):
    status, line = refused(tmp_path, 'conductor', '--config-file', '/nowhere/migrator.conf')
    assert (status, '/nowhere/migrator.conf' in line) == (2, True)
    (tmp_path / 'odd.conf').write_text('what is this\n')
    status, line = refused(tmp_path, 'conductor', '--config-file', str(tmp_path / 'odd.conf'))
    assert (status, 'odd.conf' in line) == (2, True)
    assert f"Option --config-file is '{tmp_path}/odd.conf': " in line


def test_an_unknown_argument_is_status_2(tmp_path):
    with running(tmp_path, 'conductor', '--no-such-thing') as service:
        assert service.status() == 2
        assert '--no-such-thing' in service.text()


def test_wrong_schema_is_reported_with_the_remedy(tmp_path):
    status, line = refused(tmp_path, 'conductor', *configure(tmp_path, schema=False))
    assert (status, "run 'migrator-manage db sync'" in line) == (2, True)
    arguments = configure(tmp_path)
    import sqlite3

    with sqlite3.connect(tmp_path / 'migrator.sqlite') as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    status, line = refused(tmp_path, 'conductor', *arguments)
    assert (status, '9999' in line, 'let that commit finish what is in progress there' in line) == (2, True, True)


# --- signals ---------------------------------------------------------------------------------------------------------


def test_signals_and_wake_ups_arrive_in_order_and_handlers_are_restored():
    before = signal.getsignal(signal.SIGHUP)
    with signals.Signals() as received:
        os.kill(os.getpid(), signal.SIGHUP)
        assert received.next() == signal.SIGHUP
        threading.Thread(target=received.wake).start()
        assert received.next() == signals.Signals.WAKE
        os.kill(os.getpid(), signal.SIGTERM)
        assert received.next() in signals.Signals.STOP
    assert signal.getsignal(signal.SIGHUP) is before
    received.wake()


def test_second_sigterm_ends_a_hanging_stop(tmp_path):
    script = tmp_path / 'slow.py'
    script.write_text("""
import sys, threading
from migrator.runtime import service
def begin(process):
    process.on_stop(threading.Event().wait)
sys.exit(service.main(service.Kind('migrator-slow', lambda conf: None, begin), []))
""")
    with forked.Process([sys.executable, str(script)], stdout=forked.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if 'Started service' in line or 'Stopping service' in line:
                child.terminate()
        assert child.wait(timeout=30) == 128 + signal.SIGTERM


def test_start_under_way_ends_before_its_parts_stop(tmp_path):
    """A compute service once lost its broker during a call, and reported that the conductor had failed."""
    script = tmp_path / 'asking.py'
    script.write_text("""
import sys, time
from migrator.runtime import service
def begin(process):
    process.on_stop(lambda: print('hung up', flush=True))
    print('asks', flush=True)
    process.stopping.wait()
    time.sleep(0.5)
    print('was answered', flush=True)
    process.on_stop(lambda: print('served no more', flush=True))
sys.exit(service.main(service.Kind('migrator-asking', lambda conf: None, begin), []))
""")
    with forked.Process([sys.executable, str(script)], stdout=forked.PIPE, text=True) as child:
        assert child.stdout is not None
        said = []
        for line in child.stdout:
            if ' INFO ' not in line:
                said.append(line.strip())
            if line.strip() == 'asks':
                child.terminate()
        assert (child.wait(timeout=30), said) == (0, ['asks', 'was answered', 'served no more', 'hung up'])


@pytest.mark.parametrize(
    ('module', 'text', 'status'),
    [
        ('compute', '[compute]\nstop_running = wait\nstop_timeout = 90', 0),
        ('compute', '[compute]\nstop_running = leave\nstop_timeout = 90', 1),
        ('api', '[api]\nshutdown_timeout = 90', 0),
        ('api', '[api]\nshutdown_timeout = 0', 1),
        ('conductor', '', 1),
    ],
)
def test_stop_may_take_the_configured_wait_and_a_margin(module, text, status, tmp_path):
    """A compute service with a stop_timeout of 90 s was once ended after 60 s."""
    script = tmp_path / 'waiting.py'
    script.write_text("""
import dataclasses, importlib, sys, threading
from migrator.runtime import service
service.STOP_TIMEOUT = 0.1
def begin(process):
    process.on_stop(lambda: threading.Event().wait(1))
kind = importlib.import_module(f'migrator.cmd.{sys.argv[1]}').KIND
sys.exit(service.main(dataclasses.replace(kind, begin=begin), sys.argv[2:]))
""")
    clean = {key: value for key, value in os.environ.items() if not key.startswith('OS_')}
    with forked.Process(
        [sys.executable, str(script), module, *configure(tmp_path, text, schema=False)],
        stdout=forked.PIPE, stderr=forked.STDOUT, text=True, env=clean,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        said = []
        for line in child.stdout:
            said.append(line)
            if 'Started service' in line:
                child.terminate()
        assert child.wait(timeout=30) == status, ''.join(said)
    assert ['not all of it stopped' in line for line in said].count(True) == status


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_unreachable_service_is_waited_for_and_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(process, 'AGAIN', 0.01)
    made = process.Process('migrator-test', cfg.ConfigOpts(), executors.NativeThreads())
    tries = []

    def attempt() -> str:
        tries.append(1)
        if len(tries) < 5:
            raise exception.DatabaseUnreachable(reason='it sleeps')
        return 'here'

    with caplog.at_level(logging.INFO):
        assert made.wait_for('The database', attempt) == 'here'
    assert [record.levelname for record in caplog.records] == ['WARNING', 'INFO']
    assert 'Service waits: migrator-test: The database is not reachable: it sleeps' in caplog.text


@pytest.mark.parametrize('error', [SystemExit('no hypervisor here'), KeyboardInterrupt(), GeneratorExit()])
def test_start_that_raises_a_base_exception_fails_with_status_1(error, caplog):
    def begin(_process):
        raise error

    received = signals.Signals()
    kind = types.SimpleNamespace(name='migrator-compute', begin=begin)
    with received:
        run = service._Run(kind, [], settings.read(kind.name, []), received)
        run._begin()
        assert (run._failed, run._begun.is_set()) == (service.WRONG, True)
        assert received.next() == signals.Signals.WAKE
    assert 'Could not start service migrator-compute' in caplog.text


def test_stop_ends_a_wait_and_an_error_does_not_prevent_other_stops(caplog):
    made = process.Process('migrator-test', cfg.ConfigOpts(), executors.NativeThreads())
    stopped = []
    made.on_stop(lambda: stopped.append('first made, last stopped'))
    made.on_stop(lambda: 1 / 0)

    def attempt() -> None:
        threading.Timer(0.05, made.stop).start()
        raise exception.DatabaseUnreachable(reason='it sleeps')

    with pytest.raises(process.Stopping):
        made.wait_for('The database', attempt)
    while not stopped:
        made.stopping.wait(0.01)
    assert 'Error while stopping' in caplog.text


# --- options ---------------------------------------------------------------------------------------------------------


def test_help_of_every_option_has_type_and_default():
    for _section, options in service_conf.list_opts():
        for option in options:
            assert 'default' in option.help, option.name
            assert len(option.help) > 100, option.name
