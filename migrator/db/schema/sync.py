# SPDX-License-Identifier: Apache-2.0

"""The upgrade of the schema to this release, and the check of its version."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from oslo_db.exception import DBError

from migrator import exception
from migrator.db.engine import Engine, translated

#: The table that has the version of the schema.
_VERSION_TABLE = 'alembic_version'


def _config() -> Config:
    config = Config()
    config.set_main_option('script_location', str(pathlib.Path(__file__).parent))
    return config


@functools.cache
def head() -> str:
    """Return the newest schema version that this release knows."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    assert found is not None
    return found


def version(engine: Engine) -> str | None:
    """Return the schema version of a database; None if it is empty.

    :raises migrator.exception.DatabaseUnreachable: the database is away.
    """
    with translated(), engine.sa_engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def foreign(engine: Engine) -> str | None:
    """Return why a database cannot have the schema; None if it can.

    It cannot if another program has written it, or if its file is no database.

    :raises migrator.exception.DatabaseUnreachable: the database is away.
    """
    try:
        with translated():
            tables = sorted(sa.inspect(engine.sa_engine).get_table_names())
    except (DBError, sa.exc.DBAPIError) as error:
        return str(error).splitlines()[0]
    is_ours = not tables or _VERSION_TABLE in tables
    return None if is_ours else f'it has tables of another program, such as {tables[0]}'


def sync(engine: Engine) -> str:
    """Upgrade the schema to this release, if it is older.

    :returns: the version after the upgrade.
    :raises migrator.exception.SchemaTooNew: a later release wrote the schema.
    :raises migrator.exception.DatabaseUnreachable: the database is away.
    """
    found = version(engine)
    if found is not None and not _is_known(found):
        raise exception.SchemaTooNew(found=found, wanted=head())
    config = _config()
    with translated(), engine.sa_engine.begin() as connection:
        config.attributes['connection'] = connection
        command.upgrade(config, 'head')
    return head()


def check(engine: Engine) -> None:
    """Raise unless the schema is that of this release.

    :raises migrator.exception.SchemaTooOld: run ``migrator-manage db sync``.
    :raises migrator.exception.SchemaTooNew: a later release wrote the schema.
    :raises migrator.exception.DatabaseUnreachable: the database is away.
    """
    found = version(engine)
    if found == head():
        return
    if found is not None and not _is_known(found):
        raise exception.SchemaTooNew(found=found, wanted=head())
    raise exception.SchemaTooOld(found=found or 'no version at all', wanted=head())


def _is_known(found: str) -> bool:
    known: Any = ScriptDirectory.from_config(_config())
    return any(revision.revision == found for revision in known.walk_revisions())
