# SPDX-License-Identifier: Apache-2.0

"""Guests that are locked, in a drain."""

import pytest

from tests.functional import migration_requests
from tests.functional.faults import faults
from tests.functional.migration_requests import refused, until
from tests.functional.test_drain import DRAINS, drain, ends, host_of, show, statuses
from tests.functional.test_tenants import use_policies

pytestmark = pytest.mark.simulated(reason='it lets single seconds pass, and starts the API with a policy file')


def test_what_is_in_the_way_is_stated_and_the_others_move(cloud):
    locked, free = (cloud.boot(name, 'host1') for name in ('locked', 'free'))
    cloud.database.instances.update(locked.uuid, locked_by='owner', locked_reason='do not touch')
    ended = ends(cloud, drain(cloud)['uuid'])
    assert ended['status'] == 'incomplete'
    assert statuses(ended) == {'locked': 'blocked', 'free': 'moved'}
    assert f'openstack server unlock {locked.uuid}' in ended['message']
    assert 'do not touch' in ended['message']
    assert host_of(cloud, free) != 'host1'


def test_locked_guests_move_if_an_administrator_wants_it_and_stay_locked(cloud):
    locked, _free = (cloud.boot(name, 'host1') for name in ('locked', 'free'))
    cloud.database.instances.update(locked.uuid, locked_by='owner')
    ended = ends(cloud, drain(cloud, locked='move')['uuid'])
    assert (ended['status'], ended['locked']) == ('completed', 'move')
    assert statuses(ended) == {'locked': 'moved', 'free': 'moved'}
    assert cloud.database.instances.get(locked.uuid).locked_by == 'owner'


def test_guest_that_is_unlocked_in_time_leaves(cloud):
    locked, slow = (cloud.boot(name, 'host1') for name in ('locked', 'slow'))
    cloud.database.instances.update(locked.uuid, locked_by='owner')
    faults(cloud, 'host1').stall('copying', instance_uuid=slow.uuid, sticky=True)
    uuid = drain(cloud)['uuid']
    until(cloud, lambda: statuses(show(cloud, uuid)).get('locked') == 'blocked')
    cloud.database.instances.update(locked.uuid, locked_by=None)
    migration_requests.go_on(cloud)
    assert ends(cloud, uuid)['status'] == 'completed'


def test_user_who_may_drain_and_is_no_administrator_moves_no_locked_guest(cloud, tmp_path):
    use_policies(cloud, tmp_path, {'migrator:drains:create': '@'})
    body = {'host': 'host1', 'locked': 'move'}
    refused(cloud.request('POST', DRAINS, body, token='bob:shop'), 403, 'locked', 'Only an administrator')
    assert cloud.request('GET', DRAINS).json['drains'] == []
