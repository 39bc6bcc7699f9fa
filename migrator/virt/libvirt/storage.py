# SPDX-License-Identifier: Apache-2.0

"""A guest's disks: which of them both hosts see, which are copied, and what is made for those and removed again.

A file is never overwritten, and none is removed that this host has not made for the guest, or that is not the very
file (by its inode) that was copied away.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import subprocess
from collections.abc import Callable, Iterable
from typing import Any
from xml.etree import ElementTree

from migrator import exception
from migrator.objects import LiveMigrateData
from migrator.virt.libvirt import records

#: What hosts share by its nature, by the kernel's names.
SHARED_FILESYSTEMS = frozenset(
    {
        '9p', 'afs', 'beegfs', 'ceph', 'cifs', 'fuse.ceph', 'fuse.glusterfs', 'fuse.mfs', 'fuse.sshfs', 'gfs2', 'gpfs',
        'lustre', 'nfs', 'nfs4', 'ocfs2', 'pvfs2', 'smb3', 'virtiofs', 'vxfs',
    }
)  # fmt: skip
#: With one of these the host's page cache holds nothing of the disk that another host would miss.
_UNCACHED = ('none', 'directsync')
#: What is said of a file in the way of a copy that has the inode of what is to be copied.
_MAY_BE_ITS_OWN = (
    'it looks like the very disk of the guest, on storage that both hosts share and that was not taken for shared. Do '
    'not touch it; have it below an instances_path that is the same directory on both hosts, or mark it shareable'
)
#: Seconds that qemu-img may take to make an empty image.
_MAKE_IMAGE = 60


@dataclasses.dataclass(frozen=True)
class Disk:
    """One writable disk of a guest.

    :ivar target: its name in the guest, such as ``vda``.
    :ivar kind: of its source: ``file``, ``block``, ``network`` or another of libvirt's words.
    :ivar path: of a file or a block device; '' for another.
    :ivar format: ``qcow2``, ``raw`` ...
    :ivar size: what the guest sees of it, in bytes.
    :ivar allocation: what it takes on its storage, in bytes.
    :ivar inode: of a file; 0 for another.
    :ivar shared: whether the destination sees it too.
    :ivar cache: libvirt's word for how the host caches it.
    :ivar identity: of a block device: what it is on whatever host; '' if that cannot be told.
    """

    target: str
    kind: str
    path: str = ''
    format: str = 'raw'
    size: int = 0
    allocation: int = 0
    inode: int = 0
    shared: bool = True
    cache: str = 'default'
    identity: str = ''

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Disk:
        """Return the disk that another host has told of; what a newer one tells besides is ignored."""
        return cls(**{field.name: facts[field.name] for field in dataclasses.fields(cls) if field.name in facts})

    @property
    def source(self) -> tuple[str, str, str]:
        """What it is, as far as the guest's definition tells: two looks at one disk find the same."""
        return self.target, self.kind, self.path

    @property
    def coherent(self) -> bool:
        """Whether it is known that two hosts that see it see the same, as nothing of it is held by the host's cache."""
        return self.kind == 'network' or (self.kind in ('file', 'block') and self.cache in _UNCACHED)


def named(definition: str) -> list[Disk]:
    """Return a guest's writable disks as its definition names them, without a look at what is named."""
    xml = ElementTree.fromstring(definition)  # noqa: S314 -- libvirt wrote it
    found = []
    for element in xml.findall('devices/disk'):
        target, source = element.find('target'), element.find('source')
        if element.get('device', 'disk') not in ('disk', 'lun') or target is None or source is None:
            continue
        if element.find('readonly') is not None:
            continue
        driver = element.find('driver')
        kind = element.get('type', 'file')
        disk = Disk(
            target=target.get('dev', ''),
            kind=kind,
            path=source.get('file') or source.get('dev') or '',
            format=(driver.get('type') if driver is not None else None) or 'raw',
            cache=(driver.get('cache') if driver is not None else None) or 'default',
            # Of a file it is found out, unless it says so itself.
            shared=kind != 'file' or element.find('shareable') is not None,
        )
        found.append(disk)
    return found


