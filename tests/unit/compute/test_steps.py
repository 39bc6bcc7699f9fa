# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from migrator.objects import GuestState, Instance, LiveMigrateData, protocol
from migrator.testing.hypervisor import driver
from tests.unit.compute import scene as scene_module

Scene = scene_module.Scene
LIVE = 'live_migration'
ABORT = 'live_migration_abort'
CHECK_DESTINATION = 'check_can_live_migrate_destination'
CHECK_SOURCE = 'check_can_live_migrate_source'
AT_SOURCE = 'rollback_live_migration_at_source'


class TestChecks:
    def test_check_replies_when_it_has_ended(self, scene: Scene) -> None:
        scene.alpha.spawn(scene_module.instance())
        source, destination = scene.host('alpha'), scene.host('beta')
        checked = scene.thread(destination, lambda: destination.report(CHECK_DESTINATION))
        scene.until(lambda: checked)
        assert (checked[0].state, checked[0].result.destination['host']) == ('done', 'beta')
        checked = scene.thread(source, lambda: source.report(CHECK_SOURCE))
        scene.until(lambda: checked)
        assert (checked[0].state, checked[0].result.source['host']) == ('done', 'alpha')

    def test_refused_check_reports_reason(self, scene: Scene) -> None:
        scene.alpha.spawn(scene_module.instance())
        host = scene.host('alpha')
        checked = scene.thread(host, lambda: host.report(CHECK_DESTINATION))
        scene.until(lambda: checked)
        assert (checked[0].state, checked[0].result) == ('failed', {'error': 'MigrationPreCheckError'})
        assert 'already' in checked[0].reason

    def test_check_without_guest_at_source_fails(self, scene: Scene) -> None:
        host = scene.host('alpha')
        checked = scene.thread(host, lambda: host.report(CHECK_SOURCE))
        scene.until(lambda: checked)
        assert checked[0].state == 'failed'
        assert 'has no guest' in checked[0].reason

    def test_hung_check_replies_running_and_frees_its_handler(self, scene: Scene) -> None:
        host = scene.host('beta')
        stall = scene.beta.faults.stall(CHECK_DESTINATION)
        checked = scene.thread(host, lambda: host.report(CHECK_DESTINATION))
        scene.until(lambda: checked)
        assert checked[0].state == 'running'
        stall.release()

    @pytest.mark.seeds(None, 1, 2)
    def test_rollback_waits_for_hung_check_and_then_removes_its_residue(self, scene: Scene) -> None:
        host = scene.host('beta')
        stall = scene.beta.faults.stall(CHECK_DESTINATION)
        scene.thread(host, lambda: host.report(CHECK_DESTINATION))
        scene.until(stall.reached.is_set)
        host.call('rollback_live_migration_at_destination', epoch=2)
        scene.simulation.run_ready()
        assert host.events.states('rollback_live_migration_at_destination') == []
        stall.release()
        scene.until(lambda: host.events.states('rollback_live_migration_at_destination') == ['done'])
        assert scene.beta.residue(scene_module.uuid(1, 1)) == []

    @pytest.mark.seeds(None, 1, 2)
    def test_repeated_check_attaches_and_both_calls_get_the_report(self, scene: Scene) -> None:
        host = scene.host('beta')
        stall = scene.beta.faults.stall(CHECK_DESTINATION)
        first = scene.thread(host, lambda: host.report(CHECK_DESTINATION))
        scene.until(stall.reached.is_set)
        second = scene.thread(host, lambda: host.report(CHECK_DESTINATION))
        scene.simulation.run_ready()
        stall.release()
        scene.until(lambda: first and second)
        assert first == second
        assert len(scene.world.effects('check file made')) == 1

    @pytest.mark.parametrize(
        ('step', 'name'),
        [(CHECK_DESTINATION, 'beta'), (CHECK_SOURCE, 'alpha'), ('pre_live_migration', 'beta')],
        ids=str,
    )
    def test_driver_that_returns_none_fails_its_step_with_reason(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch, step: str, name: str
    ) -> None:
        """Without the check the next step failed on the other host, with a Python error about None."""
        scene.alpha.spawn(scene_module.instance())
        host = scene.host(name)
        monkeypatch.setattr(host.driver, step, lambda *arguments: None)
        scene.thread(host, lambda: host.call(step))
        scene.until(lambda: (report := host.kept(step)) is not None and report.state != 'running')
        report = host.kept(step)
        assert report is not None
        assert (report.state, report.reason) == (
            'failed',
            f'{step} returned None: correct the driver to return a LiveMigrateData',
        )


