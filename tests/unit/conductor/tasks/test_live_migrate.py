# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from migrator.conductor.migration import allocations
from migrator.conductor.tasks import live_migrate
from migrator.objects import base
from tests.unit.conductor import stage as stages

Stage = stages.Stage
DESTINATION_CHECK = 'check_can_live_migrate_destination'
SOURCE_CHECK = 'check_can_live_migrate_source'
POST_SOURCE = 'post_live_migration_at_source'
POST_DESTINATION = 'post_live_migration_at_destination'


class TestTheSaga:
    #: The protocol's table of steps.
    STEPS = (
        ('move_allocation', 'compensatable', True),
        (DESTINATION_CHECK, 'compensatable', True),
        (SOURCE_CHECK, 'compensatable', False),
        ('pre_live_migration', 'compensatable', True),
        ('live_migration', 'pivot', True),
        ('update_instance_host', 'retriable', False),
        (POST_SOURCE, 'retriable', False),
        (POST_DESTINATION, 'retriable', False),
        ('release_source_allocation', 'retriable', False),
        ('complete', 'retriable', False),
    )

    def test_the_steps_and_their_kinds_are_those_of_the_protocol(self) -> None:
        saga = live_migrate.saga()
        assert [(step.name, step.kind.value, step.undo is not None) for step in saga.steps] == list(self.STEPS)
        assert [[step.name for step in group] for group in saga.groups if len(group) > 1] == [
            [POST_SOURCE, POST_DESTINATION]
        ]

    def test_every_undo_is_the_one_of_the_table_and_the_source_is_restored_when_the_destination_is_clean(self) -> None:
        saga = live_migrate.saga()
        steps = {step.name: step for step in saga.steps}
        assert steps['move_allocation'].undo is allocations.return_allocation
        assert steps[DESTINATION_CHECK].undo is live_migrate.rollback_live_migration_at_destination
        assert steps['pre_live_migration'].undo is live_migrate.rollback_live_migration_at_destination
        assert saga.pivot.undo is live_migrate.rollback_live_migration_at_source
        assert saga.pivot.undo_after == 'pre_live_migration'

    def test_only_what_changes_nothing_outside_of_the_database_goes_without_an_intent(self) -> None:
        without = {step.name for step in live_migrate.saga().steps if step.intent is None}
        assert without == {DESTINATION_CHECK, SOURCE_CHECK, 'update_instance_host', 'complete'}

    def test_the_whole_saga_is_on_the_first_screen(self) -> None:
        lines, first = inspect.getsourcelines(live_migrate.saga)
        header = 13
        assert first + len(lines) - header <= 60, 'the licence aside, 60 lines'

    def test_step_functions_are_in_order_of_saga(self) -> None:
        saga = live_migrate.saga()
        own = [step.do for step in saga.steps if inspect.getmodule(step.do) is live_migrate]
        places = [inspect.getsourcelines(do)[1] for do in own]
        assert places == sorted(places)


class TestBeforeTheMove:
    def test_forced_it_goes_there_without_asking_for_candidates(self, stage: Stage) -> None:
        migration = stage.begin('host3', force=True)
        assert stage.end(migration).status == 'completed'
        stage.check(migration, 'host3')
        assert not any('allocation_candidates' in url for _, url in stage.cloud.adapter.sent)

    def test_late_destination_check_leaves_nothing_at_rejected_host(self, build: Callable[..., Stage]) -> None:
        """Each further candidate needs an epoch in which what was sent to the one before it is refused."""
        stage = build(hosts=4)
        stage.host('host2').faults.fail(DESTINATION_CHECK)
        late: list[Any] = []

        def fault(message: Any) -> Any:
            if message.method == DESTINATION_CHECK and message.target.server == 'host3' and message.kind == 'call':
                late.append(message)
                return 200.0
            return None

        stage.cloud.bus.faults = fault
        migration = stage.begin()
        row = stage.end(migration)
        assert (row.status, row.dest_compute, row.attempt) == ('completed', 'host4', 3)
        stage.simulation.advance(300)
        assert late
        stage.check(migration, 'host4')

    def test_late_source_check_is_not_used_for_next_candidate(self, build: Callable[..., Stage]) -> None:
        stage = build(hosts=4)
        stage.host('host2').faults.fail(DESTINATION_CHECK)
        lost: list[Any] = []

        def fault(message: Any) -> Any:
            if message.method == SOURCE_CHECK and message.kind == 'call' and len(lost) < 2:
                lost.append(message)
                return 'lose_answer'
            return None

        stage.cloud.bus.faults = fault
        migration = stage.begin()
        row = stage.end(migration, 4000)
        assert lost
        assert (row.status, row.dest_compute, row.attempt) == ('completed', 'host4', 3)
        stage.check(migration, 'host4')

    def test_late_preparation_command_leaves_nothing_behind(self, stage: Stage) -> None:
        late: list[Any] = []

        def fault(message: Any) -> Any:
            if message.method == 'pre_live_migration' and message.kind == 'call' and not late:
                late.append(message)
                return 100.0
            return None

        stage.cloud.bus.faults = fault
        migration = stage.begin('host2')
        stage.until(lambda: late)
        stage.abort(migration)
        row = stage.end(migration)
        assert row.status == 'cancelled'
        stage.simulation.advance(200)
        stage.check(migration, 'host1')


def rollbacks(stage: Stage, monkeypatch: pytest.MonkeyPatch, host: str) -> list[Any]:
    """Return a list of the data that the driver of a host receives when it undoes a migration."""
    found: list[Any] = []
    role = 'source' if host == 'host1' else 'destination'
    real = getattr(stage.cloud.computes[host].driver, f'rollback_live_migration_at_{role}')

    def rollback(instance: Any, migrate_data: Any) -> None:
        found.append(migrate_data)
        real(instance, migrate_data)

    monkeypatch.setattr(stage.cloud.computes[host].driver, real.__name__, rollback)
    return found


@pytest.mark.parametrize(
    ('fails', 'at', 'host'),
    [
        ('pre_live_migration', 'host2', 'host2'),
        ('check_can_live_migrate_source', 'host1', 'host2'),
        ('copying', 'host1', 'host1'),
        ('copying', 'host1', 'host2'),
    ],
)
def test_driver_that_undoes_gets_the_newest_data_of_the_hosts(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, fails: str, at: str, host: str
) -> None:
    found = rollbacks(stage, monkeypatch, host)
    stage.host(at).faults.fail(fails)
    migration = stage.begin('host2')
    assert stage.end(migration).status == 'failed'
    assert [data.destination['address'] for data in found] == ['fake://host2']
    assert ('ready' in found[0].destination) is (fails == 'copying')


def test_deferred_cleanup_after_a_failed_preparation_has_the_data_of_the_checks(build: Callable[..., Stage]) -> None:
    stage = build(options={'conductor.post_max_attempts': 1})
    stage.host('host2').faults.fail('pre_live_migration')
    stage.host('host2').faults.fail('rollback_live_migration_at_destination', sticky=True)
    migration = stage.begin('host2')
    assert stage.end(migration).status == 'failed'
    (cleanup,) = stage.database.cleanups.list()
    assert cleanup.input is not None
    assert base.from_primitive(cleanup.input['migrate_data']).source['host'] == 'host1'
