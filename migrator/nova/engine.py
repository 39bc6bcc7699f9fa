# SPDX-License-Identifier: Apache-2.0

"""The engine of drains that moves guests with the live migrations of a stock Nova.

Nova accepts the request of a live migration before the migration has an id. So the mark of a member is the id of its
guest's newest migration before the request. A live migration with a greater id is the requested one. If there is none,
and the guest has no task for :data:`SETTLED` seconds, the request has not arrived.

After a nova-compute was killed, Nova may show its migration as in progress for ever. The guest of such a migration has
no task. A guest without a task is where Nova shows it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from migrator.drain import forecast
from migrator.drain.engine import (
    AGAIN,
    STAYS,
    Check,
    Guest,
    Move,
    MoveState,
    Obstacle,
    ObstacleKind,
    Refused,
    disabled_home,
)
from migrator.executors import Clock
from migrator.nova import emptiness, errors, recorded
from migrator.nova.client import AMOUNTS, Nova
from migrator.nova.emptiness import why_down
from migrator.nova.guests import (
    ENDED,
    MIGRATABLE,
    MOVED,
    evacuate,
    forgotten,
    half_written,
    is_half_written,
    look_at,
    may_have_started,
    obstacle,
    request_of,
    service_of,
    short,
    shown,
    why_failed,
)
from migrator.nova.resources import NovaMigration, Server, Service
from migrator.objects import remedies
from migrator.objects.drain import Direction, Drain, Member, disabled_reason
from migrator.placement_client.client import PlacementClient

#: Seconds for which all looks must show the same before it counts as settled. Nova updates a running migration every
#: five seconds.
SETTLED = 15.0
#: Seconds after which a guest with a task and no migration in progress is shown as stuck.
LATE = 300.0
#: How many migrations Nova runs at once at a source by default. Its API does not show that option.
AT_ONCE = 1
#: How many more are requested then. Nova queues them at the source, so that it waits for no request in between.
AHEAD = 1
_LIVE = 'live-migration'
_PENDING = ('accepted', 'queued', 'preparing')
#: The statuses in which an abort has no effect on the guest. Nova refuses it in ``accepted``.
_ABORTABLE = ('queued', 'preparing')
#: How many of the newest migrations of a host or of the cloud are read.
_ROWS = 200
#: A migration that Nova has not updated for longer does not count as on its way to its destination.
_FRESH = datetime.timedelta(hours=1)
#: The beginning of a reason from :func:`disabled_reason`.
_BY_A_DRAIN = re.compile(r'drain [0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(:|$)')
#: The greatest number of items that a check names.
_NAMED = 20

#: Returns a destination: (drain, member, hosts to avoid, host -> migrations on their way there). None: none now.
#: It raises :class:`migrator.drain.engine.Refused` if there is none at all.
Choose = Callable[[Drain, Member, Collection[str], Mapping[str, int]], str | None]


class NovaEngine:
    """The :class:`migrator.drain.engine.Engine` that uses the live migrations of a stock Nova.

    :param choose: chooses a destination where Nova's scheduler does not.
    :param spread: whether ``choose`` chooses every destination. If not, Nova's scheduler does, unless the drain has
        ``destinations`` or an earlier attempt of the guest has failed.
    :param drained: returns the hosts of the drains in progress. They are no destinations.
    :cvar type: the type of the migrations.
    :cvar task: the task of a guest for which one was requested; None: its migration shows that sooner.
    :cvar needs_source: whether one goes on only while the source is up.
    """

    type: str = _LIVE
    task: str | None = 'migrating'
    needs_source = True
    stays, again = STAYS, AGAIN

    def __init__(
        self,
        nova: Nova,
        placement: PlacementClient,
        clock: Clock,
        choose: Choose,
        spread: bool = False,
        drained: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._nova, self._placement, self._clock = nova, placement, clock
        self._choose, self._spread, self._drained = choose, spread, drained
        #: Guest -> what looks have shown of it, and since when.
        self._seen: dict[str, tuple[object, float]] = {}
        #: Guest -> the destination that was named for it. Nova does not show it until its scheduler has accepted it.
        self._named: dict[str, str | None] = {}
        #: Guest -> its memory in MiB.
        self._sizes: dict[str, int] = {}

    # --- guests ------------------------------------------------------------------------------------------------------

    def guests(self, drain: Drain) -> list[Guest]:
        """Return the guests of a drain's host, the oldest first."""
        service = self._service(drain.host)
        return [self._guest(drain, server, service) for server in self._nova.servers(drain.host)]

    def find(self, drain: Drain, uuids: Iterable[str]) -> list[Guest]:
        """Return guests wherever they are; a deleted one is left out."""
        servers = [server for uuid in uuids if (server := self._nova.server(uuid)) is not None]
        services = {host: self._service(host) for host in {server.host for server in servers} if host is not None}
        home = self._service(drain.host) if servers and drain.direction == Direction.BACK else None
        return [self._guest(drain, server, services.get(server.host or ''), home) for server in servers]

    def _guest(self, drain: Drain, server: Server, service: Service | None, home: Service | None = None) -> Guest:
        """Return a guest.

        :param service: the nova-compute of its host.
        :param home: that of the host of a restore. Nova refuses one that is down or disabled.
        """
        found = obstacle(server, service, drain)
        if found is None or found.kind == ObstacleKind.BUSY:
            if service is not None and service.state == 'down':
                found = Obstacle(ObstacleKind.BUSY, why_down(service), f'Start it. {evacuate(server, service)}')
            elif home is not None and home.state == 'down':
                found = Obstacle(ObstacleKind.BUSY, why_down(home), 'Start it.')
            elif home is not None and home.status == 'disabled':
                found = disabled_home(home.host, home.disabled_reason)
        self._sizes[server.uuid] = server.flavor.memory_mb
        size = server.flavor.memory_mb
        return Guest(server.uuid, server.name, server.host or '', size, found, is_locked=server.locked)

    def _service(self, host: str) -> Service | None:
        """Return the nova-compute of a host.

        :raises migrator.nova.errors.NovaUnreachable: the database of its cell does not answer, so that lists lack the
            guests of the host.
        """
        found = service_of(self._nova, host)
        if found is not None and found.status == 'UNKNOWN':
            raise errors.NovaUnreachable(reason=f'the database of the cell of {host} does not answer')
        return found

    # --- requests ----------------------------------------------------------------------------------------------------

    def bound(self, drain: Drain) -> int:
        """Return how many migrations of a drain may be requested and not have ended at a time."""
        return drain.parallel or AT_ONCE + AHEAD

    def marks(self, guests: Sequence[Guest]) -> dict[str, str]:
        """Return guest -> the newest id of its migrations, '0' without any."""
        newest = {guest.uuid: self._nova.migrations(instance_uuid=guest.uuid, limit=1) for guest in guests}
        return {uuid: str(rows[0].id if rows else 0) for uuid, rows in newest.items()}

    def ask(self, drain: Drain, member: Member, host: str | None) -> None:
        """Request a live migration, unless the guest has one that is newer than ``member.mark``.

        :raises Refused: the guest cannot be moved now, and nothing was requested.
        """
        if self._rows([member]):
            return
        server = self._nova.server(member.instance_uuid)
        if server is None or server.host != member.source:
            raise Refused(_busy(f'It is not on {member.source} any more.'))
        if self.task is not None and server.task_state == self.task:
            return  # a request that had no answer has arrived meanwhile
        self.check(drain, server)
        avoided, refused = {*member.tried}, set[str]()
        while True:
            target = host if host is not None else self._destination(drain, member, avoided)
            self._named[member.instance_uuid] = target
            try:
                self.request(member.instance_uuid, target)
            except errors.NovaRefused as error:
                if error.status == 400 and host is None and target is not None and target not in refused:
                    avoided.add(target)
                    refused.add(target)
                    continue
                refusal = self._refusal(drain, member, error)
                if refusal is not None:
                    raise Refused(refusal) from None
            return

    def check(self, drain: Drain, server: Server) -> None:
        """Check a guest before its request.

        :raises Refused: it cannot be moved now.
        """
        found = obstacle(server, drain=drain)
        if found is not None:
            raise Refused(obstacle(server, self._service(server.host or ''), drain) or found)
        earlier = half_written(self._nova, server)
        if earlier is not None:
            reason = forgotten(earlier, request_of(self._nova, earlier))
            raise Refused(Obstacle(ObstacleKind.STATE, f'{reason}.', ''))

    def request(self, uuid: str, host: str | None) -> None:
        """Send the request.

        :param host: the destination; None: Nova's scheduler chooses it.
        :raises migrator.nova.errors.NovaRefused: Nova does not accept it.
        """
        self._nova.migrate_live(uuid, host)

    def refusal(self, drain: Drain, server: Server, reason: str) -> Obstacle:
        """Return why Nova has refused to move a guest.

        :param reason: Nova's own.
        """
        found = obstacle(server, self._service(server.host or ''), drain)
        return found or Obstacle(ObstacleKind.IMMOVABLE, f'Nova refuses to move it: {reason}', '')

    def _refusal(self, drain: Drain, member: Member, error: errors.NovaRefused) -> Obstacle | None:
        """Return why Nova has refused to move a guest; None: an earlier request has arrived meanwhile."""
        if self._rows([member]):
            return None
        server = self._nova.server(member.instance_uuid)
        if server is None:
            return _busy('It was deleted.')
        if self.task is not None and server.task_state == self.task:
            return None
        return self.refusal(drain, server, short(error.reason))

    def _destination(self, drain: Drain, member: Member, avoided: set[str]) -> str | None:
        """Return the destination to name; None: Nova's scheduler chooses it."""
        names = self._spread or drain.destinations is not None
        if not names and not avoided:
            return None
        excluded = {drain.host, *self._drained()}
        avoided = set(avoided)
        try:
            host = self._choose(drain, member, avoided, in_flight := self._in_flight())
            while host is not None and host in excluded - avoided:
                avoided.add(host)
                host = self._choose(drain, member, avoided, in_flight)
        except Refused:
            if names:
                raise
            return None
        if host in excluded:
            host = None
        if host is None and names:
            raise Refused(_busy('No destination can take it now.'))
        return host

    def _in_flight(self) -> collections.Counter[str]:
        """Return host -> the live migrations on their way there."""
        found: collections.Counter[str] = collections.Counter()
        oldest = self._clock.now() - _FRESH
        for row in self._nova.migrations(type=self.type, limit=_ROWS):
            changed = row.updated_at or row.created_at
            if row.status in ENDED or changed is None or changed < oldest:
                continue  # an old one was forgotten by Nova
            host = row.dest_compute or self._named.get(row.instance_uuid)
            if host is not None:
                found[host] += 1
        return found

    def abort(self, drain: Drain, member: Member) -> None:
        """Request the abort of a member's migration, if its status permits that.

        Nova refuses the abort of one that is ``accepted``. The drain repeats the abort while it is being cancelled.
        """
        row = self._rows([member]).get(member.instance_uuid)
        if row is None or row.status in ENDED or (row.status not in _ABORTABLE and not drain.cancel_running):
            return
        # Nova refuses it if the migration has ended, is only accepted, or was forgotten. The next look shows which.
        with contextlib.suppress(errors.NovaRefused):
            self._nova.abort(member.instance_uuid, row.id)

    # --- looks -------------------------------------------------------------------------------------------------------

    def look(self, members: Sequence[Member]) -> dict[str, Move]:
        """Return the newest migration of each member, without the members whose requests have not arrived."""
        rows = self._rows(members)
        # Read the guests after the migrations, so that each guest shows the result of a migration that has ended.
        servers = self._servers(members)
        services: dict[str, Service | None] = {}
        found = {}
        for member in members:
            uuid = member.instance_uuid
            row, server = rows.get(uuid), servers.get(uuid)
            hosts = {server.host} if server is not None and server.task_state is not None else set()
            if row is not None and row.status not in ENDED:
                hosts |= {row.source_compute, row.dest_compute}
            for host in hosts - {None, *services}:
                services[str(host)] = self._service(str(host))
            move = self._move(member, row, server, services)
            if move is not None:
                shown = _progress(self._nova, row, move, self._named.get(uuid))
                found[uuid] = dataclasses.replace(move, progress=shown)
            if move is None or move.state not in (MoveState.PENDING, MoveState.RUNNING):
                self._seen.pop(uuid, None)
                self._named.pop(uuid, None)
        return found

    def _rows(self, members: Sequence[Member]) -> dict[str, NovaMigration]:
        """Return guest -> its newest live migration after its mark. One request reads those of one source."""
        found: dict[str, NovaMigration] = {}
        marks = {member.instance_uuid: int(member.mark or 0) for member in members}
        if len(members) > 1:
            for source in sorted({member.source for member in members}):
                for row in self._nova.migrations(source=source, type=self.type, limit=_ROWS):
                    if row.id > marks.get(row.instance_uuid, row.id):
                        found.setdefault(row.instance_uuid, row)
        for uuid in marks.keys() - found.keys():
            for row in self._nova.migrations(instance_uuid=uuid, type=self.type, limit=1):
                if row.id > marks[uuid]:
                    found[uuid] = row
        return found

    def _servers(self, members: Sequence[Member]) -> dict[str, Server]:
        """Return guest -> what Nova shows of it, without the deleted ones."""
        found: dict[str, Server] = {}
        if len(members) > 1:
            for source in sorted({member.source for member in members}):
                found |= {server.uuid: server for server in self._nova.servers(source)}
        for member in members:
            if member.instance_uuid not in found:
                server = self._nova.server(member.instance_uuid)
                if server is not None:
                    found[server.uuid] = server
        return found

    def _move(
        self,
        member: Member,
        row: NovaMigration | None,
        server: Server | None,
        services: Mapping[str, Service | None],
    ) -> Move | None:
        """Return the state of a member's migration; None: its request has not arrived."""
        if server is None:
            return Move(MoveState.GONE, reason='It was deleted.')
        lasts = self._lasts(member, row, server)
        if row is None and not self.needs_source and server.host == member.source:
            # An evacuation has its migration as soon as Nova has accepted it, and a task may be of something else.
            return Move(MoveState.PENDING) if lasts < SETTLED else None
        if row is not None and is_half_written(row, server) and lasts >= SETTLED:
            reason = forgotten(row, request_of(self._nova, row))
            return Move(MoveState.FAILED, row.dest_compute, reason, in_doubt=True)
        if server.task_state is not None:
            return _in_progress(row, server, services, lasts, self.needs_source)
        if row is None:
            if server.host == member.source:
                return Move(MoveState.PENDING) if lasts < SETTLED else None
            return _elsewhere(server)
        arrived = row.dest_compute is not None and server.host == row.dest_compute != member.source
        if row.status not in ENDED or (row.status in MOVED and not arrived and server.host == member.source):
            # Nova does not show its end or the new host of the guest yet, or has forgotten the migration.
            if lasts < SETTLED:
                return _in_progress(row, server, services, lasts, self.needs_source)
        if arrived or (row.status in MOVED and server.host != member.source):
            return Move(MoveState.MOVED, row.dest_compute, reason=self._why_noted(row, server))
        if server.host != member.source:
            return _elsewhere(server)
        if row.status == 'cancelled':
            return Move(MoveState.CANCELLED, reason=f'Its migration {row.id} was aborted.')
        if row.status in ('failed', 'error'):
            named = row.dest_compute or self._named.get(member.instance_uuid)
            request = request_of(self._nova, row)
            why = why_failed(self._nova, row, request)
            reason = f'Migration {shown(row, request)} ended as {row.status}{_to(named)}: {why}'
            if not self.needs_source:
                return _of_failed_evacuation(row, server, reason)
            now = obstacle(server, self._service(server.host)) if server.vm_state not in MIGRATABLE else None
            reason = f'{reason}. {now.reason} {now.remedy}'.rstrip() if now is not None else reason
            return Move(MoveState.FAILED, row.dest_compute, reason, tried=(named,) if named else ())
        # A host that was asked to start the guest may have done so; a source that was asked to move it still has it.
        in_doubt = not self.needs_source and row.dest_compute is not None
        reason = forgotten(row, request_of(self._nova, row))
        return Move(MoveState.FAILED, row.dest_compute, reason, in_doubt=in_doubt)

    def _lasts(self, member: Member, row: NovaMigration | None, server: Server) -> float:
        """Return for how many seconds the looks have shown the same of a member."""
        shown = (member.mark, row and (row.id, row.status, row.updated_at), server.host, server.task_state)
        now = self._clock.monotonic()
        before, since = self._seen.get(member.instance_uuid, (None, now))
        if before != shown:
            self._seen[member.instance_uuid] = shown, now
            return 0.0
        return now - since

    def _why_noted(self, row: NovaMigration, server: Server) -> str | None:
        """Return what an operator should know of a guest that has moved."""
        if server.vm_state == 'error' or server.status == 'ERROR':
            look = look_at(self._service(server.host or ''))
            remedy = remedies.offer(remedies.Kind.SET_ACTIVE_IF_THERE, look, guest=server.uuid, host=server.host)
            request = request_of(self._nova, row)
            return (
                f'It is on {server.host}, and Nova shows it in ERROR: migration {shown(row, request)} ended as '
                f'{row.status}: {why_failed(self._nova, row, request)}. {remedy or "Check the guest there."}'
            )
        if row.status not in ENDED:
            return f'It is on {server.host}, though its migration {row.id} is still shown as {row.status}.'
        return None

    # --- expected times ----------------------------------------------------------------------------------------------

    def expected_ends(self, drain: Drain, members: Sequence[Member]) -> dict[str, dict[str, str]]:
        """Return guest -> when its migration is expected to end, from the completed ones of the same source."""
        if not members:
            return {}
        now = self._clock.now()
        rows = self._nova.migrations(source=members[0].source, type=_LIVE, limit=_ROWS)
        past = recorded.completed(self._nova, self._sizes, members[0].source)
        outlook = forecast.Outlook(now, drain.parallel or AT_ONCE, past)
        copying = [row for row in reversed(rows) if row.status not in (*ENDED, *_PENDING)]
        # One that was requested ahead has begun when the one before it ended.
        ahead = [row.updated_at for row in rows if row.status in ENDED and row.updated_at] if not drain.parallel else []
        began = {row.instance_uuid: max([row.created_at, *ahead]) for row in copying if row.created_at}
        jobs = [
            forecast.Job(one.instance_uuid, one.size_mb, _age(began.get(one.instance_uuid), now)) for one in members
        ]
        jobs.sort(key=lambda job: job.elapsed is None)
        found, _ = forecast.play(outlook, jobs, members[0].source)
        ends = {uuid: one.document(now)['end'] for uuid, one in found.items()}
        return {uuid: {name: at.isoformat() for name, at in end.items()} for uuid, end in ends.items() if end}

    # --- the host ----------------------------------------------------------------------------------------------------

    def disable(self, drain: Drain) -> bool:
        """Disable the drain's host, and return whether a drain has disabled it.

        :raises Refused: the host has no nova-compute.
        """
        service = self._service(drain.host)
        if service is None:
            remedy = f'Name a host as {remedies.offer(remedies.Kind.LIST_SERVICES)} shows it.'
            raise Refused(Obstacle(ObstacleKind.STATE, f'Nova has no nova-compute at {drain.host}.', remedy))
        wanted = disabled_reason(drain)
        if service.status == 'disabled':
            if service.disabled_reason == wanted:
                return True
            # An earlier drain has left this host disabled. From now on only this drain enables it.
            if not _BY_A_DRAIN.match(service.disabled_reason or ''):
                return False
        self._nova.disable(service.id, wanted)
        return True

    def enable(self, drain: Drain) -> bool:
        """Enable the drain's host, unless it was disabled for another reason meanwhile; return whether it is."""
        service = self._service(drain.host)
        if service is None or (service.status, service.disabled_reason) != ('disabled', disabled_reason(drain)):
            return service is not None and service.status == 'enabled'
        self._nova.disable(service.id, None)
        return True

    def check_empty(self, host: str) -> list[Check]:
        """Check whether Nova, its nova-compute or Placement still has a guest on the host."""
        return emptiness.check(self._nova, self._placement, host, self._service(host))