class TestLiveMigration:
    def test_live_migration_reports_running_and_then_completed(self, scene: Scene) -> None:
        scene.guests(1)
        host = scene.host()
        assert host.report(LIVE).result == {'started': False}
        scene.until(lambda: len(host.events.ended) == 2)
        reports = [(report.state, report.result) for _, report in host.events.ended]
        assert reports == [('running', {'started': True}), ('done', {'verdict': 'completed'})]
        observation = host.poll()
        assert (observation.entry, observation.verdict) == ('returned', 'completed')
        assert (observation.guest.state, observation.guest.job) == ('paused for cut-over', False)
        assert host.waiting == []

    def test_failed_copy_reports_failed_and_leaves_the_guest_running(self, scene: Scene) -> None:
        scene.guests(1)
        scene.alpha.faults.fail('copying')
        host = scene.host()
        host.call(LIVE)
        scene.until(lambda: host.events.states(LIVE)[-1:] == ['failed'])
        assert host.events.ended[-1][1].result == {'verdict': 'failed'}
        observation = host.poll()
        assert (observation.entry, observation.verdict, observation.guest.active) == ('returned', 'failed', True)

    def test_driver_that_starts_no_job_reports_failed_with_reason(self, scene: Scene) -> None:
        scene.guests(1)
        scene.alpha.faults.fail(LIVE, 'no route')
        host = scene.host()
        host.call(LIVE)
        scene.until(lambda: host.events.states(LIVE))
        report = host.events.ended[-1][1]
        assert (report.state, report.result) == ('failed', {'verdict': 'failed'})
        assert 'no route' in (report.reason or '')

    @pytest.mark.nova_bug(1905944)
    def test_driver_failure_while_job_goes_on_attaches_again(self, scene: Scene) -> None:
        """A failure of the driver while it watches the job does not lose the job."""
        scene.guests(1)
        host = scene.host()
        host.call(LIVE)
        scene.until(lambda: scene.alpha.jobs)
        host.kill()
        again = scene.host(start=False)
        scene.alpha.faults.fail('attach_live_migration')
        again.start()
        again.call(LIVE, epoch=2)
        scene.until(lambda: again.events.states(LIVE)[-1:] == ['done'])
        assert len(scene.world.effects('job started')) == 1

    def test_call_for_guest_with_a_job_attaches_to_it(self, scene: Scene) -> None:
        scene.guests(1, 2)
        stall = scene.alpha.faults.stall('copying', instance_uuid=scene_module.uuid(1, 1))
        host = scene.host()
        host.call(LIVE, 2)
        host.call(LIVE, 1)
        scene.until(lambda: scene.alpha.jobs)
        other = driver.FakeDriver(scene.alpha, scene.simulation.world)
        scene.simulation.world.start(
            other.live_migration, scene_module.instance(1), 'beta', scene.data, lambda: None, name='other'
        )
        scene.until(lambda: host.events.states(LIVE).count('running') == 2)
        stall.release()
        scene.until(lambda: host.events.states(LIVE).count('done') == 2)
        assert len(scene.world.effects('job started')) == 2

    @pytest.mark.parametrize('state', [GuestState.SHUTDOWN, GuestState.CUTOVER])
    def test_guest_in_unmovable_state_fails_without_verdict(self, scene: Scene, state: str) -> None:
        scene.guests(1)
        scene.alpha.guests[scene_module.uuid(1, 1)].state = state
        host = scene.host()
        host.call(LIVE)
        scene.until(lambda: host.events.states(LIVE) == ['failed'])
        observation = host.poll()
        assert (observation.entry, observation.verdict, observation.guest.state) == ('returned', '', state)

    def test_unobserved_end_has_no_verdict(self, scene: Scene) -> None:
        scene.guests(1)
        scene.alpha.faults.fail(LIVE, after=True)
        host = scene.host()
        host.call(LIVE)
        scene.until(lambda: host.events.states(LIVE)[-1:] == ['failed'])
        observation = host.poll()
        assert (observation.entry, observation.verdict) == ('returned', '')
        assert scene.world.active_on(scene_module.uuid(1, 1)) == ['beta']

    def test_absent_guest_fails_as_gone_without_driver_call(self, scene: Scene) -> None:
        host = scene.host()
        host.call(LIVE)
        scene.until(lambda: host.events.states(LIVE) == ['failed'])
        report = host.events.ended[-1][1]
        assert (report.result, report.reason) == ({'gone': True}, f'alpha has no guest {scene_module.uuid(1, 1)}')
        observation = host.poll()
        assert (observation.entry, observation.guest.state) == ('', 'absent')

    def test_live_migration_runs_once_per_process_in_any_epoch(self, scene: Scene) -> None:
        scene.guests(1)
        scene.alpha.faults.fail('copying')
        host = scene.host()
        host.call(LIVE)
        scene.until(lambda: host.events.states(LIVE)[-1:] == ['failed'])
        report = host.report(LIVE, epoch=2)
        assert (report.state, report.result) == ('failed', {'verdict': 'failed'})
        scene.simulation.run_ready()
        assert len(scene.world.effects('job started')) == 1

    def test_guest_shut_off_by_its_user_stays_off(self, scene: Scene) -> None:
        scene.guests(1)
        host = scene.host()
        host.call(LIVE)
        scene.until(lambda: scene.alpha.jobs)
        scene.alpha.shut_off(scene_module.uuid(1, 1))
        scene.until(lambda: host.events.states(LIVE)[-1:] == ['failed'])
        host.call(AT_SOURCE, epoch=2)
        scene.until(lambda: host.events.states(AT_SOURCE) == ['done'])
        assert host.poll(epoch=2).guest.state == GuestState.SHUTDOWN


