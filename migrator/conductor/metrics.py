# SPDX-License-Identifier: Apache-2.0

"""What a conductor tells of itself in the format of Prometheus: numbers that somebody fetches now and then.

They are in a registry of their own, never in the library's global one: several conductors may live in one process.
"""

from __future__ import annotations

import collections
import datetime
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import prometheus_client

from migrator.db.cleanups import Cleanup
from migrator.placement_client.audit import VERDICTS, Finding

if TYPE_CHECKING:  # who audits by a command needs nothing of RPC
    from migrator.conductor.migration import context

#: What a WSGI server calls.
App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

#: Where the metrics are.
PATH = '/metrics'

_DONE, _FAILED = 'done', 'failed'


class Metrics:
    """The metrics of one conductor.

    :param held: returns the migrations in its hands; asked at each look at the metrics.
    :param broker_away: returns for how many seconds the broker has been away; 0: it is not.
    :ivar registry: what there is to be told. More may be registered there.
    """

    def __init__(
        self, held: Callable[[], Collection[context.MigrationContext]], broker_away: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        prometheus_client.Gauge(
            'migrator_migrations_held', "Migrations in this conductor's hands.", registry=self.registry
        ).set_function(lambda: len(held()))
        prometheus_client.Gauge(
            'migrator_migrations_stuck',
            "Migrations in this conductor's hands that are stuck: they wait for a person.",
            registry=self.registry,
        ).set_function(lambda: sum(one.row.stuck_reason is not None for one in held()))

        prometheus_client.Gauge(
            'migrator_broker_away_seconds',
            'For how long this conductor has not reached the message broker; 0: it does. Hosts are not to blame then.',
            registry=self.registry,
        ).set_function(broker_away)
        self._down = prometheus_client.Gauge(
            'migrator_computes_down',
            'Compute services that are down: silent to a conductor that could be reached all the time.',
            registry=self.registry,
        )
        self._cleanups = prometheus_client.Gauge(
            'migrator_debts',
            'What hosts owe for migrations that have gone on without them; with an alarm it waits for a person.',
            ['alarm'],
            registry=self.registry,
        )
        self.count_cleanups([])

    def count_down(self, number: int) -> None:
        """Take in how many compute services are down."""
        self._down.set(number)

    def count_cleanups(self, owed: Iterable[Cleanup]) -> None:
        """Take in what is owed.

        :param owed: all debts that there are.
        """
        number_of = collections.Counter(cleanup.alarm is not None for cleanup in owed)
        for alarm in (False, True):
            self._cleanups.labels('yes' if alarm else 'no').set(number_of[alarm])

    def make_app(self) -> App:
        """Return a WSGI application that tells them at :data:`PATH`, to GET and HEAD; it has nothing anywhere else."""
        tell: App = prometheus_client.make_wsgi_app(self.registry)

        def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            # The library's own would answer with the metrics at any path.
            if environ.get('PATH_INFO') == PATH:
                return tell(environ, start_response)
            start_response('404 Not Found', [('Content-Type', 'text/plain; charset=utf-8')])
            return [f'There is nothing here but {PATH}.\n'.encode()]

        return _with_head(app)


def _with_head(app: App) -> App:
    """Return an application that answers HEAD as this one answers GET, without the body: a probe may ask so."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ['REQUEST_METHOD'] != 'HEAD':
            return app(environ, start_response)
        begun: list[tuple[str, list[tuple[str, str]]]] = []
        body = b''.join(app({**environ, 'REQUEST_METHOD': 'GET'}, lambda *what: begun.append(what)))
        ((status, headers),) = begun
        start_response(status, [*headers, ('Content-Length', str(len(body)))])
        return []

    return answer


class Audits:
    """What the audits of Placement's books have found, and whether there still are any.

    Only a conductor that audits has them: no findings where nobody looks would be good news that is none.

    :param registry: where they are told.
    """

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._findings = prometheus_client.Gauge(
            'migrator_placement_findings',
            'Allocations without a living reason that the last audit which was done has found.',
            ['verdict'],
            registry=registry,
        )
        self._ended_at = prometheus_client.Gauge(
            'migrator_placement_audit_time_seconds',
            'When the last audit which was done has ended, in Unix time; 0: none since the conductor was started.',
            registry=registry,
        )
        self._duration = prometheus_client.Gauge(
            'migrator_placement_audit_duration_seconds',
            'How long the last audit which was done took.',
            registry=registry,
        )
        self._audits = prometheus_client.Counter(
            'migrator_placement_audits',
            'Audits since the conductor was started: done, or failed since something that they need was away.',
            ['result'],
            registry=registry,
        )
        # A series that appears with its first event has no rate then, and cannot be told from one that was renamed.
        for result in (_DONE, _FAILED):
            self._audits.labels(result)
        self._tell({})

    def done(self, findings: Iterable[Finding], ended_at: datetime.datetime, seconds: float) -> None:
        """Take in what an audit has found.

        :param ended_at: aware.
        :param seconds: how long it took.
        """
        self._tell(collections.Counter(finding.verdict for finding in findings))
        self._ended_at.set(ended_at.timestamp())
        self._duration.set(seconds)
        self._audits.labels(_DONE).inc()

    def failed(self) -> None:
        """Take in that an audit came to no end: what the last one has found is still the best that is known."""
        self._audits.labels(_FAILED).inc()

    def _tell(self, number_of: dict[str, int]) -> None:
        for verdict in VERDICTS:
            self._findings.labels(verdict).set(number_of.get(verdict, 0))
