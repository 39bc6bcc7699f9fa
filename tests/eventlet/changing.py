# SPDX-License-Identifier: Apache-2.0

"""Green threads that change wherever a lock is taken or given back, by a seed.

eventlet goes from one green thread to another only where one waits, so that left alone a short race has always the
same winner. With these a test sees many.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from migrator import executors


class Changing(executors.NativeThreads):
    """The threads of an importing service, which change more often.

    :param seed: who comes when.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)  # noqa: S311 -- a schedule needs no secrecy

    def change(self) -> None:
        """Let others run, or not."""
        for _ in range(self._chance.choice((0, 0, 1, 2))):
            self.sleep(0)

    def lock(self) -> executors.Lock:
        """Return a lock that changes threads before it is taken and after it is given back."""
        return _Lock(super().lock(), self.change)

    def start(self, function: Callable[..., Any], *args: Any, name: str) -> None:
        """Start a thread, which may come late, or before its starter goes on."""

        def late() -> None:
            self.change()
            function(*args)

        super().start(late, name=name)
        self.change()


class _Lock:
    def __init__(self, lock: executors.Lock, change: Callable[[], None]) -> None:
        self._lock = lock
        self._change = change

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._change()
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._lock.release()
        self._change()

    def __enter__(self) -> _Lock:
        self.acquire()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.release()
