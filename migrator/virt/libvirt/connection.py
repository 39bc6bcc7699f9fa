# SPDX-License-Identifier: Apache-2.0

"""The way to a libvirt daemon: opened again when it broke, and no call into it holds more than itself up.

A call into libvirt may hang as long as the daemon does. So each is made in a thread of its own pool and waited for
with a deadline; whoever asked is told that there was no answer, and the thread is left to its fate. As many as
:data:`POOL_SIZE` may hang; then further ones are refused at once, until some have come back.

Each call has a connection to itself while it lasts. A daemon serves only so many calls of one client at once (five,
unless told otherwise), so that moves, which are calls that last, would lock questions out; and libvirt's client before
9.2 lets a call wait for the next keepalive where another thread sits in a long one on the same connection.

Events come on a connection of their own, from a loop of which libvirt has one in a process; it is started with the
first connection. In a process that eventlet has patched there are none (a native thread must not touch green locks),
and what waits for one looks again every :data:`LOOK` seconds instead. Nor is there a keepalive there, which needs that
loop: a call that hangs does so until the daemon goes on, or ends.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, TypeVar

import libvirt
from oslo_log import log as logging

from migrator import exception, executors

LOG = logging.getLogger(__name__)

T = TypeVar('T')

#: Seconds in which libvirt has to answer a question.
DEADLINE = 20.0
#: How many calls may be under way, or hang, at once.
POOL_SIZE = 64
#: Seconds between two looks of who waits for an event that may have been missed.
LOOK = 1.0
#: How many connections are kept for the next calls.
IDLE = 8
#: What is asked at each heartbeat: while one of these hangs no other is made, which would only hang beside it.
REPEATED = frozenset({'get_node'})
#: Libvirt pings a daemon this often, in seconds, and gives a connection up after so many pings without an answer.
KEEPALIVE = (5, 3)

_EVENTS = (
    libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE,
    libvirt.VIR_DOMAIN_EVENT_ID_JOB_COMPLETED,
    libvirt.VIR_DOMAIN_EVENT_ID_MIGRATION_ITERATION,
)


class _Loop:
    """Libvirt's event loop, where there is one; a process has no second, whoever wants it."""

    def __init__(self) -> None:
        self._lock = executors.NativeThreads().lock()
        self._quiet = False
        self._started = False

    def start(self, threads: executors.Threads) -> None:
        """Start it, once, unless threads are green; before the first connection is opened."""
        with self._lock:
            if not self._quiet:
                # Errors come as exceptions; libvirt would print them besides.
                libvirt.registerErrorHandler(lambda _context, _error: None, None)
                self._quiet = True
            if self._started or executors.is_green():
                return
            libvirt.virEventRegisterDefaultImpl()
            threads.start(self._run, name='libvirt-events')
            self._started = True

    def _run(self) -> None:
        while True:
            try:
                libvirt.virEventRunDefaultImpl()
            except Exception:  # without the loop no connection would ever be found broken
                LOG.exception("Libvirt's event loop failed, and goes on")


_LOOP = _Loop()


def code_of(error: libvirt.libvirtError) -> int:
    """Return an error's code, of ``VIR_ERR_*``."""
    return int(error.get_error_code() or 0)


class Waker:
    """Wakes who waits for news of a guest."""

    def __init__(self, threads: executors.Threads) -> None:
        self._threads = threads
        self._lock = threads.lock()
        self._waiting: dict[str, list[executors.Event]] = {}

    @contextlib.contextmanager
    def listen(self, instance_uuid: str) -> Iterator[executors.Event]:
        """Give an event that is set by every news of a guest; who waits for it clears it."""
        event = self._threads.event()
        with self._lock:
            self._waiting.setdefault(instance_uuid, []).append(event)
        try:
            yield event
        finally:
            with self._lock:
                self._waiting[instance_uuid].remove(event)
                if not self._waiting[instance_uuid]:
                    del self._waiting[instance_uuid]

    def wake(self, instance_uuid: str) -> None:
        """Set the events of who waits for news of a guest."""
        with self._lock:
            for event in self._waiting.get(instance_uuid, ()):
                event.set()

    def wake_all(self) -> None:
        """Set every event: what is no longer heard of has to be looked at."""
        with self._lock:
            for events in self._waiting.values():
                for event in events:
                    event.set()


