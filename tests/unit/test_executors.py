# SPDX-License-Identifier: Apache-2.0

"""The queue above an executor, and the periodic, on real, simulated and library threads."""

import concurrent.futures
import gc
import itertools
import sys
import threading
import weakref

import futurist
import pytest

from migrator import executors
from migrator.testing.simulation.threads import Simulation


class Native:
    """Real threads, on which a test waits in real time."""

    executor = None

    def __init__(self):
        self.threads = executors.NativeThreads()

    def settle(self, predicate):
        pause = threading.Event()
        for _ in range(2000):
            if predicate():
                return
            pause.wait(0.005)
        raise AssertionError('the condition did not become true within 10 s')

    def close(self):
        pass


class Python(Native):
    """Real threads of the standard library's executor."""

    make = concurrent.futures.ThreadPoolExecutor

    def __init__(self):
        super().__init__()
        self.executor = self.make(8)

    def close(self):
        self.executor.shutdown(wait=False)


class Growing(Native):
    """Real threads of the executor of live migrations."""

    def __init__(self):
        super().__init__()
        self.executor = executors.long_calls(self.threads, 'live-migration')

    def close(self):
        self.executor.shutdown()


class Futurist(Python):
    """Real threads of futurist's executor."""

    make = futurist.ThreadPoolExecutor


class FuturistDynamic(Python):
    """Real threads of futurist's executor that can shrink."""

    make = futurist.DynamicThreadPoolExecutor


class Simulated:
    """Simulated threads."""

    executor = None

    def __init__(self, seed=None):
        self.simulation = Simulation(seed)
        self.threads = self.simulation.process('service')

    def settle(self, predicate):
        self.simulation.run_until(predicate)

    def close(self):
        self.simulation.close()


@pytest.fixture(params=[Native, Growing, Python, Futurist, FuturistDynamic, Simulated])
def stage(request):
    stage = request.param()
    yield stage
    stage.close()


class Gate:
    """Work that starts, and ends when the test opens its gate."""

    def __init__(self, threads):
        # Create all events here: work and test could otherwise each create one for the same name.
        self.opened = {name: threads.event() for name in [*'abcdef', 'found']}
        self.started = []

    def work(self, name):
        self.started.append(name)
        self.opened[name].wait(30)
        return name


@pytest.fixture
def simulated():
    stage = Simulated()
    yield stage
    stage.close()


@pytest.fixture
def gate(stage):
    return Gate(stage.threads)


@pytest.fixture
def pool(stage):
    return executors.BoundedExecutor(2, stage.threads, 'pool', stage.executor)


def open_all(gate, names):
    for name in names:
        gate.opened[name].set()


def test_work_starts_in_the_order_in_which_it_was_submitted_and_no_more_than_the_bound_at_once(stage, gate, pool):
    futures = [pool.submit(gate.work, name) for name in 'abcde']
    stage.settle(lambda: len(gate.started) == 2)
    assert (pool.running, pool.waiting) == (2, 3)
    assert sorted(gate.started) == ['a', 'b']
    for ends, starts in zip('abc', 'cde', strict=True):
        gate.opened[ends].set()
        stage.settle(lambda wanted=starts: wanted in gate.started)
        assert pool.running == 2
    open_all(gate, 'de')
    stage.settle(lambda: all(future.done() for future in futures))
    assert [future.result(0) for future in futures] == list('abcde')
    assert gate.started[2:] == ['c', 'd', 'e']


@pytest.mark.parametrize('stage', [Native, Simulated], indirect=True)
def test_an_idle_pool_holds_no_thread(stage, gate, pool):
    before = threading.active_count() if isinstance(stage, Native) else len(stage.threads.threads)
    pool.submit(gate.work, 'a')
    gate.opened['a'].set()
    stage.settle(lambda: not pool.running)

    def now():
        return threading.active_count() if isinstance(stage, Native) else len(stage.threads.threads)

    stage.settle(lambda: now() <= before)


def test_error_is_set_on_the_future_and_the_worker_goes_on(stage, pool):
    def fail():
        raise KeyError('lost')

    failed, worked = pool.submit(fail), pool.submit(lambda: 'fine')
    stage.settle(lambda: failed.done() and worked.done())
    assert isinstance(failed.exception(0), KeyError)
    assert worked.result(0) == 'fine'


def test_system_exit_is_set_on_the_future_and_frees_the_slot(stage, pool):
    def leave():
        raise SystemExit(3)

    futures = [pool.submit(leave) for _ in range(3)]
    stage.settle(lambda: all(future.done() for future in futures) and not pool.running)
    assert isinstance(futures[2].exception(0), SystemExit)


