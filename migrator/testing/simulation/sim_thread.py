# SPDX-License-Identifier: Apache-2.0

"""Simulated threads, the OS threads they borrow, and the policies that choose among them."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from typing import Any, Protocol

import greenlet

#: The states of a thread.
NEW, READY, WAITING, DRIVING, DEAD = 'new', 'ready', 'waiting', 'driving', 'dead'
NO_TIMER, FOREGROUND, BACKGROUND = 0, 1, 2


class ProcessKilled(BaseException):
    """The process that this thread belongs to has been killed: nothing that it still does has an effect."""


class Deadlock(RuntimeError):
    """Nothing can run, and no timer is left; the message lists every thread and where it waits."""


class Livelock(Deadlock):
    """Threads wake each other again and again, and the clock stands still.

    :ivar passes: how often the baton was passed at this moment.
    """

    def __init__(self, passes: int, dump: str) -> None:
        self.passes = passes
        super().__init__(f'{passes} passes at the same moment; {dump}')


class Process(Protocol):
    """What the baton needs to know of a simulated process."""

    name: str
    alive: bool
    paused: bool
    #: The threads it has started, in that order; values are unused.
    threads: dict[SimThread, None]
    #: Threads of others that act for it.
    visitors: list[SimThread]


class SimThread:
    """One thread of a simulated process: a greenlet from its first run to its end."""

    __slots__ = ('acting', 'background', 'deaths', 'greenlet', 'home', 'name', 'quiet_event', 'reaper', 'state',
                 'task', 'ticket', 'timer', 'waiters', 'wanted', 'where', 'woken')  # fmt: skip

    def __init__(self, name: str, home: Process, task: Callable[[], Any] | None) -> None:
        self.name = name
        self.home = home
        self.acting: Process = home
        self.task = task
        self.state = NEW
        self.greenlet: greenlet.greenlet | None = None
        self.where = 'start'
        self.waiters: list[SimThread] | None = None
        self.wanted: Any = None
        self.woken = False
        self.ticket = 0
        self.timer = NO_TIMER
        self.background = 0
        self.quiet_event: object = None
        self.reaper: SimThread | None = None
        self.deaths = 0

    @property
    def doomed(self) -> bool:
        """Whether it must not have any effect any more."""
        return not (self.home.alive and self.acting.alive)


class Policy(Protocol):
    """Chooses who runs."""

    def choose(self, ready: list[SimThread]) -> int:
        """Return the index of the next one; ``ready`` holds two or more, in the order in which they became so."""

    def preempt(self) -> bool:
        """Whether to pass the baton on at a crossing where the running thread could go on."""


class InOrder:
    """First ready, first run; nobody is interrupted."""

    def choose(self, ready: list[SimThread]) -> int:
        """Return 0."""
        return 0

    def preempt(self) -> bool:
        """Return False."""
        return False


class Seeded:
    """Any that is ready, by the seed; how often one is interrupted depends on the seed too.

    Some races need many switches, others few at the right place: seeds differ in both.
    """

    def __init__(self, seed: object) -> None:
        self._random = random.Random(f'policy/{seed}').random  # noqa: S311 -- a schedule needs no secrecy
        self._share = (0.05, 0.2, 0.5, 0.9)[int(self._random() * 4)]

    def choose(self, ready: list[SimThread]) -> int:
        """Return any index."""
        return int(self._random() * len(ready))

    def preempt(self) -> bool:
        """Return True for a share of the crossings."""
        return self._random() < self._share


def describe(thread: SimThread, paused: bool) -> str:
    """Return a line of a dump: the thread's name, its state, what it waits for, and the line of code."""
    frame = None
    if thread.greenlet is not None:
        frame = sys._getframe() if thread.greenlet is greenlet.getcurrent() else thread.greenlet.gr_frame
    while frame is not None and os.path.basename(frame.f_code.co_filename) in _OWN_FILES:
        frame = frame.f_back
    place = f' in {frame.f_code.co_name}, {frame.f_code.co_filename}:{frame.f_lineno}' if frame else ''
    return f'  {thread.home.name}/{thread.name}: {"paused" if paused else thread.state}: {thread.where}{place}'


#: Where a thread always is when it has crossed: what its own code did is more telling.
_OWN_FILES = ('scheduler.py', 'threads.py', 'primitives.py')
