# SPDX-License-Identifier: Apache-2.0

"""The disks that the definition of a guest names, with the files and devices that they are."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from typing import Any
from xml.etree import ElementTree

import libvirt

from migrator import exception
from migrator.virt.libvirt import storage

#: The kinds of disk that a volume of a storage pool can be, if it is a file or device of the host.
_VOLUMES = {libvirt.VIR_STORAGE_VOL_FILE: 'file', libvirt.VIR_STORAGE_VOL_BLOCK: 'block'}
#: Seconds that qemu-img may take to read the headers of a disk, less than the deadline of libvirt calls.
_EXAMINE = 10


def volumes_of(connection: Any, definition: str, read_only: bool = False) -> list[storage.Disk]:
    """Return the files and block devices of the writable disks that are volumes of storage pools.

    :param connection: a ``libvirt.virConnect``.
    :param read_only: whether to return those that the guest only reads too.
    """
    found = []
    xml = ElementTree.fromstring(definition)  # noqa: S314 -- libvirt wrote it
    for disk in storage.defined_disks(definition, read_only):
        source = xml.find(f"devices/disk/target[@dev='{disk.target}']/../source")
        if disk.kind != 'volume' or source is None:
            continue
        pool = connection.storagePoolLookupByName(source.get('pool', ''))
        volume = pool.storageVolLookupByName(source.get('volume', ''))
        kind = _VOLUMES.get(volume.info()[0])
        if kind is not None:
            found.append(dataclasses.replace(disk, kind=kind, path=str(volume.path())))
    return found


def writable_disks(connection: Any, definition: str) -> list[storage.Disk]:
    """Return the disks that a guest writes to, and its NVRAM.

    A volume of a storage pool is returned as its file or device. ``shared`` is whether other guests may use the disk
    too.
    """
    xml = ElementTree.fromstring(definition)  # noqa: S314 -- libvirt wrote it
    volumes = {disk.target: disk for disk in volumes_of(connection, definition)}
    found = []
    for disk in storage.defined_disks(definition):
        # A volume that is neither a file nor a device is on a network.
        kind = 'network' if disk.kind == 'volume' else disk.kind
        volume = volumes.get(disk.target, dataclasses.replace(disk, kind=kind))
        shareable = xml.find(f"devices/disk/target[@dev='{disk.target}']/../shareable") is not None
        found.append(dataclasses.replace(volume, shared=shareable))
    nvram = xml.find('os/nvram')
    if nvram is not None:
        source = nvram.find('source')
        path = (source.get('file') or source.get('dev')) if source is not None else nvram.text
        kind, format_ = nvram.get('type', 'file'), nvram.get('format', 'raw')
        found.append(storage.Disk(target='nvram', kind=kind, path=path or '', format=format_, shared=False))
    return found


def chain_of(disk: storage.Disk, in_use: bool) -> list[str]:
    """Return the file or device of a disk, and those that back it.

    :param in_use: whether a QEMU may use the disk.
    :raises migrator.exception.DriverError: a part of it is missing or unreadable, or a QEMU uses it.
    """
    if disk.kind not in ('file', 'block'):
        return []
    argv = ['qemu-img', 'info', '--output=json', '--backing-chain', '-f', disk.format, disk.path]
    if in_use:
        argv.append('--force-share')
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_EXAMINE, check=False)  # noqa: S603 -- no shell
    except subprocess.TimeoutExpired:
        raise exception.DriverError(f'qemu-img did not read it within {_EXAMINE} s') from None
    if done.returncode:
        raise exception.DriverError(' '.join(done.stderr.split()))
    names = [str(image['filename']) for image in json.loads(done.stdout)]
    # A name that is no path is that of a network disk. A name in JSON may be anything, and is not recognized.
    return [name for name in names if name.startswith(('/', 'json:'))]
