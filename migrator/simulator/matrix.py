# SPDX-License-Identifier: Apache-2.0

"""The crash matrix: every boundary of every path, with every fault that is possible there.

    with matrix.backend() as backend:
        for cell in matrix.cells(backend):
            result = matrix.run(backend, cell)
            assert not result.violations, cell

Each cell ends in check(world). The cells are computed from a run of each path without a fault, so that a new step of
the saga has cells at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator

from migrator.conductor.tasks import sagas
from migrator.db.api import Database
from migrator.simulator import faults, scenarios
from migrator.simulator.actors.operator import Operator
from migrator.simulator.failpoints import LOOKS, Boundary, Failpoints
from migrator.simulator.invariants import check
from migrator.simulator.monitor import Monitor
from migrator.simulator.paths import Path
from migrator.testing import backends
from migrator.testing.cloud import SimulatedCloud
from migrator.testing.simulation.sim_thread import Livelock

#: The conductor that does nothing until the other one is gone.
_STANDBY = 'conductor2'
#: The limit of thread switches at one moment. A path needs some hundred at most.
_MOST_PASSES = 3_000
_FAULT = re.compile(r'(?P<process>[^:|]+): (?P<label>[^|]+) #(?P<nth>\d+) \| (?P<fault>[^|]+)')


@dataclasses.dataclass(frozen=True)
class Cell:
    """One fault at one boundary of one path, or two faults at two boundaries.

    :ivar then: a second, later fault. The matrix has no cell with two faults. A test may name one.
    :ivar steps: the saga steps that are done or written at the boundary, such as ``move_allocation do``. They are not
        part of the cell's name.
    """

    path: str
    boundary: Boundary
    fault: str
    then: tuple[Boundary, str] | None = None
    steps: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    def __str__(self) -> str:
        """Return the name of the cell, which :meth:`parse` reads."""
        second = f' & {self.then[0]} | {self.then[1]}' if self.then is not None else ''
        return f'{self.path} | {self.boundary} | {self.fault}{second}'

    @classmethod
    def parse(cls, name: str) -> Cell:
        """Return the cell with a name.

        :raises ValueError: the text is not the name of a cell.
        """
        path, _, faults_text = name.partition(' | ')
        found = [_FAULT.fullmatch(one) for one in faults_text.split(' & ')]
        injected = [
            (Boundary(one['process'], one['label'], int(one['nth'])), one['fault'])
            for one in found
            if one is not None and one['fault'] in faults.BY_NAME
        ]
        if path not in scenarios.BY_NAME or len(injected) != len(found) or len(injected) > 2:
            raise ValueError(
                f'{name!r} is no cell: use PATH | PROCESS: LABEL #N | FAULT, optionally followed by'
                ' & PROCESS: LABEL #N | FAULT'
            )
        return cls(path, *injected[0], then=injected[1] if len(injected) == 2 else None)


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one run.

    :ivar violations: the violations of invariants.
    :ivar injected: whether every fault was injected.
    :ivar statuses: the statuses of the migrations, the oldest first.
    :ivar digest: a digest of all events in their order.
    :ivar seconds: the length of the run on the cloud's clock.
    """

    violations: tuple[check.Violation, ...]
    injected: bool
    statuses: tuple[str, ...]
    digest: str
    seconds: float


@contextlib.contextmanager
def backend() -> Iterator[backends.SharedBackend]:
    """Return the backend for the clouds of many runs, in memory if the system has such a directory."""
    with tempfile.TemporaryDirectory(dir=backends.in_memory()) as directory:
        shared = backends.SharedBackend(directory)
        try:
            yield shared
        finally:
            shared.close()


def cells(backend_: backends.Backend, chosen: Iterable[Path] = scenarios.PATHS) -> list[Cell]:
    """Return the cells of some paths.

    :raises AssertionError: without a fault, a path violates an invariant or has the wrong end.
    """
    return [cell for path in chosen for cell in _cells_of(backend_, path)]


