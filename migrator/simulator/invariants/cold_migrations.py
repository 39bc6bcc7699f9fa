# SPDX-License-Identifier: Apache-2.0

"""The parts of invariants that concern cold migrations.

Each function is used by the invariant of that name in another module.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from migrator.db.actions import REVERTING
from migrator.objects import ARRIVED, Flavor, GuestState, Instance, Migration, MigrationStatus, Strategy, steps
from migrator.placement_client.allocation_state import PairState
from migrator.saga import log
from migrator.simulator.world import World
from migrator.testing.hypervisor import hypervisor

_S = MigrationStatus

#: The effects with which a guest gets the state that the database has, whatever it was before.
_STARTS = ('migrated', 'restored', 'resized')
#: The commands that remove what a revert needs.
_CONFIRMS = ('confirm_migration_at_source', 'confirm_resize')
#: The task_state before the guest has arrived.
_RESIZING = {
    _S.ACCEPTED: ('resize_prep',),
    _S.PRE_MIGRATING: ('resize_prep',),
    _S.MIGRATING: ('resize_migrating',),
    _S.CONFIRMING: (None,),
    _S.REVERTING: (REVERTING,),
}


def restarts(world: World, instance: Instance) -> list[tuple[hypervisor.Effect, bool]]:
    """Return each effect on a guest, and whether a cold migration started or stopped the guest with it.

    After such an effect the guest has the state of the row. A guest that an evacuation defines shut off does not count,
    whether the evacuation has started it or failed before.
    """
    found: list[tuple[hypervisor.Effect, bool]] = []
    evacuated_at = last = None
    for effect in world.effects:
        if effect.instance_uuid == instance.uuid:
            by_driver = effect.who not in ('user', 'power', 'hypervisor') and effect.host != evacuated_at
            off = by_driver and effect.effect == GuestState.SHUTDOWN and effect.host == last
            found.append((effect, effect.effect in _STARTS or off))
            last = effect.host if effect.effect != 'removed' else last
            evacuated_at = effect.host if effect.effect == 'evacuated' else None
    return found


def power(world: World, instance: Instance, evacuated_to: Collection[str | None]) -> str | None:
    """Return the state in which a cold migration has left a guest, or None without one.

    :param evacuated_to: the hosts that have started the guest in an evacuation; None too if that was later.
    """
    effects = restarts(world, instance)
    starts = [
        (number, restarted)
        for number, (one, restarted) in enumerate(effects)
        if restarted or (one.effect == 'evacuated' and one.host in evacuated_to)
    ]
    if not starts or not starts[-1][1]:
        return None
    before, last = (effects[number][0] for number in (starts[-1][0] - 1, starts[-1][0]))
    if (before.effect, last.effect, last.host) == ('migrated', GuestState.SHUTDOWN, before.host):
        return GuestState.SHUTDOWN  # its source had found it shut off, whatever the row says
    return GuestState.SHUTDOWN if instance.vm_state == 'stopped' else GuestState.RUNNING


def left_behind(world: World, instance_uuid: str) -> set[str]:
    """Return the hosts whose copy of a guest may be active although the guest was reverted.

    They are exempt from I1 until their cleanup is done: an operator has declared them dead.
    """
    wanted = (instance_uuid, steps.AFTER_REVERT)
    fenced = {one.host for one in world.services if one.forced_down}
    return {one.host for one in world.cleanups if (one.instance_uuid, one.step) == wanted and one.host in fenced}


def is_resized(migration: Migration) -> bool:
    """Return whether the instance of a migration in progress is ``resized``: its guest has arrived."""
    return migration.is_cold and migration.status in ARRIVED


def is_back(world: World, migration: Migration) -> bool:
    """Return whether a revert has set the instance's host to the source again."""
    return world.record(migration, 'return_instance_host') is not None


def right_pairs(world: World, migration: Migration) -> set[PairState] | None:
    """Return the states of the allocations that a revert allows, or None if it has not returned them yet."""
    returned = world.record(migration, 'return_source_allocation')
    if returned is None:
        return None
    done = returned.state == log.StepState.DONE
    return {PairState.NOT_MOVED} if done else {PairState.NOT_MOVED, PairState.MOVED}


def is_restored_later(world: World, instance: Instance) -> bool:
    """Return whether the host of an instance still has to start the guest that it has powered off."""
    wanted = (instance.host, instance.uuid)
    mine = {one.step for one in world.cleanups if (one.host, one.instance_uuid) == wanted}
    return not mine.isdisjoint(('revert_migration_at_source', 'revert_resize'))


def task_states(migration: Migration) -> tuple[str | None, ...]:
    """Return the task_states that an instance may have during its migration."""
    if migration.status == _S.FINISHED:
        return (REVERTING,) if migration.revert_requested_at is not None else (None,)
    return _RESIZING[_S(migration.status)]


