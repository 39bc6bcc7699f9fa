# SPDX-License-Identifier: Apache-2.0

"""How long emptying hosts takes with bounds, as a ratio to the shortest time that the links allow.

    python benchmarks/makespan.py [--quick]

Each destination receives one guest at a time, and each source prepares one ahead. A copy takes a minute. Drains have
their own bounds instead. The cloud is simulated, so that the time is the simulation's. Exit status: 0; 1 a ratio is
above 1.05.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

#: The highest ratio that is good.
GOAL = 1.05
#: The guests' memory and the bandwidth of each link, in MiB and MiB/s.
_MEMORY, _LINK = 3840, 64.0


@dataclasses.dataclass(frozen=True)
class Case:
    """One cloud that is emptied.

    :ivar slots: ``max_concurrent_live_migrations`` of each source.
    :ivar guests: the number of guests on each source.
    :ivar by_drains: whether each source is drained; else each guest is live-migrated by a request of its own.
    """

    sources: int
    destinations: int
    slots: int
    conductors: int
    guests: int
    by_drains: bool = False

    @property
    def shortest(self) -> float:
        """The seconds that the busiest link needs. A host's migrations share its link."""
        copies = max(self.guests, self.sources * self.guests / self.destinations)
        return copies * _MEMORY / _LINK

    def __str__(self) -> str:
        """Return the case as a line of text."""
        return (
            f'{self.sources} to {self.destinations} hosts, {self.slots} slots, {self.conductors} conductors, '
            f'{self.sources * self.guests} guests{", drained" if self.by_drains else ""}'
        )


QUICK = (Case(2, 3, 1, 1, 3),)
FULL = tuple(
    Case(sources, destinations, slots, conductors, guests)
    for sources, destinations, guests in ((1, 9, 12), (8, 12, 8), (8, 80, 4))
    for slots in (1, 4)
    for conductors in (1, 3)
) + tuple(Case(8, 12, slots, 3, 8, by_drains=True) for slots in (1, 4))


def makespan(case: Case) -> float:
    """Return the seconds from the first request to the last end."""
    from migrator.testing.cloud import SimulatedCloud

    options: dict[str, int] = {'max_concurrent_live_migrations': case.slots}
    if not case.by_drains:
        options |= {'max_concurrent_inbound_live_migrations': 1, 'conductor.prepare_ahead': 1}
    with tempfile.TemporaryDirectory() as directory:
        cloud = SimulatedCloud(directory, hosts=case.sources + case.destinations, options=options, link=_LINK)
        try:
            assert cloud.simulation is not None
            for number in range(2, case.conductors + 1):
                cloud.start_conductor(f'conductor{number}')
            names = [f'host{number}' for number in range(1, case.sources + 1)]
            guests = [
                cloud.boot(f'{host}-{number}', host, memory_mb=_MEMORY)
                for number in range(case.guests)
                for host in names
            ]
            if case.by_drains:
                return _drain(cloud, names, 10 * case.shortest)
            for host in names:
                cloud.database.services.update(cloud.database.services.get_compute(host).id, disabled=True)
            begun = cloud.simulation.time
            for guest in guests:
                cloud.live_migrate(guest)
            cloud.simulation.run_until(cloud.idle, timeout=10 * case.shortest)
            assert {row.status for row in cloud.migrations()} == {'completed'}
            return cloud.simulation.time - begun
        finally:
            cloud.stop()


def _drain(cloud: Any, names: Sequence[str], timeout: float) -> float:
    begun, drains = cloud.simulation.time, cloud.database.drains
    for host in names:
        assert cloud.request('POST', '/migrator/v1/drains', {'host': host}).status_int == 202
    cloud.simulation.run_until(lambda: not drains.list(in_progress=True), timeout=timeout)
    assert {drain.status for drain in drains.list()} == {'completed'}
    took: float = cloud.simulation.time - begun
    return took


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases, print each ratio, and return the exit status."""
    parser = argparse.ArgumentParser(prog='makespan.py', description=__doc__.partition('\n')[0])
    parser.add_argument('--quick', action='store_true', help='one small cloud')
    cases = QUICK if parser.parse_args(argv).quick else FULL
    status = 0
    for case in cases:
        took = makespan(case)
        ratio = took / case.shortest
        above = '  ABOVE ITS GOAL' if ratio > GOAL else ''
        sys.stdout.write(f'{case}: {took:.0f} s of {case.shortest:.0f} s: {GOAL} / {ratio:.3f}{above}\n')
        sys.stdout.flush()
        status = 1 if above else status
    return status


if __name__ == '__main__':
    # started by its path, a script has its own directory there and not the tree
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    sys.exit(main())
