# SPDX-License-Identifier: Apache-2.0

"""What libvirt says of one guest, in the words of :class:`migrator.objects.protocol.Guest`.

Libvirt itself asks QEMU when its daemon starts, so that its word is QEMU's also after a restart, but for one thing:
of a guest that was paused before, by its user or for an error of its disk, it does not tell whether that has been
migrated away meanwhile. There, and only
where this host had begun to move it, QEMU is asked directly.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

import libvirt
import libvirt_qemu

from migrator.objects import Flavor, GuestState, Instance, protocol
from migrator.virt.libvirt import connection as connections
from migrator.virt.libvirt import storage

#: Where nova writes a guest's owner into its definition, and where it did for guests that have run for very long.
_NOVA = tuple(f'{{http://openstack.org/xmlns/libvirt/nova/{version}}}' for version in ('1.1', '1.0'))
#: What a volume of a pool is, where a host can look at it.
_VOLUMES = {libvirt.VIR_STORAGE_VOL_FILE: 'file', libvirt.VIR_STORAGE_VOL_BLOCK: 'block'}
#: How long libvirt is to hold a name, in bytes; Placement and the database hold no more of one either.
_NAME = 255
#: QEMU has sent everything, and waits to be ended; its guest may run elsewhere.
_SENT = ('postmigrate', 'finish-migrate')
#: Why a guest is paused where libvirt tells by it how a migration stands.
_TOLD = (
    libvirt.VIR_DOMAIN_PAUSED_MIGRATION,
    libvirt.VIR_DOMAIN_PAUSED_STARTING_UP,
    libvirt.VIR_DOMAIN_PAUSED_POSTCOPY,
    libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED,
)


@dataclasses.dataclass(frozen=True)
class Seen:
    """What libvirt says of a domain at one moment.

    :ivar state: of ``VIR_DOMAIN_*``; None: there is no such domain.
    :ivar reason: of that state.
    :ivar operation: of ``VIR_DOMAIN_JOB_OPERATION_*`` the one under way; 0: none, or another than a job.
    :ivar receiving: it is the receiving end of a migration.
    :ivar moved: this host has begun to move it, so that it is none that arrives.
    :ivar sent: QEMU says that it has sent everything.
    """

    state: int | None = None
    reason: int = 0
    operation: int = 0
    receiving: bool = False
    moved: bool = False
    sent: bool = False

    @property
    def job(self) -> bool:
        """Whether a migration of it goes out from here."""
        return bool(self.operation == libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT)


def find(connection: Any, instance_uuid: str) -> Any:
    """Return the domain of a guest, a ``libvirt.virDomain``; None: there is none."""
    try:
        return connection.lookupByUUIDString(instance_uuid)
    except libvirt.libvirtError as error:
        if connections.code_of(error) == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def see(connection: Any, instance_uuid: str, moved: bool = False) -> Seen:
    """Ask libvirt for one guest.

    :param connection: a ``libvirt.virConnect``.
    :param moved: whether this host has begun to move it, so that QEMU may have sent it away.
    """
    domain = find(connection, instance_uuid)
    if domain is None:
        return Seen()
    try:
        state, reason = domain.state()
        operation, receiving = _job(domain)
        sent = (
            moved and not operation and state == libvirt.VIR_DOMAIN_PAUSED and reason not in _TOLD and _has_sent(domain)
        )
    except libvirt.libvirtError as error:
        if connections.code_of(error) == libvirt.VIR_ERR_NO_DOMAIN:  # it has gone meanwhile
            return Seen()
        raise
    return Seen(state, reason, operation, receiving, moved, sent)


def _job(domain: Any) -> tuple[int, bool]:
    try:
        stats = domain.jobStats()
    except libvirt.libvirtError as error:
        code = connections.code_of(error)
        if code == libvirt.VIR_ERR_OPERATION_UNSUPPORTED:
            # "migration statistics are available only on the source host"
            return libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN, True
        if code == libvirt.VIR_ERR_OPERATION_INVALID:  # the guest does not run
            return 0, False
        raise
    if stats.get('type', libvirt.VIR_DOMAIN_JOB_NONE) in (
        libvirt.VIR_DOMAIN_JOB_NONE,
        libvirt.VIR_DOMAIN_JOB_COMPLETED,
        libvirt.VIR_DOMAIN_JOB_FAILED,
        libvirt.VIR_DOMAIN_JOB_CANCELLED,
    ):
        return 0, False
    return int(stats.get(libvirt.VIR_DOMAIN_JOB_OPERATION, 0)), False


def _has_sent(domain: Any) -> bool:
    answer = json.loads(libvirt_qemu.qemuMonitorCommand(domain, '{"execute": "query-status"}', 0))
    return answer.get('return', {}).get('status') in _SENT


def told(instance_uuid: str, seen: Seen, prepared: bool) -> protocol.Guest:
    """Return what a driver says of a guest.

    :param prepared: whether this host has been made ready to receive it.
    """
    state, post_copy, incoming = _state(seen, prepared)
    return protocol.Guest(
        instance_uuid=instance_uuid, state=state.value, job=seen.job, incoming=incoming, post_copy=post_copy
    )


def _state(seen: Seen, prepared: bool) -> tuple[GuestState, bool, bool]:
    if seen.state is None:
        return (GuestState.WAITING if prepared else GuestState.ABSENT), False, False
    if seen.state == libvirt.VIR_DOMAIN_PAUSED:
        return _paused(seen, prepared)
    if seen.state == libvirt.VIR_DOMAIN_SHUTOFF and seen.reason == libvirt.VIR_DOMAIN_SHUTOFF_FAILED and prepared:
        # Libvirt had its definition made already, and then QEMU could not run what it was sent: it has never been here.
        return GuestState.WAITING, False, True
    if seen.state in (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_CRASHED):
        return GuestState.SHUTDOWN, False, False
    if seen.state == libvirt.VIR_DOMAIN_PMSUSPENDED:
        return GuestState.PAUSED, False, False
    if seen.state == libvirt.VIR_DOMAIN_RUNNING:
        if seen.reason == libvirt.VIR_DOMAIN_RUNNING_POSTCOPY_FAILED:
            return GuestState.POSTCOPY_BROKEN, True, False
        return GuestState.RUNNING, seen.reason == libvirt.VIR_DOMAIN_RUNNING_POSTCOPY, False
    return GuestState.RUNNING, False, False


def _paused(seen: Seen, prepared: bool) -> tuple[GuestState, bool, bool]:
    if seen.reason == libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED:
        return GuestState.POSTCOPY_BROKEN, True, False
    if seen.reason == libvirt.VIR_DOMAIN_PAUSED_POSTCOPY:
        return GuestState.CUTOVER, True, False
    if seen.reason in (libvirt.VIR_DOMAIN_PAUSED_MIGRATION, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP):
        arriving = seen.receiving or (prepared and not seen.moved and not seen.job)
        return (GuestState.WAITING if arriving else GuestState.CUTOVER), False, arriving
    return (GuestState.CUTOVER if seen.sent else GuestState.PAUSED), False, False


def volumes_of(connection: Any, definition: str) -> list[storage.Disk]:
    """Return the files and block devices that a guest's writable disks are by the names of volumes of storage pools.

    :param connection: a ``libvirt.virConnect``.
    """
    found = []
    xml = ElementTree.fromstring(definition)  # noqa: S314 -- libvirt wrote it
    for disk in storage.named(definition):
        source = xml.find(f"devices/disk/target[@dev='{disk.target}']/../source")
        if disk.kind != 'volume' or source is None:
            continue
        pool = connection.storagePoolLookupByName(source.get('pool', ''))
        volume = pool.storageVolLookupByName(source.get('volume', ''))
        kind = _VOLUMES.get(volume.info()[0])
        if kind is not None:
            found.append(dataclasses.replace(disk, kind=kind, path=str(volume.path())))
    return found


# --- what it is ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a guest is.

    :ivar state: of ``VIR_DOMAIN_*``.
    :ivar memory_kib: the most it may have.
    :ivar disks: (path, size in bytes) of each that is a file of its own.
    """

    uuid: str
    name: str
    state: int
    memory_kib: int
    xml: ElementTree.Element
    disks: tuple[tuple[str, int], ...] = ()


