# SPDX-License-Identifier: Apache-2.0

"""The run of a maintenance, and the requests of its users, on a small site."""

import datetime

import pytest

from migrator.drain.engine import Obstacle, ObstacleKind, Refused
from migrator.drain.maintenance import actions, errors, run
from migrator.drain.maintenance.turns import LEGAL_MOVES, LEGAL_TURN_MOVES, Maintenance, TurnStatus
from tests.unit.drain.maintenance import site as sites


class Night:
    """A site with one maintenance, and its users."""

    def __init__(self, hosts=('host1', 'host2'), spares=('spare',), guests=None, room=10, **more):
        machines = [sites.Machine(name, room, name[0]) for name in (*hosts, *spares)]
        self.site = sites.Site(machines, {'guest1': ('host1', 4)} if guests is None else guests)
        self.store = self.site.store
        settings = {'returned_by': 'restart', 'in_order': True} | more
        self.store.accept(Maintenance(uuid=sites.UUID, **settings), hosts)

    def go_on(self, seconds=0.0):
        """Let time pass, look at all of it, and return the status of each host."""
        self.site.pass_time(seconds)
        run.advance(self.store, self.site, self.row)
        return {turn.host: turn.status for turn in self.turns}

    @property
    def row(self):
        return self.store.get(sites.UUID)

    @property
    def turns(self):
        return self.store.read_turns(sites.UUID)

    def turn(self, host):
        return next(turn for turn in self.turns if turn.host == host)

    def until_ready(self, host='host1'):
        for _ in range(9):
            if self.go_on(10)[host] == 'ready':
                return self
        raise AssertionError(self.turn(host))

    def begin(self, host='host1', by='ada', claim=None):
        return actions.begin(self.store, self.site, sites.UUID, host, by, claim).claim

    def done(self, claim, host='host1'):
        return actions.done(self.store, sites.UUID, host, claim, 'ada')

    def fail(self, claim, host='host1'):
        return actions.fail(self.store, sites.UUID, host, claim, 'ada', 'no package')

    def skip(self, host, *more):
        return actions.skip(self.store, sites.UUID, host, 'ada', *more)

    def retry(self, host):
        return actions.retry(self.store, sites.UUID, host, 'ada')

    def change(self, action):
        return actions.change(self.store, sites.UUID, action, 'ada')

    def work(self, host):
        """Have a host worked on, with its return."""
        self.until_ready(host)
        self.done(self.begin(host), host)
        self.site.machines[host].start(self.site.time)
        return self.go_on(10)

    def is_disabled(self, host):
        return self.site.machines[host].disabled_by is not None


def test_hosts_are_emptied_worked_on_and_used_again_one_after_the_other():
    night = Night(guests={'guest1': ('host1', 4), 'guest2': ('host2', 4)})
    assert night.go_on() == {'host1': 'draining', 'host2': 'waiting'}
    assert (night.is_disabled('host1'), night.is_disabled('host2')) == (True, False)
    assert night.row.waits_for == 'At most 1 may be out of service: host1 (it is draining).'
    assert night.work('host1') == {'host1': 'done', 'host2': 'draining'}
    assert not night.is_disabled('host1')
    assert night.work('host2') == {'host1': 'done', 'host2': 'done'}
    assert (night.row.status, night.row.message) == ('completed', '2 of 2 hosts done.')
    assert night.site.watch.wrong == []


def test_begin_with_a_claim_of_the_caller_may_be_repeated_until_the_work_has_ended():
    night = Night().until_ready()
    assert night.begin(claim='mine') == night.begin(claim='mine') == 'mine'
    with pytest.raises(errors.InvalidTurn, match='ada has claimed it'):
        night.begin(claim='another')
    night.done('mine')
    with pytest.raises(errors.InvalidTurn, match='its work has ended'):
        night.begin(claim='mine')


def test_plan_says_where_the_guests_go():
    night = Night()
    night.go_on()
    assert night.turn('host1').moves == {'guest1': 'spare'}


