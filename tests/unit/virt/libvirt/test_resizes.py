# SPDX-License-Identifier: Apache-2.0

"""What a resize changes of a guest's definition and of its root disk."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

libvirt = pytest.importorskip('libvirt')

from migrator import exception  # noqa: E402 -- what is tested needs libvirt
from migrator.virt.libvirt import storage  # noqa: E402 -- as above
from migrator.virt.libvirt.cold_migration import resizes  # noqa: E402 -- as above
from tests.unit.virt.libvirt.daemon import INSTANCE, a_disk, definition  # noqa: E402 -- as above

LARGE = INSTANCE.flavor.replace(name='large', vcpus=4, memory_mb=2048, root_gb=20)
SIZES = (
    "<metadata><nova:instance xmlns:nova='http://openstack.org/nova'><nova:name/></nova:instance></metadata>"
    "<memory unit='GiB'>1</memory><currentMemory unit='KiB'>1024</currentMemory><vcpu placement='static' "
    "current='1'>2</vcpu><numatune><memory mode='strict' nodeset='0'/></numatune>"
)


def sized(more='', devices=''):
    """Return a definition with processors and memory."""
    return definition(devices).replace('<os>', f'{SIZES}{more}<os>')


def vcpus(xml):
    return ElementTree.fromstring(xml).findtext('vcpu')  # noqa: S314 -- ours


def planned(xml, flavor=LARGE, disks=()):
    return resizes.plan(INSTANCE, flavor, xml, disks)


def test_processors_and_memory_are_those_of_the_new_flavor_and_the_rest_is_unchanged():
    found = planned(sized("<cpu><topology sockets='1' dies='1' cores='2' threads='1'/></cpu>"))['xml']
    assert 'xmlns:nova=' in found
    xml = ElementTree.fromstring(found)  # noqa: S314 -- ours
    assert (xml.findtext('vcpu'), xml.find('vcpu').attrib) == ('4', {'placement': 'static'})
    for name in ('memory', 'currentMemory'):
        assert (xml.findtext(name), xml.find(name).attrib) == (str(2048 * 1024), {})
    assert xml.find('numatune/memory').attrib == {'mode': 'strict', 'nodeset': '0'}
    assert xml.find('cpu/topology').attrib == {'sockets': '2', 'dies': '1', 'cores': '2', 'threads': '1'}


@pytest.mark.parametrize(
    ('more', 'changes', 'match'),
    [
        ("<cpu><numa><cell id='0'/></numa></cpu>", {}, 'the guest has NUMA nodes'),
        ("<cputune><vcpupin vcpu='0' cpuset='1'/></cputune>", {}, 'processors that are pinned'),
        ("<cpu><topology sockets='1' cores='3' threads='1'/></cpu>", {}, 'each socket of the guest has 3 processors'),
        ('', {'swap': 512}, 'another ephemeral or swap disk'),
        ('', {'ephemeral_gb': 1}, 'another ephemeral or swap disk'),
        ('', {'extra_specs': {'hw:cpu_policy': 'dedicated'}}, 'that the driver does not apply: hw:cpu_policy'),
    ],
)
def test_guest_that_would_not_get_what_the_flavor_promises_is_refused(more, changes, match):
    with pytest.raises(exception.MigrationPreCheckError, match=f'cannot be resized to flavor large: .*{match}'):
        planned(sized(more), LARGE.replace(**changes))


def test_extra_specs_of_placement_alone_are_no_reason_to_refuse():
    specs = {'resources:CUSTOM_GOLD': '1', 'trait:CUSTOM_SSD': 'required', 'group_policy': 'none'}
    assert 'xml' in planned(sized(), LARGE.replace(extra_specs=specs))


@pytest.mark.parametrize(('kind', 'refused'), [('file', True), ('network', False)])
def test_smaller_root_disk_is_refused_if_it_is_a_file(kind, refused):
    xml = sized(devices=a_disk('/images/disk', kind))
    disks, small = storage.defined_disks(xml), LARGE.replace(root_gb=5)
    if refused:
        with pytest.raises(exception.MigrationPreCheckError, match='Resize error: Unable to resize disk down'):
            planned(xml, small, disks)
    assert ('grow' in planned(xml, LARGE, disks)) is refused


def test_the_disk_that_grows_is_the_one_from_which_the_guest_boots():
    second = a_disk('/images/second', more="<boot order='1'/>").replace('vda', 'vdb')
    xml = sized(devices=a_disk('/images/first') + second)
    disks = storage.defined_disks(xml)
    assert planned(xml, disks=disks)['grow'] == {'path': '/images/second', 'format': 'qcow2', 'size': 20 * 2**30}
    assert planned(xml.replace("<boot order='1'/>", ''), disks=disks)['grow']['path'] == '/images/first'


@pytest.fixture
def small(local):
    """A guest of alpha whose definition has processors and memory."""
    local.alpha.domains[0].xml = sized(devices=a_disk(local.images / 'disk'))
    return local


def test_the_copy_grows_at_the_destination_and_the_source_keeps_the_disk_as_it_was(small):
    disk = small.folder / 'of-alpha' / 'disk'
    before = disk.read_bytes()
    data = small.checked(new_flavor=LARGE)
    small.source.migrate_disk_and_power_off(INSTANCE, data)
    with small.at_beta() as destination:
        destination.finish_migration(INSTANCE, data)
        copy = small.images / 'disk'
        assert copy.stat().st_size == 20 * 2**30
        assert copy.open('rb').read(len(before)) == before
        assert vcpus(small.beta.domains[0].xml) == '4'
        destination.revert_migration_at_destination(INSTANCE, data)
    assert small.files('beta') == []
    small.source.revert_migration_at_source(INSTANCE, data)
    assert disk.read_bytes() == before
    assert vcpus(small.alpha.domains[0].xml) == '2'
    assert small.states()[0] == 'running'


def test_a_start_that_failed_after_the_disk_has_grown_is_repeated(small):
    data = small.checked(shared=True, new_flavor=LARGE)
    small.source.migrate_disk_and_power_off(INSTANCE, data)
    small.beta.start_error = 'no memory'
    with pytest.raises(exception.DriverError, match='no memory'):
        small.destination.finish_migration(INSTANCE, data)
    small.beta.start_error = ''
    # Its user may have let it grow further. It never shrinks.
    with (small.images / 'disk').open('r+b') as file:
        file.truncate(21 * 2**30)
    small.destination.finish_migration(INSTANCE, data)
    assert (small.images / 'disk').stat().st_size == 21 * 2**30
    assert small.states() == ['shutdown', 'running']


def test_a_disk_that_cannot_grow_is_named_and_the_guest_is_not_started(small):
    data = small.checked(shared=True, new_flavor=LARGE)
    small.source.migrate_disk_and_power_off(INSTANCE, data)
    script = small.folder / 'bin' / 'qemu-img'
    script.write_text(script.read_text().replace('truncate -s', 'echo "no space left" >&2; false'))
    with pytest.raises(exception.DriverError, match=r'cannot resize a disk \(qemu-img resize .*/disk .*no space left'):
        small.destination.finish_migration(INSTANCE, data)
    assert small.beta.domains == []
