# SPDX-License-Identifier: Apache-2.0

"""The resource providers of the fake Placement, with their inventories, traits and aggregates."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from oslo_utils import uuidutils

from migrator.placement_client.client import CONCURRENT_UPDATE, DUPLICATE_NAME
from migrator.testing.fake_placement import bodies
from migrator.testing.fake_placement.allocations import Consumers
from migrator.testing.fake_placement.bodies import RefusedError
from migrator.testing.fake_placement.candidates import Provider

_CONFLICT = CONCURRENT_UPDATE
#: The internal id of the first resource class that is not a standard one.
_FIRST_CUSTOM = 10000


class Asked(NamedTuple):
    """A parsed request.

    :ivar name: the second part of the path.
    """

    name: str
    query: list[tuple[str, str]]
    body: Any


class Answer(NamedTuple):
    """A response.

    :ivar document: the body; None if the response has none.
    """

    status: int
    document: dict[str, Any] | None = None


@functools.cache
def _standard_traits() -> frozenset[str]:
    import os_traits  # comes with openstack-placement, which is an optional dependency

    return frozenset(os_traits.get_traits())


class Providers:
    """The requests that read and change resource providers, and the names that these use.

    :param providers: uuid -> resource provider.
    :param class_ids: the existing resource classes.
    :param consumers: the holders of allocations.
    """

    def __init__(self, providers: dict[str, Provider], class_ids: dict[str, int], consumers: Consumers) -> None:
        self._providers = providers
        self._class_ids = class_ids
        self._consumers = consumers
        self._names: dict[str, Provider] = {}
        self._custom_traits: dict[str, None] = {}

    def _provider(self, asked: Asked) -> Provider:
        if asked.name not in self._providers:
            raise RefusedError(404, f'No resource provider with uuid {asked.name} found')
        return self._providers[asked.name]

    def _to_change(self, asked: Asked, schema: bodies.Body) -> tuple[Provider, Any]:
        """Return the provider and the body of a request that names the provider's generation."""
        provider, body = self._provider(asked), schema.read(asked.body)
        if body['resource_provider_generation'] != provider.generation:
            raise RefusedError(409, 'resource provider generation conflict', _CONFLICT)
        return provider, body

    def get(self, asked: Asked) -> Answer:
        """Return a provider."""
        return Answer(200, _shown(self._provider(asked)))

    def list(self, asked: Asked) -> Answer:
        """Return the providers that match the query."""
        found = list(self._providers.values())
        for name, value in asked.query:
            if name in ('member_of', 'required', 'resources'):
                raise NotImplementedError(
                    f'FakePlacement does not implement {name} in /resource_providers; use InProcessPlacement'
                )
            if name not in ('name', 'uuid', 'in_tree') or (name != 'name' and not uuidutils.is_uuid_like(value)):
                raise RefusedError(400, f'Invalid query string parameters: {name}={value}')
            if name == 'in_tree':
                root = self._providers[value].root if value in self._providers else None
                found = [one for one in found if one.root is root]
            elif value:
                found = [one for one in found if getattr(one, name) == value]
        return Answer(200, {'resource_providers': [_shown(one) for one in found]})

    def create(self, asked: Asked) -> Answer:
        """Create a provider."""
        body = bodies.NEW_PROVIDER.read(asked.body)
        uuid = str(UUID(body['uuid']) if body.get('uuid') else uuid4())
        parent = body.get('parent_provider_uuid')
        if not body['name']:
            raise RefusedError(400, 'Unable to create resource provider: name is required.')
        if parent is not None and (parent == uuid or parent not in self._providers):
            raise RefusedError(400, 'Unable to create resource provider: it cannot have this parent provider UUID.')
        if uuid in self._providers or body['name'] in self._names:
            same = f'uuid: {uuid}' if uuid in self._providers else f'name: {body["name"]}'
            raise RefusedError(409, f'Conflicting resource provider {same} already exists.', DUPLICATE_NAME)
        number = max((one.id for one in self._providers.values()), default=0) + 1
        provider = Provider(number, uuid, body['name'], None if parent is None else self._providers[parent])
        self._providers[uuid] = self._names[provider.name] = provider
        return Answer(200, _shown(provider))

    def update(self, asked: Asked) -> Answer:
        """Rename or move a provider."""
        provider, body = self._provider(asked), bodies.PROVIDER.read(asked.body)
        parent = provider.parent
        if 'parent_provider_uuid' in body:
            wanted = body['parent_provider_uuid']
            if wanted is not None and wanted not in self._providers:
                raise RefusedError(400, 'Unable to save resource provider: parent provider UUID does not exist.')
            parent = None if wanted is None else self._providers[wanted]
        above = parent
        while above is not None:
            if above is provider:
                raise RefusedError(400, 'Unable to save resource provider: creating loop in the tree is not allowed.')
            above = above.parent
        if self._names.get(body['name'], provider) is not provider:
            raise RefusedError(409, f'Conflicting resource provider {body["name"]} already exists.', DUPLICATE_NAME)
        del self._names[provider.name]
        provider.name, provider.parent = body['name'], parent
        self._names[provider.name] = provider
        return Answer(200, _shown(provider))

    def delete(self, asked: Asked) -> Answer:
        """Delete a provider that nothing uses."""
        provider = self._provider(asked)
        code = 'placement.resource_provider.'
        if any(one.parent is provider for one in self._providers.values()):
            raise RefusedError(409, 'It has child resource providers.', code + 'cannot_delete_parent')
        if provider.holders:
            raise RefusedError(409, 'Unable to delete resource provider: it has allocations.', code + 'inuse')
        del self._providers[provider.uuid], self._names[provider.name]
        return Answer(204)

    def get_inventory(self, asked: Asked) -> Answer:
        """Return the inventory of a provider."""
        provider = self._provider(asked)
        return Answer(200, {'inventories': provider.inventory, **_generation(provider)})

    def set_inventory(self, asked: Asked) -> Answer:
        """Replace the inventory of a provider."""
        provider, body = self._to_change(asked, bodies.INVENTORIES)
        inventory = {name: {**bodies.INVENTORY_DEFAULTS, **one} for name, one in body['inventories'].items()}
        for name, one in inventory.items():
            if int((one['total'] - one['reserved']) * one['allocation_ratio']) < 0:
                raise RefusedError(400, f'Invalid inventory for {name}: the reserved value is greater than total.')
        for name in inventory:
            if name not in self._class_ids:
                raise RefusedError(400, f'Unknown resource class in inventory: No such resource class {name}.')
        for name in provider.used:
            if name not in inventory:
                raise RefusedError(409, f'Inventory for {name} is in use.', 'placement.inventory.inuse')
        provider.inventory = inventory
        provider.generation += 1
        return self.get_inventory(asked)

    def get_traits(self, asked: Asked) -> Answer:
        """Return the traits of a provider."""
        provider = self._provider(asked)
        return Answer(200, {'traits': provider.traits, **_generation(provider)})

    def set_traits(self, asked: Asked) -> Answer:
        """Replace the traits of a provider."""
        bodies.TRAITS.read(asked.body)
        provider, body = self._to_change(asked, bodies.TRAITS)
        traits = sorted(set(body['traits']))
        for name in traits:
            if not self.is_trait(name):
                raise RefusedError(400, f'No such trait {name}')
        if traits != provider.traits:
            provider.traits = traits
            provider.generation += 1
        return self.get_traits(asked)

    def get_aggregates(self, asked: Asked) -> Answer:
        """Return the aggregates of a provider."""
        provider = self._provider(asked)
        return Answer(200, {'aggregates': provider.aggregates, **_generation(provider)})

    def set_aggregates(self, asked: Asked) -> Answer:
        """Replace the aggregates of a provider."""
        provider, body = self._to_change(asked, bodies.AGGREGATES)
        provider.aggregates = body['aggregates']
        provider.generation += 1
        return self.get_aggregates(asked)

    def get_usages(self, asked: Asked) -> Answer:
        """Return the usage of a provider."""
        provider = self._provider(asked)
        used = {name: provider.used.get(name, 0) for name in provider.inventory}
        return Answer(200, {'usages': used, **_generation(provider)})

    def get_holders(self, asked: Asked) -> Answer:
        """Return the allocations from a provider."""
        provider = self._provider(asked)
        holders = {
            uuid: {'resources': held, 'consumer_generation': consumer.generation}
            for uuid, held in provider.holders.items()
            if (consumer := self._consumers.get(uuid)) is not None
        }
        return Answer(200, {'allocations': holders, **_generation(provider)})

    # --- names -------------------------------------------------------------------------------------------------------

    def put_class(self, asked: Asked) -> Answer:
        """Ensure that a custom resource class exists."""
        name = bodies.CUSTOM_NAME.read(asked.name)
        if name in self._class_ids:
            return Answer(204)
        self._class_ids[name] = max(_FIRST_CUSTOM - 1, *self._class_ids.values()) + 1
        return Answer(201)

    def is_trait(self, name: str) -> bool:
        """Return whether there is a trait of a name."""
        return name in self._custom_traits or name in _standard_traits()

    def put_trait(self, asked: Asked) -> Answer:
        """Ensure that a custom trait exists."""
        name = bodies.CUSTOM_NAME.read(asked.name)
        is_new = name not in self._custom_traits
        self._custom_traits[name] = None
        return Answer(201 if is_new else 204)

    def list_traits(self, asked: Asked) -> Answer:
        """Return all traits."""
        if asked.query:
            raise NotImplementedError('FakePlacement does not implement a query of /traits; use InProcessPlacement')
        return Answer(200, {'traits': [*sorted(_standard_traits()), *self._custom_traits]})


def _generation(provider: Provider) -> dict[str, int]:
    return {'resource_provider_generation': provider.generation}


def _shown(provider: Provider) -> dict[str, Any]:
    return {
        'uuid': provider.uuid,
        'name': provider.name,
        'generation': provider.generation,
        'parent_provider_uuid': provider.parent and provider.parent.uuid,
        'root_provider_uuid': provider.root.uuid,
    }
