# SPDX-License-Identifier: Apache-2.0

"""Drains through REST: a host is emptied, and a request changes or undoes that."""

import datetime
import itertools
import json
import re

import pytest
import sqlalchemy as sa

from migrator.conductor.drains import plan
from migrator.db.slots import Bounds
from migrator.db.sql import watching
from migrator.objects.drain import Drain
from tests.functional import migration_requests
from tests.functional.faults import faults
from tests.functional.migration_requests import refused, until

pytestmark = pytest.mark.simulated(reason='it injects faults at one host, and lets single seconds pass')

DRAINS = '/migrator/v1/drains'
LONG = 900


def drain(cloud, host='host1', **more):
    """Request a drain, and return it as the answer shows it."""
    response = cloud.request('POST', DRAINS, {'host': host, **more})
    assert response.status_int == 202, response.text
    return response.json['drain']


def show(cloud, uuid):
    response = cloud.request('GET', f'{DRAINS}/{uuid}')
    assert response.status_int == 200, response.text
    return response.json['drain']


def act(cloud, uuid, action, arguments=None):
    return cloud.request('POST', f'{DRAINS}/{uuid}/action', {action: arguments})


def ends(cloud, uuid, timeout=LONG):
    """Let time pass until a drain has ended, and return it."""
    until(cloud, lambda: show(cloud, uuid)['ended_at'] is not None, timeout=timeout)
    return show(cloud, uuid)


def statuses(shown):
    return {member['name']: member['status'] for member in shown['members']}


def host_of(cloud, instance):
    return cloud.database.instances.get(instance.uuid).host


def is_disabled(cloud, host):
    return cloud.database.services.get_compute(host).disabled


def test_host_is_emptied_and_stays_disabled(cloud):
    instances = [cloud.boot(f'guest{number}', 'host1') for number in range(5)]
    accepted = drain(cloud, reason='new firmware')
    assert (accepted['status'], accepted['host_disabled_by_drain']) == ('accepted', True)
    ended = ends(cloud, accepted['uuid'])
    assert ended['status'] == 'completed', ended
    assert set(statuses(ended).values()) == {'moved'}
    assert all(host_of(cloud, instance) != 'host1' for instance in instances)
    assert [check['left'] for check in ended['checks']] == [[]] * 4
    assert is_disabled(cloud, 'host1')
    assert 'is empty' in ended['message']


def test_cancel_aborts_what_waits_and_enables_the_host(cloud):
    instances = [cloud.boot(f'guest{number}', 'host1') for number in range(4)]
    faults(cloud, 'host1').stall('copying', instance_uuid=instances[0].uuid, sticky=True)
    uuid = drain(cloud)['uuid']
    until(cloud, lambda: list(statuses(show(cloud, uuid)).values()).count('moving') == 2)
    assert act(cloud, uuid, 'cancel').status_int == 202
    until(cloud, lambda: list(statuses(show(cloud, uuid)).values()).count('cancelled') == 3)
    assert show(cloud, uuid)['status'] == 'cancelling'
    migration_requests.go_on(cloud)
    ended = ends(cloud, uuid)
    assert ended['status'] == 'cancelled'
    assert statuses(ended) == {'guest0': 'moved', 'guest1': 'cancelled', 'guest2': 'cancelled', 'guest3': 'cancelled'}
    assert not is_disabled(cloud, 'host1')
    assert '1 of 4 guests had moved' in ended['message']


def test_cancel_can_abort_what_runs(cloud):
    instance = cloud.boot('guest0', 'host1')
    faults(cloud, 'host1').stall('copying', instance_uuid=instance.uuid, sticky=True)
    uuid = drain(cloud)['uuid']
    cloud.simulation.run_until(lambda: [row.status for row in cloud.migrations(instance)] == ['running'])
    assert act(cloud, uuid, 'cancel', {'abort_running': True}).status_int == 202
    assert ends(cloud, uuid)['status'] == 'cancelled'
    assert host_of(cloud, instance) == 'host1'


def test_guest_that_fails_is_tried_elsewhere_a_limited_number_of_times(cloud):
    bad, _good = (cloud.boot(name, 'host1') for name in ('bad', 'good'))
    faults(cloud, 'host1').fail('cutover', instance_uuid=bad.uuid, sticky=True)
    ended = ends(cloud, drain(cloud, max_attempts=2)['uuid'])
    assert ended['status'] == 'incomplete'
    assert statuses(ended) == {'bad': 'failed', 'good': 'moved'}
    (failed,) = (member for member in ended['members'] if member['name'] == 'bad')
    assert sorted(failed['tried']) == ['host2', 'host3']
    assert failed['reason'].endswith('could not move the guest. This was attempt 2 of 2.')
    assert 'bad' in ended['message']