@pytest.mark.seeds(None, 1, 2)
class TestAbort:
    def test_abort_of_queued_migration_cancels_it_without_driver_call(self, scene: Scene) -> None:
        scene.guests(1, 2)
        host = scene.host()
        host.call(LIVE, number=1)
        host.call(LIVE, number=2)
        assert host.report(ABORT, number=2).result == {'cancelled': True, 'verdict': ''}
        assert host.report(ABORT, number=2).result == {'cancelled': True, 'verdict': ''}
        assert scene_module.uuid(2, 2) not in host.waiting
        scene.until(lambda: host.events.states(LIVE)[-1:] == ['done'])
        assert host.waiting == []
        assert host.poll(2).entry == ''
        assert host.kept(LIVE, 2).state == 'cancelled'  # type: ignore[union-attr]
        assert [effect.instance_uuid for effect in scene.world.effects('job started')] == [scene_module.uuid(1, 1)]

    def test_abort_of_running_migration_reports_the_drivers_verdict(self, scene: Scene) -> None:
        scene.guests(1)
        host = scene.host()
        host.call(LIVE)
        scene.until(lambda: scene.alpha.jobs)
        assert host.report(ABORT).result == {'cancelled': False, 'verdict': ''}
        scene.until(lambda: host.events.states(LIVE)[-1:] == ['cancelled'])
        assert host.events.ended[-1][1].result == {'verdict': 'aborted'}
        assert host.report(ABORT).result == {'cancelled': False, 'verdict': 'aborted'}
        assert host.poll().guest == protocol.Guest(instance_uuid=scene_module.uuid(1, 1), state='running')

    def test_abort_after_cut_over_leaves_verdict_completed(self, scene: Scene) -> None:
        scene.guests(1)
        stall = scene.alpha.faults.stall('arrived')
        host = scene.host()
        host.call(LIVE)
        scene.until(stall.reached.is_set)
        host.call(ABORT)
        scene.simulation.run_ready()
        stall.release()
        scene.until(lambda: host.events.states(LIVE)[-1:] == ['done'])
        assert host.report(ABORT).result == {'cancelled': False, 'verdict': 'completed'}

    def test_abort_between_entry_and_driver_call_is_not_lost(self, scene: Scene) -> None:
        scene.guests(1)
        stall = scene.alpha.faults.stall('get_guest')
        host = scene.host()
        host.call(LIVE)
        scene.until(stall.reached.is_set)
        assert host.report(ABORT).result == {'cancelled': False, 'verdict': ''}
        stall.release()
        scene.until(lambda: host.events.states(LIVE))
        assert host.events.states(LIVE) == ['cancelled']
        assert scene.world.effects('job started') == []

    @pytest.mark.parametrize('phase', ['starting', 'live_migration'])
    def test_abort_between_driver_call_and_job_is_not_lost(self, scene: Scene, phase: str) -> None:
        scene.guests(1)
        stall = scene.alpha.faults.stall(phase)
        host = scene.host()
        host.call(LIVE)
        scene.until(stall.reached.is_set)
        host.call(ABORT)
        scene.simulation.advance(1)
        stall.release()
        scene.until(lambda: host.events.states(LIVE)[-1:] == ['cancelled'])
        assert host.events.ended[-1][1].result == {'verdict': 'aborted'}
        assert scene.world.active_on(scene_module.uuid(1, 1)) == ['alpha']

    def test_hung_abort_blocks_neither_poll_nor_other_abort(self, scene: Scene) -> None:
        scene.guests(1, 2)
        host = scene.host(max_concurrent_live_migrations=2)
        for number in (1, 2):
            host.call(LIVE, number=number)
        scene.until(lambda: len(scene.alpha.jobs) == 2)
        stall = scene.alpha.faults.stall(ABORT, sticky=True, instance_uuid=scene_module.uuid(1, 1))
        for _ in range(3):
            host.call(ABORT, number=1)
        scene.until(stall.reached.is_set)
        host.call(ABORT, number=2)
        scene.until(lambda: 'cancelled' in host.events.states(LIVE))
        assert host.poll(1).guest.job
        assert not host.poll(2).guest.job
        stall.release()

    def test_abort_in_any_schedule_ends_cancelled_or_aborted_and_leaves_nothing(self, scene: Scene) -> None:
        scene.guests(*range(1, 11))
        host = scene.host(max_concurrent_live_migrations=3)
        results: dict[int, list[object]] = {}
        for number in range(1, 11):
            host.process.start(host.call, LIVE, number, name='live')
            results[number] = scene.thread(host, lambda number=number: host.report(ABORT, number, epoch=2))  # type: ignore[misc]
        scene.simulation.run()
        for number in range(1, 11):
            observation = host.poll(number, epoch=2)
            assert observation.guest == protocol.Guest(instance_uuid=scene_module.uuid(1, number), state='running')
            assert observation.verdict in ('', 'aborted')
        assert host.waiting == []
        assert host.running == 0


