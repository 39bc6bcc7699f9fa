# SPDX-License-Identifier: Apache-2.0

"""The state that the two allocations of a migration show together.

The module has only pure data and pure functions, and sends no requests. The observed pair decides what a conductor
does. :func:`observe_pair` holds the table of states.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from migrator import exception
from migrator.objects import Strategy

#: Resource provider uuid -> resource class -> amount, in the class's own unit. JSON stores it without conversion.
Allocations: TypeAlias = Mapping[str, Mapping[str, int]]

INSTANCE = 'INSTANCE'
MIGRATION = 'MIGRATION'


class PairState(enum.StrEnum):
    """The state that the two allocations of a migration show together."""

    #: The instance holds the source allocation, and the migration holds nothing: not moved yet, or reverted.
    NOT_MOVED = 'not moved'
    MOVED = 'moved'
    RELEASED = 'released'
    #: The migration holds the source allocation, and the instance holds nothing. Nova's first of two requests leaves
    #: this state. migrator never leaves it, so the instance may also have been deleted meanwhile.
    CLAIM_MISSING = 'claim missing'
    #: Anything else. No caller may guess what happened.
    UNKNOWN = 'unknown'


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairReading:
    """A consistent reading of both consumers, and the state that it shows."""

    instance: ConsumerAllocations
    migration: ConsumerAllocations
    state: PairState


@dataclasses.dataclass(frozen=True, kw_only=True)
class Consumer:
    """The holder of an allocation.

    :ivar consumer_type: None: Placement is older than the types (microversion 1.38).
    """

    uuid: str
    consumer_type: str | None
    project_id: str
    user_id: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsumerAllocations:
    """The allocations of one consumer as Placement reports them.

    A consumer that does not exist holds nothing and has no generation.
    """

    uuid: str
    generation: int | None = None
    allocations: Allocations = dataclasses.field(default_factory=dict)
    project_id: str | None = None
    user_id: str | None = None
    consumer_type: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """The two consumers of one migration, and its source and destination allocations from the log.

    ``destination`` comes from the newest intent. It is None before the first intent.
    """

    instance: Consumer
    migration: Consumer
    source: Allocations
    destination: Allocations | None = None


def normal(allocations: Allocations | None) -> dict[str, dict[str, int]]:
    """Return a copy without zero amounts and empty providers, for comparisons."""
    kept = {uuid: {name: int(n) for name, n in held.items() if n} for uuid, held in (allocations or {}).items()}
    return {uuid: held for uuid, held in kept.items() if held}


def total(parts: Iterable[Allocations]) -> dict[str, dict[str, int]]:
    """Return the sum of allocations, provider by provider and class by class."""
    result: dict[str, dict[str, int]] = {}
    for part in parts:
        for uuid, held in normal(part).items():
            for name, amount in held.items():
                result.setdefault(uuid, {}).setdefault(name, 0)
                result[uuid][name] += amount
    return result


def observe_pair(
    instance: Allocations, migration: Allocations, source: Allocations, destination: Allocations | None, strategy: str
) -> PairState:
    """Return the state that a pair shows.

    The function is pure and total.

    :param instance: what the instance holds.
    :param migration: what the migration holds.
    :param source: the source allocation, from the log.
    :param destination: the destination allocation of the newest intent; None before the first intent.
    :param strategy: a :class:`~migrator.objects.migration.Strategy`, from the migration's row.
    :returns: UNKNOWN for everything that is not in the table. Also UNKNOWN for a source that is empty or equals the
        destination, because several rows of the table would then be equal.
    """
    origin, target = normal(source), normal(destination)
    if not origin or origin == target:
        return PairState.UNKNOWN
    nothing: dict[str, dict[str, int]] = {}
    seen = (normal(instance), normal(migration))
    if Strategy(strategy) is Strategy.DOUBLED:
        rows = [((origin, nothing), PairState.NOT_MOVED)]
        if target:
            rows += [((total([origin, target]), nothing), PairState.MOVED), ((target, nothing), PairState.RELEASED)]
    else:
        rows = [((origin, nothing), PairState.NOT_MOVED), ((nothing, origin), PairState.CLAIM_MISSING)]
        if target:
            rows += [((target, origin), PairState.MOVED), ((target, nothing), PairState.RELEASED)]
    return next((state for row, state in rows if row == seen), PairState.UNKNOWN)


def forced_claim(source: Allocations, destination_root: str) -> dict[str, dict[str, int]]:
    """Return the claim of a forced migration: the source's amounts at the destination's root provider.

    A forced migration names its host and requests no candidates from Placement.

    :param source: what the instance holds now.
    :param destination_root: uuid of the root resource provider of the destination.
    :raises ForcedWithNestedAllocations: the source allocation is on more than one provider. Sharing providers count.
    :raises NoValidHost: the source allocation is empty.
    """
    held = normal(source)
    if not held:
        raise exception.NoValidHost(reason='The instance holds no allocation in Placement: heal its allocation first.')
    if len(held) > 1:
        raise exception.ForcedWithNestedAllocations(count=len(held), providers=', '.join(sorted(held)))
    return {destination_root: dict(next(iter(held.values())))}
