# SPDX-License-Identifier: Apache-2.0

"""What a stock Nova shows of a guest and of its host: what is in the way of a move, and what helps."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from migrator.drain.engine import INCLUDE_STOPPED, Obstacle, ObstacleKind
from migrator.nova.client import Nova
from migrator.nova.resources import Action, NovaMigration, Server, Service
from migrator.objects import remedies
from migrator.objects.drain import Direction, Drain, Locked
from migrator.objects.remedies import Reading
from migrator.placement_client.client import PlacementClient

#: The statuses in which a migration has ended.
ENDED = ('completed', 'cancelled', 'failed', 'error', 'confirmed', 'reverted', 'done')
#: The statuses of a move whose guest is at the destination. An evacuation is ``done`` until its source is back.
MOVED = ('completed', 'done')
#: The statuses of a migration after which Nova knew where the guest is. One that has failed says nothing of that: it
#: may have been requested from a host that the guest had left.
_KNOWN_AFTER = (*MOVED, 'confirmed', 'finished', 'reverted')
#: The states of a guest that Nova moves live, and those of one that is shut off, which Nova moves cold.
MIGRATABLE, STOPPED = ('active', 'paused'), ('stopped',)
#: The vm_state of a guest in VERIFY_RESIZE, and the power state of one that runs.
RESIZED, RUNS = 'resized', 1
#: The vm_state of a guest that was deleted, and that Nova keeps for [DEFAULT] reclaim_instance_interval.
SOFTLY_DELETED = 'soft-delete'
#: The type of a migration -> the name of the action that requests one.
_ACTIONS = {'live-migration': 'live-migration', 'evacuation': 'evacuate', 'migration': 'migrate', 'resize': 'resize'}
#: The state of a guest that cannot be moved live -> what helps.
_HELPS = {
    RESIZED: remedies.Kind.CONFIRM_OR_REVERT,
    'suspended': remedies.Kind.RESUME,
    'rescued': remedies.Kind.UNRESCUE,
    'shelved': remedies.Kind.OFFLOAD,
}
#: The most characters of Nova's own reasons.
_SHOWN = 300


def service_of(nova: Nova, host: str) -> Service | None:
    """Return the nova-compute of a host, of several records the one that reports."""
    found = [one for one in nova.services(host=host) if one.host == host]
    return next((one for one in found if one.state == 'up'), found[0] if found else None)


def look_at(service: Service | None) -> dict[Reading, bool]:
    """Return what is known of a host; a host whose nova-compute is not shown is neither up nor down."""
    if service is None or service.state not in ('up', 'down'):
        return {}
    return {Reading.HOST_REPORTS: service.state == 'up', Reading.HOST_DOWN: service.state == 'down'}


def evacuate(server: Server, service: Service | None) -> str:
    """Return the remedy that evacuates a guest, if its host permits that."""
    look = look_at(service) | {Reading.ELSEWHERE: False}
    return remedies.offer(remedies.Kind.EVACUATE_BY_NOVA, look, host=shlex.quote(server.host or ''))


def is_cold(server: Server, drain: Drain | None) -> bool:
    """Return whether a drain moves a guest while it is shut off."""
    return drain is not None and drain.include_stopped and server.vm_state in STOPPED


def copied(nova: Nova, host: str) -> Iterator[Server]:
    """Yield the guests that wait in VERIFY_RESIZE elsewhere, and whose old copies a host keeps."""
    for row in nova.migrations(source=host, status='finished'):
        server = nova.server(row.instance_uuid)
        if server is not None and server.host and server.status == 'VERIFY_RESIZE' and server.host != host:
            yield server


def obstacle(server: Server, service: Service | None = None, drain: Drain | None = None) -> Obstacle | None:
    """Return what is in the way of the migration of a guest, as Nova shows it.

    :param service: the nova-compute of its host; None: it was not read.
    :param drain: which wants to move it; None: none, and a lock is in the way.
    """

    def offer(kind: remedies.Kind) -> str:
        return remedies.offer(kind, look_at(service), guest=server.uuid, host=server.host)

    if server.locked and (drain is None or drain.locked != Locked.MOVE):
        why = f' ({server.locked_reason})' if server.locked_reason else ''
        return Obstacle(ObstacleKind.LOCKED, f'It is locked{why}.', offer(remedies.Kind.UNLOCK))
    if server.vm_state == 'error':
        remedy = offer(remedies.Kind.SET_ACTIVE_IF_THERE) or 'Look which host runs the guest.'
        return Obstacle(ObstacleKind.STATE, 'It is in ERROR.', remedy)
    cold = is_cold(server, drain)
    if server.vm_state in STOPPED and not cold:
        down = f'Start nova-compute at {server.host} first: it does not report.'
        goes_back = drain is not None and drain.direction == Direction.BACK
        remedy = f'{offer(remedies.Kind.MOVE_STOPPED) or down}{"" if goes_back else f" {INCLUDE_STOPPED}"}'
        return Obstacle(ObstacleKind.STATE, 'It is stopped.', remedy)
    if server.vm_state == SOFTLY_DELETED:
        return Obstacle(ObstacleKind.STATE, why_left(server.host or 'its host'), to_end(server))
    if server.vm_state not in MIGRATABLE and not cold:
        kind = _HELPS.get(server.vm_state or '')
        remedy = offer(kind) if kind is not None else ''
        remedy = remedy or f'Make it active: only a guest that is {" or ".join(MIGRATABLE)} can be moved live.'
        return Obstacle(ObstacleKind.STATE, f'It is {server.vm_state or server.status}.', remedy)
    if server.task_state is not None:
        reason = f'It is busy: its task_state is {server.task_state}.'
        return Obstacle(ObstacleKind.BUSY, reason, 'The drain waits until that has ended.')
    return None


def why_left(host: str) -> str:
    """Return why a guest that is deleted softly keeps its host from being empty."""
    return f'It was deleted, and Nova keeps it on {host} for a while (SOFT_DELETED).'


def to_end(server: Server) -> str:
    """Return what ends the soft deletion of a guest, as a sentence."""
    return remedies.offer(remedies.Kind.RESTORE_OR_DELETE, guest=server.uuid)


def softly_deleted(nova: Nova, consumers: Iterable[str]) -> Iterator[Server]:
    """Yield those consumers that are guests which Nova keeps for a while after their deletion."""
    for uuid in consumers:
        server = nova.server(uuid)
        if server is not None and server.vm_state == SOFTLY_DELETED:
            yield server


def holders(placement: PlacementClient, nodes: Iterable[str]) -> set[str]:
    """Return the consumers of the providers of some hypervisors."""
    left = set()
    for node in nodes:
        for provider in placement.read(f'/resource_providers?in_tree={node}')['resource_providers']:
            left |= placement.holders(provider['uuid'])
    return left


def is_half_written(row: NovaMigration, server: Server) -> bool:
    """Return whether Nova shows the end of a migration, and the guest still at its source.

    Nova writes the end first. If it is killed in between, it never writes the new host.
    """
    return row.status in MOVED and row.dest_compute is not None and server.host == row.source_compute


def newest_move(rows: Iterable[NovaMigration]) -> NovaMigration | None:
    """Return the migration after which Nova last knew where the guest is, or None.

    A later request from its destination, however that has ended, proves that Nova had written the new host.

    :param rows: the migrations of the guest, the newest first.
    """
    later: set[str | None] = set()
    for row in rows:
        if row.dest_compute is not None and row.status in _KNOWN_AFTER:
            return None if row.dest_compute in later else row
        later.add(row.source_compute)
    return None


def half_written(nova: Nova, server: Server) -> NovaMigration | None:
    """Return the newest move of a guest, whatever has failed since, if Nova shows the guest at its source."""
    row = newest_move(nova.migrations(instance_uuid=server.uuid))
    if row is None or not is_half_written(row, server):
        return None
    ended = row.updated_at
    later = [one for one in nova.actions(server.uuid) if ended and one.started_at and one.started_at > ended]
    # An unshelved guest may be at that host again, without a migration.
    return None if any(one.action == 'unshelve' for one in later) else row


def may_have_started(row: NovaMigration, server: Server) -> bool:
    """Return whether the new host of an evacuation that has failed may run the guest.

    Nova undoes nothing of a start that has failed late. It leaves the state of the guest if nothing was started.
    """
    return row.status == 'failed' and row.dest_compute is not None and server.vm_state == 'error'


def request_of(nova: Nova, row: NovaMigration) -> Action | None:
    """Return the action that has requested a migration, or None. Its request id is in the logs of Nova."""
    name = _ACTIONS.get(row.type)
    for action in nova.actions(row.instance_uuid):
        begun = action.started_at is None or row.created_at is None or action.started_at <= row.created_at
        if action.action == name and begun:
            return action
    return None


def shown(row: NovaMigration, request: Action | None) -> str:
    """Return the id of a migration, and that of its request, in words."""
    return f'{row.id} ({request.request_id})' if request is not None else f'{row.id}'


def why_failed(nova: Nova, uuid: str, request_id: str | None, source: str | None) -> str:
    """Return why a migration of a guest has failed, as the events of its request say.

    :param source: the host that it was to leave.
    """
    events = nova.events(uuid, request_id) if request_id is not None else []
    details = [event.details for event in events if event.result == 'Error' and event.details]
    if details:
        return short(details[-1])
    return f'no reason is known, see the logs of nova-conductor and of nova-compute at {source}'


def short(text: str) -> str:
    """Return the beginning of a text in one line, without its full stop."""
    line = ' '.join(text.split()).rstrip('.')
    return line if len(line) <= _SHOWN else f'{line[:_SHOWN]}...'


def forgotten(row: NovaMigration, request: Action | None) -> str:
    """Return what is known of a migration whose end Nova has not written, or only by half, and what to do.

    :param request: the action that has requested it.
    """
    return '. '.join(problem_and_remedy(row, request))


def problem_and_remedy(row: NovaMigration, request: Action | None) -> tuple[str, str]:
    """Return the two parts of :func:`forgotten`, without their last full stops."""
    name = shown(row, request)
    if row.status in MOVED:
        return (
            f'Its migration {name} is {row.status}, but Nova still shows the guest on {row.source_compute}. The '
            f'guest probably runs at {row.dest_compute}',
            'Look there. Until you know, do not reset its state, move it or evacuate it',
        )
    return (
        f'Nova has forgotten its migration {name}, which stays {row.status}, as the guest has no task: nova-compute '
        f'at {row.source_compute} was restarted, or the state of the guest was reset',
        f'Look at both hosts. {remedies.offer(remedies.Kind.AUDIT_NOVA)}',
    )
