# SPDX-License-Identifier: Apache-2.0

"""What a conductor and a compute host say to each other about one migration."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from migrator import exception
from migrator.objects import base

#: Characters of a reason that are kept.
LONGEST_REASON = 4000
#: The highest epoch or tenure that a database can store.
STORABLE = 2**31 - 1
#: From here on an epoch or tenure that a host reports is taken for nonsense: far above what conductors come to by ones,
#: and far enough below what can be stored for them to go on from it.
HIGHEST = 2**30


class GuestState(enum.StrEnum):
    """What a driver says of one guest on its host."""

    #: It runs here, in post-copy arriving here included.
    RUNNING = 'running'
    #: Its user has paused it.
    PAUSED = 'paused'
    #: It is defined here and shut off.
    SHUTDOWN = 'shutdown'
    #: The hypervisor has paused it to cut over (told by the reason of the pause).
    CUTOVER = 'paused for cut-over'
    #: Post-copy broke off: neither host can run it alone.
    POSTCOPY_BROKEN = 'post-copy broken off'
    #: What pre_live_migration made is here and waits for the guest.
    WAITING = 'waiting'
    #: Not even that.
    ABSENT = 'absent'


_STATES = tuple(state.value for state in GuestState)


class Entry(enum.StrEnum):
    """Where a migration's driver call stands in the source's queue."""

    NONE = ''
    QUEUED = 'queued'
    STARTED = 'started'
    RETURNED = 'returned'


class WorkState(enum.StrEnum):
    """Where one step's work on a host stands."""

    RUNNING = 'running'
    DONE = 'done'
    FAILED = 'failed'
    CANCELLED = 'cancelled'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guest(base.Versioned):
    """One guest as its driver sees it.

    :ivar state: a :class:`GuestState`.
    :ivar job: a migration job of it goes out from here.
    :ivar incoming: a receiving process exists (told apart from merely prepared).
    :ivar post_copy: it runs at the destination while its memory still follows.
    :raises migrator.exception.ValidationError: the state is none that there is.
    """

    instance_uuid: str
    state: str = GuestState.ABSENT.value
    job: bool = False
    incoming: bool = False
    post_copy: bool = False

    def __post_init__(self) -> None:
        if not self.told:
            *most, last = GuestState
            would_do = f'{", ".join(most)} or {last} would do.'
            raise exception.ValidationError(path='Guest.state', value=self.state, detail=would_do)

    @classmethod
    def from_primitive(cls, primitive: dict[str, Any]) -> Any:
        """Return the guest that a host tells of, also where its state is none that this release knows: what a host
        says of one guest must not be in the way of what it says of the others; see :attr:`told`.

        :raises ValueError: the primitive is of another object, or of another major version.
        """
        data = primitive.get('data', {})
        state = data.get('state', GuestState.ABSENT.value)
        if state in _STATES:
            return super().from_primitive(primitive)
        guest = super().from_primitive({**primitive, 'data': {**data, 'state': GuestState.ABSENT.value}})
        object.__setattr__(guest, 'state', state)
        return guest

    @property
    def told(self) -> bool:
        """Whether the state says anything; that of another service's driver may be a word that nobody knows."""
        return self.state in _STATES

    @property
    def present(self) -> bool:
        """Whether the host holds it in any form."""
        return self.state != GuestState.ABSENT

    @property
    def active(self) -> bool:
        """Whether its processors could execute here now."""
        return self.state == GuestState.RUNNING


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(base.Versioned):
    """The head of every call to a compute host: which step of which migration, in whose name, for which boot.

    The tenure says in which order migrations and cleanups have taken an instance in hand: accepting a migration,
    abandoning one, and a cleanup that no migration in progress carries out each raise it. A host compares tenure and
    epoch as a pair, and refuses what is lower than what it has seen for the instance; so an earlier migration cannot
    act on a guest that a later one has in hand there.

    :ivar tenure: 0: unknown, as from a service of an earlier release; only the migration's epochs are compared then.
    :ivar owner: the conductor's id.
    :ivar reply_to: the conductor's server name, for events.
    :ivar boot_id: the boot of the host that is meant; another refuses it.
    """

    migration_uuid: str
    instance_uuid: str
    step: str
    epoch: int
    owner: str
    reply_to: str
    boot_id: str
    tenure: int = 0

    @property
    def is_odd(self) -> bool:
        """Whether its epoch or its tenure is one that no database can have given."""
        return not (0 <= self.epoch <= STORABLE and 0 <= self.tenure <= STORABLE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report(base.Versioned):
    """What became of one step's work on a host: sent as an event, and kept for the poll until it is acknowledged.

    :ivar result: what the step returned, JSON-safe.
    :ivar reason: why it failed, for a person.
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
        """Bound what a driver says."""
        if self.reason is not None and len(self.reason) > LONGEST_REASON:
            object.__setattr__(self, 'reason', base.text(self.reason, LONGEST_REASON))


class Refusal(enum.StrEnum):
    """Why a host did not take a command."""

    #: The command is for another boot of this host.
    BOOT = 'boot'
    #: The command's epoch is lower than one seen, or equal and another owner's.
    EPOCH = 'epoch'
    #: A later migration of the guest, or a later cleanup, has it in hand.
    TENURE = 'tenure'
    #: The answer to compute_started has not been applied yet.
    STARTING = 'starting'
    #: The service is stopping.
    STOPPING = 'stopping'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer(base.Versioned):
    """The answer to a command.

    :ivar refusal: None if it was taken, else a :class:`Refusal`.
    :ivar seen: the highest epoch that this boot has seen for the migration.
    :ivar seen_tenure: the highest tenure that this boot has seen for the instance.
    :ivar report: what is known of the step's work now: running, or ended (a repeated command gets the stored one).
    """

    refusal: str | None = None
    seen: int = 0
    boot_id: str = ''
    report: Report | None = None
    seen_tenure: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observation(base.Versioned):
    """What one host says of one migration when polled.

    :ivar epoch: the highest epoch seen, this poll's included.
    :ivar tenure: the highest tenure seen for the instance, likewise.
    :ivar entry: an :class:`Entry`.
    :ivar verdict: what the driver call returned, where it has: completed, failed, aborted; '' otherwise.
    :ivar reports: the step works running or ended and not yet acknowledged.
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
    """What a compute says of itself when it starts, and with every heartbeat.

    :ivar limit: max_concurrent_live_migrations.
    :ivar node: name, hypervisor facts and inventory tree.
    :ivar guests: every guest the driver knows; only at start.
    :ivar adoptable: those of them that the books are to take in if they do not know them: each an instance.
    """

    host: str
    boot_id: str
    version: int
    limit: int = 1
    node: base.Versioned | None = None
    guests: list[Guest] = dataclasses.field(default_factory=list)
    adoptable: list[base.Versioned] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assignment(base.Versioned):
    """One migration of a host that has just started: what compute_started answers, in queued_at order.

    :ivar role: of the host: source or destination; none: the migration has ended, and was the last to have a guest of
        this host in hand.
    :ivar queue: whether the source is to queue its driver call again.
    :ivar running_for: seconds since it was first seen running; 0 if it was not.
    """

    command: Command
    role: str
    queue: bool = False
    running_for: float = 0.0
    destination: str | None = None
    instance: base.Versioned | None = None
    migrate_data: base.Versioned | None = None
