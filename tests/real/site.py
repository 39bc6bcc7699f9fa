# SPDX-License-Identifier: Apache-2.0

"""A site: the services as an operator runs them, each a process, with its own vhost and database.

RabbitMQ, PostgreSQL and Placement are the session's; the hypervisors are fakes in a process of their own, which
outlives the computes. Each service has a configuration file and nothing else, and a user of its own at the broker, so
that each message there has a known sender.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import signal
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.real.servers import placement, postgresql, process, rabbitmq
from tests.real.servers.tap import Tap

TREE = pathlib.Path(__file__).resolve().parents[2]

#: What each kind of service is run by.
MODULES = {'api': 'migrator.cmd.api', 'conductor': 'migrator.cmd.conductor', 'compute': 'migrator.cmd.compute'}


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a site is made of.

    :ivar options: what its configuration says besides, ``{'conductor.lease': 5}``.
    :ivar world: further words on the command line of its hypervisors' process, ``('--vcpus', '400')``.
    """

    hosts: int = 3
    conductors: int = 1
    apis: int = 1
    options: tuple[tuple[str, Any], ...] = ()
    world: tuple[str, ...] = ()


class Service(process.Script):
    """One service; it is ready when its log says that it has started.

    :param kind: of :data:`MODULES`.
    :param file: its configuration.
    """

    def __init__(self, workspace: process.Workspace, kind: str, name: str, file: pathlib.Path) -> None:
        super().__init__(workspace, name, ['-m', MODULES[kind], '--config-file', str(file)])
        self.kind = kind
        self.file = file
        self._since = 0

    def start(self, wait: bool = True) -> None:
        """Start it. Only the log of an earlier start is left."""
        self._since = self.log.stat().st_size if self.log.exists() else 0
        super().start(wait)

    def ready(self) -> bool:
        """Return whether its log says that it has started."""
        return 'Started service' in self.tail(self._since, lines=10_000)


