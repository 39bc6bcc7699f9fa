# SPDX-License-Identifier: Apache-2.0

"""The data that services send to each other and store: frozen objects that travel as JSON."""

from migrator.objects.compute_node import ComputeNode, ProviderInventory
from migrator.objects.drain import Drain, Member
from migrator.objects.instance import (
    COLD_MIGRATABLE_VM_STATES,
    EVACUABLE_VM_STATES,
    MIGRATABLE_VM_STATES,
    RESIZED,
    STOPPED,
    Flavor,
    Instance,
)
from migrator.objects.migrate_data import LiveMigrateData
from migrator.objects.migration import (
    ARRIVED,
    ENDS,
    FINAL,
    IN_PROGRESS,
    LEGAL_MOVES,
    Migration,
    MigrationStatus,
    MigrationType,
    Outcome,
    Strategy,
)
from migrator.objects.protocol import (
    Answer,
    Assignment,
    Command,
    Entry,
    EventClient,
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
    COMPUTE_BINARY,
    CONDUCTOR_BINARY,
    CURRENT_VERSION,
    Service,
)

__all__ = [
    'ABORTS_QUEUED',
    'ARRIVED',
    'COLD_MIGRATABLE_VM_STATES',
    'COMPUTE_BINARY',
    'CONDUCTOR_BINARY',
    'CURRENT_VERSION',
    'ENDS',
    'EVACUABLE_VM_STATES',
    'FINAL',
    'IN_PROGRESS',
    'LEGAL_MOVES',
    'MIGRATABLE_VM_STATES',
    'RESIZED',
    'STOPPED',
    'Answer',
    'Assignment',
    'Command',
    'ComputeNode',
    'Drain',
    'Entry',
    'EventClient',
    'Flavor',
    'Guest',
    'GuestState',
    'HostReport',
    'Instance',
    'LiveMigrateData',
    'Member',
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
