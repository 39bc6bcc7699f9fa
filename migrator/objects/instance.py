# SPDX-License-Identifier: Apache-2.0

"""An instance: a guest that migrator has in its database."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import re
import zlib
from collections.abc import Mapping
from typing import Any

import os_resource_classes
import os_traits
from oslo_utils import strutils

from migrator.objects import base
from migrator.objects.request import Request, request_of

#: The vm_states in which a guest can be live-migrated, as in nova.
MIGRATABLE_VM_STATES = ('active', 'paused')
#: The vm_states in which a guest can be evacuated, as in nova.
EVACUABLE_VM_STATES = ('active', 'stopped', 'error')
#: The vm_states in which a guest can be cold-migrated, as in nova.
COLD_MIGRATABLE_VM_STATES = ('active', 'stopped')
#: The vm_state of a guest that is shut off, as in nova.
STOPPED = 'stopped'
#: The vm_state of a guest whose cold migration waits to be confirmed or reverted, as in nova.
RESIZED = 'resized'

#: The task_state of an instance, as in nova, while its row exists and its allocation may be gone.
DELETING = 'deleting'
#: The task_state of an instance whose row and allocation a reconcile is writing.
RECONCILING = 'reconciling'
#: The tasks of migrator besides migrations. A task of another service ends with its host, so it forbids no evacuation.
OWN_TASKS = (DELETING, RECONCILING)

#: The least size, in GiB, that the memory and each copied disk of a guest counts as; nova's number.
_LEAST = 2.0
#: More than any number that nova accepts is worth.
_MOST = 1 << 256
_MASK = re.compile(r'\^?\d+(-\d+|,\^?\d+)*')
_GROUP = '([a-zA-Z0-9_-]{1,64})?'
_FROM_0, _FROM_1, _WHOLE = range(_MOST), range(1, _MOST), range(-_MOST, _MOST)
_ANY = re.compile('.*', re.DOTALL)
#: Patterns of the extra specs that nova knows -> what their values are: the least and the greatest number, words, a
#: pattern, or bool. Nova's own table is that of microversion 2.86; tests/real/nova/test_requests.py compares both.
_SPECS: dict[str, range | tuple[str, ...] | re.Pattern[str] | type[bool]] = {
    'accel:device_profile': _ANY,
    'aggregate_instance_extra_specs:.+': _ANY,
    r'capabilities:(cpu_info|metrics|stats|numa_topology|supported_hv_specs|pci_device_pools|nodename|pci_stats'
    r'|supported_instances|limits|instances)(:\w+)*': _ANY,
    'capabilities:(id|uuid|service_id|host|vcpus|memory_mb|local_gb|vcpus_used|memory_mb_used|local_gb_used'
    '|hypervisor_type|hypervisor_version|hypervisor_hostname|free_ram_mb|free_disk_gb|current_workload|running_vms'
    '|disk_available_least|host_ip|mapped|cpu_allocation_ratio|ram_allocation_ratio|disk_allocation_ratio'
    '|total_usable_ram_mb|total_usable_disk_gb|disk_mb_used|free_disk_mb|vcpus_total|num_instances|num_io_ops'
    '|failed_builds|aggregates|cell_uuid|updated)': _ANY,
    'group_policy': ('isolate', 'none'),
    'hide_hypervisor_id|hw:hide_hypervisor_id|hw:cpu_realtime|hw:locked_memory|hw:boot_menu|hw:pmu': bool,
    'hw:vif_multiqueue_enabled|hw:mem_encryption|hw:virtio_packed_ring|hw:ephemeral_encryption|hw_rng:allowed': bool,
    'hw:cpu_realtime_mask|hw:cpu_dedicated_mask': _MASK,
    r'hw:numa_cpus.\d+': _MASK,
    'hw:cpu_policy': ('dedicated', 'shared', 'mixed'),
    'hw:cpu_thread_policy': ('prefer', 'isolate', 'require'),
    'hw:emulator_threads_policy': ('isolate', 'share'),
    'hw:mem_page_size': re.compile(r'large|small|any|\d+([kKMGT]i?)?(b|bit|B)?'),
    r'hw:numa_nodes|hw:numa_mem.\d+|hw:cpu_(max_)?(sockets|cores|threads)': _FROM_1,
    'hw:pci_numa_affinity_policy': ('required', 'preferred', 'legacy', 'socket'),
    'hw:mem_encryption_model': ('amd-sev', 'amd-sev-es', 'amd-sev-snp', 'intel-tdx'),
    'hw:pmem': re.compile('[a-zA-Z0-9_]+(,[a-zA-Z0-9_]+)*,?'),
    'hw:serial_port_count|hw_rng:rate_(bytes|period)|hw_video:ram_max_mb': _FROM_0,
    'hw:tpm_model': ('tpm-tis', 'tpm-crb'),
    'hw:tpm_version': ('1.2', '2.0'),
    'hw:tpm_secret_security': ('user', 'host', 'deployment'),
    'hw:watchdog_action': ('none', 'pause', 'poweroff', 'reset', 'disabled'),
    'hw:viommu_model': ('intel', 'smmuv3', 'virtio', 'auto'),
    'hw:sound_model': ('sb16', 'es1370', 'pcspk', 'ac97', 'ich6', 'ich9', 'usb', 'virtio'),
    'hw:usb_model': ('none', 'nec-xhci', 'qemu-xhci'),
    'hw:redirected_usb_ports': range(16),
    'hw:ephemeral_encryption_format': ('plain', 'luks', 'luksv2'),
    'os:secure_boot': ('disabled', 'required'),
    'pci_passthrough:alias': re.compile(r'[^:]+:\d+(\s*,\s*[^:]+:\d+)*'),
    'quota:(cpu|memory|disk_io|vif)_(limit|shares_share)|quota:cpu_(shares|period)': _FROM_0,
    'quota:(disk_(read|write|total)_(bytes|iops)_sec|vif_(in|out)bound_(average|peak|burst))': _FROM_0,
    'quota:((cpu|memory|disk_io|vif)_reservation|cpu_quota)': _WHOLE,
    'quota:(cpu|memory|disk_io|vif)_shares_level': ('custom', 'high', 'normal', 'low'),
    f'resources{_GROUP}:(CUSTOM_[A-Z0-9_]+|{"|".join(os_resource_classes.STANDARDS)})': _WHOLE,
    f'trait{_GROUP}:(CUSTOM_[A-Z0-9_]+|{"|".join(os_traits.get_traits())})': ('required', 'forbidden'),
    'vmware:(hw_version|storage_policy)': _ANY,
}
#: The namespaces of nova. Whatever else is in one of them is a mistake.
_NAMESPACES = (
    'accel|aggregate_instance_extra_specs|capabilities|hw|hw_rng|hw_video|os|pci_passthrough|quota|vmware'
    f'|(resources|trait){_GROUP}'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flavor(base.Versioned):
    """The resources that a guest needs. Memory is in MiB, disk in GiB, as in nova."""

    name: str
    vcpus: int = 1
    memory_mb: int = 512
    root_gb: int = 1
    ephemeral_gb: int = 0
    swap: int = 0
    extra_specs: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def number(self) -> int:
        """A number of the flavor, for the API: flavors of one name have one number."""
        return zlib.crc32(self.name.encode(errors='surrogatepass')) >> 1

    def gib_to_copy(self, block_migration: bool | None, source: Mapping[str, Any]) -> float:
        """Return how much a live migration has to transfer, in GiB, as nova calculates it.

        The time that a migration may take grows with this size. The disk sizes that the check of the driver returned
        take precedence over the flavor, because a guest that nova did not create may have disks that its flavor does
        not name.

        :param block_migration: whether disks are copied too.
        :param source: the facts of the source's driver; see :class:`migrator.objects.LiveMigrateData`.
        """
        amounts = [self.memory_mb / 1024]
        if block_migration:
            disks = (self.root_gb, self.ephemeral_gb, self.swap / 1024)
            amounts += [disk for disk in source.get('copied_gib', disks) if disk]
        return sum(max(_LEAST, amount) for amount in amounts)

    @property
    def request(self) -> Request:
        """What Placement is asked for before a guest moves; see :mod:`migrator.objects.request`."""
        return self.request_for()

    def request_for(
        self,
        properties: Mapping[str, str] | None = None,
        is_volume_backed: bool = False,
        asks_for_secrets: bool = False,
    ) -> Request:
        """Return what Placement is asked for before a guest of an image moves.

        :param properties: those of its image, as far as they are known.
        :param is_volume_backed: whether its root disk is a volume, which takes no room on its host.
        :param asks_for_secrets: whether hosts have traits for who can read the secret of a TPM, as Nova from 33 on.
        """
        disk = (0 if is_volume_backed else self.root_gb) + self.ephemeral_gb + -(-self.swap // 1024)
        specs, known = (tuple(sorted(one.items())) for one in (self.extra_specs, properties or {}))
        return request_of(self.vcpus, self.memory_mb, disk, specs, known, asks_for_secrets)

    def resources(self) -> dict[str, int]:
        """Return the amounts to claim by resource class, summed over the request groups."""
        return self.request.total


@functools.cache
def _patterns() -> dict[re.Pattern[str], Any]:
    return {re.compile(pattern): values for pattern, values in _SPECS.items()}


def spec_problem(key: str, value: str) -> str | None:
    """Return why nova would refuse an extra spec, or None. It judges its own namespaces only.

    Source: nova's validators of extra specs, which its API applies from microversion 2.86 on.
    """
    for pattern, values in _patterns().items():
        if pattern.fullmatch(key):
            return _value_problem(value, values)
    namespace, colon, _ = key.partition(':')
    return f'nova has no extra spec {key}' if colon and re.fullmatch(_NAMESPACES, namespace) else None


def is_foreign(key: str) -> bool:
    """Return whether an extra spec is not one of nova's. Its meaning is not known here."""
    return not any(pattern.fullmatch(key) for pattern in _patterns())


