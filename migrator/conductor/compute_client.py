# SPDX-License-Identifier: Apache-2.0

"""The client of the compute hosts, with at most four calls at a time to one host.

Each poll acknowledges the reports that the conductor has received from the host.
"""

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

#: Outstanding calls to one host. A migration that finds no free slot parks, and is woken when a call returns.
CALLS_PER_HOST = 4


class HostBusy(Exception):
    """An error: all call slots of this host are in use."""


class Hosts:
    """The compute hosts, as one conductor reaches them.

    :param api: the RPC API of the compute hosts.
    :param poll_timeout: returns the time-out of a poll, in seconds.
    :param reached: the message broker. While it is unreachable, no command is sent, and no host counts as unreachable.
    """

    def __init__(
        self, api: ComputeAPI, threads: executors.Threads, poll_timeout: Callable[[], float], reached: broker.Broker
    ) -> None:
        self.api = api
        self._threads = threads
        self._poll_timeout = poll_timeout
        self._broker = reached
        self._lock = threads.lock()
        self._calls: collections.Counter[str] = collections.Counter()
        #: Host -> the migrations that wait for a call slot, in order.
        self._waiters: dict[str, dict[str, None]] = collections.defaultdict(dict)
        #: The waiters that were woken and have not tried to use their slot yet: host and migration.
        self._woken: set[tuple[str, str]] = set()
        self._acks: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
        self._answered: dict[str, float] = {}
        #: Host -> when the first call was sent since the last reply.
        self._unanswered: dict[str, float] = {}
        #: Host -> when a call last got no reply.
        self._unreachable_at: dict[str, float] = {}
        self._began = reached.listened()
        #: Called with the uuid of the next waiter when a slot is free; returns whether this conductor runs it.
        self.on_free: Callable[[str], bool] = lambda uuid: False

    @contextlib.contextmanager
    def _slot(self, host: str, migration_uuid: str | None) -> Iterator[None]:
        """Hold a call slot of a host.

        :param migration_uuid: the migration that waits if no slot is free, or None.
        """
        with self._lock:
            waiters = self._waiters[host]
            self._woken.discard((host, migration_uuid or ''))
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
            self._wake_waiters(host, CALLS_PER_HOST)

    def _wake_waiters(self, host: str, most: int) -> None:
        with self._lock:
            free = min(most, CALLS_PER_HOST - self._calls[host])
        # Only as many as there are free slots: each woken migration observes its hosts first.
        while free > 0 and (uuid := self._next_waiter(host)) is not None:
            if self.on_free(uuid):
                free -= 1
                continue
            with self._lock:
                self._woken.discard((host, uuid))

    def _next_waiter(self, host: str) -> str | None:
        with self._lock:
            waiters = self._waiters[host]
            uuid = next(iter(waiters), None)
            if uuid is not None:
                del waiters[uuid]
                self._woken.add((host, uuid))
            return uuid

    def pass_on_slots(self, migration_uuid: str) -> None:
        """Wake the next waiter for each call slot that a migration was woken for and has not tried to use.

        :param migration_uuid: the migration, whose run is over.
        """
        with self._lock:
            unused = [(host, uuid) for host, uuid in self._woken if uuid == migration_uuid]
            self._woken.difference_update(unused)
        for host, _uuid in sorted(unused):
            self._wake_waiters(host, 1)

    def send(self, host: str, command: protocol.Command, **payload: Any) -> protocol.Answer:
        """Send one command to a host, and return the reply.

        :param payload: as for :meth:`migrator.compute.rpcapi.ComputeAPI.send`.
        :raises HostBusy: no call slot is free. The migration is woken when it gets one.
        :raises migrator.exception.ServiceUnreachable: the host did not reply in time, or the command was not sent.
        """
        self._broker.check()
        with self._slot(host, command.migration_uuid):
            asked = self._broker.listened()
            try:
                answer = self.api.send(context.admin_context(), host, command, **payload)
            except exception.RPCTimeout:
                self._note_no_reply(host, asked)
                raise
        self._note_reply(host)
        return answer

    def poll(
        self, host: str, commands: Sequence[protocol.Command], may_queue: bool = False
    ) -> list[protocol.Observation] | None:
        """Poll a host about some migrations; the poll changes only the epoch that the host has seen.

        :param may_queue: whether the first migration waits for a call slot if none is free.
        :returns: the observations that the host reports, or None if it did not reply.
        :raises HostBusy: no call slot is free.
        """
        with self._slot(host, commands[0].migration_uuid if may_queue else None):
            with self._lock:
                acks = self._acks.pop(host, [])
            asked = self._broker.listened()
            try:
                found = self.api.poll_live_migrations(
                    context.admin_context(), host, list(commands), acks, timeout=self._poll_timeout()
                )
            except (exception.ServiceUnreachable, exception.RemoteError) as error:
                with self._lock:
                    self._acks[host] = acks + self._acks[host]
                if isinstance(error, (exception.RPCTimeout, exception.RemoteError)):
                    self._note_no_reply(host, asked)
                return None
        self._note_reply(host)
        return [one for one in found if self._is_known(host, one)]

    @staticmethod
    def _is_known(host: str, one: protocol.Observation) -> bool:
        """Return whether an observation has a known state of the guest, or is a refusal.

        An unknown state is ignored. In particular it does not mean that the guest is absent.
        """
        if one.refusal is None and not one.guest.is_known:
            LOG.warning(
                'Ignoring unknown state %(state)r of guest %(guest)s reported by host %(host)s',
                {'state': one.guest.state, 'guest': one.guest.instance_uuid, 'host': host},
            )
            return False
        return True

    def acknowledge(self, report: protocol.Report) -> None:
        """Acknowledge a report with the next poll, so that the host need not keep it."""
        with self._lock:
            acks = self._acks[report.host]
            acks.append({'migration_uuid': report.migration_uuid, 'step': report.step, 'epoch': report.epoch})

    def unacknowledged(self) -> list[str]:
        """Return the hosts that have reports to acknowledge."""
        with self._lock:
            return [host for host, acks in self._acks.items() if acks]

    def _note_reply(self, host: str) -> None:
        self._answered[host] = self._broker.listened()
        self._unanswered.pop(host, None)
        self._unreachable_at.pop(host, None)

    def _note_no_reply(self, host: str, asked: float) -> None:
        """Record that a call sent at ``asked`` got no reply, unless the host has replied since then."""
        if self._answered.get(host, -math.inf) > asked:
            return
        self._unanswered.setdefault(host, asked)
        self._unreachable_at[host] = self._threads.clock.monotonic()

    def was_unreachable(self, host: str, seconds: float) -> bool:
        """Return whether a call got no reply within the last ``seconds``, and the host has not replied since."""
        now = self._threads.clock.monotonic()
        return now - self._unreachable_at.get(host, -math.inf) < seconds

    def unreachable_for(self, host: str) -> float:
        """Return for how many seconds a host has not replied, counted from this conductor's start at most.

        Only seconds in which this conductor could reach the message broker count.
        """
        return self._broker.listened() - max(self._answered.get(host, self._began), self._began)

    def begin_boot(self) -> None:
        """Count unanswered time from now on, because this conductor received no replies before."""
        self._began = self._broker.listened()

    def unanswered_for(self, host: str) -> float:
        """Return for how many seconds a host has not replied to the calls of this conductor."""
        now = self._broker.listened()
        return now - self._unanswered.get(host, now)