def test_guest_whose_own_check_refuses_it_twice_is_given_up(cloud):
    instance = cloud.boot('guest0', 'host1')
    faults(cloud, 'host1').fail('check_can_live_migrate_source', 'it has a device of this host', sticky=True)
    ended = ends(cloud, drain(cloud)['uuid'])
    assert ended['members'][0]['attempts'] == 2
    assert 'It is not tried again.' in ended['members'][0]['reason']
    assert 'it has a device of this host' in ended['members'][0]['reason']
    assert len(cloud.migrations(instance)) == 2


def test_two_drains_do_not_fill_each_other_s_hosts(cloud):
    instances = [cloud.boot(f'guest{number}', f'host{1 + number % 2}') for number in range(6)]
    first, second = drain(cloud, 'host1')['uuid'], drain(cloud, 'host2')['uuid']
    assert [ends(cloud, uuid)['status'] for uuid in (first, second)] == ['completed'] * 2
    assert {host_of(cloud, instance) for instance in instances} == {'host3'}
    assert all(len(cloud.migrations(instance)) == 1 for instance in instances)


def test_guest_that_arrives_later_leaves_as_well(cloud):
    stalled = cloud.boot('guest0', 'host1')
    faults(cloud, 'host1').stall('copying', instance_uuid=stalled.uuid, sticky=True)
    uuid = drain(cloud)['uuid']
    until(cloud, lambda: list(statuses(show(cloud, uuid)).values()) == ['moving'])
    late = cloud.boot('late', 'host1')
    until(cloud, lambda: 'late' in statuses(show(cloud, uuid)))
    migration_requests.go_on(cloud)
    assert ends(cloud, uuid)['status'] == 'completed'
    assert host_of(cloud, late) != 'host1'


def test_moving_guest_shows_the_progress_of_its_migration(cloud):
    instance = cloud.boot('guest0', 'host1')
    faults(cloud, 'host1').stall('copying', instance_uuid=instance.uuid, sticky=True)
    uuid = drain(cloud)['uuid']
    cloud.simulation.run_until(lambda: [row.status for row in cloud.migrations(instance)] == ['running'])
    (member,) = show(cloud, uuid)['members']
    (row,) = cloud.migrations(instance)
    progress = member['migration']
    assert (progress['uuid'], progress['status']) == (member['migration_uuid'], 'running')
    assert (progress['destination'], progress['memory_total_bytes']) == (row.dest_compute, row.memory_total)
    migration_requests.go_on(cloud)
    (member,) = ends(cloud, uuid)['members']
    assert (member['status'], member['migration']) == ('moved', None)


def test_no_more_than_the_requested_number_move_at_a_time_in_the_requested_order(cloud):
    sizes = {'small': 256, 'large': 1024, 'middle': 512}
    instances = {name: cloud.boot(name, 'host1', memory_mb=size) for name, size in sizes.items()}
    shown = ends(cloud, drain(cloud, order='largest_first', parallel=1)['uuid'])
    assert shown['status'] == 'completed'
    began = {name: cloud.migrations(instance)[0].created_at for name, instance in instances.items()}
    assert sorted(began, key=began.__getitem__) == ['large', 'middle', 'small']
    rows = sorted((cloud.migrations(instance)[0] for instance in instances.values()), key=lambda row: row.id)
    assert all(before.updated_at <= after.created_at for before, after in itertools.pairwise(rows))


def test_guests_leave_by_the_priorities_of_the_request(cloud):
    instances = {name: cloud.boot(name, 'host1') for name in ('last', 'first', 'second')}
    priorities = {instances['first'].uuid: 20, instances['second'].uuid: 10}
    shown = ends(cloud, drain(cloud, order='priority', priorities=priorities, parallel=1)['uuid'])
    assert shown['status'] == 'completed'
    assert shown['priorities'] == priorities
    rows = {name: cloud.migrations(instance)[0].id for name, instance in instances.items()}
    assert sorted(rows, key=rows.__getitem__) == ['first', 'second', 'last']