def _value_problem(value: str, values: Any) -> str | None:
    if values is bool:
        try:
            strutils.bool_from_string(value, strict=True)
        except ValueError:
            return 'the value is neither true nor false'
    elif isinstance(values, range):
        try:
            number = int(value)
        except ValueError:
            return 'the value is not a whole number'
        if number not in values:
            return (
                f'the value is less than {values.start}'
                if number < values.start
                else f'the value is above {values[-1]}'
            )
    elif isinstance(values, tuple):
        if value not in values:
            return f'the value is not one of {", ".join(values)}'
    elif not values.fullmatch(value):
        return f'the value is not of the form {values.pattern}'
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instance(base.Versioned):
    """A guest, with its host, its owner and its state. Times are UTC."""

    id: int = 0
    uuid: str
    name: str
    project_id: str
    user_id: str
    host: str
    node: str
    flavor: Flavor
    vm_state: str = 'active'
    power_state: int = 1
    task_state: str | None = None
    locked_by: str | None = None
    locked_reason: str | None = None
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None
    launched_at: datetime.datetime | None = None
    #: See :class:`migrator.objects.protocol.Command`.
    tenure: int = 0

    @property
    def hostname(self) -> str:
        """The host name of the guest, derived from its name."""
        return re.sub(r'[^a-z0-9-]+', '-', self.name.lower()).strip('-') or f'server-{self.uuid}'

    @property
    def locked(self) -> bool:
        """Whether a user has locked it against actions."""
        return self.locked_by is not None


def stand_in(uuid: str, host: str) -> Instance:
    """Return a substitute for a deleted instance, with what a host needs to clean up after it."""
    flavor = Flavor(name='deleted')
    return Instance(
        uuid=uuid, name=uuid, project_id='', user_id='', host=host, node=host, flavor=flavor, vm_state='deleted'
    )
