# SPDX-License-Identifier: Apache-2.0

"""The interfaces that a drain needs: the engine that moves the guests, and the store of its rows."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from migrator.objects import remedies
from migrator.objects.drain import Drain, Member


class ObstacleKind(enum.StrEnum):
    """The kinds of :class:`Obstacle`."""

    LOCKED = 'locked'
    #: The guest is not running, so it cannot be moved live, and the drain does not move it otherwise.
    STATE = 'state'
    #: Another task of the guest is in progress, or its host is down. The drain waits until that has ended.
    BUSY = 'busy'
    #: The guest is not where the control plane has it.
    DIFFERENCE = 'difference'
    NO_DESTINATION = 'no_destination'
    #: It cannot be moved live, for example because of a device of the host. The hosts of this control plane report that
    #: only once an hour, so a drain asks them, and only its plan has this kind.
    IMMOVABLE = 'immovable'


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """An obstacle to the migration of a guest, and its remedy."""

    kind: ObstacleKind
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f'{self.reason} {self.remedy}'


#: What else helps if a drain leaves a guest that is shut off.
INCLUDE_STOPPED = 'Or drain the host with --include-stopped: the guest then moves while it is shut off.'


def disabled_home(host: str, reason: str | None) -> Obstacle:
    """Return the obstacle of a guest whose restore waits, since its home is disabled.

    The restore does not enable a host whose disabled reason was changed, and no migration goes to a disabled host.
    """
    why = f' ({reason})' if reason else ''
    return Obstacle(
        ObstacleKind.BUSY, f'Its home {host} is disabled{why}.', remedies.offer(remedies.Kind.ENABLE, host=host)
    )


def why_copied(guest_on: str, host: str) -> str:
    """Return why a host keeps the old copy of a guest in VERIFY_RESIZE."""
    return f'It is in VERIFY_RESIZE at {guest_on}, and {host} keeps its old copy.'


def to_decide(uuid: str, source: str, is_up: bool) -> str:
    """Return what ends the VERIFY_RESIZE of a guest, as a sentence.

    :param source: the host that keeps its old copy.
    :param is_up: whether the compute service there reports.
    """
    look = {remedies.Reading.HOST_DOWN: not is_up}
    found = remedies.offer(remedies.Kind.CONFIRM_OR_REVERT, look, guest=uuid)
    return (
        found or f'Its user can neither confirm nor revert it while {source} is down: start the compute service there.'
    )


@dataclasses.dataclass(frozen=True)
class Guest:
    """A guest as the control plane reports it.

    :ivar size_mb: its memory in MiB.
    :ivar is_cold: whether it would be moved while it is shut off.
    :ivar is_locked: whether it is locked, and the drain moves it or leaves it.
    """

    uuid: str
    name: str
    host: str
    size_mb: int
    obstacle: Obstacle | None = None
    is_cold: bool = False
    is_locked: bool = False


class MoveState(enum.StrEnum):
    """The state of a requested migration."""

    #: The control plane has no such migration. The request has not arrived, or was lost.
    UNKNOWN = 'unknown'
    #: The migration has not begun to copy, for example in a queue. An abort has no effect on the guest.
    PENDING = 'pending'
    RUNNING = 'running'
    MOVED = 'moved'
    FAILED = 'failed'
    CANCELLED = 'cancelled'
    #: The guest waits in VERIFY_RESIZE for a user, and the drain must not decide for that user.
    BLOCKED = 'blocked'
    #: The guest was deleted, or has left its host without this migration.
    GONE = 'gone'


@dataclasses.dataclass(frozen=True)
class Move:
    """A requested migration.

    :ivar is_of_guest: whether a check of the guest itself has failed, and not one of a destination.
    :ivar unanswered: whether a host did not answer, or the guest's own was stopped, so that nothing was tried.
    :ivar in_doubt: whether it is not known where the guest is, so that nothing more is requested.
    :ivar is_stuck: whether it is stuck, so that an operator should look at it.
    :ivar waits_for_slot: whether it has no destination yet, since no slot is free.
    :ivar tried: the hosts where it has failed.
    :ivar waits_for: what it waits for.
    :ivar progress: what is shown of it, as of :attr:`migrator.objects.drain.Member.progress`.
    :ivar reason: why it has failed; of a guest that was moved, what an operator should know.
    :ivar ended_at: when it has ended; None: not known.
    """

    state: MoveState
    destination: str | None = None
    reason: str | None = None
    is_of_guest: bool = False
    unanswered: bool = False
    in_doubt: bool = False
    is_stuck: bool = False
    waits_for_slot: bool = False
    tried: Sequence[str] = ()
    waits_for: str | None = None
    progress: dict[str, Any] | None = None
    ended_at: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True)
class Check:
    """One check of whether a host is empty.

    :ivar what: what was looked for.
    :ivar left: what was found, each item in words; empty: the check has passed.
    """

    what: str
    left: Sequence[str] = ()


class Refused(Exception):
    """The control plane refuses to migrate a guest at present."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(str(obstacle))
        self.obstacle = obstacle


