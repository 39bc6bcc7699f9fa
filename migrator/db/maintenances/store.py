# SPDX-License-Identifier: Apache-2.0

"""The rows of maintenances, of their turns and of their logs.

Every write names the ``log_seq`` that was read, and raises it. So the owner and the users change a maintenance in turn;
see :mod:`migrator.drain.maintenance.actions`.
"""

from __future__ import annotations

import builtins
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry

from migrator import exception
from migrator.db import models
from migrator.db.drains import Event
from migrator.db.maintenances.rows import LOG, MAINTENANCES, TURNS
from migrator.db.sql import columns
from migrator.db.sql.drain_rows import DRAINS
from migrator.db.sql.engine import Engine, retried
from migrator.db.sql.statements import Prepared
from migrator.drain.maintenance import errors
from migrator.drain.maintenance.turns import Maintenance, Turn, TurnStatus
from migrator.objects import COMPUTE_BINARY

_T, _H, _L = MAINTENANCES, TURNS, LOG
_IN_PROGRESS = _T.c.ended_at.is_(None)
_WITHOUT_OWNER = sa.or_(_T.c.owner.is_(None), ~models.alive(_T.c.owner))
_ONE = Prepared(sa.select(_T).where(_T.c.uuid == sa.bindparam('of')))
_TURNS_OF = Prepared(sa.select(_H).where(_H.c.maintenance == sa.bindparam('of')).order_by(_H.c.position, _H.c.host))
OWNED_BY = Prepared(sa.select(_T.c.uuid).where(_IN_PROGRESS, _T.c.owner == sa.bindparam('me')).order_by(_T.c.id))
ORPHANS = Prepared(sa.select(_T.c.id).where(_IN_PROGRESS, _WITHOUT_OWNER).limit(1))
_ADOPT = Prepared(
    sa.update(_T).where(_IN_PROGRESS, _WITHOUT_OWNER).values(owner=sa.bindparam('me'), epoch=_T.c.epoch + 1)
)
_DRAINED = Prepared(
    sa.select(DRAINS.c.host, DRAINS.c.uuid)
    .where(DRAINS.c.in_progress_host.in_(sa.bindparam('hosts', expanding=True)))
    .order_by(DRAINS.c.host)
)
_SERVICES = Prepared(
    sa.select(models.SERVICES.c.id)
    .where(
        models.SERVICES.c.binary == COMPUTE_BINARY, models.SERVICES.c.host.in_(sa.bindparam('hosts', expanding=True))
    )
    .order_by(models.SERVICES.c.id)
    .with_for_update()
)
_LISTING = models.Listing(
    _T,
    in_progress=_IN_PROGRESS,
    ended=_T.c.ended_at.is_not(None),
    host=_T.c.uuid.in_(sa.select(_H.c.maintenance).where(_H.c.host == sa.bindparam('host'))),
)
_CONCERNING = Prepared(
    sa.select(_H)
    .where(
        sa.or_(
            _H.c.in_progress_host.is_not(None), sa.and_(_H.c.status == sa.bindparam('failed'), _H.c.is_out.is_(True))
        )
    )
    .order_by(_H.c.position, _H.c.host)
)
_NOW = Prepared(sa.select(columns.now()))


