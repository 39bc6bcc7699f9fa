# SPDX-License-Identifier: Apache-2.0

"""The checks before a migration by libvirt: what is refused, and the text of the refusal."""

import dataclasses
from xml.etree import ElementTree

import pytest
from oslo_config import cfg

from migrator import exception
from migrator.conf import libvirt
from migrator.objects import LiveMigrateData
from migrator.testing import driver_contract
from migrator.virt.libvirt import checks, storage

parse = ElementTree.fromstring

HERE = {'hypervisor_type': 'QEMU', 'hypervisor_version': 7002000, 'hypervisor_uuid': 'a', 'native_tls': False}
THERE = {**HERE, 'hypervisor_uuid': 'b', 'host': 'beta', 'check_file': '/of/check', 'disk_available': 100 * 2**20}
LOCAL = storage.Disk(target='vda', kind='file', path='/of/a', size=60 * 2**20, allocation=2**20, shared=False)
SHARED = storage.Disk(target='vda', kind='file', path='/a', size=60 * 2**20)


def refused(change, match):
    with pytest.raises(exception.MigrationPreCheckError, match=match):
        checks.refuse_hypervisor('alpha', HERE, {**THERE, **change})


def test_different_hypervisor_is_refused_with_the_difference():
    checks.refuse_hypervisor('alpha', HERE, THERE)
    checks.refuse_hypervisor('alpha', HERE, {**THERE, 'hypervisor_version': 8000000})
    refused({'hypervisor_type': 'Xen'}, 'that of beta is Xen')
    refused({'hypervisor_uuid': 'a'}, 'set host_uuid in libvirtd.conf')
    refused({'hypervisor_version': 6000000}, 'of beta is older')
    refused({'native_tls': True}, 'live_migration_with_native_tls is False at alpha, and True at beta')


@pytest.mark.parametrize('uri', [None, 'qemu+tls://%s/system', 'qemu+unix:///system?socket=/run/%s.sock'])
def test_uri_with_a_place_for_the_destination_is_accepted(uri):
    checks.refuse_uri(conf_with(uri))


def test_uri_that_leads_to_one_host_is_refused_with_what_to_write():
    with pytest.raises(exception.ConfigurationError) as caught:
        checks.refuse_uri(conf_with('qemu+tcp://gamma/system'))
    for word in ("[libvirt] live_migration_uri is 'qemu+tcp://gamma/system'", 'write %s', 'qemu+tls://%s/system'):
        assert word in str(caught.value)


def conf_with(uri):
    conf = cfg.ConfigOpts()
    libvirt.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override('live_migration_uri', uri, group='libvirt')
    return conf


def test_another_host_than_the_destination_is_named():
    said = checks.another_host('alpha', 'qemu+tcp://gamma/system', THERE, 'c')
    for word in ('by qemu+tcp://gamma/system', 'alpha does not reach beta', 'uuid there is c', 'beta is b', 'Correct'):
        assert word in said


@pytest.mark.parametrize(('there', 'found'), [(THERE, 'b'), (THERE, ''), ({'host': 'beta'}, 'c')])
def test_identity_that_is_equal_or_not_known_is_no_obstacle(there, found):
    assert checks.another_host('alpha', 'qemu+tcp://beta/system', there, found) is None


def test_encrypted_disk_that_would_be_copied_is_refused():
    xml = parse(
        "<domain><devices><disk type='file'><source file='/of/a'><encryption format='luks'/></source>"
        "<target dev='vda'/></disk></devices></domain>"
    )
    instance = driver_contract.an_instance()
    with pytest.raises(exception.MigrationPreCheckError, match='is encrypted, and beta does not see it'):
        checks.refuse_encrypted(instance, xml, [LOCAL], 'beta')
    checks.refuse_encrypted(instance, xml, [SHARED, dataclasses.replace(LOCAL, target='vdb')], 'beta')


def test_slice_of_a_file_that_would_be_copied_is_refused():
    instance = driver_contract.an_instance()
    xml = parse(
        "<domain><devices><disk type='file'><source file='/of/a'><slices/></source><target dev='vda'/></disk>"
        '</devices></domain>'
    )
    with pytest.raises(exception.MigrationPreCheckError, match=r'is a slice of .*, and beta does not see it: .* cold'):
        checks.refuse_encrypted(instance, xml, [LOCAL], 'beta')
    checks.refuse_encrypted(instance, xml, [SHARED], 'beta')


@pytest.mark.parametrize(
    ('xml', 'cpu'),
    [
        ("<domain type='qemu'><cpu><model>x</model></cpu></domain>", ''),
        ("<domain type='kvm'/>", ''),
        # KVM adds features that no host has, such as 'hypervisor'.
        ("<domain type='kvm'><cpu mode='custom'><model>x</model><feature name='hypervisor'/></cpu></domain>", ''),
        ("<domain type='kvm'><cpu mode='host-passthrough'/></domain>", '<cpu>the host</cpu>'),
        ("<domain type='kvm'><cpu mode='maximum'/></domain>", '<cpu>the host</cpu>'),
    ],
)
def test_processor_is_compared_only_if_the_guest_has_that_of_its_host(xml, cpu):
    assert checks.processor_of(parse(xml), '<cpu>the host</cpu>') == cpu


