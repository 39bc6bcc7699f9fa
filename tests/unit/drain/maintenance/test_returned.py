# SPDX-License-Identifier: Apache-2.0

"""Whether a host is back: only by what it could not have reported before its work had ended."""

import datetime

import pytest

from migrator.drain.maintenance.returned import Report, judge
from migrator.drain.maintenance.turns import Turn

ENDED = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
TURN = Turn(host='host1', kernel='old', boot='first', work_ended_at=ENDED)


def after(seconds):
    return ENDED + datetime.timedelta(seconds=seconds)


def report(seconds=10.0, boot='first', kernel='old', reports=True, **more):
    return Report(after(seconds), reports, boot, kernel, **more)


def waits(turn, found, by, settle=120.0, gap=60.0):
    return judge(turn, found, by, settle, gap).why_not


@pytest.mark.parametrize(
    ('by', 'boot', 'kernel', 'why_not'),
    [
        ('reboot', 'second', 'new', ''),
        ('reboot', 'second', 'old', 'it was not rebooted since its work began'),
        ('reboot', 'second', None, 'it does not report the start of its kernel'),
        ('restart', 'second', 'old', ''),
        ('restart', 'first', 'old', 'its compute service was not restarted since its work began'),
        ('restart', None, 'old', 'its compute service was not restarted since its work began'),
        ('report', 'first', 'old', 'it has to report for 2 min without a gap'),
    ],
)
def test_first_report_after_the_work_shows_a_start_of_the_kernel_or_of_the_service(by, boot, kernel, why_not):
    assert waits(TURN, report(boot=boot, kernel=kernel), by) == why_not


@pytest.mark.parametrize('by', ['reboot', 'restart', 'report'])
@pytest.mark.parametrize(
    'found',
    [report(-1, 'second', 'new'), report(0, 'second', 'new'), report(10, 'second', 'new', False), Report(None, True)],
    ids=['before', 'at its end', 'away', 'stopped'],
)
def test_report_from_before_the_end_or_of_a_host_that_is_away_counts_for_nothing(by, found):
    assert waits(TURN, found, by) == 'its compute service has not reported since the work ended'


def test_host_that_an_operator_has_forced_down_and_one_without_a_service_are_named():
    assert 'forced down' in waits(TURN, report(boot='second', forced_down=True), 'restart')
    assert 'it has no compute service' in waits(TURN, None, 'restart')


@pytest.mark.parametrize(
    ('at', 'is_back'),
    [
        ((10, 60, 110), False),
        ((10, 60, 110, 130), True),
        # What was not seen for longer than the gap may have been a reboot.
        ((10, 60, 125, 170), False),
        ((10, 60, 125, 170, 220, 245), True),
    ],
)
def test_host_reports_for_some_time_without_a_gap(at, is_back):
    turn = TURN
    for seconds in at:
        verdict = judge(turn, report(seconds), 'report', 120.0, 60.0)
        turn = turn.replace(settles_from=verdict.settles_from, seen_at=verdict.seen_at)
    assert verdict.is_back is is_back


def test_time_without_reports_that_was_seen_begins_the_time_anew():
    turn = TURN.replace(settles_from=after(10), seen_at=after(60))
    verdict = judge(turn, report(60, reports=False), 'report', 120.0, 60.0)
    assert (verdict.settles_from, verdict.seen_at) == (None, None)
