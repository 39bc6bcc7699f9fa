# SPDX-License-Identifier: Apache-2.0

"""What a migration costs several conductors, compared with one conductor."""

from __future__ import annotations

import collections
import dataclasses
import statistics
import time
from collections.abc import Iterator
from typing import Any

import greenlet

from benchmarks import alone, databases, runs
from migrator.objects import MigrationStatus
from migrator.testing.cloud import SimulatedCloud

NUMBERS = (1, 2, 4)
#: Sources, and how many guests leave each of them at once.
SOURCES, AT_ONCE = 8, 2
#: MiB/s of a link on which a copy takes some seconds. In these its hosts are polled.
_SLOW_LINK = 8.0
PLACEMENT = 'placement'
_BACKGROUND = {*alone.BACKGROUND, 'heartbeats'}


@dataclasses.dataclass
class Costs:
    """What some migrations cost.

    :ivar requests: to Placement.
    :ivar refused: the requests that Placement refused, since another write was faster.
    :ivar polls: the calls with which conductors polled hosts.
    :ivar statements: of the conductors.
    :ivar cpu: conductor -> CPU seconds with those of SQLite. Those of the fake Placement and of periodic tasks are left
        out.
    """

    requests: int
    refused: int
    polls: int
    statements: int
    cpu: dict[str, float]


class Cloud:
    """A simulated cloud with some conductors. Half of its hosts are sources.

    :param conductors: the number of conductors. The broker gives each message to the next one.
    :param guests: the guests that leave each source.
    :param link: the bandwidth of each host's link, in MiB/s.
    :param seed: fixes a random schedule. None: each thread runs until it waits.
    """

    def __init__(
        self, site: databases.Site, conductors: int, guests: int, link: float = runs.LINK, seed: int | None = None
    ) -> None:
        backend = site.backend()
        room = {name: value for name, (value, _option) in runs.room_for(SOURCES * guests).items()}
        options = {'max_concurrent_live_migrations': AT_ONCE}
        self.cloud = SimulatedCloud(
            backend.directory, 2 * SOURCES, seed, backend=backend, link=link, options=options, **room
        )
        for number in range(2, conductors + 1):
            self.cloud.start_conductor(f'conductor{number}')
        self.counter = databases.Counter(self.cloud.database.engine, lambda: self._process().startswith('conductor'))
        self.guests = [
            (number, self.cloud.boot(f'{number}-{guest}', f'host{number}', runs.MEMORY))
            for number in range(1, SOURCES + 1)
            for guest in range(guests)
        ]
        self._answer = self.cloud.placement.answer
        self.cloud.placement.answer = self._answered
        self._cpu: collections.Counter[str] = collections.Counter()
        self._since, self._running = 0.0, ''
        self._left = False

    def leave(self, shared: bool = False) -> Costs:
        """Let all guests leave at once, and return what that cost. Those that have left come back first.

        :param shared: whether the conductors choose the destinations. Otherwise each source has its own.
        """
        if self._left:
            self._moved({number: f'host{number}' for number in range(SOURCES + 1)})
        self._left = True
        for number in range(1, 2 * SOURCES + 1):
            self._disable(number, shared and number <= SOURCES)
        found = self._moved({number: None if shared else f'host{SOURCES + number}' for number in range(SOURCES + 1)})
        for number in range(1, SOURCES + 1):
            self._disable(number, False)
        return found

    def close(self) -> None:
        """End the cloud."""
        self.cloud.stop()

    def _disable(self, number: int, disabled: bool) -> None:
        services = self.cloud.database.services
        services.update(services.get_compute(f'host{number}').id, disabled=disabled)

    def _moved(self, to: dict[int, str | None]) -> Costs:
        first_request, first_message = len(self.cloud.placement.requests), len(self.cloud.recorder.messages)
        with self.counter.counting():
            self._begin()
            for number, guest in self.guests:
                answer = self.cloud.live_migrate(guest, to[number])
                assert answer.status_int == 202, answer.text
            self.cloud.wait()
            cpu = self._end()
        assert {one.status for one in self.cloud.migrations()} == {MigrationStatus.COMPLETED}
        # What the hosts have reported is acknowledged.
        self.cloud.simulation.advance(10)
        requests = self.cloud.placement.requests[first_request:]
        messages = self.cloud.recorder.messages[first_message:]
        return Costs(
            requests=len(requests),
            refused=sum(one.status == 409 for one in requests),
            polls=sum(one.method == 'poll_live_migrations' and one.kind == 'call' for one in messages),
            statements=self.counter.statements,
            cpu={name: used for name, used in cpu.items() if name.startswith('conductor')},
        )

    # --- CPU time by process -----------------------------------------------------------------------------------------

    def _process(self) -> str:
        thread = self.cloud.simulation.scheduler.current
        return '' if thread.name in _BACKGROUND else str(thread.acting.name)

    def _begin(self) -> None:
        self._cpu.clear()
        self._since, self._running = time.thread_time(), self._process()
        greenlet.settrace(lambda _event, _greenlets: self._book(self._process()))

    def _end(self) -> dict[str, float]:
        greenlet.settrace(None)
        self._book('')
        return dict(self._cpu)

    def _book(self, running: str) -> None:
        """Book the CPU time since the last call, and note which process runs from now on."""
        now = time.thread_time()
        self._cpu[self._running] += now - self._since
        self._since, self._running = now, running

    def _answered(self, *args: Any) -> Any:
        mine = self._running
        self._book(PLACEMENT)
        try:
            return self._answer(*args)
        finally:
            self._book(mine)


