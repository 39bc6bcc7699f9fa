# SPDX-License-Identifier: Apache-2.0

"""Threads, locks, clocks and pools: the only module that makes them.

Code that waits, sleeps, locks or starts a thread receives a :class:`Threads` and uses it. A real process has
:class:`NativeThreads`. It also works in a process that eventlet has patched, because it looks ``threading`` and
``time`` up at each use. In such a process its locks and events are green. A native thread, such as one of
``eventlet.tpool``, must not take them. A call that blocks without yielding to the hub blocks the whole process.

The test harness has an implementation that runs one thread at a time under a virtual clock. So it can run code that
uses only this interface step by step.
"""

from __future__ import annotations

import collections
import concurrent.futures
import datetime
import functools
import itertools
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

#: Seconds until a green thread first checks whether a native call has ended, which cannot wake it. Each further check
#: comes after twice the time, so that a short call costs little more than its own time.
_FIRST_CHECK = 0.001
#: The longest time between two checks, in seconds.
_LONGEST_CHECK = 0.05

T = TypeVar('T')
#: A call that waits: its function and arguments. Thousands may wait, and a functools.partial is twice as large.
_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any] | None]
_Item = tuple[concurrent.futures.Future[Any], _Call]


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


class SystemClock:
    """The clock of the machine."""

    def monotonic(self) -> float:
        """Return the machine's monotonic time in seconds."""
        return time.monotonic()

    def now(self) -> datetime.datetime:
        """Return the machine's time, in UTC."""
        return datetime.datetime.now(datetime.UTC)


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


def is_green() -> bool:
    """Return whether eventlet has patched this process, so that its threads are green."""
    eventlet = sys.modules.get('eventlet')
    return eventlet is not None and bool(eventlet.patcher.is_monkey_patched('thread'))


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


def _run(future: concurrent.futures.Future[Any], call: _Call) -> None:
    """Call a function, unless its Future has been cancelled, and set the Future."""
    function, args, kwargs = call
    if future.set_running_or_notify_cancel():
        try:
            result = function(*args, **(kwargs or {}))
        except BaseException as error:  # noqa: BLE001 -- the caller reads it from the Future
            future.set_exception(error)
        else:
            future.set_result(result)


