# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from migrator import context
from migrator.compute import rpcapi, work
from migrator.objects import protocol
from tests.unit.compute import scene as scene_module

Scene = scene_module.Scene
PRE = 'pre_live_migration'
ROLLBACK = 'rollback_live_migration_at_destination'


class TestEpochCheck:
    @pytest.mark.parametrize(
        ('epoch', 'owner', 'refusal', 'seen'),
        [
            (4, 'one', 'epoch', 5),
            (5, 'one', None, 5),
            (5, 'two', 'epoch', 5),
            (6, 'two', None, 6),
            (6, 'one', None, 6),
        ],
    )
    def test_command_is_accepted_or_refused_by_epoch_and_owner(
        self, scene: Scene, epoch: int, owner: str, refusal: str | None, seen: int
    ) -> None:
        host = scene.host('beta')
        host.call(PRE, epoch=5, owner='one')
        for step in (PRE, ROLLBACK, 'live_migration', 'live_migration_abort', 'live_migration_force_complete'):
            answer = host.call(step, epoch=epoch, owner=owner)
            assert (answer.refusal, answer.seen) == (refusal, seen)
            assert (answer.report is None) == (refusal is not None)
        observation = host.poll(epoch=epoch, owner=owner)
        assert (observation.refusal, observation.epoch) == (refusal, seen)

    def test_migration_uuid_that_is_used_again_for_another_guest_is_refused_and_gets_no_report(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        host = scene.host('beta')
        assert host.report(PRE, 1).state == 'done'
        other = {'migration_uuid': scene_module.uuid(2, 1)}
        for step in (PRE, ROLLBACK, 'live_migration', 'live_migration_abort', 'live_migration_force_complete'):
            answer = host.call(step, 2, **other)
            assert (answer.refusal, answer.report) == ('guest', None)
        observation = host.poll(2, **other)
        assert (observation.refusal, observation.reports) == ('guest', [])
        assert scene.beta.residue(scene_module.uuid(1, 2)) == []
        assert f'for guest {scene_module.uuid(1, 2)}' in caplog.text
        assert host.call(PRE, 1).refusal is None

    def test_command_of_epoch_before_a_poll_is_refused(self, scene: Scene) -> None:
        host = scene.host('beta')
        assert host.poll(epoch=7).epoch == 7
        assert host.call(PRE, epoch=6).refusal == 'epoch'
        assert scene.beta.residue(scene_module.uuid(1, 1)) == []

    @pytest.mark.parametrize('number', [2**31, 2**40, 2**63, 2**64, -1])
    @pytest.mark.parametrize('field', ['epoch', 'tenure'])
    def test_epoch_or_tenure_out_of_range_is_refused_and_not_stored(
        self, scene: Scene, caplog: pytest.LogCaptureFixture, field: str, number: int
    ) -> None:
        host = scene.host('beta')
        out_of_range = {'epoch': 1, 'tenure': 1, field: number}
        answer, observation = host.call(PRE, **out_of_range), host.poll(**out_of_range)
        assert (answer.refusal, answer.seen, answer.seen_tenure, answer.report) == ('epoch', 0, 0, None)
        assert (observation.refusal, observation.epoch) == ('epoch', 0)
        assert f'{field} {number}' in caplog.text
        assert 'check the row of the migration in the database' in caplog.text
        assert host.call(PRE, epoch=1, tenure=1).refusal is None

    def test_highest_storable_epoch_is_accepted(self, scene: Scene) -> None:
        assert scene.host('beta').call(PRE, epoch=2**31 - 1, tenure=2**31 - 1).refusal is None

    def test_command_for_another_boot_is_refused_and_host_registers_again(self, scene: Scene) -> None:
        host = scene.host('beta')
        assert len(host.events.started) == 1
        answer = host.call(PRE, boot_id='another')
        assert (answer.refusal, answer.boot_id) == ('boot', host.manager.boot_id)
        scene.until(lambda: len(host.events.started) == 2)
        assert host.poll(boot_id='another').refusal in ('boot', 'starting')
        scene.simulation.run_ready()
        assert host.poll().refusal is None

    def test_command_before_reply_to_compute_started_is_refused_as_starting(self, scene: Scene) -> None:
        host = scene.host('beta', start=False)
        host.events.unreachable = True
        host.start()
        assert host.call(PRE).refusal == 'starting'
        assert host.poll().refusal == 'starting'
        host.events.unreachable = False
        scene.simulation.advance(1.0)
        assert host.call(PRE).refusal is None

    def test_command_while_reply_to_compute_started_is_applied_is_refused(self, scene: Scene) -> None:
        host = scene.host('beta', start=False)
        refusals: list[str | None] = []

        def assignments() -> Iterator[Any]:
            refusals.append(host.poll().refusal)
            yield from ()

        host.events.assignments = assignments()  # type: ignore[assignment]  # it is only iterated, and once
        host.start()
        assert refusals == ['starting']
        assert host.poll().refusal is None


@pytest.mark.seeds(None, 1, 2)
class TestRepeats:
    def test_repeated_call_while_work_runs_attaches_to_it(self, scene: Scene) -> None:
        host = scene.host('beta')
        stall = scene.beta.faults.stall(PRE)
        assert host.report(PRE).state == 'running'
        scene.until(stall.reached.is_set)
        assert host.report(PRE).state == 'running'
        stall.release()
        scene.until(lambda: host.events.ended)
        scene.simulation.run_ready()
        assert len(host.events.ended) == 1
        assert len(scene.world.effects('incoming')) == 1

    def test_step_that_ends_soon_is_in_the_reply_and_sends_no_event(self, scene: Scene) -> None:
        host = scene.host('beta')
        host.events.unreachable = True  # an event would be lost
        assert host.report(PRE).state == 'done'
        scene.simulation.run_ready()
        assert host.kept(PRE) is not None, 'until a conductor acknowledges it'

    def test_step_that_lasts_longer_is_running_in_the_reply_and_sends_an_event(self, scene: Scene) -> None:
        host = scene.host('beta')
        scene.beta.pre_seconds = 60.0
        began = host.process.clock.monotonic()
        assert host.report(PRE).state == 'running'
        assert host.process.clock.monotonic() - began == rpcapi.SHORT_WAIT
        assert host.events.ended == []
        scene.until(lambda: host.events.states(PRE) == ['done'])

    def test_repeated_call_after_the_end_gets_stored_report_and_does_nothing(self, scene: Scene) -> None:
        host = scene.host('beta')
        host.call(PRE)
        scene.until(lambda: host.events.ended)
        effects = len(scene.world.log)
        report = host.report(PRE)
        assert report.state == 'done'
        assert report.result.destination['ready']
        scene.simulation.run_ready()
        assert len(scene.world.log) == effects

    def test_late_duplicate_after_acknowledgement_does_nothing(self, scene: Scene) -> None:
        host = scene.host('beta')
        host.call(PRE)
        scene.until(lambda: host.events.ended)
        ack = {'migration_uuid': scene_module.uuid(2, 1), 'step': PRE, 'epoch': 1}
        assert host.poll(acks=[ack]).reports == []
        effects = len(scene.world.log)
        assert host.report(PRE).state == 'done'
        scene.simulation.run_ready()
        assert len(scene.world.log) == effects

    def test_acknowledged_work_keeps_no_traceparent(self) -> None:
        with context.about(traceparent=f'00-{32 * "a"}-{16 * "b"}-01'):
            kept = work.Work('m', 'i', PRE, 1, print, protocol.Entry.NONE)
        kept.outcome = work.WorkEnd(protocol.WorkState.DONE)
        assert kept.traceparent is not None
        kept.acknowledge()
        assert kept.traceparent is None

    def test_acknowledgement_of_older_epoch_or_running_work_drops_no_report(self, scene: Scene) -> None:
        host = scene.host('beta')
        stall = scene.beta.faults.stall(PRE)
        host.call(PRE, epoch=2)
        ack = {'migration_uuid': scene_module.uuid(2, 1), 'step': PRE, 'epoch': 2}
        assert len(host.poll(epoch=2, acks=[ack]).reports) == 1
        stall.release()
        scene.until(lambda: host.events.ended)
        assert len(host.poll(epoch=2, acks=[{**ack, 'epoch': 1}]).reports) == 1
        assert host.poll(epoch=2, acks=[ack]).reports == []

    def test_later_step_acknowledges_earlier_ones(self, scene: Scene) -> None:
        host = scene.host('beta')
        host.call(PRE)
        scene.until(lambda: host.events.ended)
        assert [report.step for report in host.poll().reports] == [PRE]
        host.call(ROLLBACK)
        assert [report.step for report in host.poll().reports] == [ROLLBACK]

    def test_work_of_earlier_epoch_goes_on_and_reports_to_the_newest_owner(self, scene: Scene) -> None:
        host = scene.host('beta')
        stall = scene.beta.faults.stall(PRE)
        host.call(PRE, epoch=1, owner='one')
        scene.until(stall.reached.is_set)
        host.poll(epoch=2, owner='two')
        assert host.report(PRE, epoch=3, owner='two').state == 'running'
        stall.release()
        scene.until(lambda: host.events.ended)
        ((reply_to, report),) = host.events.ended
        assert (reply_to, report.epoch, report.state) == ('conductor-two', 3, 'done')
        assert len(scene.world.effects('incoming')) == 1

    def test_failed_rollback_runs_again_in_the_same_epoch(self, scene: Scene) -> None:
        host = scene.host('beta')
        scene.beta.faults.fail(ROLLBACK)
        host.call(ROLLBACK)
        scene.until(lambda: host.events.ended)
        assert host.events.ended[0][1].reason is not None
        assert host.report(ROLLBACK).state == 'done'
        assert host.events.states(ROLLBACK) == ['failed', 'done']

    def test_failed_preparation_runs_again_only_in_a_later_epoch(self, scene: Scene) -> None:
        host = scene.host('beta')
        scene.beta.faults.fail(PRE, 'disk full')
        host.call(PRE)
        scene.until(lambda: host.events.ended)
        report = host.report(PRE)
        assert report.state == 'failed'
        assert 'disk full' in (report.reason or '')
        assert host.report(PRE, epoch=2).state == 'done'
        assert host.events.states(PRE) == ['failed', 'done']

    def test_poll_has_the_report_of_a_lost_event(self, scene: Scene) -> None:
        host = scene.host('beta')
        host.events.unreachable = True
        stall = scene.beta.faults.stall(PRE)
        host.call(PRE)
        stall.release()
        scene.until(lambda: host.kept(PRE).state == 'done')  # type: ignore[union-attr]
        assert host.events.ended == []

    @pytest.mark.nova_bug(1397153, 'cfb99acd6a')
    def test_unexpected_error_is_reported_as_failed(self, scene: Scene) -> None:
        """An unexpected exception ends the step, and the owner gets its text."""
        host = scene.host('beta')
        scene.beta.faults.lie('get_guest', lambda truth: 1 / 0)
        host.call(ROLLBACK)
        scene.until(lambda: host.events.ended)
        report = host.events.ended[0][1]
        assert report.state == 'failed'
        assert report.reason == f'beta failed in {ROLLBACK}: ZeroDivisionError: division by zero'


@pytest.mark.seeds(None, 1, 2)
class TestSequence:
    def test_rollback_cancels_preparation_and_cleans_after_its_end(self, scene: Scene) -> None:
        host = scene.host('beta')
        scene.beta.pre_seconds = 60.0
        host.call(PRE)
        scene.simulation.advance(30.0)
        assert scene.beta.residue(scene_module.uuid(1, 1)) != []
        assert host.report(ROLLBACK, epoch=2).state == 'done'
        assert host.events.states(PRE) == ['cancelled']
        assert host.events.states(ROLLBACK) == ['done']
        assert scene.beta.residue(scene_module.uuid(1, 1)) == []

    def test_rollback_waits_for_hung_preparation_and_blocks_no_other_guest(self, scene: Scene) -> None:
        host = scene.host('beta')
        stall = scene.beta.faults.stall(PRE, instance_uuid=scene_module.uuid(1, 1))
        host.call(PRE)
        scene.until(stall.reached.is_set)
        host.call(ROLLBACK, epoch=2)
        host.call(PRE, number=2)
        scene.until(lambda: host.events.states(PRE) == ['done'])
        scene.simulation.advance(1000)
        assert host.events.states(ROLLBACK) == []
        assert host.poll(epoch=2).refusal is None
        stall.release()
        scene.until(lambda: host.events.states(ROLLBACK) == ['done'])
        assert scene.beta.residue(scene_module.uuid(1, 1)) == []

    def test_preparation_requested_after_rollback_runs_after_it(self, scene: Scene) -> None:
        host = scene.host('beta')
        stall = scene.beta.faults.stall(PRE)
        host.call(PRE)
        scene.until(stall.reached.is_set)
        host.call(ROLLBACK, epoch=2)
        host.call(PRE, epoch=3)
        stall.release()
        scene.until(lambda: host.events.states(PRE) == ['cancelled', 'done'])
        assert host.events.states(ROLLBACK) == ['done']
        assert scene.beta.residue(scene_module.uuid(1, 1)) == ['connections', 'directory', 'guest', 'receiving process']

    def test_late_duplicate_of_rolled_back_preparation_is_refused_by_epoch(self, scene: Scene) -> None:
        host = scene.host('beta')
        host.call(PRE)
        host.call(ROLLBACK, epoch=2)
        scene.until(lambda: host.events.states(ROLLBACK))
        assert host.call(PRE, epoch=1).refusal == 'epoch'
        scene.simulation.run_ready()
        assert scene.beta.residue(scene_module.uuid(1, 1)) == []
