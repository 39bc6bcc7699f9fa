# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from migrator.conductor.tasks import live_migrate
from migrator.db import actions
from migrator.testing.placement_faults import Fault
from tests.unit.conductor import stage as stages

Stage = stages.Stage
DESTINATION_CHECK = 'check_can_live_migrate_destination'
SOURCE_CHECK = 'check_can_live_migrate_source'
ROLLBACK_SOURCE = 'rollback_live_migration_at_source'
ROLLBACK_DESTINATION = 'rollback_live_migration_at_destination'
POST_SOURCE = 'post_live_migration_at_source'
POST_DESTINATION = 'post_live_migration_at_destination'
FINE = ['accepted', 'preparing', 'queued', 'running', 'post-migrating', 'completed']
#: A guest that dirties its memory faster than the link carries it, where nothing throttles it.
ENDLESS = {'dirty_rate': 10000.0, 'auto_converge_after': 0}


#: How many boundaries are struck here; all of them are the crash matrix's business.
SAMPLES = 5


class TestTheStory:
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
        saga = live_migrate.story()
        assert [(step.name, step.kind.value, step.undo is not None) for step in saga.steps] == list(self.STEPS)
        assert [[step.name for step in group] for group in saga.groups if len(group) > 1] == [
            [POST_SOURCE, POST_DESTINATION]
        ]

    def test_every_undo_is_the_one_of_the_table_and_the_source_is_restored_when_the_destination_is_clean(self) -> None:
        saga = live_migrate.story()
        assert saga.step('move_allocation').undo is live_migrate.return_allocation
        assert saga.step(DESTINATION_CHECK).undo is live_migrate.rollback_live_migration_at_destination
        assert saga.step('pre_live_migration').undo is live_migrate.rollback_live_migration_at_destination
        assert saga.pivot.undo is live_migrate.rollback_live_migration_at_source
        assert saga.pivot.undo_after == 'pre_live_migration'

    def test_only_what_changes_nothing_outside_of_the_database_goes_without_an_intent(self) -> None:
        without = {step.name for step in live_migrate.story().steps if step.intent is None}
        assert without == {DESTINATION_CHECK, SOURCE_CHECK, 'update_instance_host', 'complete'}

    def test_the_whole_story_is_on_the_first_screen(self) -> None:
        lines, first = inspect.getsourcelines(live_migrate.story)
        header = 13
        assert first + len(lines) - header <= 76, 'licence and imports aside, a screen'

    def test_the_bodies_come_in_the_order_of_the_steps(self) -> None:
        saga = live_migrate.story()
        places = [inspect.getsourcelines(step.do)[1] for step in saga.steps]
        assert places == sorted(places)


class TestSuccess:
    def test_a_guest_moves_and_everything_with_it(self, stage: Stage) -> None:
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
    def test_when_every_candidate_has_failed_it_is_unwound_and_says_what_each_said(
        self, stage: Stage, phase: str
    ) -> None:
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

    def test_a_check_whose_answer_comes_too_late_leaves_nothing_at_the_host_that_was_given_up(
        self, build: Callable[..., Stage]
    ) -> None:
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

    def test_a_source_check_whose_answer_comes_too_late_is_not_taken_for_that_of_the_next_candidate(
        self, build: Callable[..., Stage]
    ) -> None:
        stage = build(hosts=4)
        stage.host('host2').faults.fail(DESTINATION_CHECK)
        lost: list[Any] = []

        def fault(message: Any) -> Any:
            if message.method == SOURCE_CHECK and message.kind == 'call' and not lost:
                lost.append(message)
                return 'lose_answer'
            return None

        stage.cloud.bus.faults = fault
        migration = stage.begin()
        row = stage.end(migration, 4000)
        assert lost
        assert (row.status, row.dest_compute, row.attempt) == ('completed', 'host4', 3)
        stage.check(migration, 'host4')

    def test_a_preparation_whose_order_comes_too_late_leaves_nothing_behind(self, stage: Stage) -> None:
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

    def test_an_abort_that_comes_after_the_cut_over_is_too_late_and_says_so(self, stage: Stage) -> None:
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


