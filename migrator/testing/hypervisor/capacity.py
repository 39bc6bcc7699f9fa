# SPDX-License-Identifier: Apache-2.0

"""What a fake hypervisor offers to guests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from migrator import exception
from migrator.objects import Instance, ProviderInventory


@dataclasses.dataclass
class Capacity:
    """The resources of one host.

    :ivar totals: resource class -> amount.
    :ivar ratios: resource class -> allocation ratio. The default is 1.0.
    :ivar reserved: resource class -> amount kept for the host itself. The default is 0.
    :ivar children: providers below the root provider, such as NUMA nodes.
    :ivar traits: those of the root provider.
    :ivar shared_disks: whether the host reaches the shared disks of the world.
    """

    host: str
    totals: dict[str, int]
    ratios: dict[str, float]
    reserved: dict[str, int]
    children: list[ProviderInventory]
    shared_disks: bool = True
    traits: tuple[str, ...] = ()

    def inventory(self) -> dict[str, dict[str, Any]]:
        """Return the inventory of the root provider."""
        return {
            name: {
                'total': total,
                'reserved': self.reserved.get(name, 0),
                'min_unit': 1,
                'max_unit': total,
                'step_size': 1,
                'allocation_ratio': self.ratios.get(name, 1.0),
            }
            for name, total in self.totals.items()
            if total
        }

    def of(self, resource_class: str) -> float:
        """Return the amount of a resource class that guests may have in total."""
        total = self.totals.get(resource_class, 0) - self.reserved.get(resource_class, 0)
        return total * self.ratios.get(resource_class, 1.0)

    def check_room(self, instance: Instance, used: Mapping[str, int]) -> None:
        """Raise if an instance does not fit.

        :param used: resource class -> the amount that the other guests have.
        :raises migrator.exception.DestinationTooSmall: the host has too little of a resource class.
        """
        for name, wanted in instance.flavor.resources().items():
            if name in used and used[name] + wanted > self.of(name):
                raise exception.DestinationTooSmall(
                    host=self.host,
                    instance_uuid=instance.uuid,
                    reason=f'{wanted} of {name} are needed, {self.of(name) - used[name]:g} are free',
                )
