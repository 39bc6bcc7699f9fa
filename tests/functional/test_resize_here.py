# SPDX-License-Identifier: Apache-2.0

"""A guest at the only host gets another flavor there, and keeps it or not as its user decides."""

import pytest

from migrator.placement_client import candidates
from migrator.placement_client.client import MICROVERSION
from migrator.testing.placement_faults import Fault
from migrator.virt import driver
from tests.functional import state
from tests.functional.faults import faults
from tests.functional.test_cold_migration import CONFIRM, REVERT, act, is_clean, newest
from tests.functional.test_drain_stopped import plan
from tests.functional.test_resize import LARGE, ROOM, resize, sizes

pytestmark = [
    pytest.mark.simulated(reason='it kills hosts, and looks at the fake hypervisors'),
    pytest.mark.cloud(hosts=1, options={'allow_resize_to_same_host': True}),
]


@pytest.fixture
def guest(cloud):
    """A guest of a small flavor, beside a larger flavor."""
    cloud.database.flavors.create(LARGE)
    return cloud.boot('one', 'host1')


def lose(cloud, host):
    """Cut the power of a host, and declare it forced down."""
    state.kill(cloud, host)
    cloud.world.hypervisors[host].power_off()
    state.force_down(cloud, host)


def bring_back(cloud, host):
    """Start a host again, and declare it up once nothing prevents that."""
    cloud.world.hypervisors[host].power_on()
    cloud.start_compute(host)
    cloud.simulation.advance(20)
    state.force_down(cloud, host, False)


@pytest.mark.parametrize(('decision', 'code', 'status'), [(CONFIRM, 204, 'confirmed'), (REVERT, 202, 'reverted')])
def test_each_consumer_holds_one_flavor_at_one_provider_until_the_user_decides(cloud, guest, decision, code, status):
    small = (guest.flavor.vcpus, guest.flavor.memory_mb)
    migration = resize(cloud, guest)
    assert (migration.source_compute, migration.dest_compute) == ('host1', 'host1')
    assert sizes(cloud, guest) == ('large', {'host1': (4, 2048)})
    assert state.allocations(cloud) == {guest.uuid: {'host1': ROOM}, migration.uuid: {'host1': state.CLAIM}}
    assert is_clean(cloud)
    assert act(cloud, guest, decision) == code
    cloud.wait()
    assert newest(cloud, guest).status == status
    kept = status == 'confirmed'
    assert sizes(cloud, guest) == (('large', {'host1': (4, 2048)}) if kept else (guest.flavor.name, {'host1': small}))
    assert state.allocations(cloud) == {guest.uuid: {'host1': ROOM if kept else state.CLAIM}}
    assert is_clean(cloud)


def processors(cloud, most=None):
    """Return the inventory of host1's processors. ``most`` changes how many one consumer may hold."""
    url = f'/resource_providers/{driver.node_uuid("host1")}/inventories'
    placement, version = cloud.placement.adapter(), {'OpenStack-API-Version': f'placement {MICROVERSION}'}
    body = placement.get(url, headers=version).json()
    if most is not None:
        body['inventories']['VCPU']['max_unit'] = most
        assert placement.put(url, json=body, headers=version).status_code == 200
    return body['inventories']['VCPU']


@pytest.mark.breaks('I22', reason='a user shuts the guest off, which the database learns with the resize')
@pytest.mark.parametrize('decision', [CONFIRM, REVERT])
def test_guest_that_its_host_has_shut_off_stays_so_and_the_database_follows(cloud, guest, decision):
    cloud.world.hypervisors['host1'].shut_off(guest.uuid)
    resize(cloud, guest)
    assert act(cloud, guest, decision) in (202, 204)
    cloud.wait()
    assert (state.server(cloud, guest)['status'], cloud.world.active_on(guest.uuid)) == ('SHUTOFF', [])
    assert is_clean(cloud)


def test_guest_that_is_shut_off_between_check_and_resize_is_not_started(cloud, guest):
    stall = faults(cloud, 'host1').stall('resize')
    assert act(cloud, guest, 'resize', {'flavorRef': 'large'}) == 202
    cloud.simulation.run_until(stall.reached.is_set, timeout=120)
    cloud.world.hypervisors['host1'].shut_off(guest.uuid)
    stall.release()
    cloud.wait()
    assert newest(cloud, guest).status == 'failed'
    assert 'has been shut off since the check' in newest(cloud, guest).failure
    assert cloud.world.active_on(guest.uuid) == []