def test_guests_go_only_to_the_destinations_of_the_drain(cloud):
    instances = [cloud.boot(f'guest{number}', 'host1') for number in range(3)]
    assert ends(cloud, drain(cloud, destinations=['host3'])['uuid'])['status'] == 'completed'
    assert {host_of(cloud, instance) for instance in instances} == {'host3'}


def test_paused_drain_requests_nothing_until_it_is_resumed(cloud):
    instances = [cloud.boot(f'guest{number}', 'host1') for number in range(3)]
    uuid = drain(cloud, parallel=1)['uuid']
    assert act(cloud, uuid, 'pause').status_int == 202
    cloud.simulation.advance(60)
    assert show(cloud, uuid)['status'] == 'paused'
    assert sum(len(cloud.migrations(instance)) for instance in instances) <= 1
    assert act(cloud, uuid, 'resume').status_int == 202
    assert ends(cloud, uuid)['status'] == 'completed'


def test_drain_that_passes_its_deadline_is_incomplete(cloud):
    instances = [cloud.boot(f'guest{number}', 'host1') for number in range(3)]
    faults(cloud, 'host1').stall('copying', instance_uuid=instances[0].uuid, sticky=True)
    now = cloud.database.drains.now()
    uuid = drain(cloud, parallel=1, deadline=(now + datetime.timedelta(seconds=30)).isoformat())['uuid']
    until(cloud, lambda: 'moving' in statuses(show(cloud, uuid)).values())
    cloud.simulation.advance(60)
    assert list(statuses(show(cloud, uuid)).values()) == ['moving', 'cancelled', 'cancelled']
    migration_requests.go_on(cloud)
    ended = ends(cloud, uuid)
    assert (ended['status'], ended['guests']['moved']) == ('incomplete', 1)
    assert 'The deadline, ' in ended['message']
    response = cloud.request('POST', DRAINS, {'host': 'host2', 'deadline': now.isoformat()})
    refused(response, 400, 'deadline', 'has passed')


def test_one_stuck_migration_does_not_hold_back_the_others(cloud):
    instances = [cloud.boot(f'guest{number}', 'host1') for number in range(3)]
    for host in ('host2', 'host3'):
        faults(cloud, host).stall('pre_live_migration', instance_uuid=instances[0].uuid, sticky=True)
    uuid = drain(cloud)['uuid']
    others_moved = {'guest0': 'moving', 'guest1': 'moved', 'guest2': 'moved'}
    until(cloud, lambda: statuses(show(cloud, uuid)) == others_moved, timeout=LONG)
    until(cloud, lambda: 'stuck' in (show(cloud, uuid)['waits_for'] or ''), timeout=LONG)
    assert show(cloud, uuid)['waits_for'].startswith('1 guest waits. guest0: ')
    migration_requests.go_on(cloud)
    assert ends(cloud, uuid)['status'] == 'completed'


def test_planned_stop_of_the_source_is_no_abort_by_a_user(cloud):
    instances = [cloud.boot(f'guest{number}', 'host1') for number in range(3)]
    faults(cloud, 'host1').stall('copying', instance_uuid=instances[0].uuid, sticky=True)
    uuid = drain(cloud)['uuid']
    cloud.simulation.run_until(lambda: [row.status for row in cloud.migrations(instances[1])] == ['queued'])
    cloud.computes['host1'].cleanup_host()
    cloud.simulation.run_until(lambda: [row.status for row in cloud.migrations(instances[1])] == ['cancelled'])
    cloud.start_compute('host1')
    migration_requests.go_on(cloud)
    assert ends(cloud, uuid)['status'] == 'completed'


def test_second_restore_brings_back_what_the_first_has_not(cloud):
    first, second = (cloud.boot(name, 'host1') for name in ('first', 'second'))
    uuid = drain(cloud, destinations=['host2'])['uuid']
    assert ends(cloud, uuid)['status'] == 'completed'
    cloud.database.instances.update(second.uuid, locked_by='admin')
    assert act(cloud, uuid, 'restore').status_int == 202
    assert ends(cloud, uuid)['status'] == 'incomplete'
    refused(act(cloud, uuid, 'retry'), 409, 'to bring back the other guests, restore it again')
    cloud.database.instances.update(second.uuid, locked_by=None)
    assert act(cloud, uuid, 'restore').status_int == 202
    assert ends(cloud, uuid)['status'] == 'restored'
    assert {host_of(cloud, first), host_of(cloud, second)} == {'host1'}


