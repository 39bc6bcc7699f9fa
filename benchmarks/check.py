# SPDX-License-Identifier: Apache-2.0

"""Print each figure of the control plane's cost as goal / here, and fail if one is too high.

    python benchmarks/control_plane.py --check [--on sqlite|postgresql|mariadb] [--quick] [--record]

- Counts are exact: the clouds are simulated, so that each run sends the same.
- CPU time is a ratio to other CPU time of the same run, measured in turns. Only that of a plan and of a durable step
  is a time.
- Makespan is the time in which hosts are emptied with bounds on slots, as a ratio to the time that their links need.
  Its database is always SQLite.
- Growth is the ratio of two clouds: with 10,000 hosts and with 100, or with 100,000 migrations that have ended and
  with none. Their rows are inserted in bulk, and Placement is the fake one, with a provider for each host.

``ABOVE ITS GOAL`` and ``HAS GROWN`` make the exit status 1. A figure has grown if it is higher than in
``benchmarks/reached.json``. That has all figures that each run finds the same, to two decimals; and the CPU time of a
migration and the memory of a queued one, which may be higher by a quarter. ``--record`` writes there what is lower.
Exit status: 0; 1; 2 an option cannot be; 3 a server is not installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import alone, conductors, crowded, databases, makespan, parked
from migrator.drain import forecast
from migrator.objects import MigrationStatus
from migrator.placement_client.candidates import LIMIT

REACHED = pathlib.Path(__file__).with_name('reached.json')
ABOVE, GROWN = 'ABOVE ITS GOAL', 'HAS GROWN'
#: By which factor a figure that is not exact may be higher than it was.
SLACK = 1.25
#: The most by which anything may grow with hosts or with history.
GROWTH = 1.2
_CHOICES = 20
#: Guests that leave each of some sources, for one conductor and for several.
_LEAVING = 3
#: The hosts that one plan empties, the hosts of its site, and the guests of each.
_PLANNED, _SITE, _EACH = 50, 1000, 20
_SECONDS = 2


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is done.

    :ivar hosts: of the small cloud and of the large one.
    :ivar ended: migrations that have ended, in the same two.
    :ivar queued: migrations that wait in the queue of one host.
    :ivar rounds: how often CPU time is measured; 0: only counts.
    """

    hosts: tuple[int, int]
    ended: tuple[int, int]
    queued: int
    rounds: int


FULL = Size(hosts=(100, 10_000), ended=(0, 100_000), queued=1000, rounds=5)
QUICK = Size(hosts=(60, 120), ended=(0, 300), queued=100, rounds=0)


@dataclasses.dataclass(frozen=True)
class Figure:
    """One line of the table.

    :ivar goal: the highest value that is good; None: it only may not grow.
    :ivar exact: whether each run finds the same value.
    :ivar may_not_grow: whether it may not become higher than recorded, although it is not exact.
    """

    name: str
    goal: float | None
    here: float
    exact: bool = True
    may_not_grow: bool = False

    @property
    def recorded(self) -> bool:
        """Whether it may not become higher than it was, whatever its goal."""
        return self.exact or self.may_not_grow

    def verdicts(self, before: float | None) -> list[str]:
        """Return what is wrong with it.

        :param before: the lowest value that was recorded; None: none was.
        """
        found = [ABOVE] if self.goal is not None and round(self.here, 2) > self.goal else []
        if self.recorded and before is not None and round(self.here, 2) > before * (1 if self.exact else SLACK):
            found.append(f'{GROWN} FROM {before:g}')
        return found


def main(argv: Sequence[str]) -> int:
    """Measure, print the table, and return the exit status."""
    asked = _parse(argv)
    lacking = databases.missing(asked.on)
    if lacking:
        sys.stderr.write(f'--on is {asked.on}, and there is no {lacking}; --on sqlite needs none of it\n')
        return 3
    known = json.loads(REACHED.read_text(encoding='utf-8'))
    reached: dict[str, float] = known.setdefault(asked.on, {})
    with databases.site(asked.on) as site:
        figures = list(measure(site, QUICK if asked.quick else FULL))
    bad = show(figures, reached)
    if asked.record:
        for one in figures:
            if one.recorded:
                reached[one.name] = min(round(one.here, 2), reached.get(one.name, float('inf')))
        REACHED.write_text(json.dumps(known, indent=2, sort_keys=True) + '\n', encoding='utf-8')
    return 1 if bad else 0


def show(figures: Sequence[Figure], reached: dict[str, float]) -> int:
    """Print the table, and return how many figures are too high."""
    bad, width = 0, max(len(one.name) for one in figures)
    lines = [f'{"figure":{width}}  {"goal":>8} / {"here":>8}']
    for one in figures:
        verdicts = one.verdicts(reached.get(one.name))
        bad += bool(verdicts)
        goal = '-' if one.goal is None else f'{one.goal:g}'
        lines.append(f'{one.name:{width}}  {goal:>8} / {round(one.here, 2):>8g}  {", ".join(verdicts)}'.rstrip())
    lines.append(f'{bad} of {len(figures)} figures are too high')
    sys.stdout.write('\n'.join(lines) + '\n')
    return bad


