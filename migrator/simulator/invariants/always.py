# SPDX-License-Identifier: Apache-2.0
"""What must be true of guests, books and rows after every event: from a world to what is wrong in it."""

from __future__ import annotations

import collections
import datetime
import itertools
from collections.abc import Iterator

from migrator.conductor.migration import abandon
from migrator.objects import LEGAL_MOVES, Migration, MigrationStatus, MigrationType, Outcome
from migrator.placement_client import allocation_state
from migrator.placement_client.allocation_state import PairState
from migrator.saga import log
from migrator.simulator.world import World
from migrator.testing.rpc import Recorded
from migrator.virt.fake import hypervisor

#: What an instance's task_state is while a migration of a type is in progress.
TASK_STATES = {
    MigrationType.LIVE_MIGRATION.value: 'migrating',
    MigrationType.EVACUATION.value: 'rebuilding',
}
POST = ('post_live_migration_at_source', 'post_live_migration_at_destination')
ROLLBACK = ('rollback_live_migration_at_source', 'rollback_live_migration_at_destination')


def one_runner(world: World) -> Iterator[str]:
    """I1, always: at most one active copy of a guest.

    Also whatever the fake world noted by itself: two active copies between two looks, and the loss of a last copy.
    """
    for guest in sorted({uuid for host in world.hosts.values() for uuid in host.guests}):
        active = [
            host.name
            for host in world.hosts.values()
            if guest in host.guests and host.guests[guest].state in hypervisor.OWNING
        ]
        if len(active) > 1:
            yield f'guest {guest} is active on {" and ".join(active)}'
    yield from world.misdeeds


def location(world: World) -> Iterator[str]:
    """I2, always: ``instance.host`` is not changed before cut-over.

    It is the source until the outcome is forward, and the destination from that very commit on; and when it is, the
    source's copy does not run. What the instance's newest migration has come to says where it is after that.
    """
    for instance in world.instances.values():
        migration = world.newest(instance.uuid)
        if migration is None or migration.status == MigrationStatus.ERROR:
            continue
        forward = migration.outcome == Outcome.FORWARD
        wanted = migration.dest_compute if forward else migration.source_compute
        if instance.host != wanted:
            yield (
                f'instance {instance.uuid} is said to be at {instance.host}, though its migration {migration.uuid} '
                f'({migration.status}, outcome {migration.outcome}) says {wanted}'
            )
        source = world.hosts.get(migration.source_compute)
        guest = source.guests.get(instance.uuid) if source is not None else None
        if forward and migration.in_progress and guest is not None and guest.state in hypervisor.OWNING:
            yield f'migration {migration.uuid} went forward, though {migration.source_compute} runs the guest'
        if forward and migration.in_progress and not _had_a_job(world, migration):
            yield f'migration {migration.uuid} went forward, and no job has ever moved the guest'


def _had_a_job(world: World, migration: Migration) -> bool:
    return any(
        (effect.effect, effect.instance_uuid, effect.host)
        == ('job started', migration.instance_uuid, migration.source_compute)
        for effect in world.effects
    )


def during(world: World) -> Iterator[str]:
    """I4, always: between move and release each holds what is his, and never more.

    Migration-owned: the migration holds the source's usage, the instance the destination's; doubled: the instance
    holds both. Where the journal has an intent and no result, both what was before and what comes after are right.
    An instance that was deleted meanwhile is left out. Abandoned: what was before may be anything (a pair that fits no
    known case is a reason to be stuck); what comes after is the allocation of the host that was named.
    """
    for migration in world.migrations.values():
        if not migration.in_progress or migration.instance_uuid not in world.instances:
            continue
        instance, mine = world.held(migration.instance_uuid), world.held(migration.uuid)
        moved = world.record(migration, 'move_allocation')
        if moved is None or not moved.input:
            flavor = world.instances[migration.instance_uuid].flavor
            whole = {name: sum(one.get(name, 0) for one in instance.values()) for name in flavor.resources()}
            if mine or whole != flavor.resources():
                yield (
                    f'migration {migration.uuid} has moved nothing yet, but holds {mine}, and the instance {instance}'
                )
            continue
        source, destination = moved.input['source'], moved.input['destination']
        state = allocation_state.observe_pair(instance, mine, source, destination, migration.strategy)
        right = _right_pairs(world, migration, moved)
        if right and state not in right:
            yield (
                f'the allocations of migration {migration.uuid} are {state}, not {" or ".join(sorted(right))}: '
                f'the instance holds {instance}, the migration {mine}'
            )


