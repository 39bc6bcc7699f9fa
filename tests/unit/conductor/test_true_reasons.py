# SPDX-License-Identifier: Apache-2.0

"""What a migration says that it waits for is true, is of the right host, and is said for as long as it is true."""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest

from migrator.conductor.compute_client import CALLS_PER_HOST
from tests.unit.conductor import stage as stages

ENDLESS = {'dirty_rate': 10000.0, 'auto_converge_after': 0}


def force(stage, migration):
    stage.database.requests.request_force_complete(stages.context.admin_context(), stage.row(migration), ['running'])
    stage.door.wake(stages.context.admin_context(), migration.uuid, None)


def unheard(stage, *hosts):
    """RPC to these hosts is lost; their heartbeats arrive."""
    stage.cloud.bus.faults = lambda m: 'lose' if m.kind in ('call', 'cast') and m.target.server in hosts else None


@contextlib.contextmanager
def busy(stage, host):
    with contextlib.ExitStack() as slots:
        for _ in range(CALLS_PER_HOST):
            slots.enter_context(stage.tools.hosts._slot(host, None))
        yield


def said(stage, migration):
    row = stage.row(migration)
    return row.waits_for or row.stuck_reason


def test_stuck_a_second_time_it_stays_stuck(build):
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


def test_a_post_copy_that_breaks_with_its_source_has_not_completed(build):
    stage = build(post_copy=True, **ENDLESS)
    stall = stage.host('host1').faults.stall('postcopy', sticky=True)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    force(stage, migration)
    stage.until(stall.reached.is_set, 120)
    stage.until_status(migration, 'running (post-copy)')
    stage.kill('host1')
    stage.host('host1').power_off()
    stage.simulation.advance(400)
    assert stage.host('host2').describe(migration.instance_uuid).state == 'post-copy broken off'
    assert stage.row(migration).status != 'completed'


def test_a_post_copy_under_a_killed_service_has_not_completed(build):
    stage = build(post_copy=True, **ENDLESS)
    stall = stage.host('host1').faults.stall('postcopy', sticky=True)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    force(stage, migration)
    stage.until(stall.reached.is_set, 120)
    stage.until_status(migration, 'running (post-copy)')
    stage.kill('host1')
    stage.simulation.advance(300)
    status = stage.row(migration).status
    assert stage.host('host2').describe(migration.instance_uuid).post_copy
    stage.cloud.start_compute('host1')
    stage.simulation.advance(60)
    stall.release()
    stage.simulation.advance(120)
    # What is owed was to be paid when the last page had come: it is blocked, 'the guest is there and could run'.
    assert ([cleanup.alarm for cleanup in stage.database.cleanups.list()], status) == ([], 'running (post-copy)')


@pytest.mark.parametrize('kind', ['shuffled', 'alternating'])
def test_an_error_that_reads_otherwise_each_time(build, kind):
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
    stage.door.live_migrate(stages.context.admin_context(), migration.uuid)
    stage.simulation.advance(700)
    assert said(stage, migration)


@pytest.mark.parametrize('abort', [True, False])
def test_what_is_unwound_says_that_it_waits_for_a_place(build, abort):
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
        stage.simulation.advance(900)
        assert (stage.row(migration).status, stage.row(migration).outcome) == ('running', 'back')
        assert said(stage, migration)


@pytest.mark.parametrize('status', ['running', 'queued'])
def test_no_copy_is_waited_for_without_end_where_the_destination_is_not_heard(build, status):
    stage = build(**ENDLESS)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    if status == 'queued':
        migration = stage.begin('host3', stage.cloud.boot('other', 'host1'))
        stage.until_status(migration, 'queued')
    unheard(stage, 'host2', 'host3')
    stage.kill('host1')
    stage.simulation.advance(2600)
    row = stage.row(migration)
    assert row.stuck_reason, row.waits_for


def test_what_was_declared_is_not_asked_for(build):
    stage = build(**ENDLESS)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    unheard(stage, 'host2')
    stage.kill('host1')
    stage.host('host1').power_off()
    stage.simulation.advance(200)
    stage.database.services.update(stage.database.services.get_compute('host1').id, forced_down=True)
    stage.simulation.advance(700)
    assert 'host2' in (said(stage, migration) or '')


def test_a_forced_copy_is_a_copy(build):
    stage = build(link=1.0, **ENDLESS)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    force(stage, migration)
    stage.simulation.advance(400)
    row = stage.row(migration)
    assert stage.host('host1').jobs[migration.instance_uuid].progress()['memory_remaining'] > 0
    assert (row.stuck_reason, row.waits_for) == (None, None)


@pytest.mark.parametrize('where', ['preparing', 'running'])
def test_what_has_come_is_not_waited_for(build, where):
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
    assert 'a free place' not in why
    assert 'to say where the guest is' not in why


def test_a_reason_does_not_change_with_each_try(build):
    stage = build()
    stall = stage.host('host1').faults.stall('arrived')
    migration = stage.begin('host2')
    stage.until(stall.reached.is_set)

    def request(url, method, **rest):
        raise OSError('no route')

    stage.cloud.adapter.request = request
    stall.release()
    stage.simulation.advance(900)
    stuck = [one for one in stage.database.migrations.read_log(migration.uuid) if one.kind in ('stuck', 'unstuck')]
    assert len({one.payload.get('reason') for one in stuck}) == 1


def test_placement_stuck_stays_so_in_another_conductors_hands(build):
    stage = build(conductors=2)
    stall = stage.host('host1').faults.stall('arrived')
    migration = stage.begin('host2')
    stage.until(stall.reached.is_set)

    def request(url, method, **rest):
        raise OSError('no route')

    stage.cloud.adapter.request = request
    stall.release()
    stage.until_stuck(migration, 500)
    stage.kill(next(name for name, one in stage.cloud.conductors.items() if one.runner.holds(migration.uuid)))
    for _ in range(120):
        stage.simulation.advance(1)
        assert stage.row(migration).stuck_reason


@pytest.mark.parametrize(('host', 'phase'), [('host2', 'pre_live_migration'), ('host1', 'live_migration')])
def test_a_host_that_dies_of_it_again_and_again(build, host, phase):
    stage = build()
    stage.host(host).faults.stall(phase, sticky=True)
    migration = stage.begin('host2')
    for _ in range(30):
        stage.simulation.advance(25)
        if said(stage, migration):
            return
        stage.kill(host)
        stage.simulation.advance(3)
        stage.cloud.start_compute(host)
    assert said(stage, migration)


def test_a_wait_for_a_place_is_not_the_fault_of_the_hypervisor(build):
    stage = build(**ENDLESS)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    with busy(stage, 'host1'):
        stage.abort(migration)
        why = stage.until_stuck(migration, 400)
    assert 'look at the hypervisor of host1' not in why


def test_an_abort_that_waits_for_the_destination_does_not_blame_the_source(build):
    stage = build(**ENDLESS)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    unheard(stage, 'host2')
    stage.abort(migration)
    stage.until(lambda: stage.row(migration).ended or stage.row(migration).stuck_reason, 500)
    assert 'hypervisor of host1' not in (stage.row(migration).stuck_reason or '')
