# SPDX-License-Identifier: Apache-2.0

"""The figures of a long run: a line for each piece in ``figures.jsonl``, and the table of all."""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.long_run import audit, faults, measures

#: The figures of all pieces, and the page's table of them.
RECORD = pathlib.Path(__file__).with_name('figures.jsonl')
PAGE = pathlib.Path(__file__).parents[2] / 'doc/source/reliability-table.inc'
#: Seconds of the shortest run of a process whose memory counts. The first half of it is left out: it loads modules.
SHORTEST = 900
GOALS = {'hours': 8, 'migrations': 3000, faults.KILL: 1000, faults.STOP: 200, faults.RESTART: 60}
#: Seconds, and MB an hour.
TAKEOVER, GROWTH = 30, 1


@dataclasses.dataclass
class Figures:
    """What one piece, or several, have done and measured.

    :ivar pieces: their numbers.
    :ivar faults: kind -> target -> how many.
    :ivar takeovers: the seconds of each.
    :ivar reachable: the same, without the time in which faults kept the database from committing.
    :ivar alone: the seconds of each that had no other fault of a conductor or the database.
    :ivar growth: process -> (MB an hour in the second half of its longest run, minutes of that run).
    """

    pieces: list[int]
    broken_off: int
    hours: float
    migrations: collections.Counter[str]
    drains: collections.Counter[str]
    faults: dict[str, collections.Counter[str]]
    failed: int
    audits: int
    findings: collections.Counter[str]
    takeovers: list[float]
    reachable: list[float]
    alone: list[float]
    growth: dict[str, tuple[float, float]]


def recorded() -> list[Figures]:
    """Return the figures of each piece in :data:`RECORD`."""
    return [Figures(**json.loads(line)) for line in RECORD.read_text(encoding='utf-8').splitlines()]


def record(records: Iterable[Mapping[str, Any]]) -> None:
    """Add the pieces of a run that are not yet in :data:`RECORD` to it, and write :data:`PAGE`.

    :param records: of the journal of the run.
    """
    by_piece: dict[int, list[Mapping[str, Any]]] = collections.defaultdict(list)
    for one in records:
        by_piece[one['piece']].append(one)
    known = {number for piece in recorded() for number in piece.pieces}
    with RECORD.open('a', encoding='utf-8') as file:
        for number, found in sorted(by_piece.items()):
            if number not in known:
                file.write(json.dumps(vars(figures(found))) + '\n')
    PAGE.write_text(rst(total(recorded())), encoding='utf-8')


def total(pieces: Iterable[Figures]) -> Figures:
    """Return the figures of several pieces as those of one."""
    found = figures([])
    for piece in pieces:
        for name in ('pieces', 'broken_off', 'hours', 'failed', 'audits', 'takeovers', 'reachable', 'alone'):
            setattr(found, name, getattr(found, name) + getattr(piece, name))
        for name in ('migrations', 'drains', 'findings'):
            getattr(found, name).update(getattr(piece, name))
        for kind, targets in piece.faults.items():
            found.faults.setdefault(kind, collections.Counter()).update(targets)
        for name, (grown, minutes) in piece.growth.items():
            if minutes > found.growth.get(name, (0, 0))[1]:
                found.growth[name] = grown, minutes
    return found


def figures(records: Iterable[Mapping[str, Any]]) -> Figures:
    """Return the figures of a run's records."""
    by_kind: dict[str, list[Mapping[str, Any]]] = collections.defaultdict(list)
    for one in records:
        by_kind[one['kind']].append(one)
    migrations: collections.Counter[str] = collections.Counter()
    last = {one['piece']: one for one in by_kind['minute']}
    for one in last.values():
        migrations.update(one['migrations'])
    pieces = {one['piece'] for one in by_kind['piece']}
    hit: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for one in by_kind['fault']:
        hit[one['fault']][f'{one["target"]} ({one["how"]})' if one['how'] else one['target']] += 1
    return Figures(
        pieces=sorted(pieces),
        broken_off=len(pieces - {one['piece'] for one in by_kind['end']}),
        hours=sum(one['seconds'] for one in last.values()) / 3600,
        migrations=migrations,
        drains=collections.Counter(one['status'] for one in by_kind['drain']),
        faults=dict(hit),
        failed=sum(one['error'] is not None for one in by_kind['fault']),
        audits=len(by_kind['audit']),
        findings=collections.Counter(one['sort'] for one in by_kind['finding']),
        takeovers=[one['seconds'] for one in by_kind['takeover']],
        reachable=_reachable(by_kind['takeover'], by_kind['fault']),
        alone=[one['seconds'] for one in by_kind['takeover'] if one['alone']],
        growth=_growth(by_kind['rss']),
    )


