# SPDX-License-Identifier: Apache-2.0

"""The database as one object, with an attribute for each noun."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from migrator import executors
from migrator.db import actions, cleanups, instances, migrations, purge, services, slots, takeovers
from migrator.db.engine import Engine, OneSession


class Database:
    """All tables.

    :param connection: an SQLAlchemy URL; SQLite serves a single process only.
    :param threads: the source of uuids, and of SQLite's time.
    :param engine: an engine to share; without it a new one is opened.
    :param options: further ``[database]`` options of oslo.db.
    """

    def __init__(
        self, connection: str, threads: executors.Threads, engine: Engine | None = None, **options: Any
    ) -> None:
        self.threads = threads
        self.engine = engine or Engine(connection, threads, **options)
        self.instances = instances.Instances(self.engine)
        self.definitions = instances.Definitions(self.engine)
        self.migrations = migrations.Migrations(self.engine, threads)
        self.takeovers = takeovers.Takeovers(self.engine)
        self.slots = slots.SlotReader(self.engine)
        self.services = services.Services(self.engine, threads)
        self.conductors = services.Conductors(self.engine, self.services)
        self.requests = actions.Requests(self.engine)
        self.cleanups = cleanups.Cleanups(self.engine)
        self.actions = actions.Actions(self.engine)
        self.purge = purge.Purge(self.engine)

    @contextlib.contextmanager
    def one_session(self) -> Iterator[Database]:
        """Yield a database that only reads, and that reads everything in one session."""
        with self.engine.reader() as session:
            held: Any = OneSession(session)
            yield Database('', self.threads, engine=held)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()
