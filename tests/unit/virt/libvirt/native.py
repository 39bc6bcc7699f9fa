# SPDX-License-Identifier: Apache-2.0

"""What a test and the threads in which libvirt is called may both touch, whether other threads are green or not."""

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
    """Let other threads run until something is so."""
    pause = threading.Event()
    for _ in range(2000):
        if predicate():
            return
        pause.wait(0.005)
    raise AssertionError('it did not become so within 10 s')
