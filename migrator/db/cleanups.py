# SPDX-License-Identifier: Apache-2.0

"""Deferred cleanups: the steps that hosts still have to do for migrations that went on without them."""

from __future__ import annotations

import builtins
import dataclasses
import datetime
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from migrator import exception
from migrator.db import models, saga_log
from migrator.db.sql.engine import Engine, retried
from migrator.db.sql.statements import Prepared
from migrator.objects import Migration, MigrationStatus, remedies
from migrator.objects.steps import AFTER_EVACUATION, ENDS_COPIES, REMOVING
from migrator.saga import log

_T = models.CLEANUPS
_M = models.MIGRATIONS
_I = models.INSTANCES
_PENDING = sa.exists().where(_T.c.migration_uuid == _M.c.uuid, _T.c.host == _M.c.source_compute)
CLEANED = Prepared(sa.select(_M).where(_M.c.status == MigrationStatus.DONE.value, ~_PENDING).order_by(_M.c.id))

_WHY: Any = sa.bindparam('why', type_=_T.c.blocked_because.type)
_HERE = (_T.c.instance_uuid == sa.bindparam('guest'), _T.c.host == sa.bindparam('at'), _T.c.step.in_(REMOVING))
_TO_BLOCK = sa.update(_T).where(_T.c.blocked_because.is_(None)).values(blocked_because=_WHY, epoch=_T.c.epoch + 1)
_BLOCK, _BLOCK_HERE = Prepared(_TO_BLOCK.where(_HERE[0])), Prepared(_TO_BLOCK.where(*_HERE))
_SENT_HERE = Prepared(
    sa.select(_T.c.step, _T.c.migration_uuid).where(*_HERE, _T.c.blocked_because == _WHY, _T.c.owner.is_not(None))
)


@dataclasses.dataclass(frozen=True)
class Cleanup:
    """One row of ``cleanups``.

    :ivar reason: why the cleanup was deferred, or why the host could not do it at the last try.
    :ivar tenure: the tenure of the instance when a conductor last adopted the cleanup.
    :ivar blocked_because: why the cleanup is blocked until an operator looks at it, or None.
    :ivar input: the input of the step (the stored migrate data), and ``fenced`` if the migration itself has deferred
        the step because its host was fenced.
    """

    host: str
    migration_uuid: str
    instance_uuid: str
    step: str
    reason: str
    epoch: int
    tenure: int = 0
    owner: str | None = None
    blocked_because: str | None = None
    input: Mapping[str, Any] | None = None
    id: int = 0
    created_at: datetime.datetime | None = None

    @property
    def may_end_copy(self) -> bool:
        """Whether the host may end a copy that runs there, once the guest's host has reported the guest."""
        fenced = self.step in ENDS_COPIES and bool((self.input or {}).get('fenced'))
        return fenced or self.step == AFTER_EVACUATION


def write(session: Any, cleanup: Cleanup) -> None:
    """Write a cleanup within the transaction that lets its migration go on without the host.

    It replaces an older cleanup of the same migration, host and step.
    """
    forget(session, cleanup.migration_uuid, cleanup.host, cleanup.step)
    session.execute(sa.insert(_T).values(**models.values_of(cleanup)))


def forget(session: Any, migration_uuid: str, host: str, step: str | None) -> None:
    """Delete a cleanup within the transaction that records that it is done.

    :param step: None deletes every cleanup of this migration at this host.
    """
    query = sa.delete(_T).where(_T.c.migration_uuid == migration_uuid, _T.c.host == host)
    session.execute(query if step is None else query.where(_T.c.step == step))


def hold(session: Any, instance_uuid: str, why: str) -> None:
    """Block every cleanup of an instance until an operator looks at it.

    A conductor that runs one at this moment finds a new epoch, and can neither delete the cleanup nor go on.
    """
    session.execute(_BLOCK, {'guest': instance_uuid, 'why': why})


