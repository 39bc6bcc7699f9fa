# SPDX-License-Identifier: Apache-2.0

"""Calls that block in a C library, or hang: they run in native threads, so that green threads go on."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from migrator.executors.threads import Lock, is_green

#: Seconds until a green thread first checks whether a native call has ended, which cannot wake it. Each further check
#: comes after twice the time, so that a short call costs little more than its own time.
_FIRST_CHECK = 0.001
#: The longest time between two checks, in seconds.
_LONGEST_CHECK = 0.05

T = TypeVar('T')


def outside_of_the_hub(function: Callable[[], T], lasts: bool = False) -> T:
    """Return the result of a function that may block in a C library, without blocking other green threads.

    In a process of native threads this only calls the function. In a green process the function runs in a native
    thread, so it must not take a lock or an event of :class:`Threads`. The thread does not come from eventlet's pool,
    because that pool is small and shared, and a call may hang. The caller has to limit the number of calls at once.

    :param lasts: whether the call takes long enough that a short delay after its end does not matter.
    """
    if not is_green():
        return function()
    import eventlet

    ended: list[Callable[[], T]] = []
    _native_threading().Thread(target=lambda: ended.append(_outcome(function)), daemon=True).start()
    pause = _LONGEST_CHECK if lasts else _FIRST_CHECK
    while not ended:
        eventlet.sleep(pause)
        pause = min(2 * pause, _LONGEST_CHECK)
    return ended[0]()


def _outcome(function: Callable[[], T]) -> Callable[[], T]:
    """Call a function. Return a callable that returns its result, or raises its error."""
    try:
        value = function()
    except BaseException as error:  # noqa: BLE001 -- the waiting thread raises it
        return functools.partial(_raise, error)
    return lambda: value


def _native_threading() -> Any:
    """Return the ``threading`` module that eventlet has not patched."""
    return sys.modules['eventlet'].patcher.original('threading') if is_green() else threading


def native_lock() -> Lock:
    """Return a lock for native threads, also in a green process.

    A green thread that waits for it blocks the hub.
    """
    lock: Lock = _native_threading().Lock()
    return lock


def _raise(error: BaseException) -> Any:
    raise error


class ProbeTimeout(Exception):
    """The function of a :class:`Probe` did not return in time.

    An error of the function itself is raised unchanged.
    """


class Probe(Generic[T]):
    """A caller of a function that may hang forever, such as a look at a file system whose server is down.

    The function runs in a native thread. A thread that hangs is lost, so there is never more than one. While it hangs,
    every further :meth:`ask` raises :class:`ProbeTimeout`.

    :meth:`ask` blocks the calling thread, and its locks are never green. With eventlet, call it through
    :func:`outside_of_the_hub`.

    :param function: the function to call; it must not take a lock or an event of :class:`Threads`.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._lock = _native_threading().Lock()
        self._ended = _native_threading().Event()
        self._ended.set()
        self._until = 0.0
        self._answer: Callable[[], T] = lambda: _raise(RuntimeError('the function was never called'))

    def ask(self, seconds: float) -> T:
        """Return the function's result, or raise its error.

        A call that another thread has started is shared.

        :param seconds: how long the call may take from its start.
        :raises ProbeTimeout: the call takes longer.
        """
        with self._lock:
            if self._ended.is_set():
                until, ended = time.monotonic() + seconds, _native_threading().Event()
                _native_threading().Thread(target=self._call, args=(ended,), daemon=True).start()
                self._until, self._ended = until, ended
            until, ended = self._until, self._ended
        if not ended.wait(max(0.0, until - time.monotonic())):
            raise ProbeTimeout(f'no answer within {seconds:g} s')
        return self._answer()

    def _call(self, ended: Any) -> None:
        self._answer = _outcome(self._function)
        ended.set()
