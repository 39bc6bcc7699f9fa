# SPDX-License-Identifier: Apache-2.0

"""Whether two hosts have the same file or device, with directories for their storage."""

import itertools
import os
import shutil

import pytest

from migrator.virt.libvirt import identity


@pytest.fixture
def new_uuid():
    numbers = itertools.count(1)
    return lambda: f'uuid-{next(numbers)}'


@pytest.fixture
def images(tmp_path):
    """Instances_path, with the directory of a guest and its disk."""
    (tmp_path / 'images' / 'guest').mkdir(parents=True)
    (tmp_path / 'images' / 'guest' / 'disk').touch()
    return tmp_path / 'images'


def test_same_file_has_no_difference_and_one_marker_serves_all_guests(images, new_uuid):
    (images / 'other').touch()
    facts = [identity.identify(str(images / name), str(images), new_uuid) for name in ('guest/disk', 'other')]
    assert facts[0] == facts[1]
    assert [path.name for path in images.glob('.*')] == [f'{identity.MARKER}uuid-1']
    assert [path.name for path in (images / 'guest').iterdir()] == ['disk']
    assert identity.difference(str(images / 'guest' / 'disk'), facts[0]) == ''


def test_file_outside_of_instances_path_has_the_marker_beside_it(images, new_uuid, tmp_path):
    facts = identity.identify(str(images / 'guest' / 'disk'), str(tmp_path / 'nowhere'), new_uuid)
    assert facts['marker'] == str(images / 'guest' / f'{identity.MARKER}uuid-1')
    assert identity.difference(str(images / 'guest' / 'disk'), facts) == ''


def test_directory_of_the_same_path_without_the_marker_is_another_one(images, new_uuid):
    facts = identity.identify(str(images / 'guest' / 'disk'), str(images), new_uuid)
    # The other host has a directory of the same path, with a stale disk and a marker of its own.
    next(images.glob(f'{identity.MARKER}*')).unlink()
    identity.identify(str(images / 'guest' / 'disk'), str(images), new_uuid)
    assert 'is missing here' in identity.difference(str(images / 'guest' / 'disk'), facts)


def test_copied_marker_is_recognized_where_hosts_do_not_share_the_file_system(images, new_uuid, monkeypatch):
    disk = str(images / 'guest' / 'disk')
    facts = identity.identify(disk, str(images), new_uuid)
    shutil.copytree(images, images.parent / 'copy')
    images.rename(images.parent / 'old')
    (images.parent / 'copy').rename(images)
    monkeypatch.setattr(identity, 'filesystem_of', lambda _path: 'ext4')
    assert 'is a copy here, on ext4' in identity.difference(disk, facts)
    # NFS and its like need not report the same inode to all clients.
    monkeypatch.setattr(identity, 'filesystem_of', lambda _path: 'nfs4')
    assert identity.difference(disk, facts) == ''


def test_link_out_of_the_marked_directory_is_another_file(images, new_uuid, tmp_path):
    disk = images / 'guest' / 'disk'
    facts = identity.identify(str(disk), str(images), new_uuid)
    disk.unlink()
    (tmp_path / 'local').touch()
    disk.symlink_to(tmp_path / 'local')
    assert 'is not on the file system of' in identity.difference(str(disk), facts)


@pytest.mark.parametrize(
    ('here', 'there', 'same'), [('naa.1', 'naa.1', True), ('naa.2', 'naa.1', False), ('', '', False)]
)
def test_device_is_the_same_only_if_both_hosts_know_its_identity(monkeypatch, here, there, same):
    monkeypatch.setattr(identity.stat, 'S_ISBLK', lambda _mode: True)
    monkeypatch.setattr(identity, 'device_of', lambda _path: there)
    facts = identity.identify('/dev/null', '/instances', lambda: 'never')
    assert facts == {'device': there}
    monkeypatch.setattr(identity, 'device_of', lambda _path: here)
    assert (identity.difference('/dev/null', facts) == '') is same


def test_directory_that_cannot_be_written_to_is_an_error(images, new_uuid, monkeypatch):
    def refuses(*_arguments):
        raise PermissionError(13, 'Permission denied')

    monkeypatch.setattr(identity.os, 'open', refuses)
    with pytest.raises(OSError, match='Permission denied'):
        identity.identify(str(images / 'guest' / 'disk'), str(images), new_uuid)


