# SPDX-License-Identifier: Apache-2.0

"""Drains of a Nova in memory that move guests which are shut off, by cold migrations."""

import datetime

import pytest

from migrator.drain.engine import MoveState
from migrator.nova.moves import Mark
from migrator.objects.drain import Direction, MemberStatus
from migrator.placement_client.client import PlacementClient
from tests.unit import placements
from tests.unit.nova.drained import Cloud, lose


@pytest.fixture(scope='module')
def _running(tmp_path_factory):
    with placements.running(tmp_path_factory.mktemp('placement')) as running:
        yield running


@pytest.fixture
def cloud():
    made = Cloud(None)
    made.set(include_stopped=True)
    return made


@pytest.fixture
def booked(_running):
    """The same, with the allocations in a real Placement."""
    _running.empty()
    made = Cloud(PlacementClient(_running.adapter()))
    made.set(include_stopped=True)
    return made


def nothing(_method, _path):
    pass


def asked(cloud, guest, action='migrate'):
    """Return how often Nova has accepted an action on a guest."""
    return sum((one['instance_uuid'], one['action']) == (guest, action) for one in cloud.fake.actions)


def is_done(cloud, guest):
    """Return whether a guest was moved once, confirmed, and is shut off where Nova has it."""
    server = cloud.fake.servers[guest]
    return (
        [row['status'] for row in cloud.fake.rows if row['instance_uuid'] == guest] == ['confirmed']
        and cloud.fake.truth[guest] == server['host'] != 'host1'
        and (server['vm_state'], server['task_state']) == ('stopped', None)
    )


def reaches(cloud, guest, status):
    return bool(cloud.fake.rows) and cloud.fake.row(guest)['status'] == status


# --- whole drains ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('options', [{}, {'spread': True}], ids=['scheduler', 'spread'])
def test_shut_off_guest_moves_cold_and_is_confirmed_and_one_that_runs_moves_live(booked, options):
    booked.options = options
    booked.restart()
    off = [booked.fake.add_guest(f'off{number}', vm_state='stopped') for number in range(3)]
    runs = booked.fake.add_guest('runs')
    drain = booked.go()
    assert (drain.status, booked.fake.on('host1')) == ('completed', [])
    assert all(is_done(booked, guest) for guest in off)
    assert (booked.asked(runs), asked(booked, runs)) == (1, 0)
    assert [asked(booked, guest) for guest in off] == [1, 1, 1]
    assert [booked.member(guest).destination for guest in off] == [booked.fake.truth[guest] for guest in off]
    assert all(not check['left'] for check in drain.checks)


def test_restore_brings_shut_off_guests_back(cloud):
    guests = [cloud.fake.add_guest(f'off{number}', vm_state='stopped') for number in range(2)]
    cloud.go()
    for member in cloud.rows.read_members('d1'):
        waits = {'status': MemberStatus.WAITING.value, 'source': member.destination, 'destination': None}
        cloud.rows.members[member.instance_uuid] = member.replace(**waits, attempts=0, mark=None)
    cloud.set(status='accepted', direction=Direction.BACK.value)
    drain = cloud.go()
    assert (drain.status, drain.message) == ('restored', '2 of 2 guests came back to host1.')
    assert {cloud.fake.truth[guest] for guest in guests} == {'host1'}
    assert [asked(cloud, guest) for guest in guests] == [2, 2]
    assert {cloud.fake.servers[guest]['vm_state'] for guest in guests} == {'stopped'}


def test_without_the_request_a_shut_off_guest_stays_and_the_option_is_named(cloud):
    cloud.set(include_stopped=False)
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    drain = cloud.go()
    assert (drain.status, asked(cloud, guest)) == ('incomplete', 0)
    assert 'It is stopped. Start it, or move it as it is: ' in drain.message
    assert 'Or drain the host with --include-stopped' in drain.message


def test_cancel_waits_for_a_cold_migration_and_confirms_it(cloud):
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    cloud.go(until=lambda: reaches(cloud, guest, 'migrating'))
    cloud.set(cancel_requested_at=cloud.fake.now, cancel_running=True)
    drain = cloud.go()
    assert (drain.status, cloud.status(guest)) == ('cancelled', 'moved')
    assert is_done(cloud, guest)


