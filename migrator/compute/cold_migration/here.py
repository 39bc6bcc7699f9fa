# SPDX-License-Identifier: Apache-2.0

"""This host's part of a resize whose guest stays here.

The guest has one definition at a time. From :meth:`ResizeSteps.resize` on it keeps the old one, with the uuid of the
migration. So each step finds out how far an earlier call has come, and may run again. A guest that another migration
has resized is left alone.
"""

from __future__ import annotations

from migrator import exception
from migrator.compute import rpcapi
from migrator.compute.cold_migration import endpoint
from migrator.compute.work import Steps, Work, step
from migrator.objects import Instance, LiveMigrateData


class ResizeSteps(Steps):
    """The steps of a resize whose guest stays at this host."""

    @step()
    def check_can_resize(self, work: Work, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """Return the data for all later steps, or refuse to resize the guest here.

        ``source['power_on']`` of the data is whether the guest is started with its new size, and when it is reverted.
        ``source['migration']`` is the migration. A later one may send the steps of a deferred cleanup in its own name.

        :raises migrator.exception.MigrationPreCheckError: the guest cannot be resized here; the message says why.
        """
        guest = endpoint.refuse_if_busy(self.driver, self.host, instance)
        if not self.driver.resizes_here:
            name = type(self.driver).__name__
            reason = f'{self.host} cannot resize a guest that stays there, since its driver {name} does not'
            raise exception.MigrationPreCheckError(reason=reason)
        found = self.driver.check_can_resize(instance, migrate_data)
        data = endpoint.returned(work.step, found, migrate_data)
        power_on = endpoint.starts_again(instance, guest)
        return data.replace(source={**data.source, 'power_on': power_on, 'migration': work.uuid})

    @step()
    def resize(self, work: Work, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Resize the guest, or finish what an interrupted call has begun.

        :raises migrator.exception.Cancelled: the work was cancelled, and the driver was not called.
        :raises migrator.exception.GuestNotFound: the guest is not here.
        """
        work.raise_if_cancelled()
        endpoint.present(self.driver, self.host, instance)
        self.driver.resize(instance, migrate_data, work.uuid)

    @step(rpcapi.SHORT_WAIT)
    def confirm_resize(self, work: Work, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """Drop the old definition, if the guest is here."""
        if self.driver.get_guest(instance.uuid).present:
            self.driver.confirm_resize(instance, _resized_by(work, migrate_data))

    @step(rpcapi.SHORT_WAIT, cancels=True)
    def revert_resize(self, work: Work, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """Undo what :meth:`resize` has done to the guest.

        The guest gets its old definition, and is started if :meth:`resize` was going to start it.

        :raises migrator.exception.GuestNotFound: the guest is not here.
        """
        endpoint.present(self.driver, self.host, instance)
        self.driver.revert_resize(instance, _resized_by(work, migrate_data))


def _resized_by(work: Work, migrate_data: LiveMigrateData | None) -> str:
    """Return the migration whose resize a step confirms or reverts."""
    return str(migrate_data.source['migration']) if migrate_data is not None else work.uuid
