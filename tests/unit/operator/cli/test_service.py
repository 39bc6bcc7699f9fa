# SPDX-License-Identifier: Apache-2.0

"""migrator-manage service: the states of services, and the leases of conductors."""

import re

import pytest

from migrator import exception
from migrator.conductor import registry
from migrator.objects import CURRENT_VERSION
from migrator.placement_client import allocation_state, allocations, providers


def test_each_service_has_its_host_binary_version_status_state_and_when_it_was_seen(operator):
    operator.cloud.simulation.advance(3)
    rows = operator.rows('service', 'list')
    assert [(row['HOST'], row['BINARY']) for row in rows] == [
        ('host1', 'nova-compute'),
        ('host2', 'nova-compute'),
        ('host3', 'nova-compute'),
        ('conductor1', 'nova-conductor'),
    ]
    for row in rows:
        assert (row['VERSION'], row['STATUS'], row['STATE']) == (str(CURRENT_VERSION), 'enabled', 'up')
        assert row['LAST SEEN'].endswith(' s ago')
        assert row['REMARK'] == '-'
    assert [row['LEASE'] == '-' for row in rows] == [True, True, True, False]
    assert rows[-1]['LEASE'].endswith(' s left')


def test_an_unreachable_service_is_down_and_a_forced_one_is_remarked(operator):
    cloud = operator.cloud
    cloud.kill('host1')
    (two,) = cloud.database.services.list(host='host2')
    cloud.database.services.update(two.id, forced_down=True, disabled=True, disabled_reason='the fan')
    cloud.simulation.advance(70)
    one, two, three, _conductor = operator.rows('service', 'list')
    assert (one['STATE'], one['STATUS'], one['LAST SEEN']) == ('down', 'enabled', '70 s ago')
    assert (two['STATE'], two['STATUS'], two['REMARK']) == ('down', 'disabled', 'forced down; the fan')
    assert three['STATE'] == 'up'


def test_a_stopped_service_is_down_at_once_and_remarked(operator):
    cloud = operator.cloud
    cloud.processes['host1'].start(cloud.computes['host1'].cleanup_host, name='stop')
    cloud.simulation.advance(2)
    one, two, _three, _conductor = operator.rows('service', 'list')
    assert (one['STATE'], one['LAST SEEN'], one['REMARK']) == ('down', '-', 'was stopped')
    assert (two['STATE'], two['REMARK']) == ('up', '-')


def test_the_lease_of_a_dead_conductor_has_ended(operator):
    operator.cloud.kill('conductor1')
    operator.cloud.simulation.advance(100)
    (row,) = operator.rows('service', 'list', '--binary', 'nova-conductor')
    assert row['STATE'] == 'down'
    assert row['LEASE'].startswith('ended ')
    (service,) = operator.json('service', 'list', '--host', 'conductor1')['services']
    assert service['lease']['boots'] == 0


def test_without_a_conductor_each_host_is_remarked_as_it_was_then(operator):
    operator.cloud.simulation.advance(20)
    assert {row['REMARK'] for row in operator.rows('service', 'list')} == {'-'}
    operator.cloud.kill('conductor1')
    operator.cloud.simulation.advance(600)
    for row in operator.rows('service', 'list', '--binary', 'nova-compute'):
        assert row['STATE'] == 'up'
        assert row['REMARK'].startswith('as it was then: no conductor has listened since 20')
    operator.cloud.start_conductor('conductor1')
    operator.cloud.simulation.advance(20)
    operator.cloud.bus.faults = lambda message: 'lose'
    operator.cloud.simulation.advance(100)
    for row in operator.rows('service', 'list', '--binary', 'nova-compute'):
        assert row['STATE'] == 'up'
        assert row['REMARK'].startswith('as it was then: conductor1 cannot reach the message broker since 20')
    assert operator.json('service', 'list')['no_reports_because'].startswith('conductor1 cannot reach')
    (row,) = operator.rows('service', 'list', '--binary', 'nova-conductor')
    assert row['REMARK'].startswith('cannot reach the message broker since 20')


def test_two_leases_of_one_server_name_are_remarked(operator):
    operator.cloud.kill('conductor1')
    operator.cloud.start_conductor('conductor1')
    (row,) = operator.rows('service', 'list', '--host', 'conductor1')
    assert row['REMARK'] == '2 leases: it was killed and started again, or two conductors have this name'
    operator.cloud.simulation.advance(16)
    (row,) = operator.rows('service', 'list', '--host', 'conductor1')
    assert row['REMARK'] == '-'


