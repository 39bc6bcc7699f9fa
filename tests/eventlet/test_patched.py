# SPDX-License-Identifier: Apache-2.0

"""The ground of this environment: without it, all that runs here would prove nothing of eventlet."""

import sys
import threading
import time

import eventlet
from eventlet import patcher


def test_this_process_was_patched_before_anything_else_was_imported():
    unpatched = {'os', 'select', 'socket', 'subprocess', 'thread', 'time'} - set(patcher.already_patched)
    assert not unpatched, 'run it by `make test-eventlet`, or `python -m tests.patched`'
    order = list(sys.modules)
    assert order.index('eventlet') < min(order.index(name) for name in ('pytest', 'oslo_messaging', 'migrator'))


def test_a_thread_is_a_green_one_and_a_sleep_lets_others_run():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(patcher.original('threading').get_ident()))
    thread.start()
    thread.join()
    assert seen == [patcher.original('threading').get_ident()]
    ran = []
    eventlet.spawn(ran.append, True)
    time.sleep(0)
    assert ran
