# SPDX-License-Identifier: Apache-2.0

"""The services as processes, counted from outside: at the broker, in PostgreSQL, in Placement's log.

RPC is counted by a tap on the broker, statements are PostgreSQL's own (``pg_stat_statements``), requests to Placement
are those of its log, CPU time is the kernel's. The benchmark has a user of its own in the database, so that what it
reads itself is not counted.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import re
import time
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from benchmarks import runs
from migrator.db.api import Database
from tests.real.cloud import ProcessCloud
from tests.real.servers import placement, postgresql, process, rabbitmq, reaper
from tests.real.site import Shape, Site

#: The database user of the benchmark's own queries.
OBSERVER = 'observer'
CONDUCTORS = 2

#: What begins and ends transactions.
_CONTROL = ('BEGIN', 'COMMIT', 'ROLLBACK', 'SAVEPOINT', 'RELEASE')
_STATEMENTS = sa.text(
    'SELECT query, sum(calls) FROM pg_stat_statements WHERE toplevel '
    'AND userid = (SELECT oid FROM pg_roles WHERE rolname = :who) '
    'AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) GROUP BY query'
)
_REQUEST = re.compile(r'placement\.requestlog .*"([A-Z]+) (\S+)" status: (\d+)')
_TICKS = os.sysconf('SC_CLK_TCK')


def missing() -> str | None:
    """Say what is not installed; None if nothing."""
    return next((lacks for lacks in (part.missing() for part in (postgresql, rabbitmq, placement)) if lacks), None)


class Services:
    """See :class:`benchmarks.runs.Bench`.

    :param site: started.
    :param servers: name -> what it stands on, each running.
    """

    def __init__(self, site: Site, servers: dict[str, process.Process]) -> None:
        self._site = site
        self._processes: dict[str, process.Process] = {**site.services, 'fake-world': site.world_process, **servers}
        self._log = servers['placement'].log
        self.cloud: Any = ProcessCloud(site, site.tap())
        self.cloud.database.close()
        observer = sa.make_url(site.database_url).set(username=OBSERVER)
        url = observer.render_as_string(hide_password=False)
        self.cloud.database = Database(url, self.cloud.world.threads)
        self._engine = sa.create_engine(url, isolation_level='AUTOCOMMIT')
        with self._engine.connect() as connection:
            connection.execute(sa.text('CREATE EXTENSION IF NOT EXISTS pg_stat_statements'))
        #: Statement -> how often a second while nothing migrates.
        self._rates: dict[str, float] = {}
        self._begun: tuple[float, dict[str, float], collections.Counter[str], int, int] = (0, {}, self._calls(), 0, 0)
        self.cloud.simulation.run_until(self.cloud.up)

    def idle(self, seconds: float) -> runs.Costs:
        """Do nothing for some seconds, and learn what goes on by itself."""
        self.begin()
        before = self._calls()
        time.sleep(seconds)
        self._rates = {text: calls / seconds for text, calls in (self._calls() - before).items()}
        return self.costs()

    def begin(self) -> None:
        """Count from now on."""
        self.cloud.tap.catch_up()
        received, logged = len(self.cloud.tap.messages), self._log.stat().st_size
        self._begun = (time.monotonic(), self._cpu(), self._calls(), received, logged)

    def costs(self) -> runs.Costs:
        """Return what was used up since."""
        began, cpu, calls, received, logged = self._begun
        seconds = time.monotonic() - began
        now = self._cpu()
        used = {name: now[name] - cpu.get(name, 0.0) for name in now}
        commits, statements = 0.0, {}
        asides = {'sql_statements': 0.0, 'commits': 0.0}
        for text, number in (self._calls() - calls).items():
            by_itself = min(float(number), self._rates.get(text, 0.0) * seconds)
            if text.startswith(_CONTROL):
                if text.startswith('COMMIT'):
                    commits += number - by_itself
                    asides['commits'] += by_itself
                continue
            statements[text] = number - by_itself
            asides['sql_statements'] += by_itself
        self.cloud.tap.catch_up()
        messages = self.cloud.tap.messages[received:]
        return runs.Costs(
            seconds=seconds,
            cpu=used,
            messages=messages,
            wire=[one.wire for one in messages],
            statements=statements,
            commits=commits,
            asides=asides,
            requests=self._requests(logged),
        )

    def looking(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: who looks has a user of his own."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """End the site."""
        self._engine.dispose()
        self.cloud.close()
        self._site.end()

    def _calls(self) -> collections.Counter[str]:
        with self._engine.connect() as connection:
            return collections.Counter(
                {text: int(calls) for text, calls in connection.execute(_STATEMENTS, {'who': postgresql.USER})}
            )

    def _cpu(self) -> dict[str, float]:
        return {name: cpu_of(each.pid) for name, each in self._processes.items()}

    def _requests(self, since: int) -> list[str]:
        with self._log.open('rb') as file:
            file.seek(since)
            found = _REQUEST.finditer(file.read().decode(errors='replace'))
            return [runs.request_of(one[1], one[2], int(one[3])) for one in found]


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, those that have ended included."""
    ticks = 0
    for one in reaper.descendants(pid):
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f'/proc/{one}/stat').read_text(errors='replace').rpartition(')')[2].split()
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICKS


@contextlib.contextmanager
def servers() -> Iterator[runs.Maker]:
    """Start the servers, give what starts the services on them, and end all of it."""
    workspace = process.Workspace()
    try:
        database = postgresql.PostgreSQL(workspace, {'shared_preload_libraries': 'pg_stat_statements'})
        database.start()
        database.administer(f"CREATE ROLE {OBSERVER} SUPERUSER LOGIN PASSWORD '{postgresql.PASSWORD}'")
        broker = rabbitmq.RabbitMQ(workspace)
        broker.start()

        @contextlib.contextmanager
        def make(guests: int) -> Iterator[Services]:
            # Another's providers would be candidates.
            store = placement.Placement(
                workspace, database.create_database(f'placement_{time.monotonic_ns()}'), workers=2
            )
            store.start()
            words = [word for value, option in runs.room_for(guests).values() for word in (option, str(value))]
            shape = Shape(hosts=runs.HOSTS, conductors=CONDUCTORS, world=(*words, '--link', str(runs.LINK)))
            site = Site(workspace, shape, broker, database, store)
            site.start()
            made = Services(site, {'rabbitmq': broker, 'postgresql': database, 'placement': store})
            try:
                yield made
            finally:
                made.close()
                store.stop()

        yield make
    finally:
        workspace.close()
