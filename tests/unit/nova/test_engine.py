# SPDX-License-Identifier: Apache-2.0

"""Drains on a Nova in memory: whole ones with every outcome, crashes, and what a single look shows."""

import dataclasses
import datetime

import pytest
from keystoneauth1.exceptions import ConnectFailure

from migrator import exception
from migrator.drain import run
from migrator.drain.engine import MoveState, Refused
from migrator.nova import moves
from migrator.objects.drain import Direction, Drain, Member, MemberStatus
from migrator.placement_client.client import PlacementClient
from tests.unit import placements
from tests.unit.nova.drained import Cloud, lose


@pytest.fixture(scope='module')
def _running(tmp_path_factory):
    with placements.running(tmp_path_factory.mktemp('placement')) as running:
        yield running


@pytest.fixture
def cloud():
    return Cloud(None)


@pytest.fixture
def booked(_running):
    """The same, with the allocations in a real Placement."""
    _running.empty()
    return Cloud(PlacementClient(_running.adapter()))


# --- whole drains ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(('parallel', 'requested'), [(None, 2), (1, 1)])
def test_drain_moves_each_guest_once_one_at_a_time_with_one_requested_ahead(booked, parallel, requested):
    guests = [booked.fake.add_guest(f'guest{number}') for number in range(3)]
    booked.set(parallel=parallel)
    asked, run = [], []

    def note(_method, _path):
        asked.append(sum(one['task_state'] == 'migrating' for one in booked.fake.servers.values()))
        run.append(sum(row['status'] in ('preparing', 'running') for row in booked.fake.rows))

    booked.fake.before = note
    drain = booked.go()
    assert (drain.status, booked.fake.on('host1'), max(asked), max(run)) == ('completed', [], requested, 1)
    assert [booked.asked(guest) for guest in guests] == [1, 1, 1]
    assert [booked.member(guest).destination for guest in guests] == [booked.fake.truth[guest] for guest in guests]
    assert booked.fake.services['host1']['disabled_reason'] == 'drain d1'
    assert all(not check['left'] for check in drain.checks)


def test_parallel_of_the_drain_lets_more_move(cloud):
    for number in range(4):
        cloud.fake.ticks[cloud.fake.add_guest(f'guest{number}')] = 20
    cloud.fake.at_once = 3
    cloud.set(parallel=3)
    cloud.go(until=lambda: sum(row['status'] == 'running' for row in cloud.fake.rows) == 3)
    assert sum(row['status'] == 'running' for row in cloud.fake.rows) == 3
    assert cloud.go().status == 'completed'


@pytest.mark.parametrize(
    ('where', 'reason'),
    [
        ('check', 'ended as error: the lab says so.'),
        ('pre', 'ended as failed, to host2: the lab says so.'),
        ('live', 'ended as failed, to host2: no reason is known, see the logs of nova-conductor and of nova-compute'),
    ],
)
def test_failed_move_is_tried_again_and_its_reason_shown(cloud, where, reason):
    guest, other = cloud.fake.add_guest('bad'), cloud.fake.add_guest('good')
    cloud.fake.fails[guest] = where
    cloud.go(until=lambda: cloud.member(guest).reason is not None if guest in cloud.rows.members else False)
    assert reason in cloud.member(guest).reason
    row = cloud.fake.row(guest)
    assert cloud.member(guest).reason.startswith(f'Migration {row["id"]} ({row["request_id"]}) ended as ')
    drain = cloud.go()
    assert (drain.status, cloud.fake.on('host1')) == ('incomplete', ['bad'])
    assert (cloud.asked(guest), cloud.asked(other)) == (3, 1)
    assert cloud.member(guest).status == 'failed'
    assert 'attempt 3 of 3' in drain.message
    assert cloud.member(guest).tried == ([] if where == 'check' else ['host2', 'host3'])


def test_failed_move_that_leaves_the_guest_in_error_has_a_remedy_for_that(cloud):
    guest = cloud.fake.add_guest('bad')
    cloud.fake.fails[guest] = 'pre'
    cloud.go(until=lambda: cloud.fake.rows and cloud.fake.row(guest)['status'] == 'failed')
    cloud.fake.servers[guest].update(vm_state='error', task_state=None)
    (move,) = cloud.engine.look([cloud.member(guest)]).values()
    assert 'the lab says so. It is in ERROR. Look which host runs the guest. Only if host1 does: ' in move.reason
    assert f'openstack server set --state active {guest}' in move.reason


