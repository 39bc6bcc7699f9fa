# SPDX-License-Identifier: Apache-2.0

"""Reads of the allocations of guests: those that wait for a read of the same host share one.

Placement returns what the consumers of a provider hold of it, with their generations. For a guest that holds nothing of
other providers, that is complete. ``doc/source/decisions/0032-joint-writes.rst`` says why this is safe.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from migrator import exception, executors
from migrator.objects import Instance
from migrator.placement_client import allocation_state, allocations, providers
from migrator.placement_client.client import PlacementClient

#: Seconds after which a thread no longer waits for a joint read, and reads its guest alone.
PATIENCE = 5.0
#: The lowest number of waiting guests for a joint read, which takes two requests.
_FEWEST = 3


@dataclasses.dataclass
class _Queue:
    """The threads that read what guests of one host hold.

    :ivar arrived: the number of threads that have come.
    :ivar waiting: the number of those that have no result yet.
    :ivar read_for: the value of ``arrived`` when the last joint read began.
    :ivar found: consumer -> what it holds, as the last joint read has found it.
    """

    lock: executors.Lock
    arrived: int = 0
    waiting: int = 0
    read_for: int = 0
    found: dict[str, allocation_state.ConsumerAllocations] = dataclasses.field(default_factory=dict)


class SharedReadings:
    """The one reader of a conductor's guests' allocations.

    :param root_of: returns the root provider of the host of an instance; None: it is not known.
    """

    def __init__(
        self, client: PlacementClient, root_of: Callable[[Instance, str], str | None], threads: executors.Threads
    ) -> None:
        self._client = client
        self._root_of = root_of
        self._threads = threads
        self._guard = threads.lock()
        self._queues: dict[str, _Queue] = {}

    def read(self, instance: Instance, host: str) -> allocation_state.ConsumerAllocations:
        """Return what an instance holds. The request is sent after this call has begun.

        :param host: where the instance is.
        :raises PlacementUnreachable: as :meth:`.client.PlacementClient.request`.
        """
        with self._guard:
            queue = self._queues.setdefault(host, _Queue(self._threads.lock()))
            queue.arrived += 1
            queue.waiting += 1
            number = queue.arrived
        try:
            found = self._wait(queue, number, instance, host)
        finally:
            with self._guard:
                queue.waiting -= 1
                if not queue.waiting:
                    del self._queues[host]
        # A joint read lacks what a guest holds of other providers. Unless the flavor is covered, read the guest alone.
        if found is None or [dict(held) for held in found.allocations.values()] != [instance.flavor.resources()]:
            return allocations.read(self._client, instance.uuid)
        return found

    def _wait(
        self, queue: _Queue, number: int, instance: Instance, host: str
    ) -> allocation_state.ConsumerAllocations | None:
        """Return what an instance holds, or None if it must be read alone."""
        if not queue.lock.acquire(timeout=PATIENCE):
            return None
        try:
            if queue.read_for < number:
                with self._guard:
                    arrived, waiting = queue.arrived, queue.waiting
                if waiting < _FEWEST:
                    # Threads that arrive during this read wait for the lock, and are read together.
                    return allocations.read(self._client, instance.uuid)
                queue.found = self._read_together(instance, host)
                queue.read_for = arrived
            return queue.found.get(instance.uuid)
        finally:
            queue.lock.release()

    def _read_together(self, instance: Instance, host: str) -> dict[str, allocation_state.ConsumerAllocations]:
        """Return consumer -> what it holds, for the guests of a host with a single provider."""
        root = self._root_of(instance, host)
        if root is None:
            return {}
        try:
            holders = self._client.read(f'/resource_providers/{root}/allocations')['allocations']
        except exception.PlacementRefused:
            return {}
        # Read the tree after the allocations. If a guest gets something of a new child provider in between, its
        # generation rises, so that its move is refused.
        if len(providers.read_tree(self._client, root)) != 1:
            return {}
        return {
            uuid: allocation_state.ConsumerAllocations(
                uuid=uuid, generation=holder['consumer_generation'], allocations={root: dict(holder['resources'])}
            )
            for uuid, holder in holders.items()
        }
