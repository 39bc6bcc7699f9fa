# SPDX-License-Identifier: Apache-2.0

"""Waiting for signals, and for wake-ups from other threads, without polling.

The signal handler of the interpreter writes the signal's number into a socket pair, and the main thread reads from the
other end. Only this works both with native threads and in a process that eventlet has patched. No Python code runs in a
handler, where it could wait forever for a lock of the interrupted code.
"""

from __future__ import annotations

import signal
import socket
from types import TracebackType
from typing import Any


class Signals:
    """A context manager that receives the signals. Only the main thread may enter it.

    :cvar STOP: the signals that end a service. SIGINT is Ctrl-C at a terminal.
    :cvar RELOAD: the signal that has a service read its configuration again.
    :cvar WAKE: the number of a wake-up by a thread. No signal has it.
    """

    STOP = frozenset({signal.SIGTERM, signal.SIGINT})
    RELOAD = signal.SIGHUP
    WAKE = 0

    def __init__(self) -> None:
        self._inside, self._outside = socket.socketpair()
        self._outside.setblocking(False)
        self._before: dict[int, Any] = {}
        self._wakeup = -1

    def __enter__(self) -> Signals:
        for number in (*self.STOP, self.RELOAD):
            self._before[number] = signal.signal(number, _ignore)
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
        """Wait for the next signal or wake-up, and return its number, or :attr:`WAKE`.

        The signals are those of :attr:`STOP` and :attr:`RELOAD`, and any other for which the process has a handler.
        """
        return self._inside.recv(1)[0]

    def wake(self) -> None:
        """Make :meth:`next` return :attr:`WAKE`. Any thread may call this."""
        try:
            self._outside.send(bytes([self.WAKE]))
        except OSError:
            return  # the socket is closed, and the main thread waits no more


def _ignore(number: int, frame: object) -> None:
    """Do nothing. Without a handler the signal would end the process."""
