# SPDX-License-Identifier: Apache-2.0

"""The two checks before a live migration: questions, answered when the driver has answered.

A refusal is a :class:`~migrator.exception.MigrationPreCheckError`, whose message says what would have to be otherwise.
"""

from __future__ import annotations

from migrator import exception
from migrator.objects import GuestState, Instance, LiveMigrateData
from migrator.virt.driver import ComputeDriver


def check_can_live_migrate_destination(
    driver: ComputeDriver, host: str, instance: Instance, block_migration: bool | None, disk_over_commit: bool
) -> LiveMigrateData:
    """Return what the source needs to know, or refuse (destination).

    What it leaves is removed by pre_live_migration, or by the rollback.

    :raises migrator.exception.MigrationPreCheckError: this host cannot take the guest, and why.
    """
    guest = driver.get_guest(instance.uuid)
    if guest.present and guest.state != GuestState.WAITING:
        raise exception.MigrationPreCheckError(
            reason=f'{host} has a guest {instance.uuid} already: {guest.state}; if an earlier move has left it there, '
            'it has to be removed first'
        )
    found = driver.check_can_live_migrate_destination(instance, block_migration, disk_over_commit)
    return returned('check_can_live_migrate_destination', found)


def check_can_live_migrate_source(
    driver: ComputeDriver, host: str, instance: Instance, migrate_data: LiveMigrateData
) -> LiveMigrateData:
    """Return the data with the source's part filled in, or refuse (source). Leaves nothing behind.

    :raises migrator.exception.MigrationPreCheckError: the guest cannot go there, and why.
    """
    guest = driver.get_guest(instance.uuid)
    if not guest.present:
        raise exception.MigrationPreCheckError(reason=f'{host} has no guest {instance.uuid}')
    return returned('check_can_live_migrate_source', driver.check_can_live_migrate_source(instance, migrate_data))


def returned(method: str, found: object) -> LiveMigrateData:
    """Return what a method of a driver has returned, if it is what the next step is to be given.

    :raises migrator.exception.DriverError: it is not; the next step, at the other host, could not say whose it was.
    """
    if not isinstance(found, LiveMigrateData):
        raise exception.DriverError(f'{method} returned {found!r:.100}: a LiveMigrateData would do')
    return found
