# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import queue
import re
import types
from typing import Any

import pytest

from migrator import exception, executors
from migrator.compute import manager, rpcapi
from migrator.objects import base, protocol
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.testing.hypervisor.hypervisor import FakeWorld
from migrator.testing.simulation.threads import Simulation
from migrator.virt import driver
from tests.unit.compute import scene as scene_module

Scene = scene_module.Scene
LIVE = 'live_migration'


def assignment(number: int, epoch: int = 2, queue: bool = True, **changes: Any) -> protocol.Assignment:
    head = protocol.Command(
        migration_uuid=scene_module.uuid(2, number),
        instance_uuid=scene_module.uuid(1, number),
        step='compute_started',
        epoch=epoch,
        owner='one',
        reply_to='conductor-one',
        boot_id='',
    )
    return protocol.Assignment(
        command=head,
        role='source',
        queue=queue,
        destination='beta',
        instance=scene_module.instance(number),
        migrate_data=protocol.LiveMigrateData(),
    ).replace(**changes)


@pytest.mark.seeds(None, 1, 2)
class TestQueue:
    def test_executor_of_the_importing_service_runs_the_live_migrations_within_the_limit(self, scene: Scene) -> None:
        scene.guests(1, 2)
        host = scene.host(executor=lambda threads: executors.ThreadExecutor(threads, 'importer'))
        for number in (1, 2):
            host.call(LIVE, number)
        scene.until(lambda: scene.alpha.jobs)
        assert [thread.name for thread in host.process.threads if thread.name.startswith('importer')] == ['importer-1']
        scene.until(lambda: len(scene.world.effects('job completed')) == 2)
        assert host.waiting == []

    def test_live_migrations_run_first_in_first_out_within_the_limit(self, scene: Scene) -> None:
        scene.guests(*range(1, 8))
        host = scene.host(max_concurrent_live_migrations=2)
        for number in range(1, 8):
            host.call(LIVE, number)
        most = 0
        while scene.world.effects('job completed') == [] or scene.alpha.jobs or host.waiting:
            scene.simulation.advance(0.5)
            most = max(most, len(scene.alpha.jobs), host.running)
        assert most == 2
        order = [int(effect.instance_uuid[-2:]) for effect in scene.world.effects('job started')]
        assert sorted(order) == list(range(1, 8))
        assert all(abs(number - place) <= 1 for place, number in enumerate(order, start=1))
        assert host.waiting == []

    def test_limit_of_one_runs_live_migrations_in_call_order(self, scene: Scene) -> None:
        scene.guests(1, 2, 3, 4)
        host = scene.host()
        for number in (3, 1, 4, 2):
            host.call(LIVE, number)
        scene.until(lambda: len(scene.world.effects('job completed')) == 4)
        assert [int(e.instance_uuid[-2:]) for e in scene.world.effects('job started')] == [3, 1, 4, 2]

    def test_entry_exists_from_the_reply_until_the_slot(self, scene: Scene) -> None:
        scene.guests(1, 2)
        host = scene.host()
        host.call(LIVE, 1)
        host.call(LIVE, 2)
        scene.until(lambda: scene.alpha.jobs)
        assert host.waiting == [scene_module.uuid(2, 2)]
        assert (host.poll(1).entry, host.poll(2).entry) == ('started', 'queued')
        scene.until(lambda: len(host.events.states(LIVE)) == 4)
        assert host.waiting == []

    def test_changed_limit_applies_to_waiting_live_migrations(self, scene: Scene) -> None:
        scene.guests(*range(1, 6))
        host = scene.host()
        for number in range(1, 6):
            host.call(LIVE, number)
        scene.until(lambda: scene.alpha.jobs)
        host.conf.set_override('max_concurrent_live_migrations', 3)
        host.manager.reset()
        scene.simulation.run_ready()
        assert len(scene.alpha.jobs) == 3
        host.conf.set_override('max_concurrent_live_migrations', 1)
        host.manager.reset()
        scene.simulation.run_ready()
        assert len(scene.alpha.jobs) == 3
        scene.until(lambda: len(scene.world.effects('job completed')) == 3)
        scene.simulation.run_ready()
        assert len(scene.alpha.jobs) <= 1
        scene.until(lambda: len(scene.world.effects('job completed')) == 5)

    def test_hung_job_holds_its_slot_and_no_lock(self, scene: Scene) -> None:
        scene.guests(1, 2, 3)
        scene.alpha.faults.stall('copying')
        host = scene.host()
        for number in (1, 2):
            host.call(LIVE, number)
        scene.simulation.advance(1000)
        assert host.call(LIVE, 3).refusal is None
        assert [observation.entry for observation in (host.poll(1), host.poll(2), host.poll(3))] == [
            'started', 'queued', 'queued',
        ]  # fmt: skip


