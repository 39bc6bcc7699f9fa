# SPDX-License-Identifier: Apache-2.0

"""The simulation: deterministic by its seed, and honest about time. (Death and pauses: test_baton.py.)"""

from __future__ import annotations

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


@pytest.fixture
def simulation():
    with Simulation(None) as simulation:
        yield simulation


@pytest.fixture
def process(simulation):
    return simulation.process('service')


# --- determinism -----------------------------------------------------------------------------------------------------


def story(seed):
    """Two processes, a pool, a lock in common, uuids and naps; return all that can be seen of it."""
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

        # an order that would differ with PYTHONHASHSEED if anything below were kept in a set of texts
        for name in sorted({'x', 'y', 'z'}):
            pool.submit(work, a, name)
            b.start(work, b, name.upper(), name=name)
        simulation.run()
        return simulation.trace, order, simulation.scheduler.passes


def test_the_same_seed_gives_the_same_run_and_other_seeds_other_runs():
    assert all(story(seed) == story(seed) for seed in (None, 0, 1, 2))
    orders = {tuple(label for _, _, label in story(seed)[0]) for seed in range(30)}
    assert len(orders) > 25


def test_no_hash_seed_changes_a_run():
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
    assert runs == {f'{story(7)}\n'}


def test_uuids_are_valid_and_each_process_and_each_life_of_it_has_its_own():
    with Simulation(5) as simulation, Simulation(5) as same, Simulation(6) as other:
        first = simulation.process('a')
        made = [first.new_uuid(), first.new_uuid()]
        assert made[0] == same.process('a').new_uuid()
        simulation.kill(first)
        made += [simulation.process(name).new_uuid() for name in ('a', 'b')] + [other.process('a').new_uuid()]
        assert len(set(made)) == 5
        assert all(str(uuid.UUID(one)) == one and uuid.UUID(one).version == 4 for one in made)


def test_without_a_seed_the_first_that_is_ready_runs_first_and_nobody_is_interrupted(simulation, process):
    ran = []

    def work(name):
        for _ in range(2):
            with process.lock():
                ran.append(name)

    for name in 'abc':
        process.start(work, name, name=name)
    simulation.run_ready()
    assert ''.join(ran) == 'aabbcc'


def test_a_policy_of_ones_own_decides_who_runs():
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


def test_some_seed_finds_a_race_between_a_look_and_a_write_and_its_replay_finds_it_again():
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


def test_the_clock_begins_at_a_fixed_date_and_jumps_to_the_next_timer(simulation, process):
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


def test_running_what_is_ready_leaves_the_clock_alone(simulation, process):
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


def test_a_run_ends_when_only_background_timers_are_left(simulation, process):
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


def test_what_a_periodic_has_begun_is_no_background(simulation, process):
    ended = []

    def tick():
        process.sleep(3)
        ended.append(simulation.time)

    executors.Periodic(process, 1, tick, 'tick').start()
    simulation.advance(1.5)
    simulation.run()
    assert len(ended) == 1


def test_a_run_that_does_not_come_to_rest_says_who_keeps_it_busy(simulation, process):
    def spin():
        while True:
            process.sleep(1)

    process.start(spin, name='spinner')
    with pytest.raises(TimedOut, match=r'service/spinner: waiting: sleep\(1\)') as caught:
        simulation.run(limit=100)
    # green threads have no frame that could be asked for
    assert 'in spin, ' in str(caught.value) or threading.get_ident() not in sys._current_frames()


def test_running_until_something_holds_stops_the_clock_there(simulation, process):
    done = process.event()
    process.start(lambda: (process.sleep(4), done.set()), name='work')
    process.start(process.sleep, 100, name='other')
    simulation.run_until(done.is_set)
    assert simulation.time == 4


def test_what_does_not_become_so_is_reported_with_every_thread(simulation, process):
    process.start(process.event().wait, name='waiter')
    process.start(process.sleep, 100, name='sleeper')
    with pytest.raises(TimedOut, match=r'(?s)not within 10 s.*waiter: waiting: event.*sleeper: waiting: sleep'):
        simulation.run_until(lambda: False, timeout=10)
    assert simulation.time == 10
    simulation.advance(100)
    with pytest.raises(TimedOut, match='no timer is left'):
        simulation.run_until(lambda: False)


def test_a_deadline_computed_with_rounded_floats_is_reached(process):
    event = process.event()
    until = process.clock.monotonic() + 0.1 + 0.2
    turns = 0
    while (left := until - process.clock.monotonic()) > 0:
        event.wait(min(left, 0.07))
        turns += 1
    assert turns <= 6


# --- the test's own thread -------------------------------------------------------------------------------------------


def test_the_tests_own_thread_takes_part_and_the_clock_moves_while_it_waits(simulation, process):
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


def test_an_error_that_a_thread_does_not_catch_is_the_tests(simulation, process):
    def fail():
        raise KeyError('lost')

    process.start(fail, name='fail')
    with pytest.raises(KeyError, match='lost'):
        simulation.run()


def test_a_thread_that_is_not_of_the_simulation_is_refused(process):
    errors = []

    def foreign():
        try:
            process.sleep(1)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=foreign, name='foreign')
    thread.start()
    thread.join()
    assert 'foreign is no thread of this simulation' in errors[0]


def test_each_thread_has_a_context_of_its_own(simulation, process):
    variable = contextvars.ContextVar('request', default='none')
    seen = []
    for name in 'ab':
        process.start(lambda name=name: (seen.append(variable.get()), variable.set(name)), name=name)
    simulation.run()
    assert seen == ['none', 'none']


if __name__ == '__main__':
    print(story(int(sys.argv[1])))
