# SPDX-License-Identifier: Apache-2.0

"""Threads, locks, clocks and pools: the only place where they are made.

Everything that waits, sleeps, locks or starts a thread is handed a :class:`Threads` and asks it. :class:`NativeThreads`
is the one of a real process; it also works in a process that eventlet has patched, because it looks ``threading`` and
``time`` up when it is asked. There its locks and events are green: no thread of the system's own (one of
``eventlet.tpool``, say) may take them, and what blocks such a thread and not its hub blocks everything. The test
harness has another that runs one thread at a time under a virtual clock, so code that keeps to this seam can be driven
step by step.
"""

from __future__ import annotations

import collections
import concurrent.futures
import datetime
import functools
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

#: Seconds until a green thread looks for the first time whether a call has ended, of which nothing can tell it; each
#: further look comes after twice as long, so that a short call is not waited for much longer than it takes.
_FIRST_LOOK = 0.001
#: And the longest time between two of them.
_LOOK_FOR_END = 0.05

T = TypeVar('T')


class Clock(Protocol):
    """Where time comes from."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; never goes back."""

    def now(self) -> datetime.datetime:
        """Return the wall clock's time, aware, in UTC."""


class Lock(Protocol):
    """What ``threading.Lock`` offers, as far as it is used."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; False if it could not be had within ``timeout`` seconds."""

    def release(self) -> None:
        """Give the lock back."""

    def __enter__(self) -> Any:
        """Take the lock."""

    def __exit__(self, *exc_info: Any) -> None:
        """Give the lock back."""


class Event(Protocol):
    """What ``threading.Event`` offers."""

    def is_set(self) -> bool:
        """Whether it has been set."""

    def set(self) -> None:
        """Set it, and wake who waits."""

    def clear(self) -> None:
        """Unset it."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most ``timeout`` seconds; return whether it is."""


class Threads(Protocol):
    """The seam: a process's clock, uuids, locks and threads."""

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
        """Wait ``seconds``."""

    def start(self, function: Callable[..., Any], *args: Any, name: str) -> None:
        """Run ``function(*args)`` in a new daemon thread called ``name``."""


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        """Return the machine's monotonic seconds."""
        return time.monotonic()

    def now(self) -> datetime.datetime:
        """Return the machine's time, in UTC."""
        return datetime.datetime.now(datetime.UTC)


class NativeThreads:
    """Real threads on the real clock.

    :param clock: where time comes from; the machine's unless told otherwise.
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
    """Whether eventlet has patched this process, so that its threads are green."""
    eventlet = sys.modules.get('eventlet')
    return eventlet is not None and bool(eventlet.patcher.is_monkey_patched('thread'))


def outside_of_the_hub(function: Callable[[], T], lasts: bool = False) -> T:
    """Return ``function()``, which calls into a C library and may block there; green threads go on meanwhile.

    In a process of native threads it is just called. In a green one it runs in a thread of the system's own, and so
    must not take a lock or an event of :class:`Threads`. That is no thread of eventlet's pool: those are few, the whole
    process has them together, and a call may hang. How many there are at once is for the caller to bound.

    :param lasts: whether it takes so long that its end need not be seen at once.
    """
    if not is_green():
        return function()
    import eventlet

    ended: list[Callable[[], T]] = []
    _native_threading().Thread(target=lambda: ended.append(_outcome(function)), daemon=True).start()
    pause = _LOOK_FOR_END if lasts else _FIRST_LOOK
    while not ended:
        eventlet.sleep(pause)
        pause = min(2 * pause, _LOOK_FOR_END)
    return ended[0]()


def _outcome(function: Callable[[], T]) -> Callable[[], T]:
    """Call a function, and return what returns what it has returned, or raises what it has raised."""
    try:
        value = function()
    except BaseException as error:  # noqa: BLE001 -- who waits raises it
        return functools.partial(_raise, error)
    return lambda: value


def _native_threading() -> Any:
    """Return ``threading`` as the system has it."""
    return sys.modules['eventlet'].patcher.original('threading') if is_green() else threading


def _raise(error: BaseException) -> Any:
    raise error


class ProbeTimeout(Exception):
    """What a :class:`Probe` asks has not answered in time. What it has raised itself is told as it is."""


class Probe(Generic[T]):
    """Asks what may hang for ever, as a file system does whose server is away, in a thread of the system's own.

    A thread that hangs so is lost. There is one at most: who asks while it hangs is told that it does.

    It blocks the thread that asks, and its locks are never green: on eventlet's hub ask :func:`outside_of_the_hub`.

    :param function: asks; must not take a lock or an event of :class:`Threads`.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._lock = _native_threading().Lock()
        self._attempt: _Attempt[T] | None = None

    def ask(self, seconds: float) -> T:
        """Return what the function returns, or raise what it raises.

        :param seconds: how long it may take from when it was called, by whomever.
        :raises ProbeTimeout: it takes longer.
        """
        with self._lock:
            attempt = self._attempt
            if attempt is None or attempt.ended.is_set():
                attempt = _Attempt(self._function, time.monotonic() + seconds)
                attempt.start()
                self._attempt = attempt
        if not attempt.ended.wait(max(0.0, attempt.until - time.monotonic())):
            raise ProbeTimeout(f'there was no answer within {seconds:g} s')
        return attempt.answer()


