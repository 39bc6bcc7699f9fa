# SPDX-License-Identifier: Apache-2.0

"""This host's part of an evacuation.

Like the steps of a live migration (:mod:`migrator.compute.steps`), each observes before it acts and may run twice.
Only :meth:`EvacuationSteps.post_evacuation_at_source` may end a guest that is active here.
"""

from __future__ import annotations

from typing import Any

from migrator import exception
from migrator.compute import steps
from migrator.compute.status import Observer
from migrator.compute.work import Steps, Work, step
from migrator.context import RequestContext
from migrator.objects import GuestState, Instance, LiveMigrateData
from migrator.objects.protocol import IN_USE
from migrator.rpc import expose


class EvacuationSteps(Steps):
    """The steps of an evacuation at this host, and the definitions that it needs."""

    _observer: Observer

    @step()
    def check_can_evacuate(self, work: Work, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """Return the data that :meth:`evacuate` needs, or refuse the guest (destination).

        The check leaves nothing behind.

        :raises migrator.exception.MigrationPreCheckError: this host cannot start the guest; the message says why.
        """
        steps.refuse_if_present(self.driver, self.host, instance)
        return steps.returned(work.step, self.driver.check_can_evacuate(instance, migrate_data))

    @step()
    def evacuate(self, work: Work, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Start the guest without its source, or finish what an interrupted call has begun (destination).

        :raises migrator.exception.Cancelled: the work was cancelled, and the driver was not called.
        """
        work.raise_if_cancelled()
        self.driver.evacuate(instance, migrate_data)

    @step(cancels=True)
    def rollback_evacuation_at_destination(
        self, work: Work, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> None:
        """Remove all that the evacuation has made on this host, except disks.

        :raises migrator.exception.GuestStillHere: the guest itself is in use here.
        """
        guest = self.driver.get_guest(instance.uuid)
        if guest.job or guest.state not in (GuestState.ABSENT, GuestState.WAITING, GuestState.SHUTDOWN):
            raise exception.GuestStillHere(host=self.host, instance_uuid=instance.uuid, action=work.step)
        self.driver.rollback_evacuation_at_destination(instance, migrate_data)

    @step()
    def post_evacuation_at_source(
        self, work: Work, instance: Instance, migrate_data: LiveMigrateData | None, runs_at: str | None
    ) -> None:
        """End the copy of a guest that was evacuated from this host, and remove what is left of it.

        :param runs_at: the host that has just reported that it runs the guest; None: no host has.
        :raises migrator.exception.GuestStillHere: the guest is in use here, and no other host is known to run it.
        """
        guest = self.driver.get_guest(instance.uuid)
        if (guest.job or guest.state in IN_USE) and runs_at in (None, self.host):
            raise exception.GuestStillHere(host=self.host, instance_uuid=instance.uuid, action=work.step)
        # Also without a guest, because an earlier call may have been interrupted after it had removed the guest.
        self.driver.post_evacuation_at_source(instance, migrate_data or LiveMigrateData())

    @expose
    def get_definitions(
        self, context: RequestContext, instance_uuids: list[str], wait: float
    ) -> dict[str, dict[str, Any]]:
        """Return what another host needs to start each of some guests without this host."""
        return self._observer.definitions(instance_uuids, wait)