class Site:
    """The processes of one cloud; nothing runs until :meth:`start`.

    :param placement_: one whose providers are all of this site.
    :ivar services: name -> service: ``conductor1``, ``api1``, ``host1`` and so on.
    """

    def __init__(
        self,
        workspace: process.Workspace,
        shape: Shape,
        broker: rabbitmq.RabbitMQ,
        database: postgresql.PostgreSQL,
        placement_: placement.Placement,
    ) -> None:
        self.workspace = workspace
        self.shape = shape
        self.broker = broker
        self.placement = placement_
        self.directory = workspace.directory('site')
        mark = uuid.uuid4().hex[:12]
        self.vhost = f'site-{mark}'
        self._database_server = database
        self._database_name = f'site_{mark}'
        self.database_url = database.create_database(self._database_name)
        broker.create_vhost(self.vhost)
        self.hosts = self.host_names()
        self.ports: dict[str, int] = {}
        # short: the path of a unix socket has its limit
        self.world_path = str(workspace.directory('w') / 's')
        self.world_process = process.Script(
            workspace,
            'fake-world',
            ['-m', 'migrator.testing.fake_world.server', '--listen', self.world_path, *shape.world],
            ready=lambda script: 'The world is' in script.log.read_text(errors='replace'),
        )
        self.services: dict[str, Service] = {}
        for kind, count in (('conductor', shape.conductors), ('api', shape.apis)):
            for number in range(1, count + 1):
                self.add(kind, f'{kind}{number}')
        for host in self.hosts:
            self.add('compute', host)

    def host_names(self) -> list[str]:
        """Return what its hosts are called."""
        return [f'host{number}' for number in range(1, self.shape.hosts + 1)]

    # --- configuration -----------------------------------------------------------------------------------------------

    def add(self, kind: str, name: str) -> Service:
        """Add a service, configured and not started."""
        made = self.services[name] = self.made(kind, name, self.configure(name))
        return made

    def made(self, kind: str, name: str, file: pathlib.Path) -> Service:
        """Return the process of a service."""
        return Service(self.workspace, kind, name, file)

    def user(self, name: str) -> str:
        """Return who a service is at the broker."""
        return f'{self.vhost}-{name}'

    def tap(self) -> Tap:
        """Record the messages between its services from now on; a sender is ``compute:host1`` and so on."""

        def name_of(user: str) -> str:
            name = user.removeprefix(self.user(''))
            return f'{self.services[name].kind}:{name}' if name in self.services else user

        return Tap(self.broker, self.vhost, name_of)

    def configure(self, name: str, **more: Any) -> pathlib.Path:
        """Write the configuration file of a service.

        :param more: options besides those of the site, ``{'conductor.lease': 5}``.
        """
        if name.startswith('api'):
            self.ports.setdefault(name, process.free_port())
        if name not in self.services:
            self.broker.create_user(self.user(name), self.vhost)
        options: dict[str, Any] = {
            'host': name,
            'transport_url': self.broker.url(self.vhost, self.user(name), self.user(name)),
            'database.connection': self.database_url,
            'placement.auth_type': 'none',
            'placement.endpoint_override': self.placement.url,
            'api.auth_strategy': 'noauth2',
            'api.listen_port': self.ports.get(name, 0),
            'compute.driver': 'fake',
            'fake.world': self.world_path,
            **dict(self.shape.options),
            **more,
        }
        file = self.directory / f'{name}.conf'
        file.write_text(render(options))
        return file

    def reconfigure(self, name: str, **more: Any) -> None:
        """Change the configuration of a running service, and have it read it again."""
        service = self.services[name]
        before = service.tail(0, lines=10_000_000)
        self.configure(name, **more)
        service.send(signal.SIGHUP)

        def reloaded() -> bool:
            return 'The configuration was reloaded' in service.tail(0, lines=10_000_000)[len(before) :]

        process.wait_until(reloaded, f'{name} to read its configuration again')

    # --- start and stop ----------------------------------------------------------------------------------------------

    @property
    def processes(self) -> list[process.Process]:
        """The services and the world, the world last."""
        return [*self.services.values(), self.world_process]

    def start(self) -> None:
        """Make the schema, and start everything at once and in no order: each waits for what it needs."""
        self.manage('db', 'sync')
        for each in self.processes:
            each.start(wait=False)
        for each in self.processes:
            each.wait_ready()

    def manage(self, *words: str) -> str:
        """Run migrator-manage, and return what it says.

        :raises migrator.tests.real.servers.process.ServerError: it fails.
        """
        file = next(iter(self.services.values())).file
        command = [sys.executable, '-m', 'migrator.cmd.manage', '--config-file', str(file), *words]
        return process.run(command, self.directory, PYTHONPATH=str(TREE))

    def url(self, api: str = 'api1') -> str:
        """Return where a REST API is."""
        return f'http://{process.HOST}:{self.ports[api]}'

    def end(self) -> None:
        """Kill what runs, and forget it."""
        for each in self.processes:
            with contextlib.suppress(process.ServerError):
                each.kill()
            self.workspace.processes.remove(each)
        self.broker.delete_vhost(self.vhost)
        for name in self.services:
            self.broker.delete_user(self.user(name))
        if self._database_server.running:
            self._database_server.drop_database(self._database_name)

    def logs(self) -> Iterator[tuple[str, str]]:
        """Return what each service has logged."""
        for name, service in self.services.items():
            if service.log.exists():
                yield name, service.log.read_text(errors='replace')


def render(options: Mapping[str, Any]) -> str:
    """Return the text of a configuration file.

    :param options: such as ``{'database.connection': 'x'}``; an option without a group is in ``[DEFAULT]``.
    """
    groups: dict[str, list[str]] = {'DEFAULT': []}
    for name, value in options.items():
        group, _, option = name.rpartition('.')
        groups.setdefault(group or 'DEFAULT', []).append(f'{option} = {_text(value)}')
    return '\n'.join(line for group, lines in groups.items() for line in (f'[{group}]', *lines)) + '\n'


def _text(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ','.join(map(str, value))
    return str(value)
