# SPDX-License-Identifier: Apache-2.0

"""Tests of a hanging hypervisor: its migrations report it, and need an operator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from migrator.conductor.compute_client import CALLS_PER_HOST
from tests.unit.conductor import stage as stages

pytestmark = pytest.mark.slow

Stage = stages.Stage
ENDLESS = {'dirty_rate': 10000.0, 'auto_converge_after': 0}
SLOW = ('get_guest', 'copying', 'live_migration_abort', 'get_progress')


@pytest.mark.parametrize('aborted', [False, True])
def test_source_that_does_not_report_the_guest_makes_it_stuck(build: Callable[..., Stage], aborted: bool) -> None:
    stage = build(**ENDLESS)
    migration = stage.begin()
    stage.until_status(migration, 'running')
    stalls = [stage.host('host1').faults.stall(phase, sticky=True) for phase in SLOW]
    if aborted:
        stage.abort(migration)
    why = stage.until_stuck(migration, 100)
    assert 'host1 answers, but its hypervisor has not reported the guest for a long time' in why
    for phase in SLOW:
        stage.host('host1').faults.clear(phase)
    for stall in stalls:
        stall.release()
    stage.until(lambda: stage.row(migration).stuck_reason is None)
    if not aborted:
        stage.abort(migration)
    assert stage.end(migration).status == 'cancelled'
    stage.check(migration, 'host1')


@pytest.mark.parametrize('step', ['rollback_live_migration_at_destination', 'post_live_migration_at_source'])
def test_retriable_step_that_does_not_end_makes_it_stuck(build: Callable[..., Stage], step: str) -> None:
    stage = build()
    host = 'host2' if 'destination' in step else 'host1'
    stall = stage.host(host).faults.stall(step)
    if 'rollback' in step:
        stage.host('host1').faults.fail('copying')
    migration = stage.begin('host2')
    stage.until(stall.reached.is_set)
    stage.until(lambda: stage.row(migration).waits_for, 70)
    assert f'for {host} to end {step}, since ' in str(stage.row(migration).waits_for)
    assert f'has waited too long for {host} to end {step}: look at the hypervisor of {host}' in stage.until_stuck(
        migration, 300
    )
    stall.release()
    assert stage.end(migration).status == ('failed' if 'rollback' in step else 'completed')
    stage.check(migration, 'host1' if 'rollback' in step else 'host2')


def post_hangs(build: Callable[..., Stage], **options: Any) -> tuple[Stage, Any, Any]:
    """Return a migration that is stuck because its source does not end its post step."""
    stage = build(**options)
    stall = stage.host('host1').faults.stall('post_live_migration_at_source')
    migration = stage.begin('host2')
    stage.until(stall.reached.is_set)
    assert 'has waited too long for host1 to end post_live_migration_at_source' in stage.until_stuck(migration, 400)
    return stage, stall, migration


def holder(stage: Stage, migration: Any) -> str:
    """Return the conductor that runs a migration."""
    return next(name for name, one in stage.cloud.conductors.items() if one.runner.holds(migration.uuid))


def stays_stuck(stage: Stage, migration: Any) -> None:
    """Assert that the migration stays stuck for a minute."""
    for _second in range(60):
        stage.simulation.advance(1)
        assert stage.row(migration).stuck_reason


def seems_here(build: Callable[..., Stage]) -> tuple[Stage, Any]:
    """Return a migration whose guest has moved, while the source's hypervisor reports that it runs there."""
    stage = build()
    stall = stage.host('host1').faults.stall('arrived')
    migration = stage.begin('host2')
    stage.until(stall.reached.is_set)
    stage.host('host1').faults.lie('get_guest', lambda truth: truth.replace(state='running'), sticky=True)
    stall.release()
    return stage, migration


@pytest.mark.parametrize('slow', [False, True])
def test_abandoned_during_a_hanging_step_leaves_a_cleanup_to_its_host(build: Callable[..., Stage], slow: bool) -> None:
    stage, stall, migration = post_hangs(build)
    stage.database.requests.request_abandon(stage.row(migration), 'host2', 'an operator')
    if not slow:
        stage.simulation.advance(20)
        stall.release()
    assert stage.end(migration).status == 'error'
    deferred = stage.database.cleanups.list()
    assert [(cleanup.host, cleanup.blocked_because) for cleanup in deferred] == ([('host1', None)] if slow else [])
    stall.release()
    stage.until(lambda: not stage.database.cleanups.list(), 60)
    stage.check(migration, 'host2')


def test_stuck_step_stays_stuck_after_a_takeover(build: Callable[..., Stage]) -> None:
    stage, stall, migration = post_hangs(build, conductors=2)
    stage.kill(holder(stage, migration))
    (other,) = stage.cloud.conductors.values()
    stage.until(lambda: other.runner.holds(migration.uuid))
    stays_stuck(stage, migration)
    stall.release()
    assert stage.end(migration).status == 'completed'


