# SPDX-License-Identifier: Apache-2.0

"""Allocations of an instance and of its migration: reading the pair, and writing it in one request.

Every body and every generation that is written is given, never "whatever the consumer holds" and never read by the
writer itself. A generation is what makes a write that comes late harmless, so it has to be the one that the decision
was made on. What a pair means is in :mod:`migrator.placement_client.allocation_state`.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable
from typing import Any

from migrator import exception
from migrator.objects import Strategy
from migrator.placement_client import allocation_state
from migrator.placement_client.client import PlacementClient

#: What a consumer has after the first write that gave it an allocation; each further write adds one.
FIRST_GENERATION = 1
#: What a consumer has that Placement was killed over while creating: it is there, shows no allocation (so it reads as
#: None) and refuses a null generation for ever. Writing with this generation takes it over, and is refused with a
#: conflict if there is no such thing; it can never hit a consumer that has an allocation.
ORPHAN_GENERATION = 0

#: How often a pair that changes while it is read is read again.
_READ_ATTEMPTS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairReading:
    """A consistent look at both consumers, and what it means."""

    instance: allocation_state.ConsumerAllocations
    migration: allocation_state.ConsumerAllocations
    state: allocation_state.PairState


@dataclasses.dataclass(frozen=True, kw_only=True)
class Write:
    """What one consumer shall hold; ``generation`` None says that it must not exist yet."""

    consumer: allocation_state.Consumer
    allocations: allocation_state.Allocations
    generation: int | None

    def body(self) -> dict[str, Any]:
        """Return it as Placement wants it."""
        return {
            'allocations': {
                uuid: {'resources': held} for uuid, held in allocation_state.normal(self.allocations).items()
            },
            'consumer_generation': self.generation,
            'project_id': self.consumer.project_id,
            'user_id': self.consumer.user_id,
            'consumer_type': self.consumer.consumer_type,
        }


def read(client: PlacementClient, consumer: str) -> allocation_state.ConsumerAllocations:
    """Return what a consumer holds.

    :param consumer: its uuid; one that Placement does not know holds nothing.
    :raises PlacementUnreachable: as :meth:`.client.PlacementClient.request`.
    """
    found = client.read(f'/allocations/{consumer}')
    return allocation_state.ConsumerAllocations(
        uuid=consumer,
        generation=found.get('consumer_generation'),
        allocations={uuid: dict(entry['resources']) for uuid, entry in found['allocations'].items()},
        project_id=found.get('project_id'),
        user_id=found.get('user_id'),
        consumer_type=found.get('consumer_type'),
    )


def write_all(client: PlacementClient, writes: Iterable[Write]) -> None:
    """Write several consumers in one request: all of it, or nothing.

    :raises ValueError: a consumer that must not exist is given nothing, which would leave an empty one behind.
    :raises PlacementConflict: a generation is stale; observe again.
    :raises PlacementRefused: no room, or no such provider or resource class.
    :raises PlacementUnreachable: it may or may not have been done; observe again.
    """
    bodies = {}
    for write in writes:
        if write.generation is None and not allocation_state.normal(write.allocations):
            raise ValueError(f'consumer {write.consumer.uuid}: to hold nothing it needs the generation that was read')
        bodies[write.consumer.uuid] = write.body()
    client.post('/allocations', bodies)


def claim(
    client: PlacementClient,
    consumer: allocation_state.Consumer,
    allocations: allocation_state.Allocations,
    *,
    generation: int | None,
) -> None:
    """Give one consumer an allocation: an instance's first, or the second half of nova's two-request move.

    :param generation: None only where the caller knows from the database that the instance is alive, for None makes
        a consumer that is gone.
    :raises ValueError: the allocation is empty; else as :func:`write_all`.
    """
    if not allocation_state.normal(allocations):
        raise ValueError(f'consumer {consumer.uuid}: an empty allocation is not a claim')
    _put(client, Write(consumer=consumer, allocations=allocations, generation=generation))


def remove(client: PlacementClient, consumer: allocation_state.Consumer, *, generation: int) -> None:
    """Take everything from a consumer, which then is gone.

    A PUT of nothing and not a DELETE, since a DELETE carries no generation.

    :raises ValueError: no generation is given, that is, there is nothing to remove; else as :func:`write_all`.
    """
    _put(client, Write(consumer=consumer, allocations={}, generation=_known(generation, consumer)))


def _put(client: PlacementClient, write: Write) -> None:
    client.put(f'/allocations/{write.consumer.uuid}', write.body())


def _known(generation: int | None, consumer: allocation_state.Consumer) -> int:
    """Return the generation, which must not be null: null would bring a consumer back that was deleted."""
    if generation is None:
        raise ValueError(f'consumer {consumer.uuid}: this write needs the generation that was read, not null')
    return generation


class AllocationStrategy(abc.ABC):
    """Who holds the source's allocation while the guest moves. Each method is one atomic request."""

    name: Strategy

    def __init__(self, client: PlacementClient) -> None:
        self.client = client

    def observe(self, pair: allocation_state.Pair) -> PairReading:
        """Read both consumers and judge them.

        :raises PlacementConflict: they would not hold still; observe again later.
        """
        # Two GETs are not one look: a late write between them would show a pair that never was (released, say, when
        # it was moved and then reverted). Whatever writes both consumers changes the instance's generation.
        before = read(self.client, pair.instance.uuid)
        for _attempt in range(_READ_ATTEMPTS):
            migration = read(self.client, pair.migration.uuid)
            after = read(self.client, pair.instance.uuid)
            if after == before:
                state = allocation_state.observe_pair(
                    after.allocations, migration.allocations, pair.source, pair.destination, self.name
                )
                return PairReading(instance=after, migration=migration, state=state)
            before = after
        raise exception.PlacementConflict(
            method='GET',
            url=f'/allocations/{pair.instance.uuid}',
            status=200,
            reason='its allocations change all the time',
            placement_code=None,
        )

    def check(self, pair: allocation_state.Pair) -> None:
        """Raise unless this strategy can tell such a pair apart.

        :raises NoValidHost: source and destination claim the same, or lie in one provider where that cannot be.
        """
        if allocation_state.normal(pair.source) == allocation_state.normal(pair.destination):
            raise exception.NoValidHost(
                reason='Source and destination would hold the same resources of the same '
                'resource providers, so the move could not be told from its end.'
            )

    @abc.abstractmethod
    def move(
        self, pair: allocation_state.Pair, *, instance_generation: int, migration_generation: int | None = None
    ) -> None:
        """Hold source and destination, the instance's consumer never being empty.

        :param instance_generation: the one that the decision was made on.
        :param migration_generation: None, for it is new; :data:`GHOST_GENERATION` to take over a leftover.
        :raises ValueError: a generation or the destination is missing; else as :meth:`check`, :func:`write_all`.
        """

    @abc.abstractmethod
    def revert(
        self,
        pair: allocation_state.Pair,
        *,
        instance_generation: int | None,
        migration_generation: int | None,
        recreate: bool = False,
    ) -> None:
        """Hold the source only, by the instance.

        :param recreate: with ``instance_generation`` None, make the instance's consumer anew (CLAIM_MISSING): only for
            an instance that the database still has.
        :raises ValueError: a generation is missing; else as :func:`write_all`.
        """

    @abc.abstractmethod
    def release(
        self, pair: allocation_state.Pair, *, instance_generation: int | None, migration_generation: int | None
    ) -> None:
        """Hold the destination only, by the instance.

        :raises ValueError: the generation that this strategy needs is missing; else as :func:`write_all`.
        """

    def rewrite_source(self, pair: allocation_state.Pair, *, instance_generation: int) -> None:
        """Write the instance's source allocation once more, so that no move that is still on its way can succeed.

        :param instance_generation: the one just read.
        :raises ValueError: it is None, which would bring a deleted instance back; else as :func:`write_all`.
        """
        _put(self.client, self._instance_holds(pair, pair.source, instance_generation))

    @staticmethod
    def _instance_holds(
        pair: allocation_state.Pair, allocations: allocation_state.Allocations | None, generation: int | None
    ) -> Write:
        if not allocation_state.normal(allocations):
            raise ValueError(f'instance {pair.instance.uuid}: the pair does not say what it shall hold')
        return Write(
            consumer=pair.instance,
            allocations=allocation_state.normal(allocations),
            generation=_known(generation, pair.instance),
        )


