# SPDX-License-Identifier: Apache-2.0

"""A collector of OpenTelemetry, as far as it takes traces over HTTP."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(http.server.ThreadingHTTPServer):
    """The server.

    :ivar received: path and body of each request.
    """

    def __init__(self) -> None:
        self.received: list[tuple[str, ExportTraceServiceRequest]] = []
        super().__init__(('127.0.0.1', 0), _Handler)

    @property
    def url(self) -> str:
        """Its address."""
        return f'http://127.0.0.1:{self.server_address[1]}'

    def spans(self) -> list[str]:
        """Return the names of the received spans."""
        return [
            span.name
            for _path, request in self.received
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = ExportTraceServiceRequest()
        body.ParseFromString(self.rfile.read(int(self.headers['Content-Length'])))
        self.server.received.append((self.path, body))
        self.send_response(200)
        self.send_header('Content-Length', '0')
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector."""
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={'poll_interval': 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
