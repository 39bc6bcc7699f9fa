# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

from collections.abc import Callable

import pytest

from migrator import context, exception
from migrator.conductor import rpcapi
from migrator.objects import COMPUTE_BINARY, CURRENT_VERSION, protocol
from migrator.testing.placement_faults import Fault
from tests import work
from tests.unit.conductor import stage as stages

Stage = stages.Stage


class TestLease:
    def test_conductor_renews_its_lease_and_gives_it_back_at_stop(self, stage: Stage) -> None:
        owner = stage.tools.owner
        stage.simulation.advance(60)
        assert stage.tools.owner == owner
        assert stage.database.conductors.server_of(owner) == 'conductor1'
        stage.do(stage.cloud.conductors['conductor1'].stop)
        assert stage.database.conductors.server_of(owner) is None
        (service,) = stage.database.services.list(binary='nova-conductor')
        assert not service.is_up(stage.database.services.now(), 60)

    def test_expired_lease_gives_a_new_id_and_releases_migrations(self, stage: Stage) -> None:
        owner = stage.tools.owner
        process = stage.cloud.processes['conductor1']
        stage.simulation.pause(process)
        stage.simulation.advance(20)
        stage.simulation.resume(process)
        stage.simulation.advance(10)
        assert stage.tools.owner != owner
        assert stage.database.conductors.server_of(stage.tools.owner) == 'conductor1'

    def test_conductor_reports_among_the_services(self, stage: Stage) -> None:
        service = stage.database.services.list(binary='nova-conductor')[0]
        stage.simulation.advance(30)
        assert (service.host, service.version) == ('conductor1', CURRENT_VERSION)
        assert stage.database.services.get(service.id).last_seen_up > service.last_seen_up

    def test_stopped_conductors_migration_is_taken_over_at_once(self, build: Callable[..., Stage]) -> None:
        stage = build(conductors=2)
        stall = stage.host('host1').faults.stall('copying')
        migration = stage.begin()
        stage.until(stall.reached.is_set)
        server = stage.database.conductors.server_of(stage.row(migration).owner or '') or ''
        stage.cloud.processes[server].start(stage.cloud.conductors.pop(server).stop, name='stop')
        stage.until(lambda: stage.row(migration).epoch == 2, 8)
        stall.release()
        assert stage.end(migration).status == 'completed'
        stage.check(migration, 'host2')


class TestReload:
    def test_periodic_tasks_follow_changed_options(self, build: Callable[..., Stage]) -> None:
        """Both options may change while the service runs. The interval used to stay that of the start."""
        stage = build(options={'conductor.sweep_interval': 5, 'conductor.poll_interval': 5})
        conductor = stage.cloud.conductors['conductor1']
        ticks = {'sweep': 0, 'poll': 0}

        def counted(name: str, function: Callable[[], None]) -> Callable[[], None]:
            def tick() -> None:
                ticks[name] += 1
                function()

            return tick

        for task in conductor._periodics.values():
            if task._name in ticks:
                task._function = counted(task._name, task._function)
        stage.simulation.advance(100)
        assert (18 <= ticks['sweep'] <= 22, 36 <= ticks['poll'] <= 44) == (True, True)
        for name in ('sweep_interval', 'poll_interval'):
            conductor.conf.set_override(name, 0.5, group='conductor')
        stage.simulation.advance(6)
        ticks.update(sweep=0, poll=0)
        stage.simulation.advance(100)
        assert (180 <= ticks['sweep'] <= 222, 360 <= ticks['poll'] <= 444) == (True, True)


class TestCallsOfTheAPI:
    def test_service_is_deleted_with_its_providers_once_it_is_down_and_empty(self, stage: Stage) -> None:
        service = stage.database.services.get_compute('host1')
        with pytest.raises(exception.ServiceInUse, match='host1 cannot be deleted: it is up'):
            stage.conductor_api.delete_service(context.admin_context(), service.uuid)
        stage.cloud.kill('host1')
        stage.database.services.update(service.id, forced_down=True)
        with pytest.raises(exception.ServiceInUse, match=f'instance {stage.instance.uuid} is on it'):
            stage.conductor_api.delete_service(context.admin_context(), service.uuid)
        unused = stage.database.services.get_compute('host3')
        stage.cloud.kill('host3')
        stage.database.services.update(unused.id, forced_down=True)
        stage.conductor_api.delete_service(context.admin_context(), unused.uuid)
        assert stage.database.services.list(host='host3') == []
        assert [node.host for node in stage.database.services.list_nodes()] == ['host1', 'host2']
        with pytest.raises(exception.ServiceNotFound):
            stage.conductor_api.delete_service(context.admin_context(), unused.uuid)

    def test_host_reports_diagnostics_and_uptime_through_a_conductor(self, stage: Stage) -> None:
        found = stage.conductor_api.get_diagnostics(context.admin_context(), stage.instance)
        assert (found['state'], found['diagnostics']['hypervisor']) == ('running', 'fake')
        assert 'load average' in (stage.conductor_api.get_host_uptime(context.admin_context(), 'host1') or '')
        stage.host('host1').faults.fail('get_diagnostics', sticky=True)
        with pytest.raises(exception.ServiceUnreachable, match=r'hypervisor of host1 is not reachable: .* look at'):
            stage.conductor_api.get_diagnostics(context.admin_context(), stage.instance)

    def test_second_live_migrate_call_raises_no_epoch(self, stage: Stage) -> None:
        migration = stage.begin()
        stage.conductor_api.live_migrate(context.admin_context(), migration.uuid)
        assert stage.end(migration).status == 'completed'
        assert stage.row(migration).epoch == 1
        stage.check(migration, 'host2')


