# SPDX-License-Identifier: Apache-2.0

"""The connections to a libvirt daemon.

A broken one is replaced, and a call that hangs delays no other call.

*Deadlines.* A call into libvirt hangs as long as the daemon hangs. So each call runs in a thread of a pool, and the
caller waits for it with a deadline. After the deadline the caller gets an error, and the thread is left alone. Up to
:data:`POOL_SIZE` calls may hang. Further calls are then refused at once, until some threads have returned.

*Connections.* Each call has a connection to itself. A daemon serves only a few calls of one connection at once (five by
default). Migrations are long calls, so on a shared connection they would block queries. Also, libvirt's client before
9.2 delays a call until the next keepalive if another thread is in a long call on the same connection.

*Events.* Events arrive on a connection of their own, from an event loop. Libvirt has one loop in a process. It starts
with the first connection. A process that eventlet has patched has no loop, because a native thread must not touch green
locks. There, code that waits for an event polls every :data:`POLL_INTERVAL` seconds instead. There is no keepalive
either, because it needs the loop. A call that hangs returns when the daemon continues or ends.
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
from migrator.virt import driver
from migrator.virt.libvirt.host import host_uuid

LOG = logging.getLogger(__name__)

T = TypeVar('T')

#: Seconds within which libvirt must answer a query.
DEADLINE = 20.0
#: The maximum number of calls that may run or hang at once.
POOL_SIZE = 64
#: Seconds between two polls of code that waits for an event, because an event may be missed.
POLL_INTERVAL = 1.0
#: The number of idle connections that are kept for later calls.
IDLE = 8
#: The calls that are made again and again. While one of them hangs, no second one is made, because it would hang too.
REPEATED = frozenset({'get_node', 'get_definition'})
#: Keepalive: seconds between two pings, and the number of unanswered pings after which a connection is broken.
KEEPALIVE = (5, 3)

_EVENTS = (
    libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE,
    libvirt.VIR_DOMAIN_EVENT_ID_JOB_COMPLETED,
    libvirt.VIR_DOMAIN_EVENT_ID_MIGRATION_ITERATION,
)

_TIMES = (libvirt.VIR_DOMAIN_JOB_DOWNTIME, libvirt.VIR_DOMAIN_JOB_TIME_ELAPSED)
_COPIED = (libvirt.VIR_DOMAIN_JOB_MEMORY_PROCESSED, libvirt.VIR_DOMAIN_JOB_DISK_PROCESSED)


class _Loop:
    """Libvirt's event loop, of which a process has one or none."""

    def __init__(self) -> None:
        self._lock = executors.NativeThreads().lock()
        self._quiet = False
        self._started = False

    def start(self, threads: executors.Threads) -> None:
        """Start the loop once, unless threads are green.

        The caller does this before it opens the first connection.
        """
        with self._lock:
            if not self._quiet:
                # Libvirt raises errors as exceptions, and would print them too.
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
            except Exception:  # without the loop no broken connection would ever be noticed
                LOG.exception("Libvirt's event loop failed; it continues")


_LOOP = _Loop()


def code_of(error: libvirt.libvirtError) -> int:
    """Return the ``VIR_ERR_*`` code of an error."""
    return int(error.get_error_code() or 0)


class Waker:
    """The threads that wait for news of a guest, and their wake-up."""

    def __init__(self, threads: executors.Threads) -> None:
        self._threads = threads
        self._lock = threads.lock()
        self._waiting: dict[str, list[executors.Event]] = {}

    @contextlib.contextmanager
    def listen(self, instance_uuid: str) -> Iterator[executors.Event]:
        """Yield an event that is set at all news of a guest.

        The waiting thread clears it.
        """
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
        """Wake the threads that wait for news of a guest."""
        with self._lock:
            for event in self._waiting.get(instance_uuid, ()):
                event.set()

    def wake_all(self) -> None:
        """Wake all waiting threads, so that they poll what they may have missed."""
        with self._lock:
            for events in self._waiting.values():
                for event in events:
                    event.set()


def _release(function: Callable[[], Any]) -> None:
    """Call a function that releases something of libvirt's, and ignore its failure.

    It runs outside of the hub, because a stopped daemon does not answer even this call.
    """
    with contextlib.suppress(libvirt.libvirtError):
        executors.outside_of_the_hub(function)


