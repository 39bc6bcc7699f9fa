# SPDX-License-Identifier: Apache-2.0

"""What the control plane costs, as JSON on stdout; what it is at meanwhile, on stderr.

    python benchmarks/control_plane.py [--on sqlite|services|both] [--guests 1,200] [--migrations N] [--quick]

The hypervisors are fakes whose links are so fast that a copy takes no time: what is left is the control plane. Of each
database and each number of guests on the source it prints

- ``idle``: what goes on when nothing migrates, per second;
- ``one_at_a_time``: a guest goes to and fro between two hosts with that number of guests;
- ``together``: all guests of a host leave at once (none, for one guest);
- ``abort_latency``: from the DELETE to ``cancelled``, for a running migration, and for one in the source's queue with
  that many others behind one that does not end.

``sqlite`` is a whole cloud in this process (:mod:`migrator.testing.counting`), ``services`` two conductors, one API
and four computes in processes of their own, on a private RabbitMQ, PostgreSQL and Placement. Polls, heartbeats and
whatever else goes on by itself are counted apart. Exit status: 0; 2 an option cannot be; 3 a server is not installed.

``--check`` compares instead with the goals: :mod:`benchmarks.check`.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import sys
from collections.abc import Sequence
from typing import Any

TREE = pathlib.Path(__file__).resolve().parents[1]
PROG = 'control_plane.py'
CHECK = '--check'


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, print what it has found, and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if str(TREE) not in sys.path:
        # started by its path, a script has its own directory there and not the tree
        sys.path.insert(0, str(TREE))
    if CHECK in words:
        from benchmarks import check

        words.remove(CHECK)
        return check.main(words)
    asked = _parse(words)
    from benchmarks import in_process, on_services, runs

    size = runs.QUICK if asked.quick else runs.FULL
    if asked.migrations:
        size = size.with_migrations(asked.migrations)
    found: dict[str, Any] = {'cpus': os.cpu_count(), 'python': platform.python_version(), 'migrations': size.migrations}
    lacking = on_services.missing() if asked.on in ('services', 'both') else None
    if lacking:
        sys.stderr.write(f'{PROG}: --on is {asked.on}, and there is no {lacking}; --on sqlite needs none of it\n')
        return 3
    if asked.on in ('sqlite', 'both'):
        found['sqlite'] = {
            guests: runs.run(in_process.bench, guests, size, lambda text: report(f'sqlite: {text}'))
            for guests in asked.guests
        }
    if asked.on in ('services', 'both'):
        with on_services.servers() as bench:
            found['services'] = {
                guests: runs.run(bench, guests, size, lambda text: report(f'services: {text}'))
                for guests in asked.guests
            }
    json.dump(found, sys.stdout, indent=2)
    sys.stdout.write('\n')
    return 0


def report(text: str) -> None:
    """Print the progress on stderr."""
    sys.stderr.write(f'{text}\n')
    sys.stderr.flush()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROG,
        allow_abbrev=False,
        description='What the control plane costs: time, CPU, messages, statements, commits, requests.',
    )
    add = parser.add_argument
    add('--on', choices=('sqlite', 'services', 'both'), default='both', help='what to run it on (%(default)s)')
    add('--guests', type=_numbers, default=[1, 200], metavar='N,N', help='guests on the source (1,200)')
    add('--migrations', type=_number, metavar='N', help='how many migrations one at a time (40)')
    add(CHECK, action='store_true', help='compare with the goals instead; --check --help has its options')
    add('--quick', action='store_true', help='a few of each: the counts are right, the times are not')
    return parser.parse_args(argv)


def _number(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'is {text!r}: give a whole number of 1 or more')
    return int(text)


def _numbers(text: str) -> list[int]:
    return [_number(part) for part in text.split(',')]


if __name__ == '__main__':
    sys.exit(main())