def measured(domain: Any, disk: Disk) -> Disk:
    """Return a disk with its size, if it is one that may have to be copied.

    :param domain: its guest, a ``libvirt.virDomain``.
    """
    if disk.kind != 'file':
        return disk
    size, allocation, _physical = domain.blockInfo(disk.target)
    return dataclasses.replace(disk, size=size, allocation=allocation)


def logs_of(xml: ElementTree.Element) -> list[str]:
    """Return the files that a guest's consoles are written to.

    :param xml: its definition.
    """
    found = set()
    for device in (each for kind in ('serial', 'console', 'parallel') for each in xml.findall(f'devices/{kind}')):
        log, source = device.find('log'), device.find('source')
        if log is not None:
            found.add(log.get('file', ''))
        if device.get('type') == 'file' and source is not None:
            found.add(source.get('path', ''))
    return sorted(found - {''})


def located(disk: Disk, is_shared: Callable[[str], bool]) -> Disk:
    """Return a disk with what this host's file systems say of it.

    :param is_shared: tells of a file's path whether the destination sees it.
    :raises OSError: it cannot be looked at.
    """
    if disk.kind == 'file':
        shared = disk.shared or is_shared(disk.path)
        return dataclasses.replace(disk, inode=os.stat(disk.path).st_ino, shared=shared)
    if disk.kind == 'block':
        return dataclasses.replace(disk, identity=identity_of(disk.path))
    return disk


def filesystem_of(path: str, mounts: str = '/proc/self/mountinfo') -> str:
    """Return the kernel's name of the file system that a path is on; '' if it cannot be told."""
    best, found = '', ''
    real = os.path.realpath(path)
    with open(mounts, encoding='utf-8', errors='surrogateescape') as lines:
        for line in lines:
            before, _, after = line.partition(' - ')
            point = before.split()[4].encode().decode('unicode_escape')
            within = real == point or real.startswith(point.rstrip('/') + '/')
            # A later mount at the same point hides an earlier one.
            if within and len(point) >= len(best):
                best, found = point, after.split()[0]
    return found


def identity_of(path: str, devices: str = '/sys/dev/block') -> str:
    """Return by what the kernel tells a block device from any other, on whatever host: its World Wide Name, or the uuid
    of a logical volume; '' if there is neither.
    """
    try:
        number = os.stat(path).st_rdev
    except OSError:
        return ''
    device = pathlib.Path(devices) / f'{os.major(number)}:{os.minor(number)}'
    for name in ('wwid', 'device/wwid', 'dm/uuid'):
        with contextlib.suppress(OSError):
            if found := (device / name).read_text().strip():
                return found
    return ''


def is_below(path: str, directory: str) -> bool:
    """Whether a path is in a directory, wherever symbolic links lead."""
    real = os.path.realpath(directory)
    return bool(path) and os.path.commonpath([real, os.path.realpath(path)]) == real


def there(directory: str) -> str:
    """Return a directory, or the nearest above it where it has not been made yet.

    :raises OSError: it cannot be told, as of one on a file system that fails.
    """
    found = os.path.abspath(directory)
    while True:
        try:
            os.stat(found)
            return found
        except FileNotFoundError:
            found = os.path.dirname(found)


def is_beside(path: str, directory: str) -> bool:
    """Whether a file takes its space from the file system that a directory is on."""
    try:
        return os.stat(path).st_dev == os.stat(there(directory)).st_dev
    except OSError:
        return False


def available(directory: str) -> int:
    """Return how many bytes a directory's file system has left; 0 if the directory is not there."""
    try:
        numbers = os.statvfs(directory)
    except OSError:
        return 0
    return numbers.f_bavail * numbers.f_frsize


def disks_of(migrate_data: LiveMigrateData) -> list[Disk]:
    """Return a guest's writable disks as its source has told of them."""
    return [Disk.of(facts) for facts in migrate_data.source.get('disks', [])]


