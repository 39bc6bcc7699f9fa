# SPDX-License-Identifier: Apache-2.0

"""Simulation: determinism by seed, virtual time, and the main thread.

Killed and paused processes are in test_scheduler.py.
"""

import contextvars
import datetime
import os
import pathlib
import subprocess
import sys
import threading
import uuid

import pytest

from migrator import executors
from migrator.testing.simulation import sim_thread
from migrator.testing.simulation.primitives import START
from migrator.testing.simulation.threads import Simulation, TimedOut

# --- determinism -----------------------------------------------------------------------------------------------------


def observed_run(seed):
    """Run two processes with a pool, a shared lock, uuids and sleeps; return everything observable."""
    with Simulation(seed) as simulation:
        a, b = simulation.process('a'), simulation.process('b')
        lock, order = simulation.world.lock(), []
        pool = executors.BoundedExecutor(2, a)

        def work(process, name):
            for turn in range(3):
                process.checkpoint(f'{name} {turn}')
                with lock:
                    order.append((name, turn, process.new_uuid(), process.random()))
                process.sleep(process.random())

        # The order of starts would depend on PYTHONHASHSEED if the simulation kept these names in a set.
        for name in sorted({'x', 'y', 'z'}):
            pool.submit(work, a, name)
            b.start(work, b, name.upper(), name=name)
        simulation.run()
        return simulation.trace, order, simulation.time


def test_same_seed_gives_same_run_and_other_seeds_give_other_runs():
    assert all(observed_run(seed) == observed_run(seed) for seed in (None, 0, 1, 2))
    orders = {tuple(label for _, _, label in observed_run(seed)[0]) for seed in range(30)}
    assert len(orders) > 25


