# SPDX-License-Identifier: Apache-2.0

"""Planted bugs of allocations: they leak, are doubled, or are written from memory."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from migrator import exception
from migrator.conductor import periodics
from migrator.conductor.migration import allocations as allocation_steps
from migrator.conductor.migration.context import MigrationContext
from migrator.conductor.tasks import live_migrate
from migrator.objects import Flavor, Migration, MigrationType
from migrator.placement_client import allocation_state, allocations
from migrator.saga.saga import Done, Failed, Saga, Verdict
from tests.simulation.plant import Shelf, patched

SHELF = Shelf()


@SHELF.plant('1715182, 1714237', 'pre fails')
def rollback_leaks_the_destinations_allocation() -> Iterator[object]:
    """A rollback cleaned the hosts and left the allocations; here return_allocation does nothing."""
    with patched(allocation_steps, 'return_allocation', lambda m: Done()) as there:
        yield there


@SHELF.plant('1712411', 'second candidate')
def rejected_candidate_keeps_its_allocation() -> Iterator[object]:
    """A candidate that failed its checks kept its allocation; here only the last candidate's is returned."""
    give_back = allocation_steps.return_allocation

    def only_at_the_end(m: MigrationContext) -> Verdict:
        return give_back(m) if m.outcome is not None else Done()

    with patched(allocation_steps, 'return_allocation', only_at_the_end) as there:
        yield there


@SHELF.plant('55f4552621', 'pre fails | conductor1: placement POST /allocations #2 | Placement 500, done')
def revert_copies_whatever_the_migration_holds() -> Iterator[object]:
    """A second revert gave the instance what the migration held, which was nothing by then; here likewise."""

    def blind(m: MigrationContext) -> Verdict:
        client, uuid = m.tools.placement, m.row.uuid
        instance, mine = allocations.read(client, m.row.instance_uuid), allocations.read(client, uuid)
        owner = {'project_id': m.row.project_id, 'user_id': m.row.user_id}
        known = {allocation_state.INSTANCE: instance, allocation_state.MIGRATION: mine}
        wanted = {allocation_state.INSTANCE: mine.allocations, allocation_state.MIGRATION: {}}
        m.commit()
        allocations.write_all(
            client,
            [
                allocations.Write(
                    consumer=allocation_state.Consumer(uuid=one.uuid, consumer_type=kind, **owner),
                    allocations=wanted[kind],
                    generation=one.generation,
                )
                for kind, one in known.items()
                if one.generation is not None
            ],
        )
        return Done()

    with patched(allocation_steps, 'return_allocation', blind) as there:
        yield there


@SHELF.plant('53ca096750', 'next move | conductor1: placement GET /allocations/UUID #2 | paused past the lease')
def writes_without_consumer_generations() -> Iterator[object]:
    """Allocations were written without a generation.

    Here each write takes the generation that is read just before it.
    """
    write_all = allocations.write_all

    def anyhow(client: Any, writes: Any) -> None:
        fresh = [
            dataclasses.replace(one, generation=allocations.read(client, one.consumer.uuid).generation)
            for one in writes
        ]
        write_all(
            client, [one for one in fresh if one.generation is not None or allocation_state.normal(one.allocations)]
        )

    with patched(allocations, 'write_all', anyhow) as there:
        yield there


@SHELF.plant('model lateget', 'next move | conductor1: placement GET /allocations/UUID #2 | paused past the lease')
def generation_read_after_the_intent() -> Iterator[object]:
    """The move is bound to a generation that was read when its intent had been committed, not before."""
    move = allocations.MigrationOwned.move

    def late(
        self: Any, pair: allocation_state.Pair, *, instance_generation: int, migration_generation: int | None = None
    ) -> None:
        found = allocations.read(self.client, pair.instance.uuid).generation
        move(self, pair, instance_generation=found or instance_generation, migration_generation=migration_generation)

    with patched(allocations.MigrationOwned, 'move', late) as there:
        yield there


@SHELF.plant('model b', 'abort preparing | conductor1: placement POST /allocations #1 | paused past the lease')
def late_move_is_not_killed() -> Iterator[object]:
    """A rollback takes an intended move that is not visible for one that never arrives: no rewrite."""
    with patched(allocations.MigrationOwned, 'rewrite_source', lambda self, pair, **_rest: None) as there:
        yield there


