# SPDX-License-Identifier: Apache-2.0


"""Tests that an instance's row and allocation are created and deleted together, whatever fails."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from migrator import exception
from migrator.conductor.registry import consumer_of, create_instance, delete_instance
from migrator.objects import Flavor, Instance
from migrator.placement_client import allocation_state, allocations
from migrator.testing import backends
from migrator.testing.cloud import SimulatedCloud
from migrator.testing.placement_faults import Fault

UUID = '00000000-0000-4000-8000-00000000abcd'
FLAVOR = Flavor(name='small', vcpus=2, memory_mb=256, root_gb=1)
CLAIM = {'VCPU': 2, 'MEMORY_MB': 256, 'DISK_GB': 1}


class Registry:
    """A cloud with one host, and the row and the allocation of one guest."""

    def __init__(self, cloud: SimulatedCloud) -> None:
        self.cloud = cloud
        (self.provider,) = [node.uuid for node in cloud.database.services.list_nodes()]

    def wanted(self, **fields: object) -> Instance:
        values: dict[str, object] = {'host': 'host1', 'node': 'host1', 'flavor': FLAVOR, **fields}
        return Instance(uuid=UUID, name='guest', project_id='p', user_id='u', **values)  # type: ignore[arg-type]

    def create(self, **fields: object) -> Instance:
        return create_instance(self.cloud.database, self.cloud.placement_client, self.wanted(**fields))

    def delete(self) -> None:
        delete_instance(self.cloud.database, self.cloud.placement_client, UUID)

    def read(self) -> tuple[bool, dict[str, dict[str, int]]]:
        """Return whether a row exists, and the allocations in Placement."""
        rows = self.cloud.database.instances.list({'uuid': UUID})
        held = allocations.read(self.cloud.placement_client, UUID)
        return bool(rows), {uuid: dict(amounts) for uuid, amounts in held.allocations.items()}

    @property
    def both(self) -> tuple[bool, dict[str, dict[str, int]]]:
        return True, {self.provider: CLAIM}


NEITHER: tuple[bool, dict[str, dict[str, int]]] = (False, {})


@pytest.fixture
def registry(backend: backends.Backend) -> Iterator[Registry]:
    cloud = SimulatedCloud(backend.directory, hosts=1, backend=backend)
    yield Registry(cloud)
    cloud.stop()


class TestCreate:
    def test_create_makes_row_and_allocation(self, registry: Registry) -> None:
        stored = registry.create()
        assert (stored.vm_state, stored.task_state, stored.host) == ('active', None, 'host1')
        assert registry.read() == registry.both

    @pytest.mark.parametrize('fault', [Fault.UNREACHABLE, Fault.TIMEOUT_NOT_DONE, Fault.ERROR_NOT_DONE, Fault.REFUSED])
    def test_failed_write_to_placement_leaves_neither(self, registry: Registry, fault: Fault) -> None:
        registry.cloud.adapter.inject(fault, method='PUT')
        with pytest.raises((exception.PlacementUnreachable, exception.PlacementRefused)):
            registry.create()
        assert registry.read() == NEITHER
        registry.create()
        assert registry.read() == registry.both

    @pytest.mark.parametrize('fault', [Fault.TIMEOUT_DONE, Fault.ERROR_DONE])
    def test_write_with_a_lost_reply_makes_both(self, registry: Registry, fault: Fault) -> None:
        registry.cloud.adapter.inject(fault, method='PUT')
        registry.create()
        assert registry.read() == registry.both

    def test_repeated_create_takes_over_an_unconfirmed_allocation(self, registry: Registry) -> None:
        registry.cloud.adapter.inject(Fault.TIMEOUT_DONE, method='PUT')
        registry.cloud.adapter.inject(Fault.UNREACHABLE, method='GET', url='/allocations')
        with pytest.raises(exception.PlacementUnreachable):
            registry.create()
        assert registry.read() == (False, {registry.provider: CLAIM})
        registry.create()
        assert registry.read() == registry.both

    def test_create_without_room_leaves_neither(self, registry: Registry) -> None:
        huge = Flavor(name='huge', vcpus=1000)
        with pytest.raises(exception.PlacementRefused):
            registry.create(flavor=huge)
        assert registry.read() == NEITHER

    def test_create_on_unknown_host_leaves_neither(self, registry: Registry) -> None:
        with pytest.raises(exception.ComputeHostNotFound, match='nowhere'):
            registry.create(host='nowhere')
        assert registry.read() == NEITHER

    def test_equal_allocation_of_another_service_is_taken_over(self, registry: Registry) -> None:
        consumer = consumer_of(registry.wanted())
        allocations.claim(registry.cloud.placement_client, consumer, {registry.provider: CLAIM}, generation=None)
        registry.create()
        assert registry.read() == registry.both

    def test_different_allocation_is_refused_and_kept(self, registry: Registry) -> None:
        consumer = consumer_of(registry.wanted())
        other = {registry.provider: {'VCPU': 1}}
        allocations.claim(registry.cloud.placement_client, consumer, other, generation=None)
        with pytest.raises(exception.AllocationExists) as caught:
            registry.create()
        assert UUID in str(caught.value)
        assert "'VCPU': 1}" in str(caught.value)
        assert "'VCPU': 2" in str(caught.value)
        assert registry.read() == (False, other)

    @pytest.mark.real_placement
    def test_orphan_consumer_is_taken_over(self, registry: Registry) -> None:
        """Placement was killed during an earlier write."""
        consumer = consumer_of(registry.wanted())
        allocations.claim(registry.cloud.placement_client, consumer, {registry.provider: CLAIM}, generation=None)
        (file,) = registry.cloud.backend.directory.glob('**/placement*.sqlite')
        with sqlite3.connect(file) as database:
            database.execute('DELETE FROM allocations')
            database.execute('UPDATE consumers SET generation = 0')
        database.close()
        assert registry.read() == NEITHER
        registry.create()
        assert registry.read() == registry.both

    def test_second_create_is_refused_and_changes_nothing(self, registry: Registry) -> None:
        registry.create()
        with pytest.raises(exception.InstanceExists):
            registry.create()
        assert registry.read() == registry.both

    def test_repeated_create_finishes_a_row_without_allocation(self, registry: Registry) -> None:
        """The process was lost between the two writes."""
        registry.cloud.database.instances.create(registry.wanted())
        with pytest.raises(exception.InstanceExists):
            registry.create(flavor=Flavor(name='another'))
        assert registry.read() == (True, {})
        registry.create()
        assert registry.read() == registry.both


class TestDelete:
    def test_delete_removes_row_and_allocation(self, registry: Registry) -> None:
        registry.create()
        registry.delete()
        assert registry.read() == NEITHER
        with pytest.raises(exception.InstanceNotFound):
            registry.delete()

    def test_delete_without_placement_changes_nothing(self, registry: Registry) -> None:
        registry.create()
        registry.cloud.adapter.inject(Fault.UNREACHABLE)
        with pytest.raises(exception.PlacementUnreachable):
            registry.delete()
        assert registry.read() == registry.both
        assert registry.cloud.database.instances.get(UUID).task_state is None

    @pytest.mark.parametrize('fault', [Fault.TIMEOUT_DONE, Fault.TIMEOUT_NOT_DONE, Fault.ERROR_DONE, Fault.UNREACHABLE])
    def test_repeated_delete_finishes_one_that_was_cut_off(self, registry: Registry, fault: Fault) -> None:
        registry.create()
        registry.cloud.adapter.inject(fault, method='PUT')
        with pytest.raises(exception.PlacementUnreachable):
            registry.delete()
        assert registry.cloud.database.instances.get(UUID).task_state == 'deleting'
        answer = registry.cloud.live_migrate(UUID)
        assert (answer.status_int, 'deleting' in answer.text) == (409, True)
        registry.delete()
        assert registry.read() == NEITHER

    def test_delete_repeats_after_a_conflict(self, registry: Registry) -> None:
        registry.create()
        registry.cloud.adapter.inject(Fault.CONFLICT, method='PUT', times=2)
        registry.delete()
        assert registry.read() == NEITHER

    def test_delete_in_migration_is_refused_and_changes_nothing(self, registry: Registry) -> None:
        registry.create()
        registry.cloud.kill('conductor1')
        assert registry.cloud.live_migrate(UUID).status_int == 202
        with pytest.raises(exception.MigrationInProgress):
            registry.delete()
        assert registry.read() == registry.both
        assert registry.cloud.database.instances.get(UUID).task_state == 'migrating'


def test_consumer_of_instance_has_its_project_and_type() -> None:
    instance = Instance(uuid=UUID, name='n', project_id='p', user_id='u', host='h', node='h', flavor=FLAVOR)
    assert consumer_of(instance) == allocation_state.Consumer(
        uuid=UUID, consumer_type='INSTANCE', project_id='p', user_id='u'
    )
