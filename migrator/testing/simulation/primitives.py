# SPDX-License-Identifier: Apache-2.0

"""The clock, locks and events of one simulated process."""

from __future__ import annotations

import datetime
from types import TracebackType
from typing import Protocol

from migrator.testing.simulation.scheduler import Scheduler
from migrator.testing.simulation.sim_thread import Deadlock, SimThread

#: When every simulation starts.
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
#: The monotonic clock at the start: not 0, which code could take for "never".
MONOTONIC_START = 1000.0


class SimProcess(Protocol):
    """What these need to know of their process."""

    name: str
    alive: bool
    scheduler: Scheduler

    @property
    def is_world(self) -> bool:
        """Whether it is what lies outside of every process."""

    def check(self) -> None:
        """Raise if it is dead, or who calls is."""


class SimClock:
    """The virtual clock, as one process sees it."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process

    def monotonic(self) -> float:
        """Return virtual seconds."""
        self._process.check()
        return MONOTONIC_START + self._process.scheduler.time / 1_000_000

    def now(self) -> datetime.datetime:
        """Return the virtual date, in UTC."""
        self._process.check()
        return START + datetime.timedelta(microseconds=self._process.scheduler.time)


class SimLock:
    """A lock of one process. Once that is dead it can be neither had nor given back."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self._owner: SimThread | None = None
        self._waiters: list[SimThread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; False if it could not be had within ``timeout`` seconds (below 0: wait for ever)."""
        scheduler = self._process.scheduler
        me = scheduler.me()
        if not self._process.alive:
            self._process.check()
        scheduler.cross(me, 'lock')
        until = None if timeout < 0 else scheduler.time + timeout * 1_000_000
        while self._owner is not None:
            left = None if until is None else (until - scheduler.time) / 1_000_000
            if not blocking or (left is not None and left <= 0):
                return False
            if left is None:
                self._look_for_a_ring(me)
                me.wanted = self
            scheduler.block(me, f'lock of {self._process.name}', self._waiters, left)
            me.wanted = None
        self._owner = me
        return True

    def release(self) -> None:
        """Give the lock back. One that waits for it becomes ready, and may yet find somebody was faster."""
        process = self._process
        if not process.alive:
            return
        if self._owner is None:
            raise RuntimeError('release unlocked lock')
        self._owner = None
        scheduler = process.scheduler
        # The world's locks are shared between processes: the one that is woken may be killed or paused before it has
        # the lock, and must not take the chance of the others with it.
        for _ in range(len(self._waiters) if process.is_world else min(1, len(self._waiters))):
            scheduler.wake(self._waiters.pop(0))
        # A killed thread gives back the locks of others, such as the world's, without crossing anything.
        if not scheduler.current.doomed:
            scheduler.cross(scheduler.me(), 'unlock')

    def locked(self) -> bool:
        """Whether somebody has it."""
        return self._owner is not None

    def __enter__(self) -> bool:
        """Take the lock."""
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lock back."""
        self.release()

    def _look_for_a_ring(self, me: SimThread) -> None:
        lock: SimLock | None = self
        while lock is not None and lock._owner is not None:
            if lock._owner is me:
                scheduler = self._process.scheduler
                error = Deadlock(f'{me.home.name}/{me.name} waits for itself; {scheduler.dump()}')
                if me is scheduler.main:
                    raise error
                scheduler.fail(error)
                return
            lock = lock._owner.wanted


class SimEvent:
    """An event of one process. Once that is dead it can be neither set nor waited for."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self._set = False
        self._waiters: list[SimThread] = []

    def is_set(self) -> bool:
        """Whether it has been set."""
        return self._set

    def set(self) -> None:
        """Set it, and make all that wait ready."""
        scheduler = self._process.scheduler
        me = scheduler.me()
        if not self._process.alive:
            return
        self._set = True
        while self._waiters:
            scheduler.wake(self._waiters.pop(0))
        scheduler.cross(me, 'set')

    def clear(self) -> None:
        """Unset it."""
        self._process.scheduler.me()
        if self._process.alive:
            self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most ``timeout`` seconds; return whether it is."""
        self._process.check()
        scheduler = self._process.scheduler
        me = scheduler.me()
        if not self._set and (timeout is None or timeout > 0):
            quiet = me.quiet_event is self
            me.background += quiet
            try:
                return scheduler.block(me, f'event of {self._process.name}', self._waiters, timeout)
            finally:
                me.background -= quiet
        scheduler.cross(me, 'wait')
        return self._set
