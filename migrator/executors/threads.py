# SPDX-License-Identifier: Apache-2.0

"""The clock, locks and threads of a process: one object for all code that waits or starts a thread."""

from __future__ import annotations

import datetime
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol


class Clock(Protocol):
    """A source of time."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start. They never decrease."""

    def now(self) -> datetime.datetime:
        """Return the time of the wall clock, aware, in UTC."""


class Lock(Protocol):
    """The used part of the interface of ``threading.Lock``."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock. Return False if it stays taken for ``timeout`` seconds."""

    def release(self) -> None:
        """Release the lock."""

    def __enter__(self) -> Any:
        """Take the lock."""

    def __exit__(self, *exc_info: Any) -> None:
        """Release the lock."""


class Event(Protocol):
    """The interface of ``threading.Event``."""

    def is_set(self) -> bool:
        """Return whether it is set."""

    def set(self) -> None:
        """Set it, and wake the waiting threads."""

    def clear(self) -> None:
        """Unset it."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most ``timeout`` seconds, and return whether it is."""


class Threads(Protocol):
    """The clock, uuids, locks and threads of a process."""

    clock: Clock

    def new_uuid(self) -> str:
        """Return a new random uuid, as text."""

    def random(self) -> float:
        """Return a random number in [0, 1), for jitter."""

    def lock(self) -> Lock:
        """Return a new lock."""

    def event(self) -> Event:
        """Return a new event."""

    def sleep(self, seconds: float) -> None:
        """Sleep for ``seconds``."""

    def start(self, function: Callable[..., Any], *args: Any, name: str) -> None:
        """Run ``function(*args)`` in a new daemon thread called ``name``."""

    def is_final(self, error: BaseException) -> bool:
        """Return whether code that catches an error must raise it again, without a log line or a report."""


class SystemClock:
    """The clock of the machine."""

    def monotonic(self) -> float:
        """Return the machine's monotonic time in seconds."""
        return time.monotonic()

    def now(self) -> datetime.datetime:
        """Return the machine's time, in UTC."""
        return datetime.datetime.now(datetime.UTC)


def is_green() -> bool:
    """Return whether eventlet has patched this process, so that its threads are green."""
    eventlet = sys.modules.get('eventlet')
    return eventlet is not None and bool(eventlet.patcher.is_monkey_patched('thread'))


class NativeThreads:
    """Real threads on the real clock.

    :param clock: the source of time; the machine's by default.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()

    def new_uuid(self) -> str:
        """Return a new random uuid, as text."""
        return str(uuid.uuid4())

    def random(self) -> float:
        """Return a random number in [0, 1), for jitter."""
        return random.random()  # noqa: S311 -- jitter needs no secrecy

    def lock(self) -> Lock:
        """Return a ``threading.Lock``."""
        return threading.Lock()

    def event(self) -> Event:
        """Return a ``threading.Event``."""
        return threading.Event()

    def sleep(self, seconds: float) -> None:
        """Sleep on the machine's clock."""
        time.sleep(seconds)

    def start(self, function: Callable[..., Any], *args: Any, name: str) -> None:
        """Start a daemon thread."""
        threading.Thread(target=function, args=args, name=name, daemon=True).start()

    def is_final(self, error: BaseException) -> bool:
        """Return whether an error ends the process: Ctrl-C or an exit in its main thread."""
        return isinstance(error, (KeyboardInterrupt, SystemExit)) and _in_main_thread()


def _in_main_thread() -> bool:
    if is_green():  # eventlet's threading does not recognize it; only the main greenlet has no parent
        return sys.modules['eventlet'].getcurrent().parent is None
    return threading.current_thread() is threading.main_thread()