def test_cancelling_a_waiting_item_removes_only_that_item(stage, gate, pool):
    futures = {name: pool.submit(gate.work, name) for name in 'abcd'}
    stage.settle(lambda: len(gate.started) == 2)
    assert futures['c'].cancel()
    assert pool.waiting == 1
    open_all(gate, 'abd')
    stage.settle(lambda: futures['d'].done() and not pool.running)
    assert 'c' not in gate.started
    assert not futures['a'].cancel()


def test_a_cancelled_item_keeps_nothing_alive(stage, gate, pool):
    class Guest:
        def migrate(self):
            raise AssertionError('never')

    guest = Guest()
    gone = weakref.ref(guest)
    running = [pool.submit(gate.work, name) for name in 'ab']
    pool.submit(guest.migrate).cancel()
    del guest
    gc.collect()
    assert gone() is None
    open_all(gate, 'ab')
    stage.settle(lambda: all(future.done() for future in running))


def test_raised_bound_starts_waiting_items_and_lowered_bound_interrupts_nothing(stage, gate, pool):
    for name in 'abcdef':
        pool.submit(gate.work, name)
    pool.resize(4)
    stage.settle(lambda: len(gate.started) == 4)
    pool.resize(1)
    open_all(gate, 'abc')
    stage.settle(lambda: pool.running == 1)
    assert sorted(gate.started) == list('abcd')
    gate.opened['d'].set()
    stage.settle(lambda: 'e' in gate.started)
    assert pool.running == 1
    open_all(gate, 'ef')
    stage.settle(lambda: not pool.running)
    assert gate.started[-2:] == ['e', 'f']


@pytest.mark.parametrize('bound', [0, -1])
def test_bound_below_1_raises_value_error(stage, pool, bound):
    with pytest.raises(ValueError, match='give 1 or more'):
        executors.BoundedExecutor(bound, stage.threads)
    with pytest.raises(ValueError, match='give 1 or more'):
        pool.resize(bound)
    assert pool.max_workers == 2


def test_submit_now_exceeds_the_bound_and_takes_a_slot(stage, gate, pool):
    for name in 'ab':
        pool.submit(gate.work, name)
    stage.settle(lambda: len(gate.started) == 2)
    pool.submit_now(gate.work, 'found')
    pool.submit(gate.work, 'c')
    stage.settle(lambda: len(gate.started) == 3)
    assert pool.running == 3
    gate.opened['a'].set()
    stage.settle(lambda: pool.running == 2)
    assert 'c' not in gate.started
    gate.opened['found'].set()
    stage.settle(lambda: 'c' in gate.started)
    open_all(gate, 'bc')
    stage.settle(lambda: not pool.running)


def test_each_item_starts_one_worker(simulated):
    pool = executors.BoundedExecutor(5, simulated.threads)
    for _ in range(2):
        pool.submit(print)
    assert pool.running == 2


def test_submit_now_takes_the_slot_of_an_item_that_has_not_begun(simulated):
    threads = simulated.threads
    pool, gate = executors.BoundedExecutor(1, threads), Gate(threads)
    pool.submit(gate.work, 'a')
    pool.submit_now(gate.work, 'found')
    simulated.settle(lambda: gate.started)
    assert (gate.started, pool.running, pool.waiting) == (['found'], 1, 1)
    open_all(gate, ['a', 'found'])
    simulated.settle(lambda: not pool.running)
    assert gate.started == ['found', 'a']


@pytest.mark.parametrize('kind', [Python, Futurist, FuturistDynamic])
def test_executor_with_fewer_threads_than_the_bound_keeps_the_order_and_no_cancelled_item(kind):
    stage = kind()
    stage.executor.shutdown()
    stage.executor = kind.make(2)
    pool, gate = executors.BoundedExecutor(4, stage.threads, 'pool', stage.executor), Gate(stage.threads)
    futures = {name: pool.submit(gate.work, name) for name in 'abcdef'}
    stage.settle(lambda: len(gate.started) == 2)
    assert futures['c'].cancel()
    futures.pop('c')
    assert pool.waiting == 3
    gate.opened['a'].set()
    stage.settle(lambda: 'd' in gate.started)
    assert 'e' not in gate.started
    open_all(gate, 'bdef')
    assert [future.result(10) for future in futures.values()] == list('abdef')
    assert pool.wait_idle(10)
    stage.close()


