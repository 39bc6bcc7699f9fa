# SPDX-License-Identifier: Apache-2.0

"""How a guest is moved: the flags and parameters that libvirt is asked with."""

from __future__ import annotations

import dataclasses
from typing import Any

import libvirt
from oslo_config import cfg

from migrator import exception
from migrator.objects import GuestState, Instance, LiveMigrateData, protocol
from migrator.virt.libvirt import checks, storage
from migrator.virt.libvirt.connection import Connection

#: What a guest's memory, and each of its disks that is copied, counts as at least, in GiB; nova's number.
_LEAST_GIB = 2.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a guest is to be moved.

    :ivar uri: of the destination's daemon, as this host's reaches it.
    :ivar parameters: of ``migrateToURI3``.
    :ivar flags: of ``VIR_MIGRATE_*``.
    :ivar downtimes: when to widen the downtime to what: (seconds after the begin, milliseconds), in order.
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
    """Say how a guest moves that is here now; hours may have passed since it was checked.

    :param conf: with the options of :mod:`migrator.conf.libvirt` registered.
    :param destination: the name of the compute host.
    :raises migrator.exception.DriverError: it must not move so.
    """
    options, there = conf.libvirt, migrate_data.destination
    if there.get('host') != destination:
        raise exception.DriverError(
            host=connection.host,
            phase='live_migration',
            reason=f'{destination} cannot be reached: what is known is how to reach {there.get("host")}',
        )
    try:
        name = checks.uri_host(there)
    except ValueError as error:
        raise exception.DriverError(host=connection.host, phase='live_migration', reason=str(error)) from None
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
    disks = storage.disks_of(migrate_data)
    _refuse_other_disks(connection, instance, disks)
    copied = [disk.target for disk in disks if not disk.shared]
    if copied:
        flags |= libvirt.VIR_MIGRATE_NON_SHARED_DISK
        parameters[libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS] = copied
    seen = [disk for disk in disks if disk.shared]
    if any(disk.kind == 'file' for disk in seen) and all(disk.coherent for disk in seen):
        # Libvirt judges by the file system; here it was seen that both hosts have the very directory.
        flags |= libvirt.VIR_MIGRATE_UNSAFE
    if options.live_migration_bandwidth:
        parameters[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = options.live_migration_bandwidth
    parallel = options.live_migration_parallel_connections
    if parallel > 1:
        flags |= libvirt.VIR_MIGRATE_PARALLEL
        parameters[libvirt.VIR_MIGRATE_PARAM_PARALLEL_CONNECTIONS] = parallel
    elif options.live_migration_permit_post_copy and there.get('post_copy') and guest.state == GuestState.RUNNING:
        # QEMU has none for a guest that its user has paused.
        flags |= libvirt.VIR_MIGRATE_POSTCOPY
    elif options.live_migration_permit_auto_converge:
        flags |= libvirt.VIR_MIGRATE_AUTO_CONVERGE
    if options.live_migration_with_native_tls:
        flags |= libvirt.VIR_MIGRATE_TLS
    template = options.live_migration_uri or f'qemu+{options.live_migration_scheme or "tcp"}://%s/system'
    uri = template.replace('%s', name)
    amounts = [instance.flavor.memory_mb / 1024, *migrate_data.source.get('copied_gib', [])]
    steps = downtimes(
        options.live_migration_downtime,
        options.live_migration_downtime_steps,
        options.live_migration_downtime_delay,
        sum(max(_LEAST_GIB, amount) for amount in amounts),
    )
    return Plan(uri, parameters, flags, steps)


def downtimes(most: int, steps: int, delay: float, gib: float) -> tuple[tuple[float, int], ...]:
    """Return when to widen a move's downtime to what, as nova does: in equal steps to all of it, the more slowly the
    more there is to copy.

    :param most: the most that a guest may stand still, in milliseconds.
    :param steps: in how many steps to come there.
    :param delay: seconds between two steps, for each GiB to copy.
    :param gib: how much there is to copy.
    :returns: (seconds after the begin, milliseconds), in order.
    """
    base = most / steps
    more = (most - base) / steps
    return tuple((number * delay * gib, round(base + more * number)) for number in range(steps + 1))


def _refuse_other_disks(connection: Connection, instance: Instance, disks: list[storage.Disk]) -> None:
    def ask(libvirtd: Any) -> list[storage.Disk]:
        return storage.named(libvirtd.lookupByUUIDString(instance.uuid).XMLDesc(0))

    now = sorted(disk.source for disk in connection.call('live_migration', ask))
    if now != sorted(disk.source for disk in disks):
        names = ', '.join(f'{target} ({path or kind})' for target, kind, path in now) or 'none'
        raise exception.DriverError(
            host=connection.host,
            phase='live_migration',
            reason=f'the disks of guest {instance.uuid} are others than when it was checked, namely {names}: '
            'ask for the migration again',
        )
