# SPDX-License-Identifier: Apache-2.0

"""Runs one stage of the tests and says what it cost: cases, seconds, CPU seconds.

    python tools/stage.py run --log FILE --cpu 600 --wall 300 NAME -- COMMAND [ARG ...]
    python tools/stage.py table FILE

``run`` passes on what the command prints, and its exit status; it appends a line of JSON to FILE. ``table`` prints all
of them. A budget that was exceeded is said and fails nothing: a slow machine is no fault of the tests.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import resource
import subprocess
import sys
import time

#: What pytest says at its end: ``5190 passed, 9 skipped in 728.28s``.
_PASSED = re.compile(rb'(?:^|[ =])(\d+) passed')


def run(name: str, command: list[str], log: pathlib.Path, cpu_budget: float, wall_budget: float) -> int:
    """Run a command and append what it cost to a file.

    :param name: of the stage.
    :param cpu_budget: CPU seconds of all its processes that it should not exceed; 0: any.
    :param wall_budget: seconds, likewise.
    :returns: its exit status.
    """
    began, cases = time.monotonic(), 0
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # noqa: S603 -- as it was given
    assert process.stdout is not None
    for line in process.stdout:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        cases += sum(int(found) for found in _PASSED.findall(line))
    status = process.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost = {
        'name': name,
        'status': status,
        'cases': cases,
        'wall': round(time.monotonic() - began, 2),
        'cpu': round(used.ru_utime + used.ru_stime, 2),
        'wall_budget': wall_budget,
        'cpu_budget': cpu_budget,
    }
    with log.open('a', encoding='utf-8') as file:
        file.write(json.dumps(cost) + '\n')
    print(f'stage: {row(cost)}', flush=True)
    return status


def row(cost: dict[str, float | str]) -> str:
    """Return the line of one stage."""
    said = f'{cost["name"]!s:24} {cost["cases"]:6} cases {cost["wall"]:8} s {cost["cpu"]:8} CPU s'
    for what, unit in (('wall', 's'), ('cpu', 'CPU s')):
        budget = float(cost[f'{what}_budget'])
        if budget and float(cost[what]) > budget:
            said += f'  OVER ITS BUDGET of {budget:g} {unit}'
    return said if not cost['status'] else f'{said}  FAILED ({cost["status"]})'


def table(log: pathlib.Path) -> None:
    """Print the lines of all stages, and their sum."""
    costs = [json.loads(line) for line in log.read_text(encoding='utf-8').splitlines()]
    for cost in costs:
        print(row(cost))
    total = {name: round(sum(cost[name] for cost in costs), 1) for name in ('cases', 'wall', 'cpu')}
    print(row({'name': 'all', 'status': 0, 'wall_budget': 0, 'cpu_budget': 0, **total}))


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n', 1)[0])
    verbs = parser.add_subparsers(dest='verb', required=True)
    one = verbs.add_parser('run', help='run a stage')
    one.add_argument('--log', type=pathlib.Path, required=True, metavar='FILE', help='where its cost is appended')
    one.add_argument('--cpu', type=float, default=0, metavar='SECONDS', help='its budget of CPU time')
    one.add_argument('--wall', type=float, default=0, metavar='SECONDS', help='its budget of time')
    one.add_argument('name', help='of the stage')
    one.add_argument('command', nargs='+', help='what is run')
    every = verbs.add_parser('table', help='print what all stages cost')
    every.add_argument('log', type=pathlib.Path, metavar='FILE')
    given = parser.parse_args()
    if given.verb == 'table':
        table(given.log)
        return 0
    return run(given.name, given.command, given.log, given.cpu, given.wall)


if __name__ == '__main__':
    sys.exit(main())
