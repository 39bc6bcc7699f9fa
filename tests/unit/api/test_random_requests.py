# SPDX-License-Identifier: Apache-2.0

"""Random requests on SQLite; ``tests/real/test_random_requests.py`` sends more of them, on PostgreSQL."""

import pytest

from migrator.api import microversions
from tests import random_requests, templates

NEWEST = f'compute {microversions.MAXIMUM}'


@pytest.fixture
def site(tmp_path):
    made = random_requests.Site(f'sqlite:///{templates.database(tmp_path)}')
    yield made
    made.close()


@pytest.mark.timeout(1200)
def test_no_random_request_returns_a_server_error(site):
    answers = list(random_requests.run(site, seed=4, requests=random_requests.count(default=600)))
    assert [f'#{number}: {request}: {wrong}' for number, (request, _, wrong) in enumerate(answers) if wrong] == []
    # Some of the requests must pass the first checks.
    assert {200, 202, 400, 401, 403, 404, 406, 409, 415, 501} <= {status for _, status, _ in answers}


def test_the_same_seed_makes_the_same_requests(site):
    site.fill()
    first, second, other = (random_requests.Random(site, seed) for seed in (7, 7, 8))
    assert [first.request() for _ in range(50)] == [second.request() for _ in range(50)]
    assert first.request() != other.request()


@pytest.mark.parametrize(
    ('status', 'headers', 'body', 'word'),
    [
        (500, {}, b'{}', '500'), (502, {}, b'{}', '502'), (200, {}, b'<html>', 'no JSON'),
        (200, {'Location': 'a\r\nb'}, b'{}', 'cannot be sent'), (200, {'Location': '\u20ac'}, b'{}', 'cannot be sent'),
    ],
)  # fmt: skip
def test_an_answer_that_is_a_fault_is_noticed(status, headers, body, word):
    request = random_requests.Request('GET', '/', '', [], b'')
    assert word in random_requests.wrong(request, status, headers, body)


@pytest.mark.parametrize(
    ('method', 'path', 'status', 'body', 'word'),
    [
        ('GET', '/migrator/v1/hosts', 200, b'{"hosts": 1}', 'hosts'),
        ('GET', '/migrator/v1/hosts', 202, b'{}', '202 is not a status'),
        ('GET', '/v2.1/os-migrations', 200, b'{}', 'migrations'),
        ('DELETE', '/v2.1/os-services/1', 204, b'{}', 'body'),
    ],
)
def test_an_answer_that_is_not_as_its_url_declares_it_is_noticed(method, path, status, body, word):
    request, headers = random_requests.Request(method, path, '', [], b''), {'OpenStack-API-Version': NEWEST}
    assert word in random_requests.wrong(request, status, headers, body)
    if path.startswith('/v2.1'):
        assert random_requests.wrong(request, status, {'OpenStack-API-Version': 'compute 2.1'}, body) == ''


@pytest.mark.parametrize(
    ('method', 'status', 'body'), [('GET', 501, b'{}'), ('GET', 503, b'{}'), ('GET', 202, b''), ('HEAD', 200, b'x')]
)
def test_answer_without_a_fault_is_accepted(method, status, body):
    request = random_requests.Request(method, '/', '', [], b'')
    assert random_requests.wrong(request, status, {}, body) == ''
