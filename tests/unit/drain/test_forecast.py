# SPDX-License-Identifier: Apache-2.0

"""Expected times: what recorded durations say about the migrations of a queue."""

import dataclasses
import datetime

import pytest

from migrator.drain import calibration, forecast
from migrator.drain.forecast import Job, Outlook, Past
from migrator.objects import Migration, reasons
from migrator.objects.drain import Drain, Member
from migrator.objects.reasons import Reason, WaitKind
from tests.reasons import stuck_for, waiting_for_slot

NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
MIB = 1024 * 1024
#: Each recorded migration took a second for 10 MiB.
STEADY = [Past('host1', size, size / 10) for size in (100, 200, 400)]


def ago(seconds):
    return NOW - datetime.timedelta(seconds=seconds)


def outlook(past=STEADY, slots=1):
    return Outlook(NOW, slots, past)


def migration(number, status='queued', **more):
    return Migration(
        id=number,
        uuid=f'm{number}',
        instance_uuid=f'g{number}',
        project_id='p',
        user_id='u',
        source_compute='host1',
        source_node='host1',
        status=status,
        created_at=ago(1000),
        **more,
    )


def running(number, seconds, copied=None, remains=None):
    of_copy = {'memory_processed': copied * MIB, 'memory_remaining': remains * MIB} if copied is not None else {}
    return migration(number, 'running', running_at=ago(seconds), updated_at=NOW, **of_copy)


def middle(expected):
    """Return the expected start and end, in half of the runs."""
    return tuple(None if band is None else round(band.p50) for band in (expected.start, expected.end))


def test_each_waits_for_those_before_it_and_takes_time_by_its_size():
    found, whole = forecast.play(outlook(), [Job('a', 100), Job('b', 300), Job('c', 100)], 'host1')
    assert [middle(found[uuid]) for uuid in 'abc'] == [(0, 10), (10, 40), (40, 50)]
    assert round(whole.p50) == round(whole.p80) == 50


def test_as_many_run_at_once_as_the_source_has_slots():
    found, whole = forecast.play(outlook(slots=2), [Job('a', 100), Job('b', 300), Job('c', 100)], 'host1')
    assert [middle(found[uuid]) for uuid in 'abc'] == [(0, 10), (0, 30), (10, 20)]
    assert round(whole.p50) == 30


def test_what_ran_at_the_same_time_shares_the_link():
    past = [Past('d', 100, 20, 'host1', 0), Past('d', 100, 20, 'host1', 0), Past('d', 300, 30, 'host2', 0)]
    assert [one.seconds for one in forecast.alone(past)] == [10, 10, 30]
    overlapping = [Past('d', 100, 15, 'host1', 0), Past('d', 100, 15, 'host1', 5)]
    assert [one.seconds for one in forecast.alone(overlapping)] == [10, 10]


def test_where_migrations_share_a_link_more_slots_save_no_time():
    together = [Past('host1', 100, 20, 'host1', 0), Past('host1', 100, 20, 'host1', 0)]
    shared = [*together, Past('host1', 300, 30, 'host1', 50)]
    found, whole = forecast.play(outlook(shared, slots=2), [Job('a', 100), Job('b', 300), Job('c', 100)], 'host1')
    assert [middle(found[uuid]) for uuid in 'abc'] == [(0, 20), (0, 50), (20, 40)]
    assert round(whole.p50) == 50
    as_fast = [Past('host1', 100, 10, 'host1', 0), Past('host1', 100, 10, 'host1', 0), Past('host1', 300, 30, '', 50)]
    _, whole = forecast.play(outlook(as_fast, slots=2), [Job('a', 100), Job('b', 300), Job('c', 100)], 'host1')
    assert round(whole.p50) == 30


def test_copies_that_run_together_have_each_a_part_of_the_link():
    together = [Past('host1', 100, 20, 'host1', 0), Past('host1', 100, 20, 'host1', 0)]
    jobs = [Job('a', 100, elapsed=10, left=8), Job('b', 200, elapsed=10, left=28)]
    found, _ = forecast.play(outlook([*together, Past('host1', 300, 30, 'host1', 50)], slots=2), jobs, 'host1')
    assert [middle(found[uuid])[1] for uuid in 'ab'] == [10, 20]


#: Two that ran together took twice as long as one alone, so migrations share their links.
SHARED = [
    Past('host1', 100, 20, 'host1', 0, 'host3'),
    Past('host1', 100, 20, 'host1', 0, 'host4'),
    Past('host1', 300, 30, 'host1', 50, 'host3'),
]


def elsewhere(number, destination, seconds=0):
    """Return a migration of another source that runs."""
    return Past(f'other{number}', 100, seconds, f'other{number}', ago(seconds).timestamp(), destination)


