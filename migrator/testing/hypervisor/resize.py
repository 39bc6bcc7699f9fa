# SPDX-License-Identifier: Apache-2.0

"""The part of the driver of a fake hypervisor that resizes a guest at its host."""

from __future__ import annotations

from migrator import exception
from migrator.objects import GuestState, Instance, LiveMigrateData
from migrator.testing.hypervisor.base import phase
from migrator.testing.hypervisor.cold_migration import ColdMigratingDriver, resized
from migrator.testing.hypervisor.hypervisor import OWNING, FakeGuest, FakeResize, size_of
from migrator.virt.cold_migration import refuse_smaller_disk

#: Seconds between two parts of a resize. A process that is killed meanwhile leaves the later ones undone.
_PAUSE = 0.05


class ResizingDriver(ColdMigratingDriver):
    """The driver of a fake hypervisor, with its resizes.

    The world logs the start of a guest with its new size as ``resized``, and that with its old size as ``restored``.
    """

    resizes_here = True

    @phase
    def check_can_resize(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.check_can_resize`."""
        refuse_smaller_disk(instance, migrate_data.new_flavor or instance.flavor)
        with self._world.lock:
            self.movable(instance)
            self.hypervisor.check_room(resized(instance, migrate_data))
        return migrate_data.replace(source={'host': self.hypervisor.host})

    @phase
    def resize(self, instance: Instance, migrate_data: LiveMigrateData, migration_uuid: str) -> None:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.resize`."""
        with self._world.lock:
            guest = self.movable(instance)
            if guest.resize is None or guest.resize.migration_uuid != migration_uuid:
                power_on = bool(migrate_data.source['power_on'])
                if power_on and guest.state == GuestState.SHUTDOWN:
                    raise exception.DriverError(f'resize: guest {instance.uuid} has been shut off since the check')
                guest.resize = FakeResize(migration_uuid, power_on)
                self._power_off(guest)
        self._threads.sleep(_PAUSE)
        with self._world.lock:
            guest, ours = self._of(instance, migration_uuid)
            if ours is not None and ours.old is None:
                ours.old, guest.size = guest.size, size_of(resized(instance, migrate_data).flavor)
        self._threads.sleep(_PAUSE)
        with self._world.lock:
            guest, ours = self._of(instance, migration_uuid)
            if ours is not None:
                self._power_on(guest, ours, 'resized')

    @phase
    def confirm_resize(self, instance: Instance, migration_uuid: str) -> None:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.confirm_resize`."""
        with self._world.lock:
            guest, ours = self._of(instance, migration_uuid)
            if ours is not None:
                guest.resize = None

    @phase
    def revert_resize(self, instance: Instance, migration_uuid: str) -> None:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.revert_resize`."""
        with self._world.lock:
            guest, ours = self._of(instance, migration_uuid)
            if ours is None:
                return
            if ours.old is not None:
                ours.off = True
                self._power_off(guest)
        self._threads.sleep(_PAUSE)
        with self._world.lock:
            guest, ours = self._of(instance, migration_uuid)
            if ours is not None and ours.old is not None:
                guest.size, ours.old = ours.old, None
        self._threads.sleep(_PAUSE)
        with self._world.lock:
            guest, ours = self._of(instance, migration_uuid)
            if ours is not None:
                self._power_on(guest, ours, 'restored')
                guest.resize = None

    def _of(self, instance: Instance, migration_uuid: str) -> tuple[FakeGuest, FakeResize | None]:
        """Return the guest, and its resize if it is of this migration. The caller holds the lock.

        :raises migrator.exception.GuestNotFound: it is not here any more.
        :raises migrator.exception.DriverError: the host has lost its power meanwhile.
        """
        if not self.hypervisor.powered:
            raise self._error('resize', 'the host has no power')
        guest = self.hypervisor.guests.get(instance.uuid)
        if guest is None:
            raise exception.GuestNotFound(host=self.hypervisor.host, instance_uuid=instance.uuid)
        ours = guest.resize
        return guest, ours if ours is not None and ours.migration_uuid == migration_uuid else None

    def _power_off(self, guest: FakeGuest) -> None:
        if guest.state in OWNING:
            self.hypervisor.set_state(guest, GuestState.SHUTDOWN, self.boot)

    def _power_on(self, guest: FakeGuest, ours: FakeResize, effect: str) -> None:
        self._world.record(self.hypervisor.host, effect, guest.instance_uuid, self.boot)
        if ours.power_on and guest.state == GuestState.SHUTDOWN:
            self.hypervisor.set_state(guest, GuestState.RUNNING, self.boot)
        ours.off = False