#: What an operator does with a host that is empty, and with one that is not.
STAYS = 'It stays disabled until you restore the drain or enable the host.'
AGAIN = 'Clear what is left, then retry the drain.'


class Engine(Protocol):
    """The control plane that moves the guests.

    Each method may raise :class:`migrator.exception.ServiceUnreachable`. The drain then repeats its present step later.

    :ivar stays: what is said of a host at the end, if it is empty.
    :ivar again: what is said if it is not.
    """

    stays: str
    again: str

    def guests(self, drain: Drain) -> Sequence[Guest]:
        """Return the guests of a drain's host, in a fixed order."""

    def find(self, drain: Drain, uuids: Iterable[str]) -> Sequence[Guest]:
        """Return guests of a drain wherever they are; a deleted one is left out."""

    def bound(self, drain: Drain) -> int:
        """Return how many migrations of a drain may be in progress at a time."""

    def marks(self, members: Sequence[Member]) -> Mapping[str, str]:
        """Return guest -> a mark that will identify its next migration. It is committed before :meth:`ask`."""

    def expected_ends(self, drain: Drain, members: Sequence[Member]) -> Mapping[str, Mapping[str, str]]:
        """Return guest -> ``p50`` and ``p80``, the times of the expected end of its migration, if known.

        The drain only writes them to its log, so that they can be compared with the ends.

        :param members: those whose migrations are in progress, and those that are about to be requested.
        """

    def ask(self, drain: Drain, member: Member, host: str | None) -> str | None:
        """Request the migration that ``member.mark`` identifies. A repeated call requests it once.

        :param host: the destination; None: any that the drain allows.
        :returns: a mark that identifies it better, now that there is an answer; None: the mark stays.
        :raises Refused: the guest cannot be moved now, and nothing was requested.
        """

    def look(self, members: Sequence[Member]) -> Mapping[str, Move]:
        """Return guest -> its newest migration, without those that the control plane does not have."""

    def abort(self, drain: Drain, member: Member) -> None:
        """Request the abort of a member's migration. A migration that has ended stays as it is."""

    def disable(self, drain: Drain) -> bool:
        """Disable the drain's host as a destination, and return whether a drain has disabled it.

        :raises Refused: there is no such host. The drain ends.
        """

    def enable(self, drain: Drain) -> bool:
        """Enable the drain's host, unless it was disabled for another reason meanwhile; return whether it is."""

    def check_empty(self, host: str) -> Sequence[Check]:
        """Check whether nothing is left on a host: guests, allocations, pending cleanups."""


class Store(Protocol):
    """The rows of drains, their members and their logs."""

    def get(self, uuid: str) -> Drain:
        """Return one drain.

        :raises migrator.exception.DrainNotFound: no drain has this uuid.
        """

    def read_members(self, uuid: str) -> list[Member]:
        """Return the members of a drain, by position."""

    def write(
        self,
        drain: Drain,
        fields: Mapping[str, Any],
        members: Sequence[Member],
        events: Sequence[tuple[str, Mapping[str, Any]]],
    ) -> Drain:
        """Write in one transaction, as the owner.

        :raises migrator.exception.NotOwnerOfDrain: another conductor owns the drain, or a user has requested a change
            since it was read. Nothing was written.
        """

    def now(self) -> datetime.datetime:
        """Return the time of the store."""
