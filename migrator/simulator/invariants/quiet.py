# SPDX-License-Identifier: Apache-2.0

"""Invariants that hold after faults have stopped and the time bound has passed.

Each function yields the violations in a world.
"""

from __future__ import annotations

from collections.abc import Iterator

from migrator.db.slots import used_by
from migrator.objects import FINAL, GuestState, Instance, MigrationStatus, Outcome
from migrator.simulator.invariants import cold_migrations, evacuations
from migrator.simulator.invariants.hosts import awaited
from migrator.simulator.reader import Host
from migrator.simulator.world import World
from migrator.testing.hypervisor import hypervisor

_S = MigrationStatus

#: Number of a power state in nova -> the state that a driver reports for such a guest.
POWER = {1: GuestState.RUNNING.value, 3: GuestState.PAUSED.value, 4: GuestState.SHUTDOWN.value}
#: The reported states of a guest that is not on the host itself.
_NOT_HERE = (GuestState.WAITING, GuestState.ABSENT)
#: The parts that a guest may have on its own host.
_OWN_PARTS = frozenset({*hypervisor.PARTS[:2], 'guest'})


def _settled(world: World) -> Iterator[Instance]:
    """Yield the instances without a migration in progress whose newest migration did not end in error.

    A migration that failed after such an error, such as the evacuation of a guest in error, has changed nothing.
    """
    for instance in world.instances.values():
        newest = world.newest(instance.uuid)
        if newest is None:
            yield instance
        elif newest.ended and newest.status != _S.ERROR:
            if instance.vm_state != 'error' or _decisive(world, instance) != _S.ERROR:
                yield instance


def _decisive(world: World, instance: Instance) -> str | None:
    """Return the status of an instance's newest migration that neither failed nor was cancelled."""
    mine = [one.status for one in world.migrations.values() if one.instance_uuid == instance.uuid]
    return next((one for one in reversed(mine) if one not in (_S.FAILED, _S.CANCELLED)), None)


def power(world: World) -> Iterator[str]:
    """I1, quiet: the copy on ``instance.host`` has the power state of the row, unless it ended ``error``.

    If the guest's user or a loss of power has changed the state since the start, the copy has that state: the row does
    not follow such changes. An evacuation starts the guest in the state of the row, and a cold migration in that of the
    row's vm_state. The row's vm_state is ``error`` only after a migration that ended ``error``.
    """
    for instance in _settled(world):
        if instance.vm_state == 'error' and world.newest(instance.uuid) is not None:
            yield f'instance {instance.uuid} is in error, but its last migration is not'
        host = world.hosts.get(instance.host)
        guest = host.guests.get(instance.uuid) if host is not None else None
        if guest is None or guest.state in _NOT_HERE:
            continue  # I2 reports a missing guest
        evacuated_to = _evacuated_to(world, instance)
        wanted = _set_from_outside(world, instance, evacuated_to)
        wanted = wanted or cold_migrations.power(world, instance, evacuated_to)
        wanted = wanted or POWER.get(instance.power_state, guest.state)
        # A guest on a host that is down cannot be restored before the host is back.
        restores = guest.state == GuestState.CUTOVER or cold_migrations.is_restored_later(world, instance)
        waits = restores and world.is_down(instance.host)
        if guest.state != wanted and not (waits and world.has_cleanup(instance.host, instance.uuid)):
            yield f'instance {instance.uuid} is {guest.state} at {instance.host}, but must be {wanted}'


def _evacuated_to(world: World, instance: Instance) -> set[str | None]:
    return {
        one.dest_compute
        for one in world.migrations.values()
        if one.is_evacuation and one.instance_uuid == instance.uuid and one.outcome == Outcome.FORWARD
    }


def _set_from_outside(world: World, instance: Instance, evacuated_to: set[str | None]) -> str | None:
    states: list[str] = []
    last = None
    known = 1  # The first effect is the start of the guest.
    for effect, restarted in cold_migrations.restarts(world, instance):
        started = effect.effect == 'evacuated' and effect.host in evacuated_to
        if started or restarted:
            states, known = [], 0
        elif effect.effect not in POWER.values():
            continue
        elif effect.who == 'user' or (effect.who == 'power' and effect.host == last):
            # A loss of power on another host than the guest's affects only a copy that was left behind there.
            states.append(effect.effect)
        if effect.who != 'power':
            last = effect.host
    return states[-1] if len(states) > known else None


def where(world: World) -> Iterator[str]:
    """I2, quiet: the guest is on ``instance.host``, and the instance's node is that host's node.

    The guest has the size of the instance's flavor, and keeps no other one.

    Instances whose migration ended ``error`` are not checked.
    """
    for instance in _settled(world):
        host, node = world.hosts.get(instance.host), world.nodes.get(instance.host)
        if node is not None and instance.node != node.node:
            yield f'the host of instance {instance.uuid} is {instance.host}, but its node is {instance.node}'
        guest = host.guests.get(instance.uuid) if host is not None else None
        if guest is None or guest.state in _NOT_HERE:
            found = [one.name for one in world.hosts.values() if instance.uuid in one.parts]
            really = ' and '.join(found) or 'no host'
            yield f'the host of instance {instance.uuid} is {instance.host}, but the guest is at {really}'
        else:
            yield from cold_migrations.size(world, instance)


