# SPDX-License-Identifier: Apache-2.0

"""Whether a marker shows that two hosts have the same file, with directories for their storage."""

import itertools
import shutil

import pytest

from migrator.virt.libvirt import storage


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
    facts = [storage.identify(str(images / name), str(images), new_uuid) for name in ('guest/disk', 'other')]
    assert facts[0] == facts[1]
    assert [path.name for path in images.glob('.*')] == [f'{storage.MARKER}uuid-1']
    assert [path.name for path in (images / 'guest').iterdir()] == ['disk']
    assert storage.difference(str(images / 'guest' / 'disk'), facts[0]) == ''


def test_file_outside_of_instances_path_has_the_marker_beside_it(images, new_uuid, tmp_path):
    facts = storage.identify(str(images / 'guest' / 'disk'), str(tmp_path / 'nowhere'), new_uuid)
    assert facts['marker'] == str(images / 'guest' / f'{storage.MARKER}uuid-1')
    assert storage.difference(str(images / 'guest' / 'disk'), facts) == ''


def test_directory_of_the_same_path_without_the_marker_is_another_one(images, new_uuid):
    facts = storage.identify(str(images / 'guest' / 'disk'), str(images), new_uuid)
    # The other host has a directory of the same path, with a stale disk and a marker of its own.
    next(images.glob(f'{storage.MARKER}*')).unlink()
    storage.identify(str(images / 'guest' / 'disk'), str(images), new_uuid)
    assert 'is missing here' in storage.difference(str(images / 'guest' / 'disk'), facts)


def test_copied_marker_is_recognized_where_hosts_do_not_share_the_file_system(images, new_uuid, monkeypatch):
    disk = str(images / 'guest' / 'disk')
    facts = storage.identify(disk, str(images), new_uuid)
    shutil.copytree(images, images.parent / 'copy')
    images.rename(images.parent / 'old')
    (images.parent / 'copy').rename(images)
    monkeypatch.setattr(storage, 'filesystem_of', lambda _path: 'ext4')
    assert 'is a copy here, on ext4' in storage.difference(disk, facts)
    # NFS and its like need not report the same inode to all clients.
    monkeypatch.setattr(storage, 'filesystem_of', lambda _path: 'nfs4')
    assert storage.difference(disk, facts) == ''


def test_link_out_of_the_marked_directory_is_another_file(images, new_uuid, tmp_path):
    disk = images / 'guest' / 'disk'
    facts = storage.identify(str(disk), str(images), new_uuid)
    disk.unlink()
    (tmp_path / 'local').touch()
    disk.symlink_to(tmp_path / 'local')
    assert 'is not on the file system of' in storage.difference(str(disk), facts)


@pytest.mark.parametrize(
    ('here', 'there', 'same'), [('naa.1', 'naa.1', True), ('naa.2', 'naa.1', False), ('', '', False)]
)
def test_device_is_the_same_only_if_both_hosts_know_its_identity(monkeypatch, here, there, same):
    monkeypatch.setattr(storage.stat, 'S_ISBLK', lambda _mode: True)
    monkeypatch.setattr(storage, 'identity_of', lambda _path: there)
    facts = storage.identify('/dev/null', '/instances', lambda: 'never')
    assert facts == {'device': there}
    monkeypatch.setattr(storage, 'identity_of', lambda _path: here)
    assert (storage.difference('/dev/null', facts) == '') is same


def test_directory_that_cannot_be_written_to_is_an_error(images, new_uuid, monkeypatch):
    def refuses(*_arguments):
        raise PermissionError(13, 'Permission denied')

    monkeypatch.setattr(storage.os, 'open', refuses)
    with pytest.raises(OSError, match='Permission denied'):
        storage.identify(str(images / 'guest' / 'disk'), str(images), new_uuid)
