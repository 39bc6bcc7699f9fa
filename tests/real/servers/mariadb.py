# SPDX-License-Identifier: Apache-2.0

"""A private MariaDB: its own data, a port of its own on loopback, a socket in its own directory."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from tests.real.servers import certificates, process

USER = 'migrator'
ADMINISTRATOR = 'administrator'
PASSWORD = 'guessed'

#: Nothing needs to outlive a crash of the machine, but what is committed has to outlive a kill of the server. The
#: character set, the collation and the isolation level stay MariaDB's own, since migrator has to set what it needs.
SETTINGS = {
    'bind-address': process.HOST,
    'skip-name-resolve': 'on',
    'innodb-flush-log-at-trx-commit': '2',
    'debug-no-sync': 'on',
    'innodb-flush-method': 'nosync',
    'innodb-doublewrite': 'off',
    'innodb-log-file-size': '32M',
    'innodb-buffer-pool-size': '64M',
    'innodb-print-all-deadlocks': 'on',
    'max-connections': '200',
}
#: The server carries these out at each start. RELOAD resets the counters of the rows that are read.
USERS = f"""
CREATE USER IF NOT EXISTS '{ADMINISTRATOR}'@'{process.HOST}' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO '{ADMINISTRATOR}'@'{process.HOST}' WITH GRANT OPTION;
CREATE USER IF NOT EXISTS '{USER}'@'{process.HOST}' IDENTIFIED BY '{PASSWORD}';
GRANT RELOAD ON *.* TO '{USER}'@'{process.HOST}';
"""
#: The tables of a database, each with whether it has a computed column.
TABLES = """
SELECT table_name, max(generation_expression IS NOT NULL) FROM information_schema.columns
WHERE table_schema = '{}' GROUP BY table_name
"""


def program(name: str) -> str | None:
    """Return where a program of MariaDB is; None if it is not installed."""
    # Debian keeps the server where only root looks.
    return shutil.which(name) or shutil.which(name, path='/usr/sbin')


def missing() -> str | None:
    """Say what is not installed; None if nothing."""
    if program('mariadbd') is None or program('mariadb-install-db') is None:
        return 'MariaDB (mariadbd, mariadb-install-db)'
    try:
        import pymysql  # noqa: F401 -- whether it is there is all that is asked
    except ImportError:
        return 'PyMySQL (pip install .[mariadb])'
    return None


class MariaDB(process.Process):
    """One server. Databases are made at will.

    :ivar authority: the file of the authority that has signed its certificate, for clients that want TLS.
    """

    def __init__(self, workspace: process.Workspace) -> None:
        super().__init__(workspace, 'mariadb')
        self.data = self.directory / 'data'
        self.authority, self._certificate = certificates.issue(self.directory, process.unprivileged())
        self.port = process.free_port()

    def command(self) -> Sequence[str]:
        """Return what is run."""
        server = program('mariadbd')
        assert server is not None, missing()
        settings = {
            'datadir': str(self.data),
            'tmpdir': str(self.data),
            'port': str(self.port),
            'socket': str(self.data / 'socket'),
            'pid-file': str(self.data / 'pid'),
            'init-file': str(self.directory / 'users.sql'),
            'ssl-cert': str(self._certificate),
            'ssl-key': str(self._certificate),
        }
        return [server, '--no-defaults', *(f'--{key}={value}' for key, value in (settings | SETTINGS).items())]

    def user(self) -> str | None:
        """Return as whom it runs: it refuses to be root."""
        return process.unprivileged()

    def ready(self) -> bool:
        """Whether it takes a connection."""
        try:
            self.administer('SELECT 1')
        except sa.exc.OperationalError:
            return False
        return True

    def start(self, wait: bool = True) -> None:
        """Start it, on the data that it had, if any."""
        if not self.data.exists():
            self._make_data()
        super().start(wait)

    def _make_data(self) -> None:
        (self.directory / 'users.sql').write_text(USERS)
        self.data.mkdir(mode=0o700)
        owner = process.credentials(self.user())
        if owner:
            os.chown(self.data, owner['user'], owner['group'])
        settings = [f'--{key}={value}' for key, value in SETTINGS.items() if key.startswith(('innodb', 'debug'))]
        install = program('mariadb-install-db')
        assert install is not None, missing()
        process.run(
            [install, '--no-defaults', f'--datadir={self.data}', '--skip-test-db', *settings],
            self.directory, self.user(),
        )  # fmt: skip

    # --- databases ---------------------------------------------------------------------------------------------------

    def url(self, database: str, user: str = USER) -> str:
        """Return the SQLAlchemy URL of a database."""
        return f'mysql+pymysql://{user}:{PASSWORD}@{process.HOST}:{self.port}/{database}'

    def create_database(self, name: str, template: str | None = None) -> str:
        """Make a database and return its URL.

        :param template: one to copy, whose tables with a computed column have no rows.
        """
        statements = [f'CREATE DATABASE {name}', f"GRANT ALL ON {name}.* TO '{USER}'@'{process.HOST}'"]
        for table, computed in self.administer(TABLES.format(template)) if template else ():
            statements.append(f'CREATE TABLE {name}.{table} LIKE {template}.{table}')
            if not computed:
                statements.append(f'INSERT INTO {name}.{table} SELECT * FROM {template}.{table}')  # noqa: S608 -- own names
        self.administer(*statements)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Delete a database, even with open connections."""
        self.administer(f'DROP DATABASE IF EXISTS {name}')

    def make_read_only(self, name: str, on: bool = True) -> None:
        """Refuse every change, of each database."""
        self.administer(f'SET GLOBAL read_only = {int(on)}')

    def administer(self, *statements: str) -> list[Any]:
        """Execute statements, and return the rows of the last one."""
        engine = sa.create_engine(self.url('', ADMINISTRATOR), poolclass=sa.NullPool)
        with contextlib.closing(engine.connect()) as connection:
            results = [connection.exec_driver_sql(statement) for statement in statements]
            connection.commit()
            return [*results[-1]] if results[-1].returns_rows else []