def test_next_drain_of_a_host_enables_it_again(cloud):
    locked = cloud.boot('locked', 'host1')
    cloud.database.instances.update(locked.uuid, locked_by='admin')
    assert ends(cloud, drain(cloud)['uuid'])['status'] == 'incomplete'
    again = drain(cloud)
    assert again['host_disabled_by_drain']
    assert act(cloud, again['uuid'], 'cancel').status_int == 202
    ends(cloud, again['uuid'])
    assert not is_disabled(cloud, 'host1')


def test_restore_enables_a_host_that_a_later_drain_has_kept_disabled(cloud):
    locked, free = (cloud.boot(name, 'host1') for name in ('locked', 'free'))
    cloud.database.instances.update(locked.uuid, locked_by='admin')
    first = drain(cloud)['uuid']
    assert ends(cloud, first)['status'] == 'incomplete'
    cloud.database.instances.update(locked.uuid, locked_by=None)
    assert cloud.live_migrate(locked, 'host2').status_int == 202
    cloud.wait()
    assert ends(cloud, drain(cloud)['uuid'])['status'] == 'completed'
    assert act(cloud, first, 'restore').status_int == 202
    restored = ends(cloud, first)
    assert (restored['status'], host_of(cloud, free)) == ('restored', 'host1')
    assert '1 of 1 guest came back to host1.' in restored['message']
    assert not is_disabled(cloud, 'host1')


def test_restore_of_a_drain_that_has_moved_no_guest_enables_the_host(cloud):
    uuid = drain(cloud)['uuid']
    assert ends(cloud, uuid)['status'] == 'completed'
    assert act(cloud, uuid, 'restore').status_int == 202
    assert ends(cloud, uuid)['status'] == 'restored'
    assert not is_disabled(cloud, 'host1')
    refused(act(cloud, uuid, 'restore'), 409, 'moved no guest')


def test_start_and_restore_lock_the_service_before_the_drain(cloud):
    """In opposite orders, a start and a restore at the same time would stop each other."""
    tables = []

    def note(statement, _values):
        tables.extend(re.findall(r'FROM (services|drains) ', f'{statement} '.replace('\n', ' '))[:1])

    uuid = drain(cloud)['uuid']
    ends(cloud, uuid)
    watching.watch(cloud.database.engine, note)
    with cloud.database.engine.writer() as session:
        session.execute(sa.text('SELECT 1 FROM drains WHERE 0'))
    assert tables == ['drains'], 'the statements are seen'
    tables.clear()
    cloud.database.drains.request(uuid, 'restore', 'admin')
    assert tables[:2] == ['services', 'drains']
    ends(cloud, uuid)
    tables.clear()
    cloud.database.drains.accept(Drain(uuid='d2', host='host1'))
    assert tables[0] == 'services'
    ends(cloud, 'd2')


def test_paused_drain_does_not_end_while_a_guest_is_blocked(cloud):
    locked, _free = (cloud.boot(name, 'host1') for name in ('locked', 'free'))
    cloud.database.instances.update(locked.uuid, locked_by='admin')
    faults(cloud, 'host1').stall('copying', sticky=True)
    uuid = drain(cloud)['uuid']
    until(cloud, lambda: 'moving' in statuses(show(cloud, uuid)).values())
    assert act(cloud, uuid, 'pause').status_int == 202
    migration_requests.go_on(cloud)
    until(cloud, lambda: statuses(show(cloud, uuid)) == {'locked': 'blocked', 'free': 'moved'})
    cloud.simulation.advance(60)
    paused = show(cloud, uuid)
    assert paused['status'] == 'paused'
    assert 'It is paused.' in paused['waits_for']
    assert 'openstack server unlock' in paused['waits_for']
    cloud.database.instances.update(locked.uuid, locked_by=None)
    assert act(cloud, uuid, 'resume').status_int == 202
    assert ends(cloud, uuid)['status'] == 'completed'


def test_cancelled_restore_says_how_many_are_back_and_who_has_cancelled_it(cloud):
    instances = [cloud.boot(f'guest{number}', 'host1') for number in range(2)]
    uuid = drain(cloud, destinations=['host2'])['uuid']
    ends(cloud, uuid)
    faults(cloud, 'host2').stall('copying', sticky=True)
    assert act(cloud, uuid, 'restore').status_int == 202
    cloud.simulation.run_until(lambda: 'running' in [row.status for one in instances for row in cloud.migrations(one)])
    cloud.database.drains.request(uuid, 'cancel', 'grace', abort_running=True)
    ended = ends(cloud, uuid)
    assert ended['status'] == 'cancelled'
    assert 'Cancelled. 0 of 2 guests came back to host1.' in ended['message']
    assert 'aborted by grace' in ended['message']


