# SPDX-License-Identifier: Apache-2.0

"""Tests that the reason of a wait is true, names the right host, and lasts as long as the wait."""

import contextlib
import itertools
import json

import pytest

from migrator.conductor.compute_client import CALLS_PER_HOST
from tests.unit.conductor import stage as stages

pytestmark = pytest.mark.slow

ENDLESS = {'dirty_rate': 10000.0, 'auto_converge_after': 0}


def force(stage, migration):
    stage.database.requests.request_force_complete(stages.context.admin_context(), stage.row(migration), ['running'])
    stage.conductor_api.wake(stages.context.admin_context(), migration.uuid, None)


def lose_rpc(stage, *hosts):
    """Drop the RPC to these hosts; their heartbeats still arrive."""
    stage.cloud.bus.faults = lambda m: 'lose' if m.kind in ('call', 'cast') and m.target.server in hosts else None


@contextlib.contextmanager
def busy(stage, host):
    with contextlib.ExitStack() as slots:
        for _ in range(CALLS_PER_HOST):
            slots.enter_context(stage.tools.hosts._slot(host, None))
        yield


def reason_of(stage, migration):
    row = stage.row(migration)
    return row.waits_for or row.stuck_reason


def running(build, **knobs):
    """Return a migration to host2 whose copy does not end by itself."""
    stage = build(**ENDLESS, **knobs)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    return stage, migration


def in_post_copy(build):
    """Return a migration whose last pages do not come, and what holds them."""
    stage, migration = running(build, post_copy=True)
    stall = stage.host('host1').faults.stall('postcopy', sticky=True)
    force(stage, migration)
    stage.until(stall.reached.is_set, 120)
    stage.until_status(migration, 'running (post-copy)')
    return stage, stall, migration


def without_placement(build, **options):
    """Return a migration whose guest has arrived and whose next step finds no Placement."""
    stage = build(**options)
    stall = stage.host('host1').faults.stall('arrived')
    migration = stage.begin('host2')
    stage.until(stall.reached.is_set)

    def request(url, method, **rest):
        raise OSError('no route')

    stage.cloud.adapter.request = request
    stall.release()
    return stage, migration


def test_second_stuck_reason_stays(build):
    stage = build()
    stall = stage.host('host1').faults.stall('live_migration')
    migration = stage.begin('host2')
    stage.until(stall.reached.is_set)
    stage.until_stuck(migration, 400)
    stage.database.requests.request_retry(stage.row(migration), 'me')
    stage.until(lambda: stage.row(migration).stuck_reason is None)
    stage.until_stuck(migration, 500)
    stage.simulation.advance(60)
    assert stage.row(migration).stuck_reason
    stage.database.requests.request_abandon(stage.row(migration), 'host1', 'me')


def test_post_copy_broken_by_its_source_is_not_completed(build):
    stage, _stall, migration = in_post_copy(build)
    stage.kill('host1')
    stage.host('host1').power_off()
    stage.simulation.advance(400)
    assert stage.host('host2').describe(migration.instance_uuid).state == 'post-copy broken off'
    assert stage.row(migration).status != 'completed'


def test_post_copy_under_a_killed_service_is_not_completed(build):
    stage, stall, migration = in_post_copy(build)
    stage.kill('host1')
    stage.simulation.advance(300)
    status = stage.row(migration).status
    assert stage.host('host2').describe(migration.instance_uuid).post_copy
    stage.cloud.start_compute('host1')
    stage.simulation.advance(60)
    stall.release()
    stage.simulation.advance(120)
    # The deferred cleanup ran before the last page had come, and was blocked: 'the guest is there and could run'.
    assert ([cleanup.blocked_because for cleanup in stage.database.cleanups.list()], status) == (
        [],
        'running (post-copy)',
    )


@pytest.mark.parametrize('kind', ['shuffled', 'alternating'])
def test_error_with_a_changing_text_has_a_reason(build, kind):
    stage = build(hosts=8)
    migration = stage.accept()
    real, turn = stage.cloud.adapter.request, itertools.count()

    def request(url, method, **rest):
        answer = real(url, method, **rest)
        if url.startswith('/allocation_candidates'):
            body, n = answer.json(), next(turn)
            if kind == 'shuffled':  # as Placement's randomize_allocation_candidates
                body['allocation_requests'] = (
                    body['allocation_requests'][n % 7 :] + body['allocation_requests'][: n % 7]
                )
                body['provider_summaries'] = {}
            else:
                body.pop(['allocation_requests', 'provider_summaries'][n % 2])
            answer._content = json.dumps(body).encode()
        return answer

    stage.cloud.adapter.request = request
    stage.conductor_api.live_migrate(stages.context.admin_context(), migration.uuid)
    stage.until(lambda: reason_of(stage, migration), 700)


@pytest.mark.parametrize('abort', [True, False])
def test_rollback_reports_that_it_waits_for_a_slot(build, abort):
    stage = build(**ENDLESS)
    stall = stage.host('host1').faults.stall('copying')
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    stage.host('host2').faults.fail('rollback_live_migration_at_destination')
    if abort:
        stage.abort(migration)
    else:
        stage.host('host1').faults.fail('copying')
        stall.release()
    for _ in range(400):
        stage.simulation.advance(0.05)
        if stage.row(migration).outcome:
            break
    stage.simulation.advance(0.2)
    with busy(stage, 'host2'):
        stage.until(lambda: reason_of(stage, migration), 900)
        assert (stage.row(migration).status, stage.row(migration).outcome) == ('running', 'back')