@pytest.mark.seeds(None, 1, 2)
class TestRollbackAtSource:
    def test_rollback_cancels_queued_migration_and_reports_done(self, scene: Scene) -> None:
        scene.guests(1, 2)
        host = scene.host()
        host.call(LIVE, number=1)
        host.call(LIVE, number=2)
        host.call(AT_SOURCE, number=2, epoch=2)
        scene.until(lambda: host.events.states(AT_SOURCE) == ['done'])
        assert host.waiting == []
        assert len(scene.alpha.jobs) == 1

    def test_rollback_aborts_running_job_and_then_restores_the_guest(self, scene: Scene) -> None:
        scene.guests(1)
        host = scene.host()
        host.call(LIVE)
        scene.until(lambda: scene.alpha.jobs)
        host.call(AT_SOURCE, epoch=2)
        scene.until(lambda: host.events.states(AT_SOURCE) == ['done'])
        assert host.events.states(LIVE)[-1] == 'cancelled'
        assert scene.alpha.jobs == {}

    def test_rollback_aborts_job_of_earlier_boot_before_it_restores_the_guest(self, scene: Scene) -> None:
        scene.guests(1)
        before = scene.host()
        before.call(LIVE)
        scene.until(lambda: scene.alpha.jobs)
        before.kill()
        host = scene.host()
        host.call(AT_SOURCE, epoch=2)
        scene.until(lambda: host.events.ended)
        assert host.events.ended[0][1].result == {'busy': True}
        scene.until(lambda: not scene.alpha.jobs)
        host.call(AT_SOURCE, epoch=2)
        scene.until(lambda: host.events.states(AT_SOURCE) == ['failed', 'done'])
        assert scene.world.active_on(scene_module.uuid(1, 1)) == ['alpha']

    def test_rollback_resumes_guest_left_paused_for_cut_over(self, scene: Scene) -> None:
        scene.guests(1)
        scene.alpha.leave_paused = True
        scene.alpha.faults.fail('cutover')
        host = scene.host()
        host.call(LIVE)
        scene.until(lambda: host.events.states(LIVE)[-1:] == ['failed'])
        assert host.poll().guest.state == GuestState.CUTOVER
        host.call(AT_SOURCE, epoch=2)
        scene.until(lambda: host.events.states(AT_SOURCE) == ['done'])
        assert host.poll(epoch=2).guest.active

    def test_rollback_of_absent_guest_reports_gone(self, scene: Scene) -> None:
        host = scene.host()
        host.call(AT_SOURCE)
        scene.until(lambda: host.events.ended)
        assert host.events.ended[0][1].result == {'error': 'GuestNotFound', 'gone': True}


