# SPDX-License-Identifier: Apache-2.0

"""The turns of hosts in maintenances, as the transaction of another table reads them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from migrator.db.maintenances.rows import TURNS
from migrator.db.sql.statements import Prepared
from migrator.drain.maintenance import errors
from migrator.drain.maintenance.turns import TurnStatus
from migrator.objects.drain import Drain

_H = TURNS
_HOLDER = Prepared(
    sa.select(_H.c.maintenance, _H.c.status, sa.func.coalesce(_H.c.drain, _H.c.last_drain).label('drain'))
    .where(_H.c.in_progress_host == sa.bindparam('at_host'))
    .with_for_update()
)
_BESIDE = sa.select(_H.c.maintenance).where(_H.c.drain == sa.bindparam('of')).scalar_subquery()
_WAITING = Prepared(
    sa.select(_H.c.host)
    .where(_H.c.maintenance == _BESIDE, _H.c.status == sa.bindparam('waits'))
    .order_by(_H.c.position)
)


def holder_of(host: str) -> Any:
    """Return the maintenance in progress of a host, for the query of another row."""
    return sa.select(_H.c.maintenance).where(_H.c.in_progress_host == host).scalar_subquery()


def out_by(host: Any) -> Any:
    """Return the maintenance that has a host out of service, for the query of another row.

    :param host: the column with its name.
    """
    return sa.select(_H.c.maintenance).where(_H.c.in_progress_host == host, _H.c.is_out.is_(True)).scalar_subquery()


def refuse_unless_due(
    session: Any, drain: Drain, turn: tuple[str, str] | None, status: TurnStatus = TurnStatus.DRAINING
) -> None:
    """Raise unless a maintenance of the host allows to accept a drain, or its restore.

    :param turn: the maintenance, and the host, whose turn has this drain; None: it is of a user.
    :param status: the status that the turn has to have.
    :raises migrator.drain.maintenance.errors.HostInMaintenance: the host has a maintenance in progress, which has not
        requested this drain, or does not need it any more.
    """
    held = session.execute(_HOLDER, {'at_host': drain.host}).one_or_none()
    known = None if held is None else (held.maintenance, drain.host)
    if known == turn and (held is None or (held.status, held.drain) == (status, drain.uuid)):
        return
    if turn is not None and (known is None or known == turn):
        raise errors.TurnNotDue(maintenance=turn[0], drain=drain.uuid, host=drain.host)
    raise errors.HostInMaintenance(host=drain.host, maintenance=held.maintenance)


def waiting_beside(session: Any, drain: str) -> list[str]:
    """Return the hosts that still wait in the maintenance of a drain."""
    return list(session.execute(_WAITING, {'of': drain, 'waits': TurnStatus.WAITING.value}).scalars())