def test_file_volume_of_the_hosts_own_pool_is_refused():
    def look(kind, path):
        volume = storage.Disk(target='vdb', kind=kind, path=path)
        checks.refuse_local_volumes(driver_contract.an_instance(), [volume], lambda path: path.startswith('/nfs'))

    look('file', '/nfs/one.qcow2')
    # The destination checks a block device by its identity.
    look('block', '/dev/vg/one')
    with pytest.raises(exception.MigrationPreCheckError, match=r'vdb .* volume of a storage pool, /pool/one\.qcow2'):
        look('file', '/pool/one.qcow2')


def test_shareable_disk_that_the_destination_does_not_see_is_refused():
    disk = storage.Disk(target='vdb', kind='file', path='/i/one.qcow2', shared=True)
    with pytest.raises(exception.MigrationPreCheckError, match=r'vdb .*does not see the files in instances_path'):
        checks.refuse_unseen(driver_contract.an_instance(), [disk])
    checks.refuse_unseen(driver_contract.an_instance(), [dataclasses.replace(disk, shared=False)])


def data(wanted, over=False):
    return LiveMigrateData(block_migration=wanted, disk_over_commit=over, destination=THERE)


def test_disks_that_are_not_shared_are_copied_unless_the_request_forbids_it():
    guest = driver_contract.an_instance()
    assert checks.block_migration(guest, data(None), [LOCAL, SHARED], sees=False)
    assert checks.block_migration(guest, data(True), [LOCAL, SHARED], sees=True)
    assert not checks.block_migration(guest, data(None), [SHARED], sees=True)
    assert not checks.block_migration(guest, data(False), [], sees=False)
    assert not checks.block_migration(guest, data(True), [], sees=False)
    with pytest.raises(exception.MigrationPreCheckError, match='request block_migration False or auto'):
        checks.block_migration(guest, data(True), [SHARED], sees=True)
    with pytest.raises(
        exception.MigrationPreCheckError, match=r'does not see vda \(/of/a\).* request block_migration True or auto'
    ):
        checks.block_migration(guest, data(False), [LOCAL], sees=False)


def test_disks_that_do_not_fit_are_refused_by_size_or_with_over_commit_by_allocation():
    two = [LOCAL, LOCAL]
    with pytest.raises(
        exception.MigrationPreCheckError, match='beta has 100 MiB left for disks, and the copies need 120 MiB'
    ):
        checks.block_migration(driver_contract.an_instance(), data(None), two, sees=False)
    assert checks.block_migration(driver_contract.an_instance(), data(None, over=True), two, sees=False)
    # Disks elsewhere take no space of instances_path.
    elsewhere = [dataclasses.replace(LOCAL, path=f'/elsewhere/{number}') for number in range(2)]
    assert checks.block_migration(driver_contract.an_instance(), data(None), elsewhere, sees=False)


ODD_ADDRESSES = [
    'b/system?x=', 'b c', 'b@c', 'b:22', 'b\n', '-oProxyCommand', '[b]', 'fe80::1%eth0', '[::1', '::1]', 'b%s',
    'b\0', '\u00e9', 'a' * 256, '1:2', 'fe80::1/x', '?', '#', '[::1]:22',
]  # fmt: skip


@pytest.mark.parametrize('odd', ODD_ADDRESSES)
@pytest.mark.parametrize(
    ('field', 'option'), [('host', '[DEFAULT] host'), ('inbound_addr', '[libvirt] live_migration_inbound_addr')]
)
def test_value_that_is_no_host_name_or_address_is_refused_for_a_uri(field, option, odd):
    with pytest.raises(ValueError, match='set a host name or an IP address') as caught:
        checks.uri_host({**THERE, field: odd})
    assert f'{option} is {odd[:100]!r}' in str(caught.value)


@pytest.mark.parametrize(
    ('inbound', 'name'),
    [
        ('', 'beta'), ('beta_2.example.org', 'beta_2.example.org'), ('192.0.2.7', '192.0.2.7'), ('b.', 'b.'),
        ('fd00::2', '[fd00::2]'), ('[fd00::2]', '[fd00::2]'), ('::ffff:192.0.2.7', '[::ffff:192.0.2.7]'),
    ],
)  # fmt: skip
def test_host_name_or_address_is_put_into_the_uri(inbound, name):
    assert checks.uri_host({**THERE, 'inbound_addr': inbound}).replace('c000:207', '192.0.2.7') == name
