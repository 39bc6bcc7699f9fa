# SPDX-License-Identifier: Apache-2.0

"""A maintenance and the turn of each of its hosts: their rows, and the tables of legal moves.

A host waits, is drained, worked on, and used again. Its turn is the row that has this.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Iterable
from typing import Any

from migrator.drain.maintenance import errors
from migrator.objects import base


class MaintenanceStatus(enum.StrEnum):
    """The status of a maintenance."""

    RUNNING = 'running'
    #: Every turn has ended, none has failed, and none was left out for the deadline.
    COMPLETED = 'completed'
    #: Some turns have failed, or were skipped for the deadline.
    INCOMPLETE = 'incomplete'
    CANCELLED = 'cancelled'


class TurnStatus(enum.StrEnum):
    """The status of a host in its maintenance."""

    WAITING = 'waiting'
    #: Its guests leave.
    DRAINING = 'draining'
    #: It is empty, and its work may begin.
    READY = 'ready'
    #: A user has claimed it for its work.
    WORKING = 'working'
    #: The work has ended, and the host has to show that it is back.
    RETURNING = 'returning'
    DONE = 'done'
    SKIPPED = 'skipped'
    FAILED = 'failed'


class ReturnedBy(enum.StrEnum):
    """What shows that a host is back."""

    #: It runs since another start of its kernel.
    REBOOT = 'reboot'
    #: Its compute service runs since another start.
    RESTART = 'restart'
    #: Its compute service has reported for some time without a gap.
    REPORT = 'report'


class Prefer(enum.StrEnum):
    """What counts more if a further host could leave service, and some of its guests would move twice."""

    #: It leaves service, so that the maintenance ends sooner.
    TIME = 'time'
    #: It waits until another host is done that takes them.
    MOVES = 'moves'


class Guests(enum.StrEnum):
    """What becomes of the guests of a host that is back."""

    STAY = 'stay'
    #: They are brought back before the host is done.
    BACK = 'back'


class Stopped(enum.StrEnum):
    """What becomes of guests that are shut off."""

    MOVE = 'move'
    STAY = 'stay'


_S, _T = MaintenanceStatus, TurnStatus

#: The statuses in which a maintenance has ended.
ENDS = frozenset({_S.COMPLETED, _S.INCOMPLETE, _S.CANCELLED})
#: The statuses in which something goes on at a host.
GOING_ON = (_T.DRAINING, _T.READY, _T.WORKING, _T.RETURNING)
#: The statuses in which a turn has ended.
TURN_ENDS = frozenset({_T.DONE, _T.SKIPPED, _T.FAILED})

#: (from, to) -> the cause. The status of a maintenance changes only along this table.
LEGAL_MOVES: dict[tuple[MaintenanceStatus, MaintenanceStatus], str] = {
    (_S.RUNNING, _S.COMPLETED): 'every turn has ended, and none has failed',
    (_S.RUNNING, _S.INCOMPLETE): 'every turn has ended, and some hosts were not worked on',
    (_S.RUNNING, _S.CANCELLED): 'a user has cancelled it, and every turn has ended',
    (_S.INCOMPLETE, _S.RUNNING): 'a user retries a host, or has it used again',
    (_S.CANCELLED, _S.RUNNING): 'a user has a host used again that has failed',
}

#: (from, to) -> the cause. The status of a turn changes only along this table.
LEGAL_TURN_MOVES: dict[tuple[TurnStatus, TurnStatus], str] = {
    (_T.WAITING, _T.DRAINING): 'it is its turn, and the limits allow it',
    (_T.WAITING, _T.RETURNING): 'it is left out, and is out of service since an earlier try',
    (_T.WAITING, _T.SKIPPED): 'a user skips it, the maintenance was cancelled, or it would end after the deadline',
    (_T.WAITING, _T.FAILED): 'its guests cannot move, or the other hosts have had no room for them',
    (_T.DRAINING, _T.READY): 'its drain has ended, and it is empty',
    (_T.DRAINING, _T.RETURNING): 'the maintenance was cancelled',
    (_T.DRAINING, _T.FAILED): 'its drain has left something, or the host has died',
    (_T.READY, _T.WORKING): 'a user has claimed it',
    (_T.READY, _T.RETURNING): 'the maintenance was cancelled, or a user skips it',
    (_T.READY, _T.FAILED): 'the host has died',
    (_T.WORKING, _T.RETURNING): 'its work has ended, or had nothing to do',
    (_T.WORKING, _T.FAILED): 'its work has failed',
    (_T.RETURNING, _T.DONE): 'it is back after its work',
    (_T.RETURNING, _T.SKIPPED): 'nothing was done at it',
    (_T.RETURNING, _T.FAILED): 'it has not come back in time',
    (_T.FAILED, _T.WAITING): 'a user retries it',
    (_T.FAILED, _T.RETURNING): 'a user skips it, and it may have guests again',
    (_T.FAILED, _T.SKIPPED): 'a user skips it, and it stays disabled',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn(base.Versioned):
    """A host of a maintenance. Times are UTC.

    :ivar position: its place in the order of the request.
    :ivar group: at most :attr:`Maintenance.per_group` hosts of one group are out of service; '': of no group.
    :ivar is_out: whether it is out of service: from before this maintenance disables it until it is enabled again. One
        that returns and is not out gets its guests back.
    :ivar drain: the drain that empties it, committed before that is requested.
    :ivar last_drain: the drain of an earlier try, which may have disabled it.
    :ivar moves: guest -> the destination that the plan has given it.
    :ivar claim: identifies its work, or without ``claimed_at`` the last one; None: no user has claimed it.
    :ivar kernel: the start of its kernel when it was claimed; None: it reports none.
    :ivar boot: the start of its compute service when it was claimed.
    :ivar was_worked_on: whether the work has done something, so that the host has to show that it is back.
    :ivar work_ended_at: when a user has said that the work has ended.
    :ivar waits_since: since when it may come back; None: since its work has ended.
    :ivar settles_from: since when the host has reported without a gap, after its work.
    :ivar seen_at: before its work, when a look last found that it reports; after it, the newest report that was seen.
    :ivar reason: why it waits, has failed or was skipped.
    """

    host: str
    position: int = 0
    group: str = ''
    status: str = TurnStatus.WAITING.value
    is_out: bool = False
    drain: str | None = None
    last_drain: str | None = None
    moves: dict[str, str] = dataclasses.field(default_factory=dict)
    claim: str | None = None
    claimed_by: str | None = None
    claimed_at: datetime.datetime | None = None
    kernel: str | None = None
    boot: str | None = None
    was_worked_on: bool = False
    work_ended_at: datetime.datetime | None = None
    waits_since: datetime.datetime | None = None
    settles_from: datetime.datetime | None = None
    seen_at: datetime.datetime | None = None
    began_at: datetime.datetime | None = None
    ready_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None
    reason: str | None = None

    @property
    def held_by(self) -> str | None:
        """The claim of its work; None: it has none, or only that of an earlier try."""
        return self.claim if self.claimed_at is not None else None

    @property
    def ended(self) -> bool:
        """Whether the maintenance has nothing more to do for it."""
        return self.status in TURN_ENDS

    @property
    def counts(self) -> bool:
        """Whether it counts as out of service, also while it gets its guests back."""
        return self.is_out or self.status == TurnStatus.RETURNING


@dataclasses.dataclass(frozen=True, kw_only=True)
class Maintenance(base.Versioned):
    """Hosts that are emptied, worked on and used again, some at a time. Times are UTC.

    Durations are in seconds.

    :ivar in_order: whether the hosts leave service in the order of the request. Otherwise a plan with few moves does.
    :ivar prefer: whether a further host is begun if some of its guests would move twice.
    :ivar parallel: the greatest number of its hosts that are out of service at a time.
    :ivar groups: host -> its group, also of hosts that are not worked on but are out of service at times.
    :ivar per_group: the same for each group; None: any number.
    :ivar max_failures: after how many failed turns it still goes on.
    :ivar deadline: a host is begun only if it is expected to be back by then.
    :ivar window: the same for each day, such as ``22:00-06:00 Europe/Prague``.
    :ivar reserve: resource class -> what has to be free on the hosts in service together.
    :ivar wait_for_room: after how long a host fails for which the others have no room; None: never.
    :ivar settle: for how long a host has to report; None: twice ``service_down_time``.
    :ivar work_timeout: after how long a claim is shown as lapsed.
    :ivar return_timeout: after how long a host fails that does not come back, or that is down before its work.
    :ivar guests: what becomes of the guests of a host that is back.
    :ivar stopped: what becomes of guests that are shut off; None: the request has not said, and there were none.
    :ivar despite_trouble: whether hosts are begun although another one has died, or an evacuation runs.
    :ivar of_drains: the further fields of its drains.
    :ivar is_late: whether it has left hosts out for its deadline.
    :ivar forgiven: how many failed turns a user has accepted by resuming it.
    :ivar no_room_since: since when the hosts that wait have no room for their guests.
    :ivar log_seq: rises with each write, by the number of its events or by 1.
    :ivar wait_error: the error for which it waits, for its owner to know it again; None: it waits for none.
    """

    uuid: str
    reason: str | None = None
    in_order: bool = False
    prefer: str = Prefer.TIME.value
    parallel: int = 1
    groups: dict[str, str] = dataclasses.field(default_factory=dict)
    per_group: int | None = None
    max_failures: int = 0
    deadline: datetime.datetime | None = None
    window: str | None = None
    reserve: dict[str, int] = dataclasses.field(default_factory=dict)
    wait_for_room: float | None = None
    returned_by: str = ReturnedBy.REBOOT.value
    settle: float | None = None
    work_timeout: float = 4 * 3600.0
    return_timeout: float = 3600.0
    guests: str = Guests.STAY.value
    stopped: str | None = None
    despite_trouble: bool = False
    of_drains: dict[str, Any] = dataclasses.field(default_factory=dict)
    requested_by: str | None = None
    project_id: str | None = None
    status: str = MaintenanceStatus.RUNNING.value
    paused: bool = False
    forgiven: int = 0
    is_late: bool = False
    cancel_requested_at: datetime.datetime | None = None
    cancel_requested_by: str | None = None
    no_room_since: datetime.datetime | None = None
    owner: str | None = None
    epoch: int = 0
    log_seq: int = 0
    waits_for: str | None = None
    wait_error: str | None = None
    message: str | None = None
    created_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.status in ENDS

    @property
    def shown_status(self) -> str:
        """The status for a user: besides the column, ``paused`` and ``cancelling``."""
        if self.ended:
            return self.status
        if self.cancel_requested_at is not None:
            return 'cancelling'
        return 'paused' if self.paused else self.status


def check_move(maintenance: Maintenance, new: str) -> None:
    """Raise unless the table of legal moves allows a maintenance to change its status so.

    :raises .errors.IllegalMoveOfMaintenance: the table has no such row.
    """
    if (MaintenanceStatus(maintenance.status), MaintenanceStatus(new)) not in LEGAL_MOVES:
        raise errors.IllegalMoveOfMaintenance(
            what='The status', maintenance=maintenance.uuid, old=maintenance.status, new=new
        )


def check_turn_move(maintenance: Maintenance, turn: Turn, new: str) -> None:
    """Raise unless the table of legal moves allows a turn to change its status so.

    :raises .errors.IllegalMoveOfMaintenance: the table has no such row.
    """
    if (TurnStatus(turn.status), TurnStatus(new)) not in LEGAL_TURN_MOVES:
        raise errors.IllegalMoveOfMaintenance(
            what=f'Host {turn.host}', maintenance=maintenance.uuid, old=turn.status, new=new
        )


def has_lapsed(maintenance: Maintenance, turn: Turn, now: datetime.datetime) -> bool:
    """Return whether the claim of a host that is worked on has lapsed."""
    return turn.claimed_at is not None and (now - turn.claimed_at).total_seconds() >= maintenance.work_timeout


def with_status(turns: Iterable[Turn], *statuses: TurnStatus) -> list[Turn]:
    """Return the turns with one of some statuses, in their order."""
    return [turn for turn in turns if turn.status in statuses]