@SHELF.plant('model g', 'success')
def move_in_two_requests() -> Iterator[object]:
    """The allocations are moved by two requests, as in Nova.

    The migration takes over what the instance holds, and then the instance claims the destination.
    """

    def move(
        self: Any, pair: allocation_state.Pair, *, instance_generation: int, migration_generation: int | None = None
    ) -> None:
        allocations.write_all(
            self.client,
            [
                allocations.Write(consumer=pair.migration, allocations=pair.source, generation=migration_generation),
                allocations.Write(consumer=pair.instance, allocations={}, generation=instance_generation),
            ],
        )
        allocations.claim(self.client, pair.instance, pair.destination or {}, generation=None)

    with patched(allocations.MigrationOwned, 'move', move) as there:
        yield there


@SHELF.plant('1790204', 'success')
def instance_holds_both() -> Iterator[object]:
    """Allocations were doubled on the instance; here the row says migration-owned, and the writer doubles."""
    with patched(
        allocations, 'strategy_for', lambda client, name, write=None: allocations.Doubled(client, write)
    ) as there:
        yield there


@SHELF.plant('1713786', 'success | conductor1: placement POST /allocations #1 | Placement timed out, done')
def claim_without_an_answer_leaks() -> Iterator[object]:
    """A claim that Placement had accepted was not given back when a later step failed.

    Here a claim that timed out counts as never made.
    """
    move, give_back = allocation_steps.move_allocation, allocation_steps.return_allocation

    def refused(m: MigrationContext) -> Verdict:
        verdict = move(m)
        return verdict if isinstance(verdict, (Done, Failed)) else Failed('Placement did not answer')

    def unless_it_failed(m: MigrationContext) -> Verdict:
        record = m.record('move_allocation')
        return Done() if record is not None and record.state == 'failed' else give_back(m)

    with (
        patched(allocation_steps, 'move_allocation', refused),
        patched(allocation_steps, 'return_allocation', unless_it_failed) as there,
    ):
        yield there


@SHELF.plant('1712008', 'success | conductor1: placement POST /allocations #1 | Placement refuses')
def full_destination_is_forced() -> Iterator[object]:
    """A forced migration went on without an allocation at its destination.

    Here a migration goes on when Placement refuses the allocation.
    """
    move = allocation_steps.move_allocation

    def forced(m: MigrationContext) -> Verdict:
        verdict = move(m)
        return Done() if isinstance(verdict, Failed) else verdict

    with patched(allocation_steps, 'move_allocation', forced) as there:
        yield there


@SHELF.plant('1829479', 'success')
def source_allocation_is_never_released() -> Iterator[object]:
    """A guest that had left a host stayed charged to it, and its provider could not be deleted.

    Here the release does nothing.
    """
    with patched(allocation_steps, 'release_source_allocation', lambda m: Done()) as there:
        yield there


@SHELF.plant('66297f0c4a', 'success')
def release_removes_a_part_only() -> Iterator[object]:
    """What was held of child providers stayed behind; here what was held of one resource class does."""

    def part(
        self: Any, pair: allocation_state.Pair, *, instance_generation: int | None, migration_generation: int | None
    ) -> None:
        left = {uuid: {'VCPU': amounts['VCPU']} for uuid, amounts in pair.source.items()}
        write = allocations.Write(consumer=pair.migration, allocations=left, generation=migration_generation)
        allocations.write_all(self.client, [write])

    with patched(allocations.MigrationOwned, 'release', part) as there:
        yield there


@SHELF.plant('1836754', 'success | conductor1: placement PUT /allocations/UUID #1 | Placement 409')
def conflict_is_taken_for_done() -> Iterator[object]:
    """A delete met the race of GET and PUT and gave up.

    Here a release that meets a 409 counts as done.
    """
    release = allocations.MigrationOwned.release

    def once(self: Any, pair: allocation_state.Pair, **generations: int | None) -> None:
        try:
            release(self, pair, **generations)
        except exception.PlacementConflict:
            return

    with patched(allocations.MigrationOwned, 'release', once) as there:
        yield there


@SHELF.plant('I4', 'success | conductor1: placement POST /allocations #1 | Placement timed out, not done')
def silence_of_placement_is_taken_for_done() -> Iterator[object]:
    """A move that timed out is taken for one that is done."""
    move = allocations.MigrationOwned.move

    def hopeful(self: Any, pair: allocation_state.Pair, **generations: Any) -> None:
        try:
            move(self, pair, **generations)
        except exception.PlacementUnreachable:
            return

    with patched(allocations.MigrationOwned, 'move', hopeful) as there:
        yield there