class TestTheMove:
    @pytest.mark.parametrize('phase', ['live_migration', 'starting', 'copying', 'cutover'])
    @pytest.mark.parametrize('leave_paused', [False, True])
    def test_a_driver_that_fails_is_unwound_and_the_guest_runs_where_it_was(
        self, build: Callable[..., Stage], phase: str, leave_paused: bool
    ) -> None:
        stage = build(leave_paused=leave_paused)
        stage.host('host1').faults.fail(phase, 'the link is down')
        migration = stage.begin()
        row = stage.end(migration)
        assert row.status == 'failed'
        assert row.failure
        assert stage.host('host1').guests[stage.instance.uuid].state == 'running'
        stage.check(migration, 'host1')

    def test_a_guest_that_its_user_shuts_off_while_it_is_copied_stays_where_it_is_shut_off(
        self, build: Callable[..., Stage]
    ) -> None:
        stage = build(**ENDLESS)
        migration = stage.begin()
        stage.until_status(migration, 'running')
        stage.host('host1').shut_off(stage.instance.uuid)
        assert stage.end(migration).status == 'failed'
        assert stage.host('host1').guests[stage.instance.uuid].state == 'shutdown'
        assert stage.host('host2').residue(stage.instance.uuid) == []

    def test_in_post_copy_the_guest_is_the_destinations_at_once(self, build: Callable[..., Stage]) -> None:
        stage = build(post_copy=True, **ENDLESS)
        stall = stage.host('host1').faults.stall('postcopy')
        migration = stage.begin()
        stage.until_status(migration, 'running')
        stage.host('host1').jobs[stage.instance.uuid].force_complete()
        stage.until(stall.reached.is_set)
        stage.simulation.advance(10)
        assert stage.row(migration).status == 'running (post-copy)'
        assert stage.database.instances.get(stage.instance.uuid).host == 'host2'
        assert stage.host('host1').residue(stage.instance.uuid) != []
        stall.release()
        assert stage.end(migration).status == 'completed'
        assert stage.statuses(migration)[-3:] == ['running (post-copy)', 'post-migrating', 'completed']
        stage.check(migration, 'host2')

    def test_an_abort_in_post_copy_is_too_late_at_once(self, build: Callable[..., Stage]) -> None:
        stage = build(post_copy=True, **ENDLESS)
        stall = stage.host('host1').faults.stall('postcopy')
        migration = stage.begin()
        stage.until_status(migration, 'running')
        stage.host('host1').jobs[stage.instance.uuid].force_complete()
        stage.until(stall.reached.is_set)
        stage.abort(migration)
        stage.simulation.advance(10)
        assert stage.row(migration).status == 'running (post-copy)'
        stall.release()
        assert stage.end(migration).status == 'completed'
        stage.check(migration, 'host2')

    def test_post_copy_that_breaks_off_is_stuck_and_nothing_is_torn_down(self, build: Callable[..., Stage]) -> None:
        stage = build(post_copy=True, **ENDLESS)
        stall = stage.host('host1').faults.stall('postcopy')
        migration = stage.begin()
        stage.until_status(migration, 'running')
        stage.host('host1').jobs[stage.instance.uuid].force_complete()
        stage.until(stall.reached.is_set)
        stage.until_status(migration, 'running (post-copy)')
        stage.host('host1').break_post_copy(stage.instance.uuid)
        assert 'Post-copy broke off' in stage.until_stuck(migration)
        for host in ('host1', 'host2'):
            assert stage.host(host).guests[stage.instance.uuid].state == 'post-copy broken off'

    def test_while_the_destination_runs_it_and_the_job_has_not_ended_nothing_is_torn_down_at_the_source(
        self, stage: Stage
    ) -> None:
        stall = stage.host('host1').faults.stall('arrived')
        migration = stage.begin()
        stage.until(stall.reached.is_set)
        stage.simulation.advance(20)
        assert stage.row(migration).stuck_reason is None
        assert not stage.row(migration).ended
        assert 'guest' in stage.host('host1').residue(stage.instance.uuid)
        stall.release()
        assert stage.end(migration).status == 'completed'
        stage.check(migration, 'host2')

    def test_an_answer_to_the_order_that_is_lost_is_not_missed(self, stage: Stage) -> None:
        lost: list[Any] = []

        def fault(message: Any) -> Any:
            if message.method == 'live_migration' and not lost:
                lost.append(message)
                return 'lose_answer'
            return None

        stage.cloud.bus.faults = fault
        migration = stage.begin()
        assert stage.end(migration).status == 'completed'
        assert len(stage.cloud.world.effects('job started', stage.instance.uuid)) == 1
        stage.check(migration, 'host2')

    def test_an_order_that_comes_after_everything_was_unwound_starts_no_job(self, build: Callable[..., Stage]) -> None:
        """Also in the epoch of an adopter: what it has sent itself it must fence before it decides against it."""
        stage = build(conductors=2)
        late: list[Any] = []

        def fault(message: Any) -> Any:
            if message.method == 'live_migration' and message.kind == 'call':
                late.append(message)
                return 90.0
            return None

        stage.cloud.bus.faults = fault
        stall = stage.host('host2').faults.stall('pre_live_migration')
        migration = stage.begin()
        stage.until(stall.reached.is_set)
        server = stage.database.conductors.server_of(stage.row(migration).owner or '')
        stage.kill(server or '')
        stage.until(lambda: stage.row(migration).epoch > 1)
        stall.release()
        stage.until(lambda: late)
        stage.abort(migration)
        assert stage.end(migration).status == 'cancelled'
        stage.simulation.advance(200)
        assert stage.cloud.world.effects('job started', stage.instance.uuid) == []
        stage.check(migration, 'host1')

    def test_no_event_at_all_and_it_still_arrives(self, stage: Stage) -> None:
        stage.cloud.bus.faults = lambda message: 'lose' if message.kind == 'cast' else None
        migration = stage.begin()
        assert stage.end(migration).status == 'completed'
        stage.check(migration, 'host2')

    def test_every_message_doubled_and_it_moves_once(self, stage: Stage) -> None:
        stage.cloud.bus.faults = lambda message: 'duplicate' if message.kind != 'reply' else None
        migration = stage.begin()
        assert stage.end(migration).status == 'completed'
        assert len(stage.cloud.world.effects('job started', stage.instance.uuid)) == 1
        stage.check(migration, 'host2')

    def test_a_guest_that_vanishes_from_the_queue_is_not_waited_for_in_silence(
        self, build: Callable[..., Stage]
    ) -> None:
        stage = build(**ENDLESS)
        first = stage.begin()
        stage.until_status(first, 'running')
        other = stage.cloud.boot('other', 'host1')
        second = stage.begin(instance=other)
        stage.until_status(second, 'queued')
        stage.host('host1').delete(other.uuid)
        stage.abort(first)
        stage.end(first)
        stage.simulation.advance(60)
        row = stage.row(second)
        assert row.ended or row.stuck_reason


