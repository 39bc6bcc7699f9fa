# SPDX-License-Identifier: Apache-2.0

"""Half-written moves, double records of a host, and soft deletions."""

import pytest

from tests.unit.nova.test_engine import _running, booked, cloud

__all__ = ['_running', 'booked', 'cloud']


def half_written(cloud, task_state):
    """Return a guest that has arrived, before Nova was killed between the writes of the end."""
    guest = cloud.fake.add_guest('one')
    cloud.fake.ticks[guest] = 9
    cloud.step()
    cloud.fake.tick(4)
    row = cloud.fake.row(guest)
    cloud.fake._set(row, 'completed')
    row['forgotten'], cloud.fake.truth[guest] = True, row['dest_compute']
    cloud.fake.servers[guest]['task_state'] = task_state
    return guest, row['dest_compute']


@pytest.mark.parametrize('task_state', ['migrating', None])
def test_completed_migration_whose_guest_stays_is_neither_reset_nor_repeated(cloud, task_state):
    guest, host = half_written(cloud, task_state)
    for _ in range(40):
        cloud.fake.tick(10)
        cloud.step()
    member = cloud.member(guest)
    assert f'The guest probably runs at {host}. Look there.' in member.reason
    assert 'set --state' not in member.reason
    assert cloud.asked(guest) == 1
    assert member.status == 'failed'


def test_guest_whose_move_is_half_written_is_not_requested_again_after_a_failure(cloud):
    guest, host = half_written(cloud, None)
    cloud.fake._add_row(guest, None, None)  # a user has requested it from the wrong host
    cloud.fake._end(cloud.fake.rows[-1], 'error')
    cloud.fake.tick(30)
    cloud.rows.members.clear()
    cloud.restart()
    for _ in range(5):
        cloud.fake.tick(10)
        cloud.step()
    assert cloud.asked(guest) == 1
    assert f'The guest probably runs at {host}. Look there.' in cloud.member(guest).reason


def test_guest_that_was_requested_from_the_new_host_since_is_not_half_moved(cloud):
    guest = cloud.fake.add_guest('one')
    row = cloud.fake._add_row(guest, None, None) or cloud.fake.rows[-1]
    row.update(dest_compute='host2', status='completed')
    cloud.fake._add_row(guest, None, None)
    cloud.fake.rows[-1].update(source_compute='host2', dest_compute='host1', status='error')
    (found,) = cloud.engine.guests(cloud.rows.drain)
    cloud.engine.check(cloud.rows.drain, cloud.fake.client().server(found.uuid))


def test_of_two_records_of_a_host_the_one_that_reports_counts(cloud):
    old = dict(cloud.fake.services['host1'], id='old', state='down', host='host1')
    cloud.fake.more_services, cloud.fake.services = (
        [cloud.fake.services['host1']],
        {**cloud.fake.services, 'host1': old},
    )
    guest = cloud.fake.add_guest('one')
    (found,) = cloud.engine.guests(cloud.rows.drain)
    assert (found.uuid, found.obstacle) == (guest, None)
    assert cloud.engine.disable(cloud.rows.drain)
    assert (cloud.fake.more_services[0]['status'], old['status']) == ('disabled', 'enabled')


def test_guest_that_is_deleted_softly_is_named_with_what_its_user_can_do(booked):
    guest = booked.fake.add_guest('one')
    booked.fake.servers[guest]['vm_state'] = 'soft-delete'
    drain = booked.go()
    assert drain.status == 'incomplete'
    left = {check['what']: check['left'] for check in drain.checks}
    assert left['allocations in Placement, which migrator-drain audit explains'] == [
        f'of one ({guest}): It was deleted, and Nova keeps it on host1 for a while (SOFT_DELETED). Its user decides: '
        f'openstack server restore {guest}; or, to delete it for good, openstack server delete --force {guest}.'
    ]


def test_next_drain_does_not_move_a_guest_that_may_be_elsewhere(cloud):
    guest, host = half_written(cloud, None)
    cloud.fake.tick(30)
    cloud.rows.members.clear()
    cloud.restart()
    for _ in range(5):
        cloud.fake.tick(10)
        cloud.step()
    assert cloud.asked(guest) == 1
    assert f'The guest probably runs at {host}. Look there.' in cloud.member(guest).reason
