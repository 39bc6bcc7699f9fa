# SPDX-License-Identifier: Apache-2.0

"""The guests that are not where the database has them: moved, started or removed by hand.

The rows of all guests are read, and each host lists its guests. A guest that differs is looked at again: its hosts list
their guests once more, and its row is read once more. It differs only if both looks show the same, and if no migration
has begun or ended in between. Nothing is changed, and no guest is touched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from oslo_log import log as logging

from migrator import context, exception, executors
from migrator.conductor.metrics import Guests
from migrator.conductor.migration.context import Tools
from migrator.db.api import Database
from migrator.db.differences import Placed
from migrator.objects import COMPUTE_BINARY, RECONCILING, Guest, GuestState, Service
from migrator.objects.difference import RUNS, Difference, DifferenceKind, is_power_wrong

LOG = logging.getLogger(__name__)

#: Seconds to wait for the guests of one host.
TIMEOUT = 10.0
#: The hosts that list their guests at a time.
_AT_ONCE = 8
#: The differences that one comparison logs one by one.
_LOGGED = 50

#: Returns the guests of a host.
Ask = Callable[[Service], list[Guest]]
#: Host -> uuid -> guest.
Seen = Mapping[str, Mapping[str, Guest]]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What one comparison has found.

    :ivar differences: the guests that differ, by name.
    :ivar placed: uuid -> where the database has the guest, without guests that are busy.
    :ivar answered: the hosts that listed their guests.
    :ivar unanswered: each host that may run guests and did not list them -> the reason.
    """

    differences: list[Difference]
    placed: Mapping[str, Placed]
    answered: Set[str]
    unanswered: Mapping[str, str]


def compare(
    database: Database, ask: Ask, threads: executors.Threads, known: Mapping[str, Difference] | None = None
) -> Comparison:
    """Compare the guests of all hosts with the database.

    A guest with a migration in progress, or whose host did not list its guests, is not judged. Neither is one that is
    being moved by hand at this moment.

    :param known: differences that need no second look, by the uuid of the guest.
    :raises migrator.exception.DatabaseUnreachable: the database is unreachable.
    """
    placed = database.differences.placed()
    now = database.services.now()
    # A host that an operator has forced down is fenced, so it runs nothing.
    services = {one.host: one for one in database.services.list(COMPUTE_BINARY) if not one.forced_down}
    unanswered = {host: 'its compute service is down' for host, one in services.items() if not one.is_up(now, 0)}
    seen, failed = _ask_all([one for host, one in services.items() if host not in unanswered], ask, threads)
    unanswered |= failed
    found = _judge_all(placed, seen, database.differences.unknown)
    suspects = [uuid for uuid, one in found.items() if known is None or not one.is_like(known.get(uuid))]
    if suspects:
        hosts = {host for uuid in suspects for host in found[uuid].hosts}
        again, _ = _ask_all([services[host] for host in sorted(hosts)], ask, threads)
        rows = database.differences.placed(suspects)
        second = _judge_all(rows, again, database.differences.unknown)
        for uuid in suspects:
            if placed.get(uuid) != rows.get(uuid) or not found[uuid].is_like(second.get(uuid)):
                del found[uuid]
    differences = sorted(found.values(), key=lambda one: (one.name, one.instance_uuid))
    return Comparison(differences, placed, seen.keys(), unanswered)


def _ask_all(
    services: Sequence[Service], ask: Ask, threads: executors.Threads
) -> tuple[dict[str, dict[str, Guest]], dict[str, str]]:
    """Return the guests of each host that listed them, and why each other host did not."""
    seen: dict[str, dict[str, Guest]] = {}
    unanswered = {service.host: 'it did not answer' for service in services}

    def one(service: Service) -> None:
        try:
            seen[service.host] = {guest.instance_uuid: guest for guest in ask(service)}
        except Exception as error:  # noqa: BLE001 -- it concerns this host only
            unanswered[service.host] = exception.message_of(error)

    pool = executors.BoundedExecutor(_AT_ONCE, threads, 'guests-poll')
    for service in services:
        pool.submit(one, service)
    pool.wait_idle(TIMEOUT * (2 + len(services) / _AT_ONCE))
    pool.shutdown(wait=False, cancel_futures=True)
    # A thread that is late adds to neither of the returned dictionaries.
    answered = dict(seen)
    return answered, {host: why for host, why in unanswered.items() if host not in answered}


