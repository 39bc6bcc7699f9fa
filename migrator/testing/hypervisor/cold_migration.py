# SPDX-License-Identifier: Apache-2.0

"""The part of the driver of a fake hypervisor that moves a guest while it is powered off."""

from __future__ import annotations

from migrator import exception
from migrator.objects import GuestState, Instance, LiveMigrateData
from migrator.testing.hypervisor.base import HostDriver, phase
from migrator.testing.hypervisor.evacuation import LOCAL, SHARED, Start
from migrator.testing.hypervisor.hypervisor import OWNING, FakeGuest
from migrator.virt.cold_migration import refuse_smaller_disk

_MOVABLE = (*OWNING, GuestState.SHUTDOWN)


class ColdMigratingDriver(HostDriver):
    """The driver of a fake hypervisor, with its cold migrations.

    The world logs each start at a destination as ``migrated``, and each start of a restored guest as ``restored``.
    Disks that the hosts do not share are copied at once.
    """

    @phase
    def check_can_migrate_source(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.check_can_migrate_source`."""
        shared = self._world.shared_storage
        refuse_smaller_disk(instance, migrate_data.new_flavor or instance.flavor)
        with self._world.lock:
            guest = self.movable(instance)
            found = {
                'host': self.hypervisor.host,
                'disks': SHARED if shared else LOCAL,
                'dirty_rate': guest.dirty_rate,
            }
        return migrate_data.replace(block_migration=not shared, is_shared_storage=shared, source=found)

    @phase
    def check_can_migrate_destination(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.check_can_migrate_destination`."""
        with self._world.lock:
            self._refuse_if_present(instance)
            self.hypervisor.check_room(resized(instance, migrate_data))
        return migrate_data.replace(destination={'host': self.hypervisor.host})

    @phase
    def migrate_disk_and_power_off(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.migrate_disk_and_power_off`."""
        with self._world.lock:
            guest, power_on = self.movable(instance), bool(migrate_data.source['power_on'])
            if guest.state == GuestState.SHUTDOWN and power_on and not guest.powered_off_to_move:
                raise exception.DriverError(
                    f'migrate_disk_and_power_off: guest {instance.uuid} has been shut off since the check'
                )
            guest.powered_off_to_move = power_on
            if guest.state in OWNING:
                self.hypervisor.set_state(guest, GuestState.SHUTDOWN, self.boot)

    @phase
    def finish_migration(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.finish_migration`."""
        hypervisor, world = self.hypervisor, self._world
        state = GuestState.RUNNING if migrate_data.source['power_on'] else GuestState.SHUTDOWN
        with world.lock:
            guest = hypervisor.guests.get(instance.uuid)
            if guest is not None and guest.state != GuestState.WAITING:
                return
            new, start = None, world.starts.get((hypervisor.host, instance.uuid))
            if start is None:
                rate = float(migrate_data.source['dirty_rate'])
                new_size = resized(instance, migrate_data)
                new = start = Start(hypervisor, new_size, rate, self.boot, state=state, effect='migrated')
                world.starts[hypervisor.host, instance.uuid] = new
        if new is not None:
            world.threads.start(new.run, name=f'start-{instance.uuid}')
        start.ended.wait()
        if start.error is not None:
            raise start.error

    @phase
    def confirm_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.confirm_migration_at_source`."""
        with self._world.lock:
            self._refuse_if_owned(instance, 'confirm_migration_at_source')
            self.hypervisor.remove(instance.uuid, self.boot)

    @phase
    def revert_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Cancel a pending start too; see :class:`migrator.virt.cold_migration.ColdMigration`."""
        hypervisor, world = self.hypervisor, self._world
        with world.lock:
            start = world.starts.get((hypervisor.host, instance.uuid))
            if start is not None:
                start.call_off()
            guest = hypervisor.guests.get(instance.uuid)
            if guest is not None and guest.state in OWNING:
                world.record(hypervisor.host, 'ended', instance.uuid, self.boot)
            hypervisor.remove(instance.uuid, self.boot)

    @phase
    def revert_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.revert_migration_at_source`."""
        hypervisor = self.hypervisor
        with self._world.lock:
            guest = hypervisor.guests.get(instance.uuid)
            if guest is None:
                raise exception.GuestNotFound(host=hypervisor.host, instance_uuid=instance.uuid)
            if guest.powered_off_to_move:
                guest.powered_off_to_move = False
                there = self._world.hypervisors.get(migrate_data.destination.get('host', ''))
                copy = there.guests.get(instance.uuid) if there is not None else None
                if copy is not None:
                    # Its host has been declared dead, or the invariants of the simulator notice both.
                    copy.superseded = True
                self._world.record(hypervisor.host, 'restored', instance.uuid, self.boot)
                hypervisor.set_state(guest, GuestState.RUNNING, self.boot)

    def movable(self, instance: Instance) -> FakeGuest:
        """Return the guest, which the caller has locked.

        :raises migrator.exception.MigrationPreCheckError: it is not here, or is in the middle of something.
        """
        guest = self.hypervisor.guests.get(instance.uuid)
        if guest is None or guest.state not in _MOVABLE or instance.uuid in self.hypervisor.jobs:
            held = guest.state if guest is not None else GuestState.ABSENT
            raise exception.MigrationPreCheckError(
                reason=f'guest {instance.uuid} is {held} at {self.hypervisor.host}: it must be running or shut off'
            )
        return guest


def resized(instance: Instance, migrate_data: LiveMigrateData) -> Instance:
    """Return the instance with the flavor that it gets here."""
    return instance.replace(flavor=migrate_data.new_flavor or instance.flavor)
