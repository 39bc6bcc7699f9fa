# SPDX-License-Identifier: Apache-2.0


"""The row and the allocation of an instance are made and deleted together, whatever happens on the way to Placement."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from migrator import exception
from migrator.conductor import instances
from migrator.objects import Flavor, Instance
from migrator.placement_client import allocation_state, allocations
from migrator.testing import backends
from migrator.testing.cloud import SimulatedCloud
from migrator.testing.placement_faults import Fault

UUID = '00000000-0000-4000-8000-00000000abcd'
FLAVOR = Flavor(name='small', vcpus=2, memory_mb=256, root_gb=1)
CLAIM = {'VCPU': 2, 'MEMORY_MB': 256, 'DISK_GB': 1}


class Books:
    """A cloud with one host, and what its two books say of one guest."""

    def __init__(self, cloud: SimulatedCloud) -> None:
        self.cloud = cloud
        (self.provider,) = [node.uuid for node in cloud.database.services.list_nodes()]

    def wanted(self, **fields: object) -> Instance:
        values: dict[str, object] = {'host': 'host1', 'node': 'host1', 'flavor': FLAVOR, **fields}
        return Instance(uuid=UUID, name='guest', project_id='p', user_id='u', **values)  # type: ignore[arg-type]

    def create(self, **fields: object) -> Instance:
        return instances.create(self.cloud.database, self.cloud.placement_client, self.wanted(**fields))

    def delete(self) -> None:
        instances.delete(self.cloud.database, self.cloud.placement_client, UUID)

    def say(self) -> tuple[bool, dict[str, dict[str, int]]]:
        """Whether there is a row, and what Placement says."""
        rows = self.cloud.database.instances.list({'uuid': UUID})
        held = allocations.read(self.cloud.placement_client, UUID)
        return bool(rows), {uuid: dict(amounts) for uuid, amounts in held.allocations.items()}

    @property
    def both(self) -> tuple[bool, dict[str, dict[str, int]]]:
        return True, {self.provider: CLAIM}


NEITHER: tuple[bool, dict[str, dict[str, int]]] = (False, {})


@pytest.fixture
def books(backend: backends.Backend) -> Iterator[Books]:
    cloud = SimulatedCloud(backend.directory, hosts=1, backend=backend)
    yield Books(cloud)
    cloud.stop()


class TestCreate:
    def test_it_makes_both(self, books: Books) -> None:
        stored = books.create()
        assert (stored.vm_state, stored.task_state, stored.host) == ('active', None, 'host1')
        assert books.say() == books.both

    @pytest.mark.parametrize('fault', [Fault.UNREACHABLE, Fault.TIMEOUT_NOT_DONE, Fault.ERROR_NOT_DONE, Fault.REFUSED])
    def test_what_placement_did_not_do_leaves_neither(self, books: Books, fault: Fault) -> None:
        books.cloud.adapter.inject(fault, method='PUT')
        with pytest.raises((exception.PlacementUnreachable, exception.PlacementRefused)):
            books.create()
        assert books.say() == NEITHER
        books.create()
        assert books.say() == books.both

    @pytest.mark.parametrize('fault', [Fault.TIMEOUT_DONE, Fault.ERROR_DONE])
    def test_what_placement_did_without_saying_so_is_both(self, books: Books, fault: Fault) -> None:
        books.cloud.adapter.inject(fault, method='PUT')
        books.create()
        assert books.say() == books.both

    def test_where_it_cannot_be_asked_again_the_same_call_again_takes_over_what_it_did(self, books: Books) -> None:
        books.cloud.adapter.inject(Fault.TIMEOUT_DONE, method='PUT')
        books.cloud.adapter.inject(Fault.UNREACHABLE, method='GET', url='/allocations')
        with pytest.raises(exception.PlacementUnreachable):
            books.create()
        assert books.say() == (False, {books.provider: CLAIM})
        books.create()
        assert books.say() == books.both

    def test_no_room_is_neither(self, books: Books) -> None:
        huge = Flavor(name='huge', vcpus=1000)
        with pytest.raises(exception.PlacementRefused):
            books.create(flavor=huge)
        assert books.say() == NEITHER

    def test_a_host_that_nobody_knows_is_neither(self, books: Books) -> None:
        with pytest.raises(exception.ComputeHostNotFound, match='nowhere'):
            books.create(host='nowhere')
        assert books.say() == NEITHER

    def test_the_allocation_of_a_guest_that_was_anothers_is_taken_over_if_it_is_the_same(self, books: Books) -> None:
        consumer = instances.consumer_of(books.wanted())
        allocations.claim(books.cloud.placement_client, consumer, {books.provider: CLAIM}, generation=None)
        books.create()
        assert books.say() == books.both

    def test_another_allocation_is_left_alone_and_named(self, books: Books) -> None:
        consumer = instances.consumer_of(books.wanted())
        other = {books.provider: {'VCPU': 1}}
        allocations.claim(books.cloud.placement_client, consumer, other, generation=None)
        with pytest.raises(exception.AllocationExists) as caught:
            books.create()
        assert UUID in str(caught.value)
        assert "'VCPU': 1}" in str(caught.value)
        assert "'VCPU': 2" in str(caught.value)
        assert books.say() == (False, other)

    @pytest.mark.real_placement
    def test_a_consumer_without_an_allocation_is_taken_over(self, books: Books) -> None:
        """Placement was killed over an earlier write."""
        consumer = instances.consumer_of(books.wanted())
        allocations.claim(books.cloud.placement_client, consumer, {books.provider: CLAIM}, generation=None)
        (file,) = books.cloud.directory.glob('**/placement*.sqlite')
        with sqlite3.connect(file) as database:
            database.execute('DELETE FROM allocations')
            database.execute('UPDATE consumers SET generation = 0')
        database.close()
        assert books.say() == NEITHER
        books.create()
        assert books.say() == books.both

    def test_twice_is_refused_and_changes_nothing(self, books: Books) -> None:
        books.create()
        with pytest.raises(exception.InstanceExists):
            books.create()
        assert books.say() == books.both

    def test_a_row_whose_allocation_was_never_made_is_finished_by_the_same_call(self, books: Books) -> None:
        """The process was lost between the two."""
        books.cloud.database.instances.create(books.wanted())
        with pytest.raises(exception.InstanceExists):
            books.create(flavor=Flavor(name='another'))
        assert books.say() == (True, {})
        books.create()
        assert books.say() == books.both


class TestDelete:
    def test_it_deletes_both(self, books: Books) -> None:
        books.create()
        books.delete()
        assert books.say() == NEITHER
        with pytest.raises(exception.InstanceNotFound):
            books.delete()

    def test_while_placement_is_away_nothing_is_changed(self, books: Books) -> None:
        books.create()
        books.cloud.adapter.inject(Fault.UNREACHABLE)
        with pytest.raises(exception.PlacementUnreachable):
            books.delete()
        assert books.say() == books.both
        assert books.cloud.database.instances.get(UUID).task_state is None

    @pytest.mark.parametrize('fault', [Fault.TIMEOUT_DONE, Fault.TIMEOUT_NOT_DONE, Fault.ERROR_DONE, Fault.UNREACHABLE])
    def test_what_breaks_off_in_the_middle_is_finished_by_the_same_call(self, books: Books, fault: Fault) -> None:
        books.create()
        books.cloud.adapter.inject(fault, method='PUT')
        with pytest.raises(exception.PlacementUnreachable):
            books.delete()
        assert books.cloud.database.instances.get(UUID).task_state == 'deleting'
        answer = books.cloud.live_migrate(UUID)
        assert (answer.status_int, 'deleting' in answer.text) == (409, True)
        books.delete()
        assert books.say() == NEITHER

    def test_another_writer_who_is_faster_is_no_trouble(self, books: Books) -> None:
        books.create()
        books.cloud.adapter.inject(Fault.CONFLICT, method='PUT', times=2)
        books.delete()
        assert books.say() == NEITHER

    def test_one_that_is_being_migrated_is_refused_and_keeps_everything(self, books: Books) -> None:
        books.create()
        books.cloud.kill('conductor1')
        assert books.cloud.live_migrate(UUID).status_int == 202
        with pytest.raises(exception.MigrationInProgress):
            books.delete()
        assert books.say() == books.both
        assert books.cloud.database.instances.get(UUID).task_state == 'migrating'


def test_the_consumer_is_an_instance_of_its_project() -> None:
    instance = Instance(uuid=UUID, name='n', project_id='p', user_id='u', host='h', node='h', flavor=FLAVOR)
    assert instances.consumer_of(instance) == allocation_state.Consumer(
        uuid=UUID, consumer_type='INSTANCE', project_id='p', user_id='u'
    )
