# SPDX-License-Identifier: Apache-2.0

"""The saga of live_migrate.py with faults: Placement fails, hosts and conductors die."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from migrator.testing.placement_faults import Fault
from tests.unit.conductor import stage as stages

pytestmark = pytest.mark.slow

Stage = stages.Stage
DESTINATION_CHECK = 'check_can_live_migrate_destination'
POST_SOURCE = 'post_live_migration_at_source'
POST_DESTINATION = 'post_live_migration_at_destination'
#: A guest that dirties its memory faster than the link carries it, where nothing throttles it.
ENDLESS = {'dirty_rate': 10000.0, 'auto_converge_after': 0}
#: How many boundaries get a fault here. The crash matrix has all of them.
SAMPLES = 5


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
    def test_fault_on_the_way_back_leaves_the_allocations_right(self, stage: Stage, fault: Fault) -> None:
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

    def test_unknown_allocations_are_stuck_until_an_operator_corrects_them(self, build: Callable[..., Stage]) -> None:
        stage = build(**ENDLESS)
        migration = stage.begin()
        stage.until_status(migration, 'running')
        client, uuid = stage.cloud.placement_client, stage.instance.uuid
        right = stages.allocations.read(client, uuid)
        owner = stages.allocations.allocation_state.Consumer(
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

    def test_destination_lost_before_the_switchover_is_rolled_back_with_a_deferred_cleanup(
        self, build: Callable[..., Stage]
    ) -> None:
        stage = build(**ENDLESS)
        migration = stage.begin('host2')
        stage.until_status(migration, 'running')
        stage.kill('host2')
        stage.host('host2').power_off()
        assert stage.end(migration, 900).status == 'failed'
        stage.check(migration, 'host1', debris=('host2',))

    @pytest.mark.parametrize('fail_seconds', [0.0, 2.0])
    def test_destination_that_loses_its_preparation_and_cannot_repeat_it_fails_the_queued_migration(
        self, build: Callable[..., Stage], fail_seconds: float
    ) -> None:
        stage = build(**ENDLESS, fail_seconds=fail_seconds)
        stage.until_status(stage.begin('host3'), 'running')
        second = stage.cloud.boot('second', 'host1')
        migration = stage.begin('host2', second)
        stage.until_status(migration, 'queued')
        stage.kill('host2')
        stage.host('host2').remove(second.uuid, 'test')
        stage.host('host2').faults.fail('pre_live_migration', 'no volume', sticky=True)
        stage.cloud.start_compute('host2')
        row = stage.end(migration, 120)
        assert row.status == 'failed'
        assert 'Host host2 could not prepare for the guest again' in (row.failure or '')
        assert 'no volume' in (row.failure or '')

    def test_destination_lost_after_the_switchover_completes_with_a_deferred_cleanup(self, stage: Stage) -> None:
        stall = stage.host('host2').faults.stall(POST_DESTINATION)
        migration = stage.begin('host2')
        stage.until(stall.reached.is_set)
        stage.kill('host2')
        assert stage.end(migration, 900).status == 'completed'
        stage.check(migration, 'host2', debris=('host2',))

    def test_source_lost_after_the_switchover_defers_its_cleanup(self, stage: Stage) -> None:
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

    def test_a_source_that_dies_while_it_moves_is_waited_for_until_it_is_declared_down(
        self, build: Callable[..., Stage]
    ) -> None:
        stage = build(**ENDLESS)
        migration = stage.begin('host2')
        stage.until_status(migration, 'running')
        stage.kill('host1')
        stage.host('host1').power_off()
        stage.until(lambda: 'declare it forced down' in (stage.row(migration).waits_for or ''), 300)
        assert stage.row(migration).outcome is None
        service = stage.database.services.get_compute('host1')
        stage.database.services.update(service.id, forced_down=True)
        row = stage.end(migration, 300)
        assert row.status == 'error'
        instance = stage.database.instances.get(stage.instance.uuid)
        assert (instance.host, instance.vm_state, instance.task_state) == ('host1', 'error', None)
        assert stage.host('host2').residue(stage.instance.uuid) == []

    def test_unreachable_host_is_waited_for_and_shown(self, build: Callable[..., Stage]) -> None:
        stage = build(**ENDLESS)
        migration = stage.begin('host2')
        stage.until_status(migration, 'running')
        unreachable = [True]

        def fault(message: Any) -> Any:
            about_host1 = message.target.server == 'host1' or message.sender == 'compute:host1'
            return 'lose' if unreachable[0] and about_host1 and message.method != 'compute_heartbeat' else None

        stage.cloud.bus.faults = fault
        stage.until(lambda: stage.row(migration).waits_for, 120)
        assert 'host1' in (stage.row(migration).waits_for or '')
        stage.simulation.advance(200)
        assert stage.row(migration).outcome is None
        unreachable[0] = False
        stage.host('host1').jobs[stage.instance.uuid].force_complete()
        assert stage.end(migration).status == 'completed'
        stage.check(migration, 'host2')


class TestConductorsThatDie:
    def test_killed_at_any_of_its_boundaries_another_one_ends_what_it_began(self, build: Callable[..., Stage]) -> None:
        plain = build(conductors=2)
        boundaries = _count_boundaries(plain)
        assert boundaries > 30
        for number in range(0, boundaries, max(1, boundaries // SAMPLES)):
            stage = build(conductors=2)
            migration = _killed_at(stage, number)
            row = stage.end(migration)
            assert row.status == 'completed', (number, row.failure, stage.statuses(migration))
            assert len(stage.cloud.world.effects('job started', stage.instance.uuid)) == 1
            stage.check(migration, row.dest_compute or '')
            stage.cloud.stop()

    def test_rollback_is_ended_when_conductor_is_killed_at_any_boundary(self, build: Callable[..., Stage]) -> None:
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

    def test_new_owner_polls_before_it_sends_a_step_again(self, build: Callable[..., Stage]) -> None:
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
        stage.simulation.scheduler.me().acting.checkpoint(f'database {what}')

    stage.simulation.on_checkpoint = on_checkpoint
    stage.cloud.database.engine.boundary = boundary