def test_shutdown_refuses_new_items_and_runs_waiting_ones(stage, gate, pool):
    futures = [pool.submit(gate.work, name) for name in 'abc']
    pool.shutdown(wait=False)
    with pytest.raises(RuntimeError, match='shut down'):
        pool.submit(gate.work, 'late')
    with pytest.raises(RuntimeError, match='shut down'):
        pool.submit_now(gate.work, 'late')
    open_all(gate, 'abc')
    pool.shutdown(wait=True)
    assert [future.result(0) for future in futures] == list('abc')
    assert not pool.running


def test_shutdown_with_cancel_leaves_only_running_items(stage, gate, pool):
    futures = [pool.submit(gate.work, name) for name in 'abcd']
    stage.settle(lambda: len(gate.started) == 2)
    pool.shutdown(wait=False, cancel_futures=True)
    assert [future.cancelled() for future in futures] == [False, False, True, True]
    open_all(gate, 'ab')
    pool.shutdown(wait=True)
    assert sorted(gate.started) == ['a', 'b']


def test_the_shutdown_of_an_idle_pool_returns_at_once(pool):
    pool.shutdown(wait=True)


class NoThreads(executors.NativeThreads):
    """A machine on which no further thread can be started."""

    spare = 0

    def start(self, function, *args, name):
        if not self.spare:
            raise RuntimeError("can't start new thread")
        self.spare -= 1
        super().start(function, *args, name=name)


def test_items_wait_in_order_while_no_thread_can_be_started():
    threads, ran = NoThreads(), []
    pool = executors.BoundedExecutor(1, threads)
    futures = [pool.submit(ran.append, 'first'), pool.submit(ran.append, 'second')]
    futures.append(pool.submit_now(ran.append, 'found running'))
    assert (pool.running, pool.waiting, ran) == (0, 3, [])
    threads.spare = 1
    pool.start_waiting()
    for future in futures:
        future.result(10)
    assert ran == ['found running', 'first', 'second']
    pool.shutdown(wait=True)


def test_free_worker_takes_waiting_item_while_no_thread_can_be_started():
    threads = NoThreads()
    threads.spare = 1
    pool, gate = executors.BoundedExecutor(2, threads), Gate(threads)
    futures = [pool.submit(gate.work, name) for name in 'ab']
    Native().settle(lambda: gate.started)
    assert (pool.running, pool.waiting) == (1, 1)
    open_all(gate, 'ab')
    assert [future.result(10) for future in futures] == ['a', 'b']
    pool.shutdown(wait=True)


class Timeout(BaseException):
    """A stand-in for eventlet's Timeout: a BaseException that is raised wherever a green thread waits."""


class FailingStart(executors.NativeThreads):
    """Threads whose start raises after the new thread was started."""

    fails = False

    def start(self, function, *args, name):
        super().start(function, *args, name=name)
        if self.fails:
            raise Timeout


def test_item_runs_once_when_a_time_out_hits_its_starter():
    stage = Native()
    threads = stage.threads = FailingStart()
    pool, gate = executors.BoundedExecutor(1, threads), Gate(threads)
    futures = [pool.submit(gate.work, name) for name in 'abc']
    threads.fails = True
    with pytest.raises(Timeout):
        pool.resize(2)
    threads.fails = False
    stage.settle(lambda: len(gate.started) == 2)
    assert (pool.running, pool.waiting) == (2, 1)
    open_all(gate, 'abc')
    assert [future.result(10) for future in futures] == list('abc')
    pool.shutdown(wait=True)
    # The first two have a slot each, so either may run first.
    assert sorted(gate.started) == list('abc')
    assert pool.running == 0


def test_no_order_of_submit_cancel_resize_and_start_loses_an_item_or_runs_a_cancelled_one():
    orders = set()
    for seed in range(200):
        with Simulation(seed) as simulation:
            threads = simulation.process('service')
            pool = executors.BoundedExecutor(1, threads)
            ran, cancelled, futures, most = [], set(), {}, []
            bound = 1

            def work(name, threads=threads, pool=pool, ran=ran, most=most):
                most.append(pool.running)
                ran.append(name)
                threads.sleep(0.1)

            def submit(names, threads=threads, pool=pool, futures=futures, work=work):
                for name in names:
                    futures[name] = pool.submit(work, name)
                    threads.sleep(0)

            def cancel(names, threads=threads, futures=futures, cancelled=cancelled):
                for name in names:
                    while name not in futures:
                        threads.sleep(0.01)
                    if futures[name].cancel():
                        cancelled.add(name)

            threads.start(submit, 'abc', name='submit-1')
            threads.start(submit, 'def', name='submit-2')
            threads.start(cancel, 'bd', name='cancel-1')
            threads.start(cancel, 'db', name='cancel-2')
            if seed % 3 == 0:
                threads.start(pool.resize, 2, name='resize')
                bound = 2
            simulation.run()
            assert cancelled | set(ran) == set('abcdef'), seed
            assert not cancelled & set(ran), seed
            assert len(ran) == len(set(ran)), seed
            assert max(most) <= bound, seed
            for names in ('abc', 'def'):
                order = [name for name in ran if name in names]
                assert bound > 1 or order == sorted(order), seed
            assert (pool.running, pool.waiting, len(threads.threads)) == (0, 0, 0), seed
            orders.add((tuple(ran), tuple(sorted(cancelled))))
    # The search is useful only if the seeds try different orders.
    assert len(orders) > 20


