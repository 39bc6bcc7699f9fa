# SPDX-License-Identifier: Apache-2.0

"""RPC: one Protocol, and its oslo.messaging form.

A handler is a method marked with :func:`expose`; nothing else of an endpoint can be called. Arguments and results may
hold :mod:`migrator.objects`; they travel as JSON. An error of ours keeps its class, message and kwargs; any other
arrives as :class:`migrator.exception.RemoteError`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging as py_logging
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import amqp  # type: ignore[import-untyped]  # it has no types
import kombu.exceptions
import oslo_messaging
from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception, executors
from migrator.conf import values
from migrator.context import RequestContext
from migrator.objects import base

LOG = logging.getLogger(__name__)

F = TypeVar('F', bound=Callable[..., Any])

TRANSPORT_EXAMPLE = 'rabbit://USER:PASSWORD@HOST:5672/VHOST'
#: How the want of a broker shows: oslo.messaging lets through, as they are, the errors of what it stands on when it
#: opens a connection. None of them can be a handler's, for those travel as ours.
_NO_BROKER = (
    oslo_messaging.MessageDeliveryFailure,
    oslo_messaging.ClientSendError,
    kombu.exceptions.KombuError,
    amqp.AMQPError,
)
#: How often a connection is tried again before a message counts as unsendable. oslo.messaging waits 1 s before the
#: first time and 3 s before the second, unless it is configured otherwise.
_RETRIES = 2
#: Seconds in which the broker has to take a message that has no answer. One that is short of memory or disk does not
#: confirm it for as long as that lasts, and oslo.messaging waits minutes for it.
_TAKEN_WITHIN = 2.0
#: How many such messages may be on their way at once; those that come on top wait in line, for as long.
_SENDERS = 16
#: Seconds. For less, oslo.messaging's server sends no heartbeat at all, and a healthy call would be given up.
_LEAST_MONITOR = 2


def get_transport(conf: Any, url: str | None = None) -> Any:
    """Return an oslo.messaging transport for :class:`OsloRPC`; it is the caller's to clean up.

    :param conf: any ``ConfigOpts``, a private one included.
    :param url: a transport URL; None: what ``conf.transport_url`` says.
    :raises migrator.exception.ConfigurationError: the URL cannot be.
    """
    # oslo.messaging registers these two groups on the global ConfigOpts alone, and its first call would fail with ours.
    for name in ('metrics', 'tracing'):
        try:
            module = importlib.import_module(f'oslo_messaging._{name}.client')
        except ImportError:
            continue  # a release without them needs nothing
        conf.register_opts(getattr(module, f'oslo_messaging_{name}', []), group=f'oslo_messaging_{name}')
    try:
        return oslo_messaging.get_rpc_transport(conf, url, allowed_remote_exmods=[exception.__name__])
    except (oslo_messaging.DriverLoadFailure, oslo_messaging.InvalidTransportURL) as error:
        reason = ' '.join(str(error).split())
    except cfg.Error:
        raise
    except ValueError:
        # Its text quotes what it took for the port, which may be of the password.
        reason = 'its port is no number, or a / or @ of the user or password is not written as %2F or %40'
    raise exception.ConfigurationError(
        option='url' if url else '[DEFAULT] transport_url',
        value=values.without_credentials(url or conf.transport_url or ''),
        detail=f'{reason}; {TRANSPORT_EXAMPLE} is how it looks.',
    )


class _OncePerOutage(py_logging.Filter):
    """Lets the first "not reachable" through; each connection repeats it at each of its attempts.

    :param clock: monotonic seconds.
    """

    #: Seconds of silence after which it is another outage. oslo.messaging tries again each 30 s at the latest.
    SILENCE = 60.0

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._last = float('-inf')

    def filter(self, record: py_logging.LogRecord) -> bool:
        """Tell whether to log it."""
        words = ('is unreachable', 'Connection failed', 'Unable to connect')
        if record.levelno < py_logging.ERROR or not any(word in str(record.msg) for word in words):
            return True
        # Not the record's own time, which is the wall clock's and may jump.
        now = self._clock()
        silence, self._last = now - self._last, now
        return silence > self.SILENCE


def say_outages_once(clock: Callable[[], float] = time.monotonic) -> None:
    """Have oslo.messaging say once that the broker is away, not at each attempt: for a command, whose log is its own.

    That it is back is said by each connection, at level INFO.

    :param clock: monotonic seconds.
    """
    logger = py_logging.getLogger('oslo.messaging._drivers.impl_rabbit')
    if not any(isinstance(one, _OncePerOutage) for one in logger.filters):
        logger.addFilter(_OncePerOutage(clock))


def expose(method: F) -> F:
    """Mark a method of an endpoint as one that may be called over RPC."""
    return oslo_messaging.expose(method)  # type: ignore[no-any-return]  # oslo.messaging has no types


@dataclasses.dataclass(frozen=True)
class Target:
    """Who is meant: a topic, and within it one server, or any.

    :param version: the interface version that the message needs; of one who serves: the newest that it knows.
    """

    topic: str
    server: str | None = None
    version: str = '1.0'

    def __str__(self) -> str:
        return f'{self.topic}.{self.server}' if self.server else self.topic


class Served(Protocol):
    """A server that listens."""

    def stop(self) -> None:
        """Take no more messages, and wait for the running handlers."""


class RPC(Protocol):
    """How services talk. Each service has one of its own, so that a recorder knows who sent what."""

    def call(
        self,
        context: RequestContext,
        target: Target,
        method: str,
        timeout: float,
        monitor: float | None = None,
        **args: Any,
    ) -> Any:
        """Call a method and wait for its result.

        :param timeout: seconds to wait for the result.
        :param monitor: seconds without a heartbeat of the called server after which it counts as gone; None: no
            heartbeats. Only then may ``timeout`` be long.
        :raises migrator.exception.RPCTimeout: no answer in time; the call may have been executed.
        :raises migrator.exception.ServiceUnreachable: it could not be sent.
        :raises migrator.exception.RemoteError: the handler failed with an error that is not ours, or there is none.
        :raises TypeError: an argument cannot go over the wire.
        """

    def cast(self, context: RequestContext, target: Target, method: str, **args: Any) -> None:
        """Send a message that has no answer. It may be lost.

        :raises migrator.exception.ServiceUnreachable: it could not be sent.
        """

    def serve(self, target: Target, endpoint: object) -> Served:
        """Listen as ``target.server`` on ``target.topic`` and dispatch to the exposed methods of ``endpoint``."""


class ObjectSerializer(oslo_messaging.Serializer):  # type: ignore[misc]  # oslo.messaging has no types
    """Puts :mod:`migrator.objects` and the request context into JSON-safe form, and back."""

    def serialize_entity(self, ctxt: Any, entity: Any) -> Any:
        """Return the JSON-safe form of an argument or result."""
        return base.to_primitive(entity)

    def deserialize_entity(self, ctxt: Any, entity: Any) -> Any:
        """Return what :meth:`serialize_entity` was given."""
        return base.from_primitive(entity)

    def serialize_context(self, ctxt: RequestContext) -> dict[str, Any]:
        """Return the JSON-safe form of a context; it holds no token."""
        return ctxt.to_primitive()

    def deserialize_context(self, ctxt: dict[str, Any]) -> RequestContext:
        """Return the context that was sent."""
        return RequestContext.from_primitive(ctxt)


def fit_to_travel(error: Exception, target: Target, method: str) -> exception.MigratorException:
    """Return the form in which an error of a handler is answered: of a class of ours, with JSON-safe kwargs."""
    if not isinstance(error, exception.MigratorException):
        return exception.RemoteError(target=str(target), method=method, kind=type(error).__name__, reason=str(error))
    kwargs = {name: _json_safe(value) for name, value in error.kwargs.items()}
    return _our_class(error)(error.message, **kwargs)


def _our_class(error: exception.MigratorException) -> type[exception.MigratorException]:
    # Only classes of that one module are known everywhere; oslo.messaging, too, makes a subclass of what it rebuilds.
    return next(kind for kind in type(error).__mro__ if kind.__module__ == exception.__name__)


def _json_safe(value: Any) -> Any:
    try:
        return base.to_primitive(value)
    except TypeError:
        return str(value)


def handler(endpoint: object, target: Target, method: str) -> Callable[..., Any]:
    """Return an endpoint's method as ``handler(context, **args)``, which raises nothing but what may travel.

    :raises AttributeError: the endpoint has no such method, or does not expose it.
    """
    function = getattr(endpoint, method)
    if not hasattr(function, 'exposed'):
        raise AttributeError(f'{method} is not exposed')

    @functools.wraps(function)
    def handle(context: RequestContext, **args: Any) -> Any:
        try:
            return function(context, **args)
        except Exception as error:
            if not isinstance(error, exception.MigratorException):
                # The caller gets its text; only here is it known where it came from.
                LOG.exception('%s failed in %s', target, method)
            raise fit_to_travel(error, target, method) from error

    return handle


class OsloRPC:
    """RPC over an oslo.messaging transport.

    :param transport: from :func:`get_transport`, made by who imports or starts us.
    :param threads: where messages that have no answer are sent from; native ones unless told otherwise.
    """

    def __init__(self, transport: Any, threads: executors.Threads | None = None) -> None:
        self._transport = transport
        self._threads = threads or executors.NativeThreads()
        self._senders = executors.BoundedExecutor(_SENDERS, self._threads, 'rpc-cast')
        self._serializer = ObjectSerializer()
        self._reached = False

    def _client(self, target: Target, **options: Any) -> Any:
        client = oslo_messaging.get_rpc_client(
            self._transport,
            oslo_messaging.Target(topic=target.topic, version=target.version),
            serializer=self._serializer,
        )
        return client.prepare(server=target.server, version=target.version, **options)

    def call(
        self,
        context: RequestContext,
        target: Target,
        method: str,
        timeout: float,
        monitor: float | None = None,
        **args: Any,
    ) -> Any:
        """Call a method and wait for its result; see :meth:`RPC.call`."""
        # Here, so that what cannot be sent is a TypeError of the caller's, not taken for one of the handler's.
        args = base.to_primitive(args)
        # Without a bound oslo.messaging would wait for a broker as long as it takes, whatever the time-out.
        retries = min(_RETRIES, int(min(timeout, monitor or timeout) ** 0.5))
        if monitor is not None:
            monitor = max(monitor, _LEAST_MONITOR)
        client = self._client(target, timeout=timeout, call_monitor_timeout=monitor, retry=retries)
        began = time.monotonic()
        try:
            self._reach(context, retries)
            return client.call(context, method, **args)
        except oslo_messaging.MessagingTimeout as error:
            # What was waited for: without its heartbeats a server is given up long before the time-out.
            waited = round(time.monotonic() - began, 1)
            raise exception.RPCTimeout(target=str(target), method=method, timeout=waited) from error
        except _NO_BROKER as error:
            raise _unreachable(error) from error
        except exception.MigratorException as error:
            raise _our_class(error)(error.message, **error.kwargs) from error
        except oslo_messaging.RemoteError as error:
            kind, reason = error.exc_type, error.value
        except Exception as error:  # noqa: BLE001 -- a builtin of the server's comes back as itself, its traceback in the text
            kind, reason = type(error).__name__, str(error).partition('\n')[0]
        raise exception.RemoteError(target=str(target), method=method, kind=kind, reason=reason)

    def cast(self, context: RequestContext, target: Target, method: str, **args: Any) -> None:
        """Send a message that has no answer; see :meth:`RPC.cast`. One that is given up may arrive yet."""
        client = self._client(target, retry=_RETRIES)
        try:
            self._within(_TAKEN_WITHIN, lambda: client.cast(context, method, **args))
        except _NO_BROKER as error:
            raise _unreachable(error) from error
        self._reached = True

    def _within(self, seconds: float, send: Callable[[], None]) -> None:
        ended = self._threads.event()
        sent = self._senders.submit(send)
        sent.add_done_callback(lambda _: ended.set())
        if not ended.wait(seconds):
            sent.cancel()
            reason = f'it has not taken a message within {seconds:g} s (it may be short of memory or disk, or away)'
            raise exception.ServiceUnreachable(service='The message broker', reason=reason)
        sent.result()

    def _reach(self, context: RequestContext, retries: int) -> None:
        """Find out whether there is a broker, by a message to nobody.

        The first call of a transport makes the queue for the answers to all, and for that oslo.messaging waits without
        a bound, and lets every other call wait for it.
        """
        if not self._reached:
            self._client(Target('nobody', 'nowhere'), retry=retries).cast(context, 'none')
            self._reached = True

    def serve(self, target: Target, endpoint: object) -> Served:
        """Start an oslo.messaging RPC server; see :meth:`RPC.serve`.

        A broker that is away is waited for, as long as it takes; that of one which is lost later, by itself.

        :raises migrator.exception.ServiceUnreachable: the broker refuses the user or the virtual host.
        """
        server = oslo_messaging.get_rpc_server(
            self._transport,
            oslo_messaging.Target(topic=target.topic, server=target.server),
            [_Door(endpoint, target)],
            serializer=self._serializer,
            access_policy=oslo_messaging.ExplicitRPCAccessPolicy,
        )
        try:
            server.start()
        except _NO_BROKER as error:
            raise _unreachable(error) from error
        return _OsloServed(server)


def _unreachable(error: Exception) -> exception.ServiceUnreachable:
    return exception.ServiceUnreachable(service='The message broker', reason=str(error))


class _Door:
    """What oslo.messaging sees of an endpoint: its exposed methods, which raise nothing but what may travel."""

    def __init__(self, endpoint: object, target: Target) -> None:
        # oslo.messaging reads the version that is served off an attribute of this name
        self.target = oslo_messaging.Target(version=target.version)
        self._made = functools.partial(handler, endpoint, target)

    def __getattr__(self, name: str) -> Any:
        handle = self._made(name)

        @functools.wraps(handle)
        def expected(context: RequestContext, **args: Any) -> Any:
            try:
                return handle(context, **args)
            except exception.MigratorException as error:
                # "expected" is its word for what it answers without logging it as a failure of its own
                raise oslo_messaging.ExpectedException from error

        return expected


class _OsloServed:
    def __init__(self, server: Any) -> None:
        self._server = server

    def stop(self) -> None:
        self._server.stop()
        self._server.wait()