def test_conductor_with_migrations_shows_from_how_many_hosts_they_are(operator):
    guests = [operator.cloud.boot(f'guest{number}', f'host{1 + number % 2}') for number in range(3)]
    for guest in guests:
        assert operator.cloud.live_migrate(guest, 'host3').status_int == 202
    operator.cloud.simulation.run_until(lambda: all(one.owner for one in operator.cloud.migrations()))
    (row,) = operator.rows('service', 'list', '--host', 'conductor1')
    assert row['REMARK'] == 'has the migrations from 2 hosts'
    assert operator.json('service', 'list', '--host', 'conductor1')['services'][0]['lease']['sources'] == 2
    operator.cloud.wait()
    (row,) = operator.rows('service', 'list', '--host', 'conductor1')
    assert row['REMARK'] == '-'


def test_the_list_in_json_has_every_field(operator):
    found = operator.json('service', 'list', '--host', 'host2')
    (service,) = found['services']
    boot_id = operator.cloud.computes['host2'].boot_id
    assert {name: service[name] for name in ('host', 'binary', 'status', 'state', 'forced_down', 'boot_id')} == {
        'host': 'host2', 'binary': 'nova-compute', 'status': 'enabled', 'state': 'up', 'forced_down': False,
        'boot_id': boot_id,
    }  # fmt: skip
    assert service['last_seen_up'].startswith('2026-01-01T00:00:')
    assert service['lease'] is None


@pytest.mark.parametrize('verb', [('list',), ('delete', 'host1')])
def test_the_refusal_of_an_unknown_binary_names_the_known_ones(refused, verb):
    said = refused('service', *verb, '--binary', 'nope')
    for name in ("'nope'", 'nova-compute', 'nova-conductor'):
        assert name in said


def providers_of(cloud):
    return sorted(one.name for one in providers.list_providers(cloud.placement_client))


@pytest.mark.nova_bug(1852610)
def test_a_dead_compute_service_is_deleted_with_its_providers(operator):
    cloud = operator.cloud
    cloud.kill('host3')
    cloud.simulation.advance(70)
    assert operator.observed('service', 'delete', 'host3') == 'nova-compute of host3 is deleted.\n'
    assert [row['HOST'] for row in operator.rows('service', 'list')] == ['host1', 'host2', 'conductor1']
    assert [node.host for node in cloud.database.services.list_nodes()] == ['host1', 'host2']
    assert providers_of(cloud) == ['host1', 'host2']
    status, _ = operator.status('service', 'delete', 'host3')
    assert status == 1
    assert 'nova-compute of host3' in operator.err


def test_a_deleted_service_that_starts_again_is_registered_again(operator):
    cloud = operator.cloud
    cloud.kill('host3')
    cloud.simulation.advance(70)
    operator.observed('service', 'delete', 'host3')
    cloud.start_compute('host3')
    cloud.simulation.run_until(cloud.up)
    assert providers_of(cloud) == ['host1', 'host2', 'host3']


def needed(cloud, why):
    """Make host1 needed in one way."""
    if why == 'it is up':
        return
    instance = cloud.boot('one', 'host1')
    stalled = 'copying' if why == 'migration' else 'post_live_migration_at_source'
    stall = cloud.world.hypervisors['host1'].faults.stall(stalled, sticky=True)
    if why != 'instance':
        assert cloud.live_migrate(instance, host='host2').status_int == 202
        cloud.simulation.run_until(stall.reached.is_set)
    cloud.kill('host1')
    cloud.simulation.advance(150)


@pytest.mark.nova_bug(1852610)
@pytest.mark.parametrize(
    ('why', 'said'),
    [
        ('it is up', 'it is up: stop it first'),
        ('instance', 'instance .* is on it, 1 in all. If the host is dead and fenced, evacuate'),
        ('migration', 'migration .* is in progress, 1 in all'),
        ('cleanup', 'its cleanup post_live_migration_at_source for migration .* is not done: start the service'),
    ],
)
def test_delete_of_a_needed_service_is_refused_with_the_reason(operator, why, said):
    cloud = operator.cloud
    needed(cloud, why)
    before = cloud.database.services.list(), cloud.database.services.list_nodes(), providers_of(cloud)
    status, out = operator.status('service', 'delete', 'host1')
    assert (status, out) == (1, '')
    assert re.search(f'The service of host1 cannot be deleted: {said}', operator.err)
    assert before == (cloud.database.services.list(), cloud.database.services.list_nodes(), providers_of(cloud))


