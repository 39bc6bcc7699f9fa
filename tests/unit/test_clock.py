# SPDX-License-Identifier: Apache-2.0

"""Nothing measures time by the wall clock, which may jump: it is read in one place, for display."""

from __future__ import annotations

import ast
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2] / 'migrator'

#: The callers that may read the wall clock, and their purposes.
READERS = {
    'db/sql/engine.py': 'a SQLite database has no clock of its own, and serves one process',
    'db/migrations.py': 'the history of statuses, and what was just written, until it is read again',
    'conductor/broker.py': 'a log line and a column for operators',
    'conductor/migration/settle.py': 'how long a copy has lasted, from a column',
    'conductor/migration/waiting.py': 'a column for operators',
    'demo/report.py': 'the report of the demo',
    'demo/run.py': 'the picture of the demo',
    'nova/foreground/loop.py': 'the picture of a drain',
    'nova/plan.py': 'the expected times of a plan',
    'tracing.py': 'the times of a trace',
    'operator/maintenance/supervisor.py': 'when work has begun and ended, for operators',
    'operator/maintenance/verbs.py': 'a deadline that is given as a span',
    'operator/maintenance/work.py': 'the time of a line, and how long ago a command of another process has ended',
    'operator/osc/drain.py': 'the picture of a watch',
    'operator/watch/commands.py': 'the picture of a watch',
}
#: The one place where it is read.
CLOCK = 'executors/threads.py'
#: What reads it: the last two names of a call.
WALL = {
    ('time', 'time'), ('time', 'time_ns'), ('time', 'localtime'), ('time', 'gmtime'), ('datetime', 'now'),
    ('datetime', 'utcnow'), ('datetime', 'today'), ('date', 'today'), ('timeutils', 'utcnow'),
}  # fmt: skip


def calls(source: str) -> set[tuple[str, str]]:
    """Return the last two names of each call and each attribute: a function may be passed on."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            found.add((ast.unparse(node.value).rpartition('.')[2], node.attr))
    return found


def sources() -> dict[str, str]:
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding='utf-8')
        for path in ROOT.rglob('*.py')
        if not {'simulator', 'testing'} & {*path.relative_to(ROOT).parts}
    }


def test_the_wall_clock_is_read_in_one_place():
    assert {name for name, source in sources().items() if calls(source) & WALL} == {CLOCK}


def test_only_listed_modules_read_wall_clock():
    asking = {name for name, source in sources().items() if ('clock', 'now') in calls(source)}
    assert asking == set(READERS), 'durations and leases are measured by clock.monotonic() or by the database'


def test_a_log_records_own_time_is_the_wall_clocks():
    assert not [name for name, source in sources().items() if ('record', 'created') in calls(source)]


def test_the_check_finds_what_it_looks_for():
    assert calls('import time\nx = time.time()') & WALL
    assert calls('import time\ndef f(clock=time.time): ...') & WALL
    assert calls('import datetime\ndatetime.datetime.now(datetime.UTC)') & WALL
    assert ('clock', 'now') in calls('self._threads.clock.now()')
    assert not calls('import time\ntime.monotonic()') & WALL