def test_both_flavors_fit_although_no_consumer_may_hold_the_sum(cloud, guest):
    assert processors(cloud, ROOM['VCPU'])['total'] > ROOM['VCPU'] + state.CLAIM['VCPU']
    # Another writer comes first once, so that the move is repeated.
    cloud.adapter.inject(Fault.CONFLICT, method='POST', url='/allocations')
    migration = resize(cloud, guest)
    assert processors(cloud)['max_unit'] == ROOM['VCPU']
    assert state.allocations(cloud) == {guest.uuid: {'host1': ROOM}, migration.uuid: {'host1': state.CLAIM}}
    assert act(cloud, guest, REVERT) == 202
    cloud.wait()
    assert state.allocations(cloud) == {guest.uuid: {'host1': state.CLAIM}}


@pytest.mark.parametrize(
    'hinders',
    [
        lambda cloud: processors(cloud, ROOM['VCPU'] - 1),
        # Placement has a candidate, and its room is gone when the allocations are written.
        lambda cloud: cloud.adapter.inject(Fault.REFUSED, method='POST', url='/allocations', times=3),
    ],
    ids=['more than one consumer may hold', 'room was taken since'],
)
def test_flavor_without_room_leaves_the_guest_running_as_it_was(cloud, guest, hinders):
    hinders(cloud)
    before = len(cloud.world.log)
    assert act(cloud, guest, 'resize', {'flavorRef': 'large'}) == 202
    cloud.wait()
    assert newest(cloud, guest).status == 'failed'
    assert len(cloud.world.log) == before
    assert sizes(cloud, guest) == (guest.flavor.name, {'host1': (guest.flavor.vcpus, guest.flavor.memory_mb)})
    assert state.allocations(cloud) == {guest.uuid: {'host1': state.CLAIM}}
    assert is_clean(cloud)


def refused(cloud, guest, flavor='large'):
    """Resize a server in vain, and return the reason."""
    assert act(cloud, guest, 'resize', {'flavorRef': flavor}) == 202
    cloud.wait()
    assert newest(cloud, guest).status == 'failed'
    assert state.allocations(cloud)[guest.uuid] == {'host1': state.CLAIM}
    return newest(cloud, guest).failure


@pytest.mark.cloud(hosts=2, options={'allow_resize_to_same_host': True})
@pytest.mark.parametrize('disabled', ['', 'host2: it is disabled'])
def test_host_without_room_for_both_flavors_is_named(cloud, guest, disabled):
    processors(cloud, ROOM['VCPU'] - 1)
    if disabled:
        cloud.database.services.update(cloud.database.services.get_compute('host2').id, disabled=True)
    else:
        cloud.boot('giant', 'host2', memory_mb=65536)
    why = refused(cloud, guest)
    assert 'host1: Placement has no room for both flavors there' in why
    assert disabled in why


@pytest.mark.cloud(hosts=1)
def test_without_the_option_the_only_host_is_no_destination(cloud, guest):
    assert 'host1: it is the source, and allow_resize_to_same_host is false' in refused(cloud, guest)


def test_flavor_of_equal_amounts_needs_another_host(cloud, guest):
    cloud.database.flavors.create(guest.flavor.replace(name='renamed'))
    assert 'host1: it is the source, and both flavors have the same amounts' in refused(cloud, guest, 'renamed')


def test_plan_of_a_drain_has_the_guest_and_no_old_copy_of_it(cloud, guest):
    resize(cloud, guest)
    shown = plan(cloud)
    assert [one['obstacle']['reason'] for one in shown['guests']] == ['It is in VERIFY_RESIZE.']
    assert shown['copies'] == []
    assert act(cloud, guest, CONFIRM) == 204
    cloud.wait()


@pytest.mark.cloud(hosts=2, options={'allow_resize_to_same_host': True})
def test_another_host_that_can_take_the_guest_comes_first(cloud, guest):
    assert resize(cloud, guest).dest_compute == 'host2'
    assert act(cloud, guest, CONFIRM) == 204
    cloud.wait()


@pytest.mark.cloud(hosts=2, options={'allow_resize_to_same_host': True})
@pytest.mark.parametrize('home', ['host1', 'host2'])
def test_another_host_beyond_the_limit_of_a_request_comes_first_too(cloud, monkeypatch, home):
    monkeypatch.setattr(candidates, 'LIMIT', 1)
    cloud.database.flavors.create(LARGE)
    guest = cloud.boot('one', home)
    assert resize(cloud, guest).dest_compute != home
    assert act(cloud, guest, CONFIRM) == 204
    cloud.wait()


