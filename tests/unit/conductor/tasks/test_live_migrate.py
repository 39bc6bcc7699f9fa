# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from migrator.conductor.migration import allocations
from migrator.conductor.tasks import live_migrate
from migrator.db import actions
from migrator.objects import base
from tests.unit.conductor import stage as stages

Stage = stages.Stage
DESTINATION_CHECK = 'check_can_live_migrate_destination'
SOURCE_CHECK = 'check_can_live_migrate_source'
POST_SOURCE = 'post_live_migration_at_source'
POST_DESTINATION = 'post_live_migration_at_destination'
FINE = ['accepted', 'preparing', 'queued', 'running', 'post-migrating', 'completed']
#: A guest that dirties its memory faster than the link carries it, where nothing throttles it.
ENDLESS = {'dirty_rate': 10000.0, 'auto_converge_after': 0}


class TestTheSaga:
    #: The protocol's table of steps.
    STEPS = (
        ('move_allocation', 'compensatable', True),
        (DESTINATION_CHECK, 'compensatable', True),
        (SOURCE_CHECK, 'compensatable', False),
        ('pre_live_migration', 'compensatable', True),
        ('live_migration', 'pivot', True),
        ('update_instance_host', 'retriable', False),
        (POST_SOURCE, 'retriable', False),
        (POST_DESTINATION, 'retriable', False),
        ('release_source_allocation', 'retriable', False),
        ('complete', 'retriable', False),
    )

    def test_the_steps_and_their_kinds_are_those_of_the_protocol(self) -> None:
        saga = live_migrate.saga()
        assert [(step.name, step.kind.value, step.undo is not None) for step in saga.steps] == list(self.STEPS)
        assert [[step.name for step in group] for group in saga.groups if len(group) > 1] == [
            [POST_SOURCE, POST_DESTINATION]
        ]

    def test_every_undo_is_the_one_of_the_table_and_the_source_is_restored_when_the_destination_is_clean(self) -> None:
        saga = live_migrate.saga()
        steps = {step.name: step for step in saga.steps}
        assert steps['move_allocation'].undo is allocations.return_allocation
        assert steps[DESTINATION_CHECK].undo is live_migrate.rollback_live_migration_at_destination
        assert steps['pre_live_migration'].undo is live_migrate.rollback_live_migration_at_destination
        assert saga.pivot.undo is live_migrate.rollback_live_migration_at_source
        assert saga.pivot.undo_after == 'pre_live_migration'

    def test_only_what_changes_nothing_outside_of_the_database_goes_without_an_intent(self) -> None:
        without = {step.name for step in live_migrate.saga().steps if step.intent is None}
        assert without == {DESTINATION_CHECK, SOURCE_CHECK, 'update_instance_host', 'complete'}

    def test_the_whole_saga_is_on_the_first_screen(self) -> None:
        lines, first = inspect.getsourcelines(live_migrate.saga)
        header = 13
        assert first + len(lines) - header <= 60, 'the licence aside, 60 lines'

    def test_step_functions_are_in_order_of_saga(self) -> None:
        saga = live_migrate.saga()
        own = [step.do for step in saga.steps if inspect.getmodule(step.do) is live_migrate]
        places = [inspect.getsourcelines(do)[1] for do in own]
        assert places == sorted(places)


