# SPDX-License-Identifier: Apache-2.0

"""What a long run measures: the memory of processes, and how long a takeover takes."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import psycopg2

from tests.long_run import audit
from tests.long_run.journal import Journal
from tests.real.servers import process, reaper

#: Seconds between two looks for the new owners.
LOOK = 0.25


def memory(processes: Mapping[str, process.Process]) -> dict[str, list[int]]:
    """Return the resident memory of each process and its children: name -> [pid, KiB]."""
    found = {}
    for name, each in processes.items():
        if each.running:
            pages = sum(_pages(pid) for pid in reaper.descendants(each.pid))
            if pages:
                found[name] = [each.pid, pages * 4]
    return found


def _pages(pid: int) -> int:
    try:
        return int(pathlib.Path(f'/proc/{pid}/statm').read_text().split()[1])
    except (OSError, IndexError):
        return 0


class Takeovers:
    """A watch of the owners of the migrations of killed conductors.

    :param database: a connection string of libpq.
    :param overlaps: whether another fault was active: (began, ended, conductor) -> bool.
    :ivar took: the seconds of each takeover.
    """

    def __init__(self, database: str, overlaps: Callable[[float, float, str], bool], journal: Journal) -> None:
        self._database = database
        self._overlaps = overlaps
        self._journal = journal
        self._lock = threading.Lock()
        #: (migration, dead owner) -> (when the owner was killed, its name)
        self._waiting: dict[tuple[str, str], tuple[float, str]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name='takeovers', daemon=True)
        self.took: list[float] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._closed.set()
        self._thread.join(30)

    def killed(self, conductor: str) -> None:
        """Note which migrations a conductor had that is dead and not yet started again."""
        at = time.monotonic()
        found = self._query(
            'SELECT m.uuid, m.owner FROM migrations m JOIN conductors c ON c.id = m.owner '
            'WHERE c.server = %s AND m.in_progress_instance_uuid IS NOT NULL',
            conductor,
        )
        with self._lock:
            for one in found or ():
                self._waiting.setdefault((one['uuid'], one['owner']), (at, conductor))

    def waiting(self, longer_than: float) -> list[str]:
        """Return, in words, the migrations that have waited for that number of seconds."""
        now = time.monotonic()
        with self._lock:
            waiting = list(self._waiting.items())
        return [
            f'migration {uuid} of {name} has had no other owner for {now - at:.0f} s'
            for (uuid, _owner), (at, name) in waiting
            if now - at > longer_than
        ]

    def _query(self, statement: str, *values: Any) -> list[dict[str, Any]] | None:
        try:
            with audit.cursor(self._database) as cursor:
                return audit.rows(cursor, statement, *values)
        except psycopg2.Error:
            return None  # the database is away

    def _run(self) -> None:
        while not self._closed.wait(LOOK):
            with self._lock:
                waiting = dict(self._waiting)
            if not waiting:
                continue
            found = self._query(
                'SELECT uuid, owner, in_progress_instance_uuid AS moving FROM migrations WHERE uuid = ANY(%s)',
                [uuid for uuid, _owner in waiting],
            )
            now = time.monotonic()
            for one in found or ():
                for (uuid, owner), (at, name) in waiting.items():
                    if uuid == one['uuid'] and (one['moving'] is None or one['owner'] != owner):
                        alone = not self._overlaps(at, now, name)
                        self.took.append(now - at)
                        self._journal.write('takeover', seconds=round(now - at, 2), alone=alone)
                        with self._lock:
                            del self._waiting[uuid, owner]


def quantile(values: list[float], share: float) -> float | None:
    """Return the value that this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def covered(spans: Iterable[tuple[float, float]], began: float, ended: float) -> float:
    """Return the seconds between two times that some spans of time cover together."""
    total, until = 0.0, began
    for first, last in sorted(spans):
        total += max(0.0, min(last, ended) - max(first, until))
        until = max(until, last)
    return total


def slope(points: list[tuple[float, float]]) -> float:
    """Return the slope of the straight line with the least squares through (time, value)."""
    count = len(points)
    middle = sum(at for at, _ in points) / count
    mean = sum(value for _, value in points) / count
    spread = sum((at - middle) ** 2 for at, _ in points)
    return sum((at - middle) * (value - mean) for at, value in points) / spread if spread else 0.0
