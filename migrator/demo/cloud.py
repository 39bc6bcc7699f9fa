# SPDX-License-Identifier: Apache-2.0

"""The cloud of the demo. It counts the cost of a migration with :mod:`migrator.testing.counting`."""

from __future__ import annotations

import datetime
import random
import threading
from collections.abc import Sequence
from typing import Any

from migrator import exception, executors
from migrator.demo import options
from migrator.objects import COMPUTE_BINARY, Instance
from migrator.testing import counting
from migrator.testing.rpc import Recorded

#: Seconds; the default of migrator is 2. No migration waits for a poll, and a smaller value makes the progress finer.
POLL_INTERVAL = 0.4
#: Seconds between two sweeps of the conductor, with ``--kill`` or ``--serve``. A sweep finds a host that is back, and
#: fetches the definitions of guests that have moved.
SWEEP_INTERVAL = 0.5
#: Seconds, with ``--serve``: a host that ``migrator-demo kill`` has killed is down soon.
REPORT_INTERVAL, DOWN_TIME = 2, 10
#: Seconds, with ``--serve``: a guest that ``migrator-demo move`` has moved is noticed soon.
GUESTS_INTERVAL = 2
#: With ``--serve``: a rollback that ``migrator-demo fail --no-rollback`` prevents is given up in seconds.
UNDO_ATTEMPTS = 3
#: Seconds until the definition of each guest has to be stored.
PATIENCE = 60.0


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


class _NoReports:
    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_more: None


class DemoCloud(counting.CountingCloud):
    """A cloud with guests, half of them on :data:`.options.FIRST`.

    :param directory: the directory of its files.
    :ivar guests: the guests in the order of their names.
    """

    def __init__(self, directory: str, settings: options.Settings) -> None:
        self.settings = settings
        self.messages = TimedMessages(executors.SystemClock())
        self.guests: list[Instance] = []
        served = {
            'report_interval': REPORT_INTERVAL,
            'service_down_time': DOWN_TIME,
            'conductor.guests_interval': GUESTS_INTERVAL,
            'conductor.post_max_attempts': UNDO_ATTEMPTS,
        }
        super().__init__(
            directory,
            hosts=settings.hosts,
            options={
                'max_concurrent_live_migrations': settings.max_concurrent,
                'conductor.poll_interval': POLL_INTERVAL,
                **({'conductor.sweep_interval': SWEEP_INTERVAL} if settings.kill or settings.serve else {}),
                **(served if settings.serve else {}),
            },
            vcpus=options.HOST_VCPUS,
            memory_mb=options.HOST_MEMORY_MB,
            disk_gb=options.HOST_DISK_GB,
            link=settings.bandwidth,
            pre_seconds=settings.prepare,
        )

    def rpc_for(self, name: str, sender: str = '') -> Any:
        """Return the RPC of one process; see :meth:`migrator.testing.cloud.Cloud.rpc_for`."""
        # The base class wraps the first RPC in its __init__, so this cannot wait until after it.
        self.recorder.messages = self.messages
        return super().rpc_for(name, sender)

    def populate(self) -> None:
        """Wait until every host has reported, and create the guests."""
        while not self.up():
            self.world.threads.sleep(0.01)
        settings = self.settings
        chance = random.Random(settings.seed)  # noqa: S311 -- it shapes a demo
        others = [f'host{2 + number % (settings.hosts - 1)}' for number in range(settings.instances - settings.leaving)]
        hosts = [options.FIRST] * settings.leaving + others
        chance.shuffle(hosts)
        digits = len(str(settings.instances))
        before = self.database.services.now() - datetime.timedelta(minutes=5)
        for number, host in enumerate(hosts, 1):
            busy = chance.uniform(2 - options.BUSIEST, options.BUSIEST)
            name = f'vm-{number:0{digits}}'
            self.guests.append(self.boot(name, host, settings.guest_memory, dirty_rate=settings.dirty_rate * busy))
            if settings.serve:
                # A new guest is not compared with the hypervisors yet, so one that is moved would not be noticed.
                self.database.instances.update(self.guests[-1].uuid, created_at=before)

    def leaving(self) -> list[Instance]:
        """Return the guests that leave their host."""
        return [guest for guest in self.guests if guest.host == self.settings.source]

    def wait_for_definitions(self, guests: Sequence[Instance]) -> None:
        """Wait until the database has what other hosts need to start these guests.

        :param guests: guests that have not moved.
        :raises migrator.exception.GuestNotFound: the host of one has not reported it in time.
        """
        definitions = self.database.definitions
        until = self.world.threads.clock.monotonic() + PATIENCE
        while missing := [one for one in guests if not definitions.get(one.uuid, one.host)]:
            first = missing[0]
            if self.world.threads.clock.monotonic() >= until:
                raise exception.GuestNotFound(
                    f'{first.host} has not reported the definition of {first.name} within {PATIENCE:g} s.'
                )
            # A conductor may have asked for a guest before it was there. Let the next sweep ask again.
            for one in missing:
                definitions.store(one.host, {one.uuid: {}}, age=PATIENCE * 1000)
            self.world.threads.sleep(2 * SWEEP_INTERVAL)

    def break_a_migration(self) -> None:
        """Make the first migration of one guest fail: the stream breaks just before the guest would move."""
        guest = self.leaving()[0]
        self.world.hypervisors[self.settings.source].faults.fail('cutover', instance_uuid=guest.uuid)

    def kill(self, host: str) -> None:
        """Cut the power of a host, which ends its guests and its compute service, and declare it forced down."""
        self.world.hypervisors[host].power_off()
        self.kill_service(host)
        self._set_forced_down(host, True)

    def kill_service(self, host: str) -> None:
        """End the compute service of a host at once. Its guests and their copies go on."""
        compute = self.computes.pop(host)
        # A service that is killed reports nothing.
        compute.events = _NoReports()
        compute.cleanup_host()

    def revive(self, host: str) -> None:
        """Restore the power of a host, and start its compute service."""
        self.world.hypervisors[host].power_on()
        self.start_compute(host)

    def take_back(self, host: str) -> None:
        """Take back that a host is forced down."""
        self._set_forced_down(host, False)

    def _set_forced_down(self, host: str, value: bool) -> None:
        (service,) = self.database.services.list(COMPUTE_BINARY, host)
        answer = self.request('PUT', f'/os-services/{service.uuid}', {'forced_down': value})
        if answer.status_int != 200:
            raise exception.ServiceInUse(host=host, reason=f'{answer.status}: {answer.text}')

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
