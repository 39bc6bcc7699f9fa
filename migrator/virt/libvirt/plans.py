# SPDX-License-Identifier: Apache-2.0

"""The plan of a migration: the flags and parameters of the libvirt call."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from typing import Any

import libvirt
from oslo_config import cfg

from migrator import exception, executors
from migrator.objects import GuestState, Instance, LiveMigrateData, protocol
from migrator.virt.libvirt import checks, storage
from migrator.virt.libvirt.connection import Connection
from migrator.virt.libvirt.definition import consoles
from migrator.virt.libvirt.definition.disks import alone

#: The least size in GiB that a guest's memory, and each copied disk, counts as. Nova uses the same number.
_LEAST_GIB = 2.0
#: Seconds within which the daemon of a destination has to show its identity. A check waits no longer for it.
IDENTITY_DEADLINE = 5.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of one migration.

    :ivar uri: the URI of the destination's daemon, as the daemon of this host reaches it.
    :ivar parameters: parameters of ``migrateToURI3``.
    :ivar flags: ``VIR_MIGRATE_*`` flags.
    :ivar downtimes: the steps of the allowed downtime: (seconds after the start, milliseconds), in order.
    """

    uri: str
    parameters: dict[str, Any]
    flags: int
    downtimes: tuple[tuple[float, int], ...] = ()


def plan(
    connection: Connection,
    conf: cfg.ConfigOpts,
    guest: protocol.Guest,
    instance: Instance,
    destination: str,
    migrate_data: LiveMigrateData,
) -> Plan:
    """Return the plan of the migration of a guest that is here now.

    Hours may have passed since the guest was checked, so its disks are compared with the checked ones.

    :param conf: with the options of :mod:`migrator.conf.libvirt` registered.
    :param destination: the name of the destination's compute host.
    :raises migrator.exception.DriverError: the guest or the destination differs from what was checked.
    """
    options, there = conf.libvirt, migrate_data.destination
    if there.get('host') != destination:
        raise exception.DriverError(
            host=connection.host,
            phase='live_migration',
            reason=f'no address of host {destination} is known: the checks were for host {there.get("host")}',
        )
    try:
        name, uri = checks.uri_host(there), uri_of(conf, there)
    except ValueError as error:
        raise exception.DriverError(host=connection.host, phase='live_migration', reason=str(error)) from None
    # The configuration may have changed since the checks.
    if obstacle := must_encrypt(conf, there) and unencrypted(conf, live=True):
        raise exception.DriverError(host=connection.host, phase='live_migration', reason=obstacle)
    parameters: dict[str, Any] = {}
    if there.get('inbound_addr'):
        parameters[libvirt.VIR_MIGRATE_PARAM_URI] = f'tcp://{name}'
    flags = (
        libvirt.VIR_MIGRATE_LIVE
        | libvirt.VIR_MIGRATE_PEER2PEER
        | libvirt.VIR_MIGRATE_PERSIST_DEST
        | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
    )
    if not migrate_data.source.get('persistent', True):
        flags &= ~(libvirt.VIR_MIGRATE_PERSIST_DEST | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE)
    parameters |= _definitions(connection, instance, migrate_data)
    disks = storage.disks_of(migrate_data)
    refuse_other_disks(connection, 'live_migration', instance, disks)
    copied = [disk.target for disk in disks if not disk.shared]
    if copied:
        flags |= libvirt.VIR_MIGRATE_NON_SHARED_DISK
        parameters[libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS] = copied
    seen = [disk for disk in disks if disk.shared]
    if any(disk.kind == 'file' for disk in seen) and all(disk.coherent for disk in seen):
        # Libvirt judges by the type of the file system. The checks have shown that both hosts see the same directory.
        flags |= libvirt.VIR_MIGRATE_UNSAFE
    if options.live_migration_bandwidth:
        parameters[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = options.live_migration_bandwidth
    parallel = options.live_migration_parallel_connections
    if parallel > 1:
        flags |= libvirt.VIR_MIGRATE_PARALLEL
        parameters[libvirt.VIR_MIGRATE_PARAM_PARALLEL_CONNECTIONS] = parallel
    elif options.live_migration_permit_post_copy and there.get('post_copy') and guest.state == GuestState.RUNNING:
        # QEMU has no post-copy for a guest that its user has paused.
        flags |= libvirt.VIR_MIGRATE_POSTCOPY
    elif options.live_migration_permit_auto_converge:
        flags |= libvirt.VIR_MIGRATE_AUTO_CONVERGE
    if options.live_migration_with_native_tls:
        flags |= libvirt.VIR_MIGRATE_TLS
    amounts = [instance.flavor.memory_mb / 1024, *migrate_data.source.get('copied_gib', [])]
    steps = downtimes(
        options.live_migration_downtime,
        options.live_migration_downtime_steps,
        options.live_migration_downtime_delay,
        sum(max(_LEAST_GIB, amount) for amount in amounts),
    )
    return Plan(uri, parameters, flags, steps)


def _definitions(connection: Connection, instance: Instance, migrate_data: LiveMigrateData) -> dict[str, Any]:
    """Return the parameters with the destination's definition, if it cannot be that of the source.

    No other files back the copy of a disk.

    They have the passwords of consoles, and stay in this process and libvirt's.
    """

    def read(each: Any) -> tuple[str, str]:
        domain, secure = each.lookupByUUIDString(instance.uuid), libvirt.VIR_DOMAIN_XML_SECURE
        migratable = libvirt.VIR_DOMAIN_XML_MIGRATABLE | secure
        return domain.XMLDesc(migratable), domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | migratable)

    now, later = connection.call('live_migration', read)
    own, there = migrate_data.source.get('own_addresses') or [], migrate_data.destination.get('listens') or {}
    copied = [disk.target for disk in storage.disks_of(migrate_data) if not disk.shared]
    definitions = {
        libvirt.VIR_MIGRATE_PARAM_DEST_XML: consoles.moved(alone(now, copied), own, there),
        libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: consoles.moved(alone(later, copied), own, there),
    }
    if [*definitions.values()] == [now, later]:
        return {}
    if not migrate_data.source.get('persistent', True):
        del definitions[libvirt.VIR_MIGRATE_PARAM_PERSIST_XML]
    return definitions


