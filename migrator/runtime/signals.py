# SPDX-License-Identifier: Apache-2.0

"""Waits for what happens to the process, without polling: signals, and words of its own threads.

The kernel's handler writes the signal's number into a socket pair, and the main thread reads from the other end. That
is the one way that works alike with native threads and in a process that eventlet has patched, and no Python code runs
in a handler, where a lock that the interrupted code holds would be waited for for ever.
"""

from __future__ import annotations

import signal
import socket
from types import TracebackType
from typing import Any

#: What the signals say. SIGINT is Ctrl-C at a terminal.
STOP = frozenset({signal.SIGTERM, signal.SIGINT})
RELOAD = signal.SIGHUP
#: A word of a thread: no signal has this number.
TOLD = 0


class Signals:
    """Takes the signals while it is entered; only in the main thread."""

    def __init__(self) -> None:
        self._inside, self._outside = socket.socketpair()
        self._outside.setblocking(False)
        self._before: dict[int, Any] = {}
        self._wakeup = -1

    def __enter__(self) -> Signals:
        for number in (*STOP, RELOAD):
            self._before[number] = signal.signal(number, _heard)
        self._wakeup = signal.set_wakeup_fd(self._outside.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._inside.close()
        self._outside.close()

    def next(self) -> int:
        """Wait for the next signal and return its number, or :data:`TOLD`."""
        return self._inside.recv(1)[0]

    def tell(self) -> None:
        """Have :meth:`next` return :data:`TOLD`; from any thread."""
        try:
            self._outside.send(bytes([TOLD]))
        except OSError:
            return  # it is closed: nobody waits any more


def _heard(number: int, frame: object) -> None:
    """Do nothing: without a handler the signal would end the process."""
