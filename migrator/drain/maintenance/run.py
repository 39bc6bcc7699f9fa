# SPDX-License-Identifier: Apache-2.0

"""The run of a maintenance: :func:`advance` begins the turns of its hosts, and ends them.

Each call reads everything again, so a maintenance has no state besides its rows. Whatever follows from a row, such as a
drain, is requested after the commit of that row, and can be requested again by the next owner. Two requests come before
their commit, and can be repeated as well: to enable a host, and to cancel the drain of a host that has died.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

from migrator.drain.engine import Check, Refused
from migrator.drain.maintenance import limits, plan, returned
from migrator.drain.maintenance.actions import DECIDE
from migrator.drain.maintenance.engine import Engine, Fleet, Store
from migrator.drain.maintenance.turns import (
    GOING_ON,
    Guests,
    Maintenance,
    MaintenanceStatus,
    Prefer,
    Turn,
    TurnStatus,
    check_move,
    check_turn_move,
    with_status,
)
from migrator.objects import base, times
from migrator.objects.drain import Direction, Drain, DrainStatus

_S, _T = MaintenanceStatus, TurnStatus
_CANCELLED = 'The maintenance was cancelled.'
#: The greatest number of guests or hosts that a reason names.
_NAMED = 10


def advance(store: Store, engine: Engine, maintenance: Maintenance, plans: bool = True) -> Maintenance:
    """Advance a maintenance as far as possible now.

    :param maintenance: a maintenance in progress, as its owner has read it.
    :param plans: whether to look for the next host also if there was no room for its guests at the last look.
    :returns: the maintenance as written.
    :raises .errors.NotOwnerOfMaintenance: another conductor owns it now, or a user has requested a change since it was
        read.
    :raises migrator.exception.ServiceUnreachable: the engine or the store did not answer; try again later.
    """
    run = _Run(store, engine, maintenance, plans)
    run.look()
    if run.maintenance.cancel_requested_at is not None:
        run.skip_waiting(_CANCELLED)
    else:
        run.pause_after_failures()
        run.begin_turns()
    run.end()
    return run.maintenance


class _Run:
    """One call of :func:`advance`: the maintenance, its turns, and what the next commit writes."""

    def __init__(self, store: Store, engine: Engine, maintenance: Maintenance, plans: bool) -> None:
        self._plans = plans
        self._store, self._engine, self.maintenance = store, engine, maintenance
        self._now = store.now()
        self._turns = {turn.host: turn for turn in store.read_turns(maintenance.uuid)}
        self._changed: dict[str, Turn] = {}
        self._fields: dict[str, Any] = {}
        self._events: list[tuple[str, dict[str, Any]]] = []
        self._reports = engine.reports(list(self._turns))

    # --- what the next commit writes ---------------------------------------------------------------------------------

    def _change(self, turn: Turn, **values: Any) -> Turn:
        """Change a turn in the next commit. A new status or reason is an event of the log."""
        new = turn.replace(**values)
        if new.status != turn.status:
            check_turn_move(self.maintenance, turn, new.status)
        if (new.status, new.reason) != (turn.status, turn.reason):
            self._events.append(('turn', {'host': turn.host, 'status': new.status, 'reason': new.reason}))
        if new != turn:
            self._turns[turn.host] = self._changed[turn.host] = new
        return new

    def _finish(self, turn: Turn, status: TurnStatus, reason: str | None = None, **values: Any) -> None:
        self._change(turn, status=status.value, reason=reason, ended_at=self._now, **values)

    def _will(self, **fields: Any) -> None:
        if 'waits_for' in fields:
            fields['wait_error'] = None
        for name, value in fields.items():
            if getattr(self.maintenance, name) != value:
                self._fields[name] = value
                if name == 'status':
                    check_move(self.maintenance, value)
                    self._events.append(('status', {'status': value, 'message': fields.get('message')}))

    def _commit(self) -> None:
        if not (self._fields or self._changed or self._events):
            return
        self.maintenance = self._store.write(self.maintenance, self._fields, list(self._changed.values()), self._events)
        self._fields, self._changed, self._events = {}, {}, []

    def _with(self, *statuses: TurnStatus) -> list[Turn]:
        return with_status(self._turns.values(), *statuses)

    def _passed(self, since: datetime.datetime | None, seconds: float) -> bool:
        return since is not None and (self._now - since).total_seconds() >= seconds

    # --- what has become of each turn --------------------------------------------------------------------------------

    def look(self) -> None:
        """Update each turn from its drain, its work and its host."""
        # A turn that begins to return now is looked at after the commit, since its drain is not accepted from then on.
        draining, returning = self._with(_T.DRAINING), self._with(_T.RETURNING)
        drains = self._engine.drains([turn.drain for turn in draining if turn.drain]) if draining else {}
        for turn in draining:
            self._look_at_drain(turn, drains.get(turn.drain or ''))
        for turn in self._with(_T.READY):
            if self.maintenance.cancel_requested_at is not None:
                self._change(turn, status=_T.RETURNING.value, reason=_CANCELLED)
            else:
                self._look_at_ready(turn)
        for turn in self._with(_T.WORKING):
            if self._passed(turn.claimed_at, self.maintenance.work_timeout):
                span = times.span(self.maintenance.work_timeout)
                who = turn.claimed_by or 'A user'
                why = f'{who} claimed it more than {span} ago. Once the work has ended, report its end with the claim.'
                self._change(turn, reason=why)
        for turn in returning:
            self._look_at_return(turn)
        for turn in self._with(_T.FAILED, _T.SKIPPED, _T.WAITING):
            report = self._reports.get(turn.host)
            if turn.is_out and (report is None or not report.disabled):
                self._change(turn, is_out=False)
        self._commit()

    def _look_at_drain(self, turn: Turn, drain: Drain | None) -> None:
        cancels = self.maintenance.cancel_requested_at is not None
        if drain is None:
            # Its request was lost, or is still on its way. It is sent only while the turn is as it was read.
            if not cancels:
                self._start(turn)
            else:
                self._change(turn, status=_T.RETURNING.value, reason=_CANCELLED)
        elif not drain.ended:
            if cancels and drain.cancel_requested_at is None:
                self._engine.cancel(turn)
            elif not cancels:
                self._fail_if_dead(turn)
        elif cancels:
            self._change(turn, status=_T.RETURNING.value, reason=_CANCELLED)
        elif drain.status == DrainStatus.COMPLETED:
            self._change(turn, status=_T.READY.value, reason=None, ready_at=self._now)
        else:
            # The drain counts guests that are shut off as left. Whether they may stay is this maintenance's to say.
            left = self._engine.left(self.maintenance, turn) if drain.status == DrainStatus.INCOMPLETE else ()
            if drain.status == DrainStatus.INCOMPLETE and is_empty(left):
                self._change(turn, status=_T.READY.value, reason=None, ready_at=self._now)
            else:
                why = (drain.message or f'Its drain is {drain.status}.').removesuffix(self._engine.again).rstrip()
                self._finish(turn, _T.FAILED, f'{why} Clear what is left. {DECIDE}')

    def _look_at_ready(self, turn: Turn) -> None:
        """Say why the work at a host that is ready cannot begin now. After the deadline it is used again."""
        span, report = limits.expected_work(list(self._turns.values())), self._reports.get(turn.host)
        why = limits.why_not_now(self.maintenance, span, self._now)
        if why and limits.is_too_late(self.maintenance, span, self._now):
            self._change(turn, status=_T.RETURNING.value, reason=why)
            self._will(is_late=True)
            return
        if report is not None and not report.disabled:
            why = f'{turn.host} was enabled meanwhile. Disable it, or skip it.'
        why = why or _why_not_beside_others(self._engine, self.maintenance, list(self._turns.values()), turn)
        self._fail_if_dead(turn, why or None)

    def _fail_if_dead(self, turn: Turn, why_not: str | None = None) -> None:
        """End the turn of a host that has died before its work. One that does not report may come back.

        :param why_not: what is said of a host that reports.
        """
        report = self._reports.get(turn.host)
        if report is not None and report.reports:
            # Not at each look: each write makes what a user has read old.
            is_old = turn.seen_at is None or self._passed(turn.seen_at, self._engine.down_time)
            self._change(turn, seen_at=self._now if is_old else turn.seen_at, reason=why_not)
            return
        if report is not None and report.forced_down:
            guests = f' {self._engine.when_dead(turn.host)}' if turn.status == _T.DRAINING else ''
            why = f'{turn.host} was declared down before its work.{guests} {DECIDE}'
        elif self._passed(turn.seen_at, self.maintenance.return_timeout):
            span = times.span(self.maintenance.return_timeout)
            why = f'{turn.host} did not report for {span}, and its work had not begun. Start it. {DECIDE}'
        else:
            self._change(turn, reason=f'{turn.host} does not report. Start its compute service.')
            return
        if turn.status == _T.DRAINING:
            # What becomes of guests whose host has died is no matter of a maintenance.
            self._engine.cancel(turn)
        self._finish(turn, _T.FAILED, why)

    def _look_at_return(self, turn: Turn) -> None:
        if not turn.is_out:
            self._look_at_restore(turn)
            return
        if turn.was_worked_on:
            gap, settle = self._engine.down_time, self.maintenance.settle
            report = self._reports.get(turn.host)
            verdict = returned.judge(
                turn, report, self.maintenance.returned_by, 2 * gap if settle is None else settle, gap
            )
            if not verdict.is_back:
                self._wait_for_return(turn, verdict)
                return
        elif turn.drain is not None and any(not one.ended for one in self._engine.drains([turn.drain]).values()):
            # It was accepted just before the turn was given up.
            self._engine.cancel(turn)
            return
        # A host may be enabled again by a repetition of this, after a crash before the commit.
        is_enabled = self._engine.enable(turn)
        if self.maintenance.guests == Guests.BACK and (turn.drain or turn.last_drain):
            # Guests may go there only once it is not out of service any more.
            self._change(turn, is_out=False)
            return
        status, reason = (_T.DONE, None) if turn.was_worked_on else (_T.SKIPPED, turn.reason)
        if not is_enabled:
            reason = f'{reason or "Its work is done."} It is disabled for another reason. Enable it once that is over.'
        self._finish(turn, status, reason, is_out=False)

    def _look_at_restore(self, turn: Turn) -> None:
        """Bring the guests of a host back, and end its turn once they are."""
        uuid = turn.drain or turn.last_drain or ''
        drain = self._engine.drains([uuid]).get(uuid)
        why = 'The drain that has moved its guests was deleted'
        if drain is not None and (drain.direction != Direction.BACK or not drain.ended):
            refused = self._engine.restore(self.maintenance, turn) if drain.ended else None
            if refused is None:
                waits = f' {drain.waits_for}' if drain.waits_for and not drain.ended else ''
                self._change(turn, reason=f'Its guests come back.{waits}')
                return
            why = refused.rstrip('.')
        elif drain is not None:
            why = '' if drain.status == DrainStatus.RESTORED else (drain.message or f'It is {drain.status}').rstrip('.')
        reason = f'Not all of its guests are back. {why}.' if why else None
        if not self._engine.enable(turn):
            reason = (
                f'{reason or "Its guests are back."} It is disabled for another reason. Enable it once that is over.'
            )
        self._finish(turn, _T.DONE if turn.was_worked_on else _T.SKIPPED, reason)

    def _wait_for_return(self, turn: Turn, verdict: returned.Verdict) -> None:
        report = self._reports.get(turn.host)
        is_forced = report is not None and report.forced_down
        reason = f'It is not back: {verdict.why_not}.'
        since, down_time = turn.waits_since or turn.work_ended_at, self._engine.down_time
        # One that reports is on its way, however late, and one that is forced down is not expected.
        is_given_up = not is_forced and verdict.settles_from is None
        if is_given_up and self._passed(since, self.maintenance.return_timeout):
            span = times.span(self.maintenance.return_timeout)
            self._finish(turn, _T.FAILED, f'{reason} That was so for {span}, and it stays disabled. {DECIDE}')
        else:
            if is_forced and (turn.waits_since is None or self._passed(turn.waits_since, down_time)):
                turn = self._change(turn, waits_since=self._now)
            self._change(turn, reason=reason, settles_from=verdict.settles_from, seen_at=verdict.seen_at)

    def skip_waiting(self, reason: str) -> None:
        """End the turns that have not begun."""
        for turn in self._with(_T.WAITING):
            if turn.is_out:
                self._change(turn, status=_T.RETURNING.value, reason=reason)
            else:
                self._finish(turn, _T.SKIPPED, reason)

    # --- what begins -------------------------------------------------------------------------------------------------

    def pause_after_failures(self) -> None:
        """Pause after more failures than are allowed."""
        failed = self._with(_T.FAILED)
        if len(failed) > self.maintenance.max_failures + self.maintenance.forgiven and not self.maintenance.paused:
            names = ', '.join(turn.host for turn in failed[:_NAMED])
            message = (
                f'{base.count(len(failed), "host")} failed: {names}. The maintenance is paused. Retry or skip each of '
                'them, then resume the maintenance; or cancel it.'
            )
            self._will(paused=True, message=message)
            self._commit()

    def begin_turns(self) -> None:
        """Begin the turns that the limits and the room allow."""
        while waiting := self._with(_T.WAITING):
            why = self._why_none(waiting)
            if why is not None:
                self._will(waits_for=why, no_room_since=None)
                return
            if not self._begin_next(waiting):
                return
        self._will(waits_for=None, no_room_since=None)

    def _why_none(self, waiting: Sequence[Turn]) -> str | None:
        """Return why no host may be begun now; None: one may.

        After the deadline, the hosts that wait are left out once no host is out of service.
        """
        if self.maintenance.paused:
            return self.maintenance.message or 'It is paused: resume it, or cancel it.'
        span = limits.expected(list(self._turns.values()))
        why = limits.why_not_now(self.maintenance, span, self._now)
        if why and limits.is_too_late(self.maintenance, span, self._now) and not self._with(*GOING_ON):
            self.skip_waiting(why)
            self._will(is_late=True)
        return why or None

    def _begin_next(self, waiting: Sequence[Turn]) -> bool:
        """Begin the turn that comes next, and return whether to look for a further one."""
        turns = list(self._turns.values())
        ours = [limits.why_too_many(self.maintenance, turns, {}, {}, turn) for turn in waiting]
        if all(ours):
            # Without a look at all hosts and guests.
            self._will(waits_for=ours[0], no_room_since=None)
            return False
        fleet = self._engine.fleet(self.maintenance)
        if fleet.trouble and not self.maintenance.despite_trouble:
            self._will(waits_for=f'{fleet.trouble[0]} No host is begun meanwhile.', no_room_since=None)
            return False
        whys = {turn.host: self._why_not(fleet, turns, turn) for turn in waiting}
        allowed = [host for host, why in whys.items() if not why]
        if not allowed:
            self._will(waits_for=whys[waiting[0].host], no_room_since=None)
            return False
        if not self._plans and self.maintenance.no_room_since is not None:
            return False
        step = self._next_step(fleet, waiting, allowed)
        if not step.fits:
            return self._wait_for_room(step)
        busy = [turn.host for turn in self._with(*GOING_ON)]
        if step.again and busy and self.maintenance.prefer == Prefer.MOVES:
            twice = base.count(len(step.again), 'guest')
            why = f'{twice} of {step.host} would move twice. The next host to be done takes guests: {busy[0]}.'
            self._will(waits_for=why, no_room_since=None)
            return False
        if stay := self._engine.immovable(self.maintenance, self._turns[step.host]):
            return self._fail_before(self._turns[step.host], stay)
        turn = self._change(
            self._turns[step.host],
            status=_T.DRAINING.value,
            is_out=True,
            drain=self._engine.new_uuid(),
            moves=dict(step.moves),
            began_at=self._now,
            seen_at=self._now,
            reason=None,
        )
        self._will(waits_for=None, no_room_since=None)
        self._commit()
        self._start(turn)
        self.pause_after_failures()
        return not self.maintenance.paused

    def _why_not(self, fleet: Fleet, turns: Sequence[Turn], turn: Turn) -> str:
        """Return why a host may not be begun, or '' if it may."""
        if turn.host in fleet.down:
            return f'{turn.host} is down. Start its compute service, or skip it.'
        return limits.why_too_many(self.maintenance, turns, fleet.out, fleet.groups, turn)

    def _next_step(self, fleet: Fleet, waiting: Sequence[Turn], allowed: Sequence[str]) -> plan.Step:
        """Return what comes next, as if the guests of the drains in progress were where they are going."""
        out = {turn.host for turn in self._turns.values() if turn.counts}
        in_service = [host for host in fleet.hosts if host.name not in out]
        going = {guest: to for turn in self._with(_T.DRAINING) for guest, to in turn.moves.items()}
        guests = [
            dataclasses.replace(one, host=going.get(one.uuid, one.host)) if one.host in out else one
            for one in self._engine.guests(self.maintenance)
        ]
        # A host that is disabled already may have guests and receives none.
        leaves_only = [plan.Host(host, {}) for host in {*allowed} - {host.name for host in in_service}]
        hosts = [*in_service, *leaves_only]
        names = {host.name for host in hosts}
        return plan.next_step(
            hosts,
            [one for one in guests if one.host in names],
            [turn.host for turn in waiting if turn.host in names],
            allowed,
            plan.Limits(reserve=self.maintenance.reserve),
            self.maintenance.in_order,
        )

    def _wait_for_room(self, step: plan.Step) -> bool:
        """Wait until the other hosts have room for the guests of the next one, or give it up."""
        why = f'Without {step.host} less than the reserve of {", ".join(step.short)} would be free.'
        if step.left:
            guests = ', '.join(step.left[:_NAMED])
            lacks = ', '.join(f'{name} is short at {base.count(n, "host")}' for name, n in sorted(step.lacks.items()))
            why = f'No host has room for {base.count(len(step.left), "guest")} of {step.host}: {guests}.'
            why += f' {lacks}.' if lacks else ''
        patience = self.maintenance.wait_for_room
        if self._with(*GOING_ON):
            # It brings its room back.
            self._will(waits_for=why, no_room_since=None)
            return False
        if patience is not None and self._passed(self.maintenance.no_room_since, patience):
            reason = f'{why} No host could leave service for {times.span(patience)}. Free room. {DECIDE}'
            self._finish(self._turns[step.host], _T.FAILED, reason)
            self._will(no_room_since=None)
            self._commit()
            self.pause_after_failures()
            return not self.maintenance.paused
        self._will(waits_for=why, no_room_since=self.maintenance.no_room_since or self._now)
        return False

    def _fail_before(self, turn: Turn, stay: Sequence[str]) -> bool:
        """Fail a host of which guests cannot move, before any of them does, and return whether to go on."""
        more = f' And {len(stay) - _NAMED} more.' if len(stay) > _NAMED else ''
        why = f'{base.count(len(stay), "guest")} cannot move. {" ".join(stay[:_NAMED])}{more} {DECIDE}'
        self._finish(turn, _T.FAILED, why)
        self._commit()
        self.pause_after_failures()
        return not self.maintenance.paused

    def _start(self, turn: Turn) -> None:
        try:
            self._engine.start(self.maintenance, turn)
        except Refused as error:
            self._finish(turn, _T.FAILED, f'{str(error).strip()} {DECIDE}')
            self._commit()

    # --- the end -----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """End the maintenance if every turn has ended."""
        turns = list(self._turns.values())
        if all(turn.ended for turn in turns):
            failed, done = self._with(_T.FAILED), self._with(_T.DONE)
            is_late = self._fields.get('is_late', self.maintenance.is_late)
            status = _S.INCOMPLETE if failed or is_late else _S.COMPLETED
            if self.maintenance.cancel_requested_at is not None:
                status = _S.CANCELLED
            message = f'{len(done)} of {base.count(len(turns), "host")} done.{_names(failed)}'
            self._will(status=status.value, message=message, waits_for=None, ended_at=self._now, paused=False)
        self._commit()


def _why_not_beside_others(engine: Engine, maintenance: Maintenance, turns: Sequence[Turn], turn: Turn) -> str:
    """Return what of other hosts keeps the work at one that is ready from beginning; '': nothing does."""
    fleet = engine.fleet(maintenance)
    why = limits.why_too_many(maintenance, turns, fleet.out, fleet.groups, turn)
    if not why and fleet.trouble and not maintenance.despite_trouble:
        why = fleet.trouble[0]
    return f'Its work cannot begin yet. {why}' if why else ''


def is_empty(checks: Sequence[Check]) -> bool:
    """Return whether checks of a host have found nothing."""
    return not any(check.left for check in checks)


def _names(failed: Sequence[Turn]) -> str:
    if not failed:
        return ''
    named = ' '.join(f'{turn.host}: {turn.reason}' for turn in failed[:_NAMED])
    return f' Failed: {named}' + (f' And {len(failed) - _NAMED} more.' if len(failed) > _NAMED else '')
