# SPDX-License-Identifier: Apache-2.0

"""What hosts still owe for migrations that have ended without them."""

from __future__ import annotations

import builtins
import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from migrator import exception
from migrator.db import conductors, models, tenures
from migrator.db import engine as engines

_T = models.HOST_DEBTS
#: The steps that remove what a host has of a guest.
REMOVES = ('post_live_migration_at_source', 'rollback_live_migration_at_destination')


@dataclasses.dataclass(frozen=True)
class Cleanup:
    """One row of ``host_debts``.

    :ivar reason: why it is owed, or why it could not be paid when its host was last told.
    :ivar tenure: of the instance, when it was last taken in hand for this.
    :ivar alarm: why it cannot be paid without a person, or None.
    :ivar input: what paying it needs (the frozen migrate data).
    """

    host: str
    migration_uuid: str
    instance_uuid: str
    step: str
    reason: str
    epoch: int
    tenure: int = 0
    owner: str | None = None
    alarm: str | None = None
    input: Mapping[str, Any] | None = None
    id: int = 0
    created_at: datetime.datetime | None = None


def cleanup(row: Any) -> Cleanup:
    """Return the object of a row of ``host_debts``."""
    return Cleanup(**{field.name: getattr(row, field.name) for field in dataclasses.fields(Cleanup)})


def write(session: Any, cleanup: Cleanup) -> None:
    """Write a debt within the transaction that lets its migration go on without the host, in the place of an older."""
    forget(session, cleanup.migration_uuid, cleanup.host, cleanup.step)
    values = {field.name: getattr(cleanup, field.name) for field in dataclasses.fields(cleanup)}
    for automatic in ('id', 'created_at'):
        del values[automatic]
    session.execute(sa.insert(_T).values(**values))


def forget(session: Any, migration_uuid: str, host: str, step: str | None) -> None:
    """Take a debt off the list within the transaction that says that it is paid.

    :param step: None: all that the host owes for this migration.
    """
    query = sa.delete(_T).where(_T.c.migration_uuid == migration_uuid, _T.c.host == host)
    session.execute(query if step is None else query.where(_T.c.step == step))


def hold(session: Any, instance_uuid: str, why: str) -> None:
    """Have nothing that is owed for an instance paid before a person has looked.

    Who is having it paid at this moment finds another epoch, and can neither take it off the list nor go on.
    """
    _hold(session, why, _T.c.instance_uuid == instance_uuid)


def hold_at(session: Any, instance_uuid: str, host: str) -> None:
    """Block what would remove a guest from the host where it is being registered: an operator has to look.

    :raises migrator.exception.CleanupInProgress: the host has been told to do it, and has not answered yet.
    """
    why = f'The instance has been created at {host} since: look whether this is still to be done.'
    here = (_T.c.instance_uuid == instance_uuid, _T.c.host == host, _T.c.step.in_(REMOVES))
    # Blocked first: from then on nobody can begin it.
    _hold(session, why, *here)
    told = sa.select(_T.c.step, _T.c.migration_uuid).where(*here, _T.c.alarm == why, _T.c.owner.is_not(None))
    found = session.execute(told).first()
    if found is not None:
        raise exception.CleanupInProgress(
            host=host, step=found.step, migration_uuid=found.migration_uuid, instance_uuid=instance_uuid
        )


def _hold(session: Any, why: str, *which: Any) -> None:
    session.execute(sa.update(_T).where(*which, _T.c.alarm.is_(None)).values(alarm=why, epoch=_T.c.epoch + 1))


class InHand(Exception):
    """Somebody else has the guest, or the debt, in hand: the transaction is rolled back."""


def _same(cleanup: Cleanup) -> builtins.list[Any]:
    return [_T.c.id == cleanup.id, _T.c.owner == cleanup.owner, _T.c.epoch == cleanup.epoch]


def _check_free(session: Any, cleanup: Cleanup, beside: bool) -> None:
    """Raise :class:`InHand` if a migration in progress has the guest in hand at the host of a debt."""
    other = models.MIGRATIONS
    there = sa.or_(other.c.source_compute == cleanup.host, other.c.dest_compute == cleanup.host)
    query = sa.select(other.c.uuid).where(
        other.c.in_progress_instance_uuid == cleanup.instance_uuid,
        there if beside else sa.or_(there, other.c.uuid != cleanup.migration_uuid),
    )
    if session.execute(query).first() is not None:
        raise InHand


