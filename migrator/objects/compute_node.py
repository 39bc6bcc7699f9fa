# SPDX-License-Identifier: Apache-2.0

"""The resources of a host: its tree of resource providers, and the hypervisor as the API lists it."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

from migrator.objects import base


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProviderInventory(base.Versioned):
    """One resource provider of a host's tree, as Placement describes it.

    ``inventory`` maps a resource class to ``{total, reserved, min_unit, max_unit, step_size, allocation_ratio}``.
    """

    uuid: str
    name: str
    parent_uuid: str | None = None
    inventory: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    traits: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeNode(base.Versioned):
    """One hypervisor.

    Its uuid is the uuid of the root provider of its tree in Placement. Memory is in MiB, disk in GiB.

    :ivar cold_migrations: the types of migrations of powered-off guests that its driver supports: ``migration`` and
        ``resize``. The compute service fills it in. None: it has not reported yet.
    """

    id: int = 0
    uuid: str
    host: str
    node: str
    hypervisor_type: str = 'fake'
    hypervisor_version: int = 1000
    host_ip: str = '127.0.0.1'
    cpu_info: dict[str, Any] = dataclasses.field(default_factory=dict)
    providers: list[ProviderInventory] = dataclasses.field(default_factory=list)
    cold_migrations: list[str] | None = None
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None

    def total(self, resource_class: str) -> int:
        """Return the total of a resource class over the whole tree, in the unit of the class."""
        return sum(int(provider.inventory.get(resource_class, {}).get('total', 0)) for provider in self.providers)
