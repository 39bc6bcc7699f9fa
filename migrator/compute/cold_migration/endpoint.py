# SPDX-License-Identifier: Apache-2.0

"""This host's part of a cold migration: the bodies of the steps, and the calls that run them.

Like the bodies of a live migration (:mod:`migrator.compute.steps`), each observes before it acts and may run twice.
Only :func:`revert_migration_at_destination` may end a guest that is active here, and only
:func:`migrate_disk_and_power_off` powers one off.
"""

from __future__ import annotations

from migrator import exception
from migrator.compute import rpcapi, step_runner, steps
from migrator.context import RequestContext
from migrator.objects import STOPPED, Answer, Command, Instance, LiveMigrateData
from migrator.objects.protocol import IN_USE, Guest
from migrator.rpc import expose
from migrator.virt.driver import CancelToken, ComputeDriver


def check_can_migrate_source(
    driver: ComputeDriver, host: str, instance: Instance, migrate_data: LiveMigrateData
) -> LiveMigrateData:
    """Return the data that the destination needs, or refuse to move the guest (source).

    ``source['power_on']`` of the data is whether the guest is started at the destination, or when it is restored here.

    :raises migrator.exception.MigrationPreCheckError: the guest cannot leave; the message says why.
    """
    refuse_if_busy(driver, host, instance)
    _refuse_to_resize(driver, host, migrate_data)
    found = driver.check_can_migrate_source(instance, migrate_data)
    data = returned('check_can_migrate_source', found, migrate_data)
    return data.replace(source={**data.source, 'power_on': instance.vm_state != 'stopped'})


def refuse_if_busy(driver: ComputeDriver, host: str, instance: Instance) -> None:
    """Refuse a guest that cannot be powered off now.

    :raises migrator.exception.MigrationPreCheckError: it is not here, is moved live, or runs although it is stopped in
        the database.
    """
    guest = driver.get_guest(instance.uuid)
    if not guest.present:
        raise exception.MigrationPreCheckError(reason=f'{host} has no guest {instance.uuid}')
    if guest.job:
        raise exception.MigrationPreCheckError(reason=f'guest {instance.uuid} is moved live by a job at {host}')
    _refuse_if_started(host, instance, guest)


def check_can_migrate_destination(
    driver: ComputeDriver, host: str, instance: Instance, migrate_data: LiveMigrateData
) -> LiveMigrateData:
    """Return the data for all later steps, or refuse the guest (destination).

    :raises migrator.exception.MigrationPreCheckError: this host cannot start the guest; the message says why.
    """
    steps.refuse_if_present(driver, host, instance)
    _refuse_to_resize(driver, host, migrate_data)
    found = driver.check_can_migrate_destination(instance, migrate_data)
    return returned('check_can_migrate_destination', found, migrate_data)


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


def migrate_disk_and_power_off(
    driver: ComputeDriver, host: str, instance: Instance, migrate_data: LiveMigrateData, token: CancelToken
) -> None:
    """Power the guest off, and copy the disks that the destination does not see (source).

    :raises migrator.exception.Cancelled: the work was cancelled, and the driver was not called.
    :raises migrator.exception.GuestNotFound: the guest is not here.
    :raises migrator.exception.MigrationPreCheckError: the guest was started since the database has it as stopped.
    """
    token.raise_if_cancelled()
    guest = driver.get_guest(instance.uuid)
    if not guest.present:
        raise exception.GuestNotFound(host=host, instance_uuid=instance.uuid)
    _refuse_if_started(host, instance, guest)
    driver.migrate_disk_and_power_off(instance, migrate_data)


def _refuse_if_started(host: str, instance: Instance, guest: Guest) -> None:
    # It would be powered off, and not started at the destination.
    if instance.vm_state == STOPPED and guest.state in IN_USE:
        remedy = f'openstack server set --state active {instance.uuid}'
        reason = f'guest {instance.uuid} runs at {host}, and is stopped in the database: {remedy}'
        raise exception.MigrationPreCheckError(reason=reason)


def finish_migration(
    driver: ComputeDriver, instance: Instance, migrate_data: LiveMigrateData, token: CancelToken
) -> None:
    """Start the guest, or finish what an interrupted call has begun (destination).

    :raises migrator.exception.Cancelled: the work was cancelled, and the driver was not called.
    """
    token.raise_if_cancelled()
    driver.finish_migration(instance, migrate_data)


