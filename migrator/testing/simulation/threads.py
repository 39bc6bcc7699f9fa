# SPDX-License-Identifier: Apache-2.0

"""Simulated processes under one scheduler: the :class:`migrator.executors.Threads` of tests.

    simulation = Simulation(seed=7)
    conductor = simulation.process('conductor')
    conductor.start(serve, name='serve')
    simulation.run_until(lambda: done)
    simulation.kill(conductor)

The same seed gives the same run, whatever PYTHONHASHSEED is. Threads are interleaved only at crossings of this
interface. Code must not hold a native lock across a crossing: the next thread that wants the lock would block the
whole simulation. The threads are greenlets in one thread of the operating system, so that a switch costs next to
nothing.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from migrator import executors
from migrator.testing.simulation.primitives import MONOTONIC_START, START, SimClock, SimEvent, SimLock
from migrator.testing.simulation.scheduler import Scheduler
from migrator.testing.simulation.sim_thread import Deadlock, InOrder, Livelock, Policy, ProcessKilled, Seeded, SimThread

__all__ = ['MONOTONIC_START', 'START', 'Deadlock', 'Livelock', 'ProcessKilled', 'SimThreads', 'Simulation', 'TimedOut']


class TimedOut(AssertionError):
    """The condition of a wait did not become true; the message lists every thread and where it waits."""


class Simulation:
    """Simulated processes, their threads and their clock.

    The thread that makes the simulation is its main thread.

    :param seed: the seed of the schedule and of the uuids and random numbers of every process. None: the first ready
        thread runs first.
    :param policy: chooses the next thread, instead of the seed.
    :ivar trace: (virtual seconds, process, label) of every checkpoint.
    :ivar on_checkpoint: called as ``(process, label)`` at every checkpoint, before a switch is possible. It may kill or
        pause any process. An error that it raises is raised at the checkpoint.
    :ivar world: a process for everything outside of the services, such as a hypervisor.
    """

    def __init__(self, seed: int | None = 0, policy: Policy | None = None) -> None:
        self.seed = seed
        self.trace: list[tuple[float, str, str]] = []
        self.on_checkpoint: Callable[[SimThreads, str], None] | None = None
        self._boots: dict[str, int] = {}
        self.world = SimThreads(self, 'world')
        if policy is None:
            policy = InOrder() if seed is None else Seeded(seed)
        self.scheduler = self.world.scheduler = Scheduler(policy, self.world)
        self.clock = self.world.clock

    @property
    def time(self) -> float:
        """Virtual seconds since the start."""
        return self.scheduler.timers.time / 1_000_000

    def process(self, name: str) -> SimThreads:
        """Return a new process, or the next boot of a used name, with other uuids."""
        process = SimThreads(self, name)
        process.scheduler = self.scheduler
        self.scheduler.processes.append(process)
        return process

    def kill(self, process: SimThreads) -> None:
        """Kill a process (``kill -9``).

        Its threads unwind before this returns, and none of their crossings has an effect any more.
        """
        if process.alive:
            process.resume()
            self.scheduler.kill(process)

    def pause(self, process: SimThreads) -> None:
        """Pause a process (SIGSTOP): its threads stop at their next crossing, and the clock continues."""
        process.pause()

    def resume(self, process: SimThreads) -> None:
        """Let a paused process continue (SIGCONT)."""
        process.resume()

    def run_ready(self) -> None:
        """Run everything that is ready, without moving the clock."""
        self.scheduler.drive(-1)

    def advance(self, seconds: float) -> None:
        """Run everything that is due within ``seconds`` from now, and move the clock to that time."""
        until = self.scheduler.timers.time + round(seconds * 1_000_000)
        self.scheduler.drive(until)
        self.scheduler.timers.time = until

    def run(self, limit: float = 3600) -> None:
        """Run until only background timers are left (see :meth:`SimThreads.background`).

        :raises TimedOut: other timers are left after ``limit`` virtual seconds.
        """
        self.scheduler.drive(self.scheduler.timers.time + round(limit * 1_000_000), until_quiet=True)
        if not self.scheduler.timers.quiet:
            raise TimedOut(f'not at rest after {limit} s; {self.dump()}')

    def run_until(self, predicate: Callable[[], Any], timeout: float = 60) -> None:
        """Run until ``predicate()`` is true; it is called whenever no thread can run at the present moment.

        :raises TimedOut: it was not true within ``timeout`` virtual seconds, or no thread and no timer is left.
        """
        timers = self.scheduler.timers
        until = timers.time + round(timeout * 1_000_000)
        self.scheduler.drive(-1)
        while not predicate():
            if not self.scheduler.tick(until):
                why = f'not within {timeout} s' if timers.armed else 'nothing can run and no timer is left'
                timers.time = until
                raise TimedOut(f'{why}; {self.dump()}')
            self.scheduler.drive(-1)

    def dump(self) -> str:
        """Return one line per thread that shows where it waits."""
        return self.scheduler.dump()

    def close(self) -> None:
        """Kill every process.

        :raises AssertionError: a thread caught ProcessKilled again and again.
        """
        # The world is last, since the main thread belongs to it.
        for process in [*self.scheduler.processes[1:], *self.scheduler.processes[:1]]:
            process.paused = False
            self.scheduler.kill(process)
        self.scheduler.paused.clear()
        if self.scheduler.given_up:
            raise AssertionError(f'these threads did not die: {", ".join(self.scheduler.given_up)}')
        if self.scheduler.failures:
            raise self.scheduler.failures.pop(0)

    def __enter__(self) -> Simulation:
        """Return the simulation."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the simulation."""
        self.close()


