# SPDX-License-Identifier: Apache-2.0

"""RPC: one Protocol, and its implementation on oslo.messaging.

A handler is a method marked with :func:`expose`. No other method of an endpoint can be called. Arguments and results
may hold :mod:`migrator.objects`, and travel as JSON. An error of :mod:`migrator.exception` keeps its class, message and
kwargs. Any other error arrives as :class:`migrator.exception.RemoteError`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import amqp  # type: ignore[import-untyped]  # it has no types
import kombu.exceptions
import kombu.transport
import oslo_messaging
from kombu.transport import pyamqp
from oslo_config import cfg
from oslo_log import log as logging
from oslo_messaging import opts

from migrator import exception, executors
from migrator.conf import values
from migrator.context import RequestContext
from migrator.objects import base

LOG = logging.getLogger(__name__)

F = TypeVar('F', bound=Callable[..., Any])

TRANSPORT_EXAMPLE = 'rabbit://USER:PASSWORD@HOST:5672/VHOST'
#: The errors that mean that the broker cannot be reached. When oslo.messaging opens a connection, it does not wrap the
#: errors of its own libraries. A handler's error never has one of these classes, because it travels as one of ours.
_NO_BROKER = (
    oslo_messaging.MessageDeliveryFailure,
    oslo_messaging.ClientSendError,
    kombu.exceptions.KombuError,
    amqp.AMQPError,
)
#: The number of further connection attempts before a message counts as undeliverable. By default, oslo.messaging waits
#: 1 s before the first and 3 s before the second.
_RETRIES = 2
#: Seconds in which the broker has to accept a cast. A broker that is short of memory or disk does not confirm messages
#: until that ends, and oslo.messaging waits minutes for it.
_ACCEPTED_WITHIN = 2.0
#: How many casts may be sent at once. Further casts wait for a free sender within the same limit of seconds.
_SENDERS = 16
#: Seconds. Below this oslo.messaging's server sends no heartbeat, and a healthy call would be given up.
_LEAST_MONITOR = 2


def get_transport(conf: Any, url: str | None = None) -> Any:
    """Return an oslo.messaging transport for :class:`OsloRPC`. The caller has to clean it up.

    :param conf: any ``ConfigOpts``, also a private one.
    :param url: a transport URL; None: the value of ``conf.transport_url``.
    :raises migrator.exception.ConfigurationError: the URL is not valid.
    """
    make = functools.partial(oslo_messaging.get_rpc_transport, allowed_remote_exmods=[exception.__name__])
    return _make_transport(make, conf, url, 'url' if url else None)


def register_notification_opts(conf: cfg.ConfigOpts) -> None:
    """Register ``[oslo_messaging_notifications]``."""
    group = 'oslo_messaging_notifications'
    conf.register_opts(next(found for name, found in opts.list_opts() if name == group), group=group)


def get_notification_transport(conf: Any) -> Any:
    """Return an oslo.messaging transport for notifications. The caller has to clean it up.

    :raises migrator.exception.ConfigurationError: the URL is not valid.
    """
    register_notification_opts(conf)
    url = conf.oslo_messaging_notifications.transport_url
    option = '[oslo_messaging_notifications] transport_url' if url else None
    return _make_transport(oslo_messaging.get_notification_transport, conf, url, option)


def _make_transport(make: Callable[..., Any], conf: Any, url: str | None, option: str | None) -> Any:
    # oslo.messaging registers these two groups only on the global ConfigOpts. Without them its first call would fail.
    for name in ('metrics', 'tracing'):
        try:
            module = importlib.import_module(f'oslo_messaging._{name}.client')
        except ImportError:
            continue  # this release of oslo.messaging does not have the group
        conf.register_opts(getattr(module, f'oslo_messaging_{name}', []), group=f'oslo_messaging_{name}')
    try:
        return make(conf, url)
    except (oslo_messaging.DriverLoadFailure, oslo_messaging.InvalidTransportURL) as error:
        reason = ' '.join(str(error).split())
    except (cfg.TemplateSubstitutionError, cfg.NoSuchOptError):
        named, shown = option or '[DEFAULT] transport_url', '***'
        raise exception.ConfigurationError(option=named, value=shown, detail=f'{values.DOLLAR}.') from None
    except cfg.Error:
        raise
    except ValueError:
        # Its text is not used: it quotes the supposed port, which may be a part of the password.
        reason = 'its port is not a number, or a / or @ in the user or password is not written as %2F or %40'
    raise exception.ConfigurationError(
        option=option or '[DEFAULT] transport_url',
        value=values.without_credentials(url or conf.transport_url or ''),
        detail=f'{reason}; write it as {TRANSPORT_EXAMPLE}.',
    )


class _Connection(pyamqp.Connection):
    """kombu's connection, which frees its buffer of 128 KiB when it ends."""

    def connect(self, callback: Any = None) -> Any:
        """Connect to the broker. If that fails, nothing of the connection is left."""
        try:
            return super().connect(callback)
        except Exception:  # whatever has failed; it is raised again
            self.collect()
            raise

    def collect(self) -> None:
        """Close the socket without a message to the broker. A normal close ends with this, too."""
        super().collect()
        # Both refer to the connection, so that they would stay with it until Python collects its garbage. The first has
        # the buffer. With None in their place py-amqp would connect again.
        self.frame_writer = self.on_inbound_frame = _refuse_frame


