# SPDX-License-Identifier: Apache-2.0

"""Resource providers: the update of a host's tree and inventories in Placement from the host's report.

The report is complete for the providers that it names. Other providers stay as they are, such as a child that another
service created below the host's root.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

from migrator import exception
from migrator.objects import ProviderInventory
from migrator.placement_client.client import DUPLICATE_NAME, PlacementClient

LOG = logging.getLogger(__name__)

_CUSTOM = 'CUSTOM_'
#: The values that Placement uses for fields that a report leaves out.
_INVENTORY_DEFAULTS: dict[str, float] = {
    'reserved': 0,
    'min_unit': 1,
    'max_unit': 0x7FFFFFFF,
    'step_size': 1,
    'allocation_ratio': 1.0,
}
#: Attempts to write a tree that others write too, and seconds before the second attempt. Each further wait is twice as
#: long.
_ATTEMPTS = 5
_FIRST_WAIT = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Provider:
    """A resource provider as Placement has it."""

    uuid: str
    name: str
    generation: int
    parent_uuid: str | None
    root_uuid: str


def read_tree(client: PlacementClient, member: str) -> list[Provider]:
    """Return the whole tree of a provider, parents before children; empty if there is no such provider.

    :param member: uuid of any provider of the tree.
    :raises PlacementUnreachable: as :meth:`.client.PlacementClient.request`.
    """
    found = [
        _provider_of(entry) for entry in client.read(f'/resource_providers?in_tree={member}')['resource_providers']
    ]
    return _parents_first(found)


def list_providers(client: PlacementClient) -> list[Provider]:
    """Return every provider that Placement has, parents before children."""
    return _parents_first([_provider_of(entry) for entry in client.read('/resource_providers')['resource_providers']])


def read_inventory(client: PlacementClient, provider: str) -> dict[str, dict[str, Any]]:
    """Return a provider's inventory: resource class -> {total, reserved, min_unit, ...}.

    :raises PlacementRefused: there is no such provider.
    """
    found: dict[str, dict[str, Any]] = client.read(f'/resource_providers/{provider}/inventories')['inventories']
    return found


def read_traits(client: PlacementClient, provider: str) -> list[str]:
    """Return a provider's traits, sorted.

    :raises PlacementRefused: there is no such provider.
    """
    return sorted(client.read(f'/resource_providers/{provider}/traits')['traits'])


def usages(client: PlacementClient, provider: str) -> dict[str, int]:
    """Return how much of a provider is allocated: resource class -> amount.

    :raises PlacementRefused: there is no such provider.
    """
    found: dict[str, int] = client.read(f'/resource_providers/{provider}/usages')['usages']
    return found


def allocations_on(client: PlacementClient, provider: str) -> dict[str, dict[str, int]]:
    """Return the allocations on a provider: consumer uuid -> resource class -> amount.

    :raises PlacementRefused: there is no such provider.
    """
    found = client.read(f'/resource_providers/{provider}/allocations')['allocations']
    return {consumer: dict(entry['resources']) for consumer, entry in found.items()}


def ensure_tree(
    client: PlacementClient,
    providers: Sequence[ProviderInventory],
    *,
    sleep: Callable[[float], None],
    attempts: int = _ATTEMPTS,
) -> bool:
    """Change a tree in Placement to match a host's report.

    The call may be repeated at any time.

    :param providers: the report, in any order. Each parent is in the report or in Placement already.
    :param sleep: waits between attempts; its argument is in seconds.
    :param attempts: the number of attempts if others write the same providers.
    :returns: whether anything was written.
    :raises PlacementConflict: other writers were faster at each attempt.
    :raises PlacementRefused: an inventory that is in use is missing from the report, a name belongs to another
        provider, or a parent is unknown.
    :raises PlacementUnreachable: as :meth:`.client.PlacementClient.request`; repeat the call.
    :raises ValueError: the parents in the report form a cycle.
    """
    reported = [
        Provider(uuid=one.uuid, name=one.name, generation=0, parent_uuid=one.parent_uuid, root_uuid='')
        for one in providers
    ]
    order = {one.uuid: number for number, one in enumerate(_parents_first(reported))}
    wanted = sorted(providers, key=lambda one: order[one.uuid])
    changed = False
    wait = _FIRST_WAIT
    for attempt in range(1, attempts + 1):
        try:
            for provider in wanted:
                changed |= _ensure_provider(client, provider)
                changed |= _ensure_inventory(client, provider)
                changed |= _ensure_traits(client, provider)
            break
        except exception.PlacementConflict:
            if attempt == attempts:
                raise
            # The next attempt writes only what still differs, so each attempt has fewer writes that can conflict.
            sleep(wait)
            wait *= 2
    return changed


def delete_tree(client: PlacementClient, root: str) -> None:
    """Delete a whole tree, including the children that others created.

    A tree that no longer exists counts as deleted.

    :raises ProviderInUse: the tree still has allocations. Nothing was deleted, or, if they appeared meanwhile, only
        children.
    :raises PlacementRefused: others changed the tree at each attempt.
    :raises PlacementUnreachable: as :meth:`.client.PlacementClient.request`; repeat the call.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _delete_tree(client, root)
            break
        except exception.PlacementRefused as error:
            # An allocation or a child has appeared since the check. The next attempt sees it.
            if error.kwargs['status'] != 409 or attempt == _ATTEMPTS:
                raise


