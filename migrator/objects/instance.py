# SPDX-License-Identifier: Apache-2.0

"""An instance: a guest that migrator has in its database."""

from __future__ import annotations

import dataclasses
import datetime
import re
import zlib
from collections.abc import Mapping
from typing import Any

from migrator.objects import base

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
_RESOURCES_KEY = re.compile(r'^resources(?P<group>[a-zA-Z0-9_-]*):(?P<resource_class>[A-Z0-9_]+)$')


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

    def resource_groups(self) -> dict[str, dict[str, int]]:
        """Return the amounts to claim by request group. The unnumbered group is ``''``.

        ``resources:CLASS`` and ``resources<group>:CLASS`` in the extra specs add to the flavor's own amounts or
        override them. An amount of 0 removes the class, as in nova's flavors.
        """
        disk = self.root_gb + self.ephemeral_gb + -(-self.swap // 1024)
        groups = {'': {'VCPU': self.vcpus, 'MEMORY_MB': self.memory_mb, 'DISK_GB': disk}}
        for key, amount in self.extra_specs.items():
            found = _RESOURCES_KEY.match(key)
            if found:
                groups.setdefault(found['group'], {})[found['resource_class']] = int(amount)
        kept = {group: {name: n for name, n in wanted.items() if n > 0} for group, wanted in groups.items()}
        return {group: wanted for group, wanted in kept.items() if wanted}

    @property
    def group_policy(self) -> str:
        """The extra spec of this name, 'none' or 'isolate': whether numbered groups need separate providers."""
        return self.extra_specs.get('group_policy', 'none')

    def resources(self) -> dict[str, int]:
        """Return the amounts to claim by resource class, summed over the request groups."""
        total: dict[str, int] = {}
        for wanted in self.resource_groups().values():
            for name, amount in wanted.items():
                total[name] = total.get(name, 0) + amount
        return total


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
