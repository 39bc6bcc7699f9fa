# SPDX-License-Identifier: Apache-2.0

"""Simulated threads, their errors, and the policies that choose among them."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from typing import Any, Protocol

import greenlet

#: The states of a thread.
NEW, READY, WAITING, DRIVING, DEAD = 'new', 'ready', 'waiting', 'driving', 'dead'


class ProcessKilled(BaseException):
    """The process of this thread has been killed, and nothing that the thread still does has an effect."""


class Deadlock(RuntimeError):
    """No thread can run and no timer is left; the message lists every thread and where it waits."""


class Livelock(Deadlock):
    """Threads wake each other again and again while the clock does not move.

    :ivar passes: the number of switches between threads at this moment.
    """

    def __init__(self, passes: int, dump: str) -> None:
        self.passes = passes
        super().__init__(f'{passes} thread switches at the same moment; {dump}')


class Process(Protocol):
    """The part of a simulated process that the scheduler uses."""

    name: str
    alive: bool
    paused: bool
    #: The threads of the process, in the order of their start. The values are unused.
    threads: dict[SimThread, None]
    #: Threads of other processes that act for this one.
    visitors: list[SimThread]


class SimThread:
    """One thread of a simulated process, which is a greenlet from its first run to its end."""

    __slots__ = ('acting', 'background', 'deaths', 'greenlet', 'home', 'name', 'quiet_event', 'reaper', 'state',
                 'task', 'timer', 'waiters', 'wanted', 'where', 'woken')  # fmt: skip

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
        self.timer: Timer | None = None
        self.background = 0
        self.quiet_event: object = None
        self.reaper: SimThread | None = None
        self.deaths = 0

    @property
    def doomed(self) -> bool:
        """Whether a process of the thread is dead, so that it must not have any effect any more."""
        return not (self.home.alive and self.acting.alive)


class Timer:
    """The timer of one waiting thread.

    :ivar thread: the waiting thread; None once the thread waits no more.
    """

    __slots__ = ('background', 'thread')

    def __init__(self, thread: SimThread) -> None:
        self.thread: SimThread | None = thread
        self.background = bool(thread.background)


class Policy(Protocol):
    """The policy that chooses which thread runs next."""

    def choose(self, ready: list[SimThread]) -> int:
        """Return the index of the next thread.

        :param ready: two or more threads, in the order in which they became ready.
        """

    def preempt(self) -> bool:
        """Return whether to switch at a crossing where the running thread could continue."""


class InOrder:
    """A policy that runs the first ready thread and interrupts none."""

    def choose(self, ready: list[SimThread]) -> int:
        """Return 0."""
        return 0

    def preempt(self) -> bool:
        """Return False."""
        return False


class Seeded:
    """A policy that chooses a ready thread at random, and the share of interruptions, both from a seed.

    Some races need many switches, and others need few in the right place. Seeds therefore differ in both.
    """

    def __init__(self, seed: object) -> None:
        self._random = random.Random(f'policy/{seed}').random  # noqa: S311 -- a schedule is not a secret
        self._share = (0.05, 0.2, 0.5, 0.9)[int(self._random() * 4)]

    def choose(self, ready: list[SimThread]) -> int:
        """Return a random index."""
        return int(self._random() * len(ready))

    def preempt(self) -> bool:
        """Return True for the seed's share of the crossings."""
        return self._random() < self._share


def describe(thread: SimThread, paused: bool) -> str:
    """Return a thread's line of a dump: its name, its state, what it waits for, and its line of code."""
    frame = None
    if thread.greenlet is not None:
        frame = sys._getframe() if thread.greenlet is greenlet.getcurrent() else thread.greenlet.gr_frame
    while frame is not None and os.path.basename(frame.f_code.co_filename) in _OWN_FILES:
        frame = frame.f_back
    place = f' in {frame.f_code.co_name}, {frame.f_code.co_filename}:{frame.f_lineno}' if frame else ''
    return f'  {thread.home.name}/{thread.name}: {"paused" if paused else thread.state}: {thread.where}{place}'


#: The files in which a thread always is at a crossing. A dump shows the line of the code that called them.
_OWN_FILES = ('scheduler.py', 'threads.py', 'primitives.py')
