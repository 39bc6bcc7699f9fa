# SPDX-License-Identifier: Apache-2.0

"""What the libvirt driver does besides the contract: when daemons hang, and when a process ends."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

libvirt = pytest.importorskip('libvirt', reason='the module libvirt is not installed')

from migrator import exception, executors  # noqa: E402 -- what is tested needs libvirt
from migrator.objects import base  # noqa: E402 -- as above
from migrator.virt.libvirt.driver import LibvirtDriver  # noqa: E402 -- as above
from tests.real.libvirt import killed_driver  # noqa: E402 -- as above
from tests.real.libvirt.bench import LibvirtBench  # noqa: E402 -- as above
from tests.real.libvirt.lab import hosts  # noqa: E402 -- as above

TREE = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def bench(fresh: hosts.Lab, tmp_path: pathlib.Path) -> Iterator[LibvirtBench]:
    made = LibvirtBench(fresh, tmp_path)
    yield made
    made.close()


def another_boot(bench: LibvirtBench, patched: bool = False) -> subprocess.Popen[str]:
    """Start a process that moves the guest; the destination is ready."""
    conf = bench.confs['alpha']
    settings = {
        'patched': patched,
        'default': {'host': 'alpha', 'state_path': conf.state_path},
        'libvirt': {
            name: conf.libvirt[name] for name in ('connection_uri', 'live_migration_uri', 'live_migration_bandwidth')
        },
        'instance': base.to_primitive(bench.instance),
        'migrate_data': base.to_primitive(bench.prepare()),
    }
    command = [sys.executable, '-W', 'ignore', killed_driver.__file__, json.dumps(settings)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={'PYTHONPATH': str(TREE)})


def test_hanging_daemon_is_reported_in_time_and_recovers(bench: LibvirtBench) -> None:
    driver = LibvirtDriver(bench.confs['alpha'], executors.NativeThreads(), deadline=1.0)
    driver.init_host('alpha')
    bench.alpha.stop_daemon()
    began = time.monotonic()
    with pytest.raises(exception.ServiceUnreachable, match='has not answered get_guest within 1 s'):
        driver.get_guest(bench.instance.uuid)
    with pytest.raises(exception.ServiceUnreachable, match='has not answered live_migration_abort'):
        driver.live_migration_abort(bench.instance)
    assert time.monotonic() - began < 10, 'a deadline is a second'
    assert bench.at_destination().state == 'absent'
    bench.alpha.continue_daemon()
    bench.run_until(lambda: bench.at_source().state == 'running')
    driver.connection.deadline = 20
    assert driver.get_guest(bench.instance.uuid).state == 'running'
    driver.connection.close()


def test_stopped_daemon_is_reported_and_reconnected(bench: LibvirtBench) -> None:
    bench.alpha.kill_daemon(comes_back=False)
    with pytest.raises(exception.ServiceUnreachable, match='libvirt of alpha'):
        bench.source.get_guest(bench.instance.uuid)
    with pytest.raises(exception.ServiceUnreachable, match='libvirt of alpha'):
        bench.source.attach_live_migration(bench.instance.uuid)
    bench.alpha.start_daemon()
    assert bench.at_source().state == 'running'


def test_a_move_whose_daemon_is_killed_has_no_verdict_before_it_is_asked_again(bench: LibvirtBench) -> None:
    bench.slow()
    call = bench.move(bench.prepare())
    bench.run_until(lambda: call.started)
    bench.alpha.kill_daemon(comes_back=False)
    bench.run_until(lambda: call.ended)
    assert isinstance(call.error, exception.ServiceUnreachable)
    bench.alpha.start_daemon()
    bench.run_until(lambda: not bench.at_source().job)
    assert bench.at_source().state == 'running'
    assert bench.source.attach_live_migration(bench.instance.uuid) is None


def test_a_check_file_that_was_left_behind_is_not_taken_for_a_new_one(bench: LibvirtBench) -> None:
    left = bench.destination.check_can_live_migrate_destination(bench.instance, None, False).destination['check_file']
    data = bench.destination.check_can_live_migrate_destination(bench.instance, True, False)
    # Both drivers are in one process here, and see the same; what a source that shares nothing may have is an old one.
    pathlib.Path(data.destination['check_file']).unlink()
    # Were it taken for the new one, block migration would be refused.
    assert bench.source.check_can_live_migrate_source(bench.instance, data).block_migration is False
    bench.destination.cleanup_live_migration_destination_check(bench.instance)
    assert list(pathlib.Path(left).parent.iterdir()) == []


def test_records_of_an_earlier_way_in_or_out_do_not_change_what_is_said(bench: LibvirtBench) -> None:
    """As where a post step never ran, for its host was away, and the guest has come back since."""
    driver = bench.source
    assert isinstance(driver, LibvirtDriver)
    driver._records.write('incoming', bench.instance.uuid, {'files': {}, 'directories': []})
    assert bench.at_source().state == 'running'
    bench.slow()
    call = bench.move(bench.prepare())
    bench.run_until(lambda: call.started)
    bench.alpha.virsh('suspend', bench.instance.uuid)
    assert bench.at_source().state == 'paused for cut-over'
    bench.alpha.kill_daemon(comes_back=False)
    bench.run_until(lambda: call.ended)
    bench.alpha.start_daemon()
    bench.run_until(lambda: not bench.at_source().job)
    # Libvirt resumes what it had paused, and not what was paused for it.
    assert bench.at_source().state in ('running', 'paused for cut-over')
    bench.source.rollback_live_migration_at_source(bench.instance, None)
    assert bench.at_source().state == 'running'


@pytest.mark.parametrize('seconds', [0.0, 0.01, 0.05, 0.3])
def test_request_of_a_killed_process_is_a_job_by_its_restart_or_never(bench: LibvirtBench, seconds: float) -> None:
    bench.slow()
    process = another_boot(bench)
    assert process.stdout is not None
    assert process.stdout.readline() == 'calls\n'
    time.sleep(seconds)
    process.kill()
    process.wait()
    settled = bench.source.settle(bench.instance.uuid)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        assert bench.at_source().job == settled.job
        time.sleep(0.05)
    if settled.job:
        bench.source.live_migration_abort(bench.instance)
        bench.run_until(lambda: not bench.at_source().job)
    bench.source.rollback_live_migration_at_source(bench.instance, None)
    assert bench.at_source().state == 'running'
    bench.destination.rollback_live_migration_at_destination(bench.instance, None)
    assert not bench.at_destination().present


def test_a_later_boot_aborts_what_an_earlier_one_has_begun(bench: LibvirtBench) -> None:
    bench.slow()
    process = another_boot(bench)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ['calls\n', 'started\n']
    process.kill()
    process.wait()
    call = bench.in_thread(bench.source.attach_live_migration, bench.instance.uuid)
    # until it waits for the job's end it may miss that, and who aborted it
    bench.run_until(lambda: bench.instance.uuid in bench.source.connection.waker._waiting)
    bench.source.live_migration_abort(bench.instance)
    bench.run_until(lambda: call.ended)
    assert call.result() == 'aborted'
    assert bench.at_source().state == 'running'


def test_in_a_process_that_eventlet_has_patched_other_green_threads_go_on(bench: LibvirtBench) -> None:
    pytest.importorskip('eventlet')
    bench.confs['alpha'].set_override('live_migration_bandwidth', 30, group='libvirt')
    process = another_boot(bench, patched=True)
    said, _ = process.communicate(timeout=100)
    lines = said.splitlines()
    assert lines[:2] == ['calls', 'started']
    verdict, ticks, seconds, state = lines[2].split()
    assert (verdict, state) == ('completed', 'absent')
    # twenty a second, if nothing held them up; a call that blocked the hub would have left next to none
    assert int(ticks) > float(seconds) * 5
    bench.guest.survived(bench.alpha, bench.beta)


@pytest.mark.parametrize(
    ('option', 'value', 'flag'),
    [
        ('live_migration_parallel_connections', 2, libvirt.VIR_MIGRATE_PARALLEL),
        ('live_migration_permit_auto_converge', True, libvirt.VIR_MIGRATE_AUTO_CONVERGE),
        ('live_migration_permit_post_copy', True, libvirt.VIR_MIGRATE_POSTCOPY),
    ],
)
def test_migration_uses_the_enabled_features(bench: LibvirtBench, option: str, value: object, flag: int) -> None:
    for conf in bench.confs.values():
        conf.set_override(option, value, group='libvirt')
    call = bench.move(bench.prepare())
    bench.run_until(lambda: call.ended)
    assert call.result() == 'completed'
    begun = re.findall(r'qemuMigrationSrcBeginPhase.*flags=0x([0-9a-f]+)', bench.alpha.said_by_libvirt())
    assert int(begun[-1], 16) & flag
    bench.guest.survived(bench.alpha, bench.beta)


def test_completed_move_is_reported_with_its_downtime_and_rate(bench: LibvirtBench) -> None:
    found: list[tuple[float | None, float | None]] = []
    bench.source.on_copied = lambda uuid, downtime, rate: found.append((downtime, rate))
    call = bench.move(bench.prepare())
    bench.run_until(lambda: call.ended and found)
    assert call.result() == 'completed'
    ((downtime, rate),) = found
    assert downtime is not None
    assert rate is not None
    assert 0 < downtime < 10
    assert rate > 1e6
    bench.guest.survived(bench.alpha, bench.beta)


def test_disk_that_would_not_move_along_is_refused_by_plan_and_check(bench: LibvirtBench) -> None:
    connection = libvirt.open(bench.alpha.uri)
    domain = connection.lookupByUUIDString(bench.instance.uuid)
    disk = "<disk type='file' device='disk'><source file='/of/later'/><target dev='vdx' bus='virtio'/></disk>"
    domain.attachDeviceFlags(disk, libvirt.VIR_DOMAIN_AFFECT_CONFIG)
    definition = bench.source.get_definition(bench.instance.uuid)
    assert definition is not None
    assert definition['immovable'].startswith('it has disk vdx (/of/later) in its configuration and not in use')
    with pytest.raises(exception.MigrationPreCheckError, match='has disk vdx'):
        bench.prepare()
    domain.detachDeviceFlags(disk, libvirt.VIR_DOMAIN_AFFECT_CONFIG)
    assert bench.prepare()
    connection.close()
