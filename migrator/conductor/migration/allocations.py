# SPDX-License-Identifier: Apache-2.0

"""The allocations of a migration: each step writes both consumers in one request.

The right to write comes from the database. The intent, or the guard, is committed after the generations were read and
before the request is sent. So a conductor that was paused in between writes with a stale generation, which Placement
refuses. The first try of a step uses the generations that follow from the writes of this migration, and reads nothing.
Every further try reads both consumers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from migrator import exception
from migrator.conductor.migration import destinations, hosts, waiting
from migrator.conductor.migration.context import MigrationContext
from migrator.db.slots import Allowance, Bounds, Request, Waiter
from migrator.objects import Strategy
from migrator.objects.reasons import FailureKind, Reason, StuckKind, WaitKind
from migrator.placement_client import allocation_state, allocations, candidates, providers
from migrator.saga import log
from migrator.saga.saga import Done, Failed, Parked, Stuck, Verdict

#: The number of tries of a write that loses a race. Then the next sweep tries again.
_RACES = 5


def next_candidate(m: MigrationContext) -> Mapping[str, Any] | Failed | Parked:
    """Return the intent of the move: the next candidate, both allocations, and the instance's generation."""
    if m.instance is None:
        return Failed(f'Instance {m.row.instance_uuid} was deleted.')
    if m.row.requested_host == m.source:
        # Before it waits for a slot there, which it would never use.
        return Failed(exception.UnableToMigrateToSelf(instance_uuid=m.row.instance_uuid, host=m.source).message)
    tools = m.tools
    reachable = tools.broker.unbroken_for() >= tools.options.service_down_time
    tried = destinations.tried(m.step_log, m.attempt)
    bounds = tools.options.bounds
    hints = None
    if m.row.drain is not None:
        bounds = bounds or Bounds()
        if m.row.requested_host is None:
            hints = tools.database.drains.hints(m.row.drain, m.row.instance_uuid)
    # A destination that refuses the allocation uses up a retry, so an old list is for unlimited retries alone.
    asked_after = None if tools.options.migrate_max_retries < 0 else tools.candidates.sent()
    try:
        allowance = _allowance(m, bounds) if bounds is not None else None
        if allowance is not None:
            allowance.check(m.row.requested_host)
        chosen = destinations.choose(
            tools.database,
            tools.readings,
            tools.candidates,
            destinations.RequestSpec(m.row, m.instance, tried, allowance, hints, tools.options.resizes_here),
            reachable,
            asked_after,
        )
    except exception.NoSlot as error:
        # The end of another migration or a poll wakes it.
        m.ledger.candidates, m.ledger.wake_at = error.kwargs.get('candidates', ()), math.inf
        why = Reason.of(WaitKind.SLOT, *error.kwargs['hosts'], what=error.kwargs['what'])
        waiting.note_waiting(m, why)
        return Parked(why, patient=True, hosts=())
    except (exception.PlacementUnreachable, exception.PlacementConflict) as error:
        return _later(m, error, 'move_allocation')
    except (exception.Invalid, exception.NotFound, exception.PlacementRefused) as error:
        no_host = type(error) is exception.NoValidHost  # its subclasses have other causes than a lack of hosts
        return Failed(str(error), kind=FailureKind.NO_VALID_HOST if no_host else None)
    m.set(dest_compute=chosen.host, dest_node=chosen.node, dest_host=chosen.host)
    # The check that follows the move has no intent that could read the boots.
    m.read_boots()
    if bounds is not None:
        m.writes.slots = Request(bounds, tools.slots.was_full)
    return dataclasses.asdict(chosen)


def _allowance(m: MigrationContext, bounds: Bounds) -> Allowance:
    """Return what a migration may take now."""
    tools = m.tools
    found = tools.database.slots.read(bounds, m.source)
    tools.slots.note(found, tools.options.poll_interval)
    return found.allowance_of(Waiter.of(m.row), tools.slots.was_full)


def empty_intent(_m: MigrationContext) -> Mapping[str, Any]:
    """Return an empty intent: the step is in the log before Placement is asked."""
    return {}


