# SPDX-License-Identifier: Apache-2.0

"""Killed processes have no further effect, and paused processes continue later."""

import pytest

from migrator import executors
from migrator.testing.simulation.sim_thread import ProcessKilled
from migrator.testing.simulation.threads import Simulation


def everything(process, lock, event):
    """Return every crossing of a process and every other call that a dying thread could make."""
    return [
        lock.acquire,
        event.wait,
        event.set,
        event.clear,
        lambda: process.sleep(1),
        lambda: process.sleep(0),
        lambda: process.start(print, name='late'),
        lambda: process.checkpoint('late'),
        process.check,
        process.new_uuid,
        process.random,
        process.lock,
        process.event,
        process.clock.now,
        process.clock.monotonic,
    ]


def test_finally_and_except_of_killed_process_have_no_effect(simulation, process):
    lock, event, answered = process.lock(), process.event(), simulation.world.event()
    raised = []

    def work():
        try:
            with lock:
                process.sleep(60)
        except BaseException:
            for crossing in [*everything(process, lock, event), answered.set]:
                try:
                    crossing()
                except ProcessKilled:
                    raised.append(crossing)
            raise
        finally:
            event.set()

    process.start(work, name='work')
    process.start(event.wait, name='waiter')
    simulation.advance(1)
    simulation.kill(process)
    assert len(raised) == 16
    assert not answered.is_set()
    assert not event.is_set()
    assert lock.locked()
    assert not process.threads
    assert [label for _, _, label in simulation.trace] == []


def test_unstarted_thread_of_killed_process_never_runs(simulation, process):
    ran = []
    process.start(ran.append, 1, name='never')
    simulation.kill(process)
    simulation.run()
    assert ran == []


def test_live_thread_that_uses_dead_process_gets_process_killed(simulation, process):
    lock, event = process.lock(), process.event()
    lock.acquire()
    simulation.kill(process)
    lock.release()
    event.set()
    event.clear()
    assert not event.is_set()
    refused = [crossing for crossing in everything(process, lock, event) if crossing not in (event.set, event.clear)]
    for crossing in refused:
        with pytest.raises(ProcessKilled, match='service has been killed'):
            crossing()
    simulation.kill(process)


def test_checkpoint_hook_can_kill_process_by_label(simulation, process):
    done = []

    def kill(at, label):
        if label == 'intent':
            simulation.kill(at)

    def work():
        process.checkpoint('begin')
        done.append('began')
        process.checkpoint('intent')
        done.append('never')

    simulation.on_checkpoint = kill
    process.start(work, name='work')
    process.start(process.event().wait, name='bystander')
    simulation.run()
    assert done == ['began']
    assert simulation.trace == [(0, 'service', 'begin'), (0, 'service', 'intent')]
    assert not process.threads


def test_error_of_checkpoint_hook_is_raised_at_checkpoint(simulation, process):
    def full(at, label):
        raise OSError('disk full')

    simulation.on_checkpoint = full
    with pytest.raises(OSError, match='disk full'):
        process.checkpoint('write')


def test_kill_does_not_affect_other_process_and_world(simulation, process):
    other, ran = simulation.process('other'), []
    simulation.world.start(lambda: (simulation.world.sleep(5), ran.append('world')), name='job')
    other.start(lambda: (other.sleep(5), ran.append('other')), name='work')
    process.start(lambda: (process.sleep(5), ran.append('killed')), name='work')
    simulation.advance(1)
    simulation.kill(process)
    simulation.run()
    assert ran == ['world', 'other']


def test_killed_process_leaves_locks_of_world_free_with_any_seed():
    for seed in range(40):
        with Simulation(seed) as simulation:
            doomed, other = simulation.process('doomed'), simulation.process('other')
            lock, had = simulation.world.lock(), []

            def work(process, lock=lock, had=had):
                with lock:
                    process.sleep(1)
                    had.append(process.name)

            for process in (doomed, doomed, other, other):
                process.start(work, process, name='work')
            simulation.advance(0.5 + seed % 3)
            simulation.kill(doomed)
            simulation.run()
            assert had.count('other') == 2


