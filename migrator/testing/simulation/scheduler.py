# SPDX-License-Identifier: Apache-2.0

"""A scheduler of simulated threads, one of which runs at a time, with a clock that jumps.

The running thread can be switched only at a *crossing*: a lock, an event, a sleep, a start or a checkpoint. There a
policy chooses the next thread. The clock moves only when no thread can run, and then directly to the next timer. The
thread that makes the scheduler is the main thread. It takes part like any other thread. In addition it may *drive*
the simulation: let all others run.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import greenlet

from migrator.testing.simulation.sim_thread import (
    DEAD,
    DRIVING,
    READY,
    WAITING,
    Deadlock,
    Livelock,
    Policy,
    Process,
    ProcessKilled,
    SimThread,
    describe,
)
from migrator.testing.simulation.timers import Timers

#: The default for :attr:`Scheduler.most_passes`.
MAX_PASSES = 1_000_000
#: How often a killed thread may catch ProcessKilled before the scheduler gives it up.
MAX_DEATHS = 1_000


def _start_greenlets(child: greenlet.greenlet) -> None:
    """Start each greenlet that a thread passes here, so that all start at the same low stack depth.

    A greenlet that starts at a deeper place counts the frames of its starter in its own stack depth, and its children
    start deeper still. The first ``child`` is the thread that makes the scheduler. The switch back to it leaves this
    greenlet in its loop at the depth of that moment.
    """
    while True:
        child = child.switch()


class Scheduler:
    """The scheduler of one simulation.

    It has no thread of its own: the thread that stops running chooses the next one.

    :param policy: chooses the next thread.
    :param world: the process of the main thread. It is never killed while the scheduler is in use.
    :ivar processes: the processes that are alive.
    :ivar paused: the processes that are paused.
    :ivar timers: the clock, and the timers of the waiting threads.
    :ivar passes: the number of switches between threads since the last tick of the clock.
    :ivar most_passes: the number of passes after which :class:`Livelock` is raised.
    :ivar failures: errors that no thread caught. The main thread raises them at its next crossing.
    """

    def __init__(self, policy: Policy, world: Process) -> None:
        self.policy = policy
        self.timers = Timers()
        self.passes = 0
        self.most_passes = MAX_PASSES
        self.failures: list[BaseException] = []
        self.main = SimThread('main', world, None)
        self.main.greenlet = greenlet.getcurrent()
        self._starter = greenlet.greenlet(_start_greenlets)
        self._starter.switch(self.main.greenlet)
        self.main.state = READY
        self.current = self.main
        self.processes: list[Process] = [world]
        self.paused: list[Process] = []
        self.given_up: list[str] = []
        self._ready: list[SimThread] = []
        self._frozen: list[SimThread] = []
        # While the main thread drives: the latest time of the clock, and whether to stop at background timers only.
        self._limit = -1
        self._until_quiet = False

    @property
    def busy(self) -> bool:
        """Whether a crossing may let another thread run: one is ready, or a process is paused."""
        return bool(self._ready or self.paused)

    # --- crossings, called by the running thread ---------------------------------------------------------------------

    def me(self) -> SimThread:
        """Return the calling thread.

        :raises RuntimeError: it is not the running thread of this simulation.
        :raises ProcessKilled: its process is dead.
        """
        me = self.current
        if me.greenlet is not greenlet.getcurrent():
            name = threading.current_thread().name
            raise RuntimeError(f'thread {name} is not the running thread of this simulation; use SimThreads.start')
        if not (me.home.alive and me.acting.alive):
            self._die(me)
        return me

    def spawn(self, task: Callable[[], Any], name: str, home: Process) -> SimThread:
        """Return a new thread of ``home`` that will run ``task()``."""
        thread = SimThread(name, home, task)
        home.threads[thread] = None
        self._ready.append(thread)
        return thread

    def cross(self, me: SimThread, where: str) -> None:
        """Switch to another thread if the policy decides so, or if the caller's process is paused."""
        if (self._ready and self.policy.preempt()) or (self.paused and self._is_frozen(me)):
            me.where = where
            me.state = READY
            self._ready.append(me)
            self._switch(me)

    def block(self, me: SimThread, where: str, waiters: list[SimThread] | None, timeout: float | None) -> bool:
        """Wait until another thread wakes the calling one.

        :param where: the reason, for the dump.
        :param waiters: the list from which the waking thread removes the calling one.
        :param timeout: seconds; None: without limit.
        :return: False if the time has run out.
        """
        me.where = where
        me.state = WAITING
        me.woken = False
        me.waiters = waiters
        if waiters is not None:
            waiters.append(me)
        if timeout is not None:
            self.timers.arm(me, timeout)
        self._switch(me)
        return me.woken

    def wake(self, thread: SimThread, woken: bool = True) -> None:
        """Make a waiting thread ready; the caller has removed it from the list of waiters."""
        self._end_wait(thread)
        thread.woken = woken
        thread.state = READY
        self._ready.append(thread)

    def kill(self, process: Process) -> None:
        """End every thread of a process before this returns; a calling thread of it ends at its next crossing.

        Each thread is woken to unwind. Since each of its crossings raises again, it unwinds without a switch.
        """
        me = self.current
        process.alive = False
        self.processes.remove(process)
        for thread in list(process.threads):
            if thread is me or thread.state == DEAD:
                continue
            self._take_out(thread)
            if thread.greenlet is None:
                thread.state = DEAD
                del process.threads[thread]
                continue
            thread.reaper = me
            self._switch_to(thread)
        for thread in process.visitors:
            if thread is not me and thread.state == WAITING:
                self._take_out(thread)
                self.wake(thread, woken=False)

    def resume(self, process: Process) -> None:
        """Let the threads of a paused process run again."""
        self.paused.remove(process)
        self._ready += self._frozen
        self._frozen.clear()

    # --- driving, called by the main thread --------------------------------------------------------------------------

    def drive(self, limit: int, until_quiet: bool = False) -> None:
        """Let all other threads run until none is ready and the next timer is later than ``limit``.

        :param limit: microseconds since the start; -1: do not move the clock.
        :param until_quiet: also stop when only background timers are left.
        """
        me = self.me()
        if me is not self.main:
            raise RuntimeError(f'{me.name} cannot drive the simulation: only the thread that made it can')
        self._limit, self._until_quiet = limit, until_quiet
        me.state = DRIVING
        me.where = 'driving'
        self._switch(me)

    def tick(self, limit: float) -> bool:
        """Move the clock to the next timer at or before ``limit`` and wake all threads that are due then.

        :return: False if there is no such timer.
        """
        due = self.timers.tick(limit)
        if not due:
            return False
        self.passes = 0
        for thread in due:
            if thread.waiters is not None:
                thread.waiters.remove(thread)
            self.wake(thread, woken=False)
        return True

    def fail(self, error: BaseException) -> None:
        """Make the main thread raise ``error`` as soon as it runs."""
        self.failures.append(error)

    def dump(self) -> str:
        """Return one line per thread: its name, its state, what it waits for, and its line of code."""
        lines = [f'at {self.timers.time / 1e6:.6f} s, {self.timers.armed} timers:']
        lines.append(describe(self.main, self._is_frozen(self.main)))
        for process in self.processes:
            lines += [describe(thread, self._is_frozen(thread)) for thread in process.threads]
        return '\n'.join(lines)

    # --- switching ---------------------------------------------------------------------------------------------------

    def _switch(self, me: SimThread) -> None:
        following = self._next()
        if following is not me:
            self._switch_to(following)
        me.state = READY
        if me is self.main and self.failures:
            raise self.failures.pop(0)
        if not (me.home.alive and me.acting.alive):
            self._die(me)

    def _switch_to(self, following: SimThread) -> None:
        target, value = self._make_current(following)
        target.switch(value)

    def _make_current(self, following: SimThread) -> tuple[greenlet.greenlet, greenlet.greenlet | None]:
        """Make a thread the running one; return the greenlet to switch to and the value to pass to it."""
        self.current = following
        self.passes += 1
        if following.greenlet is None:
            # At its end a greenlet switches to its parent, which _run sets then. Until then it is the main thread.
            following.greenlet = greenlet.greenlet(lambda: self._run(following), self.main.greenlet)
            return self._starter, following.greenlet
        return following.greenlet, None

    def _run(self, thread: SimThread) -> greenlet.greenlet | None:
        task, thread.task = thread.task, None
        try:
            # A new OS thread has a new context, too.
            contextvars.Context().run(task)  # type: ignore[arg-type]  # only the main thread has none
        except (ProcessKilled, SystemExit):
            pass
        except BaseException as error:  # noqa: BLE001 -- the main thread raises it
            self.fail(error)
        task = None
        thread.state = DEAD
        thread.home.threads.pop(thread, None)
        thread.greenlet = None
        greenlet.getcurrent().parent, value = self._make_current(thread.reaper or self._next())
        return value

    def _next(self) -> SimThread:
        ready = self._ready
        main = self.main
        while True:
            while ready:
                thread = ready.pop(self.policy.choose(ready) if len(ready) > 1 else 0)
                if self.paused and self._is_frozen(thread):
                    self._frozen.append(thread)
                    continue
                if self.passes > self.most_passes:
                    return self._to_main(Livelock(self.most_passes, self.dump()), thread)
                return thread
            if main.state == DRIVING:
                if (self._until_quiet and self.timers.quiet) or not self.tick(self._limit):
                    return main
            elif not self.tick(float('inf')):
                return self._to_main(Deadlock(f'nothing can run and no timer is left; {self.dump()}'))

    def _to_main(self, error: Deadlock, pushed_back: SimThread | None = None) -> SimThread:
        self.passes = 0
        if pushed_back is not None:
            self._ready.append(pushed_back)
        self._take_out(self.main)
        self.failures.append(error)
        return self.main

    def _take_out(self, thread: SimThread) -> None:
        if thread in self._ready:
            self._ready.remove(thread)
        elif thread in self._frozen:
            self._frozen.remove(thread)
        if thread.waiters is not None and thread in thread.waiters:
            thread.waiters.remove(thread)
        self._end_wait(thread)

    def _end_wait(self, thread: SimThread) -> None:
        thread.waiters = None
        if thread.timer is not None:
            self.timers.disarm(thread)

    def _is_frozen(self, thread: SimThread) -> bool:
        return thread.home.paused or thread.acting.paused

    def _die(self, me: SimThread) -> None:
        me.deaths += 1
        if me.deaths > MAX_DEATHS and me is not self.main:
            # It catches ProcessKilled in a loop. The others continue without it.
            self.given_up.append(f'{me.home.name}/{me.name}')
            self._switch_to(me.reaper or self._next())
        dead = me.acting if me.home.alive else me.home
        raise ProcessKilled(f'{dead.name} has been killed')
