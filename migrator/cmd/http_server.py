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

"""An HTTP server in a service's process, on a port that the configuration names.

The server is cheroot: plain threads, HTTP/1.1 with connections that are kept, slow clients that hold no thread until
their request is there, and a stop that lets the requests under way end. See ``doc/source/decisions/`` for why.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception
from migrator.cmd import service

LOG = logging.getLogger(__name__)

App = Callable[..., Iterable[bytes]]


def serve(
    process: service.Process,
    app: App,
    group: str,
    host_option: str,
    port_option: str,
    *,
    name: str,
    max_body: int,
    **settings: Any,
) -> str:
    """Serve a WSGI application until the process stops, and return its URL, without a path.

    :param group: the section of the two options.
    :param host_option: the option that says at which address it listens.
    :param port_option: the option that says at which port; with 0 the system chooses one.
    :param name: what the server calls itself.
    :param max_body: no request is longer, in bytes.
    :param settings: of ``cheroot.wsgi.Server``.
    :raises migrator.exception.ConfigurationError: nobody can listen there.
    """
    from cheroot import wsgi

    section = process.conf[group]
    address = (section[host_option], section[port_option])
    server: Any = wsgi.Server(address, app, server_name=name, **settings)
    server.max_request_body_size = max_body
    server.error_log = _log_error
    try:
        server.prepare()
    except OSError as error:
        raise _cannot_listen(section, f'[{group}]', host_option, port_option, error) from None
    host, port = server.bind_addr[:2]
    process.threads.start(server.serve, name='http')
    process.on_stop(server.stop)
    return f'http://{_shown(host)}:{port}'


def _cannot_listen(
    section: cfg.ConfigOpts.GroupAttr, group: str, host_option: str, port_option: str, error: OSError
) -> exception.ConfigurationError:
    # cheroot puts all that it tried into one text, and leaves the number out.
    text = str(error)
    host, port = section[host_option], section[port_option]
    if f'Errno {errno.EADDRINUSE}]' in text:
        return exception.ConfigurationError(
            option=f'{group} {port_option}',
            value=port,
            detail=f'something else listens there, at {_shown(host)}: {port + 1} may be free.',
        )
    if f'Errno {errno.EACCES}]' in text:
        return exception.ConfigurationError(
            option=f'{group} {port_option}', value=port, detail='only root may listen there; 1024 or more would do.'
        )
    return exception.ConfigurationError(
        option=f'{group} {host_option}', value=host, detail=f'nobody can listen there: {" ".join(text.split())}.'
    )


def _shown(host: str) -> str:
    return f'[{host}]' if ':' in host else host


def _log_error(message: str = '', level: int = 20, traceback: bool = False) -> None:
    # What cheroot has to tell is of single connections: broken ones, and requests that are none.
    LOG.log(level if traceback else min(level, 20), 'HTTP: %s', message.strip(), exc_info=traceback)
