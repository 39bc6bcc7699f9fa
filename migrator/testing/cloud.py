# SPDX-License-Identifier: Apache-2.0

"""A whole cloud in one process, with a real database and the real Placement.

The API, the conductors and the compute services are the real ones, too. Replaced are only the threads, the clock, the
bus between the services, and the hypervisors. Under :class:`migrator.testing.simulation.threads.Simulation` a test
controls the time, and a seed fixes the order of all events. Under :class:`migrator.executors.NativeThreads` the cloud
runs by itself, as the demo does.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import webob
from oslo_config import cfg

from migrator import executors, tracing
from migrator.api import app
from migrator.compute.manager import ComputeManager
from migrator.conductor.manager import ConductorManager
from migrator.conductor.notifications.periodic import Send
from migrator.conductor.rpcapi import ConductorAPI, ConductorEvents
from migrator.conductor.tasks import sagas
from migrator.db.api import Database
from migrator.objects import Instance, Migration
from migrator.placement_client.client import PlacementClient
from migrator.runtime import logs
from migrator.testing import backends, placement_faults
from migrator.testing.bus import DirectBus
from migrator.testing.client import Client
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.testing.hypervisor.hypervisor import FakeHypervisor, FakeWorld
from migrator.testing.rpc import DirectRPC, RpcRecorder
from migrator.testing.simulation import sim_thread
from migrator.testing.simulation.threads import SimThreads, Simulation
from migrator.virt.driver import ComputeDriver

ThreadsFor = Callable[[str], executors.Threads]


class Cloud(Client):
    """A cloud whose services share this process.

    :param directory: the directory of its SQLite files.
    :param hosts: the number of compute hosts, named ``host1`` and so on. :meth:`add_host` adds more.
    :param threads_for: returns the threads of a process by its name (``world``, ``api``, ``conductor1``, ``host1``).
    :param options: overrides of options, ``{'conductor.lease': 5, 'max_concurrent_live_migrations': 2}``.
    :param versions: compute host -> the service version with which it starts. A later start reads :attr:`versions`.
    :param start: whether to start the services. A cloud that is not started has its schema and nothing else.
    :param backend: the database and the Placement. By default the cloud makes its own in ``directory``.
    :param send: puts the notifications of conductors on the bus; None: there are none.
    :param knobs: the knobs of the hypervisors; see :class:`migrator.testing.hypervisor.hypervisor.FakeHypervisor`.
    """

    world: FakeWorld

    def __init__(
        self,
        directory: str | pathlib.Path,
        hosts: int = 4,
        threads_for: ThreadsFor | None = None,
        options: Mapping[str, Any] | None = None,
        versions: Mapping[str, int] | None = None,
        start: bool = True,
        backend: backends.Backend | None = None,
        send: Send | None = None,
        **knobs: Any,
    ) -> None:
        super().__init__()
        self.backend = backend or backends.Backend(directory)
        native = executors.NativeThreads()
        self.threads_for: ThreadsFor = threads_for or (lambda name: native)
        self.options = {'api.auth_strategy': 'noauth2', **(options or {})}
        self.versions = dict(versions or {})
        self.simulation: Simulation | None = None
        self.world = FakeWorld(self.threads_for('world'), **knobs)
        self.recorder = RpcRecorder()
        self.bus = DirectBus(self.world.threads)
        self.bus.notify = send
        self.placement = self.backend.placement()
        self.adapter = placement_faults.FaultyAdapter(self.placement.adapter())
        self.conductors: dict[str, ConductorManager] = {}
        self.computes: dict[str, ComputeManager] = {}
        self.database = Database('', self.world.threads, engine=self.backend.engine(self.world.threads))
        self.placement_client = PlacementClient(self.adapter)
        self.app = self.start_api()
        for number in range(1, hosts + 1):
            self.world.add(f'host{number}')
        if start:
            self.start_conductor('conductor1')
            for host in self.world.hypervisors:
                self.start_compute(host)

    # --- processes ---------------------------------------------------------------------------------------------------

    def conf(self, **overrides: Any) -> cfg.ConfigOpts:
        """Return a new configuration for one service, with every option registered."""
        conf = self.backend.conf()
        for name, value in {**self.options, **overrides}.items():
            group, _, option = name.rpartition('.')
            conf.set_override(option, value, group or None)
        return conf

    def database_of(self, threads: executors.Threads) -> Database:
        """Return the database as one process sees it."""
        return Database('', threads, engine=self.database.engine)

    def rpc_for(self, name: str, sender: str = '') -> Any:
        """Return the RPC of one process, also of a :class:`migrator.Host` beside the cloud.

        :param name: the name of the process.
        :param sender: its name in :attr:`recorder`; by default that of a compute host.
        """
        sender = sender or f'compute:{name}'
        threads = self.threads_for(name)
        made = self.recorder.wrap(DirectRPC(self.bus, sender, threads), sender)
        # Without it a handler does not know the context of its call.
        return made if self.tracer_for(name) is None else logs.with_context(made)

    def start_api(self, enforcer: Any = None) -> Any:
        """Start the REST API, or start it again after it was killed.

        :param enforcer: its policies; None: the defaults.
        :returns: its WSGI application.
        """
        threads = self.threads_for('api')
        conductor = ConductorAPI(self.rpc_for('api', 'api:api'))
        enforcer = enforcer or self.backend.enforcer()
        self.app = app.make_app(self.conf(), self.database_of(threads), conductor, threads, sagas(), enforcer=enforcer)
        return self.app

    def start_conductor(self, name: str) -> ConductorManager:
        """Start a conductor, or a new boot of one that was stopped or killed."""
        threads = self.threads_for(name)
        tracer = self.tracer_for(name)
        manager = ConductorManager(
            self.conf(),
            name,
            self.database_of(threads),
            PlacementClient(self.adapter if tracer is None else tracing.traced_adapter(self.adapter, tracer)),
            self.rpc_for(name, f'conductor:{name}'),
            threads,
            send=self.bus.notify,
            tracer=tracer,
        )
        manager.start()
        self.conductors[name] = manager
        return manager

    def start_compute(self, host: str) -> ComputeManager:
        """Start the compute service of a host on the host's existing hypervisor."""
        threads = self.threads_for(host)
        client = self.rpc_for(host)
        events = ConductorEvents(client)
        cap = {'compute.service_version_cap': self.versions[host]} if host in self.versions else {}
        conf = self.conf(host=host, **cap)
        driver = self.driver_for(host, conf, threads)
        tracer = self.tracer_for(host)
        manager = ComputeManager(conf, host, driver, threads, events, client, tracer=tracer)
        manager.start()
        self.computes[host] = manager
        return manager

    def tracer_for(self, name: str) -> tracing.Tracer | None:
        """Return what records the spans of a process by its name, or None; a subclass may trace."""
        return None

    def driver_for(self, host: str, conf: cfg.ConfigOpts, threads: executors.Threads) -> ComputeDriver:
        """Return a new driver for a host's hypervisor.

        :param conf: the configuration of the compute service.
        :param threads: the threads of the compute service.
        """
        return FakeDriver(self.world.hypervisors[host], threads)

    def add_host(self, host: str, **knobs: Any) -> FakeHypervisor:
        """Add a host with its hypervisor, and start its compute service."""
        hypervisor = self.world.add(host, **knobs)
        self.start_compute(host)
        return hypervisor

    def up(self, *hosts: str) -> bool:
        """Return whether every started compute service is registered in the database and in Placement.

        :param hosts: further hosts that have to be, such as each :class:`migrator.Host` beside the cloud.
        """
        known = {service.host: service.boot_id for service in self.database.services.list(binary='nova-compute')}
        registered = all(known.get(host) == compute.boot_id for host, compute in self.computes.items())
        wanted = {*self.computes, *hosts}
        unplaced = {node.host for node in self.database.services.nodes_to_place()}
        return registered and wanted <= known.keys() and not wanted & unplaced

    def wait_until(self, predicate: Callable[[], bool], seconds: float = 30) -> None:
        """Wait until a predicate holds, such as :meth:`idle`.

        :raises TimeoutError: it does not hold after that many seconds of the cloud's clock.
        """
        threads = self.world.threads
        end = threads.clock.monotonic() + seconds
        while not predicate():
            if threads.clock.monotonic() > end:
                statuses = {one.instance_uuid: one.status for one in self.migrations()}
                raise TimeoutError(f'not so after {seconds:g} s; the statuses of the migrations: {statuses}')
            threads.sleep(0.01)

    def set_option(self, service: str, name: str, value: Any) -> None:
        """Change a mutable option of a running service and make the service reload it.

        :param service: the name of the conductor, or the compute host.
        :param name: the name of the option with its group: ``conductor.lease``.
        """
        manager: Any = self.computes.get(service) or self.conductors[service]
        group, _, option = name.rpartition('.')
        manager.conf.set_override(option, value, group or None)
        if service in self.computes:
            self.computes[service].reset()

    def waiting(self) -> dict[str, list[str]]:
        """Return for each host the migrations that wait in its queue."""
        return {host: list(compute._waiting_live_migrations) for host, compute in self.computes.items()}

    def stop(self) -> None:
        """Stop every service as in a planned stop, computes first, and close all files."""
        for compute in self.computes.values():
            compute.cleanup_host()
        for conductor in self.conductors.values():
            conductor.stop()
        self.close()

    def close(self) -> None:
        """Close the files; services that still run are not stopped."""
        self.backend.leave(self.database.engine, self.placement)

    def served(self, request: webob.Request) -> webob.Response:
        """Return the REST API's response to a request; the history does not record it."""
        threads = self.threads_for('api')
        # In a simulation the calling thread belongs to the API while it serves: it dies and pauses with that process.
        with threads.acting() if isinstance(threads, SimThreads) else contextlib.nullcontext():
            return request.get_response(self.app)

    def new_uuid(self) -> str:
        """Return a new uuid."""
        return self.world.threads.new_uuid()


