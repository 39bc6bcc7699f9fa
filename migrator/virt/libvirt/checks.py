# SPDX-License-Identifier: Apache-2.0

"""Checks whether a guest can migrate from one libvirt host to another.

Each refusal says what to do. ``facts`` are the facts of the source. ``there`` is the result of the destination's check.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

from oslo_config import cfg

from migrator import exception
from migrator.objects import Instance, LiveMigrateData
from migrator.virt.libvirt import identity, storage

#: A host name that is safe in a URI and in the command line of ssh, where a leading hyphen begins an option.
_HOST_NAME = re.compile('[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}')


def uri_host(there: dict[str, Any]) -> str:
    """Return the host part of the destination's URI.

    This is the address that the destination reports for migrations, or otherwise its name.

    :raises ValueError: the destination reports neither a host name nor an IP address.
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
        raise ValueError(f'{option} is {text[:100]!r} at the destination: set a host name or an IP address')
    return f'[{address}]'


def refuse_uri(conf: cfg.ConfigOpts) -> None:
    """Refuse a ``live_migration_uri`` that names one host, whatever destination is chosen.

    :raises migrator.exception.ConfigurationError: it has no place for the destination.
    """
    uri = conf.libvirt.live_migration_uri
    if uri and '%s' not in uri:
        raise exception.ConfigurationError(
            option='[libvirt] live_migration_uri',
            value=uri,
            detail='it leads to one host, whatever destination is chosen: write %s in the place of the host, for '
            'example qemu+tls://%s/system',
        )


def another_host(host: str, uri: str, there: dict[str, Any], found: str) -> str | None:
    """Return in words that the source reaches another host than the destination, or None.

    :param host: the name of the source.
    :param uri: the URI by which it reaches the destination.
    :param there: what the destination's check has returned.
    :param found: the uuid of the host that it reaches; '': not known, and then nothing is compared.
    """
    name, wanted = there.get('host'), there.get('hypervisor_uuid')
    if not found or not wanted or found == wanted:
        return None
    return (
        f'by {uri}, {host} does not reach {name} but another host: the libvirt host uuid there is {found}, and that of '
        f'{name} is {wanted}. Correct [libvirt] live_migration_uri of {host} or live_migration_inbound_addr of {name}, '
        f'or what the name of {name} resolves to at {host}'
    )


def refuse_hypervisor(host: str, facts: dict[str, Any], there: dict[str, Any]) -> None:
    """Refuse a destination whose hypervisor cannot take the source's guests.

    :param host: the name of the source.
    :raises migrator.exception.MigrationPreCheckError: the hypervisor has another type, is older, encrypts differently,
        or is the source itself.
    """
    name = there.get('host')
    if facts['hypervisor_type'] != there.get('hypervisor_type'):
        raise exception.MigrationPreCheckError(
            reason=f'the hypervisor of {host} is {facts["hypervisor_type"]}, and that of {name} is '
            f'{there.get("hypervisor_type")}: choose a destination with the same hypervisor'
        )
    if facts['hypervisor_uuid'] == there.get('hypervisor_uuid'):
        raise exception.MigrationPreCheckError(
            reason=f'{host} and {name} both have the libvirt host uuid {facts["hypervisor_uuid"]}: '
            'set host_uuid in libvirtd.conf'
        )
    if facts['hypervisor_version'] > int(there.get('hypervisor_version') or 0):
        raise exception.MigrationPreCheckError(
            reason=f'the hypervisor of {name} is older ({there.get("hypervisor_version")}) than that of '
            f'{host} ({facts["hypervisor_version"]}): upgrade it, or choose another destination'
        )
    if bool(facts['native_tls']) != bool(there.get('native_tls')):
        raise exception.MigrationPreCheckError(
            reason=f'[libvirt] live_migration_with_native_tls is {bool(facts["native_tls"])} at {host}, and '
            f'{bool(there.get("native_tls"))} at {name}: set the same value on both hosts'
        )


