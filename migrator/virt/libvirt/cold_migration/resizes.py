# SPDX-License-Identifier: Apache-2.0

"""The parts of a guest that a resize changes: processors, memory, and the size of the root disk."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Sequence
from typing import Any, NoReturn
from xml.dom import minidom
from xml.etree import ElementTree

from oslo_utils import uuidutils

from migrator import exception
from migrator.objects import Flavor, Instance, LiveMigrateData
from migrator.virt.cold_migration import refuse_smaller_disk
from migrator.virt.libvirt import storage

#: Seconds that qemu-img may take to read or to write the size of a disk.
_RESIZE = 60
#: The parts of a definition that depend on the number of processors or the amount of memory -> what they are.
_FIXED = {
    'vcpus': 'a list of its processors',
    'cputune/vcpupin': 'processors that are pinned',
    'cputune/vcpusched': 'a scheduler of some processors',
    'cputune/cachetune': 'a cache that some processors have',
    'cputune/memorytune': 'a bandwidth of memory that some processors have',
    'cpu/numa': 'NUMA nodes',
    'maxMemory': 'memory that can be plugged in',
    'memtune/hard_limit': 'a limit of its memory',
    'devices/memory': 'a memory module',
}
#: The extra specs that change nothing but what Placement is asked for.
_OF_ALLOCATION = re.compile(
    r'resources[a-zA-Z0-9_-]*:(VCPU|MEMORY_MB|DISK_GB|CUSTOM_[A-Z0-9_]+)|trait[a-zA-Z0-9_-]*:[A-Z0-9_]+|group_policy'
)
#: The parts of a topology of processors below a socket.
_IN_SOCKET = ('dies', 'clusters', 'cores', 'threads')
#: The shares of the host's processors that older releases of nova give a guest for each processor.
_SHARES = 1024


def plan(instance: Instance, flavor: Flavor, definition: str, disks: Sequence[storage.Disk]) -> dict[str, Any]:
    """Return the facts that a resize changes: the definition, and what the root disk grows to.

    :param definition: the guest's present definition.
    :param disks: its writable disks with their sizes, as its host has found them.
    :raises migrator.exception.MigrationPreCheckError: the guest cannot get the flavor.
    """
    old = instance.flavor
    if (flavor.ephemeral_gb, flavor.swap) != (old.ephemeral_gb, old.swap):
        _refuse(instance, flavor, 'the flavor has another ephemeral or swap disk, and only the root disk is resized')
    changed = {key for key, _value in {*old.extra_specs.items()} ^ {*flavor.extra_specs.items()}}
    unknown = sorted(key for key in changed if not _OF_ALLOCATION.fullmatch(key))
    if unknown:
        why = 'the flavors differ in extra specs that the driver does not apply'
        _refuse(instance, flavor, f'{why}: {", ".join(unknown)}')
    growth = {} if flavor.root_gb == old.root_gb else _growth(instance, flavor, definition, disks)
    return {'xml': _resized(instance, flavor, definition), **growth}


def _growth(instance: Instance, flavor: Flavor, definition: str, disks: Sequence[storage.Disk]) -> dict[str, Any]:
    """Return what the root disk grows to; {} if it is a volume that another service manages.

    The size is absolute, so that the disk grows once. It is less than that of the flavor if the old flavor counts
    further disks, as that of an adopted guest does.
    """
    xml = ElementTree.fromstring(definition)  # noqa: S314 -- libvirt wrote it
    other, root = 'the flavor has another root disk, and', _root_of(xml, disks)
    if root is None:
        _refuse(instance, flavor, f'{other} the guest has no disk that it writes to')
    element = _element_of(xml, root)
    # Nova's serial of a volume is its uuid. The disks that nova itself makes have none.
    if uuidutils.is_uuid_like(element.findtext('serial')):
        return {}
    if root.kind != 'file':
        _refuse(instance, flavor, f'{other} disk {root.target} is of type {root.kind}, which the driver cannot resize')
    refuse_smaller_disk(instance, flavor)
    if next(element.iter('encryption'), None) is not None:
        _refuse(instance, flavor, f'{other} disk {root.target} is encrypted, so the driver cannot resize it')
    size = min(flavor.root_gb * 2**30, root.size + (flavor.root_gb - instance.flavor.root_gb) * 2**30)
    return {'grow': {'path': root.path, 'format': root.format, 'size': size}}


def refuse_read_only(host: str, migrate_data: LiveMigrateData) -> None:
    """Refuse a root disk that this host sees and may not write to, if the disk has to grow.

    :param host: the name of this host, for errors.
    :raises migrator.exception.MigrationPreCheckError: this service may not write to the disk.
    """
    path = str(migrate_data.source.get('grow', {}).get('path', ''))
    if path and os.path.exists(path) and not os.access(path, os.W_OK):
        raise exception.MigrationPreCheckError(
            reason=f'the compute service of {host} may not write to {path}, which has to grow: give its user access'
        )


def grow(host: str, migrate_data: LiveMigrateData, phase: str = 'finish_migration') -> None:
    """Let the root disk grow to the size that the source has planned, unless it is as large already.

    :param host: the name of this host, for errors.
    :param phase: the method of the driver, for errors.
    :raises migrator.exception.DriverError: the disk cannot be read, or did not grow.
    """
    wanted = migrate_data.source.get('grow')
    if wanted is None:
        return
    path, kind = str(wanted['path']), str(wanted['format'])
    if json.loads(_qemu_img(host, phase, 'info', '--output=json', '-f', kind, path))['virtual-size'] < wanted['size']:
        _qemu_img(host, phase, 'resize', '-q', '-f', kind, path, str(wanted['size']))


def _qemu_img(host: str, phase: str, *arguments: str) -> str:
    argv = ['qemu-img', *arguments]
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=_RESIZE, check=True).stdout  # noqa: S603 -- no shell
    except subprocess.CalledProcessError as error:
        failure = str(error.stderr)
    except (OSError, subprocess.TimeoutExpired) as error:
        failure = str(error)
    reason = f'cannot resize a disk ({" ".join(argv)}): {" ".join(failure.split())}'
    raise exception.DriverError(host=host, phase=phase, reason=reason)


def _root_of(xml: ElementTree.Element, disks: Sequence[storage.Disk]) -> storage.Disk | None:
    """Return the writable disk with the lowest boot order, else the first writable one, or None."""

    def order(disk: storage.Disk) -> float:
        boot = _element_of(xml, disk).find('boot')
        return math.inf if boot is None else int(boot.get('order', 0))

    return min((disk for disk in disks if disk.target != 'nvram'), key=order, default=None)


def _element_of(xml: ElementTree.Element, disk: storage.Disk) -> ElementTree.Element:
    element = xml.find(f"devices/disk/target[@dev='{disk.target}']/..")
    assert element is not None, 'the disk was found in the definition'
    return element


def _resized(instance: Instance, flavor: Flavor, definition: str) -> str:
    xml = ElementTree.fromstring(definition)  # noqa: S314 -- libvirt wrote it
    for place, what in _FIXED.items():
        if xml.find(place) is not None:
            _refuse(instance, flavor, f'the guest has {what}: define it without that first')
    # Unlike ElementTree, this keeps the prefixes of namespaces, which other programs may look for.
    domain: Any = minidom.parseString(definition).documentElement  # noqa: S318 -- as above
    _write(_child(domain, 'vcpu'), str(flavor.vcpus), 'current')
    for name in ('memory', 'currentMemory'):
        _write(_child(domain, name), str(flavor.memory_mb * 1024), 'unit')
    shares, old = _child(domain, 'cputune', 'shares'), xml.findtext('vcpu')
    if shares is not None and int(shares.firstChild.data) == _SHARES * int(old or 1):
        shares.firstChild.data = str(_SHARES * flavor.vcpus)
    topology = _child(domain, 'cpu', 'topology')
    if topology is not None:
        in_socket = math.prod(int(topology.getAttribute(part) or 1) for part in _IN_SOCKET)
        if flavor.vcpus % in_socket:
            why = f'each socket of the guest has {in_socket} processors, and {flavor.vcpus} do not fill whole sockets'
            _refuse(instance, flavor, f'{why}: use another flavor, or define another topology')
        topology.setAttribute('sockets', str(flavor.vcpus // in_socket))
    return str(domain.toxml())


def _child(element: Any, *path: str) -> Any:
    """Return the element at a path below another one, or None."""
    for name in path:
        element = next((node for node in element.childNodes if node.nodeName == name), None) if element else None
    return element


def _write(element: Any, text: str, attribute: str) -> None:
    """Replace the text of an element, and remove an attribute that has belonged to the old text."""
    if element is None:
        return
    if element.hasAttribute(attribute):
        element.removeAttribute(attribute)
    element.firstChild.data = text


def _refuse(instance: Instance, flavor: Flavor, why: str) -> NoReturn:
    raise exception.MigrationPreCheckError(
        reason=f'guest {instance.uuid} cannot be resized to flavor {flavor.name}: {why}'
    )
