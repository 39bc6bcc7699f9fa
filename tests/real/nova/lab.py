# SPDX-License-Identifier: Apache-2.0

"""A stock nova: API, scheduler, conductor and nova-computes, on a hypervisor whose guests are files.

The programs run in a virtual environment of their own (``make test-nova`` makes it), since what nova requires is not
what migrator requires. Keystone, Glance and Neutron are stand-ins; Placement, MariaDB and RabbitMQ are real.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import openstack
import requests
import yaml
from openstack import connection

from tests.real.nova import stand_ins
from tests.real.servers import mariadb, placement, process, rabbitmq

HERE = pathlib.Path(__file__).parent
VENV = HERE.parents[2] / '.venv-nova'
PYTHON = VENV / 'bin' / 'python'
#: What each database of nova has when nothing has run yet; made once, since nova-manage takes its time.
SCHEMA = VENV / 'schema.sql'
DATABASES = ('nova_api', 'nova_cell0', 'nova_cell1')
#: The compute driver's place in nova, which loads drivers from that package only.
DRIVER = 'migrator_driver'
FLAVOR = 'small'
CLOUD = 'lab'
#: The power states in the file of a guest.
RUNNING, SHUTDOWN = '1', '4'
#: The versions of nova's and of Placement's API that are used below.
NOVA, PLACEMENT = '2.96', '1.39'
#: nova's WSGI module takes its server's command line for its own.
HOOKS = """
import sys
def post_fork(server, worker):
    del sys.argv[1:]
