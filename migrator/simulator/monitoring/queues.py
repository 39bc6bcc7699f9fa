# SPDX-License-Identifier: Apache-2.0

"""The check of the queues of the compute services: free slots and the order of requests (I10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from migrator.compute import work
from migrator.objects import Migration
from migrator.simulator.reader import Host


class Queues:
    """What waits in all queues, and their slots.

    :ivar highest_limit: host -> the highest limit that a look has seen.
    """

    def __init__(self) -> None:
        self.highest_limit: dict[str, int] = {}
        #: (boot, migration) -> the migrations that waited when it got its slot.
        self._behind: dict[tuple[str, str], list[str]] = {}
        #: (boot, migration) -> the limit at the time it got its slot, if the limit was lowered since.
        self._slots: dict[tuple[str, str], int] = {}

    def look(self, hosts: Mapping[str, Host]) -> None:
        """Note the limits."""
        for name, host in hosts.items():
            self.highest_limit[name] = max(host.limit, self.highest_limit.get(name, 0))

    def watch(self, compute: Any) -> None:
        """Note each change of the limit of a compute service's queue, and each slot that it gives."""
        executor = compute._live_migration_executor
        resize, next_ = compute._runner.queue.resize, executor._next

        def resized(limit: int) -> None:
            before = compute._runner.queue.limit
            resize(limit)
            self._keep_slots(compute, before)

        def given() -> Any:
            item = next_()
            if item is not None:
                self._behind[compute.boot_id, _migration(item[1])] = _waiting(executor)
            return item

        compute._runner.queue.resize, executor._next = resized, given

    def _keep_slots(self, compute: Any, limit: int) -> None:
        """Note the migrations that got a slot under an earlier limit, whether their jobs have started or not."""
        without = compute._live_migration_executor._waiting
        queued = {uuid for uuid, future in compute._waiting_live_migrations.items() if future in without}
        for uuid, record in compute._runner._records.items():
            if work.LIVE_MIGRATION in record.works and uuid not in queued:
                key = (compute.boot_id, uuid)
                self._slots[key] = max(limit, self._slots.get(key, 0))

    def check_start(
        self, compute: Any, running: int, mine: Sequence[Migration], ids: Mapping[str, int]
    ) -> Iterator[str]:
        """Yield what is wrong at the start of a job: no slot was free, or an earlier request waits.

        :param running: the number of running jobs of the host, with the new one.
        :param mine: the migrations of the guest of the new job, the newest last.
        :param ids: migration -> its id, by which requests have an order.
        """
        limit = max([compute._runner.queue.limit, *(self._slots.get((compute.boot_id, one.uuid), 0) for one in mine)])
        if running > limit:
            yield f'{compute.host} started job number {running}, its limit is {limit}'
        if not mine:
            return
        one = mine[-1]
        behind = self._behind.get((compute.boot_id, one.uuid))
        # It was given no slot, so it must not be before any that waits now.
        behind = _waiting(compute._live_migration_executor) if behind is None else behind
        earlier = [uuid for uuid in behind if ids.get(uuid, one.id) < one.id]
        if earlier:
            yield f'{compute.host} started {one.uuid} before {", ".join(earlier)}, which was requested earlier'


def _waiting(executor: Any) -> list[str]:
    return [_migration(call) for call in executor._waiting.values()]


def _migration(call: Any) -> str:
    _, (work_, *_), _ = call
    uuid: str = work_.uuid
    return uuid
