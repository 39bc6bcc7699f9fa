# SPDX-License-Identifier: Apache-2.0

"""The audit against the real Placement: it finds every planted error, and nothing else."""

from __future__ import annotations

import dataclasses
import datetime
import shlex
import uuid

import pytest

from migrator.objects import Flavor, Instance, Migration
from migrator.placement_client import allocation_state, allocations, audit, providers

FLAVOR = Flavor(name='small', vcpus=2, memory_mb=512, root_gb=0)
SMALL = FLAVOR.resources()
ENDED_AT = '2026-11-05T10:00:00+00:00'


@dataclasses.dataclass
class Cloud:
    """Three hosts in Placement, and the instances and migrations of a database."""

    client: object
    roots: dict
    instances: list = dataclasses.field(default_factory=list)
    migrations: list = dataclasses.field(default_factory=list)

    def instance(self, host='host1', holds='host1', amounts=None):
        one = Instance(
            uuid=str(uuid.uuid4()), name='vm', project_id='blue', user_id='ada', host=host, node=host, flavor=FLAVOR
        )
        self.instances.append(one)
        if holds:
            self.claim(one.uuid, allocation_state.INSTANCE, {holds: amounts or SMALL})
        return one

    def migration(self, instance, status='running', holds=None, destination='host2', **fields):
        one = Migration(
            id=7,
            uuid=str(uuid.uuid4()),
            instance_uuid=instance.uuid,
            project_id='blue',
            user_id='ada',
            status=status,
            source_compute='host1',
            source_node='host1',
            dest_compute=destination,
            updated_at=datetime.datetime.fromisoformat(ENDED_AT),
            **fields,
        )
        self.migrations.append(one)
        if holds:
            self.claim(one.uuid, allocation_state.MIGRATION, {holds: SMALL})
        return one

    def claim(self, consumer, consumer_type, by_host):
        holder = allocation_state.Consumer(uuid=consumer, consumer_type=consumer_type, project_id='blue', user_id='ada')
        held = {self.roots.get(host, host): amounts for host, amounts in by_host.items()}
        allocations.claim(self.client, holder, held, generation=None)

    def find(self):
        known = {one.uuid for one in [*self.instances, *self.migrations]}
        return audit.compare(audit.read_all(self.client, known), self.roots, self.instances, self.migrations)

    def the_finding(self):
        (one,) = self.find()
        return one


@pytest.fixture
def cloud(client, world):
    return Cloud(client, {f'host{number}': world.host(f'host{number}') for number in (1, 2, 3)})


def test_correct_allocations_have_no_finding(cloud):
    cloud.instance()
    cloud.migration(cloud.instance('host2', 'host2'), 'completed')
    assert cloud.find() == []


def test_an_empty_cloud_has_no_finding(cloud):
    assert cloud.find() == []


def test_allocation_of_an_ended_migration_is_leaked_and_shows_since_when(cloud):
    migration = cloud.migration(cloud.instance('host2', 'host2'), 'completed', holds='host1')
    found = cloud.the_finding()
    assert found.as_dict() == {
        'consumer': migration.uuid,
        'consumer_type': 'MIGRATION',
        'provider': cloud.roots['host1'],
        'resources': SMALL,
        'verdict': 'leaked',
        'reason': 'migration 7 has ended (completed) and holds this on host1',
        'since': ENDED_AT,
        'remedy': found.remedy,
    }
    assert found.remedy.endswith(f'allocation delete {migration.uuid}')


def test_an_instance_that_holds_nothing_is_missing_its_allocation(cloud):
    instance = cloud.instance(holds=None)
    found = cloud.the_finding()
    assert (found.verdict, found.consumer, found.provider) == ('missing', instance.uuid, cloud.roots['host1'])
    assert found.resources == SMALL


def test_an_allocation_on_another_host_than_the_guest_is_found(cloud):
    instance = cloud.instance('host1', holds='host3')
    found = cloud.the_finding()
    assert (found.verdict, found.consumer, found.provider) == ('wrong host', instance.uuid, cloud.roots['host3'])
    assert 'on host3, and is on host1, where it holds nothing' in found.reason


@pytest.mark.parametrize('amounts', [{'VCPU': 1, 'MEMORY_MB': 512}, {'VCPU': 2}, {'VCPU': 2, 'MEMORY_MB': 1024}])
def test_other_amounts_than_the_flavors_are_found(cloud, amounts):
    cloud.instance(amounts=amounts)
    found = cloud.the_finding()
    assert (found.verdict, found.resources) == ('wrong amount', amounts)
    assert '2 VCPU, 512 MEMORY_MB' in found.reason