def location(world: World, migration: Migration) -> Iterator[str]:
    """Yield what is wrong after the outcome forward: no start, or a guest that runs at the source."""
    if migration.stays:
        yield from _resized_here(world, migration)
        return
    wanted = ('migrated', migration.instance_uuid, migration.dest_compute)
    if not any((one.effect, one.instance_uuid, one.host) == wanted for one in world.effects):
        yield f'migration {migration.uuid} went forward, but {migration.dest_compute} has not started the guest'
    source = world.hosts.get(migration.source_compute)
    guest = source.guests.get(migration.instance_uuid) if source is not None else None
    runs = guest is not None and guest.state in hypervisor.OWNING
    if runs and world.record(migration, 'revert_migration_at_source') is None:
        yield f'migration {migration.uuid} went forward, but {migration.source_compute} runs the guest'


def flavors(world: World) -> Iterator[str]:
    """Yield the instances with the flavor of the other side of their resize, and wrong amounts.

    While a resize waits for its user, each consumer holds the amounts of one flavor. With doubled allocations the
    instance holds both.
    """
    for instance in world.instances.values():
        migration = world.newest(instance.uuid)
        if migration is None or migration.old_flavor is None or migration.new_flavor is None:
            continue
        # I2 has the right host.
        right = migration.old_flavor if migration.has_old_flavor(instance.host) else migration.new_flavor
        if instance.flavor != right:
            yield f'instance {instance.uuid} has flavor {instance.flavor.name} on {instance.host}, not {right.name}'
        waits = migration.confirm_requested_at is None and migration.revert_requested_at is None
        if migration.status == _S.FINISHED and waits and migration.abandon_requested_at is None:
            old, new = migration.old_flavor, migration.new_flavor
            is_owned = migration.strategy == Strategy.MIGRATION_OWNED
            wanted = {instance.uuid: [new], migration.uuid: [old]} if is_owned else {instance.uuid: [old, new]}
            for uuid, flavors_ in wanted.items():
                held = [*world.held(uuid).values()]
                legal = itertools.product(*(flavor.request.totals for flavor in flavors_))
                if all(sorted(map(repr, held)) != sorted(map(repr, one)) for one in legal):
                    names = ' and '.join(flavor.name for flavor in flavors_)
                    yield f'consumer {uuid} holds {world.held(uuid)}, not the amounts of flavor {names}'


def _resized_here(world: World, migration: Migration) -> Iterator[str]:
    """Yield that an undecided guest that stays has not its new size, or has lost the old one.

    Only the host itself knows that.
    """
    host = world.hosts.get(migration.source_compute)
    if host is None or migration.instance_uuid not in host.sizes or migration.abandon_requested_at is not None:
        return
    if world.record(migration, 'confirm_resize') is None and world.record(migration, 'revert_resize') is None:
        found = (host.sizes[migration.instance_uuid], host.resizing.get(migration.instance_uuid))
        wanted = (_size(migration.new_flavor), (migration.uuid, _size(migration.old_flavor)))
        if found != wanted:
            yield f'migration {migration.uuid} went forward, but its guest has {found}, not {wanted}'


def _size(flavor: Flavor | None) -> tuple[int, int, int] | None:
    return None if flavor is None else hypervisor.size_of(flavor)


def size(world: World, instance: Instance) -> Iterator[str]:
    """Yield that a guest without a migration has not the size of its flavor, or keeps another one."""
    host = world.hosts.get(instance.host)
    found = host.sizes.get(instance.uuid) if host is not None else None
    if host is None or found is None or world.has_cleanup(instance.host, instance.uuid):
        return
    if found != _size(instance.flavor):
        yield f'guest {instance.uuid} has {found} at {host.name}, not the size of flavor {instance.flavor.name}'
    if instance.uuid in host.resizing:
        yield f'guest {instance.uuid} at {host.name} is still being resized: {host.resizing[instance.uuid]}'


def one_way(world: World) -> Iterator[str]:
    """Yield the migrations that were confirmed and reverted, or confirmed without a request."""
    for uuid, records in world.step_log.items():
        names = {record.step for record in records if record.direction == log.DO}
        both = ({'confirm_migration_at_source', 'revert_migration_at_destination'}, {'confirm_resize', 'revert_resize'})
        if any(each <= names for each in both):
            yield f'migration {uuid} was confirmed and reverted'
    for message in world.messages:
        migration = world.migrations.get(message.migration_uuid or '')
        if message.kind == 'call' and migration is not None and message.method in _CONFIRMS:
            # Before its own resize, a migration runs the deferred cleanup of an earlier one at its source.
            is_ours = message.method != 'confirm_resize' or world.record(migration, 'resize') is not None
            if is_ours and migration.confirm_requested_at is None and migration.abandon_requested_at is None:
                yield f'migration {migration.uuid}: {message.method} was sent, but no user has confirmed it'
