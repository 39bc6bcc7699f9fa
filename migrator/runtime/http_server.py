# SPDX-License-Identifier: Apache-2.0

"""An HTTP server in a thread: for migrator-api, the metrics of services, the demo and the tests.

The server is waitress. One thread owns every connection, and only a request that has arrived whole holds a thread of
the pool. This module adds limits that waitress does not have: for the arrival of a request, for an idle connection, and
for the number of connections. ``doc/source/decisions/`` has the reasons.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from oslo_config import cfg
from waitress import adjustments, channel, server, task, utilities, wasyncore

from migrator import exception, executors
from migrator.objects import base

if TYPE_CHECKING:
    from migrator.runtime.process import Process

App = Callable[..., Iterable[bytes]]

#: Seconds from the first byte of a request within which it must arrive whole. A later one is answered 408. A client
#: that reads nothing of its answer for as long is disconnected.
ARRIVAL = 30.0
#: Seconds for which a connection may be idle. After that it is closed.
REST = 120.0
#: The greatest number of open connections. Further clients wait until one is closed.
CONNECTIONS = 2048
#: The greatest length of the request line and the headers, in bytes. Longer ones are answered 431.
MAX_HEADERS = 64 * 1024

#: The number of files and sockets that a process needs besides its connections.
_OTHER_FILES = 256
#: Bytes of a body or an answer that are kept in memory. The rest goes to a temporary file.
_IN_MEMORY = 64 * 1024


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """A logger for waitress's messages on connections. Line breaks in their paths are escaped."""

    def process(self, msg: Any, kwargs: Any) -> Any:
        return f'HTTP: {base.printable(str(msg))}', kwargs


LOG = _Quiet(logging.getLogger(__name__), {})


class _LateError(utilities.Error):  # type: ignore[misc]  # waitress has no types
    code = 408
    reason = 'Request Timeout'


class _Pool(task.ThreadedTaskDispatcher):  # type: ignore[misc]  # waitress has no types
    """The threads that run the application."""

    logger = LOG

    def __init__(self, threads: executors.Threads, count: int) -> None:
        super().__init__()
        self._threads = threads
        # waitress warns about each request that waits for a thread. That is normal.
        self.queue_logger = logging.getLogger(f'{__name__}.queue')
        self.queue_logger.setLevel(logging.ERROR)
        self.set_thread_count(count)

    def start_new_thread(self, target: Callable[[int], None], thread_no: int) -> None:
        self._threads.start(target, thread_no, name=f'http-{thread_no}')


