# SPDX-License-Identifier: Apache-2.0

"""Random requests on PostgreSQL, which holds fewer texts and smaller numbers than SQLite."""

import pytest

from migrator.db import sync
from tests import random_requests


@pytest.fixture
def site(database_url):
    made = random_requests.Site(database_url)
    sync.sync(made.database.engine)
    yield made
    made.close()


@pytest.mark.timeout(1200)
def test_no_random_request_is_answered_by_a_fault_of_the_service(site):
    answers = random_requests.run(site, seed=2, requests=random_requests.count(4000))
    assert [f'#{number}: {request}: {wrong}' for number, (request, _, wrong) in enumerate(answers) if wrong] == []
