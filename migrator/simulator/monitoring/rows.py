# SPDX-License-Identifier: Apache-2.0

"""The database as a monitor sees it: tables are read again only after a service has written to them."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

from migrator.db import saga_log
from migrator.objects import FINAL, Migration
from migrator.objects.drain import Drain, Member
from migrator.saga import log
from migrator.testing import backends, tables

#: The tables that are read again after a commit has written to them.
ROWS = frozenset(tables.TABLES)
#: Tables whose change alone causes no look, since every heartbeat changes them.
ASIDE = frozenset({'services', 'compute_nodes', 'conductors'})


class Rows:
    """The rows that the invariants of a monitor need.

    :ivar changed: the tables that must be read again.
    :ivar values: the arguments of a :class:`~migrator.simulator.world.World` that come from the database. The
        migrations are those that are in progress or were so at the last look, and all of a guest with such an
        evacuation, or one whose source has still to clean up.
    :ivar before: the migrations at the last look.
    :ivar histories_before: the histories at the last look.
    :ivar drains_before: the drains at the last look.
    """

    def __init__(self, backend: backends.Backend) -> None:
        self._backend = backend
        self._read_at: dict[str, int] = {}
        self._tables: dict[str, list[tables.Row]] = {}
        #: uuid -> how many entries its log had, and what they added up to.
        self._added_up: dict[str, tuple[int, list[log.StepRecord], list[dict[str, Any]]]] = {}
        self.changed = set(ROWS)
        self.values: dict[str, Any] = {}
        self.before: Mapping[str, Migration] = {}
        #: The migrations that were not yet final at the last look.
        self._open: set[str] = set()
        self._open_now: set[str] = set()
        self.histories_before: Mapping[str, list[dict[str, Any]]] = {}
        self.drains_before: Mapping[str, Drain] = {}

    def note_commit(self) -> bool:
        """Note the tables that a commit has changed; return whether any of them may break an invariant."""
        writes = self._backend.writes
        changed = {table for table in ROWS if self._read_at.get(table) != writes[table]}
        self.changed |= changed
        self._read_at.update((table, writes[table]) for table in changed)
        return not changed <= ASIDE

    def read(self) -> None:
        """Read the changed tables."""
        self._tables |= self._backend.tables.read_all(self.changed)
        if self.values and self.changed <= ASIDE:
            self.values |= self._aside()
            return
        left_out = {'saga_log', *ASIDE}
        found = {table: [row.object for row in rows] for table, rows in self._tables.items() if table not in left_out}
        open_ = {one.uuid for one in found['migrations'] if one.status not in FINAL}
        # The hosts that were asked in vain are known from the log, also after later migrations of the guest.
        asks = [one for one in found['migrations'] if one.is_evacuation or one.revert_requested_at]
        guests = {one.instance_uuid for one in asks}
        concerned = open_ | self._open | {one.uuid for one in found['migrations'] if one.instance_uuid in guests}
        self._open_now = open_
        if not self.changed.isdisjoint(('migrations', 'saga_log')):
            self._add_up(concerned)
        members: dict[str, list[Member]] = collections.defaultdict(list)
        for row in self._tables['drain_members']:
            members[row.drain].append(row.object)
        self.values = {
            'drains': {one.uuid: one for one in found['drains']},
            'members': members,
            'drained': {one.uuid: one for one in found['migrations'] if one.drain is not None},
            **self._aside(),
            'cleanups': found['cleanups'],
            'differences': found['guest_differences'],
            'instances': {one.uuid: one for one in reversed(found['instances'])},
            'migrations': {one.uuid: one for one in found['migrations'] if one.uuid in concerned},
            'marked': frozenset(row.uuid for row in self._tables['migrations'] if row.in_progress_instance_uuid),
            'step_log': {uuid: self._added_up[uuid][1] for uuid in concerned},
            'histories': {uuid: self._added_up[uuid][2] for uuid in concerned},
        }

    def _aside(self) -> dict[str, Any]:
        return {
            'services': [row.object for row in self._tables['services']],
            'reported': {row.host: row.slots for row in self._tables['services'] if row.slots},
            'conductors': [row.object for row in self._tables['conductors']],
            'nodes': {row.host: row.object for row in self._tables['compute_nodes']},
        }

    def end_look(self) -> None:
        """Keep the present state as that of the last look."""
        self.before, self.histories_before = self.values['migrations'], self.values['histories']
        self.drains_before = self.values['drains']
        self._open = self._open_now
        self.changed.clear()

    def is_in_progress(self, migration_uuid: str) -> bool:
        """Return whether a migration was in progress when the table was read last."""
        return any(row.uuid == migration_uuid and row.object.in_progress for row in self._tables['migrations'])

    def migration(self, uuid: str) -> Migration | None:
        """Return a migration, ended or not, as it was when the table was read last."""
        return next((row.object for row in self._tables['migrations'] if row.uuid == uuid), None)

    @property
    def migrations(self) -> Mapping[str, Migration]:
        """The migrations that were in progress or had ended at the last look."""
        found: Mapping[str, Migration] = self.values.get('migrations', {})
        return found

    def _add_up(self, concerned: set[str]) -> None:
        logs: dict[str, list[log.Entry]] = {uuid: [] for uuid in concerned}
        for row in self._tables['saga_log']:
            if row.migration in logs:
                logs[row.migration].append(row.object)
        known, self._added_up = self._added_up, {}
        for uuid, entries in logs.items():
            before = known.get(uuid)
            self._added_up[uuid] = (
                before
                if before is not None and before[0] == len(entries)
                else (len(entries), log.records(entries), saga_log.history(entries))
            )
