# SPDX-License-Identifier: Apache-2.0
"""What must be true of queues, fences and messages: from a world to what is wrong in it."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from migrator.objects import MigrationStatus
from migrator.simulator.world import World
from migrator.testing.rpc import RpcRecorder

#: Who asks for the abort of what a planned stop has cancelled.
HOST_STOP = 'host stop'


def bound(world: World) -> Iterator[str]:
    """I10, always: no job is started while running jobs on the host, inherited ones included, are >= the limit.

    Told from the log of effects and the present limit; a :class:`~migrator.simulator.monitor.Watcher` looks at the
    limit of the moment, and sees the order too. Left out: that a restart queues by ``queued_at``.
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


def queue_keys(world: World) -> Iterator[str]:
    """I11, always: each key of ``_waiting_live_migrations`` is a migration in progress whose step 5 was sent there.

    Where the host owes a debt for it, it was silent when the migration went on without it.
    """
    for host in world.hosts.values():
        for uuid in host.waiting:
            migration = world.migrations.get(uuid)
            if migration is not None and world.owes(host.name, migration.instance_uuid):
                continue
            if migration is None or not migration.in_progress:
                yield f'{host.name} has {uuid} waiting, which is no migration in progress'
            elif migration.source_compute != host.name or world.record(migration, 'live_migration') is None:
                yield f'{host.name} has migration {uuid} waiting, which it was never sent'


def nothing_leaks(world: World) -> Iterator[str]:
    """I11, quiet: nothing waits, and no thread, Future or connection is left over the idle baseline.

    What a migration that is stuck still has in a queue is its own affair.
    """
    for host in world.hosts.values():
        left = [uuid for uuid in host.waiting if uuid not in world.migrations or world.migrations[uuid].ended]
        if left:
            yield f'{host.name} still has {", ".join(left)} waiting'
        open_ = [one for one in world.migrations.values() if one.in_progress and one.source_compute == host.name]
        for pool, count in host.busy.items():
            if count and not open_:
                yield f'{host.name}: {count} left in its pool of {pool}'
    for pool, count in world.busy.items():
        if count:
            yield f'{count} left in the pool of {pool}'
    for thread in world.leftovers:
        yield f'thread {thread} is left'
    if world.connections:
        yield f'{world.connections} connections to the database are left open'


def stopped(world: World) -> Iterator[str]:
    """I13, always: a host that has stopped its queue has nothing waiting in it.

    What was cancelled ends cancelled: see the quiet part. That a stop takes no more than 2 s is seen by a
    :class:`~migrator.simulator.monitor.Watcher`. Left out: the queueing again at the next start.
    """
    for host in world.hosts.values():
        if host.closed and host.waiting:
            yield f'{host.name} has stopped its queue, but has {", ".join(host.waiting)} waiting'


def stopped_clean(world: World) -> Iterator[str]:
    """I13, quiet: what a planned stop has cancelled in its queue has ended cancelled."""
    for migration in world.migrations.values():
        by_stop = migration.abort_requested_by == HOST_STOP
        if by_stop and migration.ended and migration.status != MigrationStatus.CANCELLED:
            yield f'migration {migration.uuid} was cancelled by the stop of its host, and ended {migration.status}'


def fencing(world: World) -> Iterator[str]:
    """I16, always: no message of an epoch lower than one already seen in that boot is accepted.

    Here: no boot has seen an epoch that was never committed, or one epoch under two owners. The messages themselves
    are seen by a :class:`~migrator.simulator.monitor.Watcher`; left out are those whose answer was lost on its way.
    """
    for host in world.hosts.values():
        for uuid, (epoch, owner) in host.seen.items():
            migration = world.migrations.get(uuid)
            if migration is None:
                continue
            # A debt continues the epochs of a migration that has ended; its row is gone when it is paid.
            if any('owed' in (record.result or {}) for record in world.journal.get(uuid, ())):
                continue
            if epoch > migration.epoch:
                yield f'{host.name} has seen epoch {epoch} of migration {uuid}, whose epoch is {migration.epoch}'
            if epoch == migration.epoch and owner and migration.owner and owner != migration.owner:
                yield f'{host.name} has seen epoch {epoch} of migration {uuid} from {owner}, not from its owner'


def one_hand(world: World) -> Iterator[str]:
    """I21, always: at most one migration, pending cleanups included, acts on a guest at a host.

    Of fake hypervisors in this process: they note it (:mod:`migrator.virt.fake.acts`).
    """
    yield from world.intrusions


def kept_where_it_is(world: World) -> Iterator[str]:
    """I22, always: no cleanup that removes or ends a guest is carried out at the host where the database has it.

    Whatever the power state of the guest. A :class:`~migrator.simulator.monitor.Watcher` notes it.
    """
    yield from world.removals


def topology(world: World) -> Iterator[str]:
    """I17, always: no RPC from a compute to a compute."""
    recorder = RpcRecorder()
    recorder.messages = list(world.messages)
    for message in recorder.compute_to_compute():
        yield f'{message.sender} sent {message.target} the {message.kind} {message.method}'
