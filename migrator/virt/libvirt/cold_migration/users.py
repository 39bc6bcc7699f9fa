# SPDX-License-Identifier: Apache-2.0

"""The other guests that use a file of a guest, as a disk or as a file that backs one (a template)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import libvirt

from migrator import exception
from migrator.virt.libvirt import storage
from migrator.virt.libvirt.connection import code_of
from migrator.virt.libvirt.definition.disks import chain_of, volumes_of


def disks_of_others(connection: Any, instance_uuid: str) -> list[tuple[str, storage.Disk]]:
    """Return the disks of the other guests of a host, each with the uuid of its guest.

    Disks that a guest only reads are among them.

    :param connection: a ``libvirt.virConnect``.
    :param instance_uuid: the guest whose own disks are left out.
    """
    found: dict[tuple[str, storage.Disk], None] = {}
    for domain in connection.listAllDomains():
        uuid = domain.UUIDString()
        if uuid == instance_uuid:
            continue
        # A guest that runs may have other disks than after its next start.
        for flags in (0, libvirt.VIR_DOMAIN_XML_INACTIVE):
            try:
                definition = domain.XMLDesc(flags)
            except libvirt.libvirtError as error:
                if code_of(error) == libvirt.VIR_ERR_NO_DOMAIN:  # it has gone since
                    break
                raise
            found |= dict.fromkeys((uuid, disk) for disk in _disks(connection, definition))
    return list(found)


def _disks(connection: Any, definition: str) -> list[storage.Disk]:
    disks = storage.defined_disks(definition, read_only=True)
    try:
        volumes = {disk.target: disk for disk in volumes_of(connection, definition, read_only=True)}
    except libvirt.libvirtError:
        # What cannot be looked up remains a volume.
        return disks
    # A volume that is neither a file nor a device is on a network.
    return [volumes.get(disk.target, disk) for disk in disks if disk.kind != 'volume' or disk.target in volumes]


def used(paths: Iterable[str], others: Iterable[tuple[str, storage.Disk]]) -> dict[str, str]:
    """Return which files are needed by other guests: the path of each, and a text that names the guest.

    If a disk of another guest cannot be read, it may use any of the files.

    :param others: as :func:`disks_of_others` returns them.
    """
    mine = {_identity(path): path for path in paths}
    found: dict[str, str] = {}
    for uuid, disk in others:
        try:
            names = _chain(disk)
        except exception.DriverError as error:
            reason = f'may be used by guest {uuid}, whose disk {disk.path or disk.target} cannot be read ({error})'
            # One is enough: every further disk could take as long to fail.
            return {path: found.get(path, reason) for path in mine.values()}
        for name in names:
            path = mine.get(_identity(name))
            if path is not None:
                found.setdefault(path, f'is used by guest {uuid} too (in its disk {disk.path})')
    return found


def _chain(disk: storage.Disk) -> list[str]:
    if disk.kind == 'volume':
        raise exception.DriverError('libvirt does not find the volume')
    if disk.format == 'raw':
        return [disk.path]
    names = chain_of(disk, in_use=True)
    if any(name.startswith('json:') for name in names):
        raise exception.DriverError('a part of its chain has no plain path')
    return names


def _identity(path: str) -> tuple[int, int] | str:
    """Return what two names of one file have in common; a file that does not exist has only its name."""
    try:
        found = os.stat(path)
    except OSError:
        return path
    return found.st_dev, found.st_ino