def measure(site: databases.Site, size: Size) -> Iterator[Figure]:
    """Return the figures, one after the other."""
    for name, goal, here in _counts(site):
        yield Figure(name, goal, here)
    if size.rounds:
        _report('CPU time, memory')
        yield Figure('one migration alone: CPU, of fixed work', None, alone.cpu(site), exact=False, may_not_grow=True)
        yield Figure('durable step: CPU ms', 1, 1000 * alone.durable_step(site), exact=False)
        kib = alone.queued_kib(size.queued)
        yield Figure('queued migration: KiB of the compute service', 2, kib, exact=False, may_not_grow=True)
        shown = alone.help_ratio()
        yield Figure('migrator-manage --help: CPU, of python -c pass', 5, shown, exact=False)
    waits = parked.measure(size.queued, hosts=1, seconds=5)
    yield Figure(f'{size.queued:,} queued at a host: named by a poll', 17, waits['named'])
    yield Figure(f'{size.queued:,} queued at a host: KiB of a reply', 8, waits['reply_bytes'] / 1024)
    yield from _with_conductors(site, size)
    yield from _with_hosts(site, size)
    yield from _with_history(site, size)
    if size.rounds:
        _report('plan')
        cpu = _plan_cpu(site)
        yield Figure(f'plan of {_PLANNED} of {_SITE:,} hosts, {_SITE * _EACH:,} guests: CPU s', 2, cpu, exact=False)
    _report('makespan')
    for case in makespan.FULL if size.rounds else makespan.QUICK:
        yield Figure(f'makespan, of the shortest: {case}', makespan.GOAL, makespan.makespan(case) / case.shortest)


def _counts(site: databases.Site) -> Iterator[tuple[str, float, float]]:
    _report('one migration, one abort')
    # Decision 0045 says why no fewer requests do.
    goals = {'messages': 17, 'statements': 28, 'commits': 9, 'requests': 4}
    for what, here in alone.migration(site).items():
        yield f'one migration alone: {what}', goals[what], here
    yield f'{alone.LEAVING} leave a host: requests of each', 1.5, alone.leaving(site)['requests']
    drained = alone.leaving(site, is_drained=True)
    yield f'{alone.LEAVING} are drained: requests of each', 2.2, drained['requests']
    yield f'{alone.LEAVING} are drained: statements of each', 55, drained['statements']
    goals = {'statements': 18, 'commits': 5, 'requests': 2}
    found = alone.abort(site)
    for what, goal in goals.items():
        yield f'abort of a queued one: {what}', goal, found[what]


def _with_conductors(site: databases.Site, size: Size) -> Iterator[Figure]:
    _report(f'{", ".join(map(str, conductors.NUMBERS))} conductors')
    for name, goal, here, exact in conductors.measure(site, _LEAVING, size.rounds):
        yield Figure(name, goal, here, exact)


def _with_hosts(site: databases.Site, size: Size) -> Iterator[Figure]:
    small, large = size.hosts
    _report(f'{small} hosts, {large} hosts')
    pair = _Pair(site, size, [crowded.Crowded(site, hosts, 0) for hosts in size.hosts])
    growth = f'{small} to {large} hosts'
    for name, prepare in (
        ('one sweep', lambda cloud: cloud.sweep),
        ('choice, each further', _further_choice),
        ("destinations' load", lambda cloud: cloud.load),
    ):
        yield from pair.figures(f'{growth}: {name}', prepare)
    # It reads a list of at most LIMIT hosts, which the choices of the next seconds share.
    first = max(GROWTH, min(large, LIMIT) / small)
    yield from pair.figures(
        f'{growth}: choice, first of a flavor', _for_guest(crowded.Crowded.choose_first), goal=first
    )
    asked = pair.clouds[1].candidates_asked(_CHOICES)
    yield Figure(f'{_CHOICES} choices of a flavor: candidates asked for', 1, asked)
    commits = []
    for cloud in pair.clouds:
        with cloud.counter.counting():
            cloud.heartbeats(_SECONDS)
        commits.append(cloud.counter.commits)
    yield Figure(f'{growth}: heartbeats, commits a second', GROWTH, _ratio(commits))
    yield from _that_change(pair, growth)
    pair.close()


def _with_history(site: databases.Site, size: Size) -> Iterator[Figure]:
    small, large = size.ended
    _report(f'{small} ended, {large} ended')
    pair = _Pair(site, size, [crowded.Crowded(site, size.hosts[0], ended) for ended in size.ended])
    growth = f'{small} to {large} ended'
    for name, prepare in (
        ('list 50', lambda cloud: lambda: cloud.list('limit=50')),
        ('changes-since', _changes_since),
        ("orphans' sweep", lambda cloud: cloud.cloud.database.takeovers.orphans),
        ('owned sweep', lambda cloud: lambda: cloud.cloud.database.migrations.owned_by(crowded.OTHER)),
        ('choice of a destination', _for_guest(crowded.Crowded.choose_first)),
    ):
        yield from pair.figures(f'{growth}: {name}', prepare)
    yield from _that_change(pair, growth)
    pair.close()


