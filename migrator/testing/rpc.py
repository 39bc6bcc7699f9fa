# SPDX-License-Identifier: Apache-2.0

"""RPC in one process, and a recorder for any RPC.

:class:`DirectRPC` behaves as :class:`migrator.rpc.OsloRPC` does, and one test suite runs against both. Every message
becomes JSON. Unlike OsloRPC it does not poll. With simulated threads every send, handling and reply is a checkpoint.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from migrator import exception, executors
from migrator.context import RequestContext
from migrator.objects import base
from migrator.rpc import RPC, ObjectSerializer, Served, Target
from migrator.testing.bus import DirectBus, Message, Pending, Server, checkpoint

__all__ = ['DirectBus', 'DirectRPC', 'Message', 'Recorded', 'RpcRecorder']

#: The methods with which a conductor observes migrations and guests, whether or not anything happens.
POLLS = frozenset({'poll_live_migrations', 'get_definitions', 'list_guests', 'get_diagnostics', 'get_host_uptime'})
#: The methods with which a service reports its own state, or a conductor finds out whether messages reach it.
HEARTBEATS = frozenset({'compute_started', 'compute_heartbeat', 'compute_stopping', 'probe_returned'})
#: The topic of the compute services, and the prefix of their sender names.
COMPUTE = 'compute'


class DirectRPC:
    """The RPC of one process on a :class:`DirectBus`.

    :param sender: the sender's name in :class:`migrator.testing.bus.Message`.
    :param threads: the threads of the process. Its calls wait and its handlers run in them.
    """

    def __init__(self, bus: DirectBus, sender: str, threads: executors.Threads) -> None:
        self.sender = sender
        self._bus = bus
        self._threads = threads
        self._serializer = ObjectSerializer()

    def _message(
        self,
        context: RequestContext,
        target: Target,
        method: str,
        kind: str,
        args: dict[str, Any],
    ) -> Message:
        body = {
            'context': self._serializer.serialize_context(context),
            'method': method,
            'version': target.version,
            'args': self._serializer.serialize_entity(context, args),
        }
        return Message(self._bus.next_number(), self.sender, target, method, kind, json.dumps(body), body)

    def call(
        self,
        context: RequestContext,
        target: Target,
        method: str,
        timeout: float,
        monitor: float | None = None,
        **args: Any,
    ) -> Any:
        """Call a method and wait for its result; see :meth:`migrator.rpc.RPC.call`."""
        message = self._message(context, target, method, 'call', args)
        pending = Pending(self._threads.event())
        checkpoint(self._threads, f'rpc {method} call')
        self._bus.send(message, pending)
        self._await(pending, message, timeout, monitor)
        checkpoint(self._threads, f'rpc {method} answered')
        answer = json.loads(pending.answer or '{}')
        if 'error' in answer:
            raise getattr(exception, answer['error'])(answer['message'], **answer['kwargs'])
        return self._serializer.deserialize_entity(context, answer['result'])

    def _await(self, pending: Pending, message: Message, timeout: float, monitor: float | None) -> None:
        began = self._threads.clock.monotonic()
        left = timeout
        while left > 0:
            if pending.answered.wait(min(left, monitor) if monitor else left):
                return
            if monitor and not (pending.server and pending.server.beating):
                break
            left = began + timeout - self._threads.clock.monotonic()
        waited = round(self._threads.clock.monotonic() - began, 1)
        raise exception.RPCTimeout(target=str(message.target), method=message.method, timeout=waited)

    def cast(self, context: RequestContext, target: Target, method: str, **args: Any) -> None:
        """Send a message without a reply; see :meth:`migrator.rpc.RPC.cast`."""
        message = self._message(context, target, method, 'cast', args)
        checkpoint(self._threads, f'rpc {method} cast')
        self._bus.send(message, None)

    def serve(self, target: Target, endpoint: object) -> Served:
        """Serve an endpoint; see :meth:`migrator.rpc.RPC.serve`."""
        server = Server(self._bus, target, endpoint, self._threads)
        self._bus.register(server)
        return server


@dataclasses.dataclass(frozen=True)
class Recorded:
    """One message that was sent.

    :ivar sender: the sender. For a reply it is the called server.
    :ivar target: the receiver. For a reply it is the caller.
    :ivar kind: ``call``, ``reply`` or ``cast``. A call that timed out has no reply.
    :ivar size: the length of the arguments or of the result as JSON, in bytes; 0 if the recorder does not measure it.
    :ivar migration_uuid: the migration of the message. None if it names no migration or several.
    """

    sender: str
    target: str
    method: str
    kind: str
    size: int
    migration_uuid: str | None = None

    @property
    def poll(self) -> bool:
        """Whether the message is a poll or the reply to one."""
        return self.method in POLLS

    @property
    def heartbeat(self) -> bool:
        """Whether the message is a heartbeat or the reply to one."""
        return self.method in HEARTBEATS


class RpcRecorder:
    """A recorder of the messages between the services of a test.

    :ivar messages: every message, in the order of sending. The place of a reply is that of its arrival.
    :ivar measures: whether it measures the messages. It does not unless this is set.
    """

    def __init__(self) -> None:
        self.messages: list[Recorded] = []
        self.measures = False

    def wrap(self, rpc: RPC, sender: str) -> RPC:
        """Return an RPC that records each message and passes it to ``rpc``.

        :param sender: the name of its user: ``compute:host1``, ``conductor:ID`` or ``api:ID``.
        """
        return _RecordingRPC(self, rpc, sender)

    def per_migration(self) -> dict[str, collections.Counter[str]]:
        """Return migration -> the number of its calls, replies and casts, without polls and heartbeats."""
        counts: dict[str, collections.Counter[str]] = {}
        for message in self.messages:
            if message.migration_uuid and not message.poll and not message.heartbeat:
                counts.setdefault(message.migration_uuid, collections.Counter())[message.kind] += 1
        return counts

    def compute_to_compute(self) -> list[Recorded]:
        """Return every message from a compute service to a compute service; there must be none."""
        return compute_to_compute(self.messages)


def compute_to_compute(messages: Iterable[Recorded]) -> list[Recorded]:
    """Return the messages from a compute service to a compute service."""
    return [message for message in messages if _is_compute(message.sender) and _is_compute(message.target)]


def _is_compute(name: str) -> bool:
    return name == COMPUTE or name.startswith((f'{COMPUTE}:', f'{COMPUTE}.'))


class _RecordingRPC:
    def __init__(self, recorder: RpcRecorder, rpc: RPC, sender: str) -> None:
        self._messages = recorder.messages
        self._recorder = recorder
        self._rpc = rpc
        self._sender = sender

    def call(
        self,
        context: RequestContext,
        target: Target,
        method: str,
        timeout: float,
        monitor: float | None = None,
        **args: Any,
    ) -> Any:
        migration = migration_of(args)
        self._messages.append(Recorded(self._sender, str(target), method, 'call', self._size(args), migration))
        try:
            result = self._rpc.call(context, target, method, timeout, monitor, **args)
        except exception.ServiceUnreachable:
            raise  # without a reply there is nothing to record
        except exception.MigratorException as error:
            self._messages.append(
                Recorded(str(target), self._sender, method, 'reply', self._size(error.message), migration)
            )
            raise
        self._messages.append(Recorded(str(target), self._sender, method, 'reply', self._size(result), migration))
        return result

    def cast(self, context: RequestContext, target: Target, method: str, **args: Any) -> None:
        self._messages.append(Recorded(self._sender, str(target), method, 'cast', self._size(args), migration_of(args)))
        self._rpc.cast(context, target, method, **args)

    def serve(self, target: Target, endpoint: object) -> Served:
        return self._rpc.serve(target, endpoint)

    def _size(self, value: Any) -> int:
        return len(json.dumps(base.to_primitive(value)).encode()) if self._recorder.measures else 0


def migration_of(args: dict[str, Any]) -> str | None:
    """Return the uuid of the migration that a message's arguments name, or None.

    None means that they name no migration, or several.
    """
    if isinstance(args.get('migration_uuid'), str):
        return str(args['migration_uuid'])
    # Commands and reports have a field migration_uuid. A migration itself is the argument of that name.
    named = [getattr(value, 'migration_uuid', None) for value in args.values()]
    named.append(getattr(args.get('migration'), 'uuid', None))
    found = {str(name) for name in named if name}
    return found.pop() if len(found) == 1 else None
