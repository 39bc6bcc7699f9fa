# SPDX-License-Identifier: Apache-2.0

"""A test's hand on a world of fake hypervisors in another process, and the calls that its drivers make too.

See :mod:`migrator.testing.fake_world.server` for the world itself, and for what goes over the socket.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

from migrator import exception
from migrator.objects import Instance, base

#: Seconds to wait for the socket to be answered at all.
CONNECT_TIMEOUT = 5.0


class Gone(Exception):
    """The world cannot be reached, or has ended while it was asked."""


class Call:
    """One call on a connection of its own."""

    def __init__(self, path: str, asked: dict[str, Any]) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(CONNECT_TIMEOUT)
        self._received = b''
        try:
            self._socket.connect(path)
            self._socket.settimeout(None)
            self.say(asked)
        except OSError as error:
            self._socket.close()
            raise Gone(f'{path}: {error.strerror or error}') from error

    def say(self, word: Any) -> None:
        """Send a line."""
        try:
            self._socket.sendall(json.dumps(word).encode() + b'\n')
        except OSError as error:
            raise Gone(str(error)) from error

    def hear(self, timeout: float | None = None) -> Any:
        """Return the next line.

        :raises TimeoutError: there was none for so many seconds.
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
                raise Gone('it has ended')
            self._received += more
        line, _newline, self._received = self._received.partition(b'\n')
        return json.loads(line)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


@contextlib.contextmanager
def calling(path: str, call: str, host: str, life: str, args: tuple[Any, ...]) -> Iterator[Call]:
    """Make one call, and hang up at the end of the block.

    :raises Gone: the world is not there.
    """
    asked = {'call': call, 'host': host, 'life': life, 'args': [base.to_primitive(arg) for arg in args]}
    with contextlib.closing(Call(path, asked)) as made:
        yield made


def result_of(word: Any) -> Any:
    """Return what an answer holds, or raise the error that it is."""
    error = word.get('error')
    if error is None:
        return base.from_primitive(word['result'])
    kind = getattr(exception, error['kind'] or '-', None)
    if kind is None:
        raise ValueError(error['message'])
    raise kind(error['message'], **error['kwargs'])


class FakeWorldClient:
    """A test's hand on the world: it acts as the guests' users, and as fate.

    :param path: of the socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def ask(self, call: str, host: str = '', *args: Any) -> Any:
        """Make one call; see :meth:`migrator.testing.fake_world.server.WorldServer.answer`.

        :raises migrator.exception.ServiceUnreachable: the world is not there.
        :raises ValueError: it cannot be done.
        """
        try:
            with calling(self._path, call, host, '', args) as made:
                return result_of(made.hear())
        except Gone as error:
            raise exception.ServiceUnreachable(service='The world of fake hypervisors', reason=str(error)) from None

    def add(self, host: str) -> None:
        """Add a host, unless it is there."""
        self.ask('add', host)

    def spawn(self, host: str, instance: Instance, dirty_rate: float = 0.0) -> None:
        """Start an instance's guest on a host.

        :param dirty_rate: how fast it dirties its memory, in MiB/s.
        """
        self.ask('spawn', host, instance, dirty_rate)

    def knob(self, host: str, name: str, value: Any) -> None:
        """Set a knob of a hypervisor; they are those of :class:`migrator.virt.fake.hypervisor.FakeHypervisor`."""
        self.ask('knob', host, name, value)

    def fail(self, host: str, phase: str, **options: Any) -> None:
        """Make a phase fail; see :meth:`migrator.virt.fake.faults.Faults.fail`."""
        self.ask('fail', host, phase, options)

    def stall(self, host: str, phase: str, **options: Any) -> str:
        """Make a phase hang, and return the name of the stall; see :meth:`migrator.virt.fake.faults.Faults.stall`."""
        name: str = self.ask('stall', host, phase, options)
        return name

    def clear(self, host: str, phase: str | None = None) -> None:
        """Take away what has not struck yet."""
        self.ask('clear', host, phase, {})

    def look(self) -> dict[str, Any]:
        """Return everything there is in the world; times are of the world's monotonic clock."""
        found: dict[str, Any] = self.ask('look')
        return found
