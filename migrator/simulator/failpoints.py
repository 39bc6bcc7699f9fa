# SPDX-License-Identifier: Apache-2.0

"""The failpoints of a simulated cloud: named boundaries at which a fault may be injected.

    def hook(boundary):
        kill = faults.BY_NAME['killed, and started again']
        return kill if boundary == Boundary('conductor1', 'commit done', 3) else None

    failpoints = Failpoints(cloud, supervisor, hook)

A boundary is a point in the run of one process. Its name is the same in a second run:

- a transaction: ``commit begin``, then ``commit done``;
- a request to Placement: ``placement POST /allocations``, then ``placement POST /allocations answered``;
- an RPC: ``rpc pre_live_migration call``, then ``received``, ``handled`` and ``answered``; or ``cast``;
- a message on the bus: ``message pre_live_migration call``;
- a driver call: ``driver host2 pre_live_migration``, then ``driver host2 pre_live_migration done``. The phases of a job
  belong to the process ``world``.

Each boundary except a message is also a checkpoint, at which the scheduler may switch threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from migrator import exception
from migrator.testing import placement_faults
from migrator.testing.bus import Fault, Message
from migrator.testing.cloud import SimulatedCloud
from migrator.testing.hypervisor import faults
from migrator.testing.hypervisor.hypervisor import FakeHypervisor
from migrator.testing.simulation.threads import SimThreads

#: Boundaries of calls that only observe and are repeated: a fault there is the same as one of the next repetition.
LOOKS = re.compile(r'compute_heartbeat|poll_live_migrations|compute_answers| get_| list_|settle|progress')

_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


class Boundary(NamedTuple):
    """One point in the run of one process.

    :ivar nth: how often the process has reached it, from 1, over all boots.
    """

    process: str
    label: str
    nth: int

    def __str__(self) -> str:
        """Return the name of the boundary."""
        return f'{self.process}: {self.label} #{self.nth}'


class Supervisor(Protocol):
    """The methods of a process supervisor that faults use."""

    def kill(self, name: str, back_after: float | None) -> None:
        """Kill a process (``kill -9``) and start it again after some seconds; None: never."""

    def pause(self, name: str, seconds: float) -> None:
        """Pause a process for some seconds."""

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call a function after some seconds."""


class Injection(Protocol):
    """A fault that a hook returns."""

    def on_process(self, failpoints: Failpoints, boundary: Boundary, process: SimThreads) -> None:
        """Apply the fault to the process at the boundary.

        The process may die by it. An error that this raises is raised at the boundary.
        """

    def on_message(self, message: Message) -> Fault:
        """Return the fault of a message."""

    def on_request(self) -> placement_faults.Fault | None:
        """Return the fault of a request to Placement."""

    def on_driver(self, failpoints: Failpoints, phase: str) -> fake_fault | None:
        """Return the fault of a driver call or of a phase of a job."""


fake_fault = faults.Fault
Hook = Callable[[Boundary], Injection | None]


class Failpoints:
    """The failpoints of one cloud.

    They call a hook at every boundary and inject the fault that it returns.

    :param supervisor: kills, pauses and starts processes for the faults.
    :param hook: called at each boundary.
    :ivar passed: every boundary so far, in order.
    """

    def __init__(self, cloud: SimulatedCloud, supervisor: Supervisor, hook: Hook) -> None:
        assert cloud.simulation is not None
        self.cloud = cloud
        self.supervisor = supervisor
        self.hook = hook
        self._refused_until = -1.0
        self.passed: list[Boundary] = []
        self._simulation = cloud.simulation
        self._counts: dict[tuple[str, str], int] = {}
        #: Thread -> the fault that the hook returned at its checkpoint, for the call that crosses the checkpoint.
        self._pending: dict[object, Injection] = {}
        self._install()

    # --- boundaries --------------------------------------------------------------------------------------------------

    def _install(self) -> None:
        cloud = self.cloud
        self._simulation.on_checkpoint = self._at_checkpoint
        cloud.bus.faults = self._at_message
        cloud.database.engine.boundary = self._at_commit
        _replace(cloud.adapter, 'request', self._at_request(cloud.adapter.request))
        for host, hypervisor in cloud.world.hypervisors.items():
            _replace(hypervisor.faults, 'take', self._at_driver(host, hypervisor))

    def remove(self) -> None:
        """Call the hook no more, and inject no more faults."""
        self.hook = lambda boundary: None
        self._refused_until = -1.0

    def refuse_commits(self, seconds: float) -> None:
        """Make the database refuse all writing transactions for some seconds."""
        self._refused_until = self._simulation.time + seconds

    def _at_checkpoint(self, process: SimThreads, label: str) -> None:
        boundary = self._boundary(process.name, label)
        if label == 'commit begin' and self._simulation.time < self._refused_until:
            raise exception.DatabaseUnreachable(reason='planned: it is away')
        injection = self.hook(boundary)
        if injection is None:
            return
        self._pending[self._simulation.scheduler.current] = injection
        injection.on_process(self, boundary, process)

    def _at_message(self, message: Message) -> Fault:
        sender = message.sender.partition(':')[2]
        injection = self.hook(self._boundary(sender, f'message {message.method} {message.kind}'))
        return injection.on_message(message) if injection is not None else None

    def _at_commit(self, what: str) -> None:
        process = self._acting()
        if not process.is_world:
            self._cross(process, 'commit begin' if what == 'begin' else 'commit done')

    def _at_request(self, request: Callable[..., Any]) -> Callable[..., Any]:
        def crossed(url: str, method: str, **kwargs: Any) -> Any:
            process = self._acting()
            if process.is_world:
                return request(url, method, **kwargs)
            label = f'placement {method} {_UUID.sub("UUID", url.partition("?")[0])}'
            injection = self._cross(process, label)
            fault = injection.on_request() if injection is not None else None
            if fault is not None:
                self.cloud.adapter.inject(fault)
            answer = request(url, method, **kwargs)
            self._cross(process, f'{label} answered')
            return answer

        return crossed

    def _at_driver(self, host: str, hypervisor: FakeHypervisor) -> Callable[..., Any]:
        take = hypervisor.faults.take

        def crossed(phase: str, instance_uuid: str | None, *, after: bool) -> fake_fault | None:
            process = self._acting()
            injection = self._cross(process, f'driver {host} {phase}{" done" if after else ""}')
            fault = injection.on_driver(self, phase) if injection is not None else None
            return fault or take(phase, instance_uuid, after=after)

        return crossed

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _acting(self) -> SimThreads:
        process: Any = self._simulation.scheduler.me().acting
        return process  # type: ignore[no-any-return]  # the scheduler's protocol has only a part of SimThreads

    def _cross(self, process: SimThreads, label: str) -> Injection | None:
        me = self._simulation.scheduler.me()
        self._pending.pop(me, None)
        process.checkpoint(label)
        return self._pending.pop(me, None)

    def _boundary(self, process: str, label: str) -> Boundary:
        nth = self._counts[process, label] = self._counts.get((process, label), 0) + 1
        boundary = Boundary(process, label, nth)
        self.passed.append(boundary)
        return boundary


def _replace(owner: object, name: str, value: Any) -> None:
    setattr(owner, name, value)