def needed(disks: Iterable[Disk], migrate_data: LiveMigrateData) -> int:
    """Return how many bytes copies of disks will take: what the guest sees of them, or, where more may be promised than
    there is, what they hold.
    """
    return sum(disk.allocation if migrate_data.disk_over_commit else disk.size for disk in disks)


class Room:
    """What is made on this host to receive a guest's disks, and how it is taken away.

    :param host: the name of this compute host, for errors.
    :param kept: where it is written down before it is made.
    """

    def __init__(self, host: str, kept: records.Records) -> None:
        self._host = host
        self._kept = kept

    def begin(self, instance_uuid: str) -> None:
        """Write down that a guest is expected."""
        if self._kept.read(records.INCOMING, instance_uuid) is None:
            self._kept.write(records.INCOMING, instance_uuid, {'files': {}, 'directories': []})

    def check(self, disk: Disk, instances_path: str) -> None:
        """See to it that a disk that both hosts are to see is seen from here, and not another of its name.

        :param instances_path: of files in it the source has seen for itself that it is shared.
        :raises migrator.exception.MigrationPreCheckError: it is not.
        """
        if not disk.path:
            return
        if not os.path.exists(disk.path):
            raise exception.MigrationPreCheckError(
                reason=f'{disk.path} (disk {disk.target}) is shared by the word of the source, and {self._host} does '
                'not see it: mount it there, or ask for block_migration auto'
            )
        if disk.kind == 'block':
            self._check_device(disk)
        if disk.kind != 'file' or pathlib.Path(disk.path).is_relative_to(os.path.abspath(instances_path)):
            return
        kind = filesystem_of(disk.path)
        if kind not in SHARED_FILESYSTEMS and os.stat(disk.path).st_ino != disk.inode:
            raise exception.MigrationPreCheckError(
                reason=f'{disk.path} (disk {disk.target}) is shared by the word of the source, and at {self._host} it '
                f'is another file, on {kind}, which hosts do not share: mount there what the source has there'
            )

    def _check_device(self, disk: Disk) -> None:
        here = identity_of(disk.path)
        if here and here == disk.identity:
            return
        was, is_ = disk.identity or 'none that can be told', here or 'none that can be told'
        raise exception.MigrationPreCheckError(
            reason=f'{disk.path} (disk {disk.target}) cannot be shown to be the same device at {self._host}: its '
            f'identity is {was} at the source, and {is_} here; name it by a path that is the same volume on both hosts'
        )

    def refuse_too_little(self, instance_uuid: str, disks: Iterable[Disk], migrate_data: LiveMigrateData) -> None:
        """Refuse disks that will be copied, and do not fit where they are to be; those that were made are looked at
        again, for they are empty yet.

        :raises migrator.exception.MigrationPreCheckError: a file system has too little left.
        """
        together: dict[int, list[Disk]] = {}
        for disk in disks:
            together.setdefault(os.stat(there(os.path.dirname(disk.path))).st_dev, []).append(disk)
        for group in together.values():
            wanted, left = needed(group, migrate_data), available(there(os.path.dirname(group[0].path)))
            if wanted > left:
                names = ', '.join(f'{disk.path} ({disk.target})' for disk in group)
                raise exception.MigrationPreCheckError(
                    reason=f'{self._host} has {left // 2**20} MiB left for {names} of guest {instance_uuid}, and '
                    f'{wanted // 2**20} MiB are to be copied there'
                )

    def make(self, instance_uuid: str, disk: Disk) -> None:
        """Make an empty image for a disk that will be copied; once made, it is found made.

        :raises migrator.exception.MigrationPreCheckError: another file is in its place.
        :raises migrator.exception.DriverError: it cannot be made.
        """
        facts = self._kept.read(records.INCOMING, instance_uuid) or {'files': {}, 'directories': []}
        path = pathlib.Path(disk.path)
        if self._is_made(facts, disk.path):
            return
        if path.exists():
            raise exception.MigrationPreCheckError(
                reason=f'{disk.path} (disk {disk.target}) exists at {self._host} already, and is not overwritten: '
                + (_MAY_BE_ITS_OWN if path.stat().st_ino == disk.inode else 'move it away')
            )
        self._make_directory(instance_uuid, facts, path.parent)
        # Its draft has a name that nobody else uses, so that it may be removed whoever asks.
        draft = self._draft(disk.path, instance_uuid)
        draft.unlink(missing_ok=True)
        facts['files'][disk.path] = 0
        self._kept.write(records.INCOMING, instance_uuid, facts)
        self._make_image(draft, disk)
        facts['files'][disk.path] = draft.stat().st_ino
        self._kept.write(records.INCOMING, instance_uuid, facts)
        try:
            os.link(draft, path)
        except FileExistsError:
            raise exception.MigrationPreCheckError(
                reason=f'{disk.path} has appeared at {self._host} meanwhile, and is not overwritten'
            ) from None
        draft.unlink()

    def make_place(self, instance_uuid: str, path: str) -> None:
        """Make the directory in which QEMU, or libvirt for it, will make a file, such as a console's log.

        :raises OSError: it cannot be made.
        """
        facts = self._kept.read(records.INCOMING, instance_uuid) or {'files': {}, 'directories': []}
        self._make_directory(instance_uuid, facts, pathlib.Path(path).parent)
        if str(pathlib.Path(path).parent) in facts['directories'] and path not in facts.get('logs', []):
            # It did not exist before its directory did, so that whatever appears there is this guest's.
            facts['logs'] = [*facts.get('logs', []), path]
            self._kept.write(records.INCOMING, instance_uuid, facts)

    def _make_directory(self, instance_uuid: str, facts: dict[str, Any], directory: pathlib.Path) -> None:
        missing = [str(each) for each in reversed([directory, *directory.parents]) if not each.exists()]
        if missing:
            facts['directories'] = [*facts['directories'], *missing]
            self._kept.write(records.INCOMING, instance_uuid, facts)
            directory.mkdir(parents=True, exist_ok=True)

    def keep(self, instance_uuid: str) -> None:
        """The guest has arrived: what was made is its own now."""
        self._kept.remove(records.INCOMING, instance_uuid)

    def remove(self, instance_uuid: str) -> None:
        """Remove everything that was made for a guest that has not come."""
        facts = self._kept.read(records.INCOMING, instance_uuid)
        if facts is None:
            return
        for path, inode in facts['files'].items():
            self._draft(path, instance_uuid).unlink(missing_ok=True)
            remove_file(path, inode)
        for log in facts.get('logs', []):
            pathlib.Path(log).unlink(missing_ok=True)
        for directory in reversed(facts['directories']):
            # One that others use meanwhile stays.
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        self._kept.remove(records.INCOMING, instance_uuid)

    def _is_made(self, facts: dict[str, Any], path: str) -> bool:
        inode = facts['files'].get(path)
        return bool(inode) and os.path.exists(path) and os.stat(path).st_ino == inode

    def _make_image(self, draft: pathlib.Path, disk: Disk) -> None:
        argv = ['qemu-img', 'create', '-q', '-f', disk.format, str(draft), str(disk.size)]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=_MAKE_IMAGE, check=False)  # noqa: S603 -- no shell
            failure = done.stderr.strip() if done.returncode else ''
        except (OSError, subprocess.TimeoutExpired) as error:
            failure = str(error)
        if failure:
            raise exception.DriverError(host=self._host, phase='pre_live_migration', reason=f'{disk.path}: {failure}')

    @staticmethod
    def _draft(path: str, instance_uuid: str) -> pathlib.Path:
        return pathlib.Path(f'{path}.{instance_uuid}.draft')


def remove_file(path: str, inode: int) -> bool:
    """Remove a file if it is still the very one that is meant; return whether it was."""
    try:
        if not inode or os.stat(path).st_ino != inode:
            return False
        real = os.path.realpath(path)
        os.unlink(real)
        if real != path:
            pathlib.Path(path).unlink(missing_ok=True)
    except FileNotFoundError:
        return False
    return True
