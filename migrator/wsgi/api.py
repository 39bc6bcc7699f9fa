# SPDX-License-Identifier: Apache-2.0

"""The REST API for any WSGI server: ``gunicorn migrator.wsgi.api:application``.

An import reads and starts nothing. The first request creates the application, so it is created in the process that
serves it, whenever the server forks. The configuration is that of ``migrator-api``. It comes from the default files of
OpenStack services, or from the directory that ``OS_MIGRATOR_CONFIG_DIR`` names; from the credentials that systemd loads
for the server's unit; and from the environment.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any

from migrator import exception

_lock = threading.Lock()
_made: list[Callable[..., Iterable[bytes]]] = []


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer one request."""
    if not _made:
        # Import here, after the server has decided whether threads are native or green.
        from migrator.runtime import monitor

        if environ.get('PATH_INFO') in (monitor.HEALTH, monitor.LIVE):
            return _health_of_a_start(environ, start_response)
        try:
            _create()
        except exception.MigratorException as error:
            # The operator needs the details. A client receives only that the API is not available.
            environ['wsgi.errors'].write(f'migrator.wsgi.api: {error}\n')
            body = b'{"computeFault": {"code": 503, "message": "The API is not configured, or cannot start."}}'
            start_response('503 Service Unavailable', [('Content-Type', 'application/json')])
            return [body]
    return _made[0](environ, start_response)


def _create() -> None:
    with _lock:
        if not _made:
            _made.append(_make())


def _health_of_a_start(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer that the API has not started, and create it meanwhile: that may wait for the database."""
    from migrator import executors
    from migrator.runtime import monitor

    threads = executors.NativeThreads()

    def create() -> None:
        # A request that is answered shows the error.
        with contextlib.suppress(exception.MigratorException):
            _create()

    if not _lock.locked():
        threads.start(create, name='create')
    return monitor.Monitor('migrator-api', threads, threads.event()).make_app()(environ, start_response)


def _make() -> Callable[..., Iterable[bytes]]:
    from migrator import executors
    from migrator.cmd import api
    from migrator.conf.api import check_bind
    from migrator.runtime import concurrency, logs, process, settings

    conf = settings.read('migrator-api')
    concurrency.choose(conf)
    settings.complete(conf, [api.register])
    # The address of the server is not known here, so check as if it listens on every address.
    check_bind(conf, '')
    logs.setup(conf)
    settings.warn_of_unknown_options(conf)
    serving = process.Process('migrator-api', conf, executors.NativeThreads())
    app = api.make_app(serving)
    serving.monitor.started = True
    return app
