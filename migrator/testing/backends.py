# SPDX-License-Identifier: Apache-2.0

"""The database and the Placement of a cloud.

Making them takes longer than a migration. Thousands of clouds that run one after the other share a
:class:`SharedBackend`, which is emptied for each of them.
"""

from __future__ import annotations

import collections
import functools
import gc
import operator
import os
import pathlib
import re
import sqlite3
from typing import Any

from oslo_policy import policy

from migrator import executors
from migrator.api import policies
from migrator.conf import opts
from migrator.db.schema import sync
from migrator.db.sql.engine import Engine
from migrator.db.sql.watching import watch
from migrator.testing import tables
from migrator.testing.fake_placement import service
from migrator.testing.kept_conf import KeptConf
from migrator.testing.placement import InProcessPlacement

_FILE = 'migrator.sqlite'
_CLOUDS_PER_COLLECTION = 100
#: What a policy may read of a caller.
_IDENTITY = operator.attrgetter(
    *('user_id', 'user_domain_id', 'system_scope', 'domain_id', 'project_id', 'project_domain_id', 'roles', 'is_admin'),
    *('is_admin_project', 'service_user_id', 'service_user_domain_id', 'service_project_id', 'service_roles'),
    'service_project_domain_id',
)
_WRITES = re.compile(r'\s*(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)')


@functools.lru_cache(maxsize=1000)
def _written_table(statement: str) -> str:
    """Return the table that a statement writes to, or ''."""
    found = _WRITES.match(statement)
    return found[1] if found else ''


def in_memory() -> str | None:
    """Return a directory whose files are in memory, or None if the system has no such directory.

    Both are valid as the ``dir`` of :mod:`tempfile`.
    """
    return '/dev/shm' if os.access('/dev/shm', os.W_OK) else None  # noqa: S108 -- callers make a unique name in it


def _keep_verdicts(enforcer: policy.Enforcer) -> None:
    """Let an enforcer whose rules do not change judge each case once.

    oslo.policy inspects the signature of each check, each time.
    """
    authorize: Any = enforcer.authorize
    verdicts: dict[tuple[Any, ...], bool] = {}

    def kept(rule: str, target: dict[str, Any], creds: Any) -> bool:
        case = rule, repr(target), repr(_IDENTITY(creds))
        if case not in verdicts:
            verdicts[case] = authorize(rule, target, creds)  # an error is not kept
        return verdicts[case]

    vars(enforcer)['authorize'] = kept


