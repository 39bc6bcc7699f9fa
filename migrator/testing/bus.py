# SPDX-License-Identifier: Apache-2.0

"""A message broker within one process, whose faults a test controls."""

from __future__ import annotations

import collections
import dataclasses
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from migrator import exception, executors, rpc

#: The most handlers of one server that run at the same time; oslo.messaging has the same default.
POOL_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Message:
    """One message on the bus.

    :ivar number: the message's number, from 1.
    :ivar sender: ``compute:host1``, ``conductor:ID`` or ``api:ID``. For a reply it is the server, ``TOPIC:SERVER``.
    :ivar kind: ``call``, ``cast`` or ``reply``.
    :ivar body: the JSON text that travels.
    :ivar document: what the body has been made from.
    :ivar size: the length of the body in bytes.
    """

    number: int
    sender: str
    target: rpc.Target
    method: str
    kind: str
    body: str
    document: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def size(self) -> int:
        """The length of the body in bytes."""
        return len(self.body.encode())


#: The fate of a message. None: it arrives. 'lose': it is lost. 'lose_answer': it arrives and its reply is lost.
#: 'duplicate': it arrives twice. 'refuse': the sender gets an error, as without a broker. A number: it arrives that
#: many seconds late.
Fault = str | float | None


@dataclasses.dataclass(eq=False)
class Pending:
    """A call that waits for its reply."""

    answered: executors.Event
    answer: str | None = None
    #: The server that works on the call and sends heartbeats for it.
    server: Server | None = None


class DirectBus:
    """A message broker without a socket.

    :param threads: the threads of delayed messages. A message outlives its sender, so that these are the threads of a
        simulation's ``world``.
    :ivar faults: returns the fault for a message. For a reply only 'lose' and a number of seconds are possible.
    :ivar notify: puts a notification on the bus of notifications; None: conductors that start send none.
    :ivar away: 'lose' or 'refuse' while the broker is unreachable: the fault of every message. None: the broker works.
    """

    def __init__(self, threads: executors.Threads | None = None) -> None:
        self.threads: executors.Threads = threads or executors.NativeThreads()
        self.faults: Callable[[Message], Fault] = lambda message: None
        self.away: Fault = None
        self.notify: Callable[[Any], None] | None = None
        # A native lock that is never held across a crossing: a paused or killed process must not delay the messages of
        # other processes.
        self._lock = threading.Lock()
        self._servers: dict[str, list[Server]] = collections.defaultdict(list)
        self._next_server: dict[str, int] = collections.defaultdict(int)
        self._sent = 0

    def servers(self, topic: str) -> list[str]:
        """Return the names of the running servers of a topic, in the order of their registration."""
        return [server.target.server or '' for server in self._living(topic)]

    def _living(self, topic: str) -> list[Server]:
        return [server for server in self._servers[topic] if server.alive]

    def next_number(self) -> int:
        """Return the number of the next message."""
        with self._lock:
            self._sent += 1
            return self._sent

    def register(self, server: Server) -> None:
        """Deliver messages to a server from now on."""
        with self._lock:
            self._servers[server.target.topic] = [*self._living(server.target.topic), server]

    def unregister(self, server: Server) -> None:
        """Deliver no more messages to a server."""
        with self._lock:
            if server in self._servers[server.target.topic]:
                self._servers[server.target.topic].remove(server)

    def send(self, message: Message, pending: Pending | None) -> None:
        """Send a call or a cast.

        :param pending: the call that waits for the reply; None for a cast.
        :raises migrator.exception.ServiceUnreachable: the fault of the message is 'refuse'.
        """
        fault = self.away or self.faults(message)
        if fault == 'refuse':
            raise exception.ServiceUnreachable(service='The message broker', reason='it refuses the connection')
        if fault == 'lose':
            return
        if fault == 'lose_answer':
            pending = None
        if isinstance(fault, (int, float)):
            self._later(fault, lambda: self._deliver(message, pending))
            return
        for _ in range(2 if fault == 'duplicate' else 1):
            self._deliver(message, pending)

    def answer(self, message: Message, pending: Pending) -> None:
        """Send a reply to the call that waits for it; only the first reply has an effect."""
        fault = 'lose' if self.away else self.faults(message)
        if fault == 'lose':
            return

        def arrive() -> None:
            if pending.answer is None:
                pending.answer = message.body
                pending.answered.set()

        if isinstance(fault, (int, float)):
            self._later(fault, arrive)
        else:
            arrive()

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        def wait() -> None:
            self.threads.sleep(seconds)
            act()

        self.threads.start(wait, name='message-under-way')

    def _deliver(self, message: Message, pending: Pending | None) -> None:
        topic, name = message.target.topic, message.target.server
        with self._lock:
            living = self._living(topic)
            if name is not None:
                living = [server for server in living if server.target.server == name][-1:]
            chosen = self._next_server[topic]
            self._next_server[topic] += name is None
        # A message without a server is dropped silently, as by a broker.
        if living:
            living[chosen % len(living)].take(message, pending)


