# SPDX-License-Identifier: Apache-2.0

"""The engine that evacuates the guests of a dead host of a stock Nova, and what each guest loses.

Nova believes each administrator who declares a host down. It rebuilds a guest without a volume from its image, unless
the new host finds its disks, and the old host deletes them when it is back. So nothing is requested unless the host is
known to be fenced, the loss of each guest was accepted, and nova-compute has not reported since it was declared down.
Each report of a service, and each change of it, gives it a new ``updated_at``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from migrator.drain.engine import Check, Guest, Obstacle, ObstacleKind, Refused
from migrator.nova import errors
from migrator.nova.client import Nova
from migrator.nova.engine import ENDED, NovaEngine, few, forgotten, is_half_written
from migrator.nova.guests import SOFTLY_DELETED, look_at, service_of, to_end, why_left
from migrator.nova.resources import NovaMigration, Server, Service
from migrator.objects import base, remedies
from migrator.objects.drain import Drain, Member

#: How many evacuations of a host are in progress at a time, unless the request says otherwise.
AT_ONCE = 4
#: The states of a guest that Nova evacuates.
_EVACUATED = ('active', 'stopped', 'error')
_ROWS = 200
#: The microversion from which on Nova leaves an evacuated guest shut off.
LEAVES_OFF = (2, 95)


@dataclasses.dataclass(frozen=True)
class Words:
    """What an operator has said about the evacuation of a host. The log of the drain keeps it.

    :ivar disks_are_shared: all hosts have the disks that are no volumes.
    :ivar rebuild_from_image: a guest whose root disk is no volume may begin again from its image.
    :ivar start: a guest that ran before is started.
    """

    disks_are_shared: bool = False
    rebuild_from_image: bool = False
    start: bool = False

    def __str__(self) -> str:
        """Return the options that say the same."""
        said = [f'--{name.replace("_", "-")}' for name, is_said in dataclasses.asdict(self).items() if is_said]
        return ' '.join(said) or 'no options'

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


def obstacle(server: Server, newest: NovaMigration | None, words: Words, service: Service | None) -> Obstacle | None:
    """Return what is in the way of the evacuation of a guest.

    :param newest: its newest migration.
    :param service: the nova-compute of its host.
    """
    look = look_at(service)
    if server.vm_state == SOFTLY_DELETED:
        return Obstacle(ObstacleKind.STATE, why_left(server.host or 'its host'), to_end(server))
    if newest is not None and is_half_written(newest, server):
        return Obstacle(ObstacleKind.STATE, f'{forgotten(newest)}.', '')
    if newest is not None and newest.status not in ENDED and newest.type != NovaEvacuations.type:
        there = newest.dest_compute
        if server.task_state is not None and there is not None:
            reason = f'Its {newest.type} {newest.id} to {there} was in progress: {there} may run it.'
            remedy = remedies.offer(remedies.Kind.EVACUATE_ONCE_LOOKED, look, guest=server.uuid, host=there)
            return Obstacle(ObstacleKind.STATE, reason, remedy)
    if server.vm_state not in _EVACUATED:
        reason = (
            f'It is {server.vm_state or server.status}, and Nova evacuates only guests that are active, stopped or '
        )
        remedy = remedies.offer(remedies.Kind.SET_ERROR, look, guest=server.uuid)
        # The old copy of a guest that waits for its user may be the right one.
        remedy = '' if server.vm_state == 'resized' else remedy
        return Obstacle(ObstacleKind.STATE, f'{reason}in ERROR.', remedy)
    if not (server.is_volume_backed or words.disks_are_shared or words.rebuild_from_image):
        reason = (
            'Its root disk is no volume. If the new host does not find it, Nova makes an empty one from the image, and '
            f'{server.host} deletes the old one when it is back.'
        )
        return Obstacle(ObstacleKind.IMMOVABLE, reason, remedies.offer(remedies.Kind.SAY_WHERE_DISKS_ARE))
    return None


def obstacles(nova: Nova, host: str, words: Words) -> Callable[[Server], Obstacle | None]:
    """Return a function that returns what is in the way of a guest of a host, as Nova shows it now."""
    newest, service = _newest(nova, host), service_of(nova, host)
    return lambda server: obstacle(server, newest.get(server.uuid), words, service)


def _newest(nova: Nova, host: str) -> dict[str, NovaMigration]:
    """Return guest -> its newest migration from or to a host."""
    found: dict[str, NovaMigration] = {}
    for row in nova.migrations(host=host, limit=_ROWS):
        found.setdefault(row.instance_uuid, row)
    return found


class NovaEvacuations(NovaEngine):
    """The engine that evacuates the guests of a host which was declared down.

    :param words: what the operator has said.
    :param quiet_since: the ``updated_at`` of its nova-compute since it was declared down; None: it was not yet.
    :ivar stopped: why nothing more is requested.
    """

    type, action, task, needs_source = 'evacuation', 'evacuate', 'rebuilding', False

    def __init__(self, *args: Any, words: Words, quiet_since: str | None = None) -> None:
        super().__init__(*args)
        self._words, self._quiet_since = words, quiet_since
        self.stopped: str | None = None
        #: Guest -> its newest migration from or to the host.
        self._newest: Mapping[str, NovaMigration] = {}

    def guests(self, drain: Drain) -> list[Guest]:
        """Return the guests of a drain's host, the oldest first."""
        self._newest = _newest(self._nova, drain.host)
        return super().guests(drain)

    def _guest(self, server: Server, service: Service | None, home: Service | None = None) -> Guest:
        found = obstacle(server, self._newest.get(server.uuid), self._words, service)
        return Guest(server.uuid, server.name, server.host or '', server.flavor.memory_mb, found)

    def bound(self, drain: Drain) -> int:
        """Return how many evacuations may be in progress at a time."""
        return drain.parallel or AT_ONCE

    def check(self, server: Server) -> None:
        """Check a guest, and that its host does not report.

        :raises Refused: it cannot be evacuated now.
        :raises migrator.nova.errors.HostReports: nova-compute may have reported since it was declared down.
        """
        newest = next(iter(self._nova.migrations(instance_uuid=server.uuid, limit=1)), None)
        service = self._service(server.host or '')
        found = obstacle(server, newest, self._words, service)
        if found is not None:
            raise Refused(found)
        self.stopped = why_not_quiet(service, self._quiet_since)
        if self.stopped is not None:
            raise errors.HostReports(host=server.host, reason=self.stopped)

    def request(self, uuid: str, host: str | None) -> None:
        """Send the request of an evacuation."""
        self._nova.evacuate(uuid, host, self._words.start)

    def expected_ends(self, drain: Drain, members: Sequence[Member]) -> dict[str, dict[str, str]]:
        """Return nothing: how long an evacuation takes is not known."""
        return {}

    def check_empty(self, host: str) -> list[Check]:
        """Check whether Nova has a guest on the host. What it holds in Placement is released when it is back."""
        guests = [f'{one.name} ({one.uuid}, {one.status})' for one in self._nova.servers(host)]
        return [Check('guests in Nova', few(guests))]