@pytest.mark.parametrize(
    ('state', 'remedy'),
    [
        ('suspended', 'openstack server resume GUEST'),
        ('rescued', 'openstack server unrescue GUEST'),
        ('shelved', 'openstack server shelve --offload GUEST'),
        ('resized', 'openstack server migration confirm GUEST, or openstack server migration revert GUEST'),
        ('stopped', 'openstack server migrate --wait GUEST, then openstack server migration confirm GUEST'),
        ('building', 'Make it active'),
    ],
)
def test_remedy_fits_the_state_of_the_guest(cloud, state, remedy):
    guest = cloud.fake.add_guest('one', vm_state=state)
    cloud.fake.statuses[state] = state.upper()
    (found,) = cloud.engine.guests(cloud.rows.drain)
    assert remedy.replace('GUEST', guest) in found.obstacle.remedy


def test_failed_move_that_succeeds_later_completes(cloud):
    guest = cloud.fake.add_guest('one')
    cloud.fake.fails[guest] = 'pre'
    cloud.go(until=lambda: cloud.asked(guest) == 1 and cloud.status(guest) == 'waiting')
    del cloud.fake.fails[guest]
    assert cloud.go().status == 'completed'
    # Not the host where it has failed.
    assert (cloud.asked(guest), cloud.fake.truth[guest]) == (2, 'host3')


def test_guest_in_error_at_the_destination_has_moved_with_a_remedy(booked):
    guest = booked.fake.add_guest('one')
    booked.fake.fails[guest] = 'post'
    booked.go(until=lambda: booked.rows.drain.emptied_at is not None)
    booked.fake.now += datetime.timedelta(seconds=run.REMAINS)
    drain = booked.go()
    assert (booked.status(guest), booked.fake.truth[guest], booked.asked(guest)) == ('moved', 'host2', 1)
    reason = booked.member(guest).reason
    assert f'openstack server set --state active {guest}' in reason
    assert 'the lab says so' in reason
    # Nova leaves the allocation of its migration at the source.
    assert drain.status == 'incomplete'
    assert f'of consumer {booked.fake.row(guest)["uuid"]}' in drain.message
    assert f'To check: one: {reason}' in drain.message


def test_move_is_not_over_before_the_task_has_ended(cloud):
    guest = cloud.fake.add_guest('one')
    cloud.go(until=lambda: cloud.fake.rows and cloud.fake.row(guest)['status'] == 'completed')
    assert cloud.fake.servers[guest]['task_state'] == 'migrating'
    (move,) = cloud.engine.look([cloud.member(guest)]).values()
    assert (move.state, move.destination) == (MoveState.RUNNING, 'host2')


def test_locked_and_stopped_guests_stay_and_are_named(cloud):
    locked = cloud.fake.add_guest('locked', locked=True, locked_reason='mine')
    stopped = cloud.fake.add_guest('stopped', vm_state='stopped')
    cloud.fake.add_guest('good')
    drain = cloud.go()
    assert (drain.status, cloud.fake.on('host1')) == ('incomplete', ['locked', 'stopped'])
    assert (cloud.asked(locked), cloud.asked(stopped)) == (0, 0)
    assert f'openstack server unlock {locked}' in drain.message
    assert 'It is stopped. Start it, or move it as it is: openstack server migrate --wait' in drain.message


def test_busy_guest_is_waited_for(cloud):
    guest = cloud.fake.add_guest('one', task_state='rebooting')
    cloud.go(seconds=20)
    assert (cloud.status(guest), cloud.asked(guest)) == ('waiting', 0)
    cloud.fake.servers[guest]['task_state'] = None
    assert cloud.go().status == 'completed'


def test_deleted_guest_is_gone(cloud):
    guest = cloud.fake.add_guest('one')
    cloud.fake.ticks[guest] = 30
    cloud.set(max_attempts=1)
    cloud.go(until=lambda: cloud.fake.rows and cloud.fake.row(guest)['status'] == 'running')
    cloud.fake.delete(guest)
    cloud.go(seconds=3)
    assert (cloud.status(guest), cloud.member(guest).reason) == ('gone', 'It was deleted.')


