# SPDX-License-Identifier: Apache-2.0

"""The records of a host and the files of guests' disks, in a temporary directory."""

import dataclasses
import errno
import os
import shutil
from xml.etree import ElementTree

import pytest

from migrator import exception
from migrator.objects import LiveMigrateData
from migrator.virt.libvirt import identity, records, storage

UUID = '00000000-0000-4000-8000-000000000001'


@pytest.fixture
def store(tmp_path):
    made = records.Records(tmp_path / 'store')
    made.prepare()
    return made


@pytest.fixture
def incoming(store):
    return storage.IncomingDisks('beta', store)


def a_disk(path, **facts):
    return storage.Disk(kind='file', path=str(path), **{'target': 'vda', 'size': 2**20, 'shared': False, **facts})


@pytest.fixture
def qemu_img(tmp_path, monkeypatch):
    """A replacement of qemu-img if it is not installed."""
    if shutil.which('qemu-img'):
        return
    script = tmp_path / 'bin' / 'qemu-img'
    script.parent.mkdir()
    script.write_text('#!/bin/sh\ntruncate -s "$6" "$5"\n')
    script.chmod(0o755)
    monkeypatch.setenv('PATH', f'{script.parent}:{os.environ["PATH"]}')


# --- records ---------------------------------------------------------------------------------------------------------


def test_record_can_be_read_until_it_is_removed(store):
    assert store.read(records.INCOMING, UUID) is None
    store.write(records.INCOMING, UUID, {'files': {}})
    store.write(records.INCOMING, UUID, {'files': {'/a': 1}})
    assert store.read(records.INCOMING, UUID) == {'files': {'/a': 1}}
    assert store.list(records.INCOMING) == [UUID]
    assert store.list(records.OUTGOING) == []
    store.remove(records.INCOMING, UUID)
    store.remove(records.INCOMING, UUID)
    assert store.read(records.INCOMING, UUID) is None


def test_record_name_that_is_a_path_is_refused(store):
    with pytest.raises(ValueError, match='instance_uuid'):
        store.write(records.INCOMING, '../elsewhere', {})


# --- disks -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures('qemu_img')
def test_image_is_made_once_and_removed_with_its_directories(incoming, store, tmp_path):
    disk = a_disk(tmp_path / 'images' / 'guest' / 'disk')
    incoming.begin(UUID)
    incoming.make(UUID, disk)
    inode = os.stat(disk.path).st_ino
    incoming.make(UUID, disk)
    assert os.stat(disk.path).st_ino == inode
    assert os.listdir(tmp_path / 'images' / 'guest') == ['disk']
    for _ in range(2):
        incoming.remove(UUID)
        assert not (tmp_path / 'images').exists()
        assert store.read(records.INCOMING, UUID) is None


@pytest.mark.usefixtures('qemu_img')
def test_foreign_file_is_neither_overwritten_nor_removed(incoming, tmp_path):
    disk = a_disk(tmp_path / 'disk')
    (tmp_path / 'disk').write_text('foreign')
    incoming.begin(UUID)
    with pytest.raises(exception.MigrationPreCheckError, match='already exists at beta'):
        incoming.make(UUID, disk)
    incoming.remove(UUID)
    assert (tmp_path / 'disk').read_text() == 'foreign'


def test_file_that_may_be_the_guests_own_disk_is_refused_without_advice_to_move_it(incoming, tmp_path):
    (tmp_path / 'disk').write_text('in use')
    disk = a_disk(tmp_path / 'disk', inode=(tmp_path / 'disk').stat().st_ino)
    incoming.begin(UUID)
    with pytest.raises(exception.MigrationPreCheckError, match='Do not touch it') as caught:
        incoming.make(UUID, disk)
    assert 'move it away' not in str(caught.value)


