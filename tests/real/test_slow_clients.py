# SPDX-License-Identifier: Apache-2.0

"""Clients of migrator-api that send half a request, beside one that sends random reads."""

import collections
import contextlib
import json
import socket
import threading
import urllib.request

import pytest

from tests import random_requests
from tests.real import starts

#: Parts of the paths of reads that would wait for a conductor, and none runs.
OF_CONDUCTORS = ('/os-hypervisors/', '/diagnostics', '/findings')
#: Headers with which a request would wait for more of it.
OF_LENGTH = ('content-length', 'transfer-encoding', 'expect', 'connection')


@pytest.fixture
def site(server_url):
    made = random_requests.Site(server_url)
    made.fill()
    yield made
    made.close()


def send_random_reads(site, address, statuses, over):
    """Send random requests, one after the other, and count the statuses of the replies.

    :param over: an event that ends it.
    """
    maker = random_requests.Random(site, seed=4)
    while not over.is_set():
        request = maker.request()
        if request.method != 'GET' or any(one in request.path for one in OF_CONDUCTORS):
            continue
        headers = [one for one in request.headers if one[0].lower() not in OF_LENGTH] + [('Connection', 'close')]
        lines = [f'GET {request.path}?{request.query} HTTP/1.1', *(f'{name}: {value}' for name, value in headers)]
        with socket.create_connection(address, timeout=30) as connection:
            connection.sendall('\r\n'.join([*lines, '', '']).encode('latin-1', 'replace'))
            statuses[connection.recv(65536)[9:12]] += 1


@pytest.mark.parametrize('server', ['postgresql'], indirect=True)
def test_clients_that_send_half_a_request_delay_no_other_client(tmp_path, site, server_url):
    start = starts.Start(tmp_path, **{'database.connection': server_url})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    statuses, over = collections.Counter(), threading.Event()
    with start.running('api', api__threads=2, api__max_event_streams=1) as api, contextlib.ExitStack() as stack:
        url = next(word for word in api.wait_for('The API is at').split() if word.startswith('http://'))
        address = ('127.0.0.1', int(url.split(':')[2].partition('/')[0]))
        halves = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(200)]
        for number, half in enumerate(halves):
            head = b'POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{'
            half.sendall(head[: (1, 20, len(head))[number % 3]])
        other = threading.Thread(target=send_random_reads, args=(site, address, statuses, over))
        other.start()
        stack.callback(other.join)
        stack.callback(over.set)
        servers = f'http://{address[0]}:{address[1]}/v2.1/servers?all_tenants=1'
        while statuses.total() < 100 and other.is_alive():
            request = urllib.request.Request(servers, headers={'X-Auth-Token': 'admin'})
            with direct.open(request, timeout=1) as answer:
                assert len(json.load(answer)['servers']) == 8
        for half in halves:  # none of them has been given up for that
            half.setblocking(False)
            with pytest.raises(BlockingIOError):
                half.recv(1)
        assert starts.said(api) == []
    assert statuses.total() >= 100
    assert statuses[b'200'] > 10
    assert all(status < b'500' or status == b'501' for status in statuses)
