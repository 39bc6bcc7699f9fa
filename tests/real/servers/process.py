# SPDX-License-Identifier: Apache-2.0

"""A process that a test session starts, waits for, and ends; and the workspace in which they stand.

Nothing here waits for time to pass: what is waited for is asked again and again, and each wait has its bound.
"""

from __future__ import annotations

import os
import pathlib
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

from tests.real.servers import reaper

HOST = '127.0.0.1'

#: How often what is waited for is asked again, in seconds.
INTERVAL = 0.02

#: Which unprivileged user a server becomes that refuses to be root, the first of these that there is.
UNPRIVILEGED = ('postgres', 'nobody')


class ServerError(AssertionError):
    """A server did not do what was asked of it; the end of its log is part of the text."""


def wait_until(probe: Callable[[], object], what: str, timeout: float = 30.0) -> None:
    """Call a probe until it returns true.

    :raises ServerError: it did not within that number of seconds.
    """
    until = time.monotonic() + timeout
    while not probe():
        if time.monotonic() > until:
            raise ServerError(f'waited {timeout:g} s in vain: {what}')
        time.sleep(INTERVAL)


def listens(port: int) -> bool:
    """Whether something takes connections at a port."""
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


_taken: list[socket.socket] = []


def free_port() -> int:
    """Return a free port that no other session gets from here while this one lives.

    It lies below those that the kernel gives to outgoing connections, so that none of them takes it before the server.
    """
    lowest = int(pathlib.Path('/proc/sys/net/ipv4/ip_local_port_range').read_text().split()[0])
    for port in random.sample(range(10000, max(lowest, 20000)), 500):
        lock = socket.socket(socket.AF_UNIX)
        with socket.socket() as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                # a name of the abstract kind: the kernel forgets it when we end, however we end
                lock.bind(f'\0migrator-test-port-{port}')
                attempt.bind((HOST, port))
            except OSError:
                lock.close()
                continue
        _taken.append(lock)
        return port
    raise ServerError('no port is free')


class Workspace:
    """One session's directory, its processes, and who ends them should the session be killed."""

    def __init__(self) -> None:
        self.root = pathlib.Path(tempfile.mkdtemp(prefix='migrator-real-'))
        # another user's server must get at its own directory below
        self.root.chmod(0o711)
        self.processes: list[Process] = []
        self._reaper = subprocess.Popen(
            [sys.executable, '-I', '-S', reaper.__file__], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        self._send(f'directory {self.root}')

    def _send(self, line: str) -> None:
        assert self._reaper.stdin is not None
        self._reaper.stdin.write(f'{line}\n')
        self._reaper.stdin.flush()

    def directory(self, name: str) -> pathlib.Path:
        """Make a directory below the root, called like this or nearly so."""
        path = pathlib.Path(tempfile.mkdtemp(prefix=f'{name}-', dir=self.root))
        path.chmod(0o755)
        return path

    def began(self, process: Process) -> None:
        """Note a process that runs from now on."""
        start = reaper.started_at(process.pid)
        if start is not None:
            self._send(f'process {process.pid} {start} {int(process.last_signal or process.stop_signal)}')

    def ended(self, pid: int) -> None:
        """Note a process that has ended."""
        self._send(f'forget {pid}')

    def close(self) -> None:
        """End everything, the newest first, and delete the directory.

        :raises ServerError: something was left.
        """
        troubles = []
        for process in reversed(self.processes):
            try:
                process.close()
            except Exception as error:  # noqa: BLE001 -- the others are to end too
                troubles.append(f'{process.name}: {error}')
        left = self.left()
        # what is left is the reaper's, and so is the directory
        assert self._reaper.stdin is not None
        self._reaper.stdin.close()
        self._reaper.wait(timeout=reaper.PATIENCE + 20)
        if left:
            troubles.append(f'these were still running: {left}')
        if self.root.exists():
            troubles.append(f'{self.root} is still there')
        if troubles:
            raise ServerError('; '.join(troubles))

    def left(self) -> list[str]:
        """Return the processes that have anything to do with this workspace."""
        return left_of(self.root)


def left_of(root: pathlib.Path) -> list[str]:
    """Return the processes that work in a directory, or have it in their environment."""
    found = []
    for entry in pathlib.Path('/proc').iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / 'cmdline').read_bytes().replace(b'\0', b' ').decode(errors='replace').strip()
            where = str((entry / 'cwd').readlink())
            reported = str(root).encode() in (entry / 'environ').read_bytes()
        except OSError:
            continue  # gone, or another user's
        if reported or str(root) in where or str(root) in command:
            found.append(f'{entry.name} {command}')
    return found


