# SPDX-License-Identifier: Apache-2.0

"""Every wait of the standard library works with the Futures of the queue above an executor."""

import concurrent.futures
import threading

import pytest

from migrator import executors


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
