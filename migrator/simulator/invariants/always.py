# SPDX-License-Identifier: Apache-2.0

"""Invariants of guests, allocations and rows after every event.

Each function yields the violations in a world.
"""

from __future__ import annotations

import collections
import datetime
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from migrator.objects import FINAL, LEGAL_MOVES, RESIZED, Migration, MigrationStatus, MigrationType, Outcome, Strategy
from migrator.objects.steps import ABANDON_ALLOCATIONS
from migrator.placement_client import allocation_state
from migrator.placement_client.allocation_state import PairState
from migrator.saga import log
from migrator.simulator.invariants import cold_migrations, evacuations
from migrator.simulator.world import World
from migrator.testing.hypervisor import hypervisor
from migrator.testing.rpc import Recorded

#: Type of a migration -> the instance's task_state while the migration is in progress.
TASK_STATES = {
    MigrationType.LIVE_MIGRATION.value: 'migrating',
    MigrationType.EVACUATION.value: 'rebuilding',
}
#: Every task_state of a migration in progress.
_OF_MIGRATIONS = {*TASK_STATES.values(), 'resize_prep', 'resize_migrating', 'resize_reverting'}
_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')
POST = ('post_live_migration_at_source', 'post_live_migration_at_destination')
ROLLBACK = ('rollback_live_migration_at_source', 'rollback_live_migration_at_destination')


def one_runner(world: World) -> Iterator[str]:
    """I1, always: a guest has at most one active copy.

    A copy on a host from which the guest was evacuated does not count until that host has cleaned up, nor one on a
    destination that was declared dead before the revert. The fake world
    itself also notes two active copies between two looks, and the loss of the last copy.
    """
    owners: dict[str, list[str]] = {}
    for host in world.hosts.values():
        for guest, state in host.states.items():
            if state in hypervisor.OWNING:
                owners.setdefault(guest, []).append(host.name)
    for guest in sorted(guest for guest, active in owners.items() if len(active) > 1):
        active = owners[guest]
        left_behind = evacuations.left_behind(world, guest) | cold_migrations.left_behind(world, guest)
        if len(set(active) - left_behind) > 1:
            yield f'guest {guest} is active on {" and ".join(active)}'
    for what in world.misdeeds:
        named = _UUID.search(what)
        if named is not None and evacuations.not_asked(world, named[0]) and 'is active on' in what:
            continue  # it is judged above, without the hosts that the evacuation could not ask
        # The last copy of a deleted guest may be removed.
        if 'destroyed' not in what or named is None or named[0] in world.instances:
            yield what


def location(world: World) -> Iterator[str]:
    """I2, always: ``instance.host`` is the source until the outcome is forward, and then the destination.

    Both change in the same commit. After it the source's copy does not run, unless the guest was evacuated. After the
    end of a migration the outcome of the instance's newest migration determines the host.
    """
    for instance in world.instances.values():
        migration = world.newest(instance.uuid)
        if migration is None or migration.status == MigrationStatus.ERROR:
            continue
        forward = migration.outcome == Outcome.FORWARD and not cold_migrations.is_back(world, migration)
        wanted = migration.dest_compute if forward else migration.source_compute
        if instance.host != wanted:
            yield (
                f'the host of instance {instance.uuid} is {instance.host}, but must be {wanted} after migration '
                f'{migration.uuid} ({migration.status}, outcome {migration.outcome})'
            )
        if forward and migration.in_progress and migration.is_evacuation:
            if not evacuations.was_started(world, migration):
                yield f'evacuation {migration.uuid} went forward, but {migration.dest_compute} has no started guest'
            continue
        if migration.is_cold:
            if forward and migration.in_progress:
                yield from cold_migrations.location(world, migration)
            continue
        source = world.hosts.get(migration.source_compute)
        guest = source.guests.get(instance.uuid) if source is not None else None
        if forward and migration.in_progress and guest is not None and guest.state in hypervisor.OWNING:
            yield f'migration {migration.uuid} went forward, but {migration.source_compute} runs the guest'
        if forward and migration.in_progress and not _had_a_job(world, migration):
            yield f'migration {migration.uuid} went forward, but no job has moved the guest'


def _had_a_job(world: World, migration: Migration) -> bool:
    return any(
        (effect.effect, effect.instance_uuid, effect.host)
        == ('job started', migration.instance_uuid, migration.source_compute)
        for effect in world.effects
    )