def test_delete_of_a_forced_down_service_deletes_its_deferred_cleanups(operator):
    cloud = operator.cloud
    needed(cloud, 'cleanup')
    (service,) = cloud.database.services.list(host='host1')
    cloud.database.services.update(service.id, forced_down=True)
    assert len(cloud.database.cleanups.list()) == 1
    operator.observed('service', 'delete', 'host1')
    assert cloud.database.cleanups.list() == []


def test_a_service_with_allocations_in_placement_is_not_deleted(operator):
    cloud = operator.cloud
    (node,) = [node for node in cloud.database.services.list_nodes() if node.host == 'host3']
    stranger = allocation_state.Consumer(
        uuid=cloud.new_uuid(), consumer_type=allocation_state.INSTANCE, project_id='demo', user_id='demo'
    )
    allocations.claim(cloud.placement_client, stranger, {node.uuid: {'VCPU': 1}}, generation=None)
    cloud.kill('host3')
    cloud.simulation.advance(70)
    status, _ = operator.status('service', 'delete', 'host3')
    assert status == 1
    assert stranger.uuid in operator.err
    assert len(cloud.database.services.list(host='host3')) == 1


def test_a_service_that_reports_at_the_last_moment_is_not_deleted(operator):
    cloud = operator.cloud
    cloud.kill('host3')
    cloud.simulation.advance(70)
    (seen,) = cloud.database.services.list(host='host3')
    cloud.start_compute('host3')
    cloud.simulation.run_until(cloud.up)
    assert not cloud.database.services.delete(seen)
    assert len(cloud.database.services.list(host='host3')) == 1


def test_a_service_that_starts_during_delete_has_its_providers_again(operator):
    cloud = operator.cloud
    cloud.kill('host3')
    cloud.simulation.advance(70)
    delete = cloud.database.services.delete

    def late(service):
        cloud.database.services.heartbeats({'host3': service.boot_id}, 0.0)
        return delete(service)

    cloud.database.services.delete = late
    (service,) = cloud.database.services.list(host='host3')
    with pytest.raises(exception.ServiceInUse, match='or it is up again'):
        registry.delete_service(cloud.database, cloud.placement_client, service, 60)
    assert providers_of(cloud) == ['host1', 'host2', 'host3']
    assert len(cloud.database.services.list(host='host3')) == 1


def test_a_service_that_starts_during_delete_has_its_providers_once_placement_is_back(operator, monkeypatch):
    cloud = operator.cloud
    cloud.kill('host3')
    cloud.simulation.advance(70)
    delete = cloud.database.services.delete

    def unreachable(*_, **__):
        raise exception.PlacementUnreachable(reason='away')

    def late(service):
        cloud.database.services.heartbeats({'host3': service.boot_id}, 0.0)
        monkeypatch.setattr(providers, 'ensure_tree', unreachable)
        return delete(service)

    cloud.database.services.delete = late
    (service,) = cloud.database.services.list(host='host3')
    with pytest.raises(exception.PlacementUnreachable):
        registry.delete_service(cloud.database, cloud.placement_client, service, 60)
    assert providers_of(cloud) == ['host1', 'host2']
    monkeypatch.undo()
    cloud.simulation.advance(30)
    assert providers_of(cloud) == ['host1', 'host2', 'host3']


def test_a_service_that_another_call_deletes_meanwhile_leaves_no_providers(operator):
    cloud = operator.cloud
    cloud.kill('host3')
    cloud.simulation.advance(70)
    delete = cloud.database.services.delete
    (service,) = cloud.database.services.list(host='host3')
    given = (cloud.database, cloud.placement_client, service, 60)

    def second(service):
        cloud.database.services.delete = delete
        registry.delete_service(*given)
        return delete(service)

    cloud.database.services.delete = second
    with pytest.raises(exception.ServiceNotFound):
        registry.delete_service(*given)
    assert providers_of(cloud) == ['host1', 'host2']