def refuse_encrypted(instance: Instance, xml: ElementTree.Element, disks: list[storage.Disk], there: Any) -> None:
    """Refuse a guest with an encrypted disk or a slice that would be copied: libvirt makes no such copy.

    :param disks: the disks of the guest.
    :raises migrator.exception.MigrationPreCheckError: the guest has such a disk.
    """
    sliced = {
        target.get('dev', '')
        for disk in xml.findall('devices/disk')
        for target in disk.findall('target')
        if disk.find('source/slices') is not None
    }
    for disk in disks:
        if disk.target in sliced and disk.kind == 'file' and not disk.shared:
            raise exception.MigrationPreCheckError(
                reason=f'disk {disk.target} of guest {instance.uuid} is a slice of {disk.path}, and {there} does not '
                'see it: libvirt copies no slice of a running guest. Move the guest cold, or share the disk'
            )
    encrypted = {
        target.get('dev', '')
        for disk in xml.findall('devices/disk')
        for target in disk.findall('target')
        if disk.find('source/encryption') is not None or disk.find('encryption') is not None
    }
    for disk in disks:
        if disk.target in encrypted and disk.kind == 'file' and not disk.shared:
            raise exception.MigrationPreCheckError(
                reason=f'disk {disk.target} of guest {instance.uuid} ({disk.path}) is encrypted, and {there} does not '
                'see it: libvirt copies no encrypted disk of a running guest. Move the guest cold, or share the disk'
            )


def refuse_local_volumes(instance: Instance, volumes: list[storage.Disk], is_shared: Callable[[str], bool]) -> None:
    """Refuse a guest with a disk that is a file in a storage pool of its host only.

    Such a disk is not copied, because the destination's own pool decides where its file is.

    :param volumes: the guest's disks that are volumes, with their files or devices.
    :param is_shared: returns whether the destination sees the file of a path.
    :raises migrator.exception.MigrationPreCheckError: the guest has such a disk.
    """
    for disk in volumes:
        if disk.kind == 'file' and not is_shared(disk.path):
            raise exception.MigrationPreCheckError(
                reason=f'disk {disk.target} of guest {instance.uuid} is a volume of a storage pool, {disk.path}, which '
                'the hosts do not share, and volumes are not copied: define the disk as a file instead'
            )


def refuse_unseen(instance: Instance, disks: list[storage.Disk]) -> None:
    """Refuse a guest with a shareable disk that the destination does not see.

    :param disks: the disks in instances_path, which the destination does not see, as the guest's definition names them.
    :raises migrator.exception.MigrationPreCheckError: the guest has such a disk.
    """
    for disk in disks:
        if disk.kind == 'file' and disk.shared:
            raise exception.MigrationPreCheckError(
                reason=f'disk {disk.target} of guest {instance.uuid} ({disk.path}) is defined as shareable, and the '
                'destination does not see the files in instances_path of the source: mount the same directory there'
            )


def processor_of(xml: ElementTree.Element, host_cpu: str) -> str:
    """Return the processor that a destination must have for a guest, in libvirt's format.

    The result is '' if the guest does not use the processor of its host as it is. A processor that is defined by the
    name of a model is made by KVM, with features that no host has. Libvirt compares such a processor itself, when QEMU
    starts at the destination.

    :param xml: the definition of the guest.
    :param host_cpu: the processor of the host, in libvirt's format.
    """
    cpu = xml.find('cpu')
    given = xml.get('type') == 'kvm' and cpu is not None and cpu.get('mode') in ('host-passthrough', 'maximum')
    return host_cpu if given else ''


def block_migration(instance: Instance, migrate_data: LiveMigrateData, disks: list[storage.Disk], sees: bool) -> bool:
    """Return whether disks will be copied.

    :param disks: the disks of the guest.
    :param sees: whether the source sees the file that the destination made in instances_path.
    :raises migrator.exception.MigrationPreCheckError: the request contradicts the storage, or the destination has too
        little space.
    """
    wanted, there = migrate_data.block_migration, migrate_data.destination.get('host')
    copied = [disk for disk in disks if not disk.shared]
    if wanted is True and not copied and (disks or sees):
        raise exception.MigrationPreCheckError(
            reason=f'{there} sees all disks of guest {instance.uuid}: request block_migration False or auto'
        )
    if wanted is False and copied:
        names = ', '.join(f'{disk.target} ({disk.path})' for disk in copied)
        raise exception.MigrationPreCheckError(
            reason=f'{there} does not see {names} of guest {instance.uuid}: request block_migration True or auto'
        )
    # The destination itself checks the space for the other disks, which may be on any of its file systems.
    place = os.path.dirname(str(migrate_data.destination.get('check_file', '')))
    needed = storage.needed([disk for disk in copied if place and identity.is_below(disk.path, place)], migrate_data)
    left = int(migrate_data.destination.get('disk_available') or 0)
    if needed > left:
        raise exception.MigrationPreCheckError(
            reason=f'{there} has {left // 2**20} MiB left for disks, and the copies need {needed // 2**20} MiB: '
            'free space there, or choose another destination'
        )
    return bool(copied)