def _progress(nova: Nova, row: NovaMigration | None, move: Move, named: str | None) -> dict[str, Any] | None:
    """Return what a screen shows of a migration. One that copies takes a request.

    :param named: the destination that was named for it.
    """
    if row is None or move.state not in (MoveState.PENDING, MoveState.RUNNING) or row.status in ENDED:
        return None
    copies = row.type == _LIVE and move.state is MoveState.RUNNING
    amounts = nova.progress(row.instance_uuid, row.id) if copies else {}
    shown = {'uuid': row.uuid, 'status': row.status, 'destination': row.dest_compute or named}
    return {**shown, **dict.fromkeys(AMOUNTS), **amounts}


def _busy(reason: str) -> Obstacle:
    return Obstacle(ObstacleKind.BUSY, reason, 'The drain tries again by itself.')


def _in_progress(
    row: NovaMigration | None,
    server: Server,
    services: Mapping[str, Service | None],
    lasts: float,
    needs_source: bool,
) -> Move:
    """Return the state of a migration that has not ended, or of which the guest's task has not.

    :param needs_source: as of :class:`NovaEngine`.
    """
    state = MoveState.PENDING if row is None or row.status in _PENDING else MoveState.RUNNING
    destination = row.dest_compute if row is not None else None
    waits_for = None
    if row is not None and row.status not in ENDED:
        for host in (row.source_compute if needs_source else None, destination):
            service = services.get(host or '')
            if service is not None and service.state == 'down':
                remedy = _remedy(row, server, service) if needs_source else 'Start it.'
                waits_for = f'Migration {row.id} is {row.status}. {why_down(service)} {remedy}'
                break
    if waits_for is None and lasts >= LATE and (row is None or row.status in ENDED or not needs_source):
        what = 'has no migration' if row is None else f'shows migration {row.id} as {row.status}'
        look = look_at(services.get(server.host or ''))
        kind = remedies.Kind.SET_ACTIVE_IF_THERE if needs_source else remedies.Kind.SET_ERROR
        remedy = remedies.offer(kind, look, guest=server.uuid, host=server.host)
        waits_for = (
            f'Its task_state has been {server.task_state} for more than {LATE:.0f} s, and Nova {what}. Check '
            f'nova-conductor, nova-compute and the message broker. {remedy}'
        ).rstrip()
    return Move(state, destination, is_stuck=waits_for is not None, waits_for=waits_for)


