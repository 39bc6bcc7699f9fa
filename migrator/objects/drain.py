# SPDX-License-Identifier: Apache-2.0

"""A drain: the request to empty a host, its guests as members, and the table of legal moves."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from migrator import exception
from migrator.objects import base


class DrainStatus(enum.StrEnum):
    """The status of a drain, and of the restore that may follow it."""

    ACCEPTED = 'accepted'
    RUNNING = 'running'
    #: Every guest has left, and the host was checked to be empty.
    COMPLETED = 'completed'
    #: The drain has ended, and the host is not empty. The message says what is left.
    INCOMPLETE = 'incomplete'
    CANCELLED = 'cancelled'
    #: A restore has ended: each guest that was still where the drain had put it is back.
    RESTORED = 'restored'


class MemberStatus(enum.StrEnum):
    """The status of one guest of a drain."""

    WAITING = 'waiting'
    #: Something is in the way of its migration. Once that is gone, the member waits again, if the drain still runs.
    BLOCKED = 'blocked'
    #: Its migration was requested and has not ended.
    MOVING = 'moving'
    MOVED = 'moved'
    FAILED = 'failed'
    #: Its guest has left the host without this drain, or was deleted; or a restore has nothing to bring back.
    GONE = 'gone'
    CANCELLED = 'cancelled'


class Locked(enum.StrEnum):
    """What a drain does with guests that are locked."""

    STAY = 'stay'
    MOVE = 'move'


class DrainOrder(enum.StrEnum):
    """The order in which the guests of a drain leave."""

    REQUESTED = 'requested'
    LARGEST_FIRST = 'largest_first'
    SMALLEST_FIRST = 'smallest_first'
    #: By the ``priorities`` of the request, the greatest first.
    PRIORITY = 'priority'


class Direction(enum.StrEnum):
    """The direction of a drain: its members leave the host, or return to it in a restore."""

    AWAY = 'away'
    BACK = 'back'


_D, _M = DrainStatus, MemberStatus

#: The statuses in which a drain has ended. A restore begins from one of these.
DRAIN_ENDS = frozenset({_D.COMPLETED, _D.INCOMPLETE, _D.CANCELLED, _D.RESTORED})
#: The statuses in which a member needs nothing more, unless its guest is found on the host again.
MEMBER_ENDS = frozenset({_M.MOVED, _M.FAILED, _M.GONE, _M.CANCELLED})

#: (from, to) -> the cause. The status of a drain changes only along this table.
LEGAL_DRAIN_MOVES: dict[tuple[DrainStatus, DrainStatus], str] = {
    (_D.ACCEPTED, _D.RUNNING): 'a conductor has begun it',
    (_D.RUNNING, _D.COMPLETED): 'the host is empty',
    (_D.RUNNING, _D.INCOMPLETE): 'something is left that it cannot move',
    (_D.RUNNING, _D.CANCELLED): 'a user has cancelled it, and its migrations have ended',
    (_D.RUNNING, _D.RESTORED): 'the restore has no guest left to bring back',
    **{(end, _D.ACCEPTED): 'a user has requested a restore' for end in sorted(DRAIN_ENDS)},
}

#: (from, to) -> the cause. The status of a member changes only along this table.
LEGAL_MEMBER_MOVES: dict[tuple[MemberStatus, MemberStatus], str] = {
    (_M.WAITING, _M.MOVING): 'its migration is requested',
    (_M.WAITING, _M.BLOCKED): 'something is in the way, such as a lock',
    (_M.WAITING, _M.GONE): 'it has left without this drain, or was deleted',
    (_M.WAITING, _M.CANCELLED): 'the drain was cancelled, or its deadline has passed',
    (_M.BLOCKED, _M.WAITING): 'nothing is in the way any more',
    (_M.BLOCKED, _M.GONE): 'it has left without this drain, or was deleted',
    (_M.BLOCKED, _M.CANCELLED): 'the drain was cancelled, or its deadline has passed',
    (_M.MOVING, _M.MOVED): 'its migration has completed',
    (_M.MOVING, _M.WAITING): 'its migration has failed, or its request was lost',
    (_M.MOVING, _M.FAILED): 'its migration has failed for good',
    (_M.MOVING, _M.BLOCKED): 'its migration was refused, or waits for a user',
    (_M.MOVING, _M.GONE): 'it was deleted',
    (_M.MOVING, _M.CANCELLED): 'its migration was aborted',
    (_M.GONE, _M.WAITING): 'it is on the host again',
    (_M.MOVED, _M.WAITING): 'it is on the host again, or the restore brings it back',
    (_M.FAILED, _M.GONE): 'the restore has nothing to bring back',
    (_M.CANCELLED, _M.GONE): 'the restore has nothing to bring back',
    (_M.FAILED, _M.WAITING): 'a further restore brings it back',
    (_M.CANCELLED, _M.WAITING): 'a further restore brings it back',
}


#: The greatest value of a whole number in the request of a drain.
MOST = 1000
#: Why a restore does not bring a guest back that has never left.
NOT_MOVED = 'The drain had not moved it.'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member(base.Versioned):
    """One guest of a drain.

    :ivar position: its place in the order of the requests.
    :ivar size_mb: its memory in MiB.
    :ivar is_cold: whether it moves while it is shut off, as last seen before its migration was requested.
    :ivar attempts: the number of migrations that were requested for it.
    :ivar mark: identifies its newest migration. It is committed before the migration is requested.
    :ivar tried: the destinations of its failed migrations.
    :ivar source: the host that it leaves; in a restore, the host from which it is brought back.
    :ivar destination: the host to which it was moved.
    :ivar not_before: when its next attempt may begin.
    :ivar progress: what another control plane shows of its migration: ``uuid``, ``status``, ``destination`` and the
        amounts of memory; None: nothing, or it is a migration of this one, which has a row.
    :ivar reason: why it waits, is blocked or has failed, with what to do. It may have words of users.
    :ivar remedy: what to do alone, as the table of remedies says it; None: the table has nothing.
    """

    instance_uuid: str
    name: str = ''
    position: int = 0
    size_mb: int = 0
    is_cold: bool = False
    status: str = MemberStatus.WAITING.value
    attempts: int = 0
    mark: str | None = None
    tried: list[str] = dataclasses.field(default_factory=list)
    source: str = ''
    destination: str | None = None
    not_before: datetime.datetime | None = None
    began_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None
    progress: dict[str, Any] | None = None
    reason: str | None = None
    remedy: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the drain has nothing more to do for this member."""
        return self.status in MEMBER_ENDS

    def event(self) -> dict[str, Any]:
        """Return what the log of its drain has of its status."""
        found = {'instance': self.instance_uuid, 'name': self.name, 'status': self.status, 'reason': self.reason}
        if self.status == MemberStatus.MOVED:
            ended_at = None if self.ended_at is None else self.ended_at.isoformat()
            found |= {'destination': self.destination, 'ended_at': ended_at}
        return found