def _judge_all(
    placed: Mapping[str, Placed], seen: Seen, unknown: Callable[[Iterable[str]], set[str]]
) -> dict[str, Difference]:
    """Return the guests that differ, by uuid."""
    holders: dict[str, dict[str, Guest]] = {}
    for host, guests in seen.items():
        for uuid, guest in guests.items():
            if guest.present:
                holders.setdefault(uuid, {})[host] = guest
    strangers = unknown([uuid for uuid in holders if uuid not in placed])
    judged = [_judge(one, holders.get(uuid, {})) for uuid, one in placed.items() if one.host in seen]
    judged += [_stranger(uuid, holders[uuid]) for uuid in strangers]
    return {one.instance_uuid: one for one in judged if one is not None}


def _is_moving(guest: Guest) -> bool:
    """Return whether a guest is being moved by hand, or its host does not know its state."""
    unclear = not guest.is_known or guest.state == GuestState.CUTOVER
    return guest.job or guest.incoming or guest.post_copy or unclear


def _judge(placed: Placed, holders: Mapping[str, Guest]) -> Difference | None:
    """Return how a guest differs, or None if it is where the database has it, or is moving.

    :param holders: host -> the guest there, for each host that has it.
    """
    if any(_is_moving(guest) for guest in holders.values()):
        return None
    states = {host: guest.state for host, guest in holders.items() if guest.state != GuestState.WAITING}
    here = states.get(placed.host)
    # A deferred cleanup will remove the copy, unless it is the only one.
    others = {host for host in states if host != placed.host and (here is None or host not in placed.cleanups_at)}
    if here is None:
        kind = DifferenceKind.MOVED if others else DifferenceKind.MISSING
    elif here not in RUNS and any(states[host] in RUNS for host in others):
        kind = DifferenceKind.MOVED
    elif others:
        kind = DifferenceKind.TWICE
    elif placed.task_state == RECONCILING:
        kind = DifferenceKind.UNFINISHED
    elif is_power_wrong(placed.vm_state, here):
        kind = DifferenceKind.POWER
    else:
        return None
    return Difference(instance_uuid=placed.uuid, name=placed.name, host=placed.host, kind=kind.value, seen=states)


def _stranger(uuid: str, holders: Mapping[str, Guest]) -> Difference | None:
    states = {host: guest.state for host, guest in holders.items() if guest.state != GuestState.WAITING}
    if not states or any(_is_moving(guest) for guest in holders.values()):
        return None
    return Difference(instance_uuid=uuid, name=uuid, host=None, kind=DifferenceKind.UNKNOWN.value, seen=states)


class Watch:
    """The periodic comparison, by one conductor of all. It logs and stores each difference once."""

    def __init__(self, tools: Tools, metrics: Guests) -> None:
        self._tools = tools
        self._metrics = metrics

    def look(self) -> None:
        """Compare once, unless another conductor does; and set the metrics.

        :raises migrator.exception.DatabaseUnreachable: the database is unreachable.
        """
        tools = self._tools
        if tools.owner and not tools.broker.away_for() and tools.database.conductors.first() == tools.owner:
            self._compare()
        self._metrics.count(tools.database.differences.list())

    def _compare(self) -> None:
        database = self._tools.database
        known = {one.instance_uuid: one for one in database.differences.list()}
        found = compare(database, self._ask, self._tools.threads, known)
        # What a host has shown counts until that host lists its guests again.
        kept = {
            uuid
            for uuid, one in known.items()
            if one.hosts & found.unanswered.keys() and (one.host is None or uuid in found.placed)
        }
        new = database.differences.replace([one for one in found.differences if one.instance_uuid not in kept], kept)
        for one in new[:_LOGGED]:
            LOG.log(
                logging.ERROR if len(one.runs_on) > 1 else logging.WARNING,
                'Guest is not as the database has it: %(name)s (%(guest)s): %(difference)s. Remedy: %(remedy)s',
                {'name': one.name, 'guest': one.instance_uuid, 'difference': one.text, 'remedy': one.remedy},
            )
        if len(new) > _LOGGED:
            LOG.warning(
                'Not logging %d more guests that are not as the database has them: see migrator-manage instance '
                'reconcile --dry-run',
                len(new) - _LOGGED,
            )
        if known and not found.differences and not kept:
            LOG.info('Every guest is where the database has it again')

    def _ask(self, service: Service) -> list[Guest]:
        return self._tools.hosts.api.list_guests(context.admin_context(), service.host, TIMEOUT)
