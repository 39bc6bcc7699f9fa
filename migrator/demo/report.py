# SPDX-License-Identifier: Apache-2.0

"""What the demo has to report: what became of each migration, what it cost, and whether the books are right."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

from migrator.demo.cloud import SOURCE, DemoCloud
from migrator.objects import Migration, MigrationStatus
from migrator.placement_client import audit as placement_audit
from migrator.testing import counting

_S = MigrationStatus

#: What one migration of an idle cloud may cost.
BUDGET = {'placement_requests': 4, 'rpc_messages': 20, 'sql_statements': 40, 'commits': 16}


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A migration that the API did not accept."""

    instance: str
    answer: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """How the demo went.

    :ivar migrations: as in the JSON report, in the order in which they were accepted.
    :ivar seconds: from the first request to the end of the last migration.
    :ivar looked_at: how many allocations, consumers, instances and migrations the audit has compared.
    :ivar violations: what the hypervisors say must never be, and was.
    :ivar left: how many guests the source still runs.
    """

    migrations: list[dict[str, Any]]
    refused: Sequence[Refusal]
    seconds: float
    costs: dict[str, int]
    asides: dict[str, int]
    findings: list[dict[str, Any]]
    looked_at: dict[str, int]
    violations: list[str]
    left: int

    @property
    def completed(self) -> int:
        """How many migrations have completed."""
        return sum(one['status'] == _S.COMPLETED for one in self.migrations)

    @property
    def right(self) -> bool:
        """Whether everything is as it should be."""
        all_of_them = self.completed == len(self.migrations) > 0
        return all_of_them and not (self.refused or self.findings or self.violations or self.left)

    def per_migration(self) -> dict[str, float]:
        """Return what a migration has cost, on average."""
        return {name: round(count / max(1, len(self.migrations)), 2) for name, count in self.costs.items()}

    def as_json(self) -> dict[str, Any]:
        """Return it as ``--json`` prints it."""
        return {
            'migrations': self.migrations,
            'refused': [dataclasses.asdict(one) for one in self.refused],
            'audit': {'findings': self.findings, 'looked_at': self.looked_at},
            'counts': {'per_migration': self.per_migration(), 'in_all': self.costs, 'aside': self.asides},
            'violations': self.violations,
            'seconds': round(self.seconds, 3),
        }


def make(cloud: DemoCloud, refused: Sequence[Refusal]) -> Report:
    """Look at everything once the migrations have ended."""
    # Before anything is looked at: the audit talks to Placement too.
    costs, asides = cloud.costs(), cloud.asides()
    with counting.aside():
        migrations, histories = cloud.migrations(), cloud.histories()
        findings, looked_at = audit(cloud)
    names = {guest.uuid: guest.name for guest in cloud.guests}
    described = []
    for migration in migrations:
        trace = trace_of(cloud, migration, histories[migration.uuid])
        described.append(
            {
                'uuid': migration.uuid,
                'instance': migration.instance_uuid,
                'name': names.get(migration.instance_uuid, ''),
                'source': migration.source_compute,
                'destination': migration.dest_compute,
                'status': migration.status,
                'history': [{'status': one['status'], 'at': one['at']} for one in histories[migration.uuid]],
                'failure': migration.failure or migration.stuck_reason,
                'noticed_after': noticed_after(trace),
                'trace': trace,
            }
        )
    moments = [_at(entry) for history in histories.values() for entry in history]
    return Report(
        migrations=described,
        refused=refused,
        seconds=(max(moments) - min(moments)).total_seconds() if moments else 0.0,
        costs=costs,
        asides=asides,
        findings=findings,
        looked_at=looked_at,
        violations=list(cloud.world.violations),
        left=cloud.population()[SOURCE],
    )


def audit(cloud: DemoCloud) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Hold every consumer in Placement against every instance and migration.

    :returns: the findings, and how much was compared.
    """
    instances = cloud.database.instances.list()
    migrations = cloud.database.migrations.list()
    roots = {node.host: node.uuid for node in cloud.database.services.list_nodes()}
    known = {one.uuid for one in instances} | {one.uuid for one in migrations}
    books = placement_audit.read(cloud.placement_client, known)
    found = placement_audit.audit(books, roots, instances, migrations)
    looked_at = {
        'allocations': sum(len(held) for held in books.held.values()),
        'consumers': len(books.held),
        'instances': len(instances),
        'migrations': len(migrations),
    }
    return [one.as_dict() for one in found], looked_at


# --- the trace -------------------------------------------------------------------------------------------------------


def trace_of(cloud: DemoCloud, migration: Migration, history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all that happened to a migration, in order: its statuses, its messages, its hypervisors' doings.

    ``at`` counts seconds from its acceptance.
    """
    clock = cloud.world_threads.clock
    start = _at(history[0])
    # Statuses are on the wall clock, the others on the monotonic one.
    offset = clock.monotonic() - (clock.now() - start).total_seconds()
    events = [((_at(one) - start).total_seconds(), 'status', str(one['status'])) for one in history]
    for moment, message in zip(list(cloud.messages.times), list(cloud.messages), strict=False):
        if message.migration_uuid == migration.uuid:
            said = f'{message.kind} {message.method}: {message.sender} to {message.target}'
            events.append((moment - offset, 'message', said))
    for effect in list(cloud.world.log):
        # What its user did before, and what an earlier migration of the same guest did, is not of this one.
        if effect.instance_uuid == migration.instance_uuid and effect.time >= offset:
            events.append((effect.time - offset, 'hypervisor', f'{effect.effect} at {effect.host}'))
    return [{'at': round(at, 4), 'kind': kind, 'what': what} for at, kind, what in sorted(events)]


def noticed_after(trace: Sequence[dict[str, Any]]) -> float | None:
    """Return how many seconds after the end of its copy a migration went on, or None: it was not moved.

    The event is there at once. A poll would come when a migration has been silent for the poll interval, as one that
    copies is.
    """
    ends = [float(one['at']) for one in trace if one['what'].startswith('job completed')]
    goes_on = [float(one['at']) for one in trace if one['what'] == _S.POST_MIGRATING]
    return round(goes_on[-1] - ends[-1], 4) if ends and goes_on else None


def _at(entry: dict[str, Any]) -> datetime.datetime:
    return datetime.datetime.fromisoformat(str(entry['at']))
