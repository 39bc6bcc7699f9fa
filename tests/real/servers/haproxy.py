# SPDX-License-Identifier: Apache-2.0

"""A private haproxy that ends TLS before a server on loopback, as the install page configures it."""

from __future__ import annotations

import pathlib
import signal
from collections.abc import Sequence

from tests.real.servers import process

CONF = """
global
    hard-stop-after 1s
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend public
    bind {host}:{port} ssl crt {certificate}
    http-request set-header X-Forwarded-Proto https
    default_backend servers
backend servers
    server one {host}:{behind}
"""


def missing() -> str | None:
    """Say what is not installed; None if nothing."""
    return None if program() else 'haproxy'


def program() -> str | None:
    """Return where haproxy is; None if it is not installed."""
    return process.which('haproxy', '/usr/sbin')


class HAProxy(process.Process):
    """One proxy.

    :param certificate: a file with the certificate and its key.
    :param behind: the port of the server on loopback that gets the requests.
    """

    stop_signal = signal.SIGUSR1

    def __init__(self, workspace: process.Workspace, certificate: pathlib.Path, behind: int) -> None:
        super().__init__(workspace, 'haproxy')
        self.port = process.free_port()
        self._file = self.directory / 'haproxy.cfg'
        self._file.write_text(CONF.format(host=process.HOST, port=self.port, certificate=certificate, behind=behind))

    def command(self) -> Sequence[str]:
        """Return what is run."""
        found = program()
        assert found is not None, missing()
        return [found, '-db', '-f', str(self._file)]

    def ready(self) -> bool:
        """Whether it takes connections."""
        return process.listens(self.port)

    @property
    def url(self) -> str:
        """Where it is."""
        return f'https://localhost:{self.port}'
