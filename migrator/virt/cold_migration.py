# SPDX-License-Identifier: Apache-2.0

"""The part of a hypervisor driver that moves a guest while it is powered off: optional.

A driver that has it overrides every method. The data that the two checks return is passed to each later call, on either
host. ``source['power_on']`` of it is whether the guest runs when it is not being moved. ``new_flavor`` of it, unless it
is None, is what the guest gets at the destination. The guest at the source keeps what it has, for a revert.
"""

from __future__ import annotations

from typing import NoReturn

from migrator import exception
from migrator.objects import Flavor, Instance, LiveMigrateData, MigrationType


class ColdMigration:
    """Cold migration, as a driver without it answers: the checks refuse each guest.

    Every method ends in bounded time, except that :meth:`migrate_disk_and_power_off` may copy disks. Every method that
    changes something is idempotent.
    """

    #: Whether the driver gives guests another flavor. If not, the compute service refuses a resize before its checks.
    resizes = False
    #: Whether the driver also does it for a guest that stays at its host, with the methods from
    #: :meth:`check_can_resize` on.
    resizes_here = False

    @property
    def cold_migrations(self) -> list[str]:
        """The types of cold migrations that the driver supports, as its host reports them."""
        moves = type(self).migrate_disk_and_power_off is not ColdMigration.migrate_disk_and_power_off
        types = (MigrationType.MIGRATION, MigrationType.RESIZE) if self.resizes else (MigrationType.MIGRATION,)
        return [one.value for one in types] if moves else []

    def check_can_migrate_source(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """Check whether the guest can be powered off and leave this host.

        The check leaves nothing behind.

        :param migrate_data: empty, except for the new flavor.
        :returns: the data with ``source`` filled in: what the destination needs to start the guest.
        :raises migrator.exception.MigrationPreCheckError: the guest cannot leave, or cannot get the new flavor. The
            message says why.
        """
        _refuse(self)

    def check_can_migrate_destination(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """Check whether this host can start the guest.

        The check leaves nothing behind.

        :returns: the data with ``destination`` filled in.
        :raises migrator.exception.MigrationPreCheckError: this host cannot start the guest. The message says why.
        """
        _refuse(self)

    def migrate_disk_and_power_off(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Power the guest off, and copy the disks that the destination does not see (source).

        From then on nothing starts the guest here by itself, not even a restart of the host. Its definition and its
        disks stay. A guest that is shut off already stays so; but if ``power_on`` is true, and no earlier call has
        powered it off, it has been shut off since the check, or moved by hand, and is refused.

        :raises migrator.exception.DriverError: the guest may or may not be off.
        """
        _refuse(self)

    def finish_migration(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Start the guest here, or leave it shut off if ``power_on`` is false (destination).

        A second call finds the guest there.

        :raises migrator.exception.DriverError: the guest was not started. A guest is never started on an empty disk.
        """
        _refuse(self)

    def confirm_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Remove what is left of a guest that stays at its destination.

        The compute service has checked that the guest is not active here. A disk that the destination sees is kept.

        :param migrate_data: empty if the migration was abandoned before its checks were answered.
        :raises migrator.exception.GuestStillHere: the guest is here and could run. Nothing was done.
        """
        _refuse(self)

    def revert_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """End the guest that :meth:`finish_migration` has started, and remove what is left of it.

        The compute service has checked that an active guest may be ended. A disk that the source sees is kept. If there
        is nothing to remove, this is no error.

        :param migrate_data: empty if the migration was abandoned before its checks were answered.
        """
        _refuse(self)

    def revert_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Restore the guest to its state before :meth:`migrate_disk_and_power_off`.

        It is started if ``power_on`` is true. A guest that this method has restored already, or that was never powered
        off, is left alone.

        :raises migrator.exception.GuestNotFound: the guest is not here.
        """
        _refuse(self)

    # --- a resize whose guest stays at its host ----------------------------------------------------------------------

    def check_can_resize(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """Check whether the guest can get the new flavor here.

        The check leaves nothing behind.

        :param migrate_data: empty, except for the new flavor.
        :returns: the data with ``source`` filled in: what :meth:`resize` needs.
        :raises migrator.exception.MigrationPreCheckError: the guest cannot be resized. The message says why.
        """
        _refuse(self)

    def resize(self, instance: Instance, migrate_data: LiveMigrateData, migration_uuid: str) -> None:
        """Power the guest off, define it with the new flavor, and start it, unless ``power_on`` is false.

        The new definition replaces the old one at once, and keeps it for :meth:`revert_resize`, with the uuid of the
        migration. A second call does what is left to do. From then on
        :meth:`~migrator.virt.driver.ComputeDriver.get_definition` returns the new one alone.

        :raises migrator.exception.DriverError: the guest may be off, and may have either definition.
        """
        _refuse(self)

    def confirm_resize(self, instance: Instance, migration_uuid: str) -> None:
        """Drop the old definition that the guest has kept since this migration, if it has one."""
        _refuse(self)

    def revert_resize(self, instance: Instance, migration_uuid: str) -> None:
        """Give the guest the old definition that it has kept since this migration.

        The guest is started as by :meth:`resize`, also if :meth:`resize` has only powered it off. A guest that it has
        not touched for this migration, or that was reverted already, is left alone.

        :raises migrator.exception.GuestNotFound: the guest is not here.
        """
        _refuse(self)


def refuse_smaller_disk(instance: Instance, flavor: Flavor) -> None:
    """Refuse to resize a guest to a flavor with a smaller root disk, as nova's drivers do.

    :raises migrator.exception.MigrationPreCheckError: the root disk of the flavor is smaller.
    """
    if flavor.root_gb < instance.flavor.root_gb:
        raise exception.MigrationPreCheckError(
            reason=f'Resize error: Unable to resize disk down: flavor {flavor.name} has a root disk of '
            f'{flavor.root_gb} GiB, and guest {instance.uuid} one of {instance.flavor.root_gb} GiB'
        )


def _refuse(driver: ColdMigration) -> NoReturn:
    raise exception.MigrationPreCheckError(
        reason=f'the driver {type(driver).__name__} cannot move a guest that is powered off'
    )