def test_paused_drain_confirms_what_it_has_requested(cloud):
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    cloud.go(until=lambda: reaches(cloud, guest, 'migrating'))
    cloud.set(paused=True)
    cloud.go(seconds=20)
    assert (cloud.status(guest), is_done(cloud, guest)) == ('moved', True)


def test_given_destinations_are_named(cloud):
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    cloud.set(destinations=['host9', 'host3'])
    assert cloud.go().status == 'completed'
    assert (cloud.fake.row(guest)['wanted'], cloud.fake.truth[guest]) == ('host3', 'host3')


def test_cold_migration_has_a_destination_and_no_amounts_and_no_expected_end(cloud):
    for _ in range(5):
        cloud.fake.ticks[cloud.fake.add_guest('runs')] = 10
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    cloud.fake.ticks[guest] = 10
    cloud.go(until=lambda: guest in cloud.rows.members and asked(cloud, guest) and reaches(cloud, guest, 'migrating'))
    cloud.step()
    shown = cloud.member(guest).progress
    assert (shown['status'], shown['memory_total_bytes']) == ('migrating', None)
    assert shown['destination'] == cloud.fake.row(guest)['dest_compute']
    cloud.go()
    events = [payload for kind, payload in cloud.rows.log if kind == 'member' and payload['instance'] == guest]
    assert not [event for event in events if 'expected_end' in event]


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('where', 'state', 'words'),
    [
        ('check', 'stopped', 'ended as error: No valid host was found.'),
        ('pre', 'stopped', 'ended as error, to host2: the lab says so.'),
        ('live', 'error', 'ended as error, to host2: the lab says so. It is in ERROR. Look which host runs the guest.'),
    ],
)
def test_failed_cold_migration_names_its_request_and_what_helps(cloud, where, state, words):
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    cloud.fake.fails[guest] = where
    cloud.go(until=lambda: guest in cloud.rows.members and cloud.member(guest).reason is not None)
    row = cloud.fake.row(guest)
    seen = [payload['reason'] for kind, payload in cloud.rows.log if kind == 'member' and payload['reason']]
    assert seen[0].startswith(f'Migration {row["id"]} ({row["request_id"]}) {words}')
    drain = cloud.go()
    assert (drain.status, cloud.fake.truth[guest]) == ('incomplete', 'host1')
    assert (asked(cloud, guest), cloud.status(guest)) == ((1, 'blocked') if state == 'error' else (3, 'failed'))


def test_failed_cold_migration_that_succeeds_elsewhere_completes(booked):
    guest = booked.fake.add_guest('off', vm_state='stopped')
    booked.fake.fails[guest] = 'pre'
    booked.go(until=lambda: asked(booked, guest) == 1 and booked.status(guest) == 'waiting')
    del booked.fake.fails[guest]
    assert booked.go().status == 'completed'
    assert (asked(booked, guest), booked.fake.truth[guest]) == (2, 'host3')


@pytest.mark.parametrize('where', ['post', 'confirm'])
def test_guest_in_error_at_its_destination_has_moved_with_a_remedy(cloud, where):
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    cloud.fake.fails[guest] = where
    drain = cloud.go()
    assert (cloud.status(guest), asked(cloud, guest)) == ('moved', 1)
    reason = cloud.member(guest).reason
    assert f'It is on host2, and Nova shows it in ERROR: migration 1 ({cloud.fake.row(guest)["request_id"]})' in reason
    assert 'the lab says so. host1 may keep its old copy. ' in reason
    assert f'openstack server set --state active {guest}' in reason
    assert f'To check: off: {reason}' in drain.message


def test_migration_that_nova_has_not_begun_has_failed_with_its_request(cloud):
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    cloud.go(until=lambda: asked(cloud, guest) == 1)
    cloud.fake.rows.clear()
    cloud.fake.servers[guest]['task_state'] = None
    cloud.go(until=lambda: cloud.status(guest) == 'waiting')
    request = cloud.fake.actions[-1]['request_id']
    assert f'Nova has accepted its cold migration ({request}) and not begun it: ' in cloud.member(guest).reason
    assert cloud.go().status == 'completed'


def test_source_that_is_down_is_waited_for_before_the_confirmation(cloud):
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    cloud.go(until=lambda: reaches(cloud, guest, 'post-migrating'))
    cloud.fake.kill('host1')
    drain = cloud.go(seconds=60)
    assert cloud.fake.resized(guest)
    assert 'nova-compute at host1 has been down' in drain.waits_for
    assert asked(cloud, guest, 'confirmResize') == 0
    cloud.fake.start('host1')
    assert cloud.go().status == 'completed'
    assert is_done(cloud, guest)


