# SPDX-License-Identifier: Apache-2.0

"""Hooks for every statement and every commit; the demo and the tests count with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from migrator.db.engine import Engine

_CONTROL = ('BEGIN', 'COMMIT', 'ROLLBACK', 'SAVEPOINT', 'RELEASE')


def watch(engine: Engine, statement: Callable[[str], None], commit: Callable[[], None]) -> None:
    """Call two functions from now on, in the thread that uses the database.

    :param statement: called with each statement before it is sent, except those that begin and end transactions.
    :param commit: called before each commit.
    """

    def before_statement(_connection: Any, _cursor: Any, text: str, *_more: Any) -> None:
        # On SQLite oslo.db sends BEGIN as a statement. On other databases the driver sends it, without this event.
        if not text.lstrip().upper().startswith(_CONTROL):
            statement(text)

    def before_commit(_connection: Any) -> None:
        commit()

    sa.event.listen(engine.sa_engine, 'before_cursor_execute', before_statement)
    sa.event.listen(engine.sa_engine, 'commit', before_commit)
