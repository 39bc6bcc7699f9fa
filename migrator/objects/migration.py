# SPDX-License-Identifier: Apache-2.0

"""A migration, its statuses, and the one table of legal moves between them."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from typing import Any

from migrator import exception
from migrator.objects import base
from migrator.objects.instance import Flavor
from migrator.objects.reasons import Reason, WaitKind
from migrator.objects.service import MIGRATION_OWNED


class MigrationStatus(enum.StrEnum):
    """The status of a migration.

    The words are nova's. The order is that of the 2016 specification.
    """

    ACCEPTED = 'accepted'
    PREPARING = 'preparing'
    QUEUED = 'queued'
    RUNNING = 'running'
    RUNNING_POST_COPY = 'running (post-copy)'
    POST_MIGRATING = 'post-migrating'
    #: The guest of an evacuation runs at the destination, and the source still has to clean up.
    DONE = 'done'
    PRE_MIGRATING = 'pre-migrating'
    MIGRATING = 'migrating'
    #: The guest of a cold migration is at the destination, and a user has to confirm or to revert that.
    FINISHED = 'finished'
    CONFIRMING = 'confirming'
    CONFIRMED = 'confirmed'
    REVERTING = 'reverting'
    REVERTED = 'reverted'
    COMPLETED = 'completed'
    CANCELLED = 'cancelled'
    FAILED = 'failed'
    ERROR = 'error'


_S = MigrationStatus

#: The statuses that a migration never leaves.
FINAL = frozenset({_S.COMPLETED, _S.CONFIRMED, _S.REVERTED, _S.CANCELLED, _S.FAILED, _S.ERROR})
#: The statuses in which it is no longer in progress: its instance is free for the next task. An evacuation that is done
#: still holds the allocation at its source, until the source has cleaned up.
ENDS = FINAL | {_S.DONE}
#: The one definition of "in progress": every status that is not an end.
IN_PROGRESS = frozenset(MigrationStatus) - ENDS

#: The statuses of a cold migration whose guest has arrived at its destination. It may stay there for days.
ARRIVED = frozenset({_S.FINISHED, _S.CONFIRMING, _S.REVERTING})

#: (from, to) -> the cause. A status changes only along this table.
LEGAL_MOVES: dict[tuple[MigrationStatus, MigrationStatus], str] = {
    (_S.ACCEPTED, _S.PREPARING): 'a conductor has taken it',
    (_S.ACCEPTED, _S.CANCELLED): 'asked to abort before anything was done',
    (_S.ACCEPTED, _S.FAILED): 'no destination could be found before anything was done',
    (_S.ACCEPTED, _S.ERROR): 'abandoned before anything was done',
    (_S.PREPARING, _S.QUEUED): 'the destination is prepared, and the source gets the command to queue it',
    (_S.PREPARING, _S.POST_MIGRATING): 'after a takeover the guest is found at the destination',
    (_S.PREPARING, _S.CANCELLED): 'undone because asked',
    (_S.PREPARING, _S.FAILED): 'undone: no candidate could take it',
    (_S.PREPARING, _S.ERROR): 'the guest was lost, or abandoned',
    (_S.QUEUED, _S.RUNNING): 'the source has started it',
    (_S.QUEUED, _S.RUNNING_POST_COPY): 'seen first when already in post-copy',
    (_S.QUEUED, _S.POST_MIGRATING): 'seen first when the destination already ran the guest',
    (_S.QUEUED, _S.CANCELLED): 'it was cancelled in the queue',
    (_S.QUEUED, _S.FAILED): 'it failed before it was seen running, and was undone',
    (_S.QUEUED, _S.ERROR): 'the guest was lost, or abandoned',
    (_S.RUNNING, _S.RUNNING_POST_COPY): 'the guest runs at the destination, its memory still follows',
    (_S.RUNNING, _S.POST_MIGRATING): 'the destination runs the guest',
    (_S.RUNNING, _S.CANCELLED): 'aborted at the driver, and undone',
    (_S.RUNNING, _S.FAILED): 'the driver failed, and it was undone',
    (_S.RUNNING, _S.ERROR): 'the guest was lost, or abandoned',
    (_S.RUNNING_POST_COPY, _S.POST_MIGRATING): 'the last page has arrived',
    (_S.RUNNING_POST_COPY, _S.ERROR): 'post-copy broke off for good, or it was abandoned',
    (_S.PREPARING, _S.DONE): 'an evacuation: the destination runs the guest',
    (_S.DONE, _S.COMPLETED): 'an evacuation: the source has cleaned up, or it was deleted',
    (_S.POST_MIGRATING, _S.COMPLETED): 'every post step is done, or deferred for a host that is down',
    (_S.POST_MIGRATING, _S.ERROR): 'the guest was lost after the move, or abandoned',
    (_S.ACCEPTED, _S.PRE_MIGRATING): 'a cold migration: a conductor has taken it',
    (_S.PRE_MIGRATING, _S.MIGRATING): 'a cold migration: the source gets the command to power the guest off',
    (_S.PRE_MIGRATING, _S.CANCELLED): 'a cold migration: undone, because its drain was cancelled',
    (_S.PRE_MIGRATING, _S.FAILED): 'a cold migration: undone, and no candidate could take it',
    (_S.PRE_MIGRATING, _S.ERROR): 'abandoned',
    (_S.MIGRATING, _S.FINISHED): 'a cold migration: the destination has the guest',
    (_S.MIGRATING, _S.CONFIRMING): 'a cold migration of a drain: the destination has the guest',
    (_S.MIGRATING, _S.CANCELLED): 'a cold migration: undone, because its drain was cancelled',
    (_S.MIGRATING, _S.FAILED): 'a cold migration: undone',
    (_S.MIGRATING, _S.ERROR): 'abandoned',
    (_S.FINISHED, _S.CONFIRMING): 'a user has confirmed it',
    (_S.FINISHED, _S.REVERTING): 'a user has reverted it',
    (_S.FINISHED, _S.ERROR): 'abandoned',
    (_S.CONFIRMING, _S.CONFIRMED): 'the source has removed its copy, or will when it is back',
    (_S.CONFIRMING, _S.ERROR): 'abandoned',
    (_S.REVERTING, _S.REVERTED): 'the guest is at its source again',
    (_S.REVERTING, _S.ERROR): 'abandoned',
}


class AbortCause(enum.StrEnum):
    """What has requested an abort."""

    USER = 'user'
    TIMEOUT = 'timeout'
    #: The planned stop of the source, which cancels what waits in its queue.
    HOST_STOP = 'host-stop'
    #: The start of the source of an evacuation, which is not dead then.
    HOST_START = 'host-start'


class MigrationType(enum.StrEnum):
    """The kind of a migration, in nova's words."""

    LIVE_MIGRATION = 'live-migration'
    EVACUATION = 'evacuation'
    #: A cold migration: the guest is powered off, and started at its destination.
    MIGRATION = 'migration'
    #: A cold migration after which the guest has another flavor.
    RESIZE = 'resize'


