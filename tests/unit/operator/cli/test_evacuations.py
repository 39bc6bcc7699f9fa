# SPDX-License-Identifier: Apache-2.0

"""What migrator-manage does with evacuations, above all those that wait for their source to clean up."""

import dataclasses

import pytest

from migrator.conductor import audit
from migrator.db import cleanups
from migrator.placement_client import allocations
from tests import evacuated
from tests.reasons import stuck_for


@pytest.fixture
def guest(operator):
    """A guest on host1, which has died since."""
    cloud = operator.cloud
    instance = cloud.boot('one', 'host1')
    cloud.kill('host1')
    cloud.simulation.advance(75)
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
        'Evacuations from it that waited for its cleanup: 1. The next sweep of a conductor completes them. Host host1 '
        'does not remove these guests any more: erase it before it is used again.',
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


# --- what it waits for -----------------------------------------------------------------------------------------------


def shown(operator, evacuation):
    """Return what "migration show" says about the present and the next, as one text each."""
    document = operator.json('migration', 'show', evacuation.uuid)['timeline']
    return ' '.join(document['waits']), ' '.join(document['next'])


def replace(cloud, cleanup, **fields):
    cloud.database.cleanups.forget(cleanup)
    with cloud.database.engine.writer() as session:
        cleanups.write(session, dataclasses.replace(cleanup, **fields))


def test_done_evacuation_waits_for_its_source_and_shows_what_to_type(operator, done):
    waits, next_ = shown(operator, done)
    assert 'the guest was started at host2. host1 has not cleaned up yet.' in waits
    assert 'the migration holds its allocation at host1' in waits
    assert 'host1 runs it when its compute service is back.' in waits
    assert 'start its compute service, also while it is forced down' in next_
    assert f'--config-file {operator.file} service delete host1' in next_
    force_down(operator.cloud, 'host1')
    operator.observed('service', 'delete', 'host1')
    assert shown(operator, done)[1] == (
        'A conductor releases the allocation at host1 with the next sweep, and completes the evacuation.'
    )


def test_done_evacuation_with_a_blocked_cleanup_shows_how_to_unblock_it(operator, done):
    cloud = operator.cloud
    (cleanup,) = cloud.database.cleanups.list()
    replace(cloud, cleanup, blocked_because='look which host has the guest')
    waits, next_ = shown(operator, done)
    assert 'The cleanup is blocked and needs an operator: look which host has the guest' in waits
    assert 'completed when the blocked cleanup at host1 is done or discarded' in next_
    assert f'migration retry {done.uuid}' in next_
    text = operator.observed('migration', 'retry', done.uuid, '--dry-run')
    assert 'the copy at host1 is ended, even if it runs' in text
    (cleanup,) = operator.json('cleanup', 'list')['cleanups']
    text = operator.observed('cleanup', 'retry', cleanup['id'], '--dry-run')
    assert 'Only if that reports that it has the guest, the copy at host1 is ended, even if it runs.' in text
    text = operator.observed('cleanup', 'discard', cleanup['id'])
    assert 'Then the evacuation is completed, and releases its allocation at host1.' in text
    operator.observed('cleanup', 'discard', cleanup['id'], '--yes')
    assert cloud.database.cleanups.list() == []


def test_list_shows_what_the_source_of_a_done_evacuation_has_to_do(operator, done):
    (row,) = operator.rows('migration', 'list', '--status', 'done')
    assert (row['STATUS'], row['SOURCE'], row['DESTINATION']) == ('done', 'host1', 'host2')
    assert row['REMARK'] == 'host1 still has to do post_evacuation_at_source'
    assert operator.rows('migration', 'list', '--in-progress') == []
    assert f'evacuation of instance {done.instance_uuid}' in operator.observed('migration', 'show', done.id)


def in_progress(cloud, guest, *records, **fields):
    """Return an evacuation of the guest to host2 in progress, with these records in its log."""
    accepted = evacuated.accept(cloud, guest, 'host2')
    (owned,) = cloud.database.takeovers.adopt([accepted.uuid], evacuated.OWNER).owned
    moved = evacuated.move(cloud, guest, accepted, 'host2')
    fields = {'status': 'preparing', 'dest_compute': 'host2', **fields}
    return evacuated.commit(cloud, owned.migration, fields=fields, records=[moved, *records])


def test_accepted_evacuation_shows_its_steps(operator, guest):
    evacuation = evacuated.accept(operator.cloud, guest, 'host2')
    _, next_ = shown(operator, evacuation)
    assert 'move_allocation, then check_can_evacuate at host2, then evacuate at host2. When the guest runs' in next_
    assert 'update_instance_host, then hold_source_allocation, then end_at_destination.' in next_
    assert 'If host1 comes back before evacuate begins, it ends failed' in next_


