# SPDX-License-Identifier: Apache-2.0

"""A host that comes back removes no valid guest, and starts whatever has happened."""

import pytest

from migrator.conductor import registry
from tests.functional import migration_requests, state
from tests.functional.faults import LONG, faults, migrate

pytestmark = pytest.mark.simulated(reason='it kills services at single moments')


@pytest.mark.nova_bug(1713783)
def test_a_source_that_restarts_after_no_host_was_found_still_has_its_guests(cloud):
    """The migration was left `accepted`, and the restart destroyed guests that had never left."""
    instance, other = cloud.boot('one', 'host1'), cloud.boot('two', 'host1')
    for host in ('host2', 'host3'):
        faults(cloud, host).fail('check_can_live_migrate_destination', 'no')
    before = migrate(cloud, instance)
    cloud.wait()
    state.kill(cloud, 'host1')
    cloud.simulation.advance(5)
    state.restart(cloud, 'host1')
    cloud.simulation.advance(30)
    state.failed(cloud, instance, before, 'Every candidate was tried')
    for one in (instance, other):
        assert cloud.world.active_on(one.uuid) == ['host1']


@pytest.mark.nova_bug(1713783)
@pytest.mark.parametrize('status', ['accepted', 'preparing', 'queued', 'running'])
def test_a_source_that_restarts_destroys_nothing_whatever_the_migration_stands_at(cloud, status):
    """Nothing here is decided by a status that was left behind."""
    instance = cloud.boot('one', 'host1', memory_mb=2048)
    migration_requests.TO[status](cloud, instance)
    state.kill(cloud, 'conductor1')
    state.kill(cloud, 'host1')
    cloud.start_compute('host1')
    cloud.simulation.advance(30)
    assert cloud.world.active_on(instance.uuid) == ['host1']
    assert migration_requests.effects(cloud, instance, 'removed') == []
    cloud.start_conductor('conductor1')
    migration_requests.go_on(cloud)
    cloud.wait(LONG)
    state.moved(cloud, instance, state.host_of(cloud, instance))


@pytest.mark.nova_bug(1721652)
@pytest.mark.parametrize('conductor_first', [False, True])
def test_restart_of_all_services_at_once_needs_no_earlier_observation(cloud, conductor_first):
    """The cleanup at start failed on a cache that was still cold."""
    moving, waits = cloud.boot('one', 'host1', memory_mb=4096), cloud.boot('two', 'host1')
    fails = cloud.boot('three', 'host3')
    faults(cloud, 'host3').stall('copying', instance_uuid=fails.uuid, sticky=True)
    for instance in (moving, waits, fails):
        migrate(cloud, instance, 'host2')
        state.when(cloud, instance, 'queued' if instance is waits else 'running')
    assert migration_requests.abort(cloud, fails).status_int == 202
    for name in ('conductor1', 'host1', 'host2', 'host3'):
        state.kill(cloud, name)
    if conductor_first:
        cloud.start_conductor('conductor1')
    for host in ('host2', 'host1', 'host3'):
        cloud.start_compute(host)
    cloud.simulation.advance(3)
    if not conductor_first:
        cloud.start_conductor('conductor1')
    migration_requests.go_on(cloud)
    cloud.wait(LONG)
    for instance in (moving, waits):
        state.moved(cloud, instance, 'host2')
    assert state.migration(cloud, fails)['status'] in ('cancelled', 'completed')
    state.moved(cloud, fails, state.host_of(cloud, fails))


@pytest.mark.nova_bug(1794996)
def test_a_host_whose_server_was_deleted_while_it_was_away_starts_and_serves(cloud):
    """A service did not start, because a server that it had to look after had been deleted."""
    gone, stays = cloud.boot('one', 'host1', memory_mb=4096), cloud.boot('two', 'host1')
    migrate(cloud, gone, 'host2')
    state.when(cloud, gone, 'running')
    state.kill(cloud, 'host1')
    cloud.wait(LONG)
    assert state.migration(cloud, gone)['status'] == 'completed'
    registry.delete_instance(cloud.database, cloud.placement_client, gone.uuid)
    # its user's guest, at the destination; what the source keeps of it is a copy that is not needed
    cloud.world.hypervisors['host2'].delete(gone.uuid)
    cloud.world.hypervisors['host1'].delete(gone.uuid)
    state.restart(cloud, 'host1')
    assert state.service(cloud, 'host1')['state'] == 'up'
    migrate(cloud, stays)
    cloud.wait(LONG)
    state.moved(cloud, stays, state.host_of(cloud, stays))
