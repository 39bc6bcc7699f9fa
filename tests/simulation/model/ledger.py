# SPDX-License-Identifier: Apache-2.0
"""How a conductor reads and writes allocations: conductor/migration/allocations.py.

It reads generations before the commit.
"""

from __future__ import annotations

from migrator.objects.migration import MigrationStatus as Status
from migrator.placement_client.allocation_state import PairState
from tests.simulation.model import placement
from tests.simulation.model.next_act import Next
from tests.simulation.model.rules import Rules, Steps
from tests.simulation.model.search import Step
from tests.simulation.model.state import (
    ABSENT,
    FORWARD,
    ORPHAN,
    Allocations,
    Conductor,
    Message,
    Phase,
    Row,
    Undo,
    moved,
)


class Ledger(Rules):
    """The pair, and what is written by what it means."""

    def read_allocations(self, me: Conductor, row: Row, allocations: Allocations) -> Steps:
        """Look at the pair; before each write, and before the commit that precedes it."""
        if self.next(me, row) is Next.READ_ALLOCATIONS:
            pair = placement.meaning(allocations.instance, allocations.migration, row.destination)
            at = ('read', pair, allocations.instance_generation, allocations.migration_generation)
            yield self.step(f'reads the pair: {pair}', me._replace(at=at))
        elif me.at == ('read late',) and not me.paused:
            move = Message('move', 'P', allocations.instance_generation, ABSENT, row.destination)
            yield self.step('reads the generations only now', me._replace(at=('send', move)))  # planted

    def _read(self, me: Conductor, row: Row) -> Steps:
        if row.outcome == FORWARD:
            yield self._read_forward(me, row)
        elif row.undo == Undo.RETURN_INTENDED:
            yield self._read_back(me, row)
        elif row.abort or me.must_abort:
            yield self.step('finds an abort request', me._replace(at=('run',)))
        else:
            yield self._read_move(me, row)

    def _unknown(self, me: Conductor) -> Step:
        return self.step('is stuck', me._replace(at=('run',)), stuck=f'the allocations: {me.at[1]}')

    def _read_move(self, me: Conductor, row: Row) -> Step:
        _, pair, instance, migration = me.at
        if row.phase == Phase.NOTHING:
            destination = 'DE'[row.attempt - 1]
            after, broken = moved(row, Status.PREPARING, phase=Phase.MOVE_INTENDED, destination=destination)
            if 'lateget' in self.plants:
                return self.step('intends to move', me._replace(at=('read late',)), after, broken)
            message = Message('take' if 'g' in self.plants else 'move', 'P', instance, ABSENT, destination)
            return self.step('intends to move', me._replace(at=('send', message)), after, broken)
        if pair is PairState.MOVED:
            return self.step('finds it moved', me._replace(at=('moved',)))
        if pair is PairState.CLAIM_MISSING and 'g' in self.plants:
            message = Message('claim', 'P', instance, migration, row.destination)
            return self.step('claims', me._replace(at=('send', message)))
        if pair is not PairState.NOT_MOVED:
            return self._unknown(me)
        kind = 'take' if 'g' in self.plants else 'move'
        message = Message(kind, 'P', instance, ORPHAN if me.orphan else ABSENT, row.destination)
        return self.step('moves', me._replace(at=('send', message)))

    def _read_back(self, me: Conductor, row: Row) -> Step:
        _, pair, instance, migration = me.at
        if pair is PairState.NOT_MOVED:
            if 'b' in self.plants:
                return self._undone(me, row)
            return self.step('writes the source anew', me._replace(at=('send', Message('rewrite', 'P', instance, 0))))
        if pair in (PairState.MOVED, PairState.CLAIM_MISSING):
            return self.step('reverts', me._replace(at=('send', Message('revert', 'P', instance, migration))))
        return self._unknown(me)

    def _read_forward(self, me: Conductor, row: Row) -> Step:
        _, pair, _instance, migration = me.at
        if pair is PairState.RELEASED:
            return self.step('finds it released', me._replace(at=('released',)))
        if pair is not PairState.MOVED:
            return self._unknown(me)
        return self.step('releases', me._replace(at=('send', Message('release', 'P', 0, migration))))
