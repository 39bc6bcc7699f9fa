# SPDX-License-Identifier: Apache-2.0

"""What a definition that another host has reported can make this host start, read and write."""

import itertools
import os
import pathlib
import re
import socket
from xml.etree import ElementTree

import pytest

pytest.importorskip('libvirt', reason='the extra "libvirt" is not installed')

from migrator import exception
from migrator.objects import LiveMigrateData
from migrator.virt import driver as driver_of_all
from migrator.virt.libvirt import identity
from migrator.virt.libvirt.definition import allowed, bounds
from migrator.virt.libvirt.definition.allowed import Kind
from tests.unit.virt.libvirt import daemon
from tests.unit.virt.libvirt.daemon import INSTANCE, a_disk, definition
from tests.unit.virt.libvirt.definition import schema

#: What no guest may name, wherever a definition names a file, a program or a device.
HOSTILE = ('/etc/shadow', '/bin/sh', '/dev/null', '{images}/../secret', '{images}/link', '{images}/pipe', 'etc/shadow')
#: The kinds that name a file, a program or a device.
_NAMING = set(Kind) - {Kind.TEXT, Kind.NAME, Kind.ADDRESS}
#: Addresses and devices that a guest may name, by the types of the schema: they are networks and servers.
HARMLESS = {
    ('devices/disk/source/host', 'name'),
    ('devices/graphics', 'listen'),
    ('devices/graphics/listen', 'address'),
    ('devices/interface/guest', 'actual'),
    ('devices/interface/guest', 'dev'),
    ('devices/interface/ip', 'address'),
    ('devices/interface/ip', 'peer'),
    ('devices/interface/route', 'address'),
    ('devices/interface/route', 'gateway'),
    ('devices/interface/route', 'netmask'),
    ('devices/interface/source', 'dev'),
    ('devices/interface/source', 'name'),
    ('devices/interface/source', 'portgroup'),
    ('devices/interface/target', 'dev'),
}


@pytest.fixture
def images(tmp_path):
    made = tmp_path / 'images'
    made.mkdir()
    (tmp_path / 'secret').touch()
    (made / 'link').symlink_to(tmp_path / 'secret')
    os.mkfifo(made / 'pipe')
    return made


@pytest.fixture
def host(tmp_path, images, monkeypatch):
    """Return the driver and the daemon of the destination."""
    daemon.install_qemu_img(tmp_path, monkeypatch)
    return daemon.driver_of('beta', tmp_path, images, monkeypatch)


def judge(host, xml, **source):
    """Judge a definition at the destination."""
    if '<uuid>' not in xml:
        xml = re.sub('(<domain[^>]*>)', rf'\1<uuid>{INSTANCE.uuid}</uuid>', xml, count=1)
    data = LiveMigrateData(source={'xml': xml, **source})
    root = bounds.read(INSTANCE, data.source)
    bounds.Bounds(host[0].conf, host[1]).refuse_definition(INSTANCE, data, root)


def refused(host, xml, match='', **source):
    with pytest.raises(exception.MigrationPreCheckError, match=match):
        judge(host, xml, **source)


def set_option(host, name, *values):
    host[0].conf.set_override(name, list(values), group='libvirt')


# --- the generated family --------------------------------------------------------------------------------------------


def naming(place, attribute, value):
    """Return definitions with a value at a place, one for each type and mode that its device may have."""
    device, tags = '/'.join(place.split('/')[:2]), place.split('/')
    kinds = allowed.NAMES.get(allowed.SAME.get(device, device), {}).get('type', ('',))
    for kind, mode in itertools.product(kinds, ('', 'bind', 'server')):
        root = element = ElementTree.Element('domain')
        for depth, tag in enumerate(tags):
            prefix, _, name = tag.rpartition(':')
            space = f'{{http://libvirt.org/schemas/domain/{prefix}/1.0}}' if prefix else ''
            element = ElementTree.SubElement(element, f'{space}{name}')
            if depth == 1 and kind:
                element.set('type', kind)
        if mode:
            element.set('mode', mode)
        if attribute:
            element.set(attribute, value)
        else:
            element.text = value
        yield ElementTree.tostring(root, encoding='unicode')


