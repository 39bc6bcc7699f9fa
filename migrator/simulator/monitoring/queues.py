# SPDX-License-Identifier: Apache-2.0

"""The check of the queues of the compute services: free slots and the order of arrival (I10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from migrator.compute import work
from migrator.simulator.reader import Host


class Queues:
    """The arrivals and the slots of all queues.

    :ivar highest_limit: host -> the highest limit that a look has seen.
    """

    def __init__(self) -> None:
        self.highest_limit: dict[str, int] = {}
        #: (boot, migration) -> its position in the order of arrival in the queue.
        self._arrivals: dict[tuple[str, str], int] = {}
        #: (boot, migration) -> the limit at the time it got its slot, if the limit was lowered since.
        self._slots: dict[tuple[str, str], int] = {}

    def look(self, hosts: Mapping[str, Host]) -> None:
        """Note the arrivals since the last look."""
        for name, host in hosts.items():
            self.highest_limit[name] = max(host.limit, self.highest_limit.get(name, 0))
            for uuid in host.waiting:
                self._arrivals.setdefault((host.boot_id, uuid), len(self._arrivals))

    def watch(self, compute: Any) -> None:
        """Note each change of the limit of a compute service's queue."""
        resize = compute._runner.queue.resize

        def resized(limit: int) -> None:
            before = compute._runner.queue.limit
            resize(limit)
            self._keep_slots(compute, before)

        compute._runner.queue.resize = resized

    def _keep_slots(self, compute: Any, limit: int) -> None:
        """Note the migrations that got a slot under an earlier limit, whether their jobs have started or not."""
        without = compute._live_migration_executor._waiting
        queued = {uuid for uuid, future in compute._waiting_live_migrations.items() if future in without}
        for uuid, record in compute._runner._records.items():
            if work.LIVE_MIGRATION in record.works and uuid not in queued:
                key = (compute.boot_id, uuid)
                self._slots[key] = max(limit, self._slots.get(key, 0))

    def check_start(self, compute: Any, running: int, mine: Sequence[str]) -> Iterator[str]:
        """Yield what is wrong at the start of a job: no slot was free, or an earlier migration waits.

        :param running: the number of running jobs of the host, with the new one.
        :param mine: the migrations of the guest of the new job.
        """
        limit = max([compute._runner.queue.limit, *(self._slots.get((compute.boot_id, uuid), 0) for uuid in mine)])
        if running > limit:
            yield f'{compute.host} started job number {running}, its limit is {limit}'
        keys = [(compute.boot_id, uuid) for uuid in mine]
        place = next((self._arrivals[key] for key in keys if key in self._arrivals), 0)
        # A waiting migration that the last look did not see came after all that it saw.
        latest = len(self._arrivals)
        waiting = list(compute._waiting_live_migrations)
        earlier = [uuid for uuid in waiting if self._arrivals.get((compute.boot_id, uuid), latest) < place]
        # With several slots, earlier migrations may have got one without having left the queue yet.
        if len(earlier) >= limit:
            yield f'{compute.host} started {mine[0]} before {", ".join(earlier)}, which arrived earlier'
