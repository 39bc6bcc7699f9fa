# SPDX-License-Identifier: Apache-2.0

"""The notifications that follow from the log of a migration.

An action has a start and an end, or an error. The names are nova's: ``instance.live_migration_pre.start``. Each follows
from one entry of the log, so any conductor derives the same ones.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

from migrator.objects import FINAL, Migration, MigrationStatus, Outcome, steps
from migrator.objects.instance import RESIZED
from migrator.saga.log import Entry, EntryKind

START, END, ERROR = 'start', 'end', 'error'


@dataclasses.dataclass(frozen=True)
class Action:
    """An action of nova's on an instance.

    :ivar at_source: whether the source does it; otherwise the destination does.
    :ivar during: the task_state of the instance at its start.
    :ivar after: the task_state at its end.
    """

    at_source: bool
    during: str | None
    after: str | None


_MIGRATING = 'migrating'
ACTIONS = {
    'live_migration_pre': Action(False, _MIGRATING, _MIGRATING),
    'live_migration_abort': Action(True, _MIGRATING, _MIGRATING),
    'live_migration_force_complete': Action(True, _MIGRATING, _MIGRATING),
    'live_migration_post': Action(True, _MIGRATING, _MIGRATING),
    'live_migration_post_dest': Action(False, _MIGRATING, None),
    'live_migration_rollback': Action(True, _MIGRATING, None),
    'live_migration_rollback_dest': Action(False, _MIGRATING, _MIGRATING),
    'evacuate': Action(True, 'rebuilding', 'rebuilding'),
    'rebuild': Action(False, 'rebuilding', None),
    'resize_prep': Action(False, 'resize_prep', 'resize_prep'),
    'resize': Action(True, 'resize_migrating', 'resize_migrated'),
    'resize_finish': Action(False, 'resize_finish', None),
    'resize_confirm': Action(True, None, None),
    'resize_revert': Action(True, 'resize_reverting', None),
}

_K, _S = EntryKind, MigrationStatus
#: What an entry of a step means: (kind, step) -> the action and its phase.
_OF_STEPS: Mapping[tuple[str, str | None], tuple[str, str]] = {
    **{(_K.INTENT, step.name): (step.action, START) for step in steps.STEPS if step.action},
    **{(_K.DONE, step.name): (step.action, END) for step in steps.STEPS if step.ends_action},
}
#: The same for the statuses that end an action.
_OF_STATUSES: Mapping[str, tuple[str, str]] = {
    _S.DONE: ('rebuild', END),
    _S.CONFIRMED: ('resize_confirm', END),
    _S.REVERTED: ('resize_revert', END),
}
_UNSUCCESSFUL = (_S.CANCELLED, _S.FAILED, _S.ERROR)


@dataclasses.dataclass(frozen=True)
class Phase:
    """One notification, without what is the same for all of its migration.

    :ivar seq: the entry of the log that it follows from.
    :ivar at: when that entry was written, or when a user has requested the abort or the forced end.
    :ivar phase: ``start``, ``end`` or ``error``; None: the action has no phases.
    :ivar host: the host that acts.
    :ivar guest_host: the instance's host at that time.
    :ivar has_moved: whether that is the destination.
    :ivar vm_state: the instance's vm_state at that time; None: the migration does not change it.
    :ivar fault: why the action has failed.
    """

    seq: int
    at: datetime.datetime
    action: str
    phase: str | None
    host: str
    guest_host: str
    guest_node: str
    has_moved: bool
    task_state: str | None
    vm_state: str | None = None
    fault: str | None = None

    @property
    def event_type(self) -> str:
        """The name of the notification."""
        return '.'.join(['instance', self.action, *([self.phase] if self.phase else [])])


def phases(migration: Migration, entries: Sequence[Entry]) -> list[Phase]:
    """Return the notifications that follow from a log, in its order.

    :param entries: all of the log, oldest first.
    """
    return _Reader(migration, entries).phases


class _Reader:
    """A reader of one log, from its beginning."""

    def __init__(self, migration: Migration, entries: Sequence[Entry]) -> None:
        self._row = migration
        self.phases: list[Phase] = []
        self._entry = Entry('')
        self._destination, self._destination_node = '', ''
        #: Whether the instance is at its destination.
        self._has_moved = False
        self._vm_state = next(
            (vm for one in entries if (vm := (one.payload.get('input') or {}).get('vm_state')) is not None), None
        )
        self._is_resized = False
        #: Whether the destination of the present attempt was prepared for a live migration.
        self._is_prepared = False
        #: The actions that have started and not ended.
        self._open: list[str] = []
        requests = [('live_migration_abort', migration.abort_requested_at)]
        requests.append(('live_migration_force_complete', migration.force_complete_requested_at))
        self._requests = sorted((at, action) for action, at in requests if at is not None and migration.is_live)
        for self._entry in entries:
            self._read_requests()
            self._read()

    def _read_requests(self) -> None:
        """Add the requests that came before this entry. The row has their times; the log does not."""
        at = self._entry.at
        is_last = self._entry.kind == _K.STATUS and self._entry.payload.get('status') in FINAL
        while self._requests and at is not None and (is_last or self._requests[0][0] <= at):
            requested_at, action = self._requests.pop(0)
            self._add(action, START, at=requested_at)
            self._add(action, END, at=requested_at)

    def _read(self) -> None:
        kind, step = self._entry.kind, self._entry.step
        if kind == _K.STATUS:
            self._read_status(self._entry.payload['status'])
        elif kind == _K.FAILED and self._open and not self._row.is_live:
            self._fail((self._entry.payload.get('result') or {}).get('reason'))
        elif kind in (_K.UNDO_INTENT, _K.UNDO_DONE):
            self._read_undo(kind, step)
        elif step == 'move_allocation':
            self._read_move(kind)
        elif kind == _K.DONE and step in ('check_can_migrate_destination', 'check_can_resize'):
            self._add('resize_prep', END)
        elif kind == _K.DONE and step in ('update_instance_host', 'return_instance_host'):
            self._has_moved = step == 'update_instance_host'
            if self._has_moved and not self._row.is_live and not self._row.is_evacuation:
                self._is_resized = True
                self._add('resize_finish', END)
        elif kind == _K.DONE and step == 'update_instance_flavor':
            self._is_resized = True
            self._add('resize', END)
            self._add('resize_finish', START)
            self._add('resize_finish', END)
        elif (kind, step) in _OF_STEPS:
            self._is_prepared = self._is_prepared or step == 'pre_live_migration'
            self._add(*_OF_STEPS[kind, step])

    def _read_move(self, kind: str) -> None:
        chosen = self._entry.payload.get('input')
        if kind == _K.INTENT and chosen:
            self._destination, self._destination_node = chosen['host'], chosen['node']
            self._is_prepared = False
        elif kind == _K.DONE and not self._row.is_live and not self._row.is_evacuation:
            self._add('resize_prep', START)

    def _read_undo(self, kind: str, step: str | None) -> None:
        """Read an undo of a live migration: the destination comes first, and the allocations come last."""
        if not self._is_prepared:
            return
        if step == 'pre_live_migration':
            if kind == _K.UNDO_INTENT:
                self._add('live_migration_rollback', START)
            self._add('live_migration_rollback_dest', START if kind == _K.UNDO_INTENT else END)
        elif step == 'move_allocation' and kind == _K.UNDO_DONE:
            self._add('live_migration_rollback', END)

    def _read_status(self, status: str) -> None:
        if status == _S.ACCEPTED and self._row.is_evacuation:
            self._add('evacuate', None)
        if status in (_S.CONFIRMED, _S.REVERTED):
            self._is_resized = False
        if status in _OF_STATUSES:
            self._add(*_OF_STATUSES[status])
        elif status == _S.ERROR and self._row.is_live:
            action = 'live_migration_post' if self._row.outcome == Outcome.FORWARD else 'live_migration_rollback'
            self._add(action, ERROR, self._row.failure)
        elif status in _UNSUCCESSFUL and not self._row.is_live and self.phases and self.phases[-1].phase != ERROR:
            self._fail(self._row.failure)

    def _fail(self, reason: str | None) -> None:
        """Add the error of a migration that is not live. Nova has no other end for one."""
        self._open.clear()
        self._add('rebuild' if self._row.is_evacuation else 'resize', ERROR, reason)

    def _task_state(self, action: str, phase: str | None) -> str | None:
        known, entry, row = ACTIONS[action], self._entry, self._row
        if phase == ERROR and entry.kind == _K.STATUS:
            return None
        # A rollback before another attempt does not end the task.
        is_over = row.outcome is not None and entry.attempt == row.attempt
        if phase == END and (is_over or action != 'live_migration_rollback'):
            return known.after
        return known.during

    def _add(
        self, action: str, phase: str | None, fault: str | None = None, at: datetime.datetime | None = None
    ) -> None:
        known, at, row = ACTIONS[action], at or self._entry.at, self._row
        assert at is not None
        if phase == START:
            self._open.append(action)
        elif action in self._open:
            self._open.remove(action)
        source = row.source_compute
        at_source = known.at_source or not self._destination
        self.phases.append(
            Phase(
                seq=self._entry.seq,
                at=at,
                action=action,
                phase=phase,
                host=source if at_source else self._destination,
                guest_host=self._destination if self._has_moved else source,
                guest_node=self._destination_node if self._has_moved else row.source_node,
                has_moved=self._has_moved,
                task_state=self._task_state(action, phase),
                vm_state=RESIZED if self._is_resized else self._vm_state,
                fault=fault or 'unknown' if phase == ERROR else None,
            )
        )
