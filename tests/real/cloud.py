# SPDX-License-Identifier: Apache-2.0

"""A cloud of processes, with the interface of the cloud in one process.

What is in a test's hand there and not here -- time, the schedule, a single message, a single commit, a single request
to Placement -- is not there to be asked for; a test that needs it is marked ``simulated``, with its reason.
"""

from __future__ import annotations

import contextlib
import datetime
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import requests
import sqlalchemy as sa
import webob
from keystoneauth1 import adapter

from migrator.db import models
from migrator.db.api import Database
from migrator.objects import COMPUTE_BINARY
from migrator.placement_client import providers
from migrator.placement_client.client import PlacementClient
from migrator.simulator import reader, world
from migrator.simulator.invariants import check
from migrator.testing.client import Client
from migrator.testing.hypervisor.hypervisor import Effect
from tests.real import far_world
from tests.real.servers import process
from tests.real.servers.tap import Tap
from tests.real.site import Service, Site

#: Headers that belong to a connection and not to an answer.
_HOP_BY_HOP = frozenset({'connection', 'transfer-encoding', 'keep-alive'})
#: How many seconds of real time a wait may take at least, whatever it was meant to take on a clock in hand.
PATIENCE = 90.0
#: What says who is there; the rest is of a test.
_KEPT = frozenset({'services', 'compute_nodes', 'conductors'})


class TimedOut(AssertionError):
    """Something has not come to be in time."""


