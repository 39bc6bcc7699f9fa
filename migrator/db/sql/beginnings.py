# SPDX-License-Identifier: Apache-2.0

"""Rows that are named by the beginning of their uuid."""

from __future__ import annotations

import re

import sqlalchemy as sa

from migrator.db.sql.engine import Engine

#: The least characters of a beginning.
LEAST = 4
_BEGINNING = re.compile(f'[0-9a-f-]{{{LEAST},36}}')


def is_too_short(text: str) -> bool:
    """Return whether a text could be the beginning of a uuid, but for its length."""
    return re.fullmatch(f'[0-9a-f]{{1,{LEAST - 1}}}', text.lower()) is not None


def uuids(engine: Engine, table: sa.Table, text: str, most: int = 20) -> list[str]:
    """Return the uuids of a table that begin with a text of at least four characters, in their order.

    :param most: the greatest number of them.
    """
    beginning = text.lower()
    if not _BEGINNING.fullmatch(beginning):
        return []
    column = table.c.uuid
    with engine.reader() as session:
        # The type of the column would cut a pattern that is as long as a uuid.
        pattern = sa.literal(f'{beginning}%', sa.String())
        found = sa.select(column).where(column.like(pattern)).order_by(column).limit(most)
        return [str(uuid) for uuid in session.execute(found).scalars()]
