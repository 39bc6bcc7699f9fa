# SPDX-License-Identifier: Apache-2.0

"""Who writes to the same resource providers does so in turn.

Placement takes a write by the generation of every provider that it touches. Of those that come at once it takes one,
and begins the others anew, so that many at once keep each other from getting anywhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from migrator import executors
from migrator.placement_client import allocation_state

#: Seconds. A turn is a courtesy, and what makes a write right is its generation: who has waited so long goes ahead.
PATIENCE = 5.0


class Turns:
    """The turns of one process.

    :param threads: the process's own.
    """

    def __init__(self, threads: executors.Threads) -> None:
        self._threads = threads
        self._lock = threads.lock()
        self._turns: dict[str, executors.Lock] = {}

    @contextlib.contextmanager
    def of(self, *allocations: allocation_state.Allocations | None) -> Iterator[None]:
        """Have a turn at all resource providers of some allocations, for as long as the block takes."""
        # In one order for all, so that two never wait for each other.
        uuids = sorted({uuid for one in allocations for uuid in one or {}})
        until = self._threads.clock.monotonic() + PATIENCE
        with contextlib.ExitStack() as had:
            for uuid in uuids:
                with self._lock:
                    turn = self._turns.setdefault(uuid, self._threads.lock())
                if turn.acquire(timeout=max(0.0, until - self._threads.clock.monotonic())):
                    had.callback(turn.release)
            yield