def test_guest_that_nova_refuses_for_good_is_given_up(cloud):
    guest = cloud.fake.add_guest('one')
    cloud.fake.refuses[guest] = 'live-migration of a guest with SEV is not supported'
    drain = cloud.go()
    assert (drain.status, cloud.status(guest), cloud.member(guest).attempts) == ('incomplete', 'failed', 2)
    assert 'with SEV is not supported' in drain.message


# --- a cancel, a restore, and the host -------------------------------------------------------------------------------


def test_cancel_aborts_what_is_queued_and_lets_the_running_one_end(cloud):
    first, second = (cloud.fake.add_guest(f'guest{number}') for number in range(2))
    cloud.fake.ticks[first] = 30
    cloud.set(parallel=2)
    cloud.go(until=lambda: cloud.asked(second) == 1 and len(cloud.fake.rows) == 2)
    assert cloud.fake.row(second)['status'] == 'accepted'  # Nova refuses to abort it yet
    cloud.set(cancel_requested_at=cloud.fake.now)
    drain = cloud.go()
    assert (drain.status, cloud.fake.on('host1')) == ('cancelled', ['guest1'])
    assert (cloud.status(first), cloud.status(second)) == ('moved', 'cancelled')
    assert cloud.fake.row(second)['status'] == 'cancelled'
    assert cloud.fake.services['host1']['status'] == 'enabled'


def test_cancel_aborts_the_running_one_if_it_says_so(cloud):
    guest = cloud.fake.add_guest('one')
    cloud.fake.ticks[guest] = 30
    cloud.go(until=lambda: cloud.fake.rows and cloud.fake.row(guest)['status'] == 'running')
    cloud.set(cancel_requested_at=cloud.fake.now, cancel_running=True)
    assert cloud.go(seconds=10).status == 'cancelled'
    assert (cloud.fake.on('host1'), cloud.member(guest).reason) == (['one'], 'Its migration 1 was aborted.')


def test_restore_brings_the_guests_back_and_enables_the_host(cloud):
    guests = [cloud.fake.add_guest(f'guest{number}') for number in range(3)]
    cloud.go()
    for member in cloud.rows.read_members('d1'):
        waits = {'status': MemberStatus.WAITING.value, 'source': member.destination, 'destination': None}
        cloud.rows.members[member.instance_uuid] = member.replace(**waits, attempts=0, mark=None)
    cloud.set(status='accepted', direction=Direction.BACK.value)
    drain = cloud.go()
    assert (drain.status, drain.message) == ('restored', '3 of 3 guests came back to host1.')
    assert {cloud.fake.truth[guest] for guest in guests} == {'host1'}
    assert cloud.fake.services['host1']['status'] == 'enabled'


@pytest.mark.parametrize(
    ('changed', 'words'),
    [
        ({'disabled_reason': 'broken fan'}, 'Its home host1 is disabled (broken fan). Enable it'),
        ({'state': 'down'}, 'nova-compute at host1 has been down since'),
    ],
)
def test_restore_waits_until_its_home_takes_guests(cloud, changed, words):
    guest = cloud.fake.add_guest('one')
    cloud.go()
    member = cloud.member(guest)
    waits = {'status': MemberStatus.WAITING.value, 'source': member.destination, 'destination': None}
    cloud.rows.members[guest] = member.replace(**waits, attempts=0, mark=None)
    cloud.fake.services['host1'] |= changed
    cloud.set(status='accepted', direction=Direction.BACK.value)
    drain = cloud.go(seconds=120)
    assert words in drain.waits_for
    assert (cloud.status(guest), cloud.member(guest).attempts, cloud.asked(guest)) == ('waiting', 0, 1)
    cloud.fake.services['host1'] |= {'status': 'enabled', 'disabled_reason': None, 'state': 'up'}
    assert cloud.go().status == 'restored'
    assert cloud.fake.truth[guest] == 'host1'