def _of_failed_evacuation(row: NovaMigration, server: Server, reason: str) -> Move:
    """Return the state of an evacuation that has failed.

    If Nova has put the guest into ERROR, its new host may have started it before.
    """
    if may_have_started(row, server):
        there = f'{row.dest_compute} may have started it before: look there'
        return Move(MoveState.FAILED, row.dest_compute, f'{reason}. {there}', in_doubt=True)
    if server.vm_state == 'error':
        reason += '. It is in ERROR now, and so Nova starts it at its next evacuation'
    return Move(MoveState.FAILED, row.dest_compute, reason, tried=(row.dest_compute,) if row.dest_compute else ())


def _remedy(row: NovaMigration, server: Server, service: Service) -> str:
    if service.host == server.host:
        if row.status in _PENDING or row.dest_compute is None:
            return f'Start it. {evacuate(server, service)}'
        # The hypervisor may have completed the move after nova-compute was gone.
        kind = remedies.Kind.EVACUATE_ONCE_LOOKED
        return f'Start it. {remedies.offer(kind, look_at(service), guest=server.uuid, host=row.dest_compute)}'
    abort = remedies.offer(remedies.Kind.ABORT, look_at(service), guest=server.uuid, migration=row.id)
    return f'Start it. {abort}'


def _elsewhere(server: Server) -> Move:
    return Move(MoveState.GONE, reason=f'It was moved to {server.host} without this drain.')


def _to(host: str | None) -> str:
    return f', to {host}' if host is not None else ''


def _age(began: datetime.datetime | None, now: datetime.datetime | None) -> float | None:
    return max(0.0, (now - began).total_seconds()) if began is not None and now is not None else None
