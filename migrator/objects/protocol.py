# SPDX-License-Identifier: Apache-2.0

"""The messages between a conductor and a compute host about one migration."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Protocol

from migrator import exception
from migrator.objects import base
from migrator.objects.instance import Flavor

#: The greatest length of a reason, in characters. The rest is cut.
LONGEST_REASON = 4000
#: The highest epoch or tenure that a database can store.
STORABLE = 2**31 - 1
#: From this number on an epoch or tenure that a host reports counts as invalid. Conductors count in ones and never come
#: near it, and it is far enough below STORABLE for them to count on from it.
HIGHEST = 2**30
#: A uuid that belongs to no migration, no instance and no boot.
NO_UUID = '00000000-0000-0000-0000-000000000000'


class GuestState(enum.StrEnum):
    """The state of one guest on one host, as the driver reports it."""

    #: It runs here, also while its memory still arrives in post-copy.
    RUNNING = 'running'
    #: Its user has paused it.
    PAUSED = 'paused'
    #: It is defined here and shut off.
    SHUTDOWN = 'shutdown'
    #: The hypervisor has paused it for the switchover. The reason of the pause shows that.
    CUTOVER = 'paused for cut-over'
    #: Post-copy broke off: neither host can run it alone.
    POSTCOPY_BROKEN = 'post-copy broken off'
    #: The host has what pre_live_migration made, and waits for the guest.
    WAITING = 'waiting'
    #: The host has nothing of the guest.
    ABSENT = 'absent'


_STATES = tuple(state.value for state in GuestState)
#: The states in which a guest executes, or its user has paused it.
ACTIVE = (GuestState.RUNNING, GuestState.PAUSED)
#: The states in which a guest must not be destroyed where it is, even if the allocations are elsewhere.
IN_USE = (*ACTIVE, GuestState.POSTCOPY_BROKEN)


class Entry(enum.StrEnum):
    """The state of a migration's driver call in the source's queue."""

    NONE = ''
    QUEUED = 'queued'
    STARTED = 'started'
    RETURNED = 'returned'


class WorkState(enum.StrEnum):
    """The state of one step's work on a host."""

    RUNNING = 'running'
    DONE = 'done'
    FAILED = 'failed'
    CANCELLED = 'cancelled'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guest(base.Versioned):
    """One guest as its driver sees it.

    :ivar state: a :class:`GuestState`.
    :ivar job: whether an outgoing migration job of the guest exists here.
    :ivar incoming: whether a receiving process exists; without one the host is only prepared.
    :ivar post_copy: whether the guest runs at the destination while its memory still follows.
    :raises migrator.exception.ValidationError: the state is not a :class:`GuestState`.
    """

    instance_uuid: str
    state: str = GuestState.ABSENT.value
    job: bool = False
    incoming: bool = False
    post_copy: bool = False

    def __post_init__(self) -> None:
        if not self.is_known:
            *most, last = GuestState
            detail = f'Use {", ".join(most)} or {last}.'
            raise exception.ValidationError(path='Guest.state', value=self.state, detail=detail)

    @classmethod
    def from_primitive(cls, primitive: dict[str, Any]) -> Any:
        """Return the guest that a host reports, also if this release does not know its state.

        An unknown state of one guest must not make the report on the other guests unreadable. See :attr:`is_known`.

        :raises ValueError: the primitive belongs to another object, or to another major version.
        """
        data = primitive.get('data', {})
        state = data.get('state', GuestState.ABSENT.value)
        if state in _STATES:
            return super().from_primitive(primitive)
        guest = super().from_primitive({**primitive, 'data': {**data, 'state': GuestState.ABSENT.value}})
        object.__setattr__(guest, 'state', state)
        return guest

    @property
    def is_known(self) -> bool:
        """Whether this release knows the state. The driver of a newer service may report an unknown one."""
        return self.state in _STATES

    @property
    def present(self) -> bool:
        """Whether the host holds it in any form."""
        return self.state != GuestState.ABSENT

    @property
    def active(self) -> bool:
        """Whether its processors can execute here now."""
        return self.state == GuestState.RUNNING


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(base.Versioned):
    """The header of every call to a compute host: the step, the migration, the owner and the boot.

    The tenure orders the migrations and cleanups of an instance. It rises when a migration is accepted or abandoned,
    and when a cleanup runs outside of a migration in progress. A host compares tenure and epoch as a pair, and refuses
    a lower pair than it has seen for the instance. So an earlier migration cannot act on a guest after a later one.

    :ivar tenure: 0: unknown, as in a question of an operator; the host then compares only the migration's epochs.
    :ivar owner: the conductor's id.
    :ivar reply_to: the conductor's server name, for events.
    :ivar boot_id: the boot of the host that the command is meant for; any other boot refuses it.
    :ivar place: the id of the migration, which is the place of its request among all; 0: it has none.
    """

    migration_uuid: str
    instance_uuid: str
    step: str
    epoch: int
    owner: str
    reply_to: str
    boot_id: str
    tenure: int = 0
    place: int = 0

    @property
    def is_odd(self) -> bool:
        """Whether its epoch, its tenure or its place is outside of the range that a database can store."""
        return not all(0 <= number <= STORABLE for number in (self.epoch, self.tenure, self.place))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report(base.Versioned):
    """The state or result of one step's work on a host.

    The host sends it as an event, and keeps it for polls until the conductor acknowledges it.

    :ivar result: the return value of the step, JSON-safe.
    :ivar reason: why it failed, in words for an operator.
    """

    migration_uuid: str
    host: str
    boot_id: str
    step: str
    epoch: int
    state: str
    result: Any = None
    reason: str | None = None

    def __post_init__(self) -> None:
        """Limit the length of the reason, which comes from a driver."""
        if self.reason is not None and len(self.reason) > LONGEST_REASON:
            object.__setattr__(self, 'reason', base.text(self.reason, LONGEST_REASON))

    @property
    def facts(self) -> Facts:
        """What the result says besides data."""
        return base.of_stored(Facts, self.result) if isinstance(self.result, dict) else Facts()


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a conductor acts on in the result of a host's step.

    :ivar here: the host refused the step, since the guest is there and could run.
    :ivar gone: the host has no such guest.
    :ivar started: the driver's call has begun.
    :ivar cancelled: the step was cancelled before the driver was called.
    :ivar verdict: the driver's verdict of a job.
    :ivar downtime: the seconds for which the guest stood still at the switchover.
    """

    here: bool = False
    gone: bool = False
    started: bool = False
    cancelled: bool = False
    verdict: str | None = None
    downtime: float | None = None

    def __post_init__(self) -> None:
        """Drop a downtime that no clock could measure. A driver of another project may have reported it."""
        seconds: object = self.downtime
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e9:
            object.__setattr__(self, 'downtime', None)


class Refusal(enum.StrEnum):
    """The reason why a host refuses a command."""

    #: The command is for another boot of this host.
    BOOT = 'boot'
    #: The command's epoch is lower than one seen, or equal to one of another owner.
    EPOCH = 'epoch'
    #: The host has seen a command of a later migration or a later cleanup of the guest.
    TENURE = 'tenure'
    #: The host knows the uuid of the command's migration as that of another guest.
    GUEST = 'guest'
    #: The host has not yet applied the answer to compute_started.
    STARTING = 'starting'
    #: The service is stopping.
    STOPPING = 'stopping'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer(base.Versioned):
    """The answer to a command.

    :ivar refusal: None if the host accepted the command, else a :class:`Refusal`.
    :ivar seen: the highest epoch that this boot has seen for the migration.
    :ivar seen_tenure: the highest tenure that this boot has seen for the instance.
    :ivar report: the state of the step's work now: running, or ended; a repeated command gets the stored report.
    """

    refusal: str | None = None
    seen: int = 0
    boot_id: str = ''
    report: Report | None = None
    seen_tenure: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observation(base.Versioned):
    """The answer of one host to a poll about one migration.

    :ivar epoch: the highest epoch seen, including the poll's own.
    :ivar tenure: the highest tenure seen for the instance, including the poll's own.
    :ivar entry: an :class:`Entry`.
    :ivar verdict: the result of the driver call: completed, failed, aborted; '' before it returns.
    :ivar reports: the reports of steps that run, or that have ended and are not yet acknowledged.
    :ivar progress: memory and disk figures in bytes, as the REST API names them; {} without a job.
    """

    migration_uuid: str
    host: str
    boot_id: str
    epoch: int
    guest: Guest
    refusal: str | None = None
    entry: str = Entry.NONE.value
    verdict: str = ''
    reports: list[Report] = dataclasses.field(default_factory=list)
    progress: dict[str, Any] = dataclasses.field(default_factory=dict)
    tenure: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostReport(base.Versioned):
    """The report of a compute host on itself, sent at its start and with every heartbeat.

    :ivar limit: max_concurrent_live_migrations.
    :ivar node: name, hypervisor facts and inventory tree.
    :ivar guests: every guest that the driver knows; only at start.
    :ivar adoptable: the guests that the conductor adopts if the database does not know them; each is an instance.
    :ivar identity: what distinguishes the machine from every other one; None: its driver knows nothing like that.
    :ivar kernel: what distinguishes this start of its kernel from every other one; None: likewise.
    :ivar replaces: the boot that was registered when this one began to register; None: none was, or it was not known;
        '': a service of an earlier commit does not say.
    """

    host: str
    boot_id: str
    version: int
    limit: int = 1
    node: base.Versioned | None = None
    guests: list[Guest] = dataclasses.field(default_factory=list)
    adoptable: list[base.Versioned] = dataclasses.field(default_factory=list)
    identity: str | None = None
    kernel: str | None = None
    replaces: str | None = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assignment(base.Versioned):
    """One migration of a host that has just started, from the answer to compute_started.

    :ivar role: the host's role: source, destination, or none. None means that the migration has ended and was the last
        one to handle a guest of this host.
    :ivar queue: whether the source queues its driver call again.
    :ivar running_for: seconds since the migration was first seen running; 0 if it never was.
    """

    command: Command
    role: str
    queue: bool = False
    running_for: float = 0.0
    destination: str | None = None
    instance: base.Versioned | None = None
    migrate_data: base.Versioned | None = None


class EventClient(Protocol):
    """The client for reports to conductors, which a compute service receives at its start.

    Each message only saves time: correctness does not depend on its arrival.
    """

    def step_ended(self, reply_to: str, report: Report) -> None:
        """Report to the owner's server that the work of a step has started or ended.

        This is a cast. It only wakes the owner up, and may be lost.
        """

    def compute_started(self, report: HostReport) -> list[Assignment]:
        """Report to any conductor that this host has started. Return its assignments in the order of requests.

        :raises migrator.exception.BootReplaced: another boot is registered than the one that this one replaces. Its
            ``kwargs`` name that boot, as ``known``: call again with it.
        :raises migrator.exception.MachineRefused: another machine has this name, or this machine has another one.
        :raises migrator.exception.ServiceUnreachable: no conductor answered; call again.
        """

    def compute_heartbeat(self, report: HostReport) -> None:
        """Report to any conductor that this host is alive. This is a cast."""

    def compute_stopping(self, host: str, boot_id: str, cancelled: list[str]) -> None:
        """Report a planned stop, and the queued migrations that it cancelled, to any conductor, within 1 s.

        :param cancelled: migration uuids.
        :raises migrator.exception.ServiceUnreachable: no conductor answered in time; the migrations are queued again
            when the service starts.
        """

    def live_migration_timed_out(
        self, host: str, boot_id: str, migration_uuid: str, action: str, seconds: float
    ) -> None:
        """Report to any conductor that a live migration has exceeded its time-out.

        When this returns, the conductor has committed the request for the action.

        :param action: ``abort`` or ``force_complete``.
        :param seconds: the time-out.
        :raises migrator.exception.ServiceUnreachable: no conductor answered; report it again.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiveMigrateData(base.Versioned):
    """The data of one live migration for both hosts.

    The destination's check creates it. The source's check and pre_live_migration complete it. After that it does not
    change.

    :ivar block_migration: whether disks are copied too; None until the checks have found out.
    :ivar is_shared_storage: whether both hosts see the same disks.
    :ivar source: facts of the source's driver, JSON-safe.
    :ivar destination: facts of the destination's driver, JSON-safe (where to connect, what it can do).
    :ivar new_flavor: what the guest gets at the destination of a resize; None: it stays as it is.
    """

    block_migration: bool | None = None
    disk_over_commit: bool = False
    is_shared_storage: bool = True
    source: dict[str, Any] = dataclasses.field(default_factory=dict)
    destination: dict[str, Any] = dataclasses.field(default_factory=dict)
    new_flavor: Flavor | None = None
