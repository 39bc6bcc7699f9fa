# SPDX-License-Identifier: Apache-2.0

"""The cloud of the demo. It counts the cost of a migration with :mod:`migrator.testing.counting`."""

from __future__ import annotations

import random
import threading
from typing import Any

from migrator import executors
from migrator.demo import options
from migrator.objects import Instance
from migrator.testing import counting
from migrator.testing.rpc import Recorded

#: The host that the demo empties.
SOURCE = 'host1'
#: Seconds; the default of migrator is 2. No migration waits for a poll, and a smaller value makes the progress finer.
POLL_INTERVAL = 0.4


class TimedMessages(list[Recorded]):
    """The recorded messages with their times.

    :ivar times: the time of each message, on the monotonic clock.
    """

    def __init__(self, clock: executors.Clock) -> None:
        super().__init__()
        self.times: list[float] = []
        self._clock = clock
        self._lock = threading.Lock()

    def append(self, message: Recorded) -> None:
        """Record a message."""
        with self._lock:
            self.times.append(self._clock.monotonic())
            super().append(message)


class DemoCloud(counting.CountingCloud):
    """A cloud with guests, half of them on :data:`SOURCE`.

    :param directory: the directory of its files.
    :ivar guests: the guests in the order of their names.
    """

    def __init__(self, directory: str, settings: options.Settings) -> None:
        self.settings = settings
        self.messages = TimedMessages(executors.SystemClock())
        self.guests: list[Instance] = []
        super().__init__(
            directory,
            hosts=settings.hosts,
            options={
                'max_concurrent_live_migrations': settings.max_concurrent,
                'conductor.poll_interval': POLL_INTERVAL,
            },
            vcpus=options.HOST_VCPUS,
            memory_mb=options.HOST_MEMORY_MB,
            disk_gb=options.HOST_DISK_GB,
            link=settings.bandwidth,
            pre_seconds=settings.prepare,
        )

    def _rpc(self, name: str, sender: str) -> Any:
        # The base class wraps the first RPC in its __init__, so this cannot wait until after it.
        self.recorder.messages = self.messages
        return super()._rpc(name, sender)

    def populate(self) -> None:
        """Wait until every host has reported, and create the guests."""
        while not self.up():
            self.world.threads.sleep(0.01)
        settings = self.settings
        chance = random.Random(settings.seed)  # noqa: S311 -- it shapes a demo
        others = [f'host{2 + number % (settings.hosts - 1)}' for number in range(settings.instances - settings.leaving)]
        hosts = [SOURCE] * settings.leaving + others
        chance.shuffle(hosts)
        digits = len(str(settings.instances))
        for number, host in enumerate(hosts, 1):
            busy = chance.uniform(2 - options.BUSIEST, options.BUSIEST)
            name = f'vm-{number:0{digits}}'
            self.guests.append(self.boot(name, host, settings.guest_memory, dirty_rate=settings.dirty_rate * busy))

    def stop_services(self) -> None:
        """Stop the services. If no migration is in progress, the compute services stop first, as planned.

        Otherwise only the conductors stop, because a conductor that waits for the answer of a stopped host would wait
        for the time-out of its call. The compute services then end with the process.
        """
        with counting.aside():
            idle = self.idle()
        for compute in self.computes.values() if idle else ():
            compute.cleanup_host()
        for conductor in self.conductors.values():
            conductor.stop()
        # Allow a second call.
        self.computes.clear()
        self.conductors.clear()

    def population(self) -> dict[str, int]:
        """Return how many guests run on each host, as the hypervisors report."""
        with self.world.lock:
            return {
                host: sum(guest.state == 'running' for guest in hypervisor.guests.values())
                for host, hypervisor in self.world.hypervisors.items()
            }
