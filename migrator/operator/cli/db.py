# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage db``: the schema of the database."""

from __future__ import annotations

import argparse

from migrator.operator.cli import command
from migrator.operator.cli.command import Asked, Verb


def sync_(asked: Asked) -> int:
    """Write the schema into an empty database."""
    from migrator.db.schema import sync

    engine = asked.engine
    before = sync.version(engine)
    after = sync.sync(engine)
    changed = before != after
    text = f'The database schema is at {after}' + (f', and was at {before or "nothing"}.' if changed else ' already.')
    asked.answer({'version': after, 'before': before, 'changed': changed}, text)
    return command.RIGHT


def version(asked: Asked) -> int:
    """Show the version of the schema; exit 1 if it is not that of this release."""
    from migrator.db.schema import sync

    engine = asked.engine
    found, wanted = sync.version(engine), sync.head()
    document = {'version': found, 'wanted': wanted, 'current': found == wanted}
    asked.answer(document, f'The database schema is at {found or "nothing"}; this release needs {wanted}.')
    sync.check(engine)
    return command.RIGHT


#: Rows that one transaction fills, so that no other transaction waits long for it.
_BATCH = 50


def online_data_migrations(asked: Asked) -> int:
    """Convert rows of an earlier release to the form of this one; exit 1 if some are left."""
    limit = asked.arguments.max_count
    migrations = asked.database.migrations
    total, done = migrations.count_without_uuid(), 0
    with command.progress(asked, 'migration uuids', total if limit is None else min(limit, total)) as advance:
        while limit is None or done < limit:
            wanted = _BATCH if limit is None else min(_BATCH, limit - done)
            filled = migrations.fill_uuids(wanted)
            done += filled
            advance(filled)
            # Another process may have filled all rows of this batch, and more rows may follow.
            if not filled and not migrations.count_without_uuid():
                break
    left = migrations.count_without_uuid()
    document = {'migration_uuids': {'needed': total, 'done': done, 'left': left}}
    text = f'Migrations without a uuid: {total} found, {done} filled, {left} left.'
    if left:
        text += f' Run {asked.command} db online_data_migrations again.'
    asked.answer(document, text)
    return command.WRONG if left else command.RIGHT


def _max_count(parser: argparse.ArgumentParser) -> None:
    help_ = 'convert at most N rows, and exit 1 if some are left; default: all'
    parser.add_argument('--max-count', type=command.at_least(1), metavar='N', help=help_)


#: The verbs of the schema.
VERBS: tuple[command.Verb, ...] = (
    Verb('sync', 'write the schema into an empty database', sync_),
    Verb(
        'online_data_migrations',
        'convert rows of an earlier release to the form of this one, in batches, beside running services; exit 1 if'
        ' some are left',
        online_data_migrations,
        _max_count,
    ),
    Verb('version', 'show the version of the schema; exit 1 if it is not the one that this release needs', version),
)