class TestAfterTheMove:
    @pytest.mark.parametrize(('step', 'host'), [(POST_SOURCE, 'host1'), (POST_DESTINATION, 'host2')])
    @pytest.mark.parametrize('after', [False, True])
    def test_a_post_step_that_fails_is_done_again_until_it_is_done(
        self, stage: Stage, step: str, host: str, after: bool
    ) -> None:
        for _ in range(3):
            stage.host(host).faults.fail(step, 'busy', after=after)
        migration = stage.begin()
        assert stage.end(migration).status == 'completed'
        stage.check(migration, 'host2')

    @pytest.mark.parametrize(('step', 'host'), [(POST_SOURCE, 'host1'), (POST_DESTINATION, 'host2')])
    def test_a_post_step_that_fails_for_good_is_owed_and_the_migration_ends(
        self, stage: Stage, step: str, host: str
    ) -> None:
        stage.host(host).faults.fail(step, 'busy', sticky=True)
        migration = stage.begin()
        assert stage.end(migration, 900).status == 'completed'
        stage.check(migration, 'host2', debris=(host,))
        debt = stage.database.debts.list()[0]
        assert (debt.step, debt.migration_uuid, debt.epoch) == (step, migration.uuid, stage.row(migration).epoch)
        assert 'busy' in debt.reason
        assert (debt.input or {})['migrate_data']

    def test_it_is_tried_as_often_as_the_option_says(self, build: Callable[..., Stage]) -> None:
        stage = build(options={'conductor.post_max_attempts': 3})
        fault = stage.host('host1').faults.fail(POST_SOURCE, 'busy', sticky=True)
        migration = stage.begin()
        stage.end(migration)
        assert fault.count == 3
        stage.check(migration, 'host2', debris=('host1',))

    def test_a_source_that_says_the_guest_is_here_is_stuck_and_goes_on_when_it_no_longer_says_so(
        self, stage: Stage
    ) -> None:
        stall = stage.host('host1').faults.stall('arrived')
        migration = stage.begin()
        stage.until(stall.reached.is_set)
        stage.host('host1').faults.lie('get_guest', lambda truth: truth.replace(state='running'), sticky=True)
        stall.release()
        reason = stage.until_stuck(migration)
        assert 'host1' in reason
        stage.simulation.advance(60)
        assert stage.row(migration).status == 'post-migrating'
        assert stage.database.instances.get(stage.instance.uuid).task_state == 'migrating'
        assert stage.row(migration).stuck_reason == reason
        stage.host('host1').faults.clear()
        assert stage.end(migration, 60).status == 'completed'
        stage.check(migration, 'host2')

    def test_a_guest_that_is_gone_from_the_destination_after_the_move_is_stuck_and_never_called_completed(
        self, stage: Stage
    ) -> None:
        stall = stage.host('host2').faults.stall(POST_DESTINATION)
        migration = stage.begin()
        stage.until(stall.reached.is_set)
        stage.host('host2').delete(stage.instance.uuid)
        stall.release()
        assert 'host2' in stage.until_stuck(migration, 900)
        assert stage.row(migration).status == 'post-migrating'


