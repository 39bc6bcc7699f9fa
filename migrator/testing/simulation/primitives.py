# SPDX-License-Identifier: Apache-2.0

"""The clock, locks and events of one simulated process."""

from __future__ import annotations

import datetime
from types import TracebackType
from typing import Protocol

from migrator.testing.simulation.scheduler import Scheduler
from migrator.testing.simulation.sim_thread import Deadlock, SimThread

#: The start of every simulation.
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
#: The monotonic clock at the start. It is not 0, since code could interpret 0 as "never".
MONOTONIC_START = 1000.0


class SimProcess(Protocol):
    """The part of a process that its clock, locks and events use."""

    name: str
    alive: bool
    scheduler: Scheduler

    @property
    def is_world(self) -> bool:
        """Whether this is the world: all that lies outside of every process."""

    def check(self) -> None:
        """Raise if this process or the calling thread's process is dead."""


class SimClock:
    """The virtual clock, as one process sees it."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        #: The last time that was asked for, in microseconds, and as it was answered.
        self._last = 0, START

    def monotonic(self) -> float:
        """Return the virtual monotonic clock, in seconds."""
        self._process.check()
        return MONOTONIC_START + self._process.scheduler.timers.time / 1_000_000

    def now(self) -> datetime.datetime:
        """Return the virtual time, in UTC."""
        self._process.check()
        time = self._process.scheduler.timers.time
        if time != self._last[0]:
            self._last = time, START + datetime.timedelta(microseconds=time)
        return self._last[1]


class SimLock:
    """A lock of one process, which can be neither acquired nor released after the process is dead."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self._owner: SimThread | None = None
        self._waiters: list[SimThread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock and return True, or False after ``timeout`` seconds.

        :param timeout: seconds; below 0 means without limit.
        """
        process = self._process
        scheduler = process.scheduler
        me = scheduler.me()
        if not process.alive:
            process.check()
        if scheduler._ready or scheduler.paused:  # as busy, but a property costs more than all else here
            scheduler.cross(me, 'lock')
        if self._owner is None:
            self._owner = me
            return True
        until = None if timeout < 0 else scheduler.timers.time + timeout * 1_000_000
        while self._owner is not None:
            left = None if until is None else (until - scheduler.timers.time) / 1_000_000
            if not blocking or (left is not None and left <= 0):
                return False
            if left is None:
                self._detect_deadlock(me)
                me.wanted = self
            scheduler.block(me, f'lock of {self._process.name}', self._waiters, left)
            me.wanted = None
        self._owner = me
        return True

    def release(self) -> None:
        """Release the lock and make one waiting thread ready.

        Another thread may still acquire the lock before the waiting one.
        """
        process = self._process
        if not process.alive:
            return
        if self._owner is None:
            raise RuntimeError('release unlocked lock')
        self._owner = None
        scheduler = process.scheduler
        # Processes share the world's locks. The thread that is woken may be killed or paused before it acquires the
        # lock, so that all waiters of a world's lock are woken.
        if self._waiters:
            for _ in range(len(self._waiters) if process.is_world else 1):
                scheduler.wake(self._waiters.pop(0))
        # A killed thread releases the locks of other processes, such as the world's, without a crossing.
        if (scheduler._ready or scheduler.paused) and not scheduler.current.doomed:
            scheduler.cross(scheduler.me(), 'unlock')

    def locked(self) -> bool:
        """Return whether a thread has the lock."""
        return self._owner is not None

    __enter__ = acquire

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock."""
        self.release()

    def _detect_deadlock(self, me: SimThread) -> None:
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
    """An event of one process, which can be neither set nor waited for after the process is dead."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self._set = False
        self._waiters: list[SimThread] = []

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._set

    def set(self) -> None:
        """Set the event and make all waiting threads ready."""
        scheduler = self._process.scheduler
        me = scheduler.me()
        if not self._process.alive:
            return
        self._set = True
        while self._waiters:
            scheduler.wake(self._waiters.pop(0))
        scheduler.cross(me, 'set')

    def clear(self) -> None:
        """Reset the event."""
        self._process.scheduler.me()
        if self._process.alive:
            self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds until the event is set, and return whether it is."""
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
