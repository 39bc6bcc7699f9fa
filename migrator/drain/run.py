# SPDX-License-Identifier: Apache-2.0

"""The run of a drain: :func:`advance` requests the migrations of its members, and ends the drain.

Each call reads everything again, so a drain has no state besides its rows. The mark that identifies a migration is
committed before the migration is requested. So the next owner finds that migration, or requests the same one.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from migrator.drain.engine import Check, Engine, Guest, Move, MoveState, ObstacleKind, Refused, Store
from migrator.objects import base
from migrator.objects.drain import (
    NOT_MOVED,
    Direction,
    Drain,
    DrainStatus,
    Member,
    MemberStatus,
    check_drain_move,
    check_member_move,
    place,
)

_M = MemberStatus
#: Seconds before the second attempt of a guest. Each further pause is four times as long.
FIRST_PAUSE, FACTOR = 15.0, 4
#: The longest pause between two attempts, in seconds.
LONGEST_PAUSE = 3600.0
#: The attempts after which a guest is given up that its own check refuses. The first refusal may be an accident.
REFUSALS = 2
#: Seconds before the next look at a guest whose migration was refused because another task of it is in progress.
BUSY_PAUSE = 5.0
#: Seconds between two requests of a drain that has at least two migrations in progress.
SPACING = 3.0
#: Seconds that a drain with no guest left to move waits until its host is empty. Cleanups may be pending.
REMAINS = 300.0
#: Seconds for which a drain is left alone that waits, and of which no migration is in progress.
LONGEST_REST = 5.0
#: The greatest number of guests that the message names.
_NAMED = 20


class Advanced(NamedTuple):
    """A drain after :func:`advance`.

    :ivar drain: as written.
    :ivar rest: seconds for which a further call would change nothing, as far as is known.
    """

    drain: Drain
    rest: float = 0.0


def advance(store: Store, engine: Engine, drain: Drain, is_whole: bool = True) -> Advanced:
    """Advance a drain as far as possible now.

    :param drain: a drain in progress, as its owner has read it.
    :param is_whole: whether to compare the members with the guests of the host even if some are left to move. The news
        of one migration changes none of the others.
    :raises migrator.exception.NotOwnerOfDrain: another conductor owns it now, or a user has requested a change since it
        was read.
    :raises migrator.exception.ServiceUnreachable: the engine or the store did not answer; try again later.
    """
    run = _Run(store, engine, drain)
    if drain.status == DrainStatus.ACCEPTED:
        run.begin()
        if run.drain.ended:
            return Advanced(run.drain)
    run.look()
    run.update_members(is_whole)
    if run.drain.cancel_requested_at is not None:
        run.cancel()
    else:
        run.request_migrations()
    run.end()
    return Advanced(run.drain, _rest(run))


class _Run:
    """One call of :func:`advance`: the drain, its members, and what the next commit writes."""

    def __init__(self, store: Store, engine: Engine, drain: Drain) -> None:
        self._store, self._engine, self.drain = store, engine, drain
        self.now = store.now()
        self._members = {member.instance_uuid: member for member in store.read_members(drain.uuid)}
        self._moves: dict[str, Move] = collections.defaultdict(lambda: Move(MoveState.UNKNOWN))
        self._changed: dict[str, Member] = {}
        self._fields: dict[str, Any] = {}
        self._events: list[tuple[str, dict[str, Any]]] = []
        self.has_asked = False

    # --- what the next commit writes ---------------------------------------------------------------------------------

    def _change(self, member: Member, **values: Any) -> Member:
        """Change a member in the next commit. A new status is an event of the drain's log."""
        if 'reason' in values:
            values = {'remedy': None, **values}
        new = member.replace(**values)
        if new.status != _M.MOVING:
            new = new.replace(progress=None)
        if new.status != member.status and member.instance_uuid in self._members:
            check_member_move(self.drain, member.status, new.status)
        if new.status in (_M.MOVED, _M.FAILED, _M.GONE, _M.CANCELLED) and not member.ended:
            new = new.replace(ended_at=new.ended_at or self.now, not_before=None)
        if (new.status, new.reason) != (member.status, member.reason) or new.instance_uuid not in self._members:
            self._events.append(('member', new.event()))
        if new != member or new.instance_uuid not in self._members:
            self._members[new.instance_uuid] = self._changed[new.instance_uuid] = new
        return new

    def _will(self, **fields: Any) -> None:
        for name, value in fields.items():
            if getattr(self.drain, name) != value:
                self._fields[name] = value
                if name == 'status':
                    check_drain_move(self.drain, value)
                    self._events.append(('status', {'status': value, 'message': fields.get('message')}))

    def _commit(self) -> None:
        if not (self._fields or self._changed or self._events):
            return
        self.drain = self._store.write(self.drain, self._fields, list(self._changed.values()), self._events)
        self._fields, self._changed, self._events = {}, {}, []

    def members_with(self, *statuses: MemberStatus) -> list[Member]:
        return [member for member in self._members.values() if member.status in statuses]

    @property
    def _goes_back(self) -> bool:
        return self.drain.direction == Direction.BACK

    # --- the parts of a run, in their order --------------------------------------------------------------------------

    def begin(self) -> None:
        """Disable the host, or enable it for a restore. If there is no such host, end the drain."""
        refusal = None
        if self._goes_back:
            if self.drain.has_disabled_host:
                self._engine.enable(self.drain)
            self._will(has_disabled_host=False)
        else:
            try:
                self._will(has_disabled_host=self._engine.disable(self.drain))
            except Refused as error:
                refusal = str(error)
        self._will(status=DrainStatus.RUNNING.value, began_at=self.now)
        self._commit()
        if refusal is not None:
            self._finish(DrainStatus.INCOMPLETE, refusal)
            self._commit()

    def look(self) -> None:
        """Copy the states of the requested migrations into the members."""
        moving = self.members_with(_M.MOVING)
        self._moves |= self._engine.look(moving) if moving else {}
        for member in moving:
            self._take(member, self._moves[member.instance_uuid])

    def _take(self, member: Member, move: Move) -> None:
        match move.state:
            case MoveState.MOVED:
                values = {'destination': move.destination, 'reason': move.reason, 'ended_at': move.ended_at}
                self._change(member, status=_M.MOVED.value, **values)
            case MoveState.FAILED:
                self._fail(member, move)
            case MoveState.CANCELLED:
                self._change(member, status=_M.CANCELLED.value, reason=move.reason or 'Its migration was aborted.')
            case MoveState.BLOCKED:
                self._change(member, status=_M.BLOCKED.value, reason=move.reason)
            case MoveState.GONE:
                self._change(member, status=_M.GONE.value, reason=move.reason)
            case MoveState.PENDING | MoveState.RUNNING:
                self._change(member, reason=move.waits_for, progress=move.progress)
            case MoveState.UNKNOWN:
                pass  # it is requested again, unless the drain is being cancelled

    def _fail(self, member: Member, move: Move) -> None:
        """Decide whether a guest is tried again."""
        reason = f'{(move.reason or "Its migration failed").rstrip(".")}.'
        tried = sorted({*member.tried, *move.tried})
        if move.unanswered:
            self._change(
                member,
                status=_M.WAITING.value,
                reason=f'{reason} This is not counted as an attempt. The drain tries again by itself.',
                attempts=member.attempts - 1,
                tried=tried,
                not_before=self._later(FIRST_PAUSE),
            )
        elif move.in_doubt or (move.is_of_guest and member.attempts >= REFUSALS):
            self._change(member, status=_M.FAILED.value, reason=f'{reason} It is not tried again.', tried=tried)
        elif member.attempts >= self.drain.max_attempts:
            gave_up = f'{reason} This was attempt {member.attempts} of {self.drain.max_attempts}.'
            self._change(member, status=_M.FAILED.value, reason=gave_up, tried=tried)
        else:
            pause = min(FIRST_PAUSE * FACTOR ** (member.attempts - 1), LONGEST_PAUSE)
            self._change(
                member,
                status=_M.WAITING.value,
                reason=f'{reason} Attempt {member.attempts + 1} of {self.drain.max_attempts} begins in {pause:.0f} s.',
                tried=tried,
                not_before=self.now + datetime.timedelta(seconds=pause),
            )

    def update_members(self, is_whole: bool) -> None:
        """Compare the members with the guests that are there, and with what is in their way.

        :param is_whole: as in :func:`advance`.
        """
        if not is_whole and self.members_with(_M.WAITING, _M.MOVING):
            return
        if self._goes_back:
            wanted = [member.instance_uuid for member in self.members_with(_M.WAITING, _M.BLOCKED)]
            found = {guest.uuid: guest for guest in self._engine.find(self.drain, wanted)}
        else:
            found = {guest.uuid: guest for guest in self._engine.guests(self.drain)}
            only = self.drain.only_guests
            for guest in found.values():
                if only is None or guest.uuid in only:
                    self._join(guest)
        # A guest that has failed may have been moved since by an operator.
        for member in self.members_with(_M.WAITING, _M.BLOCKED, *(() if self._goes_back else (_M.FAILED,))):
            guest_or_none = found.get(member.instance_uuid)
            left = self._why_gone(member, guest_or_none)
            if left is not None:
                self._change(member, status=_M.GONE.value, reason=left)
                continue
            if member.status == _M.FAILED:
                continue
            assert guest_or_none is not None
            member = self._change(member, is_cold=guest_or_none.is_cold)
            obstacle = guest_or_none.obstacle
            if obstacle is not None and obstacle.kind != ObstacleKind.BUSY:
                self._change(member, status=_M.BLOCKED.value, reason=str(obstacle), remedy=obstacle.remedy or None)
            elif member.status == _M.BLOCKED:
                self._change(member, status=_M.WAITING.value, reason=None if obstacle is None else str(obstacle))
            elif obstacle is not None and (member.not_before is None or member.not_before <= self.now):
                self._change(member, reason=str(obstacle), not_before=self._later(BUSY_PAUSE))

    def _join(self, guest: Guest) -> None:
        """Make a guest of the host a member. A member whose guest has come back waits again."""
        member = self._members.get(guest.uuid)
        if member is None:
            new = Member(
                instance_uuid=guest.uuid,
                name=guest.name,
                size_mb=guest.size_mb,
                is_cold=guest.is_cold,
                position=len(self._members) + 1,
            )
            self._change(new, source=guest.host)
        elif member.status in (_M.GONE, _M.MOVED):
            self._change(
                member, status=_M.WAITING.value, reason=None, attempts=0, tried=[], destination=None, ended_at=None
            )

    def _why_gone(self, member: Member, guest: Guest | None) -> str | None:
        """Return why a member needs no migration any more, or None if it does."""
        if not self._goes_back:
            return None if guest is not None else 'It has left the host without this drain, or was deleted.'
        if guest is None:
            return 'It was deleted.'
        return None if guest.host == member.source else f'It is on {guest.host}, and not where the drain had put it.'

    def _later(self, seconds: float) -> datetime.datetime:
        return self.now + datetime.timedelta(seconds=seconds)

    def cancel(self) -> None:
        """Cancel the members without a migration, and request the abort of the migrations in progress."""
        self._cancel_waiting('The drain was cancelled.')
        for member in self.members_with(_M.MOVING):
            state = self._moves[member.instance_uuid].state
            if state is MoveState.UNKNOWN:
                self._change(member, status=_M.CANCELLED.value, reason='The drain was cancelled.')
            elif state is MoveState.PENDING or self.drain.cancel_running:
                self._engine.abort(self.drain, member)
        self._commit()

    def _cancel_waiting(self, reason: str) -> None:
        for member in self.members_with(_M.WAITING, _M.BLOCKED):
            kept = f'{reason} {member.reason}' if member.status == _M.BLOCKED and member.reason else reason
            self._change(member, status=_M.CANCELLED.value, reason=kept)

    def request_migrations(self) -> None:
        """Request the migrations that are due, after a commit of their marks."""
        drain = self.drain
        moving = self.members_with(_M.MOVING)
        again = [member for member in moving if self._moves[member.instance_uuid].state is MoveState.UNKNOWN]
        passed = drain.deadline if drain.deadline is not None and self.now >= drain.deadline else None
        if drain.paused or passed is not None:
            # Their requests were lost. A repetition would be a further migration.
            for member in again:
                self._change(member, status=_M.WAITING.value, attempts=member.attempts - 1, reason=None)
            again = []
        if passed is not None:
            self._cancel_waiting(f'The deadline, {passed:%Y-%m-%d %H:%M:%S} UTC, has passed.')
        chosen = list(self._due())
        if chosen:
            marks = self._engine.marks(chosen)
            # Those that wait longer do not count: they come later.
            ends = self._engine.expected_ends(drain, [*self.members_with(_M.MOVING), *chosen])
            for member in chosen:
                self._change(
                    member,
                    status=_M.MOVING.value,
                    mark=marks[member.instance_uuid],
                    attempts=member.attempts + 1,
                    began_at=member.began_at or self.now,
                    not_before=None,
                    reason=None,
                )
                if member.instance_uuid in ends:
                    self._events[-1][1]['expected_end'] = ends[member.instance_uuid]
        self._commit()
        for member in (*again, *chosen):
            self.has_asked = True
            self._ask(self._members[member.instance_uuid])
        self._commit()

    def _due(self) -> Iterator[Member]:
        """Yield the members whose migrations are requested now, in the order of the drain."""
        if self.drain.paused:
            return
        waiting = self.members_with(_M.WAITING)
        if not waiting:
            return
        free = self._free()
        for member in sorted(waiting, key=lambda member: place(self.drain, member)):
            if free <= 0:
                return
            if member.not_before is None or member.not_before <= self.now:
                free -= 1
                yield member

    def _free(self) -> int:
        """Return how many further migrations may be requested now.

        Only one migration of a drain at a time may be requested but not running yet. So drains that begin together get
        equal shares of the slots at the destinations. And a guest that is prepared ahead gets a destination to which
        none of the others is on its way.

        The third and further ones are requested a few seconds apart. A conductor learns at once that a copy of its own
        migration has begun, and of another conductor's at its next poll. So without a pause some drains would take many
        slots before the others ask for their third.
        """
        bound, moving = self._engine.bound(self.drain), self.members_with(_M.MOVING)
        recently = self._later(-SPACING)
        if len(moving) >= 2 and any(member.began_at is not None and member.began_at > recently for member in moving):
            return 0
        moves = [self._moves[member.instance_uuid] for member in moving]
        stuck = sum(move.is_stuck for move in moves)
        on_its_way = [move for move in moves if move.state is not MoveState.RUNNING]
        pending = sum(not move.is_stuck and not move.waits_for_slot for move in on_its_way)
        # Stuck migrations hold back no others, unless they are as many as may be in progress.
        return min(bound - len(moving) + min(stuck, bound), 1 - pending)

    def _ask(self, member: Member) -> None:
        try:
            mark = self._engine.ask(self.drain, member, self.drain.host if self._goes_back else None)
            self._change(member, mark=mark or member.mark)
        except Refused as error:
            kind = error.obstacle.kind
            if kind in (ObstacleKind.NO_DESTINATION, ObstacleKind.IMMOVABLE):  # it may never end by itself
                reason = str(error.obstacle).strip()
                self._fail(member, Move(MoveState.FAILED, reason=reason, is_of_guest=kind == ObstacleKind.IMMOVABLE))
                return
            is_busy = kind == ObstacleKind.BUSY
            self._change(
                member,
                status=(_M.WAITING if is_busy else _M.BLOCKED).value,
                reason=str(error.obstacle),
                attempts=member.attempts - 1,
                not_before=self._later(BUSY_PAUSE),
            )

    def end(self) -> None:
        """End the drain if no member waits or moves. Check first whether the host is empty."""
        if self.members_with(_M.WAITING, _M.MOVING):
            self._will(waits_for=self._why_waiting(), wait_error=None, emptied_at=None)
            self._commit()
            return
        left = self.members_with(_M.BLOCKED, _M.FAILED, _M.CANCELLED)
        if self.drain.cancel_requested_at is not None:
            self._end_cancelled()
        elif self.drain.paused and self.members_with(_M.BLOCKED):
            waits_for = f'It is paused. When it is resumed, it goes on or ends.{_names(left)}'
            self._will(waits_for=waits_for, wait_error=None)
        elif self._goes_back:
            message = _how_many_are_back(self.drain, self._members.values(), left)
            if left:
                message += ' Remove what keeps these guests away, then restore the drain again.'
            self._finish(DrainStatus.INCOMPLETE if left else DrainStatus.RESTORED, message)
        else:
            self._end_if_empty(left)
        self._commit()

    def _why_waiting(self) -> str | None:
        """Return what the drain waits for while nothing gets on, or None."""
        moving, waiting = self.members_with(_M.MOVING), self.members_with(_M.WAITING)
        if self.drain.cancel_requested_at is not None:
            return f'The migrations in progress have to end first: {len(moving)}.'
        moves = self._moves
        held = [one for one in moving if moves[one.instance_uuid].is_stuck or moves[one.instance_uuid].waits_for_slot]
        if len(held) < len(moving) or (self.drain.paused and not moving):
            return None
        named = next((one for one in (*held, *waiting) if one.reason), None)
        number = base.count(len(held) + len(waiting), 'guest waits', 'guests wait')
        return f'{number}. {named.name}: {named.reason}' if named is not None else None

    def _end_cancelled(self) -> None:
        message = (
            f'Cancelled; {len(self.members_with(_M.MOVED))} of {base.count(len(self._members), "guest")} had moved.'
        )
        if self._goes_back:
            left = self.members_with(_M.BLOCKED, _M.FAILED, _M.CANCELLED)
            message = f'Cancelled. {_how_many_are_back(self.drain, self._members.values(), left)}'
        if self.drain.has_disabled_host and not self._goes_back:
            is_enabled = self._engine.enable(self.drain)
            self._will(has_disabled_host=False)
            stays = 'is enabled again' if is_enabled else 'stays disabled: the reason was changed meanwhile'
            message += f' {self.drain.host} {stays}.'
        self._finish(DrainStatus.CANCELLED, message)

    def _end_if_empty(self, left: Sequence[Member]) -> None:
        checks = self._engine.check_empty(self.drain.host)
        self._will(checks=[dataclasses.asdict(check) | {'left': list(check.left)} for check in checks])
        remains = [check for check in checks if check.left]
        gone = self.members_with(_M.MOVED)
        moved = f'{len(gone)} of {base.count(len(self._members), "guest")} moved.'
        moved += _names([member for member in gone if member.reason], 'To check')
        if not remains:
            self._finish(DrainStatus.COMPLETED, f'{moved} {self.drain.host} is empty. {self._engine.stays}')
            return
        since = self.drain.emptied_at or self.now
        if not left and self.now - since < datetime.timedelta(seconds=REMAINS):
            lasts = f'If this lasts {REMAINS:.0f} s, the drain ends incomplete.'
            waits_for = f'No guest is left to move, but {self.drain.host} is not empty: {_remains(remains)}. {lasts}'
            self._will(emptied_at=since, waits_for=waits_for, wait_error=None)
            return
        stays = f'{self.drain.host} stays disabled. {self._engine.again}'
        # The guests that are left are named with their reasons.
        others = _remains(_without(remains, left))
        found = f'is not empty: {others}' if others else 'is not empty'
        message = f'{moved} {self.drain.host} {found}.{_names(left)} {stays}'
        self._finish(DrainStatus.INCOMPLETE, message)

    def _finish(self, status: DrainStatus, message: str) -> None:
        self._will(status=status.value, message=message, waits_for=None, wait_error=None, ended_at=self.now)