def measure(site: databases.Site, guests: int, rounds: int) -> Iterator[tuple[str, float, float, bool]]:
    """Yield the name, the goal and the value of each figure, and whether it is exact.

    :param guests: the guests that leave each source.
    :param rounds: how often CPU time is measured; 0: only counts.
    """
    clouds = {number: Cloud(site, number, guests) for number in NUMBERS}
    # This compiles the statements, too.
    counted = {number: cloud.leave() for number, cloud in clouds.items()}
    # The clouds take turns, so that a busy machine slows down all of them.
    used = [{number: cloud.leave().cpu for number, cloud in clouds.items()} for _ in range(rounds)]
    for cloud in clouds.values():
        cloud.close()
    slow = {number: _leave(Cloud(site, number, guests, _SLOW_LINK)) for number in NUMBERS}
    shared = {number: _leave(Cloud(site, number, guests, seed=1), shared=True) for number in NUMBERS}
    migrations = SOURCES * guests
    for number, found in counted.items():
        one, name = counted[1], f'{number} conductor{"s" if number > 1 else ""}'
        yield f'{name}: requests of each', round(one.requests / migrations, 2), found.requests / migrations, True
        yield f'{name}: polls of each', round(slow[1].polls / migrations, 2), slow[number].polls / migrations, True
        if number == 1:
            continue
        yield f'{name}: statements, of one conductor', 1.05, found.statements / one.statements, True
        if used:
            ratio = statistics.median(sum(each[number].values()) / sum(each[1].values()) for each in used)
            yield f'{name}: CPU, of one conductor', 1.05, ratio, False
            busiest = min(max(each[number].values()) / sum(each[number].values()) for each in used)
            yield f'{name}: CPU of the busiest, of all', 1.25 / number, busiest, False
        apart = shared[number]
        # One conductor joins the writes of all sources, and several join those of their own.
        yield f'{name}, shared destinations: requests, of one', 1.25, apart.requests / shared[1].requests, True
        yield f'{name}, shared destinations: refused of each', 0.1, apart.refused / migrations, True


def _leave(cloud: Cloud, shared: bool = False) -> Costs:
    found = cloud.leave(shared)
    cloud.close()
    return found