def test_pool_of_killed_process_sets_no_result_of_future(simulation, process):
    pool = executors.BoundedExecutor(1, process)
    running, waiting = pool.submit(process.sleep, 5), pool.submit(process.sleep, 5)
    simulation.advance(1)
    simulation.kill(process)
    simulation.run()
    assert isinstance(running.exception(0), ProcessKilled)
    assert not waiting.done()


def test_visiting_thread_gets_process_killed_and_continues_outside_block(simulation, process):
    simulation.world.start(lambda: (simulation.world.sleep(1), simulation.kill(process)), name='killer')
    with pytest.raises(ProcessKilled), process.acting():  # noqa: PT012 -- the test is about the whole block
        process.sleep(0.5)
        simulation.world.event().wait(60)
    assert simulation.time == 1
    simulation.world.sleep(1)


def test_thread_that_always_catches_process_killed_is_reported_at_close():
    simulation = Simulation()
    process = simulation.process('a')

    def stubborn():
        while True:
            try:
                process.sleep(1)
            except ProcessKilled:
                pass

    process.start(stubborn, name='stubborn')
    simulation.advance(3)
    simulation.kill(process)
    simulation.advance(3)
    with pytest.raises(AssertionError, match='did not die: a/stubborn'):
        simulation.close()


def test_close_ends_every_thread():
    simulation = Simulation(3)
    process, running = simulation.process('a'), []

    def stay(wait, *args):
        running.append(wait)
        try:
            wait(*args)
        finally:
            running.remove(wait)

    for name in 'abcdef':
        process.start(stay, process.event().wait, name=name)
        simulation.world.start(stay, simulation.world.sleep, 60, name=name)
    simulation.advance(1)
    assert len(running) == 12
    simulation.close()
    assert not running
    simulation.close()


# --- pauses ----------------------------------------------------------------------------------------------------------


def test_paused_process_does_nothing_and_continues_late_after_resume(simulation, process):
    other, beats = simulation.process('other'), []

    def beat(at):
        while True:
            at.sleep(1)
            beats.append((at.name, simulation.time))

    process.start(beat, process, name='beat')
    other.start(beat, other, name='beat')
    simulation.advance(2.5)
    simulation.pause(process)
    simulation.advance(10)
    assert [time for name, time in beats if name == 'service'] == [1, 2]
    assert len(beats) == 14
    simulation.resume(process)
    simulation.advance(2)
    assert [time for name, time in beats if name == 'service'] == [1, 2, 12.5, 13.5, 14.5]


def test_process_paused_at_checkpoint_stops_there(simulation, process):
    done = []
    simulation.on_checkpoint = lambda at, label: simulation.pause(at)
    process.start(lambda: (process.checkpoint('here'), done.append(True)), name='work')
    simulation.run()
    assert not done
    assert 'service/work: paused: here' in simulation.dump()
    simulation.resume(process)
    simulation.run()
    assert done


def test_paused_process_can_be_killed(simulation, process):
    process.start(process.sleep, 1, name='work')
    simulation.advance(0.5)
    simulation.pause(process)
    simulation.advance(5)
    simulation.kill(process)
    simulation.run()
    assert not process.threads


def test_lock_goes_to_other_thread_if_woken_thread_is_paused(simulation, process):
    other, lock, had = simulation.process('other'), simulation.world.lock(), []
    lock.acquire()
    for each in (process, other):
        each.start(lambda each=each: (lock.acquire(), had.append(each.name), lock.release()), name='work')
    simulation.run_ready()
    simulation.pause(process)
    lock.release()
    simulation.run_ready()
    assert had == ['other']
    simulation.resume(process)
    simulation.run_ready()
    assert had == ['other', 'service']
