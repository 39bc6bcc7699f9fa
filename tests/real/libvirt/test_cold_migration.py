# SPDX-License-Identifier: Apache-2.0

"""Real guests are powered off and started on another host, and stay there or go back."""

from __future__ import annotations

import os
import pathlib

import pytest

pytest.importorskip('libvirt', reason='the module libvirt is not installed')

from migrator.objects import Flavor, LiveMigrateData
from migrator.virt.libvirt.cold_migration import marks
from tests.real.libvirt.bench import LibvirtBench, instance_of
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


MIGRATION = '5f2c1c0e-7a53-4b70-9f6e-0c5f6a0d8a11'
NOVA = 'http://openstack.org/xmlns/libvirt/nova/1.1'


def definition(host: hosts.Host, guest: guests.Guest) -> str:
    """Return the definition with which a host starts a guest the next time."""
    return host.virsh('dumpxml', '--inactive', guest.uuid)


def size(host: hosts.Host, guest: guests.Guest) -> tuple[str, ...]:
    """Return the state, the processors and the memory of what runs, or of what is defined if nothing does."""
    shown = host.virsh('dominfo', guest.uuid).splitlines()
    return tuple(line.split(':', 1)[1].strip() for line in shown if line.startswith(('State', 'CPU(s)', 'Max mem')))


class Resized:
    """A bench and a guest of nova's with a disk of 1 GiB, which was resized at its host."""

    def __init__(self, lab: hosts.Lab, folder: pathlib.Path) -> None:
        self.bench = LibvirtBench(lab, folder)
        self.host, self.driver = self.bench.alpha, self.bench.source
        self.guest = lab.start_guest(
            self.host, 'guest-2', memory_mib=128, work=100, disks=(lab.make_disk(None, 'root', 1024),)
        )
        self.host.virsh('autostart', self.guest.uuid)
        noted = ('--key', 'nova', '--set', '<instance/>', '--config', '--live')
        self.host.virsh('metadata', self.guest.uuid, NOVA, *noted)
        self.small, self.before = size(self.host, self.guest), definition(self.host, self.guest)
        made = instance_of(self.guest, 'alpha')
        self.instance = made.replace(flavor=made.flavor.replace(root_gb=1))
        large = self.instance.flavor.replace(name='large', vcpus=2, memory_mb=256, root_gb=2)
        data = self.driver.check_can_resize(self.instance, LiveMigrateData(new_flavor=large))
        self.driver.resize(self.instance, data.replace(source={**data.source, 'power_on': True}), MIGRATION)

    def capacity(self) -> int:
        """Return the bytes that the guest's disk has."""
        shown = self.host.virsh('domblkinfo', self.guest.uuid, 'vda').splitlines()
        return int(next(line.split()[1] for line in shown if line.startswith('Capacity')))


LARGE = ('running', '2', f'{256 * 1024} KiB')


@pytest.mark.parametrize(('decision', 'kept'), [('confirmed', True), ('reverted', False)])
def test_guest_resized_at_its_host_has_its_size_and_all_else_after_the_decision(
    fresh: hosts.Lab, tmp_path: pathlib.Path, decision: str, kept: bool
) -> None:
    made = Resized(fresh, tmp_path)
    host, guest = made.host, made.guest
    assert made.small == ('running', '1', f'{128 * 1024} KiB')
    assert size(host, guest) == LARGE
    assert made.capacity() == 2 * 2**30
    held = marks.read(definition(host, guest))
    assert held is not None
    assert '<vcpu placement="static">1</vcpu>' in held.old
    (made.driver.confirm_resize if kept else made.driver.revert_resize)(made.instance, MIGRATION)
    assert size(host, guest) == (LARGE if kept else made.small)
    assert made.capacity() == 2 * 2**30
    after = definition(host, guest)
    assert 'migrator:resize' not in after + host.virsh('dumpxml', guest.uuid)
    assert f'xmlns:nova="{NOVA}"' in after
    assert kept or after == made.before
    assert autostarts(host, guest)
    process.wait_until(lambda: guest.last_tick(host), 'the guest to count', 60)
    made.bench.close()


def test_guest_that_was_saved_after_its_resize_starts_with_its_old_size_once_reverted(
    fresh: hosts.Lab, tmp_path: pathlib.Path
) -> None:
    made = Resized(fresh, tmp_path)
    made.host.virsh('managedsave', made.guest.uuid)
    made.driver.revert_resize(made.instance, MIGRATION)
    assert size(made.host, made.guest) == made.small
    assert definition(made.host, made.guest) == made.before
    made.bench.close()


@pytest.mark.parametrize(('action', 'status'), [('confirmResize', 'confirmed'), ('revertResize', 'reverted')])
def test_resize_whose_compute_is_killed_while_the_guest_shuts_down_goes_on_after_its_restart(
    cloud: Cloud, alpha: hosts.Host, action: str, status: str
) -> None:
    guest = a_guest(cloud, cloud.lab.make_disk(alpha, 'root', 64))
    cloud.database.flavors.create(Flavor(name='large', vcpus=2, memory_mb=256, root_gb=0))
    # The guest ignores the request to shut down, so it runs until the service is killed.
    cloud.set_option('alpha', shutdown_timeout=100)
    cloud.disable('beta')
    small = size(alpha, guest)
    cloud.request('POST', f'/servers/{guest.uuid}/action', resize={'flavorRef': 'large'})
    migration = cloud.migrations(guest)[-1]

    def is_marked() -> bool:
        found = cloud.migration(migration)
        assert found.in_progress, found.failure
        return 'migrator:resize' in definition(alpha, guest)

    cloud.wait(is_marked, 'the guest to be marked', 60)
    cloud.site.services['alpha'].kill()
    assert size(alpha, guest) == small
    cloud.site.configure('alpha')
    cloud.start_compute('alpha')
    cloud.wait(lambda: cloud.migration(migration).status == 'finished', 'the resize to wait for its user')
    assert size(alpha, guest) == LARGE
    assert cloud.decide(migration, action) == status
    kept = status == 'confirmed'
    assert size(alpha, guest) == (LARGE if kept else small)
    assert 'migrator:resize' not in definition(alpha, guest)
    assert cloud.instance(guest).flavor.name == ('large' if kept else 'small')
    cloud.check(guest, 'alpha')
