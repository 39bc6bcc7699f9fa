# SPDX-License-Identifier: Apache-2.0

"""This host's part of a cold migration.

Like the steps of a live migration (:mod:`migrator.compute.steps`), each observes before it acts and may run twice.
Only :meth:`ColdMigrationSteps.revert_migration_at_destination` may end a guest that is active here, and only
:meth:`ColdMigrationSteps.migrate_disk_and_power_off` powers one off.
"""

from __future__ import annotations

from migrator import exception
from migrator.compute import rpcapi, steps
from migrator.compute.work import Steps, Work, step
from migrator.objects import STOPPED, Instance, LiveMigrateData, remedies
from migrator.objects.protocol import IN_USE, Guest, GuestState
from migrator.objects.remedies import Reading
from migrator.virt.driver import ComputeDriver


class ColdMigrationSteps(Steps):
    """The steps of a cold migration at this host."""

    @step()
    def check_can_migrate_source(
        self, work: Work, instance: Instance, migrate_data: LiveMigrateData
    ) -> LiveMigrateData:
        """Return the data that the destination needs, or refuse to move the guest (source).

        ``source['power_on']`` of the data is whether the guest is started at the destination, or when it is restored
        here; see :func:`starts_again`.

        :raises migrator.exception.MigrationPreCheckError: the guest cannot leave; the message says why.
        """
        guest = refuse_if_busy(self.driver, self.host, instance)
        _refuse_to_resize(self.driver, self.host, migrate_data)
        found = self.driver.check_can_migrate_source(instance, migrate_data)
        data = returned(work.step, found, migrate_data)
        return data.replace(source={**data.source, 'power_on': starts_again(instance, guest)})

    @step()
    def check_can_migrate_destination(
        self, work: Work, instance: Instance, migrate_data: LiveMigrateData
    ) -> LiveMigrateData:
        """Return the data for all later steps, or refuse the guest (destination).

        :raises migrator.exception.MigrationPreCheckError: this host cannot start the guest; the message says why.
        """
        steps.refuse_if_present(self.driver, self.host, instance)
        _refuse_to_resize(self.driver, self.host, migrate_data)
        found = self.driver.check_can_migrate_destination(instance, migrate_data)
        return returned(work.step, found, migrate_data)

    @step()
    def migrate_disk_and_power_off(self, work: Work, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Power the guest off, and copy the disks that the destination does not see (source).

        :raises migrator.exception.Cancelled: the work was cancelled, and the driver was not called.
        :raises migrator.exception.GuestNotFound: the guest is not here.
        :raises migrator.exception.MigrationPreCheckError: the guest was started since the database has it as stopped.
        """
        work.raise_if_cancelled()
        guest = present(self.driver, self.host, instance)
        _refuse_if_started(self.host, instance, guest)
        self.driver.migrate_disk_and_power_off(instance, migrate_data)

    @step()
    def finish_migration(self, work: Work, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Start the guest, or finish what an interrupted call has begun (destination).

        :raises migrator.exception.Cancelled: the work was cancelled, and the driver was not called.
        """
        work.raise_if_cancelled()
        self.driver.finish_migration(instance, migrate_data)

    @step(rpcapi.SHORT_WAIT)
    def confirm_migration_at_source(self, work: Work, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """Remove what is left of a guest that stays at its destination.

        :raises migrator.exception.GuestStillHere: the guest is in use here.
        """
        guest = self.driver.get_guest(instance.uuid)
        if guest.job or guest.state in IN_USE:
            raise exception.GuestStillHere(host=self.host, instance_uuid=instance.uuid, action=work.step)
        self.driver.confirm_migration_at_source(instance, migrate_data or LiveMigrateData())

    @step(rpcapi.SHORT_WAIT, cancels=True)
    def revert_migration_at_destination(
        self, work: Work, instance: Instance, migrate_data: LiveMigrateData | None, runs_at: str | None
    ) -> None:
        """End and remove the guest that :meth:`finish_migration` has started.

        :param runs_at: the other host that has just reported that it has the guest; None: no host has.
        :raises migrator.exception.GuestStillHere: the guest is in use here, and no other host is known to have it.
        """
        guest = self.driver.get_guest(instance.uuid)
        if guest.job or (guest.state in IN_USE and runs_at in (None, self.host)):
            raise exception.GuestStillHere(host=self.host, instance_uuid=instance.uuid, action=work.step)
        # Also without a guest, because an earlier call may have been interrupted after it had removed the guest.
        self.driver.revert_migration_at_destination(instance, migrate_data or LiveMigrateData())

    @step(rpcapi.SHORT_WAIT, cancels=True)
    def revert_migration_at_source(self, work: Work, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """Restore the guest to its state before it was powered off.

        :raises migrator.exception.GuestNotFound: the guest is not here.
        """
        present(self.driver, self.host, instance)
        self.driver.revert_migration_at_source(instance, migrate_data or LiveMigrateData())


def present(driver: ComputeDriver, host: str, instance: Instance) -> Guest:
    """Return the guest of an instance.

    :raises migrator.exception.GuestNotFound: the guest is not here.
    """
    guest = driver.get_guest(instance.uuid)
    if not guest.present:
        raise exception.GuestNotFound(host=host, instance_uuid=instance.uuid)
    return guest


def refuse_if_busy(driver: ComputeDriver, host: str, instance: Instance) -> Guest:
    """Return a guest, or refuse one that cannot be powered off now.

    :raises migrator.exception.MigrationPreCheckError: it is not here, is moved live, or runs although it is stopped in
        the database.
    """
    guest = driver.get_guest(instance.uuid)
    if not guest.present:
        raise exception.MigrationPreCheckError(reason=f'{host} has no guest {instance.uuid}')
    if guest.job:
        raise exception.MigrationPreCheckError(reason=f'guest {instance.uuid} is moved live by a job at {host}')
    _refuse_if_started(host, instance, guest)
    return guest


def starts_again(instance: Instance, guest: Guest) -> bool:
    """Return whether a guest that is moved, or resized, is started afterwards.

    One that its host has found shut off stays so, whatever the database has. Its user may have shut it down, and
    then that is the state to keep; or it may run elsewhere, and then a start would make a second copy.
    """
    return instance.vm_state != STOPPED and guest.state != GuestState.SHUTDOWN


def _refuse_to_resize(driver: ComputeDriver, host: str, migrate_data: LiveMigrateData) -> None:
    """Refuse another flavor if the driver would ignore it."""
    if migrate_data.new_flavor is not None and not driver.resizes:
        raise exception.MigrationPreCheckError(
            reason=f'{host} cannot resize guests, since its driver {type(driver).__name__} does not'
        )


def returned(method: str, found: object, given: LiveMigrateData) -> LiveMigrateData:
    """Return the result of a driver's check if it is the data for the next step, with the same flavor.

    :raises migrator.exception.DriverError: it is not.
    """
    data = steps.returned(method, found)
    if data.new_flavor != given.new_flavor:
        raise exception.DriverError(
            f'{method} returned {data.new_flavor} as new_flavor: correct the driver to leave {given.new_flavor}'
        )
    return data


def _refuse_if_started(host: str, instance: Instance, guest: Guest) -> None:
    # It would be powered off, and not started at the destination.
    if instance.vm_state == STOPPED and guest.state in IN_USE:
        remedy = remedies.offer(remedies.Kind.SET_ACTIVE, {Reading.HOST_DOWN: False}, guest=instance.uuid)
        reason = f'guest {instance.uuid} runs at {host}, and is stopped in the database: {remedy}'
        raise exception.MigrationPreCheckError(reason=reason)
