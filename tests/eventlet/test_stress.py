# SPDX-License-Identifier: Apache-2.0

"""The stress test of ``tests/unit/compute``, on green threads that switch at each lock."""

import threading

from tests.eventlet import changing
from tests.unit.compute import test_stress
from tests.unit.compute.test_live_migration_queue import Naive


def test_no_abort_is_lost_no_entry_leaks_and_no_future_or_thread_is_left():
    known, before = set(threading.enumerate()), test_stress.futures()
    assert test_stress.hammer(test_stress.Queue, changing.Changing(1), test_stress.ROUNDS, test_stress.QUEUES) == []
    assert test_stress.workers(known) == []
    assert test_stress.futures() <= before


def test_the_same_hammer_finds_the_naive_order_wrong():
    assert test_stress.lost(test_stress.hammer(Naive, changing.Changing(1), test_stress.ROUNDS, test_stress.QUEUES))


def test_a_host_that_is_hammered_loses_no_abort():
    known = set(threading.enumerate())
    for seed in range(6):
        hammered = test_stress.Hammered(changing.Changing(seed), seed)
        hammered.hammer()
        hammered.check()
        hammered.host.manager.cleanup_host()
    assert test_stress.workers(known) == []
