# SPDX-License-Identifier: Apache-2.0

"""Invariants of queues, epochs and messages.

Each function yields the violations in a world.
"""

from __future__ import annotations

import collections
import datetime
import math
from collections.abc import Collection, Iterator

from migrator.db.slots import CLUSTER, Axis, into, out_of
from migrator.objects import ARRIVED, Migration, MigrationStatus
from migrator.objects.migration import AbortCause
from migrator.simulator.world import World
from migrator.testing.rpc import compute_to_compute

#: The requester of the abort of a migration that a planned stop has cancelled.


def bound(world: World) -> Iterator[str]:
    """I10, always: no job starts while the host's running jobs, with inherited ones, reach the limit.

    This check uses the log of effects and the present limit. A :class:`~migrator.simulator.monitor.Monitor` uses the
    limit at the start of the job, and checks that starts have the order of the requests, too.
    """
    running: collections.Counter[str] = collections.Counter()
    for effect in world.effects:
        if effect.effect == 'job started':
            host = world.hosts[effect.host]
            running[effect.host] += 1
            if host.alive and running[effect.host] > host.limit:
                yield (
                    f'{effect.host} started the job of {effect.instance_uuid} as number {running[effect.host]}, '
                    f'its limit is {host.limit}'
                )
        elif effect.effect.startswith('job '):
            running[effect.host] -= 1


def slots(world: World) -> Iterator[str]:
    """I23, always: no destination is chosen beyond the bounds on destinations, the cluster and sources.

    A bound that was lowered takes no slot away, so only the migrations that got their destination since the last look
    are checked, against the highest bounds so far.
    """
    if not world.before or not world.bounds or not all(world.bounds):
        return
    held = {uuid: one for uuid, one in world.migrations.items() if one.in_progress and _is_admitted(one)}
    for uuid, one in held.items():
        before = world.before.get(uuid)
        if before is None or one.dest_node is None or before.dest_node == one.dest_node:
            continue
        inbound = max((bounds.inbound or math.inf) for bounds in world.bounds)
        open_ = [other for other in held.values() if other.dest_node and other.status not in ARRIVED]
        coming = [other for other in open_ if other.dest_compute == one.dest_compute]
        if len(coming) > inbound:
            yield f'{uuid} is number {len(coming)} to {one.dest_compute}, the bound is {inbound}'
        if not one.is_live or _is_admitted(before):
            continue
        live = [other for other in held.values() if other.is_live]
        cluster = max((bounds.cluster or math.inf) for bounds in world.bounds)
        if len(live) > cluster:
            yield f'{uuid} is number {len(live)} of the cluster, the bound is {cluster}'
        leaving = [other for other in live if other.source_compute == one.source_compute and _loads_source(other)]
        ahead = max((math.inf if bounds.ahead < 0 else bounds.ahead) for bounds in world.bounds)
        if len(leaving) > world.limits.get(one.source_compute, 1) + ahead:
            yield f'{uuid} is number {len(leaving)} from {one.source_compute}, {ahead} may be prepared ahead'


def slot_order(world: World) -> Iterator[str]:
    """I28, always: no migration takes a slot that an earlier one needs by name and could take.

    The order is that of ``doc/source/decisions/0027-slots.rst``. Not checked: guests of drains, which have an order and
    bounds of their own and count as earlier here, and migrations that have requested no host.
    """
    before, now = [one for one in world.before.values() if one.in_progress], world.migrations
    chosen = [one for one in before if not one.dest_node and one.uuid in now and now[one.uuid].dest_node]
    if len(chosen) != 1 or chosen[0].attempt > 1 or chosen[0].drain:
        return
    taken = collections.Counter(axis for one in before for axis in _held(one))

    def place(one: Migration) -> tuple[object, ...]:
        ahead = one.is_live and taken[out_of(one.source_compute)] >= world.reported.get(one.source_compute, 1)
        return (one.drain is None, one.attempt == 1, ahead, one.created_at, one.id)

    living = {one.id for one in world.conductors if one.lease_until > world.now}
    waiters = sorted((one for one in before if _waits(one) and one.owner in living), key=place)
    got = _wanted(chosen[0], now[chosen[0].uuid].dest_compute)
    others: collections.Counter[Axis] = collections.Counter()
    for one in waiters:
        wanted = _wanted(one, one.requested_host)
        could = all(_is_free(world, axis, taken[axis] + others[axis], least=True) for axis in wanted)
        lost = [axis for axis in wanted if axis in got and not _is_free(world, axis, taken[axis] + 1, least=False)]
        waits = one.uuid in now and _waits(now[one.uuid]) and now[one.uuid].owner == one.owner
        if one.requested_host and not one.drain and place(one) < place(chosen[0]) and could and lost and waits:
            yield f'{chosen[0].uuid} took the last slot {lost[0]}, which the earlier {one.uuid} could have taken'
        others.update(wanted)