def fitting(world: World) -> Iterator[str]:
    """I31, always: no instance is on a host that its flavor forbids, unless a user forced it there."""
    for instance in world.instances.values():
        host = world.hosts.get(instance.host)
        if host is None or not instance.flavor.extra_specs:
            continue
        mine = [one for one in world.migrations.values() if one.instance_uuid == instance.uuid]
        if any(one.force and one.dest_compute == instance.host for one in mine):
            continue
        for _suffix, group in instance.flavor.request.groups:
            if not group.required <= {*host.traits} or group.forbidden & {*host.traits}:
                yield f'instance {instance.uuid} is on {host.name}, but its flavor is {instance.flavor.name}'


def during(world: World) -> Iterator[str]:
    """I4, always: between move and release the instance and the migration hold exactly their allocations.

    - Strategy migration-owned: the migration holds the source's usage, and the instance the destination's.
    - Strategy doubled: the instance holds both.
    - If the log has an intent without a result, the states before and after the step are both allowed.
    - An abandoned migration may have any allocations before, since an unknown pair is a reason to be stuck. After it
      the instance holds the allocation of the named host.
    - Step hold_source_allocation of an evacuation changes the strategy to migration-owned.
    - An instance that was deleted meanwhile is not checked.
    - In a resize, the instance has the flavor of the side that it is on.
    """
    for migration in world.migrations.values():
        if not migration.in_progress or migration.instance_uuid not in world.instances:
            continue
        instance, mine = world.held(migration.instance_uuid), world.held(migration.uuid)
        moved = world.record(migration, 'move_allocation')
        if moved is None or not moved.input:
            wholes = world.instances[migration.instance_uuid].flavor.request.totals
            if mine or all(
                {name: sum(one.get(name, 0) for one in instance.values()) for name in whole} != whole
                for whole in wholes
            ):
                yield (
                    f'migration {migration.uuid} has not moved any allocation yet, but it holds {mine}, and the '
                    f'instance holds {instance}'
                )
            continue
        source, destination = moved.input['source'], moved.input['destination']
        strategy = migration.strategy
        hold = world.record(migration, 'hold_source_allocation')
        if hold is not None and hold.state == log.StepState.INTENT and mine:
            strategy = Strategy.MIGRATION_OWNED.value
        state = allocation_state.observe_pair(instance, mine, source, destination, strategy)
        right = _right_pairs(world, migration, moved)
        if right and state not in right:
            yield (
                f'the allocations of migration {migration.uuid} are {state}, not {" or ".join(sorted(right))}: '
                f'the instance holds {instance}, the migration {mine}'
            )
    yield from evacuations.during(world)
    yield from cold_migrations.flavors(world)


def _right_pairs(world: World, migration: Migration, moved: log.StepRecord) -> set[PairState]:
    abandoned = world.record(migration, ABANDON_ALLOCATIONS)
    if abandoned is not None:
        if abandoned.state != log.StepState.DONE:
            return set()
        at_source = migration.has_old_flavor(migration.abandon_guest_on)
        return {PairState.NOT_MOVED} if at_source else {PairState.RELEASED}
    undo = world.record(migration, 'move_allocation', log.UNDO)
    if undo is not None:
        done = undo.state == log.StepState.DONE
        return {PairState.NOT_MOVED} if done else {PairState.NOT_MOVED, PairState.MOVED}
    returned = cold_migrations.right_pairs(world, migration)
    if returned is not None:
        return returned
    release = world.record(migration, 'release_source_allocation')
    if release is not None:
        done = release.state == log.StepState.DONE
        return {PairState.RELEASED} if done else {PairState.MOVED, PairState.RELEASED}
    done = moved.state == log.StepState.DONE
    return {PairState.MOVED} if done else {PairState.NOT_MOVED, PairState.MOVED}


def cover(world: World) -> Iterator[str]:
    """I5, always: an allocation covers every known guest that has any part on a host.

    It is the instance's allocation, or that of a migration that has not released it yet. Exempt are hosts that are down
    or have a deferred cleanup for the instance. An instance that is being deleted is not known any more.
    """
    for host in world.hosts.values():
        tree = world.tree(host.name)
        for uuid, parts in host.parts.items():
            instance = world.instances.get(uuid)
            if instance is None or instance.task_state == 'deleting':
                continue
            if world.is_down(host.name) or world.has_cleanup(host.name, uuid):
                continue
            holders = [one for one in world.migrations.values() if one.status not in FINAL]
            consumers = [uuid, *(one.uuid for one in holders if one.instance_uuid == uuid)]
            if not any(tree & world.held(consumer).keys() for consumer in consumers):
                yield f'{host.name} has {", ".join(parts)} of instance {uuid}, but no allocation there covers it'


