# SPDX-License-Identifier: Apache-2.0

"""A private RabbitMQ: its own node, cookie, epmd and data, all of its ports on loopback.

It takes some seconds to start, so that there is one for a session, and a virtual host for each test.
"""

from __future__ import annotations

import pathlib
import secrets
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import amqp
import requests

from tests.real.servers import certificates, process

#: What a client says first, and the server answers with a frame.
_GREETING = b'AMQP\x00\x00\x09\x01'


def binaries() -> pathlib.Path | None:
    """Return the folder of RabbitMQ's own scripts; None if there is none."""
    # Debian's /usr/sbin/rabbitmq-server is a wrapper that becomes the user and the node of the system's broker.
    found = process.which('rabbitmq-server', '/usr/lib/rabbitmq/bin')
    return pathlib.Path(found).parent if found and not found.startswith('/usr/sbin/') else None


def missing() -> str | None:
    """Say what is not installed; None if nothing."""
    if binaries() is None:
        return 'RabbitMQ (rabbitmq-server)'
    return None if shutil.which('epmd') else 'Erlang (epmd)'


class _Epmd(process.Process):
    """The daemon that finds Erlang nodes by name.

    A broker would start one that is never ended; this one is ours.
    """

    def __init__(self, workspace: process.Workspace) -> None:
        super().__init__(workspace, 'epmd')
        self.port = process.free_port()

    def command(self) -> Sequence[str]:
        """Return what is run."""
        return ['epmd', '-port', str(self.port), '-address', process.HOST]

    def ready(self) -> bool:
        """Whether it takes connections."""
        return process.listens(self.port)


