# SPDX-License-Identifier: Apache-2.0

"""The faults that may be injected at the boundaries of a simulated cloud, each with a name."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import zlib
from collections.abc import Callable

import greenlet

from migrator import exception
from migrator.simulator.failpoints import Boundary, Failpoints
from migrator.testing import bus, placement_faults
from migrator.testing.hypervisor import faults
from migrator.testing.simulation.threads import SimThreads

#: Seconds of a pause. It is longer than a conductor's lease and than any call waits in the tested clouds.
PAUSE = 20.0
#: Seconds for which a killed process stays dead, a driver hangs, and the database refuses writes.
DEAD, HANGS, REFUSES = 3.0, 30.0, 5.0
#: Seconds by which a message or a reply is late. Every call times out earlier.
LATE = 70.0

#: The phases of a job after which the guest runs at the destination: they cannot fail.
_ARRIVED = ('postcopy', 'arrived')


class Timeout(BaseException):
    """A stand-in for the time-out of eventlet, which does not derive from Exception either."""


#: Kinds of errors that do not derive from Exception.
BASE_EXCEPTIONS = (Timeout, SystemExit, greenlet.GreenletExit, asyncio.CancelledError, KeyboardInterrupt)


@dataclasses.dataclass(frozen=True)
class Fault:
    """One kind of fault.

    :ivar where: returns whether the fault is possible at a boundary.
    :ivar process: applies the fault to the process at the boundary.
    :ivar message: the fault of a message.
    :ivar request: the fault of a request to Placement.
    :ivar driver: returns the fault of a driver call or of a phase of a job.
    :ivar later: ends of boundary labels. At such a boundary the fault has the same effect as at the process's next
        boundary, if that follows at the same time: between them the process does nothing, and for a pause it also
        observes nothing.
    """

    name: str
    where: Callable[[Boundary], bool]
    process: Callable[[Failpoints, Boundary, SimThreads], None] | None = None
    message: bus.Fault = None
    request: placement_faults.Fault | None = None
    driver: Callable[[Failpoints, str], faults.Fault] | None = None
    later: tuple[str, ...] = ()

    def on_process(self, failpoints: Failpoints, boundary: Boundary, process: SimThreads) -> None:
        """Apply the fault to a process; see :class:`~migrator.simulator.failpoints.Injection`."""
        if self.process is not None:
            self.process(failpoints, boundary, process)

    def on_message(self, message: bus.Message) -> bus.Fault:
        """Return the fault of a message; see :class:`~migrator.simulator.failpoints.Injection`."""
        return self.message

    def on_request(self) -> placement_faults.Fault | None:
        """Return the fault of a request; see :class:`~migrator.simulator.failpoints.Injection`."""
        return self.request

    def on_driver(self, failpoints: Failpoints, phase: str) -> faults.Fault | None:
        """Return the fault of a driver call; see :class:`~migrator.simulator.failpoints.Injection`."""
        return self.driver(failpoints, phase) if self.driver is not None else None


# --- boundaries ------------------------------------------------------------------------------------------------------


def victim(boundary: Boundary) -> str:
    """Return the process of a boundary; the phases of a job belong to its host."""
    if boundary.process == 'world' and boundary.label.startswith('driver '):
        return boundary.label.split()[1]
    return boundary.process


def _in_a_process(boundary: Boundary) -> bool:
    return not boundary.label.startswith('message ') and victim(boundary) != 'world'


def _dies_for_good(boundary: Boundary) -> bool:
    # An API that never comes back affects only its clients.
    return _in_a_process(boundary) and victim(boundary) != 'api'


def _is(start: str, end: str = '') -> Callable[[Boundary], bool]:
    return lambda boundary: boundary.label.startswith(start) and boundary.label.endswith(end)


def _message(*kinds: str) -> Callable[[Boundary], bool]:
    return lambda boundary: boundary.label.startswith('message ') and boundary.label.endswith(kinds)


def _request(*methods: str) -> Callable[[Boundary], bool]:
    starts = tuple(f'placement {method} ' for method in methods)
    return lambda boundary: boundary.label.startswith(starts) and not boundary.label.endswith(' answered')


def _conductor_writes(boundary: Boundary) -> bool:
    return boundary.label == 'commit begin' and boundary.process != 'api'


def _driver(boundary: Boundary) -> bool:
    return boundary.label.startswith('driver ')


def _driver_may_fail(boundary: Boundary) -> bool:
    return _driver(boundary) and boundary.label.split()[2] not in _ARRIVED


def _driver_method(boundary: Boundary) -> bool:
    return _driver(boundary) and boundary.label.split()[2] not in faults.JOB_PHASES


def _driver_writes(boundary: Boundary) -> bool:
    return _driver(boundary) and boundary.process != 'world' and not boundary.label.endswith(' done')


# --- effects ---------------------------------------------------------------------------------------------------------


def _kill(failpoints: Failpoints, boundary: Boundary, process: SimThreads) -> None:
    failpoints.supervisor.kill(victim(boundary), back_after=DEAD)


def _kill_for_ever(failpoints: Failpoints, boundary: Boundary, process: SimThreads) -> None:
    failpoints.supervisor.kill(victim(boundary), back_after=None)


def _pause(failpoints: Failpoints, boundary: Boundary, process: SimThreads) -> None:
    failpoints.supervisor.pause(victim(boundary), PAUSE)


def _refuse(failpoints: Failpoints, boundary: Boundary, process: SimThreads) -> None:
    failpoints.refuse_commits(REFUSES)
    raise exception.DatabaseUnreachable(reason='planned: it is away')


def _answer_lost(failpoints: Failpoints, boundary: Boundary, process: SimThreads) -> None:
    raise exception.DatabaseUnreachable(reason='planned: the connection was lost after the commit')


def _unforeseen(failpoints: Failpoints, boundary: Boundary, process: SimThreads) -> None:
    raise RuntimeError('planned: an unforeseen error')


def _disk_full(failpoints: Failpoints, boundary: Boundary, process: SimThreads) -> None:
    raise OSError(errno.ENOSPC, 'No space left on device')


def _raises(failpoints: Failpoints, phase: str) -> faults.Fault:
    return faults.Fault(phase, reason='planned: it fails')


def _raises_base(failpoints: Failpoints, phase: str) -> faults.Fault:
    kind = BASE_EXCEPTIONS[zlib.crc32(phase.encode()) % len(BASE_EXCEPTIONS)]
    return faults.Fault(phase, error=kind('planned: a BaseException'))


def _hangs(failpoints: Failpoints, phase: str) -> faults.Fault:
    stall = faults.Stall(failpoints.cloud.world.threads)
    failpoints.supervisor.later(HANGS, stall.release)
    return faults.Fault(phase, stall=stall)


#: Ends of boundary labels after which the process has done nothing yet.
_OVER = ('commit done', ' answered', ' done', ' received')
#: Those after which it has also observed nothing.
_LOOKED = (' done', ' received')

_P = placement_faults.Fault
_WRITES = ('POST', 'PUT', 'DELETE')

#: Every fault.
FAULTS = (
    Fault('killed, and started again', _in_a_process, process=_kill, later=_OVER),
    Fault('killed for ever', _dies_for_good, process=_kill_for_ever, later=_OVER),
    Fault('paused past the lease', _in_a_process, process=_pause, later=_LOOKED),
    Fault('message lost', _message('call', 'cast'), message='lose'),
    Fault('message doubled', _message('call', 'cast'), message='duplicate'),
    Fault('message late', _message('call', 'cast'), message=LATE),
    Fault('message refused', _message('call', 'cast'), message='refuse'),
    Fault('answer lost', _message('reply'), message='lose'),
    Fault('answer late', _message('reply'), message=LATE),
    Fault('commits refused for a while', _is('commit begin'), process=_refuse),
    Fault('commit done, its answer lost', _is('commit done'), process=_answer_lost),
    Fault('unforeseen error', _conductor_writes, process=_unforeseen),
    Fault('Placement 409', _request(*_WRITES), request=_P.CONFLICT),
    Fault('Placement refuses', _request(*_WRITES), request=_P.REFUSED),
    Fault('Placement 500, not done', _request('GET', *_WRITES), request=_P.ERROR_NOT_DONE),
    Fault('Placement 500, done', _request(*_WRITES), request=_P.ERROR_DONE),
    Fault('Placement timed out, not done', _request('GET', *_WRITES), request=_P.TIMEOUT_NOT_DONE),
    Fault('Placement timed out, done', _request(*_WRITES), request=_P.TIMEOUT_DONE),
    Fault('Placement timed out, done late', _request(*_WRITES), request=_P.TIMEOUT_LATE),
    Fault('Placement answers oddly', _request('GET'), request=_P.ODD),
    Fault('Placement request doubled', _request(*_WRITES), request=_P.DUPLICATED),
    Fault('driver raises', _driver_may_fail, driver=_raises),
    Fault('driver raises BaseException', _driver_method, driver=_raises_base),
    Fault('driver hangs', _driver, driver=_hangs),
    Fault('disk full', _driver_writes, process=_disk_full),
)

BY_NAME = {fault.name: fault for fault in FAULTS}