class TestSuccess:
    def test_migration_completes_with_every_step_done(self, stage: Stage) -> None:
        migration = stage.begin()
        assert stage.end(migration).status == 'completed'
        assert stage.statuses(migration) == FINE
        stage.check(migration, 'host2')
        assert {state for _, _, state in stage.steps(migration)} == {'done'}

    def test_with_a_host_named_it_goes_there(self, stage: Stage) -> None:
        migration = stage.begin('host3')
        assert stage.end(migration).status == 'completed'
        stage.check(migration, 'host3')

    def test_forced_it_goes_there_without_asking_for_candidates(self, stage: Stage) -> None:
        migration = stage.begin('host3', force=True)
        assert stage.end(migration).status == 'completed'
        stage.check(migration, 'host3')
        assert not any('allocation_candidates' in url for _, url in stage.cloud.adapter.sent)

    def test_a_guest_that_its_user_has_paused_moves_paused(self, stage: Stage) -> None:
        stage.host('host1').pause(stage.instance.uuid)
        migration = stage.begin()
        assert stage.end(migration).status == 'completed'
        assert stage.host('host2').guests[stage.instance.uuid].state == 'paused'
        stage.check(migration, 'host2')

    def test_moved_there_and_back_again_it_is_where_it_was(self, stage: Stage) -> None:
        stage.end(stage.begin('host2'))
        migration = stage.begin('host1', stage.database.instances.get(stage.instance.uuid))
        assert stage.end(migration).status == 'completed'
        stage.check(migration, 'host1')

    @pytest.mark.parametrize('seed', [1])
    def test_many_at_once_all_arrive(self, build: Callable[..., Stage], seed: int) -> None:
        stage = build(seed=seed, options={'max_concurrent_live_migrations': 2})
        guests = [stage.instance] + [stage.cloud.boot(f'guest{n}', 'host1', dirty_rate=5.0) for n in range(4)]
        migrations = [stage.begin(instance=guest) for guest in guests]
        for migration in migrations:
            row = stage.end(migration)
            assert row.status == 'completed'
            stage.check(migration, row.dest_compute or '')


class TestBeforeTheMove:
    @pytest.mark.parametrize('phase', [DESTINATION_CHECK, 'pre_live_migration'])
    @pytest.mark.parametrize('after', [False, True])
    def test_a_destination_that_fails_is_cleaned_and_the_next_one_tried(
        self, stage: Stage, phase: str, after: bool
    ) -> None:
        stage.host('host2').faults.fail(phase, 'disk full', after=after)
        migration = stage.begin()
        row = stage.end(migration)
        assert (row.status, row.dest_compute, row.attempt, row.failure) == ('completed', 'host3', 2, None)
        stage.check(migration, 'host3')
        assert (1, phase, 'failed') in stage.steps(migration)

    def test_a_source_that_refuses_one_destination_may_take_the_next(self, stage: Stage) -> None:
        stage.host('host1').faults.fail(SOURCE_CHECK, 'other processors')
        migration = stage.begin()
        row = stage.end(migration)
        assert (row.status, row.dest_compute) == ('completed', 'host3')
        stage.check(migration, 'host3')

    @pytest.mark.parametrize('phase', [DESTINATION_CHECK, SOURCE_CHECK, 'pre_live_migration'])
    def test_all_candidates_failed_unwinds_with_the_reason_of_each(self, stage: Stage, phase: str) -> None:
        for host in ('host1', 'host2', 'host3'):
            stage.host(host).faults.fail(phase, 'disk full', sticky=True)
        migration = stage.begin()
        row = stage.end(migration)
        assert row.status == 'failed'
        assert 'host2' in (row.failure or '')
        assert 'host3' in (row.failure or '')
        assert 'disk full' in (row.failure or '')
        stage.check(migration, 'host1')

    def test_retries_are_bounded_by_the_option(self, build: Callable[..., Stage]) -> None:
        stage = build(hosts=5, options={'migrate_max_retries': 1})
        for number in range(2, 6):
            stage.host(f'host{number}').faults.fail('pre_live_migration', sticky=True)
        migration = stage.begin()
        row = stage.end(migration)
        assert (row.status, row.attempt) == ('failed', 2)
        stage.check(migration, 'host1')

    def test_a_named_host_that_fails_is_not_replaced_by_another(self, stage: Stage) -> None:
        stage.host('host2').faults.fail('pre_live_migration', 'disk full')
        migration = stage.begin('host2')
        row = stage.end(migration)
        assert (row.status, row.attempt) == ('failed', 1)
        assert 'disk full' in (row.failure or '')
        stage.check(migration, 'host1')

    def test_with_no_destination_at_all_it_fails_and_nothing_was_changed(self, build: Callable[..., Stage]) -> None:
        stage = build(hosts=1)
        migration = stage.begin()
        row = stage.end(migration)
        assert row.status == 'failed'
        assert 'No valid host' in (row.failure or '')
        assert 'host1: it is the source' in (row.failure or '')
        stage.check(migration, 'host1')

    def test_late_destination_check_leaves_nothing_at_rejected_host(self, build: Callable[..., Stage]) -> None:
        """Each further candidate needs an epoch in which what was sent to the one before it is refused."""
        stage = build(hosts=4)
        stage.host('host2').faults.fail(DESTINATION_CHECK)
        late: list[Any] = []

        def fault(message: Any) -> Any:
            if message.method == DESTINATION_CHECK and message.target.server == 'host3' and message.kind == 'call':
                late.append(message)
                return 200.0
            return None

        stage.cloud.bus.faults = fault
        migration = stage.begin()
        row = stage.end(migration)
        assert (row.status, row.dest_compute, row.attempt) == ('completed', 'host4', 3)
        stage.simulation.advance(300)
        assert late
        stage.check(migration, 'host4')

    def test_late_source_check_is_not_used_for_next_candidate(self, build: Callable[..., Stage]) -> None:
        stage = build(hosts=4)
        stage.host('host2').faults.fail(DESTINATION_CHECK)
        lost: list[Any] = []

        def fault(message: Any) -> Any:
            if message.method == SOURCE_CHECK and message.kind == 'call' and len(lost) < 2:
                lost.append(message)
                return 'lose_answer'
            return None

        stage.cloud.bus.faults = fault
        migration = stage.begin()
        row = stage.end(migration, 4000)
        assert lost
        assert (row.status, row.dest_compute, row.attempt) == ('completed', 'host4', 3)
        stage.check(migration, 'host4')

    def test_late_preparation_command_leaves_nothing_behind(self, stage: Stage) -> None:
        late: list[Any] = []

        def fault(message: Any) -> Any:
            if message.method == 'pre_live_migration' and message.kind == 'call' and not late:
                late.append(message)
                return 100.0
            return None

        stage.cloud.bus.faults = fault
        migration = stage.begin('host2')
        stage.until(lambda: late)
        stage.abort(migration)
        row = stage.end(migration)
        assert row.status == 'cancelled'
        stage.simulation.advance(200)
        stage.check(migration, 'host1')


