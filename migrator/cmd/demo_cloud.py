# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""The cloud of the demo, which counts what a migration costs it.

What counts: every statement, commit, message and Placement request since the counting began, whoever caused it, except
what is marked as an aside. Asides are marked where they begin, never guessed from what they do: the conductor's and
the computes' periodic threads (polls, lease, sweep, heartbeat), the handlers of polls and heartbeats, and the looks of
the screen and the audit. A story that a sweep or a poll has woken runs in a thread of its own, and counts.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

from migrator import executors
from migrator import rpc as migrator_rpc
from migrator.cmd import demo_options
from migrator.db import watch
from migrator.objects import instance as instance_objects
from migrator.testing import cloud
from migrator.testing import rpc as testing_rpc

#: The host that is emptied.
SOURCE = 'host1'
#: Seconds; the product's default is 2. It is off the path of every migration, and makes the progress finer.
POLL_INTERVAL = 0.4

#: The threads that look after migrations, whether or not anything happens, by name and by what is in the name.
_PERIODICS = frozenset({'lease', 'sweep', 'poll', 'heartbeat'})
_POLL_POOL = '-poll-'
_ASIDES = testing_rpc.POLLS | testing_rpc.HEARTBEATS

_here = threading.local()


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Count nothing that this thread does within the block."""
    before = getattr(_here, 'aside', False)
    _here.aside = True
    try:
        yield
    finally:
        _here.aside = before


def _as_aside(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with aside():
            return function(*args, **kwargs)

    return run


class Counter:
    """Statements and commits: those of the migrations, and the asides.

    :ivar counted: ``sql_statements`` and ``commits``.
    :ivar asides: likewise.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Begin at nothing."""
        self.counted = {'sql_statements': 0, 'commits': 0}
        self.asides = dict(self.counted)

    def statement(self, _text: str) -> None:
        """Count a statement."""
        self._count('sql_statements')

    def commit(self) -> None:
        """Count a commit."""
        self._count('commits')

    def _count(self, what: str) -> None:
        with self._lock:
            (self.asides if getattr(_here, 'aside', False) else self.counted)[what] += 1


class _Threads(executors.NativeThreads):
    def start(self, function: Callable[..., Any], *args: Any, name: str) -> None:
        """Start a thread; one that looks after migrations is an aside."""
        looks_after = name in _PERIODICS or _POLL_POOL in name
        super().start(_as_aside(function) if looks_after else function, *args, name=name)


class _Endpoint:
    """An endpoint whose handlers of polls and heartbeats are asides."""

    def __init__(self, endpoint: object) -> None:
        self._endpoint = endpoint

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._endpoint, name)
        return _as_aside(found) if name in _ASIDES else found


class _RPC:
    def __init__(self, rpc: migrator_rpc.RPC) -> None:
        self.call = rpc.call
        self.cast = rpc.cast
        self._rpc = rpc

    def serve(self, target: migrator_rpc.Target, endpoint: object) -> migrator_rpc.Served:
        """Listen; see :meth:`migrator.rpc.RPC.serve`."""
        return self._rpc.serve(target, _Endpoint(endpoint))


class TimedMessages(list[testing_rpc.Recorded]):
    """What the recorder has heard, and when.

    :ivar times: of each message, on the monotonic clock.
    """

    def __init__(self, clock: executors.Clock) -> None:
        super().__init__()
        self.times: list[float] = []
        self._clock = clock
        self._lock = threading.Lock()

    def append(self, message: testing_rpc.Recorded) -> None:
        """Take in a message."""
        with self._lock:
            self.times.append(self._clock.monotonic())
            super().append(message)


class DemoCloud(cloud.Cloud):
    """A cloud with guests, half of them on :data:`SOURCE`.

    :param directory: where its files go.
    :ivar guests: in the order of their names.
    """

    def __init__(self, directory: str, settings: demo_options.Settings) -> None:
        threads = _Threads()
        self.settings = settings
        self.counter = Counter()
        self.messages = TimedMessages(threads.clock)
        self.guests: list[instance_objects.Instance] = []
        self._first_request = self._first_message = 0
        super().__init__(
            directory,
            hosts=settings.hosts,
            threads_for=lambda name: threads,
            options={
                'max_concurrent_live_migrations': settings.max_concurrent,
                'conductor.poll_interval': POLL_INTERVAL,
            },
            vcpus=demo_options.HOST_VCPUS,
            memory_mb=demo_options.HOST_MEMORY_MB,
            disk_gb=demo_options.HOST_DISK_GB,
            link=settings.bandwidth,
        )
        watch.watch(self.engine, self.counter.statement, self.counter.commit)

    def _rpc(self, name: str, sender: str) -> Any:
        # Before the first is wrapped, which is while the base class is being set up.
        self.recorder.messages = self.messages
        return _RPC(super()._rpc(name, sender))

    def populate(self) -> None:
        """Wait until every host has reported, and put the guests onto them."""
        while not self.up():
            self.world_threads.sleep(0.01)
        settings = self.settings
        chance = random.Random(settings.seed)  # noqa: S311 -- it shapes a demo
        others = [f'host{2 + number % (settings.hosts - 1)}' for number in range(settings.instances - settings.leaving)]
        hosts = [SOURCE] * settings.leaving + others
        chance.shuffle(hosts)
        digits = len(str(settings.instances))
        for number, host in enumerate(hosts, 1):
            busy = chance.uniform(2 - demo_options.BUSIEST, demo_options.BUSIEST)
            name = f'vm-{number:0{digits}}'
            self.guests.append(self.boot(name, host, settings.guest_memory, dirty_rate=settings.dirty_rate * busy))

    def begin_counting(self) -> None:
        """Count from now on; what the set-up has cost is forgotten."""
        self.counter.begin()
        self._first_request = len(self.placement.requests)
        self._first_message = len(self.messages)

    def costs(self) -> dict[str, int]:
        """Return what has been counted so far."""
        return {'placement_requests': len(self.placement.requests) - self._first_request} | {
            'rpc_messages': sum(not (one.poll or one.heartbeat) for one in self.messages[self._first_message :]),
            **self.counter.counted,
        }

    def asides(self) -> dict[str, int]:
        """Return what polls, heartbeats and the screen have cost besides."""
        heard = self.messages[self._first_message :]
        return {'rpc_messages': sum(one.poll or one.heartbeat for one in heard), **self.counter.asides}

    def stop_services(self) -> None:
        """Stop the services: as planned, computes first, where nothing is under way.

        Where something is, the conductors stop first: one that still waits for the answer of a host that has gone
        would wait for the time-out of its call. The computes then end with the process.
        """
        with aside():
            idle = self.idle()
        for compute in self.computes.values() if idle else ():
            compute.cleanup_host()
        for conductor in self.conductors.values():
            conductor.stop()
        # So that it may be called again.
        self.computes.clear()
        self.conductors.clear()

    def population(self) -> dict[str, int]:
        """Return how many guests run on each host, as the hypervisors say."""
        with self.world.lock:
            return {
                host: sum(guest.state == 'running' for guest in hypervisor.guests.values())
                for host, hypervisor in self.world.hypervisors.items()
            }