class RabbitMQ(process.Process):
    """One broker.

    :ivar authority: the file of the authority that has signed the certificate of its port with TLS.
    """

    # its good order takes it five seconds
    last_signal = signal.SIGKILL

    def __init__(self, workspace: process.Workspace) -> None:
        self.epmd = _Epmd(workspace)
        super().__init__(workspace, 'rabbitmq')
        found = binaries()
        assert found is not None, missing()
        self._binaries = found
        self.port = process.free_port()
        self.tls_port = process.free_port()
        self.authority, certificate = certificates.issue(self.directory)
        self._http = process.free_port()
        self._distribution = process.free_port()
        self._node = f'migrator-{secrets.token_hex(4)}@localhost'
        for name in ('mnesia', 'conf.d', 'generated'):
            (self.directory / name).mkdir()
        self._write('rabbitmq-env.conf', '')
        self._write('enabled_plugins', '[rabbitmq_management].\n')
        self._write(
            'rabbitmq.conf',
            f'listeners.tcp.1 = {process.HOST}:{self.port}\n'
            f'listeners.ssl.1 = {process.HOST}:{self.tls_port}\n'
            f'ssl_options.certfile = {certificate}\n'
            f'ssl_options.keyfile = {certificate}\n'
            f'management.tcp.ip = {process.HOST}\n'
            f'management.tcp.port = {self._http}\n'
            'log.console = true\n'
            'log.console.level = info\n'
            'log.file = false\n'
            'disk_free_limit.absolute = 1MB\n'
            'vm_memory_high_watermark.absolute = 1GB\n'
            'management_agent.disable_metrics_collector = true\n',
        )
        self._write('.erlang.cookie', secrets.token_hex(16))
        (self.directory / '.erlang.cookie').chmod(0o400)

    def _write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)

    def command(self) -> Sequence[str]:
        """Return what is run."""
        return [str(self._binaries / 'rabbitmq-server')]

    def environment(self) -> Mapping[str, str]:
        """Return what keeps it apart from every other broker of this machine."""
        here = self.directory
        return {
            'ERL_EPMD_PORT': str(self.epmd.port),
            'ERL_EPMD_ADDRESS': process.HOST,
            'RABBITMQ_NODENAME': self._node,
            'RABBITMQ_DIST_PORT': str(self._distribution),
            'RABBITMQ_CONF_ENV_FILE': str(here / 'rabbitmq-env.conf'),
            'RABBITMQ_CONFIG_FILE': str(here / 'rabbitmq.conf'),
            'RABBITMQ_CONFIG_FILES': str(here / 'conf.d'),
            'RABBITMQ_ADVANCED_CONFIG_FILE': str(here / 'advanced.config'),
            'RABBITMQ_GENERATED_CONFIG_DIR': str(here / 'generated'),
            'RABBITMQ_ENABLED_PLUGINS_FILE': str(here / 'enabled_plugins'),
            'RABBITMQ_MNESIA_BASE': str(here / 'mnesia'),
            'RABBITMQ_LOG_BASE': str(here),
            'RABBITMQ_PID_FILE': str(here / 'pid'),
            # two of each are enough; and it must not start an epmd, for ours is there
            'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS': (
                '-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false +S 2:2 +SDcpu 2:2 +SDio 2'
            ),
        }

    def ready(self) -> bool:
        """Whether it talks AMQP and answers its administrator."""
        try:
            with socket.create_connection((process.HOST, self.port), timeout=2) as connection:
                connection.sendall(_GREETING)
                if not connection.recv(1):
                    return False
            return self.ask('GET', 'health/checks/virtual-hosts').status_code == 200
        except (OSError, requests.RequestException):
            return False

    def start(self, wait: bool = True) -> None:
        """Start it, on the data that it had."""
        if not self.epmd.running:
            self.epmd.start()
        super().start(wait)

    def close(self) -> None:
        """End it, and what it needed."""
        # what its good order would save is deleted next
        self.kill()
        self.epmd.close()

    def short_of_memory(self, short: bool) -> None:
        """Have it believe that it is short of memory, so that it blocks publishers; or no longer."""
        self._control('set_vm_memory_high_watermark', *(['absolute', '1GB'] if not short else ['0']))

    def ports_in_use(self, vhost: str) -> list[int]:
        """Return to which of its ports each connection to a virtual host goes."""
        rows = [line.split('\t') for line in self._control('-q', 'list_connections', 'vhost', 'port').splitlines()]
        return [int(port) for where, port in rows if where == vhost]

    def _control(self, *words: str) -> str:
        command = [str(self._binaries / 'rabbitmqctl'), *words]
        return process.run(command, self.directory, **dict(self.environment()))

    # --- virtual hosts -----------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, **json: Any) -> requests.Response:
        """Send a request to its administrator's API."""
        url = f'http://{process.HOST}:{self._http}/api/{path}'
        return requests.request(method, url, json=json or None, auth=('guest', 'guest'), timeout=10)

    def url(self, vhost: str, user: str = 'guest', password: str = 'guest', tls: bool = False) -> str:
        """Return the transport URL of a virtual host."""
        return f'rabbit://{user}:{password}@{process.HOST}:{self.tls_port if tls else self.port}/{vhost}'

    def create_vhost(self, name: str) -> str:
        """Make a virtual host and return its transport URL. A fresh one can have queues of either kind."""
        self.ask('PUT', f'vhosts/{name}').raise_for_status()
        self.ask('PUT', f'permissions/{name}/guest', configure='.*', write='.*', read='.*').raise_for_status()
        return self.url(name)

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host and all that is in it."""
        self.ask('DELETE', f'vhosts/{name}')

    def create_user(self, name: str, vhost: str) -> None:
        """Make a user, whose password is its name, with every right in one virtual host."""
        self.ask('PUT', f'users/{name}', password=name, tags='').raise_for_status()
        self.ask('PUT', f'permissions/{vhost}/{name}', configure='.*', write='.*', read='.*').raise_for_status()

    def delete_user(self, name: str) -> None:
        """Delete a user."""
        self.ask('DELETE', f'users/{name}')

    def queues(self, vhost: str) -> dict[str, dict[str, Any]]:
        """Return the queues of a virtual host by name."""
        answer = self.ask('GET', f'queues/{vhost}')
        answer.raise_for_status()
        return {queue['name']: queue for queue in answer.json()}

    def consumers(self, vhost: str, queue: str) -> int:
        """Return how many take messages from a queue; 0 if there is none of that name, or no broker."""
        host = f'{process.HOST}:{self.port}'
        try:
            with amqp.Connection(host, 'guest', 'guest', virtual_host=vhost, connect_timeout=5) as connection:
                return int(connection.channel().queue_declare(queue, passive=True).consumer_count)
        except (OSError, amqp.AMQPError):
            return 0
