# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import datetime
from collections.abc import Callable

import prometheus_client
import pytest

from migrator import exception
from migrator.conductor import audit, metrics
from migrator.placement_client.audit import VERDICTS, Finding
from migrator.testing.placement_faults import Fault
from tests.unit.conductor import stage as stages

Stage = stages.Stage

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


#: What each conductor counts of its migrations and drains.
COUNTED = {
    'migrator_drains',
    'migrator_drains_ended',
    'migrator_migrations_ended',
    'migrator_migrations_held',
    'migrator_migrations_in_progress',
    'migrator_migrations_stuck',
    'migrator_migrations_waiting',
    'migrator_next_attempts',
    'migrator_slots_limit',
    'migrator_slots_used',
    'migrator_step_seconds',
    'migrator_takeovers',
}


def finding(verdict: str, consumer: str = 'c', provider: str = 'p') -> Finding:
    return Finding(
        consumer=consumer,
        consumer_type='MIGRATION',
        provider=provider,
        resources={'VCPU': 1},
        verdict=verdict,
        reason='planted by the test',
        since=None,
        remedy='none',
    )


def findings(registry: prometheus_client.CollectorRegistry) -> dict[str, float]:
    """Return the number of findings by verdict."""
    (family,) = [one for one in registry.collect() if one.name == 'migrator_placement_findings']
    return {sample.labels['verdict']: sample.value for sample in family.samples}


def number_of(registry: prometheus_client.CollectorRegistry, result: str) -> float | None:
    """Return the number of audits with a result."""
    return registry.get_sample_value('migrator_placement_audits_total', {'result': result})


class TestAudits:
    @pytest.fixture
    def registry(self) -> prometheus_client.CollectorRegistry:
        return prometheus_client.CollectorRegistry()

    def test_every_verdict_is_zero_before_the_first_audit(self, registry: prometheus_client.CollectorRegistry) -> None:
        metrics.Audits(registry)
        assert findings(registry) == dict.fromkeys(VERDICTS, 0)
        assert registry.get_sample_value('migrator_placement_audit_time_seconds') == 0
        assert (number_of(registry, 'done'), number_of(registry, 'failed')) == (0, 0)

    def test_findings_of_an_audit_replace_those_before(self, registry: prometheus_client.CollectorRegistry) -> None:
        audits = metrics.Audits(registry)
        audits.done([finding('leaked'), finding('leaked', provider='q'), finding('missing')], NOON, 1.5)
        assert findings(registry) == {**dict.fromkeys(VERDICTS, 0), 'leaked': 2, 'missing': 1}
        audits.done([finding('doubled')], NOON, 1.5)
        assert findings(registry) == {**dict.fromkeys(VERDICTS, 0), 'doubled': 1}
        assert number_of(registry, 'done') == 2

    def test_audit_sets_its_end_and_duration(self, registry: prometheus_client.CollectorRegistry) -> None:
        metrics.Audits(registry).done([], NOON, 1.5)
        assert registry.get_sample_value('migrator_placement_audit_time_seconds') == NOON.timestamp()
        assert registry.get_sample_value('migrator_placement_audit_duration_seconds') == 1.5

    def test_failed_audit_is_counted_and_findings_stay(self, registry: prometheus_client.CollectorRegistry) -> None:
        audits = metrics.Audits(registry)
        audits.done([finding('leaked')], NOON, 1.5)
        audits.failed()
        assert (number_of(registry, 'done'), number_of(registry, 'failed')) == (1, 1)
        assert findings(registry)['leaked'] == 1
        assert registry.get_sample_value('migrator_placement_audit_time_seconds') == NOON.timestamp()


class TestMetrics:
    def test_conductor_has_these_metrics(self) -> None:
        names = {family.name for family in metrics.Metrics(list).registry.collect()}
        assert names == {
            'migrator_broker_away_seconds',
            'migrator_computes_down',
            'migrator_cleanups',
            'migrator_leases_lost',
            *COUNTED,
        }

    def test_two_conductors_in_one_process_have_separate_registries(self) -> None:
        one, other = metrics.Metrics(list), metrics.Metrics(list)
        metrics.Audits(one.registry).done([finding('leaked')], NOON, 1.5)
        assert other.registry.get_sample_value('migrator_placement_findings', {'verdict': 'leaked'}) is None
        assert not [each for each in prometheus_client.REGISTRY.collect() if each.name.startswith('migrator')]


