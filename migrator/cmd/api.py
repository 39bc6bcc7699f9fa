# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""migrator-api: the REST API in a process of its own.

The server is cheroot: plain threads, HTTP/1.1 with connections that are kept, slow clients that hold no thread until
their request is there, and a stop that lets the requests under way end. See ``doc/source/decisions/`` for why.
"""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception
from migrator.cmd import logs, service

LOG = logging.getLogger(__name__)

#: No request of this API is longer, in bytes.
MAX_BODY = 1024 * 1024

App = Callable[..., Iterable[bytes]]


def register(conf: cfg.ConfigOpts) -> None:
    """Register what the API needs."""
    from migrator.conf import opts
    from migrator.db import options

    opts.register_opts(conf)
    options.register_opts(conf)


def make_app(process: service.Process) -> App:
    """Return the WSGI application, wired to the configured database and broker."""
    from migrator.api import app
    from migrator.conductor import rpcapi

    engine, transport = process.engine(), process.transport()
    database = process.database(engine)
    # Without the broker it accepts and answers: the row is committed, and a conductor's sweep finds it.
    client: Any = process.rpc(transport, wait=False)
    return logged(app.make_app(process.conf, database, rpcapi.ConductorAPI(client), process.threads))


def logged(app: App) -> App:
    """Have what is logged for a request say which one it is, and log each answer."""

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        began = time.monotonic()
        seen: list[str] = []

        def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            seen.append(status)
            return start_response(status, headers, *more)

        with logs.serving(environ):
            try:
                return app(environ, started)
            finally:
                LOG.info(
                    '%s "%s %s" status: %s time: %.3f',
                    environ.get('REMOTE_ADDR', '-'),
                    environ.get('REQUEST_METHOD'),
                    _path(environ),
                    (seen or ['-'])[-1].partition(' ')[0],
                    time.monotonic() - began,
                )

    return serve


def _path(environ: dict[str, Any]) -> str:
    query = environ.get('QUERY_STRING')
    path = f'{environ.get("SCRIPT_NAME", "")}{environ.get("PATH_INFO", "")}' + (f'?{query}' if query else '')
    return path.encode('unicode_escape').decode('ascii')  # a line break in a path must not make a second log line


def begin(process: service.Process) -> None:
    """Wire the API, and serve it."""
    from cheroot import wsgi

    from migrator.conf import api as api_conf

    conf = process.conf
    api_conf.check_bind(conf, conf.api.listen)
    app = make_app(process)
    server: Any = wsgi.Server(
        (conf.api.listen, conf.api.listen_port),
        app,
        numthreads=conf.api.threads,
        request_queue_size=128,
        shutdown_timeout=conf.api.shutdown_timeout,
        server_name='migrator-api',
    )
    server.max_request_body_size = MAX_BODY
    server.error_log = _log_error
    try:
        server.prepare()
    except OSError as error:
        raise _cannot_listen(conf, error) from None
    host, port = server.bind_addr[:2]
    LOG.info('The API is at http://%s:%d/v2.1', f'[{host}]' if ':' in host else host, port)
    process.threads.start(server.serve, name='http')
    process.on_stop(server.stop)


def _cannot_listen(conf: cfg.ConfigOpts, error: OSError) -> exception.ConfigurationError:
    # cheroot puts all that it tried into one text, and leaves the number out.
    text = str(error)
    port = conf.api.listen_port
    if f'Errno {errno.EADDRINUSE}]' in text:
        return exception.ConfigurationError(
            option='[api] listen_port', value=port, detail=f'something else listens there: {port + 1} may be free.'
        )
    if f'Errno {errno.EACCES}]' in text:
        return exception.ConfigurationError(
            option='[api] listen_port', value=port, detail='only root may listen there; 1024 or more would do.'
        )
    return exception.ConfigurationError(
        option='[api] listen', value=conf.api.listen, detail=f'nobody can listen there: {" ".join(text.split())}.'
    )


def _log_error(message: str = '', level: int = 20, traceback: bool = False) -> None:
    # What cheroot has to tell is of single connections: broken ones, and requests that are none.
    LOG.log(level if traceback else min(level, 20), 'HTTP: %s', message.strip(), exc_info=traceback)


KIND = service.Kind('migrator-api', register, begin)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the API, and return its exit status."""
    return service.main(KIND, argv)


if __name__ == '__main__':
    sys.exit(main())
