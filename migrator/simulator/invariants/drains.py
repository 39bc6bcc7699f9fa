# SPDX-License-Identifier: Apache-2.0

"""Invariants of drains.

Each function yields the violations in a world. A :class:`~migrator.simulator.monitoring.drain_requests.DrainRequests`
checks which migrations a drain requests, for which it needs every commit.
"""

from __future__ import annotations

import collections
import datetime
from collections.abc import Iterator, Sequence

from migrator.db.slots import AHEAD_OF_DRAINS, Bounds
from migrator.objects import Migration
from migrator.objects.drain import (
    LEGAL_DRAIN_MOVES,
    LEGAL_MEMBER_MOVES,
    Direction,
    Drain,
    DrainStatus,
    Member,
    MemberStatus,
    disabled_reason,
)
from migrator.simulator.world import World

_M = MemberStatus

#: Seconds after its start for which a guest may be missed by a check of whether its host is empty. A conductor that is
#: paused between the check and the commit takes that long.
_STARTS = 60.0


def legal(world: World) -> Iterator[str]:
    """I25, always: a host has one drain in progress, which keeps its bounds and its destinations.

    - A migration of a drain leaves the drain's host to one of the drain's destinations, or returns to the host.
    - A drain has no more migrations in progress than ``parallel`` and the highest bounds of the site so far.
    - When ``completed`` is written, the host has no guest in the database, none on its way, none at the hypervisor and
      no allocation. Guests that were created, and migrations that were changed, shortly before are exempt.
    - A drain that has ended has no member that waits or moves.
    """
    hosts = collections.Counter(drain.host for drain in world.drains.values() if not drain.ended)
    yield from (f'{host} has {number} drains in progress' for host, number in hosts.items() if number > 1)
    for migration in world.drained.values():
        yield from _wrong_way(world.drains.get(migration.drain or ''), migration)
    for drain in world.drains.values():
        yield from _beyond_bound(world, drain)
        before = world.drains_before.get(drain.uuid)
        if drain.status == DrainStatus.COMPLETED and before is not None and not before.ended:
            yield from _not_empty(world, drain)
        for member in world.members.get(drain.uuid, ()):
            if drain.ended and member.status in (_M.WAITING, _M.MOVING):
                yield f'drain {drain.uuid} has ended {drain.status}, but {member.instance_uuid} is {member.status}'


def _wrong_way(drain: Drain | None, migration: Migration) -> Iterator[str]:
    if drain is None:
        if migration.in_progress:  # the drain of one that has ended may have been purged
            yield f'migration {migration.uuid} belongs to drain {migration.drain}, which does not exist'
    elif migration.requested_host == drain.host:
        if migration.dest_compute not in (None, drain.host):
            yield f'migration {migration.uuid} of a restore of {drain.host} goes to {migration.dest_compute}'
    elif migration.source_compute != drain.host:
        yield f'migration {migration.uuid} of a drain of {drain.host} leaves {migration.source_compute}'
    elif migration.dest_compute and drain.destinations and migration.dest_compute not in drain.destinations:
        yield f'migration {migration.uuid} goes to {migration.dest_compute}, which is no destination of its drain'


def _beyond_bound(world: World, drain: Drain) -> Iterator[str]:
    now, before = (
        {one.uuid for one in migrations.values() if one.drain == drain.uuid and one.in_progress}
        for migrations in (world.migrations, world.before)
    )
    if not now - before or not world.before:
        return
    bounds = [one.of_drains() for one in world.bounds] or [Bounds().of_drains()]
    if drain.direction == Direction.BACK:
        bound = max(one.inbound for one in bounds) + AHEAD_OF_DRAINS
    else:
        bound = world.limits.get(drain.host, 1) + max(one.ahead for one in bounds)
    bound = bound if drain.parallel is None else min(bound, drain.parallel)
    # Stuck ones hold back no others.
    get_on = sum(world.migrations[uuid].stuck_reason is None for uuid in now)
    if get_on > bound:
        yield f'drain {drain.uuid} of {drain.host} has {get_on} migrations in progress, its bound is {bound}'


