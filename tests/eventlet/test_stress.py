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

"""The hammer of ``tests/unit/compute/test_stress.py``, on green threads that change wherever a lock is taken."""

from __future__ import annotations

import threading

from tests.eventlet import changing
from tests.unit.compute import test_stress as stress


def test_no_abort_is_lost_no_entry_leaks_and_no_future_or_thread_is_left():
    known, before = set(threading.enumerate()), stress.futures()
    assert stress.hammer(stress.Queue, changing.Changing(1), stress.ROUNDS, stress.LIVES) == []
    assert stress.workers(known) == []
    assert stress.futures() <= before


def test_the_same_hammer_finds_the_naive_order_wrong():
    assert stress.lost(stress.hammer(stress.specimens.Naive, changing.Changing(1), stress.ROUNDS, stress.LIVES))


def test_a_host_that_is_hammered_loses_no_abort():
    known = set(threading.enumerate())
    for seed in range(6):
        hammered = stress.Hammered(changing.Changing(seed), seed)
        hammered.hammer()
        hammered.check()
        hammered.host.manager.cleanup_host()
    assert stress.workers(known) == []