def _refuse_frame(*_frame: Any) -> None:
    raise amqp.RecoverableConnectionError('the connection is closed')


class _Transport(pyamqp.Transport):
    """kombu's transport, which closes a lost connection before it opens the next one.

    kombu only forgets it after some errors. Its socket and a buffer of 128 KiB then stay until Python collects all its
    garbage. An idle service did not do that in 30 outages.
    """

    Connection = _Connection
    _last: Any = None

    def establish_connection(self) -> Any:
        """Connect to the broker, and return the connection."""
        last, self._last = self._last, None
        self._collect(last)  # type: ignore[no-untyped-call]  # kombu has few types
        self._last = super().establish_connection()  # type: ignore[no-untyped-call]  # as above
        return self._last


def close_lost_connections() -> None:
    """Make kombu close each connection that was lost to the broker.

    Only a command calls this, before it connects, because it applies to every user of kombu in the process.
    """
    kombu.transport.TRANSPORT_ALIASES['amqp'] = f'{__name__}:{_Transport.__name__}'


def expose(method: F) -> F:
    """Mark a method of an endpoint as one that may be called over RPC."""
    return oslo_messaging.expose(method)  # type: ignore[no-any-return]  # oslo.messaging has no types


@dataclasses.dataclass(frozen=True)
class Target:
    """The receiver of a message: a topic, and within it one server or any.

    :param version: the interface version that the message needs; for a server: the newest version that it serves.
    """

    topic: str
    server: str | None = None
    version: str = '1.0'

    def __str__(self) -> str:
        return f'{self.topic}.{self.server}' if self.server else self.topic


class Served(Protocol):
    """A server that listens."""

    def stop(self) -> None:
        """Accept no more messages, and wait for the running handlers."""


class RPC(Protocol):
    """The interface through which services send messages.

    Each service has an instance of its own, so that a recorder knows the sender of a message.
    """

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

        :param timeout: seconds to wait for the result. Without ``monitor`` it has to be short.
        :param monitor: seconds without a heartbeat of the called server after which it counts as gone; None: no
            heartbeats.
        :raises migrator.exception.RPCTimeout: no answer in time; the call may have been executed.
        :raises migrator.exception.ServiceUnreachable: the message could not be sent.
        :raises migrator.exception.RemoteError: the handler failed with an error that is not ours, or does not exist.
        :raises TypeError: an argument cannot go over the wire.
        """

    def cast(self, context: RequestContext, target: Target, method: str, **args: Any) -> None:
        """Send a message without an answer. It may be lost.

        :raises migrator.exception.ServiceUnreachable: the message could not be sent.
        """

    def serve(self, target: Target, endpoint: object) -> Served:
        """Listen as ``target.server`` on ``target.topic``, and call the exposed methods of ``endpoint``."""


class ObjectSerializer(oslo_messaging.Serializer):  # type: ignore[misc]  # oslo.messaging has no types
    """The serializer of :mod:`migrator.objects` and of the request context to JSON-safe data and back."""

    def serialize_entity(self, ctxt: Any, entity: Any) -> Any:
        """Return the JSON-safe form of an argument or result."""
        return base.to_primitive(entity)

    def deserialize_entity(self, ctxt: Any, entity: Any) -> Any:
        """Return the value that :meth:`serialize_entity` received."""
        return base.from_primitive(entity)

    def serialize_context(self, ctxt: RequestContext) -> dict[str, Any]:
        """Return the JSON-safe form of a context, without its token."""
        return ctxt.to_primitive()

    def deserialize_context(self, ctxt: dict[str, Any]) -> RequestContext:
        """Return the context that was sent."""
        return RequestContext.from_primitive(ctxt)


def fit_to_travel(error: Exception, target: Target, method: str) -> exception.MigratorException:
    """Return a handler's error in the form in which it is sent: one of our classes with JSON-safe kwargs."""
    if not isinstance(error, exception.MigratorException):
        return exception.RemoteError(target=str(target), method=method, kind=type(error).__name__, reason=str(error))
    kwargs = {name: _json_safe(value) for name, value in error.kwargs.items()}
    return _our_class(error)(error.message, **kwargs)


def _our_class(error: exception.MigratorException) -> type[exception.MigratorException]:
    # Only the classes of that one module are known to every service. An error may also have a subclass that
    # oslo.messaging made when it rebuilt the error.
    return next(kind for kind in type(error).__mro__ if kind.__module__ == exception.__name__)


def _json_safe(value: Any) -> Any:
    try:
        return base.to_primitive(value)
    except TypeError:
        return str(value)


