# SPDX-License-Identifier: Apache-2.0

"""The table of invariants, and the functions that check a cloud against it.

    assert_holds(World.of(cloud))

- *always* invariants hold after every event. A :class:`~migrator.simulator.monitor.Monitor` checks them then.
- *quiet* invariants hold after faults have stopped and the time bound has passed.
- *history* invariants are about the responses to clients and about logs.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Iterator

from migrator.simulator.invariants import always, drains, history, hosts, quiet
from migrator.simulator.world import World

__all__ = ['INVARIANTS', 'Broken', 'Invariant', 'Violation', 'When', 'World', 'assert_holds', 'check']


class When(enum.StrEnum):
    """The time at which an invariant must hold."""

    ALWAYS = 'always'
    QUIET = 'quiet'
    HISTORY = 'history'


@dataclasses.dataclass(frozen=True)
class Violation:
    """A violation of an invariant.

    :ivar id: the id of the invariant.
    :ivar what: a sentence that describes the violation.
    :ivar at: the time of the check on the world's monotonic clock, in seconds.
    """

    id: str
    what: str
    at: float = dataclasses.field(default=0.0, compare=False)

    def __str__(self) -> str:
        """Return the violation as a line of text."""
        return f'{self.id} at {self.at:.6f}: {self.what}'


#: Stands for the allocations and inventories in Placement, among the names of tables.
HOLDINGS = 'holdings'
#: Stands for guests on their hosts, rows, allocations and effects: for all but the reports of services.
GUESTS = 'guests'
_GUESTS = frozenset({GUESTS})
_MIGRATIONS = frozenset({'migrations', 'saga_log'})


@dataclasses.dataclass(frozen=True)
class Invariant:
    """One row of the table.

    :ivar function: yields one sentence for each violation in a world. Its docstring states the invariant.
    :ivar reads: the tables, :data:`HOLDINGS` or :data:`GUESTS`, without whose change it still holds; None: anything may
        break it.
    """

    id: str
    when: When
    function: Callable[[World], Iterator[str]]
    reads: frozenset[str] | None = None

    def may_have_changed(self, changed: Collection[str]) -> bool:
        """Return whether it has to be checked again after a change of some tables or of the allocations."""
        return self.reads is None or not self.reads.isdisjoint(changed)

    def violations(self, world: World) -> Iterator[Violation]:
        """Yield the violations in a world."""
        for what in self.function(world):
            yield Violation(self.id, what, world.at)


INVARIANTS = (
    Invariant('I1', When.ALWAYS, always.one_runner),
    Invariant('I1', When.QUIET, quiet.power),
    Invariant('I2', When.ALWAYS, always.location, _GUESTS),
    Invariant('I2', When.QUIET, quiet.where),
    Invariant('I3', When.QUIET, quiet.allocations),
    Invariant('I4', When.ALWAYS, always.during, _GUESTS),
    Invariant('I5', When.ALWAYS, always.cover),
    Invariant('I6', When.ALWAYS, always.capacity, frozenset({HOLDINGS})),
    Invariant('I7', When.QUIET, quiet.ends),
    Invariant('I8', When.HISTORY, history.responses),
    Invariant('I9', When.HISTORY, history.aborts),
    Invariant('I10', When.ALWAYS, hosts.bound),
    Invariant('I11', When.ALWAYS, hosts.queue_keys),
    Invariant('I11', When.QUIET, hosts.nothing_leaks),
    Invariant('I12', When.ALWAYS, always.one_way),
    Invariant('I13', When.ALWAYS, hosts.stopped),
    Invariant('I13', When.QUIET, hosts.stopped_clean),
    Invariant('I14', When.ALWAYS, always.legal, _MIGRATIONS),
    Invariant('I15', When.ALWAYS, always.task_state, _MIGRATIONS | {'instances'}),
    Invariant('I16', When.ALWAYS, hosts.fencing),
    Invariant('I17', When.ALWAYS, hosts.topology),
    Invariant('I18', When.QUIET, quiet.no_debris),
    Invariant('I19', When.HISTORY, history.readers),
    Invariant('I20', When.HISTORY, history.secrets),
    Invariant('I21', When.ALWAYS, hosts.one_hand),
    Invariant('I22', When.ALWAYS, hosts.kept_where_it_is),
    Invariant('I23', When.ALWAYS, hosts.slots, _MIGRATIONS),
    Invariant('I24', When.ALWAYS, hosts.one_conductor, _MIGRATIONS),
    Invariant('I25', When.ALWAYS, drains.legal, _GUESTS),
    Invariant('I25', When.QUIET, drains.ends),
    Invariant('I25', When.HISTORY, drains.moves),
    Invariant('I26', When.HISTORY, history.stuck_once),
    Invariant('I27', When.HISTORY, history.stuck_for_its_own_sake),
    Invariant('I31', When.ALWAYS, always.fitting, frozenset({'instances'})),
    Invariant('I28', When.ALWAYS, hosts.slot_order, _MIGRATIONS),
)


class Broken(AssertionError):
    """At least one invariant does not hold.

    :ivar violations: all violations that were found.
    """

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = list(violations)
        lines = '\n'.join(f'  {violation}' for violation in self.violations)
        super().__init__(f'{len(self.violations)} violations of invariants:\n{lines}')


def check(world: World, quiet: bool = True) -> list[Violation]:
    """Return all violations in a world.

    :param quiet: whether faults have stopped and the time bound has passed, so that the quiet invariants must hold.
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
    """Raise if an invariant does not hold in a world.

    :param quiet: see :func:`check`.
    :param seen: the violations that a :class:`~migrator.simulator.monitor.Monitor` has found before.
    :param allowed: ids of invariants that the test breaks on purpose.
    :raises Broken: there is a violation of another invariant.
    """
    # A dict keeps the order of the violations and removes duplicates.
    found = dict.fromkeys([*seen, *check(world, quiet)])
    wrong = [violation for violation in found if violation.id not in allowed]
    if wrong:
        raise Broken(wrong)
