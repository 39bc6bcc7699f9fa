# SPDX-License-Identifier: Apache-2.0

"""A command that is run once, by a process that outlives the one that started it.

The process that starts the work is the *worker*. It may be killed at any time. The *supervisor* is a process in a
session of its own: it runs the command, and records how it ended. Each piece of work has a directory.

========== ==========================================================================================================
``lock``   locked from before the start until the supervisor has ended, by the worker first
``order``  what to run, with what environment, and for how long
``begun``  which process is the supervisor, written before it runs the command: from then on the work never starts again
``result`` how the command ended
``log``    the output of the command, and of the supervisor
========== ==========================================================================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import fcntl
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from migrator import exception
from migrator.executors import Clock, SystemClock
from migrator.nova.foreground import state
from migrator.virt.libvirt import records

T = TypeVar('T')

#: Seconds between SIGTERM and SIGKILL.
GRACE = 10.0
#: The greatest length of a file that is read, and of a text in it.
_BYTES, _CHARACTERS = 64 * 1024, 1000
#: Seconds within which a supervisor has begun the work.
_START = 60.0
#: Seconds between two looks at processes that do not report their end, and how often SIGKILL is sent to them.
_AGAIN, _ROUNDS = 0.05, 100
#: Seconds until a result is written again.
_RESULT_AGAIN = 5.0
#: The variables that no command inherits.
_SECRETS = ('OS_PASSWORD', 'OS_TOKEN', 'OS_APPLICATION_CREDENTIAL_SECRET')
#: The greatest number of seconds that one wait takes.
_LONGEST = 3600.0
#: What the supervisor waits for.
_AWAITED = frozenset({signal.SIGCHLD, signal.SIGTERM})
#: What it changes, and the command does not inherit.
_CHANGED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
#: The C structure of a lock: type, whence, start, length, pid.
_FLOCK = struct.Struct('hhqqi4x')
_PROC = pathlib.Path('/proc')


class State(enum.StrEnum):
    """The states of a piece of work."""

    #: It was not begun.
    NEW = 'new'
    #: Its supervisor runs, or begins.
    RUNNING = 'running'
    #: It has a result.
    ENDED = 'ended'
    #: It was begun, and it will never have a result: the machine or the supervisor was stopped.
    INTERRUPTED = 'interrupted'


@dataclasses.dataclass(frozen=True)
class Result:
    """How a command ended.

    :ivar status: its exit status; None: it has none.
    :ivar signal: the number of the signal that ended it; None: it was not ended by one.
    :ivar timed_out: whether it was ended at its limit. It may have a status nevertheless.
    :ivar stopped: whether it was ended because its supervisor got SIGTERM.
    :ivar error: why it could not be started; empty: it was.
    :ivar limit: the limit, in seconds.
    :ivar began_at: when the work began, before the command was started.
    :ivar ended_at: when the command had ended.
    """

    status: int | None
    signal: int | None
    timed_out: bool
    stopped: bool
    error: str
    limit: float
    began_at: datetime.datetime
    ended_at: datetime.datetime

    @property
    def own_status(self) -> int | None:
        """The exit status of a command that ended by itself; None: it was ended, or never began."""
        return None if self.timed_out or self.stopped else self.status

    @property
    def text(self) -> str:
        """How it ended, in words, such as ``exit status 3``."""
        if self.timed_out:
            return f'ended after {self.limit:g} s, its limit'
        if self.stopped:
            return 'ended because its supervisor got SIGTERM'
        if self.signal is not None:
            return f'killed by {_name_of(self.signal)}'
        if self.status is not None:
            return f'exit status {self.status}'
        return f'not started: {self.error}'

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Result:
        """Return the result in a document.

        :raises KeyError, TypeError, ValueError: it has none.
        """
        return cls(
            status=_value(found, 'status', int, type(None)),
            signal=_value(found, 'signal', int, type(None)),
            timed_out=_value(found, 'timed_out', bool),
            stopped=_value(found, 'stopped', bool),
            error=_value(found, 'error', str),
            limit=_value(found, 'limit', int, float),
            began_at=_time(found, 'began_at'),
            ended_at=_time(found, 'ended_at'),
        )


@dataclasses.dataclass(frozen=True)
class _Order:
    """What to run.

    :ivar environment: what is added to the environment of the supervisor, which is that of the worker.
    :ivar seconds: the limit.
    :ivar grace: seconds between SIGTERM and SIGKILL.
    """

    argv: list[str]
    environment: dict[str, str]
    seconds: float
    grace: float

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> _Order:
        argv, environment = _value(found, 'argv', list), _value(found, 'environment', dict)
        if not all(type(one) is str for one in (*argv, *environment.values())):
            raise TypeError('argv or environment has something else than texts')
        return cls(argv, environment, _value(found, 'seconds', int, float), _value(found, 'grace', int, float))


@dataclasses.dataclass(frozen=True)
class _Begun:
    """The supervisor of the work.

    :ivar pid: its pid, which is the id of its session too.
    :ivar started: when it was started, in clock ticks since the machine was: a later process may have its pid.
    :ivar boot_id: the boot of the machine.
    :ivar at: when it began.
    """

    pid: int
    started: int
    boot_id: str
    at: datetime.datetime

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> _Begun:
        return cls(
            pid=_value(found, 'pid', int),
            started=_value(found, 'started', int),
            boot_id=_value(found, 'boot_id', str),
            at=_time(found, 'at'),
        )


class Work:
    """A command that is run once.

    :param directory: its directory, which a start creates.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory.absolute()

    @property
    def log(self) -> pathlib.Path:
        """The file that gets the output of the command, without a limit of its length."""
        return self.directory / 'log'

    def start(self, argv: Sequence[str], environment: Mapping[str, str], seconds: float, grace: float = GRACE) -> None:
        """Begin the work. When this returns it was begun, and goes on without this process.

        If this is interrupted, :meth:`state` says whether the work was begun.

        :param argv: the command and its arguments. There is no shell. It runs in the present directory.
        :param environment: what it gets besides the environment of this process.
        :param seconds: its limit. At the limit, all processes of its session get SIGTERM.
        :param grace: seconds until those that are left get SIGKILL.
        :raises migrator.exception.Conflict: the work was begun already, or another process begins it.
        :raises migrator.exception.Invalid: it was not begun so far. If it is new, it can be started again.
        """
        if not argv or not 0 < seconds < float('inf'):
            raise exception.Invalid(f'The work {list(argv)} within {seconds} s: name a command, and a limit above 0.')
        order = _Order(list(argv), dict(environment), seconds, grace)
        try:
            _make(self.directory)
            lock = state.opened(self._lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mine=True)
            try:
                self._start(lock, order)
            finally:
                os.close(lock)  # the supervisor has its own copy, and with it the lock
        except OSError as error:
            raise exception.Invalid(f'The work in {self.directory} cannot be begun: {error}') from None

    def state(self) -> State:
        """Return the state of the work.

        :raises migrator.exception.Invalid: a file of it is damaged.
        """
        # This order matters. Work that begins between two looks is new, and work that ends between two looks has ended.
        was_begun = self._begun() is not None
        is_held = self._is_held()
        if self.result() is not None:
            return State.ENDED
        if is_held:
            return State.RUNNING
        return State.INTERRUPTED if was_begun else State.NEW

    def result(self) -> Result | None:
        """Return how the command ended, or None.

        :raises migrator.exception.Invalid: the file of the result is damaged.
        """
        return _read(self._result, Result.of)

    @property
    def begun_at(self) -> datetime.datetime | None:
        """When the work was begun; None: it was not.

        :raises migrator.exception.Invalid: the file with that time is damaged.
        """
        begun = self._begun()
        return None if begun is None else begun.at

    def living(self) -> list[int]:
        """Return the pids of the processes of the work that still run.

        The supervisor counts until it has written the result. A process that has made a session of its own, as daemons
        do, does not count.

        :raises migrator.exception.Invalid: a file of the work is damaged.
        """
        begun, has_ended = self._begun(), self.result() is not None
        if begun is None or begun.boot_id != _boot_id():
            return []
        leader = _process(begun.pid)
        if leader is not None and leader.started != begun.started:
            return []  # its pid is free for others only when no process of the session is left
        return [pid for pid in _session(begun.pid) if not (has_ended and pid == begun.pid)]

    @property
    def _lock(self) -> pathlib.Path:
        return self.directory / 'lock'

    @property
    def _result(self) -> pathlib.Path:
        return self.directory / 'result'

    def _begun(self) -> _Begun | None:
        return _read(self.directory / 'begun', _Begun.of)

    def _start(self, lock: int, order: _Order) -> None:
        """Lock the work, and start a supervisor, which gets the lock.

        :param lock: the descriptor of the lock file. It must be closed and never be unlocked: the lock belongs to all
            copies of the descriptor.
        """
        try:
            # A lock of flock() can be looked at only by taking it, and that look could make a start fail.
            fcntl.fcntl(lock, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except BlockingIOError:
            raise exception.Conflict(f'Another process begins or runs the work in {self.directory}.') from None
        if (began := self.begun_at) is not None:
            raise exception.Conflict(f'The work in {self.directory} was begun already, at {began.isoformat()}.')
        _write(self.directory / 'order', dataclasses.asdict(order))
        log = state.opened(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, mine=True)
        try:
            process = subprocess.Popen(  # noqa: S603 -- no shell
                [sys.executable, '-P', '-m', 'migrator.operator.maintenance.supervisor', str(self.directory)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=(lock,),
            )  # fmt: skip
        finally:
            os.close(log)
        # This is the parent of the supervisor. It ends as soon as the work was begun, so that it can be waited for.
        try:
            process.wait(_START)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # A process that ignores SIGCHLD does not get the exit status of another one.
        if self._begun() is None:
            raise exception.Invalid(
                f'The supervisor of the work in {self.directory} has not begun it. Look at {self.log}.'
            )

    def _is_held(self) -> bool:
        """Return whether a process has the lock, without taking it."""
        try:
            lock = state.opened(self._lock, os.O_RDONLY | os.O_NOFOLLOW, mine=True)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _damaged(self._lock, error) from None
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            return bool(_FLOCK.unpack(fcntl.fcntl(lock, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)
        finally:
            os.close(lock)

    def _begin(self, clock: Clock) -> tuple[_Order, _Begun]:
        """Record that this process is the supervisor.

        :raises migrator.exception.MigratorException: it cannot be.
        """
        order = _read(self.directory / 'order', _Order.of)
        if order is None or not self._is_held() or self._begun() is not None:
            raise exception.Conflict(f'The work in {self.directory} has no order or no lock, or was begun already.')
        this = _process(os.getpid())
        assert this is not None
        begun = _Begun(os.getpid(), this.started, _boot_id(), clock.now())
        _write(self.directory / 'begun', {**dataclasses.asdict(begun), 'at': begun.at.isoformat()})
        return order, begun

    def _end(self, result: Result) -> None:
        times = {'began_at': result.began_at.isoformat(), 'ended_at': result.ended_at.isoformat()}
        _write(self._result, dataclasses.asdict(result) | times)


# --- files -----------------------------------------------------------------------------------------------------------


def _make(directory: pathlib.Path) -> None:
    """Create a directory and its parents as far as they are missing, so that they survive a loss of power."""
    if directory.is_dir():
        return
    _make(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)
    records.sync(directory.parent)


def _write(path: pathlib.Path, document: Mapping[str, Any]) -> None:
    """Write a file whole or not at all. When this returns, it survives a loss of power."""
    text = json.dumps(document).encode()
    if len(text) > _BYTES:
        raise exception.Invalid(f'{path} would have {len(text)} bytes, and {_BYTES} is the maximum: use a script.')
    draft = path.with_name(f'{path.name}.draft')
    with os.fdopen(state.opened(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mine=True), 'wb') as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    records.sync(path.parent)


def _read(path: pathlib.Path, of: Callable[[Mapping[str, Any]], T]) -> T | None:
    """Return what a file has, or None if there is no such file.

    :raises migrator.exception.Invalid: it has something else, or belongs to another user.
    """
    try:
        with os.fdopen(state.opened(path, os.O_RDONLY | os.O_NOFOLLOW, mine=True), 'rb') as file:
            text = file.read(_BYTES + 1)
        if len(text) > _BYTES:
            raise ValueError(f'it has more than {_BYTES} bytes')
        found = json.loads(text)
        if not isinstance(found, dict):
            raise TypeError('it is no object of JSON')
        return of(found)
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from None


def _damaged(path: pathlib.Path, error: Exception) -> exception.Invalid:
    return exception.Invalid(
        f'{path} cannot be read ({exception.message_of(error)}). Find out whether the work was done, and report its '
        'end with its claim.'
    )


def _value(found: Mapping[str, Any], name: str, *types: type) -> Any:
    if type(found[name]) not in types:
        raise TypeError(f'{name} is a {type(found[name]).__name__}')
    return found[name]


def _time(found: Mapping[str, Any], name: str) -> datetime.datetime:
    at = datetime.datetime.fromisoformat(_value(found, name, str))
    if at.tzinfo is None:
        raise ValueError(f'{name} has no zone')
    return at


# --- processes -------------------------------------------------------------------------------------------------------


class _Process(NamedTuple):
    """A process of this machine, by ``/proc/PID/stat``."""

    state: str
    session: int
    started: int


def _process(pid: int) -> _Process | None:
    try:
        text = (_PROC / str(pid) / 'stat').read_bytes()
    except OSError:
        return None
    # The second field is the name of the program in parentheses, and may have any byte.
    fields = text.rpartition(b')')[2].split()
    return _Process(fields[0].decode(), int(fields[3]), int(fields[19]))


def _session(leader: int) -> list[int]:
    """Return the pids of a session, without those that have ended."""
    found = ((int(name), _process(int(name))) for name in os.listdir(_PROC) if name.isdigit())
    return sorted(pid for pid, one in found if one is not None and one.session == leader and one.state not in 'ZX')


def _boot_id() -> str:
    return (_PROC / 'sys/kernel/random/boot_id').read_text(encoding='ascii').strip()


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f'signal {number}'


# --- the supervisor --------------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Be the supervisor of a piece of work, or its parent, which ends as soon as the work was begun.

    :param argv: the directory of the work. Its lock is held by an inherited descriptor.
    :returns: the exit status of the process: 0 unless the work was not begun.
    """
    for one in (signal.SIGHUP, signal.SIGINT):
        signal.signal(one, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a worker may have ignored it, and then no status is kept
    # They stay pending until they are waited for: none can come at the wrong time.
    signal.pthread_sigmask(signal.SIG_SETMASK, _AWAITED)
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return 0 if os.read(reader, 1) else 1
    os.close(reader)
    os.setsid()
    work, clock = Work(pathlib.Path(argv[0])), SystemClock()
    order, begun = work._begin(clock)
    with contextlib.suppress(BrokenPipeError):  # the worker was killed, and this process goes on
        os.write(writer, b'.')
    os.close(writer)
    result = _run(order, begun, clock)
    while True:
        try:
            work._end(result)
            return 0
        except OSError as error:  # such as a full disk: until then the work counts as running
            print(f'The result cannot be written, trying again: {error}', file=sys.stderr)
            signal.sigtimedwait((), _RESULT_AGAIN)


def _environment() -> dict[str, str]:
    """Return what a command inherits. The credentials of the cloud could get into its log."""
    return {name: value for name, value in os.environ.items() if name not in _SECRETS}


def _run(order: _Order, begun: _Begun, clock: Clock) -> Result:
    ended = Result(None, None, False, False, '', order.seconds, begun.at, begun.at)
    try:
        # Its output goes where that of this process goes. It does not inherit the lock, which a daemon would keep.
        process = subprocess.Popen(  # noqa: S603 -- the operator has typed it
            order.argv, stdin=subprocess.DEVNULL, env=_environment() | order.environment, process_group=0,
            preexec_fn=_restore_signals,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return dataclasses.replace(ended, error=str(error)[:_CHARACTERS], ended_at=clock.now())
    until, timed_out, stopped = clock.monotonic() + order.seconds, False, False
    while process.poll() is None and not stopped:
        left = until - clock.monotonic()
        if left <= 0:
            timed_out = True
            break
        got = signal.sigtimedwait(_AWAITED, min(left, _LONGEST))
        stopped = got is not None and got.si_signo == signal.SIGTERM
    if timed_out or stopped:
        _stop(process, order.grace, clock)
    code = process.wait()
    return dataclasses.replace(
        ended, status=code if code >= 0 else None, signal=-code if code < 0 else None, timed_out=timed_out,
        stopped=stopped, ended_at=clock.now(),
    )  # fmt: skip


def _restore_signals() -> None:
    """Give the command the signals as a shell would."""
    for one in _CHANGED:
        signal.signal(one, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _stop(process: subprocess.Popen[bytes], grace: float, clock: Clock) -> None:
    """End all other processes of this session.

    :param process: the one whose end this process gets to know; others may have lost their parents.
    :param grace: seconds between SIGTERM and SIGKILL.
    """
    until = clock.monotonic() + grace
    _send(signal.SIGTERM)
    while _others() and (left := until - clock.monotonic()) > 0:
        signal.sigtimedwait({signal.SIGCHLD}, min(left, _AGAIN))
        process.poll()
    for _ in range(_ROUNDS):  # more than once, because they may start others meanwhile
        if not _send(signal.SIGKILL):
            return
        signal.sigtimedwait({signal.SIGCHLD}, _AGAIN)
        process.poll()


def _others() -> list[int]:
    return [pid for pid in _session(os.getpid()) if pid != os.getpid()]


def _send(number: signal.Signals) -> list[int]:
    """Send a signal to all other processes of this session, and return their pids."""
    others = _others()
    for pid in others:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # one of another user cannot be ended
            os.kill(pid, number)
    return others


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