def test_an_instance_that_holds_two_hosts_with_no_migration_is_doubled(cloud):
    instance = cloud.instance('host1', holds=None)
    cloud.claim(instance.uuid, allocation_state.INSTANCE, {'host1': SMALL, 'host2': SMALL})
    found = cloud.the_finding()
    assert (found.verdict, found.provider) == ('doubled', cloud.roots['host2'])


def test_an_unknown_consumer_is_found_with_its_type(cloud):
    stranger = str(uuid.uuid4())
    cloud.claim(stranger, 'RESERVATION', {'host2': {'VCPU': 1}})
    found = cloud.the_finding()
    assert (found.verdict, found.consumer, found.consumer_type) == ('unknown consumer', stranger, 'RESERVATION')


def test_every_planted_error_is_found_in_a_fixed_order(cloud):
    cloud.migration(cloud.instance('host2', 'host2'), 'failed', holds='host1')
    cloud.instance(holds=None)
    cloud.instance(holds='host3')
    cloud.claim(str(uuid.uuid4()), allocation_state.INSTANCE, {'host2': SMALL})
    found = cloud.find()
    assert sorted(one.verdict for one in found) == ['leaked', 'missing', 'unknown consumer', 'wrong host']
    assert cloud.find() == found


@pytest.mark.parametrize(
    ('of_instance', 'of_migration'),
    [('host1', None), ('host2', 'host1'), ('host2', None)],
    ids=['before', 'moved', 'released'],
)
def test_a_migration_in_progress_may_be_in_each_state_of_the_table(cloud, of_instance, of_migration):
    cloud.migration(cloud.instance('host1', holds=of_instance), holds=of_migration)
    assert cloud.find() == []


def test_before_a_destination_is_known_the_instance_holds_the_source(cloud):
    cloud.migration(cloud.instance('host1', holds='host1'), 'accepted', destination=None)
    assert cloud.find() == []


def test_a_migration_in_progress_that_holds_the_source_like_its_instance_is_doubled(cloud):
    migration = cloud.migration(cloud.instance('host1', holds='host1'), holds='host1')
    found = cloud.the_finding()
    assert (found.verdict, found.consumer) == ('doubled', migration.uuid)


def test_a_migration_in_progress_that_holds_a_third_host_is_found(cloud):
    migration = cloud.migration(cloud.instance('host1', holds='host2'), holds='host3')
    found = cloud.the_finding()
    assert (found.verdict, found.consumer, found.provider) == ('wrong host', migration.uuid, cloud.roots['host3'])


def test_an_instance_in_migration_that_holds_nothing_is_missing_its_allocation(cloud):
    instance = cloud.instance('host1', holds=None)
    cloud.migration(instance, holds='host1')
    found = cloud.the_finding()
    assert (found.verdict, found.consumer) == ('missing', instance.uuid)
    assert 'wait until the migration' in found.remedy


def test_under_the_doubled_strategy_the_instance_may_hold_both(cloud):
    instance = cloud.instance('host1', holds=None)
    cloud.claim(instance.uuid, allocation_state.INSTANCE, {'host1': SMALL, 'host2': SMALL})
    cloud.migration(instance, strategy='doubled')
    assert cloud.find() == []


def test_a_child_of_the_hosts_root_and_a_sharing_provider_count_for_the_host(cloud, world):
    child = world.host('numa0', parent=cloud.roots['host1'])
    shared = world.host('storage', DISK_GB=100)
    cloud.instances.append(
        Instance(
            uuid=str(uuid.uuid4()),
            name='nested',
            project_id='blue',
            user_id='ada',
            host='host1',
            node='host1',
            flavor=dataclasses.replace(FLAVOR, root_gb=5),
        )
    )
    held = {'host1': {'MEMORY_MB': 512}, child: {'VCPU': 2}, shared: {'DISK_GB': 5}}
    cloud.claim(cloud.instances[0].uuid, allocation_state.INSTANCE, held)
    assert cloud.find() == []


def test_the_remedy_is_a_complete_command(cloud):
    instance = cloud.instance('host1', holds='host3')
    words = shlex.split(cloud.the_finding().remedy)
    root = cloud.roots['host1']
    assert words[:6] == ['openstack', '--os-placement-api-version', '1.39', 'resource', 'provider', 'allocation']
    assert words[6] == 'set'
    assert {f'rp={root},VCPU=2', f'rp={root},MEMORY_MB=512', 'blue', 'ada', 'INSTANCE'} < set(words)
    assert words[-1] == instance.uuid


