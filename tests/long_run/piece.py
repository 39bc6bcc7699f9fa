# SPDX-License-Identifier: Apache-2.0

"""One piece of a long run: a site of processes, operators who drain it, faults, and audits at rest."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import shutil
import time
from collections.abc import Iterator
from typing import Any

import psycopg2

from tests.long_run import audit, faults, measures
from tests.long_run.audit import Finding
from tests.long_run.drains import Operator
from tests.long_run.faults import Faults
from tests.long_run.journal import Journal
from tests.long_run.links import Links
from tests.long_run.servers import Cluster, LongSite
from tests.real.cloud import ProcessCloud
from tests.real.servers import placement, process, rabbitmq
from tests.real.site import Shape

#: A service that ended although no fault hit it.
ENDED = 'ended'
#: Seconds between two looks at the hypervisors and the memory, and between two lines of progress.
LOOK, LINE = 15.0, 60.0


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a piece is.

    :ivar rest: minutes between two audits at rest; there is one at the end anyway.
    :ivar pace: by which the rates of :data:`tests.long_run.faults.RATES` are multiplied.
    :ivar longest: seconds that a stop or a cut lasts at most. The default is longer than a conductor's lease.
    :ivar patience: seconds after the last fault until everything must have ended. A host that was away counts as down
        for a minute, and a step is repeated with growing pauses.
    :ivar options: of the services, besides those of the long run. There are few, since the defaults are tested.
    :ivar memory: MiB of each guest.
    :ivar link: MiB/s of each host, so that a copy takes seconds.
    """

    minutes: float = 30
    seed: int = 1
    rest: float = 15
    pace: float = 1
    longest: float = 25
    patience: float = 900
    hosts: int = 5
    conductors: int = 2
    guests: int = 30
    options: tuple[tuple[str, Any], ...] = ()
    memory: int = 512
    link: int = 128


