# SPDX-License-Identifier: Apache-2.0

"""The queue of live migrations that wait on their source for a slot.

The queue stores an entry and submits its work under one lock. The work first removes its entry, under the same lock.
Without the lock (store a placeholder, submit, then store the Future) a worker may look for its entry too early. The
entry then stays forever, and an abort finds a Future that is not the one that runs.

*Lock order* of a compute host: :class:`~migrator.compute.step_runner.StepRunner`, then this queue, then
:class:`~migrator.executors.BoundedExecutor`. A Future's own lock may be taken within any of them. Every other lock (of
the registration, the inventory, the observer, the time-outs) protects only its own object, and no second lock is taken
while it is held. A thread that holds one of these locks calls no driver and sends no message.
"""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import Callable
from typing import Any

from migrator import exception, executors

Future = concurrent.futures.Future


class LiveMigrationQueue:
    """A queue in the order of requests, with a bounded number of slots and entries that can be cancelled.

    :param host: the name of this host, for messages.
    :param executor: runs the entries that have a slot.
    :param waiting: migration uuid -> Future of each waiting entry. The caller passes the dict; only this object writes
        to it.
    :param threads: makes the lock.
    :param own: the executor below, if nothing else uses it: :meth:`close` shuts it down.
    """

    def __init__(
        self,
        host: str,
        executor: executors.BoundedExecutor,
        waiting: dict[str, Future[Any]],
        threads: executors.Threads,
        own: concurrent.futures.Executor | None = None,
    ) -> None:
        self._host = host
        self._own = own
        self._executor = executor
        self._waiting = waiting
        self._lock = threads.lock()
        #: Instance uuid -> the seconds for which a guest that has left stood still, until its last step here.
        self.downtimes: dict[str, float | None] = {}
        self._closed = False
        self._cancelled_by_close: set[str] = set()

    @property
    def limit(self) -> int:
        """The number of live migrations that may run at once."""
        return self._executor.max_workers

    @property
    def running(self) -> int:
        """The number of running live migrations, including those found running at the start of the service."""
        return self._executor.running

    def note_copied(self, instance_uuid: str, downtime: float | None, _rate: float | None) -> None:
        """Keep the downtime of a guest that has left; see :class:`migrator.virt.driver.Reporting`."""
        self.downtimes[instance_uuid] = downtime

    def submit(self, migration_uuid: str, place: int, function: Callable[..., Any], /, *args: Any) -> None:
        """Queue ``function(*args)``, which must first call :meth:`take`.

        :param place: the place of the migration's request among all; one with a higher place waits behind it. 0: it
            is not known, and waits behind all.
        :raises migrator.exception.QueueClosed: the service is stopping.
        """
        with self._lock:
            if self._closed:
                raise exception.QueueClosed(host=self._host)
            # A conductor of an earlier commit names no place.
            self._waiting[migration_uuid] = self._executor.submit_at(place or math.inf, function, *args)

    def attach(self, function: Callable[..., Any], /, *args: Any) -> None:
        """Give a slot to a job that was found running, at once and even above the limit."""
        self._executor.submit_now(function, *args)

    def take(self, migration_uuid: str) -> None:
        """Remove the entry of a live migration that has a slot, so that the queue can no longer cancel it."""
        with self._lock:
            self._waiting.pop(migration_uuid, None)

    def cancel(self, migration_uuid: str) -> bool:
        """Cancel a waiting entry.

        :returns: True if the entry will never run, including an entry that :meth:`close` has cancelled. False if it has
            started or ended, or was never queued here.
        """
        with self._lock:
            if migration_uuid in self._cancelled_by_close:
                return True
            future = self._waiting.get(migration_uuid)
            if future is None or not future.cancel():
                # A Future that has just started keeps its entry until its worker calls take().
                return False
            del self._waiting[migration_uuid]
            return True

    def resize(self, limit: int) -> None:
        """Change the number of slots; see :meth:`migrator.executors.BoundedExecutor.resize`.

        :param limit: 1 or more.
        """
        self._executor.resize(limit)

    def close(self) -> list[str]:
        """Refuse new entries, and cancel all waiting ones.

        :returns: the migration uuids of the cancelled entries, in the order of their arrival.
        """
        with self._lock:
            cancelled = [uuid for uuid, future in list(self._waiting.items()) if future.cancel()]
            self._cancelled_by_close.update(cancelled)
            # This also removes entries whose worker has started and not yet called take(), which tolerates that.
            self._waiting.clear()
            self._closed = True
        self._executor.shutdown(wait=False)
        if self._own is not None:  # nothing is submitted to it any more, and what runs goes on
            self._own.shutdown(wait=False)
        return cancelled

    def drain(self) -> None:
        """Wait until no live migration runs."""
        self._executor.shutdown(wait=True)