def test_host_is_claimed_once_and_its_claim_stands_in_the_refusal():
    night = Night().until_ready()
    claim = night.begin()
    with pytest.raises(errors.InvalidTurn, match='which is working: ada has claimed it'):
        night.begin(by='bob')
    for wrong in ('', 'other'):
        with pytest.raises(errors.InvalidTurn, match=f'ada has the claim {claim}. Name it only if that work has ended'):
            night.done(wrong)
    assert night.done(claim).status == 'returning'
    assert night.done(claim).status == 'returning'  # as if the reply had been lost
    with pytest.raises(errors.InvalidTurn, match='no work is in progress there'):
        night.done(claim, 'host2')


@pytest.mark.parametrize(
    ('change', 'why'),
    [
        (lambda night: night.site.where.update(late=('host1', 1)), 'guests: late'),
        (lambda night: setattr(night.site.machines['host2'], 'disabled_by', 'ada'), 'host2 (it is disabled)'),
        (lambda night: night.change('pause'), 'which is paused: resume it first'),
        (lambda night: night.change('cancel'), 'cancelling: it was cancelled'),
        (lambda night: night.site.trouble.append('other has died.'), 'other has died'),
        (lambda night: setattr(night.site.machines['host1'], 'reported', -900.0), 'host1 does not report'),
    ],
)
def test_work_does_not_begin_where_a_check_or_a_limit_forbids_it(change, why):
    night = Night().until_ready()
    change(night)
    with pytest.raises(errors.InvalidTurn) as refused:
        night.begin()
    assert why in str(refused.value)
    assert night.turn('host1').status == 'ready'


def test_host_that_an_operator_has_enabled_is_not_worked_on_and_says_so():
    night = Night().until_ready()
    night.site.machines['host1'].disabled_by = None
    night.go_on()
    assert night.turn('host1').reason == 'host1 was enabled meanwhile. Disable it, or skip it.'
    with pytest.raises(errors.InvalidTurn, match=r'host1 was enabled meanwhile\. Disable it'):
        night.begin()
    night.site.machines['host1'].disabled_by = 'ada'
    night.go_on()
    assert night.turn('host1').reason is None
    assert night.begin()


def test_host_whose_reboot_could_not_be_seen_is_not_worked_on():
    night = Night(returned_by='reboot').until_ready()
    reports = night.site.reports
    night.site.reports = lambda hosts: {
        host: sites.Report(one.at, True, one.boot, disabled=True) for host, one in reports(hosts).items()
    }
    with pytest.raises(errors.InvalidTurn, match='does not report the start of its kernel'):
        night.begin()


def test_claim_that_lapses_is_shown_and_still_ends_the_work():
    night = Night(work_timeout=3600).until_ready()
    claim = night.begin()
    night.go_on(3600)
    assert night.turn('host1').reason == (
        'ada claimed it more than 60 min ago. Once the work has ended, report its end with the claim.'
    )
    assert night.done(claim).status == 'returning'


def test_host_that_does_not_come_back_stays_disabled_and_the_rest_waits_for_a_user():
    night = Night(return_timeout=600).until_ready()
    night.done(night.begin())
    assert night.go_on(300)['host1'] == 'returning'
    assert night.go_on(300) == {'host1': 'failed', 'host2': 'waiting'}
    assert night.is_disabled('host1')
    assert night.turn('host1').reason == (
        'It is not back: its compute service was not restarted since its work began. That was so for 10 min, and it '
        'stays disabled. Then retry the host, or skip it.'
    )
    assert (night.row.shown_status, night.row.message) == (
        'paused',
        '1 host failed: host1. The maintenance is paused. Retry or skip each of them, then resume the maintenance; or '
        'cancel it.',
    )  # fmt: skip
    # It is still out of service, so that resuming alone does not begin the next host.
    night.change('resume')
    assert night.go_on() == {'host1': 'failed', 'host2': 'waiting'}
    night.skip('host1')
    assert night.go_on() == {'host1': 'skipped', 'host2': 'draining'}
    assert not night.is_disabled('host1')


