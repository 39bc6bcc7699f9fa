# SPDX-License-Identifier: Apache-2.0

"""The tenure of an instance, a counter that each migration and each cleanup of the guest raises.

Hosts compare it; see :class:`migrator.objects.protocol.Command`. The counter is in the row of the instance. Each
migration and each cleanup keeps a copy of the value that it last raised it to. So the counter continues if the instance
is deleted and created again.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from migrator.db import models

_I, _T, _D = models.INSTANCES, models.MIGRATIONS, models.CLEANUPS


def of(instance_uuid: str) -> Any:
    """Return, as a scalar subquery, the tenure in the row of an instance."""
    return sa.select(_I.c.tenure).where(_I.c.uuid == instance_uuid).scalar_subquery()


def after_all(instance_uuid: str) -> Any:
    """Return, as a scalar subquery, a tenure above all known ones of an instance without a row.

    The tenure is 0 if none is known.
    """
    known = sa.union_all(
        *(sa.select(table.c.tenure).where(table.c.instance_uuid == instance_uuid) for table in (_T, _D))
    ).subquery()
    return sa.select(sa.func.coalesce(sa.func.max(known.c.tenure) + 1, 0)).scalar_subquery()


def take(session: Any, instance_uuid: str, migration_uuid: str, seen: int = 0) -> int:
    """Raise the tenure of an instance for one of its migrations or cleanups, and return the new one.

    This locks the row of the instance, so that no other migration or cleanup raises the tenure until the transaction
    ends.

    :param seen: the highest tenure that a host has reported. The new one is above it.
    """
    above = sa.case((_I.c.tenure < seen, seen), else_=_I.c.tenure) + 1
    raised = session.execute(sa.update(_I).where(_I.c.uuid == instance_uuid).values(tenure=above))
    query = sa.select(of(instance_uuid) if raised.rowcount else after_all(instance_uuid))
    tenure = max(int(session.execute(query).scalar_one()), seen + 1, 1)
    session.execute(sa.update(_T).where(_T.c.uuid == migration_uuid).values(tenure=tenure, updated_at=_T.c.updated_at))
    return tenure
