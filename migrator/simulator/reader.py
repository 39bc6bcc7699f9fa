# SPDX-License-Identifier: Apache-2.0

"""Reads what a :class:`~migrator.simulator.world.World` is made of, past everything that a test counts or breaks.

The database is read by an engine of its own, Placement by an adapter of its own (and its list of requests is left as
it was), the hypervisors past their drivers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from migrator.db.api import Database
from migrator.objects import protocol
from migrator.placement_client import allocations, providers
from migrator.placement_client.client import PlacementClient
from migrator.testing.simulation import primitives

if TYPE_CHECKING:  # the cloud needs none of this to run
    from migrator.testing.cloud import Cloud


@dataclasses.dataclass(frozen=True, kw_only=True)
class Provider:
    """A resource provider, by Placement's word.

    :ivar holders: consumer uuid -> resource class -> amount.
    """

    uuid: str
    name: str
    root: str
    inventory: Mapping[str, Mapping[str, Any]]
    used: Mapping[str, int] = dataclasses.field(default_factory=dict)
    holders: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """One host: what its hypervisor has, asked past every driver, and what its compute service has in hand.

    :ivar guests: of everything that is there of a guest in any form, the guest as a driver would describe it.
    :ivar parts: instance uuid -> what there is of it, the guest itself included.
    :ivar persistent: the guests that would survive a restart of the hypervisor.
    :ivar jobs: the guests that are on their way out.
    :ivar alive: a compute service runs; what follows is empty otherwise.
    :ivar waiting: the keys of ``_waiting_live_migrations``, in their order.
    :ivar busy: name of an executor -> how many items it runs or holds.
    :ivar limit: max_concurrent_live_migrations.
    :ivar seen: migration uuid -> (epoch, owner), the highest that this boot has taken anything in.
    """

    name: str
    powered: bool
    guests: Mapping[str, protocol.Guest]
    parts: Mapping[str, Sequence[str]]
    persistent: frozenset[str]
    jobs: tuple[str, ...]
    alive: bool = False
    boot_id: str = ''
    waiting: tuple[str, ...] = ()
    busy: Mapping[str, int] = dataclasses.field(default_factory=dict)
    limit: int = 0
    closed: bool = False
    seen: Mapping[str, tuple[int, str | None]] = dataclasses.field(default_factory=dict)


class Reader:
    """Reads a cloud, without a trace in anything that tests count.

    :param cloud: simulated, or at rest: the parts of a snapshot are read one after the other.
    """

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self._engine = cloud.backend.second_engine(cloud.world_threads)
        self._placement = PlacementClient(cloud.placement.adapter())
        # one in this process can be read past its API, in the time of a single request
        self._contents = getattr(cloud.placement, 'contents', None)

    def close(self) -> None:
        """Close its connections."""
        self._engine.dispose()

    @contextlib.contextmanager
    def database(self) -> Iterator[Database]:
        """Return the database as it is at one moment: every method reads in one session."""
        with Database('', self.cloud.world_threads, engine=self._engine).one_session() as database:
            yield database

    def everything(self, logs: Sequence[str] = ()) -> dict[str, Any]:
        """Return all of a world: the arguments of a :class:`~migrator.simulator.world.World`."""
        connections = self._connections()
        # Nothing but the database is asked in its session: it ends those that are idle for long.
        with self.database() as database:
            migrations = {one.uuid: one for one in reversed(database.migrations.list())}
            instances = {one.uuid: one for one in reversed(database.instances.list())}
            known = {*instances, *(one.instance_uuid for one in migrations.values())}
            found = {
                'instances': instances,
                'migrations': migrations,
                'marked': marked(database, known),
                'journal': {uuid: database.migrations.steps(uuid) for uuid in migrations},
                'cleanups': database.cleanups.list(),
                'services': database.services.list(),
                'nodes': {node.host: node for node in database.services.list_nodes()},
                'actions': [action for uuid in sorted(known) for action in database.actions.list(uuid)],
            }
        return {
            **found,
            'providers': self.providers(),
            'history': list(self.cloud.history),
            'logs': list(logs),
            'secrets': self.secrets(),
            'leftovers': self._leftovers(),
            'connections': connections,
            **self.outside(),
        }

    def outside(self) -> dict[str, Any]:
        """Return what is known without asking the database or Placement, likewise."""
        cloud = self.cloud
        simulation = cloud.simulation
        if simulation is not None:
            # A dying thread may ask, and no simulated clock answers it.
            at = primitives.MONOTONIC_START + simulation.time
            now = primitives.START + datetime.timedelta(seconds=simulation.time)
        else:
            at, now = cloud.world_threads.clock.monotonic(), cloud.world_threads.clock.now()
        return {
            'at': at,
            'now': now,
            'down_time': float(next(iter(cloud.computes.values())).conf.service_down_time) if cloud.computes else 60.0,
            'hosts': {name: self._host(name) for name in list(cloud.world.hypervisors)},
            'effects': list(cloud.world.log),
            'misdeeds': list(cloud.world.violations),
            'intrusions': list(cloud.world.acts.intrusions),
            'removals': list(cloud.world.acts.removals),
            'messages': list(cloud.recorder.messages),
            'busy': {
                f'{pool} of {name}': executor.running + executor.waiting
                for name, conductor in cloud.conductors.items()
                if _alive(conductor._threads)
                for pool, executor in (
                    ('stories', conductor._pool),
                    ('polls', conductor._poll_pool),
                    ('adoptions', conductor._adopt_pool),
                )
            },
        }

    def secrets(self) -> list[str]:
        """Return what must never be told: where the database is, and every token but the shortest."""
        tokens = {exchange.token for exchange in self.cloud.history if len(exchange.token) >= 8}
        return [f'sqlite:///{self.cloud.directory}', *sorted(tokens)]

    def providers(self) -> dict[str, Provider]:
        """Return what Placement says."""
        if self._contents is not None:
            found = {}
            for one in self._contents().values():
                provider = Provider(uuid=one.uuid, name=one.name, root=one.root, inventory=one.inventory)
                found[one.uuid] = _with_usage(provider, one.holders)
            return found
        client = self._placement
        with self._uncounted():
            found = {
                one.uuid: Provider(
                    uuid=one.uuid,
                    name=one.name,
                    root=one.root_uuid,
                    inventory=providers.read_inventory(client, one.uuid),
                )
                for one in providers.list_providers(client)
            }
            return {
                uuid: dataclasses.replace(
                    one, used=providers.usages(client, uuid), holders=providers.allocations_on(client, uuid)
                )
                for uuid, one in found.items()
            }

    def held_by(self, consumers: Collection[str], known: Mapping[str, Provider]) -> dict[str, Provider]:
        """Return what Placement says, where nothing but these consumers' allocations has changed since it was read."""
        if self._contents is not None:
            return self.providers()
        with self._uncounted():
            now = {uuid: allocations.read(self._placement, uuid).allocations for uuid in sorted(consumers)}
        found = {}
        for provider, one in known.items():
            holders = {uuid: held for uuid, held in one.holders.items() if uuid not in now}
            holders |= {uuid: held[provider] for uuid, held in now.items() if provider in held}
            found[provider] = _with_usage(one, holders)
        return found

    @contextlib.contextmanager
    def _uncounted(self) -> Iterator[None]:
        placement = self.cloud.placement
        before, placement.before_request = placement.before_request, None
        answered = len(placement.requests)
        try:
            yield
        finally:
            placement.before_request = before
            del placement.requests[answered:]

    def _host(self, name: str) -> Host:
        hypervisor = self.cloud.world.hypervisors[name]
        compute = self.cloud.computes.get(name)
        there = [*hypervisor.guests, *(uuid for uuid in hypervisor.residues if uuid not in hypervisor.guests)]
        hand: dict[str, Any] = {}
        if compute is not None and _alive(compute.threads):
            records = compute._orders._records
            hand = {
                'alive': True,
                'boot_id': compute.boot_id,
                'waiting': tuple(compute._waiting_live_migrations),
                'busy': {
                    pool: executor.running + executor.waiting
                    for pool, executor in (('queue', compute._live_migration_executor), ('steps', compute._pool))
                },
                'limit': compute._queue.limit,
                'closed': compute._queue._closed,
                'seen': {uuid: (record.epoch, record.owner) for uuid, record in records.items()},
            }
        return Host(
            name=name,
            powered=hypervisor.powered,
            guests={uuid: hypervisor.describe(uuid) for uuid in there},
            parts={uuid: parts for uuid in there if (parts := hypervisor.residue(uuid))},
            persistent=frozenset(uuid for uuid, guest in hypervisor.guests.items() if guest.persistent),
            jobs=tuple(hypervisor.jobs),
            **hand,
        )

    def _leftovers(self) -> list[str]:
        simulation = self.cloud.simulation
        if simulation is None:
            return []
        return [
            f'{process.name}/{thread.name}'
            for process in simulation.scheduler.processes
            for thread in process.threads
            if thread.quiet_event is None
        ]

    def _connections(self) -> int:
        """Return how many connections to the database are in use."""
        return self.cloud.backend.connections()


def _alive(threads: object) -> bool:
    """Return whether a process lives; real threads say nothing of it."""
    return bool(getattr(threads, 'alive', True))


def _with_usage(provider: Provider, holders: Mapping[str, Mapping[str, int]]) -> Provider:
    """Return a provider of which these consumers hold something."""
    used = dict.fromkeys(provider.inventory, 0)
    for held in holders.values():
        for name, amount in held.items():
            used[name] = used.get(name, 0) + amount
    return dataclasses.replace(provider, used=used, holders=holders)


def marked(database: Database, instance_uuids: Collection[str]) -> frozenset[str]:
    """Return the uuids of the migrations that are marked as the one in progress of their instance."""
    found = database.migrations.list({'in_progress_instance_uuid': sorted(instance_uuids)})
    return frozenset(one.uuid for one in found)


def with_limit(host: Host, limit: int) -> Host:
    """Return a host with another limit."""
    return dataclasses.replace(host, limit=limit)
