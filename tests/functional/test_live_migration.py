# SPDX-License-Identifier: Apache-2.0


"""One live migration and several, as a user sees them, with the allocations on the way."""

import itertools

import pytest

from migrator.virt import driver
from tests.functional import state

MIB = 1024 * 1024


@pytest.mark.parametrize('host', [None, 'host3'])
@pytest.mark.parametrize('version', ['2.1', '2.25', '2.30', '2.34', '2.68', '2.80'])
def test_a_server_moves_with_and_without_a_host_in_every_form_of_the_request(cloud, version, host):
    instance = cloud.boot('one', 'host1')
    response = cloud.live_migrate(instance, host, version=version)
    assert (response.status_int, response.body) == (202, b'')
    cloud.wait()
    state.completed(cloud, instance, host or 'host2')


@pytest.mark.nova_bug(1712008)
@pytest.mark.parametrize('version', ['2.30', '2.34', '2.67'])
def test_forced_migration_claims_and_uses_the_named_host(cloud, version):
    """A forced move had no allocation at the destination."""
    instance = cloud.boot('one', 'host1')
    arguments = {'host': 'host3', 'block_migration': 'auto', 'force': True}
    path = f'/servers/{instance.uuid}/action'
    assert cloud.request('POST', path, {'os-migrateLive': arguments}, version=version).status_int == 202
    cloud.wait()
    state.completed(cloud, instance, 'host3')


@pytest.mark.parametrize('version', ['2.1', '2.30'])
def test_below_2_34_the_answer_comes_when_the_checks_are_done_and_no_later(cloud, version):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    assert cloud.live_migrate(instance, version=version).status_int == 202
    assert cloud.migrations(instance)[0].checked_at is not None
    assert state.in_progress(cloud, instance)[0]['status'] in ('preparing', 'queued', 'running')
    cloud.wait()
    state.completed(cloud, instance, 'host2')


def test_live_migrate_from_2_34_returns_when_row_is_committed(cloud):
    instance = cloud.boot('one', 'host1')
    assert cloud.live_migrate(instance, version='2.34').status_int == 202
    assert state.in_progress(cloud, instance)[0]['status'] in ('accepted', 'preparing')
    assert state.server(cloud, instance)['status'] == 'MIGRATING'


@pytest.mark.nova_bug(1561357, 1669054, 1797580)
def test_two_moves_in_a_row_find_their_way_as_the_first_did(cloud):
    """The next move found no host, for what was meant for the first had been kept."""
    instance = cloud.boot('one', 'host1')
    for host in ('host2', None, 'host3', 'host1'):
        assert cloud.live_migrate(instance, host).status_int == 202
        cloud.wait()
        state.completed(cloud, instance, host or state.host_of(cloud, instance))
    assert len(state.migrations(cloud, instance)) == 4


@pytest.mark.nova_bug(1267862)
@pytest.mark.cloud(link=16384.0)
def test_freed_resources_can_be_used_by_the_next_migration(cloud):
    """The capacity was stale after a move."""
    big = cloud.boot('big', 'host1', memory_mb=60000)
    other = cloud.boot('other', 'host2', memory_mb=60000)
    cloud.live_migrate(big, 'host3')
    cloud.wait()
    cloud.live_migrate(other, 'host1')
    cloud.wait()
    cloud.live_migrate(big, 'host2')
    cloud.wait()
    state.completed(cloud, big, 'host2')
    state.completed(cloud, other, 'host1')


def test_a_paused_server_moves_and_stays_paused(cloud):
    instance = cloud.boot('one', 'host1', vm_state='paused')
    cloud.world.hypervisors['host1'].pause(instance.uuid)
    assert cloud.live_migrate(instance).status_int == 202
    cloud.wait()
    state.completed(cloud, instance, 'host2', status='PAUSED')
    assert not [effect for effect in cloud.world.log if effect.effect == 'running' and effect.host == 'host2']


@pytest.mark.nova_bug(1644248)
@pytest.mark.parametrize('dirty_rate', [0, 300, 900, 3000])
def test_a_guest_that_writes_its_memory_arrives_however_fast_it_does(cloud, dirty_rate):
    """Slow is not stuck; the hypervisor slows the guest down until it fits."""
    instance = cloud.boot('one', 'host1', memory_mb=2048, dirty_rate=dirty_rate)
    assert cloud.live_migrate(instance).status_int == 202
    cloud.wait()
    state.completed(cloud, instance, 'host2')


# --- what is seen on the way -----------------------------------------------------------------------------------------