def test_copies_must_fit_on_the_file_system_of_each_disk(incoming, tmp_path, monkeypatch):
    devices = {str(tmp_path / name): number for number, name in enumerate(('small', 'large'))}
    left = {str(tmp_path / 'small'): 2**20, str(tmp_path / 'large'): 2**30}
    for place in devices:
        os.mkdir(place)
    stat = os.stat

    def on_its_own(path, **more):
        found = stat(path, **more)
        return os.stat_result([*found[:2], devices[path], *found[3:]]) if path in devices else found

    monkeypatch.setattr(storage.os, 'stat', on_its_own)
    monkeypatch.setattr(storage, 'available', lambda path: left[path])

    def refuse(*disks, over=False):
        incoming.refuse_too_little(UUID, disks, LiveMigrateData(disk_over_commit=over))

    fits, large = a_disk(tmp_path / 'small' / 'a'), a_disk(tmp_path / 'large' / 'new' / 'b', size=2**28)
    refuse(fits, large)
    other = a_disk(tmp_path / 'small' / 'c', target='vdb', size=2**20, allocation=0)
    with pytest.raises(exception.MigrationPreCheckError, match=r'beta has 1 MiB left for .*/a \(vda\), .*/c \(vdb\)'):
        refuse(fits, large, other)
    refuse(fits, large, other, over=True)


@pytest.mark.usefixtures('qemu_img')
def test_file_that_replaced_an_image_is_not_removed(incoming, tmp_path):
    disk = a_disk(tmp_path / 'disk')
    incoming.begin(UUID)
    incoming.make(UUID, disk)
    (tmp_path / 'new').write_text('restored by an operator')
    os.replace(tmp_path / 'new', tmp_path / 'disk')
    incoming.remove(UUID)
    assert (tmp_path / 'disk').exists()


@pytest.mark.usefixtures('qemu_img')
def test_unfinished_image_of_a_killed_process_is_removed(incoming, store, tmp_path):
    draft = tmp_path / f'disk.{UUID}.draft'
    store.write(records.INCOMING, UUID, {'files': {str(tmp_path / 'disk'): 0}, 'directories': []})
    draft.write_text('half')
    (tmp_path / 'disk').write_text('foreign, meanwhile')
    incoming.remove(UUID)
    assert not draft.exists()
    assert (tmp_path / 'disk').exists()


@pytest.mark.usefixtures('qemu_img')
def test_image_of_an_arrived_guest_is_kept(incoming, store, tmp_path):
    disk = a_disk(tmp_path / 'disk')
    incoming.begin(UUID)
    incoming.make(UUID, disk)
    incoming.keep(UUID)
    incoming.remove(UUID)
    assert (tmp_path / 'disk').exists()
    assert store.list(records.INCOMING) == []


def test_image_that_cannot_be_made_raises_the_reason(incoming, tmp_path, monkeypatch):
    monkeypatch.setenv('PATH', '/nowhere')
    incoming.begin(UUID)
    with pytest.raises(exception.DriverError, match='qemu-img'):
        incoming.make(UUID, a_disk(tmp_path / 'disk'))
    incoming.remove(UUID)
    assert sorted(os.listdir(tmp_path)) == ['store']


def test_shared_disk_that_is_missing_here_is_refused(incoming, tmp_path):
    with pytest.raises(exception.MigrationPreCheckError, match='mount it there'):
        incoming.check(a_disk(tmp_path / 'disk', shared=True), str(tmp_path))
    (tmp_path / 'disk').touch()
    incoming.check(a_disk(tmp_path / 'disk', shared=True), str(tmp_path))
    incoming.check(storage.Disk(target='vda', kind='network'), str(tmp_path))


def test_other_file_at_the_path_of_a_shared_disk_is_refused(incoming, tmp_path, monkeypatch):
    disk = tmp_path / 'data' / 'disk'
    disk.parent.mkdir()
    disk.touch()
    monkeypatch.setattr(identity, 'filesystem_of', lambda _path: 'ext4')
    with pytest.raises(exception.MigrationPreCheckError, match='ext4'):
        incoming.check(a_disk(disk, shared=True, inode=1), str(tmp_path / 'instances'))
    incoming.check(a_disk(disk, shared=True, inode=disk.stat().st_ino), str(tmp_path / 'instances'))
    monkeypatch.setattr(identity, 'filesystem_of', lambda _path: 'nfs4')
    incoming.check(a_disk(disk, shared=True, inode=1), str(tmp_path / 'instances'))