def uri_of(conf: cfg.ConfigOpts, there: dict[str, Any]) -> str:
    """Return the URI of the destination's daemon, as this host reaches it.

    :param there: what the destination's check has returned.
    :raises ValueError: the destination reports neither a host name nor an IP address.
    """
    return _uri_of_any(conf).replace('%s', checks.uri_host(there))


def another_host(conf: cfg.ConfigOpts, there: dict[str, Any], threads: executors.Threads) -> str | None:
    """Return in words that this host reaches another one than the destination, or None.

    The daemon of this host opens the same URI, but as its own user. If this service may not, nothing is compared.

    :param there: what the destination's check has returned.
    """
    if not there.get('hypervisor_uuid'):
        return None
    uri = uri_of(conf, there)
    destination = Connection(uri, str(there.get('host')), threads, IDENTITY_DEADLINE)
    try:
        return checks.another_host(conf.host, uri, there, destination.identity('check_can_live_migrate_source'))
    finally:
        destination.close()


def _uri_of_any(conf: cfg.ConfigOpts) -> str:
    scheme = conf.libvirt.live_migration_scheme or 'tcp'
    return str(conf.libvirt.live_migration_uri or f'qemu+{scheme}://%s/system')


def must_encrypt(conf: cfg.ConfigOpts, other: dict[str, Any]) -> bool:
    """Return whether this host or the other one requires encryption.

    :param other: what the check of the other host has returned.
    """
    return bool(conf.libvirt.require_encryption or other.get('require_encryption'))


def unencrypted(conf: cfg.ConfigOpts, *, live: bool) -> str | None:
    """Return in words what this host would send unencrypted, or None.

    :param live: whether guests' memory is sent.
    """
    options = conf.libvirt
    how = 'live_migration_uri' if options.live_migration_uri else 'live_migration_scheme'
    for option, uri in (('connection_uri', options.connection_uri), (how, _uri_of_any(conf))):
        if not is_encrypted(uri):
            return (
                f'[libvirt] require_encryption is set, and by {option} host {conf.host} uses {uri}, which is not '
                'encrypted, or does not check whom it reaches: use a URI with the transport tls or ssh, without '
                'no_verify and known_hosts_verify'
            )
    if live and not options.live_migration_with_native_tls:
        return (
            '[libvirt] require_encryption is set, and live_migration_with_native_tls is False at host '
            f"{conf.host}: set it to True on both hosts, which need QEMU's certificates for it"
        )
    return None


def is_encrypted(uri: str) -> bool:
    """Return whether libvirt encrypts a connection and checks whom it reaches.

    A connection that stays on the host counts as encrypted.

    :param uri: a URI of libvirt; one with a host and without a transport uses TLS.
    """
    try:
        parts = urllib.parse.urlsplit(uri.replace('%s', 'host'))
    except ValueError:
        return False
    transport = parts.scheme.partition('+')[2] or ('tls' if parts.netloc else 'unix')
    # An alias has no scheme, and '' means libvirt's default: only libvirt's own configuration has their URIs.
    return bool(parts.scheme) and (
        transport == 'unix' or (transport in ('tls', 'ssh', 'libssh', 'libssh2') and _verifies(parts.query))
    )


def _verifies(query: str) -> bool:
    """Return whether a query leaves on that libvirt checks whom it reaches.

    Libvirt also separates parameters with ``;``, ignores the case of their names, and takes each number but 0 as true.
    """
    for parameter in re.split('[&;]', query):
        name, _, value = (urllib.parse.unquote(part).lower() for part in parameter.partition('='))
        if name == 'no_verify' and set(value) != {'0'}:
            return False
        if name == 'known_hosts_verify' and value != 'normal':
            return False
    return True


def downtimes(most: int, steps: int, delay: float, gib: float) -> tuple[tuple[float, int], ...]:
    """Return the steps by which the allowed downtime grows, as in nova.

    The downtime grows in equal steps up to the maximum. The more there is to copy, the longer each step lasts.

    :param most: the maximum downtime in milliseconds.
    :param steps: the number of steps.
    :param delay: seconds between two steps for each GiB to copy.
    :param gib: the amount to copy in GiB.
    :returns: (seconds after the start, milliseconds), in order.
    """
    base = most / steps
    more = (most - base) / steps
    return tuple((number * delay * gib, round(base + more * number)) for number in range(steps + 1))


def refuse_other_disks(
    connection: Connection, phase: str, instance: Instance, disks: list[storage.Disk], flags: int = 0
) -> None:
    """Refuse a guest whose disks have changed since they were checked.

    :param flags: ``VIR_DOMAIN_XML_*`` flags of the definition that was checked.
    :raises migrator.exception.DriverError: the disks have changed.
    """

    def ask(libvirtd: Any) -> list[storage.Disk]:
        return storage.defined_disks(libvirtd.lookupByUUIDString(instance.uuid).XMLDesc(flags))

    now = sorted(disk.source for disk in connection.call(phase, ask))
    if now != sorted(disk.source for disk in disks):
        names = ', '.join(f'{target} ({path or kind})' for target, kind, path in now) or 'no disks'
        raise exception.DriverError(
            host=connection.host,
            phase=phase,
            reason=f'the disks of guest {instance.uuid} have changed since the checks; it has {names} now: '
            'request the migration again',
        )
