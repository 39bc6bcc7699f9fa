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

"""A small threaded HTTP server, for the demo and the tests; a deployment runs the WSGI application elsewhere."""

from __future__ import annotations

import socketserver
import sys
from collections.abc import Callable
from typing import Any
from wsgiref import simple_server

from oslo_log import log as logging

from migrator import executors

LOG = logging.getLogger(__name__)


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    # A request under way must not keep the process from stopping.
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def server_bind(self) -> None:
        # The stock one asks the name service who we are, which may take long and is of no use.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        LOG.debug('The connection with %s broke: %s', client_address, sys.exc_info()[1])


class _Handler(simple_server.WSGIRequestHandler):
    def address_string(self) -> str:
        return str(self.client_address[0])

    def log_message(self, format: str, *args: Any) -> None:
        LOG.debug('%s %s', self.address_string(), format % args)


class Running:
    """A server that listens.

    :ivar host: the address that it is bound to.
    :ivar port: the port; the one that the system chose, where 0 was asked for.
    """

    def __init__(self, server: _Server) -> None:
        self._server = server
        self.host: str = server.server_name
        self.port: int = server.server_port

    @property
    def url(self) -> str:
        """Where it is reached, without a slash at the end."""
        return f'http://{self.host}:{self.port}'

    def stop(self) -> None:
        """Take no more requests, and let go of the port; the answers under way end on their own."""
        self._server.shutdown()
        self._server.server_close()


def serve(app: Callable[..., Any], host: str, port: int, threads: executors.Threads | None = None) -> Running:
    """Serve a WSGI application, each request in a thread of its own.

    :param port: 0 has the system choose one.
    :param threads: where the listening thread comes from; native ones unless told otherwise.
    :raises OSError: the address cannot be bound to.
    """
    server = _Server((host, port), _Handler)
    server.set_app(app)
    listening = Running(server)
    (threads or executors.NativeThreads()).start(server.serve_forever, 0.05, name=f'http-{listening.port}')
    return listening
