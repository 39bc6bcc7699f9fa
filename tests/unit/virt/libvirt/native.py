# SPDX-License-Identifier: Apache-2.0

"""Native synchronization, for tests with green threads and the native threads that call libvirt."""

from __future__ import annotations

import threading
from typing import Any

from migrator import executors


def event() -> Any:
    """Return an event that is never green."""
    if not executors.is_green():
        return threading.Event()
    from eventlet import patcher

    return patcher.original('threading').Event()


def until(predicate: Any) -> None:
    """Let other threads run until a predicate is true."""
    pause = threading.Event()
    for _ in range(2000):
        if predicate():
            return
        pause.wait(0.005)
    raise AssertionError('the predicate did not become true within 10 s')