def _forgo(function: Callable[[], Any]) -> None:
    """Call what lets something of libvirt's go, and let it fail. A daemon that is stopped answers not even this."""
    with contextlib.suppress(libvirt.libvirtError):
        executors.outside_of_the_hub(function)


class Connection:
    """The way to one daemon.

    :param uri: of libvirt, such as ``qemu:///system``.
    :param host: the name of this compute host, for errors.
    :param threads: those of the compute process.
    :param deadline: seconds in which a question has to be answered.
    """

    def __init__(self, uri: str, host: str, threads: executors.Threads, deadline: float = DEADLINE) -> None:
        self.uri = uri
        self.host = host
        self.deadline = deadline
        self.waker = Waker(threads)
        self._threads = threads
        self._pool = executors.BoundedExecutor(POOL_SIZE, threads, name='libvirt')
        self._lock = threads.lock()
        self._idle: list[Any] = []
        self._events: Any = None
        #: What the events' connection is to be asked to forget before it is let go.
        self._registered: list[int] = []
        #: The attempt to hear events, one at a time.
        self._listening: futures.Future[None] | None = None
        #: The calls of :data:`REPEATED` that have not come back in time.
        self._given_up: dict[str, futures.Future[Any]] = {}
        #: The guests of which libvirt has told that they left by a migration.
        self._moved: set[str] = set()

    def call(self, phase: str, function: Callable[[Any], T], deadline: float | None = None) -> T:
        """Return ``function(connection)``, within the deadline.

        :param phase: what it is for, for the error.
        :param function: gets a ``libvirt.virConnect``, and does nothing but ask it; runs in another thread.
        :param deadline: seconds, if not :attr:`deadline`.
        :raises migrator.exception.ServiceUnreachable: libvirt is away, or has not answered in time.
        :raises migrator.exception.DriverError: libvirt refused.
        """
        seconds = self.deadline if deadline is None else deadline
        unanswered = f'libvirt has not answered {phase} within {seconds:g} s'
        with self._lock:
            given_up = self._given_up.get(phase)
            if given_up is not None and not given_up.done():
                raise self._away(unanswered)
        clock = self._threads.clock
        until = clock.monotonic() + seconds

        def in_time(connection: Any) -> T:
            # Whoever asked has been told that there was no answer, and what was right then need not be so any more.
            if clock.monotonic() >= until:
                raise self._away(f'{phase} was not begun within {seconds:g} s')
            return function(connection)

        future = self._pool.submit(self.do, phase, in_time)
        try:
            answer: T = future.result(seconds)
            return answer
        except futures.TimeoutError:
            if future.cancel():
                reason = f'{POOL_SIZE} calls hang in libvirt, and no further one is made'
            else:
                reason = unanswered
                if phase in REPEATED:
                    with self._lock:
                        self._given_up[phase] = future
            raise self._away(reason) from None

    def do(self, phase: str, function: Callable[[Any], T], lasts: bool = False) -> T:
        """Return ``function(connection)``, in this thread and however long it takes.

        :param lasts: whether it takes as long as a move.
        :raises migrator.exception.ServiceUnreachable: libvirt is away; whether the call was carried out is not known.
        :raises migrator.exception.DriverError: libvirt refused; its own error is the cause.
        """
        connection = self._take()
        try:
            answer: T = executors.outside_of_the_hub(lambda: function(connection), lasts)
        except libvirt.libvirtError as error:
            if not connection.isAlive():
                raise self._away(str(error)) from error
            self._give_back(connection)
            raise exception.DriverError(host=self.host, phase=phase, reason=str(error)) from error
        except Exception:  # it is no fault of the connection's, which is of use to the next; raised on
            self._give_back(connection)
            raise
        self._give_back(connection)
        return answer

    def listen(self) -> None:
        """See to it that events are heard, if they can be; who waits for them looks for itself now and then anyway."""
        if executors.is_green():
            return
        with self._lock:
            if self._events is not None and self._events.isAlive():
                return
            if self._listening is None or self._listening.done():
                self._listening = self._pool.submit(self._hear)
            listening = self._listening
        try:
            listening.result(self.deadline)
        except futures.TimeoutError:
            LOG.warning('No events of libvirt of %s are heard: it has not answered', self.host)

    def has_moved(self, instance_uuid: str) -> bool:
        """Whether libvirt has told that a guest left this host by a migration, since :meth:`forget`."""
        with self._lock:
            return instance_uuid in self._moved

    def forget(self, instance_uuid: str) -> None:
        """Let what was told of a guest be of an earlier move."""
        with self._lock:
            self._moved.discard(instance_uuid)

    def close(self) -> None:
        """Close every connection that no call has; a further call opens another."""
        with self._lock:
            connections, self._idle = [*self._idle], []
        self._hear_no_more()
        for connection in connections:
            _forgo(connection.close)

    def _hear(self) -> None:
        self._hear_no_more()
        try:
            connection = self._opened()
            registered = [connection.domainEventRegisterAny(None, each, self._on_event, each) for each in _EVENTS]
            connection.registerCloseCallback(self._on_close, None)
        except libvirt.libvirtError as error:
            LOG.warning('No events of libvirt of %s are heard: %s', self.host, error)
            return
        with self._lock:
            self._events, self._registered = connection, registered

    def _hear_no_more(self) -> None:
        """Let the events' connection go: as long as it has to call back it is kept, and its file with it."""
        with self._lock:
            connection, self._events = self._events, None
        if connection is None:
            return
        for function in (
            *(functools.partial(connection.domainEventDeregisterAny, each) for each in self._registered),
            connection.unregisterCloseCallback,
            connection.close,
        ):
            # It may be broken, and forgets all the same.
            _forgo(function)

    def _away(self, reason: str) -> exception.ServiceUnreachable:
        return exception.ServiceUnreachable(service=f'libvirt of {self.host} ({self.uri})', reason=reason)

    def _take(self) -> Any:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            if connection.isAlive():
                return connection
        try:
            return self._opened()
        except libvirt.libvirtError as error:
            raise self._away(str(error)) from error

    def _give_back(self, connection: Any) -> None:
        with self._lock:
            if len(self._idle) < IDLE:
                self._idle.append(connection)
                return
        _forgo(connection.close)

    def _opened(self) -> Any:
        _LOOP.start(self._threads)
        connection = executors.outside_of_the_hub(lambda: libvirt.open(self.uri))
        if not executors.is_green():  # without the loop nobody would take in what is answered
            connection.setKeepAlive(*KEEPALIVE)
        return connection

    # --- in libvirt's thread -----------------------------------------------------------------------------------------

    def _on_event(self, _connection: Any, domain: Any, *args: Any) -> None:
        uuid, event = domain.UUIDString(), args[-1]
        what = tuple(args[:2]) if event == libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE else ()
        if what == (libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_SUSPENDED_MIGRATED):
            # It is about to go, which is no news for anybody; and whatever asked QEMU now would have it stand still
            # for longer.
            return
        if what == (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_MIGRATED):
            with self._lock:
                self._moved.add(uuid)
        self.waker.wake(uuid)

    def _on_close(self, _connection: Any, reason: int, _opaque: Any) -> None:
        if reason == libvirt.VIR_CONNECT_CLOSE_REASON_CLIENT:
            return
        LOG.warning('The connection to libvirt of %s (%s) is broken, and will be opened again', self.host, self.uri)
        self.waker.wake_all()
