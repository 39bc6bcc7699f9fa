# SPDX-License-Identifier: Apache-2.0

"""An audit keeps a page in memory, however many instances and consumers there are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from migrator import executors
from migrator.conductor import audit
from migrator.db import models
from migrator.db.api import Database
from migrator.objects import Flavor, Instance
from migrator.placement_client import allocation_state, allocations
from migrator.placement_client.client import PlacementClient
from migrator.testing import backends
from migrator.testing.fake_placement.service import FakePlacement

HOSTS = 20
FLAVOR = Flavor(name='small', vcpus=1, memory_mb=1, root_gb=0)


def uuid_of(kind: int, number: int) -> str:
    """Return the uuid of a root (1) or a guest (2)."""
    return f'00000000-0000-4000-800{kind}-{number:012d}'


class Site:
    """Hosts with guests, whose allocations are right."""

    def __init__(self, backend: backends.SharedBackend) -> None:
        threads = executors.NativeThreads()
        self.database = Database('', threads, engine=backend.engine(threads))
        self.client = PlacementClient(FakePlacement().adapter())
        self.guests = 0
        for number in range(HOSTS):
            self._add_host(number)

    def _add_host(self, number: int) -> None:
        uuid, name = uuid_of(1, number), f'host{number}'
        node = {
            'uuid': uuid,
            'host': name,
            'node': name,
            'hypervisor_type': 'fake',
            'hypervisor_version': 1,
            'host_ip': '192.0.2.1',
            'cpu_info': {},
            'providers': [],
        }
        with self.database.engine.sa_engine.begin() as connection:
            connection.execute(sa.insert(models.COMPUTE_NODES), [node])
        self.client.post('/resource_providers', {'uuid': uuid, 'name': name})
        inventories = {resource: {'total': 1000} for resource in FLAVOR.resources()}
        body = {'resource_provider_generation': 0, 'inventories': inventories}
        self.client.put(f'/resource_providers/{uuid}/inventories', body)

    def boot(self, guests: int) -> None:
        """Boot guests until there is this number of them."""
        for number in range(self.guests, guests):
            host = number % HOSTS
            guest = Instance(
                uuid=uuid_of(2, number),
                name=f'guest{number}',
                project_id='blue',
                user_id='ada',
                host=f'host{host}',
                node=f'host{host}',
                flavor=FLAVOR,
            )
            self.database.instances.create(guest)
            owner = allocation_state.Consumer(
                uuid=guest.uuid, consumer_type=allocation_state.INSTANCE, project_id='blue', user_id='ada'
            )
            allocations.claim(self.client, owner, {uuid_of(1, host): FLAVOR.resources()}, generation=None)
        self.guests = guests

    def peak(self) -> int:
        """Return the most bytes that an audit has in memory at once."""
        # The texts of statements and the like are made once, before the count.
        assert audit.audit(self.database, self.client) == []
        tracemalloc.start()
        try:
            assert audit.audit(self.database, self.client) == []
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def test_memory_of_an_audit_does_not_grow_with_the_guests(
    new_backend: Callable[[], backends.SharedBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, '_BATCH', 50)
    site, peaks = Site(new_backend()), []
    for guests in (200, 700):
        site.boot(guests)
        peaks.append(site.peak())
    # The allocations on one provider are read at once. All rows and allocations in memory took 1,800 bytes each.
    assert (peaks[1] - peaks[0]) / 500 < 512, peaks
