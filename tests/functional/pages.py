# SPDX-License-Identifier: Apache-2.0

"""A browser for the page at ``/migrator/v1/ui``, and a site whose rows a test writes."""

import uuid

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from migrator import exception, executors
from migrator.api import app, auth
from migrator.conductor.tasks import sagas
from migrator.conf import api, conductor
from migrator.context import RequestContext
from migrator.db import models
from migrator.db.api import Database
from migrator.objects import COMPUTE_BINARY, CURRENT_VERSION, Flavor, Instance, Migration
from migrator.objects.drain import Drain, Member
from migrator.runtime import http_server
from tests import templates
from tests.functional import browser

PAGE = '/migrator/v1/ui'


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A browser, whose log has neither violations of the policy nor errors of scripts in the end."""
    monkeypatch.setenv('NO_PROXY', '127.0.0.1,localhost')
    with browser.started(tmp_path) as started:
        yield started
        # The browser logs each 401, each 500 and each refused connection, and the page shows them.
        known = (' 401 ', ' 404 ', ' 500 ', 'ERR_CONNECTION_REFUSED')
        assert [line for line in started.logged() if not any(text in line for text in known)] == []


def nothing_is_stuck(page):
    return page.text('#trouble-none') == '✓ Nothing needs an operator.' and page.text('#trouble-list') == ''


def only_admin(handle):
    """Accept the token ``admin``, and no other one."""
    inner = auth.noauth2(handle)

    def authenticated(request):
        if request.headers.get('X-Auth-Token') != 'admin':
            raise exception.Unauthorized()
        return inner(request)

    return authenticated


class NoConductor:
    """What the API calls to wake conductors, of which none answers."""

    def __getattr__(self, name):
        return lambda *_words, **_more: None


class Site:
    """The API with a database in which a test writes what it wants to see.

    :ivar server: the HTTP server.
    :ivar url: its address.
    :ivar answer: the application, which a test may replace.
    :ivar requests: what it was asked for.
    :ivar changes: the requests among them that change something.
    """

    def __init__(self, directory):
        file = templates.database(directory)
        threads = executors.NativeThreads()
        self.database = Database(f'sqlite:///{file}', threads, sqlite_synchronous=False)
        conf = cfg.ConfigOpts()
        api.register_opts(conf)
        conductor.register_opts(conf)
        conf([], project='migrator', default_config_files=[], default_config_dirs=[])
        for host in ('host1', 'host2'):
            self.database.services.report(host, COMPUTE_BINARY, CURRENT_VERSION, str(uuid.uuid4()))
        self.database.conductors.register(str(uuid.uuid4()), 'conductor1', lease=86400.0)
        self.conf = conf
        self.answer = app.make_app(conf, self.database, NoConductor(), threads, sagas(), auth=only_admin)
        self.requests, self.changes = [], []

    def app(self, environ, start_response):
        """Answer a request, and keep its path and its query."""
        self.requests.append(f'{environ["PATH_INFO"]}?{environ["QUERY_STRING"]}')
        if environ['REQUEST_METHOD'] not in ('GET', 'HEAD'):
            self.changes.append(f'{environ["REQUEST_METHOD"]} {environ["PATH_INFO"]}')
        return self.answer(environ, start_response)

    def migration(self):
        """Accept a migration of a new guest from host1 to host2, and return it."""
        guest = Instance(
            uuid=str(uuid.uuid4()), name='vm-0', project_id='demo', user_id='demo', host='host1', node='host1',
            flavor=Flavor(name='m1', vcpus=1, memory_mb=512, root_gb=1),
        )  # fmt: skip
        self.database.instances.create(guest)
        one = Migration(
            uuid=str(uuid.uuid4()), instance_uuid=guest.uuid, project_id='demo', user_id='demo',
            source_compute='host1', source_node='host1', dest_compute='host2', dest_node='host2',
        )  # fmt: skip
        context = RequestContext(user_id='demo', project_id='demo', overwrite=False)
        self.database.migrations.accept(context, one, 'live-migration')
        return one

    def copy(self, count):
        """Copy the only migration and its guest until there are some in all."""
        guests = [str(uuid.uuid4()) for _ in range(count - 1)]
        with self.database.engine.writer() as session:
            row = dict(session.execute(sa.select(models.INSTANCES)).mappings().one())
            del row['id'], row['changed_at']
            more = [row | {'uuid': guest, 'name': f'vm-{number}'} for number, guest in enumerate(guests, 1)]
            session.execute(sa.insert(models.INSTANCES), more)
            row = dict(session.execute(sa.select(models.MIGRATIONS)).mappings().one())
            del row['id'], row['changed_at']
            more = [
                row | {'uuid': str(uuid.uuid4()), 'instance_uuid': guest, 'in_progress_instance_uuid': guest}
                for guest in guests
            ]
            session.execute(sa.insert(models.MIGRATIONS), more)

    def change(self, migration_uuid, **fields):
        """Write columns of a migration, as its conductor does."""
        table = models.MIGRATIONS
        with self.database.engine.writer() as session:
            session.execute(sa.update(table).where(table.c.uuid == migration_uuid).values(**fields))

    def drain(self, status='running'):
        """Write a drain of host1 with all guests as members, and return its uuid."""
        drain = Drain(uuid=str(uuid.uuid4()), host='host1')
        drains = self.database.drains
        drains.accept(drain)
        drains.adopt('a conductor')
        members = [
            Member(instance_uuid=guest.uuid, name=guest.name, position=number, source='host1')
            for number, guest in enumerate(self.database.instances.list())
        ]
        drains.write(drains.get(drain.uuid), {'status': status}, members, [])
        return drain.uuid


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    site.server = http_server.listen(site.app, '127.0.0.1', 0)
    site.url = site.server.url
    yield site
    site.server.stop()
    site.database.close()
