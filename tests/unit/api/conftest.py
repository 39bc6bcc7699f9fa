# SPDX-License-Identifier: Apache-2.0

"""The fixtures of this folder: the application, a real database, and a stand-in for a conductor."""

import datetime
import uuid

import pytest
import sqlalchemy as sa
import webob
from oslo_config import cfg

from migrator import executors
from migrator.api import app, devidentity, microversions
from migrator.api.request import Request
from migrator.conductor.tasks import sagas
from migrator.conf import api as api_conf
from migrator.conf import conductor
from migrator.context import RequestContext
from migrator.db import models
from migrator.db.api import Database
from migrator.db.sql import columns
from migrator.objects import (
    COMPUTE_BINARY,
    CURRENT_VERSION,
    ENDS,
    EVACUABLE_VM_STATES,
    ComputeNode,
    Migration,
    ProviderInventory,
    instance,
)
from migrator.runtime import http_server
from tests import conformity, templates


class HandClock(executors.NativeThreads):
    """Native threads with a clock that only a sleep advances."""

    def __init__(self):
        super().__init__(clock=self)
        self.seconds = 0.0
        self.slept = []

    def monotonic(self):
        return 1000.0 + self.seconds

    def now(self):
        return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=self.seconds)

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.seconds += seconds


class ConductorStandIn:
    """A replacement for the RPC API of the conductor, which records its calls."""

    def __init__(self):
        self.calls = []
        self.does = lambda migration_uuid: None
        #: What hosts report.
        cpus, nics = [{'id': 0, 'time': 17}], [{'mac_address': '52:54:00:00:00:01', 'device': 'tap0', 'rx_octets': 1}]
        found = {'driver': 'libvirt', 'hypervisor': 'kvm', 'cpu_details': cpus, 'nic_details': nics}
        self.diagnostics = {'state': 'running', 'diagnostics': found}
        self.uptime = ' 08:32:11 up 93 days, 18:25,  1 user,  load average: 0.20, 0.12, 0.14\n'

    def live_migrate(self, context, migration_uuid):
        self.calls.append(('live_migrate', migration_uuid))
        self.does(migration_uuid)

    def delete_service(self, context, service_uuid):
        self.calls.append(('delete_service', service_uuid))
        self.does(service_uuid)

    def get_diagnostics(self, context, instance):
        self.calls.append(('get_diagnostics', instance.uuid))
        return self.diagnostics

    def get_host_uptime(self, context, host):
        self.calls.append(('get_host_uptime', host))
        return self.uptime

    def wake(self, context, migration_uuid, server):
        self.calls.append(('wake', migration_uuid, server))
        self.does(migration_uuid)