@pytest.mark.cloud(hosts=2, options={'allow_resize_to_same_host': True})
def test_a_guest_that_waits_for_its_user_is_not_evacuated_and_is_reverted_when_its_host_is_back(cloud, guest):
    faults(cloud, 'host2').fail('finish_migration', 'planned: it cannot', sticky=True)
    assert resize(cloud, guest).dest_compute == 'host1'
    state.kill(cloud, 'host1')
    cloud.world.hypervisors['host1'].power_off()
    state.force_down(cloud, 'host1')
    assert act(cloud, guest, 'evacuate', {}) == 409
    assert act(cloud, guest, REVERT) == act(cloud, guest, CONFIRM) == 409
    assert sizes(cloud, guest)[0] == 'large'
    cloud.world.hypervisors['host1'].power_on()
    cloud.start_compute('host1')
    state.force_down(cloud, 'host1', False)
    cloud.simulation.advance(20)
    assert act(cloud, guest, REVERT) == 202
    cloud.wait()
    assert newest(cloud, guest).status == 'reverted'
    assert sizes(cloud, guest) == (guest.flavor.name, {'host1': (guest.flavor.vcpus, guest.flavor.memory_mb)})
    assert state.allocations(cloud) == {guest.uuid: {'host1': state.CLAIM}}
    assert is_clean(cloud)


@pytest.mark.cloud(hosts=2, options={'allow_resize_to_same_host': True, 'conductor.sweep_interval': 1000})
def test_guest_whose_revert_was_deferred_has_its_old_size_before_its_next_migration(cloud, guest):
    faults(cloud, 'host2').fail('finish_migration', 'planned: it cannot', sticky=True)
    assert resize(cloud, guest).dest_compute == 'host1'
    assert act(cloud, guest, REVERT) == 202
    cloud.simulation.run_until(lambda: newest(cloud, guest).status == 'reverting')
    state.kill(cloud, 'host1')
    state.force_down(cloud, 'host1')
    cloud.simulation.run_until(lambda: newest(cloud, guest).status == 'reverted')
    assert [one.step for one in cloud.database.cleanups.list()] == ['revert_resize']
    cloud.start_compute('host1')
    state.force_down(cloud, 'host1', False)
    cloud.simulation.advance(20)
    # The next sweep, which would run the cleanup, is later.
    assert cloud.live_migrate(guest).status_int == 202
    cloud.wait()
    assert newest(cloud, guest).status == 'completed'
    assert sizes(cloud, guest) == (guest.flavor.name, {'host2': (guest.flavor.vcpus, guest.flavor.memory_mb)})
    assert is_clean(cloud)


@pytest.mark.cloud(hosts=2, options={'allow_resize_to_same_host': True})
def test_guest_whose_host_dies_while_it_waits_is_evacuated_with_its_new_size_once_it_is_abandoned(
    cloud, guest, operator
):
    # The host reports the definition of the old size before.
    cloud.simulation.run_until(lambda: cloud.database.definitions.get(guest.uuid, 'host1'))
    there = faults(cloud, 'host2')
    there.fail('check_can_migrate_destination', 'planned: it cannot', sticky=True)
    migration = resize(cloud, guest)
    assert migration.dest_compute == 'host1'
    # The host reports that of the new size with the next sweep.
    cloud.simulation.run_until(lambda: cloud.database.definitions.get(guest.uuid, 'host1'), 20)
    lose(cloud, 'host1')
    there.clear()
    assert operator('migration', 'abandon', migration.uuid, '--guest-on', 'host1', '--yes')[0] == 0
    cloud.wait()
    assert newest(cloud, guest).status == 'error'
    assert 'evacuate it if host1 is dead' in operator.shows(guest)
    assert act(cloud, guest, 'evacuate', {}) == 200
    cloud.simulation.run_until(lambda: newest(cloud, guest).status == 'done')
    assert cloud.world.active_on(guest.uuid) == ['host2']
    bring_back(cloud, 'host1')
    cloud.simulation.run_until(lambda: newest(cloud, guest).status == 'completed')
    assert sizes(cloud, guest) == ('large', {'host2': (4, 2048)})
    assert state.allocations(cloud) == {guest.uuid: {'host2': ROOM}}
    cloud.simulation.run_until(lambda: is_clean(cloud))


