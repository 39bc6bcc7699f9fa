# SPDX-License-Identifier: Apache-2.0

"""The task that advances a conductor's maintenances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oslo_log import log as logging

from migrator import exception, executors
from migrator.conductor.maintenances.engine import MaintenanceEngine
from migrator.conductor.migration.context import Tools
from migrator.db.sql.due import Due
from migrator.drain.engine import Engine
from migrator.drain.maintenance import document, errors, run
from migrator.drain.maintenance.turns import Maintenance, Turn
from migrator.objects import base
from migrator.objects.drain import LONGEST_ERROR

LOG = logging.getLogger(__name__)

#: Seconds between two looks at a maintenance. A drain and a host that returns take longer.
INTERVAL = 5.0
#: Seconds between two searches for the next host while there is no room. Each reads all guests.
_WITHOUT_ROOM = 30.0


class Maintenances:
    """The maintenances of one conductor.

    :param drains: what moves the guests of their drains.
    :param wake_drains: advances the drains of this conductor.
    :param pool: its threads advance the maintenances, each in one thread at a time.
    """

    def __init__(
        self, tools: Tools, drains: Engine, wake_drains: Callable[[], None], pool: executors.BoundedExecutor
    ) -> None:
        self._tools = tools
        self._pool = pool
        self._lock = tools.threads.lock()
        self.engine = MaintenanceEngine(tools, drains, wake_drains)
        self.store = tools.database.maintenances
        #: Maintenance -> when it is looked at again, in monotonic seconds.
        self._next: dict[str, float] = {}
        #: Maintenance -> from when on the next host is looked for, if there was no room for its guests.
        self._plans_at: dict[str, float] = {}

    def sweep(self, due: Due) -> None:
        """Take over the maintenances in progress without a living owner, and advance those of this conductor.

        :param due: what the sweep of this conductor has found to do.
        """
        if due.maintenance_orphans and self._tools.owner:
            self.store.adopt(self._tools.owner)
        self._look_at(self._owned() if due.maintenance_orphans or due.maintenances else [])
        self.poll()

    def wake_all(self) -> None:
        """Take over the maintenances without a living owner, and advance all of this conductor."""
        if not self._tools.owner:
            return
        if self.store.has_orphans():
            self.store.adopt(self._tools.owner)
        self._look_at(self._owned(), now=True)
        self.poll()

    def _owned(self) -> list[str]:
        return self.store.owned_by(self._tools.owner) if self._tools.owner else []

    def _look_at(self, owned: Sequence[str], now: bool = False) -> None:
        with self._lock:
            self._next = {uuid: 0.0 if now else self._next.get(uuid, 0.0) for uuid in owned}

    def plan(self, maintenance: Maintenance, turns: Sequence[Turn]) -> dict[str, Any]:
        """Return the plan of a maintenance that was not requested yet, as JSON."""
        left = [
            document.Immovable(guest.uuid, guest.name, turn.host, obstacle.reason, obstacle.remedy)
            for turn in turns
            for guest, obstacle in self.engine.obstacles(maintenance, turn)
        ]
        return document.planned(self.engine, maintenance, turns, left, self.store.now())

    def poll(self) -> None:
        """Advance the maintenances of this conductor that were not looked at for some seconds."""
        now = self._tools.threads.clock.monotonic()
        with self._lock:
            due = [uuid for uuid, at in self._next.items() if at <= now]
            self._next |= dict.fromkeys(due, now + INTERVAL)
        for uuid in due:
            self._tools.submit_once(self._pool, ('maintenance', uuid), lambda _tools, of: self._advance(of), uuid)

    def _advance(self, uuid: str) -> None:
        """Advance a maintenance as far as possible now. After an error the next look tries again."""
        try:
            known = self.store.get(uuid)
            if known.owner != self._tools.owner or known.ended:
                with self._lock:
                    self._next.pop(uuid, None)
                return
            now = self._tools.threads.clock.monotonic()
            plans = now >= self._plans_at.get(uuid, now)
            done = run.advance(self.store, self.engine, known, plans)
            if plans:
                with self._lock:
                    self._plans_at = {one: at for one, at in self._plans_at.items() if one in self._next}
                    self._plans_at[uuid] = now + _WITHOUT_ROOM
            if done.ended:
                LOG.info(
                    'Maintenance has ended: %(uuid)s is %(status)s: %(message)s',
                    {'uuid': uuid, 'status': done.status, 'message': done.message},
                )
        except errors.NotOwnerOfMaintenance as error:
            LOG.info('Could not write a maintenance; the next look reads it again: %s', error)
        except exception.ServiceUnreachable as error:
            LOG.warning('Could not advance maintenance %(uuid)s: %(error)s', {'uuid': uuid, 'error': error})
            self._note(uuid, error, str(error))
        except Exception as error:  # it concerns this maintenance only
            LOG.exception('Could not advance maintenance %s for an unexpected reason; the next look tries again', uuid)
            self._note(uuid, error, f'Unexpected error in conductor {self._tools.server}. See its log: {error!r}')

    def _note(self, uuid: str, why: Exception, reason: str) -> None:
        """Write why a maintenance waits, unless it waits for such an error already. A failure is only logged."""
        try:
            known, error = self.store.get(uuid), base.text(repr(why), LONGEST_ERROR)
            if known.owner == self._tools.owner and not known.ended and known.wait_error != error:
                fields = {'waits_for': reason, 'wait_error': error}
                self.store.write(known, fields, [], [('waits', {'reason': reason})])
        except (exception.ServiceUnreachable, errors.NotOwnerOfMaintenance) as error:
            LOG.info('Could not write why a maintenance waits: %(uuid)s: %(error)s', {'uuid': uuid, 'error': error})
