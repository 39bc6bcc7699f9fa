# SPDX-License-Identifier: Apache-2.0

"""The connections to a libvirt daemon: late calls, broken connections, and a daemon that hangs."""

import threading
import time

import pytest

libvirt = pytest.importorskip('libvirt')

from migrator import exception, executors  # noqa: E402 -- what is tested needs libvirt
from migrator.virt.libvirt import connection as connections  # noqa: E402 -- as above
from tests.unit.virt.libvirt import native  # noqa: E402 -- as above

GREEN = executors.is_green()
UUID = '00000000-0000-4000-8000-000000000001'

receives_events = pytest.mark.skipif(GREEN, reason='a process with green threads receives no events')
green = pytest.mark.skipif(not GREEN, reason='only a process with green threads has a hub')


class Opened:
    """A connection to a healthy daemon."""

    def isAlive(self):  # noqa: N802 -- libvirt's name
        return True

    def close(self):
        pass

    def __getattr__(self, _name):
        return lambda *_args: None


@pytest.fixture
def answers(monkeypatch):
    """The event that makes the daemon answer.

    While it is cleared, the daemon hangs.
    """
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


def test_call_that_missed_its_deadline_in_the_queue_does_not_begin_later(answers):
    answers.clear()
    connection, done = a_connection(0.2), []
    with pytest.raises(exception.ServiceUnreachable):
        connection.call('destroy', done.append)
    answers.set()
    assert connection._pool.wait_idle(10)
    assert done == []
    connection.call('destroy', done.append, 10)
    assert len(done) == 1


def test_connection_is_reused_after_a_call_with_an_error_of_its_own(answers):
    connection, seen = a_connection(10), []

    def fail(it):
        seen.append(it)
        raise ValueError('planted')

    with pytest.raises(ValueError, match='planted'):
        connection.call('ask', fail)
    connection.call('ask', seen.append)
    assert seen[0] is seen[1]


@receives_events
def test_broken_events_connection_is_released_before_a_new_one_is_opened(answers, monkeypatch):
    opened = []

    class Subscribed(Opened):
        def __init__(self):
            opened.append(self)
            self.alive, self.released = True, []

        def isAlive(self):  # noqa: N802 -- libvirt's name
            return self.alive

        def domainEventRegisterAny(self, _domain, event, *_args):  # noqa: N802 -- libvirt's name
            return event

        def domainEventDeregisterAny(self, number):  # noqa: N802 -- libvirt's name
            self.released.append(number)
            raise libvirt.libvirtError('it is broken')

        def unregisterCloseCallback(self):  # noqa: N802 -- libvirt's name
            self.released.append('callback')

        def close(self):
            self.released.append('connection')

    monkeypatch.setattr(libvirt, 'open', lambda _uri: Subscribed())
    connection = a_connection(10)
    connection.listen()
    connection.listen()
    opened[0].alive = False
    connection.listen()
    assert [one.released for one in opened] == [[*connections._EVENTS, 'callback', 'connection'], []]


@receives_events
def test_listen_returns_at_its_deadline_if_the_daemon_hangs(answers):
    answers.clear()
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
def test_pause_for_switchover_wakes_no_waiting_thread(answers, event, detail, woken):
    connection = a_connection(10)
    with connection.waker.listen('guest') as news:
        connection._on_event(None, Domain(), event, detail, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE)
        assert news.is_set() == woken
    gone = (event, detail) == (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_MIGRATED)
    assert connection.has_moved('guest') == gone


@pytest.mark.parametrize(
    ('changed', 'reported'),
    [
        ({}, [(0.045, 2e9)]),
        ({'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN}, []),
        ({'success': False}, []),
        ({'downtime': None, 'time_elapsed': 0}, [(None, None)]),
    ],
)
def test_completed_move_is_reported_with_its_downtime_and_rate(answers, changed, reported):
    connection, found = a_connection(10), []
    connection.on_copied = lambda uuid, downtime, rate: found.append((downtime, rate))
    stats = {'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT, 'downtime': 45, 'time_elapsed': 2000}
    stats |= {'memory_processed': 10**9, 'disk_processed': 3 * 10**9, **changed}
    event = libvirt.VIR_DOMAIN_EVENT_ID_JOB_COMPLETED
    connection._on_event(None, Domain(), {name: value for name, value in stats.items() if value is not None}, event)
    assert found == reported


def test_hanging_call_of_each_heartbeat_takes_one_thread(answers):
    # The deadline lets the first call begin. Only that call waits for it.
    connection, released = a_connection(1), native.event()
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
def test_hanging_calls_leave_eventlets_own_thread_pool_free(answers):
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
    """A connection to a stopped daemon.

    Its close() blocks until the daemon continues.
    """

    def __init__(self, goes_on, closing):
        self._goes_on, self._closing = goes_on, closing

    def close(self):
        self._closing.append('begun')
        self._closing.append('closed' if self._goes_on.wait(5) else 'no other thread ran')


@pytest.mark.parametrize('kept', [0, 8], ids=['one too many is returned', 'all are closed'])
def test_closing_a_connection_to_a_stopped_daemon_does_not_block_other_threads(answers, monkeypatch, kept):
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
def test_libvirt_prints_nothing_about_a_missing_guest(monkeypatch, capfd):
    connection = connections.Connection('test:///default', 'alpha', executors.NativeThreads(), 10)
    with pytest.raises(exception.DriverError, match='Domain not found'):
        connection.call('get_guest', lambda it: it.lookupByUUIDString(UUID))
    connection.close()
    assert capfd.readouterr().err == ''
