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

"""The ground of this environment: without it, all that runs here would prove nothing of eventlet."""

from __future__ import annotations

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
