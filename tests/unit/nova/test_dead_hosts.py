# SPDX-License-Identifier: Apache-2.0

"""Drains on a Nova in memory whose hosts die, and what Nova then forgets."""

import datetime

import pytest

from migrator.drain.engine import MoveState
from migrator.nova import moves
from migrator.objects.drain import Member
from tests.unit.nova.drained import Cloud


@pytest.fixture
def cloud():
    return Cloud(None)


def test_drain_pauses_while_the_source_is_down_and_names_evacuate(cloud):
    first, second = (cloud.fake.add_guest(f'guest{number}') for number in range(2))
    cloud.fake.ticks[first] = 30
    cloud.go(until=lambda: cloud.fake.rows and cloud.fake.row(first)['status'] == 'running')
    cloud.fake.kill('host1')
    drain = cloud.go(seconds=120)
    assert (cloud.status(first), cloud.status(second), cloud.asked(second)) == ('moving', 'waiting', 0)
    assert 'nova-compute at host1 has been down since 2026-11-23' in drain.waits_for
    assert f'host2 runs the guest. Only if it does not: openstack server evacuate {first}.' in drain.waits_for
    assert 'set --state' not in drain.waits_for
    assert 'migrator-drain evacuate host1 changes nothing, and shows' in cloud.member(second).reason
    assert not any(method == 'POST' and 'evacuate' in path for method, path in cloud.fake.requests)


@pytest.mark.parametrize('status', ['accepted', 'queued', 'preparing', 'running'])
def test_row_of_a_guest_without_a_task_is_forgotten_after_a_settled_look(cloud, status):
    guest = cloud.fake.add_guest('one')
    member = Member(instance_uuid=guest, source='host1', mark='0', status='moving')
    cloud.fake.client().migrate_live(guest)
    cloud.fake.tick()
    cloud.fake.row(guest).update(status=status, dest_compute=None if status == 'accepted' else 'host2')
    assert not cloud.engine.look([member])[guest].is_stuck
    cloud.fake.servers[guest]['task_state'] = None
    assert cloud.engine.look([member])[guest].state in (MoveState.PENDING, MoveState.RUNNING)
    cloud.fake.now += datetime.timedelta(seconds=moves.SETTLED)
    move = cloud.engine.look([member])[guest]
    assert move.state is MoveState.FAILED
    assert f'stays {status}' in move.reason


def test_row_that_still_changes_is_not_forgotten(cloud):
    """A user has reset the state of a guest whose migration runs."""
    guest = cloud.fake.add_guest('one')
    member = Member(instance_uuid=guest, source='host1', mark='0', status='moving')
    cloud.fake.ticks[guest] = 100
    cloud.fake.client().migrate_live(guest)
    cloud.fake.tick(4)
    cloud.fake.servers[guest]['task_state'] = None
    for _ in range(30):
        assert cloud.engine.look([member])[guest].state is MoveState.RUNNING
        cloud.fake.tick()


def test_evacuated_guest_is_gone(cloud):
    first, second = (cloud.fake.add_guest(f'guest{number}') for number in range(2))
    cloud.fake.ticks[first] = 30
    cloud.go(until=lambda: cloud.fake.rows and cloud.fake.row(first)['status'] == 'running')
    cloud.fake.kill('host1')
    cloud.go(seconds=5)
    for guest in (first, second):
        cloud.fake.truth[guest] = cloud.fake.servers[guest]['host'] = 'host3'
        cloud.fake.servers[guest]['task_state'] = None
    cloud.go(seconds=40)
    assert (cloud.status(first), cloud.status(second)) == ('gone', 'gone')


def test_destination_that_dies_does_not_hold_the_others_back(cloud):
    first, second = (cloud.fake.add_guest(f'guest{number}') for number in range(2))
    cloud.fake.ticks[first] = 60
    cloud.go(until=lambda: cloud.fake.rows and cloud.fake.row(first)['status'] == 'running')
    cloud.fake.kill('host2')
    cloud.fake.at_once = 2
    cloud.go(seconds=30)
    assert 'nova-compute at host2 has been down since' in cloud.member(first).reason
    assert f'openstack server migration abort {first} 1' in cloud.member(first).reason
    assert cloud.fake.truth[second] == 'host3'


def test_guest_with_a_task_and_no_migration_is_shown_as_stuck(cloud):
    guest = cloud.fake.add_guest('one', task_state='migrating')
    member = Member(instance_uuid=guest, source='host1', mark='0', status='moving')
    assert cloud.engine.look([member])[guest].is_stuck is False
    cloud.fake.tick(301)
    move = cloud.engine.look([member])[guest]
    assert (move.state, move.is_stuck) == (MoveState.PENDING, True)
    assert f'openstack server set --state active {guest}' in move.waits_for