def family():
    """Return each place and attribute that names something, of the table and of libvirt's schema."""
    own = {(place, name) for place, rules in allowed.NAMES.items() for name, rule in rules.items() if rule in _NAMING}
    aliases = {
        (place + key[0].removeprefix(like), key[1])
        for place, like in allowed.SAME.items()
        for key in own
        if key[0] == like or key[0].startswith(f'{like}/')
    }
    known = set(schema.Schema().named(schema.FILES)) if schema.DIRECTORY.is_dir() else set()
    return sorted(own | aliases | known)


@pytest.mark.parametrize(('place', 'attribute'), family())
def test_what_names_a_file_cannot_name_any(host, images, place, attribute):
    for value in HOSTILE:
        # A limit of a device is harmless, whichever device it is.
        if (place, value) != ('blkiotune/device/path', '/dev/null'):
            for xml in naming(place, attribute, value.format(images=images)):
                refused(host, xml, f'beta does not start .* {place.split("/")[0]}')


@pytest.mark.skipif(not schema.DIRECTORY.is_dir(), reason="libvirt's schema is not installed")
def test_each_address_and_device_of_the_schema_is_decided_on(host):
    found = schema.Schema()
    for place, attribute in found.named(schema.OTHERS):
        rules = place
        while rules not in allowed.SAME and 'backingStore/' in rules:
            rules = rules.replace('backingStore/', '', 1)
        rules = rules.replace('os/nvram/source', 'devices/disk/source')
        if (rules, attribute) not in HARMLESS:
            for xml in naming(place, attribute, 'sda'):
                refused(host, xml, f'beta does not start .* {place.split("/")[0]}')


@pytest.mark.skipif(not schema.DIRECTORY.is_dir(), reason="libvirt's schema is not installed")
def test_no_file_and_no_address_is_in_what_is_harmless_as_a_whole():
    named = schema.Schema().named(schema.FILES | schema.OTHERS)
    whole = (*allowed.FREE, *allowed.PLAIN)
    assert [key for key in named if any(key[0] == one or key[0].startswith(f'{one}/') for one in whole)] == []


def test_no_rule_stands_twice_and_each_place_has_one_above_it():
    for place, rules in allowed.NAMES.items():
        assert not set(rules) & set(allowed.WORDS.get(place, '').replace('.', '').split()), place
    places = {*allowed.WORDS, *allowed.NAMES}
    assert [one for one in places if one.rpartition('/')[0] not in {*places, allowed.ANY}] == []


# --- what is refused -------------------------------------------------------------------------------------------------

QEMU = "<domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>{}</domain>"