@SHELF.plant('I5', 'emptied-hosts seed 1', 'emptied-hosts seed 8')
def one_of_a_refused_request_counts_as_done() -> Iterator[object]:
    """When a request with the writes of several is refused, one of them is taken for done."""
    send = allocations.Writer._send

    def forgets(self: Any, callers: Any) -> None:
        send(self, callers)
        with self._guard:
            if len(callers) > 1 and callers[-1] in self._waiting:
                self._waiting.remove(callers[-1])
                callers[-1].is_answered = True
                callers[-1].woken.set()

    with patched(allocations.Writer, '_send', forgets) as there:
        yield there


@SHELF.plant('nova 34', 'success | world: driver host1 copying #1 | driver hangs')
def audit_deletes_what_a_running_migration_holds() -> Iterator[object]:
    """An audit deleted allocations of a healthy migration; here each sweep removes what no instance holds."""
    sweep = periodics.sweep

    def heals(tools: Any, contexts: Any, *rest: Any) -> Any:
        due = sweep(tools, contexts, *rest)
        for subject in contexts.held():
            held = allocations.read(tools.placement, subject.row.uuid)
            if held.generation is not None:
                who = allocation_state.Consumer(
                    uuid=held.uuid, consumer_type=allocation_state.MIGRATION, project_id='demo', user_id='demo'
                )
                allocations.remove(tools.placement, who, generation=held.generation)
        return due

    with patched(periodics, 'sweep', heals) as there:
        yield there


@SHELF.plant('I5', 'success')
def source_is_released_before_it_is_empty() -> Iterator[object]:
    """The source's allocation goes before its post step is done."""

    def changed() -> Saga[MigrationContext]:
        saga = made()
        posts, release = saga.groups[-3], saga.groups[-2]
        return Saga(
            *[group if len(group) > 1 else group[0] for group in saga.groups[:-3]],
            release[0],
            posts,
            saga.groups[-1][0],
            settle=saga.settle,
            abandon=saga.abandon,
        )

    made = live_migrate.saga
    with patched(live_migrate, 'saga', changed) as there:
        yield there


@SHELF.plant('I5', 'driver fails')
def allocation_is_returned_before_the_destination_is_clean() -> Iterator[object]:
    """A rollback returns the allocations first, and cleans the destination after that."""
    made = live_migrate.saga

    def changed() -> Saga[MigrationContext]:
        saga = made()
        groups: list[Any] = [group if len(group) > 1 else group[0] for group in saga.groups]
        move = dataclasses.replace(groups[0], undo=live_migrate.rollback_live_migration_at_destination)
        pre = dataclasses.replace(groups[3], undo=allocation_steps.return_allocation)
        check = dataclasses.replace(groups[1], undo=None)
        groups[0], groups[1], groups[3] = move, check, pre
        return Saga(*groups, settle=saga.settle, abandon=saga.abandon)

    with patched(live_migrate, 'saga', changed) as there:
        yield there


# --- traits ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _without_traits(is_one: Callable[[Migration], bool]) -> Iterator[object]:
    """Ask Placement for no traits for some migrations."""
    flavors = Migration.flavors

    def bare(self: Migration, own: Flavor) -> tuple[Flavor, Flavor]:
        old, new = flavors(self, own)
        return (old, new.replace(extra_specs={})) if is_one(self) else (old, new)

    with patched(Migration, 'flavors', bare) as there:
        yield there


@SHELF.plant('I31', 'seed 17')
def live_migration_asks_for_no_traits() -> Iterator[object]:
    """A live migration asked Placement for amounts only, whatever the flavor requires."""
    with _without_traits(lambda one: one.migration_type == MigrationType.LIVE_MIGRATION) as there:
        yield there


@SHELF.plant('I31', 'evacuations seed 25')
def evacuation_asks_for_no_traits() -> Iterator[object]:
    """An evacuation did the same."""
    with _without_traits(lambda one: one.is_evacuation) as there:
        yield there


@SHELF.plant('I31', 'cold-migrations seed 25', 'cold-migrations seed 27')
def cold_migration_asks_for_no_traits() -> Iterator[object]:
    """A cold migration did the same."""
    with _without_traits(lambda one: one.is_cold) as there:
        yield there
