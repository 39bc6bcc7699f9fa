# SPDX-License-Identifier: Apache-2.0

"""Faults in a fake hypervisor, under a test's hand.

    hypervisor.faults.fail('pre_live_migration', 'disk full')
    stall = hypervisor.faults.stall('copying')
    hypervisor.faults.lie('get_guest', lambda truth: truth.replace(state='absent'))
    ...
    stall.release()

A phase is the name of a driver method, or one of a job's own: ``starting`` (the hypervisor has been asked and has no
job yet), ``copying`` (before each iteration), ``cutover`` (the source is paused, the destination does not run it yet),
``postcopy`` (the destination runs it, its memory still follows) and ``arrived`` (the destination runs it, the job has
not ended). Several faults of one phase strike one after the other; each strikes once, or always if ``sticky``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from migrator import exception, executors

T = TypeVar('T')

#: Phases within a job, in story order; every other phase is a driver method.
JOB_PHASES = ('starting', 'copying', 'cutover', 'postcopy', 'arrived')


class Stall:
    """Something hangs, until it is released.

    :ivar reached: set as soon as something hangs in it.
    """

    def __init__(self, threads: executors.Threads) -> None:
        self.reached = threads.event()
        self._released = threads.event()
        self._wakers: list[Callable[[], None]] = []

    @property
    def released(self) -> bool:
        """Whether it lets pass."""
        return self._released.is_set()

    def release(self) -> None:
        """Let everything that hangs in it go on, now and later."""
        self._released.set()
        for wake in self._wakers:
            wake()

    def hang(self) -> None:
        """Hang in it."""
        self.reached.set()
        self._released.wait()

    def tell(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called at the release; for who has more to wait for than that."""
        self._wakers.append(wake)
        self.reached.set()


@dataclasses.dataclass(eq=False)
class Fault:
    """One planted fault.

    :ivar after: strikes when the effect has happened, not before.
    :ivar instance_uuid: strikes only for this guest; None: for any.
    :ivar count: how often it has struck.
    """

    phase: str
    after: bool = False
    sticky: bool = False
    instance_uuid: str | None = None
    reason: str = ''
    stall: Stall | None = None
    lie: Any = None
    lies: bool = False
    count: int = 0


class Faults:
    """The faults of one host's hypervisor."""

    def __init__(self, host: str, threads: executors.Threads) -> None:
        self._host = host
        self._threads = threads
        self._lock = threads.lock()
        self._planted: list[Fault] = []

    @property
    def planted(self) -> list[Fault]:
        """What will strike yet."""
        return list(self._planted)

    def fail(
        self,
        phase: str,
        reason: str = 'planted',
        *,
        after: bool = False,
        sticky: bool = False,
        instance_uuid: str | None = None,
    ) -> Fault:
        """Make a phase fail: a driver method raises DriverError, a job fails.

        :param after: a driver method has its effect first.
        :param sticky: each time, not only once.
        """
        return self._plant(Fault(phase, after, sticky, instance_uuid, reason))

    def stall(
        self, phase: str, *, after: bool = False, sticky: bool = False, instance_uuid: str | None = None
    ) -> Stall:
        """Make a phase hang until the returned stall is released. A job that hangs can still be aborted.

        :param after: a driver method has its effect first.
        """
        stall = Stall(self._threads)
        self._plant(Fault(phase, after, sticky, instance_uuid, stall=stall))
        return stall

    def lie(self, phase: str, value: Any, *, sticky: bool = False, instance_uuid: str | None = None) -> Fault:
        """Make a driver method return ``value`` after its effect, whatever is true.

        :param value: what to return; something callable is given the truth, and its result is returned.
        """
        return self._plant(Fault(phase, True, sticky, instance_uuid, lie=value, lies=True))

    def clear(self, phase: str | None = None) -> None:
        """Take away what has not struck yet, of one phase or of all, and release what hangs."""
        with self._lock:
            gone = [fault for fault in self._planted if phase in (None, fault.phase)]
            self._planted = [fault for fault in self._planted if fault not in gone]
        for fault in gone:
            if fault.stall is not None:
                fault.stall.release()

    def around(self, phase: str, instance_uuid: str | None, call: Callable[[], T]) -> T:
        """Return ``call()``, with the faults of ``phase`` before and after it.

        :raises migrator.exception.DriverError: a fault says so.
        """
        self._strike(phase, instance_uuid, self.take(phase, instance_uuid, after=False))
        truth = call()
        fault = self.take(phase, instance_uuid, after=True)
        if fault is not None and fault.lies:
            lie: T = fault.lie(truth) if callable(fault.lie) else fault.lie
            return lie
        self._strike(phase, instance_uuid, fault)
        return truth

    def take(self, phase: str, instance_uuid: str | None, *, after: bool) -> Fault | None:
        """Return the fault that strikes now, and forget it unless it is sticky."""
        with self._lock:
            for fault in self._planted:
                mine = fault.instance_uuid in (None, instance_uuid)
                if fault.phase == phase and fault.after is after and mine:
                    fault.count += 1
                    if not fault.sticky:
                        self._planted.remove(fault)
                    return fault
        return None

    def _plant(self, fault: Fault) -> Fault:
        if fault.phase in JOB_PHASES and (fault.after or fault.lies):
            raise ValueError(f'{fault.phase} is a phase of a job: it has neither an "after" nor a result to lie about')
        if fault.phase in ('postcopy', 'arrived') and fault.stall is None:
            raise ValueError(f'{fault.phase} cannot fail, for the guest runs at the destination: use break_post_copy')
        with self._lock:
            self._planted.append(fault)
        return fault

    def _strike(self, phase: str, instance_uuid: str | None, fault: Fault | None) -> None:
        if fault is None:
            return
        if fault.stall is not None:
            fault.stall.hang()
            return
        raise exception.DriverError(host=self._host, phase=phase, reason=fault.reason)
