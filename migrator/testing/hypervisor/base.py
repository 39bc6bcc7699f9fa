# SPDX-License-Identifier: Apache-2.0

"""The part of the driver of a fake hypervisor that does not change a guest."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from migrator import context, exception, executors
from migrator.objects import ComputeNode, Flavor, GuestState, Instance, ProviderInventory, protocol
from migrator.testing.hypervisor import acts
from migrator.testing.hypervisor.hypervisor import OWNING, FakeHypervisor
from migrator.virt import driver
from migrator.virt.driver import node_uuid

P = ParamSpec('P')
S = TypeVar('S', bound='HostDriver')
T = TypeVar('T')


def phase(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorate a driver method, so that its faults are injected and its acts are recorded."""

    @functools.wraps(method)
    def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        first: Any = next(iter([*args, *kwargs.values()]), None)
        instance_uuid = first.uuid if isinstance(first, Instance) else first
        with self._acting(method.__name__, instance_uuid):
            return self.hypervisor.faults.around(
                method.__name__, instance_uuid, lambda: self._powered(method, *args, **kwargs)
            )

    return wrapper


class HostDriver(driver.ComputeDriver):
    """The driver of a fake hypervisor, as far as it looks at the host and its guests.

    One hypervisor may have several drivers, one after the other: a new one for each boot of the compute service.

    :param hypervisor: the host's hypervisor, which belongs to the world and not to this process.
    :param threads: the threads of the compute process.
    """

    def __init__(self, hypervisor: FakeHypervisor, threads: executors.Threads) -> None:
        self.hypervisor = hypervisor
        self._world = hypervisor.world
        self._threads = threads
        self.resizes = hypervisor.host not in self._world.no_resizes
        self._world.connects[hypervisor.host] += 1
        #: The name of this boot of the driver in the world's log.
        self.boot = f'{hypervisor.host}/{self._world.connects[hypervisor.host]}'

    def _acting(self, name: str, instance_uuid: Any) -> contextlib.AbstractContextManager[None]:
        migration_uuid = context.subject().migration_uuid
        if name not in acts.ACTING or migration_uuid is None:
            return contextlib.nullcontext()
        return self._world.acts.act(self.boot, self.hypervisor.host, name, instance_uuid, migration_uuid)

    def _powered(self, method: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        if not self.hypervisor.powered:
            raise self._error(method.__name__, 'the host has no power')
        return method(self, *args, **kwargs)

    def _error(self, phase: str, reason: str) -> exception.DriverError:
        return exception.DriverError(host=self.hypervisor.host, phase=phase, reason=reason)

    # --- host and guests ---------------------------------------------------------------------------------------------

    @phase
    def init_host(self, host: str) -> None:
        """Connect; see :meth:`driver.ComputeDriver.init_host`."""
        if host != self.hypervisor.host:
            raise self._error('init_host', f'the driver is for host {self.hypervisor.host}, not for {host}')

    @phase
    def get_node(self) -> ComputeNode:
        """Return the facts about the hypervisor; see :meth:`driver.ComputeDriver.get_node`."""
        hypervisor = self.hypervisor
        uuid = node_uuid(hypervisor.host)
        root = ProviderInventory(
            uuid=uuid,
            name=hypervisor.host,
            inventory=hypervisor.capacity.inventory(),
            traits=[*hypervisor.capacity.traits],
        )
        return ComputeNode(
            uuid=uuid, host=hypervisor.host, node=hypervisor.host, providers=[root, *hypervisor.capacity.children]
        )

    def get_identity(self) -> str | None:
        """Return the identity of the simulated machine; see :meth:`driver.ComputeDriver.get_identity`."""
        return self.hypervisor.identity

    def get_kernel(self) -> str | None:
        """Return the identity of the present start of the host; see :meth:`driver.ComputeDriver.get_kernel`."""
        return self.hypervisor.kernel

    @phase
    def list_guests(self) -> list[protocol.Guest]:
        """Return every guest; see :meth:`driver.ComputeDriver.list_guests`."""
        with self._world.lock:
            return [self.hypervisor.describe(uuid) for uuid in self.hypervisor.guests]

    @phase
    def get_guest(self, instance_uuid: str) -> protocol.Guest:
        """Return one guest; see :meth:`driver.ComputeDriver.get_guest`."""
        with self._world.lock:
            return self.hypervisor.describe(instance_uuid)

    @phase
    def get_instance(self, instance_uuid: str) -> Instance | None:
        """Return a guest as an instance; see :meth:`driver.ComputeDriver.get_instance`."""
        host = self.hypervisor.host
        with self._world.lock:
            guest = self.hypervisor.guests.get(instance_uuid)
            if guest is None or guest.state == GuestState.WAITING:
                return None
            flavor = Flavor(name='adopted', vcpus=guest.vcpus, memory_mb=guest.memory_mb, root_gb=guest.disk_gb)
        return Instance(
            uuid=instance_uuid,
            name=instance_uuid,
            project_id='migrator',
            user_id='migrator',
            host=host,
            node=host,
            flavor=flavor,
        )

    @phase
    def settle(self, instance_uuid: str) -> protocol.Guest:
        """Cancel a pending job or start of an earlier boot; see :meth:`driver.ComputeDriver.settle`."""
        with self._world.lock:
            job = self.hypervisor.pending.get(instance_uuid)
            if job is not None and job.who != self.boot:
                del self.hypervisor.pending[instance_uuid]
                job.call_off()
            start = self._world.starts.get((self.hypervisor.host, instance_uuid))
            if start is not None and start.who != self.boot:
                start.call_off()
            return self.hypervisor.describe(instance_uuid)

    @phase
    def get_diagnostics(self, instance: Instance) -> dict[str, Any] | None:
        """Return what a guest has used, whose processors are always busy; see the base class."""
        busy = int(self._threads.clock.monotonic() * 1e9)
        with self._world.lock:
            guest = self.hypervisor.guests.get(instance.uuid)
            if guest is None:
                return None
            return {
                'driver': 'libvirt',  # nova has no name for a fake driver, and gives its own one this name
                'hypervisor': 'fake',
                'hypervisor_os': 'linux',
                'memory_details': {'maximum': guest.memory_mb, 'used': guest.memory_mb},
                'cpu_details': [{'id': number, 'time': busy} for number in range(guest.vcpus)],
                'disk_details': [
                    {'device': 'vda', 'read_bytes': 0, 'read_requests': 0, 'write_bytes': 0, 'write_requests': 0}
                ],
            }

    @phase
    def get_host_uptime(self) -> str | None:
        """Return the uptime of the host; see :meth:`driver.ComputeDriver.get_host_uptime`."""
        minutes = int(self._threads.clock.monotonic() // 60)
        return f' 00:00:00 up {minutes} min,  0 users,  load average: 0.00, 0.00, 0.00\n'

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _refuse_if_present(self, instance: Instance) -> None:
        guest = self.hypervisor.guests.get(instance.uuid)
        if guest is not None and guest.state != GuestState.WAITING:
            raise exception.MigrationPreCheckError(
                reason=f'host {self.hypervisor.host} already has guest {instance.uuid}, which is {guest.state}'
            )

    def _refuse_if_owned(self, instance: Instance, action: str) -> None:
        hypervisor = self.hypervisor
        guest = hypervisor.guests.get(instance.uuid)
        owned = guest is not None and guest.state in (*OWNING, GuestState.POSTCOPY_BROKEN)
        if owned or instance.uuid in hypervisor.jobs:
            raise exception.GuestStillHere(host=hypervisor.host, instance_uuid=instance.uuid, action=action)
