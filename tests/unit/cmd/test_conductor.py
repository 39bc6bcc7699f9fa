# SPDX-License-Identifier: Apache-2.0


import signal
import socket
import types

import pytest
import requests
from prometheus_client import parser

from migrator import exception, executors, rpc
from migrator.cmd import conductor
from migrator.db.api import Database
from migrator.runtime import process, settings
from tests.unit.cmd.processes import PATIENCE, configure, eventually, refused, running

pytestmark = pytest.mark.slow


def test_conductor_starts_without_placement_logs_it_once_and_exits_0_on_sigterm(tmp_path):
    with socket.create_server(('127.0.0.1', 0)) as away:
        away.settimeout(PATIENCE)
        text = f'[placement]\nendpoint_override = http://127.0.0.1:{away.getsockname()[1]}'
        with running(tmp_path, 'conductor', *configure(tmp_path, text)) as service:
            service.wait_for('Started service')
            for _ in range(3):
                # The second attempt has failed before the third one.
                attempt, _address = away.accept()
                attempt.close()
                service.wait_for('Placement is not reachable')
            service.signal(signal.SIGTERM)
            assert service.status() == 0
            assert service.text().count('Placement is not reachable') == 1
            assert 'Stopped service' in service.text()
            assert 'Traceback' not in service.text()
            assert 'The metrics are at' not in service.text(), 'without a port'


def test_sighup_applies_mutable_options_unless_the_file_is_wrong(tmp_path):
    arguments = configure(tmp_path, '[conductor]\nsweep_interval = 5')
    with running(tmp_path, 'conductor', *arguments, fresh=True) as service:
        service.wait_for('Started service')
        configure(tmp_path, '[conductor]\nsweep_interval = 7', schema=False)
        service.signal(signal.SIGHUP)
        assert '[conductor] sweep_interval = 7' in service.wait_for('was reloaded')
        configure(tmp_path, '[conductor]\nsweep_interval = never', schema=False)
        service.signal(signal.SIGHUP)
        line = service.wait_for('was not reloaded')
        assert "[conductor] sweep_interval is 'never'" in line
        service.signal(signal.SIGINT)
        assert service.status() == 0
        assert 'Traceback' not in service.text()


def test_stop_while_waiting_for_the_broker_exits_0(tmp_path):
    arguments = configure(tmp_path, 'transport_url = rabbit://guest:hush@127.0.0.1:1/')
    with running(tmp_path, 'conductor', *arguments) as service:
        service.wait_for('The message broker is not reachable')
        service.signal(signal.SIGTERM)
        assert service.status() == 0
        assert 'hush' not in service.text()
        assert 'Started service' not in service.text()


def test_failed_start_gives_up_the_lease(tmp_path, monkeypatch):
    conf = settings.read('migrator-conductor', configure(tmp_path))
    settings.complete(conf, [conductor.register])
    starting = process.Process('migrator-conductor', conf, executors.NativeThreads())

    def breaks_off(manager):
        manager.begin_boot()
        starting.stopping.set()
        raise exception.ServiceUnreachable(service='The message broker', reason='planted')

    monkeypatch.setattr('migrator.conductor.manager.ConductorManager.start', breaks_off)
    with pytest.raises(process.Stopping):
        conductor.begin(starting)
    starting.stop()
    database = Database(conf.database.connection, executors.NativeThreads())
    (boot,) = database.conductors.list()
    assert boot.lease_until <= database.services.now()
    database.close()


