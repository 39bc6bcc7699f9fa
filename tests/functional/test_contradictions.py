# SPDX-License-Identifier: Apache-2.0

"""Reports of other projects, tried on the simulated cloud. Each of these tests fails."""

import pytest

from migrator.objects import Instance
from migrator.simulator.invariants import check
from tests.functional import migration_requests, state, test_adopt
from tests.functional import test_other_machines as machines
from tests.functional.faults import faults
from tests.functional.test_drain import drain, show
from tests.functional.test_evacuation import boot, evacuate, lose
from tests.functional.test_moved_by_hand import by_hand, placement_of_the_cloud, stored

pytestmark = [
    pytest.mark.simulated(reason='it moves guests without the control plane, and lets single seconds pass'),
    pytest.mark.breaks(*[one.id for one in check.INVARIANTS], reason='the test moves guests by hand'),
    pytest.mark.not_quiet(reason='only the principle is judged'),
    pytest.mark.usefixtures('placement_of_the_cloud'),
]
MINUTE = 60
__all__ = ['placement_of_the_cloud']


def moved(cloud, to='host3'):
    """A guest of host1 that was moved by hand to another host, which a comparison has seen."""
    instance = boot(cloud, 'one', 'host1')
    by_hand(cloud, instance, 'host1', to)
    cloud.simulation.run_until(lambda: stored(cloud), timeout=2 * MINUTE)
    return instance


def remedies(cloud):
    return [one['remedy'] for one in cloud.request('GET', '/migrator/v1/differences').json['differences']]


def finished(cloud, instance):
    """Have a cold migration to host2 that waits for its user."""
    action = f'/servers/{instance.uuid}/action'
    assert cloud.request('POST', action, {'migrate': {'host': 'host2'}}).status_int == 202
    migration_requests.until(cloud, lambda: state.migration(cloud, instance)['status'] == 'finished')
    return action


def renamed(cloud):
    """The machine of host1 asks every 10 s as host9, and is refused; its guest runs on."""
    instance = boot(cloud, 'one', 'host1')
    machine = cloud.world.hypervisors['host1']
    machines.stop(cloud)
    machines.start(cloud, cloud.world.add('host9'), machine.identity)
    cloud.simulation.advance(2 * MINUTE)
    return instance


# --- A: the machine of a host is refused, so it is on


def test_evacuation_from_a_machine_that_was_refused_under_another_name(cloud):
    instance = renamed(cloud)
    state.force_down(cloud, 'host1')
    evacuate(cloud, instance, 'host2')
    cloud.simulation.advance(MINUTE)
    assert cloud.world.active_on(instance.uuid) == ['host1']


def test_drain_offers_no_evacuation_from_a_machine_that_is_refused(cloud):
    renamed(cloud)
    uuid = drain(cloud)['uuid']
    state.force_down(cloud, 'host1')
    cloud.simulation.advance(MINUTE)
    (member,) = show(cloud, uuid)['members']
    assert 'openstack server evacuate' not in member['reason']


def test_deletion_of_the_service_offers_no_evacuation_from_a_machine_that_is_refused(cloud):
    renamed(cloud)
    response = cloud.request('DELETE', f'/os-services/{state.service(cloud, "host1")["id"]}')
    assert response.status_int == 409
    assert 'evacuate it' not in response.text


def test_machine_that_is_on_under_another_name_is_not_declared_off(cloud, operator):
    renamed(cloud)
    assert operator(*machines.REPLACE)[0] != 0


def test_evacuation_while_the_replaced_machine_is_on_again(cloud, operator):
    instance = boot(cloud, 'one', 'host1')
    machine, _other = machines.replaced(cloud, operator)
    cloud.world.hypervisors['host1'] = machine
    machines.start(cloud, machine, process='old')
    cloud.simulation.advance(2 * MINUTE)
    cloud.kill('host1')  # the new machine, whose service is stopped as the documentation says
    cloud.simulation.advance(2 * MINUTE)
    assert 'the machine that was replaced is on again' in machines.remarks(operator)['host1']
    evacuate(cloud, instance, 'host2')
    cloud.simulation.advance(MINUTE)
    assert cloud.world.active_on(instance.uuid) == ['host1']


# --- B: a host that is forced down and reports


def test_evacuation_while_a_host_that_is_forced_down_and_reports_runs_the_guest(cloud):
    instance = moved(cloud)
    state.force_down(cloud, 'host3')
    lose(cloud, 'host1')
    cloud.simulation.advance(2 * MINUTE)
    evacuate(cloud, instance, 'host2')
    cloud.simulation.advance(MINUTE)
    assert cloud.world.active_on(instance.uuid) == ['host3']


def test_guest_is_neither_forgotten_nor_started_while_such_a_host_runs_it(cloud):
    moved(cloud)
    state.force_down(cloud, 'host3')
    cloud.simulation.advance(2 * MINUTE)
    assert not [one for one in remedies(cloud) if 'instance delete' in one or 'start it on' in one], remedies(cloud)


