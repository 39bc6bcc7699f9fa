# SPDX-License-Identifier: Apache-2.0

"""The calls of a cold migration to a compute host; see :class:`migrator.compute.rpcapi.ComputeAPI`."""

from __future__ import annotations

import abc
from typing import Any

from migrator import exception
from migrator.context import RequestContext
from migrator.objects import MIGRATES_COLD, Answer, Command, Instance, LiveMigrateData
from migrator.rpc import RPC, Target

#: The RPC version of these calls.
VERSION = '1.5'
#: Seconds after which a host replies that a check is still running, so that the caller can act on an abort meanwhile.
CHECK_WAIT = 1.0


class ColdMigrationAPI(abc.ABC):
    """The client for the steps of a cold migration.

    Every method raises ServiceTooOld if the host or the pin is too old for it, and sends nothing then.
    """

    long_timeout: float
    _rpc: RPC
    _pin: str | None
    _timeout: float
    _monitor: float | None

    @abc.abstractmethod
    def _version(self, host: str, boot_id: str) -> int:
        """Return the service version of a boot of a host."""

    def check_can_migrate_source(
        self, context: RequestContext, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Call the source's check of whether the guest can be powered off and leave.

        :returns: ``report.result`` is the LiveMigrateData for :meth:`check_can_migrate_destination`.
        """
        return self._check('check_can_migrate_source', context, host, command, instance, migrate_data)

    def check_can_migrate_destination(
        self, context: RequestContext, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Call the destination's check of whether it can start the guest.

        :returns: ``report.result`` is the LiveMigrateData for all later steps.
        """
        return self._check('check_can_migrate_destination', context, host, command, instance, migrate_data)

    def migrate_disk_and_power_off(
        self, context: RequestContext, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Have the source power the guest off."""
        method = 'migrate_disk_and_power_off'
        return self._cold(method, context, host, command, instance=instance, migrate_data=migrate_data)

    def finish_migration(
        self, context: RequestContext, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Have the destination start the guest, which its source has powered off."""
        return self._cold('finish_migration', context, host, command, instance=instance, migrate_data=migrate_data)

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
        return self._cold(method, context, host, command, instance=instance, migrate_data=migrate_data)

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
        return self._cold(method, context, host, command, instance=instance, **arguments)

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
        return self._cold(method, context, host, command, instance=instance, migrate_data=migrate_data)

    def _check(
        self,
        method: str,
        context: RequestContext,
        host: str,
        command: Command,
        instance: Instance,
        migrate_data: LiveMigrateData,
    ) -> Answer:
        arguments = {'command': command, 'instance': instance, 'migrate_data': migrate_data}
        target, wait = self._cold_target(host, command, method), CHECK_WAIT
        answer: Answer = self._rpc.call(
            context, target, method, self.long_timeout, self._monitor, wait=wait, **arguments
        )
        return answer

    def _cold(self, method: str, context: RequestContext, host: str, command: Command, **arguments: Any) -> Answer:
        target = self._cold_target(host, command, method)
        answer: Answer = self._rpc.call(context, target, method, self._timeout, command=command, **arguments)
        return answer

    def _cold_target(self, host: str, command: Command, method: str) -> Target:
        version = self._version(host, command.boot_id)
        if version < MIGRATES_COLD:
            raise exception.ServiceTooOld(
                f'{host} cannot do {method}: its compute service has version {version}, and {MIGRATES_COLD} is needed.'
            )
        if self._pin not in (None, VERSION):
            raise exception.ServiceTooOld(
                f'{host} gets no {method}: [upgrade_levels] compute is {self._pin}, and {VERSION} is needed.'
            )
        return Target(topic='compute', server=host, version=VERSION)