class TestBack:
    def test_a_destination_that_cannot_be_cleaned_owes_it_and_the_migration_ends(
        self, build: Callable[..., Stage]
    ) -> None:
        stage = build(options={'conductor.post_max_attempts': 2})
        stage.host('host1').faults.fail('copying')
        stage.host('host2').faults.fail(ROLLBACK_DESTINATION, 'busy', sticky=True)
        migration = stage.begin()
        assert stage.end(migration, 900).status == 'failed'
        stage.check(migration, 'host1', debris=('host2',))

    def test_a_rollback_that_fails_once_is_done_again(self, stage: Stage) -> None:
        stage.host('host1').faults.fail('copying')
        stage.host('host2').faults.fail(ROLLBACK_DESTINATION, 'busy')
        stage.host('host1').faults.fail(ROLLBACK_SOURCE, 'busy')
        migration = stage.begin()
        assert stage.end(migration).status == 'failed'
        stage.check(migration, 'host1')

    def test_a_source_that_is_up_and_cannot_be_restored_is_stuck_and_owes_nothing(
        self, build: Callable[..., Stage]
    ) -> None:
        stage = build(leave_paused=True, options={'conductor.post_max_attempts': 2})
        stage.host('host1').faults.fail('cutover')
        stage.host('host1').faults.fail(ROLLBACK_SOURCE, 'busy', sticky=True)
        migration = stage.begin()
        assert 'host1' in stage.until_stuck(migration, 900)
        assert stage.database.debts.list() == []
        stage.host('host1').faults.clear()
        assert stage.end(migration, 200).status == 'failed'
        stage.check(migration, 'host1')

    def test_a_destination_that_turns_out_to_run_the_guest_is_never_torn_down(self, stage: Stage) -> None:
        stage.host('host1').faults.fail('copying')
        stall = stage.host('host2').faults.stall(ROLLBACK_DESTINATION)
        stage.host('host2').faults.lie('get_guest', lambda truth: truth, sticky=True)
        migration = stage.begin()
        stage.until(stall.reached.is_set)
        stage.host('host2').guests[stage.instance.uuid].state = 'running'
        stall.release()
        assert 'host2' in stage.until_stuck(migration)
        assert 'guest' in stage.host('host2').residue(stage.instance.uuid)
        stage.host('host2').guests[stage.instance.uuid].state = 'waiting'
        assert stage.end(migration, 60).status == 'failed'
        stage.check(migration, 'host1')

    @pytest.mark.parametrize(
        'guest_too',
        [
            False,
            pytest.param(
                True, marks=pytest.mark.xfail(strict=True, reason='absent and waiting is stuck for a deleted one too')
            ),
        ],
    )
    def test_an_instance_deleted_meanwhile_stays_gone_and_nothing_is_left_at_the_destination(
        self, build: Callable[..., Stage], guest_too: bool
    ) -> None:
        stage = build(**ENDLESS)
        migration = stage.begin()
        stage.until_status(migration, 'running')
        with stage.cloud.engine.sa_engine.begin() as connection:
            connection.exec_driver_sql('DELETE FROM instances')
        client = stage.cloud.placement_client
        held = stages.allocations.read(client, stage.instance.uuid)
        owner = stages.allocations.pairs.Consumer(
            uuid=stage.instance.uuid, consumer_type='INSTANCE', project_id='demo', user_id='demo'
        )
        stages.allocations.remove(client, owner, generation=held.generation or 0)
        if guest_too:
            stage.host('host1').delete(stage.instance.uuid)
        stage.abort(migration)
        row = stage.end(migration, 120)
        assert row.status in ('cancelled', 'failed', 'error')
        for consumer in (stage.instance.uuid, migration.uuid):
            assert stages.allocations.read(client, consumer).allocations == {}
        assert stage.host('host2').residue(stage.instance.uuid) == []


