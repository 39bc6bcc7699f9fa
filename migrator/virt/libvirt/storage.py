# SPDX-License-Identifier: Apache-2.0

"""The disks of a guest: which are shared, which are copied, and the files made for the copies.

A file is never overwritten. A file is removed only if this host made it for the guest, or if it is the very file, by
its inode, that was copied to the destination.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Iterable
from typing import Any
from xml.etree import ElementTree

from migrator import exception
from migrator.objects import LiveMigrateData
from migrator.virt.libvirt import identity, records

#: The cache modes with which the host's page cache holds no data of the disk that another host would miss.
_UNCACHED = ('none', 'directsync')
#: The advice if the file in the way of a copy has the inode of the disk to copy.
_MAY_BE_ITS_OWN = (
    'it looks like the disk of the guest itself, on shared storage that was not recognized as shared. Do not touch it; '
    'keep it below an instances_path that is the same directory on both hosts, or mark it shareable'
)
#: The names of a copy in its draft, and of the file that says that the copy is whole.
COPY, WHOLE = 'disk', 'whole'
#: The devices of a guest that can write to a file, as consoles do.
CHARACTER_DEVICES = ('serial', 'console', 'parallel', 'channel')
#: Seconds that qemu-img may take to make an empty image.
_MAKE_IMAGE = 60


@dataclasses.dataclass(frozen=True)
class Disk:
    """One disk of a guest, or another file that it reads.

    :ivar target: the name of the disk in the guest, such as ``vda``.
    :ivar kind: libvirt's type of the source: ``file``, ``block``, ``network`` or another.
    :ivar path: the path of a file or a block device; '' for another kind.
    :ivar format: ``qcow2``, ``raw`` ...
    :ivar size: the size that the guest sees, in bytes.
    :ivar allocation: the space that the disk takes on its storage, in bytes.
    :ivar inode: the inode of a file; 0 for another kind.
    :ivar shared: whether the destination sees the disk too.
    :ivar cache: libvirt's name of the cache mode.
    :ivar identity: an identifier of a block device that is the same on every host; '' if it is unknown. Of a disk in a
        file that the guest only reads, its fingerprint.
    :ivar read_only: whether the guest only reads it.
    :ivar optional: whether the guest starts without it.
    :ivar copyable: whether a file that the guest only reads is copied to a destination that does not have it.
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
    read_only: bool = False
    optional: bool = False
    copyable: bool = False

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Disk:
        """Return the disk that another host has reported.

        Unknown fields of a newer host are ignored.
        """
        return cls(**{field.name: facts[field.name] for field in dataclasses.fields(cls) if field.name in facts})

    @property
    def source(self) -> tuple[str, str, str]:
        """The identity of the disk in the guest's definition, for the comparison of two definitions."""
        return self.target, self.kind, self.path

    @property
    def coherent(self) -> bool:
        """Whether two hosts are known to see the same data, because the host's cache holds none of it."""
        return self.kind == 'network' or (self.kind in ('file', 'block') and self.cache in _UNCACHED)


def defined_disks(definition: str, read_only: bool = False) -> list[Disk]:
    """Return the writable disks that a guest's definition names, without access to the storage.

    :param read_only: whether to return the disks that the guest only reads too, such as CDs.
    """
    xml = ElementTree.fromstring(definition)  # noqa: S314 -- libvirt wrote it
    found = []
    for element in xml.findall('devices/disk'):
        target, source = element.find('target'), element.find('source')
        if target is None or source is None:
            continue
        writable = element.get('device') != 'cdrom' and element.find('readonly') is None
        if not writable and not read_only:
            continue
        driver = element.find('driver')
        kind = element.get('type', 'file')
        disk = Disk(
            target=target.get('dev', ''),
            kind=kind,
            path=source.get('file') or source.get('dev') or '',
            format=(driver.get('type') if driver is not None else None) or 'raw',
            cache=(driver.get('cache') if driver is not None else None) or 'default',
            # For a file this is found out later, unless the definition marks it as shareable.
            shared=kind != 'file' or element.find('shareable') is not None,
            read_only=not writable,
        )
        found.append(disk)
    return found


def with_size(domain: Any, disk: Disk) -> Disk:
    """Return a disk with its size, if the disk may have to be copied.

    :param domain: the guest, a ``libvirt.virDomain``.
    """
    if disk.kind != 'file':
        return disk
    size, allocation, _physical = domain.blockInfo(disk.target)
    return dataclasses.replace(disk, size=size, allocation=allocation)


def logs_of(xml: ElementTree.Element) -> list[str]:
    """Return the files that the consoles of a guest write to.

    :param xml: the definition of the guest.
    """
    found = set()
    for device in (each for kind in CHARACTER_DEVICES for each in xml.findall(f'devices/{kind}')):
        log, source = device.find('log'), device.find('source')
        if log is not None:
            found.add(log.get('file', ''))
        if device.get('type') == 'file' and source is not None:
            found.add(source.get('path', ''))
    return sorted(found - {''})


