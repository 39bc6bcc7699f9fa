# SPDX-License-Identifier: Apache-2.0

"""Measure how much longer migrations take by migrator than by virsh, on real guests.

    python benchmarks/libvirt_overhead.py [--runs N] [--json]

A guest of 256 MiB, which rewrites 2 MiB a second, goes from one libvirt host to another at 32 MiB/s: by migrator, asked
by its REST API, with all services in processes of their own on a private RabbitMQ, PostgreSQL and Placement; and by
``virsh migrate`` with the same flags, addresses and bandwidth. The two take turns, in pairs, of which every second one
begins with the other; each has a guest of its own, new for this run, and the services run all the time.

- ``total``: from the request until the migration is ``completed``; of virsh, from its start to its end;
- ``arrived``: from the same until the guest's first output at the destination;
- ``downtime``: the longest time without output of the guest, which prints a line every 20 ms.

Exit status: 0; 1 the median ratio of the total or of the downtime is above its aim; 2 an option cannot be; 3 something
it needs is not here.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import statistics
import sys
from collections.abc import Sequence
from typing import Any

TREE = pathlib.Path(__file__).resolve().parents[1]
PROG = 'libvirt_overhead.py'

#: What each run measures, in seconds.
MEASURES = ('total', 'arrived', 'downtime')
#: The highest ratios that are good.
AIMS = {'total': 1.02, 'downtime': 1.0}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, print what it has found, and return the exit status."""
    asked = _parse(argv)
    if str(TREE) not in sys.path:
        # started by its path, a script has its own directory there and not the tree
        sys.path.insert(0, str(TREE))
    from migrator.cmd import demo

    # before anything is imported that would choose for itself, and say so
    demo.choose_threads()
    from benchmarks import libvirt_runs

    lacking = libvirt_runs.missing()
    if lacking:
        sys.stderr.write(f'{PROG}: there is no {lacking}\n')
        return 3
    signal.signal(signal.SIGTERM, _stop)
    try:
        pairs = _measure(libvirt_runs, asked.runs)
    except KeyboardInterrupt:
        report(f'{PROG}: interrupted; nothing of it is left')
        return 130
    found = summary(pairs)
    if asked.json:
        json.dump({'cpus': os.cpu_count(), **found, 'pairs': pairs}, sys.stdout, indent=2)
        sys.stdout.write('\n')
    else:
        sys.stdout.write(_table(found, pairs))
    return status(found['ratios'])


def _measure(libvirt_runs: Any, runs: int) -> list[dict[str, Any]]:
    pairs: list[dict[str, Any]] = []
    report('starting PostgreSQL, RabbitMQ, Placement, two libvirt hosts, and the services')
    with libvirt_runs.servers() as bench:
        report('one of each that does not count')
        bench.by_virsh()
        bench.by_migrator()
        for number in range(1, runs + 1):
            ways = [('virsh', bench.by_virsh), ('migrator', bench.by_migrator)]
            load = os.getloadavg()[0]
            pair: dict[str, Any] = {'load': round(load, 2), 'first': ways[number % 2 - 1][0]}
            for name, move in ways if number % 2 else reversed(ways):
                pair[name] = move()
            pairs.append(pair)
            report(f'pair {number} of {runs}: {_line(pair)}')
    return pairs


def _stop(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


def report(text: str) -> None:
    """Print the progress on stderr."""
    sys.stderr.write(f'{text}\n')
    sys.stderr.flush()


# --- the figures -----------------------------------------------------------------------------------------------------


def summary(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of each way, and of the ratios within the pairs."""
    found: dict[str, Any] = {'runs': len(pairs)}
    for way in ('virsh', 'migrator'):
        found[way] = {name: round(statistics.median(pair[way][name] for pair in pairs), 4) for name in MEASURES}
    # A user of virsh waits for its end, so both of migrator's moments are compared with that.
    against = {'total': 'total', 'arrived': 'total', 'downtime': 'downtime'}
    found['ratios'] = {
        name: round(statistics.median(pair['migrator'][name] / pair['virsh'][other] for pair in pairs), 4)
        for name, other in against.items()
    }
    found['ratios']['arrived_to_arrived'] = round(
        statistics.median(pair['migrator']['arrived'] / pair['virsh']['arrived'] for pair in pairs), 4
    )
    found['phases'] = {
        name: round(statistics.median(pair['migrator']['phases'][name] for pair in pairs), 4)
        for name in pairs[0]['migrator']['phases']
    }
    return found


def status(ratios: dict[str, float]) -> int:
    """Return the exit status for the median ratios: 1 if one is above its aim, else 0."""
    return int(any(ratios[name] > aim for name, aim in AIMS.items()))


def _line(pair: dict[str, Any]) -> str:
    said = [
        f'{way} {pair[way]["total"]:.2f} s (down {pair[way]["downtime"] * 1000:.0f} ms)'
        for way in ('virsh', 'migrator')
    ]
    ratio = pair['migrator']['total'] / pair['virsh']['total']
    return f'{", ".join(said)}; {ratio:.3f} times as long, load {pair["load"]}'


def _table(found: dict[str, Any], pairs: Sequence[dict[str, Any]]) -> str:
    lines = [f'{"median of " + str(found["runs"]) + " runs":24}{"virsh":>10}{"migrator":>10}{"ratio":>10}{"aim":>8}']
    for name in MEASURES:
        virsh, ours = found['virsh'][name], found['migrator'][name]
        aim = f'{AIMS[name]:8.2f}' if name in AIMS else f'{"-":>8}'
        lines.append(f'{name + ", s":24}{virsh:10.3f}{ours:10.3f}{found["ratios"][name]:10.3f}{aim}')
    lines += [
        '',
        'ratio: the median of those within the pairs; of arrived, to the total of virsh',
        f'load average: {min(pair["load"] for pair in pairs)} to {max(pair["load"] for pair in pairs)}, '
        f'on {os.cpu_count()} processors',
        '',
        "migrator's time, median seconds:",
        *(f'  {name:44}{seconds:8.3f}' for name, seconds in found['phases'].items()),
    ]
    return '\n'.join(lines) + '\n'


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROG, allow_abbrev=False, description='How much longer a move takes by migrator than by virsh.'
    )
    parser.add_argument('--runs', type=_number, default=10, metavar='N', help='pairs of runs (%(default)s)')
    parser.add_argument('--json', action='store_true', help='print JSON, with every run')
    return parser.parse_args(argv)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f'is {text!r}: give a whole number of 1 or more')
    return int(text)


if __name__ == '__main__':
    sys.exit(main())
