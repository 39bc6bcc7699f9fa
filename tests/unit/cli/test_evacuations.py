# SPDX-License-Identifier: Apache-2.0

"""What migrator-manage does with evacuations, above all those that wait for their source to clean up."""

from __future__ import annotations

import pytest

from migrator.conductor import audit
from migrator.placement_client import allocations
from tests import evacuated


@pytest.fixture
def guest(operator):
    """A guest on host1, which has died since."""
    cloud = operator.cloud
    instance = cloud.boot('one', 'host1')
    cloud.kill('host1')
    cloud.simulation.advance(150)
    return instance


@pytest.fixture
def done(operator, guest):
    """The evacuation of the guest to host2, which is done."""
    return evacuated.done(operator.cloud, guest, 'host2')


def held(cloud, consumer):
    """Return the hosts where a consumer holds something."""
    names = {node.uuid: node.host for node in cloud.database.services.list_nodes()}
    return [names[uuid] for uuid in allocations.read(cloud.placement_client, consumer).allocations]


def force_down(cloud, host):
    (service,) = cloud.database.services.list(host=host)
    cloud.database.services.update(service.id, forced_down=True)


# --- placement -------------------------------------------------------------------------------------------------------


def test_audit_finds_nothing_wrong_with_an_evacuation_that_is_done(operator, done):
    assert operator.observed('placement', 'audit') == 'Every allocation is correct.\n'
    assert held(operator.cloud, done.uuid) == ['host1']


@pytest.mark.parametrize(
    ('holds', 'verdict'),
    [({}, 'missing'), ({'host3': {'VCPU': 1}}, 'wrong host'), ({'host1': {'VCPU': 9}}, 'wrong amount')],
)
def test_done_evacuation_without_its_allocation_is_found_and_healed(operator, done, holds, verdict):
    cloud = operator.cloud
    before = allocations.read(cloud.placement_client, done.uuid).allocations
    evacuated.replace(cloud, done, holds)
    status, text = operator.status('placement', 'audit')
    assert (status, f'migration {done.uuid}' in text, f'  {verdict}: ' in text) == (1, True, True), text
    text = operator.observed('placement', 'heal', '--yes')
    assert 'on host1, until host1 has cleaned up' in text
    assert allocations.read(cloud.placement_client, done.uuid).allocations == before
    assert operator.observed('placement', 'audit') == 'Every allocation is correct.\n'


def test_completed_evacuation_that_holds_its_source_is_found_and_healed(operator, done):
    cloud = operator.cloud
    evacuated.complete(cloud, done)
    evacuated.replace(cloud, done, {'host1': {'VCPU': 1}})
    status, text = operator.status('placement', 'audit')
    assert (status, f'migration {done.id} has ended (completed)' in text) == (1, True), text
    operator.observed('placement', 'heal', '--yes')
    assert held(cloud, done.uuid) == []


def test_done_evacuation_whose_source_has_cleaned_up_may_hold_nothing_already(operator, done):
    evacuated.cleaned_up(operator.cloud, done)
    assert operator.observed('placement', 'audit') == 'Every allocation is correct.\n'
    evacuated.replace(operator.cloud, done, {})
    assert operator.observed('placement', 'audit') == 'Every allocation is correct.\n'


def test_done_evacuation_is_not_healed_after_its_source_has_cleaned_up(operator, done):
    cloud = operator.cloud
    evacuated.replace(cloud, done, {})
    (wrong,) = audit.audit(cloud.database, cloud.placement_client)
    evacuated.cleaned_up(cloud, done)
    healed, why = audit.heal(cloud.database, cloud.placement_client, wrong)
    assert (healed, why) == (False, 'it has changed since the audit: audit again')
    assert held(cloud, done.uuid) == []


# --- instances -------------------------------------------------------------------------------------------------------


def test_delete_of_an_evacuated_instance_leaves_nothing_in_placement(operator, guest, done):
    cloud = operator.cloud
    operator.observed('instance', 'delete', guest.uuid)
    assert (held(cloud, guest.uuid), held(cloud, done.uuid)) == ([], [])
    assert operator.observed('placement', 'audit') == 'Every allocation is correct.\n'


def test_instance_created_again_after_its_evacuation_has_a_higher_tenure(operator, guest, done):
    cloud = operator.cloud
    operator.observed('instance', 'delete', guest.uuid)
    cloud.simulation.advance(2)
    operator.observed(
        'instance', 'create', '--force', '--uuid', guest.uuid, '--host', 'host3', '--vcpus', '1', '--memory', '512',
        '--disk', '1', '--project', 'demo', '--user', 'demo',
    )  # fmt: skip
    again = cloud.database.instances.get(guest.uuid)
    assert again.tenure > cloud.database.migrations.get(done.uuid).tenure
    assert (held(cloud, guest.uuid), held(cloud, done.uuid)) == (['host3'], [])
    assert operator.observed('placement', 'audit') == 'Every allocation is correct.\n'


def test_refusal_says_that_the_source_still_has_to_clean_up(operator, guest, done):
    cloud = operator.cloud
    cloud.simulation.advance(60)
    error = cloud.database.instances.invalid_state(guest.uuid, attr='vm_state', state='error', method='evacuate')
    assert f'evacuation {done.id} was done 60 s ago' in str(error)
    assert 'its source still has to clean up' in str(error)


# --- services --------------------------------------------------------------------------------------------------------


def test_delete_of_a_source_that_may_come_back_is_refused(operator, done):
    cloud = operator.cloud
    status, _ = operator.status('service', 'delete', 'host1')
    assert status == 1
    assert f'its cleanup post_evacuation_at_source for migration {done.uuid} is not done' in operator.err
    assert held(cloud, done.uuid) == ['host1']


def test_delete_of_a_forced_down_source_deletes_its_cleanups_and_frees_what_was_held(operator, done):
    cloud = operator.cloud
    force_down(cloud, 'host1')
    text = operator.observed('service', 'delete', 'host1')
    assert text.splitlines() == [
        'nova-compute of host1 is deleted.',
        'Evacuations from it that waited for its cleanup: 1. The next sweep of a conductor completes them.',
    ]
    assert cloud.database.cleanups.list() == []
    assert held(cloud, done.uuid) == []
    assert operator.observed('placement', 'audit') == 'Every allocation is correct.\n'


def test_refused_delete_of_a_source_leaves_the_allocations_of_its_evacuations(operator, done):
    cloud = operator.cloud
    force_down(cloud, 'host1')
    before = allocations.read(cloud.placement_client, done.uuid).allocations
    stranger = cloud.new_uuid()
    other = done.replace(uuid=stranger)
    evacuated.replace(cloud, other, {'host1': {'VCPU': 1}})
    status, _ = operator.status('service', 'delete', 'host1')
    assert (status, stranger in operator.err, done.uuid in operator.err) == (1, True, False)
    assert allocations.read(cloud.placement_client, done.uuid).allocations == before


# --- purge -----------------------------------------------------------------------------------------------------------


def test_purge_keeps_an_evacuation_that_is_done(operator, guest, done):
    cloud = operator.cloud
    evacuated.cleaned_up(cloud, done)
    assert cloud.live_migrate(cloud.database.instances.get(guest.uuid), 'host3').status_int == 202
    cloud.wait()
    cloud.world.threads.sleep(120)
    assert operator.json('migration', 'purge', '--before', '1m')['purged'] == 0
    assert cloud.database.migrations.get(done.uuid).status == 'done'