class _Attempt(Generic[T]):
    """One call of a function that a :class:`Probe` asks."""

    def __init__(self, function: Callable[[], T], until: float) -> None:
        self._function = function
        self.until = until
        self.ended = _native_threading().Event()
        self.answer: Callable[[], T] = lambda: _raise(RuntimeError('it has not ended'))

    def start(self) -> None:
        _native_threading().Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self.answer = _outcome(self._function)
        self.ended.set()


class _Call:
    """What is to be called. Thousands may wait, so it is kept small: functools.partial has a dict each."""

    __slots__ = ('args', 'fn', 'kwargs')

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.fn, self.args, self.kwargs = fn, args, kwargs or None

    def __call__(self) -> Any:
        return self.fn(*self.args, **(self.kwargs or {}))


class BoundedExecutor(concurrent.futures.Executor):
    """A first-in-first-out thread pool whose bound can change, and that forgets what is cancelled.

    The stock pools keep a cancelled item until a worker meets it, and cannot shrink. This one keeps what waits in an
    ordered dict keyed by Future, so that cancelling touches one entry, and its workers end when nothing waits, so that
    an idle pool holds no thread.

    Where no thread can be started, nothing is lost: what was submitted waits for a worker that becomes free, for the
    next submit, or for :meth:`start_waiting`, which the pool's owner calls now and then.

    :param max_workers: how many items run at once; 1 or more.
    :param threads: where its lock and its workers come from.
    :param name: the prefix of its workers' names.
    """

    def __init__(self, max_workers: int, threads: Threads, name: str = 'pool') -> None:
        _check_bound(max_workers)
        self._threads = threads
        self._name = name
        self._lock = threads.lock()
        self._idle = threads.event()
        self._idle.set()
        self._max_workers = max_workers
        self._running = 0
        self._started = 0
        #: When no thread could be started while none of its own ran, and since then none could (monotonic seconds).
        self._stalled_at: float | None = None
        self._closed = False
        self._waiting: collections.OrderedDict[concurrent.futures.Future[Any], Callable[[], Any]] = (
            collections.OrderedDict()
        )

    @property
    def max_workers(self) -> int:
        """How many items may run at once."""
        return self._max_workers

    @property
    def running(self) -> int:
        """How many items run now, those above the bound included."""
        return self._running

    @property
    def waiting(self) -> int:
        """How many items wait."""
        return len(self._waiting)

    def stalled_for(self) -> float:
        """Return for how many seconds no thread could be started for what waits, while nothing ran."""
        with self._lock:
            since = self._stalled_at
            return 0.0 if since is None or not self._waiting else self._threads.clock.monotonic() - since

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Queue ``fn(*args, **kwargs)`` and return its Future.

        :raises RuntimeError: the pool has been shut down.
        """
        return self._submit(_Call(fn, args, kwargs), above_bound=False)

    def submit_now(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Start ``fn(*args, **kwargs)`` at once, above the bound if need be; it takes a slot like any other.

        For work that is found running, such as a job that outlived the service which started it.
        """
        return self._submit(_Call(fn, args, kwargs), above_bound=True)

    def _submit(self, call: Callable[[], Any], above_bound: bool) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.add_done_callback(self._forget)
        with self._lock:
            if self._closed:
                raise RuntimeError(f'{self._name} takes no new work: it has been shut down')
            if not above_bound or not self._start_worker((future, call)):
                self._waiting[future] = call
                if above_bound:
                    self._waiting.move_to_end(future, last=False)
                self._start_workers()
        return future

    def start_waiting(self) -> None:
        """Start what waits, as far as the bound allows: a thread could not be had when it was submitted."""
        with self._lock:
            self._start_workers()

    def resize(self, max_workers: int) -> None:
        """Change the bound. What waits keeps its order; what runs is not interrupted.

        :param max_workers: how many items run at once; 1 or more.
        :raises ValueError: less than 1.
        """
        _check_bound(max_workers)
        with self._lock:
            self._max_workers = max_workers
            self._start_workers()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no new work; see :meth:`concurrent.futures.Executor.shutdown`."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting) if cancel_futures else []
            if cancel_futures:  # all at once: a worker that becomes free in the middle must find none
                self._waiting.clear()
        for future in waiting:
            future.cancel()
        if wait:
            self._idle.wait()

    def wait_idle(self, timeout: float) -> bool:
        """Wait until nothing runs, at most ``timeout`` seconds; return whether nothing does."""
        return self._idle.wait(timeout)

    def _start_workers(self) -> None:
        while self._waiting and self._running < self._max_workers:
            # Taken out first: once its thread is started it must not be found here, whatever strikes the starter then
            # (in a process that eventlet has patched, a time-out may).
            future, call = self._waiting.popitem(last=False)
            if not self._start_worker((future, call)):
                self._waiting[future] = call
                self._waiting.move_to_end(future, last=False)
                return

    def _start_worker(self, item: tuple[concurrent.futures.Future[Any], Callable[[], Any]]) -> bool:
        """Start a worker with its first item; return False if no thread could be started."""
        self._running += 1
        self._started += 1
        self._idle.clear()
        try:
            self._threads.start(self._work, item, name=f'{self._name}-{self._started}')
        except RuntimeError as error:
            self._end_worker()
            if self._stalled_at is None and not self._running:
                self._stalled_at = self._threads.clock.monotonic()
            LOG.warning(
                '%s cannot start a thread, and tries again (%d items wait): %s',
                self._name,
                len(self._waiting) + 1,
                error,
            )
            return False
        self._stalled_at = None
        return True

    def _work(self, item: tuple[concurrent.futures.Future[Any], Callable[[], Any]] | None) -> None:
        while item is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # noqa: BLE001 -- the Future is where the caller looks for it
                    future.set_exception(error)
                else:
                    future.set_result(result)
            # The next item must not keep this one's objects alive while it runs.
            del future, call
            with self._lock:
                if self._waiting and self._running <= self._max_workers:
                    item = self._waiting.popitem(last=False)
                else:
                    item = None
                    self._end_worker()

    def _end_worker(self) -> None:
        self._running -= 1
        if not self._running:
            self._idle.set()

    def _forget(self, future: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._waiting.pop(future, None)


def _check_bound(max_workers: int) -> None:
    if max_workers < 1:
        raise ValueError(f'max_workers is {max_workers}: 1 or more would do')


class Periodic:
    """Runs a function again and again in a thread of its own, until it is stopped.

    An error is logged and does not end it. The time between two runs is jittered by a tenth, so that many services
    started at once do not stay in step.

    :param spacing: seconds between the end of one run and the start of the next; or what returns them as they now are,
        and is asked at the end of each run.
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
        # until it is started there is nothing to wait for
        self._ended.set()

    def start(self) -> Periodic:
        """Start its thread; the first run comes one spacing later."""
        self._ended.clear()
        self._threads.start(self._loop, name=self._name)
        return self

    def stop(self, wait: bool = True) -> None:
        """Let no further run begin; wait for the one under way."""
        self._stop.set()
        if wait:
            self._ended.wait()

    def _loop(self) -> None:
        try:
            spacing = self._spaced(1.0)
            while not self._stop.wait(spacing * (0.9 + 0.2 * self._threads.random())):
                try:
                    self._function()
                except Exception:  # one bad run must not end the service; the next may be right
                    LOG.exception('%s failed, and will be run again', self._name)
                spacing = self._spaced(spacing)
        finally:
            self._ended.set()

    def _spaced(self, before: float) -> float:
        """Return the spacing as it now is, or else what it was."""
        if not callable(self._spacing):
            return self._spacing
        try:
            return float(self._spacing())
        except Exception as error:  # noqa: BLE001 -- without a next run nobody would notice that it can be told again
            LOG.error('the spacing of %s cannot be told: it stays %g s: %s', self._name, before, error)
            return before
