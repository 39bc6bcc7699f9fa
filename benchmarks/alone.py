# SPDX-License-Identifier: Apache-2.0

"""The exact cost of one migration, abort, durable step and command, with CPU time as a ratio."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import databases, live_migration_queue, runs
from migrator.db.migrations import Write
from migrator.objects import Migration, MigrationStatus
from migrator.saga import log
from migrator.testing.cloud import SimulatedCloud

#: Threads that look after the cloud as a whole, whether anything migrates or not.
BACKGROUND = ('lease', 'sweep', 'poll', 'heartbeat', 'knock', 'audit')
#: Guests that leave a host together, how many of them at once, and the seconds of each request to Placement.
LEAVING, AT_ONCE, REQUEST = 20, 4, 0.02
_STEP = 'post_live_migration_at_source'


class Metered:
    """A simulated cloud that counts what its services do for migrations.

    :param guests: for how many each host has room.
    """

    def __init__(self, site: databases.Site, guests: int = 16) -> None:
        backend = site.backend()
        room = {name: value for name, (value, _option) in runs.room_for(guests).items()}
        self.cloud = SimulatedCloud(backend.directory, hosts=runs.HOSTS, backend=backend, link=runs.LINK, **room)
        self.counter = databases.Counter(self.cloud.database.engine, self._counts)
        self._messages = self._requests = 0

    def close(self) -> None:
        """End the cloud."""
        self.cloud.stop()

    def boot(self, name: str, host: str = 'host1', **more: Any) -> Any:
        """Start a guest."""
        return self.cloud.boot(name, host, runs.MEMORY, **more)

    def migrate(self, guest: Any, host: str | None = None) -> str:
        """Ask for a live migration, and return its uuid."""
        answer = self.cloud.live_migrate(guest, host)
        assert answer.status_int == 202, answer.text
        return self.cloud.migrations(guest)[-1].uuid

    def row(self, uuid: str) -> Migration:
        """Return a migration."""
        return next(one for one in self.cloud.migrations() if one.uuid == uuid)

    def counted(self, function: Callable[[], Any]) -> dict[str, float]:
        """Return what the services send until a function returns."""
        first_message, first_request = len(self.cloud.recorder.messages), len(self.cloud.placement.requests)
        with self.counter.counting():
            function()
        messages = self.cloud.recorder.messages[first_message:]
        return {
            'messages': sum(not (one.poll or one.heartbeat) for one in messages),
            'statements': self.counter.statements,
            'commits': self.counter.commits,
            'requests': len(self.cloud.placement.requests) - first_request,
        }

    def _counts(self) -> bool:
        thread = self.cloud.simulation.scheduler.current
        return not thread.acting.is_world and thread.name not in BACKGROUND


class _Traveller:
    """A guest that goes to and fro between two hosts of an idle cloud."""

    def __init__(self, site: databases.Site) -> None:
        self.metered = Metered(site)
        self._guest = self.metered.boot('traveller')
        self._moves = 0
        # The first one compiles the statements.
        self.move()

    def move(self) -> None:
        """Migrate the guest, and wait for the end."""
        self._moves += 1
        uuid = self.metered.migrate(self._guest, ('host1', 'host2')[self._moves % 2])
        self.metered.cloud.wait()
        assert self.metered.row(uuid).status == MigrationStatus.COMPLETED


def migration(site: databases.Site) -> dict[str, float]:
    """Return what one migration costs in an idle cloud."""
    traveller = _Traveller(site)
    found = traveller.metered.counted(traveller.move)
    traveller.metered.close()
    return found


def cpu(site: databases.Site) -> float:
    """Return how often the CPU time of :func:`fixed_work` one migration takes in an idle cloud."""
    traveller = _Traveller(site)
    work, moved = databases.least(site.cpu, [fixed_work, traveller.move], rounds=10, least_=site.turn)
    traveller.metered.close()
    return moved / work


def leaving(site: databases.Site, is_drained: bool = False) -> dict[str, float]:
    """Return what each of some guests costs that leave a host together, or by a drain."""
    metered = Metered(site, LEAVING)
    metered.cloud.set_option('host1', 'max_concurrent_live_migrations', AT_ONCE)
    guests = [metered.boot(f'guest{number}') for number in range(LEAVING)]

    def leave() -> None:
        if is_drained:
            answer = metered.cloud.request('POST', '/migrator/v1/drains', {'host': 'host1'})
            assert answer.status_int == 202, answer.text
            metered.cloud.simulation.run_until(lambda: not metered.cloud.database.drains.list(in_progress=True))
        else:
            for guest in guests:
                metered.migrate(guest)
        metered.cloud.wait()

    threads = metered.cloud.threads_for('world')
    metered.cloud.placement.before_request = lambda *_: threads.sleep(REQUEST)
    found = metered.counted(leave)
    metered.cloud.placement.before_request = None
    assert [one.status for one in metered.cloud.migrations()] == [MigrationStatus.COMPLETED] * LEAVING
    metered.close()
    return {what: number / LEAVING for what, number in found.items()}


def abort(site: databases.Site) -> dict[str, float]:
    """Return what the abort of a queued migration costs, from the DELETE to its end."""
    traveller = _Traveller(site)
    traveller.move()
    # Either host has been a source by now. A conductor reads the service version of each boot of a host only once.
    metered = traveller.metered
    hypervisor = metered.cloud.world.hypervisors['host1']
    hypervisor.auto_converge_after = 0
    hypervisor.set_link(runs.SLOW_LINK)
    first = metered.migrate(metered.boot('busy', dirty_rate=runs.BUSY), 'host2')
    metered.cloud.simulation.run_until(lambda: metered.row(first).status == MigrationStatus.RUNNING)
    queued = metered.migrate(metered.boot('waiting'), 'host2')
    metered.cloud.simulation.run_until(lambda: metered.row(queued).status == MigrationStatus.QUEUED)
    # what is known of it by then is acknowledged
    metered.cloud.simulation.advance(5)

    def end() -> None:
        row = metered.row(queued)
        answer = metered.cloud.request('DELETE', f'/servers/{row.instance_uuid}/migrations/{row.id}')
        assert answer.status_int == 202, answer.text
        metered.cloud.simulation.run_until(lambda: metered.row(queued).ended)

    found = metered.counted(end)
    assert metered.row(queued).status == MigrationStatus.CANCELLED
    metered.close()
    return found


def durable_step(site: databases.Site) -> float:
    """Return the CPU seconds of this process for one guarded write of a step's intent."""
    metered = Metered(site)
    uuid = metered.migrate(metered.boot('traveller'))
    database, owner = metered.cloud.database, metered.cloud.conductors['conductor1'].tools.owner
    taken = database.takeovers.adopt([uuid], owner)
    assert taken is not None
    known, number = taken.owned[0].migration, 0

    def step() -> None:
        nonlocal known, number
        number += 1
        record = log.StepRecord(_STEP, log.DO, log.StepState.INTENT, number, input={'host': 'host2'})
        known, _boots = database.migrations.commit(known, Write(records=[record]))

    (took,) = databases.least(time.process_time, [step], rounds=12, least_=0.02)
    metered.close()
    return took


