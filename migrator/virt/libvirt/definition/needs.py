# SPDX-License-Identifier: Apache-2.0

"""What the definition of a guest needs of a host, and the refusal of a host that does not have it."""

from __future__ import annotations

import contextlib
import os
from typing import Any
from xml.etree import ElementTree

import libvirt

from migrator import exception
from migrator.objects import Instance, LiveMigrateData
from migrator.virt.libvirt import storage
from migrator.virt.libvirt.definition.disks import writable_disks

#: The directory in which the kernel lists the network devices of a host.
NETWORK_DEVICES = '/sys/class/net'
#: The parts of a definition that only one host has -> what they are.
_OF_ONE_HOST = {
    'hostdev': 'a device of its host',
    "interface[@type='hostdev']": 'a network device of its host',
    "interface[@type='vdpa']": 'a network device of its host',
    'filesystem': 'a directory of its host',
    'memory/source/path': 'memory in a file or a device of its host',
    'tpm': 'a TPM, whose state only its host has',
}


def check_definition(
    connection: Any, host: str, instance: Instance, migrate_data: LiveMigrateData, remedy: str
) -> list[storage.Disk]:
    """Check that a host has what the definition of a guest names, and return its disks unchecked.

    :param connection: a ``libvirt.virConnect``.
    :param host: the name of this host.
    :param remedy: what to do about a guest that no other host can start.
    :raises migrator.exception.MigrationPreCheckError: the host cannot start the guest.
    """
    definition = migrate_data.source['xml']
    xml = ElementTree.fromstring(definition)  # noqa: S314 -- libvirt wrote it
    for place, what in _OF_ONE_HOST.items():
        if xml.find(f'devices/{place}') is not None:
            raise exception.MigrationPreCheckError(
                reason=f'guest {instance.uuid} has {what}, so that no other host can start it: {remedy}'
            )
    if migrate_data.source.get('password'):
        raise exception.MigrationPreCheckError(
            reason=f'guest {instance.uuid} has a password, such as that of its console, which only its host has: '
            f'{remedy}'
        )
    _refuse_name(connection, host, instance, xml)
    refuse_missing(connection, host, instance, needs_of(xml))
    try:
        # Libvirt refuses here what its QEMU cannot do, such as the type of the machine, the processor or a device. It
        # also refuses a secret or a storage pool that it does not have.
        connection.domainXMLToNative('qemu-argv', definition, 0)
        disks = writable_disks(connection, definition)
    except libvirt.libvirtError as error:
        if not connection.isAlive():
            raise
        raise exception.MigrationPreCheckError(
            reason=f'libvirt of host {host} refuses the definition of guest {instance.uuid}: {error}: provide there '
            'what is missing, or choose another destination'
        ) from error
    for disk in disks:
        if disk.kind not in ('file', 'block', 'network'):
            raise exception.MigrationPreCheckError(
                reason=f'disk {disk.target} of guest {instance.uuid} is of type {disk.kind}, so that no other host can '
                f'start the guest: {remedy}'
            )
    return disks


def _refuse_name(connection: Any, host: str, instance: Instance, xml: ElementTree.Element) -> None:
    name = xml.findtext('name') or ''
    with contextlib.suppress(libvirt.libvirtError):
        other = connection.lookupByName(name).UUIDString()
        if other != instance.uuid:
            raise exception.MigrationPreCheckError(
                reason=f'guest {other} of host {host} has the name of guest {instance.uuid}, {name}: rename it, or '
                'choose another destination'
            )


def needs_of(xml: ElementTree.Element) -> dict[str, list[Any]]:
    """Return what a guest needs of each host, besides its disks, as JSON.

    :returns: ``files`` that it only reads, of which each host may have a copy of its own; ``directories`` of its
        sockets; ``networks``, each with the type of its interfaces.
    """
    files = [element.text for tag in ('kernel', 'initrd', 'dtb', 'loader') for element in xml.findall(f'os/{tag}')]
    for disk in xml.findall('devices/disk'):
        source = disk.find('source')
        writable = disk.get('device', 'disk') in ('disk', 'lun') and disk.find('readonly') is None
        # A CD of another policy may be missing when the guest starts.
        if source is not None and not writable and source.get('startupPolicy', 'mandatory') == 'mandatory':
            files.append(source.get('file') or source.get('dev'))
    sockets = [each.get('path') for each in xml.findall("devices/*[@type='unix']/source[@mode='bind']")]
    networks = set()
    for interface in xml.findall('devices/interface'):
        kind, source = interface.get('type', ''), interface.find('source')
        if source is not None and kind in ('network', 'bridge', 'direct'):
            networks.add((kind, source.get('network') or source.get('bridge') or source.get('dev') or ''))
    return {
        'files': [path for path in files if path],
        'directories': sorted({os.path.dirname(path) for path in sockets if path}),
        'networks': [list(one) for one in sorted(networks)],
    }


def refuse_missing(connection: Any, host: str, instance: Instance, needs: dict[str, list[Any]]) -> None:
    """Refuse a guest that needs what this host does not have.

    :param connection: a ``libvirt.virConnect``.
    :param host: the name of this host.
    :param needs: as :func:`needs_of` returns it.
    :raises migrator.exception.MigrationPreCheckError: something is missing here.
    """
    for kind, name in needs.get('networks', []):
        there = False
        if kind == 'network':
            with contextlib.suppress(libvirt.libvirtError):
                there = bool(connection.networkLookupByName(name).isActive())
        else:
            there = os.path.exists(f'{NETWORK_DEVICES}/{name}')
        if not there:
            what = {'network': 'an active network', 'bridge': 'a bridge'}.get(kind, 'a network device')
            raise exception.MigrationPreCheckError(
                reason=f'host {host} does not have {what} {name}, which guest {instance.uuid} needs: provide it there, '
                'or choose another destination'
            )
    for path in [*needs.get('files', []), *needs.get('directories', [])]:
        if not os.path.exists(path):
            raise exception.MigrationPreCheckError(
                reason=f'host {host} does not have {path} of guest {instance.uuid}: provide it there, or, for a CD, '
                'eject it'
            )