class TestPlacement:
    URL = '/allocations'

    @pytest.mark.parametrize(
        'fault',
        [
            Fault.UNREACHABLE,
            Fault.TIMEOUT_DONE,
            Fault.TIMEOUT_NOT_DONE,
            Fault.CONFLICT,
            Fault.ERROR_DONE,
            Fault.ERROR_NOT_DONE,
        ],
    )
    @pytest.mark.parametrize('method', ['GET', 'POST', 'PUT'])
    def test_trouble_with_any_request_is_looked_into_and_the_guest_arrives(
        self, stage: Stage, fault: Fault, method: str
    ) -> None:
        stage.cloud.adapter.inject(fault, method=method, url='^/allocation', times=2)
        migration = stage.begin()
        assert stage.end(migration).status == 'completed'
        stage.check(migration, 'host2')

    @pytest.mark.parametrize(
        'fault', [Fault.TIMEOUT_DONE, Fault.TIMEOUT_NOT_DONE, Fault.CONFLICT, Fault.ERROR_DONE, Fault.ERROR_NOT_DONE]
    )
    def test_trouble_with_the_way_back_is_looked_into_and_the_books_are_right(self, stage: Stage, fault: Fault) -> None:
        stage.host('host1').faults.fail('copying')
        stage.cloud.adapter.inject(fault, method='POST', url='^/allocations', skip=1, times=3)
        migration = stage.begin()
        assert stage.end(migration).status == 'failed'
        stage.check(migration, 'host1')

    def test_a_refusal_of_the_move_leads_to_the_next_candidate(self, stage: Stage) -> None:
        stage.cloud.adapter.inject(Fault.REFUSED, method='POST', url='^/allocations')
        migration = stage.begin()
        row = stage.end(migration)
        assert (row.status, row.dest_compute) == ('completed', 'host3')
        stage.check(migration, 'host3')

    @pytest.mark.parametrize('fault', [Fault.TIMEOUT_LATE, Fault.DUPLICATED])
    @pytest.mark.parametrize('method', ['POST', 'PUT'])
    def test_a_write_that_arrives_after_the_end_changes_nothing(self, stage: Stage, fault: Fault, method: str) -> None:
        stage.cloud.adapter.inject(fault, method=method, url='^/allocations')
        migration = stage.begin()
        assert stage.end(migration).status == 'completed'
        for response in stage.cloud.adapter.deliver():
            assert response.status_code in (204, 409)
        stage.check(migration, 'host2')

    def test_a_move_that_arrives_after_the_migration_was_cancelled_is_too_late(self, stage: Stage) -> None:
        stage.cloud.adapter.inject(Fault.TIMEOUT_LATE, method='POST', url='^/allocations')
        migration = stage.begin()
        stage.until(lambda: ('POST', '/allocations') in stage.cloud.adapter.sent)
        stage.abort(migration)
        assert stage.end(migration).status == 'cancelled'
        assert [response.status_code for response in stage.cloud.adapter.deliver()] == [409]
        stage.check(migration, 'host1')

    def test_books_that_fit_no_known_case_are_stuck_until_a_person_mends_them(
        self, build: Callable[..., Stage]
    ) -> None:
        stage = build(**ENDLESS)
        migration = stage.begin()
        stage.until_status(migration, 'running')
        client, uuid = stage.cloud.placement_client, stage.instance.uuid
        right = stages.allocations.read(client, uuid)
        owner = stages.allocations.pairs.Consumer(
            uuid=uuid, consumer_type='INSTANCE', project_id='demo', user_id='demo'
        )
        wrong = {provider: {'VCPU': 1} for provider in right.allocations}
        stages.allocations.claim(client, owner, wrong, generation=right.generation)
        stage.abort(migration)
        reason = stage.until_stuck(migration)
        assert uuid in reason
        stage.simulation.advance(30)
        assert stage.row(migration).stuck_reason == reason
        now = stages.allocations.read(client, uuid)
        stages.allocations.claim(client, owner, right.allocations, generation=now.generation)
        assert stage.end(migration, 60).status == 'cancelled'
        stage.check(migration, 'host1')


