# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import pytest

from migrator.objects import LiveMigrateData, Report
from migrator.testing.hypervisor.hypervisor import PARTS
from tests.unit.compute import scene as scene_module

Scene = scene_module.Scene
Host = scene_module.Host
CHECK, EVACUATE = 'check_can_evacuate', 'evacuate'
ROLLBACK, POST = 'rollback_evacuation_at_destination', 'post_evacuation_at_source'
UUID = scene_module.uuid(1, 1)


@pytest.fixture
def dead(scene: Scene) -> Scene:
    """A scene in which alpha had the guest, and has no power."""
    scene.alpha.spawn(scene_module.instance())
    stored = scene_module.FakeDriver(scene.alpha, scene.simulation.world).get_definition(UUID)
    assert stored is not None
    scene.data = LiveMigrateData(source=stored)
    scene.alpha.power_off()
    return scene


def run(scene: Scene, host: Host, step: str, epoch: int = 1, **arguments: Any) -> Report:
    """Run a step, and return its report when it has ended."""
    before = len(host.events.ended)
    answers = scene.thread(host, lambda: host.report(step, epoch=epoch, arguments=arguments))
    scene.until(lambda: answers and (answers[0].state != 'running' or len(host.events.ended) > before))
    return answers[0] if answers[0].state != 'running' else host.events.ended[-1][1]