def test_drain_goes_on_when_its_conductor_is_killed(cloud):
    cloud.start_conductor('conductor2')
    instances = [cloud.boot(f'guest{number}', 'host1') for number in range(4)]
    uuid = drain(cloud)['uuid']
    until(cloud, lambda: 'moved' in statuses(show(cloud, uuid)).values())
    owner = cloud.database.drains.get(uuid).owner
    cloud.kill(cloud.database.conductors.server_of(owner))
    assert ends(cloud, uuid)['status'] == 'completed'
    assert all(len(cloud.migrations(instance)) == 1 for instance in instances)


def test_guest_that_left_before_its_migration_was_requested_is_not_moved_again(cloud):
    cloud.start_conductor('conductor2')
    instance = cloud.boot('guest0', 'host1')
    killed = []

    def kill_after_the_mark(what):
        marked = any(row.mark for row in cloud.backend.tables.read('drain_members'))
        if what == 'committed' and marked and not killed:
            (drained,) = cloud.backend.tables.read('drains')
            killed.append(cloud.database.conductors.server_of(drained.owner))
            cloud.kill(killed[0])

    cloud.database.engine.boundary = kill_after_the_mark
    uuid = drain(cloud)['uuid']
    cloud.simulation.run_until(lambda: killed)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    assert ends(cloud, uuid)['status'] == 'completed'
    assert statuses(show(cloud, uuid)) == {'guest0': 'gone'}
    assert host_of(cloud, instance) == 'host2'
    assert [row.drain for row in cloud.migrations(instance)] == [None]


def test_restore_brings_back_what_is_where_the_drain_had_put_it(cloud):
    stays, returns = (cloud.boot(name, 'host1') for name in ('stays', 'returns'))
    uuid = drain(cloud, destinations=['host2'])['uuid']
    assert ends(cloud, uuid)['status'] == 'completed'
    assert cloud.live_migrate(stays, 'host3').status_int == 202
    cloud.wait()
    assert act(cloud, uuid, 'restore').status_int == 202
    until(cloud, lambda: show(cloud, uuid)['status'] == 'restored', timeout=LONG)
    assert (host_of(cloud, stays), host_of(cloud, returns)) == ('host3', 'host1')
    assert not is_disabled(cloud, 'host1')
    assert statuses(show(cloud, uuid)) == {'stays': 'gone', 'returns': 'moved'}


def test_host_that_was_disabled_before_stays_disabled(cloud):
    service = cloud.database.services.get_compute('host1')
    cloud.database.services.update(service.id, disabled=True, disabled_reason='broken fan')
    cloud.boot('guest0', 'host1')
    shown = drain(cloud)
    assert not shown['host_disabled_by_drain']
    assert act(cloud, shown['uuid'], 'cancel').status_int == 202
    ends(cloud, shown['uuid'])
    assert cloud.database.services.get_compute('host1').disabled_reason == 'broken fan'


def test_remains_at_the_hypervisor_keep_a_host_from_being_called_empty(cloud):
    unknown = cloud.boot('unknown', 'host2').replace(uuid='11111111-2222-3333-4444-555555555555', host='host1')
    cloud.world.hypervisors['host1'].spawn(unknown)
    uuid = drain(cloud)['uuid']
    until(cloud, lambda: unknown.uuid in (show(cloud, uuid)['waits_for'] or ''))
    ended = ends(cloud, uuid)
    assert ended['status'] == 'incomplete'
    assert f'guests at the hypervisor: {unknown.uuid}' in ended['message']
    cloud.world.hypervisors['host1'].delete(unknown.uuid)