def test_evacuation_past_its_pivot_shows_that_its_destination_starts_the_guest(operator, guest):
    evacuation = in_progress(operator.cloud, guest, evacuated.step('evacuate', 'intent'))
    waits, next_ = shown(operator, evacuation)
    assert 'host2 does evacuate: begun' in waits
    assert 'host1' not in waits, 'that its source is down is why it is evacuated'
    assert 'host2 starts the guest, and is polled.' in next_
    assert 'host1 starts nothing and removes nothing meanwhile' in next_


def test_evacuation_whose_source_reports_again_says_so(operator, guest):
    cloud = operator.cloud
    evacuation = in_progress(cloud, guest)
    cloud.start_compute('host1')
    cloud.simulation.run_until(cloud.up)
    assert 'The source host1 reports again' in shown(operator, evacuation)[0]


def test_start_of_the_source_is_named_as_the_requester_of_the_abort(operator, guest):
    cloud = operator.cloud
    now = cloud.database.services.now()
    evacuation = in_progress(cloud, guest, abort_requested_at=now, abort_cause='host-start')
    assert 'the start of host1 requested an abort' in operator.observed('migration', 'show', evacuation.uuid)
    assert 'It is undone, and ends failed. The guest stays at host1.' in shown(operator, evacuation)[1]


def test_failed_evacuation_left_its_guest_at_the_source(operator, guest):
    cloud = operator.cloud
    evacuation = in_progress(cloud, guest)
    evacuated.commit(cloud, evacuation, fields={'status': 'failed', 'failure': 'no host has room'})
    waits, next_ = shown(operator, evacuation)
    assert 'It ended failed' in waits
    assert 'The guest was left at host1.' in waits
    assert next_ == (
        'Nothing: the guest was left at host1. If that host is dead, remedy the reason of the failure, and evacuate '
        'the guest again.'
    )


def test_timeline_of_an_evacuation_names_its_steps(operator, done):
    text = operator.observed('migration', 'show', done.uuid)
    for line in (
        'status accepted: demo requested it, to host2', 'check_can_evacuate at host2: done',
        'evacuate at host2: done; the destination runs the guest', 'status done',
    ):  # fmt: skip
        assert line in text, text


def test_abandon_of_an_evacuation_shows_that_its_source_is_not_polled(operator, guest):
    cloud = operator.cloud
    evacuation = in_progress(cloud, guest, evacuated.step('evacuate', 'intent'), **stuck_for('host2 is down'))
    text = operator.observed('migration', 'abandon', evacuation.uuid, '--guest-on', 'host2')
    assert 'A conductor first polls host2 for the guest.' in text
    assert 'host1 removes its copy of the guest when it is back, once host2 reports that it has the guest.' in text
    assert 'may still have the migration in its queue' not in text
    text = operator.observed('migration', 'abandon', evacuation.uuid, '--guest-on', 'host1')
    assert 'host2 removes what was prepared for the guest there, if the guest itself is not there.' in text
    text = operator.observed('migration', 'retry', evacuation.uuid, '--dry-run')
    assert 'a conductor would poll host2 for the guest' in text


# --- with the saga ---------------------------------------------------------------------------------------------------


@pytest.fixture
def evacuation(operator):
    """The evacuation of a guest from host1, which has no power and is forced down, to host2; it is done."""
    cloud = operator.cloud
    instance = cloud.boot('one', 'host1')
    cloud.simulation.run_until(lambda: cloud.database.definitions.get(instance.uuid, 'host1'))
    cloud.kill('host1')
    cloud.world.hypervisors['host1'].power_off()
    force_down(cloud, 'host1')
    assert evacuate(cloud, instance, 'host2').status_int == 200
    cloud.wait()
    (migration,) = cloud.migrations(instance)
    assert (migration.status, migration.failure) == ('done', None)
    return migration


def evacuate(cloud, instance, host):
    return cloud.request('POST', f'/servers/{instance.uuid}/action', {'evacuate': {'host': host}})


def until(cloud, evacuation, status):
    cloud.simulation.run_until(lambda: cloud.database.migrations.get(evacuation.uuid).status == status, timeout=300)


def test_timeline_of_the_saga_names_each_of_its_steps(operator, evacuation):
    text = operator.observed('migration', 'show', evacuation.uuid)
    for line in (
        'requested it, to host2', 'move_allocation: done', 'check_can_evacuate at host2: done',
        'evacuate at host2: done', 'update_instance_host: done', 'hold_source_allocation: done', 'status done',
        'host1 has the deferred cleanup post_evacuation_at_source',
    ):  # fmt: skip
        assert line in text, text
    assert operator.observed('placement', 'audit') == 'Every allocation is correct.\n'


