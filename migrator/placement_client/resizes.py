# SPDX-License-Identifier: Apache-2.0

"""Allocations of a resize, which a user confirms or reverts later.

The resize may be to another host or on the same host. The resizes of migrator itself write their allocations with their
saga. This module is for another compute service, which writes its allocations with this library::

    resize = resizes.Resize(client, pair, sleep=threads.sleep)
    resize.move()  # before the guest is resized
    ...
    resize.confirm()  # the guest keeps its new flavor
    resize.revert()  # or its old one

The migration's uuid holds the old allocation until then (the specification migration-allocations). So each consumer
holds the amounts of one flavor, which fit into the ``max_unit`` of a class. Each method observes first, and writes only
if the allocations are not yet as wanted. The result is the same if a method is called twice, after a time-out, or by
two callers at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from migrator import exception
from migrator.objects import Strategy
from migrator.placement_client import allocation_state, allocations
from migrator.placement_client.client import PlacementClient

#: Tries if other writers change the allocations meanwhile, and seconds before the second try. Each further pause is
#: twice as long.
_TRIES, _PAUSE = 6, 0.05

_State = allocation_state.PairState


class Resize:
    """The move of an instance's allocation for a resize, until the user confirms or reverts it.

    :param pair: the consumers and allocations, as the caller stored them before the first write. They are the same for
        every method, also in another process. Uuids are strings as Placement spells them, and amounts are whole
        numbers.
    :param strategy: which consumer holds the old allocation: ``migration-owned``, or ``doubled`` for a cloud with a
        compute service older than version 2. ``doubled`` cannot move within the same resource providers.
    :param sleep: waits for a number of seconds, as :meth:`migrator.executors.Threads.sleep` does.
    :raises ValueError: no strategy has this name.
    :raises ValidationError: the pair has an invalid uuid or amount, the same uuid twice, or an empty source.
    """

    def __init__(
        self,
        client: PlacementClient,
        pair: allocation_state.Pair,
        strategy: str = Strategy.MIGRATION_OWNED,
        *,
        sleep: Callable[[float], None],
    ) -> None:
        _check_pair(pair)
        self.pair = pair
        self._strategy = allocations.strategy_for(client, strategy)
        self._sleep = sleep

    def move(self) -> None:
        """Give the instance the new allocation and the migration the old one.

        :raises NoValidHost: both allocations are the same, or the strategy cannot distinguish them.
        :raises AllocationsUnexpected: the consumers hold something else, or the resize is already confirmed.
        :raises PlacementRefused: there is no room.
        :raises PlacementConflict: other writers were faster at each try.
        :raises PlacementUnreachable: the move may or may not have been done; call the method again.
        """
        self._strategy.check(self.pair)
        orphan: int | None = None

        def write(reading: allocation_state.PairReading) -> None:
            nonlocal orphan
            try:
                self._strategy.move(self.pair, instance_generation=_generation_of(reading), migration_generation=orphan)
            except exception.PlacementConflict:
                # Placement may have been killed while it created the migration's consumer in an earlier try. Such an
                # orphan is invisible, and Placement refuses a null generation for it.
                orphan = allocations.ORPHAN_GENERATION if orphan is None else None
                raise

        self._until(_State.MOVED, {_State.NOT_MOVED: write})

    def confirm(self) -> None:
        """Leave the instance with the new allocation and release the old one.

        :raises AllocationsUnexpected: the allocation was not moved, it was reverted, or the consumers hold something
            else.
        :raises PlacementConflict: as :meth:`move`, and so are PlacementRefused and PlacementUnreachable.
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
        """Leave the instance with the old allocation and release the new one.

        If nothing was moved, the old allocation is written again, so that a late :meth:`move` fails.

        :raises AllocationsUnexpected: the resize is already confirmed, or the consumers hold something else.
        :raises PlacementConflict: as :meth:`move`, and so are PlacementRefused and PlacementUnreachable.
        """
        written = False

        def rewrite(reading: allocation_state.PairReading) -> None:
            nonlocal written
            self._strategy.rewrite_source(self.pair, instance_generation=_generation_of(reading))
            written = True

        def back(reading: allocation_state.PairReading) -> None:
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
        writes: dict[allocation_state.PairState, Callable[[allocation_state.PairReading], None]],
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


def _generation_of(reading: allocation_state.PairReading) -> int:
    generation = reading.instance.generation
    assert generation is not None, 'an instance that holds something has a generation'
    return generation


def _check_pair(pair: allocation_state.Pair) -> None:
    """Refuse values that Placement would return in another form.

    A later comparison with such a value would always be UNKNOWN.
    """
    _check_uuid('pair.instance.uuid', pair.instance.uuid)
    _check_uuid('pair.migration.uuid', pair.migration.uuid)
    if pair.instance.uuid == pair.migration.uuid:
        _refuse(
            'pair.migration.uuid',
            pair.migration.uuid,
            'This is the uuid of the instance: give one that no other consumer has.',
        )
    for path, wanted in (('pair.source', pair.source), ('pair.destination', pair.destination or {})):
        for provider, held in wanted.items():
            _check_uuid(f'{path}, a resource provider', provider)
            for name, amount in held.items():
                # isinstance() accepts True as an int, and comparisons cut off the fraction of a float.
                if type(amount) is not int or amount < 0:
                    _refuse(f'{path}[{provider!r}][{name!r}]', amount, 'Give a whole number of 0 or more.')
    if not allocation_state.normal(pair.source):
        _refuse('pair.source', dict(pair.source), 'Give the allocation that the instance holds before the move.')


def _check_uuid(path: str, uuid: object) -> None:
    if not isinstance(uuid, str) or not re.fullmatch('[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', uuid):
        _refuse(path, uuid, 'Give a uuid: a string of 8-4-4-4-12 hexadecimal digits, in lower case.')


def _refuse(path: str, value: object, detail: str) -> NoReturn:
    raise exception.ValidationError(path=path, value=repr(value), detail=detail)
