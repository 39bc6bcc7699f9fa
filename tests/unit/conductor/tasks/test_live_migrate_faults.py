# SPDX-License-Identifier: Apache-2.0

"""The saga of live_migrate.py with faults: Placement fails, hosts and conductors die."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from migrator.testing.placement_faults import Fault
from tests.unit.conductor import stage as stages

pytestmark = pytest.mark.slow

Stage = stages.Stage
#: A guest that dirties its memory faster than the link carries it, where nothing throttles it.
ENDLESS = {'dirty_rate': 10000.0, 'auto_converge_after': 0}


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

    @pytest.mark.parametrize('fault', [Fault.TIMEOUT_LATE, Fault.DUPLICATED])
    @pytest.mark.parametrize('method', ['POST', 'PUT'])
    def test_a_write_that_arrives_after_the_end_changes_nothing(self, stage: Stage, fault: Fault, method: str) -> None:
        stage.cloud.adapter.inject(fault, method=method, url='^/allocations')
        migration = stage.begin()
        assert stage.end(migration).status == 'completed'
        for response in stage.cloud.adapter.deliver():
            assert response.status_code in (204, 409)
        stage.check(migration, 'host2')

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

    def test_a_source_that_an_earlier_boot_has_begun_at_is_restored_although_the_next_cancels_in_its_queue(
        self, build: Callable[..., Stage]
    ) -> None:
        stage = build(**ENDLESS, options={'max_concurrent_live_migrations': 2}, fail_seconds=2.0)
        other = stage.begin('host3', stage.cloud.boot('other', 'host1', dirty_rate=10000.0))
        stage.until_status(other, 'running')
        fault = stage.host('host1').faults.fail('live_migration', instance_uuid=stage.instance.uuid)
        migration = stage.begin('host2')
        stage.until(lambda: fault.count)
        stage.kill('host1')
        stage.cloud.options['max_concurrent_live_migrations'] = 1
        stage.cloud.start_compute('host1')
        stage.until(lambda: migration.uuid in stage.cloud.computes['host1']._waiting_live_migrations)
        assert stage.row(migration).status == 'queued'
        stage.abort(migration)
        assert stage.end(migration, 120).status == 'cancelled'
        assert 'rollback_live_migration_at_source' in {sent.method for sent in stage.cloud.recorder.messages}


class TestConductorsThatDie:
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
