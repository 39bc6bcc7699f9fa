# SPDX-License-Identifier: Apache-2.0

"""What keeps a guest where it is, and the text of it."""

from xml.etree import ElementTree

import pytest

libvirt = pytest.importorskip('libvirt')

from migrator.virt.libvirt.definition import obstacles  # noqa: E402 -- what is tested needs libvirt

DISK = "<disk type='file' device='disk'><source file='/of/{0}'/><target dev='{0}'/>{1}</disk>"


def obstacle(devices):
    xml = ElementTree.fromstring(f'<domain>{devices}</domain>')  # noqa: S314 -- a literal of this file
    return obstacles.passthrough(xml) or obstacles.unsupported(xml)


OF_HOST = "<devices><interface type='{}'>{}</interface></devices>"


@pytest.mark.parametrize(
    ('devices', 'words'),
    [
        ("<devices><hostdev type='pci'/></devices>", 'pci device of its host'),
        (OF_HOST.format('hostdev', ''), 'network device of its host'),
        (OF_HOST.format('vdpa', ''), 'network device of its host'),
        (f'<devices>{DISK.format("vdb", "<transient/>")}</devices>', 'has a transient disk (vdb): define it without'),
        ("<devices><filesystem><driver type='virtiofs'/></filesystem></devices>", 'has a virtiofs share: unmount it'),
        ("<devices><shmem name='a' role='peer'/></devices>", 'has a shared memory device (shmem): detach it first'),
        ("<devices><shmem name='a'/></devices>", "define it with role='master'"),
        ("<devices><channel type='qemu-vdagent'/></devices>", 'has a channel of type qemu-vdagent: detach it'),
        ("<devices><tpm><backend type='passthrough'/></tpm></devices>", 'has the TPM of its host'),
        ("<devices><disk><driver type='vmdk'/></disk></devices>", 'has an image of format vmdk'),
        (
            "<devices><disk><driver type='qcow2'/><backingStore><format type='vdi'/></backingStore></disk></devices>",
            'has an image of format vdi, with which QEMU migrates no running guest: move it cold',
        ),
        ("<launchSecurity type='sev'/>", 'has encrypted memory: shut it off, and move it cold'),
        ("<devices><video><model><acceleration accel3d='yes'/></model></video></devices>", 'has 3D graphics'),
        ("<cpu><feature policy='require' name='invtsc'/></cpu>", 'invtsc and no frequency'),
    ],
)
def test_what_libvirt_refuses_in_a_definition_is_named_with_what_to_do(devices, words):
    assert words in obstacle(devices)


@pytest.mark.parametrize(
    'devices',
    [
        "<devices><hostdev type='pci'><teaming type='transient'/></hostdev></devices>",
        OF_HOST.format('hostdev', "<teaming type='transient'/>"),
        OF_HOST.format('bridge', ''),
        f'<devices>{DISK.format("vda", "<shareable/>")}</devices>',
        "<devices><filesystem type='mount'/><shmem name='a' role='master'/></devices>",
        "<cpu><feature policy='require' name='invtsc'/></cpu><clock><timer name='tsc' frequency='1'/></clock>",
    ],
)
def test_what_libvirt_migrates_is_no_obstacle(devices):
    assert obstacle(devices) is None


def test_device_that_no_other_host_could_recognize_is_named():
    xml = "<domain><devices><disk type='block'><source dev='{}'/><target dev='vda'/></disk></devices></domain>"
    assert 'has disk vda (/dev/null), a device without an identity' in obstacles.why_immovable(
        Held(xml.format('/dev/null'))
    )
    assert obstacles.why_immovable(Held(xml.format('/dev/none'))) is None, 'a check finds that it is missing'


class Held:
    """A guest as libvirt describes it."""

    def __init__(self, xml, later=None, snapshots=0, checkpoints=(), job=None):
        self.xml, self.later = xml, later or xml
        self.snapshots, self.checkpoints, self.job = snapshots, checkpoints, job

    def XMLDesc(self, flags):  # noqa: N802 -- the name is libvirt's
        return self.later if flags & libvirt.VIR_DOMAIN_XML_INACTIVE else self.xml

    def snapshotNum(self, _flags=0):  # noqa: N802 -- as above
        if self.snapshots is None:
            raise native_error(libvirt.VIR_ERR_NO_SUPPORT)
        return self.snapshots

    def listAllCheckpoints(self, _flags):  # noqa: N802 -- as above
        return [*self.checkpoints]

    def blockJobInfo(self, disk, _flags):  # noqa: N802 -- as above
        return {'type': 2} if disk == self.job else {}


def native_error(code):
    error = libvirt.libvirtError('planned')
    error.err = (code, 0, 'planned', 0, '', '', '', 0, 0)
    return error


@pytest.mark.parametrize(
    ('state', 'words'),
    [
        ({'snapshots': 2}, 'has 2 snapshots in libvirt, which no migration takes along: delete them first'),
        ({'checkpoints': ['one']}, 'has checkpoints in libvirt'),
        ({'job': 'vda'}, 'has a running block job of disk vda: wait for its end, or abort it'),
        (
            {'later': f'<domain><devices>{DISK.format("vda", "")}{DISK.format("vdb", "")}</devices></domain>'},
            'has disk vdb (/of/vdb) in its configuration and not in use',
        ),
    ],
)
def test_what_libvirt_keeps_of_a_guest_or_does_to_it_is_named(state, words):
    xml = f'<domain><devices>{DISK.format("vda", "")}</devices></domain>'
    assert obstacles.why_immovable(Held(xml)) is None
    assert obstacles.why_immovable(Held(xml, snapshots=None)) is None, 'a driver without snapshots has none'
    assert words in obstacles.why_immovable(Held(xml, **state))
