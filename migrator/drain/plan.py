# SPDX-License-Identifier: Apache-2.0

"""The part of a plan that all engines share: the room in Placement, given out guest by guest.

A plan of drains asks for the candidates and the free room once for each flavor, and subtracts the room that its own
guests would use. Other requests may use that room meanwhile.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import types
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from migrator import exception
from migrator.drain import forecast
from migrator.drain.engine import Guest, Obstacle, ObstacleKind
from migrator.objects import MigrationType
from migrator.objects.drain import Drain, Member, place
from migrator.objects.request import Request

#: The amounts of a guest or a host: provider -> resource class -> the amount.
Amounts = Mapping[str, Mapping[str, int]]

_TYPE = MigrationType
#: The greatest number of hosts whose reasons a remedy names.
_NAMED = 5


class Placement(Protocol):
    """The room as a plan asks for it."""

    def candidates(self, request: Request) -> tuple[Mapping[str, Sequence[Amounts]], Amounts]:
        """Return the candidates for a guest, and the free amounts of their providers.

        :returns: root provider -> the allocations of each candidate; and provider -> resource class -> amount.
        :raises migrator.exception.PlacementRefused: such as an unknown trait.
        """

    def lacks(self, request: Request) -> Lacks:
        """Return what the hosts lack that are no candidates."""


class Lacks(Protocol):
    """What hosts lack for a guest."""

    def of(self, root: str) -> str:
        """Return in words what the tree of a root provider lacks."""


@dataclasses.dataclass(frozen=True)
class Need:
    """What a guest needs of its destination.

    :ivar request: what Placement is asked for.
    :ivar only: the hosts that may receive it; None: any.
    :ivar limits: what else restricts its hosts. Guests with equal requests, hosts and limits share one answer.
    :ivar why_not: returns why a host is no destination for it; None: it is one.
    :ivar rank: returns the rank of a host; those with the lowest rank are taken first.
    """

    request: Request
    only: Sequence[str] | None
    limits: Hashable
    why_not: Callable[[str], str | None]
    rank: Callable[[str], tuple[int, ...]] = lambda host: ()


@dataclasses.dataclass(frozen=True)
class Choice:
    """A guest of a plan.

    :ivar obstacle: what is in its way, besides a lack of room.
    :ivar destination: None: there is none, or an obstacle keeps it from moving.
    """

    guest: Guest
    need: Need
    obstacle: Obstacle | None
    destination: str | None


@dataclasses.dataclass(frozen=True)
class Copy:
    """What keeps a host from being empty, and no drain moves: it stays until a user decides.

    It is the old copy of a guest that waits in VERIFY_RESIZE, or a guest that a user has deleted and may restore.

    :ivar guest_on: the host that the guest is on.
    :ivar reason: what it is.
    :ivar remedy: what its user can do.
    """

    instance_uuid: str
    name: str
    guest_on: str
    reason: str
    remedy: str


def in_order(drain: Drain, guests: Iterable[Guest]) -> list[Guest]:
    """Return guests in the order in which a drain moves them."""
    members = [
        (Member(instance_uuid=one.uuid, position=number, size_mb=one.size_mb), one) for number, one in enumerate(guests)
    ]
    return [one for _, one in sorted(members, key=lambda both: place(drain, both[0]))]


def documents(
    rooms: Rooms,
    drains: Sequence[Drain],
    chosen: Sequence[Sequence[Choice]],
    copies: Mapping[str, Sequence[Copy]],
    outlook_of: Callable[[Drain], forecast.Outlook],
    not_judged: Mapping[str, Sequence[str]] = types.MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return the plans of drains as JSON, once all room is given out.

    :param chosen: the guests of each drain, in their order.
    :param copies: host -> the old copies that keep it from being empty.
    :param not_judged: host -> what may keep its guests from moving, and could not be judged.
    :returns: for each drain ``host``; ``guests``, each with ``instance_uuid``, ``name``, ``size_mb``, ``can_move``,
        ``destination``, ``migration_type``, ``obstacle`` (``kind``, ``reason``, ``remedy``, or null) and
        ``expected_seconds`` (how long its copy takes: ``p50`` and ``p80``, or null); ``can_move`` and ``cannot_move``,
        the numbers of guests; ``locked``, how many of all are locked; ``copies``, each with the fields of
        :class:`Copy`; ``not_judged``, sentences; ``expected_seconds`` of the whole drain, null if one is moved while
        it is shut off.
    """
    outlooks = [dataclasses.replace(outlook_of(drain), share=len(drains)) for drain in drains]
    return [
        _document(rooms, drain, guests, outlook)
        | {'copies': [dataclasses.asdict(copy) for copy in copies.get(drain.host, ())]}
        | {'not_judged': list(not_judged.get(drain.host, ()))}
        for drain, guests, outlook in zip(drains, chosen, outlooks, strict=True)
    ]