def _rest(run: _Run) -> float:
    """Return for how many seconds nothing is due.

    Something may be due at once after a request, while a migration is in progress, and while the host gets empty.
    """
    if run.has_asked or run.drain.emptied_at is not None or run.members_with(_M.MOVING):
        return 0.0
    due = [one.not_before for one in run.members_with(_M.WAITING)] + [run.drain.deadline]
    return min([LONGEST_REST, *((at - run.now).total_seconds() for at in due if at is not None and at > run.now)])


def _how_many_are_back(drain: Drain, members: Collection[Member], left: Sequence[Member]) -> str:
    """Return in words how many guests a restore has brought back, and why the others are elsewhere."""
    moved = [member for member in members if member.reason != NOT_MOVED]
    elsewhere = [member for member in moved if member.status == _M.GONE]
    back = sum(member.status == _M.MOVED for member in moved)
    return f'{back} of {base.count(len(moved), "guest")} came back to {drain.host}.{_names([*left, *elsewhere])}'


def _remains(checks: Sequence[Check]) -> str:
    return '; '.join(f'{check.what}: {", ".join(check.left)}' for check in checks)


def _without(checks: Sequence[Check], guests: Sequence[Member]) -> list[Check]:
    """Return what checks have found besides some guests."""
    uuids = [guest.instance_uuid for guest in guests]
    others = (dataclasses.replace(one, left=[item for item in one.left if not _has(item, uuids)]) for one in checks)
    return [one for one in others if one.left]


def _has(text: str, uuids: Sequence[str]) -> bool:
    return any(uuid in text for uuid in uuids)


def _names(left: Sequence[Member], what: str = 'Left') -> str:
    if not left:
        return ''
    named = ' '.join(f'{member.name}: {member.reason}' for member in left[:_NAMED])
    more = f' And {len(left) - _NAMED} more.' if len(left) > _NAMED else ''
    return f' {what}: {named}{more}'
