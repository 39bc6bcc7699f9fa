# SPDX-License-Identifier: Apache-2.0

"""Planted bugs of evacuations: a guest is started twice, or a copy is removed that must stay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from migrator.conductor import cleanups, registry
from migrator.conductor.migration import allocations as allocation_steps
from migrator.conductor.migration.context import MigrationContext
from migrator.conductor.tasks import evacuate
from migrator.db import cleanups as rows
from migrator.placement_client import allocations
from migrator.saga.saga import Back, Done, Parked, Settlement, Verdict
from tests.simulation.plant import Shelf, patched

SHELF = Shelf()


def _never(*_arguments: Any) -> bool:
    return False


@SHELF.plant('1713783', 'evacuation fails')
def guest_of_a_failed_evacuation_is_removed() -> Iterator[object]:
    """A restart of the source destroyed guests that were never evacuated.

    Here a failed evacuation leaves a cleanup at its source, which does not ask where the guest is.
    """
    give_back = allocation_steps.return_allocation

    def deferring(m: MigrationContext) -> Verdict:
        m.defer(m.source, 'post_evacuation_at_source', 'planted', {'migrate_data': None})
        return give_back(m)

    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(allocation_steps, 'return_allocation', deferring))
        stack.enter_context(patched(cleanups, '_is_where_the_guest_is', _never))
        yield stack.enter_context(patched(cleanups, '_waits_for_the_guest', _never))


@SHELF.plant('1713783', 'source returns before the start')
def source_that_is_back_does_not_stop_the_start() -> Iterator[object]:
    """A guest was rebuilt elsewhere while its own host had come back.

    Here neither the start of the source nor its heartbeat prevents the start of the guest.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(MigrationContext, 'abort_reason', property(lambda m: m.failure)))
        yield stack.enter_context(patched(evacuate, '_is_back', lambda m: None))


@SHELF.plant('I4', 'evacuation')
def source_is_released_early() -> Iterator[object]:
    """The source's allocation is released before the source has cleaned up."""

    def release(m: MigrationContext) -> Verdict:
        held = allocations.read(m.tools.placement, m.row.uuid)
        if held.generation is not None:
            consumer = registry.consumer_of_migration(m.row)
            allocations.remove(m.tools.placement, consumer, generation=held.generation)
        return Done()

    with patched(evacuate, 'end_at_destination', release) as there:
        yield there


@SHELF.plant('I1', 'evacuation starts slowly')
def start_that_takes_long_is_given_up() -> Iterator[object]:
    """A start without a report counts as one that never happens.

    So the next candidate starts the guest, too.
    """
    settle = evacuate.settle

    def hasty(m: MigrationContext) -> Settlement:
        found = settle(m)
        given_up = m.record('evacuate') is not None and isinstance(found, Parked) and m.attempt == 1
        return Back('planted: it takes too long', another=True) if given_up else found

    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(evacuate, 'rollback_evacuation_at_destination', lambda m: Done()))
        yield stack.enter_context(patched(evacuate, 'settle', hasty))


@SHELF.plant('I18', 'evacuated while running')
def source_cleans_up_as_after_a_live_migration() -> Iterator[object]:
    """The source is sent the step that removes disks which a live migration has copied.

    It ends no copy.
    """
    defer = MigrationContext.defer

    def other(self: Any, host: str, step: str, *more: Any) -> None:
        defer(self, host, step.replace('post_evacuation', 'post_live_migration'), *more)

    with patched(MigrationContext, 'defer', other) as there:
        yield there


@SHELF.plant('1713783', 'evacuated and brought back')
def returning_source_removes_what_came_back_to_it() -> Iterator[object]:
    """Neither the registration of a guest at the source nor the cleanup there looks at the other."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(rows, 'hold_at', _never))
        yield stack.enter_context(patched(cleanups, '_is_where_the_guest_is', _never))


@SHELF.plant('nova 34', 'both hosts lost')
def copy_is_ended_though_no_host_reports_the_guest() -> Iterator[object]:
    """The source ends its active copy although the host to which the guest was evacuated does not answer."""
    with patched(cleanups, '_waits_for_the_guest', _never) as there:
        yield there
