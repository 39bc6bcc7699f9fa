# SPDX-License-Identifier: Apache-2.0

"""The plan of a drain: which guests can move, where they would go, and what is in the way.

A plan reads the candidates and the free room from Placement once for each flavor, and subtracts the room that its own
guests would use. Other requests may use that room meanwhile. The conductor chooses each destination again when it moves
the guest.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from migrator import forecast
from migrator.conductor.drains.engine import obstacle
from migrator.conductor.migration import destinations
from migrator.db.api import Database
from migrator.db.services import Place
from migrator.db.slots import Bounds
from migrator.drain.engine import Obstacle, ObstacleKind
from migrator.objects import Flavor, Instance
from migrator.objects.drain import Drain, Member, place
from migrator.placement_client import candidates
from migrator.placement_client.client import PlacementClient

#: The greatest number of hosts whose reasons a remedy names.
_NAMED = 5


def plan(database: Database, client: PlacementClient, drain: Drain, bounds: Bounds) -> dict[str, Any]:
    """Return the plan of a drain as JSON.

    :param bounds: those of the site.
    :returns: ``host``; ``guests``, each with ``instance_uuid``, ``name``, ``size_mb``, ``can_move``, ``destination``,
        ``obstacle`` (``kind``, ``reason``, ``remedy``, or null) and ``expected_seconds`` (how long its copy takes:
        ``p50`` and ``p80``, or null); ``can_move`` and ``cannot_move``, the numbers of guests; ``expected_seconds`` of
        the whole drain.
    :raises migrator.exception.PlacementUnreachable: Placement did not answer.
    """
    return plan_together(database, client, [drain], bounds)[0]


def plan_together(
    database: Database, client: PlacementClient, drains: Sequence[Drain], bounds: Bounds
) -> list[dict[str, Any]]:
    """Return the plans of drains that would run at the same time, in their order; see :func:`plan`.

    None sends a guest to the host of another one, and the guests of all of them use the same room.
    """
    rooms = _Rooms(database, client, {drain.host for drain in drains})
    chosen = [list(_choose(database, rooms, drain)) for drain in drains]
    # Why a guest has no destination is known once the room is given out.
    documents = [_document(drain, rooms, guests) for drain, guests in zip(drains, chosen, strict=True)]
    now, limits, past = database.slots.recorded([drain.host for drain in drains])
    for drain, found in zip(drains, documents, strict=True):
        outlook = forecast.Outlook(now, bounds.at_once(limits.get(drain.host, 1)), past)
        sizes = {guest['instance_uuid']: guest['size_mb'] for guest in found['guests'] if guest['can_move']}
        found['expected_seconds'], each = forecast.of_plan(outlook, drain, sizes)
        for guest in found['guests']:
            guest['expected_seconds'] = each.get(guest['instance_uuid'])
    return documents


def _choose(database: Database, rooms: _Rooms, drain: Drain) -> Iterator[tuple[Instance, Obstacle | None, str | None]]:
    """Yield the guests of a drain in their order, each with what is in the way and its destination."""
    found = sorted(database.instances.list({'host': drain.host}), key=lambda instance: instance.id)
    members = {
        one.uuid: Member(instance_uuid=one.uuid, name=one.name, position=number, size_mb=one.flavor.memory_mb)
        for number, one in enumerate(found)
    }
    found.sort(key=lambda instance: place(drain, members[instance.uuid]))
    immovable = database.definitions.immovable(drain.host)
    for instance in found:
        in_the_way = obstacle(instance)
        if in_the_way is None or in_the_way.kind == ObstacleKind.BUSY:
            reported = immovable.get(instance.uuid)
            if reported is not None:
                remedy = 'The host reports this once an hour. A drain asks it again.'
                in_the_way = Obstacle(ObstacleKind.IMMOVABLE, f'It cannot be moved live: {reported}.', remedy)
            else:
                yield instance, in_the_way, rooms.take(drain, instance.flavor)
                continue
        yield instance, in_the_way, None


def _document(
    drain: Drain, rooms: _Rooms, chosen: Sequence[tuple[Instance, Obstacle | None, str | None]]
) -> dict[str, Any]:
    guests = []
    for instance, in_the_way, destination in chosen:
        if destination is None and (in_the_way is None or in_the_way.kind == ObstacleKind.BUSY):
            in_the_way = rooms.why_none(drain, instance.flavor)
        guests.append(
            {
                'instance_uuid': instance.uuid,
                'name': instance.name,
                'size_mb': instance.flavor.memory_mb,
                'can_move': destination is not None,
                'destination': destination,
                'obstacle': dataclasses.asdict(in_the_way) if in_the_way is not None else None,
            }
        )
    can_move = sum(bool(guest['can_move']) for guest in guests)
    return {'host': drain.host, 'guests': guests, 'can_move': can_move, 'cannot_move': len(guests) - can_move}


class _Rooms:
    """The free room on the hosts that may receive the guests, less what the plan has given out.

    :param hosts: the hosts to empty.
    """

    def __init__(self, database: Database, client: PlacementClient, hosts: Collection[str]) -> None:
        self._database, self._client, self._hosts = database, client, hosts
        #: All hosts with a hypervisor.
        self._places = {one.host: one for one in database.services.places('')}
        self._at = {one.uuid: one for one in self._places.values()}
        #: Provider -> resource class -> the free amount.
        self._free: dict[str, dict[str, int]] = {}
        self._planned: collections.Counter[str] = collections.Counter()
        #: What of a flavor counts -> root provider -> its candidates.
        self._candidates: dict[object, dict[str, list[candidates.Candidate]]] = {}
        self._by_request: dict[tuple[object, ...], _Choices] = {}

    def _choices(self, drain: Drain, flavor: Flavor) -> _Choices:
        specs = tuple(sorted(flavor.extra_specs.items()))
        wanted = (flavor.vcpus, flavor.memory_mb, flavor.root_gb, flavor.ephemeral_gb, flavor.swap, specs)
        source, only = self._places.get(drain.host), drain.destinations
        key = (wanted, source and source.hypervisor, only and frozenset(only))
        if key not in self._by_request:
            refused: dict[str, str] = {}
            usable: dict[str, list[candidates.Candidate]] = {}
            for root, there in self._candidates_of(wanted, flavor).items():
                one = self._at.get(root)
                if one is None:
                    continue
                why = self._why_not(one, drain, source)
                if why is None:
                    usable[one.host] = there
                else:
                    refused[one.host] = why
            self._by_request[key] = _Choices(usable, refused, sorted((0, host) for host in usable))
        return self._by_request[key]

    def _candidates_of(self, wanted: object, flavor: Flavor) -> dict[str, list[candidates.Candidate]]:
        if wanted not in self._candidates:
            found, free = candidates.get_candidates_with_room(self._client, flavor)
            for provider, amounts in free.items():
                self._free.setdefault(provider, amounts)
            self._candidates[wanted] = candidates.by_compute_root(found)
        return self._candidates[wanted]

    def _why_not(self, one: Place, drain: Drain, source: Place | None) -> str | None:
        service, only = one.service, drain.destinations
        if one.host in self._hosts:
            return 'its own drain is planned'
        if only is not None and one.host not in only:
            return 'it is not among the destinations of the drain'
        if service.forced_down or service.last_seen_up is None or service.down_since is not None:
            return 'it is down'
        if source is not None:
            seen = dataclasses.replace(one, source_hypervisor=source.hypervisor)
            refusal = destinations.refusal_of_hypervisor(seen, drain.host)
            if refusal is not None:
                return refusal.message
        if service.disabled:
            return 'it is disabled' + (f' ({service.disabled_reason})' if service.disabled_reason else '')
        return None

    def take(self, drain: Drain, flavor: Flavor) -> str | None:
        """Return the host with room for a flavor that has the fewest planned guests; None: none has room."""
        choices = self._choices(drain, flavor)
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

    def why_none(self, drain: Drain, flavor: Flavor) -> Obstacle:
        """Return why no host can take a guest of a flavor, once all room is given out."""
        choices = self._choices(drain, flavor)
        if choices.why_none is None:
            choices.why_none = self._find_why_none(choices, flavor)
        return choices.why_none

    def _find_why_none(self, choices: _Choices, flavor: Flavor) -> Obstacle:
        if choices.usable:
            short = self._short(flavor, choices.usable.values())
            return _no_destination(
                f'The guests before it in the plan use the room of all {len(choices.usable)} usable hosts{short}.',
                'Enable or add hosts, or drain fewer hosts at a time.',
            )
        if choices.refused:
            shown = [f'{host}: {why}' for host, why in sorted(choices.refused.items()) if host not in self._hosts]
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
        return {one.uuid for host, one in self._places.items() if host in self._hosts}


@dataclasses.dataclass
class _Choices:
    """The hosts for one flavor.

    :ivar usable: host -> its candidates.
    :ivar refused: host -> why it is no destination.
    :ivar order: a heap of (planned guests, host) of the hosts that may still have room.
    :ivar why_none: why none of them has room.
    """

    usable: dict[str, list[candidates.Candidate]]
    refused: dict[str, str]
    order: list[tuple[int, str]]
    why_none: Obstacle | None = None


def _no_destination(reason: str, remedy: str) -> Obstacle:
    return Obstacle(ObstacleKind.NO_DESTINATION, reason, remedy)
