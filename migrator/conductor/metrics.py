# SPDX-License-Identifier: Apache-2.0

"""The metrics of a conductor, in the format of Prometheus.

They have a registry of their own and do not use the library's global one, because one process may run several
conductors.
"""

from __future__ import annotations

import collections
import datetime
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from migrator.db import slots
from migrator.db.cleanups import Cleanup
from migrator.objects import ENDS, IN_PROGRESS, Migration, MigrationType
from migrator.objects.difference import Difference, DifferenceKind
from migrator.objects.drain import DRAIN_ENDS
from migrator.objects.reasons import WaitKind
from migrator.placement_client.audit import VERDICTS, Finding

if TYPE_CHECKING:  # a command that audits does not need RPC
    from migrator.conductor.migration import context

_DONE, _FAILED = 'done', 'failed'

#: The upper bounds of the durations of steps, in seconds. A short one takes milliseconds, and a copy up to hours.
_STEP_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400)


class Metrics:
    """The metrics of one conductor.

    :param held: returns the migrations that the conductor runs. It is called at each scrape.
    :param broker_away: returns for how many seconds the message broker has been unreachable; 0 if it is reachable.
    :param ended: the migrations that have ended, by type and status.
    :param bounds: returns the bounds of migrations in progress; None: there are none.
    :param drains: returns the statuses of the drains that the conductor advances, as a user sees them.
    :param drains_ended: the drains that have ended, by status.
    :ivar registry: the registry, in which others may register more metrics.
    :ivar steps: the durations of steps, by name, ``do`` or ``undo``, and ``done`` or ``failed``.
    :ivar next_attempts: the further attempts of migrations.
    :ivar takeovers: the migrations that were taken over.
    :ivar lost_leases: the losses of the lease.
    :ivar down: the compute services that are down.
    """

    def __init__(
        self,
        held: Callable[[], Collection[context.MigrationContext]],
        broker_away: Callable[[], float] = lambda: 0.0,
        ended: Mapping[tuple[str, str], int] = types.MappingProxyType({}),
        bounds: Callable[[], slots.Bounds | None] = lambda: None,
        drains: Callable[[], Collection[str]] = tuple,
        drains_ended: Mapping[str, int] = types.MappingProxyType({}),
    ) -> None:
        self._held = held
        self._ended = ended
        self._bounds = bounds
        self._drains = drains
        self._drains_ended = drains_ended
        self.registry = prometheus_client.CollectorRegistry()
        self.registry.register(self)
        prometheus_client.Gauge(
            'migrator_migrations_held', 'Migrations that this conductor runs.', registry=self.registry
        ).set_function(lambda: len(held()))
        prometheus_client.Gauge(
            'migrator_migrations_stuck',
            'Migrations that this conductor runs and that are stuck: they need an operator.',
            registry=self.registry,
        ).set_function(lambda: sum(one.row.stuck_kind is not None for one in held()))

        prometheus_client.Gauge(
            'migrator_broker_away_seconds',
            'Seconds for which this conductor has not reached the message broker; 0 if it does.',
            registry=self.registry,
        ).set_function(broker_away)
        self.steps = prometheus_client.Histogram(
            'migrator_step_seconds',
            'Steps that have ended at the conductor that began them, from the first try on, by their duration.',
            ['step', 'direction', 'result'],
            buckets=_STEP_BUCKETS,
            registry=self.registry,
        )
        self.next_attempts = prometheus_client.Counter(
            'migrator_next_attempts',
            'Further attempts of migrations, each with another destination.',
            registry=self.registry,
        )
        self.takeovers = prometheus_client.Counter(
            'migrator_takeovers',
            'Migrations that this conductor has taken over: their conductor was gone, or had lost its lease.',
            registry=self.registry,
        )
        self.lost_leases = prometheus_client.Counter(
            'migrator_leases_lost',
            'How often this conductor has lost its lease, and released its migrations.',
            registry=self.registry,
        )
        self.down = prometheus_client.Gauge(
            'migrator_computes_down',
            'Compute services that are down: they did not report while this conductor reached the message broker.',
            registry=self.registry,
        )
        self._cleanups = prometheus_client.Gauge(
            'migrator_cleanups',
            'Deferred cleanups of migrations. One that is blocked needs an operator.',
            ['blocked'],
            registry=self.registry,
        )
        self.count_cleanups([])

    def collect(self) -> Iterable[Metric]:
        """Return what follows from the memory of the conductor; the registry calls this at each scrape."""
        found = CounterMetricFamily(
            'migrator_migrations_ended',
            'Migrations that have ended at this conductor, by the type of the migration and its last status.',
            labels=['type', 'status'],
        )
        # All series are there from the start. A counter that first appears at 1 has no rate for that event.
        ends = {(type_.value, status.value): 0 for type_ in MigrationType for status in sorted(ENDS)}
        for labels, number in {**ends, **self._ended}.items():
            found.add_metric(labels, number)
        yield found
        rows = [one.row for one in self._held()]
        yield _gauge(
            'migrator_migrations_in_progress',
            'Migrations that this conductor runs, by their type and status.',
            ('type', 'status'),
            collections.Counter((row.migration_type, row.status) for row in rows),
            [(type_.value, status.value) for type_ in MigrationType for status in sorted(IN_PROGRESS)],
        )
        yield _gauge(
            'migrator_migrations_waiting',
            'Migrations that this conductor runs, that are not stuck, and that wait, by what they wait for.',
            ('what',),
            collections.Counter(_wait_of(row) for row in rows),
            [(kind.value,) for kind in WaitKind],
        )
        yield from self._slots(rows)
        yield _gauge(
            'migrator_drains',
            'Drains that this conductor advances, by their status.',
            ('status',),
            collections.Counter((status,) for status in self._drains()),
            [(status,) for status in ('accepted', 'running', 'paused', 'cancelling', 'restoring')],
        )
        drains = CounterMetricFamily(
            'migrator_drains_ended',
            'Drains that have ended at this conductor, by their last status.',
            labels=['status'],
        )
        for status, number in {**{end.value: 0 for end in sorted(DRAIN_ENDS)}, **self._drains_ended}.items():
            drains.add_metric([status], number)
        yield drains

    def _slots(self, rows: Iterable[Migration]) -> Iterable[Metric]:
        admitted = [row for row in rows if row.dest_node is not None or row.attempt > 1]
        yield _gauge(
            'migrator_slots_used',
            'Slots that the migrations of this conductor use: those of the cluster, of each source and destination.',
            ('bound', 'host'),
            collections.Counter(axis for row in admitted for axis in slots.used_by(row)),
            [slots.CLUSTER],
        )
        bounds = self._bounds() or slots.Bounds()
        limits = {('cluster',): bounds.cluster, ('inbound',): bounds.inbound}
        yield _gauge(
            'migrator_slots_limit',
            'Bound of the slots of the cluster, and of each destination, if there is one.',
            ('bound',),
            {bound: limit for bound, limit in limits.items() if limit},
        )

    def count_cleanups(self, deferred: Iterable[Cleanup]) -> None:
        """Set the number of deferred cleanups.

        :param deferred: all deferred cleanups.
        """
        number_of = collections.Counter(cleanup.blocked_because is not None for cleanup in deferred)
        for blocked in (False, True):
            self._cleanups.labels('yes' if blocked else 'no').set(number_of[blocked])


