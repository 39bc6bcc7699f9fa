# SPDX-License-Identifier: Apache-2.0

"""Tells somebody of every statement and every commit: for counting, as the demo and the tests do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from migrator.db.engine import Engine

_CONTROL = ('BEGIN', 'COMMIT', 'ROLLBACK', 'SAVEPOINT', 'RELEASE')


def watch(engine: Engine, statement: Callable[[str], None], commit: Callable[[], None]) -> None:
    """Have two functions called from now on, in the thread that talks to the database.

    :param statement: called with each statement before it is sent; what begins and ends transactions is none.
    :param commit: called before each commit.
    """

    def before_statement(_connection: Any, _cursor: Any, text: str, *_more: Any) -> None:
        # On SQLite oslo.db sends BEGIN as if it were one; elsewhere the driver sends it and nobody sees it.
        if not text.lstrip().upper().startswith(_CONTROL):
            statement(text)

    def before_commit(_connection: Any) -> None:
        commit()

    sa.event.listen(engine.sa_engine, 'before_cursor_execute', before_statement)
    sa.event.listen(engine.sa_engine, 'commit', before_commit)
