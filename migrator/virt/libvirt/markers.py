# SPDX-License-Identifier: Apache-2.0

"""Whether two hosts have the same file, seen without a message between them.

One host leaves an empty file with a random name, the marker, in the directory of the file, and reports the name. A host
that has a marker of this name sees that directory, and not one of its own that has the same path and, perhaps, an old
copy of the file.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable
from typing import Any

from migrator.virt.libvirt import storage

#: The prefix of the name of a marker.
MARKER = '.migrator-directory-'


def identify(path: str, instances_path: str, new_uuid: Callable[[], str]) -> dict[str, Any]:
    """Return what identifies a file or a block device on every host that has it.

    In instances_path all guests have one marker, so that the directory of a guest can be removed with its last disk.

    :param new_uuid: returns a name for a new marker.
    :raises OSError: the file cannot be examined, or the marker cannot be created.
    """
    found = os.stat(path)
    if stat.S_ISBLK(found.st_mode):
        return {'device': storage.identity_of(path)}
    directory = os.path.dirname(os.path.realpath(path))
    if storage.is_below(path, instances_path) and os.stat(instances_path).st_dev == found.st_dev:
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
        here, there = storage.identity_of(path), facts.get('device')
        same = here and here == there
        return '' if same else f'the identity of the device is {here or "unknown"} here and {there or "unknown"} there'
    marker = str(facts.get('marker', ''))
    try:
        mark = os.stat(marker)
    except FileNotFoundError:
        return f'{marker or "a file"}, which the other host left beside it, is missing here'
    if mark.st_dev != found.st_dev or not storage.is_below(path, os.path.dirname(marker)):
        return f'it is not on the file system of {marker} here'
    kind = storage.filesystem_of(marker)
    if kind not in storage.SHARED_FILESYSTEMS and mark.st_ino != facts.get('inode'):
        return f'{marker} is a copy here, on {kind}, which hosts do not share'
    return ''


def _marker(directory: str, new_uuid: Callable[[], str]) -> str:
    """Return the marker of a directory, which is created if there is none.

    Two hosts that create one at the same time leave two. Each of them identifies the directory.
    """
    if found := glob.glob(f'{glob.escape(directory)}/{MARKER}*'):
        return min(found)
    path = f'{directory}/{MARKER}{new_uuid()}'
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444))
    return path
