# SPDX-License-Identifier: Apache-2.0

"""The state of one guest as libvirt reports it, converted to :class:`migrator.objects.protocol.Guest`.

The libvirt daemon queries QEMU when it starts, so its reports agree with QEMU also after a restart. There is one
exception. If a guest was already paused, by its user or because of a disk error, libvirt does not report whether it has
been migrated away meanwhile. In this case, and only if this host had begun to migrate the guest, this module queries
QEMU directly.
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
from migrator.virt.libvirt.connection import code_of

#: The XML namespaces in which nova writes the owner of a guest: the present one, and an older one of old guests.
_NOVA = tuple(f'{{http://openstack.org/xmlns/libvirt/nova/{version}}}' for version in ('1.1', '1.0'))
#: The maximum length of an adopted name. The database and Placement store no more.
_NAME = 255
#: The states of a QEMU that has sent everything and waits for its end. The guest may run elsewhere.
_SENT = ('postmigrate', 'finish-migrate')
#: The reasons for a pause that show the state of a migration, so that QEMU need not be queried.
_MIGRATION_REASONS = (
    libvirt.VIR_DOMAIN_PAUSED_MIGRATION,
    libvirt.VIR_DOMAIN_PAUSED_STARTING_UP,
    libvirt.VIR_DOMAIN_PAUSED_POSTCOPY,
    libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED,
)
#: What goes with the definition of a guest that this host does not own any more.
_UNDEFINE = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
    # On shared storage both belong to the guest that runs on the other host.
    | libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM
    | libvirt.VIR_DOMAIN_UNDEFINE_KEEP_TPM
)


@dataclasses.dataclass(frozen=True)
class DomainState:
    """The state of a domain at one moment, as libvirt reports it.

    :ivar state: a ``VIR_DOMAIN_*`` state, or None if there is no such domain.
    :ivar reason: the reason for that state.
    :ivar operation: the ``VIR_DOMAIN_JOB_OPERATION_*`` of the current job, or 0 without a job.
    :ivar receiving: whether the domain is the receiving end of a migration.
    :ivar moved: whether this host has begun to migrate the guest away. Then the guest is not arriving.
    :ivar sent: whether QEMU reports that it has sent everything.
    """

    state: int | None = None
    reason: int = 0
    operation: int = 0
    receiving: bool = False
    moved: bool = False
    sent: bool = False

    @property
    def job(self) -> bool:
        """Whether a migration of the guest away from this host is in progress."""
        return bool(self.operation == libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT)


def find_domain(connection: Any, instance_uuid: str) -> Any:
    """Return the domain of a guest, a ``libvirt.virDomain``, or None if there is none."""
    try:
        return connection.lookupByUUIDString(instance_uuid)
    except libvirt.libvirtError as error:
        if code_of(error) == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def remove_domain(connection: Any, instance_uuid: str) -> bool:
    """Destroy and undefine a domain, and return whether it existed.

    :param connection: a ``libvirt.virConnect``.
    """
    domain = find_domain(connection, instance_uuid)
    if domain is None:
        return False
    try:
        if domain.isActive():
            domain.destroy()
        if domain.isPersistent():
            domain.undefineFlags(_UNDEFINE)
    except libvirt.libvirtError as error:
        if code_of(error) != libvirt.VIR_ERR_NO_DOMAIN:
            raise
    return True


def read_state(connection: Any, instance_uuid: str, moved: bool = False) -> DomainState:
    """Query libvirt for the state of one guest.

    :param connection: a ``libvirt.virConnect``.
    :param moved: whether this host has begun to migrate the guest away, so that QEMU may have sent it.
    """
    domain = find_domain(connection, instance_uuid)
    if domain is None:
        return DomainState()
    try:
        state, reason = domain.state()
        operation, receiving = _job(domain)
        unclear = state == libvirt.VIR_DOMAIN_PAUSED and reason not in _MIGRATION_REASONS
        sent = moved and not operation and unclear and _has_sent(domain)
    except libvirt.libvirtError as error:
        if code_of(error) == libvirt.VIR_ERR_NO_DOMAIN:  # the domain has gone since find_domain()
            return DomainState()
        raise
    return DomainState(state, reason, operation, receiving, moved, sent)


def _job(domain: Any) -> tuple[int, bool]:
    try:
        stats = domain.jobStats()
    except libvirt.libvirtError as error:
        code = code_of(error)
        if code == libvirt.VIR_ERR_OPERATION_UNSUPPORTED:
            # Libvirt says: "migration statistics are available only on the source host".
            return libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN, True
        if code == libvirt.VIR_ERR_OPERATION_INVALID:  # the guest is not running
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


def to_guest(instance_uuid: str, seen: DomainState, prepared: bool) -> protocol.Guest:
    """Convert the state of a domain to the state of a guest as a driver reports it.

    :param prepared: whether this host is prepared to receive the guest.
    """
    state, post_copy, incoming = _state(seen, prepared)
    return protocol.Guest(
        instance_uuid=instance_uuid, state=state.value, job=seen.job, incoming=incoming, post_copy=post_copy
    )


def _state(seen: DomainState, prepared: bool) -> tuple[GuestState, bool, bool]:
    if seen.state is None:
        return (GuestState.WAITING if prepared else GuestState.ABSENT), False, False
    if seen.state == libvirt.VIR_DOMAIN_PAUSED:
        return _paused(seen, prepared)
    if seen.state == libvirt.VIR_DOMAIN_SHUTOFF and seen.reason == libvirt.VIR_DOMAIN_SHUTOFF_FAILED and prepared:
        # Libvirt had defined the guest, and then QEMU could not run what it received. The guest was never here.
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


def _paused(seen: DomainState, prepared: bool) -> tuple[GuestState, bool, bool]:
    if seen.reason == libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED:
        return GuestState.POSTCOPY_BROKEN, True, False
    if seen.reason == libvirt.VIR_DOMAIN_PAUSED_POSTCOPY:
        return GuestState.CUTOVER, True, False
    if seen.reason in (libvirt.VIR_DOMAIN_PAUSED_MIGRATION, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP):
        arriving = seen.receiving or (prepared and not seen.moved and not seen.job)
        return (GuestState.WAITING if arriving else GuestState.CUTOVER), False, arriving
    return (GuestState.CUTOVER if seen.sent else GuestState.PAUSED), False, False


# --- diagnostics -----------------------------------------------------------------------------------------------------

#: What libvirt's statistics of a disk and of an interface are, in their order.
_DISK = ('read_requests', 'read_bytes', 'write_requests', 'write_bytes', 'errors_count')
_INTERFACE = (
    'rx_octets', 'rx_packets', 'rx_errors', 'rx_drop', 'tx_octets', 'tx_packets', 'tx_errors', 'tx_drop',
)  # fmt: skip


def diagnostics_of(connection: Any, instance_uuid: str) -> dict[str, Any] | None:
    """Return what libvirt has counted for a guest, or None if there is no such guest.

    As in nova, a statistic that the hypervisor does not have is left out.

    :param connection: a ``libvirt.virConnect``.
    """
    domain = find_domain(connection, instance_uuid)
    if domain is None:
        return None
    xml = ElementTree.fromstring(domain.XMLDesc(0))  # noqa: S314 -- libvirt wrote it
    _state, maximum_kib, used_kib, *_rest = domain.info()
    found: dict[str, Any] = {
        'driver': 'libvirt',
        'hypervisor': xml.get('type'),
        'hypervisor_os': 'linux',
        'memory_details': {'maximum': maximum_kib // 1024, 'used': used_kib // 1024},
        'cpu_details': [],
        'disk_details': [],
        'nic_details': [],
    }
    with contextlib.suppress(libvirt.libvirtError):
        found['cpu_details'] = [{'id': cpu[0], 'time': cpu[2]} for cpu in domain.vcpus()[0]]
    for disk in xml.findall('devices/disk/target'):
        name = disk.get('dev')
        with contextlib.suppress(libvirt.libvirtError):
            counted = dict(zip(_DISK, domain.blockStats(name), strict=False))
            found['disk_details'].append({'device': name} | counted)
    for interface in xml.findall('devices/interface'):
        mac, target = interface.find('mac'), interface.find('target')
        known = {'mac_address': mac.get('address') if mac is not None else None}
        name = target.get('dev') if target is not None else None
        with contextlib.suppress(libvirt.libvirtError):
            if name is not None:
                known |= {'device': name} | dict(zip(_INTERFACE, domain.interfaceStats(name), strict=False))
            found['nic_details'].append(known)
    return found


# --- adoption --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Facts:
    """The properties of a guest.

    :ivar state: a ``VIR_DOMAIN_*`` state.
    :ivar memory_kib: the maximum memory.
    :ivar disks: (path, size in bytes) of each disk that is a file of the guest's own.
    """

    uuid: str
    name: str
    state: int
    memory_kib: int
    xml: ElementTree.Element
    disks: tuple[tuple[str, int], ...] = ()


def facts_of(connection: Any, instance_uuid: str) -> Facts | None:
    """Return the properties of a guest, or None if there is no such guest.

    :param connection: a ``libvirt.virConnect``.
    """
    domain = find_domain(connection, instance_uuid)
    if domain is None:
        return None
    xml = ElementTree.fromstring(domain.XMLDesc(0))  # noqa: S314 -- libvirt wrote it
    state, _reason = domain.state()
    return Facts(instance_uuid, domain.name(), state, domain.maxMemory(), xml, tuple(_sizes(domain, xml)))


def to_instance(facts: Facts, host: str, project_id: str, user_id: str, space: Sequence[int]) -> Instance:
    """Return a guest as an instance.

    :param project_id: the project, unless the definition names one as nova's definitions do.
    :param user_id: the user, likewise.
    :param space: the sizes in bytes of the disks that take space on the host's own disk.
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
        # A disk that libvirt cannot examine must not prevent the adoption of the guest.
        with contextlib.suppress(libvirt.libvirtError):
            yield source.get('file', ''), int(domain.blockInfo(target.get('dev'))[0])
