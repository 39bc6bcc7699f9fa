# SPDX-License-Identifier: Apache-2.0

"""The plan of a maintenance: in which order hosts leave service, and where each guest goes.

A guest moves once if it goes to a host that is not worked on any more: one whose work is done, or a *spare* host, which
the maintenance does not concern. A guest that goes to a host that still waits moves again with that host. So only the
guests of the first hosts should do that, for which no other room is there yet. Each host that is done is empty, so
that the guests of a whole further host of its size fit there.

The plan is made of numbers alone. It asks no service, and the same fleet has the same plan.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence, Set

#: How many hosts are tried until one is found whose guests have room elsewhere.
_TRIES = 8
#: How many hosts with the fewest guests are looked at for the one that comes next.
_LOOKED_AT = 40
#: Resource class -> amount.
Amounts = Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Host:
    """A host that is in service.

    :ivar capacity: what its guests may use together.
    :ivar group: at most :attr:`Limits.per_group` hosts of one group are out of service at a time; '': of no group.
    """

    name: str
    capacity: Amounts
    group: str = ''


@dataclasses.dataclass(frozen=True)
class Guest:
    """A guest of a fleet.

    :ivar needs: what it uses of its host.
    :ivar only: the hosts that may have it; None: any; none at all: it stays where it is.
    """

    uuid: str
    host: str
    needs: Amounts
    only: frozenset[str] | None = None


@dataclasses.dataclass(frozen=True)
class Limits:
    """How many hosts may be out of service at a time.

    :ivar parallel: of all hosts of the maintenance.
    :ivar per_group: of each group; None: any number.
    :ivar reserve: what has to be free on the hosts in service together.
    :ivar saves_moves: whether a host waits for another one to be done, if one of its guests would move twice otherwise.
    """

    parallel: int = 1
    per_group: int | None = None
    reserve: Amounts = dataclasses.field(default_factory=dict)
    saves_moves: bool = False


@dataclasses.dataclass(frozen=True)
class Step:
    """One host that leaves service.

    :ivar beside: the hosts that are out of service too when it leaves.
    :ivar moves: guest -> its destination.
    :ivar again: the guests of :attr:`moves` that move again, since their destination still waits.
    :ivar left: the guests that no host has room for.
    :ivar lacks: resource class -> at how many hosts the first of these finds too little of it.
    :ivar short: the resource classes of which the hosts in service would have less free than the reserve.
    """

    host: str
    beside: Sequence[str]
    moves: Mapping[str, str]
    again: Set[str] = frozenset()
    left: Sequence[str] = ()
    lacks: Mapping[str, int] = dataclasses.field(default_factory=dict)
    short: Sequence[str] = ()

    @property
    def fits(self) -> bool:
        """Whether the host can leave service."""
        return not self.left and not self.short


@dataclasses.dataclass(frozen=True)
class Plan:
    """The hosts of a maintenance in the order in which they leave service.

    :ivar bound: how often each guest of these hosts moves at least, on average.
    """

    steps: Sequence[Step]
    bound: float

    @property
    def moves(self) -> int:
        """The number of moves of all guests."""
        return sum(len(step.moves) for step in self.steps)

    @property
    def fits(self) -> bool:
        """Whether each host can leave service in its turn."""
        return all(step.fits for step in self.steps)


def plan(
    hosts: Sequence[Host],
    guests: Iterable[Guest],
    worked_on: Sequence[str],
    limits: Limits = Limits(),
    in_order: bool = False,
    whole: bool = True,
) -> Plan:
    """Return the plan of a maintenance.

    A host whose guests do not all find room is planned nevertheless, and its step says what is left. The plan goes on
    as if it had left service without them.

    :param hosts: the hosts in service, those of the maintenance and the spare ones.
    :param worked_on: the names of the hosts of the maintenance.
    :param in_order: whether they leave service in the order of ``worked_on``. Otherwise the plan chooses an order with
        few moves.
    :param whole: whether it goes on beyond a host that does not fit.
    :raises ValueError: a host of the maintenance is not among the hosts, or is named twice.
    """
    unknown = sorted({*worked_on} - {one.name for one in hosts})
    if unknown or len({*worked_on}) != len(worked_on):
        raise ValueError(f'the hosts of a maintenance are hosts in service, each named once: {unknown or [*worked_on]}')
    fleet = _Fleet(hosts, guests)
    fleet.done |= fleet.hosts.keys() - {*worked_on}
    concerned = len([one for name in worked_on for one in fleet.guests[name]])
    waiting, out, steps = list(worked_on), collections.deque[str](), list[Step]()
    unavoidable = 0
    while waiting:
        if len(out) == limits.parallel or not (allowed := _allowed(fleet, waiting, out, limits)):
            fleet.done.add(out.popleft())
            continue
        host = fleet.next_of(allowed, in_order)
        if out and limits.saves_moves and fleet.moves_some_twice(host):
            fleet.done.add(out.popleft())
            continue
        waiting.remove(host)
        can_be_done = fleet.done - {host}
        before = [one for one in fleet.guests[host] if not _qualified(one, can_be_done)]
        step = fleet.empty(host, tuple(out), waiting, limits.reserve)
        first = len(steps) < (1 if limits.saves_moves else limits.parallel)
        unavoidable += len(step.again) if first else len(before)
        steps.append(step)
        out.append(host)
        if not whole and not step.fits:
            break
    return Plan(tuple(steps), 1 + unavoidable / concerned if concerned else 1.0)


def next_step(
    hosts: Sequence[Host],
    guests: Sequence[Guest],
    waiting: Sequence[str],
    allowed: Sequence[str],
    limits: Limits = Limits(),
    in_order: bool = False,
) -> Step:
    """Return the first step of the rest of a maintenance.

    If the host that comes next does not fit, some of the others are tried too, unless the order is given.

    :param hosts: the hosts in service.
    :param waiting: the hosts that have not left service yet, in their order.
    :param allowed: those of them that the limits allow to leave now: at least one.
    """
    left, first = list(allowed), None
    for _ in range(1 if in_order else _TRIES):
        if not left:
            break
        fleet = _Fleet(hosts, guests)
        fleet.done |= fleet.hosts.keys() - {*waiting}
        host = fleet.next_of(left, in_order)
        left.remove(host)
        step = fleet.empty(host, (), [one for one in waiting if one != host], limits.reserve)
        if step.fits:
            return step
        first = first or step
    assert first is not None
    return first


def most_parallel(
    hosts: Sequence[Host], guests: Sequence[Guest], worked_on: Sequence[str], limits: Limits, most: int
) -> int:
    """Return the greatest ``parallel`` with which each host can leave service in its turn; 0: none.

    :param most: the greatest one to try.
    """
    # More at a time never fit where fewer do not.
    least, most = 0, min(most, len(worked_on))
    while least < most:
        parallel = least + 1 if least == 0 else (least + most + 1) // 2
        if plan(hosts, guests, worked_on, dataclasses.replace(limits, parallel=parallel), whole=False).fits:
            least = parallel
        else:
            most = parallel - 1
    return least


def _allowed(fleet: _Fleet, waiting: Sequence[str], out: Iterable[str], limits: Limits) -> list[str]:
    """Return the hosts that may leave service now, in their order."""
    if limits.per_group is None:
        return list(waiting)
    groups = collections.Counter(fleet.hosts[name].group for name in out)
    return [
        name for name in waiting if not (group := fleet.hosts[name].group) or groups[group] < max(1, limits.per_group)
    ]


def _qualified(guest: Guest, hosts: Set[str]) -> bool:
    return bool(hosts) if guest.only is None else not guest.only.isdisjoint(hosts)


class _Fleet:
    """Hosts with their guests, as they are after the moves that were planned so far.

    :ivar guests: host -> its guests.
    :ivar done: the hosts that are not worked on any more, and the spare ones.
    """

    def __init__(self, hosts: Sequence[Host], guests: Iterable[Guest]) -> None:
        self.hosts = {one.name: one for one in hosts}
        self.guests: dict[str, list[Guest]] = {name: [] for name in self.hosts}
        self.done: set[str] = set()
        self._free = {one.name: dict(one.capacity) for one in hosts}
        for guest in guests:
            self._put(guest, guest.host)

    def _put(self, guest: Guest, host: str) -> None:
        if guest.only is None or guest.only:
            self.guests[host].append(guest)
        for name, amount in guest.needs.items():
            self._free[host][name] = self._free[host].get(name, 0) - amount

    def _share(self, host: str, needs: Amounts) -> float:
        """Return the greatest share of a host's capacity that some amounts are."""
        capacity = self.hosts[host].capacity
        return max((amount / max(1, capacity.get(name, 0)) for name, amount in needs.items()), default=0.0)

    def _has_room(self, host: str, needs: Amounts) -> bool:
        free = self._free[host]
        return all(free.get(name, 0) >= amount for name, amount in needs.items())

    def next_of(self, waiting: Sequence[str], in_order: bool) -> str:
        """Return the host that leaves service next: the least of its guests move again, and it has the fewest.

        :param in_order: whether it is simply the first one.
        """
        if in_order:
            return waiting[0]
        order = sorted(waiting, key=lambda host: (len(self.guests[host]), host))[:_LOOKED_AT]
        for host in order:
            if self._whole(self.guests[host]) is not None:
                return host
        return min(order, key=lambda host: (len(self._overflow(host)), len(self.guests[host]), host))

    def moves_some_twice(self, host: str) -> bool:
        """Return whether a guest of a host would go to one that still waits."""
        return self._whole(self.guests[host]) is None and bool(self._overflow(host))

    def _overflow(self, host: str) -> list[Guest]:
        """Return the guests of a host for which no host has room that is done."""
        guests = self._largest_first(self.guests[host])
        # Most of them are full, and are looked at once and not for each guest.
        classes = {name for guest in guests for name in guest.needs}
        least = {name: min(guest.needs.get(name, 0) for guest in guests) for name in classes}
        done = [name for name in self.done if self._has_room(name, least)]
        taken: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in done}
        left = []
        for guest in guests:
            for name in done:
                wanted = {key: amount + taken[name][key] for key, amount in guest.needs.items()}
                if (guest.only is None or name in guest.only) and self._has_room(name, wanted):
                    taken[name].update(guest.needs)
                    break
            else:
                left.append(guest)
        return left

    def _largest_first(self, guests: Iterable[Guest]) -> list[Guest]:
        return sorted(guests, key=lambda one: (-self._share(one.host, one.needs), one.uuid))

    def _whole(self, guests: Sequence[Guest]) -> str | None:
        """Return the host that is done, has room for all guests, and has the least left then; None: none has."""
        needs: collections.Counter[str] = collections.Counter()
        for guest in guests:
            needs.update(guest.needs)
        fitting = [
            name
            for name in self.done
            if self._has_room(name, needs) and all(one.only is None or name in one.only for one in guests)
        ]
        return min(fitting, key=lambda name: (self._room_left(name, needs), name), default=None)

    def _room_left(self, host: str, needs: Amounts) -> float:
        """Return the share of a host that is free, of the scarcest resource class of some needs."""
        return min((self._share(host, {name: self._free[host].get(name, 0)}) for name in needs), default=1.0)

    def empty(self, host: str, beside: Sequence[str], waiting: Sequence[str], reserve: Amounts) -> Step:
        """Move the guests of a host away, and return the step.

        :param beside: the hosts that are out of service.
        :param waiting: the hosts that leave service later.
        """
        leaving, self.guests[host] = self.guests[host], []
        for guest in leaving:
            for name, amount in guest.needs.items():
                self._free[host][name] += amount
        whole = self._whole(leaving)
        moves, again, left = dict[str, str](), set[str](), list[str]()
        lacks: dict[str, int] = {}
        for guest in self._largest_first(leaving):
            to = whole if whole is not None else self._fullest(guest)
            if to is None:
                to = self._emptiest(guest, waiting)
                again |= {guest.uuid} if to is not None else set()
            if to is None:
                lacks = lacks or self._lacks(guest, [*self.done, *waiting])
                left.append(guest.uuid)
                continue
            moves[guest.uuid] = to
            self._put(guest, to)
        in_service = [*self.done, *waiting]
        short = [
            name
            for name, amount in reserve.items()
            # A host with more guests than room takes nothing away from the others.
            if sum(max(0, self._free[one].get(name, 0)) for one in in_service) < amount
        ]
        return Step(host, beside, moves, frozenset(again), tuple(left), lacks, tuple(short))

    def _lacks(self, guest: Guest, hosts: Iterable[str]) -> dict[str, int]:
        """Return resource class -> at how many hosts a guest finds too little of it."""
        free = [self._free[one] for one in hosts if guest.only is None or one in guest.only]
        found = {name: sum(one.get(name, 0) < amount for one in free) for name, amount in guest.needs.items()}
        return {name: count for name, count in found.items() if count}

    def _fitting(self, guest: Guest, hosts: Iterable[str]) -> list[str]:
        return [
            name for name in hosts if (guest.only is None or name in guest.only) and self._has_room(name, guest.needs)
        ]

    def _fullest(self, guest: Guest) -> str | None:
        """Return the host that is done and has the least room of those with enough, so that others stay empty."""
        fitting = self._fitting(guest, self.done)
        return min(fitting, key=lambda name: (self._room_left(name, guest.needs), name), default=None)

    def _emptiest(self, guest: Guest, waiting: Iterable[str]) -> str | None:
        fitting = self._fitting(guest, waiting)
        return min(fitting, key=lambda name: (-self._room_left(name, guest.needs), name), default=None)