_TYPE = MigrationType


class Outcome(enum.StrEnum):
    """The result of settling the pivot. It is None before, and never changes afterwards."""

    FORWARD = 'forward'
    BACK = 'back'


class Strategy(enum.StrEnum):
    """The holder of the source's allocation during a migration (the migration-allocations specification)."""

    MIGRATION_OWNED = 'migration-owned'
    DOUBLED = 'doubled'

    @classmethod
    def of_version(cls, lowest: int) -> Strategy:
        """Return the strategy of a new migration.

        :param lowest: the lowest version of the compute services.
        """
        return cls.DOUBLED if lowest < MIGRATION_OWNED else cls.MIGRATION_OWNED


def check_move(migration_uuid: str, old: str, new: str) -> None:
    """Raise unless the table has this move, or the status is in progress and stays the same.

    :raises IllegalMove: the table has no row for it.
    """
    if old == new and MigrationStatus(old) in IN_PROGRESS:
        return
    if (MigrationStatus(old), MigrationStatus(new)) not in LEGAL_MOVES:
        raise exception.IllegalMove(migration_uuid=migration_uuid, old=old, new=new)


def verdict(status: str | None, text: str | None) -> str | None:
    """Return how an abort ends, in words: the status, and why if that is known."""
    return f'{status}: {text}' if status and text else status