class World:
    """The application, its database, and three compute hosts: source, dest and spare."""

    def __init__(self, directory, auth=None):
        self.threads = HandClock()
        self.database = Database(f'sqlite:///{directory}/migrator.sqlite', self.threads, sqlite_synchronous=False)
        self.conf = cfg.ConfigOpts()
        api_conf.register_opts(self.conf)
        conductor.register_opts(self.conf)
        self.conf([], project='migrator', default_config_files=[], default_config_dirs=[])
        self.conf.set_override('auth_strategy', 'noauth2', group='api')
        self.conf.set_override('host_names', ['api.test'], group='api')
        self.conductor = ConductorStandIn()
        self.app = app.make_app(self.conf, self.database, self.conductor, self.threads, sagas(), auth=auth)

    # --- asking --------------------------------------------------------------------------------------------------

    def ask(self, method, path, body=None, version='2.80', token='admin', **headers):
        """Return the response to a request. A body of bytes is sent unchanged.

        :param path: below ``/v2.1``, or a path that begins with ``/migrator/``.
        """
        prefix = '' if path.startswith('/migrator/') else '/v2.1'
        request = webob.Request.blank(f'{prefix}{path}', method=method, base_url='http://api.test')
        if version:
            request.headers['OpenStack-API-Version'] = f'compute {version}'
        if token:
            request.headers['X-Auth-Token'] = token
        if isinstance(body, bytes):
            request.body = body
        elif body is not None or method in ('POST', 'PUT'):
            request.json_body = body
        request.headers.update({name.replace('_', '-'): value for name, value in headers.items()})
        response = request.get_response(self.app)
        newest = prefix == '' or version in ('latest', str(microversions.MAXIMUM))
        if newest and response.content_type != 'text/event-stream':
            fault = conformity.fault(method, f'{prefix}{path}', response.status_int, response.body)
            assert not fault, fault
        return response

    def get(self, path, version='2.80', token='admin'):
        """Return the document at a path, which must be there."""
        response = self.ask('GET', path, version=version, token=token)
        assert response.status_int == 200, response.text
        return response.json

    def migrate(self, guest, version='2.80', token='admin', **arguments):
        """Return the response to os-migrateLive, with defaults for the arguments that the version needs."""
        minor = int(version.split('.')[1])
        known = {'host': None, 'block_migration': 'auto' if minor >= 25 else False}
        if minor < 25:
            known['disk_over_commit'] = False
        path = f'/servers/{guest.uuid}/action'
        return self.ask('POST', path, {'os-migrateLive': known | arguments}, version=version, token=token)

    def evacuate(self, guest, version='2.80', token='admin', **arguments):
        """Return the response to evacuate, with a default for the argument that the version needs."""
        known = {'onSharedStorage': False} if int(version.split('.')[1]) < 14 else {}
        path = f'/servers/{guest.uuid}/action'
        return self.ask('POST', path, {'evacuate': known | arguments}, version=version, token=token)

    # --- making --------------------------------------------------------------------------------------------------

    def host(self, name, version=CURRENT_VERSION):
        """Report a compute host, with 8 VCPU, 16 GiB and 100 GiB."""
        inventory = {key: {'total': total} for key, total in (('VCPU', 8), ('MEMORY_MB', 16384), ('DISK_GB', 100))}
        root = ProviderInventory(uuid=str(uuid.uuid4()), name=name, inventory=inventory)
        node = ComputeNode(
            uuid=root.uuid, host=name, node=f'{name}.example.org', providers=[root], cpu_info={'model': 'fake'}
        )
        self.database.services.report(name, COMPUTE_BINARY, version, str(uuid.uuid4()))
        with self.database.engine.writer() as session:
            self.database.services.write_node(session, node)
        return node

    def force_down(self, *hosts):
        """Declare hosts down, as an operator does."""
        for host in hosts:
            self.database.services.update(self.database.services.get_compute(host).id, forced_down=True)

    def guest(self, name='vm', project='admin', host='source', **more):
        """Register a guest."""
        values = {'user_id': 'ada', 'flavor': instance.Flavor(name='m1', vcpus=2, memory_mb=1024, root_gb=10)} | more
        return self.database.instances.create(
            instance.Instance(
                uuid=str(uuid.uuid4()), name=name, project_id=project, host=host, node=f'{host}.example.org', **values
            )
        )

    def migration(self, guest, status='running', **more):
        """Accept a migration, and set its status as a conductor does."""
        values = {'project_id': guest.project_id, 'user_id': 'ada', 'dest_compute': 'dest'} | more
        one = Migration(
            uuid=str(uuid.uuid4()),
            instance_uuid=guest.uuid,
            source_compute=guest.host,
            source_node=guest.node,
            **values,
        )
        context = RequestContext(user_id='ada', project_id=guest.project_id, overwrite=False)
        if one.is_evacuation:
            states = {'task_state': 'rebuilding', 'vm_states': EVACUABLE_VM_STATES}
            self.database.migrations.accept(context, one, 'evacuate', **states)
        else:
            self.database.migrations.accept(context, one, 'live-migration')
        self.move(one.uuid, status=status)
        return self.database.migrations.get(one.uuid)

    def finished(self, guest):
        """Cold-migrate a guest from source to dest, as far as a conductor does, and return the migration."""
        values = {'project_id': guest.project_id, 'user_id': 'ada', 'migration_type': 'migration'}
        one = Migration(
            uuid=str(uuid.uuid4()), instance_uuid=guest.uuid, source_compute='source', source_node='source', **values
        )
        context = RequestContext(user_id='ada', project_id=guest.project_id, overwrite=False)
        self.database.migrations.accept(context, one, 'migrate', 'resize_prep', ('active',))
        self.move(one.uuid, status='finished', dest_compute='dest', outcome='forward')
        self.database.instances.update(guest.uuid, vm_state='resized', task_state=None, host='dest')
        return self.database.migrations.get(one.uuid)

    def move(self, migration_uuid, **fields):
        """Write to a migration without the guards, as if it had gone on."""
        if fields.get('checked_at') == 'now':
            fields['checked_at'] = columns.now()
        ends = fields.get('status') in ENDS
        with self.database.engine.writer() as session:
            table, guests = models.MIGRATIONS, models.INSTANCES
            this = table.c.uuid == migration_uuid
            if ends:
                fields['in_progress_instance_uuid'] = None
                guest = sa.select(table.c.instance_uuid).where(this).scalar_subquery()
                session.execute(sa.update(guests).where(guests.c.uuid == guest).values(task_state=None))
            session.execute(sa.update(table).where(this).values(**fields))

    # --- looking -------------------------------------------------------------------------------------------------

    def rows(self):
        """Return all rows that a request could change, for a comparison."""
        tables = (
            models.INSTANCES,
            models.MIGRATIONS,
            models.SERVICES,
            models.INSTANCE_ACTIONS,
            models.SAGA_LOG,
        )
        with self.database.engine.reader() as session:
            return [
                dict(row)
                for table in tables
                for row in session.execute(sa.select(table).order_by(*table.primary_key)).mappings()
            ]

    def refuses(self, response, code, fault, *words, since=None):
        """Check that a response has nova's form of an error, and that the rows did not change."""
        assert response.status_int == code, response.text
        assert list(response.json) == [fault]
        assert response.json[fault]['code'] == code
        for word in words:
            assert word in response.json[fault]['message']
        if since is not None:
            assert self.rows() == since


