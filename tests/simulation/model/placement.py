# SPDX-License-Identifier: Apache-2.0
"""Placement: two consumers with generations, and what their pair means by the product's own table."""

from __future__ import annotations

import functools

from migrator.objects.migration import Strategy
from migrator.placement_client.allocation_state import PairState, observe_pair
from tests.simulation.model.state import ABSENT, ORPHAN, Allocations, Message

FIRST_GENERATION = 1


@functools.cache
def meaning(instance: str, migration: str, destination: str) -> PairState:
    """Return what the product makes of a pair.

    :param instance: the host whose allocation the instance holds, or ''. :param migration: the same of the migration.
    :param destination: that of the newest intent, or ''.
    """

    def held(host: str) -> dict[str, dict[str, int]]:
        return {host: {'VCPU': 1}} if host else {}

    return observe_pair(held(instance), held(migration), held('S'), held(destination), Strategy.MIGRATION_OWNED)


def write(allocations: Allocations, message: Message) -> tuple[Allocations, bool]:
    """Return the allocations after a request, and whether it was taken; a wrong generation is a 409."""
    kind, instance, migration = message.kind, message.first, message.second
    both = instance == allocations.instance_generation and migration == allocations.migration_generation
    if kind == 'move' and both:
        moved = 1 if migration == ABSENT else migration + 1
        return Allocations(str(message.about), instance + 1, 'S', moved), True
    if kind == 'revert' and both:
        return Allocations('S', instance + 1, '', ABSENT), True
    if kind == 'rewrite' and instance == allocations.instance_generation:
        return allocations._replace(instance='S', instance_generation=instance + 1), True
    if kind == 'release' and migration == allocations.migration_generation and migration > ORPHAN:
        return allocations._replace(migration='', migration_generation=ABSENT), True
    # Planted: nova's two requests.
    if kind == 'take' and both:
        return Allocations('', ABSENT, 'S', 1), True
    if kind == 'claim' and instance == allocations.instance_generation:
        return allocations._replace(instance=str(message.about), instance_generation=max(0, instance) + 1), True
    return allocations, False


def leave_orphan(allocations: Allocations, message: Message) -> Allocations | None:
    """Return the allocations if Placement dies during a move, leaving an empty consumer; None: it cannot."""
    taken = write(allocations, message)[1]
    return (
        allocations._replace(migration_generation=ORPHAN)
        if message.kind == 'move' and taken and allocations.migration_generation == ABSENT
        else None
    )
