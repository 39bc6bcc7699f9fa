# SPDX-License-Identifier: Apache-2.0

"""The task that advances a conductor's drains.

It runs at each poll, after a request of a user, and when a migration of a drain begins to copy or ends. A drain that
waits, and of which no migration is in progress, is polled less often: see :data:`migrator.drain.run.LONGEST_REST`.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from oslo_log import log as logging

from migrator import exception, executors
from migrator.conductor.drains import plan
from migrator.conductor.drains.engine import ConductorEngine
from migrator.conductor.maintenances.periodic import Maintenances
from migrator.conductor.migration.context import Tools
from migrator.context import RequestContext
from migrator.db.slots import Bounds
from migrator.db.sql.due import Due
from migrator.drain.attempt import attempt
from migrator.drain.engine import Engine
from migrator.drain.maintenance import actions
from migrator.drain.maintenance.turns import Maintenance, Turn
from migrator.objects.drain import Drain
from migrator.rpc import expose

LOG = logging.getLogger(__name__)


class DrainCalls:
    """The calls of the API that concern drains and maintenances.

    :param drains: the drains of this conductor.
    :param maintenances: its maintenances.
    """

    def __init__(self, drains: Drains, maintenances: Maintenances) -> None:
        self.drains = drains
        self.maintenances = maintenances

    @expose
    def wake_drains(self, context: RequestContext) -> None:
        """Take over the drains without a living owner, and advance those of this conductor."""
        self.drains.wake_all()

    @expose
    def plan_drain(self, context: RequestContext, drain: Drain) -> dict[str, Any]:
        """Return the plan of a drain; see :func:`migrator.conductor.drains.plan.plan`."""
        return self.drains.mover.plan(drain)

    @expose
    def wake_maintenances(self, context: RequestContext) -> None:
        """Take over the maintenances without a living owner, and advance those of this conductor."""
        self.maintenances.wake_all()

    @expose
    def plan_maintenance(
        self, context: RequestContext, maintenance: Maintenance, turns: Sequence[Turn]
    ) -> dict[str, Any]:
        """Return the plan of a maintenance; see :func:`migrator.drain.maintenance.document.planned`."""
        return self.maintenances.plan(maintenance, turns)

    @expose
    def begin_turn(self, context: RequestContext, maintenance: str, host: str, claim: str | None = None) -> Turn:
        """Claim a host that is ready for its work; see :func:`migrator.drain.maintenance.actions.begin`."""
        found = self.maintenances
        return actions.begin(found.store, found.engine, maintenance, host, context.user_id, claim)


@dataclasses.dataclass(frozen=True)
class Mover:
    """The control plane that moves the guests of drains.

    :ivar plan: returns the plan of a drain as JSON.
    """

    engine: Engine
    plan: Callable[[Drain], dict[str, Any]]


def own_mover(tools: Tools, adopt: Callable[[Sequence[str]], None], wake: Callable[[str], object]) -> Mover:
    """Return what moves guests by the migrations of this control plane; see :class:`ConductorEngine`."""

    def make_plan(drain: Drain) -> dict[str, Any]:
        return plan.plan(tools.database, tools.placement, drain, tools.options.bounds or Bounds())

    return Mover(ConductorEngine(tools, adopt, wake), make_plan)


class Drains:
    """The drains of one conductor.

    :param pool: its threads advance the drains, each drain in one thread at a time.
    """

    def __init__(self, tools: Tools, mover: Mover, pool: executors.BoundedExecutor) -> None:
        self._tools = tools
        self.mover = mover
        self._pool = pool
        self._lock = tools.threads.lock()
        #: The drains that are being advanced -> None, or if each is advanced once more, whether also its members are
        #: compared with the guests of its host.
        self._advancing: dict[str, bool | None] = {}
        #: How many drains have ended here, by their last status.
        self.ended: collections.Counter[str] = collections.Counter()
        #: The drains that this conductor advances -> the status of each for a user.
        self._statuses: dict[str, str] = {}
        #: The drains that this conductor advances -> the time until which a poll leaves each alone.
        self._rests_until: dict[str, float] = {}
        #: The drains that this conductor owned at the last poll; None: they have to be read.
        self._owned: list[str] | None = None

    def sweep(self, due: Due) -> None:
        """Take over the drains in progress without a living owner, and advance those that are due.

        :param due: what the sweep of this conductor has found to do.
        """
        if due.drain_orphans and self._tools.owner:
            self._tools.database.drains.adopt(self._tools.owner)
        # A sweep that has found none may be older than a drain which was accepted meanwhile.
        if due.drain_orphans or due.drains:
            self._owned = None
        self.poll()

    def wake_all(self) -> None:
        """Take over the drains in progress without a living owner, and advance all of this conductor."""
        if not self._tools.owner:
            return
        if self._tools.database.drains.has_orphans():
            self._tools.database.drains.adopt(self._tools.owner)
        for uuid in self._read_owned():
            self.wake(uuid)

    def poll(self) -> None:
        """Advance the drains of this conductor, if it owns any, but for those that rest."""
        if not self._tools.owner or (self._owned is not None and not self._due(self._owned)):
            return
        for uuid in self._due(self._read_owned()):
            self.wake(uuid)

    def _read_owned(self) -> list[str]:
        owned = self._owned = self._tools.database.drains.owned_by(self._tools.owner)
        with self._lock:
            self._statuses = {uuid: status for uuid, status in self._statuses.items() if uuid in owned}
            self._rests_until = {uuid: until for uuid, until in self._rests_until.items() if uuid in owned}
        return owned

    def _due(self, owned: Sequence[str]) -> list[str]:
        now = self._tools.threads.clock.monotonic()
        return [uuid for uuid in owned if self._rests_until.get(uuid, now) <= now]

    def statuses(self) -> list[str]:
        """Return the statuses of the drains that this conductor advances, as a user sees them."""
        with self._lock:
            return [*self._statuses.values()] if self._tools.owner else []

    def wake(self, uuid: str, is_whole: bool = True) -> None:
        """Advance a drain soon, and once more if it is being advanced now.

        :param is_whole: as in :func:`migrator.drain.run.advance`.
        """
        with self._lock:
            is_new = uuid not in self._advancing
            self._advancing[uuid] = is_whole or bool(self._advancing.get(uuid))
        if is_new:
            self._pool.submit(self._advance_while_woken, uuid)

    def _advance_while_woken(self, uuid: str) -> None:
        try:
            while True:
                with self._lock:
                    is_whole = self._advancing[uuid]
                    if is_whole is None:
                        del self._advancing[uuid]
                        return
                    self._advancing[uuid] = None
                self._advance_if_owned(uuid, is_whole)
        except BaseException:  # such as a time-out of a green thread: the next poll advances the drain again
            with self._lock:
                self._advancing.pop(uuid, None)
            raise

    def _advance_if_owned(self, uuid: str, is_whole: bool) -> None:
        try:
            drain = self._tools.database.drains.get(uuid)
        except (exception.ServiceUnreachable, exception.DrainNotFound) as error:
            LOG.warning(
                'Could not read drain %(drain)s; the next poll tries again: %(error)s', {'drain': uuid, 'error': error}
            )
            return
        if self._tools.owner and drain.owner == self._tools.owner and not drain.ended:
            owner = f'conductor {self._tools.server}'
            drain, rest = attempt(self._tools.database.drains, self.mover.engine, drain, owner, is_whole)
            with self._lock:
                self._rests_until[uuid] = self._tools.threads.clock.monotonic() + rest
                if drain.ended:
                    self._statuses.pop(uuid, None)
                    self.ended[drain.status] += 1
                else:
                    self._statuses[uuid] = drain.shown_status