class Backend:
    """A database with its schema and the real Placement, both in files of one directory.

    :param directory: existing files in it are opened, as after a restart.
    :ivar writes: table -> the number of statements with which the services of its clouds have written to it. A reader
        compares it to skip tables that have not changed.
    :ivar tables: reads the database without any engine.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = pathlib.Path(directory)
        self.writes: collections.Counter[str] = collections.Counter()
        self.tables = tables.Tables(str(self.directory / _FILE))
        self._engines: list[Engine] = []

    def engine(self, threads: executors.Threads) -> Engine:
        """Return the engine for the services of a new cloud.

        :param threads: the threads whose clock the database uses.
        """
        engine = self._new_engine(threads)
        sync.sync(engine)
        self._watch(engine)
        return engine

    def _watch(self, engine: Engine) -> None:
        watch(engine, self._note_statement)

    def _note_statement(self, statement: str, _values: object) -> None:
        table = _written_table(statement)
        if table:
            self.writes[table] += 1

    @property
    def url(self) -> str:
        """The URL of the database, for another process."""
        return f'sqlite:///{self.directory}/{_FILE}'

    def second_engine(self, threads: executors.Threads) -> Engine:
        """Return an engine on the same database for observers; its writes are not counted."""
        return self._new_engine(threads)

    def leave_second(self, engine: Engine) -> None:
        """Close the engine of an observer."""
        engine.dispose()

    def placement(self) -> Any:
        """Return the Placement of a new cloud."""
        return InProcessPlacement(self.directory)

    def conf(self) -> KeptConf:
        """Return a configuration with the defaults of all options, for one service of a cloud."""
        conf = KeptConf()
        opts.register_opts(conf)
        conf([], project='migrator', default_config_files=[], default_config_dirs=[])
        return conf

    def enforcer(self) -> policy.Enforcer | None:
        """Return the policies of a new cloud; None: it reads its own, from a file if there is one."""
        return None

    def leave(self, engine: Engine, placement: Any) -> None:
        """Close the engines and the Placement of a cloud that has ended."""
        placement.close()
        self.close()

    def close(self) -> None:
        """Close the engines and the table reader."""
        for engine in self._engines:
            engine.dispose()
        self.tables.close()

    def connections(self) -> int:
        """Return how many connections to the database are in use; idle ones are not counted."""
        return sum(engine.connections_in_use for engine in self._engines)

    def _new_engine(self, threads: executors.Threads) -> Engine:
        # A cloud in one process need not survive a crash of the machine, so commits do not wait for the disk.
        self._engines.append(Engine(self.url, threads, sqlite_synchronous=False))
        return self._engines[-1]


class SharedBackend(Backend):
    """A backend for clouds that run one after the other.

    The engines stay, and with them all that SQLAlchemy has compiled.

    :param directory: a directory in memory (``/dev/shm``) is the fastest.
    :param placement: makes the Placement of a cloud from a directory. The default is the fast fake.
    """

    def __init__(self, directory: str | os.PathLike[str], placement: Any = None) -> None:
        super().__init__(directory)
        self._placement = placement or service.FakePlacement
        self._kept: Any = None
        self._known: dict[str, Engine] = {}
        #: Configurations: those of the present cloud, and those that no cloud has.
        self._confs: list[KeptConf] = []
        self._free_confs: list[KeptConf] = []
        self._enforcer: policy.Enforcer | None = None
        #: What empties all tables.
        self._emptying = ''
        self._left = 0

    def engine(self, threads: executors.Threads) -> Engine:
        """Return the shared engine with empty tables."""
        known = 'services' in self._known
        engine = self._shared('services', threads)
        if known:
            self._empty()
        else:
            sync.sync(engine)
            self._watch(engine)
        return engine

    @property
    def url(self) -> str:
        """The URL of the database, for another process."""
        return f'sqlite:///{self.directory}/{_FILE}'

    def second_engine(self, threads: executors.Threads) -> Engine:
        """Return the shared engine for observers."""
        return self._shared('outside', threads)

    def leave_second(self, engine: Engine) -> None:
        """Keep the engine for the next observer."""

    def placement(self) -> Any:
        """Return an empty Placement: the previous one if it can be emptied, else a new one."""
        if hasattr(self._kept, 'empty'):
            self._kept.empty()
        else:
            self._kept = self._placement(self.directory)
        return self._kept

    def conf(self) -> KeptConf:
        """Return a configuration that no other service of the present cloud has."""
        conf = self._free_confs.pop() if self._free_confs else super().conf()
        self._confs.append(conf)
        return conf

    def enforcer(self) -> policy.Enforcer:
        """Return the policies of all clouds, the defaults. No file is looked for at each request."""
        if self._enforcer is None:
            self._enforcer = policies.make_enforcer(super().conf())
            self._enforcer.load_rules()
            self._enforcer.use_conf = False
            _keep_verdicts(self._enforcer)
        return self._enforcer

    def leave(self, engine: Engine, placement: Any) -> None:
        """Close the Placement, and keep the engine and the configurations for the next cloud."""
        placement.close()
        for conf in self._confs:
            conf.restore()
        self._free_confs += [conf for conf in self._confs if not conf.is_spoiled]
        self._confs = []
        self._left += 1
        # A process that has turned the collector off for speed collects here, between two clouds.
        if not gc.isenabled() and self._left % _CLOUDS_PER_COLLECTION == 0:
            gc.collect()

    def _shared(self, name: str, threads: executors.Threads) -> Engine:
        engine = self._known.get(name)
        if engine is None:
            engine = self._known[name] = self._new_engine(threads)
        # The hooks and the threads belong to the previous cloud.
        engine.boundary = lambda what: None
        engine.on_commit = lambda: None
        engine.threads = threads
        return engine

    def _empty(self) -> None:
        connection = sqlite3.connect(self.directory / _FILE)
        try:
            if not self._emptying:
                found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
                left_out = ('alembic_version', 'sqlite_sequence')
                deletes = [f'DELETE FROM "{name}";' for (name,) in found if name not in left_out]  # noqa: S608 -- the schema's
                self._emptying = f'BEGIN;{"".join(deletes)}COMMIT;'
            connection.executescript(self._emptying)
            self.tables.forget()
        finally:
            connection.close()
