# SPDX-License-Identifier: Apache-2.0

"""The engine of drains that moves guests with the migrations of a stock Nova, live or cold.

Nova accepts the request of a migration before the migration has an id. So the mark of a member has the id of its
guest's newest migration before the request. A migration of the same type with a greater id is the requested one. If
no such migration appears, and the guest has no task for :data:`migrator.nova.moves.SETTLED` seconds, the request has
not arrived.

After a nova-compute was killed, Nova may show its migration as in progress for ever. The guest of such a migration has
no task. A guest without a task is where Nova shows it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import functools
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
    to_decide,
    why_copied,
)
from migrator.executors import Clock
from migrator.nova import emptiness, errors, moves, recorded
from migrator.nova.client import AMOUNTS, Nova
from migrator.nova.emptiness import why_down
from migrator.nova.guests import (
    ENDED,
    RESIZED,
    copied,
    evacuate,
    forgotten,
    half_written,
    is_cold,
    obstacle,
    request_of,
    service_of,
    short,
)
from migrator.nova.moves import COLD, LIVE, PENDING, Mark
from migrator.nova.resources import NovaMigration, Server, Service
from migrator.objects import remedies
from migrator.objects.drain import Direction, Drain, Member, MemberStatus, disabled_reason
from migrator.placement_client.client import PlacementClient

#: How many migrations Nova runs at once at a source by default. Its API does not show that option.
AT_ONCE = 1
#: How many more are requested then. Nova queues them at the source, so that it waits for no request in between.
AHEAD = 1
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
    """The :class:`migrator.drain.engine.Engine` that uses the migrations of a stock Nova.

    :param choose: chooses a destination where Nova's scheduler does not.
    :param drained: returns the hosts of the drains in progress. They are no destinations.
    :param spread: whether ``choose`` chooses every destination. If not, Nova's scheduler does, unless the drain has
        ``spread`` or ``destinations``, or an earlier attempt of the guest has failed.
    :cvar kind: the kind of the moves of the guests that are not moved cold.
    """

    kind = LIVE
    stays, again = STAYS, AGAIN

    def __init__(
        self,
        nova: Nova,
        placement: PlacementClient,
        clock: Clock,
        choose: Choose,
        drained: Callable[[], Collection[str]] = tuple,
        spread: bool = False,
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
        """Return the guests of a drain's host, the oldest first.

        With shut-off guests also those whose old copy it keeps, until a user has decided.
        """
        service = self._service(drain.host)
        found = [self._guest(drain, server, service) for server in self._nova.servers(drain.host)]
        if drain.include_stopped:
            found += [_undecided(server, drain.host, service) for server in copied(self._nova, drain.host)]
        return found

    def find(self, drain: Drain, uuids: Iterable[str]) -> list[Guest]:
        """Return guests wherever they are; a deleted one is left out."""
        servers = [server for uuid in uuids if (server := self._nova.server(uuid)) is not None]
        services = {host: self._service(host) for host in {server.host for server in servers} if host is not None}
        home = self._service(drain.host) if servers and drain.direction == Direction.BACK else None
        found = []
        for server in servers:
            source = self._keeps_copy(server) if server.vm_state == RESIZED and server.host == drain.host else None
            if source is not None:
                found.append(_undecided(server, source, self._service(source)))
            else:
                found.append(self._guest(drain, server, services.get(server.host or ''), home))
        return found

    def _keeps_copy(self, server: Server) -> str | None:
        """Return the host that keeps the old copy of a guest in VERIFY_RESIZE."""
        rows = self._nova.migrations(instance_uuid=server.uuid, limit=1)
        return rows[0].source_compute if rows else None

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
        self._sizes[server.uuid] = size = server.flavor.memory_mb
        return Guest(server.uuid, server.name, server.host or '', size, found, is_cold(server, drain), server.locked)

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

    def marks(self, members: Sequence[Member]) -> dict[str, str]:
        """Return guest -> the newest id of its migrations, 0 without any, and of a cold one who requests it."""
        found = {}
        for member in members:
            rows = self._nova.migrations(instance_uuid=member.instance_uuid, limit=1)
            user = self._nova.user_id if member.is_cold else None
            found[member.instance_uuid] = str(Mark(rows[0].id if rows else 0, user))
        return found

    def ask(self, drain: Drain, member: Member, host: str | None) -> str | None:
        """Request a migration, unless the guest has one that is newer than ``member.mark``.

        :raises Refused: the guest cannot be moved now, and nothing was requested.
        """
        mark = Mark.of(member.mark)
        if self._rows([member]):
            return None
        server = self._nova.server(member.instance_uuid)
        if server is None or server.host != member.source:
            raise Refused(_busy(f'It is not on {member.source} any more.'))
        if server.task_state in self._kind(mark).tasks:
            return None  # a request that had no answer has arrived meanwhile
        self.check(drain, server)
        if self._kind(mark) is not (COLD if is_cold(server, drain) else self.kind):
            # Nova would power off a guest that runs before it moves it cold.
            raise Refused(_busy('It was started or shut off meanwhile.'))
        avoided, refused = {*member.tried}, set[str]()
        while True:
            target = host if host is not None else self._destination(drain, member, avoided)
            self._named[member.instance_uuid] = target
            try:
                request_id = self.request(member.instance_uuid, target, mark.is_cold)
            except errors.NovaRefused as error:
                if error.status == 400 and host is None and target is not None and target not in refused:
                    avoided.add(target)
                    refused.add(target)
                    continue
                refusal = self._refusal(drain, member, error)
                if refusal is not None:
                    raise Refused(refusal) from None
                return None
            return str(dataclasses.replace(mark, request=request_id)) if mark.is_cold and request_id else None

    def _kind(self, mark: Mark) -> moves.Kind:
        return COLD if mark.is_cold else self.kind

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

    def request(self, uuid: str, host: str | None, is_cold: bool) -> str | None:
        """Send the request, and return the id by which Nova knows that of a cold migration.

        :param host: the destination; None: Nova's scheduler chooses it.
        :raises migrator.nova.errors.NovaRefused: Nova does not accept it.
        """
        if is_cold:
            return self._nova.migrate(uuid, host)
        self._nova.migrate_live(uuid, host)
        return None

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
        if server.task_state in self._kind(Mark.of(member.mark)).tasks:
            return None
        return self.refusal(drain, server, short(error.reason))

    def _destination(self, drain: Drain, member: Member, avoided: set[str]) -> str | None:
        """Return the destination to name; None: Nova's scheduler chooses it."""
        names = self._spread or drain.spread or drain.destinations is not None
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
        """Return host -> the migrations on their way there."""
        found: collections.Counter[str] = collections.Counter()
        oldest = self._clock.now() - _FRESH
        for row in self._nova.migrations(limit=_ROWS):
            changed = row.updated_at or row.created_at
            if row.status in (*ENDED, 'finished') or changed is None or changed < oldest:
                continue  # an old one was forgotten by Nova
            host = row.dest_compute or self._named.get(row.instance_uuid)
            if host is not None:
                found[host] += 1
        return found

    def abort(self, drain: Drain, member: Member) -> None:
        """Request the abort of a member's live migration, if its status permits that. Nova aborts no cold one.

        Nova refuses the abort of one that is ``accepted``. The drain repeats the abort while it is being cancelled.
        """
        row = self._rows([member]).get(member.instance_uuid)
        if row is None or row.status in ENDED or (row.status not in _ABORTABLE and not drain.cancel_running):
            return
        # Nova refuses it if the migration has ended, is cold or only accepted, or was forgotten. The next look shows
        # which.
        with contextlib.suppress(errors.NovaRefused):
            self._nova.abort(member.instance_uuid, row.id)

    # --- looks -------------------------------------------------------------------------------------------------------

    def look(self, members: Sequence[Member]) -> dict[str, Move]:
        """Return the newest migration of each member, without the members whose requests have not arrived.

        A cold migration of the drain whose guest is in VERIFY_RESIZE is confirmed, also in a pause and in a cancel.
        """
        rows = self._rows(members)
        # Read the guests after the migrations, so that each guest shows the result of a migration that has ended.
        servers = self._servers(members)
        service_at = functools.cache(self._service)
        found = {}
        for member in members:
            uuid, kind = member.instance_uuid, self._kind(Mark.of(member.mark))
            row, server = rows.get(uuid), servers.get(uuid)
            move: Move | None = Move(MoveState.GONE, reason='It was deleted.')
            if server is not None:
                lasts, named = self._lasts(member, row, server), self._named.get(uuid)
                move = moves.Seen(self._nova, kind, member, row, server, lasts, named, service_at).move()
            if move is not None:
                shown = _progress(self._nova, row, move, self._named.get(uuid))
                found[uuid] = dataclasses.replace(move, progress=shown)
            if move is None or move.state not in (MoveState.PENDING, MoveState.RUNNING):
                self._seen.pop(uuid, None)
                self._named.pop(uuid, None)
        return found

    def _rows(self, members: Sequence[Member]) -> dict[str, NovaMigration]:
        """Return guest -> its newest migration after its mark. One request reads those of one source and type."""
        found: dict[str, NovaMigration] = {}
        marks = {member.instance_uuid: Mark.of(member.mark) for member in members}
        types = {uuid: self._kind(mark).type for uuid, mark in marks.items()}
        if len(members) > 1:
            for source, kind in sorted({(member.source, types[member.instance_uuid]) for member in members}):
                for row in self._nova.migrations(source=source, type=kind, limit=_ROWS):
                    if types.get(row.instance_uuid) == kind and row.id > marks[row.instance_uuid].newest:
                        found.setdefault(row.instance_uuid, row)
        for uuid in marks.keys() - found.keys():
            for row in self._nova.migrations(instance_uuid=uuid, type=types[uuid], limit=1):
                if row.id > marks[uuid].newest:
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

    def _lasts(self, member: Member, row: NovaMigration | None, server: Server) -> float:
        """Return for how many seconds the looks have shown the same of a member."""
        state = (server.host, server.task_state, server.vm_state)
        shown = (member.mark, row and (row.id, row.status, row.updated_at), state)
        now = self._clock.monotonic()
        before, since = self._seen.get(member.instance_uuid, (None, now))
        if before != shown:
            self._seen[member.instance_uuid] = shown, now
            return 0.0
        return now - since

    # --- expected times ----------------------------------------------------------------------------------------------

    def expected_ends(self, drain: Drain, members: Sequence[Member]) -> dict[str, dict[str, str]]:
        """Return guest -> when its live migration is expected to end, from those of the same source."""
        members = [one for one in members if not one.is_cold]
        if not members:
            return {}
        now = self._clock.now()
        rows = self._nova.migrations(source=members[0].source, type=LIVE.type, limit=_ROWS)
        past = recorded.completed(self._nova, self._sizes, members[0].source)
        outlook = forecast.Outlook(now, drain.parallel or AT_ONCE, past)
        copying = [row for row in reversed(rows) if row.status not in (*ENDED, *PENDING)]
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
    if row is None or move.state not in (MoveState.PENDING, MoveState.RUNNING):
        return None
    has_ended = row.status in ENDED
    copies = row.type == LIVE.type and move.state is MoveState.RUNNING and not has_ended
    amounts = nova.progress(row.instance_uuid, row.id) if copies else {}
    # Nova ends a migration before it shows the guest at the destination.
    status = MemberStatus.MOVING.value if has_ended else row.status
    shown = {'uuid': row.uuid, 'status': status, 'destination': row.dest_compute or named}
    return {**shown, **dict.fromkeys(AMOUNTS), **amounts}


def _busy(reason: str) -> Obstacle:
    return Obstacle(ObstacleKind.BUSY, reason, 'The drain tries again by itself.')


def _undecided(server: Server, source: str, service: Service | None) -> Guest:
    """Return a guest in VERIFY_RESIZE, whose user has to decide, as one of the host that it has left.

    :param source: that host, which keeps its old copy.
    :param service: the nova-compute there.
    """
    is_up = service is not None and service.state == 'up'
    remedy = to_decide(server.uuid, source, is_up)
    found = Obstacle(ObstacleKind.STATE, why_copied(server.host or '', source), remedy)
    return Guest(server.uuid, server.name, source, server.flavor.memory_mb, found, is_locked=server.locked)


def _age(began: datetime.datetime | None, now: datetime.datetime | None) -> float | None:
    return max(0.0, (now - began).total_seconds()) if began is not None and now is not None else None