def move_allocation(m: MigrationContext) -> Verdict:
    """Give the source's allocation to the migration, and the destination's to the instance."""
    record, intent = m.record('move_allocation'), destinations.chosen(m.step_log, m.attempt)
    assert record is not None
    assert intent is not None
    strategy, pair = _pair(m)
    generation = intent.instance_generation
    fresh = m.step_log.first_try(m.attempt, 'move_allocation')
    # The failure of the previous try has already counted this one.
    counted = m.ledger.of('move_allocation', 'Placement').tries > 0
    new: int | None = None
    for _ in range(_RACES):
        try:
            if not fresh:
                reading, pair = _observe(m, strategy, pair)
                if reading.state is allocation_state.PairState.MOVED:
                    return Done()
                if _is_written_anew(m, reading):
                    return Failed(
                        f'The allocation of instance {m.row.instance_uuid} was changed before the migration moved it.'
                    )
                if reading.state is not allocation_state.PairState.NOT_MOVED:
                    return _unknown(m, reading)
                generation = _known(reading)
                input_ = dataclasses.asdict(
                    dataclasses.replace(intent, instance_generation=generation, source=pair.source)
                )
                m.commit([dataclasses.replace(record, input=input_, tries=record.tries + (not counted))])
            strategy.move(pair, instance_generation=generation, migration_generation=new)
        except exception.PlacementConflict:
            fresh = False
            # Another writer was faster, or Placement was killed in an earlier try and has left an orphan consumer of
            # the migration. An orphan cannot be read and refuses the generation null. Without an orphan, Placement
            # refuses its generation.
            new = allocations.ORPHAN_GENERATION if new is None else None
            _pause(m)
        except exception.PlacementUnreachable as error:
            # The move may be done. The next try observes before it writes.
            return _later(m, error, 'move_allocation')
        except (exception.PlacementRefused, exception.NoValidHost) as error:
            m.tools.candidates.refused(intent.destination)
            return Failed(f'Placement refused the allocation at {m.destination}: {error}')
        else:
            return Done()
    m.tools.candidates.refused(intent.destination)
    return Parked(Reason.of(WaitKind.PLACEMENT_BUSY))


def return_allocation(m: MigrationContext, step: str = 'move_allocation', direction: str = log.UNDO) -> Verdict:
    """Return the source's allocation to the instance: moved -> not moved.

    The write raises the generation, so that Placement refuses a move that may still be on its way.

    :param step: the step that returns it.
    :param direction: whether that step is undone or done.
    """
    if destinations.chosen(m.step_log, m.attempt) is None:
        return Done({'skipped': 'no move of the allocation was intended'})
    strategy, pair = _pair(m)
    moved = _generation_after_move(m) if m.step_log.first_try(m.attempt, step, direction) else None
    for _ in range(_RACES):
        try:
            if moved is not None:
                strategy.revert(pair, instance_generation=moved, migration_generation=allocations.FIRST_GENERATION)
                return Done()
            reading, pair = _observe(m, strategy, pair)
            if direction == log.DO and reading.state is allocation_state.PairState.NOT_MOVED:
                # The move was done long before, so none can be on its way.
                return Done()
            m.commit()
            if m.is_deleted():
                return _bury(strategy, reading)
            match reading.state:
                case allocation_state.PairState.NOT_MOVED:
                    strategy.rewrite_source(pair, instance_generation=_known(reading))
                case allocation_state.PairState.MOVED | allocation_state.PairState.CLAIM_MISSING:
                    strategy.revert(
                        pair,
                        instance_generation=reading.instance.generation,
                        migration_generation=reading.migration.generation,
                        recreate=reading.state is allocation_state.PairState.CLAIM_MISSING,
                    )
                case _ if _is_written_anew(m, reading):
                    return Done({'skipped': 'the allocation of the instance was changed before it was moved'})
                case _:
                    return _unknown(m, reading)
        except exception.PlacementConflict:
            # Another writer was faster, or has deleted the instance.
            moved = None
            _pause(m)
        except (exception.PlacementUnreachable, exception.PlacementRefused) as error:
            return _later(m, error, step, direction)
        else:
            return Done()
    return Parked(Reason.of(WaitKind.PLACEMENT_BUSY))


def release_source_allocation(m: MigrationContext) -> Verdict:
    """Release the allocation at the source: moved -> released."""
    strategy, pair = _pair(m)
    fresh = m.step_log.first_try(m.attempt, 'release_source_allocation') and m.row.strategy == Strategy.MIGRATION_OWNED
    for _ in range(_RACES):
        try:
            if fresh:
                # This migration has made the consumer, and nothing else writes it.
                strategy.release(pair, instance_generation=None, migration_generation=allocations.FIRST_GENERATION)
                return Done()
            reading = strategy.observe(pair)
            if reading.state is allocation_state.PairState.RELEASED:
                return Done()
            if m.is_deleted():
                m.commit()
                return _bury(strategy, reading)
            if reading.state is not allocation_state.PairState.MOVED:
                return _unknown(m, reading)
            m.commit()
            strategy.release(
                pair, instance_generation=reading.instance.generation, migration_generation=reading.migration.generation
            )
        except exception.PlacementConflict:
            fresh = False
            _pause(m)
        except (exception.PlacementUnreachable, exception.PlacementRefused) as error:
            return _later(m, error, 'release_source_allocation')
        else:
            return Done()
    return Parked(Reason.of(WaitKind.PLACEMENT_BUSY))


