# SPDX-License-Identifier: Apache-2.0

"""The requests of users: they change a maintenance, and begin and end the work at its hosts.

Each is one transaction on what it has read. If the maintenance was changed meanwhile, the request reads it again, so
that of two users who claim a host one gets it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from migrator.drain.maintenance import errors, limits
from migrator.drain.maintenance.engine import Engine, Store
from migrator.drain.maintenance.returned import Report
from migrator.drain.maintenance.turns import (
    Maintenance,
    MaintenanceStatus,
    ReturnedBy,
    Turn,
    TurnStatus,
    check_move,
    check_turn_move,
)

_T = TurnStatus
#: What a user does with a host that has failed.
DECIDE = 'Then retry the host, or skip it.'
#: How often a request is repeated whose maintenance was changed while it was made.
_ATTEMPTS = 20
#: What a request changes: fields of the maintenance, and fields of the turn.
_Changes = tuple[dict[str, Any], dict[str, Any]]


def begin(store: Store, engine: Engine, uuid: str, host: str, by: str | None, claim: str | None = None) -> Turn:
    """Claim a host that is ready for its work.

    :param by: the user.
    :param claim: the uuid that the claim gets, with which the request may be repeated; None: a new one.
    :returns: its turn, with the claim that the end of the work has to name.
    :raises .errors.InvalidTurn: it is not ready, has another claim, is not empty, or the limits forbid it.
    """

    def claimed(maintenance: Maintenance, turns: Sequence[Turn], turn: Turn) -> _Changes | None:
        if claim is not None and claim == turn.claim:
            if (turn.status, turn.claimed_by) == (_T.WORKING, by):
                return None  # the reply to the first request was lost
            if turn.status == _T.READY:
                do = f'work with the claim {claim} has ended. Choose another claim'
                raise _refused(maintenance, turn, 'begin', turn.status, do)
        _refuse_unless(maintenance, turn, 'begin', (_T.READY,), _how_to_begin(turn))
        if maintenance.cancel_requested_at is not None or maintenance.paused:
            do = 'it was cancelled' if maintenance.cancel_requested_at is not None else 'resume it first'
            raise _refused(maintenance, turn, 'begin', maintenance.shown_status, do)
        report, now = engine.reports([host]).get(host), store.now()
        why = next(filter(None, _whys_not(engine, maintenance, turns, turn, report, now)), '')
        if why or report is None:
            raise _refused(maintenance, turn, 'begin', turn.status, why.rstrip('.'))
        marks: dict[str, Any] = {'kernel': report.kernel, 'boot': report.boot}
        marks |= {'claim': claim or engine.new_uuid(), 'claimed_by': by, 'claimed_at': now}
        return {}, {'status': _T.WORKING.value, 'settles_from': None, 'seen_at': None, 'reason': None, **marks}

    return _act(store, uuid, 'begin', by, claimed, host)


def _whys_not(
    engine: Engine,
    maintenance: Maintenance,
    turns: Sequence[Turn],
    turn: Turn,
    report: Report | None,
    now: datetime.datetime,
) -> Iterator[str]:
    """Yield why the work at a host cannot begin, and '' for a reason that does not apply.

    The host is asked last.
    """
    host, fleet = turn.host, engine.fleet(maintenance)
    yield limits.why_too_many(maintenance, turns, fleet.out, fleet.groups, turn)
    yield limits.why_not_now(maintenance, limits.expected_work(turns), now)
    if fleet.trouble and not maintenance.despite_trouble:
        yield fleet.trouble[0]
    if report is None or not report.reports:
        yield f'{host} does not report'
        return
    if not report.disabled:
        yield f'{host} was enabled meanwhile. Disable it'
    if maintenance.returned_by == ReturnedBy.REBOOT and report.kernel is None:
        yield f'{host} does not report the start of its kernel, so that its reboot could not be seen'
    for check in engine.left(maintenance, turn):
        yield f'{check.what}: {", ".join(check.left)}' if check.left else ''
    # A start between the report and the reply would later be taken for one after the work.
    again = engine.reports([host]).get(host)
    if again is None or (again.boot, again.kernel) != (report.boot, report.kernel):
        yield f'{host} was started just now. Try again'


def done(store: Store, uuid: str, host: str, claim: str, by: str | None) -> Turn:
    """Record that the work at a host has ended. The host must then show that it is back.

    :param claim: as :func:`begin` has returned it.
    :raises .errors.InvalidTurn: the host is not worked on, or has another claim.
    """

    def end(maintenance: Maintenance, _turns: Sequence[Turn], turn: Turn) -> _Changes | None:
        if turn.was_worked_on and turn.held_by == claim and turn.status in (_T.RETURNING, _T.DONE):
            return None  # as above
        _check_claim(maintenance, turn, 'done', claim)
        ended = {'was_worked_on': True, 'work_ended_at': store.now(), 'settles_from': None, 'seen_at': None}
        return {}, {'status': _T.RETURNING.value, 'reason': None, **ended}

    return _act(store, uuid, 'done', by, end, host)


def fail(store: Store, uuid: str, host: str, claim: str, by: str | None, reason: str = '') -> Turn:
    """Record that the work at a host has failed, or that it is not expected back. The host stays disabled.

    :param claim: as :func:`begin` has returned it.
    :raises .errors.InvalidTurn: the host is not worked on and does not return, or has another claim.
    """

    def end(maintenance: Maintenance, _turns: Sequence[Turn], turn: Turn) -> _Changes | None:
        if turn.status == _T.FAILED and turn.held_by == claim:
            return None  # as above
        _check_claim(maintenance, turn, 'fail', claim, (_T.WORKING, _T.RETURNING))
        if not turn.is_out:
            do = f'it is back, and its guests are on their way. To leave them where they are, cancel drain {turn.drain}'
            raise _refused(maintenance, turn, 'fail', turn.status, do)
        what = 'Its work has failed' if turn.status == _T.WORKING else 'It was given up'
        said = f': {reason.rstrip(".")}' if reason else ''
        why = f'{what}{said}. Mend it. {DECIDE}'
        ended_at = turn.work_ended_at or store.now()
        return {}, {'status': _T.FAILED.value, 'reason': why, 'work_ended_at': ended_at, 'ended_at': store.now()}

    return _act(store, uuid, 'fail', by, end, host)


def skip(
    store: Store, uuid: str, host: str, by: str | None, claim: str | None = None, stays_disabled: bool = False
) -> Turn:
    """Leave out a host that waits, is ready, is worked on or has failed.

    Unless it stays disabled, it is enabled at once, without a check that it is back.

    :param claim: of a host that is worked on, as :func:`begin` has returned it.
    :param stays_disabled: whether a host that has failed stays disabled.
    :raises .errors.InvalidTurn: the host is being drained, returns, is done or was skipped, or has another claim.
    """

    def leave_out(maintenance: Maintenance, turns: Sequence[Turn], turn: Turn) -> _Changes:
        do = {
            _T.DRAINING: 'cancel the maintenance, or wait until it is ready',
            _T.RETURNING: 'wait until it is back. If it does not come back, report that with fail, and skip it then',
        }.get(TurnStatus(turn.status), 'nothing is left to do')
        _refuse_unless(maintenance, turn, 'skip', (_T.WAITING, _T.READY, _T.WORKING, _T.FAILED), do)
        if turn.status == _T.WORKING or claim is not None:
            _check_claim(maintenance, turn, 'skip', claim, (_T.WORKING, _T.FAILED))
        if stays_disabled and turn.status != _T.FAILED:
            do = 'only a host that has failed can stay disabled. Leave stays_disabled out'
            raise _refused(maintenance, turn, 'skip', turn.status, do)
        ends = not turn.is_out if turn.status in (_T.WAITING, _T.FAILED) else False
        ends = ends or (turn.status == _T.FAILED and stays_disabled)
        status = _T.SKIPPED if ends else _T.RETURNING
        ended_at = store.now() if ends else None
        why = f'It was skipped by {by or "a user"}.'
        fields = _running_again(maintenance) if not ends else {}
        if turn.status == _T.FAILED:
            fields |= _forgiven(maintenance, turns)
        return fields, {'status': status.value, 'was_worked_on': False, 'ended_at': ended_at, 'reason': why}

    return _act(store, uuid, 'skip', by, leave_out, host)


def retry(store: Store, uuid: str, host: str, by: str | None) -> Turn:
    """Put a host that has failed back among those that wait.

    :raises .errors.InvalidTurn: it has not failed, or the maintenance was cancelled.
    """

    def again(maintenance: Maintenance, turns: Sequence[Turn], turn: Turn) -> _Changes:
        _refuse_unless(maintenance, turn, 'retry', (_T.FAILED,), 'only a host that has failed can be retried')
        if maintenance.cancel_requested_at is not None:
            raise _refused(maintenance, turn, 'retry', maintenance.shown_status, 'request a new maintenance')
        # Everything but its place, and how it is out of service, is as at first. Its claim is kept, to be known again.
        kept: dict[str, Any] = {'position': turn.position, 'group': turn.group, 'is_out': turn.is_out}
        kept |= {'claim': turn.claim}
        first = Turn(host=host, last_drain=turn.drain or turn.last_drain, **kept)
        values = {name: value for name, value in vars(first).items() if value != getattr(turn, name)}
        return _running_again(maintenance) | _forgiven(maintenance, turns), values

    return _act(store, uuid, 'retry', by, again, host)


def change(store: Store, uuid: str, action: str, by: str | None) -> Maintenance:
    """Write the request of a user: ``pause``, ``resume`` or ``cancel``.

    Work that runs is not interrupted by any of them.

    :raises .errors.InvalidTurn: the maintenance has ended.
    """

    def written(maintenance: Maintenance, turns: Sequence[Turn], _turn: Turn | None) -> _Changes | None:
        if maintenance.ended:
            raise _refused(maintenance, None, action, maintenance.status, 'it has ended')
        if maintenance.cancel_requested_at is not None:
            if action == 'cancel':
                return None
            raise _refused(maintenance, None, action, maintenance.shown_status, 'it was cancelled')
        if action == 'cancel':
            cancelled = {'cancel_requested_at': store.now(), 'cancel_requested_by': by}
            text = 'It was cancelled. It ends when no host is drained, worked on or on its way back.'
            return {**cancelled, 'paused': False, 'message': None, 'waits_for': text}, {}
        forgiven = maintenance.forgiven
        if action == 'resume':
            failed = sum(one.status == _T.FAILED for one in turns)
            forgiven = max(forgiven, failed - maintenance.max_failures)
        # What has paused it before stays its reason.
        message = maintenance.message if action == 'pause' else None
        return {'paused': action == 'pause', 'forgiven': forgiven, 'message': message, 'waits_for': message}, {}

    return _written(store, uuid, action, by, written, None)[0]


def _act(
    store: Store,
    uuid: str,
    action: str,
    by: str | None,
    edit: Callable[[Maintenance, Sequence[Turn], Turn], _Changes | None],
    host: str,
) -> Turn:
    _, turn = _written(store, uuid, action, by, edit, host)
    assert turn is not None
    return turn


def _written(
    store: Store, uuid: str, action: str, by: str | None, edit: Callable[..., _Changes | None], host: str | None
) -> tuple[Maintenance, Turn | None]:
    """Write what a request changes, reading again while others change the maintenance."""
    for attempt in range(1, _ATTEMPTS + 1):
        maintenance = store.get(uuid)
        turns = store.read_turns(uuid)
        turn = None
        if host is not None:
            turn = next((one for one in turns if one.host == host), None)
            if turn is None:
                do = f'name one of its {len(turns)} hosts'
                raise errors.InvalidTurn(action=action, what=host, maintenance=uuid, status='without this host', do=do)
        found = edit(maintenance, turns, turn)
        if found is None:
            return maintenance, turn
        fields, values = found
        if 'status' in fields:
            check_move(maintenance, fields['status'])
        changed = []
        events: list[tuple[str, dict[str, Any]]] = [('request', {'action': action, 'host': host, 'by': by})]
        if turn is not None:
            check_turn_move(maintenance, turn, values['status'])
            turn = turn.replace(**values)
            changed = [turn]
            events.append(('turn', {'host': host, 'status': turn.status, 'reason': turn.reason}))
        try:
            return store.write(maintenance, fields, changed, events), turn
        except errors.NotOwnerOfMaintenance:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError('the last attempt returns or raises')


def _running_again(maintenance: Maintenance) -> dict[str, Any]:
    """Return what lets a maintenance go on that has ended with failures."""
    if not maintenance.ended:
        return {}
    return {'status': MaintenanceStatus.RUNNING.value, 'ended_at': None, 'message': None, 'owner': None}


def _forgiven(maintenance: Maintenance, turns: Sequence[Turn]) -> dict[str, Any]:
    """Return how many failures are accepted once one of them has been dealt with."""
    left = sum(one.status == _T.FAILED for one in turns) - 1
    return {'forgiven': max(0, left - maintenance.max_failures)}


def _check_claim(
    maintenance: Maintenance, turn: Turn, action: str, claim: str | None, statuses: Sequence[TurnStatus] = (_T.WORKING,)
) -> None:
    _refuse_unless(
        maintenance,
        turn,
        action,
        statuses,
        'no work is in progress there. It has not begun, or its end was reported already',
    )
    if turn.held_by is None and claim is not None:
        raise _refused(maintenance, turn, action, turn.status, 'it has no claim. Leave the claim out')
    if claim != turn.held_by:
        raise _refused(
            maintenance,
            turn,
            action,
            turn.status,
            f'{turn.claimed_by or "a user"} has the claim {turn.claim}. Name it only if that work has ended',
        )


def _refuse_unless(maintenance: Maintenance, turn: Turn, action: str, statuses: Sequence[TurnStatus], do: str) -> None:
    if turn.status not in statuses:
        raise _refused(maintenance, turn, action, turn.status, do)


def _refused(maintenance: Maintenance, turn: Turn | None, action: str, status: str, do: str) -> errors.InvalidTurn:
    what = 'anything' if turn is None else turn.host
    return errors.InvalidTurn(action=action, what=what, maintenance=maintenance.uuid, status=status, do=do)


def _how_to_begin(turn: Turn) -> str:
    return {
        _T.WORKING: f'{turn.claimed_by or "another user"} has claimed it',
        _T.RETURNING: 'its work has ended, and it has to show that it is back',
        _T.FAILED: 'retry it first',
        _T.DONE: 'its work is done',
        _T.SKIPPED: 'it was skipped',
    }.get(TurnStatus(turn.status), 'wait until it is ready')
