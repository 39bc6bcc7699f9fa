# SPDX-License-Identifier: Apache-2.0

"""What is done to a cloud to find out what it costs: the same on every database."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from migrator.objects import Instance, Migration, MigrationStatus
from migrator.testing.rpc import Recorded

HOSTS = 4
#: MiB. It is copied in no time.
MEMORY = 64
#: MiB/s: what a host's link carries; and while a move must not end. A guest that writes so much never converges.
LINK, SLOW_LINK = 1e6, 64.0
BUSY = 1e9
#: How many leave a host at once when all are asked for together.
AT_ONCE = 8
#: Seconds between two looks whether something has ended: one, or many, which takes longer to find out.
LOOK, LOOK_AT_ALL = 0.005, 0.25
#: Seconds that anything may take.
PATIENCE = 600.0

#: The first table of a statement.
_TABLE = re.compile(r'(?:\bFROM|\bUPDATE|\bINTO)\s+"?(\w+)', re.IGNORECASE)
_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')

_S = MigrationStatus


@dataclasses.dataclass(frozen=True)
class Size:
    """How much of each is done.

    :ivar migrations: one at a time.
    :ivar together: the maximum number of guests that leave together.
    :ivar aborts: of each kind.
    :ivar idle: seconds.
    """

    migrations: int
    together: int
    aborts: int
    idle: float

    def with_migrations(self, number: int) -> Size:
        """Return one with another number of migrations one at a time."""
        return dataclasses.replace(self, migrations=number)


FULL = Size(migrations=40, together=1000, aborts=10, idle=20.0)
QUICK = Size(migrations=4, together=8, aborts=2, idle=0.5)


@dataclasses.dataclass
class Costs:
    """What was used up between two moments.

    :ivar seconds: how long that was.
    :ivar cpu: process -> seconds.
    :ivar messages: every RPC message, polls and heartbeats included.
    :ivar wire: bytes of the messages as they are sent, for each; None where nothing is sent.
    :ivar statements: SQL statement -> how often; without what begins and ends transactions.
    :ivar asides: ``sql_statements`` and ``commits`` of what goes on by itself; in the others they are left out.
    :ivar requests: to Placement, each as ``GET /allocations/{uuid} 200``.
    """

    seconds: float
    cpu: dict[str, float]
    messages: list[Recorded]
    wire: list[int] | None
    statements: dict[str, float]
    commits: float
    asides: dict[str, float]
    requests: list[str]


class Bench(Protocol):
    """A cloud whose costs are counted."""

    cloud: Any

    def idle(self, seconds: float) -> Costs:
        """Do nothing for some seconds, before anything else, and return what was used up."""

    def begin(self) -> None:
        """Count from now on."""

    def costs(self) -> Costs:
        """Return what was used up since."""

    def looking(self) -> contextlib.AbstractContextManager[None]:
        """Count nothing that the caller itself reads within the block."""


Maker = Callable[[int], contextlib.AbstractContextManager[Bench]]


def room_for(guests: int) -> dict[str, tuple[int, str]]:
    """Return the settings of a host by the hypervisor's attribute, and migrator-fake-world's option."""
    room = 2 * guests + 16
    return {'vcpus': (room, '--vcpus'), 'memory_mb': (room * MEMORY, '--memory')}


def request_of(method: str, url: str, status: int) -> str:
    """Return a request to Placement as it is counted: without its query and its uuids."""
    return f'{method} {_UUID.sub("{uuid}", url.partition("?")[0])} {status}'


def run(make: Maker, guests: int, size: Size, report: Callable[[str], None]) -> dict[str, Any]:
    """Return what was found out, as JSON has it.

    :param make: starts a cloud whose hosts have room for twice that number of guests each.
    :param guests: on each of the two hosts that guests leave.
    """
    report(f'{guests} guests on the source: starting')
    with make(guests) as bench:
        runner = _Runner(bench, guests)
        report(f'{guests} guests on the source: idle for {size.idle:g} s')
        found: dict[str, Any] = {'idle': runner.idle(size.idle)}
        report(f'{guests} guests on the source: {size.migrations} migrations, one at a time')
        found['one_at_a_time'] = runner.one_at_a_time(size.migrations)
        report(f'{guests} guests on the source: aborts')
        found['abort_latency'] = {'running': runner.abort_running(size.aborts)}
        queue = min(guests, size.together)
        found['abort_latency']['queued'] = runner.abort_queued(queue, min(size.aborts, queue))
        found['together'] = None
        if queue > 1:
            report(f'{guests} guests on the source: {queue} leave together')
            found['together'] = runner.together(queue)
        return found


class _Runner:
    def __init__(self, bench: Bench, guests: int) -> None:
        self.bench = bench
        self.cloud = bench.cloud
        self.traveller = self._boot('traveller', 'host1')
        self.at_host1 = [self._boot(f'a{number}', 'host1') for number in range(1, guests)]
        self.at_host2 = [self._boot(f'b{number}', 'host2') for number in range(guests)]

    # --- the parts ---------------------------------------------------------------------------------------------------

    def idle(self, seconds: float) -> dict[str, Any]:
        """Have nothing migrate for some seconds."""
        return _report(self.bench.idle(seconds), seconds, 'per_second')

    def one_at_a_time(self, number: int) -> dict[str, Any]:
        """Have one guest go to and fro."""
        times = []
        self.bench.begin()
        for turn in range(number):
            asked = time.monotonic()
            self._completed(self._migrate(self.traveller, ('host2', 'host1')[turn % 2]))
            times.append(time.monotonic() - asked)
        costs = self.bench.costs()
        if number % 2:
            self._completed(self._migrate(self.traveller, 'host1'))
        return {
            'migrations': number,
            'migrations_per_second': round(number / sum(times), 2),
            'seconds_each': _spread(times),
            **_report(costs, number, 'per_migration'),
        }

    def together(self, number: int) -> dict[str, Any]:
        """Have many guests of a host leave at once, each for where Placement sees room."""
        self.cloud.set_option('host2', 'max_concurrent_live_migrations', AT_ONCE)
        leaving = self.at_host2[:number]
        self.bench.begin()
        asked = time.monotonic()
        moved = [self._migrate(guest) for guest in leaving]
        accepted = time.monotonic() - asked
        self._all_ended()
        seconds = time.monotonic() - asked
        costs = self.bench.costs()
        for migration in moved:
            self._completed(migration)
        return {
            'migrations': number,
            'max_concurrent_live_migrations': AT_ONCE,
            'migrations_per_second': round(number / seconds, 2),
            'accepted_per_second': round(number / accepted, 2),
            **_report(costs, number, 'per_migration'),
        }

    def abort_running(self, number: int) -> dict[str, Any]:
        """Abort moves that run."""
        times = []
        with self._never_ending('host1') as busy:
            for _ in range(number):
                migration = self._migrate(busy, 'host2')
                self._wait(lambda uuid=migration: self._row(uuid).status == _S.RUNNING)
                times.append(self._abort(migration))
        return {'aborts': number, 'seconds_each': _spread(times)}

    def abort_queued(self, queued: int, number: int) -> dict[str, Any]:
        """Abort migrations that wait in a queue of that length, the last first."""
        with self._never_ending('host1') as busy:
            first = self._migrate(busy, 'host2')
            self._wait(lambda: self._row(first).status == _S.RUNNING)
            waiting = [self._migrate(guest, 'host2') for guest in [self.traveller, *self.at_host1][:queued]]
            self._wait(lambda: self._are_queued(len(waiting)), LOOK_AT_ALL)
            times = [self._abort(uuid) for uuid in waiting[: -number - 1 : -1]]
            self._abort(first)
        self._all_ended()
        for uuid in waiting[:-number]:
            self._completed(uuid)
        return {'aborts': number, 'queue': queued, 'seconds_each': _spread(times)}

    # --- what they are made of ---------------------------------------------------------------------------------------

    def _boot(self, name: str, host: str, dirty_rate: float = 0.0) -> Instance:
        return self.cloud.boot(name, host, MEMORY, dirty_rate=dirty_rate)

    @contextlib.contextmanager
    def _never_ending(self, host: str) -> Iterator[Instance]:
        """Give a guest whose move does not end within the block."""
        hypervisor = self.cloud.world.hypervisors[host]
        throttle = hypervisor.auto_converge_after
        hypervisor.auto_converge_after = 0
        hypervisor.set_link(SLOW_LINK)
        with self.bench.looking():
            busy = self._boot(f'busy-{time.monotonic()}', host, dirty_rate=BUSY)
        yield busy
        hypervisor.set_link(LINK)
        hypervisor.auto_converge_after = throttle

    def _migrate(self, guest: Instance, host: str | None = None) -> str:
        """Ask for a live migration, and return its uuid."""
        answer = self.cloud.live_migrate(guest, host)
        if answer.status_int != 202:
            raise RuntimeError(f'a live migration of {guest.name} was answered {answer.status}: {answer.text}')
        request_id = answer.headers['X-OpenStack-Request-Id']
        with self.bench.looking():
            mine = self.cloud.database.migrations.list({'instance_uuid': guest.uuid})
        return next(one.uuid for one in mine if one.request_id == request_id)

    def _abort(self, uuid: str) -> float:
        """Abort a migration, and return how many seconds that took."""
        row = self._row(uuid)
        asked = time.monotonic()
        answer = self.cloud.request('DELETE', f'/servers/{row.instance_uuid}/migrations/{row.id}')
        if answer.status_int != 202:
            raise RuntimeError(f'the abort of {uuid}, {row.status}, was answered {answer.status}: {answer.text}')
        self._wait(lambda: self._row(uuid).ended)
        took = time.monotonic() - asked
        self._has_status(uuid, _S.CANCELLED)
        return took

    def _row(self, uuid: str) -> Migration:
        with self.bench.looking():
            return self.cloud.database.migrations.get(uuid)

    def _completed(self, uuid: str) -> None:
        """Wait for the end of a migration, which must be a good one."""
        self._wait(lambda: self._row(uuid).ended)
        self._has_status(uuid, _S.COMPLETED)

    def _has_status(self, uuid: str, status: str) -> None:
        row = self._row(uuid)
        if row.status != status:
            raise RuntimeError(f'migration {uuid} ended {row.status} and not {status}: {row.failure}')

    def _all_ended(self) -> None:
        def ended() -> bool:
            with self.bench.looking():
                return self.cloud.idle()

        self._wait(ended, LOOK_AT_ALL)

    def _are_queued(self, number: int) -> bool:
        with self.bench.looking():
            return len(self.cloud.database.migrations.list({'status': _S.QUEUED})) == number

    def _wait(self, predicate: Callable[[], bool], look: float = LOOK) -> None:
        until = time.monotonic() + PATIENCE
        while not predicate():
            if time.monotonic() > until:
                raise RuntimeError(f'waited {PATIENCE:g} s in vain')
            time.sleep(look)


def _by_table(statements: dict[str, float]) -> dict[str, float]:
    """Return how often each table was read or written: ``UPDATE migrations``."""
    found: dict[str, float] = collections.defaultdict(float)
    for text, count in statements.items():
        verb = text.split(None, 1)[0].upper()
        table = _TABLE.search(text)
        found[f'{verb} {table[1]}' if table else ' '.join(text.split())[:60]] += count
    return found


def _spread(times: Iterable[float]) -> dict[str, float]:
    found = sorted(times)
    return {'median': round(statistics.median(found), 4), 'worst': round(found[-1], 4)}


def _report(costs: Costs, number: float, name: str) -> dict[str, Any]:
    """Return what it has cost per migration, or per second."""

    def each(value: float, digits: int = 2) -> float:
        return round(value / number, digits)

    def counted(messages: list[tuple[Recorded, int]]) -> dict[str, float]:
        found = {'messages': each(len(messages)), 'bytes': each(sum(one.size for one, _wire in messages), 1)}
        if costs.wire is not None:
            found['bytes_on_the_wire'] = each(sum(wire for _one, wire in messages), 1)
        return found

    said = list(zip(costs.messages, costs.wire or [0] * len(costs.messages), strict=True))
    parts: dict[str, list[tuple[Recorded, int]]] = {'counted': [], 'polls': [], 'heartbeats': []}
    for one, wire in said:
        parts['polls' if one.poll else 'heartbeats' if one.heartbeat else 'counted'].append((one, wire))
    methods = collections.Counter(f'{one.method} {one.kind}' for one, _wire in said)
    return {
        name: {
            'cpu_seconds': {who: each(value, 4) for who, value in costs.cpu.items()},
            'rpc': counted(parts['counted']),
            'rpc_polls': counted(parts['polls']),
            'rpc_heartbeats': counted(parts['heartbeats']),
            'sql_statements': each(sum(costs.statements.values())),
            'commits': each(costs.commits),
            'placement_requests': each(len(costs.requests)),
            'by_itself': {what: each(value) for what, value in costs.asides.items()},
            'rpc_by_method': {method: each(count) for method, count in sorted(methods.items())},
            'sql_by_table': {what: each(count) for what, count in sorted(_by_table(costs.statements).items()) if count},
            'placement_by_request': {
                request: each(count) for request, count in sorted(collections.Counter(costs.requests).items())
            },
        }
    }
