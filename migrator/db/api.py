# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""The database as the rest of migrator sees it: one object, one noun an attribute."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from migrator import executors
from migrator.db import actions, conductors, debts, instances, migrations, purge, services, standing, wishes
from migrator.db import engine as engines


class Database:
    """All tables.

    :param connection: an SQLAlchemy URL; SQLite serves a single process only.
    :param threads: where uuids, and SQLite's time, come from.
    :param engine: an engine to share instead of opening one.
    :param options: more of oslo.db's ``[database]`` options.
    """

    def __init__(
        self, connection: str, threads: executors.Threads, engine: engines.Engine | None = None, **options: Any
    ) -> None:
        self.threads = threads
        self.engine = engine or engines.Engine(connection, threads, **options)
        self.instances = instances.Instances(self.engine)
        self.migrations = migrations.Migrations(self.engine, threads)
        self.services = services.Services(self.engine, threads)
        self.conductors = conductors.Conductors(self.engine, self.services)
        self.wishes = wishes.Wishes(self.engine)
        self.debts = debts.Debts(self.engine)
        self.actions = actions.Actions(self.engine)
        self.purge = purge.Purge(self.engine)
        self.standing = standing.Standing(self.engine)

    @contextlib.contextmanager
    def one_session(self) -> Iterator[Database]:
        """Return a database from which several things are read at the cost of one session; nothing can be written."""
        with self.engine.reader() as session:
            held: Any = engines.OneSession(session)
            yield Database('', self.threads, engine=held)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()