def allocations(world: World) -> Iterator[str]:
    """I3, quiet: an instance holds exactly its flavor on its host, and no other consumer holds anything.

    Every consumer in Placement is an instance, a migration in progress, or an evacuation that is done. Not checked: the
    distribution of a flavor with numbered groups over a host's tree, and sharing providers.
    """
    for instance in world.instances.values():
        if world.in_progress(instance.uuid):
            continue
        held = world.held(instance.uuid)
        wanted = instance.flavor.resources()
        total = {name: sum(one.get(name, 0) for one in held.values()) for name in _names(held)}
        if total not in instance.flavor.request.totals or held.keys() - world.tree(instance.host):
            where_ = ', '.join(sorted(world.providers[uuid].name for uuid in held)) or 'no provider'
            yield f'instance {instance.uuid} holds {total} on {where_}, but must hold {wanted} on {instance.host}'
    reasons = {*world.instances, *(one.uuid for one in world.migrations.values() if one.status not in FINAL)}
    for provider in world.providers.values():
        for consumer, amounts in provider.holders.items():
            if consumer not in reasons:
                known = world.migrations.get(consumer)
                holder = f'migration {consumer}, which is {known.status},' if known else f'unknown consumer {consumer}'
                yield f'{holder} holds {amounts} on {provider.name}'


def _names(held: dict[str, dict[str, int]]) -> set[str]:
    return {name for amounts in held.values() for name in amounts}


def ends(world: World) -> Iterator[str]:
    """I7, quiet: every accepted migration has ended and waits for nothing, or it is stuck with a reason.

    One that waits for a slot which a stuck migration has may go on waiting. A test that knows the faults checks the
    duration and the right end.
    """
    stuck = [one for one in world.migrations.values() if one.in_progress and one.stuck_reason]
    kept = {axis for one in stuck for axis in used_by(one)}
    for migration in world.migrations.values():
        if awaited(world, migration, kept):
            continue
        if migration.in_progress and not migration.stuck_reason:
            waits = f' and waits for {migration.waits_for}' if migration.waits_for else ''
            yield f'migration {migration.uuid} is {migration.status}{waits}: it has neither ended nor is it stuck'
        if migration.ended and migration.waits_for:
            yield f'migration {migration.uuid} has ended {migration.status}, but waits for {migration.waits_for}'


def no_debris(world: World) -> Iterator[str]:
    """I18, quiet: after a rollback or a completion no other host has any part of the guest.

    After a rollback the other host is the destination, and after a completion it is the source.

    - A host with a deferred cleanup of the guest is exempt. The cleanup is done when its host is up, or it is blocked.
    - All hosts that the instance's migrations have named or tried are checked.
    - An evacuation is completed once its source has cleaned up.
    - The guest's own host has only the guest and the parts that it always has. The guest survives a restart.
    """
    for cleanup in world.cleanups:
        if cleanup.step == evacuations.CLEANUP:
            continue
        if cleanup.blocked_because is None and cleanup.host in world.hosts and world.hosts[cleanup.host].alive:
            # A stuck migration of the guest runs the cleanup itself.
            if not world.is_down(cleanup.host) and not world.in_progress(cleanup.instance_uuid):
                yield f'{cleanup.host} is up, but has not done {cleanup.step} of migration {cleanup.migration_uuid}'
    for uuid in dict.fromkeys(one.instance_uuid for one in world.migrations.values()):
        newest = world.newest(uuid)
        if newest is None or newest.in_progress or newest.status == _S.ERROR:
            continue
        arrived = newest.status in (_S.DONE, _S.COMPLETED, _S.CONFIRMED)
        at_home = newest.dest_compute if arrived else newest.source_compute
        if uuid in world.instances:
            at_home = world.instances[uuid].host
        for name in sorted(_parties(world, uuid)):
            host = world.hosts.get(name)
            if host is None or world.has_cleanup(name, uuid):
                continue
            parts = set(host.parts.get(uuid, ()))
            left = parts - _OWN_PARTS if name == at_home else parts
            if left:
                yield f'{name} still has {", ".join(sorted(left))} of instance {uuid}'
            if name == at_home and not _persists(host, uuid):
                yield f'instance {uuid} does not survive a restart of {name}'
    yield from evacuations.no_debris(world)


def _persists(host: Host, uuid: str) -> bool:
    guest = host.guests.get(uuid)
    return guest is None or not guest.present or uuid in host.persistent


def _parties(world: World, instance_uuid: str) -> set[str]:
    """Return the hosts that the instance's migrations have named or tried."""
    found: set[str] = set()
    for migration in world.migrations.values():
        if migration.instance_uuid == instance_uuid:
            inputs = [record.input or {} for record in world.step_log[migration.uuid]]
            found |= {migration.source_compute, *(str(one['host']) for one in inputs if 'host' in one)}
            if migration.dest_compute:
                found.add(migration.dest_compute)
    return found
