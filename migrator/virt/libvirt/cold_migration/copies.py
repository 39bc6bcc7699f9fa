# SPDX-License-Identifier: Apache-2.0

"""The copies of disks that the source of a cold migration makes at the destination.

The daemon there receives them. Each copy has a directory of its own, the draft, beside the place of the disk. It is a
storage pool of that daemon while the source sends the content there, in a stream into a volume of the pool. A second
file in the draft says that the copy is whole. The destination gives the copy the name of the disk, and removes the
draft.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape

import libvirt

from migrator import exception
from migrator.virt.libvirt import storage
from migrator.virt.libvirt.connection import code_of
from migrator.virt.libvirt.definition.disks import chain_of

_PERMISSIONS = '<permissions><mode>{mode}</mode><owner>{user}</owner><group>{group}</group></permissions>'
_POOL = f'<pool type="dir"><name>{{name}}</name><target><path>{{path}}</path>{_PERMISSIONS}</target></pool>'
_VOLUME = (
    '<volume><name>{name}</name><capacity>{size}</capacity><allocation>0</allocation>'
    f'<target><format type="raw"/>{_PERMISSIONS}</target></volume>'
)
#: Where the content of a file ends.
_END = (True, 0)


def draft_of(disk: storage.Disk, instance_uuid: str, token: str) -> str:
    """Return the path of the directory for a copy, on the file system that will have the disk.

    :param token: is unique to this move, so that it never takes the copy of an earlier one, which is outdated, for its
        own.
    """
    return f'{_directory(disk)}/{instance_uuid}-{disk.target}-{token}.draft'


def undefine_pools(connection: Any, draft: str) -> None:
    """Undefine the storage pools of this host that an interrupted copy has left.

    :param connection: a ``libvirt.virConnect`` to the daemon of this host.
    :param draft: the path of a draft; its last part may have wildcards.
    """
    for pool in connection.listAllStoragePools():
        if fnmatch.fnmatchcase(pool.name(), os.path.basename(draft)):
            if pool.isActive():
                pool.destroy()
            pool.undefine()


def remove(draft: str) -> None:
    """Remove the drafts of this host with a path, whose last part may have wildcards."""
    path = pathlib.Path(draft)
    for found in path.parent.glob(path.name):
        storage.remove_draft(str(found))


def _directory(disk: storage.Disk) -> str:
    return storage.existing(os.path.dirname(disk.path)).rstrip('/')


# --- at the source ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def content_of(host: str, disk: storage.Disk, instance_uuid: str) -> Iterator[str]:
    """Yield the path of a file that has everything of a disk.

    This is the disk itself, or a temporary file if other files back the disk. What backs a disk that the guest only
    reads is copied as it is.

    :param host: the name of this host, for errors.
    :raises migrator.exception.DriverError: the disk is in use or unreadable, or there is no room for the file.
    """
    if disk.read_only or len(chain_of(disk, in_use=False)) <= 1:
        yield disk.path
        return
    merged = pathlib.Path(f'{disk.path}.{instance_uuid}.merged')
    merged.unlink(missing_ok=True)
    argv = ['qemu-img', 'convert', '-q', '-f', disk.format, '-O', disk.format, disk.path, str(merged)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603 -- no shell
        if done.returncode:
            reason = f'cannot merge {disk.path} and the files that back it: {" ".join(done.stderr.split())}'
            raise exception.DriverError(host=host, phase='migrate_disk_and_power_off', reason=reason)
        yield str(merged)
    finally:
        merged.unlink(missing_ok=True)


def upload(connection: Any, path: str, draft: str, owner: tuple[int, int], made: bool = False) -> None:
    """Copy a file to a draft at another host, unless its copy there is whole already.

    Holes are not sent. A file that is there already keeps its inode: the destination has made it, and it is empty.

    :param connection: a ``libvirt.virConnect`` to the daemon of that host.
    :param owner: the user and the group that own the copy.
    :param made: whether the destination has made the file.
    """
    who = {'user': owner[0], 'group': owner[1]}
    pool = _pool(connection, draft, **who, build=not made)
    if _volume(pool, storage.WHOLE) is None:
        if not made:
            _delete(pool, storage.COPY)
        with open(path, 'rb', buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if made:
                volume = pool.storageVolLookupByName(storage.COPY)
            else:
                volume = pool.createXML(_VOLUME.format(name=storage.COPY, size=size, mode='0600', **who), 0)
            stream = connection.newStream(0)
            volume.upload(stream, 0, 0, libvirt.VIR_STORAGE_VOL_UPLOAD_SPARSE_STREAM)
            try:
                stream.sparseSendAll(_read, _next, _skip, file.fileno())
            except BaseException:
                with contextlib.suppress(libvirt.libvirtError):
                    stream.abort()
                raise
            stream.finish()
        pool.createXML(_VOLUME.format(name=storage.WHOLE, size=0, mode='0600', **who), 0)
    pool.destroy()
    pool.undefine()


def delete(connection: Any, draft: str) -> None:
    """Delete a draft at another host, if there is one.

    :param connection: a ``libvirt.virConnect`` to the daemon of that host.
    """
    pool = _pool(connection, draft, os.geteuid(), os.getegid())
    for name in (storage.WHOLE, storage.COPY):
        _delete(pool, name)
    pool.destroy()
    pool.delete(0)
    pool.undefine()


def _pool(connection: Any, draft: str, user: int, group: int, build: bool = True) -> Any:
    """Return the storage pool of a draft; create the pool if it does not exist.

    :param build: whether to make the draft too.
    """
    name = os.path.basename(draft)
    try:
        pool = connection.storagePoolLookupByName(name)
    except libvirt.libvirtError as error:
        if code_of(error) != libvirt.VIR_ERR_NO_STORAGE_POOL:
            raise
        xml = _POOL.format(name=escape(name), path=escape(draft), mode='0700', user=user, group=group)
        pool = connection.storagePoolDefineXML(xml, 0)
    if not pool.isActive():
        try:
            pool.create(libvirt.VIR_STORAGE_POOL_CREATE_WITH_BUILD if build else 0)
        except libvirt.libvirtError:
            pool.undefine()
            raise
    return pool


def _volume(pool: Any, name: str) -> Any:
    try:
        return pool.storageVolLookupByName(name)
    except libvirt.libvirtError as error:
        if code_of(error) == libvirt.VIR_ERR_NO_STORAGE_VOL:
            return None
        raise


def _delete(pool: Any, name: str) -> None:
    volume = _volume(pool, name)
    if volume is not None:
        volume.delete(0)


# --- the callbacks of a sparse stream --------------------------------------------------------------------------------


def _read(_stream: Any, amount: int, file: int) -> bytes:
    return os.read(file, amount)


def _next(_stream: Any, file: int) -> tuple[bool, int]:
    """Return whether data comes next rather than a hole, and how many bytes of it."""
    here, size = os.lseek(file, 0, os.SEEK_CUR), os.fstat(file).st_size
    if here >= size:
        return _END
    try:
        data = os.lseek(file, here, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:  # ENXIO: nothing but a hole is left
            raise
        data = size
    end = data if data > here else os.lseek(file, here, os.SEEK_HOLE)
    os.lseek(file, here, os.SEEK_SET)
    return data == here, end - here


def _skip(_stream: Any, amount: int, file: int) -> int:
    return os.lseek(file, amount, os.SEEK_CUR)