class MigrationOwned(AllocationStrategy):
    """The migration's uuid takes the source allocation; what the instance holds is always one host's."""

    name = Strategy.MIGRATION_OWNED

    def move(
        self, pair: allocation_state.Pair, *, instance_generation: int, migration_generation: int | None = None
    ) -> None:
        """One POST: with two, the instance's consumer would be empty in between, and a late duplicate would succeed."""
        self.check(pair)
        write_all(
            self.client,
            [
                Write(consumer=pair.migration, allocations=pair.source, generation=migration_generation),
                self._instance_holds(pair, pair.destination, instance_generation),
            ],
        )

    def revert(
        self,
        pair: allocation_state.Pair,
        *,
        instance_generation: int | None,
        migration_generation: int | None,
        recreate: bool = False,
    ) -> None:
        """One POST back."""
        generation = instance_generation if recreate else _known(instance_generation, pair.instance)
        write_all(
            self.client,
            [
                Write(consumer=pair.instance, allocations=pair.source, generation=generation),
                Write(consumer=pair.migration, allocations={}, generation=_known(migration_generation, pair.migration)),
            ],
        )

    def release(
        self, pair: allocation_state.Pair, *, instance_generation: int | None, migration_generation: int | None
    ) -> None:
        """Take the source allocation from the migration; the instance is not written, so its generation is not used."""
        remove(self.client, pair.migration, generation=_known(migration_generation, pair.migration))