class TestComputeAnswers:
    def answers(self, stage: Stage, host: str) -> bool:
        events = rpcapi.ConductorEvents(stage.cloud.rpc_for('newcomer', 'compute:newcomer'))
        return bool(stage.do(lambda: events.compute_answers(host, timeout=10), 10))

    def test_running_compute_answers_and_is_not_disturbed(self, stage: Stage) -> None:
        before = stage.database.services.get_compute('host1').boot_id
        assert self.answers(stage, 'host1')
        stage.simulation.advance(30)
        assert stage.database.services.get_compute('host1').boot_id == before
        assert stage.cloud.up()

    def test_killed_hanging_or_unknown_compute_does_not_answer(self, stage: Stage) -> None:
        stage.cloud.kill('host1')
        stage.simulation.pause(stage.cloud.processes['host2'])
        assert [self.answers(stage, host) for host in ('host1', 'host2', 'nowhere')] == [False, False, False]


class TestHeartbeats:
    def beat(self, stage: Stage, *hosts: str) -> None:
        """Have conductor1 receive a heartbeat of some hosts, or of all."""
        services = stage.database.services.list(COMPUTE_BINARY, list(hosts) or None)
        reports = [protocol.HostReport(host=one.host, boot_id=one.boot_id or '', version=4) for one in services]
        conductor = stage.cloud.conductors['conductor1']

        def run() -> None:
            for report in reports:
                conductor.compute_heartbeat(context.admin_context(), report=report)

        stage.do(run)

    def test_heartbeats_of_many_hosts_take_one_statement(self, still: Stage) -> None:
        work.add_hosts(still.database.engine, 'host3', 200)
        before = still.database.services.now()
        with work.counted(still.database.engine) as done:
            self.beat(still)
            still.simulation.advance(1.5)
        assert (
            len([text for text in done.statements if text.startswith('UPDATE services') and 'boot_id IN' in text]) == 1
        )
        services = still.database.services.list(COMPUTE_BINARY)
        assert len(services) == 200
        assert all(one.last_seen_up is not None and one.last_seen_up >= before for one in services)

    def test_heartbeat_that_waits_does_not_bring_back_a_stopped_boot(self, still: Stage) -> None:
        self.beat(still, 'host2', 'host3')
        conductor, boot = still.cloud.conductors['conductor1'], still.database.services.get_compute('host2').boot_id
        still.do(lambda: conductor.compute_stopping(context.admin_context(), 'host2', boot or '', []))
        seen = still.database.services.now()
        still.simulation.advance(1.5)
        assert still.database.services.get_compute('host2').last_seen_up is None
        beaten = still.database.services.get_compute('host3').last_seen_up
        assert beaten is not None
        assert abs((beaten - seen).total_seconds()) < 0.1, 'it was up when it reported, not when that is written'

    def test_heartbeat_that_waits_does_not_end_that_its_host_is_forced_down(self, still: Stage) -> None:
        self.beat(still, 'host2')
        still.simulation.advance(0.1)
        services = still.database.services
        services.update(services.get_compute('host2').id, forced_down=True)
        still.simulation.advance(1.5)
        assert services.get_compute('host2').down_since is not None, 'the host may have died since'
        self.beat(still, 'host2')
        still.simulation.advance(1.5)
        assert services.get_compute('host2').down_since is None

    def test_killed_conductor_with_heartbeats_that_wait_makes_no_host_down(self, stage: Stage) -> None:
        for _ in range(3):
            heartbeats = stage.cloud.conductors['conductor1']._heartbeats
            stage.until(lambda waiting=heartbeats: waiting._waiting, 40)
            stage.kill('conductor1')
            stage.cloud.start_conductor('conductor1')
            for _ in range(15):
                stage.simulation.advance(1)
                assert stage.cloud.up()
        assert not any(one.down_since for one in stage.database.services.list(COMPUTE_BINARY))