class TestPost:
    def test_post_removes_the_source_and_persists_the_destination(self, scene: Scene) -> None:
        scene.guests(1)
        source, destination = scene.host('alpha'), scene.host('beta')
        source.call(LIVE)
        scene.until(lambda: source.events.states(LIVE)[-1:] == ['done'])
        source.call('post_live_migration_at_source')
        destination.call('post_live_migration_at_destination')
        scene.until(lambda: destination.events.ended and source.events.states('post_live_migration_at_source'))
        assert scene.alpha.residue(scene_module.uuid(1, 1)) == []
        assert scene.beta.guests[scene_module.uuid(1, 1)].persistent

    @pytest.mark.parametrize('where', ['source', 'destination'])
    def test_post_of_migration_abandoned_before_its_checks_gets_empty_data(self, scene: Scene, where: str) -> None:
        """The driver gets an empty LiveMigrateData, which names no disks, and completes the step."""
        scene.guests(1)
        scene.data = None
        host = scene.host('beta' if where == 'source' else 'alpha')
        step = f'post_live_migration_at_{where}'
        post, disks = getattr(host.driver, step), []

        def record(instance: Instance, migrate_data: LiveMigrateData) -> None:
            disks.append(migrate_data.source.get('disks'))
            post(instance, migrate_data)

        setattr(host.driver, step, record)
        host.call(step)
        scene.until(lambda: host.events.states(step))
        assert [report.state for _, report in host.events.ended] == ['done']
        assert disks == [None]

    @pytest.mark.parametrize('moving', [False, True])
    def test_post_at_source_never_destroys_a_guest_in_use_or_with_a_job(self, scene: Scene, moving: bool) -> None:
        scene.guests(1)
        host = scene.host()
        if moving:
            host.call(LIVE, number=1)
            scene.until(lambda: scene.alpha.jobs)
            host = scene.host()  # a second start of the service, which has no work for that job
        host.call('post_live_migration_at_source', migration_uuid=scene_module.uuid(2, 9))
        scene.until(lambda: host.events.states('post_live_migration_at_source'))
        report = next(r for _, r in host.events.ended if r.step == 'post_live_migration_at_source')
        assert (report.state, report.result) == ('failed', {'error': 'GuestStillHere', 'here': True})
        assert scene.alpha.guests[scene_module.uuid(1, 1)].state == GuestState.RUNNING

    def test_rollback_at_destination_never_destroys_an_arrived_guest(self, scene: Scene) -> None:
        scene.guests(1)
        source, destination = scene.host('alpha'), scene.host('beta')
        source.call(LIVE)
        scene.until(lambda: source.events.states(LIVE)[-1:] == ['done'])
        scene.beta.shut_off(scene_module.uuid(1, 1))
        destination.call('rollback_live_migration_at_destination', epoch=2)
        scene.until(lambda: destination.events.ended)
        assert destination.events.ended[0][1].result == {'error': 'GuestStillHere', 'here': True}
        assert 'guest' in scene.beta.residue(scene_module.uuid(1, 1))

    @pytest.mark.parametrize('step', ['post_live_migration_at_source', 'rollback_live_migration_at_destination'])
    def test_cleanup_of_running_guest_never_calls_the_driver(self, scene: Scene, step: str) -> None:
        scene.guests(1)
        host = scene.host()
        setattr(host.driver, step, lambda guest, _data: scene.alpha.remove(guest.uuid, host.driver.boot))
        host.call(step)
        scene.until(lambda: host.events.states(step))
        assert host.events.ended[0][1].result == {'error': 'GuestStillHere', 'here': True}
        assert scene.world.active_on(scene_module.uuid(1, 1)) == ['alpha']

    def test_post_at_destination_of_absent_guest_reports_gone(self, scene: Scene) -> None:
        host = scene.host('beta')
        host.call('post_live_migration_at_destination')
        scene.until(lambda: host.events.ended)
        assert host.events.ended[0][1].result == {'error': 'GuestNotFound', 'gone': True}


