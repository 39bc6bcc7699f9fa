# SPDX-License-Identifier: Apache-2.0

"""The calls of a cold migration to a compute host; see :class:`migrator.compute.rpcapi.ComputeAPI`."""

from __future__ import annotations

import abc
from typing import Any

from migrator.context import RequestContext
from migrator.objects import Answer, Command, Instance, LiveMigrateData

#: The RPC version of these calls.
VERSION = '1.5'
#: That of the calls of a resize whose guest stays at its host.
HERE = '1.6'


class ColdMigrationAPI(abc.ABC):
    """The client for the steps of a cold migration.

    Every method raises ServiceTooOld if the host or the pin is too old for it, and sends nothing then.
    """

    @abc.abstractmethod
    def _command(
        self, rpc_version: str, method: str, context: RequestContext, host: str, command: Command, **arguments: Any
    ) -> Answer:
        """Send a command to a host that replies soon."""

    @abc.abstractmethod
    def _check(
        self, rpc_version: str, method: str, context: RequestContext, host: str, command: Command, **arguments: Any
    ) -> Answer:
        """Call a check, which may take long."""

    def check_can_migrate_source(
        self, context: RequestContext, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Call the source's check of whether the guest can be powered off and leave.

        :returns: ``report.result`` is the LiveMigrateData for :meth:`check_can_migrate_destination`.
        """
        arguments = {'instance': instance, 'migrate_data': migrate_data}
        return self._check(VERSION, 'check_can_migrate_source', context, host, command, **arguments)

    def check_can_migrate_destination(
        self, context: RequestContext, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Call the destination's check of whether it can start the guest.

        :returns: ``report.result`` is the LiveMigrateData for all later steps.
        """
        arguments = {'instance': instance, 'migrate_data': migrate_data}
        return self._check(VERSION, 'check_can_migrate_destination', context, host, command, **arguments)

    def migrate_disk_and_power_off(
        self, context: RequestContext, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Have the source power the guest off."""
        method = 'migrate_disk_and_power_off'
        return self._command(VERSION, method, context, host, command, instance=instance, migrate_data=migrate_data)

    def finish_migration(
        self, context: RequestContext, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Have the destination start the guest, which its source has powered off."""
        return self._command(
            VERSION, 'finish_migration', context, host, command, instance=instance, migrate_data=migrate_data
        )

    def confirm_migration_at_source(
        self,
        context: RequestContext,
        host: str,
        command: Command,
        instance: Instance,
        migrate_data: LiveMigrateData | None,
    ) -> Answer:
        """Have the source remove what is left of a guest that stays at its destination."""
        method = 'confirm_migration_at_source'
        return self._command(VERSION, method, context, host, command, instance=instance, migrate_data=migrate_data)

    def revert_migration_at_destination(
        self,
        context: RequestContext,
        host: str,
        command: Command,
        instance: Instance,
        migrate_data: LiveMigrateData | None,
        runs_at: str | None = None,
    ) -> Answer:
        """Have the destination end its work for the migration, then end and remove the guest.

        :param runs_at: the other host that has just reported that it has the guest. Without it the destination does not
            touch a guest that is active.
        """
        method, arguments = 'revert_migration_at_destination', {'migrate_data': migrate_data, 'runs_at': runs_at}
        return self._command(VERSION, method, context, host, command, instance=instance, **arguments)

    def revert_migration_at_source(
        self,
        context: RequestContext,
        host: str,
        command: Command,
        instance: Instance,
        migrate_data: LiveMigrateData | None,
    ) -> Answer:
        """Have the source end its work for the migration, then restore the guest as it was."""
        method = 'revert_migration_at_source'
        return self._command(VERSION, method, context, host, command, instance=instance, migrate_data=migrate_data)

    def check_can_resize(
        self, context: RequestContext, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Call a host's check of whether it can resize a guest that stays there.

        :returns: ``report.result`` is the LiveMigrateData for :meth:`resize`.
        """
        arguments = {'instance': instance, 'migrate_data': migrate_data}
        return self._check(HERE, 'check_can_resize', context, host, command, **arguments)

    def resize(
        self, context: RequestContext, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Have a host power the guest off, give it its new size, and start it."""
        return self._command(HERE, 'resize', context, host, command, instance=instance, migrate_data=migrate_data)

    def confirm_resize(
        self,
        context: RequestContext,
        host: str,
        command: Command,
        instance: Instance,
        migrate_data: LiveMigrateData | None,
    ) -> Answer:
        """Have a host drop the old definition of a guest that it has resized."""
        method = 'confirm_resize'
        return self._command(HERE, method, context, host, command, instance=instance, migrate_data=migrate_data)

    def revert_resize(
        self,
        context: RequestContext,
        host: str,
        command: Command,
        instance: Instance,
        migrate_data: LiveMigrateData | None,
    ) -> Answer:
        """Have a host end its work for the migration, then give the guest its old size."""
        method = 'revert_resize'
        return self._command(HERE, method, context, host, command, instance=instance, migrate_data=migrate_data)
