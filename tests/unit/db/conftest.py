# SPDX-License-Identifier: Apache-2.0


"""Fixtures of this folder: a database in a file, with a clock that the test sets."""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from migrator import context, executors
from migrator.db import api
from migrator.db.conductors import Owned
from migrator.objects import ComputeNode, Flavor, Instance, Migration, protocol
from tests import templates

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Clock:
    """A clock that advances only when the test advances it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime.datetime:
        return START + datetime.timedelta(seconds=self.seconds)


@dataclasses.dataclass
class Scene:
    """A database, and methods that store the usual objects in it."""

    database: api.Database
    clock: Clock
    threads: executors.NativeThreads
    connection: str
    numbers: int = 0

    def uuid(self) -> str:
        self.numbers += 1
        return f'00000000-0000-4000-8000-{self.numbers:012d}'

    def instance(self, host: str = 'host1', **fields: Any) -> Instance:
        """Store an instance."""
        wanted = {
            'uuid': self.uuid(),
            'name': f'guest{self.numbers}',
            'project_id': 'blue',
            'user_id': 'ada',
            'flavor': Flavor(name='small'),
            **fields,
        }
        return self.database.instances.create(Instance(host=host, node=host, **wanted))

    def wanted(self, instance: Instance, **fields: Any) -> Migration:
        """Return a migration of an instance that is not stored."""
        return Migration(
            **{
                'uuid': self.uuid(),
                'instance_uuid': instance.uuid,
                'project_id': 'blue',
                'user_id': 'ada',
                'source_compute': instance.host,
                'source_node': instance.node,
                **fields,
            }
        )

    def migration(self, instance: Instance | None = None, request_id: str | None = None, **fields: Any) -> Migration:
        """Accept a migration, of a new instance if none is given."""
        wanted = self.wanted(instance or self.instance(), **fields)
        self.database.migrations.accept(context.admin_context(request_id), wanted, 'live-migration')
        return self.database.migrations.get(wanted.uuid)

    def conductor(self, name: str = 'conductor1', lease: float = 15.0) -> str:
        """Register a conductor, and return its id."""
        found = self.uuid()
        self.database.conductors.register(found, name, lease)
        return found

    def owned(self, owner: str | None = None, **fields: Any) -> Migration:
        """Accept a migration, and have a conductor adopt it."""
        migration = self.migration(**fields)
        adopted = self.adopt(migration.uuid, owner or self.conductor())
        assert adopted is not None
        return adopted.migration

    def adopt(self, uuid: str, owner: str) -> Owned | None:
        """Have a conductor adopt a migration, whichever conductor has its source."""
        taken = self.database.takeovers.adopt([uuid], owner)
        return None if taken is None else taken.owned[0]

    def host(self, name: str, boot_id: str | None = None, node: bool = True, version: int = 4) -> str:
        """Report the start of a compute host, and return its boot_id."""
        boot = boot_id or self.uuid()
        found = ComputeNode(uuid=self.uuid(), host=name, node=name) if node else None
        known = [one.boot_id for one in self.database.services.list(binary='nova-compute', host=name)]
        replaces = known[0] if known else None
        report = protocol.HostReport(host=name, boot_id=boot, version=version, node=found, replaces=replaces)
        self.database.migrations.begin_boot(report, self.database.services)
        return boot


@pytest.fixture
def scene(tmp_path: pathlib.Path) -> Iterator[Scene]:
    file = templates.database(tmp_path)
    clock = Clock()
    threads = executors.NativeThreads(clock)
    database = api.Database(f'sqlite:///{file}', threads)
    yield Scene(database, clock, threads, f'sqlite:///{file}')
    database.close()
