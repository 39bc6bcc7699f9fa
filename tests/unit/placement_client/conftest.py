# SPDX-License-Identifier: Apache-2.0

"""Fixtures of this folder: the real Placement in this process, and hosts in it."""

import dataclasses
import uuid

import pytest

from migrator.placement_client import allocation_state, allocations
from migrator.placement_client.client import PlacementClient
from tests.unit import placements


@dataclasses.dataclass
class World:
    """Hosts in Placement, each with one provider unless a test adds more."""

    client: PlacementClient

    def host(self, name='host', parent=None, traits=(), **totals):
        """Create a provider.

        ``totals`` by resource class are numbers or whole inventories. Without them the provider has the usual ones.
        """
        one = str(uuid.uuid4())
        url = f'/resource_providers/{one}'
        named = {'uuid': one, 'name': f'{name}-{one}', 'parent_provider_uuid': parent}
        generation = self.client.post('/resource_providers', named).json()['generation']
        wanted = totals or {'VCPU': 8, 'MEMORY_MB': 16384}
        inventories = {key: of if isinstance(of, dict) else {'total': of} for key, of in wanted.items()}
        body = {'resource_provider_generation': generation, 'inventories': inventories}
        generation = self.client.put(f'{url}/inventories', body).json()['resource_provider_generation']
        if traits:
            self.client.put(f'{url}/traits', {'resource_provider_generation': generation, 'traits': list(traits)})
        return one

    def share(self, lender, *borrowers):
        """Put providers into one aggregate."""
        aggregate = str(uuid.uuid4())
        for provider in (lender, *borrowers):
            found = self.client.read(f'/resource_providers/{provider}/aggregates')
            generation = found['resource_provider_generation']
            self.client.put(
                f'/resource_providers/{provider}/aggregates',
                {'aggregates': [*found['aggregates'], aggregate], 'resource_provider_generation': generation},
            )


def consumer(consumer_type=allocation_state.INSTANCE):
    """Return a new consumer."""
    return allocation_state.Consumer(
        uuid=str(uuid.uuid4()), consumer_type=consumer_type, project_id='blue', user_id='ada'
    )


@pytest.fixture(scope='session')
def _running(tmp_path_factory):
    with placements.running(tmp_path_factory.mktemp('placement')) as running:
        yield running


@pytest.fixture
def in_process(_running):
    """The real Placement, empty."""
    _running.empty()
    return _running


@pytest.fixture
def client(in_process):
    return PlacementClient(in_process.adapter())


@pytest.fixture
def world(client):
    return World(client)


@pytest.fixture
def new_consumer():
    return consumer


@pytest.fixture
def new_pair(client):
    """Return a function that claims the source for a new instance, before its migration."""

    def new_pair(source, destination):
        instance, migration = consumer(), consumer(allocation_state.MIGRATION)
        allocations.claim(client, instance, source, generation=None)
        return allocation_state.Pair(instance=instance, migration=migration, source=source, destination=destination)

    return new_pair