class Doubled(AllocationStrategy):
    """The instance holds both; the migration's uuid is no consumer. For computes from before service version 2."""

    name = Strategy.DOUBLED

    def check(self, pair: allocation_state.Pair) -> None:
        """Also refuse a move within the same providers: the sum would have to fit into one consumer's max_unit."""
        super().check(pair)
        if allocation_state.normal(pair.source).keys() == allocation_state.normal(pair.destination).keys():
            raise exception.NoValidHost(
                reason='A move within the same resource providers needs migration-owned '
                'allocations (compute service version 2).'
            )

    def move(
        self, pair: allocation_state.Pair, *, instance_generation: int, migration_generation: int | None = None
    ) -> None:
        """Write the sum."""
        self.check(pair)
        if not allocation_state.normal(pair.destination):
            raise ValueError(f'instance {pair.instance.uuid}: the pair names no destination')
        both = allocation_state.total([pair.source, pair.destination or {}])
        _put(self.client, self._instance_holds(pair, both, instance_generation))

    def revert(
        self,
        pair: allocation_state.Pair,
        *,
        instance_generation: int | None,
        migration_generation: int | None,
        recreate: bool = False,
    ) -> None:
        """Write the source only."""
        _put(self.client, self._instance_holds(pair, pair.source, instance_generation))

    def release(
        self, pair: allocation_state.Pair, *, instance_generation: int | None, migration_generation: int | None
    ) -> None:
        """Write the destination only."""
        _put(self.client, self._instance_holds(pair, pair.destination, instance_generation))


def strategy_for(client: PlacementClient, name: str) -> AllocationStrategy:
    """Return the writer of the strategy that a migration's row names.

    :raises ValueError: there is no such strategy.
    """
    chosen = Strategy(name)
    return {cls.name: cls for cls in (MigrationOwned, Doubled)}[chosen](client)