def test_file_is_removed_only_if_its_inode_matches(tmp_path):
    file = tmp_path / 'disk'
    file.touch()
    inode = file.stat().st_ino
    assert not storage.remove_file(str(file), inode + 1)
    assert not storage.remove_file(str(file), 0)
    assert storage.remove_file(str(file), inode)
    assert not storage.remove_file(str(file), inode)


MOUNTS = (
    rb"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:30 / /var/lib/nova rw - nfs4 filer:/nova rw
31 30 0:31 / /var/lib/nova/local rw - xfs /dev/sdb rw
32 21 0:32 / /var/lib/with\040space rw - ceph mon:/ rw
33 21 0:33 / /var/lib/over rw - ext4 /dev/sdc rw
34 21 0:34 / /var/lib/over rw - fuse.glusterfs gluster:/v rw
35 21 0:35 / /var/lib/NAME rw - tmpfs none rw
36 21 0:36 / /var/lib/OTHER rw - nfs4 filer:/other rw
""".lstrip()
    .replace(b'NAME', b'cl\xe9')
    .replace(b'OTHER', 'größe'.encode())
)


@pytest.mark.parametrize(
    ('path', 'kind'),
    [
        ('/var/lib/libvirt/images/a', 'ext4'),
        ('/var/lib/nova/instances/a', 'nfs4'),
        ('/var/lib/nova', 'nfs4'),
        ('/var/lib/novae', 'ext4'),
        ('/var/lib/nova/local/a', 'xfs'),
        ('/var/lib/with space/a', 'ceph'),
        ('/var/lib/over/a', 'fuse.glusterfs'),
        (os.fsdecode(b'/var/lib/cl\xe9/a'), 'tmpfs'),
        ('/var/lib/größe/a', 'nfs4'),
    ],
)
def test_file_system_of_a_path_is_found(tmp_path, path, kind):
    (tmp_path / 'mountinfo').write_bytes(MOUNTS)
    assert identity.filesystem_of(path, str(tmp_path / 'mountinfo')) == kind


def test_free_space_of_a_missing_directory_is_zero(tmp_path):
    assert storage.available(str(tmp_path)) > 0
    assert storage.available(str(tmp_path / 'nowhere')) == 0


def test_path_below_a_directory_is_recognized_through_links(tmp_path):
    (tmp_path / 'real').mkdir()
    (tmp_path / 'link').symlink_to(tmp_path / 'real')
    (tmp_path / 'real' / 'out').symlink_to('/dev/null')
    assert identity.is_below(str(tmp_path / 'link' / 'disk'), str(tmp_path / 'real'))
    assert identity.is_below(str(tmp_path / 'real' / 'disk'), str(tmp_path / 'link'))
    assert not identity.is_below(str(tmp_path / 'really' / 'disk'), str(tmp_path / 'real'))
    assert not identity.is_below(str(tmp_path / 'real' / 'out'), str(tmp_path / 'real'))


def test_disk_behind_a_link_is_removed_with_the_link(tmp_path):
    (tmp_path / 'disk').touch()
    (tmp_path / 'link').symlink_to(tmp_path / 'disk')
    assert storage.remove_file(str(tmp_path / 'link'), (tmp_path / 'disk').stat().st_ino)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(('was', 'is_'), [('naa.1', 'naa.2'), ('', ''), ('naa.1', ''), ('', 'naa.1')])
def test_device_of_the_same_name_that_may_be_another_is_refused(incoming, monkeypatch, was, is_):
    monkeypatch.setattr(identity, 'device_of', lambda _path: is_)
    with pytest.raises(exception.MigrationPreCheckError, match='cannot be shown to be the same device at beta'):
        incoming.check(storage.Disk(target='vdb', kind='block', path='/dev/null', identity=was), '/instances')
    monkeypatch.setattr(identity, 'device_of', lambda _path: 'naa.1')
    incoming.check(storage.Disk(target='vdb', kind='block', path='/dev/null', identity='naa.1'), '/instances')


def test_unknown_field_of_a_newer_host_is_ignored():
    disk = storage.Disk(target='vda', kind='file', path='/a', size=1)
    assert storage.Disk.of({**vars(disk), 'novelty': 1}) == disk


# --- definitions -----------------------------------------------------------------------------------------------------


def test_writable_disks_of_a_definition_are_found(tmp_path):
    file = tmp_path / 'a'
    file.touch()
    found = storage.defined_disks(f"""<domain><devices>
        <disk type='file'><driver type='qcow2' cache='none'/><source file='{file}'/><target dev='vda'/></disk>
        <disk type='file'><source file='/b'/><target dev='vdb'/><shareable/></disk>
        <disk type='file'><source file='/c'/><target dev='vdc'/><readonly/></disk>
        <disk type='file' device='cdrom'><source file='/d'/><target dev='vdd'/></disk>
        <disk type='network'><source protocol='rbd' name='pool/image'/><target dev='vde'/></disk>
        <disk type='volume'><source pool='p' volume='v'/><target dev='vdf'/></disk>
        </devices></domain>""")
    assert [(one.target, one.kind, one.shared) for one in found] == [
        ('vda', 'file', False),
        ('vdb', 'file', True),
        ('vde', 'network', True),
        ('vdf', 'volume', True),
    ]
    assert (found[0].format, found[0].cache, found[0].path) == ('qcow2', 'none', str(file))
    assert storage.with_identity(found[0], lambda _path: True) == dataclasses.replace(
        found[0], inode=file.stat().st_ino, shared=True
    )


def test_log_files_of_consoles_are_found():
    xml = ElementTree.fromstring("""<domain><devices>
        <serial type='pty'><log file='/i/console.log'/></serial>
        <console type='pty'><log file='/i/console.log'/></console>
        <channel type='unix'><log file='/i/channel.log'/></channel>
        <parallel type='file'><source path='/i/parallel'/></parallel>
        <serial type='tcp'><source path='/no/file'/></serial>
        </devices></domain>""")  # noqa: S314 -- ours
    assert storage.logs_of(xml) == ['/i/channel.log', '/i/console.log', '/i/parallel']


def test_directory_of_a_log_is_made_and_removed_with_the_log(incoming, store, tmp_path):
    incoming.begin(UUID)
    log = tmp_path / 'instances' / UUID / 'console.log'
    for _ in range(2):
        incoming.make_log_directory(UUID, str(log))
    log.write_text('what QEMU wrote at its start')
    incoming.remove(UUID)
    assert not (tmp_path / 'instances').exists()
    assert store.list(records.INCOMING) == []


def test_log_in_a_directory_that_existed_before_is_kept(incoming, tmp_path):
    incoming.begin(UUID)
    log = tmp_path / 'console.log'
    log.write_text('from an earlier stay of the guest')
    incoming.make_log_directory(UUID, str(log))
    incoming.remove(UUID)
    assert log.read_text() == 'from an earlier stay of the guest'


def test_file_on_the_file_system_of_instances_is_recognized(tmp_path):
    (tmp_path / 'a').touch()
    assert storage.is_beside(str(tmp_path / 'a'), str(tmp_path / 'not' / 'made' / 'yet'))
    assert not storage.is_beside('/proc/self/status', str(tmp_path))
    assert not storage.is_beside(str(tmp_path / 'gone'), str(tmp_path))


@pytest.mark.parametrize('error', [errno.ESTALE, errno.EIO, errno.ETIMEDOUT])
def test_failing_file_system_is_not_replaced_by_the_one_above_it(tmp_path, monkeypatch, error):
    stat = os.stat

    def fails(path, *args, **more):
        if str(path) == str(tmp_path / 'mounted'):
            raise OSError(error, os.strerror(error))
        return stat(path, *args, **more)

    assert storage.existing(str(tmp_path / 'not' / 'made')) == str(tmp_path)
    monkeypatch.setattr(os, 'stat', fails)
    with pytest.raises(OSError, match=os.strerror(error)):
        storage.existing(str(tmp_path / 'mounted'))