def test_back_and_kept_forced_down_as_documented(cloud):
    """The host is back after an evacuation, runs the guest again, and cannot be declared up yet."""
    instance = boot(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    evacuate(cloud, instance, 'host2')
    cloud.wait()
    cloud.world.hypervisors['host1'].power_on()
    cloud.world.hypervisors['host1'].delete(instance.uuid)
    by_hand(cloud, instance, 'host2', 'host1')
    cloud.start_compute('host1')
    cloud.simulation.advance(3 * MINUTE)
    assert not [one for one in remedies(cloud) if 'instance delete' in one or 'start it on' in one], remedies(cloud)


def test_second_evacuation_asks_the_first_source_that_is_back(cloud):
    instance = boot(cloud, 'one', 'host1')
    state.kill(cloud, 'host1')
    state.force_down(cloud, 'host1')
    evacuate(cloud, instance, 'host2')
    cloud.wait()
    lose(cloud, 'host2')
    cloud.start_compute('host1')
    cloud.simulation.advance(2 * MINUTE)
    assert cloud.world.active_on(instance.uuid) == ['host1']
    second = evacuate(cloud, instance, 'host3')
    ends = ('done', 'failed')
    cloud.simulation.run_until(lambda: cloud.database.migrations.get(second.uuid).status in ends, timeout=MINUTE)
    assert cloud.world.active_on(instance.uuid) != ['host1', 'host3']


def test_reconcile_follows_no_copy_while_the_host_of_the_guest_reports_it(cloud, operator):
    instance = boot(cloud, 'one', 'host1')
    by_hand(cloud, instance, None, 'host2')
    state.force_down(cloud, 'host1')
    cloud.simulation.advance(2 * MINUTE)
    operator('instance', 'reconcile', '--yes')
    assert cloud.database.instances.get(instance.uuid).host == 'host1'


def test_stopped_copy_is_not_to_be_started_while_the_host_of_the_guest_reports_it(cloud):
    instance = boot(cloud, 'one', 'host1')
    by_hand(cloud, instance, None, 'host2')
    cloud.world.hypervisors['host2'].shut_off(instance.uuid)
    state.force_down(cloud, 'host1')
    cloud.simulation.advance(2 * MINUTE)
    assert not [one for one in remedies(cloud) if 'start it on one host' in one], remedies(cloud)


def test_guest_is_not_lost_while_such_a_host_runs_it(cloud):
    instance = boot(cloud, 'one', 'host1')
    stall = faults(cloud, 'host1').stall('live_migration')
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.simulation.run_until(stall.reached.is_set)
    by_hand(cloud, instance, 'host1', 'host3')
    state.force_down(cloud, 'host3')
    cloud.simulation.advance(30)  # it reports nevertheless
    stall.release()
    cloud.simulation.advance(MINUTE)
    assert cloud.database.instances.get(instance.uuid).vm_state == 'active'


# --- C: what was known is forgotten


def test_deleted_service_of_the_host_that_was_seen_with_the_guest(cloud, operator):
    instance = moved(cloud)
    machines.stop(cloud, 'host3')
    cloud.simulation.advance(2 * MINUTE)
    operator('service', 'delete', 'host3')
    lose(cloud, 'host1')
    cloud.simulation.advance(2 * MINUTE)
    evacuate(cloud, instance, 'host2')
    cloud.simulation.advance(MINUTE)
    assert cloud.world.active_on(instance.uuid) == ['host3']


def test_host_that_was_seen_with_the_guest_is_forced_down_and_up_again(cloud):
    instance = moved(cloud)
    state.kill(cloud, 'host3')
    lose(cloud, 'host1')
    state.force_down(cloud, 'host3')
    cloud.simulation.advance(2 * MINUTE)
    state.force_down(cloud, 'host3', False)
    cloud.simulation.advance(2 * MINUTE)
    evacuate(cloud, instance, 'host2')
    cloud.simulation.advance(MINUTE)
    assert cloud.world.active_on(instance.uuid) == ['host3']


def test_doubt_of_an_abandoned_migration_after_a_failed_evacuation(cloud, operator):
    instance = boot(cloud, 'one', 'host1', memory_mb=4096)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    state.when(cloud, instance, 'running')
    state.kill(cloud, 'host1')
    state.kill(cloud, 'host2')
    cloud.simulation.advance(3 * MINUTE)
    assert cloud.world.active_on(instance.uuid) == ['host2']
    uuid = cloud.migrations(instance)[-1].uuid
    assert operator('migration', 'abandon', uuid, '--guest-on', 'host1', '--yes')[0] == 0
    cloud.simulation.advance(MINUTE)
    state.force_down(cloud, 'host1')
    cloud.start_compute('host1')
    cloud.simulation.advance(30)
    evacuate(cloud, instance, 'host3')
    cloud.simulation.advance(MINUTE)
    assert 'after it was forced down' in cloud.migrations(instance)[-1].failure
    state.kill(cloud, 'host1')
    state.force_down(cloud, 'host1', False)
    state.force_down(cloud, 'host1')
    cloud.simulation.advance(MINUTE)
    evacuate(cloud, instance, 'host3')
    cloud.simulation.advance(2 * MINUTE)
    assert cloud.world.active_on(instance.uuid) == ['host2']


# --- D: allocations


@pytest.mark.parametrize('host2', ['up', 'down'])
def test_missing_row_takes_no_allocation_from_a_guest_that_no_look_has_searched(cloud, operator, host2):
    instance = boot(cloud, 'one', 'host2')
    if host2 == 'down':
        state.kill(cloud, 'host2')
        cloud.simulation.advance(2 * MINUTE)
    cloud.database.instances.delete(instance.uuid)
    (finding,) = cloud.request('GET', '/migrator/v1/findings').json['findings']
    operator('placement', 'heal', '--yes', '--consumer', instance.uuid)
    assert 'allocation delete' not in finding['remedy']
    assert instance.uuid in state.allocations(cloud)


def test_no_adoption_of_a_guest_that_another_host_was_seen_to_run(cloud):
    uuid = test_adopt.a_stranger(cloud)
    twin = Instance(
        uuid=uuid, name='twin', project_id='p', user_id='u', host='host3', node='host3', flavor=test_adopt.FLAVOR
    )
    cloud.world.hypervisors['host3'].spawn(twin)
    cloud.simulation.run_until(lambda: stored(cloud), timeout=2 * MINUTE)
    test_adopt.start_again(cloud, **{'compute.adopt_guests': True})
    cloud.simulation.advance(30)
    assert uuid not in state.allocations(cloud)


# --- E: texts


def test_drain_offers_neither_confirm_nor_revert_while_the_source_is_down(cloud):
    instance = boot(cloud, 'one', 'host1')
    action = finished(cloud, instance)
    state.kill(cloud, 'host1')
    cloud.simulation.advance(2 * MINUTE)
    uuid = cloud.request('POST', '/migrator/v1/drains', {'host': 'host2'}).json['drain']['uuid']
    cloud.simulation.advance(MINUTE)
    (member,) = show(cloud, uuid)['members']
    assert cloud.request('POST', action, {'confirmResize': None}).status_int == 409
    assert cloud.request('POST', action, {'revertResize': None}).status_int == 409
    assert 'openstack server migration' not in member['reason'], member['reason']


@pytest.mark.parametrize('forced', [False, True])
def test_confirm_is_neither_offered_nor_accepted_while_the_destination_is_down(cloud, operator, forced):
    instance = boot(cloud, 'one', 'host1')
    action = finished(cloud, instance)
    lose(cloud, 'host2')
    if not forced:
        state.force_down(cloud, 'host2', False)
    cloud.simulation.advance(2 * MINUTE)
    shown = operator('migration', 'show', cloud.migrations(instance)[-1].uuid)[1]
    assert 'openstack server migration confirm' not in shown
    assert 'openstack server migration revert' in shown
    refused = cloud.request('POST', action, {'confirmResize': None})
    assert (refused.status_int, 'The compute service of the host of the server is down' in refused.text) == (409, True)
    assert cloud.request('POST', action, {'revertResize': None}).status_int == 202


def test_failed_migration_does_not_say_that_the_guest_is_where_it_is_not(cloud, operator):
    instance = moved(cloud)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait()
    shown = operator('migration', 'show', cloud.migrations(instance)[-1].uuid)[1]
    assert 'Host host1 has no guest' in shown
    assert 'the guest is at host1' not in shown.lower(), shown


def test_deletion_of_a_service_does_not_offer_to_evacuate_a_guest_that_another_host_runs(cloud):
    moved(cloud)
    state.kill(cloud, 'host1')
    cloud.simulation.advance(2 * MINUTE)
    response = cloud.request('DELETE', f'/os-services/{state.service(cloud, "host1")["id"]}')
    assert response.status_int == 409
    assert 'evacuate it' not in response.text, response.text


def test_older_migration_does_not_say_that_the_guest_still_runs_there(cloud, operator):
    instance = boot(cloud, 'one', 'host1')
    for host in ('host2', 'host3'):
        assert cloud.live_migrate(instance, host).status_int == 202
        cloud.wait()
    shown = operator('migration', 'show', cloud.migrations(instance)[0].uuid)[1]
    assert 'Nothing: the guest runs at host2' not in shown


def test_stuck_reason_does_not_say_that_a_copy_runs_that_is_shut_off(cloud):
    instance = boot(cloud, 'one', 'host1')
    by_hand(cloud, instance, None, 'host3')
    cloud.world.hypervisors['host3'].shut_off(instance.uuid)
    assert cloud.live_migrate(instance, 'host3').status_int == 202
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].stuck_reason, timeout=MINUTE)
    assert 'host3 runs the guest' not in cloud.migrations(instance)[-1].stuck_reason


# --- F: a stopped service is not a dead host


def test_evacuation_right_after_a_planned_stop(cloud):
    instance = boot(cloud, 'one', 'host1')
    machines.stop(cloud)
    cloud.request('POST', f'/servers/{instance.uuid}/action', {'evacuate': {}}, version='2.80')
    cloud.simulation.advance(MINUTE)
    assert cloud.world.active_on(instance.uuid) == ['host1']
