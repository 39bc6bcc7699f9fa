# SPDX-License-Identifier: Apache-2.0

"""The report of the demo: the result of each migration, its cost, and the audit of the allocations."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

from migrator.demo.cloud import DemoCloud
from migrator.objects import Migration, MigrationStatus
from migrator.objects.drain import DrainStatus
from migrator.placement_client.audit import compare, read_all
from migrator.testing import counting

_S = MigrationStatus

#: The greatest cost of one migration in an idle cloud.
BUDGET = {'placement_requests': 4, 'rpc_messages': 20, 'sql_statements': 40, 'commits': 16}


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A migration that the API did not accept."""

    instance: str
    answer: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The results of the demo.

    :ivar migrations: the migrations as in the JSON report, in the order in which they were accepted.
    :ivar seconds: from the first request to the end of the last migration.
    :ivar looked_at: how many allocations, consumers, instances and migrations the audit has compared.
    :ivar violations: states that the hypervisors recorded and that must never occur.
    :ivar source: the host that the guests leave.
    :ivar killed: whether it was killed.
    :ivar left: how many guests it still runs.
    :ivar drain: the drain at its end, as the API shows it; None: there was none.
    """

    migrations: list[dict[str, Any]]
    refused: Sequence[Refusal]
    seconds: float
    costs: dict[str, int]
    asides: dict[str, int]
    findings: list[dict[str, Any]]
    looked_at: dict[str, int]
    violations: list[str]
    source: str
    killed: bool
    left: int
    drain: dict[str, Any] | None

    @property
    def completed(self) -> int:
        """The number of completed migrations."""
        return sum(one['status'] == _S.COMPLETED for one in self.migrations)

    @property
    def retried(self) -> list[str]:
        """The names of the guests that the drain has tried again."""
        return [one['name'] for one in self.drain['members'] if one['attempts'] > 1] if self.drain else []

    @property
    def right(self) -> bool:
        """Whether the drain, or every evacuation, completed, and there is no finding."""
        if self.drain is not None:
            all_of_them = self.drain['status'] == DrainStatus.COMPLETED
        else:
            all_of_them = self.completed == len(self.migrations) > 0
        return all_of_them and not (self.refused or self.findings or self.violations or self.left)

    def per_migration(self) -> dict[str, float]:
        """Return the average cost of a migration."""
        return {name: round(count / max(1, len(self.migrations)), 2) for name, count in self.costs.items()}

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document of ``--json``."""
        return {
            'drain': self.drain,
            'migrations': self.migrations,
            'refused': [dataclasses.asdict(one) for one in self.refused],
            'audit': {'findings': self.findings, 'looked_at': self.looked_at},
            'counts': {'per_migration': self.per_migration(), 'in_all': self.costs, 'aside': self.asides},
            'violations': self.violations,
            'killed': self.source if self.killed else None,
            'left': self.left,
            'seconds': round(self.seconds, 3),
        }


def make_report(cloud: DemoCloud, *, refused: Sequence[Refusal] = (), drain: dict[str, Any] | None = None) -> Report:
    """Return the report after the migrations have ended."""
    # Read the counters first, because the audit sends requests to Placement too.
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
        source=cloud.settings.source,
        killed=cloud.settings.kill is not None,
        left=cloud.population()[cloud.settings.source],
        drain=drain,
    )


def audit(cloud: DemoCloud) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Compare every consumer in Placement with every instance and migration.

    :returns: the findings, and the numbers of what was compared.
    """
    instances = cloud.database.instances.list()
    migrations = cloud.database.migrations.list()
    roots = {node.host: node.uuid for node in cloud.database.services.list_nodes()}
    known = {one.uuid for one in instances} | {one.uuid for one in migrations}
    allocations = read_all(cloud.placement_client, known)
    found = compare(allocations, roots, instances, migrations)
    looked_at = {
        'allocations': sum(len(held) for held in allocations.held.values()),
        'consumers': len(allocations.held),
        'instances': len(instances),
        'migrations': len(migrations),
    }
    return [one.as_dict() for one in found], looked_at


# --- the trace -------------------------------------------------------------------------------------------------------


def trace_of(cloud: DemoCloud, migration: Migration, history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events of a migration in order: statuses, messages, and effects on its hypervisors.

    ``at`` is in seconds since its acceptance.
    """
    clock = cloud.world.threads.clock
    start = _at(history[0])
    # Statuses have times of the wall clock, the other events of the monotonic clock.
    offset = clock.monotonic() - (clock.now() - start).total_seconds()
    events = [((_at(one) - start).total_seconds(), 'status', str(one['status'])) for one in history]
    for moment, message in zip(list(cloud.messages.times), list(cloud.messages), strict=False):
        if message.migration_uuid == migration.uuid:
            text = f'{message.kind} {message.method}: {message.sender} to {message.target}'
            events.append((moment - offset, 'message', text))
    for effect in list(cloud.world.log):
        # Earlier effects belong to the guest's user, or to an earlier migration of the guest.
        if effect.instance_uuid == migration.instance_uuid and effect.time >= offset:
            events.append((effect.time - offset, 'hypervisor', f'{effect.effect} at {effect.host}'))
    return [{'at': round(at, 4), 'kind': kind, 'what': what} for at, kind, what in sorted(events)]


def noticed_after(trace: Sequence[dict[str, Any]]) -> float | None:
    """Return the seconds from the end of the copy to the end, or None if it did not complete.

    The event for the end of a copy arrives at once. A poll comes only after the poll interval without a report.
    """
    ends = [float(one['at']) for one in trace if one['what'].startswith('job completed')]
    goes_on = [float(one['at']) for one in trace if one['what'] == _S.POST_MIGRATING]
    return round(goes_on[-1] - ends[-1], 4) if ends and goes_on else None


def _at(entry: dict[str, Any]) -> datetime.datetime:
    return datetime.datetime.fromisoformat(str(entry['at']))