class ThreadExecutor(concurrent.futures.Executor):
    """An executor that runs each call in a new daemon thread, which ends with the call.

    A process can end while a call hangs. The executors of Python and of futurist join their threads at exit.

    :param name: the prefix of the names of its threads.
    """

    def __init__(self, threads: Threads, name: str) -> None:
        self._threads = threads
        self._name = name
        self._numbers = itertools.count(1)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Start a thread for ``fn(*args, **kwargs)``.

        :raises RuntimeError: no thread can be started.
        """
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._threads.start(_run, future, (fn, args, kwargs), name=f'{self._name}-{next(self._numbers)}')
        return future


class _Condition:
    """The condition of a Future, which takes a tenth of the memory of a ``threading.Condition``.

    The first thread that waits for the Future makes one. Nothing waits for most Futures.
    """

    __slots__ = ('_lock', '_waiters')

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiters: threading.Condition | None = None

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    # The caller of the following has the lock.

    def wait(self, timeout: float | None = None) -> bool:
        if self._waiters is None:
            self._waiters = threading.Condition(self._lock)
        return self._waiters.wait(timeout)

    def notify_all(self) -> None:
        if self._waiters is not None:
            self._waiters.notify_all()


class _Future(concurrent.futures.Future[Any]):
    """A Future of which thousands may wait.

    :ivar submitted_at: when its item was submitted, in monotonic seconds.
    """

    def __init__(self, submitted_at: float) -> None:
        super().__init__()
        self.submitted_at = submitted_at
        self._condition: Any = _Condition()


class BoundedExecutor(concurrent.futures.Executor):
    """A first-in-first-out queue above any executor, with a variable bound and cancellable items.

    Items wait here, and never in the executor. The executor runs only workers, each of which takes waiting items until
    none is left. An idle queue has no worker.

    If the executor refuses a worker, for example because no thread can be started, no item is lost. It waits for a
    worker that becomes free, for the next submit, or for :meth:`start_waiting`, which the owner calls periodically.

    :param max_workers: how many items run at once; 1 or more.
    :param threads: the source of its lock and its clock.
    :param name: the name of the queue in messages.
    :param executor: runs the workers in threads of the same kind as ``threads``; by default a :class:`ThreadExecutor`.
        It stays open: shutting it down is up to the caller, after this queue has been shut down.
    """

    def __init__(
        self,
        max_workers: int,
        threads: Threads,
        name: str = 'pool',
        executor: concurrent.futures.Executor | None = None,
    ) -> None:
        _check_bound(max_workers)
        self._threads = threads
        self._name = name
        self._executor = executor or ThreadExecutor(threads, name)
        self._lock = threads.lock()
        self._idle = threads.event()
        self._idle.set()
        self._max_workers = max_workers
        self._running = 0
        #: The workers, among those that run, that have not yet looked for an item.
        self._starting = 0
        #: Since when no worker could be started while none ran, in monotonic seconds; None: not stalled.
        self._stalled_at: float | None = None
        self._closed = False
        self._waiting: collections.OrderedDict[concurrent.futures.Future[Any], _Call] = collections.OrderedDict()

    @property
    def max_workers(self) -> int:
        """The number of items that may run at once."""
        return self._max_workers

    @property
    def running(self) -> int:
        """The number of workers, including those above the bound."""
        return self._running

    @property
    def waiting(self) -> int:
        """The number of items that wait."""
        return len(self._waiting)

    def oldest_wait(self) -> float:
        """Return the seconds for which the first item has waited; 0 if none waits."""
        with self._lock:
            first = next(iter(self._waiting), None)
            return self._threads.clock.monotonic() - first.submitted_at if isinstance(first, _Future) else 0.0

    def stalled_for(self) -> float:
        """Return the seconds for which items have waited without a running worker or a thread for one."""
        with self._lock:
            since = self._stalled_at
            return 0.0 if since is None or not self._waiting else self._threads.clock.monotonic() - since

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Queue ``fn(*args, **kwargs)`` and return its Future.

        :raises RuntimeError: the queue has been shut down.
        """
        return self._submit((fn, args, kwargs or None), above_bound=False)

    def submit_now(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Start ``fn(*args, **kwargs)`` at once, above the bound if necessary. It takes a slot like any other.

        This is for work that runs already, such as a job that outlived the service which started it.
        """
        return self._submit((fn, args, kwargs or None), above_bound=True)

    def _submit(self, call: _Call, above_bound: bool) -> concurrent.futures.Future[Any]:
        future = _Future(self._threads.clock.monotonic())
        future.add_done_callback(self._forget)
        with self._lock:
            if self._closed:
                raise RuntimeError(f'pool {self._name} accepts no new work: it has been shut down')
            if not above_bound or not self._start_worker((future, call)):
                self._waiting[future] = call
                if above_bound:
                    self._waiting.move_to_end(future, last=False)
                self._start_workers()
        return future

    def start_waiting(self) -> None:
        """Start waiting items as far as the bound allows, after a worker could not be started."""
        with self._lock:
            self._start_workers()

    def resize(self, max_workers: int) -> None:
        """Change the bound. Waiting items keep their order, and running items are not interrupted.

        :param max_workers: how many items run at once; 1 or more.
        :raises ValueError: the bound is less than 1.
        """
        _check_bound(max_workers)
        with self._lock:
            self._max_workers = max_workers
            self._start_workers()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no new work; see :meth:`concurrent.futures.Executor.shutdown`."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting) if cancel_futures else []
            if cancel_futures:  # all at once, so that a worker that becomes free meanwhile finds no item
                self._waiting.clear()
        for future in waiting:
            future.cancel()
        if wait:
            self._idle.wait()

    def wait_idle(self, timeout: float) -> bool:
        """Wait until nothing runs, at most ``timeout`` seconds, and return whether nothing runs."""
        return self._idle.wait(timeout)

    def _start_workers(self) -> None:
        while len(self._waiting) > self._starting and self._running < self._max_workers:
            if not self._start_worker():
                return

    def _start_worker(self, item: _Item | None = None) -> bool:
        """Start a worker, with an item that it must run first. Return False if the executor refuses it."""
        self._running += 1
        self._starting += item is None
        self._idle.clear()
        try:
            self._executor.submit(self._work, item)
        except Exception as error:  # noqa: BLE001 -- futurist's executors can refuse with an error of the caller's
            self._starting -= item is None
            self._end_worker()
            if self._stalled_at is None and not self._running:
                self._stalled_at = self._threads.clock.monotonic()
            LOG.warning(
                'Cannot start a thread of pool %(pool)s, trying again; %(waiting)d items wait: %(error)s',
                {'pool': self._name, 'waiting': len(self._waiting), 'error': error},
            )
            return False
        self._stalled_at = None
        return True

    def _work(self, item: _Item | None) -> None:
        if item is None:
            with self._lock:
                self._starting -= 1
                item = self._next()
        while item is not None:
            _run(*item)
            # Do not keep the objects of this item alive while the next one runs.
            del item
            with self._lock:
                item = self._next()

    def _next(self) -> _Item | None:
        """Return the next item for a worker. None ends the worker."""
        if self._waiting and self._running <= self._max_workers:
            return self._waiting.popitem(last=False)
        self._end_worker()
        return None

    def _end_worker(self) -> None:
        self._running -= 1
        if not self._running:
            self._idle.set()

    def _forget(self, future: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._waiting.pop(future, None)


def _check_bound(max_workers: int) -> None:
    if max_workers < 1:
        raise ValueError(f'max_workers is {max_workers}: give 1 or more')


class Periodic:
    """A periodic task: it runs a function repeatedly in its own thread until it is stopped.

    An error is logged and does not end the task. The interval varies by a tenth, so that many services that start at
    once do not stay in step.

    :param spacing: the interval: seconds between the end of one run and the start of the next; or a function that
        returns the present interval, called at the end of each run.
    """

    def __init__(
        self, threads: Threads, spacing: float | Callable[[], float], function: Callable[[], Any], name: str
    ) -> None:
        self._threads = threads
        self._spacing = spacing
        self._function = function
        self._name = name
        self._stop = threads.event()
        self._ended = threads.event()
        # stop() must not wait for a task that was never started.
        self._ended.set()

    def start(self) -> Periodic:
        """Start its thread. The first run comes one interval later."""
        self._ended.clear()
        self._threads.start(self._loop, name=self._name)
        return self

    def stop(self, wait: bool = True) -> None:
        """Prevent further runs, and wait for the present one."""
        self._stop.set()
        if wait:
            self._ended.wait()

    def _loop(self) -> None:
        try:
            spacing = self._interval(1.0)
            while not self._stop.wait(spacing * (0.9 + 0.2 * self._threads.random())):
                try:
                    self._function()
                except Exception:  # the next run may succeed
                    LOG.exception('Periodic task failed, and will run again: %s', self._name)
                spacing = self._interval(spacing)
        finally:
            self._ended.set()

    def _interval(self, before: float) -> float:
        """Return the present interval, or the one before if it cannot be read."""
        if not callable(self._spacing):
            return self._spacing
        try:
            return float(self._spacing())
        except Exception as error:  # noqa: BLE001 -- the task has to go on, so that it reads a later correction
            LOG.error(
                'Cannot read the interval of periodic task %(task)s; keeping %(interval)g s: %(error)s',
                {'task': self._name, 'interval': before, 'error': error},
            )
            return before
