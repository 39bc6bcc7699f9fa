# SPDX-License-Identifier: Apache-2.0

"""The guests that are not where the database has them, and how an instance follows its guest."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry
from sqlalchemy import orm

from migrator.db import cleanups, instances, models
from migrator.db.sql import columns
from migrator.db.sql.engine import Engine, Session, retried
from migrator.db.sql.statements import Prepared
from migrator.objects import RECONCILING, MigrationStatus, steps
from migrator.objects.difference import Difference


class GuestDifference(models.Base):
    """A guest that is not where the database has it; see :class:`migrator.objects.difference.Difference`."""

    __tablename__ = 'guest_differences'

    instance_uuid: orm.Mapped[str] = orm.mapped_column(columns.Text(36), primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(columns.Text(255))
    host: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))
    kind: orm.Mapped[str] = orm.mapped_column(columns.Text(16))
    seen: orm.Mapped[dict[str, Any]] = orm.mapped_column()
    since: orm.Mapped[datetime.datetime] = orm.mapped_column(default=columns.now())


GUEST_DIFFERENCES: Any = GuestDifference.__table__

_T, _M, _C = models.INSTANCES, models.MIGRATIONS, models.CLEANUPS
_G = GUEST_DIFFERENCES
#: What is known of the guest's places besides its row: a difference, the cleanups, and its newest migration.
_SEEN = Prepared(sa.select(_G.c.seen).where(_G.c.instance_uuid == sa.bindparam('guest')))
_COPIES = Prepared(sa.select(_C.c.host, _C.c.step).where(_C.c.instance_uuid == sa.bindparam('guest')).order_by(_C.c.id))
_LAST = Prepared(
    sa.select(_M.c.uuid, _M.c.status, _M.c.source_compute, _M.c.dest_compute, _M.c.abandon_requested_at)
    .where(
        _M.c.instance_uuid == sa.bindparam('guest'),
        _M.c.in_progress_instance_uuid.is_(None),
        # One that was undone has found out nothing about an earlier one.
        _M.c.status.not_in([MigrationStatus.FAILED.value, MigrationStatus.CANCELLED.value]),
    )
    .order_by(_M.c.id.desc())
    .limit(1)
)
_ALL_DIFFERENCES = Prepared(sa.select(_G).order_by(_G.c.name, _G.c.instance_uuid))

#: Seconds that a new instance has until its guest counts as missing.
_BIRTH = 60.0
_WHERE_PLACED = (
    sa.select(
        *(_T.c.uuid, _T.c.name, _T.c.host, _T.c.task_state, _T.c.tenure, _T.c.vm_state),
        *(_M.c.source_compute, _M.c.dest_compute),
    )
    .select_from(_T.outerjoin(_M, _M.c.in_progress_instance_uuid == _T.c.uuid))
    .where(sa.or_(_M.c.id.is_not(None), _T.c.task_state.is_(None), _T.c.task_state == RECONCILING))
)
_PLACED = Prepared(_WHERE_PLACED.where(_T.c.created_at < columns.later('birth')))
_PLACED_OF = Prepared(_WHERE_PLACED.where(_T.c.uuid.in_(sa.bindparam('uuids', expanding=True))))
_CLEANUPS = Prepared(sa.select(_C.c.instance_uuid, _C.c.host))
#: The greatest number of uuids in one query.
_BATCH = 500


@dataclasses.dataclass(frozen=True)
class Placed:
    """Where the database has a guest.

    :ivar cleanups_at: the hosts with a deferred cleanup of it.
    :ivar moves_between: the hosts of its migration in progress.
    """

    uuid: str
    name: str
    host: str
    task_state: str | None
    tenure: int
    vm_state: str
    cleanups_at: frozenset[str] = frozenset()
    moves_between: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Known:
    """The hosts that may have a copy of a guest, as far as it is stored.

    :ivar may_run: host -> why the guest may run there.
    :ivar explained: the hosts where a deferred cleanup removes a copy, which is shut off.
    :ivar seen: the hosts that a comparison has seen with the guest, which differs -> its state there.
    :ivar is_missing: whether a comparison has seen it on no host, also not on its own.
    """

    may_run: Mapping[str, str]
    explained: frozenset[str]
    seen: Mapping[str, str]
    is_missing: bool = False


def _placed(row: Any, cleanups_at: Iterable[str]) -> Placed:
    values = row._asdict()
    hosts = frozenset(filter(None, (values.pop('source_compute'), values.pop('dest_compute'))))
    return Placed(**values, cleanups_at=frozenset(cleanups_at), moves_between=hosts)


class Differences:
    """The rows of ``guest_differences``, and the writes with which an instance follows its guest."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def placed(self, uuids: Collection[str] | None = None) -> dict[str, Placed]:
        """Return where the database has its guests, without those that have another task.

        A migration in progress is no other task.

        :param uuids: only these; None: all that are not new.
        """
        pending = dict[str, set[str]]()
        with self._engine.reader() as session:
            if uuids is None:
                found = session.execute(_PLACED, {'birth': -_BIRTH}).all()
            else:
                found = session.execute(_PLACED_OF, {'uuids': [*uuids]}).all()
            for uuid, host in session.execute(_CLEANUPS):
                pending.setdefault(uuid, set()).add(host)
        return {row.uuid: _placed(row, pending.get(row.uuid, ())) for row in found}

    def unknown(self, uuids: Iterable[str]) -> set[str]:
        """Return those uuids that are neither those of instances nor of guests with a deferred cleanup."""
        left = sorted(uuids)
        found = set(left)
        with self._engine.reader() as session:
            for start in range(0, len(left), _BATCH):
                for column in (_T.c.uuid, models.CLEANUPS.c.instance_uuid):
                    batch = sa.select(column).where(column.in_(left[start : start + _BATCH]))
                    found -= set(session.execute(batch).scalars())
        return found

    def list(self, host: str | None = None) -> builtins.list[Difference]:
        """Return the differences that were found, by name.

        :param host: only those that concern this host.
        """
        with self._engine.reader() as session:
            rows = session.execute(_ALL_DIFFERENCES)
            found = [models.of_row(Difference, row) for row in rows]
        return [one for one in found if host is None or host in one.hosts]

    def seen(self, instance_uuid: str) -> Mapping[str, str]:
        """Return the hosts that a comparison has seen with a guest which differs -> its state there."""
        with self._engine.reader() as session:
            return session.execute(_SEEN, {'guest': instance_uuid}).scalar() or {}

    def known(self, instance_uuid: str) -> Known:
        """Return the hosts that may have a copy of a guest besides the one of its row."""
        guest = {'guest': instance_uuid}
        with self._engine.reader() as session:
            found = session.execute(_SEEN, guest).scalar()
            copies = session.execute(_COPIES, guest).all()
            last = session.execute(_LAST, guest).one_or_none()
        seen = found or {}
        may_run = {host: f'it was seen there ({state})' for host, state in seen.items()}
        for host, step in copies:
            if step in steps.ENDS_COPIES:
                may_run.setdefault(host, f'{step} has not run there yet')
        # Its last migration has not found out where the guest is, or an operator has decided that.
        if last is not None and (last.status == MigrationStatus.ERROR or last.abandon_requested_at is not None):
            for host in filter(None, (last.source_compute, last.dest_compute)):
                may_run.setdefault(host, f'migration {last.uuid} has not found out whether it is there')
        return Known(may_run, frozenset(host for host, _step in copies), seen, found == {})

    @retried
    def note(self, one: Difference) -> None:
        """Store a difference, unless it is known."""
        with contextlib.suppress(DBDuplicateEntry), self._engine.writer() as session:  # another has stored one
            if session.execute(_SEEN, {'guest': one.instance_uuid}).scalar() != dict(one.seen):
                _forget(session, [one.instance_uuid])
                _store(session, one)

    @retried
    def replace(self, found: Iterable[Difference], kept: Collection[str] = ()) -> builtins.list[Difference]:
        """Store the differences that a comparison has found, and forget the earlier ones.

        :param kept: the guests whose earlier difference stays, because the comparison has not judged them.
        :returns: those that were not stored before, and that this call has stored.
        """
        known = {one.instance_uuid: one for one in self.list()}
        wanted = {one.instance_uuid: one for one in found}
        gone = [uuid for uuid, one in known.items() if uuid not in kept and not one.is_like(wanted.get(uuid))]
        new = [one for uuid, one in wanted.items() if not one.is_like(known.get(uuid))]
        if not gone and not new:
            return []
        try:
            with self._engine.writer() as session:
                _forget(session, [*gone, *(one.instance_uuid for one in new)])
                for one in new:
                    _store(session, one)
        except DBDuplicateEntry:
            return []  # another conductor has stored them meanwhile
        return new

    @retried
    def begin_to_follow(self, placed: Placed, host: str) -> bool:
        """Set the task_state of an instance to reconciling, so that no migration of it is accepted.

        The cleanups that would remove the guest from the host are blocked. The call may be repeated.

        :param placed: the instance as it was read.
        :param host: where the guest runs.
        :returns: whether it was set. It is not if the instance has changed, or has a migration in progress.
        :raises migrator.exception.CleanupInProgress: a cleanup at that host removes the remains of the guest now.
        """
        with self._engine.writer() as session:
            found = session.execute(
                sa.update(_T)
                .where(*_unchanged(placed), sa.or_(_T.c.task_state.is_(None), _T.c.task_state == RECONCILING))
                .values(task_state=RECONCILING)
            )
            if found.rowcount and host != placed.host:
                cleanups.hold_at(session, placed.uuid, host)
            return bool(found.rowcount)

    @retried
    def follow(self, placed: Placed, host: str, node: str) -> bool:
        """Write that an instance is at the host where its guest runs, after its allocation has followed.

        :returns: whether the instance is there now. It is not if it has changed since :meth:`begin_to_follow`.
        """
        with self._engine.writer() as session:
            found = session.execute(
                sa.update(_T)
                .where(*_unchanged(placed), _T.c.task_state == RECONCILING)
                .values(host=host, node=node, task_state=None)
            )
            if found.rowcount:
                _forget(session, [placed.uuid])
                return True
            # Another operator may have done the same.
            there = sa.select(_T.c.id).where(_T.c.uuid == placed.uuid, _T.c.host == host, _T.c.task_state.is_(None))
            return session.execute(there).scalar() is not None

    @retried
    def follow_power(self, placed: Placed, vm_state: str, power_state: int) -> bool:
        """Write whether a guest runs, and return whether that was done. It is not if the instance has changed."""
        same = (*_unchanged(placed), _T.c.vm_state == placed.vm_state, _T.c.task_state.is_(None))
        with self._engine.writer() as session:
            found = session.execute(sa.update(_T).where(*same).values(vm_state=vm_state, power_state=power_state))
            if found.rowcount:
                _forget(session, [placed.uuid])
            return bool(found.rowcount)

    @retried
    def give_up(self, placed: Placed) -> None:
        """Clear the task_state that :meth:`begin_to_follow` has set, because the allocation could not follow."""
        mine = (*_unchanged(placed), _T.c.task_state == RECONCILING)
        with self._engine.writer() as session:
            session.execute(sa.update(_T).where(*mine).values(task_state=None))


def _unchanged(placed: Placed) -> tuple[Any, ...]:
    """Return the conditions that an instance is as it was read, and has no migration in progress."""
    same = (_T.c.uuid == placed.uuid, _T.c.host == placed.host, _T.c.tenure == placed.tenure)
    return (*same, ~instances.has_migration(placed.uuid))


def _store(session: Session, one: Difference) -> None:
    values = models.values_of(one) | {'seen': dict(one.seen), 'since': columns.now()}
    session.execute(sa.insert(_G).values(values))


def _forget(session: Any, uuids: Sequence[str]) -> None:
    for start in range(0, len(uuids), _BATCH):
        session.execute(sa.delete(_G).where(_G.c.instance_uuid.in_(uuids[start : start + _BATCH])))