def hold_at(session: Any, instance_uuid: str, host: str) -> None:
    """Block the cleanups that would remove a guest from the host where it is being registered.

    :raises migrator.exception.CleanupInProgress: a conductor has sent the step to the host, which has not answered yet.
    """
    why = f'The instance has been created at {host} since: check whether this cleanup is still needed.'
    here = {'guest': instance_uuid, 'at': host, 'why': why}
    # Block first, so that no conductor can begin the cleanup after the check below.
    session.execute(_BLOCK_HERE, here)
    found = session.execute(_SENT_HERE, here).first()
    if found is not None:
        raise exception.CleanupInProgress(
            host=host,
            step=found.step,
            migration_uuid=found.migration_uuid,
            instance_uuid=instance_uuid,
            remedy=remedies.offer(remedies.Kind.WAIT_FOR_CLEANUP),
        )


class Busy(Exception):
    """Another conductor or migration works on the guest or the cleanup; the transaction is rolled back."""


def _same(cleanup: Cleanup) -> builtins.list[Any]:
    return [_T.c.id == cleanup.id, _T.c.owner == cleanup.owner, _T.c.epoch == cleanup.epoch]


def _check_free(session: Any, cleanup: Cleanup) -> None:
    """Raise :class:`Busy` if a migration in progress works on the guest at the host of a cleanup."""
    other = models.MIGRATIONS
    query = sa.select(other.c.uuid).where(
        other.c.in_progress_instance_uuid == cleanup.instance_uuid,
        sa.or_(other.c.source_compute == cleanup.host, other.c.dest_compute == cleanup.host),
    )
    if session.execute(query).first() is not None:
        raise Busy


