# SPDX-License-Identifier: Apache-2.0

"""A time-out of eventlet is the usual way to bound a call of a driver in a patched process."""

import eventlet
import pytest

from migrator import exception, executors
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
