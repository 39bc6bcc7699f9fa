# SPDX-License-Identifier: Apache-2.0

"""An HTTP server in a thread of this process: for migrator-api, the conductor's metrics, the demo and the tests.

The server is waitress: one thread owns every connection, and a thread of the pool is held only by a request that is
there as a whole. What it leaves open is bounded here: how long a request may take to arrive, how long a connection may
rest, and how many there are. See ``doc/source/decisions/`` for why.
"""

from __future__ import annotations

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

#: Within how many seconds of its first byte a request must be there as a whole: then it is answered 408.
ARRIVAL = 30.0
#: For how many seconds a connection may rest, or leave an answer unread: then it is closed.
REST = 120.0
#: At most so many connections are open; who comes then waits until one is closed.
CONNECTIONS = 2048
#: The request line and the headers are not longer, in bytes: longer ones are answered 431.
MAX_HEADERS = 64 * 1024

#: So many files and sockets a process needs beside its connections.
_OTHER_FILES = 256
#: So much of a body, or of an answer, is kept in memory; the rest goes to a temporary file.
_IN_MEMORY = 64 * 1024


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """Logs what waitress says of single connections, in which a path may stand, without its line breaks."""

    def process(self, msg: Any, kwargs: Any) -> Any:
        return f'HTTP: {base.printable(str(msg))}', kwargs


LOG = _Quiet(logging.getLogger(__name__), {})


class _LateError(utilities.Error):  # type: ignore[misc]  # waitress has no types
    code = 408
    reason = 'Request Timeout'


class _Pool(task.ThreadedTaskDispatcher):  # type: ignore[misc]  # waitress has no types
    """The threads that have an application answer."""

    logger = LOG

    def __init__(self, threads: executors.Threads, count: int) -> None:
        super().__init__()
        self._threads = threads
        # A request that waits for a thread is no news.
        self.queue_logger = logging.getLogger(f'{__name__}.queue')
        self.queue_logger.setLevel(logging.ERROR)
        self.set_thread_count(count)

    def start_new_thread(self, target: Callable[[int], None], thread_no: int) -> None:
        self._threads.start(target, thread_no, name=f'http-{thread_no}')