class Server:
    """A server with a mailbox and up to :data:`POOL_SIZE` threads, which end when the mailbox is empty."""

    def __init__(self, bus: DirectBus, target: rpc.Target, endpoint: object, threads: executors.Threads) -> None:
        self.target = target
        self._bus = bus
        self._endpoint = endpoint
        self._threads = threads
        self._serializer = rpc.ObjectSerializer()
        self._lock = threading.Lock()
        self._mailbox: collections.deque[tuple[Message, Pending | None]] = collections.deque()
        self._workers = 0
        self._idle: executors.Event | None = None

    @property
    def alive(self) -> bool:
        """Whether the server's process is alive."""
        return bool(getattr(self._threads, 'alive', True))

    @property
    def beating(self) -> bool:
        """Whether the server sends heartbeats: its process is alive and not paused."""
        return self.alive and not getattr(self._threads, 'paused', False)

    def take(self, message: Message, pending: Pending | None) -> None:
        """Put a message into the mailbox."""
        with self._lock:
            self._mailbox.append((message, pending))
            begin = self._workers < POOL_SIZE
            self._workers += begin
        if begin and self.alive:
            self._threads.start(self._work, name=f'rpc-{self.target}')

    def stop(self) -> None:
        """Take no more messages, and wait until all taken messages are handled."""
        self._bus.unregister(self)
        idle = self._threads.event()
        with self._lock:
            if not self._workers:
                return
            self._idle = idle
        idle.wait()

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            self._handle(*taken)

    def _next(self) -> tuple[Message, Pending | None] | None:
        with self._lock:
            if self._mailbox:
                return self._mailbox.popleft()
            self._workers -= 1
            idle = None if self._workers else self._idle
        if idle is not None:
            idle.set()
        return None

    def _handle(self, message: Message, pending: Pending | None) -> None:
        if pending is not None:
            pending.server = self
        checkpoint(self._threads, f'rpc {message.method} received')
        answer = self._dispatch(message)
        checkpoint(self._threads, f'rpc {message.method} handled')
        if pending is not None:
            pending.server = None
            sender = f'{self.target.topic}:{self.target.server}'
            number = self._bus.next_number()
            self._bus.answer(Message(number, sender, message.target, message.method, 'reply', answer), pending)

    def _dispatch(self, message: Message) -> str:
        # The text was written from the document, and an object that is decoded from it shares nothing with it.
        body = message.document or json.loads(message.body)
        method, version = body['method'], body['version']
        try:
            if not _compatible(self.target.version, version):
                return self._error(
                    'UnsupportedVersion',
                    f'Endpoint does not support RPC version {version}. Attempted method: {method}',
                    message,
                )
            try:
                handle = rpc.handler(self._endpoint, self.target, method)
            except AttributeError:
                return self._error('NoSuchMethod', f'Endpoint does not support RPC method {method}', message)
            context = self._serializer.deserialize_context(body['context'])
            args = self._serializer.deserialize_entity(context, body['args'])
            result = self._serializer.serialize_entity(context, handle(context, **args))
            return json.dumps({'result': result})
        except exception.MigratorException as error:
            return json.dumps({'error': type(error).__name__, 'message': error.message, 'kwargs': error.kwargs})
        except Exception as error:  # noqa: BLE001 -- the caller gets any error as a reply, as with oslo.messaging
            return self._error(type(error).__name__, str(error), message)

    def _error(self, kind: str, reason: str, message: Message) -> str:
        kwargs = {'target': str(message.target), 'method': message.method, 'kind': kind, 'reason': reason}
        text = exception.RemoteError(**kwargs).message
        return json.dumps({'error': 'RemoteError', 'message': text, 'kwargs': kwargs})


def checkpoint(threads: executors.Threads, label: str) -> None:
    """Cross a checkpoint if the threads are simulated."""
    cross = getattr(threads, 'checkpoint', None)
    if cross is not None:
        cross(label)


def _compatible(served: str, wanted: str) -> bool:
    major, minor = (int(part) for part in served.split('.'))
    wanted_major, wanted_minor = (int(part) for part in wanted.split('.'))
    return major == wanted_major and wanted_minor <= minor
