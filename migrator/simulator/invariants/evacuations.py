# SPDX-License-Identifier: Apache-2.0

"""The parts of invariants that concern evacuations.

Each function yields the violations in a world, for the invariant of that name in another module.
"""

from __future__ import annotations

from collections.abc import Iterator

from migrator.objects import Migration, MigrationStatus
from migrator.objects.migration import AbortCause
from migrator.placement_client import allocation_state
from migrator.simulator.world import World

_S = MigrationStatus

#: The requester of the abort of an evacuation whose source was started before the guest could be started elsewhere.
#: The step that may end an active copy of a guest that was evacuated.
CLEANUP = 'post_evacuation_at_source'


def left_behind(world: World, instance_uuid: str) -> set[str]:
    """Return the hosts whose copy of a guest may be active although the guest was evacuated from there.

    They are exempt from I1 from the committed intent to start the guest elsewhere until their cleanup is done: an
    operator has declared them dead. So are those that the evacuation could not ask.
    """
    found = {one.host for one in world.cleanups if (one.instance_uuid, one.step) == (instance_uuid, CLEANUP)}
    found |= not_asked(world, instance_uuid)
    for migration in world.in_progress(instance_uuid):
        if migration.is_evacuation and was_intended(world, migration):
            found.add(migration.source_compute)
    return found


def not_asked(world: World, instance_uuid: str) -> set[str]:
    """Return the hosts that did not list their guests when a guest was evacuated or reverted.

    They are exempt from I1 too: nothing that is on record had shown the guest there.
    """
    records = [
        record
        for row in world.migrations.values()
        if row.instance_uuid == instance_uuid
        for record in world.step_log.get(row.uuid, ())
        if record.input
    ]
    return {host for record in records for host in (record.input or {}).get('not_asked', ())}


def was_intended(world: World, migration: Migration) -> bool:
    """Return whether the start of the guest was intended in any attempt."""
    return any(record.step == 'evacuate' for record in world.step_log.get(migration.uuid, ()))


def was_started(world: World, migration: Migration) -> bool:
    """Return whether a driver of the destination has defined or started the guest."""
    wanted = ('evacuated', migration.instance_uuid, migration.dest_compute)
    return any((effect.effect, effect.instance_uuid, effect.host) == wanted for effect in world.effects)


def during(world: World) -> Iterator[str]:
    """Yield the evacuations that are done and do not hold the source's allocation until it has cleaned up."""
    for migration in world.migrations.values():
        moved, held = world.record(migration, 'move_allocation'), world.record(migration, 'hold_source_allocation')
        if migration.status != _S.DONE or moved is None or not moved.input or _was_deleted(world, migration):
            continue
        if not _has_cleanup(world, migration) or 'skipped' in ((held.result if held else None) or {}):
            continue
        mine, wanted = world.held(migration.uuid), allocation_state.normal(moved.input['source'])
        if mine != wanted:
            yield f'evacuation {migration.uuid} is done and must hold {wanted}, but it holds {mine}'


def one_way(world: World) -> Iterator[str]:
    """Yield the evacuations that intended to start their guest after their source had been started."""
    for migration in world.migrations.values():
        asked, queued = migration.abort_requested_at, migration.queued_at
        if migration.is_evacuation and migration.abort_cause == AbortCause.HOST_START and asked and queued:
            if queued > asked:
                yield f'evacuation {migration.uuid} intended the start of its guest after its source was started'


def no_debris(world: World) -> Iterator[str]:
    """Yield the evacuations that are done, although their source has or could have cleaned up.

    A cleanup may wait while its source, or the host that has the guest now, is down. The host
    of the guest has to report the guest before an active copy is ended. A blocked cleanup waits for an operator.
    """
    for migration in world.migrations.values():
        if migration.status != _S.DONE:
            continue
        if not _has_cleanup(world, migration):
            yield f'evacuation {migration.uuid} is {migration.status}, but its source has no cleanup left'
            continue
        blocked = any(one.blocked_because for one in world.cleanups if one.migration_uuid == migration.uuid)
        instance = world.instances.get(migration.instance_uuid)
        hosts = [migration.source_compute, *([instance.host] if instance is not None else [])]
        if (
            not blocked
            and all(_serves(world, host) for host in hosts)
            and not world.in_progress(migration.instance_uuid)
        ):
            yield f'evacuation {migration.uuid} is {migration.status}, and {hosts[0]} is up, but has not cleaned up'


def _was_deleted(world: World, migration: Migration) -> bool:
    """Return whether the instance was deleted since, which released the allocation, or is being deleted."""
    instance = world.instances.get(migration.instance_uuid)
    if instance is None or instance.task_state == 'deleting' or not instance.created_at or not migration.created_at:
        return True
    return instance.created_at > migration.created_at


def _has_cleanup(world: World, migration: Migration) -> bool:
    return any((one.migration_uuid, one.host) == (migration.uuid, migration.source_compute) for one in world.cleanups)


def _serves(world: World, host: str) -> bool:
    """Return whether a host has its power and a compute service that is registered."""
    found = world.hosts.get(host)
    return found is not None and found.powered and found.alive and any(one.host == host for one in world.services)
