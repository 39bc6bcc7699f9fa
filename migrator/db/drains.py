# SPDX-License-Identifier: Apache-2.0

"""Drains, their members and their logs.

The API and ``migrator-manage`` accept drains, and write the requests of users. The owner writes everything else.
"""

from __future__ import annotations

import builtins
import dataclasses
import datetime
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry

from migrator import exception
from migrator.db import models
from migrator.db.maintenances import turns
from migrator.db.sql import columns, drain_rows
from migrator.db.sql.drain_rows import DRAINS, LOG, MEMBERS, MEMBERS_OF, RUNS
from migrator.db.sql.engine import Engine, retried
from migrator.db.sql.statements import Prepared
from migrator.drain.calibration import Prediction
from migrator.drain.maintenance import errors
from migrator.drain.maintenance.turns import TurnStatus
from migrator.objects import COMPUTE_BINARY, base
from migrator.objects.drain import (
    DRAIN_ENDS,
    NOT_MOVED,
    Direction,
    Drain,
    DrainStatus,
    Hints,
    Member,
    MemberStatus,
    check_drain_move,
    check_priorities,
    disabled_reason,
)

_T, _P, _L, _S, _I = DRAINS, MEMBERS, LOG, models.SERVICES, models.INSTANCES
_ENDS = [status.value for status in DRAIN_ENDS]
#: SQLite does not use the index for ``IS NOT NULL``.
_IN_PROGRESS = _T.c.in_progress_host > ''
_WITHOUT_OWNER = sa.or_(_T.c.owner.is_(None), ~models.alive(_T.c.owner))
OWNED_BY = Prepared(sa.select(_T.c.uuid).where(_IN_PROGRESS, _T.c.owner == sa.bindparam('me')).order_by(_T.c.id))
ORPHANS = Prepared(sa.select(_T.c.id).where(_IN_PROGRESS, _WITHOUT_OWNER).limit(1))
_ONE = Prepared(sa.select(_T).where(_T.c.uuid == sa.bindparam('of')))
_HINTS = Prepared(
    sa.select(_T.c.destinations, _T.c.planned, _P.c.tried)
    .where(_T.c.uuid == sa.bindparam('of'))
    .outerjoin(_P, sa.and_(_P.c.drain == _T.c.uuid, _P.c.instance_uuid == sa.bindparam('guest')))
)
#: As :func:`guard` knows it.
_MINE = sa.and_(
    *(_T.c.uuid == sa.bindparam('of'), _T.c.owner == sa.bindparam('me')),
    *(_T.c.epoch == sa.bindparam('my_epoch'), _T.c.log_seq == sa.bindparam('my_seq')),
)
_LISTING = models.Listing(_T, in_progress=_IN_PROGRESS, ended=_T.c.in_progress_host.is_(None))
_NOW = Prepared(sa.select(columns.now()))
_INSERT_EVENT, _INSERT_MEMBER = Prepared(sa.insert(_L)), Prepared(sa.insert(_P))
_OF_DRAIN = _P.c.drain == sa.bindparam('of')
_UPDATE_MEMBER = Prepared(sa.update(_P).where(_OF_DRAIN, _P.c.instance_uuid == sa.bindparam('whom')))
_DELETE_MEMBERS = Prepared(sa.delete(_P).where(_OF_DRAIN, _P.c.instance_uuid.in_(sa.bindparam('whom', expanding=True))))
_ADOPT = sa.update(_T).where(_IN_PROGRESS, _WITHOUT_OWNER)
_ADOPT = _ADOPT.values(owner=sa.bindparam('me'), epoch=_T.c.epoch + 1, emptied_at=None)
_ADOPT_ALL, _ADOPT_ONE = Prepared(_ADOPT), Prepared(_ADOPT.where(_T.c.uuid == sa.bindparam('of')))
#: The ends of members that a restore has not brought back.
_NOT_BACK = (MemberStatus.FAILED, MemberStatus.BLOCKED)


@dataclasses.dataclass(frozen=True)
class Event:
    """One row of the log of a drain: a new status of the drain or of a member, or a request of a user."""

    seq: int
    at: datetime.datetime
    kind: str
    payload: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Known:
    """What a control plane knows of the hosts and guests that a new drain names.

    :ivar guests: the uuids of guests of the host to empty.
    """

    hosts: Collection[str]
    guests: Collection[str] = ()

    @classmethod
    def named_by(cls, drain: Drain) -> Known:
        """Return all that a drain names, which leaves the check of that to its engine."""
        return cls([drain.host, *(drain.destinations or ())], [*(drain.priorities or ())])


