# SPDX-License-Identifier: Apache-2.0

"""The making of the schema, and the check that a database has it."""

from __future__ import annotations

import functools
import pathlib

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from oslo_db.exception import DBError

from migrator import exception
from migrator.db.engine import Engine, translated

#: A table that every schema of migrator has had, and that no other program is known to have.
_OURS = 'conductors'


def _config() -> Config:
    config = Config()
    config.set_main_option('script_location', str(pathlib.Path(__file__).parent))
    return config


@functools.cache
def head() -> str:
    """Return the schema that this version needs."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    assert found is not None
    return found


def version(engine: Engine) -> str | None:
    """Return the schema that is written in a database; None if none is.

    :raises migrator.exception.DatabaseUnreachable: the database is away.
    """
    with translated(), engine.sa_engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def refusal(engine: Engine) -> str | None:
    """Return why a database cannot be used and what to do, or None: it has the schema, or is empty.

    :raises migrator.exception.DatabaseUnreachable: the database is away.
    """
    try:
        found = version(engine)
        if found == head():
            return None
        with translated():
            tables = sorted(sa.inspect(engine.sa_engine).get_table_names())
    except (DBError, sa.exc.DBAPIError) as error:
        return f'it is no database ({str(error).splitlines()[0]}): name another one'
    if not tables:
        return None
    if _OURS not in tables:
        return f'it has tables of another program, such as {tables[0]}: name another one, which is empty'
    return (
        f'another commit of migrator has written it (its schema is {found or "of no version"}, and this one needs '
        f'{head()}), and nothing converts it: let that commit finish what is in progress there, then use a new one'
    )


def sync(engine: Engine) -> str:
    """Write the schema into an empty database. A database that has it stays as it is.

    :returns: the schema.
    :raises migrator.exception.OtherSchema: the database has another one, and stays as it is.
    :raises migrator.exception.DatabaseUnreachable: the database is away.
    """
    reason = refusal(engine)
    if reason is not None:
        raise exception.OtherSchema(reason=reason)
    config = _config()
    with translated(), engine.sa_engine.begin() as connection:
        config.attributes['connection'] = connection
        command.upgrade(config, 'head')
    return head()


def check(engine: Engine) -> None:
    """Raise unless a database has the schema.

    :raises migrator.exception.NoSchema: it is empty: run ``migrator-manage db sync``.
    :raises migrator.exception.OtherSchema: it has another one.
    :raises migrator.exception.DatabaseUnreachable: it is away.
    """
    reason = refusal(engine)
    if reason is not None:
        raise exception.OtherSchema(reason=reason)
    if version(engine) is None:
        raise exception.NoSchema(wanted=head())