class Maintenances:
    """The rows of ``maintenances``, ``maintenance_turns`` and ``maintenance_log``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @retried
    def accept(self, maintenance: Maintenance, turns: Sequence[Turn]) -> None:
        """Insert a maintenance with its turns, in one transaction before the 202.

        :raises .errors.HostInMaintenance: a host has a maintenance in progress.
        :raises migrator.exception.DrainInProgress: a host has a drain in progress.
        """
        hosts = [turn.host for turn in turns]
        try:
            with self._engine.writer() as session:
                self._refuse_drained(session, hosts)
                session.execute(sa.insert(_T).values(**models.values_of(maintenance) | {'log_seq': 1}))
                first = ('status', {'status': maintenance.status, 'by': maintenance.requested_by})
                self._append(session, maintenance, [first])
                of = {'maintenance': maintenance.uuid}
                rows = [models.values_of(turn) | of | {'in_progress_host': turn.host} for turn in turns]
                session.execute(sa.insert(_H), rows)
        except DBDuplicateEntry:
            raise self._in_maintenance(hosts) from None

    @staticmethod
    def _refuse_drained(session: Any, hosts: Sequence[str]) -> None:
        """Raise if a host has a drain in progress, which no other transaction begins until this one has ended."""
        # As a drain locks it before it looks for a maintenance.
        session.execute(_SERVICES, {'hosts': [*hosts]}).all()
        drained = session.execute(_DRAINED, {'hosts': [*hosts]}).first()
        if drained is not None:
            raise exception.DrainInProgress(host=drained.host, drain=drained.uuid)

    def _in_maintenance(self, hosts: Sequence[str]) -> errors.HostInMaintenance:
        held = self.holders(hosts)
        host = min(held, default=hosts[0])
        # It may have ended by now, which a further attempt shows.
        return errors.HostInMaintenance(host=host, maintenance=held.get(host, 'unknown'))

    def check_free(self, hosts: Sequence[str]) -> None:
        """Raise if a host has a maintenance or a drain in progress, as :meth:`accept` would."""
        if self.holders(hosts):
            raise self._in_maintenance(hosts)
        with self._engine.reader() as session:
            drained = session.execute(_DRAINED, {'hosts': [*hosts]}).first()
        if drained is not None:
            raise exception.DrainInProgress(host=drained.host, drain=drained.uuid)

    # --- readers -----------------------------------------------------------------------------------------------------

    def holders(self, hosts: Sequence[str]) -> dict[str, str]:
        """Return host -> its maintenance in progress, of those of some hosts that have one."""
        query = sa.select(_H.c.host, _H.c.maintenance).where(_H.c.in_progress_host.in_([*hosts]))
        with self._engine.reader() as session:
            return {row.host: row.maintenance for row in session.execute(query)}

    def out(self) -> set[str]:
        """Return the hosts that any maintenance in progress has out of service."""
        query = sa.select(_H.c.host).where(_H.c.in_progress_host.is_not(None), _H.c.is_out.is_(True))
        with self._engine.reader() as session:
            return set(session.execute(query).scalars())

    def concerning(self) -> builtins.list[tuple[Maintenance, Turn]]:
        """Return the hosts that are in a maintenance in progress, or have failed and are out of service.

        Each comes with its maintenance, the oldest first.
        """
        with self._engine.reader() as session:
            found = session.execute(_CONCERNING, {'failed': TurnStatus.FAILED.value}).all()
            uuids = {row.maintenance for row in found}
            query = sa.select(_T).where(_T.c.uuid.in_(uuids)).order_by(_T.c.id)
            of = {row.uuid: models.of_row(Maintenance, row) for row in session.execute(query)} if uuids else {}
        turns = [(row.maintenance, models.of_row(Turn, row)) for row in found]
        return [(one, turn) for uuid, one in of.items() for held_by, turn in turns if held_by == uuid]

    def get(self, uuid: str) -> Maintenance:
        """Return one maintenance.

        :raises .errors.MaintenanceNotFound: no maintenance has this uuid.
        """
        with self._engine.reader() as session:
            row = session.execute(_ONE, {'of': uuid}).one_or_none()
        if row is None:
            raise errors.MaintenanceNotFound(maintenance=uuid)
        return models.of_row(Maintenance, row)

    def list(
        self,
        host: str | None = None,
        in_progress: bool | None = None,
        limit: int | None = None,
        marker: str | None = None,
    ) -> builtins.list[Maintenance]:
        """Return maintenances, the newest first.

        :param host: only those that have this host.
        :param marker: the uuid of the last one of the previous page.
        :raises migrator.exception.MarkerNotFound: no maintenance has the marker's uuid.
        """
        wanted: dict[str, Any] = {} if host is None else {'host': host}
        wanted |= {} if in_progress is None else {'in_progress' if in_progress else 'ended': True}
        with self._engine.reader() as session:
            return [models.of_row(Maintenance, row) for row in _LISTING.page(session, wanted, limit, marker, None)]

    def counts(self, uuids: Sequence[str]) -> dict[str, dict[str, int]]:
        """Return maintenance -> status -> the number of its hosts with it, if there are any."""
        query = sa.select(_H.c.maintenance, _H.c.status, sa.func.count()).where(_H.c.maintenance.in_([*uuids]))
        found: dict[str, dict[str, int]] = {uuid: {} for uuid in uuids}
        with self._engine.reader() as session:
            for uuid, status, number in session.execute(query.group_by(_H.c.maintenance, _H.c.status)):
                found[uuid][status] = int(number)
        return found

    def read_turns(self, uuid: str) -> builtins.list[Turn]:
        """Return the turns of a maintenance, by position."""
        with self._engine.reader() as session:
            return [models.of_row(Turn, row) for row in session.execute(_TURNS_OF, {'of': uuid})]

    def read_log(self, uuid: str, after: int = 0, limit: int | None = None) -> builtins.list[Event]:
        """Return the log of a maintenance, the oldest event first.

        :param after: only later events than the one with this ``seq``.
        """
        query = sa.select(_L).where(_L.c.maintenance == uuid, _L.c.seq > after).order_by(_L.c.seq).limit(limit)
        with self._engine.reader() as session:
            return [Event(row.seq, row.at, row.kind, row.payload) for row in session.execute(query)]

    def now(self) -> datetime.datetime:
        """Return the database's time."""
        with self._engine.reader() as session:
            return columns.aware(session.execute(_NOW).scalar_one())

    # --- old ones ----------------------------------------------------------------------------------------------------

    def count_ended(self, before: datetime.datetime) -> int:
        """Return how many maintenances ended before a time."""
        with self._engine.reader() as session:
            return int(session.execute(sa.select(sa.func.count()).where(_T.c.ended_at < before)).scalar_one())

    @retried
    def purge(self, before: datetime.datetime, count: int) -> int:
        """Delete the oldest maintenances that ended before a time, in one transaction.

        :param count: the greatest number of maintenances.
        :returns: the number of deleted maintenances.
        """
        oldest = sa.select(_T.c.uuid).where(_T.c.ended_at < before).order_by(_T.c.id).limit(count).with_for_update()
        with self._engine.writer() as session:
            uuids = builtins.list(session.execute(oldest).scalars())
            for of, table in ((_L.c.maintenance, _L), (_H.c.maintenance, _H), (_T.c.uuid, _T)):
                session.execute(sa.delete(table).where(of.in_(uuids)))
        return len(uuids)

    # --- the owner ---------------------------------------------------------------------------------------------------

    def owned_by(self, owner: str) -> builtins.list[str]:
        """Return the uuids of an owner's maintenances in progress, the oldest first."""
        with self._engine.reader() as session:
            return builtins.list(session.execute(OWNED_BY, {'me': owner}).scalars())

    def has_orphans(self) -> bool:
        """Return whether a maintenance in progress has no living owner."""
        with self._engine.reader() as session:
            return session.execute(ORPHANS).scalar() is not None

    @retried
    def adopt(self, owner: str) -> int:
        """Make a conductor the owner of the maintenances in progress without a living owner.

        The epoch of each rises by one.

        :returns: their number.
        """
        with self._engine.writer() as session:
            return int(session.execute(_ADOPT, {'me': owner}).rowcount)

    @retried
    def write(
        self,
        maintenance: Maintenance,
        fields: Mapping[str, Any],
        turns: Sequence[Turn],
        events: Sequence[tuple[str, Mapping[str, Any]]],
    ) -> Maintenance:
        """Write columns of a maintenance, changed turns, and events, in one transaction.

        :raises .errors.NotOwnerOfMaintenance: the maintenance has another epoch or a newer event than the one that was
            read. Nothing was written.
        :raises .errors.HostInMaintenance: it would go on, and another maintenance has the host of a turn by now.
        :raises migrator.exception.DrainInProgress: it would go on, and that host has a drain in progress.
        """
        # A write without an event, of a new time say, counts as one: what was read is old by then.
        values = dict(fields) | {'log_seq': maintenance.log_seq + max(1, len(events))}
        as_read = (_T.c.epoch == maintenance.epoch, _T.c.log_seq == maintenance.log_seq)
        new = maintenance.replace(**values)
        try:
            with self._engine.writer() as session:
                # The hosts of its other turns may be in another maintenance by now.
                again = [turn.host for turn in turns if not turn.ended] if maintenance.ended and not new.ended else []
                if again:
                    # First of all, since a drain locks the service before the turn.
                    self._refuse_drained(session, again)
                change = sa.update(_T).where(_T.c.uuid == maintenance.uuid, *as_read).values(**values)
                if not session.execute(change).rowcount:
                    raise errors.NotOwnerOfMaintenance(maintenance=maintenance.uuid, epoch=maintenance.epoch)
                self._append(session, maintenance, events)
                mine = _H.c.maintenance == maintenance.uuid
                for turn in turns:
                    session.execute(sa.update(_H).where(mine, _H.c.host == turn.host).values(**models.values_of(turn)))
                if new.ended and not maintenance.ended:
                    session.execute(sa.update(_H).where(mine).values(in_progress_host=None))
                elif again:
                    session.execute(sa.update(_H).where(mine, _H.c.host.in_(again)).values(in_progress_host=_H.c.host))
        except DBDuplicateEntry:
            raise self._in_maintenance([turn.host for turn in turns]) from None
        return new

    @staticmethod
    def _append(session: Any, maintenance: Maintenance, events: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        rows = [
            {
                'maintenance': maintenance.uuid,
                'seq': maintenance.log_seq + number,
                'kind': kind,
                'payload': dict(payload),
            }
            for number, (kind, payload) in enumerate(events, 1)
        ]
        if rows:
            session.execute(sa.insert(_L), rows)