class _Channel(channel.HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection that knows the begin of its state: idle, sending a request, reading an answer."""

    logger = LOG
    request: Any  # the request that is arriving
    requests: list[Any]  # the requests that have arrived; the first one is being answered
    total_outbufs_len: int

    def __init__(self, server: Server, *args: Any, **kwargs: Any) -> None:
        self._clock = server.threads.clock
        self.since = self._sent_at = self._clock.monotonic()
        self._unsent = 0
        super().__init__(server, *args, **kwargs)

    def readable(self) -> bool:
        return not self.server.stopping and bool(super().readable())

    def received(self, data: bytes) -> bool:
        arriving = self.request
        try:
            found = bool(super().received(data))
        except ValueError:  # urllib and int() refuse some request lines and lengths that waitress lets through
            with self.requests_lock:
                self._refuse(utilities.BadRequest('The request line or a header is malformed.'))
            return False
        if self.request is not None and self.request is not arriving:
            self.since = self._clock.monotonic()
        return found

    def send_continue(self) -> None:
        # Without a body there is nothing to wait for: waitress would join the next request to this one.
        if self.request.completed:
            self.request.expect_continue = False
        else:
            super().send_continue()

    def write_soon(self, data: bytes) -> int:
        self.since = self._sent_at = self._clock.monotonic()
        return int(super().write_soon(data))

    def is_busy(self) -> bool:
        """Return whether a request is being answered, or an answer is being sent."""
        return bool(self.requests or self.total_outbufs_len)

    def end_if_late(self, now: float) -> None:
        """Answer 408, or close, after too long in one state. The thread of the connection calls it."""
        with self.requests_lock:
            if self.total_outbufs_len < self._unsent:
                self._sent_at = now
            self._unsent = self.total_outbufs_len
            if self._unsent:
                # A thread may be waiting for the client to read.
                if now - self._sent_at > ARRIVAL:
                    self.handle_close()
            elif self.requests:  # a thread answers it, or soon will
                return
            elif self.request is None:
                if now - self.since > REST:
                    self.handle_close()
            elif now - self.since > ARRIVAL:
                self._refuse(_LateError(f'The request did not arrive whole within {ARRIVAL:.0f} s.'))

    def _refuse(self, error: Any) -> None:
        self.request.error = error
        self.request.completed = True
        self.requests.append(self.request)
        self.request = None
        if len(self.requests) == 1:
            self.server.add_task(self)


class Server(server.TcpWSGIServer):  # type: ignore[misc]  # waitress has no types
    """A server that listens.

    :ivar host: the address that it is bound to.
    :ivar port: the port, also if the system chose it.
    """

    channel_class = _Channel
    logger = LOG

    def __init__(self, app: App, listening: socket.socket, threads: executors.Threads, pool: _Pool, **settings: Any):
        self.threads = threads
        self.stopping = False
        self._ended = threads.event()
        self._patience = 0.0
        self._next_check = 0.0
        kind = (listening.family, listening.type, listening.proto, listening.getsockname())
        adjusted = adjustments.Adjustments(sockets=[listening], **settings)
        super().__init__(self._with_is_stopping(app), {}, True, listening, pool, adjusted, kind, bind_socket=False)
        self.host: str = self.effective_host
        self.port = int(self.effective_port)

    def _with_is_stopping(self, app: App) -> App:
        """Return the application with ``migrator.is_stopping`` in its environment, for an answer that lasts."""

        def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            environ['migrator.is_stopping'] = lambda: self.stopping
            return app(environ, start_response)

        return serve

    @property
    def url(self) -> str:
        """Its URL, without a slash at the end."""
        return f'http://{_shown(self.host)}:{self.port}'

    def run(self) -> None:
        """Serve until :meth:`stop` is called, and then until the requests under way are answered."""
        while not self.stopping:
            self._poll(1)
            self._end_late_channels()
        self.del_channel()
        self.socket.close()  # the system refuses clients from now on, so that they can use another server
        until = self.threads.clock.monotonic() + self._patience
        while self.threads.clock.monotonic() < until and any(one.is_busy() for one in self._channels()):
            self._poll(0.1)
        self.task_dispatcher.shutdown(timeout=1)
        wasyncore.close_all(self._map, ignore_all=True)
        self._ended.set()

    def stop(self, patience: float = 5.0) -> None:
        """Release the port, wait for the requests under way, and close every connection.

        :param patience: how many seconds to wait for the answers at most.
        """
        if not self.stopping:
            self._patience = patience
            self.stopping = True
            with contextlib.suppress(OSError):  # it is closed: the loop has woken up and ended by itself
                self.pull_trigger()
        self._ended.wait(patience + 5)

    def maintenance(self, now: float) -> None:
        """Do nothing, in place of waitress's own check.

        That check uses the wall clock, and never closes a connection that transfers a byte now and then.
        """

    def _end_late_channels(self) -> None:
        now = self.threads.clock.monotonic()
        if now >= self._next_check:
            self._next_check = now + 1
            for one in self._channels():
                one.end_if_late(now)

    def _poll(self, seconds: float) -> None:
        # waitress falls back to select() where eventlet has removed poll().
        wasyncore.loop(seconds, use_poll=True, map=self._map, count=1)

    def _channels(self) -> list[_Channel]:
        return list(self.active_channels.values())


def listen(
    app: App,
    host: str,
    port: int,
    *,
    name: str = 'migrator',
    max_body: int = 1024 * 1024,
    count: int = 8,
    threads: executors.Threads | None = None,
) -> Server:
    """Serve a WSGI application, and return at once.

    :param host: a name or an address.
    :param port: the port; with 0 the system chooses one.
    :param name: the name of the server in its answers.
    :param max_body: the greatest length of a body, in bytes; a longer one is answered 413.
    :param count: how many threads run the application.
    :param threads: the source of the threads; native ones by default.
    :raises OSError: the address cannot be bound to.
    """
    threads = threads or executors.NativeThreads()
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    both = family == socket.AF_INET6 and address[0] == '::' and socket.has_dualstack_ipv6()
    try:
        listening = socket.create_server(address[:2], family=family, backlog=1024, dualstack_ipv6=both)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0)) from None  # the caller adds the address
    running = Server(
        app,
        listening,
        threads,
        _Pool(threads, count),
        ident=name,
        server_name=host,
        backlog=1024,
        connection_limit=_connections(),
        max_request_header_size=MAX_HEADERS,
        max_request_body_size=max_body + 1,  # waitress refuses a body of exactly this length
        inbuf_overflow=_IN_MEMORY,
        outbuf_overflow=_IN_MEMORY,
        clear_untrusted_proxy_headers=False,  # the application decides which proxies it trusts
        log_socket_errors=False,
    )
    threads.start(running.run, name='http')
    return running


def _connections() -> int:
    """Raise the limit of open files as far as needed and allowed. Return how many connections fit into it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + _OTHER_FILES
    if 0 <= soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return CONNECTIONS if soft < 0 else max(min(CONNECTIONS, soft - _OTHER_FILES), 16)


def serve(
    process: Process,
    app: App,
    group: str,
    host_option: str,
    port_option: str,
    *,
    patience: float = 5.0,
    **settings: Any,
) -> str:
    """Serve a WSGI application until the process stops, and return its URL, without a path.

    :param group: the section of the two options.
    :param host_option: the option with the address.
    :param port_option: the option with the port; with 0 the system chooses one.
    :param patience: how many seconds a stop waits for the requests under way at most.
    :param settings: further arguments of :func:`listen`.
    :raises migrator.exception.ConfigurationError: the server cannot listen there.
    """
    section = process.conf[group]
    try:
        running = listen(app, section[host_option], section[port_option], threads=process.threads, **settings)
    except OSError as error:
        raise _cannot_listen(section, f'[{group}]', host_option, port_option, error) from None
    process.on_stop(lambda: running.stop(patience))
    return running.url


def serve_monitor(process: Process, group: str) -> None:
    """Serve the health and the metrics of a service until the process stops, if ``metrics_port`` is set.

    :param group: the section of ``metrics_host`` and ``metrics_port``.
    :raises migrator.exception.ConfigurationError: the server cannot listen there.
    """
    if process.conf[group].metrics_port is None:
        return
    process.monitor.is_served = process.monitor.measures = True
    app = process.monitor.make_app()
    # There are few requests, without a body, and each is answered quickly.
    url = serve(process, app, group, 'metrics_host', 'metrics_port', name=process.name, max_body=1024, count=2)
    LOG.info('The metrics are at %s/metrics', url)


def _cannot_listen(
    section: cfg.ConfigOpts.GroupAttr, group: str, host_option: str, port_option: str, error: OSError
) -> exception.ConfigurationError:
    host, port = section[host_option], section[port_option]
    if error.errno == errno.EADDRINUSE:
        return exception.ConfigurationError(
            option=f'{group} {port_option}',
            value=port,
            detail=f'something else listens there, at {_shown(host)}: {port + 1} may be free.',
        )
    if error.errno == errno.EACCES:
        return exception.ConfigurationError(
            option=f'{group} {port_option}', value=port, detail='only root may listen there; give 1024 or more.'
        )
    return exception.ConfigurationError(
        option=f'{group} {host_option}', value=host, detail=f'cannot listen there: {error.strerror or error}.'
    )


def _shown(host: str) -> str:
    return f'[{host}]' if ':' in host else host