def _document(rooms: Rooms, drain: Drain, chosen: Sequence[Choice], outlook: forecast.Outlook) -> dict[str, Any]:
    can_move = [one.guest for one in chosen if one.destination is not None]
    sizes = {guest.uuid: guest.size_mb for guest in can_move if not guest.is_cold}
    whole, each = forecast.of_plan(outlook, drain, sizes)
    guests = []
    for one in chosen:
        in_the_way = one.obstacle
        if one.destination is None and (in_the_way is None or in_the_way.kind == ObstacleKind.BUSY):
            in_the_way = rooms.why_none(one.need)
        guests.append(
            {
                'instance_uuid': one.guest.uuid,
                'name': one.guest.name,
                'size_mb': one.guest.size_mb,
                'can_move': one.destination is not None,
                'destination': one.destination,
                'migration_type': (_TYPE.MIGRATION if one.guest.is_cold else _TYPE.LIVE_MIGRATION).value,
                'obstacle': dataclasses.asdict(in_the_way) if in_the_way is not None else None,
                'expected_seconds': each.get(one.guest.uuid),
            }
        )
    return {
        'host': drain.host,
        'guests': guests,
        'can_move': len(can_move),
        'cannot_move': len(guests) - len(can_move),
        'locked': sum(one.guest.is_locked for one in chosen),
        'expected_seconds': whole if len(sizes) == len(can_move) else None,
    }


