# SPDX-License-Identifier: Apache-2.0

"""What a random run costs, beside another commit.

    python -m benchmarks.random_runs --against 7c6408b9 --seeds 200
    python -m benchmarks.random_runs --against 7c6408b9 --seeds 40 --plans drains,outages --check

Both commits run the same seeds, in turns, each turn in a process of its own, so that a busy machine delays both. The
CPU time is that of the runs alone. If the digests are equal, the services have done the same at the same moments.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
#: The kinds of plans that are compared if none is named.
PLANS = ('days', 'drains', 'cold-migrations', 'upgrades', 'outages')
#: Seeds in one turn.
TURN = 20
#: The goal of --check.
GOAL = 0.5
CODE = """
import json, sys, time
from migrator.simulator import matrix, runs
kind, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
runs.hurry()
with matrix.backend() as backend:
    runs.run(backend, runs.KINDS[kind](first))
    began = time.process_time()
    found = [runs.run(backend, runs.KINDS[kind](seed)) for seed in range(first, first + count)]
    taken = time.process_time() - began
print(json.dumps([taken, [one.digest for one in found], sum(map(len, (one.violations for one in found)))]))
"""


def turn(tree: pathlib.Path, kind: str, first: int, count: int) -> tuple[float, list[str], int]:
    """Run seeds with a tree; return the CPU seconds, the digests, and the number of violations."""
    environment = {**os.environ, 'PYTHONPATH': str(tree), 'PYTHONWARNINGS': 'ignore', 'PYTHONHASHSEED': '0'}
    command = [sys.executable, '-c', CODE, kind, str(first), str(count)]
    done = subprocess.run(command, env=environment, cwd=tree, check=True, capture_output=True, text=True)  # noqa: S603 -- its own code
    taken, digests, violations = json.loads(done.stdout)
    return taken, digests, violations


def compare(before: pathlib.Path, kind: str, first: int, seeds: int) -> dict[str, object]:
    """Return the milliseconds of a seed at both commits, the ratio, and how many seeds did the same."""
    taken: dict[pathlib.Path, list[float]] = {before: [], ROOT: []}
    same, violations = 0, 0
    for begin in range(first, first + seeds, TURN):
        count = min(TURN, first + seeds - begin)
        found = {tree: turn(tree, kind, begin, count) for tree in (before, ROOT)}
        for tree, (seconds, _, _) in found.items():
            taken[tree].append(1000 * seconds / count)
        same += sum(one == other for one, other in zip(found[before][1], found[ROOT][1], strict=True))
        violations += found[ROOT][2]
    was, now = (statistics.mean(taken[tree]) for tree in (before, ROOT))
    return {
        'plans': kind,
        'seeds': seeds,
        'before_ms': round(was, 1),
        'now_ms': round(now, 1),
        'ratio': round(now / was, 3),
        'same': same,
        'violations': violations,
    }


def main(arguments: list[str] | None = None) -> int:
    """Print a line of JSON for each kind; with --check return 1 if a ratio is above the goal."""
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks.random_runs', description=(__doc__ or '').split('\n')[0]
    )
    parser.add_argument('--against', required=True, metavar='COMMIT', help='the other commit')
    parser.add_argument('--seeds', type=int, default=200, metavar='N', help='seeds of each kind (default: %(default)s)')
    parser.add_argument('--first-seed', type=int, default=1, metavar='N', help='first seed (default: %(default)s)')
    parser.add_argument('--plans', default=','.join(PLANS), help='kinds of plans (default: %(default)s)')
    parser.add_argument('--check', action='store_true', help=f'fail if a ratio is above {GOAL}')
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        before = pathlib.Path(directory)
        fetch = ['git', 'archive', given.against, 'migrator']
        archive = subprocess.run(fetch, cwd=ROOT, check=True, capture_output=True)  # noqa: S603 -- whichever git is here
        subprocess.run(['tar', '-x', '-C', directory], input=archive.stdout, check=True)  # noqa: S603, S607 -- as above
        found = []
        for kind in given.plans.split(','):
            found.append(compare(before, kind, given.first_seed, given.seeds))
            sys.stdout.write(f'{json.dumps(found[-1])}\n')
            sys.stdout.flush()
    return int(given.check and any(float(str(one['ratio'])) > GOAL for one in found))


if __name__ == '__main__':
    sys.exit(main())
