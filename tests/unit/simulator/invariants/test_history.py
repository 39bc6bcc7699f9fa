# SPDX-License-Identifier: Apache-2.0

"""Planted violations of the invariants of responses and logs."""

import json

import pytest

from migrator.objects.reasons import Reason, StuckKind, WaitKind
from tests.unit.simulator import planting


def test_i8_202_without_migration(cloud):
    planting.live_migrate(cloud, 202)
    assert planting.found(cloud, quiet=False) == {'I8'}


def test_i8_4xx_with_migration(cloud):
    planting.live_migrate(cloud, 409, request_id=cloud.migration.request_id)
    assert planting.found(cloud, quiet=False) == {'I8'}


def test_i8_below_2_34_ended_row_and_action_must_have_reason(cloud):
    planting.live_migrate(cloud, 400, request_id=cloud.migration.request_id, version='2.30')
    assert planting.found(cloud, quiet=False) == {'I8'}
    planting.sql(cloud, "UPDATE migrations SET failure = 'no room'")
    assert planting.found(cloud, quiet=False) == {'I8'}
    planting.sql(cloud, "UPDATE instance_actions SET result = 'Error', message = 'no room'")
    assert planting.found(cloud, quiet=False) == set()


def test_i9_abort_not_recorded(cloud):
    planting.abort(cloud)
    assert planting.found(cloud, quiet=False) == {'I9'}


def test_i9_verdict_must_name_end(cloud):
    planting.abort(cloud)
    planting.sql(cloud, "UPDATE migrations SET abort_requested_at = '2026-01-01 00:00:00.000000'")
    assert planting.found(cloud, quiet=False) == {'I9'}
    planting.sql(cloud, "UPDATE migrations SET abort_status = 'completed'")
    assert planting.found(cloud, quiet=False) == set()


def test_i9_completed_although_driver_got_abort_before_switchover(cloud):
    planting.abort(cloud)
    planting.sql(
        cloud,
        "UPDATE migrations SET abort_status = 'completed', abort_requested_at = '2026-01-01 00:00:00.000000'",
    )
    arrived = next(
        number for number, one in enumerate(cloud.world.log) if (one.host, one.effect) == ('host2', 'running')
    )
    planting.effect(cloud, 'host1', 'abort asked', at=arrived)
    assert planting.found(cloud, quiet=False) == {'I9'}


@pytest.mark.parametrize('end', ['completed', 'cancelled'])
def test_i9_cancelled_in_queue_ended_otherwise_or_had_a_job(cloud, end):
    planting.abort(cloud)
    planting.sql(
        cloud,
        'UPDATE migrations SET status = ?, abort_status = ?, abort_requested_at = ?',
        end,
        end,
        '2026-01-01 00:00:00.000000',
    )
    before = planting.found(cloud, quiet=False)
    planting.step_log(cloud, 'undo_done', 'live_migration', '{"result": {"skipped": "host1 had not begun"}}')
    assert 'I9' in planting.found(cloud, quiet=False) - before


def test_i19_client_sees_illegal_move(cloud):
    for status in ('accepted', 'queued', 'completed'):
        planting.shown(cloud, status)
    assert planting.found(cloud) == set()
    planting.shown(cloud, 'running', token='other')
    assert planting.found(cloud) == set(), 'another client'
    planting.shown(cloud, 'running')
    assert planting.found(cloud, quiet=False) == {'I19'}


@pytest.mark.parametrize(
    ('status', 'answer', 'expected'),
    [
        (500, 'Unexpected error', {'I19'}),
        (503, 'A service that is needed is not reachable', {'I19'}),
        (503, 'The database is not reachable', set()),
        (501, 'not served', set()),
    ],
)
def test_i19_5xx_while_database_is_up(cloud, status, answer, expected):
    planting.exchange(cloud, 'GET', '/servers', status, answer=answer)
    assert planting.found(cloud, quiet=False) == expected


def test_i20_secret_in_log(cloud):
    dsn = f'sqlite:///{cloud.backend.directory}/migrator.sqlite'
    assert planting.found(cloud, logs=['all is well']) == set()
    assert planting.found(cloud, quiet=False, logs=[f'cannot open {dsn}']) == {'I20'}
    planting.exchange(cloud, 'GET', '/servers', 200, token='a-token-of-some-length')
    assert planting.found(cloud, quiet=False, logs=['request with a-token-of-some-length']) == {'I20'}


def test_i20_host_name_in_error_to_user(cloud):
    error = {'badRequest': {'message': 'host2 has no room'}}
    planting.exchange(cloud, 'POST', '/servers/x/action', 400, answer=error)
    planting.exchange(cloud, 'POST', '/servers/x/action', 400, answer=error, token='user', body={'host': 'host2'})
    assert planting.found(cloud) == set(), 'an administrator, and a user who named the host'
    planting.exchange(cloud, 'POST', '/servers/x/action', 400, answer=error, token='user')
    assert planting.found(cloud, quiet=False) == {'I20'}


@pytest.mark.parametrize(
    ('reason', 'violated'),
    [
        (Reason(StuckKind.NO_PROGRESS, waits=Reason.of(WaitKind.PLACEMENT, reason='no route')), {'I27'}),
        (Reason.of(StuckKind.SAME_ERROR, 'c1', reason='DatabaseUnreachable: it is away'), {'I27'}),
        (Reason(StuckKind.NO_PROGRESS, waits=Reason.of(WaitKind.STEP, 'host1', step='live_migration')), set()),
    ],
    ids=str,
)
def test_i27_stuck_because_a_service_is_away(cloud, reason, violated):
    planting.step_log(cloud, 'stuck', None, json.dumps(reason.document()))
    assert planting.found(cloud, quiet=False) == violated


@pytest.mark.parametrize(('times', 'violated'), [(4, set()), (5, {'I26'})])
def test_i26_stuck_again_and_again_for_one_reason(cloud, times, violated):
    for number in range(times):
        reason = Reason.of(StuckKind.NOT_REPORTED, 'host1', seconds=number)
        planting.step_log(cloud, 'stuck', None, json.dumps(reason.document()), seq=100 + 2 * number)
        planting.step_log(cloud, 'unstuck', None, seq=101 + 2 * number)
    assert planting.found(cloud, quiet=False) == violated