class _Channel(channel.HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection, which knows since when it is as it is: resting, sending a request, or reading an answer."""

    logger = LOG
    request: Any  # the one that is arriving
    requests: list[Any]  # those that are there, of which the first is being answered
    total_outbufs_len: int

    def __init__(self, server: Server, *args: Any, **kwargs: Any) -> None:
        self._clock = server.threads.clock
        self.since = self._clock.monotonic()
        super().__init__(server, *args, **kwargs)

    def readable(self) -> bool:
        return not self.server.stopping and bool(super().readable())

    def received(self, data: bytes) -> bool:
        if self.request is None and not self.requests:
            self.since = self._clock.monotonic()
        return bool(super().received(data))

    def write_soon(self, data: bytes) -> int:
        self.since = self._clock.monotonic()
        return int(super().write_soon(data))

    def is_busy(self) -> bool:
        """Whether a request is being answered, or an answer is on its way."""
        return bool(self.requests or self.total_outbufs_len)

    def end_if_late(self, now: float) -> None:
        """Answer 408, or close, if it has been as it is for too long. Called by the thread that owns it."""
        with self.requests_lock:
            if self.requests:  # a thread has it, or is about to
                return
            resting = self.request is None or self.total_outbufs_len
            if resting and now - self.since > REST:
                self.handle_close()
            elif not resting and now - self.since > ARRIVAL:
                self.request.error = _LateError(f'The request was not there as a whole within {ARRIVAL:.0f} s.')
                self.requests.append(self.request)
                self.request = None
                self.server.add_task(self)


class Server(server.TcpWSGIServer):  # type: ignore[misc]  # waitress has no types
    """A server that listens.

    :ivar host: the address that it is bound to.
    :ivar port: the port; the one that the system chose, where 0 was asked for.
    """

    channel_class = _Channel
    logger = LOG

    def __init__(self, app: App, listening: socket.socket, threads: executors.Threads, pool: _Pool, **settings: Any):
        self.threads = threads
        self.stopping = False
        self._ended = threads.event()
        self._patience = 0.0
        self._next_look = 0.0
        kind = (listening.family, listening.type, listening.proto, listening.getsockname())
        adjusted = adjustments.Adjustments(sockets=[listening], **settings)
        super().__init__(app, {}, True, listening, pool, adjusted, kind, bind_socket=False)
        self.host: str = self.effective_host
        self.port = int(self.effective_port)

    @property
    def url(self) -> str:
        """Where it is reached, without a slash at the end."""
        return f'http://{_shown(self.host)}:{self.port}'

    def run(self) -> None:
        """Serve until it is told to stop; then until what was under way has been answered."""
        while not self.stopping:
            self._turn(1)
            self._end_who_is_late()
        self.del_channel()
        self.socket.close()  # who connects from now on is refused, and goes elsewhere
        until = self.threads.clock.monotonic() + self._patience
        while self.threads.clock.monotonic() < until and any(one.is_busy() for one in self._channels()):
            self._turn(0.1)
        self.task_dispatcher.shutdown(timeout=1)
        wasyncore.close_all(self._map, ignore_all=True)
        self._ended.set()

    def stop(self, patience: float = 5.0) -> None:
        """Let go of the port, have the requests under way answered, and close every connection.

        :param patience: for how many seconds at most it waits for the answers.
        """
        if not self.stopping:
            self._patience = patience
            self.stopping = True
            self.pull_trigger()
        self._ended.wait(patience + 5)

    def maintenance(self, now: float) -> None:
        """Do nothing: waitress closes by the wall clock, and lets whoever sends or reads a byte now and then stay."""

    def _end_who_is_late(self) -> None:
        now = self.threads.clock.monotonic()
        if now >= self._next_look:
            self._next_look = now + 1
            for one in self._channels():
                one.end_if_late(now)

    def _turn(self, seconds: float) -> None:
        # select() stands in for poll() where eventlet has taken that away.
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
    :param port: 0 has the system choose one.
    :param name: what the server calls itself.
    :param max_body: no body is longer, in bytes: a longer one is answered 413.
    :param count: how many threads answer.
    :param threads: where they come from; native ones unless told otherwise.
    :raises OSError: the address cannot be bound to.
    """
    threads = threads or executors.NativeThreads()
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    both = family == socket.AF_INET6 and address[0] == '::' and socket.has_dualstack_ipv6()
    try:
        listening = socket.create_server(address[:2], family=family, backlog=1024, dualstack_ipv6=both)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0)) from None  # without the address a second time
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
        max_request_body_size=max_body + 1,  # waitress refuses a body of just that length
        inbuf_overflow=_IN_MEMORY,
        outbuf_overflow=_IN_MEMORY,
        clear_untrusted_proxy_headers=False,  # whom to trust is the application's to say
        log_socket_errors=False,
    )
    threads.start(running.run, name='http')
    return running


def _connections() -> int:
    """Have this process allowed as many files as it needs, if it may, and return how many connections it can have."""
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
    :param host_option: the option that says at which address it listens.
    :param port_option: the option that says at which port; with 0 the system chooses one.
    :param patience: for how many seconds at most a stop waits for the requests under way.
    :param settings: of :func:`listen`.
    :raises migrator.exception.ConfigurationError: nobody can listen there.
    """
    section = process.conf[group]
    try:
        running = listen(app, section[host_option], section[port_option], threads=process.threads, **settings)
    except OSError as error:
        raise _cannot_listen(section, f'[{group}]', host_option, port_option, error) from None
    process.on_stop(lambda: running.stop(patience))
    return running.url


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
            option=f'{group} {port_option}', value=port, detail='only root may listen there; 1024 or more would do.'
        )
    return exception.ConfigurationError(
        option=f'{group} {host_option}', value=host, detail=f'nobody can listen there: {error.strerror or error}.'
    )


def _shown(host: str) -> str:
    return f'[{host}]' if ':' in host else host