@pytest.mark.parametrize(
    ('status', 'reason', 'mine'),
    [
        ('enabled', None, True),
        ('disabled', 'drain d1', True),  # the process has ended before it wrote that
        ('disabled', 'drain 6f9c2c9e-52b0-4a6e-9f6b-0f3c1d2e4a5b: kernel', True),
        ('disabled', 'drain for the firmware, ask Ada', False),
        ('disabled', 'broken fan', False),
        ('disabled', None, False),
    ],
)
def test_only_what_a_drain_has_disabled_is_enabled(cloud, status, reason, mine):
    service = cloud.fake.services['host1']
    service |= {'status': status, 'disabled_reason': reason}
    assert cloud.engine.disable(cloud.rows.drain) is mine
    assert service['disabled_reason'] == ('drain d1' if mine else reason)
    cloud.engine.enable(cloud.rows.drain)
    assert service['status'] == ('enabled' if mine else 'disabled')


def test_host_without_a_compute_service_is_refused(cloud):
    with pytest.raises(Refused, match='no nova-compute at host9'):
        cloud.engine.disable(Drain(uuid='d2', host='host9'))


# --- crashes ---------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The end of the process."""


def kill_at(cloud, where):
    """Let the process end at a request, before or after Nova has done it."""

    def hook(method, path):
        if method == 'POST':
            cloud.fake.before = cloud.fake.after = lambda _method, _path: None
            raise Killed

    setattr(cloud.fake, where, hook)


@pytest.mark.parametrize('where', ['before', 'after'])
@pytest.mark.parametrize('pause', [0, 1, 100])
def test_process_killed_at_the_request_moves_each_guest_once(cloud, where, pause):
    guests = [cloud.fake.add_guest(f'guest{number}') for number in range(2)]
    kill_at(cloud, where)
    with pytest.raises(Killed):
        run.advance(cloud.rows, cloud.engine, cloud.rows.drain)
    assert cloud.status(guests[0]) == 'moving'  # the intent is committed
    cloud.fake.tick(pause)
    cloud.restart()
    assert cloud.go().status == 'completed'
    assert [cloud.asked(guest) for guest in guests] == [1, 1]
    assert cloud.fake.on('host1') == []


def test_request_without_an_answer_that_arrived_is_not_repeated(cloud):
    guest = cloud.fake.add_guest('one')
    cloud.fake.after = lose(('POST', '/action'))
    cloud.go(until=lambda: cloud.asked(guest) == 1)
    cloud.fake.after = lambda _method, _path: None
    assert cloud.go().status == 'completed'
    assert cloud.asked(guest) == 1


def test_request_that_is_lost_is_repeated_after_a_settled_look(cloud):
    guest = cloud.fake.add_guest('one')
    cloud.fake.before = lose(('POST', '/action'))
    cloud.step()
    cloud.fake.before = lambda _method, _path: None
    began = cloud.fake.now
    cloud.go(until=lambda: cloud.asked(guest) == 1)
    assert cloud.fake.now - began >= datetime.timedelta(seconds=moves.SETTLED)
    assert cloud.go().status == 'completed'
    assert (cloud.asked(guest), cloud.member(guest).attempts) == (1, 1)


@pytest.mark.parametrize('ends', [False, True], ids=['paused', 'deadline'])
def test_request_that_is_lost_is_not_repeated_by_a_drain_that_requests_nothing(cloud, ends):
    guest = cloud.fake.add_guest('one')
    cloud.fake.before = lose(('POST', '/action'))
    cloud.step()
    cloud.fake.before = lambda _method, _path: None
    cloud.set(**({'deadline': cloud.fake.now} if ends else {'paused': True}))
    cloud.go(seconds=60)
    assert (cloud.asked(guest), cloud.member(guest).attempts) == (0, 0)
    assert cloud.status(guest) == ('cancelled' if ends else 'waiting')
    cloud.set(paused=False)
    assert cloud.go().status == ('incomplete' if ends else 'completed')
    assert cloud.asked(guest) == (0 if ends else 1)


@pytest.mark.parametrize('number', [1, 2, 3], ids=['look', 'look before the repetition', 'repetition'])
def test_request_that_arrives_late_is_not_repeated(cloud, number):
    """Nova does the POST while this process looks whether it has arrived, or when it sends it again."""
    guest = cloud.fake.add_guest('one')
    cloud.fake.before = lose(('POST', '/action'))
    cloud.step()
    settled, requests = cloud.fake.now + datetime.timedelta(seconds=moves.SETTLED), []

    def arrives(_method, path):
        if path.startswith(f'/servers/{guest}') and cloud.fake.now >= settled:
            requests.append(path)
            if len(requests) == number:
                cloud.fake.client().migrate_live(guest)

    cloud.fake.before = arrives
    assert cloud.go().status == 'completed'
    assert (cloud.asked(guest), cloud.status(guest)) == (1, 'moved')


