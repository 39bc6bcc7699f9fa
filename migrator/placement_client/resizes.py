# SPDX-License-Identifier: Apache-2.0

"""Moves that a user confirms or reverts later, as a resize is, on another host or on the same.

migrator resizes no guests; this is for a compute service that does, and keeps its books with this library::

    resize = resizes.Resize(client, pair, sleep=threads.sleep)
    resize.move()  # before the guest is resized
    ...
    resize.confirm()  # the guest keeps its new flavor
    resize.revert()  # or its old one

The migration's uuid holds the old allocation until then (the specification migration-allocations), so both fit where a
class has a ``max_unit``, and each is what a guest of that flavor needs. Each method observes first and writes at most
once what it finds undone: done twice, after a time-out, or by two at once, it ends the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from migrator import exception
from migrator.objects import Strategy
from migrator.placement_client import allocation_state, allocations
from migrator.placement_client.client import PlacementClient

#: How often it is observed again where somebody else has written meanwhile, and the pause before the second time, in
#: seconds; each later one is twice as long.
_TRIES, _PAUSE = 6, 0.05

_State = allocation_state.PairState


class Resize:
    """One move of an instance's allocation, until it is confirmed or reverted.

    :param pair: its consumers and allocations, as the caller has stored them before the first write: the same for
        every method, also in another process. Uuids are strings as Placement spells them, amounts whole numbers.
    :param strategy: who holds the old allocation: ``migration-owned``, or ``doubled`` for a cloud in which some compute
        service is older than version 2; it cannot move within the same resource providers.
    :param sleep: waits so many seconds, as :meth:`migrator.executors.Threads.sleep` does.
    :raises ValueError: there is no such strategy.
    :raises ValidationError: of the pair, a uuid or an amount is none, its consumers are one, or its source is nothing.
    """

    def __init__(
        self,
        client: PlacementClient,
        pair: allocation_state.Pair,
        strategy: str = Strategy.MIGRATION_OWNED,
        *,
        sleep: Callable[[float], None],
    ) -> None:
        _look_at(pair)
        self.pair = pair
        self._strategy = allocations.strategy_for(client, strategy)
        self._sleep = sleep

    def move(self) -> None:
        """Have the instance hold the new allocation, and the migration the old one.

        :raises NoValidHost: both are the same, or this strategy cannot tell them apart.
        :raises AllocationsUnexpected: the two consumers hold something else, or it is confirmed already.
        :raises PlacementRefused: there is no room.
        :raises PlacementConflict: others have written all the time.
        :raises PlacementUnreachable: it may or may not have been done: call it again.
        """
        self._strategy.check(self.pair)
        orphan: int | None = None

        def write(reading: allocations.PairReading) -> None:
            nonlocal orphan
            try:
                self._strategy.move(self.pair, instance_generation=_of(reading), migration_generation=orphan)
            except exception.PlacementConflict:
                # Placement may have been killed over an earlier try while it made the migration's consumer, which
                # cannot be seen and refuses null since.
                orphan = allocations.ORPHAN_GENERATION if orphan is None else None
                raise

        self._until(_State.MOVED, {_State.NOT_MOVED: write})

    def confirm(self) -> None:
        """Have the instance hold the new allocation, and nobody the old one.

        :raises AllocationsUnexpected: it was not moved, or is reverted, or the consumers hold something else.
        :raises PlacementConflict: as :meth:`move`; so PlacementRefused and PlacementUnreachable.
        """
        self._until(
            _State.RELEASED,
            {
                _State.MOVED: lambda reading: self._strategy.release(
                    self.pair,
                    instance_generation=reading.instance.generation,
                    migration_generation=reading.migration.generation,
                )
            },
        )

    def revert(self) -> None:
        """Have the instance hold the old allocation, and nobody the new one.

        Where nothing was moved the old one is written once more, so that no :meth:`move` that is still on its way can
        succeed after this.

        :raises AllocationsUnexpected: it is confirmed already, or the consumers hold something else.
        :raises PlacementConflict: as :meth:`move`; so PlacementRefused and PlacementUnreachable.
        """
        written = False

        def rewrite(reading: allocations.PairReading) -> None:
            nonlocal written
            self._strategy.rewrite_source(self.pair, instance_generation=_of(reading))
            written = True

        def back(reading: allocations.PairReading) -> None:
            nonlocal written
            self._strategy.revert(
                self.pair,
                instance_generation=reading.instance.generation,
                migration_generation=reading.migration.generation,
            )
            written = True

        self._until(_State.NOT_MOVED, {_State.NOT_MOVED: rewrite, _State.MOVED: back}, lambda: written)

    def _until(
        self,
        wanted: allocation_state.PairState,
        writes: dict[allocation_state.PairState, Callable[[allocations.PairReading], None]],
        is_done: Callable[[], bool] = lambda: True,
    ) -> None:
        pause = _PAUSE
        for tries in range(_TRIES):
            try:
                reading = self._strategy.observe(self.pair)
                if reading.state is wanted and is_done():
                    return
                if reading.state not in writes:
                    raise exception.AllocationsUnexpected(
                        instance=self.pair.instance.uuid,
                        migration=self.pair.migration.uuid,
                        state=reading.state.value,
                        held=dict(reading.instance.allocations),
                        kept=dict(reading.migration.allocations),
                    )
                writes[reading.state](reading)
            except exception.PlacementConflict:
                if tries == _TRIES - 1:
                    raise
                self._sleep(pause)
                pause *= 2
            else:
                return


def _of(reading: allocations.PairReading) -> int:
    generation = reading.instance.generation
    assert generation is not None, 'an instance that holds something has a generation'
    return generation


def _look_at(pair: allocation_state.Pair) -> None:
    """Refuse what Placement would not show again as it was given: compared with that, it would be unknown for ever."""
    _look_at_uuid('pair.instance.uuid', pair.instance.uuid)
    _look_at_uuid('pair.migration.uuid', pair.migration.uuid)
    if pair.instance.uuid == pair.migration.uuid:
        _refuse(
            'pair.migration.uuid',
            pair.migration.uuid,
            'That is the instance: a uuid that no other consumer has would do.',
        )
    for path, wanted in (('pair.source', pair.source), ('pair.destination', pair.destination or {})):
        for provider, held in wanted.items():
            _look_at_uuid(f'{path}, a resource provider', provider)
            for name, amount in held.items():
                # Python takes True for a whole number, and a half would be cut off where it is compared.
                if type(amount) is not int or amount < 0:
                    _refuse(f'{path}[{provider!r}][{name!r}]', amount, 'A whole number of 0 or more would do.')
    if not allocation_state.normal(pair.source):
        _refuse('pair.source', dict(pair.source), 'What the instance holds before the move would do.')


def _look_at_uuid(path: str, uuid: object) -> None:
    if not isinstance(uuid, str) or not re.fullmatch('[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', uuid):
        _refuse(path, uuid, 'A uuid would do: a string of 8-4-4-4-12 hexadecimal digits, in lower case.')


def _refuse(path: str, value: object, detail: str) -> NoReturn:
    raise exception.ValidationError(path=path, value=repr(value), detail=detail)
