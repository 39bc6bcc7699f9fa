# SPDX-License-Identifier: Apache-2.0

"""The REST API for any WSGI server: ``gunicorn migrator.wsgi.api:application``.

Importing this reads and starts nothing: the application is made by the first request, and so in the process that is
to serve it, whenever the server forks. Its configuration is that of ``migrator-api``, from the files where OpenStack's
services have theirs, or from the directory that ``OS_MIGRATOR_CONFIG_DIR`` names, and from the environment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from migrator import exception

_lock = threading.Lock()
_made: list[Callable[..., Iterable[bytes]]] = []


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer one request."""
    if not _made:
        try:
            with _lock:
                if not _made:
                    _made.append(_make())
        except exception.MigratorException as error:
            # For who runs the server; a client is told only that it is not his fault.
            environ['wsgi.errors'].write(f'migrator.wsgi.api: {error}\n')
            body = b'{"computeFault": {"code": 503, "message": "The API is not configured, or cannot start."}}'
            start_response('503 Service Unavailable', [('Content-Type', 'application/json')])
            return [body]
    return _made[0](environ, start_response)


def _make() -> Callable[..., Iterable[bytes]]:
    # Imported here, when the server has settled what threads are.
    from migrator import executors
    from migrator.cmd import api
    from migrator.conf import api as api_conf
    from migrator.runtime import concurrency, logs, process, settings

    conf = settings.read('migrator-api')
    concurrency.choose(conf)
    settings.complete(conf, [api.register])
    # Where the server listens is not known here; it has to be taken for every address.
    api_conf.check_bind(conf, '')
    logs.setup(conf)
    return api.make_app(process.Process('migrator-api', conf, executors.NativeThreads()))
