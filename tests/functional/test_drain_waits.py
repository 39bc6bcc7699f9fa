# SPDX-License-Identifier: Apache-2.0

"""A drain waits for a host that does not answer, and leaves a guest alone that is elsewhere."""

import datetime

import pytest

from migrator.db.sql import watching
from tests.functional import state
from tests.functional import test_planned_stop as planned_stop
from tests.functional.faults import faults
from tests.functional.test_drain import act, drain, ends, host_of, show, statuses
from tests.functional.test_moved_by_hand import by_hand, placement_of_the_cloud, stored

pytestmark = pytest.mark.simulated(reason='it kills a compute service, and lets single seconds pass')

MINUTE = 60
__all__ = ['placement_of_the_cloud']


@pytest.mark.parametrize('away', [10, 10 * MINUTE])
def test_drain_gives_no_guest_up_while_the_service_of_its_host_is_away(cloud, away):
    guests = [cloud.boot(f'guest{number}', 'host1') for number in range(3)]
    stall = faults(cloud, 'host1').stall('check_can_live_migrate_source')
    uuid = drain(cloud, max_attempts=1)['uuid']
    cloud.simulation.run_until(stall.reached.is_set, timeout=MINUTE)
    state.kill(cloud, 'host1')
    cloud.simulation.advance(away)
    shown = show(cloud, uuid)
    assert not {'failed', 'blocked'} & set(statuses(shown).values()), [one['reason'] for one in shown['members']]
    if away > MINUTE:
        assert 'The compute service of its host host1 is down. Start it' in shown['waits_for'], shown['waits_for']
    faults(cloud, 'host1').clear()
    cloud.start_compute('host1')
    ended = ends(cloud, uuid)
    assert (ended['status'], {member['attempts'] for member in ended['members']}) == ('completed', {1})
    assert 'host1' not in {host_of(cloud, instance) for instance in guests}


def test_destination_that_dies_before_its_check_uses_up_no_attempt(cloud):
    guest = cloud.boot('guest', 'host1')
    stalls = {host: faults(cloud, host).stall('check_can_live_migrate_destination') for host in ('host2', 'host3')}
    uuid = drain(cloud, max_attempts=1)['uuid']
    cloud.simulation.run_until(lambda: any(one.reached.is_set() for one in stalls.values()), timeout=MINUTE)
    (dead,) = (host for host, one in stalls.items() if one.reached.is_set())
    (other,) = stalls.keys() - {dead}
    state.kill(cloud, dead)
    cloud.database.services.update(cloud.database.services.get_compute(other).id, disabled=True)
    cloud.simulation.run_until(
        lambda: 'not counted as an attempt' in str(show(cloud, uuid)['members'][0]['reason']), timeout=5 * MINUTE
    )
    cloud.database.services.update(cloud.database.services.get_compute(other).id, disabled=False)
    faults(cloud, other).clear()
    ended = ends(cloud, uuid)
    assert (ended['status'], ended['members'][0]['attempts']) == ('completed', 1)
    assert host_of(cloud, guest) == other


def test_planned_stop_of_the_host_uses_up_no_attempt(cloud):
    for number in range(3):
        cloud.boot(f'guest{number}', 'host1', dirty_rate=0.0)
    faults(cloud, 'host1').stall('copying', sticky=True)
    uuid = drain(cloud, max_attempts=1)['uuid']
    cloud.simulation.advance(20)
    planned_stop.stop(cloud)
    faults(cloud, 'host1').clear()
    cloud.simulation.advance(2 * MINUTE)
    assert 'failed' not in statuses(show(cloud, uuid)).values()
    cloud.start_compute('host1')
    assert ends(cloud, uuid)['status'] == 'completed'


def test_restore_waits_while_the_service_of_its_home_is_away(cloud):
    cloud.boot('one', 'host1')
    uuid = drain(cloud)['uuid']
    assert ends(cloud, uuid)['status'] == 'completed'
    state.kill(cloud, 'host1')
    cloud.simulation.advance(2 * MINUTE)
    assert act(cloud, uuid, 'restore').status_int == 202
    cloud.simulation.advance(2 * MINUTE)
    shown = show(cloud, uuid)
    assert statuses(shown) == {'one': 'waiting'}
    assert 'The compute service of its home host1 is down' in shown['waits_for'], shown['waits_for']
    cloud.start_compute('host1')
    assert ends(cloud, uuid)['status'] == 'restored'


@pytest.mark.breaks('I2', 'I3', 'I4', 'I5', 'I18', 'I25', reason='the test moves a guest without the control plane')
@pytest.mark.parametrize('found', [False, True])
def test_guest_that_was_moved_by_hand_is_blocked_until_it_is_reconciled(cloud, operator, found):
    moved, other = cloud.boot('moved', 'host1'), cloud.boot('other', 'host1')
    cloud.simulation.advance(MINUTE)
    by_hand(cloud, moved, 'host1', 'host2')
    if found:
        cloud.simulation.run_until(lambda: stored(cloud), timeout=2 * MINUTE)
    uuid = drain(cloud)['uuid']
    cloud.simulation.advance(20)
    shown = show(cloud, uuid)
    assert statuses(shown)['moved'] == 'blocked'
    words = 'It is on host2 (running), but the database has it on host1.' if found else 'host1 does not report it.'
    (reason,) = [member['reason'] for member in shown['members'] if member['name'] == 'moved']
    assert words in reason
    assert 'reconcile' in reason
    ended = ends(cloud, uuid)
    assert (ended['status'], host_of(cloud, other) != 'host1') == ('incomplete', True)
    assert cloud.migrations(moved) == []
    assert cloud.database.instances.get(moved.uuid).vm_state == 'active'
    assert operator('instance', 'reconcile', '--yes')[0] == 0
    assert ends(cloud, drain(cloud)['uuid'])['status'] == 'completed'


def test_drain_that_waits_is_read_every_five_seconds_and_goes_on_at_once_when_resumed(cloud):
    for number in range(3):
        cloud.boot(f'guest{number}', 'host1')
    uuid = drain(cloud, parallel=1)['uuid']
    assert act(cloud, uuid, 'pause').status_int == 202
    cloud.simulation.advance(120)
    assert 'moving' not in statuses(show(cloud, uuid)).values()
    reads = []
    done = watching.watch(cloud.database.engine, lambda text, _: reads.append('FROM drain_members' in text))
    cloud.simulation.advance(60)
    done()
    assert 0 < sum(reads) <= 60 / 5 + 1
    assert act(cloud, uuid, 'resume').status_int == 202
    cloud.simulation.advance(0.2)
    assert 'moving' in statuses(show(cloud, uuid)).values()


def test_drain_that_waits_keeps_its_deadline(cloud):
    for number in range(3):
        cloud.boot(f'guest{number}', 'host1')
    deadline = cloud.database.services.now() + datetime.timedelta(seconds=122.3)
    uuid = drain(cloud, parallel=1, deadline=deadline.isoformat())['uuid']
    assert act(cloud, uuid, 'pause').status_int == 202
    cloud.simulation.advance(121)
    assert show(cloud, uuid)['status'] == 'paused'
    cloud.simulation.advance(2)
    assert show(cloud, uuid)['status'] == 'incomplete'
