# SPDX-License-Identifier: Apache-2.0

"""A tap on a broker: records every message that is published in a virtual host, and who published it.

It is RabbitMQ's own firehose: a copy of each message comes to the exchange ``amq.rabbitmq.trace``, with headers that
say which user published it, to which exchange, by which routing key. What oslo.messaging has put around it says the
rest: method, kind, and to which call an answer belongs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import amqp
import requests

from migrator.objects import base
from migrator.testing import rpc
from tests.real.servers import process, rabbitmq

#: Where RabbitMQ puts the copies, and how those of what was published are addressed.
EXCHANGE = 'amq.rabbitmq.trace'
PUBLISHED = 'publish.#'
#: Seconds between two looks whether the broker is there.
_AGAIN = 0.05
#: A routing key without a binding: its message goes nowhere but to the tap.
_MARK = 'tap-mark-'


@dataclasses.dataclass(frozen=True)
class Received(rpc.Recorded):
    """One message that was received.

    Its kind is one more than those of :class:`migrator.testing.rpc.Recorded`: ``beat`` is the heartbeat of a
    service that is still at work on a call. The method of an answer whose call was not received is ``?``.

    :ivar at: when, on this machine's monotonic clock.
    :ivar wire: bytes as published, the envelope included.
    """

    at: float = 0.0
    wire: int = 0


class Tap:
    """A tap on one virtual host, from now on until :meth:`close`.

    A broker that restarts has forgotten that it is tapped: the tap is turned on again as soon as the broker is there,
    and what is published in the moment before is not recorded.

    :param name_of: from a user at the broker to a sender as :class:`migrator.testing.rpc.Recorded` has it.
    :ivar recorder: what was received, with the queries of a cloud in one process.
    :ivar taps: how often the tap had to be turned on.
    """

    def __init__(
        self, broker: rabbitmq.RabbitMQ, vhost: str, name_of: Callable[[str], str] = lambda user: user
    ) -> None:
        self.recorder = rpc.RpcRecorder()
        self.taps = 0
        self._broker = broker
        self._vhost = vhost
        self._name_of = name_of
        self._calls: dict[str, Received] = {}
        self._marks: set[str] = set()
        self._received = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name='tap', daemon=True)
        self._thread.start()
        process.wait_until(lambda: self.taps, 'the broker to be tapped')

    @property
    def messages(self) -> list[rpc.Recorded]:
        """Every message so far, in the order in which the broker got them."""
        return self.recorder.messages

    def catch_up(self, timeout: float = 60.0) -> None:
        """Return when everything has been received that was published before.

        :param timeout: seconds; the broker may be away for a while.
        :raises tests.real.servers.process.ServerError: it has not, by then.
        """
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            mark = _MARK + uuid.uuid4().hex
            with contextlib.suppress(OSError, amqp.AMQPError), self._connection() as connection:
                connection.channel().basic_publish(amqp.Message(''), exchange='', routing_key=mark)
                with self._received:
                    # One that was published just before the tap was on is never received: another one will be.
                    if self._received.wait_for(lambda mark=mark: mark in self._marks, timeout=5):
                        return
            time.sleep(_AGAIN)
        raise process.ServerError(f'waited {timeout:g} s in vain: the tap on {self._vhost} to catch up')

    def close(self) -> None:
        """Turn the tap off."""
        self._closed = True
        self._thread.join(timeout=30)
        with contextlib.suppress(requests.RequestException):
            self._trace(False)

    # --- its thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            try:
                with self._connection() as connection:
                    self._listen(connection)
            except (OSError, amqp.AMQPError, requests.RequestException):
                time.sleep(_AGAIN)

    def _connection(self) -> amqp.Connection:
        host = f'{process.HOST}:{self._broker.port}'
        made = amqp.Connection(host, 'guest', 'guest', virtual_host=self._vhost, connect_timeout=5)
        made.connect()
        return made

    def _trace(self, tracing: bool) -> None:
        self._broker.ask('PUT', f'vhosts/{self._vhost}', tracing=tracing).raise_for_status()

    def _listen(self, connection: amqp.Connection) -> None:
        channel = connection.channel()
        queue = channel.queue_declare(exclusive=True).queue
        channel.queue_bind(queue, EXCHANGE, PUBLISHED)
        channel.basic_consume(queue, no_ack=True, callback=self._take)
        self._trace(True)
        self.taps += 1
        while not self._closed:
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.5)

    def _take(self, message: amqp.Message) -> None:
        headers = message.headers
        keys = headers['routing_keys']
        with self._received:
            if keys[0].startswith(_MARK):
                self._marks.add(keys[0])
                self._received.notify_all()
                return
            self.messages.append(self._read(self._name_of(headers['user']), keys[0], message.body))

    def _read(self, sender: str, key: str, body: str | bytes) -> Received:
        """Make out what a message is."""
        wire = len(body.encode() if isinstance(body, str) else body)
        inner = json.loads(json.loads(body)['oslo.message'])
        at = time.monotonic()
        call_id = inner.get('_msg_id')
        if 'method' in inner:
            args = {name: base.from_primitive(value) for name, value in inner['args'].items()}
            kind = 'call' if call_id else 'cast'
            migration_uuid = rpc.migration_of(args)
            received = Received(sender, key, inner['method'], kind, _size(inner['args']), migration_uuid, at, wire)
            if call_id:
                self._calls[call_id] = received
            return received
        call = self._calls.get(call_id)
        kind, said = ('reply', inner.get('failure') or inner.get('result')) if inner.get('ending') else ('beat', None)
        if call is None:
            return Received(sender, key, '?', kind, _size(said), None, at, wire)
        return Received(sender, call.sender, call.method, kind, _size(said), call.migration_uuid, at, wire)


def _size(value: Any) -> int:
    return len(json.dumps(value).encode())