def test_nova_away_for_a_while_is_waited_for(cloud):
    guests = [cloud.fake.add_guest(f'guest{number}') for number in range(2)]

    def away(_method, _path):
        if cloud.fake.now.second % 7 in (2, 3, 4):
            raise ConnectFailure('no route')

    cloud.fake.before = away
    assert cloud.go().status == 'completed'
    assert [cloud.asked(guest) for guest in guests] == [1, 1]


def test_drain_goes_on_once_a_killed_source_is_back(booked):
    first, second = (booked.fake.add_guest(f'guest{number}') for number in range(2))
    booked.fake.ticks[first] = 30
    booked.set(parallel=2)
    booked.go(until=lambda: len(booked.fake.rows) == 2 and booked.fake.row(second)['status'] == 'queued')
    booked.fake.kill('host1')
    booked.go(seconds=30)
    booked.fake.start('host1')
    assert booked.fake.row(second)['status'] == 'queued'
    booked.go(until=lambda: booked.status(second) == 'waiting')
    request = booked.fake.row(second)['request_id']
    assert f'Nova has forgotten its migration 2 ({request}), which stays queued' in booked.member(second).reason
    booked.go(until=lambda: booked.rows.drain.emptied_at is not None)
    assert booked.fake.on('host1') == []
    assert (booked.asked(first), booked.asked(second)) == (2, 2)
    assert booked.fake.rows[1]['status'] == 'queued'  # for ever


# --- destinations ----------------------------------------------------------------------------------------------------


def wanted(cloud):
    return [row['wanted'] for row in cloud.fake.rows]


def test_scheduler_of_nova_chooses_by_default(cloud):
    cloud.fake.add_guest('one')
    cloud.go()
    assert wanted(cloud) == [None]


def test_given_destinations_are_named_and_another_taken_when_nova_refuses(cloud):
    guest = cloud.fake.add_guest('one')
    cloud.fake.full.add('host2')
    cloud.set(destinations=['host9', 'host2', 'host3'])
    assert cloud.go().status == 'completed'
    assert (wanted(cloud), cloud.fake.truth[guest]) == (['host2', 'host3'], 'host3')
    assert cloud.member(guest).tried == ['host2']


def test_spread_never_names_the_host_of_another_drain(cloud):
    cloud.options = {'spread': True, 'drained': lambda: ['host2']}
    cloud.restart()
    guests = [cloud.fake.add_guest(f'guest{number}') for number in range(3)]
    cloud.go()
    assert wanted(cloud) == ['host3'] * 3
    assert {cloud.fake.truth[guest] for guest in guests} == {'host3'}


def test_spread_waits_while_no_destination_can_take_more(cloud):
    cloud.options = {'spread': True}
    cloud.choose = lambda *_args: None
    cloud.restart()
    guest = cloud.fake.add_guest('one')
    drain = cloud.go(seconds=60)
    assert (cloud.status(guest), cloud.member(guest).attempts, drain.ended) == ('waiting', 0, False)
    assert 'No destination can take it now.' in drain.waits_for


def test_migrations_on_their_way_are_counted_for_the_choice(cloud):
    cloud.options = {'spread': True}
    cloud.restart()
    cloud.fake.at_once = 2
    for number in range(2):
        cloud.fake.ticks[cloud.fake.add_guest(f'guest{number}')] = 20
    cloud.set(parallel=2)
    cloud.go()
    assert wanted(cloud) == ['host2', 'host3']


def test_unknown_host_of_a_restore_is_refused(cloud):
    guest = cloud.fake.add_guest('one')
    member = Member(instance_uuid=guest, source='host1', mark='0')
    with pytest.raises(Refused, match='host9 could not be found'):
        cloud.engine.ask(cloud.rows.drain, member, 'host9')


# --- the rest --------------------------------------------------------------------------------------------------------


