# SPDX-License-Identifier: Apache-2.0

"""The writes of allocations of one process: those that arrive during a request share the next one.

Placement compares the generation of every provider that a write changes. It accepts one of several concurrent writes
and retries the others. So a process sends one such request at a time. A request for several migrations takes little
longer than a request for a single migration.

Placement does all writes of a request or none. ``doc/source/decisions/0032-joint-writes.rst`` says why this is safe.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from migrator import exception, executors
from migrator.placement_client import allocations
from migrator.placement_client.client import PlacementClient

#: Seconds after which the next request no longer waits for the reply to the present one. Waiting only avoids conflicts.
#: A write is correct without it, because of the generations.
PATIENCE = 5.0
#: The greatest number of callers whose writes are sent together.
MOST = 16


@dataclasses.dataclass(eq=False)
class _Caller:
    """A thread that waits until its writes are done or refused.

    :ivar woken: set when the thread has something to send, or when its outcome is known.
    :ivar is_alone: whether its writes were refused together with others, so that they are sent alone.
    :ivar sends: the callers whose writes this thread must send now, itself among them.
    :ivar is_answered: whether the outcome of its writes is known, or known to be unknown.
    :ivar error: why the writes were refused, or why their outcome is unknown; None: they were done.
    """

    writes: Sequence[allocations.Write]
    woken: executors.Event
    is_alone: bool = False
    sends: Sequence[_Caller] = ()
    is_answered: bool = False
    error: exception.MigratorException | None = None

    def consumers(self) -> set[str]:
        """Return the uuids of the consumers that are written."""
        return {one.consumer.uuid for one in self.writes}


class Writer:
    """The one sender of a process's writes of allocations.

    :param threads: the threads of the process.
    """

    def __init__(self, client: PlacementClient, threads: executors.Threads) -> None:
        self._client = client
        self._threads = threads
        self._guard = threads.lock()
        self._waiting: list[_Caller] = []
        self._busy_until = 0.0

    def write(self, writes: Sequence[allocations.Write]) -> None:
        """Write several consumers: Placement writes all of them or none.

        The writes may share a request with those of other threads. If Placement refuses such a request, the writes of
        each thread are sent alone. So the outcome is that of a request with only these writes.

        :raises ValueError: as :meth:`.allocations.Write.check`.
        :raises PlacementConflict: a generation is stale; observe again.
        :raises PlacementRefused: no room, or no such provider or resource class.
        :raises PlacementUnreachable: the write may or may not have been done; observe again.
        """
        for one in writes:
            one.check()
        me = _Caller(writes, self._threads.event())
        with self._guard:
            self._waiting.append(me)
            self._start()
        while not me.is_answered:
            if not me.woken.wait(PATIENCE):
                with self._guard:
                    self._start()
            elif me.sends:
                me.woken.clear()
                callers, me.sends = me.sends, ()
                self._send(callers)
        if me.error is not None:
            raise me.error

    def _start(self) -> None:
        """Make the first waiting thread send the next request, unless a request is on its way.

        The caller holds the guard.
        """
        now = self._threads.clock.monotonic()
        if not self._waiting or now < self._busy_until:
            return
        self._busy_until = now + PATIENCE
        first = self._waiting[0]
        first.sends = self._take()
        first.woken.set()

    def _take(self) -> list[_Caller]:
        """Remove the callers whose writes fit into one request from the queue, and return them."""
        taken: list[_Caller] = []
        consumers: set[str] = set()
        for caller in self._waiting[:MOST]:
            if taken and (caller.is_alone or taken[0].is_alone or consumers & caller.consumers()):
                break
            taken.append(caller)
            consumers |= caller.consumers()
        del self._waiting[: len(taken)]
        return taken

    def _send(self, callers: Sequence[_Caller]) -> None:
        error: exception.MigratorException | None = exception.PlacementUnreachable(reason='the request was interrupted')
        try:
            allocations.write_all(self._client, [one for caller in callers for one in caller.writes])
            error = None
        except (exception.PlacementError, exception.PlacementUnreachable) as raised:
            error = raised
        finally:
            with self._guard:
                self._busy_until = 0.0
                if len(callers) > 1 and isinstance(error, exception.PlacementConflict | exception.PlacementRefused):
                    # Placement has written nothing, and the refusal may concern any of them: send each alone.
                    for caller in callers:
                        caller.is_alone = True
                    self._waiting[:0] = callers
                else:
                    for caller in callers:
                        caller.error, caller.is_answered = error, True
                        caller.woken.set()
                self._start()
