# SPDX-License-Identifier: Apache-2.0

"""The places of a host in which guests of others may have files, and what else they may name."""

from __future__ import annotations

import functools
import ipaddress
import os
import stat
from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

import libvirt
from oslo_config import cfg

from migrator.virt.libvirt import identity, storage
from migrator.virt.libvirt.connection import code_of
from migrator.virt.libvirt.definition import consoles

#: The types of storage pools whose volumes are files of a directory.
_FILE_POOLS = ('dir', 'fs', 'netfs', 'vstorage')
#: Where libvirt keeps the variables of firmware.
_NVRAM = '/var/lib/libvirt/qemu/nvram'


class Places:
    """What guests of other hosts may name at one host.

    :param conf: with the options of :mod:`migrator.conf.libvirt` registered.
    :param connection: a ``libvirt.virConnect`` to the daemon of this host.
    """

    def __init__(self, conf: cfg.ConfigOpts, connection: Any) -> None:
        self.host = conf.host
        self._conf = conf
        self._connection = connection
        self._parts = tuple(conf.libvirt.allowed_parts)
        self._listed = [os.path.realpath(path) for path in conf.libvirt.allowed_paths]

    def not_a_file(self, path: str, is_nvram: bool = False) -> str:
        """Return why a guest of another host may not have a path as a file here, or ''. It may be missing.

        :param is_nvram: whether the file has the variables of a firmware, for which libvirt has a directory.
        """
        if not os.path.isabs(path):
            return 'is no absolute path'
        if not self.is_within(path) and not (is_nvram and identity.is_below(path, _NVRAM)):
            return f'is neither below instances_path ({self._instances_path}), nor in a storage pool, nor allowed'
        return '' if is_regular(path) else 'is no file'

    def refusal(self, path: str, is_nvram: bool = False) -> str:
        """Return what :meth:`not_a_file` returns, with what an operator can do."""
        problem = self.not_a_file(path, is_nvram)
        if not problem:
            return ''
        if not os.path.isabs(path):
            return f'{problem}: use an absolute path'
        # To list what is no regular file would not help.
        return f'{problem}: {self.remedy() if is_regular(path) else "use another path"}'

    def outside(self, disks: Iterable[storage.Disk]) -> dict[str, str]:
        """Return why disks are no files that a guest of another host may have here: path -> the reason."""
        reasons = {disk.path: self.not_a_file(disk.path, disk.target == 'nvram') for disk in disks}
        return {path: reason for path, reason in reasons.items() if reason}

    def not_a_backing(self, path: str) -> str:
        """Return why a path may not back a disk of a guest of another host and what to do, or ''.

        A block device may. Its identity is compared with that at the source.
        """
        mode = mode_of(path)
        is_device = mode is not None and stat.S_ISBLK(mode) and os.path.realpath(path).startswith('/dev/')
        return '' if is_device else self.refusal(path)

    def is_within(self, path: str) -> bool:
        """Return whether a path is where guests have files, after all symbolic links are resolved."""
        return any(identity.is_below(path, each) for each in (self._instances_path, *self._pools, *self._listed))

    def is_instances(self, path: str) -> bool:
        """Return whether a path is below instances_path, where directories of guests are made."""
        return identity.is_below(path, self._instances_path)

    def is_listed(self, path: str, itself: bool = False) -> bool:
        """Return whether an operator has listed a path.

        :param itself: whether a directory above it does not count.
        """
        real = os.path.realpath(path)
        return real in self._listed or (not itself and any(identity.is_below(path, each) for each in self._listed))

    def has_part(self, place: str) -> bool:
        """Return whether an operator has listed a part of definitions, or one that it belongs to."""
        return any(place == part or place.startswith((f'{part}/', f'{part}@', f'{part}=')) for part in self._parts)

    def remedy(self, itself: bool = False) -> str:
        """Return what an operator can do about a path that is refused.

        :param itself: whether to add its directory would not help.
        """
        what = 'it' if itself else 'it or its directory'
        return (
            f'if guests may have it, add {what} to [libvirt] allowed_paths of {self.host} '
            f'(now {", ".join(self._conf.libvirt.allowed_paths) or "empty"})'
        )

    def is_address(self, address: str) -> bool:
        """Return whether guests may listen at an address of this host."""
        if address == 'localhost' or address in consoles.of_host(self._conf).values():
            return True
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return found.is_loopback or found.is_unspecified

    @functools.cached_property
    def emulators(self) -> set[str]:
        """The emulators of this host by real path."""
        root = ElementTree.fromstring(self._connection.getCapabilities())  # noqa: S314 -- libvirt wrote it
        return {os.path.realpath(each.text) for each in root.iter('emulator') if each.text}

    def loaders(self, root: ElementTree.Element) -> set[str]:
        """Return the firmware that this host has for a guest, by real path.

        :param root: the guest's definition.
        """
        kind, of = root.find('os/type'), root.get('type')
        arch, machine = (kind.get('arch'), kind.get('machine')) if kind is not None else (None, None)
        try:
            text = self._connection.getDomainCapabilities(None, arch, machine, of, 0)
        except libvirt.libvirtError:
            if not self._connection.isAlive():
                raise
            return set()
        found = ElementTree.fromstring(text).findall('os/loader/value')  # noqa: S314 -- libvirt wrote it
        return {os.path.realpath(each.text) for each in found if each.text}

    @property
    def _instances_path(self) -> str:
        return str(os.path.abspath(self._conf.instances_path))

    @functools.cached_property
    def _pools(self) -> list[str]:
        found = []
        for pool in self._connection.listAllStoragePools():
            try:
                root = ElementTree.fromstring(pool.XMLDesc(0))  # noqa: S314 -- libvirt wrote it
            except libvirt.libvirtError as error:
                if code_of(error) == libvirt.VIR_ERR_NO_STORAGE_POOL:  # it has gone since, as the one of a copy does
                    continue
                raise
            path = root.findtext('target/path')
            if path and root.get('type') in _FILE_POOLS:
                found.append(path)
        return found


def mode_of(path: str) -> int | None:
    """Return the mode of what is at a path, or None if it is missing or cannot be seen."""
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):
        return None


def is_regular(path: str) -> bool:
    """Return whether a path is that of a regular file, or of nothing."""
    mode = mode_of(path)
    return mode is None or stat.S_ISREG(mode)