class TestAborts:
    def test_an_abort_while_preparing_does_not_wait_for_the_end_of_the_step(self, build: Callable[..., Stage]) -> None:
        stage = build(pre_seconds=100.0)
        migration = stage.begin()
        stage.until(lambda: stage.host('host2').residue(stage.instance.uuid))
        stage.simulation.advance(10)
        stage.abort(migration)
        row = stage.end(migration, 5)
        assert (row.status, row.abort_verdict) == ('cancelled', 'cancelled')
        stage.check(migration, 'host1')

    def test_an_abort_before_any_conductor_has_it_is_cancelled_and_touches_nothing(self, stage: Stage) -> None:
        migration = stage.accept()
        sent = len(stage.cloud.adapter.sent)
        stage.abort(migration)
        assert stage.end(migration).status == 'cancelled'
        assert len(stage.cloud.adapter.sent) == sent
        assert stage.statuses(migration) == ['accepted', 'cancelled']
        stage.check(migration, 'host1')

    def test_an_abort_of_a_queued_one_never_reaches_the_driver(self, build: Callable[..., Stage]) -> None:
        stage = build(**ENDLESS)
        first = stage.begin()
        stage.until_status(first, 'running')
        other = stage.cloud.boot('other', 'host1')
        second = stage.begin(instance=other)
        stage.until_status(second, 'queued')
        stage.abort(second)
        assert stage.end(second).status == 'cancelled'
        assert stage.cloud.world.effects('job started', other.uuid) == []
        stage.check(second, 'host1')
        assert stage.row(first).status == 'running'

    def test_an_abort_of_a_running_one_aborts_the_job_and_unwinds(self, build: Callable[..., Stage]) -> None:
        stage = build(**ENDLESS)
        migration = stage.begin()
        stage.until_status(migration, 'running')
        stage.simulation.advance(3)
        stage.abort(migration)
        row = stage.end(migration)
        assert (row.status, row.abort_verdict) == ('cancelled', 'cancelled')
        assert 'Aborted' in (row.failure or '')
        stage.check(migration, 'host1')

    def test_abort_after_the_switchover_is_too_late(self, stage: Stage) -> None:
        stall = stage.host('host1').faults.stall('arrived')
        migration = stage.begin()
        stage.until(stall.reached.is_set)
        stage.abort(migration)
        stage.simulation.run_ready()
        stall.release()
        row = stage.end(migration)
        assert row.status == 'completed'
        assert 'before the abort' in (row.abort_verdict or '')
        stage.check(migration, 'host2')

    @pytest.mark.parametrize('phase', ['starting', 'copying'])
    def test_an_abort_of_a_job_that_hangs_ends_it(self, stage: Stage, phase: str) -> None:
        stall = stage.host('host1').faults.stall(phase)
        migration = stage.begin()
        stage.until(stall.reached.is_set)
        stage.abort(migration)
        stage.simulation.advance(5)
        stall.release()
        assert stage.end(migration).status == 'cancelled'
        stage.check(migration, 'host1')

    def test_an_abort_whose_message_is_lost_is_found_by_the_sweep(self, build: Callable[..., Stage]) -> None:
        stage = build(**ENDLESS)
        migration = stage.begin()
        stage.until_status(migration, 'running')
        stage.simulation.advance(3)
        stage.abort(migration, wake=False)
        assert stage.end(migration, 30).status == 'cancelled'
        stage.check(migration, 'host1')

    def test_the_verdict_is_the_result_of_the_cancel_action(self, build: Callable[..., Stage]) -> None:
        stage = build(**ENDLESS)
        migration = stage.begin()
        stage.until_status(migration, 'running')
        stage.abort(migration)
        stage.end(migration)
        found = {action.action: action for action in stage.database.actions.list(stage.instance.uuid)}
        assert found[actions.LIVE_MIGRATION_CANCEL].result == 'Success'


