# SPDX-License-Identifier: Apache-2.0

"""What drivers need to start guests whose host is dead."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import DBDeadlock, DBDuplicateEntry

from migrator.db import models
from migrator.db.sql import columns
from migrator.db.sql.engine import Engine, retried
from migrator.db.sql.statements import Prepared
from migrator.objects import COMPUTE_BINARY, Migration, base

#: Guest -> its tenure and its flavor.
Asked = dict[str, tuple[int, dict[str, Any]]]
_T, _D = models.INSTANCES, models.GUEST_DEFINITIONS
#: The greatest length of what a driver reports as immovable.
_LONGEST = 1000

_GUESTS: Any = sa.bindparam('guests', expanding=True)
_LOCK_GUESTS = Prepared(
    sa.select(_T.c.uuid, _T.c.tenure, _T.c.flavor).where(_T.c.uuid.in_(_GUESTS)).with_for_update(read=True)
)
_OF_HOST = (_D.c.instance_uuid.in_(_GUESTS), _D.c.host == sa.bindparam('at'))
_KEPT = Prepared(sa.select(_D.c.instance_uuid).where(*_OF_HOST))
_KEEP = Prepared(sa.update(_D).where(*_OF_HOST).values(stored_at=columns.later('since')))
_REPORTED = Prepared(
    sa.select(_D.c.instance_uuid, _D.c.immovable, _D.c.unstartable)
    .join(_T, sa.and_(_T.c.uuid == _D.c.instance_uuid, _T.c.host == _D.c.host))
    .where(_D.c.instance_uuid.in_(_GUESTS))
)
_DELETE = Prepared(sa.delete(_D).where(_D.c.instance_uuid.in_(_GUESTS)))
_INSERT = Prepared(sa.insert(_D).values(stored_at=columns.later('since')))


@dataclasses.dataclass(frozen=True)
class Reported:
    """What the host of a guest has reported about its moves, in words.

    :ivar immovable: what of it cannot be moved live; None: nothing.
    :ivar unstartable: why no other host would start it, so that it is neither evacuated nor moved cold; None: one may.
    """

    immovable: str | None = None
    unstartable: str | None = None


class Definitions:
    """The rows of ``guest_definitions``: what a driver needs to start a guest whose host is dead.

    Each is stored while the guest's host lives, and counts for that host only.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get(self, instance_uuid: str, host: str) -> dict[str, Any]:
        """Return what was last stored for a guest of a host; {} if nothing was."""
        query = sa.select(_D.c.definition).where(_D.c.instance_uuid == instance_uuid, _D.c.host == host)
        with self._engine.reader() as session:
            return dict(session.execute(query).scalar() or {})

    def reported(self, instance_uuids: Iterable[str]) -> dict[str, Reported]:
        """Return guest -> what keeps it where it is, as its host has reported.

        A guest of which no definition was reported is left out.
        """
        parameters = {'guests': [*instance_uuids]}
        if not parameters['guests']:
            return {}
        with self._engine.reader() as session:
            return {
                uuid: Reported(immovable, unstartable)
                for uuid, immovable, unstartable in session.execute(_REPORTED, parameters)
            }

    def outdated(self, seconds: float, limit: int) -> dict[str, Asked]:
        """Return host -> the guests there without a definition that was stored in the last ``seconds``.

        Only hosts that are up count. A guest with a task_state is left out: during a migration its definition may lack
        what its host has set aside. A guest that its host still has to give its old size is left out too.

        :param limit: the greatest number of guests.
        """
        found: dict[str, Asked] = {}
        with self._engine.reader() as session:
            parameters = {'since': -seconds, 'most': limit}
            for host, uuid, tenure, flavor in session.execute(query_of_outdated(), parameters):
                found.setdefault(host, {})[uuid] = tenure, flavor
        return found

    @retried
    def store(self, host: str, definitions: Mapping[str, Any], age: float, asked: Asked | None = None) -> None:
        """Replace the definitions of guests of a host.

        :param definitions: uuid -> definition; {}: the host has reported none. What it has reported before is kept.
        :param age: seconds by which a guest without a reported one counts as older, so that it is asked for sooner.
        :param asked: what :meth:`outdated` has returned. A guest that has changed since, such as its size, is left out.
        """
        try:
            with self._engine.writer() as session:
                if asked is not None:
                    rows = session.execute(_LOCK_GUESTS, {'guests': sorted(asked)})
                    definitions = {uuid: definitions[uuid] for uuid, *is_ in rows if tuple(is_) == asked[uuid]}
                missing = [uuid for uuid, one in definitions.items() if not one]
                known = set()
                if missing:
                    kept = {'guests': missing, 'at': host}
                    known = {uuid for (uuid,) in session.execute(_KEPT, kept)}
                    session.execute(_KEEP, {**kept, 'since': -age})
                new = sorted(definitions.keys() - known)
                session.execute(_DELETE, {'guests': new})
                for uuid in new:
                    one: dict[str, Any] = {'instance_uuid': uuid, 'host': host, 'definition': dict(definitions[uuid])}
                    one |= {name: _words(definitions[uuid], name) for name in ('immovable', 'unstartable')}
                    one['since'] = 0.0 if definitions[uuid] else -age
                    session.execute(_INSERT, one)
        except DBDuplicateEntry as error:
            # Another conductor has stored one of them since the deletion. Replace it, as after a deadlock.
            raise DBDeadlock(error) from error


def _words(definition: Mapping[str, Any], name: str) -> str | None:
    found = definition.get(name)
    return base.text(str(found), _LONGEST) if found else None


def keep(session: Any, migration: Migration) -> None:
    """Keep a guest's definition for its new host, until that host reports its own."""
    mine = (_D.c.instance_uuid == migration.instance_uuid, _D.c.host == migration.source_compute)
    long_ago = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    unknown = {'immovable': None, 'unstartable': None, 'stored_at': long_ago}
    session.execute(sa.update(_D).where(*mine).values(host=migration.dest_compute, **unknown))


def forget(session: Any, instance_uuid: str) -> None:
    """Delete a guest's definition, which has another flavor, until its host reports its own."""
    session.execute(sa.delete(_D).where(_D.c.instance_uuid == instance_uuid))


@functools.cache
def query_of_outdated() -> Prepared:
    """Return the query of :meth:`Definitions.outdated`."""
    services = models.SERVICES
    # A join would let SQLite begin with all services that are not forced down.
    is_up = sa.exists().where(
        services.c.host == _T.c.host,
        services.c.binary == COMPUTE_BINARY,
        services.c.forced_down.is_(False),
        services.c.last_seen_up.is_not(None),
        services.c.down_since.is_(None),
    )
    fresh = sa.exists().where(
        _D.c.instance_uuid == _T.c.uuid, _D.c.host == _T.c.host, _D.c.stored_at > columns.later('since')
    )
    late = models.CLEANUPS.c
    reverts = sa.exists().where(late.instance_uuid == _T.c.uuid, late.host == _T.c.host, late.step == 'revert_resize')
    query = sa.select(_T.c.host, _T.c.uuid, _T.c.tenure, _T.c.flavor)
    query = query.where(_T.c.task_state.is_(None), is_up, ~fresh, ~reverts)
    return Prepared(query.order_by(_T.c.id).limit(sa.bindparam('most', type_=sa.Integer())))