class Cleanups:
    """The rows of ``host_debts``."""

    def __init__(self, engine: engines.Engine) -> None:
        self._engine = engine

    @engines.retried
    def adopt(self, cleanup: Cleanup, owner: str, beside: bool = True) -> Cleanup | None:
        """Take a debt that no living conductor owns, its epoch and the tenure of the instance raised; one that is
        already ours stays as it is.

        :param beside: whether it may be paid while another migration of the instance is in progress elsewhere; a host
            that does not compare tenures could not tell the two apart.
        :returns: the debt as it now is, or None: another owns it, it has been paid, it has an alarm by now, or a
            migration in progress has the guest in hand at this host.
        """
        free = sa.or_(_T.c.owner.is_(None), ~conductors.alive(_T.c.owner))
        try:
            with self._engine.writer() as session:
                row = session.execute(sa.select(_T).where(_T.c.id == cleanup.id)).one_or_none()
                if row is None or row.alarm is not None:
                    return None
                if row.owner == owner:
                    # Told again in the same epoch, the host answers with what became of the work that it has begun.
                    _check_free(session, cleanup, beside)
                    return dataclasses.replace(cleanup, owner=owner, epoch=row.epoch, tenure=row.tenure)
                return self._take(session, cleanup, owner, row.epoch, (_T.c.epoch == row.epoch, free), beside=beside)
        except InHand:
            return None

    @engines.retried
    def raise_epoch(self, cleanup: Cleanup, seen: int, seen_tenure: int = 0) -> Cleanup | None:
        """Begin a new epoch of a debt, and a new tenure of its instance, above all that its host has seen.

        :param seen: the highest epoch that the host has told of. :param seen_tenure: the highest tenure, likewise.
        :returns: the debt as it now is, or None: another owns it, it has been paid, or a migration in progress has the
            guest in hand at this host.
        """
        epoch = max(cleanup.epoch, seen)
        try:
            with self._engine.writer() as session:
                return self._take(session, cleanup, cleanup.owner, epoch, _same(cleanup), seen_tenure)
        except InHand:
            return None

    @staticmethod
    def _take(
        session: Any,
        cleanup: Cleanup,
        owner: str | None,
        epoch: int,
        guard: Sequence[Any],
        seen_tenure: int = 0,
        beside: bool = True,
    ) -> Cleanup | None:
        # The lock first: a migration that is accepted meanwhile is seen.
        tenure = tenures.take(session, cleanup.instance_uuid, cleanup.migration_uuid, seen_tenure)
        _check_free(session, cleanup, beside)
        after = dataclasses.replace(cleanup, owner=owner, epoch=epoch + 1, tenure=tenure)
        taken: Any = session.execute(
            sa.update(_T)
            .where(_T.c.id == cleanup.id, _T.c.alarm.is_(None), *guard)
            .values(owner=after.owner, epoch=after.epoch, tenure=after.tenure)
        )
        if not taken.rowcount:
            raise InHand
        return after

    @engines.retried
    def forget(self, cleanup: Cleanup) -> None:
        """Take a debt that is paid off the list, if it is still its owner's in its epoch."""
        with self._engine.writer() as session:
            session.execute(sa.delete(_T).where(*_same(cleanup)))

    @engines.retried
    def note_failure(self, cleanup: Cleanup, reason: str) -> None:
        """Write why a debt could not be paid when its host was last told, if it is still its owner's in its epoch."""
        with self._engine.writer() as session:
            session.execute(sa.update(_T).where(*_same(cleanup), _T.c.reason != reason).values(reason=reason))

    @engines.retried
    def let_go(self, cleanup: Cleanup) -> None:
        """Note that the host has answered, and nobody has the debt paid until it is adopted for the next try."""
        with self._engine.writer() as session:
            session.execute(sa.update(_T).where(*_same(cleanup)).values(owner=None))

    @engines.retried
    def raise_alarm(self, cleanup: Cleanup, why: str) -> None:
        """Note that a debt cannot be paid without a person."""
        with self._engine.writer() as session:
            session.execute(sa.update(_T).where(*_same(cleanup)).values(alarm=why))

    @engines.retried
    def try_again(self, seen: Sequence[Cleanup]) -> int:
        """Take alarms away: somebody has looked at these, and each of their debts is told again.

        :param seen: the debts with their alarms as they were seen; another alarm stays.
        :returns: how many were taken away.
        """
        taken = 0
        with self._engine.writer() as session:
            for one in seen:
                same = (_T.c.id == one.id, _T.c.alarm == one.alarm)
                found: Any = session.execute(sa.update(_T).where(*same).values(alarm=None))
                taken += found.rowcount
        return taken

    @engines.retried
    def discard(self, seen: Cleanup) -> bool:
        """Take a cleanup that is blocked off the list, because an operator says that it need not be done.

        :param seen: as it was seen; with another alarm by now it stays.
        :returns: whether it was taken off.
        """
        with self._engine.writer() as session:
            gone: Any = session.execute(sa.delete(_T).where(_T.c.id == seen.id, _T.c.alarm == seen.alarm))
            return bool(gone.rowcount)

    def list(
        self, host: str | None = None, instance_uuid: str | None = None, migration_uuid: str | None = None
    ) -> builtins.list[Cleanup]:
        """Return debts, the oldest first."""
        query = sa.select(_T).order_by(_T.c.id)
        if host is not None:
            query = query.where(_T.c.host == host)
        if instance_uuid is not None:
            query = query.where(_T.c.instance_uuid == instance_uuid)
        if migration_uuid is not None:
            query = query.where(_T.c.migration_uuid == migration_uuid)
        with self._engine.reader() as session:
            return [cleanup(row) for row in session.execute(query)]
