# SPDX-License-Identifier: Apache-2.0

"""A time-out of eventlet is the usual way to bound a call of a driver in a patched process."""

import types

import eventlet
import pytest

from migrator import exception, executors
from migrator.compute import registration
from migrator.virt.simple import SimpleDriver


class Slow(SimpleDriver):
    """A driver that gives up by a time-out of eventlet."""

    def guests(self):
        with eventlet.Timeout(0.01):
            eventlet.sleep(30)

    receive = migrate = abort = force_complete = remove = guests


def test_time_out_of_eventlet_in_a_driver_is_an_error_of_the_driver():
    driver = Slow({'VCPU': 1})
    driver.init_host('host1')
    with pytest.raises(exception.DriverError, match=r'Timeout: 0\.01 seconds'):
        driver.list_guests()


def test_time_out_that_a_driver_has_left_behind_ends_no_registration():
    asked, registered = [], executors.NativeThreads().event()

    class Leaking:
        def list_guests(self):
            asked.append(True)
            if len(asked) == 1:
                eventlet.Timeout(0.01)  # never cancelled: it ends the pause before the next try
                raise ConnectionError('the hypervisor restarts')
            return []

    class Events:
        def compute_started(self, report):
            registered.set()
            return []

    threads = executors.NativeThreads()
    inventory = types.SimpleNamespace(report=lambda *_guests: None)
    runner = types.SimpleNamespace(starting=True, inherited=types.SimpleNamespace(forget_ended=lambda: None))
    made = registration.Registration(threads, Events(), Leaking(), inventory, runner, None, 60)
    made.register()
    assert registered.wait(30)


def test_periodic_task_goes_on_after_a_time_out_of_eventlet(caplog):
    ran, again = [], executors.NativeThreads().event()

    def task():
        ran.append(True)
        if len(ran) > 1:
            again.set()
        raise eventlet.Timeout

    periodic = executors.Periodic(executors.NativeThreads(), 0.01, task, 'tick').start()
    assert again.wait(30)
    periodic.stop()
    assert 'Periodic task failed, and will run again: tick' in caplog.text
