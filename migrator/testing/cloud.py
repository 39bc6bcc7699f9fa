# SPDX-License-Identifier: Apache-2.0

"""A whole cloud in one process: API, conductors, computes, hypervisors, a real database and the real Placement.

Only the threads, the clock, the bus between the services and the hypervisors are replaced. Under
:class:`migrator.testing.simulation.threads.Simulation` a test controls the time, and a seed fixes the order of
everything. Under :class:`migrator.executors.NativeThreads` the cloud runs by itself, as the demo does.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import webob
from oslo_config import cfg

from migrator import executors
from migrator.api import app
from migrator.compute.manager import ComputeManager
from migrator.conductor.manager import ConductorManager
from migrator.conductor.rpcapi import ConductorAPI, ConductorEvents
from migrator.conf import opts
from migrator.db.api import Database
from migrator.placement_client.client import PlacementClient
from migrator.testing import backends, placement_faults
from migrator.testing.bus import DirectBus
from migrator.testing.client import Exchange, Face
from migrator.testing.rpc import DirectRPC, RpcRecorder
from migrator.testing.simulation import sim_thread
from migrator.testing.simulation.threads import SimThreads, Simulation
from migrator.virt.driver import ComputeDriver
from migrator.virt.fake.driver import FakeDriver
from migrator.virt.fake.hypervisor import FakeHypervisor, FakeWorld

ThreadsFor = Callable[[str], executors.Threads]


class Cloud(Face):
    """A cloud.

    :param directory: where its SQLite files go.
    :param hosts: how many compute hosts, ``host1`` and so on; more by :meth:`add_host`.
    :param threads_for: returns the threads of a process by its name (``world``, ``api``, ``conductor1``, ``host1``).
    :param options: overrides of options, ``{'conductor.lease': 5, 'max_concurrent_live_migrations': 2}``.
    :param versions: compute host -> the service version as which it starts, :attr:`versions` from then on.
    :param start: whether to start the services; a cloud that is not started has its schema and nothing else.
    :param ground: where its database and its Placement are; its own, in ``directory``, unless given.
    :ivar history: every request to the REST API and its answer, in the order of the answers.
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
        **knobs: Any,
    ) -> None:
        self.backend = backend or backends.Backend(directory)
        self.directory = self.backend.directory
        native = executors.NativeThreads()
        self.threads_for: ThreadsFor = threads_for or (lambda name: native)
        self.options = {'api.auth_strategy': 'noauth2', **(options or {})}
        self.versions = dict(versions or {})
        self.world_threads = self.threads_for('world')
        self.simulation: Simulation | None = None
        self.world = FakeWorld(self.world_threads)
        self.recorder = RpcRecorder()
        self.bus = DirectBus(self.world_threads)
        self.placement = self.backend.placement()
        self.adapter = placement_faults.FaultyAdapter(self.placement.adapter())
        self.engine = self.backend.engine(self.world_threads)
        self.conductors: dict[str, ConductorManager] = {}
        self.computes: dict[str, ComputeManager] = {}
        self.database = self.database_of(self.world_threads)
        self.placement_client = PlacementClient(self.adapter)
        self.knobs = knobs
        self.history: list[Exchange] = []
        self.app = self.start_api()
        for number in range(1, hosts + 1):
            self.world.add(f'host{number}', **knobs)
        if start:
            self.start_conductor('conductor1')
            for host in self.world.hypervisors:
                self.start_compute(host)

    # --- processes ---------------------------------------------------------------------------------------------------

    def conf(self, **overrides: Any) -> cfg.ConfigOpts:
        """Return a configuration of its own for one service, with every option registered."""
        conf = cfg.ConfigOpts()
        opts.register_opts(conf)
        conf([], project='migrator', default_config_files=[], default_config_dirs=[])
        for name, value in {**self.options, **overrides}.items():
            group, _, option = name.rpartition('.')
            conf.set_override(option, value, group or None)
        return conf

    def database_of(self, threads: executors.Threads) -> Database:
        """Return the database as one process sees it."""
        return Database('', threads, engine=self.engine)

    def _rpc(self, name: str, sender: str) -> Any:
        threads = self.threads_for(name)
        return self.recorder.wrap(DirectRPC(self.bus, sender, threads), sender)

    def start_api(self) -> Any:
        """Start the REST API; again after it was killed.

        :returns: its WSGI application.
        """
        threads = self.threads_for('api')
        door = ConductorAPI(self._rpc('api', 'api:api'))
        self.app = app.make_app(self.conf(), self.database_of(threads), door, threads)
        return self.app

    def start_conductor(self, name: str) -> ConductorManager:
        """Start a conductor; of the same name again, after it was stopped or killed, as a new life."""
        threads = self.threads_for(name)
        manager = ConductorManager(
            self.conf(),
            name,
            self.database_of(threads),
            PlacementClient(self.adapter),
            self._rpc(name, f'conductor:{name}'),
            threads,
        )
        manager.start()
        self.conductors[name] = manager
        return manager

    def start_compute(self, host: str) -> ComputeManager:
        """Start the compute service of a host, on the hypervisor that is there."""
        threads = self.threads_for(host)
        client = self._rpc(host, f'compute:{host}')
        events = ConductorEvents(client)
        cap = {'compute.service_version_cap': self.versions[host]} if host in self.versions else {}
        conf = self.conf(host=host, **cap)
        driver = self.driver_for(host, conf, threads)
        manager = ComputeManager(conf, host, driver, threads, events, client)
        manager.start()
        self.computes[host] = manager
        return manager

    def driver_for(self, host: str, conf: cfg.ConfigOpts, threads: executors.Threads) -> ComputeDriver:
        """Return the driver of a host's hypervisor.

        :param conf: of its compute service.
        :param threads: of its compute service.
        """
        return FakeDriver(self.world.hypervisors[host], threads)

    def add_host(self, host: str, **knobs: Any) -> FakeHypervisor:
        """Add a host with its hypervisor, and start its compute service."""
        hypervisor = self.world.add(host, **{**self.knobs, **knobs})
        self.start_compute(host)
        return hypervisor

    def up(self) -> bool:
        """Whether every compute service that was started is known to the database, and what it has to Placement."""
        known = {service.host: service.boot_id for service in self.database.services.list(binary='nova-compute')}
        registered = all(known.get(host) == compute.boot_id for host, compute in self.computes.items())
        return registered and not any(node.host in self.computes for node in self.database.services.nodes_to_place())

    def set_option(self, service: str, name: str, value: Any) -> None:
        """Change a mutable option of a running service, and have it know.

        :param service: its name or host.
        :param name: of the option, with its group: ``conductor.lease``.
        """
        manager: Any = self.computes.get(service) or self.conductors[service]
        group, _, option = name.rpartition('.')
        manager.conf.set_override(option, value, group or None)
        if service in self.computes:
            self.computes[service].reset()

    def waiting(self) -> dict[str, list[str]]:
        """Return the migrations that wait in the queue of each host."""
        return {host: list(compute._waiting_live_migrations) for host, compute in self.computes.items()}

    def stop(self) -> None:
        """Stop every service as planned, computes first, and close what was opened."""
        for compute in self.computes.values():
            compute.cleanup_host()
        for conductor in self.conductors.values():
            conductor.stop()
        self.close()

    def close(self) -> None:
        """Close the files; whatever still runs is left alone."""
        self.backend.leave(self.engine, self.placement)

    def served(self, request: webob.Request) -> webob.Response:
        """Have the REST API answer a request, as it is and without a note of it."""
        threads = self.threads_for('api')
        # Under a simulation the calling thread is the API's while it serves: it dies and pauses with that process.
        with threads.acting() if isinstance(threads, SimThreads) else contextlib.nullcontext():
            return request.get_response(self.app)

    def new_uuid(self) -> str:
        """Return a new uuid."""
        return self.world_threads.new_uuid()


class SimulatedCloud(Cloud):
    """A cloud whose time and schedule are in the test's hand.

    :param seed: fixes the schedule, and every process's uuids; None: first come, first served.
    :param in_order: first come, first served, whatever the seed.
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
            simulation.run_until(self.up)

    def wait(self, seconds: float = 600) -> None:
        """Let it run until no migration is in progress, at most so many seconds of its clock.

        :raises migrator.testing.simulation.threads.TimedOut: something still is.
        """
        assert self.simulation is not None
        self.simulation.run_until(self.idle, timeout=seconds)

    def can_clean_up(self) -> bool:
        """Whether a host owes what it could pay by itself: its service lives, and nobody has to look first."""
        return any(cleanup.alarm is None and cleanup.host in self.computes for cleanup in self.database.cleanups.list())

    def kill(self, name: str) -> None:
        """Kill -9 a process: ``api``, ``conductor1``, ``host1``."""
        assert self.simulation is not None
        self.simulation.kill(self.processes.pop(name))
        self.computes.pop(name, None)
        self.conductors.pop(name, None)

    def stop(self) -> None:
        """End the simulation, and close what was opened."""
        assert self.simulation is not None
        self.simulation.close()
        self.close()
