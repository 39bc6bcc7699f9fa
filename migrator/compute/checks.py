# SPDX-License-Identifier: Apache-2.0

"""The two checks before a live migration; each replies when the driver has replied.

A check refuses with a :class:`~migrator.exception.MigrationPreCheckError`, whose message says what has to change.
"""

from __future__ import annotations

from migrator import exception
from migrator.objects import GuestState, Instance, LiveMigrateData
from migrator.virt.driver import ComputeDriver


def check_can_live_migrate_destination(
    driver: ComputeDriver, host: str, instance: Instance, block_migration: bool | None, disk_over_commit: bool
) -> LiveMigrateData:
    """Return the data that the source needs for its check, or refuse the guest (destination).

    pre_live_migration or the rollback removes what the check leaves behind.

    :raises migrator.exception.MigrationPreCheckError: this host cannot take the guest; the message says why.
    """
    guest = driver.get_guest(instance.uuid)
    if guest.present and guest.state != GuestState.WAITING:
        raise exception.MigrationPreCheckError(
            reason=f'{host} already has guest {instance.uuid}, which is {guest.state}: remove it there if an earlier '
            'migration has left it behind'
        )
    found = driver.check_can_live_migrate_destination(instance, block_migration, disk_over_commit)
    return returned('check_can_live_migrate_destination', found)


def check_can_live_migrate_source(
    driver: ComputeDriver, host: str, instance: Instance, migrate_data: LiveMigrateData
) -> LiveMigrateData:
    """Return the data with the source's part filled in, or refuse to migrate the guest (source).

    The check leaves nothing behind.

    :raises migrator.exception.MigrationPreCheckError: the guest cannot migrate there; the message says why.
    """
    guest = driver.get_guest(instance.uuid)
    if not guest.present:
        raise exception.MigrationPreCheckError(reason=f'{host} has no guest {instance.uuid}')
    return returned('check_can_live_migrate_source', driver.check_can_live_migrate_source(instance, migrate_data))


def returned(method: str, found: object) -> LiveMigrateData:
    """Return the result of a driver's method if it is the LiveMigrateData that the next step needs.

    :raises migrator.exception.DriverError: the result has another type. The next step runs on the other host, which
        could not name the driver at fault.
    """
    if not isinstance(found, LiveMigrateData):
        raise exception.DriverError(f'{method} returned {found!r:.100}: correct the driver to return a LiveMigrateData')
    return found
