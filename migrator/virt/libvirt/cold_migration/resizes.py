# SPDX-License-Identifier: Apache-2.0

"""What a resize changes of a guest: its processors, its memory, and the size of its root disk."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Sequence
from typing import Any
from xml.dom import minidom
from xml.etree import ElementTree

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
    'cpu/numa': 'NUMA nodes',
    'maxMemory': 'memory that can be plugged in',
    'devices/memory': 'a memory module',
}
#: How the extra specs begin that only Placement needs.
_OF_PLACEMENT = ('resources', 'trait', 'group_policy')
#: The parts of a topology of processors below a socket.
_IN_SOCKET = ('dies', 'clusters', 'cores', 'threads')


def plan(instance: Instance, flavor: Flavor, definition: str, disks: Sequence[storage.Disk]) -> dict[str, Any]:
    """Return the facts that a resize changes: the definition, and what the root disk grows to.

    :param definition: the guest's present definition.
    :param disks: its writable disks, as its host has found them.
    :raises migrator.exception.MigrationPreCheckError: the guest cannot get the flavor.
    """
    old, root = instance.flavor, _root_of(definition, disks)
    if root is not None and root.kind == 'file':
        refuse_smaller_disk(instance, flavor)
    if (flavor.ephemeral_gb, flavor.swap) != (old.ephemeral_gb, old.swap):
        _refuse(instance, flavor, 'it has another ephemeral or swap disk, and only the root disk is resized')
    changed = {key for key, _value in {*old.extra_specs.items()} ^ {*flavor.extra_specs.items()}}
    unknown = sorted(key for key in changed if not key.startswith(_OF_PLACEMENT))
    if unknown:
        _refuse(instance, flavor, f'it differs in extra specs that the driver does not apply: {", ".join(unknown)}')
    found: dict[str, Any] = {'xml': _resized(instance, flavor, definition)}
    if root is not None and root.kind == 'file' and flavor.root_gb > old.root_gb:
        found['grow'] = {'path': root.path, 'format': root.format, 'size': flavor.root_gb * 2**30}
    return found


def grow(host: str, migrate_data: LiveMigrateData) -> None:
    """Let the root disk grow to the size that the source has planned, unless it is as large already.

    :param host: the name of this host, for errors.
    :raises migrator.exception.DriverError: the disk cannot be read, or did not grow.
    """
    wanted = migrate_data.source.get('grow')
    if wanted is None:
        return
    path, kind = str(wanted['path']), str(wanted['format'])
    if json.loads(_qemu_img(host, 'info', '--output=json', '-f', kind, path))['virtual-size'] < wanted['size']:
        _qemu_img(host, 'resize', '-q', '-f', kind, path, str(wanted['size']))


def _qemu_img(host: str, *arguments: str) -> str:
    argv = ['qemu-img', *arguments]
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=_RESIZE, check=True).stdout  # noqa: S603 -- no shell
    except subprocess.CalledProcessError as error:
        failure = str(error.stderr)
    except (OSError, subprocess.TimeoutExpired) as error:
        failure = str(error)
    reason = f'cannot resize a disk ({" ".join(argv)}): {" ".join(failure.split())}'
    raise exception.DriverError(host=host, phase='finish_migration', reason=reason)


def _root_of(definition: str, disks: Sequence[storage.Disk]) -> storage.Disk | None:
    """Return the disk that a guest boots from: that of the first boot order, or else the first one."""
    xml = ElementTree.fromstring(definition)  # noqa: S314 -- libvirt wrote it
    named = [disk.target for disk in storage.defined_disks(definition)]
    ordered = xml.find("devices/disk[boot]/boot[@order='1']/../target")
    target = ordered.get('dev') if ordered is not None else next(iter(named), None)
    return next((disk for disk in disks if disk.target == target), None)


def _resized(instance: Instance, flavor: Flavor, definition: str) -> str:
    xml = ElementTree.fromstring(definition)  # noqa: S314 -- libvirt wrote it
    for place, what in _FIXED.items():
        if xml.find(place) is not None:
            _refuse(instance, flavor, f'the guest has {what}: define it without that first')
    # Unlike ElementTree, this keeps the prefixes of namespaces, which other programs may look for.
    domain: Any = minidom.parseString(definition).documentElement  # noqa: S318 -- as above
    parts = {node.nodeName: node for node in domain.childNodes}
    _write(parts.get('vcpu'), str(flavor.vcpus), 'current')
    for name in ('memory', 'currentMemory'):
        _write(parts.get(name), str(flavor.memory_mb * 1024), 'unit')
    for topology in domain.getElementsByTagName('topology'):
        in_socket = math.prod(int(topology.getAttribute(part) or 1) for part in _IN_SOCKET)
        if flavor.vcpus % in_socket:
            _refuse(instance, flavor, f'each socket of the guest has {in_socket} processors: define another topology')
        topology.setAttribute('sockets', str(flavor.vcpus // in_socket))
    return str(domain.toxml())


def _write(element: Any, text: str, attribute: str) -> None:
    """Replace the text of an element, and remove an attribute that has belonged to the old text."""
    if element is None:
        return
    if element.hasAttribute(attribute):
        element.removeAttribute(attribute)
    element.firstChild.data = text


def _refuse(instance: Instance, flavor: Flavor, why: str) -> None:
    raise exception.MigrationPreCheckError(
        reason=f'guest {instance.uuid} cannot be resized to flavor {flavor.name}: {why}'
    )