def _delete_tree(client: PlacementClient, root: str) -> None:
    tree = read_tree(client, root)
    for provider in tree:
        # All are checked before the first is deleted. Otherwise a free child below a root in use would be lost.
        holders = allocations_on(client, provider.uuid)
        if holders:
            raise exception.ProviderInUse(
                provider=f'{provider.name} ({provider.uuid})', consumers=', '.join(sorted(holders))
            )
    for provider in reversed(tree):
        client.delete(f'/resource_providers/{provider.uuid}', allow=(404,))


def _ensure_provider(client: PlacementClient, wanted: ProviderInventory) -> bool:
    """Create a provider, or correct its name and parent."""
    found = client.read_or_none(f'/resource_providers/{wanted.uuid}')
    body = {'name': wanted.name, 'parent_provider_uuid': wanted.parent_uuid}
    if found is None:
        try:
            client.post('/resource_providers', {'uuid': wanted.uuid, **body})
        except exception.PlacementRefused as error:
            # Placement has one code for two cases: a concurrent writer created this provider, or another provider has
            # the name.
            if error.kwargs['placement_code'] != DUPLICATE_NAME:
                raise
            if client.read_or_none(f'/resource_providers/{wanted.uuid}') is None:
                raise
            raise exception.PlacementConflict(**error.kwargs) from error
        LOG.info('Created resource provider %(name)s (%(uuid)s)', {'name': wanted.name, 'uuid': wanted.uuid})
        return True
    if (found['name'], found['parent_provider_uuid']) == (wanted.name, wanted.parent_uuid):
        return False
    client.put(f'/resource_providers/{wanted.uuid}', body)
    LOG.info(
        'Updated resource provider %(uuid)s: its name is %(name)s and its parent is %(parent)s',
        {'uuid': wanted.uuid, 'name': wanted.name, 'parent': wanted.parent_uuid},
    )
    return True


def _ensure_inventory(client: PlacementClient, wanted: ProviderInventory) -> bool:
    """Set a provider's inventory if it differs from the report."""
    url = f'/resource_providers/{wanted.uuid}/inventories'
    found = client.read(url)
    inventory = {name: {**_INVENTORY_DEFAULTS, **fields} for name, fields in wanted.inventory.items()}
    if inventory == found['inventories']:
        return False
    for name in inventory:
        if name.startswith(_CUSTOM) and name not in found['inventories']:
            client.put(f'/resource_classes/{name}')
    client.put(url, {'resource_provider_generation': found['resource_provider_generation'], 'inventories': inventory})
    LOG.info(
        'Set the inventory of resource provider %(name)s: %(totals)s',
        {'name': wanted.name, 'totals': {name: fields.get('total') for name, fields in inventory.items()}},
    )
    return True


def _ensure_traits(client: PlacementClient, wanted: ProviderInventory) -> bool:
    """Add the traits of the report, and remove those that it says are absent. All others stay."""
    url = f'/resource_providers/{wanted.uuid}/traits'
    found = client.read(url)
    mine, there = set(wanted.traits), set(found['traits'])
    new = sorted(mine - there)
    if any(not name.startswith(_CUSTOM) for name in new):
        # A Placement may be older than the traits that the host knows, and would refuse all for one of them.
        known = set(client.read('/traits')['traits'])
        new = [name for name in new if name.startswith(_CUSTOM) or name in known]
    kept = (there - set(wanted.absent_traits)) | (mine & there) | set(new)
    if kept == there:
        return False
    for name in new:
        if name.startswith(_CUSTOM):
            client.put(f'/traits/{name}')
    generation = found['resource_provider_generation']
    client.put(url, {'resource_provider_generation': generation, 'traits': sorted(kept)})
    return True


def _provider_of(entry: dict[str, Any]) -> Provider:
    return Provider(
        uuid=entry['uuid'],
        name=entry['name'],
        generation=entry['generation'],
        parent_uuid=entry['parent_provider_uuid'],
        root_uuid=entry['root_provider_uuid'],
    )


def _parents_first(providers: Sequence[Provider]) -> list[Provider]:
    """Return the providers in an order in which each comes after its parent.

    A parent that is not among the providers counts as present.

    :raises ValueError: the parents form a cycle.
    """
    waiting = {one.uuid: one for one in providers}
    ordered: list[Provider] = []
    while waiting:
        ready = [one for one in waiting.values() if one.parent_uuid not in waiting]
        if not ready:
            raise ValueError(f'the parents of these resource providers form a cycle: {", ".join(sorted(waiting))}')
        for one in ready:
            ordered.append(waiting.pop(one.uuid))
    return ordered
