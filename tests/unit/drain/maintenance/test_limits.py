# SPDX-License-Identifier: Apache-2.0

"""The limits of a maintenance: the time, and how many hosts are out of service."""

import datetime

import pytest

from migrator import exception
from migrator.drain.maintenance import limits
from migrator.drain.maintenance.turns import Maintenance, Turn

NOW = datetime.datetime(2026, 11, 1, 21, 0, tzinfo=datetime.UTC)


def maintenance(**more):
    return Maintenance(uuid='one', **more)


def done(minutes, ready=0):
    """Return a turn that is done. It was drained for half of the time, and worked on for half of it."""
    began, half = NOW - datetime.timedelta(minutes=minutes + ready), datetime.timedelta(minutes=minutes / 2)
    return Turn(host='a', status='done', began_at=began, ready_at=began + half, claimed_at=NOW - half, ended_at=NOW)


def utc(text):
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ('window', 'at', 'hours'),
    [
        ('22:00-06:00 Europe/Prague', '2026-11-10T20:59', 0),
        ('22:00-06:00 Europe/Prague', '2026-11-10T21:00', 8),
        ('22:00-06:00 Europe/Prague', '2026-11-11T04:00', 1),
        ('22:00-06:00 Europe/Prague', '2026-11-11T05:00', 0),
        ('08:00-09:30 UTC', '2026-11-10T08:00', 1.5),
        ('08:00-09:30 UTC', '2026-11-10T09:30', 0),
        ('00:00-00:00 UTC', '2026-11-10T18:00', 6),
        # In this night the clocks are put back by an hour, and in the other one forward.
        ('22:00-06:00 Europe/Prague', '2026-10-24T20:00', 9),
        ('22:00-06:00 Europe/Prague', '2026-03-28T21:00', 7),
    ],
)
def test_window_is_of_the_clocks_of_its_zone(window, at, hours):
    assert limits.Window.parse(window).left(utc(at)) == hours * 3600


@pytest.mark.parametrize('text', ['', '22-06 UTC', '25:00-06:00 UTC', '22:00-06:00', '22:00-06:00 Nowhere/Land'])
def test_text_that_is_no_window_is_named(text):
    with pytest.raises(exception.Invalid, match=r'window.*Give one such as 22:00-06:00 Europe/Prague'):
        limits.Window.parse(text)


def test_turn_is_expected_to_take_what_four_of_five_have_taken():
    assert limits.expected([]) == 0
    assert limits.expected([done(minutes) for minutes in (50, 10, 20, 30, 40)]) == 40 * 60
    assert limits.expected([done(10).replace(status='failed')]) == 0


def test_time_in_which_a_host_waits_for_its_user_does_not_count():
    assert limits.expected([done(40, ready=1440)]) == 40 * 60
    assert limits.expected_work([done(40, ready=1440)]) == 20 * 60


def test_host_is_begun_only_if_it_is_expected_to_be_back_in_time():
    deadline = NOW + datetime.timedelta(minutes=30)
    assert limits.why_not_now(maintenance(deadline=deadline), 20 * 60, NOW) == ''
    assert limits.why_not_now(maintenance(deadline=deadline), 40 * 60, NOW) == (
        'A host would be back only after the deadline 2026-11-01 21:30:00 UTC: a host takes 40 min.'
    )
    assert limits.is_too_late(maintenance(deadline=deadline), 40 * 60, NOW)


@pytest.mark.parametrize(
    ('window', 'minutes', 'why'),
    [
        ('20:00-22:00 UTC', 30, ''),
        ('20:00-21:20 UTC', 30, '20 min of the window 20:00-21:20 UTC are left, and a host takes 30 min. The next'),
        ('22:00-23:00 UTC', 30, 'The window 22:00-23:00 UTC is closed. The next host begins when it opens.'),
        ('20:50-21:10 UTC', 30, 'The window 20:50-21:10 UTC is too short: a host takes 30 min. Cancel it, and'),
    ],
)
def test_host_is_begun_only_if_the_rest_of_the_window_is_expected_to_be_enough(window, minutes, why):
    found = limits.why_not_now(maintenance(window=window), minutes * 60, NOW)
    assert found.startswith(why)
    assert bool(found) == bool(why)


def turns(**out):
    return [
        Turn(host=name, group=name[0], is_out=name in out and out[name] == 'us')
        for name in ('a1', 'a2', 'a3', 'b1', 'b2', 'b3')
    ]


@pytest.mark.parametrize(
    ('more', 'ours', 'others', 'why'),
    [
        ({'parallel': 1}, [], {}, ''),
        ({'parallel': 1}, ['b1'], {}, 'At most 1 may be out of service: b1 (it is waiting)'),
        ({'parallel': 2}, ['b1'], {}, ''),
        (
            {'parallel': 2},
            ['b1'],
            {'b2': 'it is down'},
            'At most 2 may be out of service: b1 (it is waiting), b2 (it is',
        ),
        # A host outside the maintenance counts in its group only.
        ({'parallel': 1}, [], {'a9': 'it is disabled'}, ''),
        ({'parallel': 9, 'per_group': 1}, ['b1'], {}, ''),
        ({'parallel': 9, 'per_group': 1}, ['a2'], {}, 'At most 1 of a may be out of service: a2 (it is waiting)'),
        ({'parallel': 9, 'per_group': 1}, [], {'a9': 'it is disabled'}, 'At most 1 of a may be out of service: a9 (it'),
        # The host that leaves is out already: it does not count twice.
        ({'parallel': 1}, [], {'a1': 'it is disabled'}, ''),
        ({'parallel': 1}, ['a1'], {}, ''),
    ],
)
def test_hosts_out_of_service_are_counted(more, ours, others, why):
    rows = turns(**dict.fromkeys(ours, 'us'))
    groups = {host: host[0] for host in others}
    found = limits.why_too_many(maintenance(**more), rows, others, groups, rows[0])
    assert found.startswith(why)
    assert bool(found) == bool(why)