class SimulatedCloud(Cloud):
    """A cloud whose time and schedule the test controls.

    :param seed: fixes the schedule and the uuids of every process. None: the first ready thread runs first.
    :param in_order: the first ready thread runs first, whatever the seed; the seed still fixes the uuids.
    """

    def __init__(
        self,
        directory: str | pathlib.Path,
        hosts: int = 4,
        seed: int | None = None,
        in_order: bool = False,
        **options: Any,
    ) -> None:
        simulation = Simulation(seed, policy=sim_thread.InOrder() if in_order else None)
        self.processes: dict[str, SimThreads] = {}

        def threads_for(name: str) -> SimThreads:
            if name not in self.processes:
                self.processes[name] = simulation.process(name)
            return self.processes[name]

        super().__init__(directory, hosts, threads_for=threads_for, **options)
        self.simulation = simulation
        if options.get('start', True):
            simulation.run_until(self.after_writes(self.up, 'services', 'compute_nodes'))

    def after_writes(self, predicate: Callable[[], Any], *tables: str) -> Callable[[], Any]:
        """Return a predicate that is judged again only after a service or a user has written to some tables.

        :param predicate: nothing else may change what it returns.
        """
        judged: list[Any] = [None, False]

        def judge() -> Any:
            writes = [self.backend.writes[table] for table in tables]
            if judged[0] != writes:
                judged[:] = writes, predicate()
            return judged[1]

        return judge

    def wait(self, seconds: float = 600) -> None:
        """Run until no migration is in progress.

        :param seconds: the longest time to run, in seconds of the cloud's clock.
        :raises migrator.testing.simulation.threads.TimedOut: a migration is still in progress.
        """
        assert self.simulation is not None
        self.simulation.run_until(self.after_writes(self.idle, 'migrations'), timeout=seconds)

    def migrations(self, instance: Instance | None = None) -> list[Migration]:
        """Return the migrations of one instance, or of all, the oldest first."""
        rows = [row.object for row in self.backend.tables.read('migrations')]
        return [one for one in rows if instance is None or one.instance_uuid == instance.uuid]

    def idle(self) -> bool:
        """Return whether no migration is in progress."""
        return not any(one.in_progress for one in self.migrations())

    def can_clean_up(self) -> bool:
        """Return whether a running compute service has a deferred cleanup that is not blocked."""
        return any(
            cleanup.blocked_because is None and cleanup.host in self.computes
            for cleanup in self.database.cleanups.list()
        )

    def kill(self, name: str) -> None:
        """Kill a process (``kill -9``), such as ``api``, ``conductor1`` or ``host1``."""
        assert self.simulation is not None
        self.simulation.kill(self.processes.pop(name))
        self.computes.pop(name, None)
        self.conductors.pop(name, None)

    def stop(self) -> None:
        """End the simulation and close all files."""
        assert self.simulation is not None
        self.simulation.close()
        self.close()