@pytest.mark.parametrize('status', ['running', 'queued'])
def test_copy_to_an_unreachable_destination_does_not_wait_for_ever(build, status):
    stage, migration = running(build)
    if status == 'queued':
        migration = stage.begin('host3', stage.cloud.boot('other', 'host1'))
        stage.until_status(migration, 'queued')
    lose_rpc(stage, 'host2', 'host3')
    stage.kill('host1')
    stage.until_stuck(migration, 2600)


def test_forced_down_source_is_not_the_reason(build):
    stage, migration = running(build)
    lose_rpc(stage, 'host2')
    stage.kill('host1')
    stage.host('host1').power_off()
    stage.simulation.advance(200)
    stage.database.services.update(stage.database.services.get_compute('host1').id, forced_down=True)
    stage.until(lambda: 'host2' in (reason_of(stage, migration) or ''), 700)


def test_failure_of_an_aborted_migration_says_that_the_guest_is_lost(build):
    stage, migration = running(build)
    stage.kill('host1')
    stage.host('host1').power_off()
    stage.simulation.advance(100)
    stage.abort(migration)
    stage.simulation.advance(100)
    stage.database.services.update(stage.database.services.get_compute('host1').id, forced_down=True)
    row = stage.end(migration)
    assert (row.status, row.abort_verdict) == ('error', 'error: the guest was lost')
    assert row.failure.startswith('The guest is lost.')


def test_forced_copy_may_last(build):
    stage, migration = running(build, link=1.0)
    force(stage, migration)
    stage.simulation.advance(400)
    row = stage.row(migration)
    assert stage.host('host1').jobs[migration.instance_uuid].progress()['memory_remaining'] > 0
    assert (row.stuck_reason, row.waits_for) == (None, None)


@pytest.mark.parametrize('where', ['preparing', 'running'])
def test_reason_ends_when_the_wait_ends(build, where):
    stage = build(**ENDLESS)
    if where == 'preparing':
        stage.host('host2').faults.stall('pre_live_migration')
        check = stage.host('host1').faults.stall('check_can_live_migrate_source')
        migration = stage.begin('host2')
        stage.until(check.reached.is_set)
    else:
        migration = stage.begin('host2')
        stage.until_status(migration, 'running')
    with busy(stage, 'host2' if where == 'preparing' else 'host1'):
        if where == 'preparing':
            check.release()
        else:
            stage.kill('host2')
            stage.cloud.start_compute('host2')
        stage.until(lambda: stage.row(migration).waits_for, 120)
    stage.simulation.advance(120)
    why = stage.row(migration).waits_for or ''
    assert 'a free call slot' not in why
    assert 'to report where the guest is' not in why


def test_reason_stays_the_same_while_placement_is_away(build):
    stage, migration = without_placement(build)
    stage.until(lambda: 'Placement' in (stage.row(migration).waits_for or ''))
    shown = set()
    for _ in range(60):
        stage.simulation.advance(15)
        shown.add((stage.row(migration).waits_for, stage.row(migration).stuck_reason))
    ((why, stuck),) = shown
    assert why.endswith('The migration goes on by itself once it answers.')
    assert stuck is None


def test_wait_for_placement_is_shown_after_a_takeover_too(build):
    stage, migration = without_placement(build, conductors=2)
    stage.until(lambda: 'Placement' in (stage.row(migration).waits_for or ''))
    dead = next(name for name, one in stage.cloud.conductors.items() if one.runner.holds(migration.uuid))
    stage.kill(dead)
    for _ in range(500):
        stage.simulation.advance(1)
        assert stage.row(migration).waits_for
        assert not stage.row(migration).stuck_reason
    (other,) = {'conductor1', 'conductor2'} - {dead}
    assert f'Conductor {other} waits for it since ' in stage.row(migration).waits_for


@pytest.mark.parametrize(('host', 'phase'), [('host2', 'pre_live_migration'), ('host1', 'live_migration')])
def test_step_that_kills_its_host_each_time_has_a_reason(build, host, phase):
    stage = build()
    stage.host(host).faults.stall(phase, sticky=True)
    migration = stage.begin('host2')
    for _ in range(30):
        stage.simulation.advance(25)
        if reason_of(stage, migration):
            return
        stage.kill(host)
        stage.simulation.advance(3)
        stage.cloud.start_compute(host)
    assert reason_of(stage, migration)


def test_wait_for_a_slot_does_not_blame_the_hypervisor(build):
    stage, migration = running(build)
    with busy(stage, 'host1'):
        stage.abort(migration)
        why = stage.until_stuck(migration, 400)
    assert 'look at the hypervisor of host1' not in why


def test_abort_waiting_for_the_destination_does_not_blame_the_source(build):
    stage, migration = running(build)
    lose_rpc(stage, 'host2')
    stage.abort(migration)
    stage.until(lambda: stage.row(migration).ended or stage.row(migration).stuck_reason, 500)
    assert 'hypervisor of host1' not in (stage.row(migration).stuck_reason or '')