# --- block devices ---------------------------------------------------------------------------------------------------


@pytest.fixture
def device(tmp_path):
    """Write what the kernel shows of /dev/null, as if it were a block device; return its identity."""
    number = os.stat('/dev/null').st_rdev

    def made(**files):
        directory = tmp_path / 'sys' / f'{os.major(number)}:{os.minor(number)}'
        for name, content in files.items():
            file = directory / name.replace('__', '/')
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f'{content}\n')
        return identity.device_of('/dev/null', str(tmp_path / 'sys'), str(tmp_path / 'by-res'))

    return made


KRBD = {'device__cluster_fsid': 'f', 'device__pool': 'vms', 'device__image_id': '1a2b', 'device__current_snap': '-'}
SERIAL = 'e0ff4dc1-8a8d-4d3a-9'


@pytest.mark.parametrize(
    ('files', 'found'),
    [
        ({'wwid': 'naa.600140512345'}, 'naa.600140512345'),
        ({'device__wwid': 'naa.600140512345'}, 'naa.600140512345'),
        ({'dm__uuid': 'LVM-abc'}, 'LVM-abc'),
        (KRBD, 'rbd:f/vms/1a2b//-'),
        ({**KRBD, 'device__pool_ns': 'ours'}, 'rbd:f/vms/1a2b/ours/-'),
        ({'serial': SERIAL}, f'serial:{SERIAL}'),
        ({'serial': 'disk1'}, ''),
        ({'device__pool': 'vms'}, ''),
        ({}, ''),
    ],
)
def test_block_device_is_identified_by_what_the_kernel_shows(device, files, found):
    assert device(**files) == found


def test_device_of_drbd_is_identified_by_its_resource(device, tmp_path):
    (tmp_path / 'by-res' / 'r0').mkdir(parents=True)
    (tmp_path / 'by-res' / 'r0' / '0').symlink_to('/dev/zero')
    assert device() == ''
    (tmp_path / 'by-res' / 'r0' / '1').symlink_to('/dev/null')
    assert device() == 'drbd:r0/1'


def test_partition_is_identified_by_its_disk(device, tmp_path):
    number = os.stat('/dev/null').st_rdev
    disk = tmp_path / 'devices' / 'sda'
    (disk / 'sda3').mkdir(parents=True)
    (disk / 'wwid').write_text('naa.600140512345\n')
    (disk / 'sda3' / 'partition').write_text('3\n')
    (tmp_path / 'sys').mkdir()
    (tmp_path / 'sys' / f'{os.major(number)}:{os.minor(number)}').symlink_to(disk / 'sda3')
    assert device() == 'naa.600140512345-part3'


def test_what_does_not_exist_has_no_identity(tmp_path):
    assert identity.device_of('/nowhere', str(tmp_path), str(tmp_path)) == ''


# --- files that a guest only reads -----------------------------------------------------------------------------------


@pytest.mark.parametrize('size', [1000, 8 * 2**20])
@pytest.mark.parametrize('at', [0, 0.5, 1])
def test_fingerprint_shows_another_content_of_the_same_size(tmp_path, size, at):
    one, other = tmp_path / 'one', tmp_path / 'other'
    one.write_bytes(bytes(size))
    content = bytearray(size)
    # Of a large file only some parts are read. Images of CDs differ in many places.
    for near in range(-40_000, 40_000, 500):
        content[min(size - 1, max(0, int(at * size) + near))] = 1
    other.write_bytes(content)
    assert identity.fingerprint(str(one)) == identity.fingerprint(str(one))
    assert identity.fingerprint(str(one)) != identity.fingerprint(str(other))
    other.write_bytes(bytes(size + 1))
    assert identity.fingerprint(str(one)) != identity.fingerprint(str(other))


def test_file_that_is_no_marker_proves_nothing(tmp_path):
    (tmp_path / 'disk').touch()
    (tmp_path / 'mark').touch()
    for marker in (tmp_path, tmp_path / 'mark', '/'):
        facts = {'marker': str(marker), 'inode': os.stat(marker).st_ino}
        assert 'is no marker' in identity.difference(str(tmp_path / 'disk'), facts)
