# SPDX-License-Identifier: Apache-2.0

"""A world of fake hypervisors, for tests and demos.

The hypervisors belong to the world and not to the compute processes that use them. Their jobs run in the world's own
threads, so they outlive a compute process that is killed, as real jobs do. The world logs every effect. It also notes
what must never happen (:attr:`FakeWorld.violations`): a guest that is active on two hosts, and a guest whose last copy
was destroyed.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID, uuid5

from migrator import exception, executors
from migrator.objects import Flavor, GuestState, Instance, ProviderInventory, protocol
from migrator.testing.hypervisor import acts, faults
from migrator.testing.hypervisor.capacity import Capacity
from migrator.virt import driver

#: The states in which the guest owns its processors here: they run, or its user has stopped them.
OWNING = protocol.ACTIVE
#: What belongs to a guest on a host besides the guest itself, in the order in which pre_live_migration makes it.
PARTS = ('directory', 'connections', 'receiving process')
CHECK_FILE = 'check file'
#: The namespace of the identities of machines.
_MACHINES = UUID('1f7ce6a2-77a5-4a58-9c39-0f9e2b6a3d11')


@dataclasses.dataclass(frozen=True)
class Effect:
    """One line of the world's log.

    :ivar time: seconds of the world's monotonic clock.
    :ivar who: the actor: the name of a driver (:attr:`FakeDriver.boot`), ``hypervisor``, ``user`` or ``power``.
    """

    time: float
    host: str
    effect: str
    instance_uuid: str
    who: str


@dataclasses.dataclass
class FakeResize:
    """A resize of a guest that stays at its host.

    :ivar power_on: whether the guest is started with its new size, or its old one again.
    :ivar off: whether it was powered off for that, and was not started since.
    :ivar old: its processors, memory and disk from before; None: it has not got its new size yet.
    """

    migration_uuid: str
    power_on: bool
    off: bool = True
    old: tuple[int, int, int] | None = None


@dataclasses.dataclass(eq=False)
class FakeGuest:
    """One copy of a guest on one host.

    Memory is in MiB, disk in GiB, the dirty rate in MiB/s.

    :ivar resume_to: the state before the hypervisor paused the guest for switchover.
    :ivar incoming: whether a receiving process waits for the guest.
    :ivar persistent: whether the guest survives a restart of the hypervisor.
    :ivar superseded: whether this copy was active when the guest was evacuated from here, or restored elsewhere.
    :ivar immovable: what of it cannot be moved live, in words; '': nothing.
    :ivar powered_off_to_move: whether a cold migration has powered it off here, so that only a revert starts it again.
    :ivar resize: its resize at this host that is not confirmed, or None.
    """

    instance_uuid: str
    vcpus: int = 1
    memory_mb: int = 512
    disk_gb: int = 1
    dirty_rate: float = 0.0
    state: str = GuestState.RUNNING
    resume_to: str = GuestState.RUNNING
    incoming: bool = False
    post_copy: bool = False
    persistent: bool = True
    superseded: bool = False
    immovable: str = ''
    powered_off_to_move: bool = False
    resize: FakeResize | None = None

    @property
    def size(self) -> tuple[int, int, int]:
        """Its processors, memory and disk."""
        return self.vcpus, self.memory_mb, self.disk_gb

    @size.setter
    def size(self, size: tuple[int, int, int]) -> None:
        self.vcpus, self.memory_mb, self.disk_gb = size


class RunningJob(Protocol):
    """The part of a :class:`migrator.testing.hypervisor.job.Job` that a hypervisor and its driver use."""

    source: FakeHypervisor
    destination: FakeHypervisor
    who: str
    begun: executors.Event
    ended: executors.Event
    error: exception.MigratorException | None
    verdict: driver.Verdict | None
    listeners: int
    in_post_copy: bool
    arrived: bool

    def abort(self) -> None:
        """Request the end of the job."""

    def call_off(self) -> None:
        """Prevent the job from beginning."""

    def fail(self, reason: str) -> None:
        """Make the job fail."""

    def force_complete(self) -> None:
        """Make the job end soon."""

    def progress(self) -> dict[str, int]:
        """Return the current figures, in bytes."""

    def copied(self) -> tuple[float | None, float]:
        """Return for how many seconds the guest stood still (None: not arrived), and the bytes sent."""

    def wake(self) -> None:
        """Wake the job so that it checks what has changed."""


class PendingStart(Protocol):
    """The part of a :class:`migrator.testing.hypervisor.evacuation.Start` that a driver uses."""

    who: str
    ended: executors.Event
    error: exception.MigratorException | None

    def call_off(self) -> None:
        """Prevent the start."""


class FakeWorld:
    """All fake hypervisors, by host.

    :param threads: the world's own clock and threads. Jobs run in them.
    :param shared_storage: whether all hosts see the same disks.
    :param no_resizes: the hosts whose drivers support no resizes.
    :param knobs: parameters of each :class:`FakeHypervisor`, unless :meth:`add` has others.
    :ivar log: every effect, in order.
    :ivar violations: one sentence for each event that must never happen and did.
    :ivar connects: host -> how many drivers have connected so far. It makes the name of each one unique in the log.
    :ivar machines: host -> each machine that was added under this name, the oldest first.
    :ivar acts: which migrations act on which guests.
    """

    def __init__(
        self, threads: executors.Threads, shared_storage: bool = True, no_resizes: Sequence[str] = (), **knobs: Any
    ) -> None:
        self.threads = threads
        self.shared_storage = shared_storage
        self.no_resizes = no_resizes
        self._knobs = knobs
        self.hypervisors: dict[str, FakeHypervisor] = {}
        self.log: list[Effect] = []
        self.violations: list[str] = []
        self.acts = acts.Acts()
        self.connects: collections.Counter[str] = collections.Counter()
        #: The identity of a machine -> how often its power was restored.
        self.restarts: collections.Counter[str] = collections.Counter()
        self.machines: dict[str, list[FakeHypervisor]] = collections.defaultdict(list)
        #: (host, instance) -> the start of an evacuated guest that was requested and has not ended.
        self.starts: dict[tuple[str, str], PendingStart] = {}
        #: Guards all guests and jobs of all hosts. Its holder never waits and takes no other lock.
        self.lock = threads.lock()

    def add(self, host: str, **knobs: Any) -> FakeHypervisor:
        """Add a host and return its hypervisor.

        :param knobs: parameters of :class:`FakeHypervisor`.
        """
        return FakeHypervisor(self, host, **{**self._knobs, **knobs})

    def record(self, host: str, effect: str, instance_uuid: str, who: str) -> None:
        """Log an effect.

        The caller holds the lock.
        """
        self.log.append(Effect(self.threads.clock.monotonic(), host, effect, instance_uuid, who))

    def effects(self, effect: str, instance_uuid: str | None = None) -> list[Effect]:
        """Return the logged effects of one kind, of one guest or of all guests."""
        return [e for e in self.log if e.effect == effect and instance_uuid in (None, e.instance_uuid)]

    def hosts_in(self, instance_uuid: str, states: Sequence[str]) -> list[str]:
        """Return the hosts on which a guest is in one of the given states."""
        return [
            host
            for host, hypervisor in self.hypervisors.items()
            if instance_uuid in hypervisor.guests and hypervisor.guests[instance_uuid].state in states
        ]

    def active_on(self, instance_uuid: str) -> list[str]:
        """Return the hosts that own a guest: it runs there, or its user has paused it there."""
        return self.hosts_in(instance_uuid, OWNING)

    def note_if_active_twice(self, instance_uuid: str) -> None:
        """Note a violation if a guest is active on more than one host.

        A copy that was superseded does not count, since its host had been declared dead. The caller holds
        the lock.
        """
        active = [
            host
            for host in self.active_on(instance_uuid)
            if not self.hypervisors[host].guests[instance_uuid].superseded
        ]
        if len(active) > 1:
            self.violations.append(f'guest {instance_uuid} is active on {" and ".join(active)}')

    def shares_changed(self) -> None:
        """Wake every job to compute its share of the links again.

        The caller holds the lock.
        """
        for hypervisor in self.hypervisors.values():
            for job in hypervisor.jobs.values():
                job.wake()


class FakeHypervisor:
    """The hypervisor of one host.

    :param host: the name of the compute host.
    :param vcpus: physical processors.
    :param memory_mb: memory in MiB.
    :param disk_gb: disk in GiB.
    :param link: bandwidth of the host's link in MiB/s, shared evenly by its jobs.
    :param max_downtime: seconds for which a guest may be paused for its switchover.
    :param auto_converge_after: the iteration from which a guest is throttled that dirties its memory too fast. With 0
        no guest is throttled, and the job of such a guest does not end by itself.
    :param post_copy: whether the hypervisor can and may switch to post-copy on a forced completion.
    :param leave_paused: whether a failure during switchover leaves the source paused instead of resuming it.
    :param leave_shut_off: whether a start of a guest that fails leaves it defined and shut off.
    :param pre_seconds: the duration of pre_live_migration in seconds.
    :param fail_seconds: the duration in seconds of a driver call that a planted fault makes fail.
    :param ratios: resource class -> allocation ratio. The default is 1.0.
    :param reserved: resource class -> amount kept for the host itself. The default is 0.
    :param children: providers below the root provider, such as NUMA nodes.
    :ivar capacity: what the host offers to guests.
    :ivar residues: instance uuid -> the parts of it that are here besides the guest itself.
    """

    def __init__(
        self,
        world: FakeWorld,
        host: str,
        vcpus: int = 16,
        memory_mb: int = 65536,
        disk_gb: int = 1000,
        link: float = 1024.0,
        max_downtime: float = 0.3,
        auto_converge_after: int = 3,
        post_copy: bool = False,
        leave_paused: bool = False,
        leave_shut_off: bool = False,
        pre_seconds: float = 0.0,
        fail_seconds: float = 0.0,
        ratios: dict[str, float] | None = None,
        reserved: dict[str, int] | None = None,
        children: Sequence[ProviderInventory] = (),
    ) -> None:
        self.world = world
        self.host = host
        totals = {'VCPU': vcpus, 'MEMORY_MB': memory_mb, 'DISK_GB': disk_gb}
        self.capacity = Capacity(host, totals, ratios or {}, reserved or {}, list(children))
        self.link = link
        self.max_downtime = max_downtime
        self.auto_converge_after = auto_converge_after
        self.post_copy = post_copy
        self.leave_paused = leave_paused
        self.pre_seconds = pre_seconds
        self.faults = faults.Faults(host, world.threads)
        self.faults.seconds = fail_seconds
        self.faults.leave_shut_off = leave_shut_off
        self.guests: dict[str, FakeGuest] = {}
        self.jobs: dict[str, RunningJob] = {}
        #: Jobs that were requested and have not begun.
        self.pending: dict[str, RunningJob] = {}
        self.residues: dict[str, set[str]] = {}
        self.powered = True
        world.machines[host].append(self)
        world.hypervisors[host] = self

    @property
    def identity(self) -> str:
        """The identity of the machine. A further machine of the same name in one world has another."""
        return str(uuid5(_MACHINES, f'{self.host} {self.world.machines[self.host].index(self)}'))

    @property
    def kernel(self) -> str:
        """What distinguishes this start of the host from every other one."""
        return str(uuid5(_MACHINES, f'{self.identity} {self.world.restarts[self.identity]}'))

    # --- actions of a test or of a guest's user ----------------------------------------------------------------------

    def spawn(self, instance: Instance, dirty_rate: float = 0.0) -> FakeGuest:
        """Start the guest of an instance here.

        :param dirty_rate: the rate at which it dirties its memory, in MiB/s.
        """
        with self.world.lock:
            guest = self.add_guest(instance, GuestState.RUNNING, 'user')
            guest.dirty_rate = dirty_rate
            self.residues.setdefault(instance.uuid, set()).update(PARTS[:2])
            self.world.note_if_active_twice(instance.uuid)
        return guest

    def delete(self, instance_uuid: str) -> None:
        """Delete a guest in the name of its user.

        Its job, if any, fails.
        """
        with self.world.lock:
            job = self.jobs.get(instance_uuid)
            if job is not None:
                job.fail('the guest was deleted')
            self.guests.pop(instance_uuid, None)
            self.residues.pop(instance_uuid, None)
            self.world.record(self.host, 'deleted', instance_uuid, 'user')

    def shut_off(self, instance_uuid: str) -> None:
        """Shut a guest off in the name of its user.

        Its job, if any, fails, and the guest stays shut off.
        """
        self._user_sets(instance_uuid, GuestState.SHUTDOWN, OWNING)

    def pause(self, instance_uuid: str) -> None:
        """Pause a guest in the name of its user.

        It stays paused when it migrates.
        """
        self._user_sets(instance_uuid, GuestState.PAUSED, (GuestState.RUNNING,))

    def resume(self, instance_uuid: str) -> None:
        """Resume a guest, or start one that is shut off, in the name of its user."""
        self._user_sets(instance_uuid, GuestState.RUNNING, (GuestState.PAUSED, GuestState.SHUTDOWN))

    def break_post_copy(self, instance_uuid: str) -> None:
        """Break off a job of this source in post-copy, so that neither host can run the guest alone."""
        with self.world.lock:
            job = self.jobs.get(instance_uuid)
            if job is None or not job.in_post_copy:
                raise ValueError(f'guest {instance_uuid} is not in post-copy')
            job.fail('the link was lost in post-copy')

    def set_link(self, link: float) -> None:
        """Change the bandwidth of the link, in MiB/s.

        Running jobs use it at once.
        """
        with self.world.lock:
            self.link = link
            self.world.shares_changed()

    def power_off(self) -> None:
        """Cut the power of the host.

        The guests here are shut off, receiving processes end, and every driver call fails. A job to or from here fails.
        A job whose guest runs here in post-copy breaks off.
        """
        with self.world.lock:
            self.powered = False
            for hypervisor in self.world.hypervisors.values():
                for job in hypervisor.jobs.values():
                    if self in (job.source, job.destination):
                        job.fail(f'host {self.host} has lost its power')
            for guest in self.guests.values():
                self.end_receiving(guest)
                if guest.state in OWNING or guest.state == GuestState.CUTOVER:
                    self.set_state(guest, GuestState.SHUTDOWN, 'power')

    def power_on(self) -> None:
        """Restore the power.

        The guests stay shut off.
        """
        self.powered = True
        self.world.restarts[self.identity] += 1

    def residue(self, instance_uuid: str) -> list[str]:
        """Return the names of everything that is here of a guest, sorted; [] if nothing is left."""
        found = set(self.residues.get(instance_uuid, ()))
        if instance_uuid in self.guests:
            found.add('guest')
        return sorted(found)

    # --- actions of the driver: the caller holds the world's lock ----------------------------------------------------

    def add_guest(self, instance: Instance, state: str, who: str) -> FakeGuest:
        """Define a guest of the instance's size."""
        vcpus, memory_mb, disk_gb = size_of(instance.flavor)
        guest = FakeGuest(instance.uuid, vcpus=vcpus, memory_mb=memory_mb, disk_gb=disk_gb, state=state)
        self.guests[instance.uuid] = guest
        self.world.record(self.host, str(state), instance.uuid, who)
        return guest

    def set_state(self, guest: FakeGuest, state: str, who: str) -> None:
        """Change the state of a guest, log it, and note a violation if the guest is active twice."""
        guest.state = state
        self.world.record(self.host, str(state), guest.instance_uuid, who)
        self.world.note_if_active_twice(guest.instance_uuid)

    def end_receiving(self, guest: FakeGuest) -> None:
        """End the process that waits for a guest.

        Everything else that was prepared stays.
        """
        guest.incoming = False
        self.residues.get(guest.instance_uuid, set()).discard(PARTS[-1])

    def remove(self, instance_uuid: str, who: str) -> None:
        """Remove a guest and all its parts, and note a violation if it was the last copy."""
        guest = self.guests.pop(instance_uuid, None)
        parts = self.residues.pop(instance_uuid, None)
        held = guest is not None and guest.state != GuestState.WAITING
        # A job elsewhere may have paused its copy, for a switchover or a force-complete request.
        jobs = [one.jobs[instance_uuid] for one in self.world.hypervisors.values() if instance_uuid in one.jobs]
        moving = any(job.source is not self and not job.arrived for job in jobs)
        if held and not moving and not self.world.hosts_in(instance_uuid, (*OWNING, GuestState.SHUTDOWN)):
            self.world.violations.append(f'guest {instance_uuid} was destroyed at {self.host}, its last copy')
        if guest is not None or parts:
            self.world.record(self.host, 'removed', instance_uuid, who)

    def describe(self, instance_uuid: str) -> protocol.Guest:
        """Return the state of a guest on this host, as the driver reports it."""
        guest = self.guests.get(instance_uuid)
        if guest is None:
            return protocol.Guest(instance_uuid=instance_uuid)
        return protocol.Guest(
            instance_uuid=instance_uuid,
            state=str(guest.state),
            job=instance_uuid in self.jobs,
            incoming=guest.incoming,
            post_copy=guest.post_copy,
        )

    def check_room(self, instance: Instance) -> None:
        """Raise if the instance does not fit beside the other guests.

        :raises migrator.exception.DestinationTooSmall: the host has too little of a resource class.
        """
        others = [guest for uuid, guest in self.guests.items() if uuid != instance.uuid]
        used = {
            'VCPU': sum(guest.vcpus for guest in others),
            'MEMORY_MB': sum(guest.memory_mb for guest in others),
            'DISK_GB': sum(guest.disk_gb for guest in others),
        }
        self.capacity.check_room(instance, used)

    def _user_sets(self, instance_uuid: str, state: str, legal: Sequence[str]) -> None:
        with self.world.lock:
            guest = self.guests[instance_uuid]
            if not self.powered:
                raise ValueError(f'host {self.host} has no power: guest {instance_uuid} stays {guest.state}')
            is_off = guest.powered_off_to_move or (guest.resize is not None and guest.resize.off)
            if guest.state not in legal or is_off:
                raise ValueError(f'guest {instance_uuid} is {guest.state}: its user cannot change it to {state} now')
            job = self.jobs.get(instance_uuid)
            if state == GuestState.SHUTDOWN and job is not None:
                job.fail('the guest was shut off')
            self.set_state(guest, state, 'user')


def size_of(flavor: Flavor) -> tuple[int, int, int]:
    """Return the processors, memory and disk that a guest of a flavor has: all its disks together."""
    amounts = flavor.resources()
    return amounts.get('VCPU', 0) + amounts.get('PCPU', 0) or 1, amounts.get('MEMORY_MB', 1), amounts.get('DISK_GB', 0)