def hold_source_allocation(m: MigrationContext) -> Verdict:
    """Let the migration hold the source's allocation: with doubled allocations the instance has held both.

    The strategy in the row changes with it, so that everything later sees a migration-owned allocation.
    """
    if m.row.strategy == Strategy.MIGRATION_OWNED:
        return Done()
    doubled, pair = _pair(m)
    owned = allocations.strategy_for(m.tools.placement, Strategy.MIGRATION_OWNED.value, m.tools.writer.write)
    orphan: int | None = None
    for _ in range(_RACES):
        try:
            reading = doubled.observe(pair)
            if reading.state is allocation_state.PairState.MOVED:
                m.commit()
                owned.move(pair, instance_generation=_known(reading), migration_generation=orphan)
            elif m.is_deleted():
                return Done({'skipped': 'the instance was deleted'})
            elif owned.observe(pair).state is not allocation_state.PairState.MOVED:
                return _unknown(m, reading)
        except exception.PlacementConflict:
            orphan = allocations.ORPHAN_GENERATION if orphan is None else None
            _pause(m)
        except (exception.PlacementUnreachable, exception.PlacementRefused) as error:
            return _later(m, error, 'hold_source_allocation')
        else:
            m.set(strategy=Strategy.MIGRATION_OWNED.value)
            return Done()
    return Parked(Reason.of(WaitKind.PLACEMENT_BUSY))


def write_for_host(m: MigrationContext, host: str, step: str) -> Verdict:
    """Write the allocation of a host that an operator has named, whatever Placement holds now.

    Every generation rises, so Placement refuses what is still on its way.

    :param host: the source or the destination. The instance gets the allocation that the log names there, and
        loses the other one.
    :param step: the log's record of this write.
    """
    if destinations.chosen(m.step_log, m.attempt) is None:
        return Done({'skipped': 'no move of the allocation was intended'})
    strategy, pair = _pair(m)
    wanted = pair.source if m.row.has_old_flavor(host) else pair.destination or {}
    orphan: int | None = None
    for _ in range(_RACES):
        try:
            reading = strategy.observe(pair)
            m.commit()
            if m.is_deleted():
                return _bury(strategy, reading)
            # The generation is null only if Placement has no such consumer, since the database has the instance.
            known = reading.instance.generation
            generation = orphan if known is None else known
            writes = [allocations.Write(consumer=pair.instance, allocations=wanted, generation=generation)]
            if reading.migration.generation is not None and reading.migration.allocations:
                held = reading.migration.generation
                writes.append(allocations.removal(pair.migration, held))
            strategy.write(writes)
        except exception.PlacementConflict:
            orphan = allocations.ORPHAN_GENERATION if orphan is None else None
            _pause(m)
        except exception.PlacementRefused as error:
            return Stuck(Reason.of(StuckKind.NO_ROOM, host, instance=m.row.instance_uuid, reason=error))
        except exception.PlacementUnreachable as error:
            return _later(m, error, step)
        else:
            return Done({'host': host})
    return Parked(Reason.of(WaitKind.PLACEMENT_BUSY))


def _pair(m: MigrationContext) -> tuple[allocations.AllocationStrategy, allocation_state.Pair]:
    intent = destinations.chosen(m.step_log, m.attempt)
    assert intent is not None
    # The allocations of a guest belong to its owner, whichever user has requested the migration.
    of = m.instance or m.row
    owner = {'project_id': of.project_id, 'user_id': of.user_id}
    pair = allocation_state.Pair(
        instance=allocation_state.Consumer(uuid=m.row.instance_uuid, consumer_type=allocation_state.INSTANCE, **owner),
        migration=allocation_state.Consumer(uuid=m.row.uuid, consumer_type=allocation_state.MIGRATION, **owner),
        source=intent.source,
        destination=intent.destination,
    )
    return allocations.strategy_for(m.tools.placement, m.row.strategy, m.tools.writer.write), pair


