# SPDX-License-Identifier: Apache-2.0

"""A cloud in one process that counts the cost of a migration.

Every statement, commit, message and Placement request counts since the counting began, except those that are marked as
asides. Asides are marked where they begin, and not guessed from their content:

- the periodic threads of conductors and compute services (polls, lease, sweep, heartbeat, guests),
- the handlers of polls and heartbeats,
- everything within :func:`aside`.

A saga that a sweep or a poll has woken runs in another thread, and counts.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from migrator import executors
from migrator.db.sql.watching import watch
from migrator.rpc import RPC, Served, Target
from migrator.testing import cloud
from migrator.testing.rpc import HEARTBEATS, POLLS, Recorded

#: The threads that look after migrations whether or not anything happens: full names, and a part of a name.
_PERIODICS = frozenset({'lease', 'sweep', 'poll', 'heartbeat', 'heartbeats', 'guests'})
_POLL_POOL = '-poll-'
_ASIDES = POLLS | HEARTBEATS

_here: contextvars.ContextVar[str | None] = contextvars.ContextVar('migrator_counted_as', default=None)
_ASIDE, _UNSEEN = 'aside', 'unseen'


def aside() -> contextlib.AbstractContextManager[None]:
    """Count the work of this thread within the block as an aside."""
    return _counted_as(_ASIDE)


def unseen() -> contextlib.AbstractContextManager[None]:
    """Count no database access of this thread within the block; it belongs to the observer."""
    return _counted_as(_UNSEEN)


@contextlib.contextmanager
def _counted_as(what: str) -> Iterator[None]:
    before = _here.set(what)
    try:
        yield
    finally:
        _here.reset(before)


def _as_aside(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with aside():
            return function(*args, **kwargs)

    return run


class Counter:
    """Counts of statements and commits, for migrations and for asides.

    :ivar counted: the ``sql_statements`` and ``commits`` of migrations.
    :ivar asides: the same of asides.
    :ivar texts: statement -> how often it was counted for migrations.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Reset all counts to zero."""
        self.counted = {'sql_statements': 0, 'commits': 0}
        self.asides = dict(self.counted)
        self.texts: collections.Counter[str] = collections.Counter()

    def statement(self, text: str, _values: object = ()) -> None:
        """Count a statement."""
        self._count('sql_statements', text)

    def commit(self) -> None:
        """Count a commit."""
        self._count('commits')

    def _count(self, what: str, text: str | None = None) -> None:
        counted_as = _here.get()
        if counted_as == _UNSEEN:
            return
        with self._lock:
            (self.asides if counted_as == _ASIDE else self.counted)[what] += 1
            if text is not None and counted_as is None:
                self.texts[text] += 1


class Threads(executors.NativeThreads):
    """Real threads; the work of those that look after migrations counts as an aside."""

    def start(self, function: Callable[..., Any], *args: Any, name: str) -> None:
        """Start a thread and mark it as an aside if its name is that of a periodic one."""
        looks_after = name in _PERIODICS or _POLL_POOL in name
        super().start(_as_aside(function) if looks_after else function, *args, name=name)


class _Endpoint:
    """A wrapper of an endpoint that marks the handlers of polls and heartbeats as asides."""

    def __init__(self, endpoint: object) -> None:
        self._endpoint = endpoint

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._endpoint, name)
        return _as_aside(found) if name in _ASIDES else found


class _RPC:
    def __init__(self, rpc: RPC) -> None:
        self.call = rpc.call
        self.cast = rpc.cast
        self._rpc = rpc

    def serve(self, target: Target, endpoint: object) -> Served:
        """Serve an endpoint; see :meth:`migrator.rpc.RPC.serve`."""
        return self._rpc.serve(target, _Endpoint(endpoint))


class CountingCloud(cloud.Cloud):
    """A cloud on real threads that counts its cost.

    :param directory: the directory of its files.
    :param threads_for: returns the threads of a process by its name; they must be :class:`Threads`.
    :param more: see :class:`migrator.testing.cloud.Cloud`.
    """

    def __init__(self, directory: str, threads_for: cloud.ThreadsFor | None = None, **more: Any) -> None:
        threads = Threads()
        self.counter = Counter()
        self._first_request = self._first_message = 0
        super().__init__(directory, threads_for=threads_for or (lambda name: threads), **more)
        watch(self.database.engine, self.counter.statement, self.counter.commit)

    def rpc_for(self, name: str, sender: str = '') -> Any:
        """Return the RPC of one process; see :meth:`migrator.testing.cloud.Cloud.rpc_for`."""
        return _RPC(super().rpc_for(name, sender))

    def begin_counting(self) -> None:
        """Count from now on, and forget all earlier counts."""
        self.counter.begin()
        self.recorder.measures = True
        self._first_request = len(self.placement.requests)
        self._first_message = len(self.recorder.messages)

    def received(self) -> list[Recorded]:
        """Return every message since the counting began, asides included."""
        return self.recorder.messages[self._first_message :]

    def asked(self) -> list[Any]:
        """Return every request to Placement since the counting began."""
        requests: list[Any] = self.placement.requests
        return requests[self._first_request :]

    def costs(self) -> dict[str, int]:
        """Return the costs that were counted so far, without the asides."""
        return {'placement_requests': len(self.asked())} | {
            'rpc_messages': sum(not (one.poll or one.heartbeat) for one in self.received()),
            **self.counter.counted,
        }

    def asides(self) -> dict[str, int]:
        """Return the cost of polls, heartbeats and other asides."""
        return {'rpc_messages': sum(one.poll or one.heartbeat for one in self.received()), **self.counter.asides}
