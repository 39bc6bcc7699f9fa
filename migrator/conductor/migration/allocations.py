# SPDX-License-Identifier: Apache-2.0

"""The books of one migration: observe the pair, then one atomic write; Placement is never written from memory.

The right to write is taken in our own database first: the intent, or the guard, is committed after the generations
were read and before the request is sent. So a conductor that was paused in between writes with a stale generation.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from migrator import exception
from migrator.conductor.migration import hosts
from migrator.conductor.migration.context import MigrationContext
from migrator.objects import Strategy
from migrator.placement_client import allocation_state, allocations, candidates, providers
from migrator.saga import log
from migrator.saga.step import Done, Failed, Parked, Stuck, Verdict

#: How often a write that lost a race is tried again before it is left to the next sweep.
_RACES = 5


def move(m: MigrationContext) -> Verdict:
    """Move: not moved -> moved."""
    strategy, pair = _pair(m)
    record = m.record('move_allocation')
    assert record is not None
    assert record.input is not None
    generation = record.input['instance_generation']
    fresh = m.first_try('move_allocation')
    # With the failure of the one before, this try was counted.
    counted = m.ledger.of('move_allocation', 'Placement').tries > 0
    new: int | None = None
    for _ in range(_RACES):
        try:
            if not fresh:
                reading = strategy.observe(pair)
                if reading.state is allocation_state.PairState.MOVED:
                    return Done()
                if _is_written_anew(m, reading):
                    return Failed(f'What instance {m.row.instance_uuid} holds was changed as it was about to move.')
                if reading.state is not allocation_state.PairState.NOT_MOVED:
                    return _unknown(m, reading)
                generation = _known(reading)
                input_ = {**record.input, 'instance_generation': generation}
                m.commit([dataclasses.replace(record, input=input_, tries=record.tries + (not counted))])
            with _turn(m, pair):
                strategy.move(pair, instance_generation=generation, migration_generation=new)
        except exception.PlacementConflict:
            fresh = False
            # Another writer was faster; or Placement was killed over an earlier try while it made the migration's
            # consumer, which cannot be seen and refuses null since. Where there is none, this generation is refused.
            new = allocations.ORPHAN_GENERATION if new is None else None
            _pause(m)
        except exception.PlacementUnreachable as error:
            # It may have been done: observed, never blindly sent again.
            return _later(m, error, 'move_allocation')
        except (exception.PlacementRefused, exception.NoValidHost) as error:
            return Failed(f'Placement refused the move to {m.destination}: {error}')
        else:
            return Done()
    return Parked('Placement: other writers were faster each time')


def give_back(m: MigrationContext) -> Verdict:
    """Revert: moved -> not moved; and burn the generation of a move that may still be on its way."""
    record = m.record('move_allocation')
    if record is None or not record.input:
        return Done({'skipped': 'no move was ever intended'})
    strategy, pair = _pair(m)
    for _ in range(_RACES):
        try:
            reading = strategy.observe(pair)
            m.guard()
            if m.is_deleted():
                return _bury(strategy, reading)
            match reading.state:
                case allocation_state.PairState.NOT_MOVED:
                    with _turn(m, pair):
                        strategy.rewrite_source(pair, instance_generation=_known(reading))
                case allocation_state.PairState.MOVED | allocation_state.PairState.CLAIM_MISSING:
                    with _turn(m, pair):
                        strategy.revert(
                            pair,
                            instance_generation=reading.instance.generation,
                            migration_generation=reading.migration.generation,
                            recreate=reading.state is allocation_state.PairState.CLAIM_MISSING,
                        )
                case _ if _is_written_anew(m, reading):
                    return Done({'skipped': 'what the instance holds was changed before it had moved'})
                case _:
                    return _unknown(m, reading)
        except exception.PlacementConflict:
            _pause(m)
        except (exception.PlacementUnreachable, exception.PlacementRefused) as error:
            return _later(m, error, 'move_allocation', log.UNDO)
        else:
            return Done()
    return Parked('Placement: other writers were faster each time')


def release(m: MigrationContext) -> Verdict:
    """Release: moved -> released."""
    strategy, pair = _pair(m)
    fresh = m.first_try('release_source_allocation') and m.row.strategy == Strategy.MIGRATION_OWNED
    for _ in range(_RACES):
        try:
            if fresh:
                # Our own POST has made this consumer, and nobody else writes it.
                with m.tools.turns.of(pair.source):
                    strategy.release(pair, instance_generation=None, migration_generation=allocations.FIRST_GENERATION)
                return Done()
            reading = strategy.observe(pair)
            if reading.state is allocation_state.PairState.RELEASED:
                return Done()
            if m.is_deleted():
                m.guard()
                return _bury(strategy, reading)
            if reading.state is not allocation_state.PairState.MOVED:
                return _unknown(m, reading)
            m.guard()
            with _turn(m, pair):
                strategy.release(
                    pair,
                    instance_generation=reading.instance.generation,
                    migration_generation=reading.migration.generation,
                )
        except exception.PlacementConflict:
            fresh = False
            _pause(m)
        except (exception.PlacementUnreachable, exception.PlacementRefused) as error:
            return _later(m, error, 'release_source_allocation')
        else:
            return Done()
    return Parked('Placement: other writers were faster each time')


def say(m: MigrationContext, host: str, step: str) -> Verdict:
    """Have the books say that the guest is on a host, whatever they say now: a person has said so.

    :param host: the source, or the destination. It gets the allocation that the journal names; the other's goes, and
        what is still on its way to Placement fails, since every generation rises.
    :param step: the row of the journal that tells of it.
    """
    record = m.record('move_allocation')
    if record is None or not record.input:
        return Done({'skipped': 'no move was ever intended'})
    strategy, pair = _pair(m)
    wanted = pair.source if host == m.source else pair.destination or {}
    orphan: int | None = None
    for _ in range(_RACES):
        try:
            reading = strategy.observe(pair)
            m.guard()
            if m.is_deleted():
                return _bury(strategy, reading)
            # Null only where there is no such consumer: the database has the instance.
            known = reading.instance.generation
            generation = orphan if known is None else known
            writes = [allocations.Write(consumer=pair.instance, allocations=wanted, generation=generation)]
            if reading.migration.generation is not None and reading.migration.allocations:
                held = reading.migration.generation
                writes.append(allocations.Write(consumer=pair.migration, allocations={}, generation=held))
            with _turn(m, pair):
                allocations.write_all(strategy.client, writes)
        except exception.PlacementConflict:
            orphan = allocations.ORPHAN_GENERATION if orphan is None else None
            _pause(m)
        except exception.PlacementRefused as error:
            return Stuck(
                f'It is being abandoned, and Placement refuses to give instance {m.row.instance_uuid} its allocation '
                f'at {host}: {error} Make room there.'
            )
        except exception.PlacementUnreachable as error:
            return _later(m, error, step)
        else:
            return Done({'host': host})
    return Parked('Placement: other writers were faster each time')


def _turn(m: MigrationContext, pair: allocation_state.Pair) -> contextlib.AbstractContextManager[None]:
    return m.tools.turns.of(pair.source, pair.destination)


def _pair(m: MigrationContext) -> tuple[allocations.AllocationStrategy, allocation_state.Pair]:
    record = m.record('move_allocation')
    assert record is not None
    assert record.input is not None
    input_: dict[str, Any] = dict(record.input)
    # Whoever has asked for the move, what a guest holds is its owner's, and counts for them.
    of = m.instance or m.row
    owner = {'project_id': of.project_id, 'user_id': of.user_id}
    pair = allocation_state.Pair(
        instance=allocation_state.Consumer(uuid=m.row.instance_uuid, consumer_type=allocation_state.INSTANCE, **owner),
        migration=allocation_state.Consumer(uuid=m.row.uuid, consumer_type=allocation_state.MIGRATION, **owner),
        source=input_['source'],
        destination=input_['destination'],
    )
    return allocations.strategy_for(m.tools.placement, m.row.strategy), pair


def _bury(strategy: allocations.AllocationStrategy, reading: allocations.PairReading) -> Verdict:
    """The instance was deleted: its consumer stays gone, and the migration holds nothing either."""
    if reading.migration.generation is not None and reading.migration.allocations:
        owner = allocation_state.Consumer(
            uuid=reading.migration.uuid,
            consumer_type=allocation_state.MIGRATION,
            project_id=reading.migration.project_id or '',
            user_id=reading.migration.user_id or '',
        )
        allocations.remove(strategy.client, owner, generation=reading.migration.generation)
    return Done({'skipped': 'the instance has been deleted'})


def _known(reading: allocations.PairReading) -> int:
    assert reading.instance.generation is not None, 'an instance that holds the source has a generation'
    return reading.instance.generation


def _is_written_anew(m: MigrationContext, reading: allocations.PairReading) -> bool:
    """Whether somebody, such as a heal, has written what the instance holds at the source, with nothing moved.

    What of ours may still be on its way has an older generation then, and comes too late; so there is nothing to undo.
    """
    record = m.record('move_allocation')
    held = allocation_state.normal(reading.instance.allocations)
    if record is None or not record.input or reading.state is not allocation_state.PairState.UNKNOWN or not held:
        return False
    if allocation_state.normal(reading.migration.allocations) or _known(reading) <= record.input['instance_generation']:
        return False
    client = m.tools.placement
    here = {place.uuid for place in m.tools.database.services.places(m.row.instance_uuid, host=m.source)}
    mine = {one.uuid for one in providers.list_providers(client) if one.root_uuid in here}
    others = held.keys() - mine
    return len(others) < len(held) and all(
        candidates.SHARING_TRAIT in providers.read_traits(client, uuid) for uuid in others
    )


def _unknown(m: MigrationContext, reading: allocations.PairReading) -> Stuck:
    return Stuck(
        f'The allocations fit no known case ({reading.state}): instance {m.row.instance_uuid} holds '
        f'{dict(reading.instance.allocations)}, migration {m.row.uuid} holds {dict(reading.migration.allocations)}. '
        f'Make Placement say where the guest is; the migration then goes on by itself.'
    )


def _later(m: MigrationContext, error: exception.MigratorException, step: str, direction: str = log.DO) -> Parked:
    """Have a step tried again after a pause that grows: what all wait for is not asked by all of them every second."""
    wait = m.ledger.of(step if direction == log.DO else f'{direction} {step}', 'Placement')
    wait.tries += 1
    hosts.back_off(m, wait)
    record = m.record(step, direction)
    if record is not None:
        m.note_try(record, str(error))
    m.note_waiting(str(error))
    return Parked(f'Placement: {error}')


def _pause(m: MigrationContext) -> None:
    m.tools.threads.sleep(0.05 * m.tools.threads.random())
