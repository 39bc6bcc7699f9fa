# SPDX-License-Identifier: Apache-2.0

"""Reads and writes of the allocations of an instance and its migration, each write in one request.

The caller gives every amount and every generation. A function that writes never reads them itself. A write with a stale
generation has no effect, so the generation must be the one on which the caller decided. The states of a pair are in
:mod:`migrator.placement_client.allocation_state`.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from migrator import exception, executors
from migrator.objects import Instance, Strategy
from migrator.placement_client import allocation_state, providers
from migrator.placement_client.client import PlacementClient

#: The generation of a consumer after the write that first gave it an allocation. Each further write adds one.
FIRST_GENERATION = 1
#: The generation of an orphan consumer, which is left when Placement is killed while it creates a consumer. An orphan
#: shows no allocation, so its generation reads as None, and Placement refuses every write with a null generation. A
#: write with this generation takes the orphan over. Without an orphan, Placement refuses the write with a conflict, so
#: the write never changes a consumer that has an allocation.
ORPHAN_GENERATION = 0

#: Reads of a pair that changes while it is read, before the read fails.
_READ_ATTEMPTS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Write:
    """The allocations that one consumer gets; with ``generation`` None the consumer must not exist yet."""

    consumer: allocation_state.Consumer
    allocations: allocation_state.Allocations
    generation: int | None

    def check(self) -> None:
        """Raise unless the write may be sent.

        :raises ValueError: it has neither allocations nor a generation; it would leave an empty consumer behind.
        """
        if self.generation is None and not allocation_state.normal(self.allocations):
            raise ValueError(f'consumer {self.consumer.uuid}: an empty write needs the generation that was read')

    def body(self) -> dict[str, Any]:
        """Return the body of the request to Placement."""
        held = allocation_state.normal(self.allocations)
        body = {
            'allocations': {uuid: {'resources': amounts} for uuid, amounts in held.items()},
            'consumer_generation': self.generation,
            'project_id': self.consumer.project_id,
            'user_id': self.consumer.user_id,
        }
        if self.consumer.consumer_type is not None:
            body['consumer_type'] = self.consumer.consumer_type
        return body


def read(client: PlacementClient, consumer: str) -> allocation_state.ConsumerAllocations:
    """Return what a consumer holds.

    :param consumer: the consumer's uuid. A consumer that Placement does not know holds nothing.
    :raises PlacementUnreachable: as :meth:`.client.PlacementClient.request`.
    """
    found = client.read(f'/allocations/{consumer}')
    return allocation_state.ConsumerAllocations(
        uuid=consumer,
        generation=found.get('consumer_generation'),
        allocations={uuid: dict(entry['resources']) for uuid, entry in found['allocations'].items()},
        project_id=found.get('project_id'),
        user_id=found.get('user_id'),
        consumer_type=found.get('consumer_type'),
    )


def write_all(client: PlacementClient, writes: Sequence[Write]) -> None:
    """Write several consumers in one request: Placement writes all of them or none.

    :raises ValueError: as :meth:`Write.check`.
    :raises PlacementConflict: a generation is stale; observe again.
    :raises PlacementRefused: no room, or no such provider or resource class.
    :raises PlacementUnreachable: the write may or may not have been done; observe again.
    """
    for write in writes:
        write.check()
    if len(writes) == 1:
        client.put(f'/allocations/{writes[0].consumer.uuid}', writes[0].body())
    else:
        client.post('/allocations', {write.consumer.uuid: write.body() for write in writes})


def claim(
    client: PlacementClient,
    consumer: allocation_state.Consumer,
    allocations: allocation_state.Allocations,
    *,
    generation: int | None,
) -> None:
    """Give one consumer an allocation.

    This is an instance's first allocation, or the second half of nova's two-request move.

    :param generation: None creates the consumer, even one that was deleted. Give None only if the database shows that
        the instance exists.
    :raises ValueError: the allocation is empty; otherwise as :func:`write_all`.
    """
    if not allocation_state.normal(allocations):
        raise ValueError(f'consumer {consumer.uuid}: a claim needs an allocation that is not empty')
    write_all(client, [Write(consumer=consumer, allocations=allocations, generation=generation)])


def remove(client: PlacementClient, consumer: allocation_state.Consumer, *, generation: int) -> None:
    """Remove every allocation of a consumer, which deletes the consumer.

    The request is a PUT without allocations, because a DELETE carries no generation.

    :raises ValueError: the generation is None, so there is nothing to remove; otherwise as :func:`write_all`.
    """
    write_all(client, [removal(consumer, generation)])


def removal(consumer: allocation_state.Consumer, generation: int | None) -> Write:
    """Return the write that removes every allocation of a consumer.

    :raises ValueError: the generation is None, so there is nothing to remove.
    """
    return Write(consumer=consumer, allocations={}, generation=_known(generation, consumer))


def _known(generation: int | None, consumer: allocation_state.Consumer) -> int:
    """Return the generation, or raise if it is None: a null generation would recreate a deleted consumer."""
    if generation is None:
        raise ValueError(f'consumer {consumer.uuid}: this write needs the generation that was read, not null')
    return generation


class AllocationStrategy(abc.ABC):
    """The rule for which consumer holds the source allocation during a migration.

    Each method that writes sends one atomic request.

    :param write: sends writes as :func:`write_all` does; None: that function.
    """

    name: Strategy

    def __init__(self, client: PlacementClient, write: Callable[[Sequence[Write]], None] | None = None) -> None:
        self.client = client
        self.write = write or (lambda writes: write_all(client, writes))

    def observe(self, pair: allocation_state.Pair) -> allocation_state.PairReading:
        """Read both consumers and return their state.

        :raises PlacementConflict: the allocations changed during every read; observe again later.
        """
        # A write between the two GETs would show a pair that never existed: "released", for example, for a pair that
        # was moved and then reverted. Every write of both consumers changes the instance's generation.
        before = read(self.client, pair.instance.uuid)
        for _attempt in range(_READ_ATTEMPTS):
            migration = read(self.client, pair.migration.uuid)
            after = read(self.client, pair.instance.uuid)
            if after == before:
                state = allocation_state.observe_pair(
                    after.allocations, migration.allocations, pair.source, pair.destination, self.name
                )
                return allocation_state.PairReading(instance=after, migration=migration, state=state)
            before = after
        raise exception.PlacementConflict(
            method='GET',
            url=f'/allocations/{pair.instance.uuid}',
            status=200,
            reason='its allocations changed during every read',
            placement_code=None,
        )

    def check(self, pair: allocation_state.Pair) -> None:
        """Raise unless this strategy can distinguish the states of a pair.

        :raises NoValidHost: source and destination claim the same, or the strategy cannot move within one provider.
        """
        if allocation_state.normal(pair.source) == allocation_state.normal(pair.destination):
            raise exception.NoValidHost(
                reason='Source and destination would hold the same resources of the same resource providers, '
                'so the state before the move could not be distinguished from the state after it.'
            )

    @abc.abstractmethod
    def move(
        self, pair: allocation_state.Pair, *, instance_generation: int, migration_generation: int | None = None
    ) -> None:
        """Allocate both source and destination, without a moment at which the instance holds nothing.

        :param instance_generation: the generation on which the caller decided.
        :param migration_generation: None for a new consumer, :data:`ORPHAN_GENERATION` to take over an orphan.
        :raises ValueError: a generation or the destination is missing; otherwise as :meth:`check`, :func:`write_all`.
        """

    @abc.abstractmethod
    def revert(
        self,
        pair: allocation_state.Pair,
        *,
        instance_generation: int | None,
        migration_generation: int | None,
        recreate: bool = False,
    ) -> None:
        """Leave the instance with the source allocation, and the migration with nothing.

        :param recreate: with ``instance_generation`` None, create the instance's consumer again (CLAIM_MISSING). Only
            for an instance that is still in the database.
        :raises ValueError: a generation is missing; otherwise as :func:`write_all`.
        """

    @abc.abstractmethod
    def release(
        self, pair: allocation_state.Pair, *, instance_generation: int | None, migration_generation: int | None
    ) -> None:
        """Leave the instance with the destination allocation, and the migration with nothing.

        :raises ValueError: the generation that this strategy needs is missing; otherwise as :func:`write_all`.
        """

    def rewrite_source(self, pair: allocation_state.Pair, *, instance_generation: int) -> None:
        """Write the instance's source allocation again, so that a late move request fails.

        :param instance_generation: the generation that was just read.
        :raises ValueError: the generation is None, which would recreate a deleted consumer; otherwise as
            :func:`write_all`.
        """
        self.write([self._instance_holds(pair, pair.source, instance_generation)])

    @staticmethod
    def _instance_holds(
        pair: allocation_state.Pair, allocations: allocation_state.Allocations | None, generation: int | None
    ) -> Write:
        if not allocation_state.normal(allocations):
            raise ValueError(f'instance {pair.instance.uuid}: the pair has no allocation for it to hold')
        return Write(
            consumer=pair.instance,
            allocations=allocation_state.normal(allocations),
            generation=_known(generation, pair.instance),
        )


class MigrationOwned(AllocationStrategy):
    """The strategy by which the migration holds the source allocation.

    The instance always holds the allocation of one host.
    """

    name = Strategy.MIGRATION_OWNED

    def move(
        self, pair: allocation_state.Pair, *, instance_generation: int, migration_generation: int | None = None
    ) -> None:
        """Write both consumers in one POST.

        With two requests the instance's consumer would be empty in between, and a late duplicate would succeed.
        """
        self.check(pair)
        self.write(
            [
                Write(consumer=pair.migration, allocations=pair.source, generation=migration_generation),
                self._instance_holds(pair, pair.destination, instance_generation),
            ]
        )

    def revert(
        self,
        pair: allocation_state.Pair,
        *,
        instance_generation: int | None,
        migration_generation: int | None,
        recreate: bool = False,
    ) -> None:
        """Write both consumers back in one POST."""
        generation = instance_generation if recreate else _known(instance_generation, pair.instance)
        self.write(
            [
                Write(consumer=pair.instance, allocations=pair.source, generation=generation),
                removal(pair.migration, migration_generation),
            ]
        )

    def release(
        self, pair: allocation_state.Pair, *, instance_generation: int | None, migration_generation: int | None
    ) -> None:
        """Remove the source allocation from the migration.

        The instance is not written, so its generation is not used.
        """
        self.write([removal(pair.migration, migration_generation)])


class Doubled(AllocationStrategy):
    """The strategy by which the instance holds both allocations.

    It is for compute services older than version 2. The migration's uuid is not a consumer.
    """

    name = Strategy.DOUBLED

    def check(self, pair: allocation_state.Pair) -> None:
        """Refuse what the base class refuses, and a move within the same providers.

        The sum would have to fit into the max_unit of each provider.
        """
        super().check(pair)
        if allocation_state.normal(pair.source).keys() == allocation_state.normal(pair.destination).keys():
            raise exception.NoValidHost(
                reason='A move within the same resource providers needs migration-owned '
                'allocations (compute service version 2).'
            )

    def move(
        self, pair: allocation_state.Pair, *, instance_generation: int, migration_generation: int | None = None
    ) -> None:
        """Write the sum of both allocations to the instance."""
        self.check(pair)
        if not allocation_state.normal(pair.destination):
            raise ValueError(f'instance {pair.instance.uuid}: the pair has no destination allocation')
        both = allocation_state.total([pair.source, pair.destination or {}])
        self.write([self._instance_holds(pair, both, instance_generation)])

    def revert(
        self,
        pair: allocation_state.Pair,
        *,
        instance_generation: int | None,
        migration_generation: int | None,
        recreate: bool = False,
    ) -> None:
        """Write the source allocation to the instance."""
        self.write([self._instance_holds(pair, pair.source, instance_generation)])

    def release(
        self, pair: allocation_state.Pair, *, instance_generation: int | None, migration_generation: int | None
    ) -> None:
        """Write the destination allocation to the instance."""
        self.write([self._instance_holds(pair, pair.destination, instance_generation)])


def strategy_for(
    client: PlacementClient, name: str, write: Callable[[Sequence[Write]], None] | None = None
) -> AllocationStrategy:
    """Return the strategy that a migration's row names.

    :param write: as :class:`AllocationStrategy`.
    :raises ValueError: no strategy has this name.
    """
    chosen = Strategy(name)
    return {cls.name: cls for cls in (MigrationOwned, Doubled)}[chosen](client, write)


# --- requests that the threads of one process share: decision 0032 ---------------------------------------------------

#: Seconds after which a thread no longer waits for a joint read, and the next write no longer for the reply to the
#: present one. Waiting only avoids conflicts: a write is correct without it, because of the generations.
PATIENCE = 5.0
#: The greatest number of callers whose writes are sent together.
MOST = 16


@dataclasses.dataclass(eq=False)
class _Caller:
    """A thread that waits until its writes are done or refused.

    :ivar woken: set when the thread has something to send, or when its outcome is known.
    :ivar is_alone: whether its writes were refused together with others, so that they are sent alone.
    :ivar sends: the callers whose writes this thread must send now, itself among them.
    :ivar is_answered: whether the outcome of its writes is known, or known to be unknown.
    :ivar error: why the writes were refused, or why their outcome is unknown; None: they were done.
    """

    writes: Sequence[Write]
    woken: executors.Event
    is_alone: bool = False
    sends: Sequence[_Caller] = ()
    is_answered: bool = False
    error: exception.MigratorException | None = None


class Writer:
    """The one sender of a process's writes of allocations.

    :param threads: the threads of the process.
    """

    def __init__(self, client: PlacementClient, threads: executors.Threads) -> None:
        self._client = client
        self._threads = threads
        self._guard = threads.lock()
        self._waiting: list[_Caller] = []
        self._busy_until = 0.0

    def write(self, writes: Sequence[Write]) -> None:
        """Write several consumers: Placement writes all of them or none.

        The writes may share a request with those of other threads. If Placement refuses such a request, the writes of
        each thread are sent alone. So the outcome is that of a request with only these writes.

        :raises ValueError: as :meth:`Write.check`.
        :raises PlacementConflict: a generation is stale; observe again.
        :raises PlacementRefused: no room, or no such provider or resource class.
        :raises PlacementUnreachable: the write may or may not have been done; observe again.
        """
        for one in writes:
            one.check()
        me = _Caller(writes, self._threads.event())
        with self._guard:
            self._waiting.append(me)
            self._start()
        try:
            self._wait(me)
        except BaseException:  # such as a time-out of a green thread: the writes of others must not wait for this one
            with self._guard:
                if me.sends:
                    self._busy_until = 0.0
                self._waiting = [one for one in (*me.sends, *self._waiting) if one is not me]
                self._start()
            raise
        if me.error is not None:
            raise me.error

    def _wait(self, me: _Caller) -> None:
        while not me.is_answered:
            if not me.woken.wait(PATIENCE):
                with self._guard:
                    self._start()
            elif me.sends:
                me.woken.clear()
                callers, me.sends = me.sends, ()
                self._send(callers)

    def _start(self) -> None:
        """Make the first waiting thread send the next request, unless a request is on its way.

        The caller holds the guard.
        """
        now = self._threads.clock.monotonic()
        if not self._waiting or now < self._busy_until:
            return
        self._busy_until = now + PATIENCE
        first = self._waiting[0]
        first.sends = self._take()
        first.woken.set()

    def _take(self) -> list[_Caller]:
        """Remove the callers whose writes fit into one request from the queue, and return them."""
        taken: list[_Caller] = []
        consumers: set[str] = set()
        for caller in self._waiting[:MOST]:
            theirs = {one.consumer.uuid for one in caller.writes}
            if taken and (caller.is_alone or taken[0].is_alone or consumers & theirs):
                break
            taken.append(caller)
            consumers |= theirs
        del self._waiting[: len(taken)]
        return taken

    def _send(self, callers: Sequence[_Caller]) -> None:
        error: exception.MigratorException | None = None
        is_over = False
        try:
            write_all(self._client, [one for caller in callers for one in caller.writes])
            is_over = True
        except (exception.PlacementError, exception.PlacementUnreachable) as raised:
            error, is_over = raised, True
        finally:
            if not is_over:
                error = exception.PlacementUnreachable(reason='the request was interrupted')
            with self._guard:
                self._busy_until = 0.0
                if len(callers) > 1 and isinstance(error, exception.PlacementConflict | exception.PlacementRefused):
                    # Placement has written nothing, and the refusal may concern any of them: send each alone.
                    for caller in callers:
                        caller.is_alone = True
                    self._waiting[:0] = callers
                else:
                    for caller in callers:
                        caller.error, caller.is_answered = error, True
                        caller.woken.set()
                self._start()


#: The lowest number of waiting guests for a joint read, which takes two requests.
_FEWEST = 3
#: Seconds for which guests that leave later use a joint read. If it is stale, Placement refuses the move.
KEPT = 60.0


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
        #: Host -> until when a reading of its guests counts, and those that were not used yet.
        self._kept: dict[str, tuple[float, dict[str, allocation_state.ConsumerAllocations]]] = {}

    def read(self, instance: Instance, host: str, others_follow: bool = False) -> allocation_state.ConsumerAllocations:
        """Return what an instance holds. Unless others follow, the request is sent after this call has begun.

        :param host: where the instance is.
        :param others_follow: whether other guests of the host are read soon, such as those of a drain. Then a joint
            read serves all of them.
        :raises PlacementUnreachable: as :meth:`.client.PlacementClient.request`.
        """
        found = self._of_others(instance, host) if others_follow else self._now(instance, host)
        # A joint read lacks what a guest holds of other providers. Unless the flavor is covered, read the guest alone.
        legal = [[total] for total in instance.flavor.request.totals]
        if found is None or [dict(held) for held in found.allocations.values()] not in legal:
            return read(self._client, instance.uuid)
        return found

    def _of_others(self, instance: Instance, host: str) -> allocation_state.ConsumerAllocations | None:
        """Return what an instance holds by the joint read of its host, or None if it must be read alone."""
        now = self._threads.clock.monotonic()
        self._kept = kept = {name: one for name, one in self._kept.items() if one[0] > now}
        if host not in kept:
            kept[host] = now + KEPT, self._read_together(instance, host)
        return kept[host][1].pop(instance.uuid, None)

    def _now(self, instance: Instance, host: str) -> allocation_state.ConsumerAllocations | None:
        """Return what an instance holds, or None if it must be read alone."""
        with self._guard:
            queue = self._queues.setdefault(host, _Queue(self._threads.lock()))
            queue.arrived += 1
            queue.waiting += 1
            number = queue.arrived
        is_mine = False
        try:
            is_mine = queue.lock.acquire(timeout=PATIENCE)
            if not is_mine:
                return None
            if queue.read_for < number:
                with self._guard:
                    arrived, waiting = queue.arrived, queue.waiting
                if waiting < _FEWEST:
                    # Threads that arrive during this read wait for the lock, and are read together.
                    return read(self._client, instance.uuid)
                queue.found, queue.read_for = self._read_together(instance, host), arrived
            return queue.found.get(instance.uuid)
        finally:
            if is_mine:
                queue.lock.release()
            with self._guard:
                queue.waiting -= 1
                if not queue.waiting:
                    del self._queues[host]

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
