# SPDX-License-Identifier: Apache-2.0

"""Clients of migrator-api that send half a request, and leave it at that."""

import contextlib
import socket
import urllib.request

import pytest

from tests.real import starts


@pytest.fixture
def start(tmp_path):
    return starts.Start(tmp_path)


def test_clients_that_send_half_a_request_delay_no_other_client(start):
    start.sync()
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with start.running('api', api__threads=2, api__max_event_streams=1) as api, contextlib.ExitStack() as stack:
        url = next(word for word in api.wait_for('The API is at').split() if word.startswith('http://'))
        address = ('127.0.0.1', int(url.split(':')[2].partition('/')[0]))
        halves = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(200)]
        for number, half in enumerate(halves):
            head = b'POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{'
            half.sendall(head[: (1, 20, len(head))[number % 3]])
        for _ in range(20):
            assert direct.open(url, timeout=1).status == 200
        for half in halves:  # none of them has been given up for that
            half.setblocking(False)
            with pytest.raises(BlockingIOError):
                half.recv(1)
        assert starts.said(api) == []