class Cleanups:
    """The rows of ``cleanups``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @retried
    def adopt(self, cleanup: Cleanup, owner: str) -> Cleanup | None:
        """Take over a cleanup that no living conductor owns.

        This raises the epoch of the cleanup and the tenure of the instance. A cleanup that ``owner`` already owns stays
        as it is.

        :returns: the cleanup after the takeover. None if another conductor owns it, it is done, it is blocked by now,
            or a migration in progress works on the guest at this host.
        """
        free = sa.or_(_T.c.owner.is_(None), ~models.alive(_T.c.owner))
        try:
            with self._engine.writer() as session:
                row = session.execute(sa.select(_T).where(_T.c.id == cleanup.id)).one_or_none()
                if row is None or row.blocked_because is not None:
                    return None
                if row.owner == owner:
                    # If the step is sent again in the same epoch, the host answers with the result of the work that it
                    # has begun.
                    _check_free(session, cleanup)
                    return dataclasses.replace(cleanup, owner=owner, epoch=row.epoch, tenure=row.tenure)
                return self._take(session, cleanup, owner, row.epoch, (_T.c.epoch == row.epoch, free))
        except Busy:
            return None

    @retried
    def raise_epoch(self, cleanup: Cleanup, seen: int, seen_tenure: int = 0) -> Cleanup | None:
        """Begin a new epoch of a cleanup and a new tenure of its instance, above all that its host has seen.

        :param seen: the highest epoch that the host has reported.
        :param seen_tenure: the highest tenure that the host has reported.
        :returns: the cleanup in its new epoch. None if another conductor owns it, it is done, or a migration in
            progress works on the guest at this host.
        """
        epoch = max(cleanup.epoch, seen)
        try:
            with self._engine.writer() as session:
                return self._take(session, cleanup, cleanup.owner, epoch, _same(cleanup), seen_tenure)
        except Busy:
            return None

    @staticmethod
    def _take(
        session: Any,
        cleanup: Cleanup,
        owner: str | None,
        epoch: int,
        guard: Sequence[Any],
        seen_tenure: int = 0,
    ) -> Cleanup | None:
        # Lock the instance first, so that the check below sees a migration that is accepted meanwhile.
        tenure = take_tenure(session, cleanup.instance_uuid, cleanup.migration_uuid, seen_tenure)
        _check_free(session, cleanup)
        after = dataclasses.replace(cleanup, owner=owner, epoch=epoch + 1, tenure=tenure)
        taken = session.execute(
            sa.update(_T)
            .where(_T.c.id == cleanup.id, _T.c.blocked_because.is_(None), *guard)
            .values(owner=after.owner, epoch=after.epoch, tenure=after.tenure)
        )
        if not taken.rowcount:
            raise Busy
        return after

    @retried
    def forget(self, cleanup: Cleanup) -> None:
        """Delete a cleanup that is done, if owner and epoch are unchanged."""
        with self._engine.writer() as session:
            session.execute(sa.delete(_T).where(*_same(cleanup)))

    @retried
    def note_failure(self, cleanup: Cleanup, reason: str) -> None:
        """Write why the host could not do a cleanup at the last try, if owner and epoch are unchanged."""
        with self._engine.writer() as session:
            session.execute(sa.update(_T).where(*_same(cleanup), _T.c.reason != reason).values(reason=reason))

    @retried
    def let_go(self, cleanup: Cleanup) -> None:
        """Release ownership of a cleanup after the host has answered; the next try adopts it again."""
        with self._engine.writer() as session:
            session.execute(sa.update(_T).where(*_same(cleanup)).values(owner=None))

    @retried
    def block(self, cleanup: Cleanup, why: str) -> None:
        """Block a cleanup until an operator looks at it."""
        with self._engine.writer() as session:
            session.execute(sa.update(_T).where(*_same(cleanup)).values(blocked_because=why))

    @retried
    def try_again(self, seen: Sequence[Cleanup]) -> int:
        """Unblock cleanups that an operator has looked at, so that a conductor runs them again.

        :param seen: the cleanups as the operator saw them. One that is blocked for another reason by now stays blocked.
        :returns: how many were unblocked.
        """
        taken = 0
        with self._engine.writer() as session:
            for one in seen:
                same = (_T.c.id == one.id, _T.c.blocked_because == one.blocked_because)
                found = session.execute(sa.update(_T).where(*same).values(blocked_because=None))
                taken += found.rowcount
        return taken

    @retried
    def discard(self, seen: Cleanup) -> bool:
        """Delete a blocked cleanup, because an operator has decided that it is not needed.

        :param seen: the cleanup as the operator saw it. If it is blocked for another reason by now, it stays.
        :returns: whether it was deleted.
        """
        with self._engine.writer() as session:
            mine = (_T.c.id == seen.id, _T.c.blocked_because == seen.blocked_because)
            return bool(session.execute(sa.delete(_T).where(*mine)).rowcount)

    def blocked(self, id_: int) -> Cleanup:
        """Return a blocked cleanup.

        :raises migrator.exception.CleanupNotFound: no cleanup has this id, or it is not blocked.
        """
        cleanup = next((one for one in self.list() if one.id == id_), None)
        if cleanup is None:
            raise exception.CleanupNotFound(id=id_, what='no cleanup has this id, or it has been done meanwhile.')
        if cleanup.blocked_because is None:
            what = f'it is not blocked: a conductor runs it when {cleanup.host} is up.'
            raise exception.CleanupNotFound(id=id_, what=what)
        return cleanup

    def retry_or_refuse(self, seen: Cleanup) -> None:
        """Unblock a cleanup, as :meth:`try_again`.

        :raises migrator.exception.CleanupNotFound: it was changed meanwhile.
        """
        _refuse_unless(self.try_again([seen]) > 0, seen)

    def discard_or_refuse(self, seen: Cleanup) -> None:
        """Delete a blocked cleanup, as :meth:`discard`.

        :raises migrator.exception.CleanupNotFound: it was changed meanwhile.
        """
        _refuse_unless(self.discard(seen), seen)

    def cleaned_evacuations(self) -> builtins.list[Migration]:
        """Return the evacuations that are done, and whose source has no cleanup of them left."""
        with self._engine.reader() as session:
            return [models.migration(row) for row in session.execute(CLEANED)]

    @retried
    def complete_evacuation(self, done: Migration) -> bool:
        """Write that an evacuation is completed, once it holds no allocation any more.

        :param done: the migration, as :meth:`cleaned_evacuations` has returned it.
        :returns: whether it was written. It is not if another conductor was faster.
        """
        table, status = models.MIGRATIONS, MigrationStatus.COMPLETED.value
        with self._engine.writer() as session:
            written = session.execute(
                sa.update(table)
                .where(table.c.uuid == done.uuid, table.c.status == done.status, table.c.log_seq == done.log_seq)
                .values(status=status, log_seq=done.log_seq + 1)
            )
            if written.rowcount:
                entry = log.Entry(log.EntryKind.STATUS, done.attempt, payload={'status': status})
                saga_log.append(session, done, [entry])
            return bool(written.rowcount)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return host -> the number of its deferred cleanups, and how many of them are blocked.

        Hosts without any are left out.
        """
        query = sa.select(_T.c.host, sa.func.count(), sa.func.count(_T.c.blocked_because)).group_by(_T.c.host)
        with self._engine.reader() as session:
            return {host: (int(number), int(blocked)) for host, number, blocked in session.execute(query)}

    def list(
        self, host: str | None = None, instance_uuid: str | None = None, migration_uuid: str | None = None
    ) -> builtins.list[Cleanup]:
        """Return deferred cleanups, the oldest first."""
        which = {'host': host, 'instance_uuid': instance_uuid, 'migration_uuid': migration_uuid}
        given = {name: value for name, value in which.items() if value is not None}
        with self._engine.reader() as session:
            return [models.of_row(Cleanup, row) for row in session.execute(query_of(*given), given)]


