# SPDX-License-Identifier: Apache-2.0

"""What an operator is shown to type, in worlds in which one reading contradicts another."""

import pytest

from tests.functional import migration_requests, state
from tests.functional.test_drain import drain, show
from tests.functional.test_evacuation import boot, lose
from tests.functional.test_moved_by_hand import by_hand, placement_of_the_cloud, stored

pytestmark = [
    pytest.mark.simulated(reason='it moves guests without the control plane, and lets single seconds pass'),
    pytest.mark.breaks('I2', 'I3', 'I4', 'I5', 'I18', reason='the test moves guests without the control plane'),
]

MINUTE = 60
__all__ = ['placement_of_the_cloud']


def remedy(cloud):
    """Return the remedy of the only difference, as each answer of the API shows it."""
    shown = [
        cloud.request('GET', '/migrator/v1/differences').json['differences'],
        cloud.request('GET', '/migrator/v1/hosts/host1').json['host']['differences'],
    ]
    (one,) = {one['remedy'] for each in shown for one in each}
    return one


def confirm(cloud, instance):
    assert cloud.request('POST', f'/servers/{instance.uuid}/action', {'confirmResize': None}).status_int == 204
    cloud.wait()


def test_missing_guest_is_forgotten_only_while_every_host_lists_its_guests(cloud):
    instance = boot(cloud, 'one', 'host1')
    by_hand(cloud, instance, 'host1', None)
    cloud.simulation.run_until(lambda: stored(cloud), timeout=2 * MINUTE)
    assert f'migrator-manage instance delete {instance.uuid}' in remedy(cloud)
    state.kill(cloud, 'host3')
    cloud.simulation.advance(2 * MINUTE)
    assert stored(cloud) == {'one': 'missing'}
    assert 'delete' not in remedy(cloud)
    assert 'start it on' not in remedy(cloud)
    assert 'host3 did not list guests' in remedy(cloud)
    cloud.start_compute('host3')
    cloud.simulation.advance(2 * MINUTE)
    assert 'instance delete' in remedy(cloud)
    by_hand(cloud, instance, None, 'host1')


def test_moved_guest_is_reconciled_only_once_its_host_has_answered_or_is_forced_down(cloud):
    instance = boot(cloud, 'one', 'host1')
    by_hand(cloud, instance, 'host1', 'host2')
    cloud.simulation.run_until(lambda: stored(cloud), timeout=2 * MINUTE)
    assert 'migrator-manage instance reconcile' in remedy(cloud)
    state.kill(cloud, 'host1')
    cloud.simulation.advance(2 * MINUTE)
    assert 'reconcile' not in remedy(cloud)
    assert 'host1 did not list guests' in remedy(cloud)
    state.force_down(cloud, 'host1')
    assert 'migrator-manage instance reconcile' in remedy(cloud)


def test_guest_that_runs_at_home_again_differs_no_more_though_the_other_host_is_fenced(cloud):
    instance = boot(cloud, 'one', 'host1')
    by_hand(cloud, instance, 'host1', 'host2')
    cloud.simulation.run_until(lambda: stored(cloud), timeout=2 * MINUTE)
    lose(cloud, 'host2')
    cloud.simulation.advance(2 * MINUTE)
    assert stored(cloud) == {'one': 'moved'}
    assert 'start it on host1 again' in remedy(cloud)
    by_hand(cloud, instance, 'host2', 'host1')
    cloud.simulation.advance(2 * MINUTE)
    assert stored(cloud) == {}


def test_guest_in_a_migration_that_a_third_host_has_differs(cloud, operator):
    instance = boot(cloud, 'one', 'host1')
    response = cloud.request('POST', f'/servers/{instance.uuid}/action', {'migrate': {'host': 'host2'}})
    assert response.status_int == 202
    migration_requests.until(cloud, lambda: state.migration(cloud, instance)['status'] == 'finished')
    cloud.simulation.advance(2 * MINUTE)
    assert stored(cloud) == {}
    by_hand(cloud, instance, 'host2', 'host3')
    cloud.simulation.run_until(lambda: stored(cloud), timeout=2 * MINUTE)
    assert stored(cloud) == {'one': 'moved'}
    status, text = operator('instance', 'reconcile', '--yes')
    assert (status, 'a migration of it is in progress: let it end, or abort it' in text) == (1, True), text
    by_hand(cloud, instance, 'host3', 'host2')
    cloud.simulation.run_until(lambda: not stored(cloud), timeout=2 * MINUTE)
    confirm(cloud, instance)


def test_drain_of_a_host_that_is_forced_down_and_reports_offers_no_evacuation(cloud):
    instance = boot(cloud, 'one', 'host1')
    state.force_down(cloud, 'host1')
    drained = drain(cloud)['uuid']
    cloud.simulation.advance(MINUTE)
    (member,) = show(cloud, drained)['members']
    assert 'evacuate' not in member['reason']
    assert 'It reports. If it is right again: openstack compute service set --up host1' in member['reason']
    state.kill(cloud, 'host1')
    cloud.simulation.advance(2 * MINUTE)
    (member,) = show(cloud, drained)['members']
    assert f'dead and fenced, evacuate the guest: openstack server evacuate {instance.uuid}.' in member['reason']


def test_audit_takes_no_allocation_from_a_guest_that_a_host_has(cloud, operator):
    instance = boot(cloud, 'one', 'host2')
    stranger = instance.uuid
    cloud.database.instances.delete(stranger)
    cloud.simulation.run_until(lambda: stored(cloud), timeout=2 * MINUTE)
    (finding,) = cloud.request('GET', '/migrator/v1/findings').json['findings']
    assert (finding['consumer'], 'allocation delete' in finding['remedy']) == (stranger, False)
    assert 'its guest is not where the database has it' in finding['remedy']
    status, text = operator('placement', 'heal', '--yes', '--consumer', stranger)
    assert (status, 'it is a guest on host2' in text) == (1, True), text
    cloud.world.hypervisors['host2'].delete(stranger)


def test_finished_migration_whose_source_is_down_shows_neither_confirm_nor_revert(cloud, operator):
    instance = boot(cloud, 'one', 'host1')
    response = cloud.request('POST', f'/servers/{instance.uuid}/action', {'migrate': {'host': 'host2'}})
    assert response.status_int == 202
    migration_requests.until(cloud, lambda: state.migration(cloud, instance)['status'] == 'finished')
    number = str(cloud.migrations(instance)[-1].id)
    assert f'openstack server migration revert {instance.uuid}' in operator('migration', 'show', number)[1]
    state.kill(cloud, 'host1')
    cloud.simulation.advance(2 * MINUTE)
    shown = operator('migration', 'show', number)[1]
    assert 'openstack server migration' not in shown
    assert 'It can neither be confirmed nor reverted while host1 is down' in shown
    cloud.start_compute('host1')
    cloud.simulation.advance(MINUTE)
    confirm(cloud, instance)