def test_confirmation_that_nova_refuses_is_shown_and_sent_again(cloud):
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    cloud.go(until=lambda: reaches(cloud, guest, 'post-migrating'))
    confirm = cloud.fake.COLD['confirmResize']

    def refuse(_fake, _server, _options):
        raise cloud.fake.conflict('not now')

    cloud.fake.COLD = cloud.fake.COLD | {'confirmResize': refuse}
    drain = cloud.go(seconds=30)
    assert 'Nova does not confirm its cold migration 1: not now.' in drain.waits_for
    cloud.fake.COLD = cloud.fake.COLD | {'confirmResize': confirm}
    assert cloud.go().status == 'completed'
    assert is_done(cloud, guest)


# --- what others do meanwhile ----------------------------------------------------------------------------------------


def test_confirmation_that_nova_or_the_user_made_first_counts_as_moved(cloud):
    by_nova, by_user = (cloud.fake.add_guest(name, vm_state='stopped') for name in ('by nova', 'by user'))
    cloud.set(parallel=2)
    cloud.go(until=lambda: reaches(cloud, by_nova, 'finished'))
    cloud.fake.confirms_after = 0
    cloud.fake.tick(3)
    assert is_done(cloud, by_nova)
    cloud.fake.confirms_after = None
    cloud.go(until=lambda: asked(cloud, by_user) and reaches(cloud, by_user, 'finished'))
    cloud.fake.as_other(cloud.fake.client().confirm, by_user)
    drain = cloud.go()
    assert (drain.status, cloud.status(by_nova), cloud.status(by_user)) == ('completed', 'moved', 'moved')
    assert (asked(cloud, by_nova, 'confirmResize'), asked(cloud, by_user, 'confirmResize')) == (0, 1)


def test_revert_by_the_user_ends_it_and_it_is_not_moved_again(cloud):
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    cloud.go(until=lambda: reaches(cloud, guest, 'finished'))
    cloud.fake.as_other(cloud.fake.revert, cloud.fake.servers[guest], None)
    drain = cloud.go()
    assert (drain.status, cloud.status(guest), asked(cloud, guest)) == ('incomplete', 'cancelled', 1)
    assert cloud.member(guest).reason == 'Its user has reverted its cold migration 1.'
    assert cloud.fake.truth[guest] == 'host1'


def test_guest_that_was_started_is_not_powered_off_for_a_cold_migration(cloud):
    guest = cloud.fake.add_guest('off', vm_state='stopped')

    def start(method, path):
        if (method, path) == ('GET', f'/servers/{guest}'):  # the last look before the request
            cloud.fake.servers[guest]['vm_state'] = 'active'

    cloud.fake.before = start
    cloud.go(until=lambda: cloud.fake.rows)
    cloud.fake.before = nothing
    assert cloud.go().status == 'completed'
    assert (asked(cloud, guest), cloud.asked(guest)) == (0, 1)


def test_guest_that_runs_in_verify_resize_is_left_to_its_user(cloud):
    """It was started in the moment between the last look and the request."""
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    cloud.go(until=lambda: asked(cloud, guest) == 1)
    cloud.fake.servers[guest]['vm_state'] = 'active'
    drain = cloud.go()
    assert (cloud.status(guest), asked(cloud, guest, 'confirmResize')) == ('blocked', 0)
    assert drain.status == 'incomplete'
    assert 'It is in VERIFY_RESIZE at host2, and host1 keeps its old copy. Its user has to confirm' in drain.message


def migrated_by_another(cloud, guest):
    """Let another user migrate a guest, until it is in VERIFY_RESIZE."""
    cloud.fake.as_other(cloud.fake.client().migrate, guest)
    while not cloud.fake.resized(guest):
        cloud.fake.tick()