#: The greatest length of an error for which a drain waits, in characters. The rest is cut.
LONGEST_ERROR = 255


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drain(base.Versioned):
    """One row of ``drains``. Times are UTC.

    :ivar host: the host to empty.
    :ivar priorities: instance -> its place in the order ``priority``, the greatest first; without one it has 0.
    :ivar priority: where drains compete for slots, each step counts as ten minutes of waiting.
    :ivar parallel: the greatest number of its migrations at a time; None: the bounds of the site.
    :ivar max_attempts: the greatest number of migrations of one guest.
    :ivar destinations: the hosts that may receive its guests; None: any.
    :ivar planned: guest -> the host that comes first as its destination, for a drain of a maintenance.
    :ivar deadline: when it stops requesting migrations.
    :ivar include_stopped: whether it also moves the guests that are shut off, by cold migrations.
    :ivar spread: whether it names each destination to a stock Nova. Its scheduler chooses them otherwise.
    :ivar locked: what it does with guests that are locked. An administrator may move them, as in nova.
    :ivar only_guests: the guests that it moves, those that an earlier drain has left; None: all of the host.
    :ivar retry_of: the drain of which this is the retry; None: the drain is no retry.
    :ivar direction: whether the guests leave, or a restore brings them back.
    :ivar paused: whether it requests no further migrations until it is resumed.
    :ivar has_disabled_host: whether this drain has disabled the host, so that a cancel or a restore enables it.
    :ivar cancel_running: whether a cancel also aborts the migrations that run.
    :ivar checks: the last checks of whether the host is empty.
    :ivar log_seq: the ``seq`` of the newest event of its log.
    :ivar waits_for: what the drain waits for, besides its migrations.
    :ivar wait_error: the error for which it waits, for its owner to know it again; None: it waits for none.
    :ivar message: how it has ended, and what is left.
    :ivar emptied_at: since when no guest was left to move.
    """

    id: int = 0
    uuid: str
    host: str
    reason: str | None = None
    order: str = DrainOrder.REQUESTED.value
    priorities: dict[str, int] | None = None
    priority: int = 0
    parallel: int | None = None
    max_attempts: int = 3
    destinations: list[str] | None = None
    planned: dict[str, str] | None = None
    deadline: datetime.datetime | None = None
    include_stopped: bool = False
    spread: bool = False
    locked: str = Locked.STAY.value
    only_guests: list[str] | None = None
    retry_of: str | None = None
    requested_by: str | None = None
    project_id: str | None = None
    request_id: str | None = None
    status: str = DrainStatus.ACCEPTED.value
    direction: str = Direction.AWAY.value
    paused: bool = False
    has_disabled_host: bool = False
    cancel_requested_at: datetime.datetime | None = None
    cancel_requested_by: str | None = None
    cancel_running: bool = False
    owner: str | None = None
    epoch: int = 0
    log_seq: int = 0
    checks: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    waits_for: str | None = None
    wait_error: str | None = None
    message: str | None = None
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None
    began_at: datetime.datetime | None = None
    emptied_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether the drain has ended."""
        return self.status in DRAIN_ENDS

    @property
    def how_it_ends(self) -> str:
        """What lets a drain in progress end, for a user."""
        return 'resume it, or cancel it' if self.paused else 'wait until it has ended, or cancel it first'

    @property
    def shown_status(self) -> str:
        """The status for a user: besides the column, ``paused``, ``cancelling`` and ``restoring``."""
        if self.ended:
            return self.status
        if self.cancel_requested_at is not None:
            return 'cancelling'
        if self.paused:
            return 'paused'
        return 'restoring' if self.direction == Direction.BACK else self.status


def check_drain_move(drain: Drain, new: str) -> None:
    """Raise unless the table of legal moves allows a drain to change its status so.

    :raises migrator.exception.IllegalMoveOfDrain: the table has no such row.
    """
    if (DrainStatus(drain.status), DrainStatus(new)) not in LEGAL_DRAIN_MOVES:
        raise exception.IllegalMoveOfDrain(what='The status', drain=drain.uuid, old=drain.status, new=new)


def check_member_move(drain: Drain, old: str, new: str) -> None:
    """Raise unless the table of legal moves allows a member of a drain to change its status so.

    :raises migrator.exception.IllegalMoveOfDrain: the table has no such row.
    """
    if (MemberStatus(old), MemberStatus(new)) not in LEGAL_MEMBER_MOVES:
        raise exception.IllegalMoveOfDrain(what='A member', drain=drain.uuid, old=old, new=new)


@dataclasses.dataclass(frozen=True)
class Hints:
    """The hosts that a drain allows or avoids as the destination of one of its guests.

    :ivar only: the hosts that may receive it; None: any.
    :ivar first: the host that a plan has given it, which comes first; None: none, or it has failed there.
    :ivar later: the hosts that come after any other candidate, in this order: those that are worked on later in the
        same maintenance, then those where it has failed.
    """

    only: Sequence[str] | None
    later: Sequence[str]
    first: str | None = None


def check_priorities(drain: Drain, guests: Collection[str]) -> None:
    """Raise unless the order and the priorities of a drain fit together, and name guests of its host.

    :raises migrator.exception.Invalid: they do not.
    """
    if (drain.order == DrainOrder.PRIORITY) != bool(drain.priorities):
        raise exception.Invalid(
            f'Invalid input for priorities: the order is {drain.order}. Give the order priority and at least one '
            'guest in priorities, or neither.'
        )
    for uuid in drain.priorities or ():
        if uuid not in guests:
            raise exception.Invalid(f'Invalid input for priorities: {uuid} is no guest of {drain.host}.')


def disabled_reason(drain: Drain) -> str:
    """Return the reason with which a drain disables its host."""
    return base.text(f'drain {drain.uuid}' + (f': {drain.reason}' if drain.reason else ''), 255)


def count_members(members: Sequence[Member]) -> dict[str, int]:
    """Return status -> the number of members with it. A status without members has 0."""
    counts = dict.fromkeys((status.value for status in MemberStatus), 0)
    for member in members:
        counts[member.status] += 1
    return counts


@dataclasses.dataclass(frozen=True)
class Tally:
    """How many guests a drain has moved, or a restore has brought back.

    :ivar total: the number of its guests. What the drain had not moved is no part of the restore.
    :ivar left: how many have not moved, or are not back, and have not gone.
    """

    done: int
    total: int
    left: int

    @classmethod
    def of(cls, direction: str, counts: Mapping[str, int]) -> Tally:
        """Return the tally of a drain.

        :param counts: status -> the number of its guests with it.
        """
        done, gone, total = counts[MemberStatus.MOVED], counts[MemberStatus.GONE], sum(counts.values())
        return cls(done, total - gone if direction == Direction.BACK else total, total - done - gone)


def place(drain: Drain, member: Member) -> tuple[int, int]:
    """Return the sort key of a member in the order of its drain."""
    if drain.order == DrainOrder.LARGEST_FIRST:
        return -member.size_mb, member.position
    if drain.order == DrainOrder.SMALLEST_FIRST:
        return member.size_mb, member.position
    if drain.order == DrainOrder.PRIORITY:
        return -(drain.priorities or {}).get(member.instance_uuid, 0), member.position
    return 0, member.position
