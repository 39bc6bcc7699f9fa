# SPDX-License-Identifier: Apache-2.0

"""The check that no migration stands for long without a recorded reason (I7 during a run)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from migrator.db.slots import used_by
from migrator.objects import MigrationStatus
from migrator.simulator.invariants.hosts import awaited
from migrator.simulator.world import World

#: Seconds within which a migration must record what it waits for. Without faults it takes a fraction of it.
SILENCE = 300.0
#: Statuses that last, and need no reason.
_LASTS = (MigrationStatus.QUEUED, MigrationStatus.RUNNING)


class Silence:
    """How long the row of each migration has shown neither progress nor a reason.

    A copy, a wait in the queue and one for a user need no reason, unless an abort was requested. A wait for a slot is
    no reason while no migration has that slot. Time without a living conductor does not count, because no process
    could write a reason.
    """

    def __init__(self) -> None:
        self._seen: Mapping[str, Any] | None = None
        #: Migration without a reason -> what would be progress, and since when it is as it is.
        self._since: dict[str, tuple[tuple[Any, ...], float]] = {}

    def look(self, world: World) -> Iterator[str]:
        """Note the migrations without a reason, and yield those that have had none for too long."""
        if world.migrations is not self._seen:
            self._seen, before = world.migrations, self._since
            self._since = {}
            for uuid, stands in _without_reason(world):
                known = before.get(uuid)
                self._since[uuid] = stands, known[1] if known is not None and known[0] == stands else world.at
        for uuid, (stands, since) in self._since.items():
            if not world.busy:
                self._since[uuid] = stands, world.at
            elif world.at - since > SILENCE:
                yield f'migration {uuid} is {stands[0]}, without progress or a recorded wait for {SILENCE:g} s'


def _without_reason(world: World) -> Iterator[tuple[str, tuple[Any, ...]]]:
    admitted = [row for row in world.migrations.values() if row.in_progress and (row.dest_node or row.attempt > 1)]
    taken = {axis for row in admitted for axis in used_by(row)}
    for uuid, row in world.migrations.items():
        on_its_way = row.status in _LASTS and row.outcome is None and row.abort_requested_at is None
        decides = not (row.confirm_requested_at or row.revert_requested_at)
        on_its_way = on_its_way or (row.status == MigrationStatus.FINISHED and decides)
        waits = awaited(world, row, taken) if row.waits_for_slot else row.wait is not None
        if not (row.ended or waits or row.stuck_reason or on_its_way):
            yield uuid, (row.status, row.outcome, row.attempt, row.abort_requested_at)
