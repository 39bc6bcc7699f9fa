# SPDX-License-Identifier: Apache-2.0
"""What must be true when faults have stopped and the bound has passed: from a world to what is wrong in it."""

from __future__ import annotations

from collections.abc import Iterator

from migrator.objects import GuestState, Instance, MigrationStatus
from migrator.simulator.reader import Host
from migrator.simulator.world import World
from migrator.virt.fake import hypervisor

_S = MigrationStatus

#: nova's number of a power state -> what a driver says of such a guest.
POWER = {1: GuestState.RUNNING.value, 3: GuestState.PAUSED.value, 4: GuestState.SHUTDOWN.value}
#: The guest itself is not on a host that says this of it.
_NOT_HERE = (GuestState.WAITING, GuestState.ABSENT)
#: What belongs to a guest that is where it belongs.
_OWN_PARTS = frozenset({*hypervisor.PARTS[:2], 'guest'})


def _settled(world: World) -> Iterator[Instance]:
    """Return the instances of which everything must be in order: nothing in progress, and the last end no error."""
    for instance in world.instances.values():
        migration = world.newest(instance.uuid)
        if migration is None or (migration.ended and migration.status != _S.ERROR):
            yield instance


def power(world: World) -> Iterator[str]:
    """I1, quiet: the copy on ``instance.host`` is in the power state that the row says, unless it ended ``error``.

    Where the guest's user (or the loss of power) has changed it since it was started, in that state: nobody tells the
    row of it. And no migration but one that ended ``error`` has made the row say that it is in error.
    """
    for instance in _settled(world):
        if instance.vm_state == 'error' and world.newest(instance.uuid) is not None:
            yield f'instance {instance.uuid} is in error, and its last migration is not'
        host = world.hosts.get(instance.host)
        guest = host.guests.get(instance.uuid) if host is not None else None
        if guest is None or guest.state in _NOT_HERE:
            continue  # that is I2
        wanted = _set_from_outside(world, instance) or POWER.get(instance.power_state, guest.state)
        # What could not be restored, for its service is down, still is to be.
        waits = guest.state == GuestState.CUTOVER and world.is_down(instance.host)
        if guest.state != wanted and not (waits and world.owes(instance.host, instance.uuid)):
            yield f'instance {instance.uuid} is {guest.state} at {instance.host}, and ought to be {wanted}'


def _set_from_outside(world: World, instance: Instance) -> str | None:
    # The loss of power elsewhere is that of a copy which has been left behind.
    states = [
        effect.effect
        for effect in world.effects
        if effect.instance_uuid == instance.uuid
        and (effect.who == 'user' or (effect.who == 'power' and effect.host == instance.host))
        and effect.effect in POWER.values()
    ]
    # The first is its start.
    return states[-1] if len(states) > 1 else None


def where(world: World) -> Iterator[str]:
    """I2, quiet: ``instance.host`` is where the guest is, and its node is that host's, unless it ended ``error``."""
    for instance in _settled(world):
        host, node = world.hosts.get(instance.host), world.nodes.get(instance.host)
        if node is not None and instance.node != node.node:
            yield f'instance {instance.uuid} is said to be at {instance.host}, on node {instance.node}'
        guest = host.guests.get(instance.uuid) if host is not None else None
        if guest is None or guest.state in _NOT_HERE:
            found = [one.name for one in world.hosts.values() if instance.uuid in one.parts]
            really = ' and '.join(found) or 'no host'
            yield f'instance {instance.uuid} is said to be at {instance.host}, and is at {really}'


