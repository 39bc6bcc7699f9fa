# SPDX-License-Identifier: Apache-2.0

"""A simulated cloud with thousands of hosts or a long history, in rows inserted in bulk."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from benchmarks import databases
from migrator.conductor.drains import plan
from migrator.conductor.migration import allocations
from migrator.conductor.migration.context import MigrationContext
from migrator.context import admin_context
from migrator.db import models, slots
from migrator.db.conductors import Owned
from migrator.objects import (
    COMPUTE_BINARY,
    CURRENT_VERSION,
    Instance,
    Migration,
    MigrationStatus,
    MigrationType,
    Strategy,
    protocol,
)
from migrator.objects.drain import Drain
from migrator.testing.cloud import SimulatedCloud
from migrator.testing.fake_placement.candidates import Provider

#: Hosts with a compute service. The others have their rows and their providers, and report as a figure needs it.
SERVED = 2
#: Migrations in progress, which another conductor owns.
IN_PROGRESS = 100
#: The hosts that they leave and go to, so that there are as many in each cloud.
BUSY = 50
#: The conductors that take over.
_TAKERS = ('conductor7', 'conductor8')
OTHER = '00000000-0000-4000-8000-00000000ffff'
_AT_ONCE = 10_000


def uuid_of(kind: int, number: int) -> str:
    """Return a uuid: service 1, node 2, boot 3 and 8, guest 4 and 7, migration 5, drain 6, conductor 9."""
    return f'00000000-0000-4000-800{kind}-{number:012d}'


class Crowded:
    """A cloud of one conductor with many hosts, and with many migrations that have ended.

    :param hosts: in all, at least :data:`BUSY` and two more.
    :param ended: migrations that have ended.
    :ivar counter: counts what is sent to the database.
    """

    def __init__(self, site: databases.Site, hosts: int, ended: int) -> None:
        backend = site.backend()
        self.cloud = SimulatedCloud(backend.directory, hosts=SERVED, backend=backend)
        self.conductor = self.cloud.conductors['conductor1']
        self.counter = databases.Counter(self.cloud.database.engine)
        self.began = self.cloud.database.services.now()
        self.names = [f'host{number:05d}' for number in range(SERVED + 1, hosts + 1)]
        self._guests = self._flavors = self._boots = 0
        #: CPU seconds of Placement so far.
        self.placement_cpu = 0.0
        self._answer = self.cloud.placement.answer
        self.cloud.placement.answer = self._timed_answer
        self._insert_hosts()
        self._insert_in_progress(min(IN_PROGRESS, 2 * hosts))
        self._insert_ended(ended)
        databases.analyze(self.cloud.database.engine.sa_engine)
        #: The first sweep of a conductor finds more to do than the later ones.
        self.sweep()

    def close(self) -> None:
        """End the cloud."""
        self.cloud.stop()

    # --- what is measured --------------------------------------------------------------------------------------------

    def guest(self) -> Instance:
        """Return a new guest at the first host."""
        self._guests += 1
        return self.cloud.boot(f'guest{self._guests}', 'host1', memory_mb=1)

    def live_migrate(self, guest: Instance) -> None:
        """Ask for a live migration, which no conductor begins."""
        answer = self.cloud.live_migrate(guest)
        assert answer.status_int == 202, answer.text

    def sweep(self) -> None:
        """Run one sweep of the conductor, and what it has handed on to other threads."""
        with self.cloud.processes['conductor1'].acting():
            self.conductor._sweep()
        self.cloud.simulation.run_ready()

    def choose(self, guest: Instance, memory_mb: int = 1) -> None:
        """Choose a destination for a guest, as the first step of its migration does.

        :param memory_mb: of its flavor. Each flavor has its own list of candidates.
        """
        wanted = Migration(
            uuid=uuid_of(5, 0),
            instance_uuid=guest.uuid,
            project_id=guest.project_id,
            user_id=guest.user_id,
            source_compute=guest.host,
            source_node=guest.node,
        )
        sized = guest.replace(flavor=guest.flavor.replace(memory_mb=memory_mb))
        owned = Owned(migration=wanted, instance=sized, entries=[])
        with self.cloud.processes['conductor1'].acting():
            found = allocations.next_candidate(MigrationContext(self.conductor.tools, owned, settling=False))
        assert isinstance(found, Mapping), found

    def choose_first(self, guest: Instance) -> None:
        """Choose a destination for a guest of a flavor that was not seen before."""
        self._flavors += 1
        self.choose(guest, 1 + self._flavors)

    def candidates_asked(self, choices: int) -> int:
        """Return how often Placement is asked for candidates in some choices for one flavor."""
        guest, first = self.guest(), len(self.cloud.placement.requests)
        for _ in range(choices):
            self.choose(guest)
        asked = self.cloud.placement.requests[first:]
        return sum(one.url.startswith('/allocation_candidates') for one in asked)

    def load(self) -> None:
        """Count the migrations in progress to each host."""
        self.cloud.database.services.inbound()

    def heartbeats(self, seconds: int) -> None:
        """Let some seconds pass, in which each host reports once in ten."""
        each = max(1, len(self.names) // 10)
        for second in range(seconds):
            for number in range(each):
                place = (second * each + number) % len(self.names)
                report = protocol.HostReport(
                    host=self.names[place], boot_id=uuid_of(3, SERVED + 1 + place), version=CURRENT_VERSION
                )
                with self.cloud.processes['conductor1'].acting():
                    self.conductor.compute_heartbeat(admin_context(), report)
            self.cloud.simulation.advance(1)

    def start_host(self) -> None:
        """Report a new boot of a host that migrations in progress name."""
        self._boots += 1
        host, boot = self._busy(1), uuid_of(8, self._boots)
        before = self.cloud.database.services.get_compute(host).boot_id
        report = protocol.HostReport(host=host, boot_id=boot, version=CURRENT_VERSION, replaces=before)
        with self.cloud.processes['conductor1'].acting():
            assert self.conductor.compute_started(admin_context(), report)

    def orphan(self) -> list[list[str]]:
        """Let two idle conductors replace the others, and return the migrations in progress by source."""
        conductors = self.cloud.database.conductors
        # The lease of conductor1 ends by the clock of a server, whatever the simulated time is.
        for ended in (OTHER, self.conductor.tools.owner):
            conductors.retire(ended)
        for number, server in enumerate(_TAKERS, 1):
            conductors.register(uuid_of(9, number), server, 1e6)
        return self.cloud.database.takeovers.orphans()

    def take_over(self, uuids: Sequence[str]) -> None:
        """Give the orphaned migrations of one source a new owner."""
        lease = self.conductor.tools.options.lease
        assert self.cloud.database.takeovers.adopt(uuids, uuid_of(9, 1), _TAKERS[0], lease)

    def abort(self, row: Migration) -> None:
        """Request the abort of a migration by REST."""
        answer = self.cloud.request('DELETE', f'/servers/{row.instance_uuid}/migrations/{row.id}')
        assert answer.status_int == 202, answer.text

    def plan(self, hosts: int) -> None:
        """Plan drains of the first hosts at the same time."""
        drains = [Drain(uuid=uuid_of(6, number), host=host) for number, host in enumerate(self.names[:hosts])]
        with self.cloud.processes['conductor1'].acting():
            found = plan.plan_together(self.cloud.database, self.conductor.tools.placement, drains, slots.Bounds())
        assert len(found) == hosts
        assert all(one['can_move'] for one in found)

    def list(self, query: str) -> None:
        """List migrations by REST."""
        answer = self.cloud.request('GET', f'/os-migrations?{query}')
        assert answer.status_int == 200, answer.text
        assert answer.json['migrations']

    def _timed_answer(self, *args: Any) -> Any:
        began = time.process_time()
        try:
            return self._answer(*args)
        finally:
            self.placement_cpu += time.process_time() - began

    # --- rows --------------------------------------------------------------------------------------------------------

    def _insert(self, table: Any, rows: list[dict[str, Any]]) -> None:
        for first in range(0, len(rows), _AT_ONCE):
            with self.cloud.database.engine.sa_engine.begin() as connection:
                connection.execute(sa.insert(table), rows[first : first + _AT_ONCE])

    def _insert_hosts(self) -> None:
        node = next(one for one in self.cloud.database.services.list_nodes() if one.host == 'host1')
        numbered = list(enumerate(self.names, SERVED + 1))
        self._insert(
            models.SERVICES,
            [
                {
                    'uuid': uuid_of(1, number),
                    'host': host,
                    'binary': COMPUTE_BINARY,
                    'version': CURRENT_VERSION,
                    'boot_id': uuid_of(3, number),
                    'last_seen_up': self.began,
                }
                for number, host in numbered
            ],
        )
        self._insert(
            models.COMPUTE_NODES,
            [
                {
                    'uuid': uuid_of(2, number),
                    'host': host,
                    'node': host,
                    'hypervisor_type': node.hypervisor_type,
                    'hypervisor_version': node.hypervisor_version,
                    'host_ip': '192.0.2.1',
                    'cpu_info': {},
                    'providers': [],
                }
                for number, host in numbered
            ],
        )
        known: dict[str, Provider] = self.cloud.placement._providers
        like = known[node.uuid]
        # Its requests would look at all others each time.
        for number, host in numbered:
            uuid = uuid_of(2, number)
            known[uuid] = Provider(number + 1000, uuid, host, None, 1, dict(like.inventory), list(like.traits))

    def insert_guests(self, each: int, sizes: Sequence[int]) -> None:
        """Insert guests on each host.

        :param sizes: their memory in MiB. The others have the same.
        """
        like = self.guest()
        with self.cloud.database.engine.reader() as session:
            query = sa.select(models.INSTANCES).where(models.INSTANCES.c.uuid == like.uuid)
            row = dict(session.execute(query).one()._mapping)
        for name in ('id', 'changed_at'):
            del row[name]
        flavors = [dataclasses.asdict(like.flavor.replace(memory_mb=size)) for size in sizes]
        numbered = [(host, place * each + n) for place, host in enumerate(self.names) for n in range(each)]
        self._insert(
            models.INSTANCES,
            [
                row
                | {'uuid': uuid_of(7, number), 'name': f'g{number}', 'host': host, 'node': host}
                | {'flavor': flavors[number % len(flavors)]}
                for host, number in numbered
            ],
        )

    def _insert_in_progress(self, number: int) -> None:
        until = self.began + datetime.timedelta(days=1)
        self._insert(models.CONDUCTORS, [{'id': OTHER, 'server': 'conductor9', 'lease_until': until}])
        numbers = range(1, number + 1)
        self._insert(
            models.INSTANCES,
            [
                {
                    'uuid': uuid_of(4, one),
                    'name': f'moving{one}',
                    'project_id': 'demo',
                    'user_id': 'demo',
                    'host': self._busy(one),
                    'node': self._busy(one),
                    'flavor': {'name': 'm1', 'vcpus': 1, 'memory_mb': 1, 'root_gb': 1},
                    'vm_state': 'active',
                    'power_state': 1,
                    'task_state': 'migrating',
                }
                for one in numbers
            ],
        )
        self._insert(
            models.MIGRATIONS,
            [
                {
                    **self._migration(one, self.began),
                    'in_progress_instance_uuid': uuid_of(4, one),
                    'status': MigrationStatus.QUEUED.value,
                    'owner': OTHER,
                    'epoch': 1,
                }
                for one in numbers
            ],
        )

    def insert_recorded(self, number: int) -> None:
        """Insert completed migrations of which it is known how long they took."""
        self._insert_ended(
            number, instance_uuid=self.guest().uuid, running_at=self.began - datetime.timedelta(days=101)
        )

    def _insert_ended(self, number: int, **more: Any) -> None:
        began = self.began - datetime.timedelta(days=100)
        ended = {'status': MigrationStatus.COMPLETED.value, 'outcome': 'forward', 'owner': OTHER, 'epoch': 1}
        rows = (
            {**self._migration(one, began + datetime.timedelta(seconds=one)), **ended, **more}
            for one in range(IN_PROGRESS + 1, IN_PROGRESS + number + 1)
        )
        self._insert(models.MIGRATIONS, list(rows))

    def _migration(self, number: int, at: datetime.datetime) -> dict[str, Any]:
        source, destination = self._busy(number), self._busy(number + 1)
        return {
            'uuid': uuid_of(5, number),
            # A guest of a long history has migrated a hundred times.
            'instance_uuid': uuid_of(4, number if number <= IN_PROGRESS else number % 1000),
            'project_id': 'demo',
            'user_id': 'demo',
            'migration_type': MigrationType.LIVE_MIGRATION.value,
            'source_compute': source,
            'source_node': source,
            'dest_compute': destination,
            'dest_node': destination,
            'strategy': Strategy.MIGRATION_OWNED.value,
            'created_at': at,
            'updated_at': at,
        }

    def _busy(self, number: int) -> str:
        return self.names[number % min(BUSY, len(self.names))]
