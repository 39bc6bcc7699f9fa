# SPDX-License-Identifier: Apache-2.0

"""The health and the metrics of a service. They need no token.

``/healthcheck`` is 200 if the service can do its work, and 503 if something that it needs is away, which it names.
``/healthcheck/live`` is 200 as long as the process answers. No answer has a reason or an address: the log has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import prometheus_client
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from migrator import executors
from migrator.tracing import Around
from migrator.virt.driver import Copied

#: A WSGI application.
App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

HEALTH, LIVE, METRICS = '/healthcheck', '/healthcheck/live', '/metrics'

_METHODS = ('GET', 'HEAD', 'POST', 'PUT', 'DELETE')

#: Seconds between the end of a check and the next one.
INTERVAL = 10.0
#: Seconds after which a check that has not ended counts as failed.
PATIENCE = 10.0

#: The upper bounds of the histograms, in seconds. A statement takes tenths of a millisecond, and a call up to a minute.
_BUCKETS: Sequence[float] = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

#: The same of the time for which a guest stands still, and of the bytes per second of a copy.
_DOWNTIMES = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)
_RATES = (1e6, 1e7, 2.5e7, 5e7, 1e8, 2.5e8, 5e8, 1e9, 2.5e9, 5e9, 1e10, 2.5e10)


class Check:
    """One thing that a service uses, such as the database.

    :param check: raises, or returns False, if it is away. It is called in a thread of its own, so it may block.
    :param needed: whether the service cannot work without it.
    """

    def __init__(self, check: Callable[[], object], needed: bool, clock: executors.Clock) -> None:
        self.needed = needed
        self._check = check
        self._clock = clock
        self._began: float | None = None
        self._is_ok: bool | None = None

    def run(self) -> None:
        """Check once."""
        self._began = self._clock.monotonic()
        try:
            self._is_ok = self._check() is not False
        except Exception:  # noqa: BLE001 -- the part that uses it logs its outages, with the reasons
            self._is_ok = False
        self._began = None

    def result(self) -> str:
        """Return ``ok``, ``away``, or ``unknown`` before the end of the first check."""
        began = self._began
        if began is not None and self._clock.monotonic() - began > PATIENCE:
            return 'away'
        return 'unknown' if self._is_ok is None else 'ok' if self._is_ok else 'away'


class _Counts(Collector):
    """A metric with a number for each value of a label."""

    def __init__(self, name: str, text: str, label: str, read: Callable[[], Mapping[str, int]]) -> None:
        self._form, self._read = (name, text, None, [label]), read

    def describe(self) -> Iterable[Metric]:
        """Return the metric without its values, so that its registration reads nothing."""
        return [GaugeMetricFamily(*self._form)]

    def collect(self) -> Iterable[Metric]:
        found = GaugeMetricFamily(*self._form)
        try:
            for value, number in self._read().items():
                found.add_metric([value], number)
        except Exception:  # noqa: BLE001 -- as for a check: the part that uses it logs its outages
            return []
        return [found]


class Monitor:
    """The checks and the metrics of one service.

    :param service: the name of the service, as the answers show it.
    :param stopping: ends the checks once it is set.
    :ivar registry: the registry of the metrics. The parts of the service register theirs in it.
    :ivar is_served: whether the health is served. If not, nothing is checked.
    :ivar measures: whether the metrics are served. If not, nothing is measured.
    :ivar started: whether the service has started. It is not ready before.
    """

    def __init__(self, service: str, threads: executors.Threads, stopping: executors.Event) -> None:
        self._service = service
        self._threads = threads
        self._stopping = stopping
        self._checks: dict[str, Check] = {}
        self.is_served = False
        self.measures = False
        self.started = False
        self.registry = prometheus_client.CollectorRegistry()
        self.registry.register(self)
        prometheus_client.ProcessCollector(registry=self.registry)

    def watch(self, what: str, check: Callable[[], object], *, needed: bool = True) -> None:
        """Check something every :data:`INTERVAL`, in a thread of its own, if the health is served.

        :param what: its name in the answers.
        :param check: raises, or returns False, if it is away. It may block.
        :param needed: whether the service cannot work without it.
        """
        if not self.is_served:
            return
        added = self._checks[what] = Check(check, needed, self._threads.clock)

        def run() -> None:
            while not self._stopping.is_set():
                added.run()
                self._stopping.wait(INTERVAL)

        self._threads.start(run, name=f'check-{what}')

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a metric that is read at each scrape.

        :param text: its help text.
        """
        prometheus_client.Gauge(name, text, registry=self.registry).set_function(read)

    def counts(self, name: str, text: str, label: str, read: Callable[[], Mapping[str, int]]) -> None:
        """Add a metric that is read at each scrape: a number for each value of a label.

        :param text: its help text.
        :param read: may raise. The metric then has no values, and the others are served all the same.
        """
        self.registry.register(_Counts(name, text, label, read))

    def time_statements(self) -> Callable[[float], None]:
        """Return a function that counts an SQL statement, given its seconds."""
        return self._times('migrator_database_statement_seconds', 'SQL statements, by their duration.').observe

    def time_requests(self) -> Callable[[str, str, int, float], None]:
        """Return a function that counts an answer of the API, given its method, route, status and seconds."""
        text, labels = 'Answers of the API, by their duration.', ('method', 'route', 'code')
        times = self._times('migrator_http_request_seconds', text, *labels)

        def observe(method: str, route: str, status: int, seconds: float) -> None:
            # A client chooses the method, and may choose any number of them.
            known = method if method in _METHODS else 'other'
            times.labels(known, route, str(status)).observe(seconds)

        return observe

    def measure_copies(self, then: Copied) -> Copied:
        """Return the ``on_copied`` of a driver, which counts the live migrations.

        :param then: called with the same.
        """
        name = 'migrator_live_migration_'
        text = 'Live migrations from this host that have completed, by the time for which the guest stood still.'
        downtimes = self._times(f'{name}downtime_seconds', text, buckets=_DOWNTIMES)
        text = 'Live migrations from this host that have completed, by the bytes per second that were copied.'
        rates = self._times(f'{name}bytes_per_second', text, buckets=_RATES)

        def observe(instance_uuid: str, downtime: float | None, rate: float | None) -> None:
            for histogram, value in ((downtimes, downtime), (rates, rate)):
                if value is not None:
                    histogram.observe(value)
            then(instance_uuid, downtime, rate)

        return observe

    def timed_adapter(self, adapter: Any) -> Any:
        """Return Placement's adapter, with the durations of its requests as a metric."""
        text = 'Requests to Placement, by their duration; the code "none" is for those without an answer.'
        times = self._times('migrator_placement_request_seconds', text, 'method', 'code')

        def request(send: Callable[..., Any], url: str, method: str, **more: Any) -> Any:
            began, code = self._threads.clock.monotonic(), 'none'
            try:
                response = send(url, method, **more)
                code = str(response.status_code)
            finally:
                times.labels(method, code).observe(self._threads.clock.monotonic() - began)
            return response

        return Around(adapter, request=request)

    def timed_rpc(self, rpc: Any) -> Any:
        """Return an RPC, with the durations of its calls as a metric."""
        text = 'Calls to other services, by their duration, and whether they were answered.'
        times = self._times('migrator_rpc_call_seconds', text, 'method', 'result')

        def call(send: Callable[..., Any], context: Any, target: Any, method: str, *args: Any, **more: Any) -> Any:
            began, result = self._threads.clock.monotonic(), 'failed'
            try:
                answer = send(context, target, method, *args, **more)
                result = 'answered'
            finally:
                times.labels(method, result).observe(self._threads.clock.monotonic() - began)
            return answer

        return Around(rpc, call=call)

    def _times(
        self, name: str, text: str, *labels: str, buckets: Sequence[float] = _BUCKETS
    ) -> prometheus_client.Histogram:
        return prometheus_client.Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the metric of the checks; the registry calls this at each scrape."""
        found = GaugeMetricFamily(
            'migrator_check_ok', 'Whether what the service uses answers: 1, or 0 if it is away.', labels=['what']
        )
        for what, check in list(self._checks.items()):
            result = check.result()
            if result != 'unknown':
                found.add_metric([what], float(result == 'ok'))
        yield found
        yield GaugeMetricFamily(
            'migrator_started', 'Whether the service has started: 1, or 0 while it waits for something.', self.started
        )

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the service can do its work, and the answer to :data:`HEALTH`."""
        results = {what: (check.result(), check.needed) for what, check in list(self._checks.items())}
        is_up = self.started and not self._stopping.is_set()
        ready = is_up and all(result == 'ok' for result, needed in results.values() if needed)
        checks = {what: {'result': result, 'needed': needed} for what, (result, needed) in results.items()}
        return ready, {'service': self._service, 'started': self.started, 'ready': ready, 'checks': checks}

    def around(self, app: App) -> App:
        """Return an application that answers :data:`HEALTH` and :data:`LIVE` itself."""

        def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            path = environ.get('PATH_INFO')
            if path not in (HEALTH, LIVE):
                return app(environ, start_response)
            if environ['REQUEST_METHOD'] not in ('GET', 'HEAD'):
                return _text(start_response, '405 Method Not Allowed', 'GET or HEAD\n', ('Allow', 'GET, HEAD'))
            ready, body = (True, {'service': self._service, 'live': True}) if path == LIVE else self.health()
            data = json.dumps(body).encode()
            headers = [
                ('Content-Type', 'application/json'),
                ('Content-Length', str(len(data))),
                ('Cache-Control', 'no-store'),
            ]
            start_response('200 OK' if ready else '503 Service Unavailable', headers)
            return [data] if environ['REQUEST_METHOD'] == 'GET' else []

        return answer

    def make_app(self) -> App:
        """Return an application that serves the health and the metrics, and nothing else."""
        serve: App = prometheus_client.make_wsgi_app(self.registry)

        def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            # The library's application would serve the metrics at any path.
            if environ.get('PATH_INFO') == METRICS:
                return serve(environ, start_response)
            return _text(start_response, '404 Not Found', f'Only {METRICS}, {HEALTH} and {LIVE} are served here.\n')

        return self.around(_with_head(app))


def _text(start_response: Callable[..., Any], status: str, text: str, *headers: tuple[str, str]) -> list[bytes]:
    start_response(status, [('Content-Type', 'text/plain; charset=utf-8'), *headers])
    return [text.encode()]


def _with_head(app: App) -> App:
    """Return an application that also answers HEAD, which probes send, as GET without the body."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ['REQUEST_METHOD'] != 'HEAD':
            return app(environ, start_response)
        begun: list[tuple[str, list[tuple[str, str]]]] = []
        body = b''.join(app({**environ, 'REQUEST_METHOD': 'GET'}, lambda *what: begun.append(what)))
        ((status, headers),) = begun
        start_response(status, [*headers, ('Content-Length', str(len(body)))])
        return []

    return answer
