# SPDX-License-Identifier: Apache-2.0

"""What a sweep of a conductor has to read, found by one statement. In a cloud at rest that is nothing."""

from __future__ import annotations

import functools
from typing import NamedTuple

import sqlalchemy as sa

from migrator.db import cleanups, conductors, drains, migrations, services
from migrator.db.guests import definitions
from migrator.db.maintenances import store
from migrator.db.sql.engine import Engine
from migrator.db.sql.statements import Prepared


class Due(NamedTuple):
    """Which reads of a sweep return a row.

    :ivar orphans: :meth:`migrator.db.conductors.Takeovers.orphans`
    :ivar owned: :meth:`migrator.db.migrations.Migrations.owned_by`
    :ivar forced_down: :meth:`migrator.db.services.Services.forced_down`
    :ivar deferred: :meth:`migrator.db.cleanups.Cleanups.list`
    :ivar cleaned: :meth:`migrator.db.cleanups.Cleanups.cleaned_evacuations`
    :ivar outdated: :meth:`migrator.db.guests.definitions.Definitions.outdated`
    :ivar drains: :meth:`migrator.db.drains.Drains.owned_by`
    :ivar drain_orphans: :meth:`migrator.db.drains.Drains.has_orphans`
    :ivar maintenances: :meth:`migrator.db.maintenances.store.Maintenances.owned_by`
    :ivar maintenance_orphans: :meth:`migrator.db.maintenances.store.Maintenances.has_orphans`
    """

    orphans: bool
    owned: bool
    forced_down: bool
    deferred: bool
    cleaned: bool
    outdated: bool
    drains: bool
    drain_orphans: bool
    maintenances: bool
    maintenance_orphans: bool


def read(engine: Engine, owner: str, kept: float) -> Due:
    """Return what a sweep has to read now.

    :param owner: the conductor.
    :param kept: seconds after which a definition is outdated.
    """
    with engine.reader() as session:
        return Due(*map(bool, session.execute(_due(), {'me': owner, 'since': -kept}).one()))


@functools.cache
def _due() -> Prepared:
    reads = {
        'orphans': conductors.ORPHANS,
        'owned': migrations.OWNED_BY,
        'forced_down': services.FORCED_DOWN,
        'deferred': cleanups.query_of(),
        'cleaned': cleanups.CLEANED,
        'outdated': definitions.query_of_outdated(),
        'drains': drains.OWNED_BY,
        'drain_orphans': drains.ORPHANS,
        'maintenances': store.OWNED_BY,
        'maintenance_orphans': store.ORPHANS,
    }
    queries = [reads[name].statement.order_by(None).limit(None) for name in Due._fields]
    return Prepared(sa.select(*(query.exists() for query in queries)))
