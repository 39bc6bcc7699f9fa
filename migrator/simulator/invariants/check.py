# SPDX-License-Identifier: Apache-2.0
"""What must always be true of a cloud: one table, and :func:`check`, which goes through it.

    assert_holds(World.of(cloud))

*always* holds after every event (a :class:`~migrator.simulator.monitor.Watcher` looks then), *quiet* when faults have
stopped and the bound has passed, *history* of what a client was answered and of what was logged.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Iterator

from migrator.simulator.invariants import always, history, hosts
from migrator.simulator.invariants import quiet as quiet_ones
from migrator.simulator.world import World

__all__ = ['INVARIANTS', 'Broken', 'Invariant', 'Violation', 'When', 'World', 'assert_holds', 'check']


class When(enum.StrEnum):
    """When an invariant must hold."""

    ALWAYS = 'always'
    QUIET = 'quiet'
    HISTORY = 'history'


@dataclasses.dataclass(frozen=True)
class Violation:
    """Something that must never be, and was.

    :ivar id: of the invariant.
    :ivar at: seconds of the world's monotonic clock at which it was seen.
    """

    id: str
    what: str
    at: float = dataclasses.field(default=0.0, compare=False)

    def __str__(self) -> str:
        """Return it for a person."""
        return f'{self.id} at {self.at:.6f}: {self.what}'


@dataclasses.dataclass(frozen=True)
class Invariant:
    """One row of the table.

    :ivar function: yields what is wrong in a world, a sentence each; its docstring states the invariant.
    """

    id: str
    when: When
    function: Callable[[World], Iterator[str]]

    def violations(self, world: World) -> Iterator[Violation]:
        """Return what is wrong in a world."""
        for what in self.function(world):
            yield Violation(self.id, what, world.at)


INVARIANTS = (
    Invariant('I1', When.ALWAYS, always.one_runner),
    Invariant('I1', When.QUIET, quiet_ones.power),
    Invariant('I2', When.ALWAYS, always.location),
    Invariant('I2', When.QUIET, quiet_ones.where),
    Invariant('I3', When.QUIET, quiet_ones.books),
    Invariant('I4', When.ALWAYS, always.during),
    Invariant('I5', When.ALWAYS, always.cover),
    Invariant('I6', When.ALWAYS, always.capacity),
    Invariant('I7', When.QUIET, quiet_ones.ends),
    Invariant('I8', When.HISTORY, history.promises),
    Invariant('I9', When.HISTORY, history.aborts),
    Invariant('I10', When.ALWAYS, hosts.bound),
    Invariant('I11', When.ALWAYS, hosts.queue_keys),
    Invariant('I11', When.QUIET, hosts.nothing_leaks),
    Invariant('I12', When.ALWAYS, always.one_way),
    Invariant('I13', When.ALWAYS, hosts.stopped),
    Invariant('I13', When.QUIET, hosts.stopped_clean),
    Invariant('I14', When.ALWAYS, always.legal),
    Invariant('I15', When.ALWAYS, always.task_state),
    Invariant('I16', When.ALWAYS, hosts.fencing),
    Invariant('I17', When.ALWAYS, hosts.topology),
    Invariant('I18', When.QUIET, quiet_ones.no_debris),
    Invariant('I19', When.HISTORY, history.readers),
    Invariant('I20', When.HISTORY, history.secrets),
    Invariant('I21', When.ALWAYS, hosts.one_hand),
    Invariant('I22', When.ALWAYS, hosts.kept_where_it_is),
)


class Broken(AssertionError):
    """An invariant does not hold.

    :ivar violations: all that was found.
    """

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = list(violations)
        lines = '\n'.join(f'  {violation}' for violation in self.violations)
        super().__init__(f'{len(self.violations)} violations of what must always be true:\n{lines}')


def check(world: World, quiet: bool = True) -> list[Violation]:
    """Return what is wrong in a world.

    :param quiet: whether faults have stopped and the bound has passed, so that everything must be in order again.
    """
    return [
        violation
        for invariant in INVARIANTS
        if quiet or invariant.when is not When.QUIET
        for violation in invariant.violations(world)
    ]


def assert_holds(
    world: World, quiet: bool = True, seen: Iterable[Violation] = (), allowed: Collection[str] = ()
) -> None:
    """Raise if anything is wrong in a world.

    :param quiet: see :func:`check`.
    :param seen: what a :class:`~migrator.simulator.monitor.Watcher` has found on the way.
    :param allowed: ids of invariants that the test itself has broken.
    :raises Broken: something is.
    """
    # In the order of their finding, each once.
    found = dict.fromkeys([*seen, *check(world, quiet)])
    wrong = [violation for violation in found if violation.id not in allowed]
    if wrong:
        raise Broken(wrong)
