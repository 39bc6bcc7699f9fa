# SPDX-License-Identifier: Apache-2.0

"""The lists of guests that hosts report, in rounds, and what they say about one guest.

A round asks every host that is up. Verdicts that need one at about the same time share it. The list of a host is a
fact. The silence of a host is not: it decides nothing, unless the guest was last known to be there.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Collection, Mapping, Sequence, Set

from migrator import exception, executors
from migrator.db.guests.differences import Known
from migrator.db.services import Services
from migrator.objects import COMPUTE_BINARY, Guest, GuestState, Service
from migrator.objects.difference import RUNS

#: Seconds to wait for the guests of one host, and for those of all hosts if a migration waits for them.
TIMEOUT = 10.0
#: Seconds for which a round serves further verdicts.
FRESH = 10.0
#: The hosts that list their guests at a time: in the background, and while a migration waits.
AT_ONCE, AT_ONCE_FOR_A_MIGRATION = 8, 64

#: Returns the guests of a host.
Ask = Callable[[Service], list[Guest]]
#: Host -> uuid -> guest.
Seen = Mapping[str, Mapping[str, Guest]]


@dataclasses.dataclass(frozen=True)
class Round:
    """What hosts have listed.

    :ivar began: the database's time before the first host was asked.
    :ivar seen: the guests of the hosts that have listed them.
    :ivar unanswered: each host that may run guests and has not listed them -> the reason.
    :ivar fenced: the hosts that an operator has forced down and that have not reported since: they run nothing.
    """

    began: datetime.datetime
    seen: Seen
    unanswered: Mapping[str, str]
    fenced: frozenset[str]


def ask_all(
    services: Services,
    ask: Ask,
    threads: executors.Threads,
    hosts: Collection[str] | None = None,
    at_once: int = AT_ONCE,
    patience: float | None = None,
) -> Round:
    """Have hosts list their guests.

    :param hosts: only these; None: all.
    :param at_once: how many are asked at a time.
    :param patience: seconds to wait for all of them; None: as long as all may take.
    :raises migrator.exception.DatabaseUnreachable: the database is unreachable.
    """
    began = services.now()
    listed = services.list(COMPUTE_BINARY, None if hosts is None else sorted(hosts)) if hosts != set() else []
    may_run = [one for one in listed if not one.is_fenced]
    down = {one.host: 'its compute service is down' for one in may_run if not one.reports}
    asked = [one for one in may_run if one.host not in down]
    seen = _ask(asked, ask, threads, at_once, patience)
    answered = {host: found for host, found in seen.items() if not isinstance(found, str)}
    missing = {one.host: seen.get(one.host, 'it did not answer') for one in asked if one.host not in answered}
    fenced = frozenset(one.host for one in listed if one.is_fenced)
    return Round(began, answered, down | {host: str(why) for host, why in missing.items()}, fenced)


def _ask(
    services: Sequence[Service], ask: Ask, threads: executors.Threads, at_once: int, patience: float | None
) -> dict[str, dict[str, Guest] | str]:
    """Return the guests of each host that has listed them, or why it has not; a late host is left out."""
    found: dict[str, dict[str, Guest] | str] = {}

    def one(service: Service) -> None:
        try:
            found[service.host] = {guest.instance_uuid: guest for guest in ask(service)}
        except Exception as error:  # noqa: BLE001 -- it concerns this host only
            found[service.host] = exception.message_of(error)

    if services:
        pool = executors.BoundedExecutor(min(at_once, len(services)), threads, 'guests-poll')
        for service in services:
            pool.submit(one, service)
        pool.wait_idle(TIMEOUT * (2 + len(services) / at_once) if patience is None else patience)
        pool.shutdown(wait=False, cancel_futures=True)
    return dict(found)  # a thread that is late adds nothing to this one


class Lists:
    """The rounds of one conductor.

    :param ask: returns the guests of a host within :data:`TIMEOUT`.
    """

    def __init__(self, services: Services, ask: Ask, threads: executors.Threads) -> None:
        self._services = services
        self._ask = ask
        self._threads = threads
        self._lock = threads.lock()
        self._last: tuple[float, Round] | None = None

    def of(self, hosts: Collection[str]) -> Round:
        """Return what some hosts list now.

        :raises migrator.exception.DatabaseUnreachable: the database is unreachable.
        """
        return ask_all(
            self._services, self._ask, self._threads, set(hosts), at_once=AT_ONCE_FOR_A_MIGRATION, patience=TIMEOUT
        )

    def of_all(self, after: datetime.datetime | None) -> Round:
        """Return a round of all hosts, at most :data:`FRESH` old, which other threads may be given as well.

        :param after: it began after this time of the database; None: at any time.
        :raises migrator.exception.DatabaseUnreachable: the database is unreachable.
        """
        with self._lock:  # the other threads wait for the lists instead of asking as well
            if self._last is not None:
                began, found = self._last
                if self._threads.clock.monotonic() - began <= FRESH and (after is None or found.began > after):
                    return found
            began = self._threads.clock.monotonic()
            found = ask_all(self._services, self._ask, self._threads, at_once=AT_ONCE_FOR_A_MIGRATION, patience=TIMEOUT)
            self._last = began, found
            return found


@dataclasses.dataclass(frozen=True)
class Copies:
    """The copies of a guest at other hosts than the one of its row.

    :ivar has: the hosts that report the guest -> its state there.
    :ivar awaited: the hosts that do not answer and were last known to have it -> why.
    :ivar unasked: the hosts that do not answer.
    """

    has: Mapping[str, str]
    awaited: Mapping[str, str]
    unasked: Set[str]


#: Why a host is awaited that nothing has named.
_NOWHERE = 'it was last seen on another host than its own, or on none'
#: Nothing is known of any other copy.
NONE = Copies({}, {}, frozenset())


def copies(found: Round, known: Known, instance_uuid: str, but: Collection[str]) -> Copies:
    """Return where else a guest is, as hosts report it.

    A copy that a deferred cleanup removes and that does not run does not count, and a process that only waits to
    receive the guest is not the guest.

    :param known: what is stored about the guest.
    :param but: the hosts that do not count.
    """
    has = {}
    for host in sorted(found.seen.keys() - set(but)):
        guest = found.seen[host].get(instance_uuid)
        if guest is None or not guest.present or guest.state == GuestState.WAITING:
            continue
        if host not in known.explained or guest.state in RUNS:
            has[host] = str(guest.state)
    awaited = {host: why for host, why in known.may_run.items() if host in found.unanswered and host not in but}
    if known.is_missing or known.seen.keys() - set(but):  # it has left its own host, and may be on any of these
        awaited = dict.fromkeys(found.unanswered.keys() - set(but), _NOWHERE) | awaited
    return Copies(has, awaited, found.unanswered.keys() - set(but))
