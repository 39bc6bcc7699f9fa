# SPDX-License-Identifier: Apache-2.0

"""Fake hypervisors in a separate process, which outlives the compute services that use them.

``migrator-fake-world --listen PATH`` holds a :class:`~migrator.testing.hypervisor.hypervisor.FakeWorld` and serves it
on a unix socket that only its owner may open. A compute service controls its host's hypervisor through
:class:`migrator.testing.fake_world.driver.FakeWorldDriver`. A test acts as the guests' users and observes everything
through :class:`migrator.testing.fake_world.client.FakeWorldClient`.

One connection is one call. The request is one line of JSON,
``{"call": name, "host": name, "life": name, "args": [...]}``. The reply is another,
``{"result": ...}`` or ``{"error": {...}}``. Before the reply, ``{"started": true}`` reports that the hypervisor has
started the job. If the caller sends another line or closes the connection, the step is cancelled. ``life`` is the
boot of the driver.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import inspect
import json
import pathlib
import select
import signal
import socket
import socketserver
import sys
from collections.abc import Callable, Sequence
from typing import Any

from oslo_utils import uuidutils

from migrator import exception, executors
from migrator.objects import Flavor, Instance, base
from migrator.testing.hypervisor import faults
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.testing.hypervisor.hypervisor import FakeHypervisor, FakeWorld
from migrator.virt import driver

#: The kernel's limit for the path of a unix socket, in bytes.
LONGEST_PATH = 107

#: The methods of a driver, which itself calls on_copied.
METHODS = {name for name, _ in inspect.getmembers(driver.ComputeDriver, inspect.isfunction)} - {'on_copied'}
#: The methods of a hypervisor that a test may call, as the guests' users or to inject a fault.
DEEDS = frozenset(
    {'delete', 'shut_off', 'pause', 'resume', 'break_post_copy', 'set_link', 'power_off', 'power_on', 'residue'}
)
#: The knobs of a hypervisor that a test may set, and that ``look`` returns.
KNOBS = ('link', 'max_downtime', 'auto_converge_after', 'post_copy', 'leave_paused', 'pre_seconds')


class _Token(driver.CancelToken):
    """A token that is cancelled when the caller sends another line or closes the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def raise_if_cancelled(self) -> None:
        if select.select([self._connection], [], [], 0)[0]:
            raise exception.Cancelled(what='The step')