class Piece:
    """The processes, and all that acts on them. Use it as a context manager.

    :param broker: one that runs already, or None.
    :ivar findings: all that was wrong, at any time.
    """

    def __init__(
        self,
        workspace: process.Workspace,
        settings: Settings,
        journal: Journal,
        broker: rabbitmq.RabbitMQ | None = None,
    ) -> None:
        self.settings = settings
        self.journal = journal
        self.workspace = workspace
        self.findings: list[Finding] = []
        self.known = audit.Known()
        self._broker = broker or rabbitmq.RabbitMQ(workspace)
        self._open = contextlib.ExitStack()
        self._statuses: collections.Counter[str] = collections.Counter()
        self._queues = 0

    def __enter__(self) -> Piece:
        try:
            self._start()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._open.close()

    def _start(self) -> None:
        settings, workspace = self.settings, self.workspace
        self.journal.write('piece', **dataclasses.asdict(settings))
        links = Links(workspace)
        self._open.callback(links.kill)
        cluster = Cluster(workspace, links)
        cluster.start()
        if not self._broker.running:
            self._broker.start()
        cluster.create_database('placement')
        placement_ = placement.Placement(workspace, cluster.url('placement', 'placement'), workers=2)
        options = (('oslo_messaging_rabbit.rabbit_quorum_queue', 'true'), *settings.options)
        world = ('--vcpus', '256', '--memory', str(1024 * 1024), '--link', str(settings.link))
        shape = Shape(settings.hosts, settings.conductors, 1, options, world)
        self.site = LongSite(workspace, shape, self._broker, cluster, placement_, links)
        # the services are configured, so that every link has its name
        links.start()
        cluster.follow()
        placement_.start()
        self._open.callback(self.site.end)
        self.site.start()
        self.where = audit.Where(
            database=cluster.dsn(self.site.database_name),
            placement=placement_.url,
            broker=self._broker.ask('GET', 'overview').url.partition('/api/')[0].replace('://', '://guest:guest@'),
            amqp=f'{process.HOST}:{self._broker.port}',
            vhost=self.site.vhost,
            world=self.site.world_path,
        )
        self._boot()
        self._act(links, cluster, placement_)

    def _boot(self) -> None:
        cloud = ProcessCloud(self.site)
        try:
            cloud.simulation.run_until(cloud.up)
            for number in range(self.settings.guests):
                host = self.site.hosts[number % len(self.site.hosts)]
                guest = cloud.boot(f'vm-{number}', host, self.settings.memory, dirty_rate=20)
                self.known.guests.add(guest.uuid)
        finally:
            cloud.close()

    def _act(self, links: Links, cluster: Cluster, placement_: placement.Placement) -> None:
        settings, site = self.settings, self.site
        # one conductor and one host live on, and the API in every second piece
        spared = ['conductor1', 'host1', *(['api1'] if self.journal.piece % 2 else [])]
        hit = faults.targets([*site.services], spared, [*links.targets])
        rates = {kind: rate * settings.pace for kind, rate in faults.RATES.items()}
        planned = faults.plan(settings.seed, settings.minutes * 60, hit, rates, settings.longest)
        servers: dict[str, process.Process] = {'broker': self._broker, 'placement': placement_}
        self.takeovers = measures.Takeovers(
            self.where.database, lambda *when: self.faults.overlaps(*when), self.journal
        )
        self.faults = Faults(planned, site.services, servers, cluster, links, self.journal, self.takeovers.killed)
        drained = site.hosts[:-1]
        half = (len(drained) + 1) // 2
        self.operators = [
            Operator(part, site.url(), settings.seed * 10 + number, settings.patience, self.journal)
            for number, part in enumerate((drained[:half], drained[half:]))
            if part
        ]

    # --- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run to the end, with an audit at rest now and then and at the end."""
        settings = self.settings
        began = time.monotonic()
        until, rest, line, look = began + settings.minutes * 60, began + settings.rest * 60, began + LINE, began
        self._open.callback(self._close)
        self.takeovers.start()
        self.faults.start()
        for operator in self.operators:
            operator.start()
        while (now := time.monotonic()) < until:
            if now >= look:
                self.glance()
                look = now + LOOK
            if now >= line:
                self._report(now - began)
                line = now + LINE
            if now >= rest:
                self.rest()
                rest = time.monotonic() + settings.rest * 60
                self._go_on()
            time.sleep(0.5)
        self.rest()
        self._report(time.monotonic() - began)
        self.journal.write('end', seconds=round(time.monotonic() - began, 1), findings=len(self.findings))

    def _close(self) -> None:
        self.faults.close()
        self.takeovers.close()
        for operator in self.operators:
            operator.close()

    def glance(self) -> None:
        """Look at what must hold during migrations, too, and measure the memory."""
        for service in self.faults.ended():
            self._found([Finding(ENDED, f'{service.name} ended with {service.status}: {service.tail(lines=5)}')])
            service.start(wait=False)
        self._found(audit.doubled(audit.look(self.where.world)))
        self.journal.write('rss', processes=measures.memory(self.site.services))
        with contextlib.suppress(psycopg2.Error), audit.cursor(self.where.database) as cursor:
            seen = audit.rows(cursor, 'SELECT uuid, status FROM migrations')
            self.known.migrations.update(one['uuid'] for one in seen)
            self._statuses = collections.Counter(one['status'] for one in seen)

    def rest(self) -> None:
        """Hold the faults and the operators, wait until everything has ended, and audit."""
        self.faults.hold()
        for operator in self.operators:
            operator.hold()
        until = time.monotonic() + self.settings.patience
        while time.monotonic() < until and not all(operator.resting.is_set() for operator in self.operators):
            time.sleep(0.5)
        self.glance()
        self._note()
        found = self.audit(max(until, time.monotonic() + 120))
        self.journal.write('audit', findings=[*map(list, found)], guests=len(self.known.guests), queues=self._queues)
        self._found(found)

    def audit(self, until: float) -> list[Finding]:
        """Audit until nothing is wrong, at most until a time, and return what still is."""
        while True:
            seen = audit.read(self.where)
            self._queues = len(seen.queues)
            found = audit.judge(seen, self.known)
            if not found or time.monotonic() > until:
                return found
            time.sleep(2)

    def _go_on(self) -> None:
        self.faults.go_on()
        for operator in self.operators:
            operator.go_on()

    def _note(self) -> None:
        for operator in self.operators:
            self.known.drains |= operator.accepted
            self._found([Finding(audit.STUCK, text) for text in operator.late])
            operator.late.clear()
        self._found([Finding(audit.STUCK, text) for text in self.takeovers.waiting(self.settings.patience)])

    def _found(self, fresh: list[Finding]) -> None:
        for one in fresh:
            if one not in self.findings:
                self.findings.append(one)
                self.journal.write('finding', sort=one.sort, what=one.what)
                print(f'FOUND {one.sort}: {one.what}', flush=True)

    def _report(self, seconds: float) -> None:
        done = collections.Counter(target_of(entry) for entry in self.faults.done)
        late = measures.quantile(self.takeovers.took, 0.99)
        drains = sum((operator.ends for operator in self.operators), collections.Counter())
        self.journal.write('minute', seconds=round(seconds, 1), migrations=self._statuses)
        print(
            f'{seconds / 60:.0f} of {self.settings.minutes:g} min: migrations {dict(self._statuses)}, '
            f'drains {dict(drains)}, {sum(done.values())} faults, {len(self.takeovers.took)} takeovers '
            f'(p99 {late or 0:.1f} s), {len(self.findings)} findings',
            flush=True,
        )

    def keep(self) -> None:
        """Copy the logs of all processes, and the database, into the directory of the run."""
        kept = self.journal.directory / f'piece-{self.journal.piece}'
        kept.mkdir(exist_ok=True)
        for each in self.workspace.processes:
            if each.log.exists():
                shutil.copy(each.log, kept / f'{each.name}.log')
        with audit.cursor(self.where.database) as cursor:
            for table in ('instances', 'migrations', 'saga_log', 'drains', 'drain_members', 'drain_log', 'cleanups'):
                with (kept / f'{table}.csv').open('w', encoding='utf-8') as file:
                    cursor.copy_expert(f'COPY {table} TO STDOUT WITH CSV HEADER', file)


def target_of(entry: list[Any]) -> str:
    """Return what a fault has hit."""
    return str(entry[2])


@contextlib.contextmanager
def workspace() -> Iterator[process.Workspace]:
    """Open a directory for a run's processes, of which nothing is left in the end."""
    made = process.Workspace()
    try:
        yield made
    finally:
        made.close()