def facts_of(connection: Any, instance_uuid: str) -> Facts | None:
    """Return what a guest is; None: there is none.

    :param connection: a ``libvirt.virConnect``.
    """
    domain = find(connection, instance_uuid)
    if domain is None:
        return None
    xml = ElementTree.fromstring(domain.XMLDesc(0))  # noqa: S314 -- libvirt wrote it
    state, _reason = domain.state()
    return Facts(instance_uuid, domain.name(), state, domain.maxMemory(), xml, tuple(_sizes(domain, xml)))


def described(facts: Facts, host: str, project_id: str, user_id: str, space: Sequence[int]) -> Instance:
    """Return a guest as an instance.

    :param project_id: whose it is, where its definition does not say so, as nova's do.
    :param user_id: likewise.
    :param space: what its disks take of the host's, in bytes each.
    """
    project, user = _owner(facts.xml)
    vm_state, power_state = {
        libvirt.VIR_DOMAIN_PAUSED: ('paused', 3),
        libvirt.VIR_DOMAIN_SHUTOFF: ('stopped', 4),
        libvirt.VIR_DOMAIN_CRASHED: ('stopped', 4),
    }.get(facts.state, ('active', 1))
    flavor = Flavor(
        name='adopted',
        vcpus=_processors(facts.xml),
        memory_mb=-(-facts.memory_kib // 1024),
        root_gb=sum(-(-size // 2**30) for size in space),
    )
    return Instance(
        uuid=facts.uuid,
        name=facts.name[:_NAME],
        project_id=project or project_id,
        user_id=user or user_id,
        host=host,
        node=host,
        flavor=flavor,
        vm_state=vm_state,
        power_state=power_state,
    )


def _processors(xml: ElementTree.Element) -> int:
    vcpu = xml.find('vcpu')
    if vcpu is None:
        return 1
    return int(vcpu.get('current') or vcpu.text or 1)


def _owner(xml: ElementTree.Element) -> tuple[str | None, str | None]:
    for nova in _NOVA:
        owner = xml.find(f'metadata/{nova}instance/{nova}owner')
        if owner is not None:
            found = [owner.find(f'{nova}{name}') for name in ('project', 'user')]
            project, user = (element.get('uuid') if element is not None else None for element in found)
            return project, user
    return None, None


def _sizes(domain: Any, xml: ElementTree.Element) -> Iterator[tuple[str, int]]:
    for disk in xml.findall('devices/disk'):
        target, source = disk.find('target'), disk.find('source')
        if disk.get('device', 'disk') != 'disk' or disk.get('type') != 'file' or target is None or source is None:
            continue
        if disk.find('shareable') is not None:
            continue
        # A disk that cannot be looked at must not keep a guest from being adopted.
        with contextlib.suppress(libvirt.libvirtError):
            yield source.get('file', ''), int(domain.blockInfo(target.get('dev'))[0])