def queued_kib(number: int) -> float:
    """Return the KiB that a compute process has for each migration in its queue."""
    waiting, _aborted = live_migration_queue.memory(number)
    return waiting / 1024


def help_ratio() -> float:
    """Return how often the CPU time of ``python -c pass`` ``migrator-manage --help`` takes."""
    nothing, shown = [sys.executable, '-c', 'pass'], [sys.executable, '-m', 'migrator.cmd.manage', '--help']
    took = [min(_cpu_of(command) for _ in range(5)) for command in (nothing, shown)]
    return took[1] / took[0]


def _cpu_of(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = os.pathsep.join(filter(None, [str(live_migration_queue.TREE), os.environ.get('PYTHONPATH')]))
    environment = {**os.environ, 'PYTHONPATH': path}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)  # noqa: S603 -- this interpreter
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def fixed_work() -> None:
    """Do what never changes, of the kinds that a control plane does: JSON, texts, objects, rows."""
    document = {'rows': [{'number': number, 'name': f'host{number}', 'up': True} for number in range(100)]}
    connection = sqlite3.connect(':memory:')
    connection.execute('CREATE TABLE rows (number INTEGER PRIMARY KEY, name TEXT)')
    for _ in range(20):
        for row in json.loads(json.dumps(document))['rows']:
            connection.execute('REPLACE INTO rows VALUES (?, ?)', (row['number'], row['name'].upper()))
        sorted(connection.execute('SELECT name, number FROM rows'))
    connection.close()
