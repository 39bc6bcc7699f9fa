# SPDX-License-Identifier: Apache-2.0

"""What a resize changes of a guest's definition and of its root disk."""

import dataclasses
import re
from xml.etree import ElementTree

import pytest

libvirt = pytest.importorskip('libvirt')

from migrator import exception  # noqa: E402 -- what is tested needs libvirt
from migrator.virt.libvirt import storage  # noqa: E402 -- as above
from migrator.virt.libvirt.cold_migration import resizes  # noqa: E402 -- as above
from tests.unit.virt.libvirt.daemon import INSTANCE, a_disk, definition  # noqa: E402 -- as above

LARGE = INSTANCE.flavor.replace(name='large', vcpus=4, memory_mb=2048, root_gb=20)
SAME_DISK = LARGE.replace(root_gb=INSTANCE.flavor.root_gb)
GIB = 2**30
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


def planned(xml, flavor=SAME_DISK, disks=()):
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
        ("<cputune><vcpusched vcpus='0' scheduler='rr'/></cputune>", {}, 'a scheduler of some processors'),
        ("<cputune><cachetune vcpus='0'/></cputune>", {}, 'a cache that some processors have'),
        ("<cputune><memorytune vcpus='0'/></cputune>", {}, 'a bandwidth of memory that some processors have'),
        ("<memtune><hard_limit unit='MiB'>900</hard_limit></memtune>", {}, 'a limit of its memory'),
        ("<cpu><topology sockets='1' cores='3' threads='1'/></cpu>", {}, 'each socket of the guest has 3 processors'),
        ('', {'swap': 512}, 'another ephemeral or swap disk'),
        ('', {'ephemeral_gb': 1}, 'another ephemeral or swap disk'),
        ('', {'extra_specs': {'hw:cpu_policy': 'dedicated'}}, 'that the driver does not apply: hw:cpu_policy'),
        ('', {'extra_specs': {'acme:tier': 'gold'}}, 'that the driver does not apply: acme:tier'),
        ('', {'extra_specs': {'resources:VGPU': '1'}}, 'that the driver does not apply: resources:VGPU'),
        ('', {'extra_specs': {'resources1:PCPU': '4'}}, 'that the driver does not apply: resources1:PCPU'),
        ('', {'extra_specs': {'resources_x': '4'}}, 'that the driver does not apply: resources_x'),
    ],
)
def test_guest_that_would_not_get_what_its_flavor_requires_is_refused(more, changes, match):
    with pytest.raises(exception.MigrationPreCheckError, match=f'cannot be resized to flavor large: .*{match}'):
        planned(sized(more), SAME_DISK.replace(**changes))


def test_shares_that_nova_gave_each_processor_follow_their_number_and_others_stay():
    def shares(text):
        found = planned(sized(f'<cputune><shares>{text}</shares></cputune>'))['xml']
        return ElementTree.fromstring(found).findtext('cputune/shares')  # noqa: S314 -- ours

    assert (shares('2048'), shares('1000')) == ('4096', '1000')


def test_topology_in_the_metadata_is_not_one_of_processors():
    noted = "<x:topology xmlns:x='urn:x' cores='3'/><topology xmlns='urn:x' cores='3'/></metadata>"
    assert noted.replace("'", '"') in planned(sized().replace('</metadata>', noted))['xml']


def test_extra_specs_of_amounts_alone_are_no_reason_to_refuse():
    specs = {'resources:CUSTOM_GOLD': '1', 'resources:VCPU': '8', 'resources1:DISK_GB': '5', 'group_policy': 'none'}
    specs |= {'trait:CUSTOM_GOLD': 'required', 'trait1:HW_CPU_X86_AVX': 'forbidden'}
    assert 'xml' in planned(sized(), SAME_DISK.replace(extra_specs=specs))


def measured(xml, *sizes):
    """Return the writable disks of a definition with their sizes in GiB."""
    return [dataclasses.replace(disk, size=n * GIB) for disk, n in zip(storage.defined_disks(xml), sizes, strict=True)]


def test_root_disk_grows_by_what_the_flavor_adds_and_never_beyond_the_root_disk_of_the_flavor():
    xml = sized(devices=a_disk('/images/disk') + a_disk('/images/data').replace('vda', 'vdb'))
    large = LARGE.replace(root_gb=120)
    adopted = INSTANCE.replace(flavor=INSTANCE.flavor.replace(root_gb=100))
    found = resizes.plan(adopted, large, xml, measured(xml, 10, 90))['grow']
    assert found == {'path': '/images/disk', 'format': 'qcow2', 'size': 30 * GIB}
    xml = sized(devices=a_disk('/images/disk'))
    for size in (100, 110, 130):
        assert resizes.plan(adopted, large, xml, measured(xml, size))['grow']['size'] == 120 * GIB


