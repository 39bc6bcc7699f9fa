# SPDX-License-Identifier: Apache-2.0

"""A private PostgreSQL: its own data, a port of its own on loopback, nothing on any socket file."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from tests.real.servers import process

USER = 'migrator'
PASSWORD = 'guessed'

#: Nothing needs to outlive a crash of the machine; but what is committed has to outlive a kill of the server, which it
#: does not with synchronous_commit off. Shared memory lies in files of the data directory, so that a kill leaves none
#: of it in /dev/shm.
SETTINGS = {
    'listen_addresses': process.HOST,
    'unix_socket_directories': '',
    'fsync': 'off',
    'full_page_writes': 'off',
    'dynamic_shared_memory_type': 'mmap',
    'shared_buffers': '32MB',
    'max_connections': '200',
    'log_line_prefix': '%m [%p] %d ',
    'log_min_error_statement': 'error',
    'log_lock_waits': 'on',
    'deadlock_timeout': '200ms',
}


def binaries() -> pathlib.Path | None:
    """Return the folder of PostgreSQL's programs, of its newest version here; None if there is none."""
    # Debian keeps the server's programs out of PATH
    found = sorted(pathlib.Path('/usr/lib/postgresql').glob('*/bin/initdb'), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    initdb = shutil.which('initdb')
    return pathlib.Path(initdb).resolve().parent if initdb else None


def missing() -> str | None:
    """Say what is not installed; None if nothing."""
    if binaries() is None:
        return 'PostgreSQL (initdb, postgres)'
    try:
        import psycopg2  # noqa: F401 - is it installed?
    except ImportError:
        return 'psycopg2 (pip install .[postgresql])'
    return None


class PostgreSQL(process.Process):
    """One server. Databases are made at will.

    :param settings: more than :data:`SETTINGS`, or others: ``{'shared_preload_libraries': 'pg_stat_statements'}``.
    """

    # "fast": who is connected is sent away
    stop_signal = signal.SIGINT

    def __init__(self, workspace: process.Workspace, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(workspace, 'postgresql')
        self._settings = {**SETTINGS, **(settings or {})}
        found = binaries()
        assert found is not None, missing()
        self._binaries = found
        self.data = self.directory / 'data'
        self.port = process.free_port()
        self._killed = False

    def command(self) -> Sequence[str]:
        """Return what is run."""
        settings = {'port': str(self.port)} | self._settings
        return [
            str(self._binaries / 'postgres'), '-D', str(self.data),
            *(part for key, value in settings.items() for part in ('-c', f'{key}={value}')),
        ]  # fmt: skip

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
        if self._killed:
            # It refuses to start while its lock file names a process that is not reaped yet, as on a busy machine.
            process.wait_until(self._is_reaped, 'the killed postgresql to be gone', self.start_timeout)
        super().start(wait)
        self._killed = False

    def _is_reaped(self) -> bool:
        try:
            os.kill(int((self.data / 'postmaster.pid').read_text().split()[0]), 0)
        except (FileNotFoundError, ProcessLookupError):
            return True
        return False

    def _make_data(self) -> None:
        self.data.mkdir(mode=0o700)
        password = self.directory / 'password'
        password.write_text(PASSWORD)
        owner = process.credentials(self.user())
        if owner:
            for path in (self.data, password):
                os.chown(path, owner['user'], owner['group'])
        process.run(
            [
                str(self._binaries / 'initdb'), '-D', str(self.data), '-U', USER, f'--pwfile={password}',
                '--auth=scram-sha-256', '--encoding=UTF8', '--locale=C.UTF-8', '--no-sync', '--no-instructions',
            ],
            self.directory, self.user(),
        )  # fmt: skip

    def kill(self) -> None:
        """End it at once, as a crash does."""
        super().kill()
        self._killed = True

    def close(self) -> None:
        """End it for good."""
        if self._killed:
            # A killed one leaves a segment of System V's shared memory, which only its successor knows how to free.
            self.start()
        self.stop()

    # --- databases ---------------------------------------------------------------------------------------------------

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        return f'postgresql+psycopg2://{USER}:{PASSWORD}@{process.HOST}:{self.port}/{database}'

    def create_database(self, name: str, template: str = 'template0') -> str:
        """Make a database and return its URL.

        :param template: one to copy, without any connection to it.
        """
        self.administer(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Delete a database, even with open connections."""
        self.administer(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def make_read_only(self, name: str, on: bool = True) -> None:
        """Refuse every change of a database, and end its connections, which could go on otherwise."""
        change = 'SET default_transaction_read_only = on' if on else 'RESET default_transaction_read_only'
        self.administer(f'ALTER DATABASE "{name}" {change}')
        end = 'SELECT pg_terminate_backend(pid) FROM pg_stat_activity'
        self.administer(f"{end} WHERE datname = '{name}'")

    def administer(self, statement: str) -> None:
        engine = sa.create_engine(
            self.url('postgres'),
            poolclass=sa.NullPool,
            isolation_level='AUTOCOMMIT',
            connect_args={'connect_timeout': 5},
        )
        with contextlib.closing(engine.connect()) as connection:
            connection.execute(sa.text(statement))
