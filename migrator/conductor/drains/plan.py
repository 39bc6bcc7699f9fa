# SPDX-License-Identifier: Apache-2.0

"""The plan of a drain: which guests can move, where they would go, and what is in the way.

The plan reads the candidates and the free room from Placement once for each flavor, and subtracts the room that its own
guests would use. Other requests may use that room meanwhile. The conductor chooses each destination again when it moves
the guest.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from migrator.conductor.drains.engine import obstacle
from migrator.conductor.migration import destinations
from migrator.db.api import Database
from migrator.db.services import Place
from migrator.drain.engine import Obstacle, ObstacleKind
from migrator.objects import Flavor, Instance
from migrator.objects.drain import Drain, Member, place
from migrator.placement_client import candidates
from migrator.placement_client.client import PlacementClient

#: The greatest number of hosts whose reasons a remedy names.
_NAMED = 5


def plan(database: Database, client: PlacementClient, drain: Drain) -> dict[str, Any]:
    """Return the plan of a drain as JSON.

    :returns: ``host``; ``guests``, each with ``instance_uuid``, ``name``, ``size_mb``, ``can_move``, ``destination``
        and ``obstacle`` (``kind``, ``reason``, ``remedy``, or null); ``can_move`` and ``cannot_move``, the numbers of
        guests.
    :raises migrator.exception.PlacementUnreachable: Placement did not answer.
    """
    found = sorted(database.instances.list({'host': drain.host}), key=lambda instance: instance.id)
    members = {
        one.uuid: Member(instance_uuid=one.uuid, name=one.name, position=number, size_mb=one.flavor.memory_mb)
        for number, one in enumerate(found)
    }
    found.sort(key=lambda instance: place(drain, members[instance.uuid]))
    rooms = _Rooms(database, client, drain, found[0].uuid if found else '')
    immovable = database.definitions.immovable(drain.host)
    guests = [_planned(instance, rooms, immovable.get(instance.uuid)) for instance in found]
    can_move = sum(guest['can_move'] for guest in guests)
    return {'host': drain.host, 'guests': guests, 'can_move': can_move, 'cannot_move': len(guests) - can_move}


def _planned(instance: Instance, rooms: _Rooms, immovable: str | None) -> dict[str, Any]:
    """Return the plan of a guest.

    :param immovable: what of it its hypervisor cannot move, as last reported.
    """
    in_the_way, destination = obstacle(instance), None
    if immovable is not None and (in_the_way is None or in_the_way.kind == ObstacleKind.BUSY):
        remedy = 'The host reports this once an hour. A drain asks it again.'
        in_the_way = Obstacle(ObstacleKind.IMMOVABLE, f'It cannot be moved live: {immovable}.', remedy)
    if in_the_way is None or in_the_way.kind == ObstacleKind.BUSY:
        destination = rooms.take(instance.flavor)
        if destination is None:
            in_the_way = rooms.why_none(instance.flavor)
    return {
        'instance_uuid': instance.uuid,
        'name': instance.name,
        'size_mb': instance.flavor.memory_mb,
        'can_move': destination is not None,
        'destination': destination,
        'obstacle': dataclasses.asdict(in_the_way) if in_the_way is not None else None,
    }


class _Rooms:
    """The free room on the hosts that may receive the guests, less what the plan has given out.

    :param guest: the uuid of one of the guests.
    """

    def __init__(self, database: Database, client: PlacementClient, drain: Drain, guest: str) -> None:
        self._database, self._client, self._drain, self._guest = database, client, drain, guest
        #: Provider -> resource class -> the free amount.
        self._free: dict[str, dict[str, int]] = {}
        self._planned: collections.Counter[str] = collections.Counter()
        self._by_flavor: dict[str, _Choices] = {}

    def _choices(self, flavor: Flavor) -> _Choices:
        key = repr((sorted(flavor.resource_groups().items()), flavor.group_policy))
        if key not in self._by_flavor:
            found, free = candidates.get_candidates_with_room(self._client, flavor)
            for provider, amounts in free.items():
                self._free.setdefault(provider, amounts)
            by_root = candidates.by_compute_root(found)
            # A guest of the host stands for the hypervisor that all of them leave.
            places = self._database.services.places(self._guest, uuids=list(by_root))
            refused = {one.host: why for one in places if (why := self._why_not(one)) is not None}
            usable = {one.host: by_root[one.uuid] for one in places if one.host not in refused}
            self._by_flavor[key] = _Choices(usable, refused, sorted((0, host) for host in usable))
        return self._by_flavor[key]

    def _why_not(self, one: Place) -> str | None:
        service, only = one.service, self._drain.destinations
        if one.host == self._drain.host:
            return 'it is the host to empty'
        if only is not None and one.host not in only:
            return 'it is not among the destinations of the drain'
        if service.forced_down or service.last_seen_up is None or service.down_since is not None:
            return 'it is down'
        refusal = destinations.refusal_of_hypervisor(one, self._drain.host)
        if refusal is not None:
            return refusal.message
        if service.disabled:
            return 'it is disabled' + (f' ({service.disabled_reason})' if service.disabled_reason else '')
        return None

    def take(self, flavor: Flavor) -> str | None:
        """Return the host with room for a flavor that has the fewest planned guests; None: none has room."""
        choices = self._choices(flavor)
        while choices.order:
            number, host = choices.order[0]
            if number != self._planned[host]:
                heapq.heapreplace(choices.order, (self._planned[host], host))
                continue
            amounts = next((one.allocations for one in choices.usable[host] if self._fits(one.allocations)), None)
            if amounts is None:
                heapq.heappop(choices.order)  # its room only gets less
                continue
            for provider, used in amounts.items():
                for name, amount in used.items():
                    self._free[provider][name] -= amount
            self._planned[host] += 1
            return host
        return None

    def _fits(self, amounts: Mapping[str, Mapping[str, int]]) -> bool:
        return all(
            self._free[provider].get(name, 0) >= amount
            for provider, used in amounts.items()
            for name, amount in used.items()
        )

    def why_none(self, flavor: Flavor) -> Obstacle:
        """Return why no host can take a guest of a flavor."""
        choices = self._choices(flavor)
        if choices.usable:
            short = self._short(flavor, choices.usable.values())
            return _no_destination(
                f'The guests before it in the plan use the room of all {len(choices.usable)} usable hosts{short}.',
                'Enable or add hosts, or drain fewer hosts at a time.',
            )
        if choices.refused:
            shown = [f'{host}: {why}' for host, why in sorted(choices.refused.items()) if host != self._drain.host]
            more = f'; and {len(shown) - _NAMED} more' if len(shown) > _NAMED else ''
            if shown:
                whys = '; '.join(shown[:_NAMED]) + more
                remedy = 'Enable one of them, start its service, or allow it as a destination; or add a host.'
                return _no_destination(f'No host with room can take it: {whys}.', remedy)
        missing = self._missing(flavor)
        return _no_destination(f'Placement has no room for it on another host: {missing}.', 'Free room, or add a host.')

    def _short(self, flavor: Flavor, usable: Iterable[Sequence[candidates.Candidate]]) -> str:
        """Return in words what the guest lacks at the host that comes nearest to having room for it."""
        best: tuple[float, str] | None = None
        for there in usable:
            for one in there:
                wanted = [(name, n, at) for at, used in one.allocations.items() for name, n in used.items()]
                lacks = [(name, n - self._free[at].get(name, 0), n) for name, n, at in wanted]
                lacks = [(name, lack, n) for name, lack, n in lacks if lack > 0]
                share = sum(lack / n for _, lack, n in lacks)
                if lacks and (best is None or share < best[0]):
                    best = share, ' and '.join(f'{lack} {name}' for name, lack, _ in sorted(lacks))
        return f'; the nearest is short of {best[1]}' if best is not None else ''

    def _missing(self, flavor: Flavor) -> str:
        """Return in words of which resource class no other host has enough room."""
        wanted = flavor.resources()
        short = []
        for name, amount in sorted(wanted.items()):
            free = candidates.get_largest_free(self._client, name, amount, self._drain_roots())
            if free < amount:
                short.append(f'{name}: {amount} needed, and the most that a host has free is {free}')
        together = ', '.join(f'{amount} {name}' for name, amount in sorted(wanted.items()))
        return '; '.join(short) or f'no single host has {together} free'

    def _drain_roots(self) -> set[str]:
        return {node.uuid for node in self._database.services.list_nodes(host=self._drain.host)}


@dataclasses.dataclass
class _Choices:
    """The hosts for one flavor.

    :ivar usable: host -> its candidates.
    :ivar refused: host -> why it is no destination.
    :ivar order: a heap of (planned guests, host) of the hosts that may still have room.
    """

    usable: dict[str, list[candidates.Candidate]]
    refused: dict[str, str]
    order: list[tuple[int, str]]


def _no_destination(reason: str, remedy: str) -> Obstacle:
    return Obstacle(ObstacleKind.NO_DESTINATION, reason, remedy)
