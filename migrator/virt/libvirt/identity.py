# SPDX-License-Identifier: Apache-2.0

"""Whether two hosts have the same file or block device, seen without a message between them.

One host leaves an empty file with a random name, the marker, in the directory of the file, and reports the name. A host
that has a marker of this name sees that directory, and not one of its own that has the same path and, perhaps, an old
copy of the file. Of a file that a guest only reads, samples of its content are compared.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import pathlib
import re
import stat
from collections.abc import Callable
from typing import Any

#: File systems that hosts share by their nature, by the kernel's names.
SHARED_FILESYSTEMS = frozenset(
    {
        '9p', 'afs', 'beegfs', 'ceph', 'cifs', 'fuse.ceph', 'fuse.glusterfs', 'fuse.mfs', 'fuse.sshfs', 'gfs2', 'gpfs',
        'lustre', 'nfs', 'nfs4', 'ocfs2', 'pvfs2', 'smb3', 'virtiofs', 'vxfs',
    }
)  # fmt: skip
#: How the kernel writes a blank and the like in the name of a mount point.
_OCTAL = re.compile(rb'\\([0-7]{3})')
#: The prefix of the name of a marker.
MARKER = '.migrator-directory-'
#: The parts of a file of which a fingerprint is made, and the bytes of each.
_SAMPLES, _SAMPLE = 64, 64 * 1024
#: The characters of a serial number that can be taken as unique. A shorter one may have been typed, such as disk1.
_SERIAL = 16


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is in a directory, after all symbolic links are resolved."""
    real = os.path.realpath(directory)
    return bool(path) and os.path.commonpath([real, os.path.realpath(path)]) == real


def filesystem_of(path: str, mounts: str = '/proc/self/mountinfo') -> str:
    """Return the kernel's name of the file system that a path is on, or '' if it is unknown."""
    best, found = b'', ''
    # The name of a mount point is bytes in any encoding, or in none.
    real = os.fsencode(os.path.realpath(path))
    with open(mounts, 'rb') as lines:
        for line in lines:
            before, _, after = line.partition(b' - ')
            point = _OCTAL.sub(lambda code: bytes([int(code[1], 8)]), before.split()[4])
            within = real == point or real.startswith(point.rstrip(b'/') + b'/')
            # A later mount at the same point hides an earlier one.
            if within and len(point) >= len(best):
                best, found = point, after.split()[0].decode(errors='replace')
    return found


def device_of(path: str, devices: str = '/sys/dev/block', resources: str = '/dev/drbd/by-res') -> str:
    """Return an identifier of a block device that is the same on every host, or '' if it has none.

    This is the World Wide Name of the device, the uuid of a logical volume, the image of a device of krbd, the resource
    of a device of DRBD, or the serial number of a virtio disk.

    :param devices: the directory in which the kernel lists block devices by their numbers.
    :param resources: the directory in which DRBD names its devices by their resources.
    """
    try:
        number = os.stat(path).st_rdev
    except OSError:
        return ''
    device = pathlib.Path(devices) / f'{os.major(number)}:{os.minor(number)}'
    if (part := _content(device / 'partition')) and (whole := _of_disk(device.resolve().parent, number, resources)):
        return f'{whole}-part{part}'
    return _of_disk(device, number, resources)


def _of_disk(device: pathlib.Path, number: int, resources: str) -> str:
    for name in ('wwid', 'device/wwid', 'dm/uuid'):
        if found := _content(device / name):
            return found
    # krbd shows the parts of an image's name in the directory of its device.
    image = [_content(device / 'device' / name) for name in ('cluster_fsid', 'pool', 'image_id')]
    if all(image):
        more = [_content(device / 'device' / name) for name in ('pool_ns', 'current_snap')]
        return 'rbd:' + '/'.join([*image, *more])
    for link in sorted(glob.glob(f'{glob.escape(resources)}/**', recursive=True)):
        with contextlib.suppress(OSError):
            if os.stat(link).st_rdev == number:
                return f'drbd:{os.path.relpath(link, resources)}'
    serial = _content(device / 'serial')
    return f'serial:{serial}' if len(serial) >= _SERIAL else ''


def _content(path: pathlib.Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors='replace').strip()
    return ''


def digest_of(text: str) -> str:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(path: str) -> str:
    """Return the size of a file and a digest of samples: those of another file differ.

    A file of up to 4 MiB is read whole. Of a larger one, such as the image of a CD, 64 parts are read.

    :raises OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with open(path, 'rb', buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        last = max(0, size - _SAMPLE)
        for number in range(_SAMPLES):
            file.seek(last * number // (_SAMPLES - 1) if size > _SAMPLES * _SAMPLE else number * _SAMPLE)
            digest.update(file.read(_SAMPLE))
    return f'{size}:{digest.hexdigest()}'


def identify(path: str, instances_path: str, new_uuid: Callable[[], str]) -> dict[str, Any]:
    """Return what identifies a file or a block device on every host that has it.

    In instances_path all guests have one marker, so that the directory of a guest can be removed with its last disk.

    :param new_uuid: returns a name for a new marker.
    :raises OSError: the file cannot be examined, or the marker cannot be created.
    """
    found = os.stat(path)
    if stat.S_ISBLK(found.st_mode):
        return {'device': device_of(path)}
    directory = os.path.dirname(os.path.realpath(path))
    if is_below(path, instances_path) and os.stat(instances_path).st_dev == found.st_dev:
        directory = os.path.abspath(instances_path)
    marker = _marker(directory, new_uuid)
    return {'marker': marker, 'inode': os.stat(marker).st_ino}


def difference(path: str, facts: dict[str, Any]) -> str:
    """Return why a file or a block device may differ from the other host's, or '' if it is the same.

    :param facts: what the other host has returned from :func:`identify`.
    :raises OSError: the file cannot be examined.
    """
    found = os.stat(path)
    if stat.S_ISBLK(found.st_mode):
        here, there = device_of(path), facts.get('device')
        same = here and here == there
        return '' if same else f'the identity of the device is {here or "unknown"} here and {there or "unknown"} there'
    marker = str(facts.get('marker', ''))
    if not os.path.basename(marker).startswith(MARKER):
        # Any other file, such as a directory whose inode is known, would say nothing.
        return f'{marker or "an empty name"}, which the other host names, is no marker'
    try:
        mark = os.stat(marker)
    except FileNotFoundError:
        return f'{marker}, which the other host left beside it, is missing here'
    if mark.st_dev != found.st_dev or not is_below(path, os.path.dirname(marker)):
        return f'it is not on the file system of {marker} here'
    kind = filesystem_of(marker)
    if kind not in SHARED_FILESYSTEMS and mark.st_ino != facts.get('inode'):
        return f'{marker} is a copy here, on {kind}, which hosts do not share'
    return ''


def _marker(directory: str, new_uuid: Callable[[], str]) -> str:
    """Return the marker of a directory, which is created if it is missing.

    Two hosts that create one at the same time leave two. Each of them identifies the directory.
    """
    if found := glob.glob(f'{glob.escape(directory)}/{MARKER}*'):
        return min(found)
    path = f'{directory}/{MARKER}{new_uuid()}'
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444))
    return path