@pytest.mark.parametrize(
    ('devices', 'match'),
    [
        ('<emulator>/bin/sh</emulator>', 'no emulator that libvirt of beta lists, and not allowed itself'),
        ("<disk type='file' device='cdrom'><source file='/etc/shadow'/><target dev='hda'/></disk>", 'nor in a storage'),
        ("<disk type='dir' device='cdrom'><source dir='/etc'/><target dev='hda'/></disk>", 'devices/disk@type=dir'),
        ("<disk type='block' device='cdrom'><source dev='/dev/null'/><target dev='hda'/></disk>", 'no block device'),
        ("<disk type='file'><source file='{0}/a'/><source file='{0}/b'/></disk>", 'two sources'),
        ("<disk type='file' xmlns:x='urn:x'><x:source file='{0}/a'/></disk>", 'not known to be harmless'),
        ("<disk type='file' xmlns:x='urn:x'><source file='{0}/a' x:file='/b'/></disk>", 'not known to be harmless'),
        ("<disk type='file'><source file='{0}/a'/><target dev=\"a']\"/></disk>", 'not the name of a disk'),
        ("<disk type='network'><source protocol='http' name='x'><host name='h'/></source></disk>", 'protocol=http'),
        ("<disk type='file' device='floppy'><source file='{0}/other/disk'/></disk>", 'devices/disk@device=floppy'),
        ("<disk type='block' device='lun' rawio='yes'/>", 'devices/disk@rawio=yes'),
        ("<disk><source><seclabel model='dac'><label>0:0</label></seclabel></source></disk>", 'seclabel/label'),
        ("<serial type='file'><source path='{0}/other/disk'/></serial>", r'as a log: use a name that ends in \.log$'),
        ("<serial type='dev'><source path='/dev/sda'/></serial>", 'devices/serial@type=dev'),
        ("<channel type='unix'><source mode='connect' path='/run/docker.sock'/></channel>", 'would connect'),
        ("<channel type='unix'><source mode='connect' path='{0}/a.sock'/></channel>", 'would connect'),
        ("<channel type='unix'><source mode='bind' path='{0}/pipe'/></channel>", 'is no socket: use another path$'),
        ("<serial type='tcp'><source path='{0}/a.log'/></serial>", 'type tcp: define the device without it$'),
        ("<disk type='file'><source file='{0}/pipe'/></disk>", 'is no file: use another path$'),
        ("<disk type='file'><source file='disk'/></disk>", 'is no absolute path: use an absolute path$'),
        ("<serial type='tcp'><source mode='connect' host='127.0.0.1' service='16509'/></serial>", 'no address of beta'),
        ("<serial type='tcp'><source mode='bind' host='198.51.100.1' service='1'/></serial>", 'no address of beta'),
        ("<interface type='ethernet'><script path='/x'/></interface>", 'allowed_parts of beta'),
        ("<interface type='user'/>", 'add devices/interface@type=user to .libvirt. allowed_parts of beta'),
        ("<interface type='direct'><source dev='eth0' mode='passthrough'/></interface>", 'mode=passthrough'),
        ("<rng><backend model='random'>/dev/mem</backend></rng>", 'not /dev/random, /dev/urandom or'),
        ("<input type='evdev'><source dev='/dev/input/event0'/></input>", 'devices/input'),
        ("<pstore backend='acpi-erst'><path>/x</path></pstore>", 'devices/pstore, which is not known'),
        ("<graphics type='dbus' address='unix:path=/x'/>", 'devices/graphics'),
        ("<controller type='usb' file='/etc/shadow'/>", 'could name a file'),
    ],
)
def test_part_of_a_device_that_could_harm_the_host_is_refused(host, images, devices, match):
    refused(host, definition(devices.format(images)), match)


@pytest.mark.parametrize(
    ('xml', 'match'),
    [
        (QEMU.format("<qemu:commandline><qemu:arg value='-x'/></qemu:commandline>"), 'add qemu:commandline to'),
        (QEMU.format("<qemu:override><qemu:device alias='a'/></qemu:override>"), 'add qemu:override to'),
        ("<domain xmlns:x='urn:x'><x:devices/></domain>", 'not known to be harmless'),
        ("<domain><seclabel type='none'/></domain>", 'seclabel@type=none'),
        (
            "<domain><seclabel type='static' model='dac'><label>+0:+0</label></seclabel></domain>",
            'seclabel@type=static',
        ),
        ("<domain><sysinfo type='fwcfg'><entry name='o' file='/etc/shadow'/></sysinfo></domain>", 'sysinfo/entry@file'),
        ('<domain><os><init>/bin/sh</init></os></domain>', 'os/init'),
        ('<domain><bootloader>/bin/sh</bootloader></domain>', 'bootloader'),
        ('<domain><resource><partition>/machine/../x</partition></resource></domain>', 'control group'),
        ('<domain><cpu><model>/x</model></cpu></domain>', 'could name a file'),
        ('<domain><uuid>another</uuid></domain>', "it has the uuid 'another' there"),
        ('<domain><os><nvram><source/>/etc/shadow</nvram></os></domain>', '/etc/shadow'),
    ],
)
def test_part_outside_of_the_devices_that_could_harm_the_host_is_refused(host, xml, match):
    refused(host, xml, match)


