# SPDX-License-Identifier: Apache-2.0

"""The crash matrix: every boundary of every path, with every fault that may strike there.

    with matrix.ground() as ground:
        for cell in matrix.cells(ground):
            result = matrix.run(ground, cell)
            assert not result.violations, cell

Each cell ends in check(world). They come from a run of each path without a fault, so that a new step has its cells
the day it is declared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator

from migrator.conductor.migration import context
from migrator.conductor.tasks import live_migrate
from migrator.db.api import Database
from migrator.saga.saga import Saga
from migrator.simulator import faults, scenarios
from migrator.simulator.failpoints import LOOKS, Boundary, Failpoints
from migrator.simulator.invariants import check
from migrator.simulator.monitor import Monitor
from migrator.simulator.operator import Operator
from migrator.testing import backends
from migrator.testing.cloud import SimulatedCloud
from migrator.testing.simulation.sim_thread import Livelock

#: The conductor that has nothing to do until the other one is gone.
_STANDBY = 'conductor2'
#: More does not happen at one moment of a path, in passes of the baton: some hundred at most.
_MOST_PASSES = 3_000
_STRIKE = re.compile(r'(?P<process>[^:|]+): (?P<label>[^|]+) #(?P<nth>\d+) \| (?P<fault>[^|]+)')


@dataclasses.dataclass(frozen=True)
class Cell:
    """One fault at one boundary of one path, or two.

    :ivar then: another fault, which strikes later. The matrix has none such; what only two faults show is named by it.
    :ivar steps: what is done or written there of the story: ``move_allocation do``. Not part of its name.
    """

    path: str
    boundary: Boundary
    fault: str
    then: tuple[Boundary, str] | None = None
    steps: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    def __str__(self) -> str:
        """Return its name, which :meth:`parse` reads."""
        second = f' & {self.then[0]} | {self.then[1]}' if self.then is not None else ''
        return f'{self.path} | {self.boundary} | {self.fault}{second}'

    @classmethod
    def parse(cls, name: str) -> Cell:
        """Return the cell of a name.

        :raises ValueError: it is no such name.
        """
        path, _, told = name.partition(' | ')
        found = [_STRIKE.fullmatch(one) for one in told.split(' & ')]
        struck = [
            (Boundary(one['process'], one['label'], int(one['nth'])), one['fault'])
            for one in found
            if one is not None and one['fault'] in faults.BY_NAME
        ]
        if path not in scenarios.BY_NAME or len(struck) != len(found) or len(struck) > 2:
            raise ValueError(
                f'{name!r} is no cell: it should read PATH | PROCESS: LABEL #N | FAULT, and may go on with'
                ' & PROCESS: LABEL #N | FAULT'
            )
        return cls(path, *struck[0], then=struck[1] if len(struck) == 2 else None)


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of one run.

    :ivar violations: what must never be, and was.
    :ivar struck: whether each fault found its boundary.
    :ivar statuses: of the migrations, the oldest first.
    :ivar digest: of everything that happened, in its order.
    :ivar seconds: of the cloud's clock.
    """

    violations: tuple[check.Violation, ...]
    struck: bool
    statuses: tuple[str, ...]
    digest: str
    seconds: float


@contextlib.contextmanager
def backend() -> Iterator[backends.SharedBackend]:
    """Return what the clouds of many runs stand on, one after the other; in memory, where there is such a directory."""
    with tempfile.TemporaryDirectory(dir=backends.in_memory()) as directory:
        shared = backends.SharedBackend(directory)
        try:
            yield shared
        finally:
            shared.close()


def cells(backend_: backends.Backend, chosen: Iterable[scenarios.Path] = scenarios.PATHS) -> list[Cell]:
    """Return the cells of some paths.

    :raises AssertionError: a path does not end as it should, without any fault.
    """
    return [cell for path in chosen for cell in _cells_of(backend_, path)]


def _cells_of(backend_: backends.Backend, path: scenarios.Path) -> list[Cell]:
    dry = _Run(backend_, path, None)
    result = dry.go()
    ends = result.statuses[-len(path.ends) :]
    assert not result.violations, f'{path.name}, without a fault: {result.violations}'
    assert ends == path.ends, f'{path.name} ended {ends}'
    return [
        Cell(path.name, boundary, fault.name, steps=tuple(sorted(dry.steps.get(boundary, ()))))
        for boundary in dry.boundaries()
        for fault in faults.FAULTS
        if fault.where(boundary) and not dry.is_followed(boundary, fault.later)
    ]


def story() -> Saga[context.MigrationContext]:
    """Return the story that the cells are of."""
    return live_migrate.story()


def run(backend_: backends.Backend, cell: Cell, path: scenarios.Path | None = None) -> Result:
    """Return what becomes of one cell.

    :param path: the path itself, where it is another than that of this name, such as one with other options.
    """
    return _Run(backend_, path or scenarios.BY_NAME[cell.path], cell).go()