def test_known_consumers_need_no_request_of_their_own(cloud, in_process):
    cloud.migration(cloud.instance('host2', 'host2'), 'completed', holds='host1')
    before = len(in_process.requests)
    cloud.find()
    asked = in_process.requests[before:]
    assert len(asked) == 1 + len(cloud.roots)
    assert {one.method for one in asked} == {'GET'}


def test_the_audit_only_reads(cloud):
    instance = cloud.instance('host1', holds='host3')
    cloud.find()
    held = allocations.read(cloud.client, instance.uuid)
    assert held.allocations == {cloud.roots['host3']: SMALL}
    assert providers.usages(cloud.client, cloud.roots['host1'])['VCPU'] == 0


# --- evacuations -----------------------------------------------------------------------------------------------------


def evacuation(cloud, status, holds='host1', **fields):
    guest = cloud.instance('host2', 'host2')
    return cloud.migration(guest, status, holds, migration_type='evacuation', **fields)


def test_evacuation_that_is_done_holds_its_source(cloud):
    evacuation(cloud, 'done')
    assert cloud.find() == []


def test_evacuation_of_strategy_doubled_may_hold_its_source_before_it_is_done(cloud):
    evacuation(cloud, 'preparing', strategy='doubled')
    assert cloud.find() == []


def test_guest_of_an_evacuation_that_is_done_may_migrate_again(cloud):
    guest = cloud.instance('host2', 'host3')
    cloud.migration(guest, 'done', 'host1', migration_type='evacuation')
    again = cloud.migration(guest, holds='host2', destination='host3')
    cloud.migrations[-1] = again.replace(source_compute='host2')
    assert cloud.find() == []


def test_evacuation_that_is_done_holds_what_its_guest_had_before_a_resize(cloud):
    large = FLAVOR.replace(name='large', vcpus=4)
    guest = cloud.instance('host3', 'host3', large.resources())
    cloud.instances[-1] = guest.replace(flavor=large)
    cloud.migration(guest, 'done', 'host1', migration_type='evacuation', old_flavor=FLAVOR)
    assert cloud.find() == []
    lost = cloud.migration(guest, 'done', migration_type='evacuation', old_flavor=FLAVOR)
    found = cloud.the_finding()
    assert (found.verdict, found.consumer, found.resources) == ('missing', lost.uuid, SMALL)


def test_evacuation_that_is_done_without_its_allocation_is_missing_it(cloud):
    one = evacuation(cloud, 'done', holds=None)
    found = cloud.the_finding()
    assert (found.verdict, found.consumer, found.provider) == ('missing', one.uuid, cloud.roots['host1'])
    assert found.reason == 'migration 7 is done, and host1 has not cleaned up: it must hold this there'


def test_evacuation_that_is_done_and_holds_another_host_is_found(cloud):
    one = evacuation(cloud, 'done', holds='host3')
    found = cloud.the_finding()
    assert (found.verdict, found.consumer, found.provider) == ('wrong host', one.uuid, cloud.roots['host3'])
    assert found.remedy == 'migrator-manage placement heal'


@pytest.mark.parametrize('status', ['completed', 'failed', 'error'])
def test_evacuation_that_has_ended_and_holds_its_source_has_leaked_it(cloud, status):
    one = evacuation(cloud, status)
    assert [(found.verdict, found.consumer) for found in cloud.find() if found.consumer == one.uuid] == [
        ('leaked', one.uuid)
    ]


def test_evacuation_of_a_deleted_instance_holds_nothing(cloud):
    one = evacuation(cloud, 'done')
    cloud.claim(str(uuid.uuid4()), allocation_state.INSTANCE, {'host3': SMALL})
    cloud.instances.clear()
    found = next(found for found in cloud.find() if found.consumer == one.uuid)
    assert (found.verdict, found.reason) == (
        'leaked',
        'migration 7 is done, its instance was deleted, and holds this on host1',
    )
    held = allocations.read(cloud.client, one.uuid)
    mine = allocation_state.Consumer(
        uuid=one.uuid, consumer_type=allocation_state.MIGRATION, project_id='blue', user_id='ada'
    )
    allocations.remove(cloud.client, mine, generation=held.generation)
    assert one.uuid not in {found.consumer for found in cloud.find()}


def test_evacuation_of_an_instance_that_was_created_again_holds_nothing(cloud):
    one = evacuation(cloud, 'done', holds=None)
    accepted = datetime.datetime.fromisoformat(ENDED_AT)
    cloud.migrations[:] = [one.replace(created_at=accepted)]
    later = accepted + datetime.timedelta(minutes=1)
    cloud.instances[:] = [cloud.instances[0].replace(created_at=later)]
    assert cloud.find() == []