def test_host_that_is_forced_down_while_it_returns_is_named_and_does_not_fail():
    night = Night(return_timeout=600).until_ready()
    night.done(night.begin())
    night.site.machines['host1'].forced_down = True
    assert night.go_on(700)['host1'] == 'returning'
    assert night.turn('host1').reason == 'It is not back: it is forced down. Declare it up once it is repaired.'


def test_failed_host_that_an_operator_enables_is_out_of_service_no_more():
    night = Night().until_ready()
    night.fail(night.begin())
    assert night.turn('host1').reason == 'Its work has failed: no package. Mend it. Then retry the host, or skip it.'
    night.site.machines['host1'].disabled_by = None
    night.go_on()
    night.change('resume')
    assert night.go_on()['host2'] == 'draining'


def test_failed_host_is_emptied_and_worked_on_again():
    night = Night().until_ready()
    night.fail(night.begin())
    night.go_on()
    night.retry('host1')
    night.change('resume')
    assert night.work('host1') == {'host1': 'done', 'host2': 'draining'}
    assert not night.is_disabled('host1')


def test_maintenance_that_has_ended_with_failures_goes_on_with_a_retry():
    night = Night(hosts=('host1',)).until_ready()
    night.fail(night.begin())
    night.go_on()
    assert (night.row.status, night.row.message) == (
        'incomplete',
        '0 of 1 host done. Failed: host1: Its work has failed: no package. Mend it. Then retry the host, or skip it.',
    )
    night.retry('host1')
    assert night.row.status == 'running'
    assert night.work('host1') == {'host1': 'done'}
    assert (night.row.status, night.row.message) == ('completed', '1 of 1 host done.')


def test_work_with_nothing_to_do_and_hosts_that_are_skipped():
    night = Night(hosts=('host1', 'host2', 'host3')).until_ready()
    night.skip('host3')
    night.skip('host1', night.begin())
    # It was not worked on, so it is used again at once.
    assert night.go_on() == {'host1': 'skipped', 'host2': 'draining', 'host3': 'skipped'}
    assert not night.is_disabled('host1')
    with pytest.raises(errors.InvalidTurn, match='wait until it is ready'):
        night.skip('host2')


def test_cancel_ends_what_has_not_begun_and_waits_for_the_work():
    night = Night(hosts=('host1', 'host2', 'host3', 'host4'), parallel=3, guests={'guest3': ('host3', 4)})
    night.until_ready('host1')
    claim = night.begin('host1')
    night.change('cancel')
    assert night.go_on(10) == {'host1': 'working', 'host2': 'returning', 'host3': 'returning', 'host4': 'skipped'}
    assert night.go_on() == {'host1': 'working', 'host2': 'skipped', 'host3': 'skipped', 'host4': 'skipped'}
    assert [host for host in night.site.machines if night.is_disabled(host)] == ['host1']
    night.done(claim)
    night.site.machines['host1'].start(night.site.time)
    assert night.go_on(10)['host1'] == 'done'
    assert (night.row.status, night.row.message) == ('cancelled', '1 of 4 hosts done.')


def test_drain_that_leaves_something_fails_its_host_with_what_it_says():
    night = Night(guests={'guest1': ('host1', 4)})
    night.site.stuck.add('guest1')
    night.go_on()
    assert night.go_on(10)['host1'] == 'failed'
    assert night.turn('host1').reason == 'Left: guest1. Clear what is left. Then retry the host, or skip it.'
    assert night.row.paused


def test_guests_that_are_shut_off_stay_only_if_the_request_says_so():
    for stopped, status in (('stay', 'ready'), ('move', 'failed')):
        night = Night(stopped=stopped)
        night.site.stopped.add('guest1')
        night.go_on()
        assert night.go_on(10)['host1'] == status
    night = Night(stopped='stay')
    night.site.stopped.add('guest1')
    night.until_ready()
    night.site.stopped.clear()  # it was started meanwhile
    with pytest.raises(errors.InvalidTurn, match='guests: guest1'):
        night.begin()


