# SPDX-License-Identifier: Apache-2.0

"""Locks by which the threads of one process write to the same resource providers in sequence.

Placement compares the generation of every provider that a write changes. It accepts one of several concurrent writes
and starts the others again, so that many concurrent writes keep each other from succeeding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from migrator import executors
from migrator.placement_client import allocation_state

#: Seconds after which a thread writes without the lock. The lock only avoids conflicts; the generation keeps a write
#: correct.
PATIENCE = 5.0


class Turns:
    """The locks of one process, one for each resource provider.

    :param threads: the threads of the process.
    """

    def __init__(self, threads: executors.Threads) -> None:
        self._threads = threads
        self._guard = threads.lock()
        self._locks: dict[str, executors.Lock] = {}

    @contextlib.contextmanager
    def of(self, *allocations: allocation_state.Allocations | None) -> Iterator[None]:
        """Hold the locks of all resource providers of some allocations within the block."""
        # The same order for all threads, so that two never wait for each other.
        uuids = sorted({uuid for one in allocations for uuid in one or {}})
        until = self._threads.clock.monotonic() + PATIENCE
        with contextlib.ExitStack() as held:
            for uuid in uuids:
                with self._guard:
                    lock = self._locks.setdefault(uuid, self._threads.lock())
                if lock.acquire(timeout=max(0.0, until - self._threads.clock.monotonic())):
                    held.callback(lock.release)
            yield
