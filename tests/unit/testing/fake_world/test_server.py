# SPDX-License-Identifier: Apache-2.0

"""The world of fake hypervisors behind its socket, with its driver and its process."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from migrator import exception, executors
from migrator.objects import protocol
from migrator.testing import driver_contract
from migrator.testing.fake_world import server
from migrator.testing.fake_world.client import FakeWorldClient
from migrator.testing.fake_world.driver import FakeWorldDriver
from migrator.virt import driver
from tests import forked


class RemoteBench(driver_contract.Bench):
    """Two hosts of a world behind a socket, on the real clock, with a small guest."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.threads = executors.NativeThreads()
        self.server = server.WorldServer(path, self.threads, link=100_000.0)
        self.server.start()
        self.client = FakeWorldClient(path)
        self.client.add('alpha')
        self.source = FakeWorldDriver(path, 'alpha', self.threads)
        self.destination = FakeWorldDriver(path, 'beta', self.threads)
        self.instance = driver_contract.an_instance(memory_mb=64)
        self.client.spawn('alpha', self.instance, 100.0)

    def listeners(self) -> int:
        found: int = self.client.look()['hosts']['alpha']['jobs'][self.instance.uuid]['listeners']
        return found

    def slow(self) -> None:
        self.client.ask('set_link', 'alpha', 20.0)

    def lose_source(self) -> None:
        self.client.ask('power_off', 'alpha')

    def return_source(self) -> None:
        self.client.ask('power_on', 'alpha')


@pytest.fixture
def bench(tmp_path: pathlib.Path) -> Iterator[RemoteBench]:
    made = RemoteBench(str(tmp_path / 'world'))
    yield made
    assert made.client.look()['violations'] == []
    made.server.stop()


class TestContract(driver_contract.ColdMigrationContract, driver_contract.EvacuationContract):
    def pause(self, bench: driver_contract.Bench) -> None:
        assert isinstance(bench, RemoteBench)
        bench.client.ask('pause', 'alpha', bench.instance.uuid)


def test_cancelled_token_is_forwarded_during_pre_live_migration(bench):
    bench.client.knob('beta', 'pre_seconds', 60.0)
    token = driver_contract.Token()
    call = bench.in_thread(bench.destination.pre_live_migration, bench.instance, driver.LiveMigrateData(), token)
    time.sleep(0.2)
    assert not call.ended
    token.cancelled = True
    bench.run_until(lambda: call.ended)
    with pytest.raises(exception.Cancelled, match='the step'):
        call.result()


def test_driver_reports_the_downtime_and_throughput_of_a_copy(bench):
    found = []
    bench.source.on_copied = lambda uuid, downtime, rate: found.append((downtime, rate))
    data = bench.destination.pre_live_migration(bench.instance, driver.LiveMigrateData(), driver.NeverCancelled())
    call = bench.in_thread(bench.source.live_migration, bench.instance, 'beta', data, lambda: None)
    bench.run_until(lambda: call.ended)
    ((downtime, rate),) = found
    assert 0 <= downtime < 5
    assert rate > 0