def test_statuses_come_in_the_order_of_the_saga(cloud):
    instance = cloud.boot('one', 'host1')
    cloud.live_migrate(instance)
    cloud.wait()
    statuses = ['accepted', 'preparing', 'queued', 'running', 'post-migrating', 'completed']
    assert state.history(cloud, instance) == statuses
    times = [entry['at'] for entry in cloud.history_of(cloud.migrations(instance)[0])]
    assert times == sorted(times)


def test_a_server_is_migrating_while_it_moves_and_active_at_its_new_host_afterwards(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    shown = state.server(cloud, instance)
    assert (shown['status'], shown['OS-EXT-SRV-ATTR:host']) == ('ACTIVE', 'host1')
    cloud.live_migrate(instance)
    state.when(cloud, instance, 'running')
    shown = state.server(cloud, instance)
    assert (shown['status'], shown['OS-EXT-STS:task_state']) == ('MIGRATING', 'migrating')
    assert shown['OS-EXT-SRV-ATTR:host'] == 'host1', 'the guest still runs there'
    cloud.wait()
    shown = state.server(cloud, instance)
    assert (shown['status'], shown['OS-EXT-STS:task_state']) == ('ACTIVE', None)
    assert shown['OS-EXT-SRV-ATTR:host'] == shown['OS-EXT-SRV-ATTR:hypervisor_hostname'] == 'host2'


@pytest.mark.nova_bug(1982284)
def test_the_progress_of_the_copy_is_seen_while_it_runs_and_only_grows(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=16384)
    cloud.live_migrate(instance)
    state.when(cloud, instance, 'running')
    processed = []
    while found := state.in_progress(cloud, instance):
        figures = found[0]
        if figures['memory_total_bytes'] is not None:
            assert figures['memory_total_bytes'] == 16384 * MIB
            together = figures['memory_processed_bytes'] + figures['memory_remaining_bytes']
            assert together == pytest.approx(16384 * MIB, abs=1)
            processed.append(figures['memory_processed_bytes'])
        cloud.simulation.advance(1)
    assert len(set(processed)) > 4
    assert processed == sorted(processed)
    state.completed(cloud, instance, 'host2')


def test_a_migration_is_shown_in_every_list_with_the_same_figures(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    cloud.live_migrate(instance)
    state.when(cloud, instance, 'running')
    found = state.in_progress(cloud, instance)[0]
    assert state.get(cloud, f'/servers/{instance.uuid}/migrations/{found["id"]}')['migration'] == found
    listed = state.migration(cloud, instance)
    for name in ('id', 'uuid', 'status', 'source_compute', 'dest_compute', 'source_node', 'dest_node', 'created_at'):
        assert listed[name] == found[name]
    assert (found['source_compute'], found['dest_compute']) == ('host1', 'host2')
    assert (listed['migration_type'], bool(listed['links'])) == ('live-migration', True)
    cloud.wait()
    assert state.in_progress(cloud, instance) == []
    response = cloud.request('GET', f'/servers/{instance.uuid}/migrations/{found["id"]}')
    assert response.status_int == 404
    listed = state.migration(cloud, instance)
    assert (listed['status'], 'links' in listed) == ('completed', False)


def test_action_shows_the_result_and_the_events_of_each_host(cloud):
    instance = cloud.boot('one', 'host1')
    response = cloud.live_migrate(instance)
    cloud.wait()
    found = state.action(cloud, instance)
    assert (found['action'], found['message']) == ('live-migration', None)
    assert found['request_id'] == response.headers['X-OpenStack-Request-Id']
    events = {event['event']: (event['result'], event['host']) for event in found['events']}
    assert events['conductor_live_migrate_instance'] == ('Success', 'host1')
    assert events['compute_live_migration'] == ('Success', 'host1')
    assert events['compute_pre_live_migration'] == ('Success', 'host2')
    assert events['compute_post_live_migration_at_source'] == ('Success', 'host1')
    assert events['compute_post_live_migration_at_destination'] == ('Success', 'host2')
    assert {result for result, _ in events.values()} == {'Success'}


# --- the allocations -------------------------------------------------------------------------------------------------


class Ledger:
    """The allocations after every commit, each state once, in order."""

    def __init__(self, cloud):
        self.pages = []
        self._cloud = cloud
        cloud.database.engine.boundary = self._look

    def _look(self, _what):
        page = state.allocations(self._cloud)
        if page not in self.pages:
            self.pages.append(page)


@pytest.mark.nova_bug(1790204, '53ca096750', '66297f0c4a')
@pytest.mark.parametrize('host', [None, 'host3'])
@pytest.mark.simulated(reason='it looks after every commit')
def test_allocations_are_exact_at_every_stage(cloud, host):
    """One consumer for each side of the move, and at no moment anything else."""
    instance = cloud.boot('one', 'host1')
    ledger = Ledger(cloud)
    cloud.live_migrate(instance, host)
    cloud.wait()
    to = host or 'host2'
    moving = cloud.migrations(instance)[0].uuid
    assert ledger.pages == [
        {instance.uuid: {'host1': state.CLAIM}},
        {instance.uuid: {to: state.CLAIM}, moving: {'host1': state.CLAIM}},
        {instance.uuid: {to: state.CLAIM}},
    ]


@pytest.mark.nova_bug(1714237, 1715182, '55f4552621')
@pytest.mark.simulated(reason='it looks after every commit')
def test_rollback_restores_the_allocations_in_reverse_order(cloud):
    """Back is the same write, the other way round."""
    instance = cloud.boot('one', 'host1')
    cloud.world.hypervisors['host1'].faults.fail('copying')
    ledger = Ledger(cloud)
    cloud.live_migrate(instance)
    cloud.wait()
    moving = cloud.migrations(instance)[0].uuid
    before = {instance.uuid: {'host1': state.CLAIM}}
    assert ledger.pages == [before, {instance.uuid: {'host2': state.CLAIM}, moving: {'host1': state.CLAIM}}]
    assert state.allocations(cloud) == before


def test_the_source_stays_covered_until_nothing_is_left_of_the_guest_there(cloud):
    instance = cloud.boot('one', 'host1')
    stall = cloud.world.hypervisors['host1'].faults.stall('post_live_migration_at_source')
    cloud.live_migrate(instance)
    cloud.simulation.run_until(stall.reached.is_set)
    moving = cloud.migrations(instance)[0].uuid
    assert state.allocations(cloud)[moving] == {'host1': state.CLAIM}
    assert state.guests(cloud, instance)['host1'][0] == 'paused for cut-over'
    stall.release()
    cloud.wait()
    state.completed(cloud, instance, 'host2')


def test_the_destination_is_covered_before_anything_is_prepared_there(cloud):
    instance = cloud.boot('one', 'host1')
    stall = cloud.world.hypervisors['host2'].faults.stall('check_can_live_migrate_destination')
    cloud.live_migrate(instance)
    cloud.simulation.run_until(stall.reached.is_set)
    assert state.allocations(cloud)[instance.uuid] == {'host2': state.CLAIM}
    stall.release()
    cloud.wait()
    state.completed(cloud, instance, 'host2')


def test_a_host_that_is_exactly_full_can_be_left(cloud):
    """One write moves both sides, so that an exactly full source is no obstacle."""
    instances = [cloud.boot(f'vm{number}', 'host1', memory_mb=16384) for number in range(4)]
    assert cloud.live_migrate(instances[0]).status_int == 202
    cloud.wait()
    state.completed(cloud, instances[0], 'host2')


# --- several ---------------------------------------------------------------------------------------------------------


class Twelve:
    """Twelve guests that leave one host; counts how many jobs run at once."""

    def __init__(self, cloud, limit, memory_mb=1024):
        self.cloud = cloud
        self.most = 0
        cloud.set_option('host1', 'max_concurrent_live_migrations', limit)
        self.instances = [cloud.boot(f'vm{number}', 'host1', memory_mb=memory_mb) for number in range(12)]

    def leave(self):
        """Ask for all, and let them go."""
        for instance in self.instances:
            assert self.cloud.live_migrate(instance).status_int == 202
            state.when(self.cloud, instance, 'queued', 'running', 'post-migrating', 'completed')
        self.cloud.simulation.run_until(self._ended, timeout=600)

    def _ended(self):
        self.most = max(self.most, len(self.cloud.world.hypervisors['host1'].jobs))
        return self.cloud.idle()


@pytest.mark.nova_bug(1821755)
@pytest.mark.parametrize('limit', [1, 2])
@pytest.mark.cloud(hosts=4)
def test_twelve_leave_one_host_in_turn_and_never_more_at_once_than_it_allows(cloud, limit):
    """Many moves at once, spread over the hosts, none counted on a place that another takes."""
    twelve = Twelve(cloud, limit)
    twelve.leave()
    assert twelve.most == limit
    started = [effect.instance_uuid for effect in cloud.world.effects('job started')]
    assert started == [instance.uuid for instance in twelve.instances], 'first in, first out'
    for instance in twelve.instances:
        state.completed(cloud, instance, state.host_of(cloud, instance))


@pytest.mark.cloud(hosts=4)
@pytest.mark.simulated(reason='on how many hosts still have an inbound move depends where the next one goes')
def test_twelve_that_leave_one_host_are_spread_evenly_over_the_others(cloud):
    twelve = Twelve(cloud, 2)
    twelve.leave()
    hosts = [state.host_of(cloud, instance) for instance in twelve.instances]
    assert sorted(hosts) == ['host2'] * 4 + ['host3'] * 4 + ['host4'] * 4


def test_a_limit_that_is_raised_lets_the_next_ones_go_at_once(cloud):
    twelve = Twelve(cloud, 1, memory_mb=2048)
    for instance in twelve.instances:
        cloud.live_migrate(instance)
    cloud.simulation.advance(1)
    running = [one for one in twelve.instances if state.migration(cloud, one)['status'] == 'running']
    assert len(running) == 1
    cloud.set_option('host1', 'max_concurrent_live_migrations', 4)
    cloud.simulation.run_until(lambda: len(cloud.world.hypervisors['host1'].jobs) == 4, timeout=0.5)
    cloud.wait()
    for instance in twelve.instances:
        state.completed(cloud, instance, state.host_of(cloud, instance))


@pytest.mark.nova_bug(1821755, 2153425)
@pytest.mark.cloud(link=16384.0)
def test_many_moves_at_once_to_one_host_stop_at_what_fits_there(cloud):
    """N moves to one host at once; Placement allows as many as there is room for."""
    instances = [cloud.boot(f'vm{number}', 'host1', memory_mb=12000) for number in range(5)]
    stayer = cloud.boot('stayer', 'host2', memory_mb=30000)
    for instance in instances:
        assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait()
    ends = [state.migration(cloud, instance)['status'] for instance in instances]
    assert sorted(ends) == ['completed'] * 2 + ['failed'] * 3
    assert {state.host_of(cloud, one) for one in instances} == {'host1', 'host2'}
    assert state.host_of(cloud, stayer) == 'host2'


def test_hosts_that_swap_their_guests_do_so_without_a_place_between(cloud):
    pairs = [('host1', 'host2'), ('host2', 'host3'), ('host3', 'host1')]
    moves = [(cloud.boot(f'{source}-{number}', source), to) for source, to in pairs for number in range(2)]
    for instance, to in moves:
        assert cloud.live_migrate(instance, to).status_int == 202
    cloud.wait()
    for instance, to in moves:
        state.completed(cloud, instance, to)


@pytest.mark.seeds(1, 2, 3)
def test_any_schedule_gives_the_same_end(cloud):
    instances = [cloud.boot(f'vm{number}', 'host1') for number in range(4)]
    for instance in instances:
        assert cloud.live_migrate(instance).status_int == 202
    cloud.wait()
    for instance in instances:
        state.completed(cloud, instance, state.host_of(cloud, instance))


# --- the computes' trees ---------------------------------------------------------------------------------------------


@pytest.mark.nova_bug(1849165, 1894095, 1896463)
def test_the_providers_in_placement_are_what_the_computes_report(cloud):
    """Inventory comes from the host, and is not recounted from guests."""
    for host in cloud.world.hypervisors:
        adapter = cloud.placement.adapter()
        url = f'/resource_providers/{driver.node_uuid(host)}/inventories'
        inventories = adapter.get(url, headers={'OpenStack-API-Version': 'placement 1.39'}).json()['inventories']
        totals = {name: inventory['total'] for name, inventory in inventories.items()}
        assert totals == {'VCPU': 16, 'MEMORY_MB': 65536, 'DISK_GB': 1000}


@pytest.mark.nova_bug(1849165, 1894095, 1896463)
@pytest.mark.simulated(reason='it acts between two steps')
def test_a_heartbeat_between_every_step_changes_nothing(cloud):
    """The periodic task ran between two steps, and counted wrong."""
    instance = cloud.boot('one', 'host1')
    ledger = Ledger(cloud)
    beat = itertools.count()

    def at(process, label):
        if process.name == 'conductor1' and next(beat) % 3 == 0:
            for host, compute in cloud.computes.items():
                cloud.database.services.heartbeats({host: compute.boot_id}, 0.0)

    cloud.simulation.on_checkpoint = at
    cloud.live_migrate(instance)
    cloud.wait()
    cloud.simulation.on_checkpoint = None
    assert len(ledger.pages) == 3
    state.completed(cloud, instance, 'host2')


@pytest.mark.simulated(reason='it counts every message and request')
def test_idle_cloud_sends_only_heartbeats_and_asks_for_guests(cloud):
    cloud.simulation.advance(30)
    before = len(cloud.placement.requests), len(cloud.recorder.messages)
    cloud.simulation.advance(30)
    assert len(cloud.placement.requests) == before[0]
    assert {message.method for message in cloud.recorder.messages[before[1] :]} == {
        'compute_heartbeat',
        'list_guests',
        'probe_returned',
    }
