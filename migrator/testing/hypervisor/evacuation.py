# SPDX-License-Identifier: Apache-2.0

"""The part of the driver of a fake hypervisor that starts a guest without its source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from migrator import exception
from migrator.objects import GuestState, Instance, LiveMigrateData
from migrator.testing.hypervisor.base import HostDriver, phase
from migrator.testing.hypervisor.hypervisor import OWNING, PARTS, FakeHypervisor
from migrator.virt.driver import state_after_evacuation

#: Where the disks of a guest are, in its definition.
SHARED, LOCAL = 'shared', 'local'


class Start:
    """The start of a guest without its source.

    It runs in a thread of the world, so that it goes on even if the process of the driver is killed.

    :param dirty_rate: the rate at which the guest dirties its memory, in MiB/s.
    :param who: the name of the driver that requested it.
    :param state: the state in which the guest is left.
    :param effect: how the world logs it.
    :param size: the processors, the memory and the disk of the guest; None: those of the instance.
    :ivar ended: set when the guest was started, or was not (``error``).
    """

    def __init__(
        self,
        hypervisor: FakeHypervisor,
        instance: Instance,
        dirty_rate: float,
        who: str,
        state: GuestState,
        effect: str = 'evacuated',
        size: Sequence[int] | None = None,
    ) -> None:
        self.who = who
        self.ended = hypervisor.world.threads.event()
        self.error: exception.MigratorException | None = None
        self._hypervisor = hypervisor
        self._instance = instance
        self._dirty_rate = dirty_rate
        self._state = state
        self._effect = effect
        self._size = size

    def call_off(self) -> None:
        """Prevent the start; the caller holds the world's lock, and the guest was not started."""
        self._fail('the start was cancelled before it began')

    def _fail(self, reason: str) -> None:
        if not self.ended.is_set():
            del self._hypervisor.world.starts[self._hypervisor.host, self._instance.uuid]
            self.error = exception.DriverError(host=self._hypervisor.host, phase='booting', reason=reason)
            self.ended.set()

    def run(self) -> None:
        """Start the guest, in a thread of the world."""
        hypervisor, world, uuid = self._hypervisor, self._hypervisor.world, self._instance.uuid
        fault = hypervisor.faults.take('booting', uuid, after=False)
        if fault is not None and fault.stall is not None:
            fault.stall.hang()
        with world.lock:
            if fault is not None and fault.stall is None:
                if hypervisor.faults.leave_shut_off and uuid not in hypervisor.guests:
                    hypervisor.add_guest(self._instance, GuestState.SHUTDOWN, self.who)
                self._fail(fault.reason)
            elif not hypervisor.powered:
                self._fail('the host has no power')
            if self.error is not None:
                return
            source = world.hypervisors.get(self._instance.host)
            copy = source.guests.get(uuid) if source is not None else None
            if copy is not None and copy.state in OWNING and self._effect == 'evacuated':
                copy.superseded = True
            world.record(hypervisor.host, self._effect, uuid, self.who)
            guest = hypervisor.add_guest(self._instance, self._state, self.who)
            guest.dirty_rate = self._dirty_rate
            if self._size is not None:
                guest.vcpus, guest.memory_mb, guest.disk_gb = self._size
            hypervisor.residues[uuid] = set(PARTS[:2])
            world.note_if_active_twice(uuid)
            del world.starts[hypervisor.host, uuid]
            self.ended.set()


class EvacuatingDriver(HostDriver):
    """The driver of a fake hypervisor, with its evacuations.

    The world logs each start of a guest without its source as ``evacuated``, and each end of an active copy at the
    source as ``ended``.
    """

    @phase
    def get_definition(self, instance_uuid: str) -> dict[str, Any] | None:
        """Return where the disks are, the load and the size; see :meth:`driver.ComputeDriver.get_definition`."""
        with self._world.lock:
            guest = self.hypervisor.guests.get(instance_uuid)
            if guest is None or guest.state == GuestState.WAITING:
                return None
            return {
                'disks': SHARED if self._world.shared_storage else LOCAL,
                'dirty_rate': guest.dirty_rate,
                'size': list(guest.size),
                **({'immovable': guest.immovable} if guest.immovable else {}),
            }

    @phase
    def check_can_evacuate(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.check_can_evacuate`."""
        with self._world.lock:
            self._refuse_if_present(instance)
            self._refuse_start(instance, migrate_data)
        return migrate_data.replace(
            block_migration=False, is_shared_storage=True, destination={'host': self.hypervisor.host, 'disks': SHARED}
        )

    @phase
    def evacuate(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.evacuate`."""
        hypervisor, world = self.hypervisor, self._world
        with world.lock:
            guest = hypervisor.guests.get(instance.uuid)
            if guest is not None and guest.state != GuestState.WAITING:
                return
            self._refuse_start(instance, migrate_data)
            new, start = None, world.starts.get((hypervisor.host, instance.uuid))
            if start is None:
                rate, state = float(migrate_data.source['dirty_rate']), state_after_evacuation(instance)
                size = migrate_data.source['size']
                new = start = Start(hypervisor, instance, rate, self.boot, state, size=size)
                world.starts[hypervisor.host, instance.uuid] = new
        if new is not None:
            world.threads.start(new.run, name=f'start-{instance.uuid}')
        start.ended.wait()
        if start.error is not None:
            raise start.error

    @phase
    def rollback_evacuation_at_destination(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """Cancel a pending start; see :meth:`driver.ComputeDriver.rollback_evacuation_at_destination`."""
        with self._world.lock:
            start = self._world.starts.get((self.hypervisor.host, instance.uuid))
            if start is not None:
                start.call_off()
            self._refuse_if_owned(instance, 'rollback_evacuation_at_destination')
            self.hypervisor.remove(instance.uuid, self.boot)

    @phase
    def post_evacuation_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.post_evacuation_at_source`."""
        hypervisor, world = self.hypervisor, self._world
        with world.lock:
            job = hypervisor.jobs.get(instance.uuid) or hypervisor.pending.get(instance.uuid)
            if job is not None:
                job.fail('the guest was evacuated')
            guest = hypervisor.guests.get(instance.uuid)
            if guest is not None and guest.state in (*OWNING, GuestState.CUTOVER, GuestState.POSTCOPY_BROKEN):
                world.record(hypervisor.host, 'ended', instance.uuid, self.boot)
            hypervisor.remove(instance.uuid, self.boot)

    def _refuse_start(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Raise if the definition, the disks or the room for a guest are missing.

        :raises migrator.exception.MigrationPreCheckError: the guest cannot be started here.
        """
        host, disks = self.hypervisor.host, migrate_data.source.get('disks')
        if disks is None:
            raise exception.MigrationPreCheckError(
                reason=f'host {instance.host} has not reported the definition of guest {instance.uuid}: repair '
                f'{instance.host}'
            )
        if disks != SHARED:
            raise exception.MigrationPreCheckError(
                reason=f'the disks of guest {instance.uuid} are at its host {instance.host} alone: repair '
                f'{instance.host}'
            )
        if not self.hypervisor.capacity.shared_disks:
            raise exception.MigrationPreCheckError(
                reason=f'host {host} does not see the disks of guest {instance.uuid}: mount the shared storage there'
            )
        self.hypervisor.check_room(instance)