@pytest.mark.parametrize(
    ('text', 'match'),
    [
        (None, 'no text'),
        (b'<domain/>', 'no text'),
        ('', 'no XML'),
        ('<domain>', 'no XML'),
        ('<domain>\x00</domain>', 'no XML'),
        ('<domain>\ud800</domain>', 'no XML'),
        ('<network/>', 'does not define a domain'),
        ("<domain xmlns='urn:x'/>", 'does not define a domain'),
        ('<domain>' + ' ' * 2**20 + '</domain>', 'at most 1048576'),
        ('<domain>' + '<metadata>' * 65 + '</metadata>' * 65 + '</domain>', 'nested more than 64 deep'),
        ('<domain>' + '<a>' * 10**5 + '</a>' * 10**5 + '</domain>', 'nested more than 64 deep'),
        ('<!DOCTYPE d [<!ENTITY a "b"><!ENTITY c "&a;&a;">]><domain>&c;</domain>', 'document type'),
    ],
)
def test_malformed_definition_is_refused(text, match):
    with pytest.raises(exception.MigrationPreCheckError, match=match):
        bounds.read(INSTANCE, {'xml': text})


def test_firmware_is_what_libvirt_lists_and_never_written(host, images, tmp_path):
    code = tmp_path / 'fw' / 'code.fd'
    code.parent.mkdir()
    code.touch()
    (tmp_path / 'fw' / 'vars.fd').touch()
    loader = "<domain><os><loader readonly='{}' type='pflash'>{}</loader></os></domain>"
    nvram = f"<domain><os><nvram template='{tmp_path}/fw/vars.fd'>{images}/n.fd</nvram></os></domain>"
    refused(host, loader.format('yes', code), 'no firmware that libvirt of beta lists')
    refused(host, nvram, 'no firmware')
    host[1].loaders = [str(code)]
    judge(host, loader.format('yes', code))
    judge(host, nvram)
    refused(host, loader.format('no', code), "to which the guest would write: define it with readonly='yes'$")
    refused(host, loader.format('no', images / 'disk'), 'to which the guest would write')


# --- what is accepted ------------------------------------------------------------------------------------------------