def capacity(world: World) -> Iterator[str]:
    """I6, always: per provider and class, used <= capacity, and used = the sum over the consumers."""
    for provider in world.providers.values():
        held: collections.Counter[str] = collections.Counter()
        for amounts in provider.holders.values():
            held.update(amounts)
        for name in sorted({*provider.used, *held}):
            used = provider.used.get(name, 0)
            fields = provider.inventory.get(name, {})
            most = (fields.get('total', 0) - fields.get('reserved', 0)) * fields.get('allocation_ratio', 1.0)
            if used > most:
                yield f'{provider.name}: {used} of {name} are used, but the capacity is {most:g}'
            if used != held[name]:
                yield f'{provider.name}: {used} of {name} are used, but its consumers hold {held[name]}'


def one_way(world: World) -> Iterator[str]:
    """I12, always: one migration never has both post steps and a rollback.

    - The log has not both in one attempt.
    - No rollback is sent to the source or to the final destination after a post step.
    - The destination is not rolled back before the conductor has settled where the guest is.
    - The post step is not sent to the source while the source has a job.

    A post step for another host than its own is a deferred cleanup of an earlier migration, and does not count. An
    abandoned migration may have both, since an operator decides where its guest is, whatever was decided before. An
    earlier candidate that was down may be rolled back late, by a deferred cleanup. A conductor that has lost the
    migration may send the source its cleanup of an earlier migration, which the source refuses. Not checked: a step
    that runs twice has the effect of one run.
    """
    for uuid, records in world.step_log.items():
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
            if not _of_earlier_migration(world, message):
                posted.add(message.migration_uuid)
        elif message.method not in ROLLBACK or _abandoned(world, message.migration_uuid):
            continue
        elif message.migration_uuid in posted and not (
            _to_earlier_candidate(world, message) or _is_earlier_cleanup(world, message)
        ):
            yield f'migration {message.migration_uuid}: {message.method} was sent after a post step'
    yield from evacuations.one_way(world)
    yield from cold_migrations.one_way(world)


def _of_earlier_migration(world: World, message: Recorded) -> bool:
    """Return whether a post step is a deferred cleanup of an earlier migration, in the name of this one."""
    migration = world.migrations.get(message.migration_uuid or '')
    if migration is None:
        return False
    mine = migration.source_compute if message.method == POST[0] else migration.dest_compute
    return _host_of(message) != mine


def _is_earlier_cleanup(world: World, message: Recorded) -> bool:
    """Return whether a rollback of the source is a deferred cleanup of an earlier migration.

    It is done in the name of this one. The log has the intent of a rollback of the migration's own before it is sent.
    """
    mine = world.migrations.get(message.migration_uuid or '')
    if mine is None or message.method != ROLLBACK[0]:
        return False
    earlier = (mine.instance_uuid, mine.source_compute)
    has_cleanup = any(
        (one.instance_uuid, one.source_compute) == earlier and one.id < mine.id for one in world.migrations.values()
    )
    return has_cleanup and not any(record.direction == log.UNDO for record in world.step_log.get(mine.uuid, ()))


def _to_earlier_candidate(world: World, message: Recorded) -> bool:
    """Return whether a rollback was sent to a candidate that is not the destination."""
    migration = world.migrations.get(message.migration_uuid or '')
    return migration is not None and message.method == ROLLBACK[1] and _host_of(message) != migration.dest_compute


def _host_of(message: Recorded) -> str:
    return message.target.partition('.')[2]


def _too_early(world: World, message: Recorded) -> Iterator[str]:
    migration = world.migrations.get(message.migration_uuid or '')
    host = world.hosts.get(_host_of(message))
    if migration is None or host is None:
        return
    unsettled = migration.in_progress and migration.outcome is None and migration.abandon_requested_at is None
    if message.method == ROLLBACK[1] and unsettled:
        # An earlier candidate is rolled back before the migration has its final destination.
        if host.name == migration.dest_compute and world.record(migration, 'live_migration') is not None:
            yield f'migration {migration.uuid}: {message.method} was sent before the migration was settled'
    elif message.method == POST[0] and host.alive and migration.instance_uuid in host.jobs:
        # A message to a service that is down has no effect.
        yield f'migration {migration.uuid}: {message.method} was sent while {host.name} had a job'


def _abandoned(world: World, uuid: str) -> bool:
    migration = world.migrations.get(uuid)
    return migration is not None and migration.abandon_requested_at is not None