def test_what_two_sources_send_to_one_destination_shares_its_link():
    past = [Past('d', 100, 20, 'host1', 0, 'host3'), Past('d', 100, 20, 'host2', 0, 'host3')]
    assert [one.seconds for one in forecast.alone(past)] == [10, 10]
    apart = [Past('d', 100, 10, 'host1', 0, 'host3'), Past('d', 100, 10, 'host2', 0, 'host4')]
    assert [one.seconds for one in forecast.alone(apart)] == [10, 10]


def test_migration_that_took_no_time_shares_no_link():
    past = [Past('d', 100, 0, 'host1', 0, 'host3'), Past('d', 100, 10, 'host1', 20, 'host3')]
    assert [one.seconds for one in forecast.alone(past)] == [0, 10]


@pytest.mark.parametrize(('destination', 'seconds'), [('host3', 20), ('host4', 10)])
def test_copy_of_another_source_to_the_same_destination_slows_a_migration(destination, seconds):
    facts = Outlook(NOW, 1, SHARED, running=[elsewhere(2, 'host3')])
    found, _ = forecast.play(facts, [Job('a', 100, source='host1', destination=destination)], 'host1')
    assert middle(found['a']) == (0, seconds)


def test_migration_without_destination_goes_where_the_fewest_go():
    facts = Outlook(NOW, 2, SHARED, running=[elsewhere(2, 'host3')])
    found, _ = forecast.play(facts, [Job('a', 100, source='host1')], 'host1')
    assert middle(found['a']) == (0, 10)
    only = Outlook(NOW, 2, SHARED, running=[elsewhere(2, 'host3')], destinations=['host3'])
    assert middle(forecast.play(only, [Job('a', 100, source='host1')], 'host1')[0]['a']) == (0, 20)


def test_migration_waits_while_its_destinations_receive_as_many_as_they_may():
    facts = Outlook(NOW, 2, SHARED, running=[elsewhere(2, 'host3')], inbound=2, destinations=['host3'])
    found, _ = forecast.play(facts, [Job(uuid, 100, source='host1') for uuid in 'ab'], 'host1')
    assert [middle(found[uuid]) for uuid in 'ab'] == [(0, 20), (20, 40)]
    full = [elsewhere(number, 'host3') for number in (2, 3)]
    found, _ = forecast.play(dataclasses.replace(facts, running=full), [Job('a', 100, source='host1')], 'host1')
    assert middle(found['a']) == (0, 30)


def test_time_in_which_a_copy_shared_the_link_of_its_destination_counts_in_part():
    job = Job('a', 100, elapsed=10, source='host1', destination='host3')
    apart = Outlook(NOW, 1, SHARED, running=[elsewhere(2, 'host4', seconds=10)])
    assert middle(forecast.play(apart, [dataclasses.replace(job, size_mb=200)], 'host1')[0]['a']) == (None, 10)
    together = Outlook(NOW, 1, SHARED, running=[elsewhere(2, 'host3', seconds=10)])
    # It has got on by 5 s of 10, and shares the link on.
    assert middle(forecast.play(together, [job], 'host1')[0]['a']) == (None, 10)


def test_nothing_is_expected_while_too_little_is_recorded():
    found, whole = forecast.play(outlook(STEADY[:2]), [Job('a', 100)], 'host1')
    assert (found['a'].start, found['a'].end, whole) == (None, None, None)
    assert found['a'].reason == forecast.UNKNOWN


def test_band_is_as_wide_as_the_recorded_times_differ():
    past = [Past('host1', 100, seconds) for seconds in range(1, 101)]
    found, _ = forecast.play(outlook(past), [Job('a', 100)], 'host1')
    assert found['a'].end.p50 == pytest.approx(50, abs=10)
    assert found['a'].end.p80 == pytest.approx(80, abs=10)


def test_p80_is_later_where_few_are_recorded():
    few = forecast.play(outlook([Past('host1', 100, seconds) for seconds in range(1, 6)]), [Job('a', 100)], 'host1')
    assert (few[0]['a'].end.p50, few[0]['a'].end.p80) == (3, 5)


def test_the_same_facts_give_the_same_answer():
    past = [Past(f'host{seconds % 7}', 100, seconds) for seconds in range(1, 101)]
    jobs = [Job(str(number), 100) for number in range(5)]
    assert forecast.play(outlook(past), jobs, 'host1') == forecast.play(outlook(past), jobs, 'host1')


def test_the_more_of_a_drain_has_moved_the_more_that_counts():
    others = [Past('other', 100, 10)] * 50
    few = forecast.play(outlook([*others, Past('mine', 100, 40)]), [Job('a', 100)], 'mine')[0]['a']
    many = forecast.play(outlook([*others, *[Past('mine', 100, 40)] * 20]), [Job('a', 100)], 'mine')[0]['a']
    assert (few.end.p50, many.end.p50) == (10, 40)


