# SPDX-License-Identifier: Apache-2.0

"""The report of a drain, for a change ticket: who, when, what became of each guest, and the checks.

It has one part for what the drain did, and one for each restore of it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from migrator import exception
from migrator.db.api import Database
from migrator.db.drains import Event
from migrator.db.sql import drain_rows
from migrator.objects import base, times
from migrator.objects.drain import NOT_MOVED, Direction, Drain, Member, MemberStatus, count_members
from migrator.views import drains

_OF_DRAIN = ('uuid', 'host', 'reason', 'retry_of')
_OF_RUN = ('direction', 'began_at', 'ended_at', 'checks', 'message')
_OF_GUEST = (
    *('name', 'instance_uuid', 'status', 'attempts', 'source', 'destination', 'began_at', 'ended_at', 'reason'),
)


def document(database: Database, drain: Drain) -> dict[str, Any]:
    """Return the report of a drain: in ``runs`` what the drain did, and what each restore did.

    A requested change of a run, such as a pause, is in its ``requests``, with its user and its time.
    """
    log = [one for one in database.drains.read_log(drain.uuid) if one.kind == 'request']
    earlier = drain_rows.read_runs(database.engine, drain)
    ends = [one.seq for one in earlier]
    runs = [*((one.drain, one.members) for one in earlier), (drain, database.drains.read_members(drain.uuid))]
    moved_before = _moved_before(database, drain)
    marks = {one.mark for _, members in runs for one in members} | {one.mark for _, one in moved_before.values()}
    found = database.migrations.list({'uuid': [mark for mark in marks if mark is not None]})
    downtimes = {one.uuid: one.downtime for one in found}
    shown = []
    for number, (run, members) in enumerate(runs):
        since, until = ends[number - 1] if number else 0, ends[number] if number < len(ends) else drain.log_seq + 1
        requests = [one for one in log if since < one.seq < until]
        by = next((one for one in log if one.seq == since), None)
        whose = _whose(drain, by)
        mine = [one for one in members if by is None or _is_of_restore(one, by)]
        more = {'requests': [_request(one) for one in requests]}
        shown.append(whose | _run(run, mine, moved_before, downtimes) | more)
    return {**{name: getattr(drain, name) for name in _OF_DRAIN}, 'status': drain.shown_status, 'runs': shown}


def _run(
    run: Drain,
    found: Sequence[Member],
    moved_before: Mapping[str, tuple[str, Member]],
    downtimes: Mapping[str, float | None],
) -> dict[str, Any]:
    guests = []
    for one in drains.in_order(run, found):
        # A drain gives each guest a mark that it moves itself.
        is_of_other = run.direction == Direction.AWAY and one.status == MemberStatus.MOVED and one.mark is None
        moved_by, mover = moved_before.get(one.instance_uuid, (run.retry_of, one)) if is_of_other else (None, one)
        more = {'seconds': _seconds(one), 'downtime': downtimes.get(mover.mark or ''), 'moved_by': moved_by}
        guests.append({name: getattr(one, name) for name in _OF_GUEST} | more)
    return {
        **{name: getattr(run, name) for name in _OF_RUN},
        'status': run.shown_status,
        'guests': count_members(found),
        'members': guests,
    }


def _is_of_restore(member: Member, request: Event) -> bool:
    """Return whether a restore concerns a guest: the drain had moved it, and it was not back before."""
    return member.reason != NOT_MOVED and (member.ended_at is None or member.ended_at >= request.at)


def _moved_before(database: Database, drain: Drain) -> dict[str, tuple[str, Member]]:
    """Return guest -> the earlier drain that has moved it, and its member there, if this is a retry."""
    found: dict[str, tuple[str, Member]] = {}
    earlier = drain.retry_of
    while earlier is not None:
        for one in database.drains.read_members(earlier):
            if one.status == MemberStatus.MOVED and one.mark is not None:
                found.setdefault(one.instance_uuid, (earlier, one))
        try:
            earlier = database.drains.get(earlier).retry_of
        except exception.DrainNotFound:  # it was purged
            earlier = None
    return found


def _whose(drain: Drain, by: Event | None) -> dict[str, Any]:
    """Return who has requested a run and when.

    :param by: the request of the restore; None: it is the drain itself.
    """
    if by is None:
        return {'requested_by': drain.requested_by, 'requested_at': drain.created_at}
    return {'requested_by': by.payload.get('by'), 'requested_at': by.at}


def _request(one: Event) -> dict[str, Any]:
    return {'at': one.at, 'action': one.payload['action'], 'by': one.payload.get('by')}


def _seconds(member: Member) -> float | None:
    """Return how long a guest took from its first request to its end."""
    if member.status != MemberStatus.MOVED or member.began_at is None or member.ended_at is None:
        return None
    return float((member.ended_at - member.began_at).total_seconds())


def text(found: Mapping[str, Any]) -> str:
    """Return a report for a terminal."""
    return '\n\n'.join(_text(found, run) for run in found['runs'])


def _text(found: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    lines = [f'{name}: {base.printable(value)}' for name, value in _facts(found, run)]
    lines += ['', *('  '.join(row) for row in _aligned([_headings(run), *_rows(run)]))]
    checks = [f'{what}: {left}' for what, left in _checks(run)]
    return '\n'.join([*lines, *(['', *checks] if checks else [])])


def markdown(found: Mapping[str, Any]) -> str:
    """Return a report as Markdown."""
    return '\n\n'.join(_markdown(found, run) for run in found['runs'])


def _markdown(found: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    headings = _headings(run)
    lines = [f'# {_what(run)} of {_escaped(found["host"])}: {run["status"]}', '']
    lines += [f'- {name}: {_escaped(value)}' for name, value in _facts(found, run)]
    lines += ['', _row(headings), _row(['---'] * len(headings)), *map(_row, _rows(run))]
    checks = [f'- {what}: {_escaped(left)}' for what, left in _checks(run)]
    return '\n'.join([*lines, *(['', *checks] if checks else [])])


def _what(run: Mapping[str, Any]) -> str:
    return 'Drain' if run['direction'] == Direction.AWAY else 'Restore'


def _headings(run: Mapping[str, Any]) -> Sequence[str]:
    where = 'Destination' if run['direction'] == Direction.AWAY else 'From'
    return 'Guest', 'Result', 'Attempts', where, 'Took', 'Down', 'Reason'


def _facts(found: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    is_away = run['direction'] == Direction.AWAY
    yield _what(run), f'{found["uuid"]} of {found["host"]}: {run["status"]}'
    yield 'Requested by', f'{run["requested_by"] or "an unknown user"}, {_moment(run["requested_at"])}'
    if is_away and found['reason']:
        yield 'Reason', found['reason']
    if is_away and found['retry_of']:
        yield 'Retry of', f'drain {found["retry_of"]}'
    yield 'Began', _moment(run['began_at'])
    yield 'Ended', _moment(run['ended_at'])
    for one in run['requests']:
        yield 'Request', f'{one["action"]} by {one["by"] or "an unknown user"}, {_moment(one["at"])}'
    before = sum(one['moved_by'] is not None for one in run['members'])
    counts = {_result(run, status): number for status, number in run['guests'].items() if number}
    shown = [f'{number} {status}' for status, number in counts.items()]
    yield 'Guests', (', '.join(shown) or 'none') + (f'; {before} of them moved before this drain' if before else '')


def _result(run: Mapping[str, Any], status: str) -> str:
    return 'back' if run['direction'] == Direction.BACK and status == MemberStatus.MOVED else status


def _rows(run: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for one in run['members']:
        took = '-' if one['seconds'] is None else times.span(one['seconds'])
        moved_by = f'It was moved by drain {one["moved_by"]}.' if one['moved_by'] else None
        shown = (
            one['name'],
            _result(run, one['status']),
            str(one['attempts']),
            (one['destination'] if run['direction'] == Direction.AWAY else one['source']) or '-',
            took,
            '-' if one['downtime'] is None else f'{one["downtime"]:.3g} s',
            ' '.join(filter(None, (moved_by, one['reason']))) or '-',
        )
        yield [base.printable(cell) for cell in shown]


def _checks(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for one in run['checks']:
        yield one['what'], base.printable(', '.join(one['left']) or 'none')


def _moment(at: datetime.datetime | None) -> str:
    return '-' if at is None else f'{times.moment(at)} UTC'


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        yield [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]


def _row(cells: Sequence[str]) -> str:
    return f'| {" | ".join(_escaped(cell) for cell in cells)} |'


def _escaped(value: str) -> str:
    """Return a text in which Markdown finds no table, tag, link or emphasis."""
    return ''.join(f'\\{one}' if one in '\\|<>[]`*_' else one for one in base.printable(value))