def test_cold_migration_of_another_user_is_never_confirmed(cloud):
    """The request of the drain was lost, and another user has migrated the guest meanwhile."""
    guest, other = cloud.fake.add_guest('off', vm_state='stopped'), cloud.fake.add_guest('other')
    cloud.fake.ticks[other] = 100
    cloud.fake.before = lose(('POST', '/action'))
    cloud.step()
    cloud.fake.before = nothing
    assert (cloud.status(guest), cloud.member(guest).mark) == ('moving', f'0@{cloud.fake.user}')
    migrated_by_another(cloud, guest)
    cloud.go(until=lambda: cloud.status(guest) == 'blocked')
    words = f'openstack server migration confirm {guest}, or openstack server migration revert {guest}'
    assert words in cloud.member(guest).reason
    cloud.go(seconds=30)
    assert (cloud.status(guest), asked(cloud, guest, 'confirmResize')) == ('blocked', 0)
    # Once its user has reverted it, the drain moves it.
    cloud.fake.as_other(cloud.fake.revert, cloud.fake.servers[guest], None)
    assert cloud.go().status == 'completed'
    assert (asked(cloud, guest), cloud.fake.row(guest)['status'], cloud.status(guest)) == (2, 'confirmed', 'moved')


@pytest.mark.parametrize('reverted', [False, True], ids=['after the answer', 'after a revert'])
def test_later_migration_by_the_same_user_is_not_that_of_the_drain(cloud, reverted):
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    if reverted:
        cloud.fake.after = lose(('POST', '/action'))
    cloud.go(until=lambda: asked(cloud, guest) == 1)
    cloud.fake.after = nothing
    while not cloud.fake.resized(guest):
        cloud.fake.tick()
    cloud.fake.revert(cloud.fake.servers[guest], None)
    cloud.fake.tick(2)
    cloud.fake.client().migrate(guest)
    while not cloud.fake.resized(guest):
        cloud.fake.tick()
    drain = cloud.go()
    assert (drain.status, cloud.status(guest), asked(cloud, guest, 'confirmResize')) == ('incomplete', 'blocked', 0)


def test_old_copy_of_another_migration_blocks_until_its_user_has_decided(cloud):
    guest, other = cloud.fake.add_guest('resized'), cloud.fake.add_guest('other')
    cloud.fake.ticks[other] = 60
    migrated_by_another(cloud, guest)
    cloud.go(seconds=20)
    assert cloud.status(guest) == 'blocked'
    assert 'It is in VERIFY_RESIZE at host2, and host1 keeps its old copy.' in cloud.member(guest).reason
    cloud.fake.confirm(cloud.fake.servers[guest], None)
    assert cloud.go().status == 'completed'
    assert cloud.status(guest) == 'gone'


def test_restore_leaves_a_migration_of_another_user_blocked(cloud):
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    cloud.go()
    member = cloud.member(guest)
    waits = {'status': MemberStatus.WAITING.value, 'source': member.destination, 'destination': None}
    cloud.rows.members[guest] = member.replace(**waits, attempts=0, mark=None)
    cloud.set(status='accepted', direction=Direction.BACK.value)
    cloud.fake.services['host1'] |= {'status': 'enabled', 'disabled_reason': None}
    cloud.fake.as_other(cloud.fake.client().migrate, guest, 'host1')
    while not cloud.fake.resized(guest):
        cloud.fake.tick()
    drain = cloud.go()
    assert (drain.status, cloud.status(guest)) == ('incomplete', 'blocked')
    assert 'It is in VERIFY_RESIZE at host1, and host2 keeps its old copy.' in drain.message


def test_user_that_nova_does_not_show_confirms_only_what_was_answered(cloud):
    cloud.fake.user = None
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    assert cloud.go().status == 'completed'
    assert is_done(cloud, guest)
    lost = cloud.fake.add_guest('lost', vm_state='stopped')
    cloud.set(status='accepted')
    cloud.fake.after = lose(('POST', '/action'))
    cloud.go(until=lambda: asked(cloud, lost) == 1)
    cloud.fake.after = nothing
    cloud.go()
    assert (cloud.status(lost), asked(cloud, lost, 'confirmResize')) == ('blocked', 0)


# --- crashes ---------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The end of the process."""


def run_killed(cloud, number, after):
    """Run a drain whose process is killed at a write, and return whether it was.

    :param number: which write.
    :param after: whether it is killed after the write, and not before.

    A write is a commit, or a request that changes something in the cloud.
    """
    writes, write = iter(range(1, 10**6)), cloud.rows.write

    def count(method, _path):
        if method != 'GET' and next(writes) == number:
            raise Killed

    def commit(*arguments):
        if not after:
            count('COMMIT', '')
        done = write(*arguments)
        if after:
            count('COMMIT', '')
        return done

    cloud.rows.write = commit
    setattr(cloud.fake, 'after' if after else 'before', count)
    try:
        cloud.go()
    except Killed:
        return True
    finally:
        cloud.rows.write, cloud.fake.before, cloud.fake.after = write, nothing, nothing
    return False


