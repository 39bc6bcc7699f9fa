# SPDX-License-Identifier: Apache-2.0

"""Simulated processes under one baton: the test's :class:`migrator.executors.Threads`.

    simulation = Simulation(seed=7)
    conductor = simulation.process('conductor')
    conductor.start(serve, name='serve')
    simulation.run_until(lambda: done)
    simulation.kill(conductor)

The same seed gives the same run, whatever PYTHONHASHSEED says. Only what crosses this seam can be interleaved; a
native lock must not be held across a crossing, or the thread that wants it next hangs with the baton in its hand.
Its threads are greenlets, so that one thread of the operating system runs them all: to switch costs next to nothing.
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
    """What a test waited for did not happen; the message lists every thread and where it waits."""


class Simulation:
    """Simulated processes, their threads and their clock. The thread that makes it is its main one.

    :param seed: of the schedule and of every process's uuids and random numbers; None: first come, first served.
    :param policy: who runs, instead of what the seed says.
    :ivar trace: (virtual seconds, process, label) of every checkpoint.
    :ivar on_checkpoint: called as ``(process, label)`` at every checkpoint, before the baton may pass; it may kill or
        pause any process, and what it raises is raised at the checkpoint.
    :ivar world: a process for what is outside of every process, such as a hypervisor.
    """

    def __init__(self, seed: int | None = 0, policy: Policy | None = None) -> None:
        self.seed = seed
        self.trace: list[tuple[float, str, str]] = []
        self.on_checkpoint: Callable[[SimThreads, str], None] | None = None
        self._births: dict[str, int] = {}
        self.world = SimThreads(self, 'world')
        if policy is None:
            policy = InOrder() if seed is None else Seeded(seed)
        self.scheduler = self.world.scheduler = Scheduler(policy, self.world)
        self.clock = self.world.clock

    @property
    def time(self) -> float:
        """Virtual seconds since the start."""
        return self.scheduler.time / 1_000_000

    def process(self, name: str) -> SimThreads:
        """Return a new process; one whose name was used before is its next life, with other uuids."""
        process = SimThreads(self, name)
        process.scheduler = self.scheduler
        self.scheduler.processes.append(process)
        return process

    def kill(self, process: SimThreads) -> None:
        """Kill -9. Its threads unwind before this returns, and none of its crossings has an effect any more."""
        if process.alive:
            process.resume()
            self.scheduler.kill(process)

    def pause(self, process: SimThreads) -> None:
        """SIGSTOP: its threads stop at their next crossing; the clock and its timers go on."""
        process.pause()

    def resume(self, process: SimThreads) -> None:
        """SIGCONT."""
        process.resume()

    def run_ready(self) -> None:
        """Let everything run that can, without moving the clock."""
        self.scheduler.drive(-1)

    def advance(self, seconds: float) -> None:
        """Run everything that is due within ``seconds`` from now; the clock then stands there."""
        until = self.scheduler.time + round(seconds * 1_000_000)
        self.scheduler.drive(until)
        self.scheduler.time = until

    def run(self, limit: float = 3600) -> None:
        """Run until only background timers are left (see :meth:`SimThreads.background`).

        :raises TimedOut: it did not come to rest within ``limit`` virtual seconds.
        """
        self.scheduler.drive(self.scheduler.time + round(limit * 1_000_000), until_quiet=True)
        if not self.scheduler.quiet:
            raise TimedOut(f'not at rest after {limit} s; {self.dump()}')

    def run_until(self, predicate: Callable[[], Any], timeout: float = 60) -> None:
        """Run until ``predicate()`` is true: it is asked whenever nothing can run at the present moment.

        :raises TimedOut: it was not, within ``timeout`` virtual seconds, or nothing is left that could change it.
        """
        until = self.scheduler.time + round(timeout * 1_000_000)
        self.scheduler.drive(-1)
        while not predicate():
            if not self.scheduler.tick(until):
                why = f'not within {timeout} s' if self.scheduler.armed else 'nothing can run and no timer is left'
                self.scheduler.time = until
                raise TimedOut(f'{why}; {self.dump()}')
            self.scheduler.drive(-1)

    def yield_point(self, label: str) -> None:
        """Be a checkpoint of the world."""
        self.world.checkpoint(label)

    def dump(self) -> str:
        """Return a line for each thread: where it waits."""
        return self.scheduler.dump()

    def close(self) -> None:
        """Kill everything.

        :raises AssertionError: a thread swallowed its death again and again.
        """
        # the world last: the main thread is one of its own
        for process in [*self.scheduler.processes[1:], *self.scheduler.processes[:1]]:
            process.paused = False
            self.scheduler.kill(process)
        self.scheduler.paused.clear()
        if self.scheduler.given_up:
            raise AssertionError(f'these threads did not die: {", ".join(self.scheduler.given_up)}')
        if self.scheduler.failures:
            raise self.scheduler.failures.pop(0)

    def __enter__(self) -> Simulation:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close it."""
        self.close()