def _right_pairs(world: World, migration: Migration, moved: log.StepRecord) -> set[PairState]:
    abandoned = world.record(migration, abandon.ALLOCATIONS)
    if abandoned is not None:
        if abandoned.state != log.StepState.DONE:
            return set()
        at_source = migration.abandon_guest_on == migration.source_compute
        return {PairState.NOT_MOVED} if at_source else {PairState.RELEASED}
    undo = world.record(migration, 'move_allocation', log.UNDO)
    if undo is not None:
        done = undo.state == log.StepState.DONE
        return {PairState.NOT_MOVED} if done else {PairState.NOT_MOVED, PairState.MOVED}
    release = world.record(migration, 'release_source_allocation')
    if release is not None:
        done = release.state == log.StepState.DONE
        return {PairState.RELEASED} if done else {PairState.MOVED, PairState.RELEASED}
    done = moved.state == log.StepState.DONE
    return {PairState.MOVED} if done else {PairState.NOT_MOVED, PairState.MOVED}


def cover(world: World) -> Iterator[str]:
    """I5, always: a guest known to us that is present on a host in any form is covered by an allocation there.

    By the instance's, or that of its migration in progress. A host that is down, or owes a debt for the instance, is
    excepted; and a guest that is being taken out of the books is not known to us any more.
    """
    for host in world.hosts.values():
        tree = world.tree(host.name)
        for uuid, parts in host.parts.items():
            instance = world.instances.get(uuid)
            if instance is None or instance.task_state == 'deleting':
                continue
            if world.is_down(host.name) or world.owes(host.name, uuid):
                continue
            consumers = [uuid, *(migration.uuid for migration in world.in_progress(uuid))]
            if not any(tree & world.held(consumer).keys() for consumer in consumers):
                yield f'{host.name} has {", ".join(parts)} of instance {uuid}, and no allocation there covers it'


def capacity(world: World) -> Iterator[str]:
    """I6, always: per provider and class, used <= capacity, and used = the sum of its consumers."""
    for provider in world.providers.values():
        held: collections.Counter[str] = collections.Counter()
        for amounts in provider.holders.values():
            held.update(amounts)
        for name in sorted({*provider.used, *held}):
            used = provider.used.get(name, 0)
            fields = provider.inventory.get(name, {})
            most = (fields.get('total', 0) - fields.get('reserved', 0)) * fields.get('allocation_ratio', 1.0)
            if used > most:
                yield f'{provider.name}: {used} of {name} are used, {most:g} are there'
            if used != held[name]:
                yield f'{provider.name}: {used} of {name} are used, its consumers hold {held[name]}'


def one_way(world: World) -> Iterator[str]:
    """I12, always: post and rollback never both, for one migration.

    By the journal, per attempt, and by the messages: after a post step no rollback is sent. Not of one that was
    abandoned: a person has said where its guest is, whatever had been decided. Nor is either sent too early: the
    destination is not rolled back before it is settled where the guest is, and the source not tidied up while it has a
    job. Left out: that a step done twice has the effect of once, which only running it twice can show.
    """
    for uuid, records in world.journal.items():
        for attempt in sorted({record.attempt for record in records}):
            mine = [record for record in records if record.attempt == attempt]
            posts = [record.step for record in mine if record.step in POST]
            undone = [record.step for record in mine if record.direction == log.UNDO]
            if posts and undone and not _abandoned(world, uuid):
                yield f'migration {uuid}, attempt {attempt}: {posts[0]}, and {undone[0]} is undone'
    posted: set[str] = set()
    for message in world.messages:
        if message.kind != 'call' or message.migration_uuid is None:
            continue
        yield from _too_early(world, message)
        if message.method in POST:
            posted.add(message.migration_uuid)
        elif message.method not in ROLLBACK or _abandoned(world, message.migration_uuid):
            continue
        elif message.migration_uuid in posted:
            yield f'migration {message.migration_uuid}: {message.method} was sent after a post step'