class TestConductorMetrics:
    def held_and_stuck(self, stage: Stage) -> tuple[float | None, float | None]:
        registry = stage.cloud.conductors['conductor1'].metrics.registry
        return (
            registry.get_sample_value('migrator_migrations_held'),
            registry.get_sample_value('migrator_migrations_stuck'),
        )

    def test_held_and_stuck_migrations_are_counted(self, stage: Stage) -> None:
        assert self.held_and_stuck(stage) == (0, 0)
        stall = stage.host('host1').faults.stall('arrived')
        migration = stage.begin()
        stage.until(stall.reached.is_set)
        assert self.held_and_stuck(stage) == (1, 0)
        stage.host('host1').faults.lie('get_guest', lambda truth: truth.replace(state='running'), sticky=True)
        stall.release()
        stage.until_stuck(migration)
        assert self.held_and_stuck(stage) == (1, 1)

    def test_deferred_and_blocked_cleanups_are_counted(self, build: Callable[..., Stage]) -> None:
        stage = build(options={'conductor.post_max_attempts': 1})
        registry = stage.cloud.conductors['conductor1'].metrics.registry

        def counted() -> list[float | None]:
            return [registry.get_sample_value('migrator_cleanups', {'blocked': blocked}) for blocked in ('no', 'yes')]

        assert counted() == [0, 0]
        stage.host('host1').faults.fail('post_live_migration_at_source', 'it will not go', sticky=True)
        stage.end(stage.begin())
        stage.simulation.advance(6)
        assert counted() == [1, 0]
        (cleanup,) = stage.database.cleanups.list()
        stage.database.cleanups.block(cleanup, 'look first')
        stage.simulation.advance(6)
        assert counted() == [0, 1]

    def test_ended_migration_is_not_held_and_is_counted_by_its_status(self, stage: Stage) -> None:
        stage.end(stage.begin())
        assert self.held_and_stuck(stage) == (0, 0)
        registry = stage.cloud.conductors['conductor1'].metrics.registry
        labels = {'type': 'live-migration', 'status': 'completed'}
        assert registry.get_sample_value('migrator_migrations_ended_total', labels) == 1
        assert registry.get_sample_value('migrator_takeovers_total') == 0

    def test_each_end_is_shown_before_the_first_migration_has_ended_so(self, stage: Stage) -> None:
        value = stage.cloud.conductors['conductor1'].metrics.registry.get_sample_value
        for type_ in ('live-migration', 'evacuation', 'migration', 'resize'):
            for status in ('completed', 'failed', 'error', 'cancelled'):
                assert value('migrator_migrations_ended_total', {'type': type_, 'status': status}) == 0
        for status in ('completed', 'incomplete', 'cancelled', 'restored'):
            assert value('migrator_drains_ended_total', {'status': status}) == 0

    def test_conductor_that_cannot_renew_its_lease_shows_no_migrations_of_its_own(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stall = stage.host('host1').faults.stall('arrived')
        stage.begin()
        stage.until(stall.reached.is_set)
        assert self.held_and_stuck(stage)[0] == 1
        conductor = stage.cloud.conductors['conductor1']

        def fail(*_: object) -> bool:
            raise exception.DatabaseUnreachable(reason='planned by the test')

        with monkeypatch.context() as patch:
            patch.setattr(conductor.tools.database.conductors, 'renew', fail)
            stage.simulation.advance(conductor.conf.conductor.lease * 1.5)
            labels = {'type': 'live-migration', 'status': 'running'}
            value = conductor.metrics.registry.get_sample_value
            assert self.held_and_stuck(stage) == (0, 0)
            assert value('migrator_migrations_in_progress', labels) == 0
            assert not conductor.has_lease()

    def test_lost_lease_and_the_takeover_after_it_are_counted(self, stage: Stage) -> None:
        stall = stage.host('host1').faults.stall('arrived')
        migration = stage.begin()
        stage.until(stall.reached.is_set)
        conductor = stage.cloud.conductors['conductor1']
        stage.database.conductors.retire(conductor.tools.owner, conductor.tools.server)
        registry = conductor.metrics.registry
        stage.until(lambda: registry.get_sample_value('migrator_takeovers_total') == 1, 120)
        assert registry.get_sample_value('migrator_leases_lost_total') == 1
        stall.release()
        stage.end(migration)

    def test_conductor_without_audits_has_no_audit_metrics(self, stage: Stage) -> None:
        names = {one.name for one in stage.cloud.conductors['conductor1'].metrics.registry.collect()}
        assert names == {
            'migrator_broker_away_seconds',
            'migrator_computes_down',
            'migrator_cleanups',
            'migrator_guest_differences',
            'migrator_leases_lost',
            *COUNTED,
        }

    def test_conductor_with_audits_has_the_time_of_the_last_one(self, build: Callable[..., Stage]) -> None:
        stage = build(options={'conductor.audit_interval': 30})
        registry = stage.cloud.conductors['conductor1'].metrics.registry
        began = stage.tools.threads.clock.now().timestamp()
        stage.until(lambda: number_of(registry, 'done'), 34)
        ended = registry.get_sample_value('migrator_placement_audit_time_seconds')
        assert ended is not None
        assert 27 <= ended - began <= 34

    def test_audits_fail_while_placement_is_away(self, build: Callable[..., Stage]) -> None:
        stage = build(options={'conductor.audit_interval': 30})
        registry = stage.cloud.conductors['conductor1'].metrics.registry
        stage.cloud.adapter.inject(Fault.UNREACHABLE, method='GET', url='/resource_providers')
        stage.until(lambda: number_of(registry, 'failed'), 34)
        assert number_of(registry, 'done') == 0
        stage.until(lambda: number_of(registry, 'done'), 34)
        assert number_of(registry, 'failed') == 1


class TestWatch:
    def test_failed_audit_raises_its_error_and_is_counted(self, still: Stage) -> None:
        registry = prometheus_client.CollectorRegistry()
        clock = still.tools.threads.clock
        watch = audit.Watch(still.database, still.cloud.placement_client, clock, metrics.Audits(registry))
        still.cloud.adapter.inject(Fault.UNREACHABLE, method='GET', url='/resource_providers')
        with pytest.raises(exception.PlacementUnreachable):
            watch.look()
        assert (number_of(registry, 'done'), number_of(registry, 'failed')) == (0, 1)
        watch.look()
        assert (number_of(registry, 'done'), number_of(registry, 'failed')) == (1, 1)