class TestRefusals:
    def test_second_drain_of_a_host(self, cloud):
        cloud.boot('guest0', 'host1')
        faults(cloud, 'host1').stall('copying', sticky=True)
        uuid = drain(cloud)['uuid']
        refused(cloud.request('POST', DRAINS, {'host': 'host1'}), 409, 'host1', uuid)

    @pytest.mark.parametrize(
        ('body', 'words'),
        [
            ({'host': 'nowhere'}, ['nowhere', 'could not be found']),
            ({'host': 'host1', 'destinations': ['host1']}, ['destinations', 'host1']),
            ({'host': 'host1', 'parallel': 0}, ['parallel', '0']),
            ({'host': 'host1', 'order': 'by moon'}, ['order', 'by moon', 'largest_first']),
            ({'host': 'host1', 'deadline': 'six'}, ['deadline', 'six']),
            ({'host': 'host1', 'order': 'priority'}, ['priorities', 'order is priority']),
            ({'host': 'host1', 'priorities': {'a': 1}}, ['priorities', 'order is requested']),
            ({'host': 'host1', 'order': 'priority', 'priorities': {'a': 1}}, ['priorities', 'a is no guest of host1']),
            ({'host': 'host1', 'order': 'priority', 'priorities': {'a': 'much'}}, ['priorities', 'much']),
            ({'host': 'host1', 'colour': 'red'}, ['colour']),
            ({}, ['host']),
        ],
    )
    def test_bad_body(self, cloud, body, words):
        refused(cloud.request('POST', DRAINS, body), 400, *words)

    def test_unknown_drain_and_wrong_state(self, cloud):
        refused(cloud.request('GET', f'{DRAINS}/nothing'), 404, 'nothing')
        uuid = drain(cloud)['uuid']
        ends(cloud, uuid)
        refused(act(cloud, uuid, 'pause'), 409, 'pause', 'completed')

    def test_user_who_is_no_administrator(self, cloud):
        response = cloud.request('POST', DRAINS, {'host': 'host1'}, token='bob:shop')
        refused(response, 403, 'migrator:drains:create')


def test_list_and_events_show_what_happened(cloud):
    cloud.boot('guest0', 'host1')
    uuid = drain(cloud)['uuid']
    ends(cloud, uuid)
    listed = cloud.request('GET', f'{DRAINS}?host=host1&in_progress=false').json['drains']
    assert [(one['uuid'], one['guests']['moved']) for one in listed] == [(uuid, 1)]
    events = cloud.request('GET', f'{DRAINS}/{uuid}/events').json['events']
    assert [one['seq'] for one in events] == list(range(1, len(events) + 1))
    shown = [one['status'] for one in events]
    assert (shown[0], shown[-1]) == ('accepted', 'completed')
    assert [one['status'] for one in events if one['kind'] == 'member'] == ['waiting', 'moving', 'moved']


class TestPlan:
    def plan(self, cloud, **more):
        response = cloud.request('POST', DRAINS, {'host': 'host1', 'dry_run': True, **more})
        assert response.status_int == 200, response.text
        return response.json['plan']

    def test_names_destinations_and_changes_nothing(self, cloud):
        for number in range(4):
            cloud.boot(f'guest{number}', 'host1')
        planned = self.plan(cloud)
        assert (planned['can_move'], planned['cannot_move']) == (4, 0)
        assert sorted(guest['destination'] for guest in planned['guests']) == ['host2', 'host2', 'host3', 'host3']
        assert not cloud.migrations()
        assert not is_disabled(cloud, 'host1')
        assert cloud.request('GET', DRAINS).json == {'drains': []}

    def test_states_what_is_in_the_way_and_the_remedy(self, cloud):
        locked = cloud.boot('locked', 'host1')
        cloud.database.instances.update(locked.uuid, locked_by='admin')
        stopped = cloud.boot('stopped', 'host1')
        cloud.database.instances.update(stopped.uuid, vm_state='stopped')
        ways = {guest['name']: guest['obstacle'] for guest in self.plan(cloud)['guests']}
        assert ways['locked']['kind'] == 'locked'
        assert self.plan(cloud)['locked'] == 1
        assert self.plan(cloud, locked='move')['guests'][0]['can_move']
        assert 'server unlock' in ways['locked']['remedy']
        assert ways['stopped']['kind'] == 'state'

    def test_states_what_the_hypervisor_cannot_move_before_a_drain_tries(self, cloud):
        instance = cloud.boot('guest0', 'host1')
        cloud.world.hypervisors['host1'].guests[instance.uuid].immovable = 'it has a pci device: detach it first'
        cloud.simulation.run_until(lambda: not self.plan(cloud)['can_move'], timeout=LONG)
        (guest,) = self.plan(cloud)['guests']
        assert guest['obstacle']['kind'] == 'immovable'
        assert 'it has a pci device: detach it first' in guest['obstacle']['reason']
        cloud.world.hypervisors['host1'].guests[instance.uuid].immovable = ''
        assert ends(cloud, drain(cloud)['uuid'])['status'] == 'completed'

    @pytest.mark.cloud(memory_mb=13000)
    def test_counts_the_room_that_its_own_guests_use(self, cloud):
        cloud.boot('there2', 'host2', memory_mb=9000)
        cloud.boot('there3', 'host3', memory_mb=6000)
        for number in range(3):
            cloud.boot(f'big{number}', 'host1', memory_mb=4000)
        planned = self.plan(cloud)
        assert planned['can_move'] == 2
        (without,) = (guest for guest in planned['guests'] if not guest['can_move'])
        assert without['obstacle']['kind'] == 'no_destination'
        assert 'the nearest is short of 1000 MEMORY_MB' in without['obstacle']['reason']

    def test_names_the_hosts_that_are_no_destinations(self, cloud):
        cloud.boot('guest0', 'host1')
        for host in ('host2', 'host3'):
            service = cloud.database.services.get_compute(host)
            cloud.database.services.update(service.id, disabled=True, disabled_reason='broken fan')
        (guest,) = self.plan(cloud)['guests']
        assert 'host2: it is disabled (broken fan)' in guest['obstacle']['reason']

    def test_of_several_hosts_sends_no_guest_to_one_of_them(self, cloud):
        cloud.boot('guest1', 'host1')
        cloud.boot('guest2', 'host2')
        drains = [Drain(uuid=host, host=host) for host in ('host1', 'host2')]
        with cloud.processes['conductor1'].acting():
            client = cloud.conductors['conductor1'].tools.placement
            plans = plan.plan_together(cloud.database, client, drains, Bounds())
        assert [one['host'] for one in plans] == ['host1', 'host2']
        assert {guest['destination'] for one in plans for guest in one['guests']} == {'host3'}