def down(nova: Nova, host: str) -> Service:
    """Return the nova-compute of a host that is shown as down.

    :raises migrator.nova.errors.HostReports: it is not shown as down, also not one of several records.
    :raises migrator.nova.errors.NovaUnreachable: the database of its cell does not answer.
    """
    found = [one for one in nova.services(host=host) if one.host == host]
    if not found:
        remedy = remedies.offer(remedies.Kind.LIST_SERVICES)
        raise errors.HostReports(host=host, reason=f'Nova has no nova-compute there. {remedy} shows the hosts.')
    for service in found:
        if service.status == 'UNKNOWN':
            raise errors.NovaUnreachable(reason=f'the database of the cell of {host} does not answer')
        if not look_at(service).get(remedies.Reading.HOST_DOWN):
            since = f', most recently at {service.updated_at:%H:%M:%S} UTC' if service.updated_at else ''
            reason = f'its nova-compute reports{since}. Move its guests live: they run.'
            raise errors.HostReports(host=host, reason=reason)
    return found[0]


def why_not_quiet(service: Service | None, quiet_since: str | None) -> str | None:
    """Return why a host that was declared down may report again; None: it does not.

    :param quiet_since: as of :class:`NovaEvacuations`.
    """
    if quiet_since is None:
        return 'it was not declared down by this evacuation.'
    if service is None or not (service.forced_down and service.state == 'down'):
        shown = service.state or service.status if service is not None else 'no longer'
        return f'Nova shows its nova-compute as {shown}, and not as forced down.'
    now = shown_time(service)
    if now != quiet_since:
        return (
            f'its nova-compute was last changed at {now}, and not at {quiet_since}, when it was declared down: it '
            'reports, or its record was changed otherwise. Fence the host, and begin again.'
        )
    return None


def shown_time(service: Service) -> str:
    """Return when a service has reported, or was changed."""
    return service.updated_at.isoformat() if service.updated_at is not None else 'an unknown time'