@pytest.mark.parametrize('backend', ['threading', 'eventlet'])
def test_metrics_are_served_on_the_configured_port(tmp_path, backend):
    if backend == 'eventlet':
        pytest.importorskip('eventlet')
    text = f'concurrency_backend = {backend}\n[conductor]\naudit_interval = 3600\nmetrics_port = 0'
    # a fork has chosen native threads already
    with running(tmp_path, 'conductor', *configure(tmp_path, text), fresh=backend == 'eventlet') as service:
        url = service.wait_for('The metrics are at').split()[-1]
        assert url.startswith('http://127.0.0.1:')
        service.wait_for('Started service')
        answer = requests.get(url, timeout=30)
        assert answer.status_code == 200
        assert answer.headers['Content-Type'].startswith('text/plain; version=0.0.4')
        reported = {family.name for family in parser.text_string_to_metric_families(answer.text)}
        assert {'migrator_migrations_held', 'migrator_placement_findings', 'migrator_placement_audits'} <= reported
        (counted,) = [
            one for one in answer.text.splitlines() if one.startswith('migrator_database_statement_seconds_count')
        ]
        assert float(counted.split()[1]) > 0
        probed = requests.head(url, timeout=30)
        assert (probed.status_code, probed.text) == (200, '')
        assert probed.headers['Content-Type'] == answer.headers['Content-Type']
        assert requests.get(url.removesuffix('/metrics'), timeout=30).status_code == 404
        health = url.removesuffix('metrics') + 'healthcheck'
        ready = eventually(lambda: requests.get(health, timeout=30).json(), lambda found: found['ready'])
        assert {what: one['result'] for what, one in ready['checks'].items()} == {
            'database': 'ok',
            'Placement': 'away',
            'lease': 'ok',
        }
        service.signal(signal.SIGTERM)
        assert service.status() == 0
        assert 'Traceback' not in service.text()


def test_conductor_that_waits_for_the_broker_is_live_and_says_so(tmp_path):
    text = 'transport_url = rabbit://guest:hush@127.0.0.1:1/\n[conductor]\nmetrics_port = 0'
    with running(tmp_path, 'conductor', *configure(tmp_path, text)) as service:
        health = service.wait_for('The metrics are at').split()[-1].removesuffix('metrics') + 'healthcheck'
        service.wait_for('The message broker is not reachable')
        assert requests.get(f'{health}/live', timeout=30).status_code == 200

        def result(found):
            return found['checks'].get('message broker', {}).get('result')

        body = eventually(lambda: requests.get(health, timeout=30).json(), lambda found: result(found) == 'away')
        assert (body['started'], body['ready'], body['checks']['database']['result']) == (False, False, 'ok')
        assert requests.get(health, timeout=30).status_code == 503
        service.signal(signal.SIGTERM)
        assert service.status() == 0


def test_a_port_for_the_metrics_that_is_in_use_is_one_line_with_option_and_address_and_status_2(tmp_path):
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, line = refused(tmp_path, 'conductor', *configure(tmp_path, f'[conductor]\nmetrics_port = {port}'))
    assert status == 2
    assert f'Option [conductor] metrics_port is {port}: something else listens there, at 127.0.0.1' in line


def test_metrics_address_of_another_machine_is_refused(tmp_path):
    elsewhere = '[conductor]\nmetrics_host = 192.0.2.1\nmetrics_port = 0'
    status, line = refused(tmp_path, 'conductor', *configure(tmp_path, elsewhere))
    assert (status, "[conductor] metrics_host is '192.0.2.1'" in line) == (2, True)


def test_two_computes_with_one_name_are_reported_and_a_late_boot_is_not():
    boots = conductor.Boots()
    assert [boots.began('h', boot) for boot in 'aabbab'] == [False, False, False, False, False, True]
    assert not boots.began('h', 'a')
    assert not any(boots.began('other', boot) for boot in ('a', 'b', 'a'))


def test_report_of_two_computes_does_not_keep_a_conductor_from_serving_them(caplog):
    class Manager:
        @rpc.expose
        def compute_started(self, context, report):
            return [report.boot_id]

    manager = Manager()
    conductor.watch_boots(manager)
    register = rpc.handler(manager, rpc.Target('conductor', 'here'), 'compute_started')
    reports = [types.SimpleNamespace(host='twin', boot_id=boot) for boot in 'abab']
    assert [register(None, report=report) for report in reports] == [['a'], ['b'], ['a'], ['b']]
    assert [record.getMessage() for record in caplog.records if 'have the name twin' in record.getMessage()]