class TestHostsThatDie:
    def test_a_source_restarted_while_migrations_wait_in_its_queue_has_them_queued_again_in_their_order(
        self, build: Callable[..., Stage]
    ) -> None:
        stage = build(**ENDLESS)
        guests = [stage.cloud.boot(f'guest{n}', 'host1') for n in range(3)]
        first = stage.begin()
        stage.until_status(first, 'running')
        waiting = []
        for guest in guests:
            waiting.append(stage.begin(instance=guest))
            stage.until_status(waiting[-1], 'queued')
        stage.kill('host1')
        stage.simulation.advance(5)
        stage.cloud.start_compute('host1')
        stage.until(lambda: list(stage.cloud.computes['host1']._waiting_live_migrations) == [w.uuid for w in waiting])
        assert [stage.row(one).status for one in waiting] == ['queued'] * 3
        stage.abort(first)
        assert stage.end(first).status == 'cancelled'
        for one in waiting:
            assert stage.end(one).status == 'completed'
            stage.check(one, stage.row(one).dest_compute or '')
        begun = [effect.instance_uuid for effect in stage.cloud.world.effects('job started')]
        assert begun == [stage.instance.uuid, *[guest.uuid for guest in guests]]

    @pytest.mark.parametrize('phase', ['starting', 'copying', 'cutover', 'arrived'])
    def test_a_source_that_dies_in_any_phase_of_the_job_and_comes_back(self, stage: Stage, phase: str) -> None:
        stall = stage.host('host1').faults.stall(phase)
        migration = stage.begin()
        stage.until(stall.reached.is_set)
        stage.kill('host1')
        stage.simulation.advance(3)
        stall.release()
        stage.simulation.advance(3)
        stage.cloud.start_compute('host1')
        assert stage.end(migration).status == 'completed'
        assert stage.cloud.world.active_on(stage.instance.uuid) == ['host2']
        stage.check(migration, 'host2')

    @pytest.mark.parametrize('phase', [DESTINATION_CHECK, 'pre_live_migration'])
    def test_a_destination_that_dies_while_it_is_prepared_and_comes_back(self, stage: Stage, phase: str) -> None:
        stall = stage.host('host2').faults.stall(phase)
        migration = stage.begin('host2')
        stage.until(stall.reached.is_set)
        stage.kill('host2')
        stall.release()
        stage.simulation.advance(3)
        stage.cloud.start_compute('host2')
        row = stage.end(migration)
        assert row.status in ('completed', 'failed')
        stage.check(migration, 'host2' if row.status == 'completed' else 'host1')

    def test_a_destination_dead_for_ever_before_the_cut_over_is_rolled_back_with_a_debt(
        self, build: Callable[..., Stage]
    ) -> None:
        stage = build(**ENDLESS)
        migration = stage.begin('host2')
        stage.until_status(migration, 'running')
        stage.kill('host2')
        stage.host('host2').power_off()
        assert stage.end(migration, 900).status == 'failed'
        stage.check(migration, 'host1', debris=('host2',))

    def test_a_destination_dead_for_ever_after_the_move_is_completed_with_a_debt(self, stage: Stage) -> None:
        stall = stage.host('host2').faults.stall(POST_DESTINATION)
        migration = stage.begin('host2')
        stage.until(stall.reached.is_set)
        stage.kill('host2')
        assert stage.end(migration, 900).status == 'completed'
        stage.check(migration, 'host2', debris=('host2',))

    def test_a_source_dead_after_the_move_owes_its_clean_up_and_the_migration_ends(self, stage: Stage) -> None:
        stall = stage.host('host1').faults.stall(POST_SOURCE)
        migration = stage.begin('host2')
        stage.until(stall.reached.is_set)
        stage.kill('host1')
        assert stage.end(migration, 900).status == 'completed'
        stage.check(migration, 'host2', debris=('host1',))

    def test_a_source_dead_before_anything_was_sent_is_rolled_back(self, stage: Stage) -> None:
        stall = stage.host('host2').faults.stall('pre_live_migration')
        migration = stage.begin('host2')
        stage.until(stall.reached.is_set)
        stage.kill('host1')
        stage.simulation.advance(100)
        stage.abort(migration)
        stall.release()
        assert stage.end(migration, 300).status == 'cancelled'
        assert stage.database.instances.get(stage.instance.uuid).host == 'host1'

    def test_a_source_that_dies_while_it_moves_is_stuck_until_it_is_declared_down(
        self, build: Callable[..., Stage]
    ) -> None:
        stage = build(**ENDLESS)
        migration = stage.begin('host2')
        stage.until_status(migration, 'running')
        stage.kill('host1')
        stage.host('host1').power_off()
        stage.until_stuck(migration, 300)
        assert stage.row(migration).outcome is None
        service = stage.database.services.get_compute('host1')
        stage.database.services.update(service.id, forced_down=True)
        row = stage.end(migration, 300)
        assert row.status == 'error'
        instance = stage.database.instances.get(stage.instance.uuid)
        assert (instance.host, instance.vm_state, instance.task_state) == ('host1', 'error', None)
        assert stage.host('host2').residue(stage.instance.uuid) == []

    def test_a_host_that_is_merely_silent_is_waited_for_and_that_is_said(self, build: Callable[..., Stage]) -> None:
        stage = build(**ENDLESS)
        migration = stage.begin('host2')
        stage.until_status(migration, 'running')
        silent = [True]

        def fault(message: Any) -> Any:
            about_host1 = message.target.server == 'host1' or message.sender == 'compute:host1'
            return 'lose' if silent[0] and about_host1 and message.method != 'compute_heartbeat' else None

        stage.cloud.bus.faults = fault
        stage.until(lambda: stage.row(migration).waits_for, 120)
        assert 'host1' in (stage.row(migration).waits_for or '')
        stage.simulation.advance(200)
        assert stage.row(migration).outcome is None
        silent[0] = False
        stage.host('host1').jobs[stage.instance.uuid].force_complete()
        assert stage.end(migration).status == 'completed'
        stage.check(migration, 'host2')