def test_host_without_room_for_its_guests_waits_and_says_which_and_fails_in_time():
    night = Night(hosts=('host1',), guests={'big': ('host1', 9), 'other': ('spare', 9)}, wait_for_room=600)
    assert night.go_on() == {'host1': 'waiting'}
    assert night.row.waits_for == 'No host has room for 1 guest of host1: big. SIZE is short at 1 host.'
    assert night.go_on(500) == {'host1': 'waiting'}
    assert night.go_on(100) == {'host1': 'failed'}
    assert night.turn('host1').reason == (
        'No host has room for 1 guest of host1: big. SIZE is short at 1 host. No host could leave service for 10 min. '
        'Free room. Then retry the host, or skip it.'
    )


def test_room_that_comes_in_time_is_used():
    night = Night(hosts=('host1',), guests={'big': ('host1', 9), 'other': ('spare', 9)}, wait_for_room=600)
    night.go_on()
    del night.site.where['other']
    assert night.go_on(599) == {'host1': 'draining'}
    assert (night.row.waits_for, night.row.no_room_since) == (None, None)


@pytest.mark.parametrize(('prefer', 'second'), [('time', 'draining'), ('moves', 'waiting')])
def test_host_whose_guests_would_move_twice_waits_if_moves_count_more(prefer, second):
    guests = {'guest1': ('host1', 4), 'guest2': ('host2', 4)}
    night = Night(('host1', 'host2', 'host3'), (), guests, parallel=2, prefer=prefer)
    assert night.go_on()['host2'] == second
    if prefer == 'moves':
        assert night.row.waits_for == '1 guest of host2 would move twice. The next host to be done takes guests: host1.'
        night.work('host1')
        night.until_ready('host2')
        assert night.turn('host2').moves == {'guest2': 'host1'}


def test_reserve_is_kept_free_on_the_hosts_in_service():
    night = Night(reserve={'SIZE': 17})
    night.go_on()
    assert night.row.waits_for == 'Without host1 less than the reserve of SIZE would be free.'
    assert Night(reserve={'SIZE': 16}).go_on()['host1'] == 'draining'


def test_guests_that_are_on_their_way_count_where_they_go():
    guests = {'guest1': ('host1', 6), 'guest2': ('host2', 6)}
    night = Night(parallel=2, guests=guests)
    assert night.go_on() == {'host1': 'draining', 'host2': 'waiting'}
    assert night.row.waits_for == 'No host has room for 1 guest of host2: guest2. SIZE is short at 1 host.'


def test_trouble_elsewhere_keeps_hosts_from_being_begun_unless_the_request_says_otherwise():
    night = Night()
    night.site.trouble.append('other has died.')
    assert night.go_on()['host1'] == 'waiting'
    assert night.row.waits_for == 'other has died. No host is begun meanwhile.'
    night = Night(despite_trouble=True)
    night.site.trouble.append('other has died.')
    assert night.go_on()['host1'] == 'draining'


def test_host_that_does_not_report_is_waited_for_and_one_that_was_declared_down_fails():
    night = Night(guests={f'guest{number}': ('host1', 1) for number in range(9)})
    night.go_on()
    one = night.site.machines['host1']
    one.runs = False
    night.go_on(70)
    assert (night.turn('host1').status, night.turn('host1').reason) == (
        'draining',
        'host1 does not report. Start its compute service.',
    )
    one.forced_down = True
    assert night.go_on()['host1'] == 'failed'
    assert night.turn('host1').reason == (
        'host1 was declared down before its work. Evacuate host1. Then retry the host, or skip it.'
    )
    night.site.pass_time(10)
    assert [row.status for row in night.site.rows.values()] == ['cancelled']


