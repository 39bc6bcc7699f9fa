# SPDX-License-Identifier: Apache-2.0

"""What the definition of a guest needs of a host, and the refusal of a host that does not have it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar
from xml.etree import ElementTree

import libvirt

from migrator import exception
from migrator.objects import Instance, LiveMigrateData
from migrator.virt.libvirt import identity, storage
from migrator.virt.libvirt.definition import consoles
from migrator.virt.libvirt.definition.bounds import Bounds, read
from migrator.virt.libvirt.definition.disks import volumes_read, writable_disks
from migrator.virt.libvirt.definition.places import is_regular

T = TypeVar('T')

#: The directory in which the kernel lists the network devices of a host.
NETWORK_DEVICES = '/sys/class/net'
#: The type of an interface that is connected to something of its host -> the attribute that names it, and what it is.
_NETWORKS = {
    'network': ('network', 'an active network'),
    'bridge': ('bridge', 'a bridge'),
    'direct': ('dev', 'a network device'),
}
#: The parts of a definition that only one host has -> what they are.
_OF_ONE_HOST = {
    'hostdev': 'a device of its host',
    "interface[@type='hostdev']": 'a network device of its host',
    "interface[@type='vdpa']": 'a network device of its host',
    'filesystem': 'a directory of its host',
    'memory/source/path': 'memory in a file or a device of its host',
    'tpm': 'a TPM, whose state only its host has',
}
#: What has to be there when QEMU starts: the elements -> the attribute that names it ('': the text), and what it is.
_USED = {
    "devices/*[@type='dev']/source": ('path', 'the device'),
    "devices/*[@type='pipe']/source": ('path', 'the pipe'),
    "devices/*[@type='unix']/source[@mode='connect']": ('path', 'the socket'),
    "devices/rng/backend[@model='random']": ('', 'the device'),
    "devices/input[@type='evdev']/source": ('dev', 'the device'),
    "devices/input[@type='passthrough']/source": ('evdev', 'the device'),
    "devices/interface[@type='vhostuser']/source[@mode='client']": ('path', 'the socket'),
    "devices/disk[@type='dir']/source": ('dir', 'the directory'),
    'devices/disk/source/host': ('socket', 'the socket'),
}
#: What libvirt or QEMU makes in a directory that has to be there.
_MADE = {
    "devices/*[@type='unix']/source[@mode='bind']": ('path', 'socket'),
    "devices/graphics/listen[@type='socket']": ('socket', 'socket'),
    **{f"devices/{tag}[@type='file']/source": ('path', 'log') for tag in storage.CHARACTER_DEVICES},
    **{f'devices/{tag}/log': ('file', 'log') for tag in storage.CHARACTER_DEVICES},
}


def check_definition(
    connection: Any,
    bounds: Bounds,
    instance: Instance,
    migrate_data: LiveMigrateData,
    remedy: str,
    addresses: Mapping[str, str],
) -> tuple[list[storage.Disk], list[storage.Disk]]:
    """Check that a host can and may start a guest, but for its disks.

    :param connection: a ``libvirt.virConnect``.
    :param bounds: those of this host.
    :param remedy: what to do about a guest that no other host can start.
    :param addresses: of the consoles of this host, as :func:`.consoles.of_host` returns them.
    :returns: the disks that the guest writes to, unchecked; the files that it only reads, that this host lacks, and
        that can be copied to it.
    :raises migrator.exception.MigrationPreCheckError: the host cannot start the guest.
    """
    host, xml = bounds.host, read(instance, migrate_data.source)
    definition = migrate_data.source['xml']
    if (why := _why_bound(migrate_data.source, xml)) is not None:
        raise exception.MigrationPreCheckError(reason=f'guest {instance.uuid} {why}: {remedy}')
    bounds.refuse_definition(instance, migrate_data, xml)
    here = consoles.moved(definition, migrate_data.source.get('own_addresses', ()), addresses)
    missing = missing_files(connection, bounds, instance, here, migrate_data.source)
    disks = _accepted(connection, host, instance, lambda: writable_disks(connection, definition))
    absent = [disk for disk in disks if migrate_data.source['files'].get(disk.path, {}).get('absent')]
    for disk in absent:
        if os.path.exists(disk.path):
            raise exception.MigrationPreCheckError(
                reason=f'guest {instance.uuid} had no NVRAM when {instance.host} reported it, and host {host} has '
                f'{disk.path}. If the guest has started since, that is its own, and has to stay: define the guest by '
                'hand. Otherwise move it away there'
            )
    disks = [disk for disk in disks if disk not in absent]
    _accepted(connection, host, instance, lambda: bounds.refuse_images(instance, definition))
    _refuse_devices(connection, host, instance, migrate_data.source)
    for disk in disks:
        if disk.kind not in ('file', 'block', 'network'):
            raise exception.MigrationPreCheckError(
                reason=f'disk {disk.target} of guest {instance.uuid} is of type {disk.kind}, so that no other host can '
                f'start the guest: {remedy}'
            )
    return disks, missing


def _refuse_devices(connection: Any, host: str, instance: Instance, source: Mapping[str, Any]) -> None:
    """Refuse volumes of a storage pool that a guest only reads, and that are other devices here."""
    known = {disk.path: disk.identity for disk in files_of(source)}
    for disk in volumes_read(connection, source['xml']):
        if disk.kind == 'block' and known.get(disk.path, '') != (identity.device_of(disk.path) or None):
            raise exception.MigrationPreCheckError(
                reason=f'volume {disk.path} (disk {disk.target} of guest {instance.uuid}) cannot be shown to be the '
                f'same device at {host}: use a volume whose device has a World Wide Name, or a file'
            )


def why_unstartable(bounds: Bounds, source: Mapping[str, Any]) -> str | None:
    """Return in words why no other host would start a guest, and what to do, or None. Its own host asks.

    :param bounds: those of this host. Another one may have other options.
    :param source: what this host reports of the guest.
    """
    xml = ElementTree.fromstring(source['xml'])  # noqa: S314 -- libvirt wrote it
    why, problem = _why_bound(source, xml), bounds.problem(source, xml)
    if why is not None:
        return f'it {why}: remove that part from its definition, if the guest can do without it'
    if problem is None:
        return None
    return f'a host with the options of {bounds.host} would refuse its definition: {problem}'


def _why_bound(source: Mapping[str, Any], xml: ElementTree.Element) -> str | None:
    """Return in words what of a guest only its host has, or None."""
    for place, what in _OF_ONE_HOST.items():
        if xml.find(f'devices/{place}') is not None:
            return f'has {what}, so that no other host can start it'
    return 'has a password, such as that of its console, which only its host has' if source.get('password') else None


def missing_files(
    connection: Any,
    bounds: Bounds,
    instance: Instance,
    definition: str,
    source: Mapping[str, Any],
    made: Collection[str] = (),
) -> list[storage.Disk]:
    """Return the files of a guest that can be copied to this host; refuse what else it lacks.

    :param connection: a ``libvirt.virConnect``.
    :param bounds: those of this host.
    :param definition: of the guest, with the addresses of this host.
    :param source: what its source has reported.
    :param made: the paths at which this host has made files for the guest, whose content is to come.
    :raises migrator.exception.MigrationPreCheckError: something else that the guest needs is missing here.
    """
    host, xml = bounds.host, ElementTree.fromstring(definition)  # noqa: S314 -- libvirt wrote it
    _refuse_name(connection, host, instance, xml)
    _refuse_networks(connection, host, instance, xml)
    _refuse_paths(bounds, instance, xml, source)
    _refuse_sockets(host, instance, xml)
    files = files_of(source)
    missing = [disk for disk in files if (disk.path in made or not _has(host, instance, disk)) and disk.copyable]
    refuse_unknown(connection, host, instance, definition)
    return missing


def refuse_unknown(connection: Any, host: str, instance: Instance, definition: str) -> None:
    """Refuse a definition that libvirt refuses.

    Libvirt refuses what its QEMU cannot do, such as the type of the machine, the processor or a device, and a secret or
    a storage pool that it does not have.

    :param connection: a ``libvirt.virConnect``.
    :param host: the name of this host.
    :raises migrator.exception.MigrationPreCheckError: libvirt refuses it.
    """
    _accepted(connection, host, instance, lambda: connection.domainXMLToNative('qemu-argv', definition, 0))


def _accepted(connection: Any, host: str, instance: Instance, ask: Callable[[], T]) -> T:
    """Return what libvirt replies about a definition, or refuse the guest if libvirt does."""
    try:
        return ask()
    except libvirt.libvirtError as error:
        if not connection.isAlive():
            raise
        raise exception.MigrationPreCheckError(
            reason=f'libvirt of host {host} refuses the definition of guest {instance.uuid}: {error}: provide there '
            'what is missing, or choose another destination'
        ) from error


def files_of(source: Mapping[str, Any]) -> list[storage.Disk]:
    """Return the files that a guest only reads.

    :param source: what its source has reported.
    """
    return [storage.Disk.of(facts) for facts in source.get('files_read', [])]


def _refuse_name(connection: Any, host: str, instance: Instance, xml: ElementTree.Element) -> None:
    name = xml.findtext('name') or ''
    with contextlib.suppress(libvirt.libvirtError):
        other = connection.lookupByName(name).UUIDString()
        if other != instance.uuid:
            raise exception.MigrationPreCheckError(
                reason=f'guest {other} of host {host} has the name of guest {instance.uuid}, {name}: rename it, or '
                'choose another destination'
            )


def _refuse_networks(connection: Any, host: str, instance: Instance, xml: ElementTree.Element) -> None:
    for interface in xml.findall('devices/interface'):
        kind, source = interface.get('type', ''), interface.find('source')
        if source is None or kind not in _NETWORKS:
            continue
        name, there = source.get(_NETWORKS[kind][0], ''), False
        if kind == 'network':
            with contextlib.suppress(libvirt.libvirtError):
                there = bool(connection.networkLookupByName(name).isActive())
        else:
            there = os.path.exists(f'{NETWORK_DEVICES}/{name}')
        if not there:
            raise exception.MigrationPreCheckError(
                reason=f'host {host} does not have {_NETWORKS[kind][1]} {name}, which guest {instance.uuid} needs: '
                'provide it there, or choose another destination'
            )


def paths_seen(definition: str) -> list[str]:
    """Return the paths and directories that a guest needs and that this service sees. Its own host asks.

    :param definition: of the guest.
    """
    xml = ElementTree.fromstring(definition)  # noqa: S314 -- libvirt wrote it
    return sorted({path for path, _own, _what in _paths_needed(xml) if os.path.exists(path)})


def _refuse_paths(bounds: Bounds, instance: Instance, xml: ElementTree.Element, source: Mapping[str, Any]) -> None:
    """Refuse a guest that uses a path, or makes a file in a directory, that this host does not have.

    A service in a container sees less than libvirt does: what the source's service does not see proves nothing here.
    """
    seen = source.get('seen') or []
    for path, own, what in _paths_needed(xml):
        # A directory of a log below instances_path is made before the guest starts.
        is_made = what == 'log' and bounds.is_instances(own)
        if path not in seen or is_made or os.path.exists(path):
            continue
        problem = (
            f'{path}, {what} that guest {instance.uuid} needs: provide it there'
            if path == own
            else f'the directory {path}, in which guest {instance.uuid} has a {what}: make it there'
        )
        raise exception.MigrationPreCheckError(
            reason=f'host {bounds.host} does not have {problem}, or choose another destination'
        )


def _paths_needed(xml: ElementTree.Element) -> Iterator[tuple[str, str, str]]:
    """Yield each path that QEMU needs, the one in the definition that says so, and what that one is."""
    for place, (attribute, what) in _USED.items():
        yield from ((path, path, what) for path in _paths(xml, place, attribute))
    for place, (attribute, what) in _MADE.items():
        for path in _paths(xml, place, attribute):
            if directory := os.path.dirname(path):
                yield directory, path, what


def _paths(xml: ElementTree.Element, place: str, attribute: str) -> list[str]:
    found = [each.get(attribute, '') if attribute else each.text or '' for each in xml.findall(place)]
    return [path for path in found if path]


def _refuse_sockets(host: str, instance: Instance, xml: ElementTree.Element) -> None:
    """Refuse a guest with a console that cannot listen here."""
    for address, port in consoles.sockets_of(xml):
        if problem := consoles.why_not_free(address, port):
            raise exception.MigrationPreCheckError(
                reason=f'a console of guest {instance.uuid} cannot listen at {address} port {port or "of any number"} '
                f'on host {host}: {problem}. Give the console another address or autoport, or choose another '
                'destination'
            )


def _has(host: str, instance: Instance, disk: storage.Disk) -> bool:
    """Return whether this host has a file that a guest only reads.

    :returns: False: it can be copied, or the guest does without.

    :raises migrator.exception.MigrationPreCheckError: the file is another one here, or is missing and cannot be copied.
    """
    if not os.path.exists(disk.path):
        if os.path.islink(disk.path):
            raise exception.MigrationPreCheckError(
                reason=f'{disk.path} of guest {instance.uuid} is a symbolic link at {host} to a file that does not '
                'exist: remove the link there'
            )
        if disk.copyable or disk.optional:
            return False
        raise exception.MigrationPreCheckError(
            reason=f'host {host} does not have {disk.path} of guest {instance.uuid}: provide it there, or, for a CD, '
            'eject it'
        )
    if disk.kind == 'file' and not is_regular(disk.path):
        raise exception.MigrationPreCheckError(
            reason=f'{disk.path} of guest {instance.uuid} is no file at {host}: move it away there'
        )
    try:
        found = identity.fingerprint(disk.path) if disk.kind == 'file' else identity.device_of(disk.path)
    except OSError as error:
        raise exception.MigrationPreCheckError(
            reason=f'host {host} cannot read {disk.path} of guest {instance.uuid}: {error}: make it readable for '
            'migrator-compute there'
        ) from error
    if disk.identity and found != disk.identity:
        raise exception.MigrationPreCheckError(
            reason=f'{disk.path} (disk {disk.target} of guest {instance.uuid}) is another one at {host} than at '
            f'{instance.host}: move it away there, or, for a CD, eject it'
        )
    return True