def handler(endpoint: object, target: Target, method: str) -> Callable[..., Any]:
    """Return an endpoint's method as ``handler(context, **args)``, with errors that can be sent.

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
                # The caller receives only the text, so log the traceback here.
                LOG.exception('RPC handler failed: %(target)s: %(method)s', {'target': target, 'method': method})
            raise fit_to_travel(error, target, method) from error

    return handle


def send_within(
    seconds: float, threads: executors.Threads, senders: executors.BoundedExecutor, send: Callable[[], None]
) -> None:
    """Send a message in a thread of a pool. It may still arrive after an error.

    :raises migrator.exception.ServiceUnreachable: the broker has not accepted it within these seconds.
    """
    ended = threads.event()
    sent = senders.submit(send)
    sent.add_done_callback(lambda _: ended.set())
    if not ended.wait(seconds):
        sent.cancel()
        reason = f'it did not accept a message within {seconds:g} s (it may be short of memory or disk, or down)'
        raise exception.ServiceUnreachable(service='The message broker', reason=reason)
    sent.result()


class OsloRPC:
    """RPC over an oslo.messaging transport.

    :param transport: from :func:`get_transport`; it belongs to the embedder or the command.
    :param threads: the threads that send casts; native ones by default.
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
        # Serialize here, so that a TypeError of an argument is not mistaken for an error of the handler.
        args = base.to_primitive(args)
        # Without a limit oslo.messaging waits for a broker without end, despite the time-out.
        retries = min(_RETRIES, int(min(timeout, monitor or timeout) ** 0.5))
        if monitor is not None:
            monitor = max(monitor, _LEAST_MONITOR)
        client = self._client(target, timeout=timeout, call_monitor_timeout=monitor, retry=retries)
        began = time.monotonic()
        try:
            self._reach(context, retries)
            return client.call(context, method, **args)
        except oslo_messaging.MessagingTimeout as error:
            # Report the time waited: a server without heartbeats is given up long before the time-out.
            waited = round(time.monotonic() - began, 1)
            raise exception.RPCTimeout(target=str(target), method=method, timeout=waited) from error
        except _NO_BROKER as error:
            raise _unreachable(error) from error
        except exception.MigratorException as error:
            raise _our_class(error)(error.message, **error.kwargs) from error
        except oslo_messaging.RemoteError as error:
            kind, reason = error.exc_type, error.value
        except Exception as error:  # noqa: BLE001 -- a builtin error of the server comes back as itself, with its traceback in the text
            kind, reason = type(error).__name__, str(error).partition('\n')[0]
        raise exception.RemoteError(target=str(target), method=method, kind=kind, reason=reason)

    def cast(self, context: RequestContext, target: Target, method: str, **args: Any) -> None:
        """Send a message without an answer; see :meth:`RPC.cast`. It may still arrive after an error."""
        client = self._client(target, retry=_RETRIES)
        try:
            send_within(_ACCEPTED_WITHIN, self._threads, self._senders, lambda: client.cast(context, method, **args))
        except _NO_BROKER as error:
            raise _unreachable(error) from error
        self._reached = True

    def _reach(self, context: RequestContext, retries: int) -> None:
        """Check once that the broker can be reached, with a message that no server receives.

        The first call of a transport creates the queue for all answers. oslo.messaging waits for that without a limit,
        and every other call waits with it.
        """
        if not self._reached:
            self._client(Target('nobody', 'nowhere'), retry=retries).cast(context, 'none')
            self._reached = True

    def serve(self, target: Target, endpoint: object) -> Served:
        """Start an oslo.messaging RPC server; see :meth:`RPC.serve`.

        This waits for the broker without a limit. If the broker is lost later, the server reconnects by itself.

        :raises migrator.exception.ServiceUnreachable: the broker refuses the user or the virtual host.
        """
        server = oslo_messaging.get_rpc_server(
            self._transport,
            oslo_messaging.Target(topic=target.topic, server=target.server),
            [_Endpoint(endpoint, target)],
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


class _Endpoint:
    """An endpoint as oslo.messaging sees it: its exposed methods, which raise only errors that can travel."""

    def __init__(self, endpoint: object, target: Target) -> None:
        # oslo.messaging reads the served version from an attribute of this name.
        self.target = oslo_messaging.Target(version=target.version)
        self._made = functools.partial(handler, endpoint, target)

    def __getattr__(self, name: str) -> Any:
        handle = self._made(name)

        @functools.wraps(handle)
        def expected(context: RequestContext, **args: Any) -> Any:
            try:
                return handle(context, **args)
            except exception.MigratorException as error:
                # oslo.messaging answers with an "expected" exception, and does not log it as a failure.
                raise oslo_messaging.ExpectedException from error

        return expected


class _OsloServed:
    def __init__(self, server: Any) -> None:
        self._server = server

    def stop(self) -> None:
        self._server.stop()
        self._server.wait()