def test_host_that_is_down_is_not_begun_and_the_reason_says_what_to_do():
    night = Night(parallel=2)
    night.site.machines['host1'].runs = False
    assert night.go_on(10) == {'host1': 'waiting', 'host2': 'draining'}
    night = Night(hosts=('host1',))
    night.site.machines['host1'].forced_down = True
    night.go_on(10)
    assert night.row.waits_for == 'host1 is down. Start its compute service, or skip it.'
    night.skip('host1')
    night.go_on()
    assert night.row.status == 'completed'


def test_host_that_is_gone_is_out_of_service_no_more():
    night = Night().until_ready()
    night.fail(night.begin())
    del night.site.machines['host1']
    night.go_on()
    night.change('resume')
    assert night.go_on()['host2'] == 'draining'


def test_deadline_ends_what_has_not_begun():
    night = Night(deadline=sites.BEGAN + datetime.timedelta(seconds=100)).until_ready()
    night.done(night.begin())
    night.site.machines['host1'].start(night.site.time)
    assert night.go_on(100) == {'host1': 'done', 'host2': 'skipped'}
    assert night.row.status == 'incomplete'


def test_owner_that_was_replaced_changes_nothing():
    night = Night()
    old = night.row
    night.store.adopt(sites.UUID)
    with pytest.raises(errors.NotOwnerOfMaintenance):
        run.advance(night.store, night.site, old)
    assert {turn.status for turn in night.turns} == {TurnStatus.WAITING}
    assert night.site.rows == {}


def test_unknown_host_and_an_ended_maintenance_are_named():
    night = Night(hosts=('host1',), guests={})
    with pytest.raises(errors.InvalidTurn, match=r'nowhere.*name one of its 1 hosts'):
        night.skip('nowhere')
    night.skip('host1')
    night.go_on()
    with pytest.raises(errors.InvalidTurn, match='it has ended'):
        night.change('pause')


def test_host_that_is_ready_at_the_deadline_is_used_again_and_the_end_is_incomplete():
    night = Night(hosts=('host1',), deadline=sites.BEGAN + datetime.timedelta(seconds=100)).until_ready()
    assert night.go_on(100)['host1'] == 'returning'
    assert night.go_on()['host1'] == 'skipped'
    assert not night.is_disabled('host1')
    assert night.turn('host1').reason == 'The deadline 2026-11-01 00:01:40 UTC has passed.'
    assert night.row.status == 'incomplete'


def test_failed_host_that_stays_disabled_does_not_keep_the_others_from_ending_at_the_deadline():
    night = Night(deadline=sites.BEGAN + datetime.timedelta(seconds=100), max_failures=1).until_ready()
    night.fail(night.begin())
    assert night.go_on(100) == {'host1': 'failed', 'host2': 'skipped'}
    assert night.row.status == 'incomplete'


def test_retried_host_that_is_left_out_is_enabled_by_the_drain_of_before():
    for leave_out in (lambda night: night.skip('host1'), lambda night: night.change('cancel')):
        night = Night(max_failures=9, parallel=1).until_ready()
        night.fail(night.begin())
        night.change('pause')
        night.retry('host1')
        leave_out(night)
        night.go_on()
        night.go_on()
        assert night.turn('host1').status == 'skipped'
        assert not night.is_disabled('host1')


def test_looks_at_a_host_that_is_ready_write_nothing_most_of_the_time():
    night = Night().until_ready()
    night.go_on()
    before = night.row.log_seq
    for _ in range(5):
        night.go_on(10)
    assert night.row.log_seq <= before + 1


def test_start_between_the_report_and_the_claim_is_not_taken_for_one_after_the_work():
    night = Night().until_ready()
    left = night.site.left

    def started_meanwhile(*asked):
        night.site.machines['host1'].start(night.site.time)
        return left(*asked)

    night.site.left = started_meanwhile
    with pytest.raises(errors.InvalidTurn, match='host1 was started just now'):
        night.begin()