NOVA = """<domain type='kvm'><name>instance-00000001</name><uuid>{uuid}</uuid>
<metadata><nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1"><nova:name>a/b</nova:name>
  </nova:instance></metadata>
<memory unit='KiB'>2097152</memory><currentMemory unit='KiB'>2097152</currentMemory><vcpu placement='static'>2</vcpu>
<cputune><shares>2048</shares></cputune>
<sysinfo type='smbios'><system><entry name='manufacturer'>OpenStack Foundation</entry>
  <entry name='uuid'>{uuid}</entry></system></sysinfo>
<os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type>
  <loader readonly='yes' type='pflash'>{firmware}/code.fd</loader>
  <nvram template='{firmware}/vars.fd'>/var/lib/libvirt/qemu/nvram/instance-00000001_VARS.fd</nvram>
  <boot dev='hd'/><smbios mode='sysinfo'/></os>
<features><acpi/><apic/><vmcoreinfo state='on'/></features>
<cpu mode='host-model' check='partial'><topology sockets='2' dies='1' cores='1' threads='1'/></cpu>
<clock offset='utc'><timer name='pit' tickpolicy='delay'/><timer name='hpet' present='no'/></clock>
<on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>destroy</on_crash>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
<disk type='network' device='disk'><driver name='qemu' type='raw' cache='writeback' discard='unmap'/>
  <auth username='nova'><secret type='ceph' uuid='{uuid}'/></auth>
  <source protocol='rbd' name='vms/{uuid}_disk' index='1'><host name='192.0.2.1' port='6789'/>
    <config file='/etc/ceph/ceph.conf'/></source>
  <target dev='vda' bus='virtio'/><serial>{uuid}</serial>
  <address type='pci' domain='0x0000' bus='0x03' slot='0x00' function='0x0'/></disk>
<disk type='file' device='disk'><driver name='qemu' type='qcow2' cache='none' io='native'/>
  <source file='{images}/{uuid}/disk'/><backingStore type='file'><format type='raw'/>
  <source file='{images}/_base/0123'/><backingStore/></backingStore><target dev='vdb' bus='virtio'/></disk>
<disk type='file' device='cdrom'><driver name='qemu' type='raw' cache='none'/>
  <source file='{images}/{uuid}/disk.config'/><target dev='sda' bus='sata'/><readonly/></disk>
<controller type='usb' index='0' model='qemu-xhci'>
  <address type='pci' domain='0' bus='0' slot='2' function='0'/></controller>
<interface type='bridge'><mac address='fa:16:3e:00:00:01'/><source bridge='br-int'/>
  <virtualport type='openvswitch'><parameters interfaceid='{uuid}'/></virtualport>
  <target dev='tap0123'/><model type='virtio'/><driver name='vhost' rx_queue_size='512'/><mtu size='1450'/>
  <alias name='net0'/></interface>
<interface type='ethernet'><script path=''/><target dev='tap1' managed='no'/><model type='virtio'/></interface>
<serial type='pty'><log file='{images}/{uuid}/console.log' append='off'/><target type='isa-serial' port='0'>
  <model name='isa-serial'/></target></serial>
<console type='pty' tty='/dev/pts/3'><source path='/dev/pts/3'/><log file='{images}/{uuid}/console.log' append='off'/>
  <target type='serial' port='0'/></console>
<serial type='tcp'><source mode='bind' host='198.51.100.1' service='10000'/><protocol type='raw'/></serial>
<channel type='unix'><source mode='bind' path='/var/lib/libvirt/qemu/org.qemu.guest_agent.0.instance-00000001.sock'/>
  <target type='virtio' name='org.qemu.guest_agent.0'/></channel>
<channel type='unix'><source mode='bind' path='/run/libvirt/qemu/channel/1-i/a.0'/><target type='virtio'/></channel>
<input type='tablet' bus='usb'/><input type='keyboard' bus='ps2'/>
<graphics type='vnc' port='-1' autoport='yes' listen='198.51.100.1'>
  <listen type='address' address='198.51.100.1'/></graphics>
<audio id='1' type='none'/><video><model type='virtio' heads='1' primary='yes'/></video>
<memballoon model='virtio'><stats period='10'/></memballoon>
<rng model='virtio'><rate bytes='1024' period='1000'/><backend model='random'>/dev/urandom</backend></rng>
<watchdog model='itco' action='reset'/></devices>
<seclabel type='dynamic' model='apparmor' relabel='yes'/></domain>"""


def test_guest_as_nova_defines_it_is_accepted(host, images, tmp_path):
    host[1].loaders = [f'{tmp_path}/fw/code.fd']
    xml = NOVA.format(uuid=INSTANCE.uuid, images=images, firmware=tmp_path / 'fw')
    judge(host, xml, own_addresses=['198.51.100.1'])
    refused(host, xml, 'devices/serial/source@host')


def test_attribute_of_a_newer_libvirt_is_accepted_if_it_names_nothing(host):
    judge(host, definition("<disk type='file'><driver new='on' newer='12' newest='0x1f'/></disk>"))
    refused(host, definition("<disk type='file'><driver new='eth0'/></disk>"), 'add devices/disk/driver@new to')


def test_file_of_a_storage_pool_is_accepted_unless_the_pool_has_devices(host, tmp_path):
    (tmp_path / 'pool').mkdir()
    disk = definition(a_disk(tmp_path / 'pool' / 'disk'))
    refused(host, disk, 'nor in a storage pool')
    for kind, is_accepted in (('disk', False), ('dir', True)):
        xml = f"<pool type='{kind}'><name>{kind}</name><target><path>{tmp_path}/pool</path></target></pool>"
        host[1].storagePoolDefineXML(xml, 0)
        judge(host, disk) if is_accepted else refused(host, disk)


