# SPDX-License-Identifier: Apache-2.0

"""What a planted bug is, and the check whether the matrix catches it.

A bug is planted by patching the product in place while a cloud is made and runs; the product knows nothing of it. Its
origin is the Launchpad number of the Nova bug that it comes closest to, ``nova 34`` for what Nova does today, ``model``
for a mistake that the model of the protocol has found, or the invariant that it breaks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from unittest import mock

from migrator.simulator import matrix, runs, scenarios
from migrator.simulator.failpoints import Boundary
from migrator.simulator.matrix import Cell
from migrator.testing import backends

#: A boundary that no run has: the path as it is, without a fault.
_NOWHERE = Boundary('nobody', 'nowhere', 1)

#: The name of a random run: ``seed 7``, or of another kind of plans ``second-migrations seed 7``.
SEED = re.compile(r'(?:(?P<kind>[a-z-]+) )?seed (?P<number>\d+)')

Patch = Callable[[], Iterator[object]]


@dataclasses.dataclass(frozen=True)
class Plant:
    """One bug that can be planted.

    :ivar name: its name.
    :ivar origin: where it is from.
    :ivar observed: what it was in Nova, and what it is here.
    :ivar patch: plants it while it is entered.
    :ivar cells: what catches it: names of cells of the matrix, of paths that catch it without any fault, or of random
        runs (:data:`SEED`).
    """

    name: str
    origin: str
    observed: str
    patch: Callable[[], contextlib.AbstractContextManager[object]]
    cells: tuple[str, ...]


class Shelf(list[Plant]):
    """Plants, in order."""

    def plant(self, origin: str, *cells: str) -> Callable[[Patch], Patch]:
        """Have a generator function be a plant: its name is the plant's, its docstring the observation."""

        def shelve(function: Patch) -> Patch:
            name = function.__name__.replace('_', '-')
            observed = ' '.join((function.__doc__ or '').split())
            self.append(Plant(name, origin, observed, contextlib.contextmanager(function), cells))
            return function

        return shelve


#: Puts something in place of an attribute of a module or a class of the product, while it is entered.
patched = mock.patch.object


def parse(name: str) -> Cell:
    """Return the cell of a name, or of a path's name the cell without a fault.

    :raises ValueError: it is neither.
    """
    if name in scenarios.BY_NAME:
        return Cell(name, _NOWHERE, '')
    return Cell.parse(name)


def caught(backend: backends.Backend, name: str) -> str | None:
    """Return the first thing that is wrong in a cell, or None.

    Without a fault, a path that ends otherwise than it should is wrong too.

    :param name: of a cell, of a path, or of a random run.
    """
    if seed := SEED.fullmatch(name):
        plan = runs.KINDS[seed['kind'] or 'days'](int(seed['number']))
        violations = runs.run(backend, plan).violations
        return violations[0] if violations else None
    cell = parse(name)
    result = matrix.run(backend, cell)
    if result.violations:
        return str(result.violations[0])
    path = scenarios.BY_NAME[cell.path]
    ends = result.statuses[-len(path.ends) :] if path.ends else ()
    if cell.boundary == _NOWHERE and ends != path.ends:
        return f'it ended {", ".join(ends)}, and not {", ".join(path.ends)}'
    return None
