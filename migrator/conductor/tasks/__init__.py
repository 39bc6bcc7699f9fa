# SPDX-License-Identifier: Apache-2.0

"""The sagas, one module for each task."""

from __future__ import annotations

from migrator.conductor.migration.context import MigrationContext
from migrator.conductor.tasks import cold_migrate, evacuate, live_migrate, resize_here
from migrator.objects import MigrationType
from migrator.saga.saga import Saga


def sagas() -> dict[str, Saga[MigrationContext]]:
    """Return every saga by its name; see :attr:`migrator.objects.migration.Migration.task`."""
    return {
        MigrationType.LIVE_MIGRATION.value: live_migrate.saga(),
        MigrationType.EVACUATION.value: evacuate.saga(),
        MigrationType.MIGRATION.value: cold_migrate.saga(),
        'revert': cold_migrate.reverts(),
        'resize here': resize_here.saga(),
        'revert here': resize_here.reverts(),
    }
