# SPDX-License-Identifier: Apache-2.0

"""A host loses its power, and its guests are evacuated through the services, which are processes."""

from __future__ import annotations

import os
import shutil

from migrator.objects import MigrationStatus
from tests.real.libvirt.lab import guests, hosts
from tests.real.libvirt.site import Cloud


def a_guest(cloud: Cloud, name: str, disk: str, autostart: bool = False) -> guests.Guest:
    """Return a guest of alpha, registered when it is as a user wants it."""
    guest = cloud.lab.start_guest(cloud.lab.hosts['alpha'], name, memory_mib=128, work=100, disks=[disk])
    if autostart:
        cloud.lab.hosts['alpha'].virsh('autostart', guest.uuid)
    return cloud.register(guest, 'alpha')


def described(cloud: Cloud, *those: guests.Guest) -> None:
    """Wait until a conductor has fetched the definitions of guests from alpha."""
    stored = cloud.database.definitions
    cloud.wait(lambda: all(stored.get(guest.uuid, 'alpha') for guest in those), 'the definitions to be fetched')


def test_guests_of_a_dead_host_run_on_the_other_and_the_host_comes_back_without_them(
    cloud: Cloud, alpha: hosts.Host, beta: hosts.Host
) -> None:
    cloud.lab.make_disk(None, 'base', 64, 4)
    cloud.lab.make_disk(None, 'one', 64, 4)
    cloud.lab.make_disk(None, 'two', 64, backed_by='base')
    disks = {name: cloud.lab.shared / f'{name}.qcow2' for name in ('one', 'two')}
    one, two = moved = [a_guest(cloud, name, str(disk), autostart=name == 'one') for name, disk in disks.items()]
    local = a_guest(cloud, 'local', cloud.lab.make_disk(alpha, 'local', 64, 4))
    for guest in (*moved, local):
        guest.write(alpha, 1)
    described(cloud, *moved, local)

    alpha.power_off()
    assert not cloud.site.services['alpha'].running
    cloud.force_down('alpha')
    said = {guest.name: guest.said(alpha) for guest in (*moved, local)}
    kept = {name: shutil.copy(disk, disk.with_suffix('.kept')) for name, disk in disks.items()}
    inodes = {disk: os.stat(disk).st_ino for disk in disks.values()}
    evacuations = [cloud.evacuate(guest) for guest in moved]
    refused = cloud.evacuate(local)

    assert cloud.ended(refused) == 'failed'
    assert f'host beta does not see {hosts.IMAGES}/local.qcow2' in str(cloud.migration(refused).failure)
    assert [cloud.ended(each) for each in evacuations] == ['done', 'done']
    for guest in moved:
        cloud.wait(lambda guest=guest: guest.last_tick(beta), f'{guest.name} to count on beta')
        assert guest.said(beta).count(b'BOOT') == 1
        assert guests.marked(disks[guest.name], 1)
        assert not guests.marked(disks[guest.name], 2)
        assert guests.same_image(kept[guest.name], disks[guest.name])
        guest.write(beta, 2)
    assert set(beta.virsh('list', '--uuid').split()) == {guest.uuid for guest in moved}
    assert beta.virsh('list', '--all', '--autostart', '--uuid').split() == [one.uuid]

    # The host comes back while it is forced down, as an operator has it clean up.
    alpha.power_on()
    assert set(alpha.domains()) == {one.uuid, two.uuid, local.uuid}
    cloud.site.services['alpha'].start()
    for each in evacuations:
        cloud.wait(
            lambda each=each: cloud.migration(each).status == MigrationStatus.COMPLETED, f'{each.uuid} to complete'
        )
    cloud.force_down('alpha', False)
    cloud.wait(lambda: cloud.up('alpha'), 'alpha to be up')
    assert alpha.domains() == [local.uuid]
    assert {disk: os.stat(disk).st_ino for disk in disks.values()} == inodes
    assert all(guests.marked(disk, mib) for disk in disks.values() for mib in (1, 2))
    for guest in moved:
        cloud.check(guest, 'beta')
    # No copy was started at alpha again.
    assert {guest.name: guest.said(alpha) for guest in (*moved, local)} == said
    cloud.site.manage('placement', 'audit')

    # The guest that was refused is where it was, with its disk.
    alpha.virsh('start', local.uuid)
    cloud.check(local, 'alpha')
    assert guests.marked(alpha.images / 'local.qcow2', 1)