class TestBoots:
    """Which boot of a host is registered."""

    def known(self, stage: Stage) -> str | None:
        return stage.database.services.get_compute('host2').boot_id

    def restore(self, stage: Stage) -> None:
        """Have the database name a dead boot of host2, as after it was restored from a backup."""
        stage.do(lambda: stage.database.services.report('host2', COMPUTE_BINARY, 4, 'a dead boot'))

    def test_start_report_that_comes_late_changes_nothing(self, stage: Stage) -> None:
        before = stage.database.services.get_compute('host2')
        stage.cloud.kill('host2')
        stage.cloud.start_compute('host2')
        stage.simulation.advance(5)
        service = stage.database.services.get_compute('host2')
        assert service.boot_id != before.boot_id
        conductor = stage.cloud.conductors['conductor1']
        for replaces in (before.boot_id, None):
            late = protocol.HostReport(
                host='host2', boot_id='a dead boot', version=4, kernel='older', replaces=replaces
            )
            with pytest.raises(exception.BootReplaced):
                stage.do(lambda report=late: conductor.compute_started(context.admin_context(), report=report))
        assert stage.database.services.get_compute('host2') == service

    def test_host_known_by_a_dead_boot_registers_again(self, stage: Stage) -> None:
        boot = self.known(stage)
        self.restore(stage)
        assert self.known(stage) == 'a dead boot'
        downs = []
        for _ in range(30):
            stage.simulation.advance(2)
            service = stage.database.services.get_compute('host2')
            downs.append(not service.is_up(stage.database.services.now(), 60))
        assert self.known(stage) == boot
        assert not any(downs)

    def test_host_known_by_a_stopped_boot_registers_again(self, stage: Stage) -> None:
        boot = self.known(stage)
        self.restore(stage)
        conductor = stage.cloud.conductors['conductor1']
        stage.do(lambda: conductor.compute_stopping(context.admin_context(), 'host2', 'a dead boot', []))
        stage.simulation.advance(30)
        assert self.known(stage) == boot
        assert stage.cloud.up()

    def test_two_live_services_of_one_name_do_not_evict_each_other(self, stage: Stage) -> None:
        boot = self.known(stage)
        conductor = stage.cloud.conductors['conductor1']
        for _ in range(20):
            other = protocol.HostReport(host='host2', boot_id='another live boot', version=4)
            stage.do(lambda report=other: conductor.compute_heartbeat(context.admin_context(), report=report))
            stage.simulation.advance(10)
        assert self.known(stage) == boot
        calls = [(one.method, one.kind) for one in stage.cloud.recorder.messages]
        assert calls.count(('compute_started', 'call')) == 3, 'once for each host'

    def test_placement_ends_with_the_providers_of_the_last_boot(self, stage: Stage) -> None:
        (node,) = [one for one in stage.database.services.list_nodes() if one.host == 'host2']
        conductor = stage.cloud.conductors['conductor1']
        # The first requests meet conflicts, so there is a pause before the last one.
        stage.cloud.adapter.inject(Fault.CONFLICT, url=node.uuid, times=4)

        def cores() -> int:
            path = f'/resource_providers/{node.uuid}/inventories'
            return stage.cloud.placement.adapter().get(path, microversion='1.39').json()['inventories']['VCPU']['total']  # type: ignore[no-any-return]  # JSON

        total, boot = cores(), self.known(stage)
        (root,) = node.providers
        inventory = {**root.inventory, 'VCPU': {**root.inventory['VCPU'], 'total': total + 8}}
        dead = node.replace(providers=[root.replace(inventory=inventory)])

        def call() -> None:
            old = protocol.HostReport(host='host2', boot_id='a dead boot', version=4, node=dead, replaces=boot)
            conductor.compute_started(context.admin_context(), report=old)

        before = len(stage.cloud.adapter.sent)
        stage.cloud.processes['conductor1'].start(call, name='late')
        stage.until(lambda: len(stage.cloud.adapter.sent) > before)
        newer = protocol.HostReport(host='host2', boot_id='the next boot', version=4, node=node, replaces='a dead boot')
        stage.do(lambda: conductor.compute_started(context.admin_context(), report=newer))
        assert self.known(stage) == 'the next boot'
        stage.until(lambda: not stage.database.services.nodes_to_place())
        stage.simulation.run_ready()
        assert (self.known(stage), cores()) == ('the next boot', total)

    def test_starting_host_does_not_wait_long_for_placement(self, stage: Stage) -> None:
        (node,) = [one for one in stage.database.services.list_nodes() if one.host == 'host2']
        conductor = stage.cloud.conductors['conductor1']
        stage.cloud.adapter.inject(Fault.UNREACHABLE, times=10)
        began = stage.simulation.time
        newer = protocol.HostReport(
            host='host2', boot_id='the next boot', version=5, node=node, replaces=self.known(stage)
        )
        stage.do(lambda: conductor.compute_started(context.admin_context(), report=newer))
        assert stage.simulation.time - began <= 2.0
        assert self.known(stage) == 'the next boot'
        assert [one.host for one in stage.database.services.nodes_to_place()] == ['host2']
        stage.until(lambda: not stage.database.services.nodes_to_place(), 120)