def one_conductor(world: World) -> Iterator[str]:
    """I24, always: a conductor gets no migration of a source that another living conductor holds.

    It may if it holds a part of the source itself: a conductor that could not reach the broker has kept the rest. A
    holder does not count if its server has another living row, because one of the two is a boot that has ended.
    Nor does one that has not renewed its lease for half of it, since it may be dead.
    """
    late = world.now + datetime.timedelta(seconds=world.lease / 2)
    may_be_dead = {one.id for one in world.conductors if one.lease_until <= late}
    living = {
        one.id: one.server for one in world.conductors if one.lease_until > world.now and one.broker_away_since is None
    }
    rows = collections.Counter(living.values())
    in_progress = [one for one in world.migrations.values() if one.in_progress and one.owner in living]
    kept = [one for one in in_progress if one.uuid in world.before and world.before[one.uuid].owner == one.owner]
    for one in in_progress:
        holders = {other.owner or '' for other in kept if other.source_compute == one.source_compute}
        others = sorted(holder for holder in holders - may_be_dead if rows[living[holder]] == 1)
        if one not in kept and others and one.owner not in holders:
            yield f'{one.uuid} went to {one.owner}, and {one.source_compute} belongs to {", ".join(others)}'


def _is_admitted(migration: Migration) -> bool:
    """Return whether a migration has its slots.

    The row of one that waits may have a requested destination.
    """
    return migration.dest_node is not None or migration.attempt > 1


def _waits(migration: Migration) -> bool:
    """Return whether a migration wants slots and nothing else."""
    stopped = migration.stuck_reason or migration.abort_requested_at or migration.abandon_requested_at
    return migration.dest_node is None and not stopped and (migration.waits_for is None or migration.waits_for_slot)


def _wanted(migration: Migration, host: str | None) -> list[Axis]:
    """Return the axes on which a migration needs a slot: those of its source, and of a host."""
    found = [CLUSTER, out_of(migration.source_compute)] if migration.is_live and migration.attempt == 1 else []
    return found if host is None else [*found, into(host)]


def _held(migration: Migration) -> Iterator[Axis]:
    if migration.dest_node and migration.dest_compute and migration.status not in ARRIVED:
        yield into(migration.dest_compute)
    if migration.is_live and _is_admitted(migration):
        yield CLUSTER
        if _loads_source(migration):
            yield out_of(migration.source_compute)


def _is_free(world: World, axis: Axis, taken: int, least: bool) -> bool:
    """Return whether an axis has a free slot under the least, or else the highest, of the bounds so far."""
    kind, host = axis
    limit = world.reported.get(host, 1)
    bounds = {
        'inbound': [one.inbound or math.inf for one in world.bounds],
        'cluster': [one.cluster or math.inf for one in world.bounds],
        'source': [math.inf if one.ahead < 0 else limit + one.ahead for one in world.bounds],
    }[kind]
    return taken < (min if least else max)(bounds, default=math.inf)


def awaited(world: World, migration: Migration, taken: Collection[Axis]) -> set[Axis]:
    """Return the taken axes of which a migration waits for a slot; none if it waits for no slot.

    A wait that names no host is one for the cluster, or for one of several destinations.
    """
    if not migration.waits_for_slot or migration.wait is None:
        return set()
    source, hosts = migration.source_compute, migration.wait.hosts
    if hosts:
        return {out_of(host) if host == source else into(host) for host in hosts} & set(taken)
    is_bound = any(bounds.cluster for bounds in world.bounds)
    return {axis for axis in taken if axis[0] == into('')[0] or (is_bound and axis == CLUSTER)}


def _loads_source(migration: Migration) -> bool:
    return migration.outcome is None or migration.status == MigrationStatus.RUNNING_POST_COPY


