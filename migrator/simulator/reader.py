# SPDX-License-Identifier: Apache-2.0

"""A reader of the parts of a :class:`~migrator.simulator.world.World`.

It does not affect what tests count, and injected faults do not affect it. It reads the database through a separate
engine, Placement through a separate adapter, and the hypervisors without their drivers. It restores Placement's list
of requests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from migrator.db import saga_log
from migrator.db.api import Database
from migrator.db.slots import Bounds
from migrator.objects import protocol
from migrator.placement_client import allocations, providers
from migrator.placement_client.client import PlacementClient
from migrator.saga import log
from migrator.testing.simulation import primitives

_NO_BOUNDS = Bounds()
#: The parts of a World that only grow.
_GROW = ('effects', 'misdeeds', 'intrusions', 'removals')

if TYPE_CHECKING:  # a reader need not import the cloud
    from migrator.testing.cloud import Cloud


@dataclasses.dataclass(frozen=True, kw_only=True)
class Provider:
    """A resource provider in Placement.

    :ivar holders: consumer uuid -> resource class -> amount.
    """

    uuid: str
    name: str
    root: str
    inventory: Mapping[str, Mapping[str, Any]]
    used: Mapping[str, int] = dataclasses.field(default_factory=dict)
    holders: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)


class _Part:
    """An attribute that is read once. :func:`functools.cached_property` takes a lock each time."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read
        self.__doc__ = read.__doc__
        self._name = read.__name__

    def __get__(self, host: Any, _owner: object = None) -> Any:
        found = vars(host)[self._name] = self._read(host)
        return found


class Host:
    """The state of one host: its hypervisor, read without the driver, and its compute service.

    Each part is read when it is first asked for, which must be before anything changes. :meth:`read` reads all.
    """

    def __init__(self, name: str, hypervisor: Any, compute: Any) -> None:
        self.name = name
        self._hypervisor = hypervisor
        self._compute = compute if compute is not None and _alive(compute.threads) else None

    @classmethod
    def of(cls, name: str, **parts: Any) -> Host:
        """Return a host without a compute service whose other parts are known."""
        host = cls(name, None, None)
        vars(host).update({'traits': ()} | parts)
        return host

    def read(self) -> Host:
        """Read every part now."""
        for name, part in vars(Host).items():
            if isinstance(part, _Part):
                getattr(self, name)
        return self

    @_Part
    def powered(self) -> bool:
        """Return whether the hypervisor has its power."""
        return bool(self._hypervisor.powered)

    @_Part
    def traits(self) -> tuple[str, ...]:
        """Return the traits that the host has, whatever it reports."""
        return tuple(self._hypervisor.capacity.traits)

    @_Part
    def guests(self) -> Mapping[str, protocol.Guest]:
        """Return instance uuid -> the guest as a driver describes it, for each with any part on the host."""
        found = self._hypervisor
        there = [*found.guests, *(uuid for uuid in found.residues if uuid not in found.guests)]
        return {uuid: found.describe(uuid) for uuid in there}

    @_Part
    def states(self) -> Mapping[str, str]:
        """Return instance uuid -> the state of the guest, for every guest that is defined on the host."""
        return {uuid: str(guest.state) for uuid, guest in self._hypervisor.guests.items()}

    @_Part
    def parts(self) -> Mapping[str, Sequence[str]]:
        """Return instance uuid -> the parts of the guest on the host, the guest itself included."""
        found = self._hypervisor
        return {uuid: parts for uuid in {**found.guests, **found.residues} if (parts := found.residue(uuid))}

    @_Part
    def persistent(self) -> frozenset[str]:
        """Return the guests that survive a restart of the hypervisor."""
        return frozenset(uuid for uuid, guest in self._hypervisor.guests.items() if guest.persistent)

    @_Part
    def sizes(self) -> Mapping[str, tuple[int, int, int]]:
        """Return instance uuid -> the processors, memory and disk of the guest."""
        return {uuid: guest.size for uuid, guest in self._hypervisor.guests.items()}

    @_Part
    def resizing(self) -> Mapping[str, tuple[str, tuple[int, int, int] | None]]:
        """Return the guests that were resized here and are not confirmed.

        Each has its migration, and its old size if it has the new one.
        """
        return {
            uuid: (guest.resize.migration_uuid, guest.resize.old)
            for uuid, guest in self._hypervisor.guests.items()
            if guest.resize is not None
        }

    @_Part
    def jobs(self) -> tuple[str, ...]:
        """Return the guests that are migrating away."""
        return tuple(self._hypervisor.jobs)

    @property
    def alive(self) -> bool:
        """Whether a compute service runs. Otherwise the following parts are empty."""
        return self._compute is not None

    @property
    def paused(self) -> bool:
        """Whether the compute service stands still, as after SIGSTOP."""
        return self._compute is not None and bool(getattr(self._compute.threads, 'paused', False))

    @_Part
    def boot_id(self) -> str:
        """Return the boot of the service."""
        return self._compute.boot_id if self._compute else ''

    @_Part
    def waiting(self) -> tuple[str, ...]:
        """Return the keys of ``_waiting_live_migrations``, in their order."""
        return tuple(self._compute._waiting_live_migrations) if self._compute else ()

    @_Part
    def busy(self) -> Mapping[str, int]:
        """Return the name of an executor -> the number of items that it runs or holds."""
        if self._compute is None:
            return {}
        runner = self._compute._runner
        pools = {'queue': self._compute._live_migration_executor, 'steps': runner.pool, 'reports': runner.reports}
        return {name: pool.running + pool.waiting for name, pool in pools.items()}

    @_Part
    def limit(self) -> int:
        """Return the value of max_concurrent_live_migrations."""
        return int(self._compute._runner.queue.limit) if self._compute else 0

    @_Part
    def closed(self) -> bool:
        """Return whether the queue was stopped."""
        return bool(self._compute._runner.queue._closed) if self._compute else False

    @_Part
    def seen(self) -> Mapping[str, tuple[int, str | None]]:
        """Return migration uuid -> the highest epoch that this boot has accepted, and its owner."""
        records = self._compute._runner._records if self._compute else {}
        return {uuid: (record.epoch, record.owner) for uuid, record in records.items()}