class Process:
    """A child in a session of its own, with its output in a file.

    No Ctrl-C at the terminal reaches it. Its environment is what it is given and as little of ours as possible; its
    directory is its own.

    :param workspace: to which it belongs.
    :param name: what messages call it.
    """

    #: What ends it in good order; its first process gets it, and stops the others.
    stop_signal: signal.Signals = signal.SIGTERM
    #: What ends it when the session was killed, and what it would save is deleted next; None: the same.
    last_signal: signal.Signals | None = None
    #: Seconds that it may take to get ready, and to end.
    start_timeout = 60.0
    stop_timeout = 30.0

    def __init__(self, workspace: Workspace, name: str) -> None:
        self.workspace = workspace
        self.name = name
        self.directory = workspace.directory(name)
        self.log = self.directory / 'log'
        self._child: subprocess.Popen[bytes] | None = None
        workspace.processes.append(self)

    # --- what each kind says of itself -------------------------------------------------------------------------------

    def command(self) -> Sequence[str]:
        """Return what is run."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Return what is added to the environment."""
        return {}

    def user(self) -> str | None:
        """Return as whom it runs; None: as we do."""
        return None

    def ready(self) -> bool:
        """Whether it serves; asked again and again until it does."""
        return True

    # --- the same for all --------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The first process's id."""
        assert self._child is not None, f'{self.name} was never started'
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._child is not None and self._child.poll() is None

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return None if self._child is None else self._child.poll()

    def start(self, wait: bool = True) -> None:
        """Start it, and return when it is ready.

        :param wait: whether to wait for that.
        :raises ServerError: it has ended, or is not ready in time.
        """
        assert not self.running, f'{self.name} runs already'
        with self.log.open('ab') as output:
            self._child = subprocess.Popen(
                list(self.command()), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                cwd=self.directory, env=self._environment(), start_new_session=True, **credentials(self.user()),
            )  # fmt: skip
        self.workspace.began(self)
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Return when it is ready."""

        def ready_or_dead() -> bool:
            return not self.running or self.ready()

        try:
            wait_until(ready_or_dead, f'{self.name} to be ready', self.start_timeout)
        except ServerError as error:
            raise self._error(str(error)) from None
        if not self.running:
            raise self._error(f'{self.name} ended with {self.status} before it was ready')

    def stop(self) -> None:
        """End it in good order, and return when all of it has ended.

        :raises ServerError: it had to be killed.
        """
        if not self.running:
            return
        family = self._family()
        # a paused process would not handle the signal
        reaper.send(self.pid, signal.SIGCONT)
        reaper.send(self.pid, self.stop_signal)
        try:
            wait_until(lambda: not self.running, f'{self.name} to end', self.stop_timeout)
        except ServerError as error:
            self.kill()
            raise self._error(str(error)) from None
        self._bury(family, patience=5)

    def kill(self) -> None:
        """End it and every process of it at once, as a crash does."""
        if not self.running:
            return
        family = self._family()
        for pid, _start in family:
            reaper.send(pid, signal.SIGKILL)
        self._bury(family, patience=0)

    def restart(self) -> None:
        """Stop it, and start it again."""
        self.stop()
        self.start()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its first process."""
        reaper.send(self.pid, number)

    def pause(self) -> None:
        """Let it do nothing, as on a machine that hangs."""
        for pid, _start in self._family():
            reaper.send(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo :meth:`pause`."""
        for pid, _start in self._family():
            reaper.send(pid, signal.SIGCONT)

    def close(self) -> None:
        """End it for good."""
        self.stop()

    def tail(self, since: int = 0, lines: int = 60) -> str:
        """Return the end of its log.

        :param since: the size that the log had when what is of interest began.
        """
        if not self.log.exists():
            return ''
        with self.log.open('rb') as file:
            file.seek(since)
            return '\n'.join(file.read().decode(errors='replace').splitlines()[-lines:])

    def _family(self) -> list[tuple[int, str | None]]:
        return [(pid, reaper.started_at(pid)) for pid in reaper.descendants(self.pid)]

    def _bury(self, family: list[tuple[int, str | None]], patience: float) -> None:
        """Wait for all of a family to have ended, and kill who has not within some seconds."""

        def alive() -> list[int]:
            return [pid for pid, start in family if start is not None and reaper.started_at(pid) == start]

        assert self._child is not None
        until = time.monotonic() + patience
        while alive() and time.monotonic() < until:
            self._child.poll()
            time.sleep(INTERVAL)
        for pid in alive():
            reaper.send(pid, signal.SIGKILL)
        self._child.wait(timeout=10)
        wait_until(lambda: not alive(), f'the processes of {self.name} to end', 10)
        self.workspace.ended(self.pid)

    def _environment(self) -> dict[str, str]:
        ours = {key: os.environ[key] for key in ('PATH', 'LANG', 'PYTHONPATH', 'PYTHONWARNINGS') if key in os.environ}
        # by MIGRATOR_TEST_ROOT left_of() knows what came from here
        common = {
            'HOME': str(self.directory),
            'TMPDIR': str(self.directory),
            'MIGRATOR_TEST_ROOT': str(self.workspace.root),
        }
        return ours | common | dict(self.environment())

    def _error(self, text: str) -> ServerError:
        return ServerError(f'{text}; its log {self.log} ends with\n{self.tail(lines=30)}')


class Script(Process):
    """A Python program.

    :param arguments: what follows the interpreter on the command line.
    :param ready: whether it serves; asked again and again.
    """

    def __init__(
        self,
        workspace: Workspace,
        name: str,
        arguments: Sequence[str],
        ready: Callable[[Script], bool] = lambda script: True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(workspace, name)
        self._arguments = arguments
        self._ready = ready
        self._more = dict(environment or {})

    def command(self) -> Sequence[str]:
        """Return what is run."""
        return [sys.executable, *self._arguments]

    def environment(self) -> Mapping[str, str]:
        """Return what is added to the environment."""
        tree = str(pathlib.Path(__file__).resolve().parents[3])
        return {'PYTHONUNBUFFERED': '1', 'PYTHONPATH': tree} | self._more

    def ready(self) -> bool:
        """Whether it serves."""
        return self._ready(self)


def unprivileged() -> str | None:
    """Return the user for servers that refuse to be root; None: we are not root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in UNPRIVILEGED if name in names)


def credentials(user: str | None) -> dict[str, object]:
    """Return the arguments of :class:`subprocess.Popen` that make a child a user's."""
    if user is None:
        return {}
    entry = pwd.getpwnam(user)
    return {'user': entry.pw_uid, 'group': entry.pw_gid, 'extra_groups': []}


def run(command: Sequence[str], directory: pathlib.Path, user: str | None = None, **environment: str) -> str:
    """Run a command that ends by itself, and return what it has said.

    :raises ServerError: it fails; its output is part of the text.
    """
    done = subprocess.run(
        command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
        check=False, env={'PATH': os.environ['PATH'], 'HOME': str(directory), **environment}, **credentials(user),
    )  # fmt: skip
    said = done.stdout.decode(errors='replace')
    if done.returncode:
        raise ServerError(f'{command[0]} ended with {done.returncode}:\n{said}')
    return said


def which(name: str, *folders: str) -> str | None:
    """Return where a program is, looking into some folders first; None if nowhere."""
    for folder in folders:
        if found := shutil.which(name, path=folder):
            return found
    return shutil.which(name)
