# SPDX-License-Identifier: Apache-2.0

"""Talks to the compute hosts: at most four calls at a time to one host, and what has been heard is acknowledged."""

from __future__ import annotations

import collections
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from oslo_log import log as logging

from migrator import context, exception, executors
from migrator.compute.rpcapi import ComputeAPI
from migrator.conductor import broker
from migrator.objects import protocol

LOG = logging.getLogger(__name__)

#: Calls outstanding to one host; what comes on top parks and is woken when one returns.
CALLS_PER_HOST = 4


class HostBusy(Exception):
    """As many calls as may be are on their way to this host."""


class Hosts:
    """The compute hosts, as one conductor reaches them.

    :param api: the compute hosts' door.
    :param poll_timeout: returns the seconds for which a poll waits.
    :param reached: the broker, without which no host is asked anything, and none is silent.
    """

    def __init__(
        self,
        api: ComputeAPI,
        threads: executors.Threads,
        poll_timeout: Callable[[], float],
        reached: broker.Broker,
    ) -> None:
        self.api = api
        self._threads = threads
        self._poll_timeout = poll_timeout
        self._broker = reached
        self._lock = threads.lock()
        self._calls: collections.Counter[str] = collections.Counter()
        #: Host -> who has found no place, in the order in which they came.
        self._waiters: dict[str, dict[str, None]] = collections.defaultdict(dict)
        self._acks: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
        self._answered: dict[str, float] = {}
        #: Host -> when the first question was asked that it has not answered, nor any later one.
        self._unanswered: dict[str, float] = {}
        #: Host -> when it last left a question without an answer.
        self._silent_at: dict[str, float] = {}
        self._born = reached.listened()
        #: Called with a migration's uuid when its turn for a place has come; returns whether it is there to take it.
        self.on_free: Callable[[str], bool] = lambda uuid: False

    @contextlib.contextmanager
    def _place(self, host: str, migration_uuid: str | None) -> Iterator[None]:
        """Take a place.

        :param migration_uuid: who stands in line where there is none; None: nobody.
        """
        with self._lock:
            waiters = self._waiters[host]
            if self._calls[host] >= CALLS_PER_HOST:
                if migration_uuid is not None:
                    waiters.setdefault(migration_uuid)
                raise HostBusy(host)
            if migration_uuid is not None:
                waiters.pop(migration_uuid, None)
            self._calls[host] += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls[host] -= 1
                free = CALLS_PER_HOST - self._calls[host]
            # Not all of them: each would look at its hosts before it found that another had been faster.
            while free and (uuid := self._next_in_line(host)) is not None:
                free -= self.on_free(uuid)

    def _next_in_line(self, host: str) -> str | None:
        with self._lock:
            waiters = self._waiters[host]
            uuid = next(iter(waiters), None)
            if uuid is not None:
                del waiters[uuid]
            return uuid

    def tell(self, host: str, method: str, order: protocol.Command, **payload: Any) -> protocol.Answer:
        """Make one lightweight call, or a check.

        :param method: the name of a method of :class:`migrator.compute.rpcapi.ComputeAPI`.
        :raises HostBusy: enough calls are on their way; the migration is woken when its turn has come.
        :raises migrator.exception.ServiceUnreachable: no answer in time, or it could not be sent.
        """
        self._broker.check()
        with self._place(host, order.migration_uuid):
            call = getattr(self.api, method)
            asked = self._broker.listened()
            try:
                answer: protocol.Answer = call(context.admin_context(), host, order, **payload)
            except exception.RPCTimeout:
                self._not_heard(host, asked)
                raise
        self._heard(host)
        return answer

    def ask(
        self, host: str, orders: Sequence[protocol.Command], in_line: bool = False
    ) -> list[protocol.Observation] | None:
        """Poll a host for some migrations; it changes nothing there but the epoch seen.

        :param in_line: whether the first of them is woken when its turn has come, where there is no place now.
        :returns: what it says of each of which it says anything, or None: it is silent.
        :raises HostBusy: enough calls are on their way.
        """
        with self._place(host, orders[0].migration_uuid if in_line else None):
            with self._lock:
                acks = self._acks.pop(host, [])
            asked = self._broker.listened()
            try:
                found = self.api.poll_live_migrations(
                    context.admin_context(), host, list(orders), acks, timeout=self._poll_timeout()
                )
            except (exception.ServiceUnreachable, exception.RemoteError) as error:
                with self._lock:
                    self._acks[host] = acks + self._acks[host]
                if isinstance(error, (exception.RPCTimeout, exception.RemoteError)):
                    self._not_heard(host, asked)
                return None
        self._heard(host)
        return [one for one in found if self._is_told(host, one)]

    @staticmethod
    def _is_told(host: str, one: protocol.Observation) -> bool:
        """Whether a host says how a guest is; a word that nobody knows is none, least of all that it is absent."""
        if one.refusal is None and not one.guest.told:
            LOG.warning(
                '%s says of guest %s that its state is %r, which is none: it counts as having said nothing of it',
                host,
                one.guest.instance_uuid,
                one.guest.state,
            )
            return False
        return True

    def acknowledge(self, report: protocol.Report) -> None:
        """Let the host know, with the next poll, that a report has been taken in and need not be kept."""
        with self._lock:
            acks = self._acks[report.host]
            acks.append({'migration_uuid': report.migration_uuid, 'step': report.step, 'epoch': report.epoch})

    def unacknowledged(self) -> list[str]:
        """Return the hosts for which acknowledgements wait."""
        with self._lock:
            return [host for host, acks in self._acks.items() if acks]

    def _heard(self, host: str) -> None:
        self._answered[host] = self._broker.listened()
        self._unanswered.pop(host, None)
        self._silent_at.pop(host, None)

    def _not_heard(self, host: str, asked: float) -> None:
        """Note that what was asked then has no answer; what it has answered since is the newer word."""
        if self._answered.get(host, -math.inf) > asked:
            return
        self._unanswered.setdefault(host, asked)
        self._silent_at[host] = self._threads.clock.monotonic()

    def was_silent(self, host: str, seconds: float) -> bool:
        """Whether a host has left a question without an answer in the last ``seconds``, and none was answered since."""
        now = self._threads.clock.monotonic()
        return now - self._silent_at.get(host, -math.inf) < seconds

    def silent_for(self, host: str) -> float:
        """Return for how many seconds a host has not answered this conductor, counted from its own start at most.

        All such seconds are those in which this conductor could be reached.
        """
        return self._broker.listened() - max(self._answered.get(host, self._born), self._born)

    def begin_life(self) -> None:
        """Count the silence of hosts from now on: who was away until now has heard nobody."""
        self._born = self._broker.listened()

    def unanswered_for(self, host: str) -> float:
        """Return for how many seconds a host has left this conductor's questions without an answer."""
        now = self._broker.listened()
        return now - self._unanswered.get(host, now)
