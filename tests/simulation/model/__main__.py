# SPDX-License-Identifier: Apache-2.0
"""Searches one variant and prints what was found: ``python -m tests.simulation.model --help``."""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Sequence

from tests.simulation.model import search, world

_COMMON = 12


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog='python -m tests.simulation.model', description=__doc__)
    line.add_argument('--crashes', type=int, default=1, help='crashes, pauses, lost networks, together')
    line.add_argument('--messages', type=int, default=1, help='lost, late and doubled calls and answers')
    line.add_argument('--aborts', type=int, default=1, help='aborts by the user')
    line.add_argument('--stops', type=int, default=0, help='planned stops of the source')
    line.add_argument('--hangs', type=int, default=0, help='hangs of the hypervisor of the destination')
    line.add_argument('--candidates', type=int, default=1, choices=(1, 2), help='destinations')
    line.add_argument('--late', action='store_true', help="begin at the commit of step 5's intent")
    line.add_argument('--plant', action='append', default=[], help='a planted mistake; may be given again')
    line.add_argument('--no-traps', action='store_true', help='saves memory')
    line.add_argument('--limit', type=int, default=50_000_000, help='states')
    line.add_argument('--brief', action='store_true', help='no traces')
    return line


def show(found: search.Found, brief: bool = False) -> str:
    """Return a readable report of what was found."""
    lines = [
        f'{found.states} states, {found.steps} steps, depth {found.depth}, {found.seconds:.0f} s'
        f'{"" if found.complete else ", CUT"}; {found.finished} of them over and well'
    ]
    for what, findings in (('VIOLATION', found.violations), ('stuck', found.stuck), ('TRAP', found.traps)):
        for text, (count, trace) in sorted(findings.items(), key=lambda item: len(item[1][1])):
            lines.append(f'{what} {text}: {count} times; the shortest trace has {len(trace)} steps')
            if not brief:
                lines += [f'    {number:3} {label}' for number, label in enumerate(trace, 1)]
    lines += [f'at rest: {sketch}: {count}' for sketch, count in sorted(found.quiet.items())]
    return '\n'.join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Search and print; return 1 if something is broken or cut."""
    given = parser().parse_args(arguments)
    variant = world.Variant(
        crashes=given.crashes,
        messages=given.messages,
        aborts=given.aborts,
        stops=given.stops,
        hangs=given.hangs,
        candidates=given.candidates,
        late=given.late,
        plants=frozenset(given.plant),
    )
    found = search.search(world.system(variant), limit=given.limit, traps=not given.no_traps)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    sys.stdout.write(f'{variant}\n{show(found, given.brief)}\nmemory: {memory:.1f} GiB\n')
    return int(bool(found.violations or found.traps or not found.complete))


if __name__ == '__main__':
    sys.exit(main())
