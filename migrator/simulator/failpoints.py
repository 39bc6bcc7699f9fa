# SPDX-License-Identifier: Apache-2.0

"""The seams of a simulated cloud: every place where a fault may strike, each with a name that a second run has too.

    def hook(boundary):
        return strikes.KILL if boundary == Boundary('conductor1', 'commit done', 3) else None

    seams = Seams(cloud, director, hook)

A boundary is a place in the life of one process: a transaction (``commit begin``, ``commit done``), a request to
Placement (``placement POST /allocations``, then ``... answered``), an RPC (``rpc pre_live_migration call``, then
``received``, ``handled``, ``answered``; or ``cast``), a message on its way (``message pre_live_migration call``) or a
call of the driver (``driver host2 pre_live_migration``, then ``... done``; a job's phases are the world's). Each is a
checkpoint, too, at which the schedule may switch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from migrator import exception
from migrator.testing import placement_faults
from migrator.testing.bus import Fault, Message
from migrator.testing.cloud import SimulatedCloud
from migrator.testing.simulation.threads import SimThreads
from migrator.virt.fake import faults
from migrator.virt.fake.hypervisor import FakeHypervisor

#: What only looks, again and again, whether or not anything happens: a fault there is a fault of the next such look.
LOOKS = re.compile(r'compute_heartbeat|poll_live_migrations|compute_answers| get_| list_|settle|progress')

_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


class Boundary(NamedTuple):
    """One place in the life of one process.

    :ivar nth: how often that process has been there, from 1; over all its lives.
    """

    process: str
    label: str
    nth: int

    def __str__(self) -> str:
        """Return it for a person."""
        return f'{self.process}: {self.label} #{self.nth}'


class Operator(Protocol):
    """Who can have something done to a process, or at a later time."""

    def kill(self, name: str, back_after: float | None) -> None:
        """Kill -9 a process, and start it again so many seconds later; None: never."""

    def pause(self, name: str, seconds: float) -> None:
        """Stop a process for so long."""

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Have something done at a later time."""


class Strike(Protocol):
    """What a hook may return: a fault, told where it strikes."""

    def on_process(self, failpoints: Failpoints, boundary: Boundary, process: SimThreads) -> None:
        """Act on the process that is there, which may die by it; what is raised is raised there."""

    def on_message(self, message: Message) -> Fault:
        """Return what becomes of a message."""

    def on_request(self) -> placement_faults.Fault | None:
        """Return what becomes of a request to Placement."""

    def on_driver(self, failpoints: Failpoints, phase: str) -> fake_fault | None:
        """Return what becomes of a call of a driver, or a phase of a job."""


fake_fault = faults.Fault
Hook = Callable[[Boundary], Strike | None]


class Failpoints:
    """Has every boundary of a cloud told to a hook, and what it returns done.

    :param hook: asked at each boundary.
    :ivar passed: every boundary, in order.
    :ivar director: who kills and starts processes, for the faults that need somebody.
    """

    def __init__(self, cloud: SimulatedCloud, operator: Operator, hook: Hook) -> None:
        assert cloud.simulation is not None
        self.cloud = cloud
        self.operator = operator
        self.hook = hook
        self._refused_until = -1.0
        self.passed: list[Boundary] = []
        self._simulation = cloud.simulation
        self._counts: dict[tuple[str, str], int] = {}
        #: What the checkpoint in which a thread is has to tell the call that it is a checkpoint of.
        self._told: dict[object, Strike] = {}
        self._install()

    # --- where they are ----------------------------------------------------------------------------------------------

    def _install(self) -> None:
        cloud = self.cloud
        self._simulation.on_checkpoint = self._at_checkpoint
        cloud.bus.faults = self._at_message
        cloud.engine.boundary = self._at_commit
        _put(cloud.adapter, 'request', self._at_request(cloud.adapter.request))
        for host, hypervisor in cloud.world.hypervisors.items():
            _put(hypervisor.faults, 'take', self._at_driver(host, hypervisor))

    def remove(self) -> None:
        """Ask the hook no more: faults have stopped."""
        self.hook = lambda boundary: None
        self._refused_until = -1.0

    def refuse_commits(self, seconds: float) -> None:
        """Have the database refuse to begin any transaction that writes, for so long."""
        self._refused_until = self._simulation.time + seconds

    def _at_checkpoint(self, process: SimThreads, label: str) -> None:
        boundary = self._boundary(process.name, label)
        if label == 'commit begin' and self._simulation.time < self._refused_until:
            raise exception.DatabaseUnreachable(reason='planned: it is away')
        strike = self.hook(boundary)
        if strike is None:
            return
        self._told[self._simulation.scheduler.current] = strike
        strike.on_process(self, boundary, process)

    def _at_message(self, message: Message) -> Fault:
        sender = message.sender.partition(':')[2]
        strike = self.hook(self._boundary(sender, f'message {message.method} {message.kind}'))
        return strike.on_message(message) if strike is not None else None

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
            strike = self._cross(process, label)
            fault = strike.on_request() if strike is not None else None
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
            strike = self._cross(process, f'driver {host} {phase}{" done" if after else ""}')
            fault = strike.on_driver(self, phase) if strike is not None else None
            return fault or take(phase, instance_uuid, after=after)

        return crossed

    # --- below -------------------------------------------------------------------------------------------------------

    def _acting(self) -> SimThreads:
        process: Any = self._simulation.scheduler.me().acting
        return process  # type: ignore[no-any-return]  # the baton knows less of a process than there is

    def _cross(self, process: SimThreads, label: str) -> Strike | None:
        me = self._simulation.scheduler.me()
        self._told.pop(me, None)
        process.checkpoint(label)
        return self._told.pop(me, None)

    def _boundary(self, process: str, label: str) -> Boundary:
        nth = self._counts[process, label] = self._counts.get((process, label), 0) + 1
        boundary = Boundary(process, label, nth)
        self.passed.append(boundary)
        return boundary


def _put(owner: object, name: str, value: Any) -> None:
    setattr(owner, name, value)