def _gauge(
    name: str,
    text: str,
    labels: Sequence[str],
    found: Mapping[tuple[str, ...], int],
    always: Iterable[tuple[str, ...]] = (),
) -> GaugeMetricFamily:
    """Return a gauge.

    :param found: the values of the labels -> the number.
    :param always: the values that exist also with 0.
    """
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in {**dict.fromkeys(always, 0), **found}.items():
        if '' not in values or values == slots.CLUSTER:
            family.add_metric(values, number)
    return family


def _wait_of(row: Migration) -> tuple[str]:
    return (row.wait_kind or '' if row.stuck_kind is None else '',)


class Audits:
    """The metrics of the audits of Placement's allocations.

    Only a conductor that audits has them. Elsewhere, zero findings would be misleading.

    :param registry: the registry of the conductor's metrics.
    """

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._findings = prometheus_client.Gauge(
            'migrator_placement_findings',
            'Wrong allocations that the last complete audit has found.',
            ['verdict'],
            registry=registry,
        )
        self._ended_at = prometheus_client.Gauge(
            'migrator_placement_audit_time_seconds',
            'End of the last complete audit, in Unix time; 0 if there was none since the start of the conductor.',
            registry=registry,
        )
        self._duration = prometheus_client.Gauge(
            'migrator_placement_audit_duration_seconds', 'Duration of the last complete audit.', registry=registry
        )
        self._audits = prometheus_client.Counter(
            'migrator_placement_audits',
            'Audits since the start of the conductor: done, or failed because a service was unreachable.',
            ['result'],
            registry=registry,
        )
        # Create both series now. A counter that first appears at 1 has no rate for that event.
        for result in (_DONE, _FAILED):
            self._audits.labels(result)
        self._set_findings({})

    def done(self, findings: Iterable[Finding], ended_at: datetime.datetime, seconds: float) -> None:
        """Record the findings of a complete audit.

        :param ended_at: its end, with a time zone.
        :param seconds: its duration.
        """
        self._set_findings(collections.Counter(finding.verdict for finding in findings))
        self._ended_at.set(ended_at.timestamp())
        self._duration.set(seconds)
        self._audits.labels(_DONE).inc()

    def failed(self) -> None:
        """Record that an audit was cut short; the findings of the last complete one stay."""
        self._audits.labels(_FAILED).inc()

    def _set_findings(self, number_of: dict[str, int]) -> None:
        for verdict in VERDICTS:
            self._findings.labels(verdict).set(number_of.get(verdict, 0))


def watch_notifications(registry: prometheus_client.CollectorRegistry, waits_for: Callable[[], float]) -> None:
    """Add the metric of the notifications that wait. Only a conductor that sends notifications has it.

    :param registry: the registry of the conductor's metrics.
    :param waits_for: returns for how many seconds notifications have waited; 0 if none waits.
    """
    prometheus_client.Gauge(
        'migrator_notifications_wait_seconds',
        'Seconds for which notifications wait that this conductor could not send; 0 if none waits.',
        registry=registry,
    ).set_function(waits_for)


class Guests:
    """The metric of the guests that are not where the database has them.

    Only a conductor that compares has it.

    :param registry: the registry of the conductor's metrics.
    """

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._differences = prometheus_client.Gauge(
            'migrator_guest_differences',
            'Guests that are not where the database has them: moved, started or removed by hand.',
            ['kind'],
            registry=registry,
        )
        self.count([])

    def count(self, differences: Iterable[Difference]) -> None:
        """Set the number of guests of each kind of difference.

        :param differences: all differences.
        """
        number_of = collections.Counter(difference.kind for difference in differences)
        for kind in DifferenceKind:
            self._differences.labels(kind.value).set(number_of[kind.value])
