# SPDX-License-Identifier: Apache-2.0

"""Guests of less plain definitions: each arrives as it was, or is refused with the reason.

A guest that is refused runs on, and nothing is left of the attempt.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator
from xml.etree import ElementTree

import pytest
import requests

from tests.real.libvirt.lab import guests, hosts
from tests.real.libvirt.site import HEADERS, PATIENCE, Cloud

#: Random bytes that a guest only reads.
CONTENT = os.urandom(3 * 2**20)
CD = "<disk type='file' device='cdrom'><source file='{}'/><target dev='{}' bus='ide'/><readonly/></disk>"
DISK = "<disk type='file'><driver name='qemu' type='{}'/><source file='{}'/><target dev='vda' bus='virtio'/>{}</disk>"
VNC = "<graphics type='vnc' port='{}' autoport='{}' listen='127.0.0.1' passwd='abc12345'/>"
FIRMWARE = (
    "<loader readonly='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE_4M.fd</loader>"
    "<nvram template='/usr/share/OVMF/OVMF_VARS_4M.fd'>/var/lib/libvirt/images/vars.fd</nvram>"
)


@dataclasses.dataclass
class Case:
    """A guest of alpha.

    :ivar devices: what it has besides the usual ones.
    :ivar refused: the words of its refusal; '': it is moved.
    :ivar change: changes the guest when it runs.
    """

    devices: str = ''
    refused: str = ''
    change: Callable[[hosts.Host, guests.Guest], object] = lambda _alpha, _guest: None


def image(alpha: hosts.Host, name: str, mib: int = 16) -> str:
    """Make an image that only alpha has."""
    guests.make_image(alpha.images / f'{name}.qcow2', mib, 1, None)
    return f'{hosts.IMAGES}/{name}.qcow2'


def read_only(alpha: hosts.Host, name: str) -> str:
    """Make a file that only alpha has, and that guests only read."""
    path = alpha.images / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(CONTENT)
    return f'{hosts.IMAGES}/{name}'


def case_of(name: str, alpha: hosts.Host, shared: pathlib.Path, uuid: str) -> Case:
    """Return a case by its name."""
    if name == 'config drive and CD':
        drive, cd = read_only(alpha, f'{uuid}/disk.config'), read_only(alpha, 'boot.iso')
        return Case(CD.format(drive, 'hda') + CD.format(cd, 'hdb'))
    if name == 'read-only disk':
        return Case(DISK.format('raw', read_only(alpha, 'base.raw'), '<readonly/>'))
    if name == 'password of a console':
        return Case(VNC.format(-1, 'yes'))
    if name == 'port of a console':
        return Case(VNC.format(5987, 'no'), 'cannot listen at 127.0.0.1 port 5987 on host beta: Address already in use')
    if name == 'snapshot':
        guests.make_image(shared / 's.qcow2', 16, 1, None)
        return Case(
            DISK.format('qcow2', shared / 's.qcow2', ''),
            'has 1 snapshot in libvirt, which no migration takes along: delete them first (virsh snapshot-delete)',
            lambda host, guest: host.virsh('snapshot-create-as', guest.uuid, 'one'),
        )
    if name == 'snapshot in an image':
        path = image(alpha, 'inside')
        guests.take_snapshot(alpha.images / 'inside.qcow2', 'before')
        return Case(DISK.format('qcow2', path, ''), 'has snapshot before, which a copy lacks')
    if name == 'transient disk':
        guests.make_image(shared / 't.qcow2', 16, 1, None)
        return Case(DISK.format('qcow2', shared / 't.qcow2', '<transient/>'), 'has a transient disk (vda)')
    if name == 'socket':
        directory = '/var/lib/libvirt/agents'
        alpha.outside(directory).mkdir(exist_ok=True)
        source = f"<source mode='bind' path='{directory}/one'/><target type='virtio' name='one'/>"
        return Case(f"<channel type='unix'>{source}</channel>", f'does not have the directory {directory}')
    if name == 'CD of another content':
        path = read_only(alpha, 'same.iso')
        return Case(CD.format(path, 'hda'), 'is another one at beta than at alpha: move it away')
    disk = f"<disk type='file'><source file='{hosts.IMAGES}/later'/><target dev='vdx' bus='virtio'/></disk>"
    return Case(
        '',
        'has disk vdx (/var/lib/libvirt/images/later) in its configuration and not in use',
        lambda host, guest: host.virsh('attach-device', guest.uuid, '/dev/stdin', '--config', given=disk),
    )


CASES = (
    'config drive and CD', 'read-only disk', 'password of a console', 'port of a console', 'snapshot',
    'snapshot in an image', 'transient disk', 'socket', 'CD of another content', 'disk in the configuration only',
)  # fmt: skip


def defined(host: hosts.Host, guest: guests.Guest) -> list[str]:
    """Return the definition with which a guest starts next, as lines without their indentation."""
    text = host.virsh('dumpxml', guest.uuid, '--inactive', '--security-info')
    return sorted(' '.join(line.split()) for line in ElementTree.canonicalize(text, strip_text=True).split('>'))


@pytest.fixture
def empty(lab: hosts.Lab) -> Iterator[None]:
    """End the snapshots that would keep a guest defined."""
    yield
    for host in lab.hosts.values():
        for uuid in host.domains():
            for name in host.virsh('snapshot-list', uuid, '--name').split():
                host.virsh('snapshot-delete', uuid, name, '--metadata')


@pytest.mark.parametrize('name', CASES)
def test_guest_arrives_as_it_was_or_is_refused_by_name(
    cloud: Cloud, alpha: hosts.Host, beta: hosts.Host, empty: None, name: str
) -> None:
    guest = guests.Guest(cloud.lab, 'guest-1', memory_mib=128, work=40, audit=0)
    case = case_of(name, alpha, cloud.lab.shared, guest.uuid)
    guest.xml = guest.xml.replace("<memballoon model='none'/>", f"<memballoon model='none'/>{case.devices}")
    guest.start(alpha)
    cloud.register(guest, 'alpha')
    case.change(alpha, guest)
    if 'another content' in name:
        (beta.images / 'same.iso').write_bytes(CONTENT[::-1])
    before = defined(alpha, guest)
    there = sorted(path.name for path in beta.images.rglob('[!.]*'))
    migration = cloud.live_migrate(guest)
    status = cloud.ended(migration)
    if case.refused:
        assert status == 'failed'
        assert case.refused in str(cloud.migration(migration).failure)
        cloud.check(guest, 'alpha')
        assert sorted(path.name for path in beta.images.rglob('[!.]*')) == there
    else:
        assert status == 'completed', cloud.migration(migration).failure
        cloud.check(guest, 'beta')
        assert defined(beta, guest) == before
        for path in (path for path in beta.images.rglob('[!.]*') if path.is_file()):
            assert path.read_bytes() == CONTENT, path
        assert not list(alpha.images.glob(f'{guest.uuid}/*')), 'what was of this guest only has left with it'
        assert (alpha.images / 'boot.iso').exists() == (name == 'config drive and CD')


def test_guest_that_never_ran_is_moved_cold_without_an_nvram(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    guest = guests.Guest(cloud.lab, 'guest-1', memory_mib=128, work=40)
    guest.xml = guest.xml.replace("machine='pc'>hvm</type>", f"machine='q35'>hvm</type>{FIRMWARE}")
    alpha.virsh('define', '/dev/stdin', given=guest.xml)
    cloud.register(guest, 'alpha')
    cloud.database.instances.update(guest.uuid, vm_state='stopped', power_state=4)
    migration = cloud.cold_migrate(guest)
    assert migration.status == 'finished', migration.failure
    assert cloud.decide(migration, 'confirmResize') == 'confirmed'
    assert (guest.uuid in alpha.domains(), guest.uuid in beta.domains()) == (False, True)


def test_config_drive_goes_along_cold_and_comes_back(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    guest = guests.Guest(cloud.lab, 'guest-1', memory_mib=128, work=40)
    drive = read_only(alpha, f'{guest.uuid}/disk.config')
    guest.xml = guest.xml.replace("<memballoon model='none'/>", f"<memballoon model='none'/>{CD.format(drive, 'hda')}")
    guest.start(alpha)
    cloud.register(guest, 'alpha')
    migration = cloud.cold_migrate(guest)
    assert migration.status == 'finished', migration.failure
    assert (beta.images / guest.uuid / 'disk.config').read_bytes() == CONTENT
    assert cloud.decide(migration, 'revertResize') == 'reverted'
    assert not (beta.images / guest.uuid).exists()
    assert (alpha.images / guest.uuid / 'disk.config').read_bytes() == CONTENT


def test_refusal_of_the_destination_is_the_answer_below_2_34(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    guest = guests.Guest(cloud.lab, 'guest-1', memory_mib=128, work=40)
    case = case_of('socket', alpha, cloud.lab.shared, guest.uuid)
    guest.xml = guest.xml.replace("<memballoon model='none'/>", f"<memballoon model='none'/>{case.devices}")
    guest.start(alpha)
    cloud.register(guest, 'alpha')
    cloud.wait(lambda: cloud.database.definitions.get(guest.uuid, 'alpha'), 'its definition to be stored')
    answer = requests.post(
        f'{cloud.site.url()}/v2.1/servers/{guest.uuid}/action',
        headers={**HEADERS, 'OpenStack-API-Version': 'compute 2.30'},
        json={'os-migrateLive': {'host': 'beta', 'block_migration': 'auto'}},
        timeout=PATIENCE,
    )
    assert answer.status_code == 400, answer.text
    assert case.refused in answer.json()['badRequest']['message']
    cloud.check(guest, 'alpha')
