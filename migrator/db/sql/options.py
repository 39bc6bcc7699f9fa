# SPDX-License-Identifier: Apache-2.0

"""The options of ``[database]``, which are those of oslo.db."""

from __future__ import annotations

import copy
import re
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db.options import database_opts

from migrator import exception

GROUP = 'database'

#: The options for the engine. The others configure the API layer of oslo.db, which is not used.
_ENGINE_OPTIONS = (
    'mysql_sql_mode',
    'mysql_wsrep_sync_wait',
    'connection_recycle_time',
    'connection_debug',
    'max_pool_size',
    'max_overflow',
    'pool_timeout',
    'sqlite_synchronous',
    'connection_trace',
    'max_retries',
    'retry_interval',
    'connection_parameters',
)
_EXAMPLE = 'postgresql+psycopg2://USER:PASSWORD@HOST/migrator'
#: The errors of a database that runs and refuses the connection on each try. They have no class of their own.
_REFUSES = re.compile(
    r'password authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) "[^"]*" does not exist'
    r'|Access denied|Unknown database|unable to open database file'
)
#: Everything up to the host. A password may contain an @.
_UP_TO_HOST = re.compile(r'//\S*@')


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the section ``[database]`` on the given ConfigOpts only."""
    # Copy the options, because oslo.db returns its own objects, and a changed default would apply everywhere.
    conf.register_opts(copy.deepcopy(database_opts), group=GROUP)


def settings(conf: cfg.ConfigOpts, **overrides: Any) -> tuple[str, dict[str, Any]]:
    """Return the URL of ``[database] connection``, and the options for an engine.

    :param conf: a configuration on which :func:`register_opts` was called.
    :param overrides: options that replace the configured ones.
    :raises migrator.exception.ConfigurationError: the URL is missing or invalid, or its driver is not installed.
    """
    given = conf[GROUP]
    connection = given.connection
    if not connection:
        raise _misconfigured(connection, f'give it a URL such as {_EXAMPLE}.')
    _check(connection)
    chosen = {name: getattr(given, name) for name in _ENGINE_OPTIONS} | overrides
    return connection, {name: value for name, value in chosen.items() if value is not None}


def refusal(conf: cfg.ConfigOpts, error: exception.DatabaseUnreachable) -> exception.ConfigurationError | None:
    """Return the error for a database that runs and refuses the connection, or None if it is away."""
    if not _REFUSES.search(str(error)):
        return None
    shown = without_password(conf[GROUP].connection)
    return _misconfigured(shown, f'the database refuses the connection: {error.kwargs["reason"]}')


def without_password(text: str) -> str:
    """Return a text without the credentials of its URLs."""
    return _UP_TO_HOST.sub('//***@', text)


def _check(connection: str) -> None:
    try:
        dialect = sa.engine.make_url(connection).get_dialect()
    except sa.exc.NoSuchModuleError:
        scheme = connection.partition(':')[0]
        detail = f'SQLAlchemy knows no database {scheme!r}: give a URL such as {_EXAMPLE}.'
        raise _misconfigured(without_password(connection), detail) from None
    except (sa.exc.ArgumentError, ValueError):
        # In a malformed URL the place of the password is unknown, so only the beginning is shown.
        shown = connection if '@' not in connection else f'{connection[:4]}...'
        raise _misconfigured(shown, f'it is not the URL of a database: give one such as {_EXAMPLE}.') from None
    if dialect.name == 'mariadb':
        # oslo.db recognises a deadlock and a duplicate only by the other name.
        detail = 'begin it with mysql+pymysql://, which also stands for MariaDB.'
        raise _misconfigured(without_password(connection), detail)
    try:
        dialect.import_dbapi()
    except ImportError as error:
        detail = f'its driver is not installed ({error}): install it, or name another after a +, as in {_EXAMPLE}.'
        raise _misconfigured(without_password(connection), detail) from None


def _misconfigured(value: object, detail: str) -> exception.ConfigurationError:
    return exception.ConfigurationError(option=f'[{GROUP}] connection', value=value, detail=detail)
