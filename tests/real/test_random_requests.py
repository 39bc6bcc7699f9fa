# SPDX-License-Identifier: Apache-2.0

"""Random requests on database servers, which hold fewer texts and smaller numbers than SQLite."""

import collections
import contextlib
import random
import socket

import pytest

from migrator import executors
from migrator.runtime import http_server
from tests import random_requests


@pytest.fixture
def site(server_url):
    made = random_requests.Site(server_url)
    yield made
    made.close()


@pytest.mark.timeout(3600)
def test_no_random_request_returns_a_server_error(site):
    answers = random_requests.run(site, seed=2, requests=random_requests.count(0.6))
    assert [f'#{number}: {request}: {wrong}' for number, (request, _, wrong) in enumerate(answers) if wrong] == []


#: Statuses that random requests over HTTP get.
SOME = {200, 400, 404, 408, 413, 431}


class _Standing(executors.SystemClock):
    """A clock that stands, until it is moved."""

    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        return self.at


def _bytes(request: random_requests.Request, pick: random.Random) -> bytes:
    """Return a request as it goes over the wire; now and then a huge one."""
    headers = [('Host', '127.0.0.1'), *request.headers]
    body = request.body + b' ' * pick.choice((*[0] * 30, 900_000, 2_000_000))
    if not any(name == 'Content-Length' for name, _ in headers):
        headers.append(('Content-Length', str(len(body))))
    if pick.random() < 0.03:
        headers.append(('X-Much', 'x' * pick.choice((60_000, 65_536, 1_000_000))))
    query = f'?{request.query}' if request.query else ''
    lines = [f'{request.method} {request.path}{query} HTTP/1.1', *(f'{name}: {value}' for name, value in headers)]
    return '\r\n'.join([*lines, '', '']).encode('latin-1', 'replace') + body


def _exchange(server: http_server.Server, clock: _Standing, sent: bytes, pick: random.Random) -> bytes:
    """Send a request, slowly at times, and return the answer; one that cannot get complete is waited out."""
    with socket.create_connection((server.host, server.port), timeout=30) as connection, contextlib.suppress(OSError):
        cuts = sorted(pick.randrange(len(sent) + 1) for _ in range(pick.choice((0, 0, 0, 2, 20))))
        for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            connection.sendall(sent[begin:end])
        connection.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            return connection.recv(65536)
        connection.settimeout(30)
        clock.at += http_server.REST + 1
        return connection.recv(65536)
    return b''  # the server has closed, before all was sent


@pytest.mark.timeout(3600)
@pytest.mark.parametrize('server', ['postgresql'], indirect=True)
def test_no_random_request_over_http_is_answered_by_a_fault_either(site):
    clock, pick = _Standing(), random.Random(3)  # noqa: S311 -- a test's dice
    server = http_server.listen(site.app, '127.0.0.1', 0, threads=executors.NativeThreads(clock))
    statuses = collections.Counter()
    wrong, wanted = [], random_requests.count(0.2)
    try:
        maker = random_requests.Random(site, seed=3)
        site.fill()
        # A few requests may not get all the statuses that they have to.
        while statuses.total() < wanted or (SOME - {*statuses} and statuses.total() < 10 * wanted):
            request = maker.request()
            answer = _exchange(server, clock, _bytes(request, pick), pick)
            status = int(answer[9:12] or 0)
            statuses[status] += 1
            if answer[:5] not in (b'', b'HTTP/') or (status >= 500 and status not in random_requests.NO_FAULTS):
                wrong.append(f'#{statuses.total()}: {request}: {answer[:300]!r}')
        assert wrong == []
        assert not SOME - {*statuses}
        answer = _exchange(server, clock, b'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n', pick)
        assert answer.startswith((b'HTTP/1.1 200 ', b'HTTP/1.1 300 '))
    finally:
        server.stop()
