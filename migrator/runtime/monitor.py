# SPDX-License-Identifier: Apache-2.0

"""What a service shows without a token: whether it works and what is away, and its metrics.

``/healthcheck`` is 200 if the service can do its work, and 503 if something that it needs is away, which it names.
``/healthcheck/live`` is 200 as long as the process answers. No answer has a reason or an address: the log has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import prometheus_client
from prometheus_client.core import GaugeMetricFamily

from migrator import executors

#: A WSGI application.
App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

HEALTH, LIVE, METRICS = '/healthcheck', '/healthcheck/live', '/metrics'

#: Seconds between the end of a check and the next one.
INTERVAL = 5.0
#: Seconds after which a check that has not ended counts as failed.
PATIENCE = 10.0


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


class Monitor:
    """The checks and the metrics of one service.

    :param service: the name of the service, as the answers show it.
    :param stopping: ends the checks once it is set.
    :ivar registry: the registry of the metrics. The parts of the service register theirs in it.
    :ivar started: whether the service has started. It is not ready before.
    """

    def __init__(self, service: str, threads: executors.Threads, stopping: executors.Event) -> None:
        self._service = service
        self._threads = threads
        self._stopping = stopping
        self._checks: dict[str, Check] = {}
        self.started = False
        self.registry = prometheus_client.CollectorRegistry()
        self.registry.register(self)
        prometheus_client.ProcessCollector(registry=self.registry)

    def watch(self, what: str, check: Callable[[], object], *, needed: bool = True) -> None:
        """Check something now and then, from now on.

        :param what: its name in the answers.
        :param check: raises, or returns False, if it is away. It may block.
        :param needed: whether the service cannot work without it.
        """
        added = self._checks[what] = Check(check, needed, self._threads.clock)

        def run() -> None:
            while not self._stopping.is_set():
                added.run()
                self._stopping.wait(INTERVAL)

        self._threads.start(run, name=f'check-{what}')

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
