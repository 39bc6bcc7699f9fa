# SPDX-License-Identifier: Apache-2.0

"""The socket of a demo that is being served: one JSON object each way, each in one line.

The socket is in the directory of the demo. Only its user may open either.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import socketserver
from collections.abc import Callable, Iterator
from typing import Any

from oslo_log import log as logging

from migrator import executors

LOG = logging.getLogger(__name__)

#: The socket in the directory of a demo.
SOCKET = 'demo.socket'
#: The greatest length of a request or an answer in bytes. The guests of a host are one answer.
_LONGEST = 16 * 2**20
#: Seconds that each end waits for the other, unless a request has its own limit.
PATIENCE = 30.0
#: The number of requests that are answered at once.
_AT_ONCE = 16

Document = dict[str, Any]


def ask(directory: pathlib.Path, request: Document, patience: float = PATIENCE) -> Document:
    """Send a request to the demo of a directory, and return its answer.

    :raises TimeoutError: it has not answered within ``patience`` seconds.
    :raises OSError: nothing answers there.
    :raises ValueError: the request or the answer is too long, or the answer is not one of a demo.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(patience)
        with _address(directory) as address:
            connection.connect(address)
        connection.sendall(_line(request))
        return _document(connection.makefile('rb').readline(_LONGEST))


def serve(
    directory: pathlib.Path, answer: Callable[[Document], Document], threads: executors.Threads
) -> Callable[[], None]:
    """Answer requests, and return what ends that.

    :param answer: returns the answer to a request. A ValueError, TypeError or AttributeError refuses the request.
    """
    pool = executors.BoundedExecutor(_AT_ONCE, threads, 'demo-socket')

    class Handler(socketserver.StreamRequestHandler):
        timeout = PATIENCE

        def handle(self) -> None:
            try:
                answered = _line(answer(_document(self.rfile.readline(_LONGEST))))
            except (ValueError, TypeError, AttributeError) as error:
                answered = _line({'refused': str(error)})
            self.wfile.write(answered)

    class Server(socketserver.UnixStreamServer):
        def process_request(self, request: Any, client_address: Any) -> None:
            pool.submit(self._answer, request, client_address)

        def _answer(self, request: Any, client_address: Any) -> None:
            try:
                self.finish_request(request, client_address)
            except OSError as error:
                LOG.info('Request of a command was not answered: %s', error)
            except Exception:  # the pool would drop the error
                LOG.exception('Request of a command failed unexpectedly')
            finally:
                self.shutdown_request(request)

    # The socket is never open to others: the directory is its user's alone, and so is the socket from its creation on.
    before = os.umask(0o177)
    try:
        with _address(directory) as address:
            server = Server(address, Handler)
    finally:
        os.umask(before)
    threads.start(lambda: server.serve_forever(poll_interval=0.2), name='demo-socket')

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return stop


def _line(document: Document) -> bytes:
    line = json.dumps(document).encode() + b'\n'
    if len(line) > _LONGEST:
        raise ValueError(f'a message of {len(line)} bytes is too long: the socket of a demo carries {_LONGEST}')
    return line


def _document(line: bytes) -> Document:
    document = json.loads(line)
    if not isinstance(document, dict):
        raise ValueError('the message is not that of a demo')
    return document


@contextlib.contextmanager
def _address(directory: pathlib.Path) -> Iterator[str]:
    """Yield the address of the socket in a directory, whose own path may be longer than an address may be."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f'/proc/self/fd/{handle}/{SOCKET}'
    finally:
        os.close(handle)