class TestCommands:
    def test_start_shows_the_drain_and_list_states_its_end(self, cloud, operator):
        cloud.boot('guest0', 'host1')
        status, text = operator('drain', 'start', 'host1', '--reason', 'new firmware')
        (row,) = cloud.database.drains.list()
        assert (status, row.reason, f'watch drain {row.uuid}' in text) == (0, 'new firmware', True)
        ends(cloud, row.uuid)
        status, text = operator('--json', 'drain', 'list', '--host', 'host1')
        (listed,) = json.loads(text)['drains']
        assert (status, listed['status'], listed['guests']['moved']) == (0, 'completed', 1)
        status, text = operator('drain', 'show', row.uuid)
        assert text.splitlines()[-5:-1] == [
            *('guests at the hypervisor: none', 'guests in the database: none'),
            *('allocations in Placement: none', 'pending cleanups: none'),
        ]

    def test_pause_resume_and_cancel_are_requested(self, cloud, operator):
        instance = cloud.boot('guest0', 'host1')
        faults(cloud, 'host1').stall('copying', instance_uuid=instance.uuid, sticky=True)
        uuid = drain(cloud)['uuid']
        for action in ('pause', 'resume', 'cancel'):
            assert operator('drain', action, uuid)[0] == 0
        migration_requests.go_on(cloud)
        assert ends(cloud, uuid)['status'] == 'cancelled'

    def test_purge_deletes_only_drains_that_ended_before(self, cloud, operator):
        cloud.boot('guest0', 'host1')
        first = drain(cloud)['uuid']
        ends(cloud, first)
        act(cloud, first, 'restore')
        ends(cloud, first)
        cloud.simulation.advance(90)
        second = drain(cloud)['uuid']
        text = operator('drain', 'purge', '--before', '1m', '--dry-run')[1]
        assert text.startswith('1 drain that ended before ')
        assert 'would be purged' in text
        status, text = operator('--json', 'drain', 'purge', '--before', '1m')
        assert (status, json.loads(text)['purged']) == (0, 1)
        assert [row.uuid for row in cloud.database.drains.list()] == [second]
        assert cloud.database.drains.read_log(first) == []
        assert cloud.database.drains.read_members(first) == []
        ends(cloud, second)

    def test_invalid_requests_exit_with_1_and_change_nothing(self, cloud, operator):
        assert operator('drain', 'start', 'nowhere')[0] == 1
        assert operator('drain', 'start', 'host1', '--destination', 'host1')[0] == 1
        assert operator('drain', 'start', 'host1', '--deadline', '2020-01-01')[0] == 1
        assert cloud.database.drains.list() == []
