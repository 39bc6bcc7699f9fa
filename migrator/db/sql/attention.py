# SPDX-License-Identifier: Apache-2.0

"""What may need an operator besides what is in progress: failed migrations, and what drains have left.

Each statement uses the named index, so that its cost does not grow with what has ended well.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence

import sqlalchemy as sa

from migrator.db import models
from migrator.db.sql import drain_rows
from migrator.db.sql.engine import Engine
from migrator.db.sql.statements import Prepared
from migrator.objects import Migration, MigrationStatus
from migrator.objects.drain import Drain, Member, MemberStatus

#: For how long a migration that has failed is looked for, and how much older its request may be.
WITHIN, BEFORE = datetime.timedelta(days=1), datetime.timedelta(days=30)

_S = MigrationStatus
_M, _I, _D, _P = models.MIGRATIONS, models.INSTANCES, drain_rows.DRAINS, drain_rows.MEMBERS
_FAILED = [_S.FAILED.value, _S.ERROR.value]
_ARRIVED = [_S.DONE.value, _S.FINISHED.value, _S.CONFIRMING.value, _S.CONFIRMED.value, _S.COMPLETED.value]
_LATER = _M.alias()
#: By ix_migrations_status, and ix_migrations_instance_uuid for the later ones of the same guest.
_FAILURES = Prepared(
    sa.select(_M)
    .join(_I, _I.c.uuid == _M.c.instance_uuid)
    .where(
        _M.c.status.in_(_FAILED),
        _M.c.created_at > sa.bindparam('requested', type_=_M.c.created_at.type),
        _M.c.updated_at > sa.bindparam('ended', type_=_M.c.updated_at.type),
        _M.c.abandon_requested_at.is_(None),
        _I.c.host == _M.c.source_compute,
        ~sa.exists().where(
            _LATER.c.instance_uuid == _M.c.instance_uuid,
            _LATER.c.id > _M.c.id,
            _LATER.c.status.in_([*_FAILED, *_ARRIVED]),
        ),
    )
    .order_by(_M.c.id.desc())
)
#: By ix_drains_host. Purged drains are gone, and few are kept of a host.
_NEWEST = Prepared(sa.select(_D).where(_D.c.id.in_(sa.select(sa.func.max(_D.c.id)).group_by(_D.c.host))))
#: By the primary key, and by that of the guest. A guest that has failed may have moved since without its drain. A guest
#: without a row is that of a stock Nova, whose drain writes a reason to a migration in progress only if it is stuck.
_LEFT = Prepared(
    sa.select(_P, _I.c.uuid.label('known'))
    .outerjoin(_I, _I.c.uuid == _P.c.instance_uuid)
    .where(
        _P.c.drain.in_(sa.bindparam('drains', expanding=True)),
        sa.or_(
            _P.c.status == MemberStatus.BLOCKED.value,
            sa.and_(_P.c.status == MemberStatus.FAILED.value, sa.or_(_I.c.host == _P.c.source, _I.c.uuid.is_(None))),
            sa.and_(_P.c.status == MemberStatus.MOVING.value, _P.c.reason.is_not(None), _I.c.uuid.is_(None)),
        ),
    )
    .order_by(_P.c.drain, _P.c.position, _P.c.instance_uuid)
)
#: By ix_instances_host.
_GUESTS = Prepared(
    sa.select(_I.c.host, sa.func.count().label('guests'))
    .where(_I.c.host.in_(sa.bindparam('hosts', expanding=True)))
    .group_by(_I.c.host)
)


_NEEDS = sa.select(_M.c.source_compute, _M.c.dest_compute, _M.c.status)
#: The few in progress by their unique index, and the evacuations that are done by ix_migrations_status.
_AT = Prepared(_NEEDS.where(models.IN_PROGRESS).union_all(_NEEDS.where(_M.c.status == _S.DONE.value)))


def migrations_at(engine: Engine, hosts: Sequence[str]) -> dict[str, list[str]]:
    """Return host -> the statuses of the migrations that need it.

    They are in progress, or are evacuations from it that are done, so that it has to clean up.
    """
    found: dict[str, list[str]] = {}
    if hosts:
        with engine.reader() as session:
            for row in session.execute(_AT, {}):
                needed = [row.source_compute] if row.status == _S.DONE else [row.source_compute, row.dest_compute]
                for host in {one for one in needed if one in hosts}:
                    found.setdefault(host, []).append(row.status)
    return found


def failures(engine: Engine, now: datetime.datetime) -> list[Migration]:
    """Return the newest failure of each guest that has not moved since, the newest first."""
    given = {'requested': now - BEFORE, 'ended': now - WITHIN}
    with engine.reader() as session:
        return [models.migration(row) for row in session.execute(_FAILURES, given)]


def newest_drains(engine: Engine) -> list[Drain]:
    """Return the newest drain of each host."""
    with engine.reader() as session:
        return [models.of_row(Drain, row) for row in session.execute(_NEWEST)]


def members_left(engine: Engine, uuids: Sequence[str], of_nova: Collection[str]) -> list[tuple[str, Member]]:
    """Return the members of some drains that are blocked, stuck or have failed, each with its drain.

    :param of_nova: the drains of a stock Nova, whose guests have no rows.
    """
    if not uuids:
        return []
    with engine.reader() as session:
        return [
            (row.drain, models.of_row(Member, row))
            for row in session.execute(_LEFT, {'drains': [*uuids]})
            if row.known is not None or row.status == MemberStatus.BLOCKED or row.drain in of_nova
        ]


def guests_at(engine: Engine, hosts: Sequence[str]) -> dict[str, int]:
    """Return host -> the number of its guests, for those of some hosts that have any."""
    if not hosts:
        return {}
    with engine.reader() as session:
        return {row.host: int(row.guests) for row in session.execute(_GUESTS, {'hosts': [*hosts]})}