def _observe(
    m: MigrationContext, strategy: allocations.AllocationStrategy, pair: allocation_state.Pair
) -> tuple[allocation_state.PairReading, allocation_state.Pair]:
    """Read both consumers. Return the reading, and the pair with what the instance held before the move.

    A joint read does not find what an instance holds of other hosts, such as a rest of an earlier failure.
    """
    reading, intent = strategy.observe(pair), destinations.chosen(m.step_log, m.attempt)
    held = reading.instance.allocations
    if (
        reading.state is allocation_state.PairState.UNKNOWN
        and intent is not None
        and reading.instance.generation == intent.instance_generation
        and not allocation_state.normal(reading.migration.allocations)
        and all(held.get(uuid) == amounts for uuid, amounts in pair.source.items())
    ):
        # Nothing was written since the intent.
        pair = dataclasses.replace(pair, source=held)
        reading = dataclasses.replace(reading, state=allocation_state.PairState.NOT_MOVED)
    return reading, pair


def _bury(strategy: allocations.AllocationStrategy, reading: allocation_state.PairReading) -> Verdict:
    """Remove the migration's allocation after the instance was deleted. Do not restore the instance's."""
    if reading.migration.generation is not None and reading.migration.allocations:
        owner = allocation_state.Consumer(
            uuid=reading.migration.uuid,
            consumer_type=allocation_state.MIGRATION,
            project_id=reading.migration.project_id or '',
            user_id=reading.migration.user_id or '',
        )
        strategy.write([allocations.removal(owner, reading.migration.generation)])
    return Done({'skipped': 'the instance was deleted'})


def _generation_after_move(m: MigrationContext) -> int | None:
    """Return the generation that the move has given to the instance's consumer, or None if it is not done.

    The log has the generation with which the move was sent. Any later write has raised it further.
    """
    record, intent = m.record('move_allocation'), destinations.chosen(m.step_log, m.attempt)
    if record is None or record.state != log.StepState.DONE or intent is None:
        return None
    return intent.instance_generation + 1


def _known(reading: allocation_state.PairReading) -> int:
    assert reading.instance.generation is not None, 'an instance with an allocation has a generation'
    return reading.instance.generation


def _is_written_anew(m: MigrationContext, reading: allocation_state.PairReading) -> bool:
    """Return whether another writer, such as a heal, wrote the source's allocation first.

    A move that is still on its way has an older generation then, and Placement refuses it. So there is nothing to undo.
    """
    intent = destinations.chosen(m.step_log, m.attempt)
    held = allocation_state.normal(reading.instance.allocations)
    if intent is None or reading.state is not allocation_state.PairState.UNKNOWN or not held:
        return False
    if allocation_state.normal(reading.migration.allocations) or _known(reading) <= intent.instance_generation:
        return False
    client = m.tools.placement
    here = {place.uuid for place in m.tools.database.services.places(m.row.instance_uuid, host=m.source)}
    mine = {one.uuid for one in providers.list_providers(client) if one.root_uuid in here}
    others = held.keys() - mine
    return len(others) < len(held) and all(
        candidates.SHARING_TRAIT in providers.read_traits(client, uuid) for uuid in others
    )


def _unknown(m: MigrationContext, reading: allocation_state.PairReading) -> Stuck:
    reason = Reason.of(
        StuckKind.UNKNOWN_ALLOCATIONS,
        state=reading.state,
        instance=m.row.instance_uuid,
        held=dict(reading.instance.allocations),
        migration=m.row.uuid,
        held_by_migration=dict(reading.migration.allocations),
    )
    return Stuck(reason)


def _later(m: MigrationContext, error: exception.MigratorException, step: str, direction: str = log.DO) -> Parked:
    """Try a step again after a growing pause, so that not every migration calls Placement every second."""
    wait = m.ledger.of(step if direction == log.DO else f'{direction} {step}', 'Placement')
    wait.tries += 1
    hosts.back_off(m, wait)
    record = m.record(step, direction)
    if record is not None:
        hosts.note_try(m, record, str(error))
    if isinstance(error, exception.PlacementUnreachable):
        return waiting.for_placement(m, error)
    why = Reason.of(WaitKind.PLACEMENT_ERROR, reason=error)
    waiting.note_waiting(m, why)
    return Parked(why)


def _pause(m: MigrationContext) -> None:
    m.tools.threads.sleep(0.05 * m.tools.threads.random())