class TestDestination:
    def test_checked_guest_is_started_and_reported(self, dead: Scene) -> None:
        host = dead.host('beta')
        data = run(dead, host, CHECK).result
        assert data.destination['host'] == 'beta'
        assert host.events.ended == [], 'the call itself returns the report of a check'
        assert host.call(EVACUATE, arguments={'migrate_data': data}).report.state == 'running'
        dead.until(lambda: host.events.states(EVACUATE))
        assert host.events.states(EVACUATE) == ['done']
        assert host.poll().guest.state == 'running'

    def test_check_refuses_a_guest_that_is_there(self, dead: Scene) -> None:
        dead.alpha.power_on()
        report = run(dead, dead.host('alpha'), CHECK)
        assert (report.state, report.result) == ('failed', {'error': 'MigrationPreCheckError'})
        assert 'remove it there if an earlier migration has left it behind' in (report.reason or '')

    @pytest.mark.parametrize('data', [{}, {'disks': 'local', 'dirty_rate': 0.0}], ids=['undefined', 'local'])
    def test_guest_without_definition_or_disks_is_neither_accepted_nor_started(
        self, dead: Scene, data: dict[str, Any]
    ) -> None:
        host = dead.host('beta')
        for step in (CHECK, EVACUATE):
            report = run(dead, host, step, migrate_data=LiveMigrateData(source=data))
            assert report.state == 'failed'
            assert 'repair alpha' in (report.reason or '')
        assert dead.beta.residue(UUID) == []

    def test_check_that_returns_none_fails_with_reason(self, dead: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        host = dead.host('beta')
        monkeypatch.setattr(host.driver, CHECK, lambda *arguments: None)
        report = run(dead, host, CHECK)
        assert (report.state, report.result) == ('failed', {'error': 'DriverError'})
        assert 'check_can_evacuate returned None' in (report.reason or '')

    @pytest.mark.seeds(None, 1, 2)
    def test_start_that_runs_is_shown_by_a_poll_and_repeated_command_attaches(self, dead: Scene) -> None:
        host = dead.host('beta')
        stall = dead.beta.faults.stall(EVACUATE)
        assert host.report(EVACUATE).state == 'running'
        dead.until(stall.reached.is_set)
        assert host.report(EVACUATE).state == 'running'
        kept = host.kept(EVACUATE)
        assert kept is not None
        assert kept.state == 'running'
        stall.release()
        dead.until(lambda: host.events.states(EVACUATE))
        assert host.report(EVACUATE).state == 'done'
        assert len(dead.world.effects('evacuated')) == 1

    def test_command_of_an_older_epoch_is_refused(self, dead: Scene) -> None:
        host = dead.host('beta')
        host.poll(epoch=2)
        assert host.call(EVACUATE, epoch=1).refusal == 'epoch'
        dead.simulation.run_ready()
        assert dead.world.effects('evacuated') == []

    def test_command_of_a_newer_epoch_finds_the_guest_and_is_done(self, dead: Scene) -> None:
        host = dead.host('beta')
        assert run(dead, host, EVACUATE).state == 'done'
        assert run(dead, host, EVACUATE, epoch=2).state == 'done'
        assert len(dead.world.effects('evacuated')) == 1

    def test_repeated_command_finishes_an_interrupted_start(self, dead: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        """The guest ran already, but was not persisted: libvirt would forget it at its next stop."""
        host, calls = dead.host('beta'), []
        assert run(dead, host, EVACUATE).state == 'done'
        monkeypatch.setattr(host.manager.driver, 'evacuate', lambda *args: calls.append(args))
        assert run(dead, host, EVACUATE, epoch=2).state == 'done'
        assert len(calls) == 1

    def test_failed_start_is_reported_and_tried_again_only_in_a_newer_epoch(self, dead: Scene) -> None:
        host = dead.host('beta')
        dead.beta.faults.fail(EVACUATE, 'disk full')
        report = run(dead, host, EVACUATE)
        assert report.state == 'failed'
        assert 'disk full' in (report.reason or '')
        assert host.report(EVACUATE).state == 'failed'
        assert run(dead, host, EVACUATE, epoch=2).state == 'done'

    @pytest.mark.seeds(None, 1, 2)
    def test_rollback_waits_for_a_hung_start_and_keeps_the_guest_that_runs(self, dead: Scene) -> None:
        host = dead.host('beta')
        stall = dead.beta.faults.stall(EVACUATE)
        host.call(EVACUATE)
        dead.until(stall.reached.is_set)
        host.call(ROLLBACK, epoch=2)
        dead.simulation.run_ready()
        assert host.events.states(ROLLBACK) == []
        stall.release()
        dead.until(lambda: host.events.states(ROLLBACK))
        report = host.events.ended[-1][1]
        assert (report.state, report.result) == ('failed', {'error': 'GuestStillHere', 'here': True})
        assert host.poll(epoch=2).guest.state == 'running'

    def test_rollback_cancels_a_start_that_has_not_begun(self, dead: Scene) -> None:
        host = dead.host('beta')
        stall = dead.beta.faults.stall(CHECK)
        dead.thread(host, lambda: host.call(CHECK))
        dead.until(stall.reached.is_set)
        host.call(EVACUATE)
        host.call(ROLLBACK, epoch=2)
        stall.release()
        dead.until(lambda: host.events.states(ROLLBACK) == ['done'])
        assert host.events.states(EVACUATE) == ['cancelled']
        assert dead.world.effects('evacuated') == []

    @pytest.mark.parametrize('state', ['running', 'paused', 'paused for cut-over', 'post-copy broken off'])
    def test_rollback_keeps_a_guest_that_is_not_shut_off(self, dead: Scene, state: str) -> None:
        host = dead.host('beta')
        dead.beta.spawn(scene_module.instance()).state = state
        report = run(dead, host, ROLLBACK)
        assert (report.state, report.result) == ('failed', {'error': 'GuestStillHere', 'here': True})
        assert host.poll().guest.state == state

    def test_rollback_removes_a_guest_that_is_shut_off(self, dead: Scene) -> None:
        host = dead.host('beta')
        stopped = scene_module.instance().replace(vm_state='stopped')
        assert run(dead, host, EVACUATE, instance=stopped).state == 'done'
        assert host.poll().guest.state == 'shutdown'
        assert run(dead, host, ROLLBACK, epoch=2).state == 'done'
        assert dead.beta.residue(UUID) == []


class TestSource:
    def test_shut_off_copy_is_removed(self, dead: Scene) -> None:
        run(dead, dead.host('beta'), EVACUATE)
        dead.alpha.power_on()
        assert run(dead, dead.host('alpha'), POST).state == 'done'
        assert dead.alpha.residue(UUID) == []
        assert dead.world.effects('ended') == []
        assert dead.world.active_on(UUID) == ['beta']

    def test_copy_that_is_gone_is_done(self, dead: Scene) -> None:
        run(dead, dead.host('beta'), EVACUATE)
        dead.alpha.power_on()
        host = dead.host('alpha')
        for epoch in (1, 2):
            assert run(dead, host, POST, epoch=epoch).state == 'done'

    @pytest.mark.parametrize('runs_at', [None, 'alpha'])
    @pytest.mark.parametrize('state', ['running', 'paused', 'post-copy broken off'])
    def test_active_copy_is_kept_unless_another_host_runs_the_guest(
        self, scene: Scene, runs_at: str | None, state: str
    ) -> None:
        scene.alpha.spawn(scene_module.instance()).state = state
        report = run(scene, scene.host('alpha'), POST, runs_at=runs_at)
        assert (report.state, report.result) == ('failed', {'error': 'GuestStillHere', 'here': True})
        assert scene.alpha.residue(UUID) == sorted([*PARTS[:2], 'guest'])

    def test_active_copy_is_ended_when_another_host_runs_the_guest(self, scene: Scene) -> None:
        scene.alpha.spawn(scene_module.instance())
        host = scene.host('alpha')
        scene.data = LiveMigrateData(source=host.driver.get_definition(UUID) or {})
        assert run(scene, scene.host('beta'), EVACUATE).state == 'done'
        assert scene.world.active_on(UUID) == ['alpha', 'beta']
        assert run(scene, host, POST).state == 'failed'
        assert run(scene, host, POST, epoch=2, runs_at='beta').state == 'done'
        assert scene.world.active_on(UUID) == ['beta']
        assert [effect.host for effect in scene.world.effects('ended')] == ['alpha']
        assert scene.world.violations == []

    def test_copy_with_a_job_is_kept_until_another_host_runs_the_guest(self, scene: Scene) -> None:
        scene.guests(1)
        host = scene.host('alpha')
        scene.alpha.set_link(1.0)
        other = scene_module.FakeDriver(scene.alpha, scene.simulation.world)
        scene.simulation.world.start(
            lambda: other.live_migration(scene_module.instance(), 'beta', scene.data, lambda: None), name='earlier'
        )
        scene.until(lambda: scene.alpha.jobs)
        other.live_migration_force_complete(scene_module.instance())
        assert host.poll().guest.state == 'paused for cut-over'
        report = run(scene, host, POST)
        assert (report.state, report.result) == ('failed', {'error': 'GuestStillHere', 'here': True})
        assert UUID in scene.alpha.guests

    def test_failed_cleanup_runs_again_in_the_same_epoch(self, dead: Scene) -> None:
        run(dead, dead.host('beta'), EVACUATE)
        dead.alpha.power_on()
        host = dead.host('alpha')
        dead.alpha.faults.fail(POST, 'busy')
        host.call(POST)
        dead.until(lambda: host.events.states(POST) == ['failed'])
        host.call(POST)
        dead.until(lambda: host.events.states(POST) == ['failed', 'done'])
        assert dead.alpha.residue(UUID) == []


class TestDefinitions:
    def test_guests_have_their_definitions_and_others_are_left_out(self, scene: Scene) -> None:
        scene.guests(1, 2)
        host = scene.host('alpha')
        uuids = [scene_module.uuid(1, number) for number in (1, 2, 3)]
        found = host.manager.get_definitions(scene_module.CONTEXT, uuids, 1.0)
        assert {uuid: one['disks'] for uuid, one in found.items()} == {uuids[0]: 'shared', uuids[1]: 'shared'}

    def test_guest_that_is_awaited_has_none(self, scene: Scene) -> None:
        scene.guests(1)
        assert scene.host('beta').manager.get_definitions(scene_module.CONTEXT, [UUID], 1.0) == {}

    @pytest.mark.parametrize('fault', ['hangs', 'fails', 'cannot be sent'])
    def test_guest_whose_driver_does_not_reply_is_left_out(self, scene: Scene, fault: str) -> None:
        scene.guests(1, 2)
        host = scene.host('alpha')
        faults, method = scene.alpha.faults, 'get_definition'
        if fault == 'hangs':
            faults.stall(method, instance_uuid=UUID)
        elif fault == 'fails':
            faults.fail(method, instance_uuid=UUID)
        else:
            faults.lie(method, {'disks': object()}, instance_uuid=UUID)
        uuids = [UUID, scene_module.uuid(1, 2)]
        found = scene.thread(host, lambda: host.manager.get_definitions(scene_module.CONTEXT, uuids, 2.0))
        scene.until(lambda: found)
        assert list(found[0]) == uuids[1:]

    def test_hung_definition_delays_no_poll_and_blocks_one_thread(self, scene: Scene) -> None:
        scene.guests(1)
        host = scene.host('alpha')
        stall = scene.alpha.faults.stall('get_definition', sticky=True)
        for _ in range(3):
            found = scene.thread(host, lambda: host.manager.get_definitions(scene_module.CONTEXT, [UUID], 2.0))
            scene.until(lambda found=found: found)
            assert found == [{}]
        assert scene.alpha.faults.planted[0].count == 1
        assert host.poll().guest.state == 'running'
        stall.release()
