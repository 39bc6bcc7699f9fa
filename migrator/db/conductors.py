# SPDX-License-Identifier: Apache-2.0

"""Lives of conductors, and their leases on the database's clock."""

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
#: Seconds for which a life that has ended is kept: stories name conductors by their lives.
KEPT = 30 * 24 * 3600.0


def alive(owner: Any) -> Any:
    """Return the condition that a migration's owner holds an unexpired lease."""
    return sa.exists().where(_T.c.id == owner, _T.c.lease_until > types.now())


@dataclasses.dataclass(frozen=True)
class Life:
    """One life of a conductor, which may be over.

    :ivar server: the RPC server name to which events go; a conductor's next life has it again.
    :ivar lease_until: by the database's clock; what is later than its present time lives.
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
        """Begin a life; those that ended long ago, and that nothing in progress names, are forgotten.

        :param server: the RPC server name to which events go.
        :param lease: seconds that it may be taken for alive.
        """
        moving, owed = models.MIGRATIONS, models.HOST_DEBTS
        in_progress = moving.c.in_progress_instance_uuid.is_not(None)
        with self._engine.writer() as session:
            session.execute(
                sa.delete(_T).where(
                    _T.c.lease_until < types.later(-KEPT),
                    ~sa.exists().where(moving.c.owner == _T.c.id, in_progress),
                    ~sa.exists().where(owed.c.owner == _T.c.id),
                )
            )
            session.execute(sa.insert(_T).values(id=conductor_id, server=server, lease_until=types.later(lease)))

    @engines.retried
    def renew(self, conductor_id: str, lease: float, server: str | None = None, broker_away: float = 0) -> bool:
        """Extend a lease that has not run out.

        :param server: is reported to be alive among the services, too, if the lease was extended.
        :param broker_away: for how many seconds it has not reached the broker; 0: it can.
        :returns: whether it was extended; if not, the life is over: take a new id, and own nothing.
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
        """End a life: its migrations may be adopted at once.

        :param server: has stopped in good order, which is written among the services too, unless another life of that
            name goes on.
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
        """Return every life that is known, the one with the latest lease first."""
        query = sa.select(_T).order_by(_T.c.lease_until.desc(), _T.c.id)
        with self._engine.reader() as session:
            return [Life(row.id, row.server, row.lease_until, row.broker_away_since) for row in session.execute(query)]
