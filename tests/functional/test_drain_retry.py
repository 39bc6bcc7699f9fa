# SPDX-License-Identifier: Apache-2.0

"""The retry of a drain that has ended, for the guests that it has left."""

import datetime

import pytest

from tests.functional.test_drain import DRAINS, act, drain, ends, host_of, statuses

pytestmark = pytest.mark.simulated(reason='it lets single seconds pass')


def test_retry_moves_what_the_drain_has_left_and_nothing_else(cloud):
    left, moves = (cloud.boot(name, 'host1', dirty_rate=100) for name in ('left', 'moves'))
    cloud.database.instances.update(left.uuid, locked_by='owner')
    first = drain(cloud, reason='disks', max_attempts=2)['uuid']
    assert act(cloud, first, 'retry').status_int == 409
    assert statuses(ends(cloud, first)) == {'left': 'blocked', 'moves': 'moved'}
    cloud.database.instances.update(left.uuid, locked_by=None)
    stays = cloud.boot('stays', 'host1')
    again = act(cloud, first, 'retry')
    assert again.status_int == 202, again.text
    second = again.json['drain']
    assert (second['reason'], second['max_attempts'], second['only_guests']) == ('disks', 2, [left.uuid])
    assert act(cloud, first, 'retry').status_int == 409
    assert statuses(ends(cloud, second['uuid'])) == {'moves': 'moved', 'left': 'moved'}
    report = cloud.request('GET', f'{DRAINS}/{first}/report').json['report']
    (of,) = (one for one in report['runs'][0]['members'] if one['status'] == 'moved')
    assert 0 < of['downtime'] < of['seconds']
    assert (host_of(cloud, left) != 'host1', host_of(cloud, stays)) == (True, 'host1')
    for action in ('restore', 'retry'):
        refused = act(cloud, first, action)
        assert (refused.status_int, f'drain {second["uuid"]} is its retry' in refused.text) == (409, True)
    assert act(cloud, second['uuid'], 'restore').status_int == 202
    assert statuses(ends(cloud, second['uuid'])) == {'moves': 'moved', 'left': 'moved'}
    assert {host_of(cloud, one) for one in (left, moves)} == {'host1'}


def test_retry_of_a_drain_without_guests_that_are_left_is_refused(cloud):
    guest = cloud.boot('guest', 'host1')
    uuid = drain(cloud)['uuid']
    ends(cloud, uuid)
    refused = act(cloud, uuid, 'retry')
    assert (refused.status_int, 'all of its guests have left the host' in refused.text) == (409, True)
    act(cloud, uuid, 'restore')
    ends(cloud, uuid)
    refused = act(cloud, uuid, 'retry')
    assert (refused.status_int, 'has left no guest: to empty the host again, start a new drain' in refused.text) == (
        409,
        True,
    )
    assert host_of(cloud, guest) == 'host1'


def test_retry_leaves_a_deadline_out_that_has_passed(cloud):
    guest = cloud.boot('guest', 'host1')
    cloud.database.instances.update(guest.uuid, locked_by='owner')
    deadline = cloud.database.drains.now() + datetime.timedelta(seconds=60)
    first = ends(cloud, drain(cloud, deadline=deadline.isoformat())['uuid'])
    assert (first['status'], first['deadline'] is None) == ('incomplete', False)
    cloud.simulation.advance(60)
    assert act(cloud, first['uuid'], 'retry').json['drain']['deadline'] is None
