# SPDX-License-Identifier: Apache-2.0

"""The live migrations that wait on their source for a slot.

Registering an entry and submitting its work happen under one lock, and the work removes its entry first thing, under
the same lock. Done without (a placeholder, submit, then store the Future) a worker may look for its entry before it
is there: the entry then stays for ever, and an abort finds a Future that is not the one that runs.

*Lock order*, for the whole of a compute host: :class:`~migrator.compute.work.Orders`, then this queue, then
:class:`~migrator.executors.BoundedExecutor` (a Future's own lock is taken within any of them). Every other lock -- the
manager's, the outbox's, the observer's, the time-outs' -- is held for a look at its own object, and nothing else is
taken meanwhile. No driver call and no message is ever made while holding one of them.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

from migrator import exception, executors

Future = concurrent.futures.Future


class LiveMigrationQueue:
    """First in, first out, bounded; what waits can be cancelled.

    :param host: the name of this host, for messages.
    :param executor: runs what has got its slot.
    :param waiting: migration uuid -> Future of what waits. It is the caller's dict: only this object writes to it.
    :param threads: where its lock comes from.
    """

    def __init__(
        self,
        host: str,
        executor: executors.BoundedExecutor,
        waiting: dict[str, Future[Any]],
        threads: executors.Threads,
    ) -> None:
        self._host = host
        self._executor = executor
        self._waiting = waiting
        self._lock = threads.lock()
        self._closed = False
        self._cancelled_by_close: set[str] = set()

    @property
    def limit(self) -> int:
        """How many may run at once."""
        return self._executor.max_workers

    @property
    def running(self) -> int:
        """How many run, those found running at start included."""
        return self._executor.running

    def submit(self, migration_uuid: str, function: Callable[..., Any], /, *args: Any) -> None:
        """Queue ``function(*args)``; it has to call :meth:`take` first thing.

        :raises migrator.exception.QueueClosed: the service is stopping.
        """
        with self._lock:
            if self._closed:
                raise exception.QueueClosed(host=self._host)
            self._waiting[migration_uuid] = self._executor.submit(function, *args)

    def attach(self, function: Callable[..., Any], /, *args: Any) -> None:
        """Give a job that was found running its slot, at once and above the limit if need be."""
        self._executor.submit_now(function, *args)

    def take(self, migration_uuid: str) -> None:
        """Remove the entry of what has got its slot: from now on it cannot be cancelled here."""
        with self._lock:
            self._waiting.pop(migration_uuid, None)

    def cancel(self, migration_uuid: str) -> bool:
        """Cancel what waits.

        :returns: True: it will never run; also of what the closing has cancelled. False: it has started, or ended, or
            was never here.
        """
        with self._lock:
            if migration_uuid in self._cancelled_by_close:
                return True
            future = self._waiting.get(migration_uuid)
            if future is None or not future.cancel():
                # A Future that has started stays registered for the moment until its worker takes it.
                return False
            del self._waiting[migration_uuid]
            return True

    def resize(self, limit: int) -> None:
        """Change how many may run at once; see :meth:`migrator.executors.BoundedExecutor.resize`.

        :param limit: 1 or more.
        """
        self._executor.resize(limit)

    def close(self) -> list[str]:
        """Take nothing new, and cancel all that waits.

        :returns: the migration uuids of what was cancelled, in their order.
        """
        with self._lock:
            cancelled = [uuid for uuid, future in list(self._waiting.items()) if future.cancel()]
            self._cancelled_by_close.update(cancelled)
            # What has got its slot, and has not taken its entry yet, will find it taken.
            self._waiting.clear()
            self._closed = True
        self._executor.shutdown(wait=False)
        return cancelled

    def drain(self) -> None:
        """Wait until nothing runs."""
        self._executor.shutdown(wait=True)