class Reader:
    """A reader of a cloud that does not affect any count of a test.

    :param cloud: a simulated cloud or one at rest, since the parts of a snapshot are read one after the other.
    """

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self._engine = cloud.backend.second_engine(cloud.world.threads)
        self._placement = PlacementClient(cloud.placement.adapter())
        # A Placement in this process can be read from its database, in the time of one request.
        self._contents = getattr(cloud.placement, 'contents', None)
        self._bounds: set[Any] = set()
        #: The options of each conductor at the last look.
        self._options: dict[Any, Any] = {}
        self._limits: dict[str, int] = {}

    def close(self) -> None:
        """Close the reader's connections, unless the next cloud has the same reader's engine."""
        self.cloud.backend.leave_second(self._engine)

    @contextlib.contextmanager
    def database(self) -> Iterator[Database]:
        """Return the database at one moment: all methods read in one session."""
        with Database('', self.cloud.world.threads, engine=self._engine).one_session() as database:
            yield database

    def everything(self, logs: Sequence[str] = ()) -> dict[str, Any]:
        """Return all arguments of a :class:`~migrator.simulator.world.World`."""
        connections = self._connections()
        # The database ends a session that is idle for long, so that nothing else is read within it.
        with self.database() as database:
            migrations = {one.uuid: one for one in reversed(database.migrations.list())}
            instances = {one.uuid: one for one in reversed(database.instances.list())}
            logs_of = database.migrations.read_logs([*migrations])
            known = {*instances, *(one.instance_uuid for one in migrations.values())}
            drains = {one.uuid: one for one in reversed(database.drains.list())}
            found = {
                'instances': instances,
                'migrations': migrations,
                'marked': marked(database, known),
                'step_log': {uuid: log.records(entries) for uuid, entries in logs_of.items()},
                'entries': logs_of,
                'histories': {uuid: saga_log.history(entries) for uuid, entries in logs_of.items()},
                'cleanups': database.cleanups.list(),
                'drains': drains,
                'members': {uuid: database.drains.read_members(uuid) for uuid in drains},
                'drained': {uuid: one for uuid, one in migrations.items() if one.drain is not None},
                'drain_logs': {uuid: database.drains.read_log(uuid) for uuid in drains},
                'services': database.services.list(),
                'conductors': database.conductors.list(),
                'nodes': {node.host: node for node in database.services.list_nodes()},
                'actions': [action for uuid in sorted(known) for action in database.actions.list(uuid)],
            }
        outside = self.outside()
        return {
            **found,
            'providers': self.providers(),
            'history': list(self.cloud.history),
            'logs': list(logs),
            'secrets': self.secrets(),
            'leftovers': self._leftovers(),
            'connections': connections,
            **outside,
            'hosts': {name: host.read() for name, host in outside['hosts'].items()},
            **{name: list(outside[name]) for name in _GROW if name in outside},
        }

    def times(self) -> tuple[float, datetime.datetime]:
        """Return the time on the world's monotonic clock, and the time of the database."""
        simulation = self.cloud.simulation
        if simulation is not None:
            # A dying thread may call this, and simulated clocks raise in such a thread.
            since = simulation.time
            return primitives.MONOTONIC_START + since, primitives.START + datetime.timedelta(seconds=since)
        clock = self.cloud.world.threads.clock
        return clock.monotonic(), clock.now()

    def outside(self, messages_from: int = 0) -> dict[str, Any]:
        """Return the arguments of a World that come neither from the database nor from Placement.

        :param messages_from: the number of messages to leave out.
        """
        cloud = self.cloud
        at, now = self.times()
        # A conductor that was paused may use older ones.
        for conductor in cloud.conductors.values():
            if conductor.tools.options is not self._options.get(conductor):
                self._options[conductor] = conductor.tools.options
                self._bounds.add(conductor.tools.options.bounds or _NO_BOUNDS)
        for name, compute in cloud.computes.items():
            self._limits[name] = max(compute._runner.queue.limit, self._limits.get(name, 1))
        return {
            'at': at,
            'now': now,
            'bounds': self._bounds,
            'limits': self._limits,
            'lease': max((one.conf.conductor.lease for one in cloud.conductors.values()), default=0.0),
            'down_time': next(iter(cloud.computes.values())).conf.service_down_time if cloud.computes else 60.0,
            'hosts': self.hosts(),
            **self._grown(),
            'messages': cloud.recorder.messages[messages_from:],
            'busy': {
                f'{pool} of {name}': executor.running + executor.waiting
                for name, conductor in cloud.conductors.items()
                if _alive(conductor._threads)
                for pool, executor in (
                    ('runs', conductor._pools[0]),
                    ('polls', conductor._poll_pool),
                    ('adoptions', conductor._adopt_pool),
                )
            },
        }

    def _grown(self) -> dict[str, Sequence[Any]]:
        """Return the parts of a World that only grow, and go on growing."""
        world = self.cloud.world
        parts = world.log, world.violations, world.acts.intrusions, world.acts.removals
        return dict(zip(_GROW, parts, strict=True))

    def secrets(self) -> list[str]:
        """Return texts that no log and no error may contain: the database URL and all longer tokens."""
        tokens = {exchange.token for exchange in self.cloud.history if len(exchange.token) >= 8}
        return [f'sqlite:///{self.cloud.backend.directory}', *sorted(tokens)]

    def providers(self) -> dict[str, Provider]:
        """Return provider uuid -> resource provider, as read from Placement."""
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
        """Return the resource providers after a change of only these consumers' allocations.

        :param known: the resource providers before the change.
        """
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

    def hosts(self) -> dict[str, Host]:
        """Return the hosts, whose parts are read when they are first asked for."""
        computes = self.cloud.computes
        return {name: Host(name, one, computes.get(name)) for name, one in self.cloud.world.hypervisors.items()}

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
    """Return whether a process is alive; real threads have no such attribute and count as alive."""
    return bool(getattr(threads, 'alive', True))


def _with_usage(provider: Provider, holders: Mapping[str, Mapping[str, int]]) -> Provider:
    """Return a provider with the allocations of these consumers and the usage that follows from them."""
    used = dict.fromkeys(provider.inventory, 0)
    for held in holders.values():
        for name, amount in held.items():
            used[name] = used.get(name, 0) + amount
    return dataclasses.replace(provider, used=used, holders=holders)


def marked(database: Database, instance_uuids: Collection[str]) -> frozenset[str]:
    """Return the uuids of the migrations that are marked as their instance's migration in progress."""
    found = database.migrations.list({'in_progress_instance_uuid': sorted(instance_uuids)})
    return frozenset(one.uuid for one in found)