@pytest.mark.cloud(hosts=2, options={'allow_resize_to_same_host': True})
def test_definition_of_the_new_size_is_not_stored_for_a_guest_whose_revert_waits_for_its_host(cloud, guest):
    faults(cloud, 'host2').fail('check_can_migrate_destination', 'planned: it cannot', sticky=True)
    resize(cloud, guest)
    cloud.simulation.run_until(lambda: cloud.database.definitions.get(guest.uuid, 'host1'))
    stall = faults(cloud, 'host1').stall('revert_resize', sticky=True)
    assert act(cloud, guest, REVERT) == 202
    cloud.simulation.run_until(stall.reached.is_set)
    lose(cloud, 'host1')
    cloud.simulation.run_until(lambda: newest(cloud, guest).status == 'reverted')
    # The host reports the guest as it is, until the deferred cleanup is run.
    bring_back(cloud, 'host1')
    cloud.simulation.advance(60)
    assert sizes(cloud, guest) == (guest.flavor.name, {'host1': (4, 2048)})
    assert cloud.database.definitions.get(guest.uuid, 'host1') == {}
    stall.release()
    cloud.simulation.run_until(lambda: cloud.database.definitions.get(guest.uuid, 'host1'))
    assert sizes(cloud, guest) == (guest.flavor.name, {'host1': (guest.flavor.vcpus, guest.flavor.memory_mb)})
    cloud.simulation.run_until(lambda: is_clean(cloud))


@pytest.mark.parametrize(('decision', 'ends'), [(CONFIRM, 'confirmed'), (REVERT, 'reverted')])
def test_decision_on_a_guest_that_its_host_does_not_have_waits_for_an_operator(cloud, guest, decision, ends):
    resize(cloud, guest)
    guests = cloud.world.hypervisors['host1'].guests
    copy = guests.pop(guest.uuid)
    assert act(cloud, guest, decision) in (202, 204)
    cloud.simulation.run_until(lambda: newest(cloud, guest).stuck_reason)
    assert 'host1 does not have the guest' in newest(cloud, guest).stuck_reason
    assert newest(cloud, guest).status == 'finished'
    guests[guest.uuid] = copy
    cloud.wait()
    assert newest(cloud, guest).status == ends


def test_resize_is_confirmed_although_its_host_has_died_since_the_request(cloud, guest):
    resize(cloud, guest)
    stall = faults(cloud, 'host1').stall('confirm_resize')
    assert act(cloud, guest, CONFIRM) == 204
    cloud.simulation.run_until(stall.reached.is_set)
    lose(cloud, 'host1')
    cloud.simulation.run_until(lambda: newest(cloud, guest).status == 'confirmed', 300)
    assert [one.step for one in cloud.database.cleanups.list()] == ['confirm_resize']
    stall.release()
    bring_back(cloud, 'host1')
    cloud.simulation.run_until(lambda: cloud.database.cleanups.list() == [])
    assert cloud.world.hypervisors['host1'].guests[guest.uuid].resize is None


def test_resize_whose_host_is_forced_down_meanwhile_fails_with_that_reason(cloud, guest):
    stall = faults(cloud, 'host1').stall('resize')
    assert act(cloud, guest, 'resize', {'flavorRef': 'large'}) == 202
    cloud.simulation.run_until(stall.reached.is_set)
    # The host reports that the resize runs, before it dies.
    cloud.simulation.advance(20)
    lose(cloud, 'host1')
    cloud.wait(200)
    assert newest(cloud, guest).failure == 'Host host1 could not resize the guest: host1 was forced down'
    stall.release()
    bring_back(cloud, 'host1')
    cloud.simulation.run_until(lambda: cloud.database.cleanups.list() == [])


def test_no_declaration_is_advised_for_a_host_that_is_down_while_the_guest_waits_there(cloud, guest, operator):
    resize(cloud, guest)
    state.kill(cloud, 'host1')
    cloud.simulation.advance(100)
    shown = operator.shows(guest)
    assert 'The compute service of the source host1 is down' in shown
    assert 'set --down' not in shown
    assert 'migration abandon MIGRATION --guest-on host1' in shown
    for decision in (CONFIRM, REVERT):
        refused = cloud.request('POST', f'/servers/{guest.uuid}/action', {decision: None})
        assert (refused.status_int, 'of the host of the server is down: start it' in refused.text) == (409, True)
    cloud.start_compute('host1')
    cloud.simulation.run_until(lambda: act(cloud, guest, CONFIRM) == 204)
    cloud.wait()