def legal(world: World) -> Iterator[str]:
    """I14, always: every change of status is legal and written by the owner of the current epoch.

    An end is final. An ended migration is not stuck. All entries of one epoch have the same writer. Neither time nor
    epoch decreases. An outcome never changes.
    """
    for migration in world.migrations.values():
        history = world.histories[migration.uuid]
        yield from (f'migration {migration.uuid}: {what}' for what in _illegal(migration, history))
        before = world.before.get(migration.uuid)
        if before is not None:
            known = world.histories_before.get(migration.uuid, ())
            changes = _illegal_since(before, migration, known, history)
            yield from (f'migration {migration.uuid}: {what}' for what in changes)


def _illegal(migration: Migration, history: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not history:
        return  # the row is older than the column
    if history[0]['status'] != MigrationStatus.ACCEPTED:
        yield f'its first status was {history[0]["status"]}'
    if history[-1]['status'] != migration.status:
        yield f'its status is {migration.status}, but its last entry is {history[-1]["status"]}'
    for old, new in itertools.pairwise(history):
        move = (old['status'], new['status'])
        if move not in LEGAL_MOVES:
            yield f'{move[0]} -> {move[1]} is not a legal move'
        if new['epoch'] < old['epoch']:
            yield f'{move[0]} -> {move[1]}: the epoch decreased from {old["epoch"]} to {new["epoch"]}'
        if new['epoch'] == old['epoch'] and new['owner'] != old['owner']:
            yield f'{move[0]} -> {move[1]}: two owners wrote in epoch {new["epoch"]}'
        if datetime.datetime.fromisoformat(new['at']) < datetime.datetime.fromisoformat(old['at']):
            yield f'{move[0]} -> {move[1]}: the time decreased'
    if history[-1]['epoch'] > migration.epoch:
        yield f'its last status was written in epoch {history[-1]["epoch"]}, but its epoch is {migration.epoch}'
    if migration.ended and migration.stuck_reason is not None:
        yield 'it has ended and is stuck'


def _illegal_since(
    before: Migration, migration: Migration, known: Sequence[Mapping[str, Any]], history: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    if migration.epoch < before.epoch:
        yield f'its epoch decreased from {before.epoch} to {migration.epoch}'
    if before.outcome is not None and migration.outcome != before.outcome:
        yield f'its outcome changed from {before.outcome} to {migration.outcome}'
    if list(history[: len(known)]) != list(known):
        yield 'its history was rewritten'
    new = history[len(known) :]
    if before.status != migration.status and not new:
        yield f'{before.status} -> {migration.status} is not in its history'
    if new and (new[-1]['owner'], new[-1]['epoch']) != (migration.owner, migration.epoch):
        yield f'{new[-1]["owner"]} wrote {migration.status} in epoch {new[-1]["epoch"]}, and is not its owner'


def _task_states(migration: Migration) -> tuple[str | None, ...]:
    return cold_migrations.task_states(migration) if migration.is_cold else (TASK_STATES[migration.migration_type],)


def task_state(world: World) -> Iterator[str]:
    """I15, always: an instance has a migration's task_state exactly while one is in progress.

    An instance has at most one migration in progress. The task_state is ``migrating``, or ``rebuilding`` for an
    evacuation. During a cold migration it follows the status, and is None while a user has to decide; the vm_state is
    ``resized`` exactly from then on until the end. The unique column agrees with it.
    """
    for instance in world.instances.values():
        open_ = world.in_progress(instance.uuid)
        if len(open_) > 1:
            yield f'instance {instance.uuid} has {len(open_)} migrations in progress'
        wanted = _task_states(open_[0]) if open_ else ()
        wrong = instance.task_state not in wanted if open_ else instance.task_state in _OF_MIGRATIONS
        if wrong:
            must = ' or '.join(map(str, wanted)) or None
            yield f'instance {instance.uuid} has task_state {instance.task_state}, but must have {must}'
        if (instance.vm_state == RESIZED) != any(cold_migrations.is_resized(one) for one in open_):
            status = open_[0].status if open_ else 'no migration'
            yield f'instance {instance.uuid} has vm_state {instance.vm_state} during {status}'
    for migration in world.migrations.values():
        # The reader looks up the marks by instance.
        known = migration.instance_uuid in world.instances
        if known and migration.in_progress != (migration.uuid in world.marked):
            marked = 'is' if migration.uuid in world.marked else 'is not'
            yield f'migration {migration.uuid} is {migration.status}, but {marked} marked as in progress'
