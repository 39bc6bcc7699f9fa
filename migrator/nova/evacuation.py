# SPDX-License-Identifier: Apache-2.0

"""The engine that evacuates the guests of a dead host of a stock Nova, and what each guest loses.

Nova does not check the declaration that a host is down. It rebuilds a guest without a volume from its image, unless
the new host finds its disks, and the old host deletes them when it is back. So nothing is requested unless the host is
known to be fenced, the loss of each guest was accepted, and nova-compute has not reported since it was declared down.
Each report of a service, and each change of it, gives it a new ``updated_at``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from migrator.drain.engine import Check, Guest, Move, MoveState, Obstacle, ObstacleKind, Refused
from migrator.nova import errors
from migrator.nova.client import Nova
from migrator.nova.emptiness import few
from migrator.nova.engine import NovaEngine
from migrator.nova.guests import (
    ENDED,
    SOFTLY_DELETED,
    forgotten,
    half_written,
    holders,
    is_half_written,
    look_at,
    may_have_started,
    newest_move,
    request_of,
    service_of,
    to_end,
    why_left,
)
from migrator.nova.moves import EVACUATION
from migrator.nova.resources import NovaMigration, Server, Service
from migrator.objects import base, remedies
from migrator.objects.drain import Drain, Member

#: How many evacuations of a host are in progress at a time, unless the request says otherwise.
AT_ONCE = 4
#: The states of a guest that Nova evacuates.
_EVACUATED = ('active', 'stopped', 'error')
#: The tasks of a guest that its user has deleted.
_DELETING = ('deleting', 'soft-deleting')
#: The microversion from which on Nova leaves an evacuated guest shut off.
LEAVES_OFF = (2, 95)


@dataclasses.dataclass(frozen=True)
class Words:
    """What an operator has said about the evacuation of a host. The log of the drain keeps it.

    :ivar disks_are_shared: all hosts have the disks that are no volumes.
    :ivar rebuild_from_image: a guest whose root disk is no volume may begin again from its image.
    :ivar start: a guest that ran before is started. Nova starts one in ERROR in any case.
    """

    disks_are_shared: bool = False
    rebuild_from_image: bool = False
    start: bool = False

    def __str__(self) -> str:
        """Return the options that say the same."""
        said = [f'--{name.replace("_", "-")}' for name, is_said in dataclasses.asdict(self).items() if is_said]
        return ' '.join(said) or 'none of these options'

    @classmethod
    def of(cls, payload: dict[str, Any]) -> Words:
        """Return the words of an entry of the log."""
        return base.of_stored(cls, payload)


def loses(server: Server, words: Words) -> str:
    """Return what a guest loses by its evacuation, in words."""
    local = ' and '.join(
        name for name, size in (('ephemeral', server.flavor.ephemeral_gb), ('swap', server.flavor.swap)) if size
    )
    if words.disks_are_shared or (server.is_volume_backed and not local):
        return 'its memory'
    if server.is_volume_backed:
        return f'its memory and its {local} disk'
    return 'its memory and all of its local disks'


def obstacle(
    nova: Nova, server: Server, newest: NovaMigration | None, words: Words, service: Service | None
) -> Obstacle | None:
    """Return what is in the way of the evacuation of a guest.

    :param newest: its newest migration.
    :param service: the nova-compute of its host.
    """
    look, state, kind = look_at(service), server.vm_state, ObstacleKind.STATE
    if state == SOFTLY_DELETED:
        return Obstacle(kind, why_left(server.host or 'its host'), to_end(server))
    if server.task_state in _DELETING:
        return Obstacle(kind, f'It is being deleted ({server.task_state}).', '')
    if (move := _is_elsewhere(nova, server, newest, look)) is not None:
        return move
    if state not in _EVACUATED:
        reason = f'It is {state or server.status}, and Nova evacuates only guests that are active, stopped or in ERROR.'
        # In ERROR another one would lose what brings it back, or its old copy may be the right one.
        is_resettable = state in ('paused', 'suspended')
        remedy = remedies.offer(remedies.Kind.SET_ERROR, look, guest=server.uuid) if is_resettable else ''
        return Obstacle(kind, reason, remedy)
    if not (server.is_volume_backed or words.disks_are_shared or words.rebuild_from_image):
        reason = (
            'Its root disk is no volume. If the new host does not find it, Nova makes an empty one from the image, and '
            f'{server.host} deletes the old one when it is back.'
        )
        return Obstacle(ObstacleKind.IMMOVABLE, reason, remedies.offer(remedies.Kind.SAY_WHERE_DISKS_ARE))
    return None


def _is_elsewhere(
    nova: Nova, server: Server, newest: NovaMigration | None, look: Mapping[remedies.Reading, bool]
) -> Obstacle | None:
    """Return an obstacle if another host may run a guest, as its newest migration shows.

    A migration that has not ended may have moved the guest, or started it, whatever task Nova shows.
    """
    if newest is None:
        return None
    earlier = half_written(nova, server) if newest_move([newest]) is None or is_half_written(newest, server) else None
    if earlier is not None:
        return Obstacle(ObstacleKind.STATE, f'{forgotten(earlier, request_of(nova, earlier))}.', '')
    there, is_evacuation = newest.dest_compute, newest.type == EVACUATION.type
    if there == server.host or is_half_written(newest, server):
        return None
    if newest.status in ENDED:
        # Nova gives a live migration up that it can no longer abort, and undoes no start that has failed late.
        in_doubt = may_have_started(newest, server) if is_evacuation else newest.status == 'error'
        if there is None or not in_doubt:
            return None
    what = f'Its {newest.type} {newest.id} is {newest.status}'
    if there is None:
        # Nova may still choose a host for an evacuation. A source that was asked to move a guest away has died.
        is_of_this = is_evacuation and newest.source_compute == server.host
        return Obstacle(ObstacleKind.STATE, f'{what}, and has to end first.', '') if is_of_this else None
    remedy = remedies.offer(remedies.Kind.EVACUATE_ONCE_LOOKED, look, guest=server.uuid, host=there)
    return Obstacle(ObstacleKind.STATE, f'{what}, to {there}: {there} may run it.', remedy)


def unended(nova: Nova, host: str) -> list[NovaMigration]:
    """Return the evacuations from a host that have not ended.

    Nova destroys their guests and disks at the host when its nova-compute is started, wherever they are.
    """
    rows = nova.migrations(source=host, type=EVACUATION.type)
    return [row for row in rows if row.status not in ENDED]


def obstacles(nova: Nova, host: str, words: Words) -> Callable[[Server], Obstacle | None]:
    """Return a function that returns what is in the way of a guest of a host, as Nova shows it now."""
    service = service_of(nova, host)
    return lambda server: obstacle(nova, server, newest_of(nova, server), words, service)


def newest_of(nova: Nova, server: Server) -> NovaMigration | None:
    """Return the newest migration of a guest."""
    return next(iter(nova.migrations(instance_uuid=server.uuid, limit=1)), None)


class NovaEvacuations(NovaEngine):
    """The engine that evacuates the guests of a host which was declared down.

    :param words: what the operator has said.
    :param quiet_since: as from :func:`times`, of its nova-compute since it was declared down; None: it was not yet.
    :ivar stopped: why nothing more is requested.
    """

    kind = EVACUATION
    stays = 'It stays disabled and declared forced down until it is repaired.'
    again = 'Remove what is in the way, then type the same command again.'

    def __init__(self, *args: Any, words: Words, quiet_since: Mapping[str, str] | None = None) -> None:
        super().__init__(*args)
        self._words, self._quiet_since = words, quiet_since
        self.stopped: str | None = None
        self._source = ''
        self._given_up: set[str] = set()
        #: Guest -> what Nova has shown of it, and its newest migration then.
        self._newest: dict[str, tuple[Server, NovaMigration | None]] = {}

    def _guest(self, drain: Drain, server: Server, service: Service | None, home: Service | None = None) -> Guest:
        seen, newest = self._newest.get(server.uuid, (None, None))
        if seen != server:  # a migration that was requested meanwhile has changed the guest
            newest = newest_of(self._nova, server)
            self._newest[server.uuid] = server, newest
        found = obstacle(self._nova, server, newest, self._words, service)
        return Guest(server.uuid, server.name, server.host or '', server.flavor.memory_mb, found)

    def bound(self, drain: Drain) -> int:
        """Return how many evacuations may be in progress at a time."""
        return drain.parallel or AT_ONCE

    def check(self, drain: Drain, server: Server) -> None:
        """Check a guest.

        :raises Refused: it cannot be evacuated now.
        """
        service = self._service(server.host or '')
        found = obstacle(self._nova, server, newest_of(self._nova, server), self._words, service)
        if found is not None:
            raise Refused(found)

    def ask(self, drain: Drain, member: Member, host: str | None) -> str | None:
        """Request an evacuation, unless the guest has one that is newer than ``member.mark``."""
        self._source = drain.host
        return super().ask(drain, member, host)

    def request(self, uuid: str, host: str | None, is_cold: bool) -> str | None:
        """Send the request of an evacuation, if its host does not report.

        :raises migrator.nova.errors.HostReports: nova-compute may have reported since it was declared down.
        """
        services = records(self._nova, self._source)
        self._refuse_unknown(services)
        self.stopped = why_not_quiet(services, self._quiet_since)
        if self.stopped is not None:
            raise errors.HostReports(host=self._source, reason=self.stopped)
        self._nova.evacuate(uuid, host, self._words.start)
        return None

    def _refuse_unknown(self, services: Sequence[Service]) -> None:
        if any(one.status == 'UNKNOWN' for one in services):
            raise errors.NovaUnreachable(reason=f'the database of the cell of {self._source} does not answer')

    def abort(self, drain: Drain, member: Member) -> None:
        """Give an evacuation up, since Nova aborts none."""
        self._given_up.add(member.instance_uuid)

    def look(self, members: Sequence[Member]) -> dict[str, Move]:
        """Return the newest evacuation of each member."""
        found = super().look(members)
        reason = 'Nova may go on with its evacuation: look where it is.'
        return {
            uuid: Move(MoveState.CANCELLED, move.destination, reason)
            if uuid in self._given_up and move.state in (MoveState.PENDING, MoveState.RUNNING)
            else move
            for uuid, move in found.items()
        }

    def refusal(self, drain: Drain, server: Server, reason: str) -> Obstacle:
        """Return why Nova has refused to evacuate a guest."""
        look = look_at(self._service(server.host or ''))
        # An old Nova evacuates none with a task, and no task of a dead host ends.
        has_task = server.task_state is not None
        remedy = remedies.offer(remedies.Kind.SET_ERROR, look, guest=server.uuid) if has_task else ''
        return Obstacle(ObstacleKind.IMMOVABLE, f'Nova refuses to evacuate it: {reason}', remedy)

    def expected_ends(self, drain: Drain, members: Sequence[Member]) -> dict[str, dict[str, str]]:
        """Return nothing: how long an evacuation takes is not known."""
        return {}

    def disable(self, drain: Drain) -> bool:
        """Return False: the host was disabled when it was declared down, and this drain never enables it."""
        return False

    def check_empty(self, host: str) -> list[Check]:
        """Check whether Nova has a guest on the host.

        A list lacks the guests of a cell that does not answer. So each consumer of the host in Placement is looked at.
        """
        self._service(host)
        listed = {server.uuid: server for server in self._nova.servers(host)}
        nodes = [one.uuid for one in self._nova.hypervisors() if one.host == host]
        for uuid in sorted(holders(self._placement, nodes) - listed.keys()):
            server = self._nova.server(uuid)
            if server is not None and server.host in (host, None):
                listed[uuid] = server
        guests = [f'{one.name} ({one.uuid}, {one.status})' for one in listed.values()]
        return [Check('guests in Nova', few(guests))]


def records(nova: Nova, host: str) -> list[Service]:
    """Return the records of nova-compute of a host. Nova may keep an old one."""
    return [one for one in nova.services(host=host) if one.host == host]


def down(nova: Nova, host: str) -> list[Service]:
    """Return the records of nova-compute of a host that is shown as down.

    :raises migrator.nova.errors.HostReports: one of them is not shown as down.
    :raises migrator.nova.errors.NovaUnreachable: the database of its cell does not answer.
    """
    found = records(nova, host)
    if not found:
        remedy = remedies.offer(remedies.Kind.LIST_SERVICES)
        raise errors.HostReports(host=host, reason=f'Nova has no nova-compute there. {remedy} shows the hosts.')
    for service in found:
        if service.status == 'UNKNOWN':
            raise errors.NovaUnreachable(reason=f'the database of the cell of {host} does not answer')
        if not look_at(service).get(remedies.Reading.HOST_DOWN):
            since = f' (last report {service.updated_at:%H:%M:%S} UTC)' if service.updated_at else ''
            reason = (
                f'Nova shows its nova-compute as up{since}. It shows a host as down only about a minute after the last '
                'report: if the host has just died, wait, and try again. If it is not dead, drain it.'
            )
            raise errors.HostReports(host=host, reason=reason)
    return found


def times(services: Sequence[Service]) -> dict[str, str]:
    """Return the id of each record -> when it has reported, or was changed."""
    return {one.id: one.updated_at.isoformat() if one.updated_at is not None else '' for one in services}


def why_not_quiet(services: Sequence[Service], quiet_since: Mapping[str, str] | None) -> str | None:
    """Return why a host that was declared down may report again; None: it does not.

    :param quiet_since: as of :class:`NovaEvacuations`.
    """
    if quiet_since is None:
        return 'it was not declared forced down by this evacuation. Type the same command again.'
    if not services or not all(one.forced_down and one.state == 'down' for one in services):
        return 'Nova does not show its nova-compute as forced down any more. Type the same command again.'
    now = times(services)
    changed = sorted(now[key] for key in now if now[key] != quiet_since.get(key))
    if changed or now.keys() != quiet_since.keys():
        return (
            f'its nova-compute has reported, or its record was changed otherwise, at '
            f'{" and ".join(changed) or "an unknown time"}. Fence the host, then type the same command again.'
        )
    return None
