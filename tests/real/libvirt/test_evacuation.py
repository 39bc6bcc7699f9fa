# SPDX-License-Identifier: Apache-2.0

"""A host loses its power, and the libvirt driver of another host starts its guests with their disks."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Iterator

import pytest

pytest.importorskip('libvirt', reason='the module libvirt is not installed')

from migrator import exception
from migrator.objects import Instance, LiveMigrateData
from migrator.virt.libvirt import identity
from tests.real.libvirt.bench import LibvirtBench, instance_of
from tests.real.libvirt.lab import guests, hosts
from tests.real.servers import process


@pytest.fixture
def bench(fresh: hosts.Lab, tmp_path: pathlib.Path) -> Iterator[LibvirtBench]:
    made = LibvirtBench(fresh, tmp_path)
    for conf in made.confs.values():
        conf.set_override('instances_path', str(fresh.shared))
    yield made
    made.close()


def a_guest(bench: LibvirtBench, *disks: str, **settings: object) -> tuple[guests.Guest, Instance]:
    """Return a guest of alpha that has disks, and its instance."""
    settings = {'memory_mib': 128, 'work': 100, 'disks': disks, **settings}
    guest = bench.lab.start_guest(bench.alpha, f'guest-{len(bench.alpha.domains()) + 1}', **settings)
    return guest, instance_of(guest, 'alpha')


def described(bench: LibvirtBench, instance: Instance) -> LiveMigrateData:
    """Return what alpha reports of a guest, as it comes out of the database."""
    return LiveMigrateData(source=json.loads(json.dumps(bench.source.get_definition(instance.uuid))))


def states(bench: LibvirtBench, guest: guests.Guest) -> list[str]:
    """Return the state of a guest on each of the two hosts."""
    drivers = (bench.source, bench.destination)
    return [each.get_guest(guest.uuid).state for each in drivers]


def begins(bench: LibvirtBench, guest: guests.Guest) -> None:
    """Wait until a guest counts on beta, which it began there."""
    process.wait_until(lambda: guest.last_tick(bench.beta), f'{guest.name} to count on beta', 60)


def test_guests_of_a_dead_host_come_back_as_they_were_and_the_host_loses_them(bench: LibvirtBench) -> None:
    lab, alpha, beta = bench.lab, bench.alpha, bench.beta
    lab.make_disk(None, 'base', 64, 8)
    disks = {'runs': lab.make_disk(None, 'runs', 64, backed_by='base')}
    disks |= {name: lab.make_disk(None, name, 64, 4) for name in ('pauses', 'stopped')}
    made = {name: a_guest(bench, disk) for name, disk in disks.items()}
    alpha.virsh('autostart', made['runs'][0].uuid)
    alpha.virsh('suspend', made['pauses'][0].uuid)
    alpha.destroy(made['stopped'][0].uuid)
    instances = {name: instance for name, (_guest, instance) in made.items()}
    instances['pauses'] = instances['pauses'].replace(power_state=3)
    instances['stopped'] = instances['stopped'].replace(vm_state='stopped')
    data = {name: described(bench, instance) for name, instance in instances.items()}
    written = {disk: pathlib.Path(disk).read_bytes() for disk in disks.values()}

    alpha.power_off()
    for name, instance in instances.items():
        data[name] = bench.destination.check_can_evacuate(instance, data[name])
        assert data[name].is_shared_storage
        for _ in range(2):
            bench.destination.evacuate(instance, data[name])
    begins(bench, made['runs'][0])
    found = {name: bench.destination.get_guest(instance.uuid).state for name, instance in instances.items()}
    assert found == {'runs': 'running', 'pauses': 'paused', 'stopped': 'shutdown'}
    persistent = beta.virsh('list', '--all', '--persistent', '--uuid').split()
    assert set(persistent) == {guest.uuid for guest, _instance in made.values()}
    assert beta.virsh('list', '--all', '--autostart', '--uuid').split() == [made['runs'][0].uuid]

    inodes = {disk: os.stat(disk).st_ino for disk in written}
    alpha.power_on()
    for name, instance in instances.items():
        for _ in range(2):
            bench.source.post_evacuation_at_source(instance, data[name])
    # The guest that bench made is no part of this.
    assert alpha.domains() == [bench.guest.uuid]
    beta.remove_guests()
    # The program of a guest writes to no disk. So each disk is what it was, byte for byte.
    assert {disk: pathlib.Path(disk).read_bytes() for disk in written} == written
    assert {disk: os.stat(disk).st_ino for disk in written} == inodes


def test_guest_whose_host_still_runs_it_is_refused_and_started_nowhere(bench: LibvirtBench) -> None:
    guest, instance = a_guest(bench, bench.lab.make_disk(None, 'shared', 64, 4))
    data = described(bench, instance)
    with pytest.raises(exception.MigrationPreCheckError, match='Failed to get shared "write" lock'):
        bench.destination.check_can_evacuate(instance, data)
    with pytest.raises(exception.MigrationPreCheckError, match='Failed to get shared "write" lock'):
        bench.destination.evacuate(instance, data)
    bench.destination.rollback_evacuation_at_destination(instance, data)
    assert states(bench, guest) == ['running', 'absent']
    guest.unharmed(bench.alpha)


def test_active_copy_of_a_host_that_was_never_dead_is_ended(bench: LibvirtBench) -> None:
    """A guest without a disk has no lock, so it can run twice if forced_down was set without reason."""
    guest, instance = a_guest(bench)
    data = bench.destination.check_can_evacuate(instance, described(bench, instance))
    bench.destination.evacuate(instance, data)
    begins(bench, guest)
    assert states(bench, guest) == ['running', 'running']
    with pytest.raises(exception.GuestStillHere):
        bench.destination.rollback_evacuation_at_destination(instance, data)
    for _ in range(2):
        bench.source.post_evacuation_at_source(instance, data)
        assert states(bench, guest) == ['absent', 'running']
    assert guest.uuid not in bench.alpha.domains()


def test_disk_of_the_dead_host_alone_is_refused_and_so_is_a_stale_copy_of_it(bench: LibvirtBench) -> None:
    guest, instance = a_guest(bench, bench.lab.make_disk(bench.alpha, 'local', 64, 4))
    # Both drivers are in one process, and see alpha's image where alpha sees it.
    image, path = bench.alpha.images / 'local.qcow2', pathlib.Path(hosts.IMAGES, 'local.qcow2')
    assert not path.exists()
    data = described(bench, instance)
    assert 'error' in data.source['files'][str(path)]
    definition = data.source['xml'].replace(str(path), str(image))
    marker = identity.identify(str(image), str(bench.lab.shared), lambda: 'one')
    data = LiveMigrateData(source={**data.source, 'xml': definition, 'files': {str(image): marker}})
    bench.alpha.power_off()
    bench.destination.check_can_evacuate(instance, data)
    # What beta has under this path is a file system of its own, with a stale copy.
    stale = image.read_bytes()
    bench.alpha.images.rename(bench.alpha.images.with_name('of-alpha'))
    bench.alpha.images.mkdir()
    with pytest.raises(exception.MigrationPreCheckError, match='host beta does not see'):
        bench.destination.check_can_evacuate(instance, data)
    image.write_bytes(stale)
    with pytest.raises(exception.MigrationPreCheckError, match='cannot be shown to be the same at alpha and beta'):
        bench.destination.check_can_evacuate(instance, data)
    image.unlink()
    bench.alpha.images.rmdir()
    bench.alpha.images.with_name('of-alpha').rename(bench.alpha.images)
    assert bench.destination.get_guest(guest.uuid).state == 'absent'


def test_password_of_a_console_is_not_reported_and_its_guest_is_refused(bench: LibvirtBench) -> None:
    guest = guests.Guest(bench.lab, 'console')
    graphics = "<graphics type='vnc' autoport='yes' passwd='hidden'/></devices>"
    bench.alpha.virsh('define', '/dev/stdin', given=guest.xml.replace('</devices>', graphics))
    instance = instance_of(guest, 'alpha').replace(vm_state='stopped')
    data = described(bench, instance)
    assert "type='vnc'" in data.source['xml']
    assert 'hidden' not in json.dumps(data.source)
    with pytest.raises(exception.MigrationPreCheckError, match='has a password'):
        bench.destination.check_can_evacuate(instance, data)


def test_start_that_qemu_refuses_leaves_nothing_and_a_later_one_succeeds(bench: LibvirtBench) -> None:
    guest, instance = a_guest(bench, bench.lab.make_disk(None, 'shared', 64, 4))
    data = described(bench, instance)
    bench.alpha.power_off()
    bench.beta.fault_qemu('no such luck')
    with pytest.raises(exception.DriverError, match='no such luck'):
        bench.destination.evacuate(instance, data)
    bench.destination.rollback_evacuation_at_destination(instance, data)
    assert bench.beta.domains() == []
    assert bench.destination.get_guest(guest.uuid).state == 'absent'
    assert (bench.lab.shared / 'shared.qcow2').exists()
    bench.beta.fault_qemu(None)
    bench.destination.evacuate(instance, data)
    begins(bench, guest)


@pytest.mark.parametrize(
    ('old', 'new', 'match'),
    [
        ("machine='pc-", "machine='pc-no-", 'refuses the definition .* machine type'),
        ('</devices>', "<interface type='network'><source network='none'/></interface></devices>", 'network none'),
        (
            '</devices>',
            "<disk type='volume'><source pool='none' volume='v'/><target dev='vdz' bus='virtio'/></disk></devices>",
            'refuses the definition .* pool',
        ),
    ],
)
def test_definition_that_the_destination_cannot_run_is_refused(
    bench: LibvirtBench, old: str, new: str, match: str
) -> None:
    _guest, instance = a_guest(bench)
    data = described(bench, instance)
    changed = LiveMigrateData(source={**data.source, 'xml': data.source['xml'].replace(old, new)})
    with pytest.raises(exception.MigrationPreCheckError, match=match):
        bench.destination.check_can_evacuate(instance, changed)
    bench.destination.check_can_evacuate(instance, data)


@pytest.mark.parametrize(
    ('old', 'new', 'match'),
    [
        ('<emulator>.*</emulator>', '<emulator>/bin/sh</emulator>', 'no emulator that libvirt of beta lists'),
        (
            '(<domain [^>]*)>(.*)</domain>',
            "\\1 xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\\2"
            "<qemu:commandline><qemu:arg value='-daemonize'/></qemu:commandline></domain>",
            'add qemu:commandline to',
        ),
        (
            '</devices>',
            "<disk type='file' device='cdrom'><source file='/etc/shadow'/><target dev='hda'/></disk></devices>",
            "'/etc/shadow', which is neither below",
        ),
        ("path='[^']*'", "path='{victim}'", 'ends in .log'),
        ("path='[^']*'", "path='/etc/motd'", "'/etc/motd', which is neither below"),
        ('<kernel>.*</kernel>', '<kernel>/proc/version</kernel>', "'/proc/version', which is neither below"),
    ],
)
def test_definition_that_would_harm_the_destination_is_refused_there_and_nothing_runs(
    bench: LibvirtBench, old: str, new: str, match: str
) -> None:
    _guest, instance = a_guest(bench)
    victim = bench.lab.shared / 'victim'
    victim.write_text('of another guest')
    data = described(bench, instance)
    definition = re.sub(old, new.replace('{victim}', str(victim)), data.source['xml'], flags=re.DOTALL)
    assert definition != data.source['xml']
    hostile = LiveMigrateData(source={**data.source, 'xml': definition})
    for phase in (bench.destination.check_can_evacuate, bench.destination.evacuate):
        with pytest.raises(exception.MigrationPreCheckError, match=match):
            phase(instance, hostile)
    bench.destination.rollback_evacuation_at_destination(instance, hostile)
    assert bench.beta.domains() == []
    assert victim.read_text() == 'of another guest'
    bench.destination.check_can_evacuate(instance, data)
