# SPDX-License-Identifier: Apache-2.0

"""The allocations of the fake Placement: consumers, their generations, and atomic writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from migrator.placement_client.client import CONCURRENT_UPDATE
from migrator.testing.fake_placement.bodies import RefusedError
from migrator.testing.fake_placement.candidates import Provider


class Consumer(NamedTuple):
    """A holder of an allocation. An instance is replaced and never changed.

    :ivar held: provider uuid -> resource class -> amount. It is empty for a consumer that a refused write has left
        behind, since Placement creates the consumer first.
    """

    generation: int
    project_id: str
    user_id: str
    consumer_type: str
    held: Mapping[str, Mapping[str, int]]


class _Part(NamedTuple):
    """An amount of one class from one provider for one consumer; 0 if the consumer gives it up."""

    consumer: str
    provider: Provider
    resource_class: str
    amount: int


class Consumers:
    """All consumers.

    :param providers: uuid -> resource provider. A write changes their generations and usage.
    :param class_ids: the existing resource classes.
    """

    def __init__(self, providers: Mapping[str, Provider], class_ids: Mapping[str, int]) -> None:
        self._providers = providers
        self._class_ids = class_ids
        self._consumers: dict[str, Consumer] = {}

    def get(self, uuid: str) -> Consumer | None:
        """Return a consumer, or None if it holds nothing."""
        found = self._consumers.get(uuid)
        return found if found is not None and found.held else None

    def delete(self, uuid: str) -> None:
        """Delete a consumer that holds something; no generation of a provider changes."""
        self._release(uuid)
        del self._consumers[uuid]

    def write(self, writes: Mapping[str, Any]) -> None:
        """Replace the allocations of several consumers atomically.

        :param writes: consumer uuid -> its body.
        :raises RefusedError: Placement would refuse the write.
        """
        made = self._ensure_consumers(writes)
        # As in Placement, an unknown provider leaves the new consumers behind, and they refuse a null generation from
        # then on. Every other refusal removes them.
        parts = list(self._parts(writes))
        try:
            self._check(parts)
        except RefusedError:
            self._forget(made)
            raise
        touched = dict.fromkeys(part.consumer for part in parts)
        for uuid in touched:
            self._release(uuid)
        for provider in {part.provider.uuid: part.provider for part in parts}.values():
            provider.generation += 1
        for part in parts:
            if part.amount:
                used = part.provider.used
                used[part.resource_class] = used.get(part.resource_class, 0) + part.amount
                part.provider.holders.setdefault(part.consumer, {})[part.resource_class] = part.amount
        for uuid, body in writes.items():
            held = {provider: entry['resources'] for provider, entry in body['allocations'].items()}
            if uuid in touched and not held:
                del self._consumers[uuid]
            else:
                generation = self._consumers[uuid].generation + (uuid in touched)
                self._consumers[uuid] = _consumer_of(body, generation, held)

    def _ensure_consumers(self, writes: Mapping[str, Any]) -> list[str]:
        """Create the consumers that do not exist yet, and return their uuids."""
        made: list[str] = []
        for uuid, body in writes.items():
            known = self._consumers.get(uuid)
            expected = None if known is None else known.generation
            given = body['consumer_generation']
            if expected != given:
                self._forget(made)
                raise RefusedError(
                    409,
                    f'consumer generation conflict - expected {expected} but got {given}',
                    CONCURRENT_UPDATE,
                )
            if known is None:
                self._consumers[uuid] = _consumer_of(body, 0, {})
                made.append(uuid)
        return made

    def _parts(self, writes: Mapping[str, Any]) -> Iterator[_Part]:
        """Yield the parts of a write; what an emptied consumer gives up has the amount 0."""
        for consumer, body in writes.items():
            for uuid, entry in body['allocations'].items():
                if uuid not in self._providers:
                    raise RefusedError(400, f"Allocation for resource provider '{uuid}' that does not exist.")
                for name, amount in entry['resources'].items():
                    yield _Part(consumer, self._providers[uuid], name, amount)
            if not body['allocations']:
                for uuid, resources in self._consumers[consumer].held.items():
                    for name in resources:
                        yield _Part(consumer, self._providers[uuid], name, 0)

    def _check(self, parts: list[_Part]) -> None:
        """Raise unless all parts fit after the consumers' present allocations are freed."""
        for name in dict.fromkeys(part.resource_class for part in parts):
            if name not in self._class_ids:
                raise RefusedError(400, f'Unable to allocate inventory: No such resource class {name}.')
        freed: dict[tuple[str, str], int] = {}
        for consumer in {part.consumer for part in parts}:
            for uuid, resources in self._consumers[consumer].held.items():
                for name, amount in resources.items():
                    freed[uuid, name] = freed.get((uuid, name), 0) + amount
        needed: dict[tuple[str, str], int] = {}
        for part in parts:
            provider, name = part.provider, part.resource_class
            key = provider.uuid, name
            needed[key] = needed.get(key, 0) + part.amount
            if not part.amount:
                continue
            if name not in provider.inventory or not provider.takes(name, part.amount):
                raise RefusedError(
                    409, f"Unable to allocate inventory: '{name}' on '{provider.uuid}' does not allow it."
                )
            before = provider.used.get(name, 0)
            after = before - freed.get(key, 0) + needed[key]
            # A write that does not raise the usage may leave it above the capacity.
            if after > provider.capacity(name) and after > before:
                raise RefusedError(409, f"Unable to allocate inventory: '{name}' on '{provider.uuid}' is exhausted.")

    def _release(self, uuid: str) -> None:
        for provider_uuid, resources in self._consumers[uuid].held.items():
            provider = self._providers[provider_uuid]
            del provider.holders[uuid]
            for name, amount in resources.items():
                provider.used[name] -= amount
                if not provider.used[name]:
                    del provider.used[name]

    def _forget(self, made: list[str]) -> None:
        for uuid in made:
            del self._consumers[uuid]


def _consumer_of(body: Mapping[str, Any], generation: int, held: Mapping[str, Mapping[str, int]]) -> Consumer:
    return Consumer(generation, body['project_id'], body['user_id'], body['consumer_type'], held)