class WorldServer:
    """A server of a world on a unix socket.

    :param path: the path of the socket. A socket that a dead server has left there is replaced.
    :param threads: the threads of the world.
    :param shared_storage: whether all hosts see the same disks.
    :param knobs: the knobs of the hypervisors that are added when a driver first connects.
    """

    def __init__(self, path: str, threads: executors.Threads, shared_storage: bool = True, **knobs: Any) -> None:
        self.path = path
        self.world = FakeWorld(threads, shared_storage)
        self._threads = threads
        self._knobs = knobs
        #: Boot of a driver -> the driver.
        self._drivers: dict[str, FakeDriver] = {}
        #: The same -> what its on_copied was called with, until a caller has got it.
        self._copied: dict[str, collections.deque[tuple[float | None, float | None]]] = {}
        self._stalls: dict[str, faults.Stall] = {}
        _take_over(path)
        self._server = _Server(path, self)

    def spawn(self, host: str, uuid: str) -> None:
        """Start a small guest on a host."""
        flavor = Flavor(name='small', vcpus=1, memory_mb=512, root_gb=1)
        instance = Instance(
            uuid=uuid, name=uuid, project_id='demo', user_id='demo', host=host, node=host, flavor=flavor
        )
        self._hypervisor(host).spawn(instance)

    def start(self) -> None:
        """Start to serve, in threads of the world."""
        self._threads.start(self._server.serve_forever, 0.05, name='fake-world')

    def stop(self) -> None:
        """Stop serving; the world continues."""
        self._server.shutdown()
        self._server.server_close()
        pathlib.Path(self.path).unlink(missing_ok=True)

    # --- calls -------------------------------------------------------------------------------------------------------

    def answer(self, asked: dict[str, Any], connection: socket.socket, send: Callable[[Any], None]) -> Any:
        """Return the result of one call.

        :param asked: the request.
        :param send: sends a message before the reply.
        """
        call, args = asked['call'], [base.from_primitive(arg) for arg in asked.get('args', ())]
        if call in METHODS:
            return self._drive(call, asked.get('life', ''), args, connection, send)
        if call == 'connect':
            return self._connect(asked['host'])
        if call == 'look':
            return self.look()
        if call == 'forget':
            return self.forget()
        hypervisor = self._hypervisor(asked['host'])
        if call == 'add':
            return None
        if call == 'spawn':
            instance, dirty_rate = args
            assert isinstance(instance, Instance)
            hypervisor.spawn(instance, dirty_rate)
            return None
        if call == 'knob':
            name, value = args
            if not hasattr(hypervisor, name):
                raise ValueError(f'a hypervisor has no knob {name}')
            setattr(hypervisor, name, value)
            return None
        if call in ('fail', 'stall', 'clear'):
            return self._fault(hypervisor, call, *args)
        if call in ('reached', 'release'):
            stall = self._stalls[args[0]]
            return stall.reached.is_set() if call == 'reached' else stall.release()
        if call in DEEDS:
            return getattr(hypervisor, call)(*args)
        raise ValueError(f'unknown call {call}')

    def _connect(self, host: str) -> str:
        made = FakeDriver(self._hypervisor(host), self._threads)
        copied = self._copied[made.boot] = collections.deque()
        made.on_copied = lambda *one: copied.append(one)
        self._drivers[made.boot] = made
        return made.boot

    def _hypervisor(self, host: str) -> FakeHypervisor:
        with self.world.lock:
            return self.world.hypervisors.get(host) or self.world.add(host, **self._knobs)

    def _drive(
        self, call: str, boot: str, args: list[Any], connection: socket.socket, send: Callable[[Any], None]
    ) -> Any:
        if boot not in self._drivers:
            reason = 'the world of fake hypervisors was restarted after this driver had connected'
            raise exception.DriverError(host=boot, phase=call, reason=reason)
        added = {'pre_live_migration': _Token(connection), 'live_migration': lambda: send({'started': True})}
        if call in added:
            args.append(added[call])
        result = getattr(self._drivers[boot], call)(*args)
        if call == 'live_migration':
            # Another call of the same driver may take the last one first.
            with contextlib.suppress(IndexError):
                while True:
                    send({'copied': self._copied[boot].popleft()})
        return result

    def _fault(self, hypervisor: FakeHypervisor, call: str, phase: str | None, options: dict[str, Any]) -> str | None:
        if call == 'clear':
            hypervisor.faults.clear(phase)
        elif call == 'fail':
            hypervisor.faults.fail(str(phase), **options)
        else:
            # A later connection uses the name to query the stall and to release it.
            name = f'{hypervisor.host}/{len(self._stalls)}'
            self._stalls[name] = hypervisor.faults.stall(str(phase), **options)
            return name
        return None

    def forget(self) -> None:
        """Remove all guests, faults and records before the next test; no job may be running."""
        for stall in self._stalls.values():
            stall.release()
        for hypervisor in self.world.hypervisors.values():
            hypervisor.faults.clear()
        with self.world.lock:
            busy = [host for host, hypervisor in self.world.hypervisors.items() if hypervisor.jobs]
            if busy:
                raise ValueError(f'these hosts still have jobs: {", ".join(busy)}')
            for start in list(self.world.starts.values()):
                start.call_off()
            self._stalls.clear()
            self.world.log.clear()
            self.world.violations.clear()
            for hypervisor in self.world.hypervisors.values():
                hypervisor.powered = True
                hypervisor.guests.clear()
                hypervisor.residues.clear()

    def look(self) -> dict[str, Any]:
        """Return a description of the whole world at this moment."""
        with self.world.lock:
            return {
                'violations': list(self.world.violations),
                'log': [dataclasses.asdict(effect) for effect in self.world.log],
                'hosts': {
                    host: {
                        'powered': hypervisor.powered,
                        'starts': self.world.connects[host],
                        'guests': {uuid: dataclasses.asdict(guest) for uuid, guest in hypervisor.guests.items()},
                        'jobs': {uuid: {'listeners': job.listeners} for uuid, job in sorted(hypervisor.jobs.items())},
                        'knobs': {name: getattr(hypervisor, name) for name in KNOBS},
                        'residues': {uuid: sorted(parts) for uuid, parts in hypervisor.residues.items()},
                    }
                    for host, hypervisor in self.world.hypervisors.items()
                },
            }