@pytest.mark.seeds(None, 1, 2)
class TestRestart:
    @pytest.mark.nova_bug(1753676)
    def test_restart_attaches_to_running_job_before_rpc_listens(self, scene: Scene) -> None:
        """The job goes on, and its end is reported."""
        scene.guests(1, 2)
        first = scene.host()
        first.call(LIVE, 1)
        scene.until(lambda: scene.alpha.jobs)
        first.kill()
        again = scene.host(start=False)
        again.events.assignments = [assignment(1, queue=False), assignment(2)]
        slots: list[int] = []
        again.wire.serve = lambda target, endpoint: slots.append(again.running) or again.wire  # type: ignore[func-returns-value, method-assign, redundant-expr]  # noted, then served
        again.start()
        assert slots == [1]
        assert again.waiting == [scene_module.uuid(2, 2)]
        observation = again.poll(1, epoch=2)
        assert (observation.entry, observation.guest.job) == ('started', True)
        scene.until(lambda: again.events.states(LIVE).count('done') == 2)
        assert [report.result for _, report in again.events.ended if report.state == 'done'] == [
            {'verdict': 'completed'}, {'verdict': 'completed'},
        ]  # fmt: skip
        assert len(scene.world.effects('job started')) == 2

    def test_job_keeps_its_slot_while_attach_fails(self, scene: Scene) -> None:
        scene.guests(1, 2)
        first = scene.host()
        first.call(LIVE, 1)
        scene.until(lambda: scene.alpha.jobs)
        first.kill()
        scene.alpha.faults.fail('attach_live_migration')
        again = scene.host()
        again.call(LIVE, 2)
        scene.simulation.run_ready()
        assert again.waiting == [scene_module.uuid(2, 2)]
        assert list(scene.alpha.jobs) == [scene_module.uuid(1, 1)]
        scene.until(lambda: again.events.states(LIVE)[-1:] == ['done'])
        assert len(scene.world.effects('job started')) == 2

    def test_job_of_an_earlier_boot_ends_without_verdict_if_the_driver_returns_none(self, scene: Scene) -> None:
        scene.guests(1)
        first = scene.host()
        first.call(LIVE, 1)
        scene.until(lambda: scene.alpha.jobs)
        first.kill()
        scene.alpha.faults.lie('attach_live_migration', 'no verdict')
        again = scene.host()
        again.call(LIVE, 1, epoch=2)
        scene.until(lambda: again.events.states(LIVE)[-1:] == ['failed'])
        assert again.events.ended[-1][1].result == {'verdict': ''}

    def test_job_that_ends_before_its_assignment_keeps_its_verdict(self, scene: Scene) -> None:
        scene.guests(1)
        first = scene.host()
        first.call(LIVE, 1)
        scene.until(lambda: scene.alpha.jobs)
        first.kill()
        again = scene.host(start=False)
        again.events.unreachable = True
        again.start()
        scene.until(lambda: not scene.alpha.jobs)
        again.events.unreachable = False
        again.events.assignments = [assignment(1, queue=False)]
        scene.until(lambda: again.events.started)
        scene.simulation.run_ready()
        observation = again.poll(1, epoch=2)
        assert (observation.entry, observation.verdict) == ('returned', 'completed')

    def test_abort_of_attached_job_cancels_it(self, scene: Scene) -> None:
        scene.guests(1)
        first = scene.host()
        first.call(LIVE, 1)
        scene.until(lambda: scene.alpha.jobs)
        first.kill()
        again = scene.host(start=False)
        again.events.assignments = [assignment(1, queue=False)]
        again.start()
        again.call('live_migration_abort', 1, epoch=2)
        scene.until(lambda: again.events.states(LIVE)[-1:] == ['cancelled'])
        assert again.poll(1, epoch=2).guest.active

    def test_restart_queues_waiting_migrations_in_assignment_order(self, scene: Scene) -> None:
        scene.guests(1, 2, 3)
        host = scene.host(start=False)
        host.events.assignments = [assignment(number) for number in (2, 3, 1)]
        host.start()
        scene.until(lambda: len(scene.world.effects('job completed')) == 3)
        assert [int(e.instance_uuid[-2:]) for e in scene.world.effects('job started')] == [2, 3, 1]

    def test_assignment_with_older_epoch_is_not_queued(self, scene: Scene) -> None:
        scene.guests(1)
        host = scene.host()
        host.poll(1, epoch=5)
        host.events.assignments = [assignment(1, epoch=4)]
        host.call(LIVE, 1, boot_id='another')
        scene.until(lambda: len(host.events.started) == 2)
        scene.simulation.run()
        assert scene.world.effects('job started') == []

    def test_call_killed_before_its_job_starts_none_after_restart(self, scene: Scene) -> None:
        scene.guests(1)
        stall = scene.alpha.faults.stall('starting')
        first = scene.host()
        first.call(LIVE, 1)
        scene.until(stall.reached.is_set)
        first.kill()
        again = scene.host()
        stall.release()
        scene.simulation.run_ready()
        observation = again.poll(1, epoch=2)
        assert (observation.entry, observation.guest.job) == ('', False)
        assert scene.world.effects('job started') == []

    def test_repeated_start_gives_a_running_job_one_slot(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        scene.guests(1)
        first = scene.host()
        first.call(LIVE, 1)
        scene.until(lambda: scene.alpha.jobs)
        first.kill()
        again = scene.host(start=False)
        really = again.driver.get_node

        def fail() -> None:
            monkeypatch.setattr(again.driver, 'get_node', really)
            raise exception.ServiceUnreachable(service='The hypervisor', reason='planted')

        monkeypatch.setattr(again.driver, 'get_node', fail)
        with pytest.raises(exception.ServiceUnreachable):
            again.start()
        again.start()
        assert again.running == 1

    def test_unprepared_migration_does_not_claim_job_of_unreachable_guest(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        scene.guests(1)
        scene.alpha.faults.fail('settle')
        host = scene.host(start=False)
        host.events.assignments = [assignment(1, queue=False, destination=None, migrate_data=None)]
        host.start()
        scene.simulation.run_ready()
        assert (host.waiting, host.running) == ([], 0)
        assert [record.getMessage() for record in caplog.records if record.levelname == 'ERROR'] == []

    def test_report_at_start_names_every_guest(self, scene: Scene) -> None:
        scene.guests(1, 2)
        host = scene.host()
        (report,) = host.events.started
        assert sorted(guest.instance_uuid for guest in report.guests) == [scene_module.uuid(1, n) for n in (1, 2)]
        assert (report.host, report.boot_id, report.limit) == ('alpha', host.manager.boot_id, 1)


@pytest.mark.seeds(None, 1, 2)
class TestStop:
    def test_stop_reports_cancelled_queue_in_one_call_and_leaves_running_job(self, scene: Scene) -> None:
        scene.guests(1, 2, 3)
        host = scene.host()
        for number in (1, 2, 3):
            host.call(LIVE, number)
        scene.until(lambda: scene.alpha.jobs)
        host.manager.cleanup_host()
        cancelled = [scene_module.uuid(2, number) for number in (2, 3)]
        assert host.events.stopping == [('alpha', host.manager.boot_id, cancelled)]
        assert host.waiting == []
        assert scene.alpha.jobs
        assert [report.migration_uuid for _, report in host.events.ended if report.state == 'cancelled'] == []

    def test_call_after_stop_is_refused_as_stopping(self, scene: Scene) -> None:
        scene.guests(1)
        host = scene.host()
        host.manager.cleanup_host()
        answer = host.call(LIVE, 1)
        assert (answer.refusal, answer.report) == ('stopping', None)

    def test_stop_queued_keep_leaves_migrations_queued(self, scene: Scene) -> None:
        scene.guests(1, 2)
        host = scene.host(stop_queued='keep')
        for number in (1, 2):
            host.call(LIVE, number)
        scene.until(lambda: scene.alpha.jobs)
        host.manager.cleanup_host()
        assert host.events.stopping == [('alpha', host.manager.boot_id, [])]
        assert host.poll(2).entry == 'queued'
        scene.simulation.run()
        assert len(scene.world.effects('job started')) == 1

    def test_stop_takes_2_s_while_driver_broker_and_handler_hang(self, scene: Scene) -> None:
        scene.guests(*range(1, 16))
        scene.alpha.faults.stall('copying', sticky=True)
        host = scene.host()
        for number in range(1, 16):
            host.call(LIVE, number)
        never = host.process.event()
        host.events.hang = never.wait
        host.wire.stop = never.wait  # type: ignore[assignment]
        began = scene.simulation.time
        stopped = scene.thread(host, host.manager.cleanup_host)
        scene.until(lambda: stopped)
        assert scene.simulation.time - began <= 2.0
        assert host.waiting == []

    def test_stop_running_wait_waits_for_running_job(self, scene: Scene) -> None:
        scene.guests(1)
        host = scene.host(stop_running='wait', stop_timeout=60)
        host.call(LIVE, 1)
        scene.until(lambda: scene.alpha.jobs)
        stopped = scene.thread(host, host.manager.cleanup_host)
        scene.until(lambda: stopped)
        assert scene.alpha.jobs == {}
        assert scene.world.effects('job completed')

    def test_stop_leaves_no_thread(self, scene: Scene) -> None:
        scene.guests(1)
        host = scene.host()
        host.call(LIVE, 1)
        scene.until(lambda: host.events.states(LIVE)[-1:] == ['done'])
        host.manager.cleanup_host()
        scene.simulation.advance(60)
        assert list(host.process.threads) == []


class TestConstruction:
    @pytest.mark.parametrize(
        ('text', 'option'),
        [
            ('stop_queued = bogus', '[compute] stop_queued'),
            ('[DEFAULT]\nmax_concurrent_live_migrations = 0', '[DEFAULT] max_concurrent_live_migrations'),
            ('stop_running = bogus', '[compute] stop_running'),
            ('stop_timeout = x', '[compute] stop_timeout'),
            ('stop_timeout =', '[compute] stop_timeout'),
            ('adopt_guests = maybe', '[compute] adopt_guests'),
            ('[DEFAULT]\nreport_interval = x', '[DEFAULT] report_interval'),
            ('[DEFAULT]\nreport_interval =', '[DEFAULT] report_interval'),
            ('[DEFAULT]\nhost = a b', '[DEFAULT] host'),
            ('[libvirt]\nlive_migration_timeout_action = pray', '[libvirt] live_migration_timeout_action'),
        ],
    )
    def test_invalid_option_raises_error_at_construction(self, tmp_path: Any, text: str, option: str) -> None:
        """Without the check a stop failed at once, or the heartbeat ended with an error."""
        path = tmp_path / 'migrator.conf'
        path.write_text(f'[compute]\n{text}\n')
        conf = scene_module.configuration()
        conf([], default_config_files=[str(path)])
        with Simulation() as simulation:
            world = FakeWorld(simulation.world)
            driver = FakeDriver(world.add('alpha'), simulation.world)
            with pytest.raises(exception.ConfigurationError, match=rf'Option {re.escape(option)} is .*give '):
                manager.ComputeManager(conf, 'alpha', driver, simulation.world, scene_module.Events())

    def test_construction_starts_no_thread_and_sends_nothing(self, scene: Scene) -> None:
        host = scene.host(start=False)
        scene.simulation.run_ready()
        assert list(host.process.threads) == []
        assert host.events.started == []
        assert host.wire.serving == []

    def test_start_without_rpc_raises_value_error(self, scene: Scene) -> None:
        host = scene.host(start=False)
        host.manager._rpc = None
        with pytest.raises(ValueError, match='needs an RPC'):
            host.manager.start()

    def test_started_host_listens_under_its_name_and_sends_heartbeats(self, scene: Scene) -> None:
        host = scene.host(report_interval=10)
        ((target, endpoint),) = host.wire.serving
        assert (target.topic, target.server, endpoint) == (rpcapi.TOPIC, 'alpha', host.manager)
        scene.simulation.advance(35)
        assert len(host.events.beats) == 3
        assert host.events.beats[-1].node is not None

    def test_each_start_has_its_boot_id_and_version_may_be_capped(self, scene: Scene) -> None:
        first, second = scene.host(start=False), scene.host(start=False, service_version_cap=2)
        assert first.manager.boot_id != second.manager.boot_id
        assert second.manager.version == 2

    def test_answers_survive_serialization(self, scene: Scene) -> None:
        scene.guests(1)
        host = scene.host()
        for answer in (host.call(LIVE), host.poll(), host.call('live_migration_abort')):
            again = base.from_primitive(base.to_primitive(answer))
            assert base.to_primitive(again) == base.to_primitive(answer)


def test_native_threads_migrate_twenty_guests_and_leave_nothing_behind() -> None:
    threads = executors.NativeThreads()
    world = FakeWorld(threads)
    # The link is so fast that the copies take almost no time.
    source, destination = (world.add(host, vcpus=64, link=1e9) for host in ('alpha', 'beta'))
    receiver = FakeDriver(destination, threads)
    events = scene_module.Events()
    finished: queue.SimpleQueue[Any] = queue.SimpleQueue()
    events.step_ended = lambda reply_to, report: finished.put(report)  # type: ignore[method-assign]
    conf = scene_module.configuration(max_concurrent_live_migrations=3)
    made = manager.ComputeManager(conf, 'alpha', FakeDriver(source, threads), threads, events, scene_module.Wire())
    made.start()
    command_of = scene_module.Host.command
    host: Any = types.SimpleNamespace(manager=made)
    # A host refuses commands as "starting" until it is registered, and a conductor polls again.
    while made.poll_live_migrations(scene_module.CONTEXT, [command_of(host, 'poll')], [], 60.0)[0].refusal:
        pass
    for number in range(1, 21):
        source.spawn(scene_module.instance(number))
        receiver.pre_live_migration(scene_module.instance(number), protocol.LiveMigrateData(), driver.NeverCancelled())
        answer = made.live_migration(
            scene_module.CONTEXT,
            command_of(host, LIVE, number),
            scene_module.instance(number),
            'beta',
            protocol.LiveMigrateData(),
        )
        assert answer.refusal is None
    verdicts = [report.result for report in (finished.get(timeout=60) for _ in range(40)) if report.state == 'done']
    assert verdicts == [{'verdict': 'completed'}] * 20
    assert made._waiting_live_migrations == {}
    assert world.violations == []
    made.cleanup_host()
