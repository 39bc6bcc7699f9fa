# SPDX-License-Identifier: Apache-2.0

"""This host's part of an evacuation: the bodies of the steps, and the calls that run them.

Like the bodies of a live migration (:mod:`migrator.compute.steps`), each observes before it acts and may run twice.
Only :func:`post_evacuation_at_source` may end a guest that is active here.
"""

from __future__ import annotations

from typing import Any

from migrator import exception
from migrator.compute import step_runner, steps
from migrator.compute.status import Observer
from migrator.context import RequestContext
from migrator.objects import Answer, Command, GuestState, Instance, LiveMigrateData
from migrator.objects.protocol import IN_USE
from migrator.rpc import expose
from migrator.virt.driver import CancelToken, ComputeDriver


def check_can_evacuate(
    driver: ComputeDriver, host: str, instance: Instance, migrate_data: LiveMigrateData
) -> LiveMigrateData:
    """Return the data that :func:`evacuate` needs, or refuse the guest (destination).

    The check leaves nothing behind.

    :raises migrator.exception.MigrationPreCheckError: this host cannot start the guest; the message says why.
    """
    steps.refuse_if_present(driver, host, instance)
    return steps.returned('check_can_evacuate', driver.check_can_evacuate(instance, migrate_data))


def evacuate(driver: ComputeDriver, instance: Instance, migrate_data: LiveMigrateData, token: CancelToken) -> None:
    """Start the guest without its source, or finish what an interrupted call has begun (destination).

    :raises migrator.exception.Cancelled: the work was cancelled, and the driver was not called.
    """
    token.raise_if_cancelled()
    driver.evacuate(instance, migrate_data)


def rollback_evacuation_at_destination(
    driver: ComputeDriver, host: str, instance: Instance, migrate_data: LiveMigrateData | None
) -> None:
    """Remove all that the evacuation has made on this host, except disks.

    :raises migrator.exception.GuestStillHere: the guest itself is in use here.
    """
    guest = driver.get_guest(instance.uuid)
    if guest.job or guest.state not in (GuestState.ABSENT, GuestState.WAITING, GuestState.SHUTDOWN):
        action = 'rollback_evacuation_at_destination'
        raise exception.GuestStillHere(host=host, instance_uuid=instance.uuid, action=action)
    driver.rollback_evacuation_at_destination(instance, migrate_data)


def post_evacuation_at_source(
    driver: ComputeDriver, host: str, instance: Instance, migrate_data: LiveMigrateData | None, runs_at: str | None
) -> None:
    """End the copy of a guest that was evacuated from this host, and remove what is left of it.

    :param runs_at: the host that has just reported that it runs the guest; None: no host has.
    :raises migrator.exception.GuestStillHere: the guest is in use here, and no other host is known to run it.
    """
    guest = driver.get_guest(instance.uuid)
    if (guest.job or guest.state in IN_USE) and runs_at in (None, host):
        raise exception.GuestStillHere(host=host, instance_uuid=instance.uuid, action='post_evacuation_at_source')
    # Also without a guest, because an earlier call may have been interrupted after it had removed the guest.
    driver.post_evacuation_at_source(instance, migrate_data or LiveMigrateData())


class Endpoint:
    """The calls of an evacuation to a compute host."""

    host: str
    driver: ComputeDriver
    _runner: step_runner.StepRunner
    _observer: Observer

    @expose
    def check_can_evacuate(
        self, context: RequestContext, command: Command, instance: Instance, migrate_data: LiveMigrateData, wait: float
    ) -> Answer:
        """Check whether this host can start the guest without its source.

        The reply comes when the check has ended, or after ``wait`` seconds as running. ``report.result`` is the
        LiveMigrateData for :meth:`evacuate`.
        """
        return self._runner.accept(
            command, lambda work: check_can_evacuate(self.driver, self.host, instance, migrate_data), wait=wait
        )

    @expose
    def evacuate(
        self, context: RequestContext, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Start the guest on this host without its source."""
        return self._runner.accept(command, lambda work: evacuate(self.driver, instance, migrate_data, work))

    @expose
    def rollback_evacuation_at_destination(
        self, context: RequestContext, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """End this host's work for the migration, then remove what the evacuation has made here.

        The report is failed with ``{'here': True}`` if the guest itself is in use here.
        """
        return self._runner.accept(
            command,
            lambda work: rollback_evacuation_at_destination(self.driver, self.host, instance, migrate_data),
            cancels=instance,
        )

    @expose
    def post_evacuation_at_source(
        self,
        context: RequestContext,
        command: Command,
        instance: Instance,
        migrate_data: LiveMigrateData | None,
        runs_at: str | None,
    ) -> Answer:
        """End this host's copy of a guest that was evacuated, and remove what is left of it.

        The report is failed with ``{'here': True}`` if the guest is in use here, and no other host runs it.

        :param runs_at: the host that has just reported that it runs the guest; None: no host has.
        """
        return self._runner.accept(
            command,
            lambda work: post_evacuation_at_source(self.driver, self.host, instance, migrate_data, runs_at),
        )

    @expose
    def get_definitions(
        self, context: RequestContext, instance_uuids: list[str], wait: float
    ) -> dict[str, dict[str, Any]]:
        """Return what another host needs to start each of some guests without this host."""
        return self._observer.definitions(instance_uuids, wait)