class SimThreads:
    """One simulated process with its clock, locks, threads and uuids; see :meth:`Simulation.process`."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        boot = simulation._boots.get(name, 0) + 1
        simulation._boots[name] = boot
        self.simulation = simulation
        self.scheduler: Scheduler
        self.name = name
        self.alive = True
        self.paused = False
        #: Whether the process can start no further thread, except for the RPCs that it serves.
        self.threadless = False
        #: The total of virtual seconds for which the process was paused.
        self.paused_for = 0.0
        self._paused_at = 0.0
        self.threads: dict[SimThread, None] = {}
        self.visitors: list[SimThread] = []
        self.clock: executors.Clock = SimClock(self)
        # A text as seed goes through SHA-512, and so does not depend on PYTHONHASHSEED.
        seed = f'{simulation.seed}/{name}/{boot}'
        self._random = random.Random(seed)  # noqa: S311 -- a run must be repeatable, and not secret

    def __repr__(self) -> str:
        """Return the name and state of the process."""
        return f'<{self.name} {"paused" if self.paused else "alive" if self.alive else "dead"}>'

    @property
    def is_world(self) -> bool:
        """Whether this is the world: all that lies outside of every process."""
        return self is self.simulation.world

    def check(self) -> None:
        """Raise if this process or the calling thread's process is dead.

        :raises ProcessKilled: one of them is dead.
        """
        self.scheduler.me()
        if not self.alive:
            raise ProcessKilled(f'{self.name} has been killed')

    def checkpoint(self, label: str) -> None:
        """Cross a point where the scheduler may switch threads and a fault may be injected; trace it.

        :param label: the action that follows or that was done, such as ``commit``.
        """
        self.check()
        simulation = self.simulation
        simulation.trace.append((simulation.time, self.name, label))
        if simulation.on_checkpoint is not None:
            simulation.on_checkpoint(self, label)
            self.check()
        scheduler = self.scheduler
        if scheduler._ready or scheduler.paused:
            scheduler.cross(scheduler.current, label)
            self.check()

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Let the calling thread act for this process: within the block it dies and pauses with the process."""
        self.check()
        me = self.scheduler.me()
        before, me.acting = me.acting, self
        self.visitors.append(me)
        try:
            yield
        finally:
            me.acting = before
            self.visitors.remove(me)

    @contextlib.contextmanager
    def background(self) -> Iterator[None]:
        """Count the waits of the calling thread in this block as background.

        :meth:`Simulation.run` ignores background waits. The pauses of a :class:`migrator.executors.Periodic` are
        background without this.
        """
        me = self.scheduler.me()
        me.background += 1
        try:
            yield
        finally:
            me.background -= 1

    def pause(self) -> None:
        """Pause the process; see :meth:`Simulation.pause`."""
        if self.alive and not self.paused:
            self.paused = True
            self._paused_at = self.simulation.time
            self.scheduler.paused.append(self)

    def resume(self) -> None:
        """Let the process continue; see :meth:`Simulation.resume`."""
        if self.paused:
            self.paused = False
            self.paused_for += self.simulation.time - self._paused_at
            self.scheduler.resume(self)

    def new_uuid(self) -> str:
        """Return the next uuid of this process's seed, in the form of version 4."""
        self.check()
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def random(self) -> float:
        """Return the next number in [0, 1) of this process's seed."""
        self.check()
        return self._random.random()

    def lock(self) -> SimLock:
        """Return a new lock."""
        self.check()
        return SimLock(self)

    def event(self) -> SimEvent:
        """Return a new event."""
        self.check()
        return SimEvent(self)

    def sleep(self, seconds: float) -> None:
        """Wait ``seconds`` of virtual time."""
        self.check()
        scheduler = self.scheduler
        if seconds > 0:
            scheduler.block(scheduler.me(), f'sleep({seconds:g})', None, seconds)
        else:
            scheduler.cross(scheduler.me(), 'sleep(0)')

    def start(self, function: Callable[..., Any], *args: Any, name: str) -> None:
        """Run ``function(*args)`` in a new thread of this process.

        :raises RuntimeError: the process is :attr:`threadless`.
        """
        self.check()
        if self.threadless and not name.startswith('rpc-'):
            raise RuntimeError("can't start new thread")
        scheduler = self.scheduler
        thread = scheduler.spawn(lambda: function(*args), name, self)
        owner = getattr(function, '__self__', None)
        if isinstance(owner, executors.Periodic):
            # The loop waits on its stop event between two runs. Such a pause is not work in progress.
            thread.quiet_event = owner._stop
        scheduler.cross(scheduler.me(), f'start({name})')

    def is_final(self, error: BaseException) -> bool:
        """Return whether an error is the end of a killed process."""
        return isinstance(error, ProcessKilled)
