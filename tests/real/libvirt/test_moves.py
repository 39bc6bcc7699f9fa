# SPDX-License-Identifier: Apache-2.0

"""Real guests move through the whole of migrator, with services as processes and hosts of libvirt."""

from __future__ import annotations

import os

from tests.real.libvirt.lab import guests, hosts
from tests.real.libvirt.site import Cloud


def a_guest(cloud: Cloud, name: str = 'guest-1', **settings: object) -> guests.Guest:
    host = cloud.lab.hosts['alpha']
    return cloud.register(cloud.lab.start_guest(host, name, **{'memory_mib': 128, 'work': 100, **settings}), 'alpha')


def test_guests_are_adopted_as_they_are(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    guest = cloud.lab.start_guest(alpha, 'idle', memory_mib=128, work=100)
    alpha.virsh('autostart', guest.uuid)
    before = alpha.virsh('dumpxml', guest.uuid)
    cloud.site.services['alpha'].stop()
    cloud.start_compute('alpha')
    cloud.adopted(guest)
    assert alpha.virsh('dumpxml', guest.uuid) == before
    found = cloud.instance(guest)
    assert (found.name, found.host, found.vm_state) == ('idle', 'alpha', 'active')
    assert (found.flavor.vcpus, found.flavor.memory_mb) == (1, 128)
    cloud.check(guest, 'alpha')
    assert cloud.ended(cloud.live_migrate(guest)) == 'completed'
    guest.survived(alpha, beta)
    cloud.check(guest, 'beta')
    assert guest.uuid in beta.virsh('list', '--all', '--autostart', '--uuid').split()


def test_a_busy_guest_moves_there_and_back(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    guest = a_guest(cloud, rate=40)
    assert cloud.ended(cloud.live_migrate(guest, 'beta')) == 'completed'
    guest.survived(alpha, beta)
    cloud.check(guest, 'beta')
    assert cloud.ended(cloud.live_migrate(guest, 'alpha')) == 'completed'
    guest.survived(beta, alpha)
    cloud.check(guest, 'alpha')


def test_a_guest_whose_user_has_paused_it_moves_and_stays_paused(
    cloud: Cloud, alpha: hosts.Host, beta: hosts.Host
) -> None:
    guest = a_guest(cloud)
    alpha.virsh('suspend', guest.uuid)
    assert cloud.ended(cloud.live_migrate(guest)) == 'completed'
    assert beta.virsh('domstate', guest.uuid).strip() == 'paused'
    beta.virsh('resume', guest.uuid)
    guest.survived(alpha, beta)


def test_a_paused_guest_moves_also_where_post_copy_is_permitted(
    cloud: Cloud, alpha: hosts.Host, beta: hosts.Host
) -> None:
    for name in ('alpha', 'beta'):
        cloud.set_option(name, libvirt__live_migration_permit_post_copy=True)
    guest = a_guest(cloud)
    alpha.virsh('suspend', guest.uuid)
    assert cloud.ended(cloud.live_migrate(guest)) == 'completed'
    beta.virsh('resume', guest.uuid)
    guest.survived(alpha, beta)


def test_a_disk_that_both_hosts_see_is_not_copied(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    cloud.restart_computes(instances_path=cloud.lab.shared)
    disk = cloud.lab.make_disk(None, 'shared', 64, 8)
    guest = a_guest(cloud, disks=[disk])
    inode = os.stat(disk).st_ino
    assert cloud.ended(cloud.live_migrate(guest)) == 'completed'
    guest.survived(alpha, beta)
    cloud.check(guest, 'beta')
    assert os.stat(disk).st_ino == inode
    # A host also leaves a marker there, for an evacuation.
    assert [path.name for path in cloud.lab.shared.glob('[!.]*')] == ['shared.qcow2']
    cloud.restart_computes()


def test_a_local_disk_is_copied_and_then_removed_at_the_source(
    cloud: Cloud, alpha: hosts.Host, beta: hosts.Host, tmp_path: object
) -> None:
    disk = cloud.lab.make_disk(alpha, 'local', 64, 32)
    kept = alpha.images / 'kept.qcow2'
    kept.write_bytes((alpha.images / 'local.qcow2').read_bytes())
    guest = a_guest(cloud, disks=[disk])
    assert cloud.ended(cloud.live_migrate(guest)) == 'completed'
    guest.survived(alpha, beta)
    cloud.check(guest, 'beta')
    assert not (alpha.images / 'local.qcow2').exists()
    beta.destroy(guest.uuid)
    assert guests.same_image(kept, beta.images / 'local.qcow2')


def test_a_local_disk_arrives_whole_without_the_file_that_backs_it(
    cloud: Cloud, alpha: hosts.Host, beta: hosts.Host
) -> None:
    cloud.lab.make_disk(alpha, 'base', 64, 32)
    disk = cloud.lab.make_disk(alpha, 'local', 64, backed_by='base')
    guest = a_guest(cloud, disks=[disk])
    assert cloud.ended(cloud.live_migrate(guest)) == 'completed'
    guest.survived(alpha, beta)
    cloud.check(guest, 'beta')
    assert (alpha.images / 'base.qcow2').exists()
    assert not (beta.images / 'base.qcow2').exists()
    beta.destroy(guest.uuid)
    # nothing was written on it
    assert guests.same_image(alpha.images / 'base.qcow2', beta.images / 'local.qcow2')


def test_a_file_in_the_way_of_a_copy_is_not_overwritten(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    disk = cloud.lab.make_disk(alpha, 'local', 64, 8)
    (beta.images / 'local.qcow2').write_text("another owner's")
    guest = a_guest(cloud, disks=[disk])
    migration = cloud.live_migrate(guest)
    assert cloud.ended(migration) == 'failed'
    assert (beta.images / 'local.qcow2').read_text() == "another owner's"
    guest.unharmed(alpha)
    cloud.check(guest, 'alpha')


def test_a_volume_of_a_pool_that_only_its_host_has_is_not_taken_for_a_shared_one(
    cloud: Cloud, alpha: hosts.Host, beta: hosts.Host
) -> None:
    """Each host has a volume of that name, and they are two."""
    cloud.restart_computes(instances_path=cloud.lab.shared)
    for number, host in enumerate((alpha, beta)):
        cloud.lab.make_disk(host, 'volume', 16, number)
        host.virsh('pool-create-as', 'pool', 'dir', '--target', hosts.IMAGES)
    guest = a_guest(cloud, disks=[cloud.lab.make_disk(None, 'shared', 16), 'pool/volume.qcow2'])
    migration = cloud.live_migrate(guest)
    assert cloud.ended(migration) == 'failed'
    assert 'volume of a storage pool' in str(cloud.migration(migration).failure)
    guest.unharmed(alpha)
    cloud.check(guest, 'alpha')
    for host in (alpha, beta):
        host.virsh('pool-destroy', 'pool')
    cloud.restart_computes()


def test_a_console_is_logged_where_only_its_host_has_a_directory(
    cloud: Cloud, alpha: hosts.Host, beta: hosts.Host
) -> None:
    log = alpha.images / 'instance-1' / 'console.log'
    log.parent.mkdir()
    guest = a_guest(cloud, log=f'{hosts.IMAGES}/instance-1/console.log')
    assert log.read_bytes()
    beta.fault_qemu('no such luck')
    assert cloud.ended(cloud.live_migrate(guest)) == 'failed'
    cloud.check(guest, 'alpha')
    assert not list(beta.images.iterdir())
    beta.fault_qemu(None)
    assert cloud.ended(cloud.live_migrate(guest)) == 'completed'
    guest.survived(alpha, beta)
    cloud.check(guest, 'beta')
    assert (beta.images / 'instance-1' / 'console.log').read_bytes()


def test_an_abort_in_mid_copy_leaves_everything_as_it_was(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    disk = cloud.lab.make_disk(alpha, 'local', 32, 4)
    guest = a_guest(cloud, rate=5, disks=[disk])
    alpha.virsh('autostart', guest.uuid)
    cloud.slow()
    migration = cloud.live_migrate(guest)
    cloud.runs(migration, copied_mib=10)
    # lest a source that loses its power now start a second one
    assert guest.uuid not in alpha.virsh('list', '--all', '--autostart', '--uuid').split()
    cloud.abort(migration)
    assert cloud.ended(migration) == 'cancelled'
    assert guest.uuid in alpha.virsh('list', '--all', '--autostart', '--uuid').split()
    guest.unharmed(alpha)
    cloud.check(guest, 'alpha')
    assert not list(beta.images.iterdir())
    assert (alpha.images / 'local.qcow2').exists()


def test_aborts_in_the_queue_and_before_it(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    first, waiting, early = (a_guest(cloud, f'guest-{number}') for number in (1, 2, 3))
    cloud.slow()
    running = cloud.live_migrate(first)
    cloud.runs(running)
    queued = cloud.live_migrate(waiting)
    cloud.wait(lambda: cloud.migration(queued).status == 'queued', 'the second to wait')
    accepted = cloud.live_migrate(early)
    cloud.abort(accepted)
    cloud.abort(queued)
    assert cloud.ended(queued) == 'cancelled'
    assert cloud.ended(accepted) == 'cancelled'
    cloud.force_complete(running)
    assert cloud.ended(running) == 'completed'
    first.survived(alpha, beta)
    cloud.check(first, 'beta')
    for each in (waiting, early):
        each.unharmed(alpha)
        cloud.check(each, 'alpha')


def test_to_complete_by_force_pauses_for_as_long_as_it_takes(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    guest = a_guest(cloud, rate=40)
    cloud.slow()
    migration = cloud.live_migrate(guest)
    cloud.runs(migration, copied_mib=10)
    before = alpha.said_by_libvirt().count('switched to post-copy')
    cloud.force_complete(migration)
    assert cloud.ended(migration) == 'completed'
    guest.survived(alpha, beta)
    cloud.check(guest, 'beta')
    assert alpha.said_by_libvirt().count('switched to post-copy') == before


def test_to_complete_by_force_goes_on_in_post_copy_where_that_is_permitted(
    cloud: Cloud, alpha: hosts.Host, beta: hosts.Host
) -> None:
    for name in ('alpha', 'beta'):
        cloud.set_option(name, libvirt__live_migration_permit_post_copy=True, libvirt__live_migration_bandwidth=8)
    guest = a_guest(cloud, rate=40, audit=0)
    migration = cloud.live_migrate(guest)
    cloud.runs(migration, copied_mib=10)
    before = alpha.said_by_libvirt().count('switched to post-copy')
    cloud.force_complete(migration)
    assert cloud.ended(migration) == 'completed'
    assert alpha.said_by_libvirt().count('switched to post-copy') == before + 1
    guest.survived(alpha, beta)
    cloud.check(guest, 'beta')


def test_four_at_once_of_which_two_run(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    cloud.set_option('alpha', max_concurrent_live_migrations=2, libvirt__live_migration_bandwidth=20)
    four = [a_guest(cloud, f'guest-{number}', memory_mib=96, work=64, rate=2) for number in range(1, 5)]
    migrations = [cloud.live_migrate(guest) for guest in four]

    def statuses() -> list[str]:
        return sorted(str(cloud.migration(migration).status) for migration in migrations)

    cloud.wait(lambda: statuses() == ['queued', 'queued', 'running', 'running'], 'two to run and two to wait')
    assert {cloud.ended(migration) for migration in migrations} == {'completed'}
    for guest in four:
        guest.survived(alpha, beta)
        cloud.check(guest, 'beta')
