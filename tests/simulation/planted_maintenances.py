# SPDX-License-Identifier: Apache-2.0

"""Planted bugs of maintenances: how many hosts are out, who works there, and when one is back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from migrator.conductor.maintenances.engine import MaintenanceEngine
from migrator.conductor.migration import destinations
from migrator.db.maintenances.store import Maintenances
from migrator.drain.maintenance import actions, limits, returned
from migrator.objects.drain import DrainStatus
from tests.simulation.plant import Shelf, patched

SHELF = Shelf()


@SHELF.plant('I32', 'maintenances seed 1', 'maintenances seed 2')
def work_begins_before_the_last_guest_has_left() -> Iterator[object]:
    """A host counts as empty as soon as its drain has begun, and is not checked."""
    drains = MaintenanceEngine.drains

    def completed(self: Any, uuids: Any) -> Any:
        return {uuid: one.replace(status=DrainStatus.COMPLETED.value) for uuid, one in drains(self, uuids).items()}

    with (
        patched(MaintenanceEngine, 'drains', completed),
        patched(MaintenanceEngine, 'left', lambda *_args: []) as there,
    ):
        yield there


@SHELF.plant('I32', 'maintenances seed 1', 'maintenances seed 2')
def report_from_before_the_work_counts() -> Iterator[object]:
    """A host is back as soon as its work has ended."""
    with patched(returned, 'judge', lambda *_args: returned.Verdict()) as there:
        yield there


@SHELF.plant('I32', 'maintenances seed 1', 'maintenances seed 3')
def limit_forgets_what_was_begun_before() -> Iterator[object]:
    """Only the host that is about to leave service counts."""
    limit = limits.why_too_many

    def alone(maintenance: Any, turns: Any, out: Any, groups: Any, turn: Any) -> str:
        return limit(maintenance, [turn], out, groups, turn)

    with patched(limits, 'why_too_many', alone) as there:
        yield there


@SHELF.plant('I32', 'maintenances seed 33')
def claim_is_given_twice() -> Iterator[object]:
    """A write does not need what was read to be what is there."""
    write = Maintenances.write

    def unguarded(self: Any, maintenance: Any, *written: Any) -> Any:
        now = self.get(maintenance.uuid)
        return write(self, maintenance.replace(epoch=now.epoch, log_seq=now.log_seq), *written)

    with patched(Maintenances, 'write', unguarded) as there:
        yield there


@SHELF.plant('I32', 'maintenances seed 24', 'maintenances seed 28')
def guest_is_sent_to_a_host_that_returns() -> Iterator[object]:
    """A host is used again when its work has ended, and not when it is back."""
    done = actions.done

    def hasty(store: Any, uuid: str, host: str, *more: Any) -> Any:
        turn = done(store, uuid, host, *more)
        engine = MaintenanceEngine.newest
        engine.enable(turn)
        return turn

    make = MaintenanceEngine.__init__

    def noted(self: Any, *given: Any) -> None:
        make(self, *given)
        MaintenanceEngine.newest = self  # type: ignore[attr-defined]  # of this plant

    with (
        patched(MaintenanceEngine, '__init__', noted),
        patched(actions, 'done', hasty),
        patched(destinations, '_why_not', _without_maintenance(lambda _migration: True)) as there,
    ):
        yield there


@SHELF.plant('I32', 'maintenances seed 19', 'maintenances seed 41')
def host_that_is_named_may_be_out_of_service() -> Iterator[object]:
    """A user forces a guest to a host that is worked on."""
    with patched(
        destinations, '_why_not', _without_maintenance(lambda migration: migration.requested_host is not None)
    ) as there:
        yield there


def _without_maintenance(when: Callable[[Any], bool]) -> Callable[..., str | None]:
    why_not = destinations._why_not

    def patched_one(migration: Any, place: Any, by_state: bool) -> str | None:
        return why_not(migration, dataclasses.replace(place, maintenance=None) if when(migration) else place, by_state)

    return patched_one
