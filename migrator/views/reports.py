# SPDX-License-Identifier: Apache-2.0

"""The report of a drain, for a change ticket: who, when, what became of each guest, and the checks."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from migrator.db.api import Database
from migrator.objects import base, times
from migrator.objects.drain import Direction, Drain, MemberStatus
from migrator.views import drains

_OF_DRAIN = ('uuid', 'host', 'reason', 'status', 'direction', 'requested_by', 'created_at', 'began_at', 'ended_at')
_OF_GUEST = (
    *('name', 'instance_uuid', 'status', 'attempts', 'source', 'destination', 'began_at', 'ended_at', 'reason'),
)


def document(database: Database, drain: Drain) -> dict[str, Any]:
    """Return the report of a drain.

    A requested change of it, such as a pause, is in ``requests``, with its user and its time.
    """
    members = drains.in_order(drain, database.drains.read_members(drain.uuid))
    found = database.migrations.list({'uuid': [one.mark for one in members if one.mark is not None]})
    downtimes = {one.uuid: one.downtime for one in found}
    counts = database.drains.counts([drain.uuid])[drain.uuid]
    shown = drains.summary(drain, counts)
    return {
        **{name: shown[name] for name in (*_OF_DRAIN, 'guests', 'checks', 'message')},
        'members': [
            {name: getattr(one, name) for name in _OF_GUEST}
            | {'seconds': _seconds(one), 'downtime': downtimes.get(one.mark or '')}
            for one in members
        ],
        'requests': [
            {'at': one.at, 'action': one.payload['action'], 'by': one.payload.get('by')}
            for one in database.drains.read_log(drain.uuid)
            if one.kind == 'request'
        ],
    }


def _seconds(member: Any) -> float | None:
    """Return how long a guest took from its first request to its end."""
    if member.status != MemberStatus.MOVED or member.began_at is None or member.ended_at is None:
        return None
    return float((member.ended_at - member.began_at).total_seconds())


def text(found: Mapping[str, Any]) -> str:
    """Return a report for a terminal."""
    lines = [f'{name}: {base.printable(value)}' for name, value in _facts(found)]
    lines += ['', *('  '.join(row) for row in _aligned([_HEADINGS, *_rows(found)]))]
    return '\n'.join([*lines, '', *(f'{what}: {left}' for what, left in _checks(found))])


def markdown(found: Mapping[str, Any]) -> str:
    """Return a report as Markdown."""
    lines = [f'# Drain of {_escaped(found["host"])}: {found["status"]}', '']
    lines += [f'- {name}: {_escaped(value)}' for name, value in _facts(found)]
    lines += ['', _row(_HEADINGS), _row(['---'] * len(_HEADINGS)), *map(_row, _rows(found)), '']
    return '\n'.join([*lines, *(f'- {what}: {_escaped(left)}' for what, left in _checks(found))])


_HEADINGS = ('Guest', 'Result', 'Attempts', 'Destination', 'Took', 'Down', 'Reason')


def _facts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield 'Drain', f'{found["uuid"]} of {found["host"]}: {found["status"]}'
    yield 'Requested by', f'{found["requested_by"] or "an unknown user"}, {_moment(found["created_at"])}'
    if found['reason']:
        yield 'Reason', found['reason']
    yield 'Began', _moment(found['began_at'])
    yield 'Ended', _moment(found['ended_at'])
    for one in found['requests']:
        yield 'Request', f'{one["action"]} by {one["by"] or "an unknown user"}, {_moment(one["at"])}'
    counts = dict(found['guests'])
    if found['direction'] == Direction.BACK:  # what the drain had not moved is no part of the restore
        counts = {'back': counts.pop('moved'), **counts, 'gone': 0}
    yield 'Guests', ', '.join(f'{number} {status}' for status, number in counts.items() if number) or 'none'


def _rows(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for one in found['members']:
        took = '-' if one['seconds'] is None else times.span(one['seconds'])
        shown = (
            one['name'],
            one['status'],
            str(one['attempts']),
            one['destination'] or '-',
            took,
            '-' if one['downtime'] is None else f'{one["downtime"]:.3g} s',
            one['reason'] or '-',
        )
        yield [base.printable(cell) for cell in shown]


def _checks(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    # After a restore the last checks are those from before it.
    for one in found['checks'] if found['direction'] == Direction.AWAY else ():
        yield one['what'], base.printable(', '.join(one['left']) or 'none')


def _moment(at: datetime.datetime | None) -> str:
    return '-' if at is None else f'{times.moment(at)} UTC'


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS) - 1)]
    for row in rows:
        yield [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]


def _row(cells: Sequence[str]) -> str:
    return f'| {" | ".join(_escaped(cell) for cell in cells)} |'


def _escaped(value: str) -> str:
    """Return a text in which Markdown finds no table, tag, link or emphasis."""
    return ''.join(f'\\{one}' if one in '\\|<>[]`*_' else one for one in base.printable(value))
