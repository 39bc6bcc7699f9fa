# SPDX-License-Identifier: Apache-2.0

"""Marks what stands on real servers (:mod:`tests.real.plugin`), and opens databases on them."""

from __future__ import annotations

import pathlib

import pytest

from migrator import executors
from migrator.db.api import Database


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


@pytest.fixture(params=['sqlite', 'postgresql'])
def url(request, tmp_path):
    if request.param == 'sqlite':
        return f'sqlite:///{tmp_path}/migrator.sqlite'
    return request.getfixturevalue('database_url')