def _too_early(world: World, message: Recorded) -> Iterator[str]:
    migration = world.migrations.get(message.migration_uuid or '')
    host = world.hosts.get(message.target.partition('.')[2])
    if migration is None or host is None:
        return
    unsettled = migration.in_progress and migration.outcome is None and migration.abandon_requested_at is None
    if message.method == ROLLBACK[1] and unsettled:
        # Another candidate was told to when this one was not yet chosen.
        if host.name == migration.dest_compute and world.record(migration, 'live_migration') is not None:
            yield f'migration {migration.uuid}: {message.method} was sent before it was settled'
    elif message.method == POST[0] and host.alive and migration.instance_uuid in host.jobs:
        # One whose service is down is told nothing by what is sent to it.
        yield f'migration {migration.uuid}: {message.method} was sent while {host.name} had a job'


def _abandoned(world: World, uuid: str) -> bool:
    migration = world.migrations.get(uuid)
    return migration is not None and migration.abandon_requested_at is not None


def legal(world: World) -> Iterator[str]:
    """I14, always: every status change is in the table, its writer is the owner in the current epoch; ends absorb.

    Stuck is not an end. Two rows in one epoch have one writer; neither time nor epoch goes back; an outcome stays.
    """
    for migration in world.migrations.values():
        yield from (f'migration {migration.uuid}: {what}' for what in _illegal(migration))
        before = world.before.get(migration.uuid)
        if before is not None:
            yield from (f'migration {migration.uuid}: {what}' for what in _illegal_since(before, migration))


def _illegal(migration: Migration) -> Iterator[str]:
    history = migration.history
    if not history:
        return  # from before there was one
    if history[0]['status'] != MigrationStatus.ACCEPTED:
        yield f'its first status was {history[0]["status"]}'
    if history[-1]['status'] != migration.status:
        yield f'it is {migration.status}, but its last entry says {history[-1]["status"]}'
    for old, new in itertools.pairwise(history):
        move = (old['status'], new['status'])
        if move not in LEGAL_MOVES:
            yield f'{move[0]} -> {move[1]} is no legal move'
        if new['epoch'] < old['epoch']:
            yield f'{move[0]} -> {move[1]}: the epoch went down from {old["epoch"]} to {new["epoch"]}'
        if new['epoch'] == old['epoch'] and new['owner'] != old['owner']:
            yield f'{move[0]} -> {move[1]}: two owners wrote in epoch {new["epoch"]}'
        if datetime.datetime.fromisoformat(new['at']) < datetime.datetime.fromisoformat(old['at']):
            yield f'{move[0]} -> {move[1]}: time went back'
    if history[-1]['epoch'] > migration.epoch:
        yield f'its last status was written in epoch {history[-1]["epoch"]}, and its epoch is {migration.epoch}'
    if migration.ended and migration.stuck_reason is not None:
        yield 'it has ended and is stuck'


def _illegal_since(before: Migration, migration: Migration) -> Iterator[str]:
    if migration.epoch < before.epoch:
        yield f'its epoch went down from {before.epoch} to {migration.epoch}'
    if before.outcome is not None and migration.outcome != before.outcome:
        yield f'its outcome was {before.outcome} and is {migration.outcome}'
    if migration.history[: len(before.history)] != before.history:
        yield 'its history was rewritten'
    new = migration.history[len(before.history) :]
    if before.status != migration.status and not new:
        yield f'{before.status} -> {migration.status} is not in its history'
    if new and (new[-1]['owner'], new[-1]['epoch']) != (migration.owner, migration.epoch):
        yield f'{migration.status} was written by {new[-1]["owner"]} in epoch {new[-1]["epoch"]}, not by its owner'


def task_state(world: World) -> Iterator[str]:
    """I15, always: a task_state of migration exactly while one is in progress; at most one per instance.

    ``migrating``, or ``rebuilding`` for an evacuation. The unique column says the same.
    """
    for instance in world.instances.values():
        open_ = world.in_progress(instance.uuid)
        if len(open_) > 1:
            yield f'instance {instance.uuid} has {len(open_)} migrations in progress'
        wanted = TASK_STATES[open_[0].migration_type] if open_ else None
        wrong = instance.task_state != wanted if open_ else instance.task_state in TASK_STATES.values()
        if wrong:
            yield f'instance {instance.uuid} has task_state {instance.task_state}, and {wanted} is right'
    for migration in world.migrations.values():
        # Whether one is marked is looked up by its instance.
        known = migration.instance_uuid in world.instances
        if known and migration.in_progress != (migration.uuid in world.marked):
            marked = 'is' if migration.uuid in world.marked else 'is not'
            yield f'migration {migration.uuid} is {migration.status}, but {marked} marked as in progress'
