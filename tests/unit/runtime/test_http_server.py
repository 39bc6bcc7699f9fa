# SPDX-License-Identifier: Apache-2.0

"""The HTTP server of the services."""

import socket
import threading
import time
import urllib.error
import urllib.request

import pytest
import webob

from migrator import executors
from migrator.runtime import http_server


def hello(environ, start_response):
    return webob.Response(text='hello')(environ, start_response)


def fetch(url, data=None):
    # ProxyHandler({}): a proxy of the environment must not be asked for loopback.
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, data, timeout=10).read()


def send(running, *pieces):
    """Return a connection on which these bytes were sent."""
    connection = socket.create_connection((running.host, running.port), timeout=10)
    for piece in pieces:
        connection.sendall(piece)
    return connection


def answer(connection):
    """Return all bytes until the other side closes."""
    with connection:
        return b''.join(iter(lambda: connection.recv(65536), b''))


def wait_until(holds):
    until = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_refused(running):
    try:
        send(running).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it was closed while the system made the connection: the next one is refused
        return False
    return False


@pytest.fixture
def listen():
    """Serve an application until the test ends."""
    running = []

    def start(app=hello, host='127.0.0.1', port=0, **settings):
        running.append(http_server.listen(app, host, port, **settings))
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture
def clock():
    """A clock that only the test advances."""

    class Standing(executors.SystemClock):
        at = 1000.0

        def monotonic(self):
            return self.at

    return Standing()


def test_server_answers_on_the_chosen_port_and_releases_it(listen):
    running = listen()
    assert running.port > 0
    assert running.url == f'http://127.0.0.1:{running.port}'
    assert fetch(running.url) == b'hello'
    running.stop()
    with pytest.raises(urllib.error.URLError):
        fetch(running.url)
    listen(port=running.port)


@pytest.mark.parametrize('host', ['::1', '::'])
def test_server_listens_at_ipv6_address(listen, host):
    running = listen(host=host)
    assert running.url == f'http://[{host}]:{running.port}'
    assert fetch(f'http://[::1]:{running.port}') == b'hello'
    if host == '::':
        assert fetch(f'http://127.0.0.1:{running.port}') == b'hello'


class Slow:
    """An application that answers /slow only when the test allows it."""

    def __init__(self):
        self.asked, self.go_on = threading.Event(), threading.Event()

    def __call__(self, environ, start_response):
        if environ['PATH_INFO'] == '/slow':
            self.asked.set()
            self.go_on.wait(10)
        return hello(environ, start_response)


def test_slow_answer_does_not_delay_another(listen):
    slow = Slow()
    running = listen(slow)
    connection = send(running, b'GET /slow HTTP/1.0\r\n\r\n')
    assert slow.asked.wait(10)
    assert fetch(running.url) == b'hello'
    slow.go_on.set()
    assert answer(connection).endswith(b'hello')


def test_stop_waits_for_the_request_under_way(listen):
    slow = Slow()
    running = listen(slow)
    connection = send(running, b'GET /slow HTTP/1.1\r\nHost: x\r\n\r\n')
    assert slow.asked.wait(10)
    stopping = threading.Thread(target=running.stop, args=(10,))
    stopping.start()
    wait_until(lambda: is_refused(running))
    slow.go_on.set()
    stopping.join(10)
    assert answer(connection).endswith(b'hello')


def test_stop_waits_at_most_its_patience(listen):
    slow = Slow()
    running = listen(slow)
    connection = send(running, b'GET /slow HTTP/1.1\r\nHost: x\r\n\r\n')
    assert slow.asked.wait(10)
    running.stop(0)
    assert answer(connection) == b''
    slow.go_on.set()


def test_an_answer_that_lasts_is_sent_part_by_part_and_ends_when_the_server_stops(listen):
    def lasting(environ, start_response):
        start_response('200 OK', [('Content-Type', 'text/event-stream')])
        yield b'first'
        wait_until(environ['migrator.is_stopping'])
        yield b'last'

    running = listen(lasting)
    connection = send(running, b'GET / HTTP/1.1\r\nHost: x\r\n\r\n')
    seen = b''
    while b'first' not in seen:
        seen += connection.recv(65536)
    running.stop(10)
    assert answer(connection).endswith(b'last\r\n0\r\n\r\n')