def test_migration_that_runs_takes_longer_than_it_has_run_already():
    past = [Past('host1', 100, seconds) for seconds in (10, 10, 10, 30)]
    found, _ = forecast.play(outlook(past), [Job('a', 100, elapsed=20)], 'host1')
    assert middle(found['a']) == (None, 10)
    beyond, _ = forecast.play(outlook(past), [Job('a', 100, elapsed=40)], 'host1')
    assert middle(beyond['a']) == (None, 10)


@pytest.mark.parametrize(
    ('copied', 'remains', 'seconds'),
    [
        # About 10 MiB/s as recorded: the rest takes 70 s.
        (310, 690, 70),
        # 30 MiB/s leave 3.3 s for the rest, and at most 33 s for what is dirtied meanwhile; not the recorded 70 s.
        (900, 100, 3.3 + 33.3),
        # 2 MiB/s leave 470 s, which is longer than any recorded; a quarter more.
        (60, 940, 470 + 125),
    ],
)
def test_rate_of_the_hypervisor_bounds_the_rest(copied, remains, seconds):
    places = forecast.of_host(outlook(), [running(1, 30, copied, remains)], {'g1': 1000})
    assert places['m1'].expected.end.p50 == pytest.approx(seconds, abs=0.2)


def test_queue_of_a_host_is_in_its_order_with_positions():
    rows = [
        migration(4, 'accepted', **waiting_for_slot('an inbound slot at host7: 2 of 2')),
        migration(3, 'queued', queued_at=ago(20)),
        migration(2, 'queued', queued_at=ago(10)),
        running(1, 5),
    ]
    places = forecast.of_host(outlook(), rows, {f'g{number}': 100 for number in range(1, 5)})
    assert list(places) == ['m1', 'm2', 'm3', 'm4']
    assert [place.position for place in places.values()] == [None, 1, 2, 3]
    assert [place.waits_for for place in places.values()] == [
        None,
        '1st in the queue of host1',
        '2nd in the queue of host1',
        'for an inbound slot at host7: 2 of 2',
    ]
    assert [middle(place.expected) for place in places.values()] == [(None, 5), (5, 15), (15, 25), (25, 35)]


@pytest.mark.parametrize(
    ('row', 'reason'),
    [
        (migration(1, **stuck_for('both hosts run it')), 'It is stuck'),
        (migration(1, 'preparing', migration_type='evacuation'), 'It is an evacuation'),
        (migration(1, abort_requested_at=NOW), 'An abort of it was requested'),
        (migration(1, 'failed'), 'It has ended: failed.'),
    ],
)
def test_reason_is_given_where_no_end_is_expected(row, reason):
    place = forecast.of_host(outlook(), [row], {'g1': 100})['m1']
    assert (place.position, place.expected.start, place.expected.end) == (None, None, None)
    assert place.expected.reason.startswith(reason)


def test_guest_that_was_deleted_has_no_expected_end():
    assert forecast.of_host(outlook(), [migration(1)], {})['m1'].expected.reason == 'Its guest was deleted.'


def member(number, status='waiting', **more):
    return Member(instance_uuid=f'g{number}', position=number, size_mb=100, status=status, source='host1', **more)


def test_drain_ends_with_its_last_member():
    members = [member(1, 'moved'), member(2, 'moving', mark='m2'), member(3, 'moving', mark='m3'), member(4)]
    rows = [running(2, 5), migration(3, 'queued', queued_at=ago(1))]
    whole, places = forecast.of_drain(outlook(), Drain(uuid='d', host='host1', status='running'), members, rows)
    assert [places[f'g{number}'].position for number in range(1, 5)] == [None, None, 1, 2]
    assert [middle(places[f'g{number}'].expected) for number in range(2, 5)] == [(None, 5), (5, 15), (15, 25)]
    assert places['g1'].expected.reason == 'Its part in the drain has ended: moved.'
    assert places['g4'].waits_for == '2nd in the queue of host1'
    assert middle(whole) == (None, 25)


def test_member_that_another_control_plane_moves_runs_since_it_was_requested():
    drain = Drain(uuid='d', host='host1', status='running', paused=True)
    members = [member(1), member(2, 'moving', mark='7', began_at=ago(4))]
    _, places = forecast.of_drain(outlook(), drain, members, [])
    assert places['g2'].position is None
    assert middle(places['g2'].expected) == (None, 6)
    drain = drain.replace(paused=False)
    whole, places = forecast.of_drain(outlook(), drain, members, [])
    assert (places['g1'].position, middle(places['g1'].expected), middle(whole)) == (1, (6, 16), (None, 16))


