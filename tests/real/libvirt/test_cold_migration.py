# SPDX-License-Identifier: Apache-2.0

"""Real guests are powered off and started on another host, and stay there or go back."""

from __future__ import annotations

import os
import pathlib

import pytest

pytest.importorskip('libvirt', reason='the module libvirt is not installed')

from migrator.objects import LiveMigrateData
from tests.real.libvirt.bench import LibvirtBench
from tests.real.libvirt.lab import guests, hosts
from tests.real.libvirt.site import Cloud
from tests.real.servers import process


def a_guest(cloud: Cloud, *disks: str) -> guests.Guest:
    """Return a guest of alpha with disks that its host starts when it boots."""
    alpha = cloud.lab.hosts['alpha']
    guest = cloud.lab.start_guest(alpha, 'guest-1', memory_mib=128, work=100, disks=disks)
    alpha.virsh('autostart', guest.uuid)
    return cloud.register(guest, 'alpha')


def autostarts(host: hosts.Host, guest: guests.Guest) -> bool:
    """Return whether a host starts a guest when it boots."""
    return guest.uuid in host.virsh('list', '--all', '--autostart', '--uuid').split()


def test_local_disks_are_copied_and_removed_at_the_source_once_confirmed(
    cloud: Cloud, alpha: hosts.Host, beta: hosts.Host
) -> None:
    cloud.lab.make_disk(alpha, 'base', 64, 8)
    overlay, plain = (
        cloud.lab.make_disk(alpha, 'overlay', 64, backed_by='base'),
        cloud.lab.make_disk(alpha, 'b', 64, 32),
    )
    shared = cloud.lab.make_disk(None, 'shared', 64, 4)
    guest = a_guest(cloud, overlay, plain, shared)
    guest.write(alpha, 3)
    before = {name: alpha.images / f'{name}.qcow2' for name in ('overlay', 'b')}
    migration = cloud.cold_migrate(guest)
    assert migration.status == 'finished', migration.failure
    process.wait_until(lambda: guest.last_tick(beta), 'the guest to count on beta', 60)
    assert alpha.virsh('domstate', guest.uuid).strip() == 'shut off'
    assert not autostarts(alpha, guest)
    assert autostarts(beta, guest)
    for name, path in before.items():
        assert guests.same_image(path, beta.images / f'{name}.qcow2')
    assert guests.marked(beta.images / 'overlay.qcow2', 3)
    assert cloud.decide(migration, 'confirmResize') == 'confirmed'
    cloud.check(guest, 'beta')
    # A host also leaves a marker there, for an evacuation.
    assert [path.name for path in alpha.images.glob('[!.]*')] == ['base.qcow2']
    assert sorted(path.name for path in beta.images.glob('[!.]*')) == ['b.qcow2', 'overlay.qcow2']
    assert not beta.virsh('pool-list', '--all', '--name').split()
    assert pathlib.Path(shared).exists()


def test_reverted_guest_runs_at_its_source_and_nothing_is_left_at_the_destination(
    cloud: Cloud, alpha: hosts.Host, beta: hosts.Host
) -> None:
    local, shared = cloud.lab.make_disk(alpha, 'local', 64, 8), cloud.lab.make_disk(None, 'shared', 64, 4)
    guest = a_guest(cloud, local, shared)
    inode = os.stat(shared).st_ino
    migration = cloud.cold_migrate(guest)
    assert migration.status == 'finished', migration.failure
    process.wait_until(lambda: guest.last_tick(beta), 'the guest to count on beta', 60)
    assert cloud.decide(migration, 'revertResize') == 'reverted'
    cloud.check(guest, 'alpha')
    assert autostarts(alpha, guest)
    assert not list(beta.images.glob('[!.]*'))
    assert (alpha.images / 'local.qcow2').exists()
    assert os.stat(shared).st_ino == inode


def test_source_that_lost_its_power_does_not_start_the_guest_by_itself(
    fresh: hosts.Lab, tmp_path: pathlib.Path
) -> None:
    bench = LibvirtBench(fresh, tmp_path)
    bench.alpha.virsh('autostart', bench.guest.uuid)
    data = bench.source.check_can_migrate_source(bench.instance, LiveMigrateData())
    data = bench.destination.check_can_migrate_destination(
        bench.instance, data.replace(source={**data.source, 'power_on': True})
    )
    bench.source.migrate_disk_and_power_off(bench.instance, data)
    bench.alpha.power_off()
    bench.alpha.power_on()
    bench.source = bench.driver('alpha')
    assert bench.at_source().state == 'shutdown'
    bench.source.revert_migration_at_source(bench.instance, data)
    assert bench.at_source().state == 'running'
    assert autostarts(bench.alpha, bench.guest)
    bench.close()


@pytest.mark.parametrize(('decision', 'kept'), [('confirmed', True), ('reverted', False)])
def test_guest_resized_at_its_host_runs_with_its_size_after_the_decision(
    fresh: hosts.Lab, tmp_path: pathlib.Path, decision: str, kept: bool
) -> None:
    bench = LibvirtBench(fresh, tmp_path)
    old, migration = bench.instance.flavor, '5f2c1c0e-7a53-4b70-9f6e-0c5f6a0d8a11'
    new = old.replace(name='resized', vcpus=2 * old.vcpus, memory_mb=2 * old.memory_mb)

    def running() -> tuple[str, ...]:
        # Without --inactive, so this is what runs and not what is defined.
        shown = bench.alpha.virsh('dominfo', bench.guest.uuid).splitlines()
        return tuple(line.split(':', 1)[1].strip() for line in shown if line.startswith(('State', 'CPU(s)', 'Max mem')))

    before = running()
    data = bench.source.check_can_resize(bench.instance, LiveMigrateData(new_flavor=new))
    bench.source.resize(bench.instance, data.replace(source={**data.source, 'power_on': True}), migration)
    resized = running()
    assert resized == ('running', str(new.vcpus), f'{new.memory_mb * 1024} KiB')
    (bench.source.confirm_resize if kept else bench.source.revert_resize)(bench.instance, migration)
    assert running() == (resized if kept else before)
    assert 'migrator:resize' not in bench.alpha.virsh('dumpxml', '--inactive', bench.guest.uuid)
    bench.close()