def confirm_migration_at_source(
    driver: ComputeDriver, host: str, instance: Instance, migrate_data: LiveMigrateData | None
) -> None:
    """Remove what is left of a guest that stays at its destination.

    :raises migrator.exception.GuestStillHere: the guest is in use here.
    """
    guest = driver.get_guest(instance.uuid)
    if guest.job or guest.state in IN_USE:
        raise exception.GuestStillHere(host=host, instance_uuid=instance.uuid, action='confirm_migration_at_source')
    driver.confirm_migration_at_source(instance, migrate_data or LiveMigrateData())


def revert_migration_at_destination(
    driver: ComputeDriver, host: str, instance: Instance, migrate_data: LiveMigrateData | None, runs_at: str | None
) -> None:
    """End and remove the guest that :func:`finish_migration` has started.

    :param runs_at: the other host that has just reported that it has the guest; None: no host has.
    :raises migrator.exception.GuestStillHere: the guest is in use here, and no other host is known to have it.
    """
    guest = driver.get_guest(instance.uuid)
    if guest.job or (guest.state in IN_USE and runs_at in (None, host)):
        action = 'revert_migration_at_destination'
        raise exception.GuestStillHere(host=host, instance_uuid=instance.uuid, action=action)
    # Also without a guest, because an earlier call may have been interrupted after it had removed the guest.
    driver.revert_migration_at_destination(instance, migrate_data or LiveMigrateData())


def revert_migration_at_source(
    driver: ComputeDriver, host: str, instance: Instance, migrate_data: LiveMigrateData | None
) -> None:
    """Restore the guest to its state before it was powered off.

    :raises migrator.exception.GuestNotFound: the guest is not here.
    """
    if not driver.get_guest(instance.uuid).present:
        raise exception.GuestNotFound(host=host, instance_uuid=instance.uuid)
    driver.revert_migration_at_source(instance, migrate_data or LiveMigrateData())


class Endpoint:
    """The calls of a cold migration to a compute host."""

    host: str
    driver: ComputeDriver
    _runner: step_runner.StepRunner

    @expose
    def check_can_migrate_source(
        self, context: RequestContext, command: Command, instance: Instance, migrate_data: LiveMigrateData, wait: float
    ) -> Answer:
        """Check whether the guest can be powered off and leave.

        The reply comes when the check has ended, or after ``wait`` seconds as running. ``report.result`` is the
        LiveMigrateData for the destination's check.
        """
        return self._runner.accept(
            command, lambda work: check_can_migrate_source(self.driver, self.host, instance, migrate_data), wait=wait
        )

    @expose
    def check_can_migrate_destination(
        self, context: RequestContext, command: Command, instance: Instance, migrate_data: LiveMigrateData, wait: float
    ) -> Answer:
        """Check whether this host can start the guest; the reply is as that of the source's check."""
        return self._runner.accept(
            command,
            lambda work: check_can_migrate_destination(self.driver, self.host, instance, migrate_data),
            wait=wait,
        )

    @expose
    def migrate_disk_and_power_off(
        self, context: RequestContext, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Power the guest off, and copy the disks that the destination does not see."""
        return self._runner.accept(
            command, lambda work: migrate_disk_and_power_off(self.driver, self.host, instance, migrate_data, work)
        )

    @expose
    def finish_migration(
        self, context: RequestContext, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Start the guest on this host."""
        return self._runner.accept(command, lambda work: finish_migration(self.driver, instance, migrate_data, work))

    @expose
    def confirm_migration_at_source(
        self, context: RequestContext, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """Remove what is left of a guest; fail with ``{'here': True}`` if it is in use here."""
        return self._runner.accept(
            command,
            lambda work: confirm_migration_at_source(self.driver, self.host, instance, migrate_data),
            wait=rpcapi.SHORT_WAIT,
        )

    @expose
    def revert_migration_at_destination(
        self,
        context: RequestContext,
        command: Command,
        instance: Instance,
        migrate_data: LiveMigrateData | None,
        runs_at: str | None,
    ) -> Answer:
        """End this host's work for the migration, then end and remove the guest.

        The report is failed with ``{'here': True}`` if the guest is in use here, and no other host has it.

        :param runs_at: the other host that has just reported that it has the guest; None: no host has.
        """
        return self._runner.accept(
            command,
            lambda work: revert_migration_at_destination(self.driver, self.host, instance, migrate_data, runs_at),
            wait=rpcapi.SHORT_WAIT,
            cancels=instance,
        )

    @expose
    def revert_migration_at_source(
        self, context: RequestContext, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """End this host's work for the migration, then restore the guest.

        The report is failed with ``{'gone': True}`` if the guest is not here.
        """
        return self._runner.accept(
            command,
            lambda work: revert_migration_at_source(self.driver, self.host, instance, migrate_data),
            wait=rpcapi.SHORT_WAIT,
            cancels=instance,
        )
