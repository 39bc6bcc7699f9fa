# SPDX-License-Identifier: Apache-2.0

"""Incarnations of conductors, and their leases by the clock of the database."""

from __future__ import annotations

import builtins
import dataclasses
import datetime
from typing import Any

import sqlalchemy as sa

from migrator.db import engine as engines
from migrator.db import models, types
from migrator.db.services import Services
from migrator.objects import CONDUCTOR_BINARY, CURRENT_VERSION

_T = models.CONDUCTORS
#: Seconds for which an ended incarnation is kept, because timelines look up the names of conductors here.
KEPT = 30 * 24 * 3600.0


def alive(owner: Any) -> Any:
    """Return the condition that an owner holds an unexpired lease."""
    return sa.exists().where(_T.c.id == owner, _T.c.lease_until > types.now())


@dataclasses.dataclass(frozen=True)
class Life:
    """One incarnation of a conductor, which may have ended.

    :ivar server: the RPC server name for events. The conductor's next incarnation has the same name.
    :ivar lease_until: the end of the lease by the database's clock. The incarnation lives until then.
    :ivar broker_away_since: since when it cannot reach the broker; None: it can.
    """

    id: str
    server: str
    lease_until: datetime.datetime
    broker_away_since: datetime.datetime | None = None


class Conductors:
    """The rows of ``conductors``."""

    def __init__(self, engine: engines.Engine, services: Services) -> None:
        self._engine = engine
        self._services = services

    @engines.retried
    def register(self, conductor_id: str, server: str, lease: float) -> None:
        """Begin an incarnation, and delete those that ended long ago and that no work in progress names.

        :param server: the RPC server name for events.
        :param lease: seconds until the lease ends.
        """
        moving, cleanups = models.MIGRATIONS, models.HOST_DEBTS
        in_progress = moving.c.in_progress_instance_uuid.is_not(None)
        with self._engine.writer() as session:
            session.execute(
                sa.delete(_T).where(
                    _T.c.lease_until < types.later(-KEPT),
                    ~sa.exists().where(moving.c.owner == _T.c.id, in_progress),
                    ~sa.exists().where(cleanups.c.owner == _T.c.id),
                )
            )
            session.execute(sa.insert(_T).values(id=conductor_id, server=server, lease_until=types.later(lease)))

    @engines.retried
    def renew(self, conductor_id: str, lease: float, server: str | None = None, broker_away: float = 0) -> bool:
        """Extend a lease that has not run out.

        :param server: also report this service as up, if the lease was extended.
        :param broker_away: seconds for which it has not reached the broker; 0: it can.
        :returns: whether the lease was extended. If not, the incarnation has ended: take a new id, and own nothing.
        """
        with self._engine.writer() as session:
            found: Any = session.execute(
                sa.update(_T)
                .where(_T.c.id == conductor_id, _T.c.lease_until > types.now())
                .values(
                    lease_until=types.later(lease), broker_away_since=types.later(-broker_away) if broker_away else None
                )
            )
            if found.rowcount and server is not None:
                binary, version = CONDUCTOR_BINARY, CURRENT_VERSION
                self._services.write_report(session, server, binary, version, None)
            return bool(found.rowcount)

    @engines.retried
    def retire(self, conductor_id: str, server: str | None = None) -> None:
        """End an incarnation, so that other conductors may take over its migrations at once.

        :param server: also write this service as stopped, unless another incarnation with this name lives.
        """
        with self._engine.writer() as session:
            session.execute(sa.update(_T).where(_T.c.id == conductor_id).values(lease_until=types.now()))
            if server is not None:
                another = sa.exists().where(_T.c.server == server, _T.c.lease_until > types.now())
                self._services.write_stopped(session, server, CONDUCTOR_BINARY, ~another)

    def server_of(self, conductor_id: str) -> str | None:
        """Return the RPC server name of a living conductor, or None."""
        query = sa.select(_T.c.server).where(_T.c.id == conductor_id, _T.c.lease_until > types.now())
        with self._engine.reader() as session:
            return session.execute(query).scalar_one_or_none()

    def list(self) -> builtins.list[Life]:
        """Return every known incarnation, the one with the latest lease first."""
        query = sa.select(_T).order_by(_T.c.lease_until.desc(), _T.c.id)
        with self._engine.reader() as session:
            return [Life(row.id, row.server, row.lease_until, row.broker_away_since) for row in session.execute(query)]