def test_directory_that_is_listed_holds_files_and_sockets_and_no_program(host, tmp_path):
    place = tmp_path / 'place'
    place.mkdir()
    connects = f"<channel type='unix'><source mode='connect' path='{place}/a.sock'/></channel>"
    harmless = definition(a_disk(place / 'disk') + connects)
    program = definition(f'<emulator>{place}/qemu</emulator>')
    refused(host, harmless, 'add it or its directory to .libvirt. allowed_paths of beta .now .*boot')
    set_option(host, 'allowed_paths', str(place))
    judge(host, harmless)
    refused(host, program, 'not allowed itself')
    (place / 'a.sock').touch()
    refused(host, harmless, 'is no socket')
    set_option(host, 'allowed_paths', f'{place}/qemu')
    judge(host, program)


@pytest.mark.parametrize(
    ('xml', 'part'),
    [
        (QEMU.format("<qemu:commandline><qemu:arg value='-x'/></qemu:commandline>"), 'qemu:commandline'),
        (definition("<interface type='user'/>"), 'devices/interface@type=user'),
        (definition("<interface type='user'/>"), 'devices/interface@type'),
        (definition("<pstore backend='x'><path>/x</path></pstore>"), 'devices/pstore'),
        (definition("<serial type='udp'><source mode='connect' host='h'/></serial>"), 'devices/serial/source@host'),
    ],
)
def test_part_that_is_listed_is_accepted(host, xml, part):
    set_option(host, 'allowed_parts', part[:-1])
    refused(host, xml)
    set_option(host, 'allowed_parts', part)
    judge(host, xml)


@pytest.mark.parametrize('more', ['', '<readonly/>'])
def test_block_device_is_accepted_if_its_host_has_reported_the_same(host, monkeypatch, more):
    device = next((str(each) for each in pathlib.Path('/dev').iterdir() if each.is_block_device()), None)
    if device is None:
        pytest.skip('there is no block device')
    disk = definition(a_disk(device, 'block', more))
    monkeypatch.setattr(identity, 'device_of', lambda path: f'of {path}')
    judge(host, disk, files={device: {'device': f'of {device}'}})
    judge(host, disk, files_read=[{'path': device, 'identity': f'of {device}'}])
    for files in ({}, [], {device: 7}, {device: {'error': 'no luck'}}, {device: {'device': 'another'}}, {device: {}}):
        refused(host, disk, r'cannot be shown to be the same device: .*: use a device with a World Wide', files=files)


def test_socket_in_the_place_of_a_socket_is_accepted(host, images):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f'{images}/s')
        judge(host, definition(f"<channel type='unix'><source mode='bind' path='{images}/s'/></channel>"))


# --- what this host makes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('changes', 'match'),
    [
        ({'path': '/etc/cron.d/disk'}, r"'/etc/cron.d/disk' is neither below instances_path .* allowed_paths of beta"),
        ({'path': '{images}/../disk'}, r'no plain path: define the disk with its path without \.\.'),
        ({'path': '{images}/link'}, 'neither below'),
        ({'path': 7}, 'no plain path'),
        ({'target': '../../x'}, 'no name of a disk'),
        ({'target': '*'}, 'no name of a disk'),
        ({'kind': 'block'}, 'only images in files'),
        ({'format': '--help'}, 'only images in files'),
        ({'size': '--backing=/etc/shadow'}, 'no sizes'),
        ({'size': -1}, 'no sizes'),
    ],
)
def test_disk_that_is_no_image_in_its_place_is_not_made(host, images, changes, match):
    driver, _libvirtd = host
    facts = {'target': 'vda', 'kind': 'file', 'path': f'{images}/new/disk', 'format': 'raw', 'size': 1, 'shared': False}
    facts |= {key: value.format(images=images) if isinstance(value, str) else value for key, value in changes.items()}
    before = sorted(images.parent.rglob('*'))
    data = LiveMigrateData(source={'disks': [facts], 'xml': definition()})
    with pytest.raises(exception.MigrationPreCheckError, match=match):
        driver.pre_live_migration(INSTANCE, data, driver_of_all.NeverCancelled())
    assert sorted(images.parent.rglob('*')) == before
