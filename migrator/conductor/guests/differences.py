# SPDX-License-Identifier: Apache-2.0

"""The guests that are not where the database has them: moved, started or removed by hand.

The rows of all guests are read, and each host lists its guests. A guest that differs is looked at again: its hosts list
their guests once more, and its row is read once more. It differs only if both looks show the same, and if no migration
has begun or ended in between. Nothing is changed, and no guest is touched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Set

from oslo_log import log as logging

from migrator import executors
from migrator.conductor.guests import lists
from migrator.conductor.guests.lists import Ask
from migrator.conductor.metrics import Guests
from migrator.conductor.migration.context import Tools
from migrator.db.api import Database
from migrator.db.guests.differences import Placed
from migrator.objects import RECONCILING, Guest, GuestState, remedies
from migrator.objects.difference import RUNS, Difference, DifferenceKind, is_power_wrong

LOG = logging.getLogger(__name__)

#: The differences that one comparison logs one by one.
_LOGGED = 50


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What one comparison has found.

    :ivar differences: the guests that differ, by name.
    :ivar placed: uuid -> where the database has the guest, without guests that are busy.
    :ivar answered: the hosts that listed their guests.
    :ivar unanswered: each host that may run guests and did not list them -> the reason.
    :ivar runs: the guests that some host runs.
    :ivar fenced: the hosts that run nothing, and did not list their guests.
    """

    differences: list[Difference]
    placed: Mapping[str, Placed]
    answered: Set[str]
    unanswered: Mapping[str, str]
    runs: Set[str] = frozenset()
    fenced: Set[str] = frozenset()


def compare(
    database: Database, ask: Ask, threads: executors.Threads, known: Mapping[str, Difference] | None = None
) -> Comparison:
    """Compare the guests of all hosts with the database.

    A guest with a migration in progress differs only if a host has it that has no part in the migration. One that is
    being moved by hand at this moment is not judged.

    :param known: differences that need no second look, by the uuid of the guest.
    :raises migrator.exception.DatabaseUnreachable: the database is unreachable.
    """
    placed = database.differences.placed()
    replaced = {
        (host, uuid) for host, each in database.machines.replacements().items() for one in each for uuid in one.guests
    }
    first = lists.ask_all(database.services, ask, threads)
    found = _judge_all(placed, first, database.differences.unknown, replaced)
    suspects = [uuid for uuid, one in found.items() if known is None or not one.is_like(known.get(uuid))]
    if suspects:
        hosts = {host for uuid in suspects for host in found[uuid].hosts}
        again = lists.ask_all(database.services, ask, threads, hosts & first.seen.keys())
        rows = database.differences.placed(suspects)
        # What a host has shown once counts, if it does not answer the second time.
        both = dataclasses.replace(first, seen={**first.seen, **again.seen})
        second = _judge_all(rows, both, database.differences.unknown, replaced)
        for uuid in suspects:
            if placed.get(uuid) != rows.get(uuid) or not found[uuid].is_like(second.get(uuid)):
                del found[uuid]
    differences = sorted(found.values(), key=lambda one: (one.name, one.instance_uuid))
    at_rest = {uuid: one for uuid, one in placed.items() if not one.moves_between}
    runs = {uuid for guests in first.seen.values() for uuid, guest in guests.items() if guest.state in RUNS}
    return Comparison(differences, at_rest, first.seen.keys(), first.unanswered, runs, first.fenced)


def note(database: Database, found: lists.Round, instance_uuid: str) -> None:
    """Store that a guest differs, as a round of all hosts has shown it. So no later look forgets a copy.

    :raises migrator.exception.DatabaseUnreachable: the database is unreachable.
    """
    differs = _judge_all(database.differences.placed([instance_uuid]), found, lambda _uuids: set(), frozenset())
    if instance_uuid in differs:
        database.differences.note(differs[instance_uuid])


def _judge_all(
    placed: Mapping[str, Placed],
    found: lists.Round,
    unknown: Callable[[Iterable[str]], set[str]],
    replaced: Set[tuple[str, str]],
) -> dict[str, Difference]:
    """Return the guests that differ, by uuid.

    :param replaced: host and uuid of each guest of a machine that was replaced.
    """
    holders: dict[str, dict[str, Guest]] = {}
    for host, guests in found.seen.items():
        for uuid, guest in guests.items():
            if guest.present:
                holders.setdefault(uuid, {})[host] = guest
    strangers = unknown([uuid for uuid in holders if uuid not in placed])
    judged = [_judge(one, holders.get(uuid, {}), found, (one.host, uuid) in replaced) for uuid, one in placed.items()]
    judged += [_stranger(uuid, holders[uuid]) for uuid in strangers]
    return {one.instance_uuid: one for one in judged if one is not None}