class SimThreads:
    """One simulated process: its clock, locks, threads, uuids and fate. See :meth:`Simulation.process`."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        life = simulation._births.get(name, 0) + 1
        simulation._births[name] = life
        self.simulation = simulation
        self.scheduler: Scheduler
        self.name = name
        self.alive = True
        self.paused = False
        #: Whether no further thread can be started in it, but for the calls that it serves.
        self.threadless = False
        #: Virtual seconds that it has been paused, all in all.
        self.paused_for = 0.0
        self._paused_at = 0.0
        self.threads: dict[SimThread, None] = {}
        self.visitors: list[SimThread] = []
        self.clock: executors.Clock = SimClock(self)
        # A text as seed goes through SHA-512, so that PYTHONHASHSEED has no say.
        self._random = random.Random(f'{simulation.seed}/{name}/{life}')  # noqa: S311 -- to be repeated, not secret

    def __repr__(self) -> str:
        """Return its name and fate."""
        return f'<{self.name} {"paused" if self.paused else "alive" if self.alive else "dead"}>'

    @property
    def is_world(self) -> bool:
        """Whether it is what lies outside of every process."""
        return self is self.simulation.world

    def check(self) -> None:
        """Raise if a thread of a dead process, or one that uses a dead process, calls.

        :raises ProcessKilled: it is so.
        """
        self.scheduler.me()
        if not self.alive:
            raise ProcessKilled(f'{self.name} has been killed')

    def checkpoint(self, label: str) -> None:
        """Be a place where the schedule may switch and a fault may strike; it goes into the trace.

        :param label: what is about to be done, or has been, such as ``commit``.
        """
        self.check()
        simulation = self.simulation
        simulation.trace.append((simulation.time, self.name, label))
        if simulation.on_checkpoint is not None:
            simulation.on_checkpoint(self, label)
            self.check()
        self.scheduler.cross(self.scheduler.me(), label)
        self.check()

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Let the calling thread act for this process: it dies and pauses with it, until the block ends."""
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
        """Count what the calling thread waits for in this block as background, which :meth:`Simulation.run` ignores.

        The pauses of a :class:`migrator.executors.Periodic` do so by themselves.
        """
        me = self.scheduler.me()
        me.background += 1
        try:
            yield
        finally:
            me.background -= 1

    def pause(self) -> None:
        """See :meth:`Simulation.pause`."""
        if self.alive and not self.paused:
            self.paused = True
            self._paused_at = self.simulation.time
            self.scheduler.paused.append(self)

    def resume(self) -> None:
        """See :meth:`Simulation.resume`."""
        if self.paused:
            self.paused = False
            self.paused_for += self.simulation.time - self._paused_at
            self.scheduler.resume(self)

    def new_uuid(self) -> str:
        """Return the next uuid of this process's seed, version 4 in form."""
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

        :raises RuntimeError: it is :attr:`threadless`.
        """
        self.check()
        if self.threadless and not name.startswith('rpc-'):
            raise RuntimeError("can't start new thread")
        scheduler = self.scheduler
        thread = scheduler.spawn(lambda: function(*args), name, self)
        owner = getattr(function, '__self__', None)
        if isinstance(owner, executors.Periodic):
            # Its pauses are no work that is under way; a loop's wait on its own stop event is such a pause.
            thread.quiet_event = owner._stop
        scheduler.cross(scheduler.me(), f'start({name})')
