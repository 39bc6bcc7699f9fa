# SPDX-License-Identifier: Apache-2.0

"""This host's part of a resize whose guest stays here: the bodies of the steps, and their calls.

The guest has one definition at a time. From :func:`resize` on it keeps the old one, with the uuid of the migration. So
each body finds out how far an earlier call has come, and may run again. A guest that another migration has resized is
left alone.
"""

from __future__ import annotations

from migrator import exception
from migrator.compute import rpcapi, step_runner
from migrator.compute.cold_migration import endpoint
from migrator.context import RequestContext
from migrator.objects import Answer, Command, Instance, LiveMigrateData
from migrator.rpc import expose
from migrator.virt.driver import CancelToken, ComputeDriver


def check_can_resize(
    driver: ComputeDriver, host: str, instance: Instance, migration: str, migrate_data: LiveMigrateData
) -> LiveMigrateData:
    """Return the data for all later steps, or refuse to resize the guest here.

    ``source['power_on']`` of the data is whether the guest is started with its new size, and when it is reverted.
    ``source['migration']`` is the migration. A later one may send the steps of a deferred cleanup in its own name.

    :raises migrator.exception.MigrationPreCheckError: the guest cannot be resized here; the message says why.
    """
    endpoint.refuse_if_busy(driver, host, instance)
    if not driver.resizes_here:
        name = type(driver).__name__
        reason = f'{host} cannot resize a guest that stays there, since its driver {name} does not'
        raise exception.MigrationPreCheckError(reason=reason)
    found = driver.check_can_resize(instance, migrate_data)
    data = endpoint.returned('check_can_resize', found, migrate_data)
    return data.replace(
        source={**data.source, 'power_on': instance.vm_state != 'stopped', 'migration': migration},
    )


def resize(
    driver: ComputeDriver, host: str, instance: Instance, migration: str, data: LiveMigrateData, token: CancelToken
) -> None:
    """Resize the guest, or finish what an interrupted call has begun.

    :raises migrator.exception.Cancelled: the work was cancelled, and the driver was not called.
    :raises migrator.exception.GuestNotFound: the guest is not here.
    """
    token.raise_if_cancelled()
    _refuse_absent(driver, host, instance)
    driver.resize(instance, data, migration)


def confirm_resize(driver: ComputeDriver, instance: Instance, migration: str) -> None:
    """Drop the old definition, if the guest is here."""
    if driver.get_guest(instance.uuid).present:
        driver.confirm_resize(instance, migration)


def revert_resize(driver: ComputeDriver, host: str, instance: Instance, migration: str) -> None:
    """Undo what :func:`resize` has done to the guest.

    The guest gets its old definition, and is started if :func:`resize` was going to start it.

    :raises migrator.exception.GuestNotFound: the guest is not here.
    """
    _refuse_absent(driver, host, instance)
    driver.revert_resize(instance, migration)


def _refuse_absent(driver: ComputeDriver, host: str, instance: Instance) -> None:
    if not driver.get_guest(instance.uuid).present:
        raise exception.GuestNotFound(host=host, instance_uuid=instance.uuid)


def _resized_by(command: Command, migrate_data: LiveMigrateData | None) -> str:
    """Return the migration whose resize a command confirms or reverts."""
    return str(migrate_data.source['migration']) if migrate_data is not None else command.migration_uuid


class Endpoint:
    """The calls of a resize whose guest stays at a compute host."""

    host: str
    driver: ComputeDriver
    _runner: step_runner.StepRunner

    @expose
    def check_can_resize(
        self, context: RequestContext, command: Command, instance: Instance, migrate_data: LiveMigrateData, wait: float
    ) -> Answer:
        """Check whether the guest can be resized here.

        The reply comes when the check has ended, or after ``wait`` seconds as running. ``report.result`` is the
        LiveMigrateData for :meth:`resize`.
        """
        migration = command.migration_uuid
        return self._runner.accept(
            command, lambda work: check_can_resize(self.driver, self.host, instance, migration, migrate_data), wait=wait
        )

    @expose
    def resize(
        self, context: RequestContext, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Power the guest off, give it its new size, and start it."""
        migration = command.migration_uuid
        return self._runner.accept(
            command, lambda work: resize(self.driver, self.host, instance, migration, migrate_data, work)
        )

    @expose
    def confirm_resize(
        self, context: RequestContext, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """Drop the old definition of the guest."""
        return self._runner.accept(
            command,
            lambda work: confirm_resize(self.driver, instance, _resized_by(command, migrate_data)),
            wait=rpcapi.SHORT_WAIT,
        )

    @expose
    def revert_resize(
        self, context: RequestContext, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """End this host's work for the migration, then give the guest its old size.

        The report is failed with ``{'gone': True}`` if the guest is not here.
        """
        return self._runner.accept(
            command,
            lambda work: revert_resize(self.driver, self.host, instance, _resized_by(command, migrate_data)),
            wait=rpcapi.SHORT_WAIT,
            cancels=instance,
        )