def queue_keys(world: World) -> Iterator[str]:
    """I11, always: each key of ``_waiting_live_migrations`` is in progress, and its step 5 was sent there.

    A host with a deferred cleanup of the guest is exempt: it was unreachable when the migration continued without it.
    So is one that is down, which no message reaches.
    """
    for host in world.hosts.values():
        for uuid in host.waiting:
            migration = world.migrations.get(uuid)
            if migration is not None and world.has_cleanup(host.name, migration.instance_uuid):
                continue
            if world.is_down(host.name):
                continue
            if migration is None or not migration.in_progress:
                yield f'the queue of {host.name} has {uuid}, which is not a migration in progress'
            elif migration.source_compute != host.name or world.record(migration, 'live_migration') is None:
                yield f'the queue of {host.name} has migration {uuid}, which was never sent to it'


def nothing_leaks(world: World) -> Iterator[str]:
    """I11, quiet: queues are empty, and no thread, Future or connection is left over the idle baseline.

    A stuck migration may still be in a queue.
    """
    for host in world.hosts.values():
        left = [uuid for uuid in host.waiting if uuid not in world.migrations or world.migrations[uuid].ended]
        if left:
            yield f'the queue of {host.name} still has {", ".join(left)}'
        open_ = [one for one in world.migrations.values() if one.in_progress and one.source_compute == host.name]
        for pool, count in host.busy.items():
            if count and not open_:
                yield f'the pool {pool} of {host.name} still has {count} items'
    for pool, count in world.busy.items():
        if count:
            yield f'the pool {pool} still has {count} items'
    for thread in world.leftovers:
        yield f'thread {thread} is left over'
    if world.connections:
        yield f'{world.connections} connections to the database are still open'


def stopped(world: World) -> Iterator[str]:
    """I13, always: the queue of a host is empty after the host has stopped it.

    The quiet part checks that a cancelled migration ends cancelled. A :class:`~migrator.simulator.monitor.Monitor`
    checks that a stop takes at most 2 s. Not checked: migrations are queued again at the next start.
    """
    for host in world.hosts.values():
        if host.closed and host.waiting:
            yield f'the stopped queue of {host.name} still has {", ".join(host.waiting)}'


def stopped_clean(world: World) -> Iterator[str]:
    """I13, quiet: a migration that a planned stop has cancelled in a queue has ended cancelled.

    An operator may have abandoned it just before the stop. Then it ends in error.
    """
    for migration in world.migrations.values():
        by_stop = migration.abort_cause == AbortCause.HOST_STOP
        abandoned = migration.abandon_requested_at is not None and migration.status == MigrationStatus.ERROR
        if by_stop and migration.ended and migration.status != MigrationStatus.CANCELLED and not abandoned:
            yield f'migration {migration.uuid} was cancelled by the stop of its host, but ended {migration.status}'


def fencing(world: World) -> Iterator[str]:
    """I16, always: a boot accepts no message with a lower epoch than one that it has seen.

    This check covers that no boot has seen an epoch that was never committed, or one epoch with two owners. A
    :class:`~migrator.simulator.monitor.Monitor` checks the messages themselves. Not checked: messages whose reply was
    lost.
    """
    for host in world.hosts.values():
        for uuid, (epoch, owner) in host.seen.items():
            migration = world.migrations.get(uuid)
            if migration is None:
                continue
            # A deferred cleanup raises the epoch of an ended migration further. Its row is deleted when it is done.
            if migration.is_evacuation and migration.ended:
                continue
            if any('deferred' in (record.result or {}) for record in world.step_log.get(uuid, ())):
                continue
            if epoch > migration.epoch:
                yield f'{host.name} has seen epoch {epoch} of migration {uuid}, whose epoch is {migration.epoch}'
            if epoch == migration.epoch and owner and migration.owner and owner != migration.owner:
                yield f'{host.name} has seen epoch {epoch} of migration {uuid} from {owner}, which is not its owner'


def one_hand(world: World) -> Iterator[str]:
    """I21, always: at most one migration, with its pending cleanups, acts on a guest on a host.

    The fake hypervisors in this process note violations (:mod:`migrator.testing.hypervisor.acts`).
    """
    yield from world.intrusions


def kept_where_it_is(world: World) -> Iterator[str]:
    """I22, always: no cleanup removes or ends a guest on its host in the database.

    The power state of the guest does not matter. A :class:`~migrator.simulator.monitor.Monitor` notes violations.
    """
    yield from world.removals


def topology(world: World) -> Iterator[str]:
    """I17, always: no compute service sends an RPC to a compute service."""
    for message in compute_to_compute(world.messages):
        yield f'{message.sender} sent the {message.kind} {message.method} to {message.target}'