def _not_empty(world: World, drain: Drain) -> Iterator[str]:
    since = max(drain.created_at or world.now, world.now - datetime.timedelta(seconds=_STARTS))
    new = {one.uuid for one in world.instances.values() if one.created_at is not None and one.created_at > since}
    host = world.hosts.get(drain.host)
    found = {
        'in the database': {one.uuid for one in world.instances.values() if one.host == drain.host},
        'on its way': {
            one.instance_uuid
            for one in world.migrations.values()
            if one.in_progress and one.dest_compute == drain.host and one.updated_at and one.updated_at <= since
        },
        'at the hypervisor': {uuid for uuid, guest in host.guests.items() if guest.present} if host else set(),
        'in Placement': {
            consumer for provider in world.tree(drain.host) for consumer in world.providers[provider].holders
        },
    }
    for where, uuids in found.items():
        for uuid in sorted(uuids - new):
            yield f'drain {drain.uuid} is completed, but {drain.host} has {uuid} {where}'


def ends(world: World) -> Iterator[str]:
    """I25, quiet: a drain has ended, is paused by a user, or shows what it waits for.

    A member that moves has a migration in progress. The host is enabled after a cancel and a restore, unless it was
    disabled for another reason.
    """
    for drain in world.drains.values():
        if not drain.ended and not drain.paused and not _shows_wait(drain, world.members.get(drain.uuid, ())):
            yield f'drain {drain.uuid} of {drain.host} is {drain.shown_status} and does not show what it waits for'
        for member in world.members.get(drain.uuid, ()):
            migration = world.drained.get(member.mark or '')
            if member.status == _M.MOVING and (migration is None or migration.ended):
                how = migration.status if migration is not None else 'not there'
                yield f'drain {drain.uuid}: member {member.instance_uuid} moves, but its migration is {how}'
        if not drain.ended or not (drain.status == DrainStatus.CANCELLED or drain.direction == Direction.BACK):
            continue
        for service in world.services:
            if service.host == drain.host and service.disabled and service.disabled_reason == disabled_reason(drain):
                yield f'drain {drain.uuid} has ended {drain.status}, but {drain.host} is still disabled by it'


def _shows_wait(drain: Drain, members: Sequence[Member]) -> bool:
    return bool(drain.waits_for) or any(member.reason for member in members if not member.ended)


def moves(world: World) -> Iterator[str]:
    """I25, history: in a drain's log, its status and those of its members move only along their tables.

    The last status in the log is that of the row. A restore makes the members wait that the drain has moved, and all
    others are gone. A second restore makes those wait that the first has not brought back.
    """
    for uuid, events in world.drain_logs.items():
        last: dict[str, str] = {}
        again, status = False, DrainStatus.ACCEPTED
        for event in events:
            if event.kind == 'status' and event.payload['status'] != status:
                old_status, status = status, DrainStatus(event.payload['status'])
                if (old_status, status) not in LEGAL_DRAIN_MOVES:
                    yield f'drain {uuid} moved from {old_status} to {status}'
            if event.kind == 'request' and event.payload['action'] == 'restore':
                status = DrainStatus.ACCEPTED
                last = {one: _after_restore(status, again) for one, status in last.items()}
                again = True
            if event.kind != 'member':
                continue
            instance, new = event.payload['instance'], event.payload['status']
            old = last.get(instance)
            if old is not None and old != new and (_M(old), _M(new)) not in LEGAL_MEMBER_MOVES:
                yield f'drain {uuid}: member {instance} moved from {old} to {new}'
            last[instance] = new
        for member in world.members.get(uuid, ()):
            if last.get(member.instance_uuid) != member.status:
                logged = last.get(member.instance_uuid)
                yield f'drain {uuid}: member {member.instance_uuid} is {member.status}, and {logged} in the log'


def _after_restore(status: str, again: bool) -> str:
    """Return the status of a member after the request of a restore.

    :param again: whether there was a restore before.
    """
    if again:
        return _M.WAITING if status in (_M.CANCELLED, _M.FAILED, _M.BLOCKED) else status
    return _M.WAITING if status == _M.MOVED else _M.GONE


def given_up(world: World) -> Iterator[str]:
    """I29: no guest of a drain is ``failed`` that a plain migration moves.

    It is judged only where nothing but an absence of hosts has kept guests from moving.
    """
    for uuid, members in world.members.items():
        for member in members:
            if member.status == MemberStatus.FAILED:
                yield f'drain {uuid} has given {member.instance_uuid} up: {member.reason}'
