# SPDX-License-Identifier: Apache-2.0

"""The work of SQLite for a part of a test, in statements and in instructions of its virtual machine.

Each row that a statement looks at takes a few instructions, whether it is returned or not. So a count that hardly grows
in a larger cloud shows that nothing reads all rows. It is never compared exactly: each version of SQLite plans in its
own way, and plans again when it has counted more rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from migrator.db import models
from migrator.db.sql.engine import Engine
from migrator.db.sql.watching import watch


@dataclasses.dataclass
class Work:
    """What SQLite was asked for."""

    statements: list[str] = dataclasses.field(default_factory=list)
    instructions: int = 0

    def grows_to(self, more: Work) -> bool:
        """Return whether the work in a larger database takes other statements, or reads more rows."""
        return more.statements != self.statements or more.instructions > 1.2 * self.instructions + 100


@contextlib.contextmanager
def counted(engine: Engine) -> Iterator[Work]:
    """Count the work of every thread of an engine within the block."""
    work = Work()
    connections: set[Any] = set()

    def count() -> int:
        work.instructions += 1
        return 0

    def at_checkout(connection: Any, *_more: Any) -> None:
        connections.add(connection)
        connection.set_progress_handler(count, 1)

    sa.event.listen(engine.sa_engine, 'checkout', at_checkout)
    end = watch(engine, lambda text, _values: work.statements.append(text))
    try:
        yield work
    finally:
        end()
        sa.event.remove(engine.sa_engine, 'checkout', at_checkout)
        # The engine keeps its connections.
        for connection in connections:
            connection.set_progress_handler(None, 0)


def add_hosts(engine: Engine, like: str, count: int) -> None:
    """Add copies of a compute host to the database until it has a number of them."""
    with engine.writer() as session:
        there = session.execute(sa.select(sa.func.count()).select_from(models.COMPUTE_NODES)).scalar_one()
        for table in (models.SERVICES, models.COMPUTE_NODES) if there < count else ():
            row = dict(session.execute(sa.select(table).where(table.c.host == like)).mappings().one())
            del row['id']
            # Each is another machine, whose driver reports no identity.
            row |= {'identity': None} if 'identity' in row else {}
            more = [row | {'uuid': str(uuid.uuid4()), 'host': f'more{number}'} for number in range(there, count)]
            session.execute(sa.insert(table), more)