def test_returning_source_completes_the_evacuation_while_it_is_forced_down(operator, evacuation):
    cloud = operator.cloud
    cloud.world.hypervisors['host1'].power_on()
    cloud.start_compute('host1')
    until(cloud, evacuation, 'completed')
    assert (held(cloud, evacuation.uuid), cloud.database.cleanups.list()) == ([], [])
    assert operator.observed('placement', 'audit') == 'Every allocation is correct.\n'
    waits, next_ = shown(operator, evacuation)
    assert 'It ended completed' in waits
    assert next_ == 'Nothing: the guest runs at host2.'


def test_dead_source_is_sent_no_cleanup_although_it_has_reported_lately(operator, evacuation):
    cloud = operator.cloud
    cloud.simulation.advance(30)
    assert [one for one in cloud.recorder.messages if one.method == evacuated.CLEANUP] == []
    cloud.world.hypervisors['host1'].power_on()
    cloud.start_compute('host1')
    cloud.simulation.advance(15)
    assert cloud.database.migrations.get(evacuation.uuid).status == 'completed'


def test_deleted_source_completes_its_evacuations_with_the_next_sweep(operator, evacuation):
    cloud = operator.cloud
    operator.observed('service', 'delete', 'host1')
    until(cloud, evacuation, 'completed')
    assert operator.observed('placement', 'audit') == 'Every allocation is correct.\n'


def test_discarded_cleanup_completes_the_evacuation(operator, evacuation):
    cloud = operator.cloud
    (cleanup,) = cloud.database.cleanups.list()
    replace(cloud, cleanup, blocked_because='look which host has the guest')
    (cleanup,) = cloud.database.cleanups.list()
    operator.observed('cleanup', 'discard', cleanup.id, '--yes')
    until(cloud, evacuation, 'completed')
    assert held(cloud, evacuation.uuid) == []


def test_deleted_instance_leaves_nothing_in_placement_and_nothing_at_its_source(operator, evacuation):
    cloud = operator.cloud
    operator.observed('instance', 'delete', evacuation.instance_uuid)
    assert operator.observed('placement', 'audit') == 'Every allocation is correct.\n'
    cloud.world.hypervisors['host2'].delete(evacuation.instance_uuid)
    cloud.world.hypervisors['host1'].power_on()
    cloud.start_compute('host1')
    until(cloud, evacuation, 'completed')
    assert cloud.world.hypervisors['host1'].residue(evacuation.instance_uuid) == []
    assert held(cloud, evacuation.uuid) == []


def test_instance_created_again_elsewhere_keeps_its_allocation_when_the_source_cleans_up(operator, evacuation):
    cloud, uuid = operator.cloud, evacuation.instance_uuid
    operator.observed('instance', 'delete', uuid)
    cloud.simulation.advance(2)
    operator.observed(
        'instance', 'create', '--uuid', uuid, '--host', 'host2', '--vcpus', '1', '--memory', '512', '--disk', '1',
        '--project', 'demo', '--user', 'demo',
    )  # fmt: skip
    cloud.world.hypervisors['host1'].power_on()
    cloud.start_compute('host1')
    until(cloud, evacuation, 'completed')
    assert (held(cloud, uuid), held(cloud, evacuation.uuid)) == (['host2'], [])
    assert cloud.world.hypervisors['host1'].residue(uuid) == []
    assert operator.observed('placement', 'audit') == 'Every allocation is correct.\n'


@pytest.mark.parametrize('guest_on', ['host1', 'host2'])
def test_abandoned_evacuation_ends_with_the_allocation_where_the_operator_says(operator, guest_on):
    cloud = operator.cloud
    instance = cloud.boot('one', 'host1')
    cloud.simulation.run_until(lambda: cloud.database.definitions.get(instance.uuid, 'host1'))
    cloud.kill('host1')
    force_down(cloud, 'host1')
    stall = cloud.world.hypervisors['host2'].faults.stall('evacuate', sticky=True)
    assert evacuate(cloud, instance, 'host2').status_int == 200
    cloud.simulation.run_until(stall.reached.is_set)
    cloud.kill('host2')
    force_down(cloud, 'host2')
    (migration,) = cloud.migrations(instance)
    cloud.simulation.run_until(lambda: cloud.database.migrations.get(migration.uuid).stuck_reason, timeout=900)
    assert 'host2 is down and may have started the guest' in ' '.join(shown(operator, migration))
    text = operator.status('migration', 'abandon', migration.uuid, '--guest-on', guest_on, '--yes')[1]
    assert f'with the guest on {guest_on}' in text
    assert cloud.database.migrations.get(migration.uuid).status == 'error'
    assert (held(cloud, instance.uuid), held(cloud, migration.uuid)) == ([guest_on], [])
    (cleanup,) = cloud.database.cleanups.list()
    wanted = {
        'host1': ('host2', 'rollback_evacuation_at_destination', False),
        'host2': ('host1', 'post_evacuation_at_source', True),
    }
    assert (cleanup.host, cleanup.step, cleanup.blocked_because is not None) == wanted[guest_on]
    assert operator.observed('placement', 'audit') == 'Every allocation is correct.\n'