def test_restart_of_the_other_host_keeps_it_stuck(build: Callable[..., Stage]) -> None:
    stage, stall, migration = post_hangs(build)
    epoch = stage.row(migration).epoch
    stage.kill('host2')
    stage.cloud.start_compute('host2')
    stage.until(lambda: stage.row(migration).epoch > epoch)
    stays_stuck(stage, migration)
    stall.release()
    assert stage.end(migration).status == 'completed'


def test_stuck_migration_stays_stuck_while_it_waits_for_a_slot(build: Callable[..., Stage]) -> None:
    stage, migration = seems_here(build)
    stage.until_stuck(migration)
    with contextlib.ExitStack() as slots:
        for _ in range(CALLS_PER_HOST):
            slots.enter_context(stage.tools.hosts._slot('host1', None))
        stays_stuck(stage, migration)
    stage.host('host1').faults.clear('get_guest')
    assert stage.end(migration).status == 'completed'


@pytest.mark.parametrize('adopted', [False, True])
def test_step_of_a_restarted_host_counts_from_the_restart(build: Callable[..., Stage], adopted: bool) -> None:
    stage, stall, migration = post_hangs(build, conductors=2)
    again = stage.host('host1').faults.stall('post_live_migration_at_source')
    if adopted:
        stage.kill(holder(stage, migration))
    stage.kill('host1')
    stage.cloud.start_compute('host1')
    stage.until(again.reached.is_set)
    stage.until(lambda: stage.row(migration).stuck_reason is None)
    stage.simulation.advance(200)
    assert stage.row(migration).stuck_reason is None
    stall.release()
    again.release()
    assert stage.end(migration).status == 'completed'


def test_wait_for_a_slot_does_not_blame_the_host(build: Callable[..., Stage]) -> None:
    stage = build()
    stall = stage.host('host1').faults.stall('arrived')
    migration = stage.begin('host2')
    stage.until(stall.reached.is_set)
    with contextlib.ExitStack() as slots:
        for _ in range(CALLS_PER_HOST):
            slots.enter_context(stage.tools.hosts._slot('host1', None))
        stall.release()
        stage.until_status(migration, 'post-migrating')
        stage.simulation.advance(400)
        assert stage.row(migration).stuck_reason is None
    assert stage.end(migration).status == 'completed'


@pytest.mark.parametrize('adopted', [False, True])
def test_hypervisor_that_reports_again_clears_the_reason(build: Callable[..., Stage], adopted: bool) -> None:
    stage = build(conductors=2, **ENDLESS)
    migration = stage.begin()
    stage.until_status(migration, 'running')
    stalls = [stage.host('host1').faults.stall(phase, sticky=True) for phase in SLOW]
    stage.until_stuck(migration, 100)
    stage.until(lambda: 'has not reported the guest since' in (stage.row(migration).waits_for or ''))
    conductors = stage.cloud.conductors
    if adopted:
        stage.kill(holder(stage, migration))
        stage.until(lambda: any(one.runner.holds(migration.uuid) for one in conductors.values()))
    for phase in SLOW:
        stage.host('host1').faults.clear(phase)
    for stall in stalls:
        stall.release()
    stage.until(lambda: stage.row(migration).stuck_reason is None)
    stage.simulation.advance(10)
    row = stage.row(migration)
    assert (row.status, row.waits_for) == ('running', None)


def test_repeated_step_counts_from_its_last_begin(
    build: Callable[..., Stage],
) -> None:
    stage, migration = seems_here(build)
    why = stage.until_stuck(migration)
    assert 'the guest is there and could run' in why
    stage.simulation.advance(8 * 60)
    entries = stage.database.migrations.read_log(migration.uuid)
    reasons = [one.payload.get('reason') for one in entries if one.kind in ('stuck', 'unstuck')]
    assert set(reasons) <= {why, None}
    assert len(reasons) <= 3, 'it is not written again at each poll'


def test_migration_without_a_step_can_be_abandoned(build: Callable[..., Stage]) -> None:
    """The first conductor dies before the first step, and the next one polls the source for the guest."""
    stage = build()
    stall = stage.host('host1').faults.stall('get_guest', sticky=True)
    migration = stage.accept()
    assert stage.database.takeovers.adopt([migration.uuid], 'a dead boot') is not None
    assert 'its hypervisor has not reported the guest' in stage.until_stuck(migration, 150)
    assert stage.row(migration).status == 'accepted'
    stage.database.requests.request_abandon(stage.row(migration), 'host1', 'an operator')
    stall.release()
    assert stage.end(migration).status == 'error'
    stage.check(migration, 'host1')