@functools.cache
def query_of(*columns: str) -> Prepared:
    """Return the query for the cleanups with given values of some columns."""
    return Prepared(sa.select(_T).where(*(_T.c[name] == sa.bindparam(name) for name in columns)).order_by(_T.c.id))


# --- the tenure of an instance, which each migration and each cleanup of the guest raises ----------------------------

# Hosts compare it; see migrator.objects.protocol.Command. The counter is in the row of the instance. Each migration and
# each cleanup keeps a copy of the value that it last raised it to. So the counter continues if the instance is deleted
# and created again.


def tenure_after_all(instance_uuid: Any) -> Any:
    """Return, as a scalar subquery, a tenure above all known ones of an instance without a row.

    The tenure is 0 if none is known.

    :param instance_uuid: the uuid, or the parameter of a statement.
    """
    known = sa.union_all(
        *(sa.select(table.c.tenure).where(table.c.instance_uuid == instance_uuid) for table in (_M, _T))
    ).subquery()
    return sa.select(sa.func.coalesce(sa.func.max(known.c.tenure) + 1, 0)).scalar_subquery()


def take_tenure(session: Any, instance_uuid: str, migration_uuid: str, seen: int = 0) -> int:
    """Raise the tenure of an instance for one of its migrations or cleanups, and return the new one.

    This locks the row of the instance, so that no other migration or cleanup raises the tenure until the transaction
    ends.

    :param seen: the highest tenure that a host has reported. The new one is above it.
    """
    above = sa.case((_I.c.tenure < seen, seen), else_=_I.c.tenure) + 1
    raised = session.execute(sa.update(_I).where(_I.c.uuid == instance_uuid).values(tenure=above))
    known = sa.select(_I.c.tenure).where(_I.c.uuid == instance_uuid)
    query = known if raised.rowcount else sa.select(tenure_after_all(instance_uuid))
    tenure = max(int(session.execute(query).scalar_one()), seen + 1, 1)
    session.execute(sa.update(_M).where(_M.c.uuid == migration_uuid).values(tenure=tenure, updated_at=_M.c.updated_at))
    return tenure


def _refuse_unless(done: bool, cleanup: Cleanup) -> None:
    if not done:
        what = 'it was changed meanwhile: list the cleanups again.'
        raise exception.CleanupNotFound(id=cleanup.id, what=what)
