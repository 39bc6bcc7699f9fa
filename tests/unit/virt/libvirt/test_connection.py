# SPDX-License-Identifier: Apache-2.0

"""The way to a libvirt daemon: calls that come too late, and a daemon that says nothing."""

from __future__ import annotations

import threading
import time

import pytest

libvirt = pytest.importorskip('libvirt')

from migrator import exception, executors  # noqa: E402 -- what is tested needs libvirt
from migrator.virt.libvirt import connection as connections  # noqa: E402 -- as above
from tests.unit.virt.libvirt import native  # noqa: E402 -- as above

GREEN = executors.is_green()
UUID = '00000000-0000-4000-8000-000000000001'

hears_events = pytest.mark.skipif(GREEN, reason='where threads are green no events are heard')
green = pytest.mark.skipif(not GREEN, reason='only where threads are green there is a hub')


class Opened:
    """A connection to a daemon that is well."""

    def isAlive(self):  # noqa: N802 -- libvirt's name
        return True

    def close(self):
        pass

    def __getattr__(self, _name):
        return lambda *_args: None


@pytest.fixture
def speaks(monkeypatch):
    """Whether the daemon says anything; it does, until the event is cleared."""
    event = native.event()
    event.set()

    def wait_and_open(_uri):
        event.wait(30)
        return Opened()

    monkeypatch.setattr(libvirt, 'open', wait_and_open)
    monkeypatch.setattr(connections._LOOP, 'start', lambda _threads: None)
    yield event
    event.set()


def a_connection(deadline):
    return connections.Connection('qemu:///system', 'alpha', executors.NativeThreads(), deadline)


def test_a_call_whose_caller_was_told_that_there_is_no_answer_is_not_begun_later(speaks):
    speaks.clear()
    connection, done = a_connection(0.2), []
    with pytest.raises(exception.ServiceUnreachable):
        connection.call('destroy', done.append)
    speaks.set()
    assert connection._pool.wait_idle(10)
    assert done == []
    connection.call('destroy', done.append, 10)
    assert len(done) == 1


def test_a_connection_is_used_again_after_a_call_that_failed_by_itself(speaks):
    connection, seen = a_connection(10), []

    def fail(it):
        seen.append(it)
        raise ValueError('planted')

    with pytest.raises(ValueError, match='planted'):
        connection.call('ask', fail)
    connection.call('ask', seen.append)
    assert seen[0] is seen[1]


@hears_events
def test_a_connection_that_broke_is_let_go_before_there_is_another_for_events(speaks, monkeypatch):
    opened = []

    class Heard(Opened):
        def __init__(self):
            opened.append(self)
            self.alive, self.let_go = True, []

        def isAlive(self):  # noqa: N802 -- libvirt's name
            return self.alive

        def domainEventRegisterAny(self, _domain, event, *_args):  # noqa: N802 -- libvirt's name
            return event

        def domainEventDeregisterAny(self, number):  # noqa: N802 -- libvirt's name
            self.let_go.append(number)
            raise libvirt.libvirtError('it is broken')

        def unregisterCloseCallback(self):  # noqa: N802 -- libvirt's name
            self.let_go.append('callback')

        def close(self):
            self.let_go.append('connection')

    monkeypatch.setattr(libvirt, 'open', lambda _uri: Heard())
    connection = a_connection(10)
    connection.listen()
    connection.listen()
    opened[0].alive = False
    connection.listen()
    assert [one.let_go for one in opened] == [[*connections._EVENTS, 'callback', 'connection'], []]


@hears_events
def test_who_wants_to_hear_events_does_not_wait_for_a_silent_daemon_for_long(speaks):
    speaks.clear()
    connection = a_connection(0.2)
    for _ in range(3):
        began = time.monotonic()
        connection.listen()
        assert time.monotonic() - began < 5
    connection.close()
    assert connection._pool.running == 1


class Domain:
    def UUIDString(self):  # noqa: N802 -- libvirt's name
        return 'guest'


@pytest.mark.parametrize(
    ('event', 'detail', 'woken'),
    [
        (libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_SUSPENDED_MIGRATED, False),
        (libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_SUSPENDED_POSTCOPY_FAILED, True),
        (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_MIGRATED, True),
    ],
)
def test_nobody_asks_qemu_anything_while_a_guest_stands_still_to_go(speaks, event, detail, woken):
    connection = a_connection(10)
    with connection.waker.listen('guest') as news:
        connection._on_event(None, Domain(), event, detail, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE)
        assert news.is_set() == woken
    gone = (event, detail) == (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_MIGRATED)
    assert connection.has_moved('guest') == gone


def test_a_question_of_each_heartbeat_that_hangs_takes_one_thread(speaks):
    # long enough for the first to begin: only that one waits for it
    connection, released = a_connection(3), native.event()
    for _ in range(connections.POOL_SIZE + 3):
        with pytest.raises(exception.ServiceUnreachable, match='has not answered get_node'):
            connection.call('get_node', lambda _connection: released.wait(60))
    assert connection.call('get_guest', lambda _connection: 'running', 10) == 'running'
    native.until(lambda: connection._pool.running == 1)
    released.set()
    assert connection._pool.wait_idle(10)
    assert connection.call('get_node', lambda _connection: 'a node', 10) == 'a node'


# --- in a process that eventlet has patched, and in any other --------------------------------------------------------


@green
def test_calls_that_hang_leave_eventlets_own_threads_to_the_other_users_of_the_process(speaks):
    import eventlet
    from eventlet import tpool

    released, began = native.event(), []

    def hang(_connection):
        began.append(1)
        released.wait(60)

    connection = a_connection(60)
    calls = [connection._pool.submit(connection.do, 'get_guest', hang) for _ in range(connections.POOL_SIZE)]
    try:
        native.until(lambda: len(began) >= 20)
        with eventlet.Timeout(5):
            assert tpool.execute(lambda: 'free') == 'free'
        native.until(lambda: len(began) == connections.POOL_SIZE)
    finally:
        released.set()
    for call in calls:
        call.result(10)


class Stopped(Opened):
    """A connection to a daemon that is stopped: to close it takes until the daemon goes on."""

    def __init__(self, goes_on, closing):
        self._goes_on, self._closing = goes_on, closing

    def close(self):
        self._closing.append('begun')
        self._closing.append('closed' if self._goes_on.wait(5) else 'nobody else ran')


@pytest.mark.parametrize('kept', [0, 8], ids=['one too many is given back', 'all are closed'])
def test_while_a_connection_to_a_stopped_daemon_is_closed_the_other_threads_go_on(speaks, monkeypatch, kept):
    goes_on, closing, ended = native.event(), [], threading.Event()
    monkeypatch.setattr(libvirt, 'open', lambda _uri: Stopped(goes_on, closing))
    monkeypatch.setattr(connections, 'IDLE', kept)
    connection = a_connection(10)

    def ask_and_close():
        connection.call('ask', lambda _connection: None)
        connection.close()
        ended.set()

    executors.NativeThreads().start(ask_and_close, name='closes')
    native.until(lambda: closing)
    goes_on.set()
    assert ended.wait(10)
    assert closing == ['begun', 'closed']


@green
def test_libvirt_itself_prints_nothing_about_a_guest_that_is_not_there(monkeypatch, capfd):
    connection = connections.Connection('test:///default', 'alpha', executors.NativeThreads(), 10)
    with pytest.raises(exception.DriverError, match='Domain not found'):
        connection.call('get_guest', lambda it: it.lookupByUUIDString(UUID))
    connection.close()
    assert capfd.readouterr().err == ''
