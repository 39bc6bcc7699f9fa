# SPDX-License-Identifier: Apache-2.0

"""What a tenant reads of a move that has failed: one of the sentences of this table.

The recorded reasons hold texts of drivers, hosts and Placement, with addresses and paths. They are for callers with the
policy ``os_compute_api:os-instance-actions:events:details``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from migrator.db.actions import LIVE_MIGRATION_CANCEL
from migrator.objects import Migration, MigrationStatus
from migrator.objects.reasons import FailureKind

#: Stands for each failure whose kind is not below.
GENERAL = 'The move failed; an administrator can see why.'
#: Stands for the failure of a step, after which another host may have been tried.
STEP = 'This step failed; an administrator can see why.'
#: Nova has the same sentence.
NO_VALID_HOST = 'No valid host was found.'
NOT_CANCELLED = 'The move could not be cancelled.'

#: The kind of a failure, or the status with which a migration ended -> the sentence.
SENTENCES: Mapping[str, str] = MappingProxyType(
    {
        FailureKind.NO_VALID_HOST: NO_VALID_HOST,
        FailureKind.HOST_AWAY: 'The move failed, since a host did not answer.',
        FailureKind.GUEST_LOST: 'The move failed, and the server was not found; an administrator can see more.',
        MigrationStatus.CANCELLED: 'The move was cancelled.',
    }
)


def failure(migration: Migration | None, action: str | None = None) -> str:
    """Return what a tenant may know of a failed action.

    :param migration: the migration of the action, if it is known.
    :param action: the action; None: the move itself.
    """
    if action == LIVE_MIGRATION_CANCEL:
        return NOT_CANCELLED
    if migration is None:
        return GENERAL
    cancelled = migration.status if migration.status == MigrationStatus.CANCELLED else None
    return SENTENCES.get(cancelled or migration.failure_kind or '', GENERAL)