def test_connections_that_send_half_a_request_hold_no_thread(listen):
    running = listen(count=1)
    halves = [send(running, b'GET / HTTP/1.1\r\nHo') for _ in range(100)]
    halves += [send(running, b'POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{') for _ in range(100)]
    assert fetch(running.url) == b'hello'
    for half in halves:
        half.close()


@pytest.mark.parametrize(
    'half', [b'G', b'GET / HTTP/1.1\r\nHost: x\r\nX: ', b'POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n1']
)
def test_a_request_that_does_not_arrive_in_time_is_answered_408(listen, clock, half):
    running = listen(threads=executors.NativeThreads(clock))
    connection = send(running, half)
    wait_until(lambda: any(one.request for one in running.active_channels.values()))
    clock.at += http_server.ARRIVAL / 2
    connection.sendall(b'1')  # each byte that comes does not begin it anew
    clock.at += http_server.ARRIVAL / 2 + 1
    said = answer(connection)
    assert said.startswith((b'HTTP/1.0 408 Request Timeout\r\n', b'HTTP/1.1 408 Request Timeout\r\n'))
    assert b'did not arrive whole within 30 s' in said


@pytest.mark.parametrize('sent', [b'', b'GET / HTTP/1.1\r\nHost: x\r\n\r\n'])
def test_idle_connection_is_closed(listen, clock, sent):
    running = listen(threads=executors.NativeThreads(clock))
    connection = send(running, sent)
    said = b''
    while sent and not said.endswith(b'hello'):
        said += connection.recv(65536)
    wait_until(lambda: running.active_channels and not any(one.is_busy() for one in running.active_channels.values()))
    clock.at += http_server.REST + 1
    assert answer(connection) == b''


def test_connection_with_unread_answer_is_closed(listen, clock):
    def much(environ, start_response):
        return webob.Response(body=b'x' * 50_000_000)(environ, start_response)

    running = listen(much, threads=executors.NativeThreads(clock))
    connection = send(running, b'GET / HTTP/1.1\r\nHost: x\r\n\r\n')
    assert connection.recv(10)
    wait_until(lambda: not any(one.requests for one in running.active_channels.values()))
    clock.at += http_server.REST + 1
    wait_until(lambda: not running.active_channels)
    connection.close()


def test_headers_that_are_too_long_are_answered_431(listen):
    running = listen()
    connection = send(running, b'GET / HTTP/1.1\r\nHost: x\r\nX: '.ljust(http_server.MAX_HEADERS, b'x'))
    assert b' 431 Request Header Fields Too Large\r\n' in answer(connection)


@pytest.mark.parametrize(('length', 'status'), [(1000, b'200 OK'), (1001, b'413 Request Entity Too Large')])
def test_a_body_that_is_too_long_is_answered_413(listen, length, status):
    running = listen(max_body=1000)
    head = f'POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n'.encode()
    connection = send(running, head)
    if length <= 1000:
        connection.sendall(b'x' * length)
    assert answer(connection).startswith(b'HTTP/1.1 ' + status)


def test_a_body_in_chunks_is_as_bounded(listen):
    running = listen(max_body=1000)
    connection = send(running, b'POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n' + b'x' * 2000)
    assert b' 413 Request Entity Too Large\r\n' in answer(connection)


def test_application_error_returns_500_without_traceback_and_logs_path_on_one_line(listen, caplog):
    def broken(environ, start_response):
        raise LookupError('a secret')

    running = listen(broken)
    said = answer(send(running, b'GET /a%0Ab HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'))
    assert said.startswith(b'HTTP/1.1 500 ')
    assert b'secret' not in said
    (record,) = [record for record in caplog.records if 'Exception while serving' in record.getMessage()]
    assert '\n' not in record.getMessage()
    assert 'LookupError: a secret' in caplog.text