def test_job_outlives_killed_process_and_next_boot_attaches(bench):
    bench.slow()
    data = bench.prepare()
    script = f"""
import sys
from migrator import executors
from migrator.objects import base
from migrator.testing.fake_world.driver import FakeWorldDriver
import json
instance, data = (base.from_primitive(json.loads(text)) for text in sys.argv[1:])
made = FakeWorldDriver({bench.path!r}, 'alpha', executors.NativeThreads())
made.live_migration(instance, 'beta', data, lambda: print('started', flush=True))
"""
    import json

    words = [json.dumps(value.to_primitive()) for value in (bench.instance, data)]
    with forked.Process([sys.executable, '-c', script, *words], stdout=forked.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == 'started\n'
        child.kill()
    restarted = FakeWorldDriver(bench.path, 'alpha', bench.threads)
    assert restarted.get_guest(bench.instance.uuid).job
    call = bench.in_thread(restarted.attach_live_migration, bench.instance.uuid)
    bench.run_until(bench.listeners)
    restarted.live_migration_abort(bench.instance)
    bench.run_until(lambda: call.ended)
    assert call.result() is driver.Verdict.ABORTED


def test_driver_error_keeps_class_text_and_kwargs(bench):
    bench.client.fail('alpha', 'get_guest', reason='the disk is on fire')
    with pytest.raises(exception.DriverError, match='the disk is on fire') as caught:
        bench.source.get_guest(bench.instance.uuid)
    assert caught.value.kwargs['host'] == 'alpha'
    assert bench.at_source().state == protocol.GuestState.RUNNING


def test_unreachable_world_raises_service_unreachable_at_start_and_driver_error_later(bench, tmp_path):
    path = str(tmp_path / 'nowhere')
    with pytest.raises(exception.ServiceUnreachable, match='The world of fake hypervisors'):
        FakeWorldDriver(path, 'alpha', bench.threads)
    source = FakeWorldDriver(bench.path, 'alpha', bench.threads)
    source._path = path
    for call in (
        lambda: source.get_guest('1'),
        lambda: source.live_migration(bench.instance, 'beta', driver.LiveMigrateData(), lambda: None),
        lambda: source.pre_live_migration(bench.instance, driver.LiveMigrateData(), driver.NeverCancelled()),
    ):
        with pytest.raises(exception.DriverError, match='not reachable'):
            call()


def test_driver_of_earlier_world_gets_driver_error(bench):
    bench.source.boot = 'alpha/99'
    with pytest.raises(exception.DriverError, match='was restarted after this driver had connected'):
        bench.source.list_guests()


def test_unknown_call_and_unknown_knob_are_refused(bench):
    with pytest.raises(ValueError, match='unknown call explode'):
        bench.client.ask('explode', 'alpha')
    with pytest.raises(ValueError, match='has no knob colour'):
        bench.client.knob('alpha', 'colour', 'red')


def test_socket_is_accessible_only_to_owner(bench):
    assert pathlib.Path(bench.path).stat().st_mode & 0o077 == 0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command_line = [sys.executable, '-m', 'migrator.testing.fake_world.server', *arguments]
    return forked.run(command_line, timeout=60)


@pytest.mark.parametrize('kind', ['live', 'file', 'long'])
def test_unusable_path_prints_one_line_and_exits_with_2(kind, bench, tmp_path):
    path = {'live': bench.path, 'file': str(tmp_path / 'file'), 'long': str(tmp_path / ('x' * 200))}[kind]
    (tmp_path / 'file').touch()
    done = run('--listen', path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert path in done.stderr


def test_process_replaces_socket_of_dead_process_and_exits_with_0_on_sigterm(tmp_path):
    path = str(tmp_path / 'world')
    command_line = [sys.executable, '-m', 'migrator.testing.fake_world.server', '--listen', path, '--memory', '2048']
    for end in ('kill', 'terminate'):
        with subprocess.Popen(command_line, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert path in child.stdout.readline()
            FakeWorldClient(path).add('alpha')
            getattr(child, end)()
            status = child.wait(timeout=20)
    assert status == 0
    assert not pathlib.Path(path).exists()


def test_option_guest_starts_guest(tmp_path):
    path, uuid = str(tmp_path / 'world'), '6ef5d0b8-0d2b-4d36-9d3a-0d7b0a6c3c11'
    command_line = [sys.executable, '-m', 'migrator.testing.fake_world.server', '--listen', path]
    with forked.Process([*command_line, '--guest', f'alpha={uuid}'], stdout=forked.PIPE, text=True) as child:
        assert child.stdout is not None
        assert path in child.stdout.readline()
        guests = FakeWorldClient(path).look()['hosts']['alpha']['guests']
        child.terminate()
    assert {one: guest['state'] for one, guest in guests.items()} == {uuid: 'running'}
    wrong = forked.run([*command_line, '--guest', 'alpha'])
    assert (wrong.returncode, "'alpha' is not of the form HOST=UUID" in wrong.stderr) == (2, True)