def rollbacks(stage: Stage, monkeypatch: pytest.MonkeyPatch, host: str) -> list[Any]:
    """Return a list of the data that the driver of a host receives when it undoes a migration."""
    found: list[Any] = []
    role = 'source' if host == 'host1' else 'destination'
    real = getattr(stage.cloud.computes[host].driver, f'rollback_live_migration_at_{role}')

    def rollback(instance: Any, migrate_data: Any) -> None:
        found.append(migrate_data)
        real(instance, migrate_data)

    monkeypatch.setattr(stage.cloud.computes[host].driver, real.__name__, rollback)
    return found


@pytest.mark.parametrize(
    ('fails', 'at', 'host'),
    [
        ('pre_live_migration', 'host2', 'host2'),
        ('check_can_live_migrate_source', 'host1', 'host2'),
        ('copying', 'host1', 'host1'),
        ('copying', 'host1', 'host2'),
    ],
)
def test_driver_that_undoes_gets_the_newest_data_of_the_hosts(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, fails: str, at: str, host: str
) -> None:
    found = rollbacks(stage, monkeypatch, host)
    stage.host(at).faults.fail(fails)
    migration = stage.begin('host2')
    assert stage.end(migration).status == 'failed'
    assert [data.destination['address'] for data in found] == ['fake://host2']
    assert ('ready' in found[0].destination) is (fails == 'copying')


def test_deferred_cleanup_after_a_failed_preparation_has_the_data_of_the_checks(build: Callable[..., Stage]) -> None:
    stage = build(options={'conductor.post_max_attempts': 1})
    stage.host('host2').faults.fail('pre_live_migration')
    stage.host('host2').faults.fail('rollback_live_migration_at_destination', sticky=True)
    migration = stage.begin('host2')
    assert stage.end(migration).status == 'failed'
    (cleanup,) = stage.database.cleanups.list()
    assert cleanup.input is not None
    assert base.from_primitive(cleanup.input['migrate_data']).source['host'] == 'host1'
