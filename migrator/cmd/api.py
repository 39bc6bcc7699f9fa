# SPDX-License-Identifier: Apache-2.0

"""migrator-api: the REST API in a process of its own."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from migrator import tracing
from migrator.objects import base
from migrator.runtime import logs, service
from migrator.runtime.monitor import Monitor
from migrator.runtime.process import Process

LOG = logging.getLogger(__name__)

#: The greatest length of a request body, in bytes.
MAX_BODY = 1024 * 1024

App = Callable[..., Iterable[bytes]]


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options of the API."""
    from oslo_middleware import http_proxy_to_wsgi

    from migrator.conf import opts
    from migrator.db.sql import options

    opts.register_opts(conf)
    options.register_opts(conf)
    conf.register_opts(http_proxy_to_wsgi.OPTS, group='oslo_middleware')


def make_app(process: Process) -> App:
    """Return the WSGI application, wired to the configured database and broker."""
    from migrator.api import app, auth
    from migrator.conductor import rpcapi
    from migrator.conductor.tasks import sagas
    from migrator.conf import upgrade_levels
    from migrator.views import attention

    process.monitor.is_served = True
    version = upgrade_levels.version(process.conf, 'conductor', rpcapi.VERSIONS)
    engine, transport = process.engine(), process.transport()
    database = process.database(engine)
    # The API works without the broker: it commits the row, and a conductor's sweep finds it.
    client: Any = process.rpc(transport, wait=False)
    conductor = rpcapi.ConductorAPI(client, version)
    if process.monitor.measures:
        count_attention(process.monitor, lambda: attention.counts(database, process.conf.conductor.lease))
    observe = process.monitor.time_requests() if process.monitor.measures else None
    made = logged(app.make_app(process.conf, database, conductor, process.threads, sagas()), observe, process.tracer())
    if process.conf.oslo_middleware.enable_proxy_headers_parsing:
        from oslo_middleware import http_proxy_to_wsgi

        made = http_proxy_to_wsgi.HTTPProxyToWSGI(made, process.conf)
        if process.conf.api.auth_strategy == 'noauth2':
            # The application sees only the name that the headers of a proxy give, and a browser can send those too.
            made = auth.only_known_hosts(made, process.conf.api.host_names)
    return process.monitor.around(made)


def count_attention(monitor: Monitor, read: Callable[[], Mapping[str, int]]) -> None:
    """Add the metric of what needs an operator, which is read at each scrape."""
    monitor.counts('migrator_attention', 'What needs an operator, by its kind.', 'kind', read)


def logged(
    app: App, observe: Callable[[str, str, int, float], None] | None = None, tracer: tracing.Tracer | None = None
) -> App:
    """Return the application with a log line for each answer, and the request in all of its lines.

    :param observe: is called with the method, the route, the status and the seconds of each answer.
    :param tracer: records the requests that concern a migration as spans of it; None: they are not traced.
    """

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        began, began_at = time.monotonic(), tracer.now() if tracer is not None else None
        seen: list[str] = []

        def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            seen.append(status)
            return start_response(status, headers, *more)

        with logs.serving(environ):
            try:
                return app(environ, started)
            finally:
                status, seconds = (seen or ['-'])[-1].partition(' ')[0], time.monotonic() - began
                if observe is not None and status.isdigit():
                    route = environ.get('migrator.route', 'none')
                    observe(environ.get('REQUEST_METHOD', '-'), route, int(status), seconds)
                if tracer is not None and began_at is not None:
                    _trace(tracer, environ, status, began_at)
                LOG.info(
                    'Answered %s "%s %s" status: %s time: %.3f',
                    base.printable(environ.get('REMOTE_ADDR', '-')),
                    base.printable(environ.get('REQUEST_METHOD', '-')),
                    _path(environ),
                    status,
                    seconds,
                )

    return serve


def _trace(tracer: tracing.Tracer, environ: dict[str, Any], status: str, began: datetime.datetime) -> None:
    """Record a request that concerns a migration as a span of it."""
    # A row may have no uuid.
    parent = tracing.of_migration(environ.get('migrator.migration') or '')
    if parent is None:
        return
    name = f'{environ["REQUEST_METHOD"]} {environ.get("migrator.route", "none")}'
    code = int(status) if status.isdigit() else 0
    attributes = {'http.response.status_code': code, 'migrator.request_id': environ.get('openstack.request_id', '')}
    span = tracing.Span(name, parent, began, tracer.now(), None, not 0 < code < 500, attributes)
    tracer.export(span)


def _path(environ: dict[str, Any]) -> str:
    query = environ.get('QUERY_STRING')
    path = f'{environ.get("SCRIPT_NAME", "")}{environ.get("PATH_INFO", "")}' + (f'?{query}' if query else '')
    return base.printable(path)  # a line break in a path must not begin a second log line


def begin(process: Process) -> None:
    """Create the API, and serve it."""
    from migrator.conf import api
    from migrator.runtime import http_server

    conf = process.conf
    api.check_bind(conf, conf.api.listen)
    api.check_streams(conf)
    http_server.serve_monitor(process, 'api')
    app = make_app(process)
    url = http_server.serve(
        process,
        app,
        'api',
        'listen',
        'listen_port',
        name='migrator-api',
        max_body=MAX_BODY,
        count=conf.api.threads,
        patience=conf.api.shutdown_timeout,
    )
    LOG.info('The API is at %s/v2.1', url)


def patience(conf: cfg.ConfigOpts) -> float:
    """Return how many seconds a stop waits for the requests under way."""
    return float(conf.api.shutdown_timeout)


KIND = service.Kind('migrator-api', register, begin, patience)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the API, and return its exit status."""
    return service.main(KIND, argv)


if __name__ == '__main__':
    sys.exit(main())
