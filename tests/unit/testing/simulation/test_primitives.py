# SPDX-License-Identifier: Apache-2.0

"""The locks and events of simulated processes, and their deadlocks."""

import pytest

from migrator.testing.simulation.sim_thread import Deadlock, Livelock
from migrator.testing.simulation.threads import Simulation


def test_set_event_wakes_all_waiters_and_stays_set_until_cleared(simulation, process):
    event, woken = process.event(), []
    for name in 'abc':
        process.start(lambda name=name: woken.append((name, event.wait())), name=name)
    simulation.run_ready()
    assert woken == []
    event.set()
    simulation.run_ready()
    assert woken == [('a', True), ('b', True), ('c', True)]
    assert event.wait()
    event.clear()
    assert not event.wait(0)


def test_lock_has_one_owner_at_a_time_with_any_seed():
    for seed in range(30):
        with Simulation(seed) as simulation:
            process = simulation.process('a')
            lock, inside, most = process.lock(), [], []

            def work(process=process, lock=lock, inside=inside, most=most):
                for _ in range(3):
                    with lock:
                        inside.append(1)
                        process.checkpoint('inside')
                        most.append(len(inside))
                        inside.pop()

            for name in 'abcd':
                process.start(work, name=name)
            simulation.run()
            assert len(most) == 12
            assert max(most) == 1


def test_release_of_unlocked_lock_raises(process):
    with pytest.raises(RuntimeError, match='unlocked'):
        process.lock().release()


def test_deadlock_of_two_locks_raises_with_dump(simulation, process):
    left, right = process.lock(), process.lock()

    def work(first, second):
        with first:
            process.sleep(1)
            with second:
                pass

    process.start(work, left, right, name='one')
    process.start(work, right, left, name='two')
    with pytest.raises(Deadlock, match=r'(?s)service/two waits for itself.*service/one: waiting: lock of service'):
        simulation.run()


def test_second_acquire_by_same_thread_raises_deadlock(process):
    lock = process.lock()
    with lock, pytest.raises(Deadlock, match='main waits for itself'):
        lock.acquire()


def test_wait_without_ready_threads_and_timers_raises_deadlock(simulation, process):
    process.start(process.event().wait, name='other')
    with pytest.raises(Deadlock, match=r'(?s)nothing can run.*service/other: waiting: event'):
        process.event().wait()
    process.sleep(1)


def test_threads_that_spin_at_one_moment_raise_livelock(simulation, process, monkeypatch):
    monkeypatch.setattr('migrator.testing.simulation.scheduler.MAX_PASSES', 1000)

    def spin():
        while True:
            process.sleep(0)

    with Simulation(1) as simulation:
        process = simulation.process('a')
        process.start(spin, name='1')
        process.start(spin, name='2')
        with pytest.raises(Livelock, match='1000 thread switches at the same moment'):
            simulation.run()


@pytest.mark.parametrize('pause', [0.001, 0])
def test_most_passes_limits_switches_at_one_moment_only(pause):
    with Simulation(1) as simulation:
        simulation.scheduler.most_passes = 40
        process = simulation.process('a')
        for name in ('1', '2'):
            process.start(lambda: [process.sleep(pause) for _ in range(5000)], name=name)
        if pause:
            simulation.run()
            return
        with pytest.raises(Livelock) as raised:
            simulation.run()
        assert raised.value.passes == 40


def test_chain_of_300_thread_starts_does_not_exhaust_stack(simulation, process):
    left = 300
    never = process.event()

    def deep(calls):
        nonlocal left
        if calls:
            return deep(calls - 1)
        left -= 1
        if left:
            process.start(deep, 20, name='next')
        return never.wait()

    process.start(deep, 20, name='first')
    simulation.run_ready()
    assert not left
