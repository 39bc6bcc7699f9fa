# SPDX-License-Identifier: Apache-2.0

"""The tenure of an instance: who takes the guest in hand raises it; see :class:`migrator.objects.protocol.Command`.

The row of the instance has the counter. Each migration and each cleanup keeps a copy of what it was when it last took
the guest in hand, so that the counter goes on where it was after the instance was deleted and created again.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from migrator.db import models

_I, _T, _D = models.INSTANCES, models.MIGRATIONS, models.HOST_DEBTS


def of(instance_uuid: str) -> Any:
    """Return, as a scalar subquery, the tenure in the row of an instance."""
    return sa.select(_I.c.tenure).where(_I.c.uuid == instance_uuid).scalar_subquery()


def after_all(instance_uuid: str) -> Any:
    """Return, as a scalar subquery, a tenure above all that is known of an instance without a row; 0: nothing is."""
    known = sa.union_all(
        *(sa.select(table.c.tenure).where(table.c.instance_uuid == instance_uuid) for table in (_T, _D))
    ).subquery()
    return sa.select(sa.func.coalesce(sa.func.max(known.c.tenure) + 1, 0)).scalar_subquery()


def take(session: Any, instance_uuid: str, migration_uuid: str, seen: int = 0) -> int:
    """Raise the tenure of an instance for one of its migrations, or a cleanup of it; return what it is then.

    The row of the instance is locked from now on: nobody else takes the guest in hand until the transaction has ended.

    :param seen: the highest tenure that a host has told of; the new one is above it.
    """
    above = sa.case((_I.c.tenure < seen, seen), else_=_I.c.tenure) + 1
    raised = session.execute(sa.update(_I).where(_I.c.uuid == instance_uuid).values(tenure=above))
    query = sa.select(of(instance_uuid) if raised.rowcount else after_all(instance_uuid))
    tenure = max(int(session.execute(query).scalar_one()), seen + 1, 1)
    session.execute(sa.update(_T).where(_T.c.uuid == migration_uuid).values(tenure=tenure, updated_at=_T.c.updated_at))
    return tenure