class RealTime:
    """Time that passes by itself, asked for as a simulation is."""

    def __init__(self) -> None:
        self._born = time.monotonic()

    @property
    def time(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._born

    def run_until(self, predicate: Callable[[], Any], timeout: float = 60.0) -> None:
        """Wait until a predicate holds.

        :raises TimedOut: it does not hold within that number of seconds.
        """
        until = time.monotonic() + max(timeout, PATIENCE)
        while not predicate():
            if time.monotonic() > until:
                raise TimedOut(f'not within {max(timeout, PATIENCE):g} s: {getattr(predicate, "__name__", predicate)}')
            time.sleep(process.INTERVAL)

    def advance(self, seconds: float) -> None:
        """Let this number of seconds pass."""
        time.sleep(seconds)


class ProcessCloud(Client):
    """A cloud of processes.

    :param site: its processes, started.
    :param tap: records the messages between them, and is closed with the cloud; without it no message is checked.
    :ivar history: every request to the REST API and its answer, in the order of the answers.
    """

    def __init__(self, site: Site, tap: Tap | None = None) -> None:
        super().__init__()
        self.site = site
        self.tap = tap
        self.world: far_world.FarWorld = far_world.FarWorld(site.world_path, site.hosts)
        self.database = Database(site.database_url, self.world.threads)
        self.placement = site.placement
        self.placement_client = PlacementClient(self.placement.adapter())
        self.simulation = RealTime()
        self.api = 'api1'
        self._http = requests.Session()
        self._changed: set[str] = set()
        self._boots: dict[str, str] = {}
        # Placement is the session's, and its hosts may be called like those of a site that has ended
        self.clear_allocations()

    # --- as a user sees it -------------------------------------------------------------------------------------------

    def new_uuid(self) -> str:
        """Return a new uuid."""
        return str(uuid.uuid4())

    def served(self, request: webob.Request) -> webob.Response:
        """Have the REST API answer a request, as it is and without a note of it."""
        answer = self._http.request(
            request.method,
            self.site.url(self.api) + request.path_qs,
            headers=dict(request.headers),
            data=request.body,
            timeout=120,
            allow_redirects=False,
        )
        headers = [(name, value) for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP]
        return webob.Response(body=answer.content, status=answer.status_code, headerlist=headers)

    def wait(self, seconds: float = 600) -> None:
        """Wait until no migration is in progress.

        :raises TimedOut: something still is.
        """
        self.simulation.run_until(self.idle, timeout=min(seconds, PATIENCE))

    # --- processes ---------------------------------------------------------------------------------------------------

    def up(self) -> bool:
        """Whether the database knows the present boot of every compute service that runs, and it is up."""
        known = {each.host: each for each in self.database.services.list(binary=COMPUTE_BINARY)}
        now, down_time = self.database.services.now(), self.down_time
        for name, service in self.site.services.items():
            if service.kind != 'compute' or not service.running:
                continue
            found = known.get(name)
            if found is None or found.boot_id == self._boots.get(name) or not found.is_up(now, down_time):
                return False
        return True

    @property
    def down_time(self) -> float:
        """Seconds without a heartbeat after which a service counts as down."""
        return float(dict(self.site.shape.options).get('service_down_time', 60))

    def kill(self, name: str) -> None:
        """Kill -9 a process."""
        self.site.services[name].kill()

    def start_compute(self, host: str) -> None:
        """Start the compute service of a host anew."""
        known = self.database.services.list(binary=COMPUTE_BINARY)
        self._boots.update({each.host: each.boot_id for each in known if each.host == host})
        self.site.services[host].start()

    def start_conductor(self, name: str) -> None:
        """Start a conductor: anew, or one more."""
        if name not in self.site.services:
            self.site.add('conductor', name)
        self.site.services[name].start()

    def set_option(self, service: str, name: str, value: Any) -> None:
        """Change a mutable option of a running service, and have it know."""
        self._changed.add(service)
        self.site.reconfigure(service, **{name: value})

    def waiting(self) -> dict[str, list[str]]:
        """Return nothing: what waits in another process's queue is its own."""
        return {}

    # --- between tests -----------------------------------------------------------------------------------------------

    def begin(self, knobs: dict[str, Any]) -> None:
        """Bring everything up, for a test.

        :param knobs: of the hypervisors.
        """
        for each in self.site.processes:
            if each.running:
                each.go_on()
            elif isinstance(each, Service) and each.kind == 'compute':
                self.start_compute(each.name)
            else:
                each.start()
        self.simulation.run_until(self.up)
        self.history.clear()
        for hypervisor in self.world.hypervisors.values():
            for name, value in knobs.items():
                setattr(hypervisor, name, value)

    def come_to_rest(self) -> None:
        """End all faults, and wait until every migration has ended, or is stuck."""
        for each in self.site.processes:
            if each.running:
                each.go_on()
        for hypervisor in self.world.hypervisors.values():
            hypervisor.faults.clear()
        self.simulation.run_until(self._nothing_to_wait_for)

    def _nothing_to_wait_for(self) -> bool:
        return all(migration.stuck_reason for migration in self.database.migrations.list(in_progress=True))

    def judge(self, allowed: set[str], within: float = 60.0) -> None:
        """Return when everything holds that must.

        :param allowed: ids of invariants that the test itself has broken.
        :raises migrator.simulator.invariants.check.Broken: an invariant does not hold after that number of seconds.
        """
        until = time.monotonic() + within
        while True:
            seen = self.snapshot()
            if not [one for one in check.check(seen) if one.id not in allowed] or time.monotonic() > until:
                break
            # what runs after a migration's end is soon done: a deferred cleanup runs, a host reports
            time.sleep(0.2)
        check.assert_holds(seen, allowed=allowed)

    def snapshot(self) -> world.World:
        """Return the whole cloud as it is now, read part by part."""
        made = FarReader(self)
        if self.tap is not None:
            self.tap.catch_up()
        try:
            logs = [f'{name}: {line}' for name, text in self.site.logs() for line in text.splitlines()]
            return world.World(**made.everything(logs))
        finally:
            made.close()

    def forget(self) -> None:
        """Take away what the test has made; what has been changed of a service is as it was."""
        self.world.client.ask('forget')
        if self.tap is not None:
            self.tap.messages.clear()
        for name in sorted(self._changed):
            if self.site.services[name].running:
                self.site.reconfigure(name)
            else:
                self.site.configure(name)
        self._changed.clear()
        self.clear_allocations()
        forget_rows(self.database)

    def clear_allocations(self) -> None:
        """Remove every allocation from Placement."""
        clear_allocations(self.placement_client, self.placement.adapter())

    def close(self) -> None:
        """Close the connections."""
        if self.tap is not None:
            self.tap.close()
        self.database.close()
        self._http.close()


def forget_rows(database: Database) -> None:
    """Remove every row but those of services, which go on, enabled and not forced down."""
    with database.engine.writer() as connection:
        for table in reversed(models.Base.metadata.sorted_tables):
            if table.name not in _KEPT:
                connection.execute(sa.delete(table))
        connection.execute(sa.update(models.Service).values(disabled=False, disabled_reason=None, forced_down=False))


def clear_allocations(client: PlacementClient, way: adapter.Adapter) -> None:
    """Remove every allocation from Placement.

    :param way: to the same Placement, past our own code.
    """
    consumers: set[str] = set()
    for provider in providers.list_providers(client):
        consumers.update(providers.allocations_on(client, provider.uuid))
    for consumer in sorted(consumers):
        way.delete(f'/allocations/{consumer}')


class FarReader(reader.Reader):
    """A reader of a cloud of processes."""

    def __init__(self, cloud: ProcessCloud) -> None:
        self.cloud: Any = cloud
        self._engine = cloud.database.engine
        self._placement = cloud.placement_client
        self._contents = None

    def close(self) -> None:
        """Leave everything open: it is the cloud's."""

    def outside(self) -> dict[str, Any]:
        """Return what is known without asking the database or Placement."""
        look = self.cloud.world.client.look()
        return {
            'at': time.monotonic(),
            'now': datetime.datetime.now(datetime.UTC),
            'down_time': self.cloud.down_time,
            'hosts': {name: host_of(name, each) for name, each in look['hosts'].items()},
            'effects': [Effect(**effect) for effect in look['log']],
            'misdeeds': look['violations'],
            'messages': list(self.cloud.tap.messages) if self.cloud.tap is not None else [],
        }

    def secrets(self) -> list[str]:
        """Return what must never be shown: passwords, the database URL, and every token but the shortest."""
        tokens = {exchange.token for exchange in self.cloud.history if len(exchange.token) >= 8}
        url = sa.make_url(self.cloud.site.database_url)
        return [f':{url.password}@', self.cloud.site.database_url, *sorted(tokens)]

    def _uncounted(self) -> Any:
        return contextlib.nullcontext()

    def _leftovers(self) -> list[str]:
        return []

    def _connections(self) -> int:
        return 0


def host_of(name: str, look: dict[str, Any]) -> reader.Host:
    """Return a host that was looked at."""
    there: Sequence[str] = [*look['guests'], *(one for one in look['residues'] if one not in look['guests'])]
    parts = {one: far_world.parts_of(look, one) for one in there}
    return reader.Host.of(
        name,
        states={one: str(guest['state']) for one, guest in look['guests'].items()},
        powered=look['powered'],
        guests={one: far_world.guest_of(look, one) for one in there},
        parts={one: found for one, found in parts.items() if found},
        persistent=frozenset(one for one, guest in look['guests'].items() if guest['persistent']),
        sizes={one: far_world.size_of(guest) for one, guest in look['guests'].items()},
        resizing={one: found for one, guest in look['guests'].items() if (found := far_world.resize_of(guest))},
        jobs=tuple(look['jobs']),
    )
