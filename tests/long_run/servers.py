# SPDX-License-Identifier: Apache-2.0

"""Two PostgreSQL servers, of which one follows the other, and a site with links to all servers."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import psycopg2

from tests.long_run.links import Links
from tests.real.servers import placement, postgresql, process, rabbitmq
from tests.real.site import TREE, Service, Shape, Site

#: Seconds that a connection attempt may take, as an operator sets it for a URL with two servers.
CONNECT = 5


class Node(postgresql.PostgreSQL):
    """One of the two servers."""

    def __init__(self, workspace: process.Workspace, name: str) -> None:
        super().__init__(workspace)
        self.name = name

    def follow(self, port: int) -> None:
        """Replace its data by a copy of another server's, and start it as a standby.

        :param port: at which it reaches the other server, now and later.
        """
        if self.data.exists():
            self._free_memory()
            shutil.rmtree(self.data)
        self.data.mkdir(mode=0o700)
        owner = process.credentials(self.user())
        if owner:
            os.chown(self.data, owner['user'], owner['group'])
        source = f'host={process.HOST} port={port} user={postgresql.USER} password={postgresql.PASSWORD}'
        copy = ['-D', str(self.data), '-R', '-X', 'stream', '--checkpoint=fast', '--no-sync', '-d', source]
        process.run([str(self._binaries / 'pg_basebackup'), *copy], self.directory, self.user())
        self.start()

    def _free_memory(self) -> None:
        # a killed server leaves a segment of System V's shared memory, whose number is in its file
        file = self.data / 'postmaster.pid'
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) > 6:
            with contextlib.suppress(process.ServerError):
                process.run(['ipcrm', '-m', lines[6].split()[1]], self.directory)

    def ask(self, *statements: str) -> list[Any]:
        """Execute statements, each by itself, and return the rows of the last one."""
        connection = psycopg2.connect(
            host=process.HOST, port=self.port, user=postgresql.USER, password=postgresql.PASSWORD, dbname='postgres',
            connect_timeout=CONNECT,
        )  # fmt: skip
        connection.autocommit = True
        with contextlib.closing(connection), connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []


class Cluster:
    """A primary and a standby.

    A commit is acknowledged once the standby has it, so that a failover loses none.
    """

    def __init__(self, workspace: process.Workspace, links: Links) -> None:
        self.links = links
        self.primary, self.standby = Node(workspace, 'db-a'), Node(workspace, 'db-b')
        self.nodes = (self.primary, self.standby)
        for one, other in (self.nodes, self.nodes[::-1]):
            links.port(f'{one.name}>{other.name}', other.port)
        #: Its name for the faults.
        self.name = 'database'

    def start(self) -> None:
        """Start the primary, then the standby."""
        self.primary.start()

    def follow(self) -> None:
        """Make the standby follow the primary, and let each commit wait for it."""
        self.standby.follow(self.links.port(f'{self.standby.name}>{self.primary.name}', self.primary.port))
        process.wait_until(self._follows, 'the standby to follow', 60)
        self.primary.ask("ALTER SYSTEM SET synchronous_standby_names = '*'", 'SELECT pg_reload_conf()')

    def _follows(self) -> bool:
        rows = self.primary.ask("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")
        return bool(rows[0][0])

    def fail_over(self) -> None:
        """Kill the primary, promote the standby, and make the old primary the standby."""
        self.primary.kill()
        self.primary, self.standby = self.standby, self.primary
        self.primary.ask('SELECT pg_promote(true, 60)')
        self.follow()

    @property
    def running(self) -> bool:
        """Whether the primary runs."""
        return self.primary.running

    def create_database(self, name: str) -> str:
        """Make a database, and return its URL past all links."""
        self.primary.create_database(name)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Delete a database."""
        self.primary.drop_database(name)

    def url(self, name: str, who: str | None = None) -> str:
        """Return the SQLAlchemy URL of a database on whichever server takes writes.

        :param who: whose links it leads through; None: through no link.
        """
        ports = [node.port if who is None else self.links.port(f'{who}>{node.name}', node.port) for node in self.nodes]
        hosts = '&'.join(f'host={process.HOST}:{port}' for port in ports)
        more = f'target_session_attrs=read-write&connect_timeout={CONNECT}'
        return f'postgresql+psycopg2://{postgresql.USER}:{postgresql.PASSWORD}@/{name}?{hosts}&{more}'

    def dsn(self, name: str) -> str:
        """Return the same for psycopg2 alone, past all links."""
        ports = ','.join(str(node.port) for node in self.nodes)
        hosts = ','.join(process.HOST for _ in self.nodes)
        return (
            f'host={hosts} port={ports} dbname={name} user={postgresql.USER} password={postgresql.PASSWORD} '
            f'target_session_attrs=read-write connect_timeout={CONNECT}'
        )


class UnitService(Service):
    """A service with the environment that its unit of systemd gives it."""

    def environment(self) -> Mapping[str, str]:
        """Return what is added to the environment."""
        unit = (TREE / f'etc/systemd/migrator-{self.kind}.service').read_text(encoding='utf-8')
        lines = [line.removeprefix('Environment=') for line in unit.splitlines() if line.startswith('Environment=')]
        return {**super().environment(), **dict(line.split('=', 1) for line in lines)}


class LongSite(Site):
    """A site whose services reach the broker, the database and Placement through links."""

    def __init__(
        self,
        workspace: process.Workspace,
        shape: Shape,
        broker: rabbitmq.RabbitMQ,
        cluster: Cluster,
        placement_: placement.Placement,
        links: Links,
    ) -> None:
        self.links = links
        self.cluster = cluster
        self._metrics: dict[tuple[str, str], int] = {}
        super().__init__(workspace, shape, broker, cluster, placement_)  # type: ignore[arg-type]

    @property
    def database_name(self) -> str:
        """The name of its database."""
        return self._database_name

    def configure(self, name: str, **more: Any) -> pathlib.Path:
        """Write the configuration file of a service, with the links that this kind of service needs."""
        broker = self.links.port(f'{name}>broker', self.broker.port)
        url = self.broker.url(self.vhost, self.user(name), self.user(name))
        ways: dict[str, Any] = {'transport_url': url.replace(f':{self.broker.port}/', f':{broker}/')}
        if not name.startswith('host'):
            ways['database.connection'] = self.cluster.url(self._database_name, name)
        if name.startswith('conductor'):
            port = self.links.port(f'{name}>placement', self.placement.port)
            ways['placement.endpoint_override'] = f'http://{process.HOST}:{port}'
        section = next((kind for kind in ('api', 'conductor') if name.startswith(kind)), 'compute')
        ways[f'{section}.metrics_port'] = self._metrics.setdefault((section, name), process.free_port())
        return super().configure(name, **ways, **more)

    def made(self, kind: str, name: str, file: pathlib.Path) -> Service:
        """Return the process of a service."""
        return UnitService(self.workspace, kind, name, file)

    def metrics(self) -> Mapping[tuple[str, str], int]:
        """Return the port at which each service serves its metrics: (kind, name) -> port."""
        return self._metrics
