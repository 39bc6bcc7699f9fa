# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migrator.conductor import periodics
from migrator.objects import protocol
from tests import work
from tests.unit.conductor import stage as stages

Stage = stages.Stage
ENDLESS = {'dirty_rate': 10000.0, 'auto_converge_after': 0}


def observation(**more: object) -> protocol.Observation:
    fields = {'guest': protocol.Guest(instance_uuid='i', state='running', job=True), **more}
    return protocol.Observation(migration_uuid='m', host='host1', boot_id='b', epoch=1, **fields)


class TestNews:
    def test_first_observation_is_news_and_an_equal_one_is_not(self) -> None:
        assert periodics.has_news(None, observation())
        assert not periodics.has_news(observation(), observation())

    def test_only_progress_is_not_news(self) -> None:
        assert not periodics.has_news(observation(), observation(progress={'memory_total': 7}))
        assert periodics.has_news(observation(), observation(entry='returned'))
        assert periodics.has_news(observation(), observation(guest=protocol.Guest(instance_uuid='i')))


class TestSweep:
    def test_accepted_migration_without_a_message_is_taken_up(self, stage: Stage) -> None:
        migration = stage.accept()
        assert stage.end(migration, 20).status == 'completed'
        stage.check(migration, 'host2')

    def test_dead_conductors_migration_is_taken_over_within_lease_and_sweep(self, build: Callable[..., Stage]) -> None:
        stage = build(conductors=2, **ENDLESS)
        migration = stage.begin()
        stage.until_status(migration, 'running')
        owner = stage.row(migration).owner or ''
        stage.kill(stage.database.conductors.server_of(owner) or '')
        stage.until(lambda: stage.row(migration).owner != owner, 15 + 5.5 + 0.1)
        assert stage.row(migration).epoch == 2

    def test_raised_epoch_without_a_message_is_noticed(self, build: Callable[..., Stage]) -> None:
        stage = build(conductors=2, **ENDLESS)
        migration = stage.begin()
        stage.until_status(migration, 'running')
        stage.cloud.bus.faults = lambda message: 'lose' if message.kind == 'cast' else None
        stage.kill('host2')
        stage.cloud.start_compute('host2')
        stage.simulation.advance(15)
        server = stage.database.conductors.server_of(stage.row(migration).owner or '') or ''
        held = {subject.row.uuid: subject.row for subject in stage.cloud.conductors[server].runner.held()}
        assert held[migration.uuid].epoch == stage.row(migration).epoch > 1

    def test_sweep_costs_the_same_among_many_hosts(self, still: Stage) -> None:
        conductor, engine = still.cloud.conductors['conductor1'], still.database.engine
        costs = []
        for hosts in (10, 10, 300):
            work.add_hosts(engine, 'host3', hosts)
            with work.counted(engine) as done:
                still.do(conductor._sweep)
            costs.append(done)
        _, few, many = costs
        assert not few.grows_to(many)

    def test_error_with_one_migration_does_not_stop_the_sweep(self, still: Stage) -> None:
        """A host that registered at that moment ended the whole sweep. The others waited for the next one."""
        guests = [still.instance, *(still.cloud.boot(name, 'host2') for name in ('two', 'three', 'four'))]
        waiting = [still.adopt(still.accept(instance=guest)).row for guest in guests]
        for row in waiting:
            still.tools.database.conductors.retire(row.owner or '')
        conductor = still.cloud.conductors['conductor1']
        still.do(conductor.begin_boot)
        database = still.database
        adopt = database.takeovers.adopt

        def disturbed(uuids: list[str], *args: Any) -> Any:
            if waiting[1].uuid in uuids:
                raise ValueError('an unreadable row')
            taken = adopt(uuids, *args)
            if waiting[0].uuid in uuids:
                boot = database.services.get_compute('host1').boot_id
                report = protocol.HostReport(host='host1', boot_id='the next', version=4, replaces=boot)
                database.migrations.begin_boot(report, database.services)
            return taken

        still.tools.database.takeovers.adopt = disturbed  # type: ignore[method-assign] -- the moment between two looks
        still.do(conductor._sweep)
        held = {subject.row.uuid for subject in conductor.runner.held()}
        assert {waiting[2].uuid, waiting[3].uuid} <= held
        del still.tools.database.takeovers.adopt
        still.do(conductor._sweep)
        assert {row.uuid for row in waiting} <= {subject.row.uuid for subject in conductor.runner.held()}

    def test_stuck_migration_runs_once_each_sweep(self, build: Callable[..., Stage]) -> None:
        stage = build()
        stall = stage.host('host1').faults.stall('arrived')
        migration = stage.begin()
        stage.until(stall.reached.is_set)
        stage.host('host1').faults.lie('get_guest', lambda truth: truth.replace(state='running'), sticky=True)
        stall.release()
        stage.until_stuck(migration)
        asked = len(stage.cloud.recorder.messages)
        stage.simulation.advance(50)
        sent = [
            message
            for message in stage.cloud.recorder.messages[asked:]
            if message.method == 'post_live_migration_at_source' and message.kind == 'call'
        ]
        assert 8 <= len(sent) <= 12


class TestPolls:
    def test_one_poll_a_host_covers_all_migrations_without_a_report(self, build: Callable[..., Stage]) -> None:
        stage = build(options={'max_concurrent_live_migrations': 8}, **ENDLESS)
        migrations = [stage.begin()]
        for number in range(3):
            migrations.append(stage.begin(instance=stage.cloud.boot(f'other{number}', 'host1', dirty_rate=10000.0)))
        for migration in migrations:
            stage.until_status(migration, 'running')
        asked = len(stage.cloud.recorder.messages)
        stage.simulation.advance(20)
        polls = [
            message
            for message in stage.cloud.recorder.messages[asked:]
            if message.method == 'poll_live_migrations' and message.kind == 'call'
        ]
        assert 6 <= len(polls) <= 12, 'one for each poll interval, not one for each migration'

    def test_progress_of_the_copy_is_in_the_row(self, build: Callable[..., Stage]) -> None:
        stage = build(**ENDLESS)
        migration = stage.begin()
        stage.until_status(migration, 'running')
        stage.until(lambda: stage.row(migration).memory_total)
        assert stage.row(migration).memory_total == 512 * 1024 * 1024
        first = stage.row(migration).memory_processed
        stage.simulation.advance(10)
        assert (stage.row(migration).memory_processed or 0) > (first or 0)

    def test_unreachable_host_does_not_delay_another(self, build: Callable[..., Stage]) -> None:
        stage = build(hosts=4, **ENDLESS)
        first = stage.begin('host3')
        other = stage.cloud.boot('other', 'host2', dirty_rate=10000.0)
        second = stage.begin('host4', instance=other)
        for migration in (first, second):
            stage.until_status(migration, 'running')
        stage.cloud.bus.faults = lambda message: 'lose' if message.target.server == 'host1' else None
        stage.simulation.advance(10)
        before = stage.row(second).memory_processed or 0
        stage.simulation.advance(10)
        assert (stage.row(second).memory_processed or 0) > before

    def test_received_reports_are_acknowledged_and_dropped_by_the_host(self, stage: Stage) -> None:
        migration = stage.begin()
        stage.end(migration)
        stage.simulation.advance(10)
        assert stage.cloud.conductors['conductor1'].tools.hosts.unacknowledged() == []
        for host in ('host1', 'host2'):
            works = stage.cloud.computes[host]._runner._records[migration.uuid].works
            assert [step for step, work in works.items() if work.kept] in ([], ['live_migration'])