class Connection:
    """The connections to one daemon.

    :param uri: the URI of libvirt, such as ``qemu:///system``.
    :param host: the name of this compute host, for errors.
    :param threads: the threads of the compute process.
    :param deadline: seconds within which libvirt must answer a query.
    :ivar on_copied: see :class:`migrator.virt.driver.Reporting`.
    """

    def __init__(self, uri: str, host: str, threads: executors.Threads, deadline: float = DEADLINE) -> None:
        self.uri = uri
        self.host = host
        self.deadline = deadline
        self.on_copied: driver.Copied = lambda instance_uuid, downtime, rate: None
        self.waker = Waker(threads)
        self._threads = threads
        self._pool = executors.BoundedExecutor(POOL_SIZE, threads, name='libvirt')
        self._lock = threads.lock()
        self._idle: list[Any] = []
        self._events: Any = None
        #: The callbacks to deregister before the events' connection is closed.
        self._registered: list[int] = []
        #: The attempt to subscribe to events, one at a time.
        self._listening: futures.Future[None] | None = None
        #: The calls of :data:`REPEATED` that have missed their deadline, by phase.
        self._late: dict[str, futures.Future[Any]] = {}
        #: The guests that have left by a migration, according to libvirt's events.
        self._moved: set[str] = set()

    def call(self, phase: str, function: Callable[[Any], T], deadline: float | None = None) -> T:
        """Return ``function(connection)`` within the deadline.

        :param phase: the purpose of the call, for the error.
        :param function: receives a ``libvirt.virConnect`` and only calls libvirt. It runs in another thread.
        :param deadline: seconds; the default is :attr:`deadline`.
        :raises migrator.exception.ServiceUnreachable: libvirt is unreachable, or did not answer in time.
        :raises migrator.exception.DriverError: libvirt refused the call.
        """
        seconds = self.deadline if deadline is None else deadline
        unanswered = f'libvirt has not answered {phase} within {seconds:g} s'
        with self._lock:
            late = self._late.get(phase)
            if late is not None and not late.done():
                raise self._unreachable(unanswered)
        clock = self._threads.clock
        until = clock.monotonic() + seconds

        def in_time(connection: Any) -> T:
            # The caller already has its error. What was right when it called may be wrong by now.
            if clock.monotonic() >= until:
                raise self._unreachable(f'{phase} did not begin within {seconds:g} s')
            return function(connection)

        future = self._pool.submit(self.do, phase, in_time)
        try:
            answer: T = future.result(seconds)
            return answer
        except futures.TimeoutError:
            if future.cancel():
                reason = f'{POOL_SIZE} calls hang in libvirt, so {phase} was not attempted'
            else:
                reason = unanswered
                if phase in REPEATED:
                    with self._lock:
                        self._late[phase] = future
            raise self._unreachable(reason) from None

    def do(self, phase: str, function: Callable[[Any], T], lasts: bool = False) -> T:
        """Return ``function(connection)``, called in this thread without a deadline.

        :param lasts: whether the call takes as long as a migration.
        :raises migrator.exception.ServiceUnreachable: libvirt is unreachable. The call may have been carried out.
        :raises migrator.exception.DriverError: libvirt refused the call. Its own error is the cause.
        """
        connection = self._take()
        try:
            answer: T = executors.outside_of_the_hub(lambda: function(connection), lasts)
        except libvirt.libvirtError as error:
            if not connection.isAlive():
                raise self._unreachable(str(error)) from error
            self._give_back(connection)
            raise exception.DriverError(host=self.host, phase=phase, reason=str(error)) from error
        except BaseException:  # the connection is not at fault, and the next call can use it
            self._give_back(connection)
            raise
        self._give_back(connection)
        return answer

    def identity(self, phase: str) -> str:
        """Return the uuid by which libvirt identifies the daemon's host, or '' if it is not known now."""
        try:
            return self.call(phase, lambda connection: host_uuid(connection.getCapabilities()))
        except exception.MigratorException as error:
            LOG.info(
                'Cannot compare the identity of host %(host)s, since %(uri)s does not show it: %(error)s',
                {'host': self.host, 'uri': self.uri, 'error': error},
            )
            return ''

    def listen(self) -> None:
        """Subscribe to events if this process can receive them.

        Code that waits for events also polls, so it works without them.
        """
        if executors.is_green():
            return
        with self._lock:
            if self._events is not None and self._events.isAlive():
                return
            if self._listening is None or self._listening.done():
                self._listening = self._pool.submit(self._subscribe)
            listening = self._listening
        try:
            listening.result(self.deadline)
        except futures.TimeoutError:
            LOG.warning('No libvirt events on host %s: libvirt did not answer; polling instead', self.host)

    def has_moved(self, instance_uuid: str) -> bool:
        """Return whether an event since :meth:`forget` reported that a migration took the guest away."""
        with self._lock:
            return instance_uuid in self._moved

    def forget(self, instance_uuid: str) -> None:
        """Forget the events of earlier migrations of a guest."""
        with self._lock:
            self._moved.discard(instance_uuid)

    def close(self) -> None:
        """Close every connection that no call uses.

        A later call opens a new one.
        """
        with self._lock:
            connections, self._idle = [*self._idle], []
        self._unsubscribe()
        for connection in connections:
            _release(connection.close)

    def _subscribe(self) -> None:
        self._unsubscribe()
        try:
            connection = self._opened()
            registered = [connection.domainEventRegisterAny(None, each, self._on_event, each) for each in _EVENTS]
            connection.registerCloseCallback(self._on_close, None)
        except libvirt.libvirtError as error:
            LOG.warning(
                'No libvirt events on host %(host)s: %(error)s; polling instead', {'host': self.host, 'error': error}
            )
            return
        with self._lock:
            self._events, self._registered = connection, registered

    def _unsubscribe(self) -> None:
        """Deregister all callbacks and close the events' connection.

        Libvirt keeps the connection, and its file descriptor, as long as a callback is registered.
        """
        with self._lock:
            connection, self._events = self._events, None
        if connection is None:
            return
        for function in (
            *(functools.partial(connection.domainEventDeregisterAny, each) for each in self._registered),
            connection.unregisterCloseCallback,
            connection.close,
        ):
            # A broken connection raises, and still forgets the callback.
            _release(function)

    def _unreachable(self, reason: str) -> exception.ServiceUnreachable:
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
            raise self._unreachable(str(error)) from error

    def _give_back(self, connection: Any) -> None:
        with self._lock:
            if len(self._idle) < IDLE:
                self._idle.append(connection)
                return
        _release(connection.close)

    def _opened(self) -> Any:
        _LOOP.start(self._threads)
        connection = executors.outside_of_the_hub(lambda: libvirt.open(self.uri))
        if not executors.is_green():  # without the loop no thread would read the answers to the pings
            connection.setKeepAlive(*KEEPALIVE)
        return connection

    # --- in libvirt's thread -----------------------------------------------------------------------------------------

    def _on_event(self, _connection: Any, domain: Any, *args: Any) -> None:
        uuid, event = domain.UUIDString(), args[-1]
        what = tuple(args[:2]) if event == libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE else ()
        if what == (libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_SUSPENDED_MIGRATED):
            # The guest stands still for its switchover. A query of QEMU now would prolong its downtime.
            return
        if what == (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_MIGRATED):
            with self._lock:
                self._moved.add(uuid)
        if event == libvirt.VIR_DOMAIN_EVENT_ID_JOB_COMPLETED:
            self._report_copy(uuid, args[0])
        self.waker.wake(uuid)

    def _report_copy(self, uuid: str, stats: dict[str, Any]) -> None:
        """Report a job that has ended, if it has moved a guest away.

        :param stats: libvirt's figures: milliseconds and bytes.
        """
        is_move = stats.get(libvirt.VIR_DOMAIN_JOB_OPERATION) == libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT
        if not is_move or not stats.get(libvirt.VIR_DOMAIN_JOB_SUCCESS, True):
            return
        downtime, elapsed = (stats.get(name) for name in _TIMES)
        copied = sum(stats.get(name, 0) for name in _COPIED)
        self.on_copied(
            uuid,
            None if downtime is None else downtime / 1000,
            1000 * copied / elapsed if elapsed and copied else None,
        )

    def _on_close(self, _connection: Any, reason: int, _opaque: Any) -> None:
        if reason == libvirt.VIR_CONNECT_CLOSE_REASON_CLIENT:
            return
        LOG.warning(
            'Lost the connection to libvirt on host %(host)s (%(uri)s); opening it again',
            {'host': self.host, 'uri': self.uri},
        )
        self.waker.wake_all()