class _Run:
    """One path in one cloud.

    :param cell: whose fault strikes; None: none does, and what is written of the story is noted.
    """

    def __init__(self, backend_: backends.Backend, path: scenarios.Path, cell: Cell | None) -> None:
        self.path = path
        self.cell = cell
        self._left = [] if cell is None else [(cell.boundary, cell.fault), *([cell.then] if cell.then else [])]
        self._story = story()
        self.steps: dict[Boundary, set[str]] = {}
        self._journal: set[tuple[object, ...]] = set()
        self._begins: dict[str, Boundary] = {}
        self._times: dict[Boundary, float] = {}
        self._places: dict[Boundary, int] = {}
        self._begun = self._over = 0
        self.cloud = SimulatedCloud(
            backend_.directory, path.hosts, backend=backend_, options=path.options, **path.knobs
        )
        self.cloud.start_conductor(_STANDBY)
        self.operator = Operator(self.cloud)
        self.operator.simulation.scheduler.most_passes = _MOST_PASSES
        self.monitor = Monitor(self.cloud)
        self.failpoints = Failpoints(self.cloud, self.operator, self._hook)

    def go(self) -> Result:
        """Run it to its end, and judge."""
        simulation = self.cloud.simulation
        assert simulation is not None
        try:
            return Result(
                violations=self._violations(),
                struck=not self._left,
                statuses=tuple(row.status for row in self.cloud.migrations()),
                digest=hashlib.sha256(repr(simulation.trace).encode()).hexdigest()[:16],
                seconds=simulation.time,
            )
        finally:
            self.monitor.close()
            self.cloud.stop()

    def _violations(self) -> tuple[check.Violation, ...]:
        try:
            self.path.act(self.operator, self._begin)
            self.operator.settle()
            self._over = len(self.failpoints.passed)
            self.failpoints.remove()
            self.operator.finish()
        except Livelock as error:
            # They answer each other at once, and again, and again: no time-out ever comes.
            what = f'nothing ends any more: {error.passes} steps at one moment'
            return (*self.monitor.violations, check.Violation('I7', what, self.operator.simulation.time))
        return tuple(self.operator.judge(self.monitor))

    def boundaries(self) -> list[Boundary]:
        """Return the boundaries on its way, each once; of what only looks, and of who stands by, the first."""
        found = []
        seen: set[tuple[str, str]] = set()
        for boundary in self.failpoints.passed[self._begun : self._over]:
            place = (boundary.process, boundary.label)
            if place in seen and (LOOKS.search(boundary.label) or boundary.process == _STANDBY):
                continue
            seen.add(place)
            found.append(boundary)
        return found

    def is_followed(self, boundary: Boundary, ends: tuple[str, ...]) -> bool:
        """Whether its process comes to its next boundary at once, having done nothing between the two.

        What befalls a whole process at the one is what befalls it at the other, which has the cell.
        """
        if boundary.label == 'commit done' and boundary.label not in ends:
            return False
        if not boundary.label.endswith(ends):
            return False
        later = self.failpoints.passed[self._places[boundary] + 1 :]
        following = next((one for one in later if faults.victim(one) == faults.victim(boundary)), None)
        return following is not None and self._times.get(following) == self._times[boundary]

    def _begin(self) -> None:
        self._begun = len(self.failpoints.passed)

    def _hook(self, boundary: Boundary) -> faults.Fault | None:
        if self.cell is None:
            self._note(boundary)
        elif self._left and boundary == self._left[0][0]:
            return faults.BY_NAME[self._left.pop(0)[1]]
        return None

    def _note(self, boundary: Boundary) -> None:
        """Note which records of the journal a commit has written, and which step's name a boundary has."""
        self._times[boundary] = self.operator.simulation.time
        self._places[boundary] = len(self.failpoints.passed) - 1
        for step in self._story.steps:
            if step.name in boundary.label:
                self.steps.setdefault(boundary, set()).add(f'{step.name} call')
        if boundary.label == 'commit begin':
            self._begins[boundary.process] = boundary
        if boundary.label != 'commit done':
            return
        written = self._written()
        if written:
            for one in (boundary, self._begins[boundary.process]):
                self.steps.setdefault(one, set()).update(written)

    def _written(self) -> set[str]:
        threads = self.cloud.world_threads
        database = Database('', threads, engine=self.cloud.backend.second_engine(threads))
        written = set()
        for migration in database.migrations.list():
            for record in database.migrations.steps(migration.uuid):
                key = (migration.uuid, *record.key, record.state)
                if key not in self._journal:
                    self._journal.add(key)
                    written.add(f'{record.step} {record.direction} {record.state}')
        return written


def main(arguments: list[str]) -> int:
    """Run the cells of the names given, and print what is wrong; return 1 if anything is."""
    wrong = 0
    with backend() as shared:
        for name in arguments:
            result = run(shared, Cell.parse(name))
            wrong += bool(result.violations) or not result.struck
            what = f'{", ".join(result.statuses)} after {result.seconds:.1f} s' if result.struck else 'never came there'
            print(f'{name}: {what}, {len(result.violations)} violations')
            for violation in result.violations:
                print(f'  {violation}')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