def by_roles(handle):
    """Accept a token ``role:user:project`` unchecked. Without colons it is both user and role."""

    def authenticated(request):
        role, user, project = request.headers['X-Auth-Token'].split(':')
        implied = {'admin': 4, 'manager': 3, 'member': 2, 'reader': 1, 'none': 0}[role]
        request.environ['migrator.context'] = RequestContext(
            user_id=user,
            project_id=project,
            roles=['reader', 'member', 'manager', 'admin'][:implied],
            request_id=request.request_id,
            overwrite=False,
        )
        return handle(request)

    return authenticated


@pytest.fixture(scope='session')
def template(tmp_path_factory):
    """A database with three hosts, made once and copied for each test."""
    directory = tmp_path_factory.mktemp('template')
    templates.database(directory)
    world = World(directory)
    for name in ('source', 'dest', 'spare'):
        world.host(name)
    with world.database.engine.sa_engine.connect() as connection:
        connection.exec_driver_sql('PRAGMA wal_checkpoint(TRUNCATE)')
    world.database.close()
    return (directory / 'migrator.sqlite').read_bytes()


@pytest.fixture
def make_world(tmp_path, template):
    worlds = []

    def make(auth=None):
        (tmp_path / 'migrator.sqlite').write_bytes(template)
        worlds.append(World(tmp_path, auth))
        return worlds[-1]

    yield make
    for each in worlds:
        each.database.close()


@pytest.fixture
def world(make_world):
    return make_world()


@pytest.fixture
def roles(make_world):
    """A world that accepts a token ``role:user:project``."""
    return make_world(by_roles)


@pytest.fixture
def served(world):
    """The world over HTTP on loopback, with a development identity beside it."""
    api = http_server.listen(world.app, '127.0.0.1', 0)
    identity = http_server.listen(devidentity.make_app({'compute': f'{api.url}/v2.1'}), '127.0.0.1', 0)
    world.url, world.auth_url = f'{api.url}/v2.1', f'{identity.url}/v3'
    yield world
    identity.stop()
    api.stop()


@pytest.fixture
def make_request(world):
    """Return a request object as the handlers receive it."""

    def make(path='/', version=80, method='GET', body=b''):
        import microversion_parse

        request = Request.blank(path, method=method)
        request.body = body
        request.environ['migrator.version'] = microversion_parse.Version(2, version)
        request.environ['openstack.request_id'] = 'req-1'
        return request

    return make