def test_a_running_service_that_was_forced_down_and_deleted_registers_again(operator):
    cloud = operator.cloud
    (service,) = cloud.database.services.list(host='host3')
    cloud.database.services.update(service.id, forced_down=True)
    operator.observed('service', 'delete', 'host3')
    assert providers_of(cloud) == ['host1', 'host2']
    cloud.simulation.advance(30)
    (again,) = cloud.database.services.list(host='host3')
    assert (again.boot_id, again.forced_down) == (service.boot_id, False)
    assert providers_of(cloud) == ['host1', 'host2', 'host3']


def test_a_dead_conductor_is_deleted(operator):
    cloud = operator.cloud
    cloud.start_conductor('conductor2')
    cloud.kill('conductor1')
    cloud.simulation.advance(100)
    operator.observed('service', 'delete', 'conductor1', '--binary', 'nova-conductor')
    assert [row['HOST'] for row in operator.rows('service', 'list', '--binary', 'nova-conductor')] == ['conductor2']


# --- replace ---------------------------------------------------------------------------------------------------------

REPLACE = 'service', 'replace', 'host1', '--old-machine-is-off'


def is_refused(operator, why):
    before = operator.cloud.database.services.list()
    status, out = operator.status(*REPLACE)
    assert (status, out) == (1, '')
    assert why in operator.err
    assert operator.cloud.database.services.list() == before
    assert operator.cloud.database.machines.replacements() == {}


def test_machine_is_replaced_only_if_the_operator_declares_the_old_one_off(refused):
    assert '--old-machine-is-off' in refused('service', 'replace', 'host1')


def test_machine_of_a_service_that_reports_is_not_replaced(operator):
    cloud = operator.cloud
    is_refused(operator, 'its compute service has reported lately')
    (service,) = cloud.database.services.list(host='host1')
    cloud.database.services.update(service.id, forced_down=True)
    cloud.simulation.advance(20)
    is_refused(operator, 'its compute service has reported lately')
    cloud.kill('host1')
    cloud.simulation.advance(30)
    is_refused(operator, 'its compute service has reported lately')
    cloud.simulation.advance(40)
    assert operator.status(*REPLACE)[0] == 0


def test_machine_is_not_replaced_while_no_conductor_can_say_whether_it_reports(operator):
    operator.cloud.kill('conductor1')
    operator.cloud.simulation.advance(600)
    is_refused(operator, 'no conductor has noticed yet')


@pytest.mark.parametrize('host', ['host2', 'host1'])
def test_machine_with_a_migration_in_progress_is_not_replaced(operator, host):
    cloud = operator.cloud
    guest = cloud.boot('one', 'host1' if host == 'host2' else 'host3', memory_mb=65000, dirty_rate=10000.0)
    assert cloud.live_migrate(guest, host).status_int == 202
    cloud.simulation.run_until(lambda: cloud.migrations(guest)[0].status == 'running')
    cloud.kill('host1')
    cloud.simulation.advance(70)
    is_refused(operator, f'migration {cloud.migrations(guest)[0].uuid} is in progress there, 1 in all')


def test_machine_of_an_unknown_host_is_not_replaced(operator):
    status, _out = operator.status('service', 'replace', 'host9', '--old-machine-is-off')
    assert status == 1
    assert 'host9' in operator.err


def test_replacement_records_who_declared_the_machine_off_and_its_guests(operator, monkeypatch):
    monkeypatch.setenv('LOGNAME', 'ada')
    cloud = operator.cloud
    guest = cloud.boot('one', 'host1')
    (service,) = cloud.database.services.list(host='host1')
    cloud.kill('host1')
    cloud.simulation.advance(70)
    shown = operator.json(*REPLACE)
    assert shown['declared_off_at'].startswith('2026-01-01T00:01:')
    expected = {'identity': service.identity, 'declared_off_by': 'ada', 'guests': [guest.uuid]}
    assert shown == {'host': 'host1', **expected, 'declared_off_at': shown['declared_off_at']}
    (listed,) = operator.json('service', 'list', '--host', 'host1')['services']
    assert listed['replaced'] == [{**expected, 'declared_off_at': shown['declared_off_at']}]
    assert (listed['state'], listed['identity']) == ('down', None)
    status, out = operator.status(*REPLACE)
    assert (status, out) == (1, '')
    assert 'it was replaced already, and no machine has registered since' in operator.err
    status, _out = operator.status('service', 'delete', 'host1')
    assert 'Or restore it there' in operator.err
