# SPDX-License-Identifier: Apache-2.0

"""Private servers for tests against real services, and what is said of those that are not installed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests import backends
from tests.real.servers import haproxy as haproxies
from tests.real.servers import keystone as keystones
from tests.real.servers import mariadb as mariadbs
from tests.real.servers import placement, process
from tests.real.servers import postgresql as postgresqls
from tests.real.servers import rabbitmq as rabbitmqs

HOW = (
    'to have it: as root `make test-real`, or `apt-get install rabbitmq-server postgresql mariadb-server haproxy` '
    "(bindep.txt, profile real) and `pip install -e '.[demo,test,postgresql,mariadb,real]'`"
)

_WORKSPACE = pytest.StashKey[process.Workspace]()
_SIZES = pytest.StashKey[dict[str, int]]()
_SHARED = pytest.StashKey[list[process.Process]]()


def missing() -> dict[str, str]:
    """Say what is not installed: fixture -> what it lacks."""
    lacks = {
        'postgresql': postgresqls.missing(),
        'mariadb': mariadbs.missing(),
        'rabbitmq': rabbitmqs.missing(),
        'placement_http': placement.missing(),
        'keystone': keystones.missing(),
        'haproxy': haproxies.missing(),
    }
    return {name: what for name, what in lacks.items() if what is not None}


def need(name: str) -> None:
    """Leave the test out, saying why, if what it stands on is not installed. CI leaves nothing out."""
    what = missing().get(name)
    if what is None:
        return
    backends.left_out(f'left out, for there is no {what}; {HOW}')


def pytest_report_header() -> list[str]:
    return [f'{name}: left out, for there is no {what}; {HOW}' for name, what in missing().items()]


# --- what the servers said is part of a failure -----------------------------------------------------------------------


def pytest_runtest_setup(item: pytest.Item) -> None:
    workspace = item.config.stash.get(_WORKSPACE, None)
    if workspace is not None:
        sizes = {str(each.log): each.log.stat().st_size for each in workspace.processes if each.log.exists()}
        item.stash[_SIZES] = sizes


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    workspace = item.config.stash.get(_WORKSPACE, None)
    if report.failed and workspace is not None:
        for each in workspace.processes:
            text = each.tail(item.stash.get(_SIZES, {}).get(str(each.log), 0))
            if text:
                report.sections.append((f'log of {each.name}', text))
    return report


# --- the servers -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope='session')
def workspace(pytestconfig: pytest.Config) -> Iterator[process.Workspace]:
    """A directory and the processes of this session.

    Nothing of them is left when it ends, or the session fails.
    """
    made = pytestconfig.stash[_WORKSPACE] = process.Workspace()
    yield made
    del pytestconfig.stash[_WORKSPACE]
    made.close()


def _shared(config: pytest.Config, server: process.Process) -> None:
    config.stash.setdefault(_SHARED, []).append(server)
    server.start()


@pytest.fixture(scope='session')
def postgresql(pytestconfig: pytest.Config, workspace: process.Workspace) -> postgresqls.PostgreSQL:
    """The session's PostgreSQL; a test makes a database of its own in it."""
    need('postgresql')
    server = postgresqls.PostgreSQL(workspace)
    _shared(pytestconfig, server)
    return server


@pytest.fixture(scope='session')
def mariadb(pytestconfig: pytest.Config, workspace: process.Workspace) -> mariadbs.MariaDB:
    """The session's MariaDB; a test makes a database of its own in it."""
    need('mariadb')
    server = mariadbs.MariaDB(workspace)
    _shared(pytestconfig, server)
    return server


@pytest.fixture(scope='session')
def rabbitmq(pytestconfig: pytest.Config, workspace: process.Workspace) -> rabbitmqs.RabbitMQ:
    """The session's RabbitMQ; a test makes a virtual host of its own in it."""
    need('rabbitmq')
    server = rabbitmqs.RabbitMQ(workspace)
    _shared(pytestconfig, server)
    return server


@pytest.fixture(scope='session')
def placement_http(
    pytestconfig: pytest.Config, workspace: process.Workspace, postgresql: postgresqls.PostgreSQL
) -> placement.Placement:
    """The session's Placement: two processes, on PostgreSQL; a test makes providers of its own in it."""
    need('placement_http')
    server = placement.Placement(workspace, postgresql.create_database('placement'), workers=2)
    _shared(pytestconfig, server)
    return server


@pytest.fixture(scope='session')
def keystone(pytestconfig: pytest.Config, workspace: process.Workspace) -> keystones.Keystone:
    """The session's Keystone; a test makes projects and users of its own in it."""
    need('keystone')
    server = keystones.Keystone(workspace)
    _shared(pytestconfig, server)
    return server


@pytest.fixture(autouse=True)
def _up(pytestconfig: pytest.Config) -> None:
    """What the session shares is running when a test begins, whatever the one before did to it."""
    for server in pytestconfig.stash.get(_SHARED, []):
        if server.running:
            server.go_on()
        else:
            server.start()


@pytest.fixture
def database_url(postgresql: postgresqls.PostgreSQL) -> Iterator[str]:
    """The URL of an empty database on PostgreSQL."""
    name = f'test_{uuid.uuid4().hex}'
    yield postgresql.create_database(name)
    if postgresql.running:
        postgresql.drop_database(name)


@pytest.fixture
def vhost(rabbitmq: rabbitmqs.RabbitMQ) -> Iterator[str]:
    """The name of a fresh virtual host, which can have queues of either kind."""
    name = f'test-{uuid.uuid4().hex}'
    rabbitmq.create_vhost(name)
    yield name
    if rabbitmq.running:
        rabbitmq.delete_vhost(name)