class Rooms:
    """The free room on the hosts that may receive guests, less what has been given out.

    :param hosts: the root provider of each host that has one -> the host.
    :param drained: the hosts to empty.
    """

    def __init__(self, placement: Placement, hosts: Mapping[str, str], drained: Collection[str]) -> None:
        self._placement, self._hosts, self._drained = placement, hosts, drained
        #: Provider -> resource class -> the free amount.
        self._free: dict[str, dict[str, int]] = {}
        self._planned: collections.Counter[str] = collections.Counter()
        #: What Placement is asked for -> root provider -> the allocations of its candidates.
        self._candidates: dict[Hashable, Mapping[str, Sequence[Amounts]]] = {}
        #: What Placement is asked for -> why it refuses the request itself.
        self._refusals: dict[Hashable, str] = {}
        self._by_need: dict[Hashable, _Choices] = {}

    def _choices(self, need: Need) -> _Choices:
        key = (need.request, need.only and frozenset(need.only), need.limits)
        if key not in self._by_need:
            refused: dict[str, str] = {}
            usable: dict[str, Sequence[Amounts]] = {}
            for root, there in self._candidates_of(need).items():
                host = self._hosts.get(root)
                if host is None:
                    continue
                why = self._why_not(need, host)
                if why is None:
                    usable[host] = there
                else:
                    refused[host] = why
            ranks = {host: need.rank(host) for host in usable}
            order = sorted((ranks[host], self._planned[host], host) for host in usable)
            self._by_need[key] = _Choices(usable, refused, order)
        return self._by_need[key]

    def _candidates_of(self, need: Need) -> Mapping[str, Sequence[Amounts]]:
        if need.request not in self._candidates:
            self._candidates[need.request] = {}
            try:
                found, free = self._placement.candidates(need.request)
            except exception.PlacementRefused as error:  # such as an unknown trait
                self._refusals[need.request] = error.message
            else:
                for provider, amounts in free.items():
                    self._free.setdefault(provider, dict(amounts))
                self._candidates[need.request] = found
        return self._candidates[need.request]

    def _why_not(self, need: Need, host: str) -> str | None:
        if host in self._drained:
            return 'its own drain is planned'
        if need.only is not None and host not in need.only:
            return 'it is not among the destinations of the drain'
        return need.why_not(host)

    def take(self, need: Need) -> str | None:
        """Return the host with room for a guest that has the fewest planned guests; None: none has room."""
        choices = self._choices(need)
        while choices.order:
            rank, number, host = choices.order[0]
            if number != self._planned[host]:
                heapq.heapreplace(choices.order, (rank, self._planned[host], host))
                continue
            amounts = self._fitting(choices, host)
            if amounts is None:
                heapq.heappop(choices.order)  # its room only gets less
                continue
            for provider, used in amounts.items():
                for name, amount in used.items():
                    self._free[provider][name] -= amount
            self._planned[host] += 1
            return host
        return None

    def _fitting(self, choices: _Choices, host: str) -> Amounts | None:
        """Return the first allocations for which a host still has room."""
        return next((one for one in choices.usable[host] if self._fits(one)), None)

    def _fits(self, amounts: Amounts) -> bool:
        return all(
            self._free[provider].get(name, 0) >= amount
            for provider, used in amounts.items()
            for name, amount in used.items()
        )

    def has_any(self, need: Need) -> bool:
        """Return whether a host has room for a guest."""
        choices = self._choices(need)
        return any(self._fitting(choices, host) is not None for host in choices.usable)

    def why_none(self, need: Need) -> Obstacle:
        """Return why no host can take a guest, once all room is given out."""
        choices = self._choices(need)
        if choices.why_none is None:
            choices.why_none = self._find_why_none(choices, need)
        return choices.why_none

    def _find_why_none(self, choices: _Choices, need: Need) -> Obstacle:
        if choices.usable:
            short = self._short(choices.usable.values())
            return _no_destination(
                f'The guests before it in the plan use the room of all {len(choices.usable)} usable hosts{short}.',
                'Enable or add hosts, or drain fewer hosts at a time.',
            )
        if need.request in self._refusals:
            return _no_destination(
                self._refusals[need.request],
                'Correct the extra specs of its flavor, or the traits that Placement knows.',
            )
        lacks = self._placement.lacks(need.request)
        others = {host: root for root, host in self._hosts.items() if host not in self._drained}
        # Those with room come first: they are the nearest to taking it.
        shown = [f'{host}: {why}' for host, why in sorted(choices.refused.items()) if host in others]
        remedy = 'Enable one, start its service, or allow it as a destination; or add a host that has what they lack.'
        if not shown:
            remedy = 'Free room, or add a host that has what they lack.'
        shown += [f'{host}: it {lacks.of(others[host])}' for host in sorted(others.keys() - choices.refused.keys())]
        more = f'; and {len(shown) - _NAMED} more' if len(shown) > _NAMED else ''
        if not shown:
            return _no_destination('There is no other host.', 'Add a host.')
        return _no_destination(f'No other host can take it: {"; ".join(shown[:_NAMED])}{more}.', remedy)

    def _short(self, usable: Iterable[Sequence[Amounts]]) -> str:
        """Return in words what the guest lacks at the host that comes nearest to having room for it."""
        best: tuple[float, str] | None = None
        for there in usable:
            for one in there:
                wanted = [(name, n, at) for at, used in one.items() for name, n in used.items()]
                lacks = [(name, n - self._free[at].get(name, 0), n) for name, n, at in wanted]
                lacks = [(name, lack, n) for name, lack, n in lacks if lack > 0]
                share = sum(lack / n for _, lack, n in lacks)
                if lacks and (best is None or share < best[0]):
                    best = share, ' and '.join(f'{lack} {name}' for name, lack, _ in sorted(lacks))
        return f'; the nearest is short of {best[1]}' if best is not None else ''


@dataclasses.dataclass
class _Choices:
    """The hosts for one need.

    :ivar usable: host -> the allocations of its candidates.
    :ivar refused: host -> why it is no destination.
    :ivar order: a heap of (rank, planned guests, host) of the hosts that may still have room.
    :ivar why_none: why none of them has room.
    """

    usable: dict[str, Sequence[Amounts]]
    refused: dict[str, str]
    order: list[tuple[tuple[int, ...], int, str]]
    why_none: Obstacle | None = None


def _no_destination(reason: str, remedy: str) -> Obstacle:
    return Obstacle(ObstacleKind.NO_DESTINATION, reason, remedy)
