# SPDX-License-Identifier: Apache-2.0

"""Options of ``[database]``, as oslo.db has them, and the engine that they describe.

Nothing is registered when this is imported; :func:`register_opts` takes the ConfigOpts that is meant.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import options

from migrator import exception, executors
from migrator.db.engine import Engine

GROUP = 'database'

#: What the engine is told; the other options of the section are about oslo.db's own API layer, which is not used.
_OF_ENGINE = (
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
#: What a database says that is there and will not let us in, whenever it is asked; it has no class of its own.
_REFUSES = re.compile(
    r'password authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) "[^"]*" does not exist'
    r'|Access denied|Unknown database|unable to open database file'
)
#: Everything up to the host: a password may itself hold an @.
_UP_TO_HOST = re.compile(r'//\S*@')


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the section ``[database]`` on a ConfigOpts, and on no other."""
    # Copies: oslo.db hands out its own objects, and a default that somebody sets there is everybody's.
    conf.register_opts(copy.deepcopy(options.database_opts), group=GROUP)


def engine_from_conf(conf: cfg.ConfigOpts, threads: executors.Threads, **overrides: Any) -> Engine:
    """Return the engine of ``[database] connection``; it connects when it is first used.

    :param conf: where :func:`register_opts` has been called.
    :param overrides: of oslo.db's options, such as ``max_retries=0`` for who would rather be told than wait.
    :raises migrator.exception.ConfigurationError: the URL is missing or cannot be, or its driver is not installed.
    """
    settings = conf[GROUP]
    connection = settings.connection
    if not connection:
        raise _misconfigured(connection, f'give it a URL such as {_EXAMPLE}.')
    _check(connection)
    chosen = {name: getattr(settings, name) for name in _OF_ENGINE} | overrides
    return Engine(connection, threads, **{name: value for name, value in chosen.items() if value is not None})


def refusal(conf: cfg.ConfigOpts, error: exception.DatabaseUnreachable) -> exception.ConfigurationError | None:
    """Return what is wrong with the URL where a database is there and will not let us in; None where it is away."""
    if not _REFUSES.search(str(error)):
        return None
    shown = without_password(conf[GROUP].connection)
    return _misconfigured(shown, f'the database does not let migrator in: {error.kwargs["reason"]}')


def without_password(text: str) -> str:
    """Return a text without the credentials of the URLs in it."""
    return _UP_TO_HOST.sub('//***@', text)


def _check(connection: str) -> None:
    try:
        dialect = sa.engine.make_url(connection).get_dialect()
    except sa.exc.NoSuchModuleError:
        scheme = connection.partition(':')[0]
        detail = f'SQLAlchemy knows no database {scheme!r}; what would do is a URL such as {_EXAMPLE}.'
        raise _misconfigured(without_password(connection), detail) from None
    except (sa.exc.ArgumentError, ValueError):
        # It may be malformed in the very place that tells which part is the password, so only its beginning is shown.
        shown = connection if '@' not in connection else f'{connection[:4]}...'
        raise _misconfigured(shown, f'it is no URL of a database; what would do is {_EXAMPLE}.') from None
    try:
        dialect.import_dbapi()
    except ImportError as error:
        detail = f'its driver is not installed ({error}): install it, or name another after a +, as in {_EXAMPLE}.'
        raise _misconfigured(without_password(connection), detail) from None


def _misconfigured(value: object, detail: str) -> exception.ConfigurationError:
    return exception.ConfigurationError(option=f'[{GROUP}] connection', value=value, detail=detail)
