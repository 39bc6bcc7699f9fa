# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""The way to a libvirt daemon: calls that come too late, and a daemon that says nothing."""

from __future__ import annotations

import threading
import time

import pytest

libvirt = pytest.importorskip('libvirt')

from migrator import exception, executors  # noqa: E402 -- what is tested needs libvirt
from migrator.virt.libvirt import connection as connections  # noqa: E402


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
    event = threading.Event()
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
    connection.call('destroy', done.append)
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
