# SPDX-License-Identifier: Apache-2.0

"""What a service reports to systemd, here a socket of the test."""

import os
import signal
import socket

import pytest

from migrator.runtime import signals
from tests.unit.cmd.processes import configure, running


@pytest.fixture
def listening(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(str(tmp_path / 'notify'))
        opened.settimeout(60)
        yield opened


def until(listening, line):
    """Return what has been sent, up to the message with a line."""
    seen = []
    while not seen or line not in seen[-1].splitlines():
        seen.append(listening.recv(4096).decode())
    return seen


@pytest.mark.slow
def test_service_reports_its_start_its_liveness_a_reload_and_its_stop(tmp_path, listening):
    text = 'transport_url = fake://\n[fake]\nworld = ' + str(tmp_path / 'nowhere')
    environment = {'NOTIFY_SOCKET': str(tmp_path / 'notify'), 'WATCHDOG_USEC': '300000'}
    with running(tmp_path, 'compute', *configure(tmp_path, text, schema=False), **environment) as service:
        waits = until(listening, 'WATCHDOG=1')
        assert waits[0] == 'STATUS=Starting'
        why = 'STATUS=Waits: The hypervisor driver is not reachable'
        if not any(why in one for one in waits):  # two threads report, in any order
            waits += until(listening, why)
        service.signal(signal.SIGHUP)
        service.wait_for('was reloaded')
        service.signal(signal.SIGTERM)
        waits += until(listening, 'STOPPING=1')
        assert not any('READY=1' in one for one in waits)
        assert service.status() == 0
    with running(tmp_path, 'conductor', *configure(tmp_path), **environment) as service:
        until(listening, 'READY=1')
        until(listening, 'WATCHDOG=1')
        service.signal(signal.SIGHUP)
        (reload,) = [one for one in until(listening, 'READY=1') if 'RELOADING=1' in one]
        assert reload.splitlines()[1].startswith('MONOTONIC_USEC=')
        service.signal(signal.SIGTERM)
        until(listening, 'STOPPING=1')
        assert service.status() == 0


def test_abstract_socket_is_one_too(monkeypatch):
    name = f'\0migrator-{os.getpid()}'
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(name)
        opened.settimeout(60)
        monkeypatch.setenv('NOTIFY_SOCKET', '@' + name[1:])
        signals.notify_status('waits for\nthe database')
        assert opened.recv(4096) == b'STATUS=waits for the database'


def test_absent_systemd_changes_nothing(monkeypatch, tmp_path, caplog):
    monkeypatch.delenv('NOTIFY_SOCKET', raising=False)
    signals.notify_systemd('READY=1')
    assert not caplog.records
    monkeypatch.setenv('NOTIFY_SOCKET', str(tmp_path / 'nowhere'))
    signals.notify_systemd('READY=1')
    (record,) = caplog.records
    assert 'Could not notify systemd' in record.getMessage()


@pytest.mark.parametrize(
    ('usec', 'pid', 'seconds'),
    [('', '', None), ('0', '', None), ('soon', '', None), ('30000000', '', 30.0), ('30000000', '1', None)],
)
def test_watchdog_is_for_the_process_that_systemd_names(monkeypatch, usec, pid, seconds):
    monkeypatch.setenv('WATCHDOG_USEC', usec)
    monkeypatch.setenv('WATCHDOG_PID', pid)
    assert signals.watchdog_interval() == seconds
    if seconds:
        monkeypatch.setenv('WATCHDOG_PID', str(os.getpid()))
        assert signals.watchdog_interval() == seconds
