# SPDX-License-Identifier: Apache-2.0

"""The data that services send to each other and store: frozen objects that travel as JSON."""

from migrator.objects.compute_node import ComputeNode, ProviderInventory
from migrator.objects.events import EventClient
from migrator.objects.instance import MIGRATABLE_VM_STATES, Flavor, Instance
from migrator.objects.migrate_data import LiveMigrateData
from migrator.objects.migration import (
    CANCELLED_BY_STOP,
    ENDS,
    IN_PROGRESS,
    LEGAL_MOVES,
    Migration,
    MigrationStatus,
    MigrationType,
    Outcome,
    Strategy,
)
from migrator.objects.protocol import (
    HIGHEST,
    LONGEST_REASON,
    STORABLE,
    Answer,
    Assignment,
    Command,
    Entry,
    Guest,
    GuestState,
    HostReport,
    Observation,
    Refusal,
    Report,
    WorkState,
)
from migrator.objects.service import (
    ABORTS_QUEUED,
    COMPARES_TENURE,
    COMPUTE_BINARY,
    CONDUCTOR_BINARY,
    CURRENT_VERSION,
    LIGHTWEIGHT,
    SERVICE_VERSIONS,
    Service,
)

__all__ = [
    'ABORTS_QUEUED',
    'CANCELLED_BY_STOP',
    'COMPARES_TENURE',
    'COMPUTE_BINARY',
    'CONDUCTOR_BINARY',
    'CURRENT_VERSION',
    'ENDS',
    'HIGHEST',
    'IN_PROGRESS',
    'LEGAL_MOVES',
    'LIGHTWEIGHT',
    'LONGEST_REASON',
    'MIGRATABLE_VM_STATES',
    'SERVICE_VERSIONS',
    'STORABLE',
    'Answer',
    'Assignment',
    'Command',
    'ComputeNode',
    'Entry',
    'EventClient',
    'Flavor',
    'Guest',
    'GuestState',
    'HostReport',
    'Instance',
    'LiveMigrateData',
    'Migration',
    'MigrationStatus',
    'MigrationType',
    'Observation',
    'Outcome',
    'ProviderInventory',
    'Refusal',
    'Report',
    'Service',
    'Strategy',
    'WorkState',
]