def test_threads_come_from_the_given_threads(listen):
    started = []

    class Recording(executors.NativeThreads):
        def start(self, function, *args, name):
            started.append(name)
            super().start(function, *args, name=name)

    listen(threads=Recording(), count=2)
    assert started == ['http-0', 'http-1', 'http']


def test_an_address_in_use_is_an_os_error(listen):
    running = listen()
    with pytest.raises(OSError, match='in use'):
        listen(port=running.port)


def test_a_client_that_does_not_read_holds_a_thread_no_longer_than_a_request_may_take(listen, clock):
    def much(environ, start_response):
        return webob.Response(app_iter=[b'x' * 1_000_000] * 100)(environ, start_response)

    def either(environ, start_response):
        return (much if environ['PATH_INFO'] == '/much' else hello)(environ, start_response)

    running = listen(either, count=1, threads=executors.NativeThreads(clock))
    connection = send(running, b'GET /much HTTP/1.1\r\nHost: x\r\n\r\n')
    assert connection.recv(10)
    wait_until(lambda: any(one.total_outbufs_len >= 2**24 for one in running.active_channels.values()))

    def is_closed():
        # The system may take some more of the answer at any time, from which on the client has that long again.
        clock.at += http_server.ARRIVAL + 1
        return not running.active_channels

    wait_until(is_closed)
    assert fetch(running.url) == b'hello'
    connection.close()


@pytest.mark.parametrize('head', [b'GET / HTTP/1.1\r\n', b'POST / HTTP/1.1\r\nContent-Length: 0\r\n'])
def test_expect_continue_without_a_body_is_answered_and_joins_no_other_request(listen, head):
    running = listen()
    connection = send(running, head + b'Host: a\r\nExpect: 100-continue\r\n\r\n')
    first = b''
    while not first.endswith(b'hello'):
        first += connection.recv(65536)
    assert first.startswith(b'HTTP/1.1 200 ')
    connection.sendall(b'GET / HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n')
    assert answer(connection).startswith(b'HTTP/1.1 200 ')


def test_expect_continue_with_too_long_a_body_is_answered_413(listen):
    running = listen(max_body=1000)
    head = b'POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\nExpect: 100-continue\r\n\r\n'
    assert answer(send(running, head)).startswith(b'HTTP/1.1 413 ')


@pytest.mark.parametrize('line', [b'GET http://[ HTTP/1.1', b'GET http://[zz]/ HTTP/1.1'])
def test_a_malformed_request_line_is_answered_400_and_logs_no_error(listen, line, caplog):
    running = listen()
    assert answer(send(running, line + b'\r\nHost: x\r\n\r\n')).split()[1] == b'400'
    assert not [record for record in caplog.records if record.levelname == 'ERROR']


@pytest.mark.parametrize('line', [b'GET / HTTP/1.1', b'GET http://[ HTTP/1.1'])
def test_server_header_has_the_name_and_no_version(listen, line):
    found = answer(send(listen(name='migrator-api'), line + b'\r\nHost: x\r\nConnection: close\r\n\r\n'))
    headers = found.partition(b'\r\n\r\n')[0].splitlines()
    assert [header for header in headers if header.lower().startswith((b'server:', b'via:'))] == [
        b'Server: migrator-api'
    ]


def test_a_length_of_thousands_of_digits_is_answered_400(listen):
    running = listen()
    head = b'POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ' + b'9' * 5000 + b'\r\n\r\n'
    assert answer(send(running, head)).split()[1] in (b'400', b'413')


def test_empty_lines_keep_no_connection_open(listen, clock):
    running = listen(threads=executors.NativeThreads(clock))
    connection = send(running, b'\r\n')
    # The channel is there before the line is read.
    wait_until(lambda: [one for one in list(running.active_channels.values()) if one.request is not None])
    clock.at += http_server.REST / 2
    connection.sendall(b'\r\n')
    clock.at += http_server.REST / 2 + 1
    wait_until(lambda: not running.active_channels)
    connection.close()