class TestPreLiveMigration:
    def test_preparation_removes_residue_of_check_and_returns_data_for_source(self, scene: Scene) -> None:
        host = scene.host('beta')
        checked = scene.thread(host, lambda: host.report('check_can_live_migrate_destination'))
        scene.until(lambda: checked)
        assert scene.beta.residue(scene_module.uuid(1, 1)) == ['check file']
        host.call('pre_live_migration')
        scene.until(lambda: host.events.states('pre_live_migration') == ['done'])
        assert 'check file' not in scene.beta.residue(scene_module.uuid(1, 1))
        assert host.kept('pre_live_migration').result.destination['ready']  # type: ignore[union-attr]


class TestForceComplete:
    def test_force_complete_ends_a_migration_that_does_not_converge(self, scene: Scene) -> None:
        scene.guests(1)
        scene.alpha.guests[scene_module.uuid(1, 1)].dirty_rate = 1000.0
        scene.alpha.auto_converge_after = 0
        host = scene.host()
        host.call(LIVE)
        scene.simulation.advance(1000)
        assert scene.alpha.jobs
        assert host.report('live_migration_force_complete').state == 'done'
        scene.until(lambda: host.events.states(LIVE)[-1:] == ['done'])

    def test_force_complete_of_ended_migration_is_no_error(self, scene: Scene) -> None:
        scene.guests(1)
        host = scene.host()
        assert host.call('live_migration_force_complete').refusal is None
        scene.simulation.run_ready()
        assert scene.world.active_on(scene_module.uuid(1, 1)) == ['alpha']
