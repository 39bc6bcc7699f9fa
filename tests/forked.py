# SPDX-License-Identifier: Apache-2.0

"""Processes of Python programs that start in milliseconds: forks of a warm interpreter.

A fork server is an interpreter that has imported some modules, runs no thread, and forks a child for each command. The
child is a process of its own: it has the arguments, the environment, the directory and the standard streams that it is
given, it gets signals, and it ends as any interpreter does, with an exit status or a traceback. Each test process
starts a server when it first needs it, and the server ends with the test process.

A child differs from a fresh interpreter in this:

- The modules of the server are imported already. A module that reads the environment or the directory when it is
  imported has read the server's: an empty home directory without any ``OS_*`` variable.
- oslo.service has the threading backend.
- Variables that only a starting interpreter reads have no effect, except ``PYTHONPATH`` and ``PYTHONUNBUFFERED``.

So what a test says about imports, about eventlet, or about the interpreter's own options needs a real one.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping, Sequence
from typing import IO, Any

ROOT = pathlib.Path(__file__).resolve().parents[1]

#: What a command line of migrator may import, sooner or later; and what a service chooses before.
MIGRATOR = (
    'migrator.runtime.concurrency:native',
    'alembic.autogenerate',
    'migrator.api.app',
    'migrator.cmd.api',
    'migrator.cmd.compute',
    'migrator.cmd.conductor',
    'migrator.demo.run',
    'migrator.demo.serve',
    'migrator.operator.cli.db',
    'migrator.operator.cli.unstick',
    'migrator.cmd.status',
    'migrator.compute.manager',
    'migrator.conductor.manager',
    'migrator.conf.opts',
    'migrator.db.schema.sync',
    'migrator.testing.fake_world.driver',
    'migrator.testing.fake_world.server',
    'migrator.testing.hypervisor.driver',
    'oslo_messaging._drivers.impl_fake',
    'oslo_messaging._drivers.impl_rabbit',
    'rich.progress',
    'sqlalchemy.dialects.sqlite',
)

#: The same of the command lines ``openstack`` and ``nova``. Not the shell of novaclient, which keeps the arguments that
#: the process has when it is imported.
CLIENTS = (
    'tests.forked:load_openstack',
    'novaclient.client',
    'novaclient.v2.client',
    'openstack.connection',
    'openstackclient.shell',
    'openstackclient.compute.client',
)

#: The groups of entry points whose modules the client ``openstack`` imports.
_OPENSTACK = ('cliff.formatter', 'keystoneauth1.plugin', 'openstack.')

PIPE, STDOUT, DEVNULL = subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL

#: Messages to the server are shorter, in bytes.
_MOST = 1 << 17
_NUMBER = struct.Struct('i')
_BOOT = 'from tests import forked; forked.serve()'


class Process:
    """A running command: the part of :class:`subprocess.Popen` that tests use.

    :param argv: as for an interpreter of its own: ``[sys.executable, '-m', ...]``, or ``-c``, or a file; or a script
        whose first line names the interpreter.
    :param modules: what the server has imported, and has called where a colon names a function.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        modules: Sequence[str] = MIGRATOR,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Any = DEVNULL,
        stdout: Any = None,
        stderr: Any = None,
        text: bool = False,
    ) -> None:
        self.args = list(argv)
        self.returncode: int | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        with contextlib.ExitStack() as given:

            def descriptor(stream: Any, usual: int, name: str) -> int:
                if stream == PIPE:
                    reading, writing = os.pipe()
                    given.callback(os.close, writing)
                    setattr(self, name, os.fdopen(reading, 'r' if text else 'rb'))
                    return writing
                if stream == DEVNULL:
                    return given.enter_context(open(os.devnull, 'r+b')).fileno()
                return usual if stream is None else stream if isinstance(stream, int) else stream.fileno()

            sent_stdout = descriptor(stdout, 1, 'stdout')
            sent_stderr = sent_stdout if stderr == STDOUT else descriptor(stderr, 2, 'stderr')
            self._status, status = os.pipe()
            given.callback(os.close, status)
            document = {
                'argv': self.args,
                'cwd': os.fspath(cwd or os.getcwd()),
                'env': dict(os.environ if env is None else env),
            }
            _server(tuple(modules)).send(
                json.dumps(document).encode(), [descriptor(stdin, 0, 'stdin'), sent_stdout, sent_stderr, status]
            )
        self.pid = self._number()

    def _number(self) -> int:
        read = os.read(self._status, _NUMBER.size)
        assert read, f'the fork server has ended, and so has {self.args}'
        return int(_NUMBER.unpack(read)[0])

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, negative for a signal, when it has ended.

        :raises subprocess.TimeoutExpired: it has not, within this many seconds.
        """
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._status, select.POLLIN)
            if not waiting.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = self._number()
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Return what it still writes into the pipes of stdout and stderr, when it has ended.

        :raises subprocess.TimeoutExpired: it has not, within this many seconds.
        """
        found: dict[str, Any] = {}

        def read(name: str, stream: IO[Any]) -> None:
            found[name] = stream.read()

        streams = {'stdout': self.stdout, 'stderr': self.stderr}
        readers = [
            threading.Thread(target=read, args=(name, stream), daemon=True)
            for name, stream in streams.items()
            if stream
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return found.get('stdout'), found.get('stderr')

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


def run(
    argv: Sequence[str],
    *,
    input: str = '',
    timeout: float | None = None,
    text: bool = True,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end and return its exit status and its output, as :func:`subprocess.run` does.

    :param options: of :class:`Process`; stdout and stderr are captured unless they are given.
    :raises subprocess.TimeoutExpired: it has not ended within this many seconds, and was killed.
    """
    with contextlib.ExitStack() as files:
        streams = {name: files.enter_context(tempfile.TemporaryFile()) for name in ('stdin', 'stdout', 'stderr')}
        streams['stdin'].write(input.encode())
        streams['stdin'].seek(0)
        process = Process(argv, **{**streams, **options})
        try:
            status = process.wait(timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        said: list[Any] = []
        for name in ('stdout', 'stderr'):
            streams[name].seek(0)
            content = streams[name].read()
            said.append(content.decode() if text else content)
        return subprocess.CompletedProcess(process.args, status, *said)


# --- the server, as seen from the test process -----------------------------------------------------------------------


class _Server:
    def __init__(self, modules: Sequence[str]) -> None:
        # The server removes it, since a test process may end without a word.
        home = tempfile.mkdtemp(prefix='forked-')
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        clean = {name: value for name, value in os.environ.items() if not name.startswith('OS_')}
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get('PYTHONPATH')])])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, '-c', _BOOT, str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                cwd=home,
                env={**clean, 'PYTHONPATH': path, 'HOME': home},
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self._stop)

    def send(self, message: bytes, descriptors: list[int]) -> None:
        assert len(message) < _MOST
        socket.send_fds(self._control, [message], descriptors)

    def _stop(self) -> None:
        self._control.close()
        self._process.wait()


_servers: dict[tuple[int, tuple[str, ...]], _Server] = {}
_lock = threading.Lock()


def _server(modules: tuple[str, ...]) -> _Server:
    with _lock:
        # A test process that was itself forked needs its own.
        key = (os.getpid(), modules)
        if key not in _servers:
            _servers[key] = _Server(modules)
        return _servers[key]


# --- the server itself -----------------------------------------------------------------------------------------------


def serve() -> None:
    """Import the modules and fork for each message; in each child, run what the message says."""
    _Ending.prepare()
    descriptor, *modules = sys.argv[1:]
    control = socket.socket(fileno=int(descriptor))
    path = sys.path[1:]
    for module in modules:
        name, _, function = module.partition(':')
        imported = importlib.import_module(name)
        if function:
            getattr(imported, function)()
    assert threading.active_count() == 1, f'a fork would lose one of {threading.enumerate()}'
    gc.collect()
    gc.freeze()
    code, names = _become(*_fork(control), path)
    try:
        exec(code, names)  # noqa: S102 -- it is what an interpreter does
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            _Ending.status = stop.code or 0
        raise
    _Ending.status = 0


def load_openstack() -> None:
    """Import every command of ``openstack``, as the client itself does each time."""
    # cliff keeps the name of the program that imports it.
    sys.argv[:] = ['openstack']
    found = importlib.metadata.entry_points()
    for group in found.groups:
        for entry in found.select(group=group) if group.startswith(_OPENSTACK) else ():
            with contextlib.suppress(Exception):  # the client passes over it, too
                entry.load()
    # cliff reads the metadata of every installed package for this, and keeps it.
    importlib.import_module('openstackclient.common.versions').ShowVersions(None, None).get_epilog()


class _Ending:
    """Exit without deleting all modules, which takes longer than everything else.

    So a child that has an exit status leaves before that: after its threads have ended, after all functions of atexit
    have run, and after its output is written. In any other case it ends as usual.
    """

    status: int | None = None

    @classmethod
    def prepare(cls) -> None:
        """Register with atexit. What is registered first is called last."""
        atexit.register(cls._leave)

    @classmethod
    def _leave(cls) -> None:
        if cls.status is None:
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 -- the interpreter flushes again, and reports what is wrong
            return
        os._exit(cls.status & 0xFF)


def _fork(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each message, and report each end; return in each child."""
    running: dict[int, int] = {}
    # Ctrl-C at the terminal reaches the whole group: who runs the tests ends this by closing the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended, wakeup = socket.socketpair()
    for end in (ended, wakeup):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([control, ended], [], [])
        if ended in ready:
            ended.recv(4096)
            _report(running)
        if control not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, _MOST, 4)
        if not message:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            for pid in running:
                os.waitpid(pid, 0)
            shutil.rmtree(os.environ['HOME'], ignore_errors=True)
            os._exit(0)
        pid = os.fork()
        if pid:
            running[pid] = descriptors.pop()
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Not what it was before: a shell that starts a job in the background has it ignore SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for end in (control, ended, wakeup):
            end.close()
        for other in running.values():
            os.close(other)
        return json.loads(message), descriptors


def _report(running: dict[int, int]) -> None:
    """Report the children that have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        descriptor = running.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(descriptor, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os.close(descriptor)


def _become(document: dict[str, Any], descriptors: list[int], path: list[str]) -> tuple[types.CodeType, dict[str, Any]]:
    """Make this process what a new interpreter would be; return what it runs, and its globals."""
    *streams, status = descriptors
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in {*streams} - {0, 1, 2}:
        os.close(descriptor)
    os.chdir(document['cwd'])
    os.environ.clear()
    os.environ.update(document['env'])
    tempfile.tempdir = None
    argv = document['argv']
    if argv[0] == sys.executable:
        argv = argv[1:]
    unbuffered = bool(os.environ.get('PYTHONUNBUFFERED'))
    if argv[0] == '-u':
        argv, unbuffered = argv[1:], True
    _open_streams(unbuffered)
    added = [entry for entry in os.environ.get('PYTHONPATH', '').split(os.pathsep) if entry and entry not in path]
    main = types.ModuleType('__main__')
    main.__dict__['__builtins__'] = __builtins__
    sys.modules['__main__'] = main
    # From here on signals do what they do in a new interpreter, so that the parent may send some.
    os.write(status, _NUMBER.pack(os.getpid()))
    os.close(status)
    if argv[0] == '-m':
        sys.path[:] = [os.getcwd(), *added, *path]
        code = _of_module(argv[1], main)
        sys.argv[:] = [str(main.__file__), *argv[2:]]
    elif argv[0] == '-c':
        sys.path[:] = ['', *added, *path]
        code = compile(argv[1], '<string>', 'exec')
        sys.argv[:] = ['-c', *argv[2:]]
    else:
        assert not argv[0].startswith('-'), f'a fork cannot take the option {argv[0]} of an interpreter'
        sys.path[:] = [os.path.dirname(os.path.abspath(argv[0])), *added, *path]
        main.__file__ = argv[0]
        code = compile(pathlib.Path(argv[0]).read_bytes(), argv[0], 'exec')
        sys.argv[:] = argv
    return code, main.__dict__


def _of_module(name: str, main: types.ModuleType) -> types.CodeType:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f'there is no module {name}'
    loader: Any = spec.loader
    main.__spec__, main.__loader__, main.__file__, main.__package__ = spec, loader, spec.origin, spec.parent
    code: types.CodeType = loader.get_code(name)
    return code


def _open_streams(unbuffered: bool) -> None:
    encoding = sys.stdout.encoding
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding=encoding, errors=sys.stdin.errors, closefd=False)
    for number, name, errors in ((1, 'stdout', sys.stdout.errors), (2, 'stderr', 'backslashreplace')):
        raw = io.FileIO(number, 'w', closefd=False)
        raw.name = f'<{name}>'
        stream = io.TextIOWrapper(
            raw if unbuffered else io.BufferedWriter(raw),  # type: ignore[arg-type, type-var]
            encoding=encoding,
            errors=errors,
            line_buffering=raw.isatty() or number == 2,
            write_through=unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f'__{name}__', stream)
