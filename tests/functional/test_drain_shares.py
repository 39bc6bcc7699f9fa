# SPDX-License-Identifier: Apache-2.0

"""When drains request their migrations, and how drains that begin together share the slots."""

import itertools

import pytest

from migrator.drain import run
from migrator.drain.engine import Refused
from migrator.objects.drain import Member
from tests.functional import state
from tests.functional.faults import faults
from tests.functional.migration_requests import until
from tests.functional.test_drain import act, drain, ends, host_of, show, statuses

pytestmark = pytest.mark.simulated(reason='it lets single seconds pass')


@pytest.mark.cloud(options={'max_concurrent_live_migrations': 4})
def test_third_and_further_migrations_of_a_drain_are_requested_a_few_seconds_apart(cloud):
    cloud.world.hypervisors['host1'].set_link(4.0)
    for number in range(6):
        cloud.boot(f'guest{number}', 'host1', memory_mb=100)
    uuid = drain(cloud)['uuid']
    until(cloud, lambda: sum(one['status'] == 'moving' for one in show(cloud, uuid)['members']) == 5)
    accepted = sorted(row.created_at for row in cloud.migrations())
    pauses = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(accepted[1:])]
    assert min(pauses) >= run.SPACING, pauses
    assert ends(cloud, uuid)['status'] == 'completed'


def test_guest_that_was_locked_since_the_members_were_read_is_not_requested(cloud):
    first = cloud.boot('first', 'host1')
    faults(cloud, 'host1').stall('copying', instance_uuid=first.uuid, sticky=True)
    uuid = drain(cloud)['uuid']
    until(cloud, lambda: statuses(show(cloud, uuid)) == {'first': 'moving'})
    late, mark = cloud.boot('late', 'host1'), cloud.new_uuid()
    cloud.database.instances.update(late.uuid, locked_by='owner')
    member = Member(instance_uuid=late.uuid, name='late', source='host1', size_mb=1, position=2, mark=mark)
    owner = next(one for one in cloud.conductors.values() if one.drains.statuses())
    with pytest.raises(Refused, match='It is locked by its owner'):
        owner.drains.mover.engine.ask(cloud.database.drains.get(uuid), member, None)
    assert cloud.migrations(late) == []


def test_request_after_the_host_was_forced_down_counts_no_attempt(cloud, monkeypatch):
    """The host is forced down between the look at its guests and the request."""
    cloud.boot('guest', 'host1')
    uuid = drain(cloud)['uuid']
    assert act(cloud, uuid, 'pause').status_int == 202
    cloud.simulation.advance(1)
    monkeypatch.setattr(run._Run, 'update_members', lambda self, is_whole: None)
    state.force_down(cloud, 'host1')
    assert act(cloud, uuid, 'resume').status_int == 202
    cloud.simulation.advance(30)
    shown = show(cloud, uuid)
    assert 'Its host host1 is forced down.' in shown['waits_for']
    assert [(one['status'], one['attempts']) for one in shown['members']] == [('waiting', 0)]
    assert cloud.migrations() == []


@pytest.mark.parametrize(
    ('changed', 'cleared', 'words'),
    [
        (
            {'disabled_reason': 'broken fan'},
            {'disabled': False, 'disabled_reason': None},
            'Its home host1 is disabled (broken fan). Enable it: openstack compute service set --enable host1',
        ),
        (
            {'forced_down': True},
            {'forced_down': False},
            'Its home host1 is forced down. It reports.',
        ),
    ],
    ids=['disabled', 'forced down'],
)
def test_restore_waits_until_its_home_takes_guests_and_counts_no_attempt(cloud, changed, cleared, words):
    guest, service = cloud.boot('guest', 'host1'), cloud.database.services.get_compute('host1')
    uuid = drain(cloud)['uuid']
    assert ends(cloud, uuid)['status'] == 'completed'
    cloud.database.services.update(service.id, **changed)
    assert act(cloud, uuid, 'restore').status_int == 202
    cloud.simulation.advance(120)
    shown = show(cloud, uuid)
    assert words in shown['waits_for']
    assert [(one['status'], one['attempts']) for one in shown['members']] == [('waiting', 0)]
    assert len(cloud.migrations(guest)) == 1
    cloud.database.services.update(service.id, **cleared)
    assert ends(cloud, uuid)['status'] == 'restored'
    assert host_of(cloud, guest) == 'host1'