def test_member_does_not_start_before_its_next_attempt():
    members = [member(1, not_before=NOW + datetime.timedelta(seconds=60))]
    _, places = forecast.of_drain(outlook(), Drain(uuid='d', host='host1', status='running'), members, [])
    assert middle(places['g1'].expected) == (60, 70)


def test_parallel_narrows_the_slots_of_a_drain():
    drain = Drain(uuid='d', host='host1', status='running', parallel=1)
    whole, _ = forecast.of_drain(outlook(slots=4), drain, [member(1), member(2)], [])
    assert middle(whole) == (None, 20)


@pytest.mark.parametrize(
    ('fields', 'whole', 'of_member'),
    [
        ({'paused': True}, 'It is paused.', 'The drain is paused.'),
        ({'waits_for': '1 guest waits. g1: Its host is down.'}, 'The drain cannot go on', 'The drain cannot go on'),
        ({'cancel_requested_at': NOW}, 'No guest is left that moves or waits', 'The drain is being cancelled.'),
        ({'status': 'cancelled'}, 'It has ended: cancelled.', 'Its part in the drain has ended: waiting.'),
    ],
)
def test_drain_that_requests_nothing_more_says_so(fields, whole, of_member):
    drain = Drain(uuid='d', host='host1', **{'status': 'running', **fields})
    expected, places = forecast.of_drain(outlook(), drain, [member(1)], [])
    assert (expected.end, places['g1'].expected.end, places['g1'].position) == (None, None, None)
    assert expected.reason.startswith(whole)
    assert places['g1'].expected.reason.startswith(of_member)


@pytest.mark.parametrize(
    ('held', 'why'),
    [
        (stuck_for('both hosts run it'), 'The migration of web cannot end now. It is stuck.'),
        (
            reasons.columns('wait', Reason.of(WaitKind.HOST, 'host1', since='10:00')),
            'The migration of web cannot end now. It waits: host1 has not answered since 10:00.',
        ),
    ],
)
def test_drain_whose_migration_cannot_end_has_no_expected_end(held, why):
    drain = Drain(uuid='d', host='host1', status='running')
    members = [member(1, 'moving', mark='m1', name='web'), member(2)]
    whole, places = forecast.of_drain(outlook(slots=2), drain, members, [migration(1, 'running', **held)])
    assert (whole.end, places['g1'].expected.end) == (None, None)
    assert whole.reason.startswith(why)
    # A migration that is stuck holds back no other one. A source that does not answer does.
    assert (places['g2'].expected.end is None) == ('host1' in held.get('wait_hosts', ()))


def test_plan_has_the_seconds_of_each_copy_and_of_all():
    drain = Drain(uuid='d', host='host1')
    whole, each = forecast.of_plan(outlook(slots=2), drain, {'g1': 100, 'g2': 300, 'g3': 100})
    assert (whole['p50'], {guest: band['p50'] for guest, band in each.items()}) == (30, {'g1': 10, 'g2': 30, 'g3': 10})
    assert forecast.of_plan(outlook(STEADY[:2]), drain, {'g1': 100}) == (None, {})
    assert forecast.of_plan(outlook(), drain, {}) == (None, {})


def test_blocked_member_does_not_delay_the_others():
    members = [member(1, 'blocked', reason='It is locked by its owner.'), member(2)]
    whole, places = forecast.of_drain(outlook(), Drain(uuid='d', host='host1', status='running'), members, [])
    assert places['g1'].expected.reason == 'It is blocked. It is locked by its owner.'
    assert middle(whole) == (None, 10)


def test_document_has_exact_times():
    expected = forecast.Expected(forecast.Band(10, 20.4), forecast.Band(30, 40))
    later = {seconds: NOW + datetime.timedelta(seconds=seconds) for seconds in (10, 20.4, 30, 40)}
    assert expected.document(NOW) == {
        'start': {'p50': later[10], 'p80': later[20.4]},
        'end': {'p50': later[30], 'p80': later[40]},
        'reason': None,
    }


@pytest.mark.parametrize(
    ('number', 'text'), [(1, '1st'), (2, '2nd'), (3, '3rd'), (4, '4th'), (11, '11th'), (22, '22nd'), (113, '113th')]
)
def test_ordinal(number, text):
    assert forecast.ordinal(number) == text


def test_calibration_has_the_median_error_and_how_often_each_percentile_held():
    after = [NOW + datetime.timedelta(seconds=seconds) for seconds in (100, 110, 120, 130)]
    found = [
        calibration.Prediction(NOW, after[1], after[2], ended) for ended in (after[0], after[1], after[2], after[3])
    ]
    assert calibration.errors_of(found) == {'samples': 4, 'median_error': 0.092, 'p50_held': 0.5, 'p80_held': 0.75}
    assert calibration.errors_of([]) == {'samples': 0, 'median_error': None, 'p50_held': None, 'p80_held': None}
