# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What hosts still owe for migrations that have ended without them."""

from __future__ import annotations

import builtins
import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from migrator.db import conductors, models
from migrator.db import engine as engines

_T = models.HOST_DEBTS


@dataclasses.dataclass(frozen=True)
class Debt:
    """One row of ``host_debts``.

    :ivar reason: why it is owed, or why it could not be paid when its host was last told.
    :ivar alarm: why it cannot be paid without a person, or None.
    :ivar input: what paying it needs (the frozen migrate data).
    """

    host: str
    migration_uuid: str
    instance_uuid: str
    step: str
    reason: str
    epoch: int
    owner: str | None = None
    alarm: str | None = None
    input: Mapping[str, Any] | None = None
    id: int = 0
    created_at: datetime.datetime | None = None


def debt(row: Any) -> Debt:
    """Return the object of a row of ``host_debts``."""
    return Debt(**{field.name: getattr(row, field.name) for field in dataclasses.fields(Debt)})


def write(session: Any, debt: Debt) -> None:
    """Write a debt within the transaction that lets its migration go on without the host, in the place of an older."""
    forget(session, debt.migration_uuid, debt.host, debt.step)
    values = {field.name: getattr(debt, field.name) for field in dataclasses.fields(debt)}
    for automatic in ('id', 'created_at'):
        del values[automatic]
    session.execute(sa.insert(_T).values(**values))


def forget(session: Any, migration_uuid: str, host: str, step: str | None) -> None:
    """Take a debt off the list within the transaction that says that it is paid.

    :param step: None: all that the host owes for this migration.
    """
    query = sa.delete(_T).where(_T.c.migration_uuid == migration_uuid, _T.c.host == host)
    session.execute(query if step is None else query.where(_T.c.step == step))


def hold(session: Any, migration_uuid: str, why: str) -> None:
    """Have nothing that is owed for a migration paid before a person has looked.

    Who is having it paid at this moment finds another epoch, and can neither take it off the list nor go on.
    """
    unheld = (_T.c.migration_uuid == migration_uuid, _T.c.alarm.is_(None))
    session.execute(sa.update(_T).where(*unheld).values(alarm=why, epoch=_T.c.epoch + 1))


def _same(debt: Debt) -> builtins.list[Any]:
    return [_T.c.id == debt.id, _T.c.owner == debt.owner, _T.c.epoch == debt.epoch]


class Debts:
    """The rows of ``host_debts``."""

    def __init__(self, engine: engines.Engine) -> None:
        self._engine = engine

    @engines.retried
    def adopt(self, debt: Debt, owner: str) -> Debt | None:
        """Take a debt that no living conductor owns, its epoch raised by one; one that is already ours stays as it is.

        :returns: the debt as it now is, or None: another owns it, it has been paid, or it has an alarm by now.
        """
        free = sa.or_(_T.c.owner.is_(None), ~conductors.alive(_T.c.owner))
        with self._engine.writer() as session:
            row = session.execute(sa.select(_T).where(_T.c.id == debt.id)).one_or_none()
            if row is None or row.alarm is not None:
                return None
            seen: int = row.epoch
            if row.owner == owner:
                # Told again in the same epoch, the host answers with what became of the work that it has begun.
                return dataclasses.replace(debt, owner=owner, epoch=seen)
            taken: Any = session.execute(
                sa.update(_T)
                .where(_T.c.id == debt.id, _T.c.epoch == seen, free, _T.c.alarm.is_(None))
                .values(owner=owner, epoch=seen + 1)
            )
            return dataclasses.replace(debt, owner=owner, epoch=seen + 1) if taken.rowcount else None

    @engines.retried
    def raise_epoch(self, debt: Debt, seen: int) -> Debt | None:
        """Begin a new epoch of a debt, above all that its host has seen.

        :param seen: the highest epoch that the host has told of.
        :returns: the debt as it now is, or None: another owns it, or it has been paid.
        """
        epoch = max(debt.epoch, seen) + 1
        with self._engine.writer() as session:
            raised: Any = session.execute(sa.update(_T).where(*_same(debt)).values(epoch=epoch))
            return dataclasses.replace(debt, epoch=epoch) if raised.rowcount else None

    @engines.retried
    def forget(self, debt: Debt) -> None:
        """Take a debt that is paid off the list, if it is still its owner's in its epoch."""
        with self._engine.writer() as session:
            session.execute(sa.delete(_T).where(*_same(debt)))

    @engines.retried
    def note_failure(self, debt: Debt, reason: str) -> None:
        """Write why a debt could not be paid when its host was last told, if it is still its owner's in its epoch."""
        with self._engine.writer() as session:
            session.execute(sa.update(_T).where(*_same(debt), _T.c.reason != reason).values(reason=reason))

    @engines.retried
    def raise_alarm(self, debt: Debt, why: str) -> None:
        """Note that a debt cannot be paid without a person."""
        with self._engine.writer() as session:
            session.execute(sa.update(_T).where(*_same(debt)).values(alarm=why))

    @engines.retried
    def try_again(self, seen: Sequence[Debt]) -> int:
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

    def list(
        self, host: str | None = None, instance_uuid: str | None = None, migration_uuid: str | None = None
    ) -> builtins.list[Debt]:
        """Return debts, the oldest first."""
        query = sa.select(_T).order_by(_T.c.id)
        if host is not None:
            query = query.where(_T.c.host == host)
        if instance_uuid is not None:
            query = query.where(_T.c.instance_uuid == instance_uuid)
        if migration_uuid is not None:
            query = query.where(_T.c.migration_uuid == migration_uuid)
        with self._engine.reader() as session:
            return [debt(row) for row in session.execute(query)]