def _reachable(takeovers: Iterable[Mapping[str, Any]], hit: Iterable[Mapping[str, Any]]) -> list[float]:
    spans: dict[int, list[tuple[float, float]]] = collections.defaultdict(list)
    for one in hit:
        if one['no_commits']:
            spans[one['piece']].append((one['at'] - one['took'], one['at']))
    return [
        round(one['seconds'] - measures.covered(spans[one['piece']], one['at'] - one['seconds'], one['at']), 2)
        for one in takeovers
    ]


def _growth(records: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    points_of: dict[tuple[int, str, int], list[tuple[float, float]]] = collections.defaultdict(list)
    for one in records:
        for name, (pid, kib) in one['processes'].items():
            points_of[one['piece'], name, pid].append((one['at'] / 3600, kib / 1024))
    found: dict[str, tuple[float, float]] = {}
    for (_piece, name, _pid), points in points_of.items():
        middle = (points[0][0] + points[-1][0]) / 2
        minutes = 60 * (points[-1][0] - points[0][0])
        if minutes * 60 >= SHORTEST and minutes > found.get(name, (0, 0))[1]:
            found[name] = (measures.slope([point for point in points if point[0] >= middle]), minutes)
    return found


def _group(target: str) -> str:
    """Return what a process is one of: ``host3`` -> ``host``."""
    name, space, more = target.partition(' ')
    return ('database' if name.startswith('db-') else name.rstrip('0123456789')) + space + more


def _rows(found: Figures) -> Iterator[tuple[str, str, str]]:
    kinds: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for kind, targets in found.faults.items():
        for target, count in targets.items():
            kinds[kind][_group(target)] += count
    broken = f'; {found.broken_off} broken off' if found.broken_off else ''
    yield 'hours', f'{found.hours:.1f}; pieces: {len(found.pieces)}{broken}', f'{GOALS["hours"]}'
    ended = ', '.join(f'{count} {status}' for status, count in sorted(found.migrations.items()))
    yield 'migrations', f'{sum(found.migrations.values())}: {ended}', f'{GOALS["migrations"]}'
    drains = ', '.join(f'{count} {status}' for status, count in sorted(found.drains.items()))
    yield 'drains and restores that have ended', f'{sum(found.drains.values())}: {drains}', ''
    words = {
        faults.KILL: 'SIGKILL',
        faults.STOP: 'SIGSTOP for some seconds',
        faults.RESTART: 'restarts',
        faults.CUT: 'network cuts towards',
    }
    for kind, word in words.items():
        parts = ', '.join(f'{target} {count}' for target, count in sorted(kinds[kind].items()))
        yield word, f'{sum(kinds[kind].values())}: {parts}', str(GOALS.get(kind, ''))
    yield 'audits at rest', str(found.audits), ''
    for sort in (audit.LOST, audit.STUCK, audit.LEAKED, audit.DOUBLED, 'ended'):
        name = 'processes that ended by themselves' if sort == 'ended' else sort
        yield name, str(found.findings[sort]), '0'
    for name, values, goal in (
        ('takeovers with no other fault of a conductor or the database', found.alone, f'p99 at most {TAKEOVER} s'),
        ('all takeovers', found.takeovers, ''),
        (
            'all takeovers, without the time in which the database could not commit',
            found.reachable,
            f'p99 at most {TAKEOVER} s',
        ),
    ):
        late = [measures.quantile(values, share) for share in (0.5, 0.99)]
        text = f'; p50 {late[0]:.1f} s, p99 {late[1]:.1f} s' if values else ''
        yield name, f'{len(values)}{text}', goal
    parts = ', '.join(
        f'{name} {grown:+.1f} of {minutes:.0f} min' for name, (grown, minutes) in sorted(found.growth.items())
    )
    yield (
        'growth of memory in MB an hour, in the second half of the longest run',
        parts or 'not measured',
        f'below {GROWTH} each',
    )


def rst(found: Figures) -> str:
    """Return the table as reStructuredText."""
    lines = ['.. list-table::', '   :header-rows: 1', '   :widths: 28 54 18', '']
    for row in (('what', 'so far', 'goal'), *_rows(found)):
        for number, cell in enumerate(row):
            lines.append(f'   {"* -" if number == 0 else "  -"} {cell}'.rstrip())
    return '\n'.join(lines) + '\n'