def books(world: World) -> Iterator[str]:
    """I3, quiet: the instance's allocation is exactly its flavor on its host, and nobody else holds anything.

    Every consumer in Placement is an instance or a migration in progress. Left out: how a flavor with numbered groups
    is spread over a host's tree, and sharing providers.
    """
    for instance in world.instances.values():
        if world.in_progress(instance.uuid):
            continue
        held = world.held(instance.uuid)
        wanted = instance.flavor.resources()
        total = {name: sum(one.get(name, 0) for one in held.values()) for name in {*wanted, *_names(held)}}
        if total != wanted or held.keys() - world.tree(instance.host):
            where_ = ', '.join(sorted(world.providers[uuid].name for uuid in held)) or 'no provider'
            yield f'instance {instance.uuid} holds {total} on {where_}, and not {wanted} on {instance.host}'
    reasons = {*world.instances, *(one.uuid for one in world.migrations.values() if one.in_progress)}
    for provider in world.providers.values():
        for consumer, amounts in provider.holders.items():
            if consumer not in reasons:
                known = world.migrations.get(consumer)
                who = f'migration {consumer}, which is {known.status},' if known else f'{consumer}, which is nothing,'
                yield f'{who} holds {amounts} on {provider.name}'


def _names(held: dict[str, dict[str, int]]) -> set[str]:
    return {name for amounts in held.values() for name in amounts}


def ends(world: World) -> Iterator[str]:
    """I7, quiet: every accepted migration has ended, and waits for nothing; or it is stuck and says why.

    How long it may take, and which end the death of which host asks for, is for who knows the faults to say.
    """
    for migration in world.migrations.values():
        if migration.in_progress and not migration.stuck_reason:
            waits = f' and waits for {migration.waits_for}' if migration.waits_for else ''
            yield f'migration {migration.uuid} is {migration.status}{waits}: it has not ended, and is not stuck'
        if migration.ended and migration.waits_for:
            yield f'migration {migration.uuid} has ended {migration.status}, and waits for {migration.waits_for}'


def no_debris(world: World) -> Iterator[str]:
    """I18, quiet: rolled back, nothing of the guest at the destination; completed, nothing at the source.

    Or a debt says so, which is paid when its host is up, or has an alarm. At every host that any of the instance's
    migrations has named or tried. And at its own host there is nothing of a move left but the guest, which would
    survive a restart.
    """
    for cleanup in world.cleanups:
        if cleanup.alarm is None and cleanup.host in world.hosts and world.hosts[cleanup.host].alive:
            # A migration of the guest that is stuck has it in hand.
            if not world.is_down(cleanup.host) and not world.in_progress(cleanup.instance_uuid):
                yield f'{cleanup.host} is up, and still owes {cleanup.step} for migration {cleanup.migration_uuid}'
    for uuid in dict.fromkeys(one.instance_uuid for one in world.migrations.values()):
        newest = world.newest(uuid)
        if newest is None or newest.in_progress or newest.status == _S.ERROR:
            continue
        at_home = newest.dest_compute if newest.status == _S.COMPLETED else newest.source_compute
        if uuid in world.instances:
            at_home = world.instances[uuid].host
        for name in sorted(_parties(world, uuid)):
            host = world.hosts.get(name)
            if host is None or world.owes(name, uuid):
                continue
            parts = set(host.parts.get(uuid, ()))
            left = parts - _OWN_PARTS if name == at_home else parts
            if left:
                yield f'{name} still has {", ".join(sorted(left))} of instance {uuid}'
            if name == at_home and not _persists(host, uuid):
                yield f'instance {uuid} would not survive a restart of {name}'


def _persists(host: Host, uuid: str) -> bool:
    guest = host.guests.get(uuid)
    return guest is None or not guest.present or uuid in host.persistent


def _parties(world: World, instance_uuid: str) -> set[str]:
    """Return the hosts that an instance's migrations have named or tried."""
    found: set[str] = set()
    for migration in world.migrations.values():
        if migration.instance_uuid == instance_uuid:
            inputs = [record.input or {} for record in world.journal[migration.uuid]]
            found |= {migration.source_compute, *(str(one['host']) for one in inputs if 'host' in one)}
            if migration.dest_compute:
                found.add(migration.dest_compute)
    return found