def with_identity(disk: Disk, is_shared: Callable[[str], bool]) -> Disk:
    """Return a disk with its inode or device identity, and with whether the destination sees it.

    :param is_shared: returns whether the destination sees the file of a path.
    :raises OSError: the file cannot be examined.
    """
    if disk.kind == 'file':
        shared = disk.shared or is_shared(disk.path)
        return dataclasses.replace(disk, inode=os.stat(disk.path).st_ino, shared=shared)
    if disk.kind == 'block':
        return dataclasses.replace(disk, identity=identity.device_of(disk.path))
    return disk


def existing(directory: str) -> str:
    """Return a directory, or the nearest directory above it that exists.

    :raises OSError: the directory cannot be examined, because its file system fails.
    """
    found = os.path.abspath(directory)
    while True:
        try:
            os.stat(found)
            return found
        except FileNotFoundError:
            found = os.path.dirname(found)


def is_beside(path: str, directory: str) -> bool:
    """Return whether a file is on the same file system as a directory."""
    try:
        return os.stat(path).st_dev == os.stat(existing(directory)).st_dev
    except OSError:
        return False


def available(directory: str) -> int:
    """Return the free bytes of a directory's file system, or 0 if the directory does not exist."""
    try:
        numbers = os.statvfs(directory)
    except OSError:
        return 0
    return numbers.f_bavail * numbers.f_frsize


def disks_of(migrate_data: LiveMigrateData) -> list[Disk]:
    """Return the writable disks of a guest as its source has reported them."""
    return [Disk.of(facts) for facts in migrate_data.source.get('disks', [])]


def needed(disks: Iterable[Disk], migrate_data: LiveMigrateData) -> int:
    """Return the bytes that the copies of disks will take.

    A copy counts with the size that the guest sees. With disk_over_commit it counts with the space that the disk takes.
    """
    return sum(disk.allocation if migrate_data.disk_over_commit else disk.size for disk in disks)


