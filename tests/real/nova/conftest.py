# SPDX-License-Identifier: Apache-2.0

"""A stock nova for the tests of this folder, and what is said where there can be none."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import pytest

from tests import backends
from tests.real.nova import lab as labs
from tests.real.servers import mariadb, process, rabbitmq

HOW = 'to have it: as root `make test-nova`'
#: Seconds that a test may take, with the start of the lab if it is the first.
TIMEOUT = 600


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = pathlib.Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.nova)
        if item.get_closest_marker('timeout') is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT))
    if os.environ.get('MIGRATOR_KILL_EVERY', '1') != '1':  # a sample
        slow = [item for item in ours if item.get_closest_marker('slow')]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


def pytest_report_header() -> list[str]:
    what = labs.missing()
    return [] if what is None else [f'nova: left out, for there is no {what}; {HOW}']


@pytest.fixture(scope='session')
def _need_nova() -> None:
    """Leave the test out before a server is started, if what it stands on is not installed."""
    if (what := labs.missing()) is not None:
        backends.left_out(f'left out, for there is no {what}; {HOW}')


@pytest.fixture(scope='session')
def one_lab(
    _need_nova: None, workspace: process.Workspace, mariadb: mariadb.MariaDB, rabbitmq: rabbitmq.RabbitMQ
) -> Iterator[labs.Lab]:
    """The session's nova; a test takes it by :func:`lab`."""
    made = labs.Lab(workspace, mariadb, rabbitmq)
    made.start()
    yield made
    made.close()


@pytest.fixture
def lab(one_lab: labs.Lab) -> labs.Lab:
    """A nova of three hosts without a guest, and all of its services up."""
    one_lab.clear()
    return one_lab