class Drains:
    """The rows of ``drains``, ``drain_members`` and ``drain_log``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # --- the API's part ----------------------------------------------------------------------------------------------

    def check(self, drain: Drain, known: Known | None = None) -> None:
        """Raise unless the hosts, the order and the deadline of a new drain are valid.

        :param known: the hosts and guests of another control plane; None: those in this database.
        :raises migrator.exception.Invalid: a host is unknown, the host itself is among the destinations, priorities of
            guests do not go with the order or name none of its guests, or the deadline has passed.
        """
        names = [drain.host, *(drain.destinations or ())]
        if known is None:
            with self._engine.reader() as session:
                known = _known(session, drain)
        for host in names:
            if host not in known.hosts:
                raise exception.Invalid(base.no_host(host, known.hosts).message)
        if drain.host in names[1:]:
            raise exception.Invalid(f'Invalid input for destinations: {drain.host} is the host to empty. Leave it out.')
        check_priorities(drain, known.guests)
        if drain.deadline is not None and drain.deadline <= self.now():
            shown = drain.deadline.isoformat()
            raise exception.Invalid(f'Invalid input for deadline: {shown} has passed. Give a later time.')

    @retried
    def accept(
        self,
        drain: Drain,
        has_service: bool = True,
        events: Sequence[tuple[str, Mapping[str, Any]]] = (),
        moved: Sequence[Member] = (),
        turn: tuple[str, str] | None = None,
    ) -> None:
        """Insert a drain and disable its host as a destination, in one transaction before the 202.

        :param has_service: whether the host has a compute service here. The engine of the drain disables any other
            host when the drain begins.
        :param events: the first entries of its log, after that of its status.
        :param moved: the guests that an earlier drain has moved, which a restore of this one brings back too.
        :param turn: the maintenance of a host, and the host, whose turn is ``draining`` by this drain.
        :raises migrator.exception.DrainInProgress: the host has a drain in progress.
        :raises migrator.exception.ComputeHostNotFound: the host has no compute service.
        :raises migrator.exception.Conflict: the host is in a maintenance, and not ``draining`` by this drain.
        """
        values = models.values_of(drain)
        here = (_S.c.host == drain.host, _S.c.binary == COMPUTE_BINARY)
        try:
            with self._engine.writer() as session:
                disables = False
                if has_service:
                    held = turns.holder_of(drain.host).label('held_by')
                    query = sa.select(_S.c.disabled, _S.c.disabled_reason, held).where(*here).with_for_update(of=_S)
                    known = session.execute(query).one_or_none()
                    if known is None:
                        raise exception.ComputeHostNotFound(host=drain.host)
                    if turn is None and known.held_by is not None:
                        raise errors.HostInMaintenance(host=drain.host, maintenance=known.held_by)
                    disables = not known.disabled or self._replace_ended(session, drain.host, known.disabled_reason)
                if turn is not None or not has_service:
                    # After the service, as in a restore.
                    turns.refuse_unless_due(session, drain, turn)
                if disables:
                    disabled = {'disabled': True, 'disabled_reason': disabled_reason(drain)}
                    session.execute(sa.update(_S).where(*here).values(**disabled))
                if drain.retry_of is not None:
                    self._refuse_retried(session, drain.host, drain.retry_of, 'retry')
                first = [('status', {'status': drain.status, 'by': drain.requested_by}), *events]
                first += [('member', one.event()) for one in moved]
                values |= {'has_disabled_host': disables, 'in_progress_host': drain.host, 'log_seq': len(first)}
                session.execute(sa.insert(_T).values(**values))
                self._append(session, drain, first)
                rows = [models.values_of(one.replace(position=place)) for place, one in enumerate(moved, 1)]
                if rows:
                    session.execute(_INSERT_MEMBER, [row | {'drain': drain.uuid} for row in rows])
        except DBDuplicateEntry:
            raise self._in_progress(drain.host) from None

    @staticmethod
    def _replace_ended(session: Any, host: str, reason: str | None) -> bool:
        """Return whether an ended drain has disabled a host for this reason, and take that over from it."""
        ended = (_T.c.host == host, _T.c.in_progress_host.is_(None), _T.c.has_disabled_host.is_(True))
        for row in session.execute(sa.select(_T).where(*ended)).all():
            if disabled_reason(models.of_row(Drain, row)) == reason:
                session.execute(sa.update(_T).where(_T.c.uuid == row.uuid).values(has_disabled_host=False))
                return True
        return False

    @staticmethod
    def _refuse_retried(session: Any, host: str, uuid: str, action: str) -> None:
        """Raise if a drain has a retry, which has its guests."""
        newer = session.execute(sa.select(_T.c.uuid).where(_T.c.host == host, _T.c.retry_of == uuid)).scalar()
        if newer is not None:
            do = f'drain {newer} is its retry, and has its guests: {action} that one'
            raise exception.InvalidDrainState(drain=uuid, status='retried', action=action, do=do)

    def _take_over_disabling(self, session: Any, drain: Drain, reason: str | None) -> bool:
        """Return whether a drain of its host has disabled the host, and let this one be the one that has.

        :param reason: why the host is disabled.
        """
        if not self._replace_ended(session, drain.host, reason):
            return drain.has_disabled_host
        here = (_S.c.host == drain.host, _S.c.binary == COMPUTE_BINARY)
        session.execute(sa.update(_S).where(*here).values(disabled_reason=disabled_reason(drain)))
        return True

    def _in_progress(self, host: str) -> exception.DrainInProgress:
        with self._engine.reader() as session:
            uuid = session.execute(sa.select(_T.c.uuid).where(_T.c.in_progress_host == host)).scalar()
        return exception.DrainInProgress(host=host, drain=uuid or 'which may have ended by now (try again)')

    @retried
    def request(
        self,
        uuid: str,
        action: str,
        by: str | None,
        abort_running: bool = False,
        turn: tuple[str, str] | None = None,
    ) -> None:
        """Write the request of a user: ``pause``, ``resume``, ``cancel`` or ``restore``.

        :param by: the user.
        :param abort_running: whether a cancel also aborts the migrations that run.
        :param turn: of a restore: the maintenance of a host, and the host, whose turn is ``returning``.
        :raises migrator.exception.DrainNotFound: no drain has this uuid.
        :raises migrator.exception.InvalidDrainState: the drain has ended. For a restore: it has not ended, or no guest
            is left to bring back.
        :raises migrator.exception.DrainInProgress: the host has another drain in progress.
        :raises migrator.exception.Conflict: of a restore: the host is in a maintenance.
        """
        host = ''
        try:
            with self._engine.writer() as session:
                # As in accept: first the service of the host, then its drains.
                known = sa.select(_T.c.host).where(_T.c.uuid == uuid).scalar_subquery()
                here = (_S.c.binary == COMPUTE_BINARY, _S.c.host == known)
                reason = session.execute(sa.select(_S.c.disabled_reason).where(*here).with_for_update()).scalar()
                row = session.execute(sa.select(_T).where(_T.c.uuid == uuid).with_for_update()).one_or_none()
                if row is None:
                    raise exception.DrainNotFound(drain=uuid)
                drain, host = models.of_row(Drain, row), row.host
                if drain.ended != (action == 'restore'):
                    needed = drain.how_it_ends if action == 'restore' else 'it has ended'
                    raise exception.InvalidDrainState(drain=uuid, status=drain.shown_status, action=action, do=needed)
                values: dict[str, Any] = {}
                if action == 'cancel':
                    running = drain.cancel_running or abort_running
                    values = {'cancel_requested_at': columns.now(), 'cancel_requested_by': by}
                    values['cancel_running'] = running
                elif action == 'restore':
                    self._refuse_retried(session, drain.host, drain.uuid, 'restore')
                    turns.refuse_unless_due(session, drain, turn, TurnStatus.RETURNING)
                    check_drain_move(drain, DrainStatus.ACCEPTED)
                    disables = self._take_over_disabling(session, drain, reason)
                    drain_rows.keep_run(session, drain)
                    self._begin_restore(session, drain, enables=disables)
                    values = {'in_progress_host': drain.host, 'owner': None, 'direction': Direction.BACK.value}
                    values |= {'status': DrainStatus.ACCEPTED.value, 'cancel_requested_at': None, 'paused': False}
                    values |= {'cancel_running': False, 'message': None, 'ended_at': None, 'deadline': None}
                    values |= {'cancel_requested_by': None, 'has_disabled_host': disables}
                    values |= {'began_at': None, 'checks': []}
                else:
                    values = {'paused': action == 'pause'}
                values['log_seq'] = drain.log_seq + 1
                session.execute(sa.update(_T).where(_T.c.uuid == uuid).values(**values))
                self._append(session, drain, [('request', {'action': action, 'by': by})])
        except DBDuplicateEntry:
            raise self._in_progress(host) from None

    @staticmethod
    def _begin_restore(session: Any, drain: Drain, enables: bool) -> None:
        """Make the members that the drain has moved wait for a migration back. The others are ``gone``.

        :param enables: whether the restore has to enable the host, also if it brings no guest back.
        """
        mine = _P.c.drain == drain.uuid
        waits = {'status': MemberStatus.WAITING.value, 'attempts': 0, 'tried': [], 'mark': None, 'reason': None}
        waits |= {'began_at': None, 'ended_at': None, 'not_before': None, 'remedy': None}
        if drain.direction == Direction.BACK:
            # An earlier restore has not brought these back. They are still where the drain has put them.
            again = _P.c.status.in_([status.value for status in (MemberStatus.CANCELLED, *_NOT_BACK)])
            if session.execute(sa.update(_P).where(mine, again).values(**waits)).rowcount:
                return
        there = sa.and_(_P.c.status == MemberStatus.MOVED, _P.c.destination != drain.host)
        if not enables and session.execute(sa.select(sa.func.count()).where(mine, there)).scalar_one() == 0:
            raise exception.InvalidDrainState(
                drain=drain.uuid,
                status=drain.status,
                action='restore',
                do='it has moved no guest that a restore can still bring back',
            )
        session.execute(
            sa.update(_P)
            .where(mine, sa.not_(there))
            .values(status=MemberStatus.GONE.value, reason=NOT_MOVED, remedy=None)
        )
        # MariaDB assigns in the order of the columns: the source has the destination before that is cleared.
        waits |= {'source': _P.c.destination, 'destination': None}
        session.execute(sa.update(_P).where(mine, _P.c.status == MemberStatus.MOVED).values(**waits))

    # --- readers -----------------------------------------------------------------------------------------------------

    def get(self, uuid: str) -> Drain:
        """Return one drain.

        :raises migrator.exception.DrainNotFound: no drain has this uuid.
        """
        with self._engine.reader() as session:
            row = session.execute(_ONE, {'of': uuid}).one_or_none()
            if row is None:
                raise exception.DrainNotFound(drain=uuid)
            return models.of_row(Drain, row)

    def list(
        self,
        host: str | None = None,
        in_progress: bool | None = None,
        limit: int | None = None,
        marker: str | None = None,
    ) -> builtins.list[Drain]:
        """Return drains, the newest first.

        :param marker: the uuid of the last drain of the previous page.
        :raises migrator.exception.MarkerNotFound: no drain has the marker's uuid.
        """
        wanted: dict[str, Any] = {} if host is None else {'host': host}
        wanted |= {} if in_progress is None else {'in_progress' if in_progress else 'ended': True}
        with self._engine.reader() as session:
            return [models.of_row(Drain, row) for row in _LISTING.page(session, wanted, limit, marker, None)]

    def counts(self, uuids: Sequence[str]) -> dict[str, dict[str, int]]:
        """Return drain -> status -> the number of members with it."""
        query = sa.select(_P.c.drain, _P.c.status, sa.func.count()).where(_P.c.drain.in_([*uuids]))
        found: dict[str, dict[str, int]] = {
            uuid: dict.fromkeys((status.value for status in MemberStatus), 0) for uuid in uuids
        }
        with self._engine.reader() as session:
            for uuid, status, number in session.execute(query.group_by(_P.c.drain, _P.c.status)):
                found[uuid][status] = int(number)
        return found

    def read_members(self, uuid: str) -> builtins.list[Member]:
        """Return the members of a drain, by position."""
        with self._engine.reader() as session:
            return [models.of_row(Member, row) for row in session.execute(MEMBERS_OF, {'of': uuid})]

    def read_log(self, uuid: str, after: int = 0, limit: int | None = None) -> builtins.list[Event]:
        """Return the log of a drain, the oldest event first.

        :param after: only later events than the one with this ``seq``.
        """
        query = sa.select(_L).where(_L.c.drain == uuid, _L.c.seq > after).order_by(_L.c.seq).limit(limit)
        with self._engine.reader() as session:
            return [Event(row.seq, row.at, row.kind, row.payload) for row in session.execute(query)]

    def predictions(self, drains: int) -> builtins.dict[str, builtins.list[Prediction]]:
        """Return drain -> the expected ends that were recorded, with the times at which the guests have moved.

        :param drains: how many of the newest drains are read.
        """
        newest = sa.select(_T.c.uuid).order_by(_T.c.created_at.desc(), _T.c.id.desc()).limit(drains)
        found: dict[str, builtins.list[Prediction]] = {}
        with self._engine.reader() as session:
            for uuid in session.execute(newest).scalars().all():
                open_: dict[str, Any] = {}
                query = sa.select(_L).where(_L.c.drain == uuid, _L.c.kind == 'member').order_by(_L.c.seq)
                for row in session.execute(query):
                    guest, status = row.payload['instance'], row.payload['status']
                    if row.payload.get('expected_end'):
                        open_[guest] = row
                    elif status == MemberStatus.MOVED and guest in open_:
                        made = open_.pop(guest)
                        times = [made.payload['expected_end']['p50'], made.payload['expected_end']['p80']]
                        times.append(row.payload.get('ended_at') or row.at.isoformat())
                        p50, p80, ended = map(datetime.datetime.fromisoformat, times)
                        found.setdefault(uuid, []).append(Prediction(made.at, p50, p80, ended))
                    elif status != MemberStatus.MOVING:  # it was tried again, or has ended otherwise
                        open_.pop(guest, None)
        return found

    def hints(self, uuid: str, instance_uuid: str) -> Hints:
        """Return the hosts that a drain allows or avoids as the destination of one of its guests."""
        with self._engine.reader() as session:
            row = session.execute(_HINTS, {'of': uuid, 'guest': instance_uuid}).one_or_none()
            if row is None:
                return Hints(None, ())
            planned, tried = (row.planned or {}).get(instance_uuid), row.tried or ()
            waiting = [] if row.planned is None else turns.waiting_beside(session, uuid)
        later = [*(host for host in waiting if host not in tried and host != planned), *tried]
        return Hints(row.destinations, later, None if planned in tried else planned)

    def now(self) -> datetime.datetime:
        """Return the database's time."""
        with self._engine.reader() as session:
            return columns.aware(session.execute(_NOW).scalar_one())

    # --- the purge ---------------------------------------------------------------------------------------------------

    def count_ended(self, before: datetime.datetime) -> int:
        """Return how many drains ended before a time."""
        with self._engine.reader() as session:
            return int(session.execute(sa.select(sa.func.count()).where(*_ended(before))).scalar_one())

    @retried
    def purge(self, before: datetime.datetime, count: int) -> int:
        """Delete the oldest drains that ended before a time, their members and their logs, in one transaction.

        :param count: the greatest number of drains.
        :returns: the number of deleted drains.
        """
        oldest = sa.select(_T.c.uuid).where(*_ended(before)).order_by(_T.c.id).limit(count).with_for_update()
        with self._engine.writer() as session:
            uuids = builtins.list(session.execute(oldest).scalars())
            for which in (RUNS.c.drain.in_(uuids), _L.c.drain.in_(uuids), _P.c.drain.in_(uuids), _T.c.uuid.in_(uuids)):
                session.execute(sa.delete(which.left.table).where(which))
        return len(uuids)

    # --- the owner's part --------------------------------------------------------------------------------------------

    def owned_by(self, owner: str) -> builtins.list[str]:
        """Return the uuids of an owner's drains in progress, the oldest first."""
        with self._engine.reader() as session:
            return builtins.list(session.execute(OWNED_BY, {'me': owner}).scalars())

    def has_orphans(self) -> bool:
        """Return whether a drain in progress has no living owner."""
        with self._engine.reader() as session:
            return session.execute(ORPHANS).scalar() is not None

    @retried
    def adopt(self, owner: str, uuid: str | None = None) -> int:
        """Make a conductor the owner of the drains in progress without a living owner. Return their number.

        The epoch of each drain rises by one.

        :param uuid: only this drain.
        """
        with self._engine.writer() as session:
            if uuid is None:
                return int(session.execute(_ADOPT_ALL, {'me': owner}).rowcount)
            return int(session.execute(_ADOPT_ONE, {'me': owner, 'of': uuid}).rowcount)

    @retried
    def write(
        self,
        drain: Drain,
        fields: Mapping[str, Any],
        members: Sequence[Member],
        events: Sequence[tuple[str, Mapping[str, Any]]],
    ) -> Drain:
        """Write columns of a drain, changed or new members, and events, in one transaction as the owner.

        :raises migrator.exception.NotOwnerOfDrain: another conductor owns it, or a user has requested a change since it
            was read. Nothing was written.
        """
        values = dict(fields) | {'log_seq': drain.log_seq + len(events)}
        if fields.get('status') in _ENDS:
            values['in_progress_host'] = None
        with self._engine.writer() as session:
            guard(session, drain, values)
            self._append(session, drain, events)
            rows = [models.values_of(member) for member in members]
            if len(rows) == 1:
                which = {'of': drain.uuid, 'whom': rows[0]['instance_uuid']}
                rows = [] if session.execute(_UPDATE_MEMBER, rows[0] | which).rowcount else rows
            elif rows:
                which = {'of': drain.uuid, 'whom': [row['instance_uuid'] for row in rows]}
                session.execute(_DELETE_MEMBERS, which)
            if rows:
                session.execute(_INSERT_MEMBER, [row | {'drain': drain.uuid} for row in rows])
        values.pop('in_progress_host', None)
        return drain.replace(**values)

    @staticmethod
    def _append(session: Any, drain: Drain, events: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        rows = [
            {
                'drain': drain.uuid,
                'seq': drain.log_seq + number,
                'conductor': drain.owner,
                'kind': kind,
                'payload': dict(payload),
            }
            for number, (kind, payload) in enumerate(events, 1)
        ]
        if rows:
            session.execute(_INSERT_EVENT, rows)

    @retried
    def enable_host(self, drain: Drain) -> bool:
        """Enable a drain's host unless it is disabled for another reason, and return whether it is enabled."""
        here, ours = (_S.c.host == drain.host, _S.c.binary == COMPUTE_BINARY), _S.c.disabled_reason
        with self._engine.writer() as session:
            change = sa.update(_S).where(*here, ours == disabled_reason(drain))
            session.execute(change.values(disabled=False, disabled_reason=None))
            return session.execute(sa.select(_S.c.disabled).where(*here)).scalar() is False


def _known(session: Any, drain: Drain) -> Known:
    query = sa.select(_S.c.host).where(_S.c.binary == COMPUTE_BINARY)
    guests = sa.select(_I.c.uuid).where(_I.c.host == drain.host, _I.c.uuid.in_([*(drain.priorities or ())]))
    found = set(session.execute(query).scalars())
    return Known(found, set(session.execute(guests).scalars()) if drain.priorities else ())


def guard(session: Any, drain: Drain, values: Mapping[str, Any] | None = None) -> None:
    """Write columns of a drain in an open transaction, if its owner, epoch and log are as read.

    A drain without an owner is adopted first.

    :raises migrator.exception.NotOwnerOfDrain: another conductor owns it, or a user has requested a change since.
    """
    written = dict(values or {'epoch': drain.epoch})
    set_to_now = columns.set_to_now(written)
    given = {name: value for name, value in written.items() if name not in set_to_now}
    given |= {'of': drain.uuid, 'me': drain.owner, 'my_epoch': drain.epoch, 'my_seq': drain.log_seq}
    if not session.execute(_guarded(*set_to_now), given).rowcount:
        raise exception.NotOwnerOfDrain(drain=drain.uuid, owner=drain.owner, epoch=drain.epoch)


@functools.cache
def _guarded(*set_to_now: str) -> Prepared:
    query = sa.update(_T).where(_MINE)
    return Prepared(query.values({name: columns.now() for name in set_to_now}) if set_to_now else query)


def _ended(before: datetime.datetime) -> tuple[Any, ...]:
    return _T.c.in_progress_host.is_(None), _T.c.ended_at < before
