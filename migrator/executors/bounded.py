# SPDX-License-Identifier: Apache-2.0

"""A queue with a bound above any executor, and the executors that run one call in one thread."""

from __future__ import annotations

import collections
import concurrent.futures
import importlib.metadata
import itertools
import math
import threading
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from migrator.executors.threads import NativeThreads, Threads

LOG = logging.getLogger(__name__)

#: A call that waits: its function and arguments. Thousands may wait, and a functools.partial is twice as large.
_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any] | None]


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
    """A small Future, because thousands may wait. It logs an error that no caller has read.

    :param pool: the name of its executor.
    :param place: its item waits behind those of its own and of lower places.
    :ivar submitted_at: when its item was submitted, in monotonic seconds.
    """

    _unread: BaseException | None = None

    def __init__(self, threads: Threads, pool: str, place: float = 0) -> None:
        super().__init__()
        self.place = place
        self._threads = threads
        self._pool = pool
        self.submitted_at = threads.clock.monotonic()
        self._condition: Any = _Condition()

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the error."""
        if exception is not None and not self._threads.is_final(exception):
            self._unread = exception
        super().set_exception(exception)

    def result(self, timeout: float | None = None) -> Any:
        """Return the result, or raise the error, which counts as read."""
        try:
            return super().result(timeout)
        finally:
            self._read()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, which counts as read."""
        try:
            return super().exception(timeout)
        finally:
            self._read()

    def _read(self) -> None:
        if self.done():
            self._unread = None

    def __del__(self) -> None:
        """Log an error that would be lost otherwise."""
        if self._unread is not None:
            LOG.error(
                'Call failed in pool %(pool)s, and its error was not read: %(kind)s: %(error)s',
                {'pool': self._pool, 'kind': type(self._unread).__name__, 'error': self._unread},
                exc_info=self._unread,
            )


def _run(future: _Future, call: _Call) -> None:
    """Call a function, unless its Future has been cancelled, and set the Future."""
    function, args, kwargs = call
    if future.set_running_or_notify_cancel():
        try:
            result = function(*args, **(kwargs or {}))
        except BaseException as error:  # noqa: BLE001 -- the caller reads it from the Future
            future.set_exception(error)
            # The traceback keeps this frame, and so would keep the Future, which logs an unread error when it is freed.
            del future
        else:
            future.set_result(result)


class ThreadExecutor(concurrent.futures.Executor):
    """An executor that runs each call in a new daemon thread, which ends with the call.

    A process can end while a call hangs. The executors of Python join their threads at exit.

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
        future = _Future(self._threads, self._name)
        self._threads.start(_run, future, (fn, args, kwargs), name=f'{self._name}-{next(self._numbers)}')
        return future


def long_calls(threads: Threads, name: str) -> concurrent.futures.Executor:
    """Return the executor for calls of a driver that take minutes, and may hang.

    On the machine's own threads, native or green, it is futurist's; see :mod:`migrator.executors.growing`.

    :param name: the prefix of the names of its threads.
    """
    if isinstance(threads, NativeThreads):
        try:
            from migrator.executors import growing

            return growing.GrowingExecutor(name)
        except (ImportError, AttributeError) as error:
            LOG.warning(
                'Not using futurist %(release)s for pool %(pool)s: it lacks what migrator needs: %(error)s; each call '
                'gets a thread of its own; to use it, install another release of futurist, 3.5 or newer',
                {'pool': name, 'release': _release('futurist'), 'error': error},
            )
    return ThreadExecutor(threads, name)


def _release(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return '(not installed)'


_Item = tuple[_Future, _Call]
#: The place of what starts at once, and waits only while no thread can be started.
_FIRST = -math.inf


class BoundedExecutor(concurrent.futures.Executor):
    """A queue above any executor, with a variable bound and cancellable items.

    Items wait here, and never in the executor. The executor runs only workers, each of which takes waiting items until
    none is left. An idle queue has no worker. Items are taken by their places, and within a place first in, first out.

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
        self._waiting: collections.OrderedDict[_Future, _Call] = collections.OrderedDict()

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
        """Return the seconds for which the item has waited that was submitted first; 0 if none waits."""
        with self._lock:
            now = self._threads.clock.monotonic()
            return now - min((future.submitted_at for future in self._waiting), default=now)

    def stalled_for(self) -> float:
        """Return the seconds for which items have waited without a running worker or a thread for one."""
        with self._lock:
            since = self._stalled_at
            return 0.0 if since is None or not self._waiting else self._threads.clock.monotonic() - since

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Queue ``fn(*args, **kwargs)`` and return its Future.

        :raises RuntimeError: the queue has been shut down.
        """
        return self._submit((fn, args, kwargs or None))

    def submit_at(
        self, place: float, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        """Queue ``fn(*args, **kwargs)`` before items of higher places; that of :meth:`submit` is 0.

        :raises RuntimeError: the queue has been shut down.
        """
        return self._submit((fn, args, kwargs or None), place)

    def submit_now(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Start ``fn(*args, **kwargs)`` at once, above the bound if necessary. It takes a slot like any other.

        This is for work that runs already, such as a job that outlived the service which started it.
        """
        return self._submit((fn, args, kwargs or None), _FIRST)

    def _submit(self, call: _Call, place: float = 0) -> _Future:
        future = _Future(self._threads, self._name, place)
        future.add_done_callback(self._forget)
        with self._lock:
            if self._closed:
                raise RuntimeError(f'pool {self._name} accepts no new work: it has been shut down')
            if place != _FIRST or not self._start_worker((future, call)):
                self._wait(future, call)
                self._start_workers()
        return future

    def _wait(self, future: _Future, call: _Call) -> None:
        behind = list(itertools.takewhile(lambda one: one.place > future.place, reversed(self._waiting)))
        self._waiting[future] = call
        for one in reversed(behind):
            self._waiting.move_to_end(one)

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
            # In a list, which the worker empties: the arguments of its call live as long as the traceback of an error.
            self._executor.submit(self._work, [] if item is None else [item])
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

    def _work(self, first: list[_Item]) -> None:
        item = first.pop() if first else None
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

    def _forget(self, future: Any) -> None:
        with self._lock:
            self._waiting.pop(future, None)


def _check_bound(max_workers: int) -> None:
    if max_workers < 1:
        raise ValueError(f'max_workers is {max_workers}: give 1 or more')
