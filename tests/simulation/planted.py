# SPDX-License-Identifier: Apache-2.0

"""Bugs of nova's, and of the model's, planted in migrator: each must be caught by the crash matrix.

    python -m tests.simulation.planted [NAME ...] [--paths success,...] [--match REGEX] [--seeds N] [--tries N]

looks for what catches some of them, or each whose recorded cell does not, and prints it.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence

from migrator.simulator import matrix, runs, scenarios
from migrator.testing import backends
from tests.simulation import (
    plant,
    planted_allocations,
    planted_cold_migrations,
    planted_drains,
    planted_elsewhere,
    planted_epoch_check,
    planted_evacuations,
    planted_guests,
    planted_hosts,
    planted_maintenances,
    planted_queue,
    planted_saga,
)

PLANTS: tuple[plant.Plant, ...] = (
    *planted_allocations.SHELF,
    *planted_saga.SHELF,
    *planted_queue.SHELF,
    *planted_hosts.SHELF,
    *planted_epoch_check.SHELF,
    *planted_guests.SHELF,
    *planted_elsewhere.SHELF,
    *planted_evacuations.SHELF,
    *planted_drains.SHELF,
    *planted_cold_migrations.SHELF,
    *planted_maintenances.SHELF,
)

BY_NAME = {one.name: one for one in PLANTS}

#: What the order is shuffled by, in which cells are tried.
_SEED = 5


def candidates(backend: backends.Backend, chosen: Sequence[str], match: str) -> Iterator[str]:
    """Return what may catch a plant: first every path without a fault, then the cells of some paths.

    :param chosen: the names of these paths.
    :param match: a regular expression that a cell's name must have somewhere.
    """
    yield from (name for name in scenarios.BY_NAME if not chosen or name in chosen)
    cells = matrix.cells(backend, [scenarios.BY_NAME[name] for name in chosen or scenarios.BY_NAME])
    names = [str(cell) for cell in cells if re.search(match, str(cell))]
    random.Random(_SEED).shuffle(names)  # noqa: S311 -- the order of a search
    yield from names


def look_for(backend: backends.Backend, one: plant.Plant, names: Sequence[str]) -> str | None:
    """Return the first of some cells that catches a plant, and print it; None: none does."""
    began = time.monotonic()
    for number, name in enumerate(names, start=1):
        with one.patch():
            wrong = plant.caught(backend, name)
        if wrong is not None:
            print(f'{one.name}: caught by {name}: {wrong} [{number} tries, {time.monotonic() - began:.1f} s]')
            return name
    print(f'{one.name}: NOT CAUGHT by {len(names)} cells in {time.monotonic() - began:.1f} s')
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Look for what catches plants; return 1 where nothing does."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('names', nargs='*', help='of plants; all whose recorded cell does not catch them, if not given')
    parser.add_argument('--paths', default='', help='only these, with commas between them')
    parser.add_argument('--match', default='', help='only cells whose name has this regular expression')
    parser.add_argument('--seeds', type=int, default=0, help='the number of random runs to try, too')
    parser.add_argument('--plans', default='', choices=['', *runs.KINDS], help='of this kind')
    parser.add_argument('--tries', type=int, default=5000, help='how many cells at most')
    options = parser.parse_args(arguments)
    missed = 0
    with matrix.backend() as backend:
        names = list(candidates(backend, [name for name in options.paths.split(',') if name], options.match))
        kind = f'{options.plans} ' if options.plans else ''
        names += [f'{kind}seed {number}' for number in range(1, options.seeds + 1)]
        for one in [BY_NAME[name] for name in options.names] or PLANTS:
            tried = [*(() if options.names else one.cells), *names][: options.tries]
            missed += look_for(backend, one, tried) is None
            sys.stdout.flush()
    return int(missed > 0)


if __name__ == '__main__':
    sys.exit(main())
