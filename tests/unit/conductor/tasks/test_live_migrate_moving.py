# SPDX-License-Identifier: Apache-2.0

"""The saga of live_migrate.py from the pivot on: forward, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from migrator.saga.log import EntryKind
from tests.unit.conductor import stage as stages

Stage = stages.Stage
ROLLBACK_SOURCE = 'rollback_live_migration_at_source'
ROLLBACK_DESTINATION = 'rollback_live_migration_at_destination'
POST_DESTINATION = 'post_live_migration_at_destination'
#: A guest that dirties its memory faster than the link carries it, where nothing throttles it.
ENDLESS = {'dirty_rate': 10000.0, 'auto_converge_after': 0}


class TestTheMove:
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

    def test_move_command_after_unwind_starts_no_job(self, build: Callable[..., Stage]) -> None:
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
    def test_source_that_reports_the_guest_is_stuck_until_it_no_longer_does(self, stage: Stage) -> None:
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
    @pytest.mark.parametrize('fail_seconds', [0.0, 2.0])
    def test_source_that_cannot_restore_its_guest_is_stuck_once_and_without_a_deferred_cleanup(
        self, build: Callable[..., Stage], fail_seconds: float
    ) -> None:
        """Each slow try reports first that it runs, which is no news for a migration that is stuck."""
        stage = build(leave_paused=True, fail_seconds=fail_seconds, options={'conductor.post_max_attempts': 2})
        stage.host('host1').faults.fail('cutover')
        stage.host('host1').faults.fail(ROLLBACK_SOURCE, 'busy', sticky=True)
        migration = stage.begin()
        reason = stage.until_stuck(migration, 900)
        assert 'host1' in reason
        assert stage.database.cleanups.list() == []
        stage.simulation.advance(120)
        assert stage.row(migration).stuck_reason == reason
        log = stage.database.migrations.read_logs([migration.uuid])[migration.uuid]
        assert [entry.payload['kind'] for entry in log if entry.kind == EntryKind.STUCK] == ['not-restored']
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

    @pytest.mark.parametrize('guest_too', [False, True])
    def test_an_instance_deleted_meanwhile_stays_gone_and_nothing_is_left_at_the_destination(
        self, build: Callable[..., Stage], guest_too: bool
    ) -> None:
        stage = build(**ENDLESS)
        migration = stage.begin()
        stage.until_status(migration, 'running')
        with stage.cloud.database.engine.sa_engine.begin() as connection:
            connection.execute(sa.text('DELETE FROM instances'))
        client = stage.cloud.placement_client
        held = stages.allocations.read(client, stage.instance.uuid)
        owner = stages.allocations.allocation_state.Consumer(
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