def test_smaller_root_disk_is_refused():
    xml = sized(devices=a_disk('/images/disk'))
    with pytest.raises(exception.MigrationPreCheckError, match='Resize error: Unable to resize disk down'):
        planned(xml, LARGE.replace(root_gb=5), measured(xml, 10))


@pytest.mark.parametrize(
    ('devices', 'match'),
    [
        ('', 'the guest has no disk that it writes to'),
        (a_disk('/images/disk', more='<readonly/>'), 'the guest has no disk that it writes to'),
        (a_disk('/dev/disk', 'network'), 'disk vda is of type network'),
        (a_disk('/dev/disk', 'block'), 'disk vda is of type block'),
        (a_disk('/images/disk', more="<encryption format='luks'/>"), 'disk vda is encrypted'),
    ],
)
def test_root_disk_that_the_driver_cannot_grow_is_refused_unless_it_keeps_its_size(devices, match):
    xml = sized(devices=devices)
    disks = storage.defined_disks(xml)
    with pytest.raises(exception.MigrationPreCheckError, match=f'another root disk, and {match}'):
        planned(xml, LARGE, disks)
    assert 'grow' not in planned(xml, SAME_DISK, disks)


@pytest.mark.parametrize('root_gb', [5, 20])
def test_root_disk_that_is_a_volume_of_another_service_keeps_its_size(root_gb):
    serial = '<serial>5f2c1c0e-7a53-4b70-9f6e-0c5f6a0d8a11</serial>'
    xml = sized(devices=a_disk('/volumes/disk', more=serial))
    assert 'grow' not in planned(xml, LARGE.replace(root_gb=root_gb), measured(xml, 10))


def test_the_disk_that_grows_is_the_first_writable_one_from_which_the_guest_boots():
    second = a_disk('/images/second', more="<boot order='3'/>").replace('vda', 'vdb')
    third = a_disk('/images/third', more="<boot order='12'/>").replace('vda', 'vdc')
    cdrom = a_disk('/images/cd', more="<boot order='1'/><readonly/>").replace('vda', 'sda')
    nic = "<interface type='network'><boot order='2'/></interface>"
    xml = sized(devices=nic + cdrom + a_disk('/images/first') + third + second)
    disks = measured(xml, 10, 10, 10)
    assert planned(xml, LARGE, disks)['grow']['path'] == '/images/second'
    assert planned(re.sub('<boot order=.*?/>', '', xml), LARGE, disks)['grow']['path'] == '/images/first'


@pytest.fixture
def small(local):
    """A guest of alpha whose definition has processors and memory."""
    local.alpha.domains[0].xml = sized(devices=a_disk(local.images / 'disk'))
    local.alpha.domains[0].size = INSTANCE.flavor.root_gb * GIB
    return local


def test_the_copy_grows_at_the_destination_and_the_source_keeps_the_disk_as_it_was(small):
    disk = small.folder / 'of-alpha' / 'disk'
    before = disk.read_bytes()
    data = small.checked(new_flavor=LARGE)
    small.source.migrate_disk_and_power_off(INSTANCE, data)
    with small.at_beta() as destination:
        destination.finish_migration(INSTANCE, data)
        copy = small.images / 'disk'
        assert copy.stat().st_size == 20 * GIB
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
        file.truncate(21 * GIB)
    small.destination.finish_migration(INSTANCE, data)
    assert (small.images / 'disk').stat().st_size == 21 * GIB
    assert small.states() == ['shutdown', 'running']


def test_shared_disk_that_the_destination_may_not_write_is_refused_before_the_power_off(small, monkeypatch):
    monkeypatch.setattr(resizes.os, 'access', lambda path, mode: False)
    with pytest.raises(exception.MigrationPreCheckError, match=r'beta may not write to .*/disk, which has to grow'):
        small.checked(shared=True, new_flavor=LARGE)
    assert small.checked(new_flavor=LARGE).block_migration
    assert small.checked(shared=True, new_flavor=SAME_DISK).is_shared_storage


def test_a_disk_that_cannot_grow_is_named_and_the_guest_is_not_started(small):
    data = small.checked(shared=True, new_flavor=LARGE)
    small.source.migrate_disk_and_power_off(INSTANCE, data)
    script = small.folder / 'bin' / 'qemu-img'
    script.write_text(script.read_text().replace('truncate -s', 'echo "no space left" >&2; false'))
    with pytest.raises(exception.DriverError, match=r'cannot resize a disk \(qemu-img resize .*/disk .*no space left'):
        small.destination.finish_migration(INSTANCE, data)
    assert small.beta.domains == []
