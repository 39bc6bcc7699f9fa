# SPDX-License-Identifier: Apache-2.0

"""The executor of live migrations, which is futurist's, on native and on green threads."""

import importlib.metadata
import logging
import sys
import threading
import types

import futurist
import pytest

from migrator import executors
from tests.unit.test_executors import Native


class Calls:
    """Calls that hang until they are released."""

    def __init__(self):
        self._lock = threading.Lock()
        self.begun = []
        self._gates = {}

    def hang(self, name):
        gate = threading.Event()
        with self._lock:
            self._gates[name] = gate
            self.begun.append(name)
        gate.wait(60)
        return name

    def release(self, *names):
        for name in names:
            self._gates[name].set()


@pytest.fixture
def calls():
    return Calls()


@pytest.fixture
def pool():
    """The executor, which is shut down at the end."""
    made = executors.long_calls(executors.NativeThreads(), 'live-migration')
    yield made
    made.shutdown(wait=False)


def settle(predicate):
    Native().settle(predicate)


def threads_of(pool):
    return [thread for thread in pool._workers if thread.is_alive()]


def test_default_is_the_pool_of_futurist_on_threads_of_this_process_and_none_of_simulated_ones(pool):
    assert isinstance(pool, futurist.DynamicThreadPoolExecutor)
    assert not isinstance(pool, futurist.GreenThreadPoolExecutor)
    assert isinstance(executors.long_calls(object(), 'simulated'), executors.ThreadExecutor)


def test_each_call_begins_at_once_and_a_few_threads_stay(pool, calls):
    futures = [pool.submit(calls.hang, number) for number in range(40)]
    settle(lambda: len(calls.begun) == 40)
    assert len(threads_of(pool)) == 40
    calls.release(*range(40))
    assert [future.result(30) for future in futures] == list(range(40))
    settle(lambda: 1 <= len(threads_of(pool)) <= 3)
    names = [thread.name for thread in threads_of(pool)]
    assert all(name.startswith('live-migration-') for name in names)
    assert pool.submit(threading.current_thread).result(30).name in names


def test_a_call_does_not_wait_behind_a_thread_that_has_just_taken_another(pool, calls, monkeypatch):
    """futurist counts such a thread as idle, and so would start no other one for the next call."""
    taken, go_on = threading.Event(), threading.Event()
    get = pool._work_queue.get

    def held(*args):
        work = get(*args)
        taken.set()
        go_on.wait(60)
        return work

    pool.submit(int).result(30)
    settle(lambda: pool.get_num_idle_workers() == 1)
    monkeypatch.setattr(pool._work_queue, 'get', held)
    first = pool.submit(calls.hang, 'first')
    # The thread that waited in the queue has taken it. A new one takes the next, and is held before it looks busy.
    settle(lambda: calls.begun == ['first'])
    second = pool.submit(calls.hang, 'second')
    assert taken.wait(30)
    assert pool.get_num_idle_workers() == 1
    monkeypatch.setattr(pool._work_queue, 'get', get)
    third = pool.submit(calls.hang, 'third')
    settle(lambda: 'third' in calls.begun)
    go_on.set()
    settle(lambda: 'second' in calls.begun)
    calls.release('first', 'second', 'third')
    assert [future.result(30) for future in (first, second, third)] == ['first', 'second', 'third']


def test_raised_bound_starts_all_that_it_allows_beside_a_call_that_hangs(pool, calls):
    threads = executors.NativeThreads()
    queue = executors.BoundedExecutor(1, threads, 'live-migration', pool)
    futures = {number: queue.submit(calls.hang, number) for number in range(41)}
    settle(lambda: calls.begun == [0])
    queue.resize(41)
    settle(lambda: len(calls.begun) == 41)
    calls.release(*range(1, 41))
    for number in range(1, 41):
        assert futures[number].result(30) == number
    assert not futures[0].done()
    calls.release(0)
    assert queue.wait_idle(30)


def test_calls_are_not_lost_after_threads_could_not_be_started(pool, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as machine:
        machine.setattr(threading.Thread, 'start', refuse)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                pool.submit(str, 'lost')
    assert pool.submit(str, 'done').result(30) == 'done'


@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
def test_thread_that_a_call_has_ended_is_replaced(pool):
    left = pool.submit(sys.exit, 3)
    assert isinstance(left.exception(30), SystemExit)
    settle(lambda: not threads_of(pool))
    assert pool.submit(str, 'done').result(30) == 'done'


def test_shutdown_ends_idle_threads_and_lets_calls_end(pool, calls):
    before = pool.submit(calls.hang, 'before')
    for _ in range(3):
        pool.submit(int).result(30)
    settle(lambda: calls.begun == ['before'])
    pool.shutdown(wait=False)
    settle(lambda: len(threads_of(pool)) == 1)
    with pytest.raises(RuntimeError, match='shutdown'):
        pool.submit(int)
    calls.release('before')
    pool.shutdown()
    assert before.result(0) == 'before'
    assert threads_of(pool) == []


@pytest.mark.parametrize('lacking', ['_thread', '_maybe_spin_up', '_work_queue', 'DynamicThreadPoolExecutor'])
def test_futurist_that_lacks_a_private_name_is_not_used_and_one_warning_names_its_release(lacking, monkeypatch, caplog):
    module = types.ModuleType('futurist')
    base = type('DynamicThreadPoolExecutor', (), {'_add_thread': None, '_maybe_spin_up': None})
    base.__init__ = lambda self, **_: self.__dict__.update(
        {name: None for name in ('_shutdown', '_shutdown_lock', '_work_queue', '_workers') if name != lacking}
    )
    if lacking == '_maybe_spin_up':
        del base._maybe_spin_up
    if lacking != '_thread':
        module._thread = types.ModuleType('futurist._thread')
    if lacking != 'DynamicThreadPoolExecutor':
        module.DynamicThreadPoolExecutor = base
    monkeypatch.setitem(sys.modules, 'futurist', module)
    monkeypatch.delitem(sys.modules, 'futurist._thread')
    monkeypatch.delitem(sys.modules, 'migrator.executors.growing')
    monkeypatch.delattr(executors, 'growing')
    with caplog.at_level(logging.WARNING):
        pool = executors.long_calls(executors.NativeThreads(), 'live-migration')
    assert isinstance(pool, executors.ThreadExecutor)
    assert pool.submit(str, 'done').result(30) == 'done'
    (record,) = caplog.records
    assert f'Not using futurist {importlib.metadata.version("futurist")} for pool' in record.getMessage()
    assert lacking in record.getMessage()