def _take_over(path: str) -> None:
    """Remove the socket of a dead server.

    :raises migrator.exception.ConfigurationError: a server listens there, the file is not a socket, or the path is
        too long for a socket.
    """
    if len(path.encode()) > LONGEST_PATH:
        raise _cannot_listen(path, f'the path of a unix socket has {LONGEST_PATH} bytes at most')
    file = pathlib.Path(path)
    if not file.exists():
        return
    if not file.is_socket():
        raise _cannot_listen(path, 'the path is an existing file that is not a socket')
    with socket.socket(socket.AF_UNIX) as attempt:
        try:
            attempt.connect(path)
        except OSError:
            file.unlink()
            return
    raise _cannot_listen(path, 'another server listens there')


def _cannot_listen(path: str, why: str) -> exception.ConfigurationError:
    return exception.ConfigurationError(option='--listen', value=path, detail=f'{why}; choose another path.')


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def __init__(self, path: str, served: WorldServer) -> None:
        self.served = served
        try:
            super().__init__(path, _Handler)
        except OSError as error:
            raise _cannot_listen(path, str(error)) from None
        pathlib.Path(path).chmod(0o600)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: the caller is gone, and the hypervisor continues."""


class _Handler(socketserver.StreamRequestHandler):
    server: _Server
    # Nothing is read ahead, so that the token sees a further line of the caller on the socket.
    rbufsize = 0

    def handle(self) -> None:
        """Handle one call."""
        line = self.rfile.readline()
        if not line:
            return
        try:
            result = self.server.served.answer(json.loads(line), self.connection, self._send)
        except exception.MigratorException as error:
            kwargs = {name: value for name, value in error.kwargs.items() if isinstance(value, (str, int, float))}
            self._send({'error': {'kind': type(error).__name__, 'message': error.message, 'kwargs': kwargs}})
        except Exception as error:  # noqa: BLE001 -- the caller gets any error as the reply
            self._send({'error': {'kind': '', 'message': f'{type(error).__name__}: {error}', 'kwargs': {}}})
        else:
            self._send({'result': base.to_primitive(result)})

    def _send(self, message: Any) -> None:
        self.wfile.write(json.dumps(message).encode() + b'\n')


def _guest(text: str) -> tuple[str, str]:
    host, found, uuid = text.partition('=')
    if not host or not found or not uuidutils.is_uuid_like(uuid):
        raise argparse.ArgumentTypeError(f'{text!r} is not of the form HOST=UUID')
    return host, uuid


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a world until SIGTERM or Ctrl-C, and return the exit status."""
    parser = argparse.ArgumentParser(prog='migrator-fake-world', description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--listen', required=True, metavar='PATH', help='the path of the unix socket')
    parser.add_argument('--link', type=float, default=1024.0, metavar='MIB', help="a host's link, in MiB/s")
    parser.add_argument('--memory', type=int, default=65536, metavar='MIB', help="a host's memory, in MiB")
    parser.add_argument('--vcpus', type=int, default=16, help="a host's processors")
    parser.add_argument('--local-disks', action='store_true', help='give each host disks that no other host sees')
    parser.add_argument(
        '--guest',
        action='append',
        default=[],
        type=_guest,
        metavar='HOST=UUID',
        help='start a guest with one processor and 512 MiB on a host; may be repeated',
    )
    arguments = parser.parse_args(argv)
    knobs = {'link': arguments.link, 'memory_mb': arguments.memory, 'vcpus': arguments.vcpus}
    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        server = WorldServer(arguments.listen, executors.NativeThreads(), not arguments.local_disks, **knobs)
    except exception.ConfigurationError as error:
        sys.stderr.write(f'migrator-fake-world: {error}\n')
        return 2
    for host, uuid in arguments.guest:
        server.spawn(host, uuid)
    server.start()
    sys.stdout.write(f'The world is at {arguments.listen}\n')
    sys.stdout.flush()
    signal.sigwait(stops)
    server.stop()
    return 0


if __name__ == '__main__':
    sys.exit(main())
