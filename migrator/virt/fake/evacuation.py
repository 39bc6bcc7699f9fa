# SPDX-License-Identifier: Apache-2.0

"""The part of the driver of a fake hypervisor that starts a guest without its source."""

from __future__ import annotations

from typing import Any

from migrator import exception
from migrator.objects import GuestState, Instance, LiveMigrateData
from migrator.virt.driver import state_after_evacuation
from migrator.virt.fake.base import HostDriver, phase
from migrator.virt.fake.hypervisor import OWNING, PARTS

#: Where the disks of a guest are, in its definition.
SHARED, LOCAL = 'shared', 'local'


class EvacuatingDriver(HostDriver):
    """The driver of a fake hypervisor, with its evacuations.

    The world logs each start of a guest without its source as ``evacuated``, and each end of an active copy at the
    source as ``ended``.
    """

    @phase
    def get_definition(self, instance_uuid: str) -> dict[str, Any] | None:
        """Return where the disks are, and the load; see :meth:`driver.ComputeDriver.get_definition`."""
        with self._world.lock:
            guest = self.hypervisor.guests.get(instance_uuid)
            if guest is None or guest.state == GuestState.WAITING:
                return None
            return {'disks': SHARED if self._world.shared_storage else LOCAL, 'dirty_rate': guest.dirty_rate}

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
            source = world.hypervisors.get(instance.host)
            copy = source.guests.get(instance.uuid) if source is not None else None
            if copy is not None and copy.state in OWNING:
                copy.superseded = True
            world.record(hypervisor.host, 'evacuated', instance.uuid, self.life)
            guest = hypervisor.add_guest(instance, state_after_evacuation(instance), self.life)
            guest.dirty_rate = float(migrate_data.source['dirty_rate'])
            hypervisor.residues[instance.uuid] = set(PARTS[:2])
            world.note_if_active_twice(instance.uuid)

    @phase
    def rollback_evacuation_at_destination(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """See :meth:`driver.ComputeDriver.rollback_evacuation_at_destination`."""
        with self._world.lock:
            self._refuse_if_owned(instance, 'rollback_evacuation_at_destination')
            self.hypervisor.remove(instance.uuid, self.life)

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
                world.record(hypervisor.host, 'ended', instance.uuid, self.life)
            hypervisor.remove(instance.uuid, self.life)

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
