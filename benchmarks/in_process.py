# SPDX-License-Identifier: Apache-2.0

"""A cloud in this process, on SQLite, that counts everything, and the CPU time of each service."""

from __future__ import annotations

import collections
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import webob

from benchmarks import runs
from migrator.testing import counting

#: Which of the cloud's processes what runs in the thread of the caller belongs to.
API, PLACEMENT = 'api', 'placement'


class _Cpu:
    """CPU seconds by process.

    :ivar used: process -> seconds.
    """

    def __init__(self) -> None:
        self.used: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        self._here = threading.local()

    def book(self, process: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose CPU time is a process's, unless within it some is another's."""

        def run(*args: Any, **kwargs: Any) -> Any:
            outer = getattr(self._here, 'others', 0.0)
            self._here.others = 0.0
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.thread_time() - began
                with self._lock:
                    self.used[process] += took - self._here.others
                self._here.others = outer + took

        return run


class _Threads(counting.Threads):
    def __init__(self, process: str, cpu: _Cpu) -> None:
        super().__init__()
        self._process = process
        self._cpu = cpu

    def start(self, function: Callable[..., Any], *args: Any, name: str) -> None:
        """Start a thread, whose CPU time is booked when it ends."""
        super().start(self._cpu.book(self._process, function), *args, name=name)


class InProcess:
    """See :class:`benchmarks.runs.Bench`.

    :param directory: where its files go.
    :param guests: for how many each host has room, twice over.
    """

    def __init__(self, directory: str, guests: int) -> None:
        self._cpu = _Cpu()
        self._begun = (0.0, 0.0, 0.0, dict(self._cpu.used))
        threads: dict[str, _Threads] = {}
        self.cloud = counting.CountingCloud(
            directory,
            threads_for=lambda name: threads.setdefault(name, _Threads(name, self._cpu)),
            hosts=runs.HOSTS,
            link=runs.LINK,
            **{name: value for name, (value, _option) in runs.room_for(guests).items()},
        )
        self._served: Callable[[webob.Request], webob.Response] = self._cpu.book(API, self.cloud.served)
        cloud: Any = self.cloud
        cloud.served = self._served
        # The way to it is part of it.
        cloud.adapter.request = self._cpu.book(PLACEMENT, cloud.adapter.request)
        while not self.cloud.up():
            time.sleep(runs.LOOK)

    def idle(self, seconds: float) -> runs.Costs:
        """Do nothing for some seconds."""
        self.begin()
        time.sleep(seconds)
        return self.costs()

    def begin(self) -> None:
        """Count from now on."""
        self.cloud.begin_counting()
        self._begun = (time.monotonic(), time.process_time(), time.thread_time(), dict(self._cpu.used))

    def costs(self) -> runs.Costs:
        """Return what was used up since."""
        monotonic, process, thread, used = self._begun
        cpu = {name: total - used.get(name, 0.0) for name, total in sorted(self._cpu.used.items())}
        # The benchmark's own CPU time in this thread is not counted, nor that of threads that never end.
        mine = time.thread_time() - thread - cpu.get(API, 0.0)
        cpu['other'] = max(0.0, time.process_time() - process - mine - sum(cpu.values()))
        return runs.Costs(
            seconds=time.monotonic() - monotonic,
            cpu=cpu,
            messages=self.cloud.received(),
            wire=None,
            statements=dict(self.cloud.counter.texts),
            commits=self.cloud.counter.counted['commits'],
            asides=dict(self.cloud.counter.asides),
            requests=[runs.request_of(one.method, one.url, one.status) for one in self.cloud.asked()],
        )

    def looking(self) -> contextlib.AbstractContextManager[None]:
        """Count nothing that the caller itself reads within the block."""
        return counting.unseen()

    def close(self) -> None:
        """End the cloud."""
        self.cloud.stop()


@contextlib.contextmanager
def bench(guests: int) -> Iterator[InProcess]:
    """Start a cloud, and end it."""
    with tempfile.TemporaryDirectory(prefix='migrator-benchmark-') as directory:
        made = InProcess(directory, guests)
        try:
            yield made
        finally:
            made.close()
