# SPDX-License-Identifier: Apache-2.0

"""The disks that the definition of a guest names, with the files and devices that they are."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import subprocess
from collections.abc import Collection, Iterable, Iterator
from typing import Any
from xml.dom import minidom
from xml.etree import ElementTree

import libvirt

from migrator import exception
from migrator.virt.libvirt import identity, storage
from migrator.virt.libvirt.definition.places import is_regular

#: The kinds of disk that a volume of a storage pool can be, if it is a file or device of the host.
_VOLUMES = {libvirt.VIR_STORAGE_VOL_FILE: 'file', libvirt.VIR_STORAGE_VOL_BLOCK: 'block'}
#: What the operating system of a guest may be given as a file.
_OF_THE_SYSTEM = ('kernel', 'initrd', 'dtb', 'loader', 'shim')
#: What its firmware and its devices are given -> the elements, and the attribute that names the file ('': the text).
_TABLES = {
    'table': ('os/acpi/table', ''),
    'entry': ('sysinfo/entry', 'file'),
    'rom': ('devices/interface/rom', 'file'),
}
#: How the names of network disks begin.
_NETWORK = ('rbd:', 'nbd:', 'iscsi:', 'gluster:')
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


def files_read(instances_path: str, *definitions: str, volumes: Iterable[storage.Disk] = ()) -> list[storage.Disk]:
    """Return the files and devices that a guest only reads, with what identifies them.

    See :func:`named_files`.

    :param instances_path: the directory of this host whose files are copied to a destination without them.
    :param volumes: as :func:`volumes_read` returns them. They are never copied.
    """
    found = [_measured(disk, instances_path) for disk in named_files(*definitions)]
    return [*found, *(dataclasses.replace(_measured(disk, instances_path), copyable=False) for disk in volumes)]


def volumes_read(connection: Any, definition: str) -> list[storage.Disk]:
    """Return the files and block devices of the volumes of storage pools that a guest only reads.

    :param connection: a ``libvirt.virConnect``.
    """
    try:
        return [disk for disk in volumes_of(connection, definition, read_only=True) if disk.read_only]
    except libvirt.libvirtError:
        if not connection.isAlive():
            raise
        # The guest may run without the CD that has gone. A destination without the volume refuses the definition.
        return []


def named_files(*definitions: str) -> list[storage.Disk]:
    """Return the files and devices that a guest only reads: its CDs and what backs them, its kernel.

    :param definitions: the one with which it runs, and the one with which it starts next.
    """
    found: dict[str, storage.Disk] = {}
    for number, definition in enumerate(definitions):
        for disk in _named(definition):
            # Both definitions may name another CD for one target, which becomes a part of the name of its draft.
            target = f'later_{disk.target}' if number else disk.target
            first = found.setdefault(disk.path, dataclasses.replace(disk, target=target))
            found[disk.path] = dataclasses.replace(first, optional=first.optional and disk.optional)
    return list(found.values())


def _named(definition: str) -> Iterator[storage.Disk]:
    xml = ElementTree.fromstring(definition)  # noqa: S314 -- libvirt wrote it
    may_be_missing = {
        target.get('dev')
        for disk in xml.findall('devices/disk')
        for target in disk.findall('target')
        if any(source.get('startupPolicy', 'mandatory') != 'mandatory' for source in disk.findall('source'))
    }
    for disk in storage.defined_disks(definition, read_only=True):
        if disk.read_only and disk.path:
            optional = disk.target in may_be_missing
            yield dataclasses.replace(disk, optional=optional)
            for number, path in enumerate(_backing(disk), 1):
                target = f'{disk.target}_{number}'
                kind = 'file' if is_regular(path) else 'block'
                yield storage.Disk(target=target, kind=kind, path=path, read_only=True, optional=optional)
    for tag in _OF_THE_SYSTEM:
        for element in xml.findall(f'os/{tag}'):
            if element.text:
                yield storage.Disk(target=tag, kind='file', path=element.text, read_only=True)
    for name, (place, attribute) in _TABLES.items():
        for number, element in enumerate(xml.findall(place)):
            if path := (element.get(attribute) if attribute else element.text) or '':
                yield storage.Disk(target=f'{name}{number}', kind='file', path=path, read_only=True)


def _backing(disk: storage.Disk) -> list[str]:
    """Return the files that back an image that a guest only reads. They are copied as they are."""
    if disk.format == 'raw':
        return []
    try:
        return [path for path in chain_of(disk, in_use=True)[1:] if os.path.isabs(path)]
    except exception.DriverError:
        # It is missing, or damaged. A destination finds that too.
        return []


def _measured(disk: storage.Disk, instances_path: str) -> storage.Disk:
    """Return a file or device that a guest only reads, with what identifies it."""
    if disk.kind != 'file':
        return dataclasses.replace(disk, identity=identity.device_of(disk.path))
    try:
        found = os.stat(disk.path)
        # Each host has its own firmware and may have its own kernel, which a running guest has read already.
        compared = identity.fingerprint(disk.path) if disk.target not in _OF_THE_SYSTEM else ''
    except OSError:
        # It can be neither compared nor copied. A destination only sees whether it has such a file.
        return disk
    # A destination makes no copy by a path that leads through a directory which may be missing there.
    is_plain = '..' not in disk.path.split('/')
    return dataclasses.replace(
        disk,
        inode=found.st_ino,
        size=found.st_size,
        allocation=found.st_blocks * 512,
        copyable=stat.S_ISREG(found.st_mode) and is_plain and identity.is_below(disk.path, instances_path),
        identity=compared,
    )


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


def is_still_to_come(disk: storage.Disk, definition: str) -> bool:
    """Return whether a disk is an NVRAM that libvirt makes from its template when the guest starts first."""
    if disk.target != 'nvram' or os.path.exists(disk.path):
        return False
    nvram = ElementTree.fromstring(definition).find('os/nvram')  # noqa: S314 -- libvirt wrote it
    return nvram is not None and nvram.get('template') is not None


def chain_of(disk: storage.Disk, in_use: bool) -> list[str]:
    """Return the file or device of a disk, and those that back it.

    :param in_use: whether a QEMU may use the disk.
    :raises migrator.exception.DriverError: a part of it is missing or unreadable, or a QEMU uses it.
    """
    images = _images(disk, in_use)
    names = [str(image['filename']) for image in images]
    for image in images:
        # The content of an image may be in other files.
        data = (image.get('format-specific') or {}).get('data') or {}
        others = [data['data-file']] if data.get('data-file') else []
        others += [extent['filename'] for extent in data.get('extents') or []]
        paths = [os.path.join(os.path.dirname(str(image['filename'])), str(other)) for other in others]
        names += [path for path in paths if path not in names]
    # Any other name that is no path, such as one in JSON, may be anything. Nothing recognizes it.
    return [name for name in names if not name.startswith(_NETWORK)]


def images_of(connection: Any, definition: str) -> Iterator[storage.Disk]:
    """Yield each image in a file or device that a definition names, also those that back another one.

    Of an image that is raw, nothing is read but its content.

    :param connection: a ``libvirt.virConnect``.
    """
    xml = ElementTree.fromstring(definition)  # noqa: S314 -- its XML is sound
    named = [disk for disk in storage.defined_disks(definition, read_only=True) if disk.kind in ('file', 'block')]
    named += volumes_of(connection, definition, read_only=True)
    for element in xml.iter('backingStore'):
        source, format_ = element.find('source'), element.find('format')
        path = '' if source is None else source.get('file') or source.get('dev') or ''
        kind = format_.get('type', 'raw') if format_ is not None else 'raw'
        named.append(storage.Disk(target='backingStore', kind='file', path=path, format=kind))
    yield from (disk for disk in named if disk.path and disk.format != 'raw')


def alone(definition: str, targets: Collection[str]) -> str:
    """Return a definition in which no other files back some of the disks. Their copies have everything.

    :param targets: the names of these disks in the guest.
    """
    document: Any = minidom.parseString(definition)  # noqa: S318 -- libvirt wrote it
    found = [
        backing
        for disk in document.getElementsByTagName('disk')
        for backing in [node for node in disk.childNodes if node.nodeName == 'backingStore']
        if any(target.getAttribute('dev') in targets for target in disk.getElementsByTagName('target'))
    ]
    for backing in found:
        backing.parentNode.removeChild(backing)
    return str(document.documentElement.toxml()) if found else definition


def kept_inside(disk: storage.Disk) -> tuple[list[str], bool]:
    """Return in words what an image keeps besides its content, and whether other files back it.

    :raises migrator.exception.DriverError: it cannot be read.
    """
    images = _images(disk, in_use=True)
    first: dict[str, Any] = images[0] if images else {}
    bitmaps = ((first.get('format-specific') or {}).get('data') or {}).get('bitmaps') or []
    found = [f'snapshot {one.get("name")}' for one in first.get('snapshots') or []]
    return [*found, *(f'bitmap {one.get("name")}' for one in bitmaps)], len(images) > 1


def _images(disk: storage.Disk, in_use: bool) -> list[dict[str, Any]]:
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
    return list(json.loads(done.stdout))
