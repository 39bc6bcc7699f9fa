# SPDX-License-Identifier: Apache-2.0

"""The making of the schema, and the check that a database has it."""

from __future__ import annotations

import functools
import pathlib

import sqlalchemy as sa
from oslo_db.exception import DBError

from migrator import exception
from migrator.db import models
from migrator.db.schema import fingerprint
from migrator.db.sql.engine import Engine, translated
from migrator.objects import remedies

#: Tables that every schema of migrator has had. Ironic has the first one too, and nova the second.
_OURS = {'conductors', 'migrations'}
_VERSION_TABLE = sa.table('alembic_version', sa.column('version_num'))


@functools.cache
def head() -> str:
    """Return the schema that this version needs, which has one revision."""
    return fingerprint.of_the_models()


def version(engine: Engine) -> str | None:
    """Return the schema that is written in a database; None if none is.

    :raises migrator.exception.OtherSchema: it is no database, or has several versions.
    :raises migrator.exception.DatabaseUnreachable: the database is away.
    """
    found: list[str] = []
    try:
        # Without alembic, whose import takes longer than this look.
        with translated(), engine.sa_engine.connect() as connection:
            if sa.inspect(connection).has_table(_VERSION_TABLE.name):
                found = [str(one) for one in connection.execute(sa.select(_VERSION_TABLE.c.version_num)).scalars()]
    except (DBError, sa.exc.DBAPIError) as error:
        reason = f'it cannot be read ({str(error).splitlines()[0]}): name another one'
        raise exception.OtherSchema(reason=reason) from None
    if len(found) > 1:
        raise exception.OtherSchema(
            reason=f'it cannot be read (it has the versions {", ".join(found)}): name another one'
        )
    return found[0] if found else None


def refusal(engine: Engine) -> str | None:
    """Return why a database cannot be used and what to do, or None: it has the schema, or is empty.

    :raises migrator.exception.DatabaseUnreachable: the database is away.
    """
    try:
        found = version(engine)
        with translated():
            tables = sorted(sa.inspect(engine.sa_engine).get_table_names())
        # Another process may have written the schema since the first look.
        found = found or version(engine)
    except exception.OtherSchema as error:
        return str(error.kwargs['reason'])
    if found == head() or not tables:
        return None
    foreign = [table for table in tables if table not in {*models.Base.metadata.tables, _VERSION_TABLE.name}]
    if found is None and not foreign:
        # MariaDB commits each table.
        return 'its schema is being written now, or is written in part: try again, or else empty it and begin anew'
    if not {*tables} >= _OURS:
        return f'it has tables of another program, such as {(foreign or tables)[0]}: name another one, which is empty'
    return (
        f'another commit of migrator has written it (its schema is {found or "of no version"}, and this one needs '
        f'{head()}), and nothing converts it: let that commit finish what is in progress there, then name a new '
        'database'
    )


def check_usable(engine: Engine) -> None:
    """Raise unless a database has the schema, or is empty.

    :raises migrator.exception.OtherSchema: it has another one.
    :raises migrator.exception.DatabaseUnreachable: it is away.
    """
    reason = refusal(engine)
    if reason is not None:
        raise exception.OtherSchema(reason=reason)


def sync(engine: Engine) -> str:
    """Write the schema into an empty database. A database that has it stays as it is.

    :returns: the schema.
    :raises migrator.exception.OtherSchema: the database has another one, and stays as it is.
    :raises migrator.exception.DatabaseUnreachable: the database is away.
    """
    from alembic import command
    from alembic.config import Config

    check_usable(engine)
    config = Config()
    config.set_main_option('script_location', str(pathlib.Path(__file__).parent))
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
    check_usable(engine)
    if version(engine) is None:
        raise exception.NoSchema(wanted=head(), remedy=remedies.offer(remedies.Kind.CREATE_SCHEMA))