def test_drain_that_is_accepted_just_before_a_cancel_is_seen_is_cancelled_too():
    night = Night(guests={f'guest{number}': ('host1', 1) for number in range(9)})
    start = night.site.start
    night.site.start = lambda *_: None  # it hangs
    night.go_on()
    row, turn = night.row, night.turn('host1')
    night.change('cancel')
    drains = night.site.drains

    def accepted_since(uuids):
        found = drains(uuids)
        start(row, turn)
        return found

    night.site.drains = accepted_since
    assert night.go_on()['host1'] == 'returning'
    night.site.drains = drains
    assert night.go_on()['host1'] == 'returning'
    assert night.go_on(10)['host1'] == 'skipped'
    assert [one.status for one in night.site.rows.values()] == ['cancelled']
    assert not night.is_disabled('host1')


def test_host_that_was_forced_down_or_not_looked_at_for_long_gets_its_time_to_settle():
    night = Night(returned_by='report', settle=90, return_timeout=600).until_ready()
    night.done(night.begin())
    night.site.machines['host1'].forced_down = True
    for _ in range(8):
        assert night.go_on(100)['host1'] == 'returning'
    night.site.machines['host1'].forced_down = False
    for _ in range(3):
        night.go_on(40)
    assert night.go_on(40)['host1'] == 'done'
    night = Night(returned_by='report', settle=90, return_timeout=600).until_ready()
    night.done(night.begin())
    assert night.go_on(900)['host1'] == 'returning'
    for _ in range(3):
        night.go_on(40)
    assert night.turn('host1').status == 'done'


def test_time_without_room_counts_only_while_room_is_all_that_is_missing():
    night = Night(hosts=('host1',), guests={'big': ('host1', 9), 'other': ('spare', 9)}, wait_for_room=600)
    night.go_on()
    night.change('pause')
    night.go_on(700)
    night.change('resume')
    assert night.go_on() == {'host1': 'waiting'}
    guests = {'guest1': ('host1', 6), 'guest2': ('host2', 6)}
    night = Night(parallel=2, guests=guests, wait_for_room=60).until_ready()
    assert night.go_on(300)['host2'] == 'waiting'


def test_failure_that_was_dealt_with_does_not_allow_a_further_one():
    night = Night(hosts=('host1', 'host2', 'host3')).until_ready()
    night.fail(night.begin())
    night.go_on()
    night.change('resume')
    night.retry('host1')
    assert night.work('host1')['host1'] == 'done'
    night.until_ready('host2')
    night.fail(night.begin('host2'), 'host2')
    night.go_on()
    assert night.row.paused


def test_drain_that_is_refused_pauses_before_the_next_host_is_begun():
    night = Night(parallel=2)

    def refuse(*_):
        raise Refused(Obstacle(ObstacleKind.BUSY, 'Host host1 has a drain.', ''))

    night.site.start = refuse
    assert night.go_on() == {'host1': 'failed', 'host2': 'waiting'}
    assert night.row.paused
    assert night.turn('host1').reason == 'Host host1 has a drain. Then retry the host, or skip it.'


def test_host_that_another_has_disabled_is_done_and_says_that_it_stays_so():
    night = Night(hosts=('host1',)).until_ready()
    claim = night.begin()
    night.site.machines['host1'].disabled_by = 'an operator'
    night.done(claim)
    night.site.machines['host1'].start(night.site.time)
    night.go_on(10)
    assert night.turn('host1').status == 'done'
    assert night.turn('host1').reason == (
        'Its work is done. It is disabled for another reason. Enable it once that is over.'
    )


def test_host_with_more_guests_than_room_takes_nothing_from_the_reserve():
    night = Night(guests={'one': ('host1', 2), 'big': ('host2', 9)}, reserve={'SIZE': 5})
    night.site.machines['host2'].disabled_by = 'an operator'
    night.go_on()
    assert 'reserve' not in (night.row.waits_for or '')


@pytest.mark.parametrize('table', [LEGAL_MOVES, LEGAL_TURN_MOVES])
def test_tables_have_a_cause_for_each_move_and_no_move_to_where_it_is(table):
    assert all(old != new and cause for (old, new), cause in table.items())