def test_host_is_not_empty_while_anything_is_left(booked):
    guest = booked.fake.add_guest('one')
    booked.fake.ticks[guest] = 30
    booked.fake.client().migrate_live(guest)
    booked.fake.tick(3)
    left = {check.what: check.left for check in booked.engine.check_empty('host1')}
    assert left == {
        'guests in Nova': [f'one ({guest}, MIGRATING)'],
        'guests that nova-compute counts': ['1 at host1'],
        'migrations in progress': [f'live-migration 1 of {guest}: running'],
        'allocations in Placement, which migrator-drain audit explains': [
            f'of consumer {booked.fake.row(guest)["uuid"]}'
        ],
    }
    left = {check.what: check.left for check in booked.engine.check_empty('host3')}
    assert not any(left.values())


def test_guests_of_an_unreachable_cell_are_not_taken_for_gone(cloud):
    cloud.fake.add_guest('one')
    cloud.fake.services['host1']['status'] = 'UNKNOWN'
    with pytest.raises(exception.ServiceUnreachable, match='cell of host1'):
        cloud.engine.guests(Drain(uuid='d', host='host1'))


def test_expected_ends_come_from_the_completed_migrations_of_the_source(cloud):
    guests = [cloud.fake.add_guest(f'guest{number}', ram=1024) for number in range(6)]
    for guest in guests:
        cloud.fake.ticks[guest] = 10
    cloud.go()
    ends = [payload.get('expected_end') for kind, payload in cloud.rows.log if kind == 'member']
    # The first four had nothing to go by: one is requested ahead.
    assert sum(end is not None for end in ends) == 2
    last = next(end for end in reversed(ends) if end is not None)
    ended = cloud.member(guests[5]).ended_at
    assert abs((datetime.datetime.fromisoformat(last['p50']) - ended).total_seconds()) <= 5


def test_guest_has_ended_when_its_migration_has_and_not_when_the_drain_sees_it(cloud, monkeypatch):
    guest = cloud.fake.add_guest('one')
    ended, look = cloud.fake.now, cloud.engine.look

    def with_an_end(members):
        moves = look(members)
        return {one: dataclasses.replace(move, ended_at=ended) for one, move in moves.items()}

    monkeypatch.setattr(cloud.engine, 'look', with_an_end)
    assert cloud.go().status == 'completed'
    assert cloud.member(guest).ended_at == ended < cloud.fake.now
    (event,) = [payload for kind, payload in cloud.rows.log if kind == 'member' and payload['status'] == 'moved']
    assert event['ended_at'] == ended.isoformat()


def test_look_at_many_members_takes_few_requests(cloud):
    cloud.fake.at_once = 10
    cloud.set(parallel=10)
    for number in range(10):
        cloud.fake.ticks[cloud.fake.add_guest(f'guest{number}')] = 1000
    cloud.go(until=lambda: sum(row['status'] == 'running' for row in cloud.fake.rows) == 10)
    cloud.fake.requests.clear()
    moves = cloud.engine.look(cloud.rows.read_members('d1'))
    assert len(moves) == 10
    progress = [path for _method, path in cloud.fake.requests if path.endswith('/migrations')]
    assert len(progress) == len({*progress}) == 10, 'one for each guest that is copied'
    assert len(cloud.fake.requests) - len(progress) <= 5


def test_member_shows_where_its_guest_goes_and_how_much_is_copied(cloud):
    first, second = (cloud.fake.add_guest(f'guest{number}') for number in range(2))
    cloud.fake.ticks[first] = 10
    cloud.go(until=lambda: cloud.fake.row(first)['ticks'] == 4 if cloud.fake.rows else False)
    cloud.step()
    shown = cloud.member(first).progress
    assert (shown['status'], shown['destination']) == ('running', cloud.fake.row(first)['dest_compute'])
    assert shown['memory_processed_bytes'] + shown['memory_remaining_bytes'] == shown['memory_total_bytes'] == 2**30
    assert shown['memory_processed_bytes'] > 2**29
    waiting = cloud.member(second).progress
    assert (waiting['status'], waiting['memory_total_bytes']) == ('queued', None)
    assert waiting['destination'] == cloud.fake.row(second)['dest_compute']
    assert not [path for _, path in cloud.fake.requests if path == f'/servers/{second}/migrations']
    cloud.go()
    assert (cloud.member(first).progress, cloud.status(first)) == (None, 'moved')
