# SPDX-License-Identifier: Apache-2.0

"""The executor of live migrations: futurist's pool of threads, changed for calls that hang.

Decision 0047 has the reasons.

Import this module only to make an executor: futurist imports eventlet if it is installed.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any

import futurist
from futurist import _thread

#: The private names of futurist that the class uses. The import of ``_thread`` is its own check.
_METHODS = ('_add_thread', '_maybe_spin_up')
_ATTRIBUTES = ('_shutdown', '_shutdown_lock', '_work_queue', '_workers')
#: How many threads may wait for the next call.
_SPARE = 2


class GrowingExecutor(futurist.DynamicThreadPoolExecutor):
    """A pool with a thread for each unfinished call, which keeps some threads for the next ones.

    It has no bound, so no call waits in futurist's own queue, where no abort would reach it. The bound is that of the
    :class:`~migrator.executors.BoundedExecutor` above, which may change. A process can end while a call hangs.

    :param name: the prefix of the names of its threads.
    :raises AttributeError: the installed futurist lacks a private name on which this class rests.
    """

    def __init__(self, name: str) -> None:
        super().__init__(max_workers=sys.maxsize)
        for owner, needed in ((futurist.DynamicThreadPoolExecutor, _METHODS), (self, _ATTRIBUTES)):
            for attribute in needed:
                getattr(owner, attribute)
        self._name = name
        self._numbers = itertools.count(1)
        self._unfinished = 0
        self._spare = _SPARE

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:  # type: ignore[override]  # futurist's is typed by its function
        """Start ``fn(*args, **kwargs)`` in a thread. Its Future must not be cancelled.

        :raises RuntimeError: no thread can be started, or the pool has been shut down.
        """
        with self._shutdown_lock:
            self._unfinished += 1
            try:
                future: concurrent.futures.Future[Any] = super().submit(self._call, fn, args, kwargs)
            except BaseException:  # such as a time-out of a green thread: what was not started is not counted
                self._unfinished -= 1
                raise
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no further call, and end each thread that has none.

        :param wait: whether to wait for the calls that have not ended.
        """
        with self._shutdown_lock:
            self._spare = 0
            for _ in range(0 if self._shutdown else len(self._workers) - self._unfinished):
                # A spare thread ends with this call. If it was only stopped, a call that it has taken could be lost.
                self.submit(int)
            self._shutdown = True
            workers = [*self._workers]
        for worker in workers if wait else ():
            worker.join()

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function in a thread of the pool. The thread ends with the call if enough others are spare."""
        try:
            return fn(*args, **kwargs)
        finally:
            with self._shutdown_lock:
                self._unfinished -= 1
                if len(self._workers) - self._unfinished > self._spare:
                    worker = next(one for one in self._workers if one is threading.current_thread())
                    worker.stop()
                    self._workers.remove(worker)

    # The caller of the following holds the lock.

    def _maybe_spin_up(self) -> bool:
        # By the number of calls, and not by the number of idle threads: a thread that has just taken a call may still
        # look idle, and the next call would wait behind it.
        self._workers = [worker for worker in self._workers if worker.is_alive()]
        if len(self._workers) >= self._unfinished:
            return False
        self._add_thread()
        return True

    def _add_thread(self) -> None:
        # Not registered with futurist, which would join it at exit. Stored only when it runs, because a thread that
        # could not be started takes no call.
        worker = _thread.ThreadWorker(self, self._work_queue)
        worker.name = f'{self._name}-{next(self._numbers)}'
        worker.start()
        self._workers.append(worker)