class TestConductorsThatDie:
    def test_killed_at_any_of_its_boundaries_another_one_ends_what_it_began(self, build: Callable[..., Stage]) -> None:
        plain = build(conductors=2)
        boundaries = _count_boundaries(plain)
        assert boundaries > 40
        for number in range(0, boundaries, max(1, boundaries // SAMPLES)):
            stage = build(conductors=2)
            migration = _killed_at(stage, number)
            row = stage.end(migration)
            assert row.status == 'completed', (number, row.failure, stage.statuses(migration))
            assert len(stage.cloud.world.effects('job started', stage.instance.uuid)) == 1
            stage.check(migration, row.dest_compute or '')
            stage.cloud.stop()

    def test_killed_at_any_boundary_of_the_way_back_another_one_ends_it(self, build: Callable[..., Stage]) -> None:
        plain = build(conductors=2)
        plain.host('host1').faults.fail('cutover')
        boundaries = _count_boundaries(plain)
        for number in range(1, boundaries, max(1, boundaries // SAMPLES)):
            stage = build(conductors=2, leave_paused=bool(number % 2))
            stage.host('host1').faults.fail('cutover')
            migration = _killed_at(stage, number)
            assert stage.end(migration).status == 'failed', (number, stage.statuses(migration))
            stage.check(migration, 'host1')
            stage.cloud.stop()

    def test_a_conductor_killed_and_never_replaced_but_by_itself_goes_on_when_it_is_back(self, stage: Stage) -> None:
        stall = stage.host('host1').faults.stall('copying')
        migration = stage.begin()
        stage.until(stall.reached.is_set)
        stage.kill('conductor1')
        stage.simulation.advance(60)
        stall.release()
        stage.simulation.advance(10)
        stage.cloud.start_conductor('conductor1')
        assert stage.end(migration, 60).status == 'completed'
        stage.check(migration, 'host2')

    def test_paused_past_its_lease_it_lets_go_of_what_another_one_has_adopted(
        self, build: Callable[..., Stage]
    ) -> None:
        stage = build(conductors=2)
        stall = stage.host('host1').faults.stall('copying')
        migration = stage.begin()
        stage.until(stall.reached.is_set)
        owner = stage.row(migration).owner or ''
        process = stage.cloud.processes[stage.database.conductors.server_of(owner) or '']
        stage.simulation.pause(process)
        stage.until(lambda: stage.row(migration).owner != owner)
        stage.simulation.resume(process)
        stall.release()
        assert stage.end(migration).status == 'completed'
        stage.simulation.advance(10)
        stage.check(migration, 'host2')

    def test_an_adopter_asks_before_it_sends_again_what_may_have_been_heard(self, build: Callable[..., Stage]) -> None:
        stage = build(conductors=2)
        stall = stage.host('host2').faults.stall('pre_live_migration')
        migration = stage.begin()
        stage.until(stall.reached.is_set)
        stage.kill(stage.database.conductors.server_of(stage.row(migration).owner or '') or '')
        sent = len(stage.cloud.recorder.messages)
        stage.until(lambda: stage.row(migration).epoch == 2)
        stage.simulation.advance(5)
        about_host2 = [
            message.method
            for message in stage.cloud.recorder.messages[sent:]
            if message.kind == 'call' and message.target.endswith('host2')
        ]
        assert about_host2[0] == 'poll_live_migrations'
        assert 'pre_live_migration' not in about_host2
        stall.release()
        assert stage.end(migration).status == 'completed'
        stage.check(migration, 'host2')


def _count_boundaries(stage: Stage) -> int:
    """Return how many boundaries the conductors cross from a migration's acceptance to its end."""
    seen: list[str] = []
    _at_each_boundary(stage, lambda process: seen.append(process.name))
    migration = stage.begin()
    stage.end(migration)
    stage.simulation.on_checkpoint = None
    return len(seen)


def _killed_at(stage: Stage, number: int) -> Any:
    """Begin a migration, and kill whichever conductor crosses a boundary of that number."""
    crossed = [0]

    def kill(process: Any) -> None:
        crossed[0] += 1
        if crossed[0] == number + 1:
            stage.kill(process.name)

    _at_each_boundary(stage, kill)
    return stage.begin()


def _at_each_boundary(stage: Stage, act: Callable[[Any], None]) -> None:
    def on_checkpoint(process: Any, label: str) -> None:
        if process.name.startswith('conductor'):
            act(process)

    def boundary(what: str) -> None:
        stage.simulation.baton.me().acting.checkpoint(f'database {what}')

    stage.simulation.on_checkpoint = on_checkpoint
    stage.cloud.engine.boundary = boundary