def _is_moving(guest: Guest) -> bool:
    """Return whether a guest is being moved by hand, or its host does not know its state."""
    unclear = not guest.is_known or guest.state == GuestState.CUTOVER
    return guest.job or guest.incoming or guest.post_copy or unclear


def _judge(placed: Placed, holders: Mapping[str, Guest], found: lists.Round, was_replaced: bool) -> Difference | None:
    """Return how a guest differs, or None if it is where the database has it, or is moving.

    If its host in the database has not listed its guests, only a copy elsewhere shows a difference: one that runs, or,
    if the host is fenced, also one that is shut off.

    :param holders: host -> the guest there, for each host that has it.
    :param was_replaced: whether the guest was on a machine of its host that was replaced.
    """
    if any(_is_moving(guest) for guest in holders.values()):
        return None
    apart = placed.moves_between - {placed.host}
    holders = {host: guest for host, guest in holders.items() if host not in apart}
    answered, fenced = placed.host in found.seen, placed.host in found.fenced
    counted = RUNS if not answered and not fenced else {*GuestState} - {GuestState.WAITING}
    states = {host: guest.state for host, guest in holders.items() if guest.state in counted}
    here = states.get(placed.host)
    # A deferred cleanup will remove a copy that does not run, unless it is the only one.
    is_only = here is None and answered
    others = {
        host
        for host in states
        if host != placed.host
        and (is_only or host not in placed.cleanups_at or (here not in RUNS and states[host] in RUNS))
    }
    if not others and (not answered or placed.moves_between):
        return None
    if here is None:
        absent = DifferenceKind.REPLACED if was_replaced else DifferenceKind.MISSING
        kind = DifferenceKind.MOVED if others else absent
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


def _counts(one: Difference, found: Comparison) -> bool:
    """Return whether a stored difference still counts, whatever is in progress for its guest.

    What a host has shown counts until that host lists its guests again, also while it is fenced, since it may be
    declared up again; but not once another host runs the guest. A guest that was on no host may be on one that is
    fenced. One that ran elsewhere, and that no host runs now, has moved on to a host that has not answered.
    """
    uuid = one.instance_uuid
    if one.hosts & found.unanswered.keys():
        return True
    if one.seen.keys() & found.fenced and uuid not in found.runs:
        return True
    if not one.seen and uuid in found.runs:  # the destination of a migration may run it, which is no difference
        return False
    if not one.seen:
        return one.host not in found.answered and all(each.instance_uuid != uuid for each in found.differences)
    has_left = one.host is not None and bool({*one.runs_on} - {one.host})
    return bool(found.unanswered) and has_left and uuid not in found.runs


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
        found = compare(database, self._tools.list_guests, self._tools.threads, known)
        shown = {uuid: one for uuid, one in known.items() if _counts(one, found)}
        busy = [uuid for uuid, one in shown.items() if one.host is not None and uuid not in found.placed]
        rows = {one.uuid: one.host for one in database.instances.list({'uuid': busy})} if busy else {}
        at = {uuid: placed.host for uuid, placed in found.placed.items()} | rows
        kept = {uuid for uuid, one in shown.items() if one.host is None or at.get(uuid) == one.host}
        new = database.differences.replace([one for one in found.differences if one.instance_uuid not in kept], kept)
        for one in new[:_LOGGED]:
            LOG.log(
                logging.ERROR if len(one.runs_on) > 1 else logging.WARNING,
                'Guest is not as the database has it: %(name)s (%(guest)s): %(difference)s. Remedy: %(remedy)s',
                {
                    'name': one.name,
                    'guest': one.instance_uuid,
                    'difference': one.text,
                    'remedy': one.remedy(found.unanswered),
                },
            )
        if len(new) > _LOGGED:
            LOG.warning(
                'Not logging %d more guests that are not as the database has them: %s',
                len(new) - _LOGGED,
                remedies.offer(remedies.Kind.SEE_OTHERS),
            )
        if known and not found.differences and not kept:
            LOG.info('Every guest is where the database has it again')
