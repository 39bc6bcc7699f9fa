# SPDX-License-Identifier: Apache-2.0

"""Why a guest cannot move from one libvirt host to another: each refusal says what would do.

``facts`` are those of the source, and ``there`` what the destination's check has told.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

from migrator import exception
from migrator.objects import Instance, LiveMigrateData
from migrator.virt.libvirt import storage

#: Kinds of network interfaces that are a device of the host, or a part of one.
_OF_THE_HOST = ('hostdev', 'vdpa')

#: A host name as it may stand in a URI, and in the command line of ssh, to which a hyphen begins an option.
_HOST_NAME = re.compile('[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}')


def uri_host(there: dict[str, Any]) -> str:
    """Return how a destination is named in a URI: by the address that it reports for migrations, or by its name.

    :raises ValueError: it reports neither a host name nor an IP address.
    """
    field = 'inbound_addr' if there.get('inbound_addr') else 'host'
    text = str(there.get(field) or '')
    if _HOST_NAME.fullmatch(text):
        return text
    try:
        address = ipaddress.IPv6Address(text[1:-1] if text.startswith('[') and text.endswith(']') else text)
    except ValueError:
        address = None
    if address is None or address.scope_id is not None:
        option = {'inbound_addr': '[libvirt] live_migration_inbound_addr', 'host': '[DEFAULT] host'}[field]
        raise ValueError(f'{option} is {text[:100]!r} at the destination: a host name or an IP address would do')
    return f'[{address}]'


def refuse_hypervisor(host: str, facts: dict[str, Any], there: dict[str, Any]) -> None:
    """Refuse a destination whose hypervisor cannot take the source's guests.

    :param host: the name of the source.
    :raises migrator.exception.MigrationPreCheckError: it is another kind, the same host, older, or encrypts otherwise.
    """
    name = there.get('host')
    if facts['hypervisor_type'] != there.get('hypervisor_type'):
        raise exception.MigrationPreCheckError(
            reason=f'the hypervisor of {host} is {facts["hypervisor_type"]}, and that of {name} is '
            f'{there.get("hypervisor_type")}'
        )
    if facts['hypervisor_uuid'] == there.get('hypervisor_uuid'):
        raise exception.MigrationPreCheckError(
            reason=f'{host} and {name} are one host to libvirt, of uuid {facts["hypervisor_uuid"]}; '
            'set host_uuid in libvirtd.conf'
        )
    if facts['hypervisor_version'] > int(there.get('hypervisor_version') or 0):
        raise exception.MigrationPreCheckError(
            reason=f'the hypervisor of {name} is older ({there.get("hypervisor_version")}) than that of '
            f'{host} ({facts["hypervisor_version"]})'
        )
    if bool(facts['native_tls']) != bool(there.get('native_tls')):
        raise exception.MigrationPreCheckError(
            reason=f'[libvirt] live_migration_with_native_tls is {bool(facts["native_tls"])} at {host}, and '
            f'{bool(there.get("native_tls"))} at {name}: it has to be the same'
        )


def refuse_passthrough(instance: Instance, xml: ElementTree.Element) -> None:
    """Refuse a guest that has a device of its host.

    :param xml: its definition.
    :raises migrator.exception.MigrationPreCheckError: it has one, and no other that stands in for it meanwhile.
    """
    interfaces = [each for each in xml.findall('devices/interface') if each.get('type') in _OF_THE_HOST]
    for device in [*xml.findall('devices/hostdev'), *interfaces]:
        if device.find('teaming') is None:
            kind = device.get('type', 'host') if device.tag == 'hostdev' else 'network'
            raise exception.MigrationPreCheckError(
                reason=f'guest {instance.uuid} has a {kind} device of its host, which cannot move: detach it first'
            )


def refuse_local_volumes(instance: Instance, volumes: list[storage.Disk], is_shared: Callable[[str], bool]) -> None:
    """Refuse a guest with a disk that is a file of a storage pool of its host alone: such a one is not copied, for
    where the destination has it is its own pool's business.

    :param volumes: what the volumes are that it has as disks.
    :param is_shared: tells of a file's path whether the destination sees it.
    :raises migrator.exception.MigrationPreCheckError: it has one.
    """
    for disk in volumes:
        if disk.kind == 'file' and not is_shared(disk.path):
            raise exception.MigrationPreCheckError(
                reason=f'disk {disk.target} of guest {instance.uuid} is a volume of a storage pool, {disk.path}, which '
                'hosts do not share, and a volume is not copied: have the definition name it as a file'
            )


def refuse_unseen(instance: Instance, disks: list[storage.Disk]) -> None:
    """Refuse a guest with a disk that is shared by its definition's word, and is where it was found that nothing is.

    :param disks: those in instances_path, which the destination does not see, as the guest's definition names them.
    :raises migrator.exception.MigrationPreCheckError: it has one.
    """
    for disk in disks:
        if disk.kind == 'file' and disk.shared:
            raise exception.MigrationPreCheckError(
                reason=f'disk {disk.target} of guest {instance.uuid} ({disk.path}) is shareable by its definition, and '
                'the destination does not see what is in instances_path: mount there what the source has there'
            )


def processor_of(xml: ElementTree.Element, host_cpu: str) -> str:
    """Return the processor that a destination has to have for a guest, as libvirt compares hosts; '' if that does not
    tell.

    A processor that a guest has by its model's name is of KVM's making, with features that no host has; libvirt itself
    compares that, when QEMU starts at the destination.

    :param xml: its definition.
    :param host_cpu: that of its host, which a guest may have been given as it is.
    """
    cpu = xml.find('cpu')
    given = xml.get('type') == 'kvm' and cpu is not None and cpu.get('mode') in ('host-passthrough', 'maximum')
    return host_cpu if given else ''


def block_migration(instance: Instance, migrate_data: LiveMigrateData, disks: list[storage.Disk], sees: bool) -> bool:
    """Return whether disks are copied; refuse what was asked for and cannot be.

    :param disks: the guest's.
    :param sees: whether the source sees what the destination has made in instances_path.
    :raises migrator.exception.MigrationPreCheckError: block_migration says otherwise, or there is no room.
    """
    wanted, there = migrate_data.block_migration, migrate_data.destination.get('host')
    copied = [disk for disk in disks if not disk.shared]
    if wanted is True and not copied and (disks or sees):
        raise exception.MigrationPreCheckError(
            reason=f'{there} sees all disks of guest {instance.uuid}: block_migration False or auto would do'
        )
    if wanted is False and copied:
        names = ', '.join(f'{disk.target} ({disk.path})' for disk in copied)
        raise exception.MigrationPreCheckError(
            reason=f'{there} does not see {names} of guest {instance.uuid}: block_migration True or auto would do'
        )
    # Of others the destination looks itself, for they may be on any of its file systems.
    place = os.path.dirname(str(migrate_data.destination.get('check_file', '')))
    needed = storage.needed([disk for disk in copied if place and storage.is_below(disk.path, place)], migrate_data)
    left = int(migrate_data.destination.get('disk_available') or 0)
    if needed > left:
        raise exception.MigrationPreCheckError(
            reason=f'{there} has {left // 2**20} MiB left for disks, and {needed // 2**20} MiB are to be copied there'
        )
    return bool(copied)
