# SPDX-License-Identifier: Apache-2.0

"""The signals that a process receives, and the messages of a service to systemd.

:class:`Signals` waits for signals, and for wake-ups from other threads, without polling. The signal handler of the
interpreter writes the signal's number into a socket pair, and the main thread reads from the other end. Only this works
both with native threads and in a process that eventlet has patched. No Python code runs in a handler, where it could
wait forever for a lock of the interrupted code.

The messages to systemd say that a service has started, what it waits for, and that it runs. systemd gives the address
in the environment of a unit with ``Type=notify`` or ``notify-reload``. Elsewhere nothing is sent. See sd_notify(3) and
sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import signal
import socket
import time
from types import TracebackType
from typing import Any

from oslo_log import log as logging

LOG = logging.getLogger(__name__)


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


def notify_systemd(*assignments: str) -> None:
    """Send assignments such as ``READY=1`` to systemd. A failure is logged, and changes nothing.

    :param assignments: each in one line, without a line break.
    """
    address = os.environ.get('NOTIFY_SOCKET', '')
    if not address.startswith(('/', '@')):
        return
    if address.startswith('@'):  # an abstract socket
        address = '\0' + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.connect(address)
            sending.sendall('\n'.join(assignments).encode())
    except OSError as error:
        LOG.warning('Could not notify systemd: %s', error)


def notify_status(text: str) -> None:
    """Set the text that ``systemctl status`` shows."""
    notify_systemd('STATUS=' + ' '.join(text.split()))


def notify_reload() -> None:
    """Report that a reload begins. ``READY=1`` ends it."""
    notify_systemd('RELOADING=1', f'MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}')


def watchdog_interval() -> float | None:
    """Return in how many seconds the service has to report that it runs; None: systemd does not watch it."""
    text, pid = os.environ.get('WATCHDOG_USEC', ''), os.environ.get('WATCHDOG_PID', '')
    if not text.isdigit() or int(text) == 0 or pid not in ('', str(os.getpid())):
        return None
    return int(text) / 1_000_000
