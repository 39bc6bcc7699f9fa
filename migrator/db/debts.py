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
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from migrator.db import engine as engines
from migrator.db import models

_T = models.HostDebt


@dataclasses.dataclass(frozen=True)
class Debt:
    """One row of ``host_debts``.

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


def write(session: Any, debt: Debt) -> None:
    """Write a debt within the transaction that lets its migration go on without the host."""
    values = {field.name: getattr(debt, field.name) for field in dataclasses.fields(debt)}
    for automatic in ('id', 'created_at'):
        del values[automatic]
    session.execute(sa.insert(_T).values(**values))


class Debts:
    """The rows of ``host_debts``."""

    def __init__(self, engine: engines.Engine) -> None:
        self._engine = engine

    def list(self, host: str | None = None, instance_uuid: str | None = None) -> builtins.list[Debt]:
        """Return debts, the oldest first."""
        query = sa.select(_T).order_by(_T.id)
        if host is not None:
            query = query.where(_T.host == host)
        if instance_uuid is not None:
            query = query.where(_T.instance_uuid == instance_uuid)
        with self._engine.reader() as session:
            return [
                Debt(**{field.name: getattr(row, field.name) for field in dataclasses.fields(Debt)})
                for row in session.execute(query).scalars()
            ]
