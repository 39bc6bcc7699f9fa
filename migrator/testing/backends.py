# SPDX-License-Identifier: Apache-2.0
"""What a cloud stands on: its database, and its Placement.

Making them costs more than a migration does. Where thousands of clouds are needed, one after the other, they share a
:class:`SharedGround`, which is as if new for each.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import pathlib
import re
import sqlite3
from typing import Any

from migrator import executors
from migrator.db import sync, tables, watch
from migrator.db.engine import Engine
from migrator.testing.fake_placement import service
from migrator.testing.placement import InProcessPlacement

_FILE = 'migrator.sqlite'
_CLOUDS_PER_COLLECTION = 20
_WRITES = re.compile(r'\s*(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)')


def in_memory() -> str | None:
    """Return a directory whose files are in memory; None where there is none, which is right for tempfile too."""
    return '/dev/shm' if os.access('/dev/shm', os.W_OK) else None  # noqa: S108 -- a name of its own is made in it


class Backend:
    """A database with its schema, and the real Placement, both in files of one directory.

    :param directory: what is there already is opened, as after a restart.
    :ivar writes: table -> how many statements of its clouds' services have written to it: for who looks again only
        where there may be something new.
    :ivar tables: reads the database past every engine.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = pathlib.Path(directory)
        self.writes: collections.Counter[str] = collections.Counter()
        self.tables = tables.Tables(str(self.directory / _FILE))

    def engine(self, threads: executors.Threads) -> Engine:
        """Return the engine of a new cloud's services.

        :param threads: whose clock is the database's.
        """
        engine = self._new_engine(threads)
        sync.sync(engine)
        self._watch(engine)
        return engine

    def _watch(self, engine: Engine) -> None:
        watch.watch(engine, self._note_statement, lambda: None)

    def _note_statement(self, statement: str) -> None:
        found = _WRITES.match(statement)
        if found:
            self.writes[found[1]] += 1

    def second_engine(self, threads: executors.Threads) -> Engine:
        """Return an engine on the same database for whoever looks at it from outside."""
        return self._new_engine(threads)

    def placement(self) -> Any:
        """Return the Placement of a new cloud."""
        return InProcessPlacement(self.directory)

    def leave(self, engine: Engine, placement: Any) -> None:
        """Close what a cloud has used."""
        engine.dispose()
        placement.close()
        self.tables.close()

    def connections(self) -> int:
        """Return how many connections to the database are in use, by open files; 0 where the system does not tell."""
        self.tables.close()
        wanted = os.path.realpath(self.directory / _FILE)
        found = 0
        with contextlib.suppress(OSError):
            for number in os.listdir('/proc/self/fd'):
                with contextlib.suppress(OSError):
                    found += os.readlink(f'/proc/self/fd/{number}') == wanted
        return found

    def _new_engine(self, threads: executors.Threads, keep_connections: bool = False) -> Engine:
        # Nobody waits for the disk: what outlives a machine's crash is no concern of a cloud in one process. And nobody
        # else wants the processor that oslo.db would give up after each transaction.
        return Engine(
            f'sqlite:///{self.directory}/{_FILE}',
            threads,
            sqlite_synchronous=False,
            thread_checkin=False,
            keep_connections=keep_connections,
        )


class SharedBackend(Backend):
    """For clouds that come one after the other: the engines stay, and with them all that SQLAlchemy has compiled.

    :param directory: best in memory (``/dev/shm``).
    :param placement: makes the Placement of each cloud from a directory; a fast fake, unless given.
    """

    def __init__(self, directory: str | os.PathLike[str], placement: Any = None) -> None:
        super().__init__(directory)
        self._placement = placement or service.FakePlacement
        self._kept: Any = None
        self._engines: dict[str, Engine] = {}
        self._left = 0

    def engine(self, threads: executors.Threads) -> Engine:
        """Return the engine, its tables empty."""
        known = 'services' in self._engines
        engine = self._shared('services', threads)
        if known:
            self._empty()
        else:
            sync.sync(engine)
            self._watch(engine)
        return engine

    def second_engine(self, threads: executors.Threads) -> Engine:
        """Return the other engine."""
        return self._shared('outside', threads)

    def placement(self) -> Any:
        """Return an empty Placement: the same as before, if it can be emptied."""
        if hasattr(self._kept, 'empty'):
            self._kept.empty()
        else:
            self._kept = self._placement(self.directory)
        return self._kept

    def leave(self, engine: Engine, placement: Any) -> None:
        """Keep the engine."""
        placement.close()
        self._left += 1
        # Who has turned the collector off for speed has it run now and then between two clouds.
        if not gc.isenabled() and self._left % _CLOUDS_PER_COLLECTION == 0:
            gc.collect()

    def connections(self) -> int:
        """Return how many connections are in use; those that are only kept are not counted."""
        return sum(engine.connections_in_use for engine in self._engines.values())

    def close(self) -> None:
        """Close the engines."""
        for engine in self._engines.values():
            engine.dispose()
        self.tables.close()

    def _shared(self, name: str, threads: executors.Threads) -> Engine:
        engine = self._engines.get(name)
        if engine is None:
            engine = self._engines[name] = self._new_engine(threads, keep_connections=True)
        # What the cloud before has hung on it goes with that cloud.
        engine.boundary = lambda what: None
        engine.on_commit = lambda: None
        engine._threads = threads
        return engine

    def _empty(self) -> None:
        connection = sqlite3.connect(self.directory / _FILE)
        try:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (name,) in tables:
                if name not in ('alembic_version', 'sqlite_sequence'):
                    connection.execute(f'DELETE FROM "{name}"')  # noqa: S608 -- names from the schema itself
            connection.commit()
        finally:
            connection.close()
