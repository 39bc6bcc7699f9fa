# SPDX-License-Identifier: Apache-2.0

"""Faults that a test injects into a fake hypervisor.

    hypervisor.faults.fail('pre_live_migration', 'disk full')
    stall = hypervisor.faults.stall('copying')
    hypervisor.faults.lie('get_guest', lambda truth: truth.replace(state='absent'))
    ...
    stall.release()

A phase is the name of a driver method or one of these phases of a job, or of the start of an evacuated guest:

============ ==========================================================================================
``starting`` the hypervisor has received the request and has no job yet
``copying``  before each iteration
``cutover``  the source is paused, and the destination does not run the guest yet
``postcopy`` the destination runs the guest, and the rest of its memory follows
``arrived``  the destination runs the guest, and the job has not ended
``booting``  the hypervisor has received the request to start a guest, and has not started it
============ ==========================================================================================

Several faults of one phase are injected one after the other, each of them once, or each time if it is ``sticky``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from migrator import exception, executors

T = TypeVar('T')

#: The phases of a job in the order in which they occur, and that of a start. Every other phase is a driver method.
JOB_PHASES = ('starting', 'copying', 'cutover', 'postcopy', 'arrived', 'booting')


class Stall:
    """A place where calls hang until the test releases it.

    :ivar reached: set as soon as a call hangs here.
    """

    def __init__(self, threads: executors.Threads) -> None:
        self.reached = threads.event()
        self._released = threads.event()
        self._wakers: list[Callable[[], None]] = []

    @property
    def released(self) -> bool:
        """Whether calls pass without a halt."""
        return self._released.is_set()

    def release(self) -> None:
        """Let all calls pass: those that hang now, and all later ones."""
        self._released.set()
        for wake in self._wakers:
            wake()

    def hang(self) -> None:
        """Block until :meth:`release`."""
        self.reached.set()
        self._released.wait()

    def call_on_release(self, wake: Callable[[], None]) -> None:
        """Register a function that :meth:`release` calls, for a caller that also waits for other events."""
        self._wakers.append(wake)
        self.reached.set()


@dataclasses.dataclass(eq=False)
class Fault:
    """One planted fault.

    :ivar after: the fault is injected after the effect, and not before it.
    :ivar instance_uuid: the fault is injected only for this guest; None means any guest.
    :ivar error: what a driver method raises instead of a DriverError.
    :ivar count: the number of times it was injected.
    """

    phase: str
    after: bool = False
    sticky: bool = False
    instance_uuid: str | None = None
    reason: str = ''
    error: BaseException | None = None
    stall: Stall | None = None
    lie: Any = None
    lies: bool = False
    count: int = 0


class Faults:
    """The faults of the hypervisor of one host.

    :ivar seconds: how long a driver method takes that then fails.
    :ivar leave_shut_off: whether a start of a guest that fails leaves it defined and shut off.
    """

    def __init__(self, host: str, threads: executors.Threads) -> None:
        self.seconds = 0.0
        self.leave_shut_off = False
        self._host = host
        self._threads = threads
        self._lock = threads.lock()
        self._planted: list[Fault] = []

    @property
    def planted(self) -> list[Fault]:
        """The faults that are not injected yet, or are sticky."""
        return list(self._planted)

    def fail(
        self,
        phase: str,
        reason: str = 'planted',
        *,
        after: bool = False,
        sticky: bool = False,
        instance_uuid: str | None = None,
        error: BaseException | None = None,
    ) -> Fault:
        """Make a phase fail: a driver method raises a DriverError, a job fails.

        :param error: what the driver method raises instead.
        :param after: let the driver method have its effect first.
        :param sticky: fail each time, not only once.
        """
        return self._plant(Fault(phase, after, sticky, instance_uuid, reason, error))

    def stall(
        self, phase: str, *, after: bool = False, sticky: bool = False, instance_uuid: str | None = None
    ) -> Stall:
        """Make a phase hang until the returned stall is released.

        A job that hangs can still be aborted.

        :param after: let the driver method have its effect first.
        """
        stall = Stall(self._threads)
        self._plant(Fault(phase, after, sticky, instance_uuid, stall=stall))
        return stall

    def lie(self, phase: str, value: Any, *, sticky: bool = False, instance_uuid: str | None = None) -> Fault:
        """Make a driver method return ``value`` after its effect, instead of the truth.

        :param value: the value to return. A callable receives the true result, and its own result is returned.
        """
        return self._plant(Fault(phase, True, sticky, instance_uuid, lie=value, lies=True))

    def clear(self, phase: str | None = None) -> None:
        """Remove the pending faults of one phase or of all, and release the calls that hang in them."""
        with self._lock:
            gone = [fault for fault in self._planted if phase in (None, fault.phase)]
            self._planted = [fault for fault in self._planted if fault not in gone]
        for fault in gone:
            if fault.stall is not None:
                fault.stall.release()

    def around(self, phase: str, instance_uuid: str | None, call: Callable[[], T]) -> T:
        """Return ``call()``, and inject the faults of ``phase`` before and after it.

        :raises migrator.exception.DriverError: a fault makes the phase fail.
        """
        self._inject(phase, instance_uuid, self.take(phase, instance_uuid, after=False))
        truth = call()
        fault = self.take(phase, instance_uuid, after=True)
        if fault is not None and fault.lies:
            lie: T = fault.lie(truth) if callable(fault.lie) else fault.lie
            return lie
        self._inject(phase, instance_uuid, fault)
        return truth

    def take(self, phase: str, instance_uuid: str | None, *, after: bool) -> Fault | None:
        """Return the fault to inject now, and remove it unless it is sticky."""
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
            raise ValueError(f'{fault.phase} is a phase of a job: it supports neither "after" nor a lie')
        if fault.phase in ('postcopy', 'arrived') and fault.stall is None:
            raise ValueError(f'{fault.phase} cannot fail: the guest runs at the destination; use break_post_copy')
        with self._lock:
            self._planted.append(fault)
        return fault

    def _inject(self, phase: str, instance_uuid: str | None, fault: Fault | None) -> None:
        if fault is None:
            return
        if fault.stall is not None:
            fault.stall.hang()
            return
        if self.seconds:
            self._threads.sleep(self.seconds)
        raise fault.error or exception.DriverError(host=self._host, phase=phase, reason=fault.reason)