def test_pythonhashseed_does_not_change_run():
    root = pathlib.Path(__file__).parents[3]
    runs = {
        subprocess.run(
            [sys.executable, __file__, '7'],
            env={**os.environ, 'PYTHONHASHSEED': hash_seed, 'PYTHONPATH': str(root)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ('0', '12345')
    }
    assert runs == {f'{observed_run(7)}\n'}


def test_uuids_are_valid_and_differ_per_process_and_boot():
    with Simulation(5) as simulation, Simulation(5) as same, Simulation(6) as other:
        first = simulation.process('a')
        made = [first.new_uuid(), first.new_uuid()]
        assert made[0] == same.process('a').new_uuid()
        simulation.kill(first)
        made += [simulation.process(name).new_uuid() for name in ('a', 'b')] + [other.process('a').new_uuid()]
        assert len(set(made)) == 5
        assert all(str(uuid.UUID(one)) == one and uuid.UUID(one).version == 4 for one in made)


def test_without_seed_first_ready_thread_runs_first_without_interruption(simulation, process):
    ran = []

    def work(name):
        for _ in range(2):
            with process.lock():
                ran.append(name)

    for name in 'abc':
        process.start(work, name, name=name)
    simulation.run_ready()
    assert ''.join(ran) == 'aabbcc'


def test_custom_policy_chooses_next_thread():
    class Last(sim_thread.InOrder):
        def choose(self, ready):
            return len(ready) - 1

    ran = []
    with Simulation(policy=Last()) as simulation:
        process = simulation.process('a')
        for name in 'abc':
            process.start(ran.append, name, name=name)
        simulation.run_ready()
    assert ''.join(ran) == 'cba'


def test_some_seed_finds_race_between_read_and_write_and_replay_finds_it_again():
    def race(seed):
        with Simulation(seed) as simulation:
            process = simulation.process('a')
            count = [0]

            def increment():
                seen = count[0]
                process.checkpoint('between')
                count[0] = seen + 1

            process.start(increment, name='1')
            process.start(increment, name='2')
            simulation.run()
            return count[0]

    lost = [seed for seed in range(20) if race(seed) == 1]
    assert lost
    assert race(lost[0]) == 1


# --- time ------------------------------------------------------------------------------------------------------------


def test_clock_starts_at_fixed_date_and_jumps_to_next_timer(simulation, process):
    assert process.clock.now() == START
    start = process.clock.monotonic()
    woke = []

    def nap(seconds):
        process.sleep(seconds)
        woke.append(process.clock.monotonic() - start)

    for seconds in (7200.5, 3, 0.25):
        process.start(nap, seconds, name='nap')
    simulation.run(limit=10_000)
    assert woke == pytest.approx([0.25, 3, 7200.5])
    assert process.clock.now() == START + datetime.timedelta(seconds=7200.5)


def test_run_ready_does_not_move_clock(simulation, process):
    ran = []

    def work():
        ran.append('before')
        process.sleep(1)
        ran.append('after')

    process.start(work, name='work')
    simulation.run_ready()
    assert (ran, simulation.time) == (['before'], 0)
    simulation.advance(0.5)
    assert (ran, simulation.time) == (['before'], 0.5)
    simulation.advance(0.5)
    assert (ran, simulation.time) == (['before', 'after'], 1)


def test_run_ends_when_only_background_timers_are_left(simulation, process):
    ticks = []
    executors.Periodic(process, 10, lambda: ticks.append(simulation.time), 'tick').start()

    def renew():
        with process.background():
            while True:
                process.sleep(5)

    process.start(renew, name='renew')
    process.start(process.sleep, 25, name='work')
    simulation.run()
    assert simulation.time == 25
    assert len(ticks) == 2


def test_running_periodic_task_is_not_background(simulation, process):
    ended = []

    def tick():
        process.sleep(3)
        ended.append(simulation.time)

    executors.Periodic(process, 1, tick, 'tick').start()
    simulation.advance(1.5)
    simulation.run()
    assert len(ended) == 1


def test_run_over_limit_raises_timed_out_with_busy_thread(simulation, process):
    def spin():
        while True:
            process.sleep(1)

    process.start(spin, name='spinner')
    with pytest.raises(TimedOut, match=r'service/spinner: waiting: sleep\(1\)') as caught:
        simulation.run(limit=100)
    # The frame of a green thread is not available.
    assert 'in spin, ' in str(caught.value) or threading.get_ident() not in sys._current_frames()


def test_run_until_stops_clock_when_predicate_is_true(simulation, process):
    done = process.event()
    process.start(lambda: (process.sleep(4), done.set()), name='work')
    process.start(process.sleep, 100, name='other')
    simulation.run_until(done.is_set)
    assert simulation.time == 4


def test_run_until_timeout_raises_with_every_thread(simulation, process):
    process.start(process.event().wait, name='waiter')
    process.start(process.sleep, 100, name='sleeper')
    with pytest.raises(TimedOut, match=r'(?s)not within 10 s.*waiter: waiting: event.*sleeper: waiting: sleep'):
        simulation.run_until(lambda: False, timeout=10)
    assert simulation.time == 10
    simulation.advance(100)
    with pytest.raises(TimedOut, match='no timer is left'):
        simulation.run_until(lambda: False)


def test_deadline_of_rounded_floats_is_reached(process):
    event = process.event()
    until = process.clock.monotonic() + 0.1 + 0.2
    turns = 0
    while (left := until - process.clock.monotonic()) > 0:
        event.wait(min(left, 0.07))
        turns += 1
    assert turns <= 6


# --- the main thread -------------------------------------------------------------------------------------------------


def test_main_thread_takes_part_and_clock_moves_while_it_waits(simulation, process):
    event = process.event()
    process.start(lambda: (process.sleep(9), event.set()), name='answer')
    assert event.wait(60)
    assert simulation.time == 9
    assert not process.event().wait(1)
    process.sleep(5)
    assert simulation.time == 15
    lock = process.lock()
    process.start(lambda: (lock.acquire(), process.sleep(2), lock.release()), name='holder')
    simulation.run_ready()
    assert not lock.acquire(blocking=False)
    assert not lock.acquire(timeout=1)
    assert lock.acquire()
    assert simulation.time == 17


def test_uncaught_error_of_thread_is_raised_in_main_thread(simulation, process):
    def fail():
        raise KeyError('lost')

    process.start(fail, name='fail')
    with pytest.raises(KeyError, match='lost'):
        simulation.run()


def test_foreign_thread_raises_runtime_error(process):
    errors = []

    def foreign():
        try:
            process.sleep(1)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=foreign, name='foreign')
    thread.start()
    thread.join()
    assert 'thread foreign is not the running thread of this simulation' in errors[0]


def test_each_thread_has_separate_context(simulation, process):
    variable = contextvars.ContextVar('request', default='none')
    seen = []
    for name in 'ab':
        process.start(lambda name=name: (seen.append(variable.get()), variable.set(name)), name=name)
    simulation.run()
    assert seen == ['none', 'none']


if __name__ == '__main__':
    print(observed_run(int(sys.argv[1])))