def test_no_order_of_shutdown_and_submit_leaves_an_item_undecided_or_runs_one_behind_a_cancelled_one():
    searched = set()
    for seed in range(200):
        with Simulation(seed) as simulation:
            threads = simulation.process('service')
            pool = executors.BoundedExecutor(1, threads)
            futures, after = [], []

            def submit(threads=threads, pool=pool, futures=futures):
                for _ in range(5):
                    try:
                        futures.append(pool.submit(threads.sleep, 0))
                    except RuntimeError:
                        return

            def stop(pool=pool, futures=futures, after=after):
                pool.shutdown(wait=True, cancel_futures=True)
                after.append([future.done() for future in futures])

            threads.start(submit, name='submit')
            threads.start(stop, name='stop')
            simulation.run()
            assert after, seed
            assert all(after[0]), seed
            assert all(future.done() for future in futures), seed
            cancelled = [future.cancelled() for future in futures]
            assert cancelled == sorted(cancelled), seed
            searched.add(tuple(cancelled))
    assert len(searched) > 5


def test_a_periodic_runs_once_a_spacing_jittered_by_a_tenth_and_survives_an_error():
    with Simulation() as simulation:
        threads = simulation.process('service')
        times = []

        def tick():
            times.append(threads.clock.monotonic())
            if len(times) == 2:
                raise KeyError('once')

        periodic = executors.Periodic(threads, 10, tick, 'tick').start()
        simulation.advance(100)
        assert 9 <= len(times) <= 11
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert all(9 <= gap <= 11 for gap in gaps)
        assert len({round(gap, 3) for gap in gaps}) > 3
        periodic.stop()
        simulation.advance(100)
        assert len(times) <= 11
        assert not threads.threads


def test_periodic_interval_may_change_and_is_kept_when_unreadable(caplog):
    with Simulation() as simulation:
        threads = simulation.process('service')
        times = []
        spacings = [10.0]
        executors.Periodic(threads, lambda: spacings[0], lambda: times.append(simulation.time), 'tick').start()
        simulation.advance(100)
        assert 9 <= len(times) <= 11
        spacings[0] = 1.0
        simulation.advance(12)
        del times[:]
        simulation.advance(100)
        assert 90 <= len(times) <= 112
        del spacings[:]
        simulation.advance(100)
        assert 180 <= len(times) <= 224
        assert 'Cannot read the interval of periodic task tick; keeping 1 s' in caplog.text


def test_stopping_a_periodic_waits_for_the_present_run():
    with Simulation() as simulation:
        threads = simulation.process('service')
        ended = []

        def slow():
            threads.sleep(5)
            ended.append(True)

        periodic = executors.Periodic(threads, 1, slow, 'slow').start()
        simulation.advance(2)
        periodic.stop()
        assert ended == [True]


def test_a_periodic_that_was_never_started_can_be_stopped(stage):
    executors.Periodic(stage.threads, 1, print, 'never').stop()


def test_periodic_with_long_interval_stops_at_once():
    threads = executors.NativeThreads()
    periodic = executors.Periodic(threads, 3600, print, 'hourly').start()
    periodic.stop()


def test_threads_are_green_only_in_a_patched_process():
    patcher = sys.modules.get('eventlet.patcher')
    patched = patcher is not None and patcher.is_monkey_patched('thread')
    assert patched == (getattr(sys.modules['__main__'].__spec__, 'name', None) == 'tests.patched')


def test_native_threads_return_machine_time_and_uuids():
    threads = executors.NativeThreads()
    assert threads.clock.now().utcoffset().total_seconds() == 0
    assert threads.clock.monotonic() <= threads.clock.monotonic()
    assert threads.new_uuid() != threads.new_uuid()
    assert 0 <= threads.random() < 1
    threads.sleep(0)