"""


def missing() -> str | None:
    """Say what is not installed; None if nothing."""
    lacks = (mariadb.missing(), rabbitmq.missing(), placement.missing())
    if any(lacks):
        return next(filter(None, lacks))
    return None if (VENV / 'ready').exists() else f'nova in {VENV} (make {VENV.name}/ready)'


def ini(sections: Mapping[str, Mapping[str, object]]) -> str:
    """Return the text of a configuration file."""
    lines = []
    for section, options in sections.items():
        lines += [f'[{section}]', *(f'{name} = {value}' for name, value in options.items())]
    return '\n'.join([*lines, ''])


def cut_power(guests: pathlib.Path, host: str) -> None:
    """Take the guests of a host away, as a loss of its power does."""
    (guests / host).rename(guests / f'.{host}')


class Service(process.Process):
    """A program of nova.

    :param arguments: what follows the interpreter on the command line.
    :param ready: whether it serves; asked again and again.
    """

    start_timeout = 180.0

    def __init__(
        self,
        workspace: process.Workspace,
        name: str,
        arguments: Sequence[object],
        environment: Mapping[str, object],
        ready: Callable[[], bool],
    ) -> None:
        super().__init__(workspace, name)
        self._arguments = [str(argument) for argument in arguments]
        self._more = {key: str(value) for key, value in environment.items()}
        self._ready = ready

    def command(self) -> Sequence[str]:
        """Return what is run."""
        return [str(PYTHON), *self._arguments]

    def environment(self) -> Mapping[str, str]:
        """Return what is added to the environment; nova must not see our own tree."""
        return {'PYTHONPATH': '', **self._more}

    def ready(self) -> bool:
        """Whether it serves."""
        return self._ready()

    def start(self, wait: bool = True) -> None:
        """Start it, and return when it is ready."""
        # the broker takes a moment to see that the one before was killed
        process.wait_until(lambda: not self._ready(), f'the broker to miss {self.name}')
        super().start(wait)

    def close(self) -> None:
        """End it at once: in good order nova-compute waits for the moves that run."""
        self.kill()


class Lab:
    """The services of one cloud.

    Each is an entry of :attr:`services`: kill it with ``kill()``, start it again with ``start()``, which returns when
    it takes messages. The names are ``mariadb``, ``rabbitmq``, ``placement``, ``conductor``, ``scheduler``, ``api`` and
    those of the hosts.

    :param database: a running server; it gets nova's databases.
    :param broker: a running broker; it gets a virtual host.
    :param hosts: a nova-compute runs for each.
    :ivar clouds: the path of a clouds.yaml with the cloud ``lab``.
    :ivar cloud: openstacksdk's connection to it, as an administrator.
    """

    def __init__(
        self,
        workspace: process.Workspace,
        database: mariadb.MariaDB,
        broker: rabbitmq.RabbitMQ,
        hosts: Sequence[str] = ('host1', 'host2', 'host3'),
    ) -> None:
        self.hosts = tuple(hosts)
        self.directory = workspace.directory('nova')
        self.services: dict[str, process.Process] = {'mariadb': database, 'rabbitmq': broker}
        self._workspace, self.database, self.broker = workspace, database, broker
        self._guests = self.directory / 'guests'
        self._numbers = itertools.count(1)
        self._port = process.free_port()
        self._vhost = 'nova'
        self._placement = placement.Placement(workspace, self._create_database('placement'))
        api = f'http://{process.HOST}:{self._port}/v2.1'
        self._stand_ins = stand_ins.StandIns({'compute': api, 'placement': self._placement.url})
        self.clouds = self.directory / 'clouds.yaml'
        self.clouds.write_text(yaml.safe_dump({'clouds': {CLOUD: self._stand_ins.cloud}}))
        config = openstack.config.OpenStackConfig(config_files=[str(self.clouds)], load_envvars=False)
        self.cloud = connection.Connection(config=config.get_one(CLOUD))

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which clients find the cloud ``lab``."""
        return {'OS_CLIENT_CONFIG_FILE': str(self.clouds), 'NO_PROXY': '*'}

    # --- start and end -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all, and return when a guest can be made on each host."""
        self.broker.create_vhost(self._vhost)
        self._write_configuration()
        virt = next(VENV.glob('lib/python3*/site-packages/nova/virt'))
        draft = virt / f'{DRIVER}.{self._port}'
        draft.write_text((HERE / 'driver.py').read_text())
        draft.rename(virt / f'{DRIVER}.py')
        self._make_schema()
        self.services['placement'] = self._placement
        for name in ('conductor', 'scheduler'):
            self.add(name, f'nova-{name}', ('control',), name, self._vhost)
        self._add_api()
        for host in self.hosts:
            self.add_compute(host, self._vhost)
        for service in self.services.values():
            if not service.running:
                service.start(wait=False)
        self.wait_ready()
        self.cloud.compute.default_microversion = NOVA
        self.cloud.placement.default_microversion = PLACEMENT
        process.wait_until(self._has_hosts, 'nova and Placement to have the hosts', 120)
        flavor = {'name': FLAVOR, 'id': FLAVOR, 'vcpus': 1, 'ram': 1024, 'disk': 1}
        self.ask('POST', '/flavors', flavor=flavor)

    def wait_ready(self) -> None:
        """Return when each service that runs takes requests or messages."""
        for service in self.services.values():
            if service.running:
                service.wait_ready()

    def close(self) -> None:
        """End what is not a process of the workspace."""
        self.cloud.close()
        self._stand_ins.close()

    def _create_database(self, name: str) -> str:
        url = self.database.create_database(name)
        self.database.administer(f'ALTER DATABASE {name} CHARACTER SET utf8mb3')
        return f'{url}?charset=utf8mb3'

    def _write_configuration(self) -> None:
        cloud = self._stand_ins.cloud
        auth = {'auth_type': 'password', **cloud['auth'], 'region_name': cloud['region_name']}
        default = {
            'transport_url': self.broker.url(self._vhost),
            'compute_driver': f'{DRIVER}.Driver',
            'my_ip': process.HOST,
            'report_interval': 2,
            'service_down_time': 12,
            'periodic_fuzzy_delay': 0,
            # how long a count of guests may be wrong after a move; the command here waits ten seconds for it
            'update_resources_interval': 4,
            'reserved_host_memory_mb': 0,
            'vif_plugging_is_fatal': False,
            'vif_plugging_timeout': 0,
        }
        everywhere = {
            'DEFAULT': default,
            'placement': auth,
            'neutron': auth,
            'glance': auth,
            'keystone': auth,
            'oslo_messaging_notifications': {'driver': 'noop'},
            'quota': {'driver': 'nova.quota.NoopQuotaDriver'},
            'vnc': {'enabled': False},
        }
        urls = {name: self._create_database(name) for name in DATABASES}
        control = {
            'DEFAULT': {'host': 'control', 'state_path': self.directory},
            'oslo_concurrency': {'lock_path': self.directory},
            'api_database': {'connection': urls['nova_api']},
            'database': {'connection': urls['nova_cell1']},
            'keystone_authtoken': {**auth, 'www_authenticate_uri': auth['auth_url']},
            'conductor': {'workers': 1},
            'scheduler': {'workers': 1, 'discover_hosts_in_cells_interval': 2},
        }
        self.write('nova', everywhere)
        self.write('control', control)

    def write(self, name: str, sections: Mapping[str, Mapping[str, object]]) -> None:
        """Write a configuration file."""
        (self.directory / f'{name}.conf').write_text(ini(sections))

    def _options(self, *names: str) -> list[str]:
        return [f'--config-file={self.directory / one}.conf' for one in ('nova', *names)]

    def _make_schema(self) -> None:
        """Give nova's databases their tables: from the file of the session before, or by nova-manage."""
        server = ['--no-defaults', f'--host={process.HOST}', f'--port={self.database.port}']
        server += [f'--user={mariadb.ADMINISTRATOR}', f'--password={mariadb.PASSWORD}']
        if SCHEMA.exists():
            process.run(['mariadb', *server, '-e', f'source {SCHEMA}'], self.directory)
            return
        # nova fills the braces from its configuration when it runs, so that the ports may change
        cell = '{scheme}://{username}:{password}@{hostname}:{port}/%s?{query}'
        broker = '{scheme}://{username}:{password}@{hostname}:{port}/{path}'
        self.manage('api_db', 'sync')
        self.manage('cell_v2', 'map_cell0', '--database_connection', cell % 'nova_cell0')
        self.manage('db', 'sync')
        create = ('--name=cell1', f'--database_connection={cell % "nova_cell1"}', f'--transport-url={broker}')
        self.manage('cell_v2', 'create_cell', *create)
        dump = process.run(['mariadb-dump', *server, '--databases', *DATABASES], self.directory)
        draft = SCHEMA.with_suffix(f'.{self._port}')
        draft.write_text(dump)
        draft.rename(SCHEMA)

    def add(self, name: str, program: str, files: Sequence[str], queue: str, vhost: str, **environment: object) -> None:
        """Add a service. It is ready when it takes messages from a queue."""
        arguments = [VENV / 'bin' / program, *self._options(*files)]
        ready = functools.partial(self._takes_messages, vhost, queue)
        self.services[name] = Service(self._workspace, name, arguments, environment, ready)

    def _takes_messages(self, vhost: str, queue: str) -> bool:
        return self.broker.consumers(vhost, queue) > 0

    def _add_api(self) -> None:
        hooks = self.directory / 'hooks.py'
        hooks.write_text(HOOKS)
        files = (VENV / 'etc' / 'nova' / 'api-paste.ini', self.directory / 'nova.conf', self.directory / 'control.conf')
        arguments = (
            '-m', 'gunicorn', '--config', hooks, '--bind', f'{process.HOST}:{self._port}', '--threads', 8,
            '--timeout', 300, '--no-control-socket', '--worker-tmp-dir', self.directory, 'nova.wsgi.osapi_compute',
        )  # fmt: skip
        environment = {'OS_NOVA_CONFIG_FILES': ';'.join(map(str, files))}
        self.services['api'] = Service(self._workspace, 'api', arguments, environment, self._answers)

    def add_compute(self, host: str, vhost: str, broker: str | None = None) -> None:
        """Add a host.

        :param broker: the transport URL of its cell; None: that of the first one.
        """
        state = self.directory / host
        state.mkdir()
        default = {'host': host, 'state_path': state} | ({} if broker is None else {'transport_url': broker})
        self.write(host, {'DEFAULT': default, 'oslo_concurrency': {'lock_path': state}})
        self.add(host, 'nova-compute', (host,), f'compute.{host}', vhost, MIGRATOR_TEST_GUESTS=self._guests)

    def _answers(self) -> bool:
        try:
            return requests.get(f'http://{process.HOST}:{self._port}/', timeout=60).ok
        except requests.RequestException:
            return False

    def _has_hosts(self) -> bool:
        return self.known_hosts() == set(self.hosts)

    def known_hosts(self) -> set[str]:
        """Return the hosts that both nova and Placement have."""
        known = {one['hypervisor_hostname'] for one in self.ask('GET', '/os-hypervisors')['hypervisors']}
        return known & {one['name'] for one in self.ask_placement('GET', '/resource_providers')['resource_providers']}

    # --- requests ----------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, **body: Any) -> Any:
        """Send a request to nova, and return its JSON; None without one.

        :raises keystoneauth1.exceptions.http.HttpError: nova refuses it.
        """
        answer = self.cloud.compute.request(path, method, json=body or None, raise_exc=True)
        return answer.json() if answer.content else None

    def ask_placement(self, method: str, path: str) -> Any:
        """Send a request to Placement, and return its JSON; None without one."""
        answer = self.cloud.placement.request(path, method, raise_exc=True)
        return answer.json() if answer.content else None

    def manage(self, *arguments: str, files: Sequence[str] = ('control',)) -> str:
        """Run nova-manage, and return what it prints.

        :param files: the names of its configuration files.
        :raises tests.real.servers.process.ServerError: it fails; what it printed is part of the text.
        """
        command = [str(PYTHON), str(VENV / 'bin' / 'nova-manage'), *self._options(*files), *arguments]
        # native threads, as the services have: nova's own default for this command is eventlet, with warnings
        return process.run(command, self.directory, OS_NOVA_DISABLE_EVENTLET_PATCHING='true')

    # --- guests ------------------------------------------------------------------------------------------------------

    def guests(self, number: int, on: str, **metadata: str) -> list[str]:
        """Make guests on a host, and return their UUIDs when they run.

        :param metadata: how their moves go (:mod:`tests.real.nova.driver`).
        """
        made = []
        for _ in range(number):
            server = {'name': f'vm-{next(self._numbers)}', 'imageRef': stand_ins.IMAGE, 'flavorRef': FLAVOR}
            server |= {'networks': 'none', 'host': on, 'metadata': metadata}
            made.append(self.ask('POST', '/servers', server=server)['server']['id'])
        process.wait_until(lambda: all(self._is_active(uuid) for uuid in made), f'{number} guests on {on}', 120)
        return made

    def _is_active(self, uuid: str) -> bool:
        server = self.ask('GET', f'/servers/{uuid}')['server']
        if server['status'] == 'ERROR':
            raise process.ServerError(f'nova could not make {server["name"]}: {server.get("fault")}')
        return server['status'] == 'ACTIVE'

    def move(self, guest: str, host: str | None) -> None:
        """Request a live migration; None: the scheduler chooses its destination."""
        self.ask('POST', f'/servers/{guest}/action', **{'os-migrateLive': {'host': host, 'block_migration': 'auto'}})

    def migration(self, guest: str) -> dict[str, Any]:
        """Return the newest migration of a guest; its status is None before nova has made it."""
        rows = self.ask('GET', f'/os-migrations?instance_uuid={guest}&limit=1')['migrations']
        return rows[0] if rows else {'id': 0, 'status': None}

    def enable(self, *hosts: str) -> None:
        """Let the scheduler choose these hosts again."""
        for service in self._computes():
            if service['host'] in hosts and service['status'] == 'disabled':
                self.ask('PUT', f'/os-services/{service["id"]}', status='enabled')

    def disable(self, *hosts: str) -> None:
        """Let the scheduler choose these hosts no more."""
        for service in self._computes():
            if service['host'] in hosts:
                self.ask('PUT', f'/os-services/{service["id"]}', status='disabled')

    def wait_up(self, *hosts: str) -> None:
        """Return when these hosts are up by a report of now.

        nova shows a host that was killed as up until service_down_time has passed, and one that was started does not
        report for some seconds: what counts is a report after this call.
        """
        before = {service['host']: service['updated_at'] for service in self._computes()}

        def are_up() -> bool:
            found = {service['host']: service for service in self._computes() if service['state'] == 'up'}
            return all(host in found and found[host]['updated_at'] != before[host] for host in hosts)

        process.wait_until(are_up, f'{", ".join(hosts)} to be up', 60)

    def _computes(self) -> list[dict[str, Any]]:
        return self.ask('GET', '/os-services?binary=nova-compute')['services']

    def truth(self) -> dict[str, set[str]]:
        """Return the UUIDs of the guests of each host, as the hypervisor's files have them.

        A host without power has none.
        """
        return {host: {file.name for file in (self._guests / host).glob('*')} for host in self.hosts}

    def runs(self, guest: str) -> list[str]:
        """Return the hosts that run a guest now, as the hypervisor's files have it."""
        files = [self._guests / host / guest for host in self.hosts]
        return [file.parent.name for file in files if file.exists() and file.read_text() == RUNNING]

    def disk(self, guest: str) -> list[str]:
        """Return what the disks of a guest contain: one for each time that one was made."""
        return sorted({file.read_text() for file in self._guests.parent.glob(f'disks/{guest}*')})

    def cut_power(self, host: str) -> None:
        """Cut the power of a host: its nova-compute and its guests are gone at once."""
        self.services[host].kill()
        cut_power(self._guests, host)

    def give_power(self, host: str) -> None:
        """Give a host its power again. Its guests are shut off, and its nova-compute is not started."""
        dark = self._guests / f'.{host}'
        if dark.exists():
            for file in dark.glob('*'):
                file.write_text(SHUTDOWN)
            dark.rename(self._guests / host)

    def fence_command(self) -> str:
        """Return a command that cuts the power of the host that it is given."""
        return f'{sys.executable} -m tests.real.nova.lab {self._guests} {{host}}'

    def clear(self) -> None:
        """Bring back every service, enable every host, and delete every guest and every allocation."""
        for host in self.hosts:
            self.give_power(host)
        for service in self.services.values():
            if service.running:
                service.go_on()
            else:
                service.start(wait=False)
        self.wait_ready()
        for service in self._computes():
            if service['forced_down']:
                self.ask('PUT', f'/os-services/{service["id"]}', forced_down=False)
        self.enable(*self.hosts)
        self.wait_up(*self.hosts)
        for server in self._servers():
            self.ask('DELETE', f'/servers/{server["id"]}')
        process.wait_until(lambda: not self._servers(), 'nova to delete the guests', 60)
        for provider in self.ask_placement('GET', '/resource_providers')['resource_providers']:
            held = self.ask_placement('GET', f'/resource_providers/{provider["uuid"]}/allocations')['allocations']
            for consumer in held:
                self.ask_placement('DELETE', f'/allocations/{consumer}')

    def _servers(self) -> list[dict[str, Any]]:
        return self.ask('GET', '/servers?all_tenants=1')['servers']


if __name__ == '__main__':
    cut_power(pathlib.Path(sys.argv[1]), sys.argv[2])
