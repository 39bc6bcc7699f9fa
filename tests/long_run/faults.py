# SPDX-License-Identifier: Apache-2.0

"""What a long run does to its site: a plan that a seed gives, and the threads that carry it out."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

from tests.long_run import links
from tests.long_run.journal import Journal
from tests.long_run.servers import Cluster
from tests.real.servers import process
from tests.real.site import Service

KILL, STOP, RESTART, CUT = 'kill', 'stop', 'restart', 'cut'
#: How many an hour. Eight hours are 1,200 kills, 240 stops, 96 restarts and 480 cuts.
RATES = {KILL: 150, STOP: 30, RESTART: 12, CUT: 60}
#: What is restarted, and how; the database in three ways.
RESTARTS = ('broker', 'placement', 'database primary', 'database standby', 'database failover')
FAIL_OVER = RESTARTS[-1]
#: How many faults may be active at once.
_AT_ONCE = 8
#: One fault of this number lasts several times longer than the others: a host counts as down meanwhile.
_LONG, _TIMES = 10, 3
#: How the names begin of what there is only one of, and of its links.
_SHARED = ('broker', 'database', 'placement', 'db-')
#: The processes with which a takeover waits, too.
_NEEDED = ('conductor', 'database', 'db-')


@dataclasses.dataclass(frozen=True, order=True)
class Fault:
    """One fault.

    :ivar at: seconds of the time in which faults are allowed.
    :ivar target: a process, a link or one of :data:`RESTARTS`.
    :ivar seconds: how long it lasts; of a kill and a restart, until the process is started again.
    :ivar how: of a cut: the mode of the link.
    """

    at: float
    kind: str
    target: str
    seconds: float = 0.0
    how: str = ''


def plan(
    seed: int,
    seconds: float,
    targets: Mapping[str, Sequence[str]],
    rates: Mapping[str, float],
    longest: float,
) -> list[Fault]:
    """Return the faults of a piece, the first one first. One failover is in the middle.

    :param seconds: how long the piece is.
    :param targets: kind -> what it may hit; one that stands there twice is hit twice as often.
    :param rates: kind -> how many an hour.
    :param longest: seconds that a stop or a cut lasts at most, except for the few long ones.
    """
    dice = random.Random(seed)  # noqa: S311 -- to be repeated, not secret
    made = [Fault(seconds / 2, RESTART, FAIL_OVER)]
    for kind, rate in rates.items():
        count = round(rate * seconds / 3600) - (kind == RESTART)
        for number in range(count):
            at = (number + dice.random()) * seconds / count
            target = dice.choice(targets[kind])
            lasts = dice.choice((0, 0, 0.5, 2, longest / 2)) if kind == KILL else dice.uniform(1, longest)
            # what all services need must not be away for that long
            if kind != RESTART and dice.randrange(_LONG) == 0 and not target.startswith(_SHARED):
                lasts = _TIMES * longest
            how = dice.choice((links.REFUSED, links.STALLED)) if kind == CUT else ''
            made.append(Fault(at, kind, target, lasts, how))
    return sorted(made)


class Faults:
    """A plan that is carried out, except while it is held.

    :param services: the services by name.
    :param servers: ``broker`` and ``placement``, and further processes that may be stopped.
    :param on_conductor_killed: called with its name, when it is dead and not yet started again.
    """

    def __init__(
        self,
        planned: Sequence[Fault],
        services: Mapping[str, Service],
        servers: Mapping[str, process.Process],
        cluster: Cluster,
        links_: links.Links,
        journal: Journal,
        on_conductor_killed: Callable[[str], None],
    ) -> None:
        self._planned = list(planned)
        self._services = services
        self._servers = servers
        self._cluster = cluster
        self._links = links_
        self._journal = journal
        self._on_conductor_killed = on_conductor_killed
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._goes = threading.Event()
        self._closed = threading.Event()
        self._pool = futures.ThreadPoolExecutor(_AT_ONCE)
        self._thread = threading.Thread(target=self._run, name='faults')
        #: (began, ended, target) of each fault so far; the end of one that lasts is None.
        self.done: list[list[Any]] = []

    def start(self) -> None:
        """Begin."""
        self._goes.set()
        self._thread.start()

    def hold(self) -> None:
        """Begin no fault, and return when none is active."""
        self._goes.clear()
        process.wait_until(lambda: not self._busy, 'the faults to end', 300)

    def go_on(self) -> None:
        """Undo :meth:`hold`."""
        self._goes.set()

    def close(self) -> None:
        """End."""
        self._closed.set()
        self._goes.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._pool.shutdown()

    def overlaps(self, began: float, ended: float, name: str) -> bool:
        """Return whether another fault of a conductor or the database was active in a time.

        :param name: the conductor whose own fault does not count.
        """
        return any(
            first < ended and (last is None or last > began) and not (target == name and first <= began)
            for first, last, target in list(self.done)
            if any(word in target for word in _NEEDED)
        )

    def ended(self) -> Iterator[Service]:
        """Give each service that is not running although no fault is active there, one at a time."""
        for name, service in self._services.items():
            with self._claimed(name) as free:
                if free and not service.running:
                    yield service
        # Placement ends if its database goes away while it starts
        with self._claimed('placement') as free:
            if free and not self._servers['placement'].running:
                self._servers['placement'].start(wait=False)

    # --- its threads -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        passed, last = 0.0, time.monotonic()
        for fault in self._planned:
            while passed < fault.at and not self._closed.wait(0.1):
                now = time.monotonic()
                passed += (now - last) if self._goes.is_set() else 0
                last = now
            self._goes.wait()
            if self._closed.is_set():
                return
            self._pool.submit(self._do, fault)

    @contextlib.contextmanager
    def _claimed(self, *names: str) -> Iterator[bool]:
        """Have some names alone for a while; what is not free is left out."""
        with self._lock:
            free = not self._busy.intersection(names)
            if free:
                self._busy.update(names)
        try:
            yield free
        finally:
            if free:
                with self._lock:
                    self._busy.difference_update(names)

    def _do(self, fault: Fault) -> None:
        whole = ('database', *(node.name for node in self._cluster.nodes))
        names = whole if fault.target in whole or fault.target.startswith('database') else (fault.target,)
        with self._claimed(*names) as free:
            if not free or not self._goes.is_set():
                return
            entry = [time.monotonic(), None, fault.target]
            self.done.append(entry)
            no_commits, error = self._prevents_commits(fault), None
            try:
                getattr(self, f'_{fault.kind}')(fault)
            except Exception as caught:  # noqa: BLE001 -- the audit and the table show it
                error = f'{type(caught).__name__}: {caught}'
            entry[1] = time.monotonic()
            target = fault.target.partition('>')[2] if fault.kind == CUT else fault.target
            took = round(entry[1] - entry[0], 1)
            self._journal.write(
                'fault', fault=fault.kind, target=target, how=fault.how, took=took, error=error, no_commits=no_commits
            )

    def _prevents_commits(self, fault: Fault) -> bool:
        """Return whether no process can commit during a fault."""
        if fault.kind == CUT:
            # a commit waits until the standby has it
            return fault.target == f'{self._cluster.standby.name}>{self._cluster.primary.name}'
        return fault.target.startswith(self._cluster.name)

    def _process(self, name: str) -> process.Process:
        if name == 'database':
            return self._cluster.primary
        return self._services[name] if name in self._services else self._servers[name]

    def _kill(self, fault: Fault) -> None:
        hit = self._process(fault.target)
        hit.kill()
        if fault.target.startswith('conductor'):
            self._on_conductor_killed(fault.target)
        time.sleep(fault.seconds)
        # what is hit while it starts is hit, too
        hit.start(wait=fault.target not in (*self._services, 'placement'))

    def _stop(self, fault: Fault) -> None:
        hit = self._process(fault.target)
        hit.pause()
        try:
            time.sleep(fault.seconds)
        finally:
            hit.go_on()

    def _restart(self, fault: Fault) -> None:
        if fault.target == FAIL_OVER:
            self._cluster.fail_over()
            return
        nodes = {'database primary': self._cluster.primary, 'database standby': self._cluster.standby}
        hit = nodes.get(fault.target) or self._process(fault.target)
        hit.stop()
        time.sleep(fault.seconds / 4)
        hit.start(wait=fault.target != 'placement')

    def _cut(self, fault: Fault) -> None:
        self._links.set(fault.target, fault.how)
        try:
            time.sleep(fault.seconds)
        finally:
            self._links.set(fault.target, links.OPEN)


def targets(services: Sequence[str], spared: Sequence[str], links_: Sequence[str]) -> dict[str, list[str]]:
    """Return what each kind of fault may hit.

    A broker with quorum queues is stopped and started, but not killed: a single RabbitMQ of 3.10 may find no leader of
    them again.

    :param spared: services that are not killed, so that their memory can be watched for long.
    """
    conductors = [name for name in services if name.startswith('conductor')]
    killed = [*services, *conductors, *conductors]
    return {
        KILL: [*(name for name in killed if name not in spared), 'placement'],
        STOP: [*services, *conductors, 'placement', 'broker', 'database'],
        RESTART: list(RESTARTS),
        CUT: list(links_),
    }