def _that_change(pair: _Pair, growth: str) -> Iterator[Figure]:
    """Return the figures of what changes the migrations in progress, the last of a cloud."""
    yield from pair.figures(f'{growth}: start of a host', lambda cloud: cloud.start_host)
    for name, prepare in (
        ('POST os-migrateLive', _posts),
        ('DELETE of a migration', _aborts),
        ('takeover', _takeovers),
    ):
        yield from pair.figures(f'{growth}: {name}', prepare, turn=0)


def _plan_cpu(site: databases.Site) -> float:
    """Return the CPU seconds of a plan of several hosts, without those of the fake Placement."""
    cloud = crowded.Crowded(site, _SITE, 0)
    try:
        cloud.insert_guests(_EACH, (256, 512, 1024, 2048, 4096))
        cloud.insert_recorded(forecast.RECORDED)
        before = site.cpu() - cloud.placement_cpu
        cloud.plan(_PLANNED)
        return site.cpu() - cloud.placement_cpu - before
    finally:
        cloud.close()


class _Pair:
    """Two clouds that do the same."""

    def __init__(self, site: databases.Site, size: Size, clouds: list[crowded.Crowded]) -> None:
        self.clouds = clouds
        self._site = site
        self._rounds = size.rounds

    def figures(
        self, name: str, prepare: Callable[[Any], Callable[[], Any]], turn: float | None = None, goal: float = GROWTH
    ) -> Iterator[Figure]:
        """Return how the statements, rows and CPU time of a function grow from one cloud to the other.

        :param prepare: returns the function for a cloud.
        :param goal: how much rows and CPU time may grow.
        :param turn: the CPU seconds of one measurement; 0: that of one call.
        """
        functions = [prepare(cloud) for cloud in self.clouds]
        for cloud, function in zip(self.clouds, functions, strict=True):
            with cloud.counter.counting():
                function()
        yield Figure(f'{name}, statements', GROWTH, _ratio([cloud.counter.statements for cloud in self.clouds]))
        yield Figure(f'{name}, rows', goal, _ratio([cloud.counter.rows for cloud in self.clouds]))
        if self._rounds:
            least = self._site.turn if turn is None else turn
            small, large = databases.least(self._cpu, functions, self._rounds, least)
            yield Figure(f'{name}, CPU', goal, large / small, exact=False)

    def close(self) -> None:
        """End both."""
        for cloud in self.clouds:
            cloud.close()

    def _cpu(self) -> float:
        # The CPU time of the fake Placement is not that of the real one.
        return self._site.cpu() - sum(cloud.placement_cpu for cloud in self.clouds)


def _for_guest(method: Callable[[Any, Any], Any]) -> Callable[[crowded.Crowded], Callable[[], Any]]:
    def prepare(cloud: crowded.Crowded) -> Callable[[], Any]:
        guest = cloud.guest()
        return lambda: method(cloud, guest)

    return prepare


def _further_choice(cloud: crowded.Crowded) -> Callable[[], Any]:
    guest = cloud.guest()
    cloud.choose(guest)
    return lambda: cloud.choose(guest)


def _posts(cloud: crowded.Crowded) -> Callable[[], Any]:
    guests = iter([cloud.guest() for _ in range(FULL.rounds + 2)])
    return lambda: cloud.live_migrate(next(guests))


def _aborts(cloud: crowded.Crowded) -> Callable[[], Any]:
    rows = cloud.cloud.database.migrations.list({'status': MigrationStatus.ACCEPTED.value})
    left = iter(rows)
    return lambda: cloud.abort(next(left))


def _takeovers(cloud: crowded.Crowded) -> Callable[[], Any]:
    sources = iter(cloud.orphan())
    return lambda: cloud.take_over(next(sources))


def _changes_since(cloud: crowded.Crowded) -> Callable[[], Any]:
    moment = (cloud.began - datetime.timedelta(seconds=1)).strftime('%Y-%m-%dT%H:%M:%SZ')
    return lambda: cloud.list(f'limit=50&changes-since={moment}')


def _ratio(counted: list[int]) -> float:
    return counted[1] / counted[0] if counted[0] else float(max(1, counted[1]))


def _report(text: str) -> None:
    sys.stderr.write(f'{text}\n')
    sys.stderr.flush()


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='control_plane.py --check',
        allow_abbrev=False,
        description="Print the figures of the control plane's cost as goal / here, and fail if one is too high.",
    )
    add = parser.add_argument
    add('--on', choices=databases.NAMES, default=databases.SQLITE, help='the database (%(default)s)')
    add('--quick', action='store_true', help='counts only, with few hosts and rows: seconds')
    add('--record', action='store_true', help=f'write what is lower than before to benchmarks/{REACHED.name}')
    return parser.parse_args(argv)
