# SPDX-License-Identifier: Apache-2.0

"""Futures of the executors, which work with every wait of the standard library, and lose no error."""

import concurrent.futures
import contextlib
import gc
import threading

import pytest

from migrator import executors
from migrator.testing.simulation.threads import Simulation
from tests.unit.test_executors import Native


def test_every_wait_of_the_standard_library_sees_the_end_of_an_item():
    pool, gate = executors.BoundedExecutor(1, executors.NativeThreads()), threading.Event()
    held, waiting = pool.submit(gate.wait), pool.submit(lambda: 'done')
    with pytest.raises(TimeoutError):
        waiting.result(0.001)
    assert concurrent.futures.wait([held, waiting], 0.001).not_done == {held, waiting}
    with concurrent.futures.ThreadPoolExecutor() as threads:
        waits = [
            threads.submit(waiting.result, 60),
            threads.submit(waiting.exception, 60),
            threads.submit(lambda: set(concurrent.futures.as_completed([held, waiting], 60))),
            threads.submit(lambda: concurrent.futures.wait([held, waiting], 60).not_done),
        ]
        gate.set()
        assert [one.result(60) for one in waits] == ['done', None, {held, waiting}, set()]
    assert repr(waiting).endswith('state=finished returned str>')


def lost(caplog):
    gc.collect()
    return [record.getMessage() for record in caplog.records if 'its error was not read' in record.getMessage()]


def pools():
    threads = executors.NativeThreads()
    return [
        executors.BoundedExecutor(1, threads, 'compute'),
        executors.BoundedExecutor(1, threads, 'compute', executors.long_calls(threads, 'compute')),
        executors.ThreadExecutor(threads, 'compute'),
    ]


@pytest.mark.parametrize('error', [KeyError('gone'), SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize('pool', pools(), ids=['bounded', 'growing', 'threads'])
def test_an_error_that_no_caller_reads_is_logged_with_its_type(caplog, pool, error):
    ended = threading.Event()

    def fail():
        raise error

    pool.submit(fail).add_done_callback(lambda _future: ended.set())
    assert ended.wait(30)
    Native().settle(lambda: lost(caplog))
    assert lost(caplog) == [f'Call failed in pool compute, and its error was not read: {type(error).__name__}: {error}']
    assert 'raise error' in caplog.text


@pytest.mark.parametrize('pool', pools()[:2], ids=['bounded', 'growing'])
def test_an_error_of_an_item_above_the_bound_is_logged_at_once(caplog, pool):
    def fail():
        raise KeyError('gone')

    gc.disable()  # no collection must be needed
    try:
        pool.submit_now(fail)
        Native().settle(lambda: 'its error was not read' in caplog.text)
    finally:
        gc.enable()


@pytest.mark.parametrize('read', ['result', 'exception'])
def test_an_error_that_a_caller_has_read_is_not_logged(caplog, read):
    def fail():
        raise KeyError('gone')

    future = executors.BoundedExecutor(1, executors.NativeThreads()).submit(fail)
    with contextlib.suppress(KeyError):
        getattr(future, read)(30)
    del future
    assert lost(caplog) == []


def test_the_end_of_a_killed_process_is_logged_by_no_executor(caplog):
    with Simulation() as simulation:
        process = simulation.process('service')
        pools = [executors.BoundedExecutor(1, process, 'compute'), executors.ThreadExecutor(process, 'compute')]
        for pool in pools:
            pool.submit(process.sleep, 10)
        simulation.run_ready()
        simulation.kill(process)
    del pools, pool, process
    assert lost(caplog) == []
