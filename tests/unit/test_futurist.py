# SPDX-License-Identifier: Apache-2.0

"""What migrator's executors and periodic do and futurist's do not: see decision 0047.

If an expected failure passes with a new release of futurist, review the decision.
"""

import concurrent.futures
import contextlib
import subprocess
import sys
import threading

import futurist
import pytest
from futurist import periodics

from migrator import executors


def ours(workers):
    """Return our executor of threads."""
    return executors.BoundedExecutor(workers, executors.NativeThreads())


def growing(workers):
    """Return our queue above the executor of live migrations, which is a subclass of futurist's."""
    threads = executors.NativeThreads()
    return executors.BoundedExecutor(workers, threads, 'pool', executors.long_calls(threads, 'pool'))


def candidates(reason, error, *mine):
    """Return executors of ours, and futurist's, which fail for a reason."""
    fails = pytest.mark.xfail(strict=True, reason=reason, raises=error)
    theirs = (futurist.ThreadPoolExecutor, futurist.DynamicThreadPoolExecutor)
    return pytest.mark.parametrize('make', [*mine, *(pytest.param(one, marks=fails) for one in theirs)])


def refuse(_thread):
    raise RuntimeError("can't start new thread")


@candidates('it counts a thread that could not be started as a worker', concurrent.futures.TimeoutError, ours, growing)
def test_no_accepted_item_is_lost_after_threads_could_not_be_started(make, monkeypatch):
    executor, futures = make(2), []
    with monkeypatch.context() as machine:
        machine.setattr(threading.Thread, 'start', refuse)
        for name in 'abc':
            with contextlib.suppress(RuntimeError):
                futures.append(executor.submit(str, name))
    futures.append(executor.submit(str, 'd'))
    try:
        assert [future.result(2) for future in futures][-1] == 'd'
    finally:
        # At exit futurist would join the threads that were never started, and print an error.
        getattr(executor, '_workers', []).clear()
        futurist._thread._to_be_cleaned.clear()


@candidates('it keeps at least one thread', AssertionError, ours)
def test_idle_threads_end(make):
    before, executor = threading.active_count(), make(4)
    for future in [executor.submit(threading.Event().wait, 0.01) for _ in range(4)]:
        future.result(10)
    pause = threading.Event()
    for _ in range(50):
        if threading.active_count() <= before:
            break
        pause.wait(0.05)
    after = threading.active_count()
    executor.shutdown()
    assert after <= before


HANG = """
import sys
if {green}:
    import eventlet
    eventlet.monkey_patch()
import threading
import futurist
from migrator import executors
begun = threading.Event()
def hang():
    begun.set()
    threading.Event().wait()
executor = {make}
executor.submit(hang)
executor.submit(int)
begun.wait()
print('the main thread ends', flush=True)
"""


@pytest.mark.parametrize(
    'make',
    [
        'executors.BoundedExecutor(1, executors.NativeThreads())',
        'executors.long_calls(executors.NativeThreads(), "pool")',
        *(
            pytest.param(
                f'futurist.{name}(2)',
                marks=pytest.mark.xfail(
                    strict=True, reason='it joins its threads at exit', raises=subprocess.TimeoutExpired
                ),
            )
            for name in ('ThreadPoolExecutor', 'DynamicThreadPoolExecutor')
        ),
    ],
)
def test_process_ends_while_a_call_hangs(make):
    code = HANG.format(green=executors.is_green(), make=make)
    with subprocess.Popen([sys.executable, '-W', 'ignore', '-c', code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == 'the main thread ends\n'
            assert process.wait(3 if 'futurist' in make else 60) == 0
        finally:
            process.kill()


def ours_stops(threads, hang):
    periodic = executors.Periodic(threads, 0.01, hang, 'hangs').start()
    return lambda: periodic.stop(wait=False)


def futurist_stops(threads, hang):
    worker = periodics.PeriodicWorker([(periodics.periodic(0.01)(hang), (), {})])
    threads.start(worker.start, name='worker')
    return worker.stop


_HOLDS = pytest.mark.xfail(strict=True, reason='it waits for the lock that is held while a task runs')


@pytest.mark.parametrize('start', [ours_stops, pytest.param(futurist_stops, marks=_HOLDS)])
def test_periodic_task_stops_at_once_while_it_hangs(start):
    threads = executors.NativeThreads()
    begun, never, stopped = threads.event(), threads.event(), threads.event()

    def hang():
        begun.set()
        never.wait(30)

    stop = start(threads, hang)
    assert begun.wait(10)

    def stop_it():
        stop()
        stopped.set()

    threads.start(stop_it, name='stop')
    try:
        assert stopped.wait(1)
    finally:
        never.set()


# --- futurist's executor below our queue ------------------------------------------------------------------------------


def test_items_wait_while_the_executor_refuses_them():
    threads, refused = executors.NativeThreads(), [True]

    def check(_executor, _queued):
        if refused[0]:
            raise futurist.RejectedSubmission('not now')

    executor = futurist.ThreadPoolExecutor(2, check_and_reject=check)
    pool, ran = executors.BoundedExecutor(2, threads, 'pool', executor), []
    futures = [pool.submit(ran.append, name) for name in 'ab']
    assert (pool.running, pool.waiting, pool.stalled_for() > 0) == (0, 2, True)
    refused[0] = False
    pool.start_waiting()
    assert [future.result(10) for future in futures] == [None, None]
    assert (sorted(ran), pool.stalled_for()) == (['a', 'b'], 0)
    executor.shutdown()
