# SPDX-License-Identifier: Apache-2.0

"""Marks what stands on real servers (:mod:`tests.real.plugin`), and opens databases on them."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import uuid

import pytest

from migrator import executors
from migrator.db.api import Database
from migrator.db.schema import sync


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin('tests.real.plugin')


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture
def new_database():
    """Open databases, each with connections of its own, as each process has."""
    opened = []

    def open_one(url, threads=None, **options):
        made = Database(url, threads or executors.NativeThreads(), **options)
        opened.append(made)
        return made

    yield open_one
    for each in opened:
        each.close()


@functools.cache
def template(server):
    """Return the name of a database that has the schema, for copies of it."""
    name = 'migrator_template'
    made = Database(server.create_database(name), executors.NativeThreads())
    sync.sync(made.engine)
    made.close()
    return name


@contextlib.contextmanager
def new_url(server, *template):
    name = f'test_{uuid.uuid4().hex}'
    yield server.create_database(name, *template)
    if server.running:
        server.drop_database(name)


@pytest.fixture(params=['postgresql', 'mariadb'])
def server(request):
    """Return a database server."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def server_url(server):
    """Return the URL of a database on a server, with the schema."""
    with new_url(server, template(server)) as url:
        yield url


@pytest.fixture
def server_urls(postgresql, mariadb):
    """Return the URLs of two databases with the schema, one on each server."""
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context(new_url(one, template(one))) for one in (postgresql, mariadb)]


@pytest.fixture(params=['sqlite', 'postgresql', 'mariadb'])
def url(request, tmp_path):
    """Return the URL of an empty database."""
    if request.param == 'sqlite':
        yield f'sqlite:///{tmp_path}/migrator.sqlite'
    else:
        with new_url(request.getfixturevalue(request.param)) as url:
            yield url


@pytest.fixture(params=['sqlite', 'postgresql', 'mariadb'])
def database(request, tmp_path, new_database):
    """Return a database with the schema."""
    if request.param == 'sqlite':
        made = new_database(f'sqlite:///{tmp_path}/migrator.sqlite')
        sync.sync(made.engine)
        yield made
    else:
        server = request.getfixturevalue(request.param)
        with new_url(server, template(server)) as url:
            yield new_database(url)
