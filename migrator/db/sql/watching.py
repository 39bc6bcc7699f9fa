# SPDX-License-Identifier: Apache-2.0

"""What an engine sends, for those who count it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from migrator.db.sql.engine import Engine

_CONTROL = ('BEGIN', 'COMMIT', 'ROLLBACK', 'SAVEPOINT', 'RELEASE')


def watch(
    engine: Engine,
    statement: Callable[[str, Any], None],
    commit: Callable[[], None] = lambda: None,
    executed: Callable[[Any], None] = lambda cursor: None,
) -> Callable[[], None]:
    """Call functions from now on, in the thread that uses the database.

    :param statement: called with each statement and its values before it is sent, except those that begin and end
        transactions.
    :param commit: called before each commit.
    :param executed: called with the driver's cursor after each statement.
    :returns: what ends it.
    """

    def before_statement(_connection: Any, _cursor: Any, text: str, values: Any, *_more: Any) -> None:
        # On SQLite a transaction that writes begins with a statement. Elsewhere the driver begins it, without an event.
        if not text.lstrip().upper().startswith(_CONTROL):
            statement(text, values)

    def after_statement(_connection: Any, cursor: Any, *_more: Any) -> None:
        executed(cursor)

    def before_commit(_connection: Any) -> None:
        commit()

    listeners: dict[str, Callable[..., Any]] = {
        'before_cursor_execute': before_statement,
        'after_cursor_execute': after_statement,
        'commit': before_commit,
    }
    for event, listener in listeners.items():
        sa.event.listen(engine.sa_engine, event, listener)
    engine.watchers.append((statement, commit, executed))

    def end() -> None:
        for event, listener in listeners.items():
            sa.event.remove(engine.sa_engine, event, listener)
        engine.watchers.remove((statement, commit, executed))

    return end