def _cells_of(backend_: backends.Backend, path: Path) -> list[Cell]:
    dry = _Run(backend_, path, None)
    result = dry.go()
    ends = result.statuses[-len(path.ends) :]
    assert not result.violations, f'path {path.name} violates invariants without a fault: {result.violations}'
    assert ends == path.ends, f'path {path.name} ended {ends}, expected {path.ends}'
    return [
        Cell(path.name, boundary, fault.name, steps=tuple(sorted(dry.steps.get(boundary, ()))))
        for boundary in dry.boundaries()
        for fault in faults.FAULTS
        if fault.where(boundary) and not dry.is_followed(boundary, fault.later)
    ]


def run(backend_: backends.Backend, cell: Cell, path: Path | None = None) -> Result:
    """Run one cell and return the result.

    :param path: replaces the path that the cell names, for example by one with other options.
    """
    return _Run(backend_, path or scenarios.BY_NAME[cell.path], cell).go()


class _Run:
    """A run of one path in one cloud.

    :param cell: the cell with the faults. None: a run without faults that records the saga steps of each boundary.
    """

    def __init__(self, backend_: backends.Backend, path: Path, cell: Cell | None) -> None:
        self.path = path
        self.cell = cell
        self._left = [] if cell is None else [(cell.boundary, cell.fault), *([cell.then] if cell.then else [])]
        self._steps = {step.name for saga in sagas().values() for step in saga.steps}
        self.steps: dict[Boundary, set[str]] = {}
        self._log: set[tuple[object, ...]] = set()
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
        self.failpoints = Failpoints(self.cloud, self.operator.supervisor, self._hook)

    def go(self) -> Result:
        """Run the path to its end and check all invariants."""
        simulation = self.cloud.simulation
        assert simulation is not None
        try:
            return Result(
                violations=self._violations(),
                injected=not self._left,
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
            # The threads wake each other without any pause, so that no time-out can end it.
            what = f'endless loop: {error.passes} thread switches at one moment'
            return (*self.monitor.violations, check.Violation('I7', what, self.operator.simulation.time))
        return tuple(self.operator.judge(self.monitor))

    def boundaries(self) -> list[Boundary]:
        """Return each boundary of the run once.

        Of repeated boundaries that only observe, and of those of the standby conductor, only the first is included.
        """
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
        """Return whether the process reaches its next boundary at once and does nothing between the two.

        A fault of the whole process then has the same effect at both, and only the next boundary gets the cell.

        :param ends: see :attr:`migrator.simulator.faults.Fault.later`.
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
        """Record the log records that a commit has written and the steps that a boundary's label names."""
        self._times[boundary] = self.operator.simulation.time
        self._places[boundary] = len(self.failpoints.passed) - 1
        for name in self._steps:
            if name in boundary.label:
                self.steps.setdefault(boundary, set()).add(f'{name} call')
        if boundary.label == 'commit begin':
            self._begins[boundary.process] = boundary
        if boundary.label != 'commit done':
            return
        written = self._written()
        if written:
            for one in (boundary, self._begins[boundary.process]):
                self.steps.setdefault(one, set()).update(written)

    def _written(self) -> set[str]:
        threads = self.cloud.world.threads
        database = Database('', threads, engine=self.cloud.backend.second_engine(threads))
        written = set()
        for migration in database.migrations.list():
            for record in database.migrations.steps(migration.uuid):
                key = (migration.uuid, *record.key, record.state)
                if key not in self._log:
                    self._log.add(key)
                    written.add(f'{record.step} {record.direction} {record.state}')
        return written


def main(arguments: list[str]) -> int:
    """Run the named cells and print all violations; return 1 if there are any."""
    wrong = 0
    with backend() as shared:
        for name in arguments:
            result = run(shared, Cell.parse(name))
            wrong += bool(result.violations) or not result.injected
            ended = f'{", ".join(result.statuses)} after {result.seconds:.1f} s'
            what = ended if result.injected else 'the run never reached the boundary'
            print(f'{name}: {what}, {len(result.violations)} violations')
            for violation in result.violations:
                print(f'  {violation}')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