@dataclasses.dataclass(frozen=True, kw_only=True)
class Migration(base.Versioned):
    """One row of ``migrations``. Times are UTC; memory and disk figures are bytes."""

    id: int = 0
    uuid: str
    instance_uuid: str
    project_id: str
    user_id: str
    migration_type: str = MigrationType.LIVE_MIGRATION.value
    status: str = MigrationStatus.ACCEPTED.value
    source_compute: str
    source_node: str
    dest_compute: str | None = None
    dest_node: str | None = None
    dest_host: str | None = None
    hidden: bool = False
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None

    #: The request.
    request_id: str | None = None
    requested_host: str | None = None
    force: bool = False
    #: Whether the requested host may be disabled.
    allows_disabled: bool = False
    block_migration: bool | None = None
    disk_over_commit: bool = False
    #: The drain that has requested it.
    drain: str | None = None
    #: The priority of that drain.
    priority: int = 0
    #: The flavor of the guest at its source, as the database has stored it with the migration.
    old_flavor: Flavor | None = None
    #: The flavor that a resize gives it at the destination.
    new_flavor: Flavor | None = None

    #: The columns of the saga.
    strategy: str = Strategy.MIGRATION_OWNED.value
    outcome: str | None = None
    owner: str | None = None
    epoch: int = 0
    attempt: int = 1
    tenure: int = 0
    checked_at: datetime.datetime | None = None
    queued_at: datetime.datetime | None = None
    running_at: datetime.datetime | None = None
    failure: str | None = None
    failure_kind: str | None = None
    #: Why it is stuck, and what it waits for (:mod:`migrator.objects.reasons`).
    stuck_kind: str | None = None
    stuck_hosts: list[str] | None = None
    stuck_words: dict[str, Any] | None = None
    wait_kind: str | None = None
    wait_hosts: list[str] | None = None
    wait_words: dict[str, Any] | None = None
    #: The place of the newest entry in its log.
    log_seq: int = 0

    #: Requests: written by the API, by migrator-manage, and when a host stops or times out; read by the owner.
    abort_requested_at: datetime.datetime | None = None
    abort_requested_by: str | None = None
    abort_cause: str | None = None
    #: The status with which the request ends, and why, if it is not what the request asked for.
    abort_status: str | None = None
    abort_text: str | None = None
    #: Whether the source has cancelled it in its queue before it called the driver, since its service was stopped. This
    #: boot accepts no new work, so it stays true when the host is gone.
    cancelled_by_stop: bool = False
    force_complete_requested_at: datetime.datetime | None = None
    #: At most one of the two is requested. A drain requests the first with the migration.
    confirm_requested_at: datetime.datetime | None = None
    revert_requested_at: datetime.datetime | None = None
    #: The owner sets these back to None when it has processed the request.
    retry_requested_at: datetime.datetime | None = None
    retry_requested_by: str | None = None
    abandon_requested_at: datetime.datetime | None = None
    abandon_requested_by: str | None = None
    #: The host that runs the guest, as the operator who abandons the migration states.
    abandon_guest_on: str | None = None

    #: The seconds for which the guest stood still at the switchover; None if the hypervisor did not report it.
    downtime: float | None = None
    #: The hypervisor's last report of the copy.
    memory_total: int | None = None
    memory_processed: int | None = None
    memory_remaining: int | None = None
    disk_total: int | None = None
    disk_processed: int | None = None
    disk_remaining: int | None = None

    @property
    def hosts(self) -> list[str]:
        """The source, and the destination once it is chosen; one host if the guest stays there."""
        return [host for host in dict.fromkeys((self.source_compute, self.dest_compute)) if host]

    @property
    def is_evacuation(self) -> bool:
        """Whether the guest is started anew at its destination, since its source is dead."""
        return self.migration_type == MigrationType.EVACUATION

    @property
    def is_live(self) -> bool:
        """Whether the guest moves without an interruption, so that it uses the queue of its source."""
        return self.migration_type == MigrationType.LIVE_MIGRATION

    @property
    def is_cold(self) -> bool:
        """Whether the guest is powered off, and started at its destination."""
        return self.migration_type in (MigrationType.MIGRATION, MigrationType.RESIZE)

    @property
    def stays(self) -> bool:
        """Whether the guest of a resize stays at its host: Placement has room for both of its flavors there."""
        return self.migration_type == MigrationType.RESIZE and self.dest_compute == self.source_compute

    def has_old_flavor(self, host: str | None) -> bool:
        """Return whether a guest that is at a host has its flavor of the source there.

        A guest that stays has its new flavor from the outcome forward on, until it is reverted.
        """
        if not self.stays:
            return host == self.source_compute
        return self.outcome != Outcome.FORWARD or self.status in (_S.REVERTING, _S.REVERTED)

    @property
    def is_undecided(self) -> bool:
        """Whether it waits for its user to confirm or to revert it."""
        decided = self.confirm_requested_at is not None or self.revert_requested_at is not None
        return self.status == MigrationStatus.FINISHED and not decided

    @property
    def task(self) -> str:
        """The name of its saga.

        It is the type, except for a cold migration or a resize, and their reverts.
        """
        if self.stays:
            return 'resize here' if self.revert_requested_at is None else 'revert here'
        if self.revert_requested_at is not None:
            return 'revert'
        return MigrationType.MIGRATION.value if self.is_cold else self.migration_type

    @property
    def action(self) -> str:
        """The action of a server that requests such a migration, by nova's name."""
        names = {_TYPE.EVACUATION: 'evacuate', _TYPE.MIGRATION: 'migrate', _TYPE.RESIZE: 'resize'}
        return names.get(MigrationType(self.migration_type), 'os-migrateLive')

    def flavors(self, own: Flavor) -> tuple[Flavor, Flavor]:
        """Return the flavors of its guest at the source and at the destination.

        :param own: the flavor of the instance.
        """
        return self.old_flavor or own, self.new_flavor or own

    @property
    def hosts_to_poll(self) -> list[str]:
        """The hosts that report where the guest is. The source of an evacuation is dead."""
        return self.hosts[1:] if self.is_evacuation else self.hosts

    @property
    def in_progress(self) -> bool:
        """Whether it has not ended. A stuck migration has not."""
        return self.status in IN_PROGRESS

    @property
    def ended(self) -> bool:
        """Whether it is no longer in progress."""
        return not self.in_progress

    @property
    def waits_for_slot(self) -> bool:
        """Whether it waits for a slot before anything is prepared."""
        return self.wait_kind == WaitKind.SLOT

    @property
    def wait(self) -> Reason | None:
        """What it waits for, if that is worth reporting."""
        return Reason.read(self.wait_kind, self.wait_hosts, self.wait_words)

    @property
    def stuck(self) -> Reason | None:
        """Why it needs an operator; None: it does not."""
        return Reason.read(self.stuck_kind, self.stuck_hosts, self.stuck_words)

    @property
    def abort_verdict(self) -> str | None:
        """How an abort that was requested ends, in words: a status, and why."""
        return verdict(self.abort_status, self.abort_text)

    @property
    def waits_for(self) -> str | None:
        """What it waits for, as a sentence."""
        return None if self.wait is None else self.wait.sentence

    @property
    def stuck_reason(self) -> str | None:
        """Why it needs an operator, as a sentence."""
        return None if self.stuck is None else self.stuck.sentence
