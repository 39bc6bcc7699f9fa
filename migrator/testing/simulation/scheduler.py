# SPDX-License-Identifier: Apache-2.0

"""Real threads of which one at a time runs, under a clock that jumps.

There is one baton. Whoever has it runs; at a *crossing* (a lock, an event, a sleep, a start, a checkpoint) it may pass
on, to a thread that a policy chooses. Only when nothing can run does the clock move, and then straight to the next
timer. The thread that made the baton takes part like any other; in addition it may *drive*: let the others run.
"""

from __future__ import annotations

import contextvars
import heapq
import threading
from collections.abc import Callable
from typing import Any

import greenlet

from migrator.testing.simulation.sim_thread import (
    BACKGROUND,
    DEAD,
    DRIVING,
    FOREGROUND,
    NO_TIMER,
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

#: Passes of the baton without a tick of the clock after which the threads count as going round in circles, where
#: nobody who knows them has said fewer.
MAX_PASSES = 1_000_000
#: How often a killed thread may swallow its death before it is given up.
MAX_DEATHS = 1_000


def _bear(child: greenlet.greenlet) -> None:
    """Begin greenlets, each with the depth of the stack that this one has; whoever wants one switches here with it.

    One that began where it is wanted would count the calls of who wants it as its own, and its own children's more.
    The first is who calls: so it has begun itself where that is as little as can be.
    """
    while True:
        child = child.switch()


class Scheduler:
    """The scheduler. It has no thread of its own: whoever gives the baton up finds out who gets it.

    :param policy: who runs.
    :param world: the process of the thread that makes this baton (the main one); never killed while it is used.
    :ivar processes: those that live.
    :ivar paused: those that are stopped.
    :ivar time: virtual microseconds since the start. Whole ones, so that a deadline computed with rounded floats is
        reached after all, a microsecond later.
    :ivar passes: how often the baton was passed.
    :ivar most_passes: so many without a tick of the clock count as going round in circles.
    :ivar failures: errors that no thread caught; the main thread raises them at its next crossing.
    """

    def __init__(self, policy: Policy, world: Process) -> None:
        self.policy = policy
        self.time = 0
        self.passes = 0
        self.most_passes = MAX_PASSES
        self.failures: list[BaseException] = []
        self.main = SimThread('main', world, None)
        self.main.greenlet = greenlet.getcurrent()
        self._nurse = greenlet.greenlet(_bear)
        self._nurse.switch(self.main.greenlet)
        self.main.state = READY
        self.current = self.main
        self.processes: list[Process] = [world]
        self.paused: list[Process] = []
        self.given_up: list[str] = []
        self._ready: list[SimThread] = []
        self._frozen: list[SimThread] = []
        self._timers: list[tuple[int, int, int, SimThread]] = []
        self._armed = [0, 0, 0]
        self._sequence = 0
        self._passes_at_tick = 0
        # How far the clock may move while the main thread drives, and whether background timers alone may move it.
        self._limit = -1
        self._until_quiet = False

    # --- crossings, called by the thread that has the baton ----------------------------------------------------------

    def me(self) -> SimThread:
        """Return the calling thread.

        :raises RuntimeError: it is not one of this simulation.
        :raises ProcessKilled: its process is dead.
        """
        me = self.current
        if me.greenlet is not greenlet.getcurrent():
            raise RuntimeError(f'{threading.current_thread().name} is no thread of this simulation, or runs unasked')
        if not (me.home.alive and me.acting.alive):
            self._die(me)
        return me

    def spawn(self, task: Callable[[], Any], name: str, home: Process) -> SimThread:
        """Make a thread of ``home`` that will run ``task()``."""
        thread = SimThread(name, home, task)
        home.threads[thread] = None
        self._ready.append(thread)
        return thread

    def cross(self, me: SimThread, where: str) -> None:
        """Pass the baton if the policy says so, or if the caller's process is paused."""
        if (self._ready and self.policy.preempt()) or (self.paused and self._is_frozen(me)):
            me.where = where
            me.state = READY
            self._ready.append(me)
            self._pass(me)

    def block(self, me: SimThread, where: str, waiters: list[SimThread] | None, timeout: float | None) -> bool:
        """Wait to be woken.

        :param where: what is waited for, for the dump.
        :param waiters: the list that who wakes takes it from.
        :param timeout: seconds; None: for ever.
        :return: False if the time has run out.
        """
        me.where = where
        me.state = WAITING
        me.woken = False
        me.waiters = waiters
        if waiters is not None:
            waiters.append(me)
        if timeout is not None:
            me.timer = BACKGROUND if me.background else FOREGROUND
            self._armed[me.timer] += 1
            self._sequence += 1
            at = self.time + max(1, round(timeout * 1_000_000))
            heapq.heappush(self._timers, (at, self._sequence, me.ticket, me))
        self._pass(me)
        return me.woken

    def wake(self, thread: SimThread, woken: bool = True) -> None:
        """Make a waiting thread ready; the caller has taken it from its list."""
        self._disarm(thread)
        thread.woken = woken
        thread.state = READY
        self._ready.append(thread)

    def kill(self, process: Process) -> None:
        """End every thread of a process, now: when this returns they are gone (the caller dies at its next crossing).

        Each is woken to unwind; since each of its crossings raises again, it unwinds in one go.
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
            self._hand(thread)
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
        """Let all others run until none is ready and the next timer lies beyond ``limit``.

        :param limit: microseconds since the start; -1: the clock stands still.
        :param until_quiet: stop, too, when only background timers are left.
        """
        me = self.me()
        if me is not self.main:
            raise RuntimeError(f'{me.name} cannot drive the simulation: only the thread that made it can')
        self._limit, self._until_quiet = limit, until_quiet
        me.state = DRIVING
        me.where = 'driving'
        self._pass(me)

    def tick(self, limit: float) -> bool:
        """Move the clock to the next timer at or before ``limit``, and wake all that are due then."""
        timers = self._timers
        while timers and timers[0][3].ticket != timers[0][2]:
            heapq.heappop(timers)
        if not timers or timers[0][0] > limit:
            return False
        self.time = at = timers[0][0]
        self._passes_at_tick = self.passes
        while timers and timers[0][0] == at:
            _, _, ticket, thread = heapq.heappop(timers)
            if thread.ticket == ticket:
                if thread.waiters is not None:
                    thread.waiters.remove(thread)
                self.wake(thread, woken=False)
        return True

    @property
    def armed(self) -> int:
        """How many timers are pending, background ones included."""
        return sum(self._armed)

    @property
    def quiet(self) -> bool:
        """Whether no timer but background ones is pending."""
        return not self._armed[FOREGROUND]

    def fail(self, error: BaseException) -> None:
        """Have the main thread raise ``error`` as soon as it runs."""
        self.failures.append(error)

    def dump(self) -> str:
        """Return a line for each thread: its name, its state, what it waits for, and the line of code."""
        lines = [f'at {self.time / 1e6:.6f} s, {self.armed} timers:', describe(self.main, self._is_frozen(self.main))]
        for process in self.processes:
            lines += [describe(thread, self._is_frozen(thread)) for thread in process.threads]
        return '\n'.join(lines)

    # --- below -------------------------------------------------------------------------------------------------------

    def _pass(self, me: SimThread) -> None:
        following = self._next()
        if following is not me:
            self._hand(following)
        me.state = READY
        if me is self.main and self.failures:
            raise self.failures.pop(0)
        if not (me.home.alive and me.acting.alive):
            self._die(me)

    def _hand(self, following: SimThread) -> None:
        whom, what = self._give(following)
        whom.switch(what)

    def _give(self, following: SimThread) -> tuple[greenlet.greenlet, greenlet.greenlet | None]:
        """Let a thread be the one that runs; return whom to switch to, and with what."""
        self.current = following
        self.passes += 1
        if following.greenlet is None:
            # Whoever ends says to whom it goes from there; until it does, that is the main thread.
            following.greenlet = greenlet.greenlet(lambda: self._run(following), self.main.greenlet)
            return self._nurse, following.greenlet
        return following.greenlet, None

    def _run(self, thread: SimThread) -> greenlet.greenlet | None:
        task, thread.task = thread.task, None
        try:
            # a context of its own, as a new OS thread would have
            contextvars.Context().run(task)  # type: ignore[arg-type]  # only the main thread has none
        except (ProcessKilled, SystemExit):
            pass
        except BaseException as error:  # noqa: BLE001 -- the main thread raises it
            self.fail(error)
        task = None
        thread.state = DEAD
        thread.home.threads.pop(thread, None)
        thread.greenlet = None
        greenlet.getcurrent().parent, what = self._give(thread.reaper or self._next())
        return what

    def _next(self) -> SimThread:
        ready = self._ready
        main = self.main
        while True:
            while ready:
                thread = ready.pop(self.policy.choose(ready) if len(ready) > 1 else 0)
                if self.paused and self._is_frozen(thread):
                    self._frozen.append(thread)
                    continue
                if self.passes - self._passes_at_tick > self.most_passes:
                    return self._to_main(Livelock(self.most_passes, self.dump()), thread)
                return thread
            if main.state == DRIVING:
                if (self._until_quiet and self.quiet) or not self.tick(self._limit):
                    return main
            elif not self.tick(float('inf')):
                return self._to_main(Deadlock(f'nothing can run and no timer is left; {self.dump()}'))

    def _to_main(self, error: Deadlock, pushed_back: SimThread | None = None) -> SimThread:
        self._passes_at_tick = self.passes
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
        self._disarm(thread)

    def _disarm(self, thread: SimThread) -> None:
        thread.ticket += 1
        thread.waiters = None
        self._armed[thread.timer] -= 1 if thread.timer else 0
        thread.timer = NO_TIMER

    def _is_frozen(self, thread: SimThread) -> bool:
        return thread.home.paused or thread.acting.paused

    def _die(self, me: SimThread) -> None:
        me.deaths += 1
        if me.deaths > MAX_DEATHS and me is not self.main:
            # It catches its own death in a loop: let the others go on without it.
            self.given_up.append(f'{me.home.name}/{me.name}')
            self._hand(me.reaper or self._next())
        dead = me.acting if me.home.alive else me.home
        raise ProcessKilled(f'{dead.name} has been killed')
