# SPDX-License-Identifier: Apache-2.0

"""A client of a world of fake hypervisors in another process, for tests.

The drivers of the world use the same calls. See :mod:`migrator.testing.fake_world.server` for the world itself and
for the protocol on the socket.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

from migrator import exception
from migrator.objects import Instance, base

#: Seconds to wait for a connection.
CONNECT_TIMEOUT = 5.0


class Gone(Exception):
    """The world is not reachable, or has ended during a call."""


class Call:
    """One call, on a new connection."""

    def __init__(self, path: str, asked: dict[str, Any]) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(CONNECT_TIMEOUT)
        self._received = b''
        try:
            self._socket.connect(path)
            self._socket.settimeout(None)
            self.send(asked)
        except OSError as error:
            self._socket.close()
            raise Gone(f'{path}: {error.strerror or error}') from error

    def send(self, message: Any) -> None:
        """Send a message as one line."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b'\n')
        except OSError as error:
            raise Gone(str(error)) from error

    def receive(self, timeout: float | None = None) -> Any:
        """Return the next message.

        :param timeout: the longest time to wait, in seconds; None: without limit.
        :raises TimeoutError: no message came in that time.
        """
        self._socket.settimeout(timeout)
        while b'\n' not in self._received:
            try:
                more = self._socket.recv(65536)
            except TimeoutError:
                raise
            except OSError as error:
                raise Gone(str(error)) from error
            if not more:
                raise Gone('the connection was closed')
            self._received += more
        line, _newline, self._received = self._received.partition(b'\n')
        return json.loads(line)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


@contextlib.contextmanager
def calling(path: str, call: str, host: str, boot: str, args: tuple[Any, ...]) -> Iterator[Call]:
    """Make one call, and close its connection at the end of the block.

    :param boot: the boot of the driver, as the call ``connect`` returned it.
    :raises Gone: the world is not reachable.
    """
    asked = {'call': call, 'host': host, 'life': boot, 'args': [base.to_primitive(arg) for arg in args]}
    with contextlib.closing(Call(path, asked)) as made:
        yield made


def result_of(reply: Any) -> Any:
    """Return the result in a reply, or raise the error in it."""
    error = reply.get('error')
    if error is None:
        return base.from_primitive(reply['result'])
    kind = getattr(exception, error['kind'] or '-', None)
    if kind is None:
        raise ValueError(error['message'])
    raise kind(error['message'], **error['kwargs'])


class FakeWorldClient:
    """A client with which a test acts as the guests' users and injects faults.

    :param path: the path of the world's socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def ask(self, call: str, host: str = '', *args: Any) -> Any:
        """Make one call; see :meth:`migrator.testing.fake_world.server.WorldServer.answer`.

        :raises migrator.exception.ServiceUnreachable: the world is not reachable.
        :raises ValueError: the world refuses the call.
        """
        try:
            with calling(self._path, call, host, '', args) as made:
                return result_of(made.receive())
        except Gone as error:
            raise exception.ServiceUnreachable(service='The world of fake hypervisors', reason=str(error)) from None

    def add(self, host: str) -> None:
        """Add a host if the world does not have it yet."""
        self.ask('add', host)

    def spawn(self, host: str, instance: Instance, dirty_rate: float = 0.0) -> None:
        """Start an instance's guest on a host.

        :param dirty_rate: how fast the guest dirties its memory, in MiB/s.
        """
        self.ask('spawn', host, instance, dirty_rate)

    def knob(self, host: str, name: str, value: Any) -> None:
        """Set a knob of a hypervisor; see :class:`migrator.testing.hypervisor.hypervisor.FakeHypervisor`."""
        self.ask('knob', host, name, value)

    def fail(self, host: str, phase: str, **options: Any) -> None:
        """Make a phase fail; see :meth:`migrator.testing.hypervisor.faults.Faults.fail`."""
        self.ask('fail', host, phase, options)

    def stall(self, host: str, phase: str, **options: Any) -> str:
        """Make a phase hang and return the name of the stall.

        See :meth:`migrator.testing.hypervisor.faults.Faults.stall`.
        """
        name: str = self.ask('stall', host, phase, options)
        return name

    def clear(self, host: str, phase: str | None = None) -> None:
        """Remove the faults that have not taken effect yet."""
        self.ask('clear', host, phase, {})

    def look(self) -> dict[str, Any]:
        """Return a description of the whole world; its times are those of the world's monotonic clock."""
        found: dict[str, Any] = self.ask('look')
        return found