class IncomingDisks:
    """The files and directories that this host makes to receive the disks of a guest, and their removal.

    :param host: the name of this compute host, for errors.
    :param store: the records, which name each file before it is made.
    """

    def __init__(self, host: str, store: records.Records) -> None:
        self._host = host
        self._records = store

    def begin(self, instance_uuid: str, token: str = '') -> None:
        """Record that a guest is expected.

        :param token: unique to a cold migration; '' for a live migration or an evacuation. What a record with another
            token names may be the guest's only disk by now, so nothing removes it any more.
        """
        self._records.remove(records.ARRIVED, instance_uuid)
        found = self._records.read(records.INCOMING, instance_uuid)
        if found is None or found.get('token', '') != token:
            self._records.write(records.INCOMING, instance_uuid, {'files': {}, 'directories': [], 'token': token})

    def check(self, disk: Disk, instances_path: str) -> None:
        """Raise if this host does not see a shared disk, or sees another one under its name.

        :param instances_path: a directory whose files are not checked again, because the source has seen that it is
            shared.
        :raises migrator.exception.MigrationPreCheckError: the disk is missing here, or may be another one.
        """
        if not disk.path:
            return
        if not os.path.exists(disk.path):
            raise exception.MigrationPreCheckError(
                reason=f'the source reports {disk.path} (disk {disk.target}) as shared, and host {self._host} does not '
                'see it: mount it there, or request block_migration auto'
            )
        if disk.kind == 'block':
            self._check_device(disk)
        if disk.kind != 'file' or pathlib.Path(disk.path).is_relative_to(os.path.abspath(instances_path)):
            return
        kind = identity.filesystem_of(disk.path)
        if kind not in identity.SHARED_FILESYSTEMS and os.stat(disk.path).st_ino != disk.inode:
            raise exception.MigrationPreCheckError(
                reason=f'the source reports {disk.path} (disk {disk.target}) as shared, and on host {self._host} it is '
                f'another file, on {kind}, which hosts do not share: mount the storage of the source there'
            )

    def _check_device(self, disk: Disk) -> None:
        here = identity.device_of(disk.path)
        if here and here == disk.identity:
            return
        was, is_ = disk.identity or 'unknown', here or 'unknown'
        raise exception.MigrationPreCheckError(
            reason=f'{disk.path} (disk {disk.target}) cannot be shown to be the same device at {self._host}: its '
            f'identity is {was} at the source, and {is_} here; use a path that names the same volume on both hosts'
        )

    def refuse_too_little(self, instance_uuid: str, disks: Iterable[Disk], migrate_data: LiveMigrateData) -> None:
        """Refuse disks whose copies do not fit on the file systems that will hold them.

        Images that were already made count again, because they are still empty.

        :raises migrator.exception.MigrationPreCheckError: a file system has too little space left.
        """
        together: dict[int, list[Disk]] = {}
        for disk in disks:
            together.setdefault(os.stat(existing(os.path.dirname(disk.path))).st_dev, []).append(disk)
        for group in together.values():
            wanted, left = needed(group, migrate_data), available(existing(os.path.dirname(group[0].path)))
            if wanted > left:
                names = ', '.join(f'{disk.path} ({disk.target})' for disk in group)
                raise exception.MigrationPreCheckError(
                    reason=f'{self._host} has {left // 2**20} MiB left for {names} of guest {instance_uuid}, and '
                    f'the copies need {wanted // 2**20} MiB: free space there, or choose another destination'
                )

    def make(self, instance_uuid: str, disk: Disk) -> None:
        """Make an empty image for a disk that will be copied, unless it was made already.

        :raises migrator.exception.MigrationPreCheckError: another file is in its place.
        :raises migrator.exception.DriverError: the image cannot be made.
        """
        facts = self._records.read(records.INCOMING, instance_uuid) or {'files': {}, 'directories': []}
        path = pathlib.Path(disk.path)
        if self._is_made(facts, disk.path):
            return
        if path.exists():
            raise exception.MigrationPreCheckError(
                reason=f'{disk.path} (disk {disk.target}) already exists at {self._host} and is not overwritten: '
                + (_MAY_BE_ITS_OWN if path.stat().st_ino == disk.inode else 'move it away')
            )
        self._make_directory(instance_uuid, facts, path.parent)
        # The name of the draft is unique to this disk and guest, so that any rollback may remove it.
        draft = self._draft(disk.path, instance_uuid)
        draft.unlink(missing_ok=True)
        facts['files'][disk.path] = 0
        self._records.write(records.INCOMING, instance_uuid, facts)
        self._make_image(draft, disk)
        facts['files'][disk.path] = draft.stat().st_ino
        self._records.write(records.INCOMING, instance_uuid, facts)
        try:
            os.link(draft, path)
        except FileExistsError:
            raise exception.MigrationPreCheckError(
                reason=f'{disk.path} appeared at {self._host} during the preparation, and is not overwritten: '
                'move it away'
            ) from None
        draft.unlink()

    def receive(self, instance_uuid: str, disk: Disk, draft: str) -> str:
        """Make an empty file for one that the guest only reads, unless it was made already.

        The source sends the content to the other name of the file, in the draft.

        :param draft: the directory for it, on the file system of the file.
        :returns: the directory that has it, which an earlier call may have made.
        :raises migrator.exception.MigrationPreCheckError: another file is in its place.
        """
        facts = self._records.read(records.INCOMING, instance_uuid) or {'files': {}, 'directories': []}
        if self._is_made(facts, disk.path):
            return str(facts['drafts'][disk.path])
        self._make_directory(instance_uuid, facts, pathlib.Path(disk.path).parent)
        facts['drafts'] = {**facts.get('drafts', {}), disk.path: draft}
        self._records.write(records.INCOMING, instance_uuid, facts)
        remove_draft(draft)
        os.mkdir(draft, 0o700)
        copy = pathlib.Path(draft, COPY)
        copy.touch(mode=0o600)
        os.truncate(copy, disk.size)
        facts['files'][disk.path] = copy.stat().st_ino
        self._records.write(records.INCOMING, instance_uuid, facts)
        try:
            os.link(copy, disk.path)
        except FileExistsError:
            raise exception.MigrationPreCheckError(
                reason=f'{disk.path} (disk {disk.target}) appeared at {self._host} during the preparation, and is not '
                'overwritten: move it away'
            ) from None
        return draft

    def received(self, instance_uuid: str) -> dict[str, str]:
        """Return the files that were made for a guest that only reads them: path -> draft."""
        return dict((self._records.read(records.INCOMING, instance_uuid) or {}).get('drafts', {}))

    def claim(self, instance_uuid: str, path: str) -> None:
        """Record a file that libvirt has made for a guest, such as its NVRAM, so that a revert removes it."""
        facts = self._records.read(records.INCOMING, instance_uuid)
        if facts is not None and os.path.exists(path):
            facts['files'][path] = os.stat(path).st_ino
            self._records.write(records.INCOMING, instance_uuid, facts)

    def adopt(self, instance_uuid: str, disk: Disk, draft: str) -> None:
        """Give the whole copy of a disk the name of the disk, unless it has it already.

        :param draft: the directory of the copy, on the file system of the disk.
        :raises migrator.exception.MigrationPreCheckError: another file is in its place.
        :raises migrator.exception.DriverError: the copy is missing or not whole.
        """
        facts = self._records.read(records.INCOMING, instance_uuid) or {'files': {}, 'directories': []}
        path, copy = pathlib.Path(disk.path), pathlib.Path(draft, COPY)
        if not self._is_made(facts, disk.path):
            if not copy.exists() or not pathlib.Path(draft, WHOLE).exists():
                reason = f'{copy}, the copy of {disk.path} (disk {disk.target}), is missing or not whole'
                raise exception.DriverError(host=self._host, phase='finish_migration', reason=reason)
            with copy.open('rb') as file:
                os.fsync(file)
            self._make_directory(instance_uuid, facts, path.parent)
            facts['files'][disk.path] = copy.stat().st_ino
            self._records.write(records.INCOMING, instance_uuid, facts)
            try:
                os.link(copy, path)
            except FileExistsError:
                raise exception.MigrationPreCheckError(
                    reason=f'{disk.path} (disk {disk.target}) appeared at {self._host} while it was copied, and is not '
                    'overwritten: move it away'
                ) from None
        # The draft is the only other name of the copy.
        for directory in {str(path.parent), *map(os.path.dirname, facts['directories'])}:
            records.sync(directory)
        remove_draft(draft)

    def make_log_directory(self, instance_uuid: str, path: str) -> None:
        """Make the directory in which QEMU or libvirt will create a file, such as the log of a console.

        :raises OSError: the directory cannot be made.
        """
        facts = self._records.read(records.INCOMING, instance_uuid) or {'files': {}, 'directories': []}
        self._make_directory(instance_uuid, facts, pathlib.Path(path).parent)
        is_new = str(pathlib.Path(path).parent) in facts['directories'] and path not in facts.get('logs', [])
        if is_new and path.endswith('.log'):
            # The directory is new, so the log that appears in it belongs to this guest. A source that names another
            # file as a log would have the disk removed that another guest brings there meanwhile.
            facts['logs'] = [*facts.get('logs', []), path]
            self._records.write(records.INCOMING, instance_uuid, facts)

    def _make_directory(self, instance_uuid: str, facts: dict[str, Any], directory: pathlib.Path) -> None:
        missing = [str(each) for each in reversed([directory, *directory.parents]) if not each.exists()]
        if missing:
            facts['directories'] = [*facts['directories'], *missing]
            self._records.write(records.INCOMING, instance_uuid, facts)
            directory.mkdir(parents=True, exist_ok=True)

    def keep(self, instance_uuid: str) -> None:
        """Keep what was made, because the guest has arrived and owns it now."""
        self._records.remove(records.INCOMING, instance_uuid)
        self._records.remove(records.ARRIVED, instance_uuid)

    def note_arrival(self, instance_uuid: str) -> None:
        """Note that the guest has arrived, and that what was made for it can still be removed."""
        facts = self._records.read(records.INCOMING, instance_uuid)
        if facts and (facts['files'] or facts['directories']):
            self._records.write(records.ARRIVED, instance_uuid, facts)
        self._records.remove(records.INCOMING, instance_uuid)

    def remove(self, instance_uuid: str, kind: str = records.INCOMING, token: str = '') -> None:
        """Remove everything that was made for a guest that did not arrive, or whose arrival is reverted.

        :param kind: the record that names what was made.
        :param token: as for :meth:`begin`. A record with another token is left alone.
        """
        facts = self._records.read(kind, instance_uuid)
        if facts is None or facts.get('token', '') != token:
            return
        for path, inode in facts['files'].items():
            self._draft(path, instance_uuid).unlink(missing_ok=True)
            # No symbolic link was made, so one is another's.
            if not os.path.islink(path):
                remove_file(path, inode)
        for log in facts.get('logs', []):
            pathlib.Path(log).unlink(missing_ok=True)
        for directory in reversed(facts['directories']):
            # A directory that is in use by others meanwhile stays.
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        self._records.remove(kind, instance_uuid)

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
            reason = f'cannot make an image at {disk.path}: {failure}'
            raise exception.DriverError(host=self._host, phase='pre_live_migration', reason=reason)

    @staticmethod
    def _draft(path: str, instance_uuid: str) -> pathlib.Path:
        return pathlib.Path(f'{path}.{instance_uuid}.draft')


def remove_draft(draft: str) -> None:
    """Remove the directory of a copy, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(draft)


def remove_directory(path: str, instances_path: str) -> None:
    """Remove the directory of a removed disk if it is the guest's own; it stays if it holds other files."""
    directory = os.path.dirname(path)
    if os.path.realpath(os.path.dirname(directory)) == os.path.realpath(instances_path):
        with contextlib.suppress(OSError):
            os.rmdir(directory)


def remove_file(path: str, inode: int) -> bool:
    """Remove a file if it still has the given inode, and return whether it had."""
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