@pytest.mark.parametrize('after', [False, True], ids=['before', 'after'])
@pytest.mark.parametrize('pause', [0, 2, 100])
def test_killed_at_each_write_every_guest_moves_once_and_is_confirmed(after, pause):
    for number in range(1, 200):
        cloud = Cloud(None)
        cloud.set(include_stopped=True)
        guests = [cloud.fake.add_guest(f'off{n}', vm_state='stopped') for n in range(2)]
        was_killed = run_killed(cloud, number, after)
        cloud.fake.tick(pause)
        cloud.restart()
        where = f'killed at write {number}'
        assert cloud.go().status == 'completed', where
        assert all(is_done(cloud, guest) for guest in guests), where
        assert [asked(cloud, guest) for guest in guests] == [1, 1], where
        assert [asked(cloud, guest, 'confirmResize') for guest in guests] == [1, 1], where
        if not was_killed:
            assert number > 12, 'a drain of two has more writes'
            return
    raise AssertionError('it does not end')


def test_new_process_before_every_step_moves_each_guest_once(cloud):
    guests = [cloud.fake.add_guest(f'off{number}', vm_state='stopped') for number in range(2)]
    while not cloud.rows.drain.ended:
        cloud.restart()
        cloud.step()
    assert cloud.rows.drain.status == 'completed'
    assert all(is_done(cloud, guest) for guest in guests)


@pytest.mark.parametrize('arrived', [False, True], ids=['lost', 'arrived'])
def test_request_without_an_answer_is_recognized_or_repeated(cloud, arrived):
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    setattr(cloud.fake, 'after' if arrived else 'before', lose(('POST', '/action')))
    cloud.step()
    cloud.fake.before = cloud.fake.after = nothing
    began = cloud.fake.now
    drain = cloud.go()
    assert (drain.status, asked(cloud, guest), cloud.member(guest).attempts) == ('completed', 1, 1)
    assert is_done(cloud, guest)
    assert arrived or cloud.fake.now - began > datetime.timedelta(seconds=15)


@pytest.mark.parametrize('arrived', [False, True], ids=['lost', 'arrived'])
def test_confirmation_without_an_answer_is_repeated_only_if_it_was_lost(cloud, arrived):
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    cloud.go(until=lambda: reaches(cloud, guest, 'finished'))
    setattr(cloud.fake, 'after' if arrived else 'before', lose(('POST', '/action')))
    cloud.step()
    cloud.fake.before = cloud.fake.after = nothing
    assert cloud.go().status == 'completed'
    assert (asked(cloud, guest, 'confirmResize'), is_done(cloud, guest)) == (1, True)


def test_look_sends_no_second_confirmation_and_shows_nothing_in_the_way_while_nova_confirms(cloud):
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    cloud.go(until=lambda: reaches(cloud, guest, 'finished'))
    cloud.fake.confirm(cloud.fake.servers[guest], None)
    sent = len(cloud.fake.requests)
    (move,) = cloud.engine.look([cloud.member(guest)]).values()
    assert (move.state, move.waits_for) == (MoveState.RUNNING, None)
    assert {method for method, _ in cloud.fake.requests[sent:]} == {'GET'}


@pytest.mark.parametrize(
    ('text', 'mark'),
    [
        ('17', Mark(17)),
        ('17@43d260ae', Mark(17, '43d260ae')),
        ('17@', Mark(17, '')),
        ('17:req-1', Mark(17, '', 'req-1')),
        (None, Mark(0)),
    ],
)
def test_mark_is_read_as_it_was_written(text, mark):
    assert Mark.of(text) == mark
    assert str(mark) == (text or '0')
    assert mark.is_cold is (text not in ('17', None))


def test_look_shows_a_cold_migration_as_pending_until_it_copies(cloud):
    guest = cloud.fake.add_guest('off', vm_state='stopped')
    cloud.go(until=lambda: asked(cloud, guest) == 1)
    states = []
    while cloud.fake.servers[guest]['task_state'] is not None:
        (move,) = cloud.engine.look([cloud.member(guest)]).values()
        states.append(move.state)
        cloud.fake.tick()
    assert [*dict.fromkeys(states)] == [MoveState.PENDING, MoveState.RUNNING]
