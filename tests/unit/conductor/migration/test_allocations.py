# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa

from migrator import exception
from migrator.conductor.migration import allocations as allocation_steps
from migrator.conductor.migration import context
from migrator.conductor.tasks import live_migrate
from migrator.db import models
from migrator.placement_client import allocations
from migrator.saga import log
from migrator.saga.saga import Done, Failed, Parked, Stuck
from migrator.testing.placement_faults import Fault
from migrator.virt import driver
from tests.unit.conductor import stage as stages

Stage = stages.Stage


def intended(stage: Stage) -> context.MigrationContext:
    """Return a migration whose intent to move is committed."""
    m = stage.adopt(stage.accept())
    chosen = stage.do(lambda: live_migrate.choose_destination(m))
    m.commit([log.StepRecord('move_allocation', 'do', 'intent', 1, input=chosen)])
    return m


def again(m: context.MigrationContext) -> context.MigrationContext:
    """Have it forget, as an adopter would, that it has not sent anything yet."""
    m.step_log.first_try(m.attempt, 'move_allocation')
    return m


def moved(stage: Stage) -> context.MigrationContext:
    m = intended(stage)
    assert stage.do(lambda: allocation_steps.move_allocation(m)) == Done()
    return m


def release_intended(stage: Stage) -> context.MigrationContext:
    m = moved(stage)
    m.commit([log.StepRecord('release_source_allocation', 'do', 'intent', 1, input={})])
    return m


def undo_intended(stage: Stage) -> context.MigrationContext:
    m = moved(stage)
    m.commit([log.StepRecord('move_allocation', 'undo', 'intent', 1)])
    return m


def undo_intended_after_done(stage: Stage) -> context.MigrationContext:
    """Return a migration whose undo comes first after a move that is done in the log."""
    m = moved(stage)
    record = m.record('move_allocation')
    assert record is not None
    m.commit([dataclasses.replace(record, state='done')])
    m.commit([log.StepRecord('move_allocation', 'undo', 'intent', 1)])
    return m


def write(stage: Stage, uuid: str, *hosts: str) -> None:
    """Have an instance hold a processor on each host; for an unknown one, on a provider in no tree."""
    client = stage.cloud.placement_client
    now = allocations.read(client, uuid)
    owner = allocations.allocation_state.Consumer(
        uuid=uuid, consumer_type='INSTANCE', project_id='demo', user_id='demo'
    )
    wanted = {}
    for host in hosts:
        root = driver.node_uuid(host)
        if client.read_or_none(f'/resource_providers/{root}') is None:
            made = client.post('/resource_providers', {'uuid': root, 'name': host}).json()
            body = {'inventories': {'VCPU': {'total': 8}}, 'resource_provider_generation': made['generation']}
            client.put(f'/resource_providers/{root}/inventories', body)
        wanted[root] = {'VCPU': 1}
    allocations.claim(client, owner, wanted, generation=now.generation)


def held(stage: Stage, m: context.MigrationContext) -> tuple[list[str], list[str]]:
    """Return on which hosts the instance and the migration hold something."""
    hosts = {driver.node_uuid(host): host for host in stage.cloud.world.hypervisors}
    read = [allocations.read(stage.cloud.placement_client, uuid) for uuid in (m.row.instance_uuid, m.row.uuid)]
    first, second = ([hosts[provider] for provider in one.allocations] for one in read)
    return first, second


NOT_MOVED, MOVED, RELEASED = (['host1'], []), (['host2'], ['host1']), (['host2'], [])


class TestFirstGiveBack:
    def test_known_generation_is_written_without_a_read(self, still: Stage) -> None:
        m = undo_intended_after_done(still)
        sent = len(still.cloud.adapter.sent)
        assert still.do(lambda: allocation_steps.return_allocation(m)) == Done()
        assert still.cloud.adapter.sent[sent:] == [('POST', '/allocations')]
        assert held(still, m) == NOT_MOVED

    def test_allocation_that_another_writer_has_changed_is_read(self, still: Stage) -> None:
        m = undo_intended_after_done(still)
        write(still, m.row.instance_uuid, 'host3')
        assert isinstance(still.do(lambda: allocation_steps.return_allocation(m)), Stuck)
        assert held(still, m) == (['host3'], ['host1'])

    def test_allocation_of_a_deleted_instance_is_not_created_again(self, still: Stage) -> None:
        m = undo_intended_after_done(still)
        client = still.cloud.placement_client
        now = allocations.read(client, m.row.instance_uuid)
        gone = allocations.allocation_state.Consumer(
            uuid=now.uuid, consumer_type='INSTANCE', project_id='demo', user_id='demo'
        )
        assert now.generation is not None
        allocations.remove(client, gone, generation=now.generation)
        with still.database.engine.writer() as session:
            session.execute(sa.delete(models.Instance))
        assert isinstance(still.do(lambda: allocation_steps.return_allocation(m)), Done)
        assert held(still, m) == ([], [])

    def test_second_try_reads_both(self, still: Stage) -> None:
        m = undo_intended_after_done(still)
        still.cloud.adapter.inject(Fault.TIMEOUT_DONE, method='POST')
        assert isinstance(still.do(lambda: allocation_steps.return_allocation(m)), Parked)
        sent = len(still.cloud.adapter.sent)
        assert still.do(lambda: allocation_steps.return_allocation(m)) == Done()
        assert [method for method, _url in still.cloud.adapter.sent[sent:]] == ['GET', 'GET', 'GET', 'PUT']
        assert held(still, m) == NOT_MOVED


class TestMove:
    def test_the_migration_takes_the_source_and_the_instance_the_destination_in_one_request(self, still: Stage) -> None:
        m = intended(still)
        sent = len(still.cloud.adapter.sent)
        assert still.do(lambda: allocation_steps.move_allocation(m)) == Done()
        assert still.cloud.adapter.sent[sent:] == [('POST', '/allocations')]
        assert held(still, m) == MOVED

    def test_moved_already_it_looks_and_finds_it_done(self, still: Stage) -> None:
        m = again(moved(still))
        assert still.do(lambda: allocation_steps.move_allocation(m)) == Done()
        assert still.cloud.adapter.sent[-1][0] == 'GET'
        assert held(still, m) == MOVED

    @pytest.mark.parametrize('done', [True, False])
    def test_an_answer_that_does_not_come_is_looked_into_later_and_never_sent_again_blindly(
        self, still: Stage, done: bool
    ) -> None:
        m = intended(still)
        still.cloud.adapter.inject(Fault.TIMEOUT_DONE if done else Fault.TIMEOUT_NOT_DONE, method='POST')
        assert isinstance(still.do(lambda: allocation_steps.move_allocation(m)), Parked)
        assert m.ledger.wake_at is not None
        assert held(still, m) == (MOVED if done else NOT_MOVED)
        sent = len(still.cloud.adapter.sent)
        assert still.do(lambda: allocation_steps.move_allocation(m)) == Done()
        assert still.cloud.adapter.sent[sent][0] == 'GET'
        assert held(still, m) == MOVED

    def test_a_generation_that_was_overtaken_is_read_anew_and_logged_before_it_is_used(self, still: Stage) -> None:
        m = intended(still)
        client, uuid = still.cloud.placement_client, m.row.instance_uuid
        now = allocations.read(client, uuid)
        owner = allocations.allocation_state.Consumer(
            uuid=uuid, consumer_type='INSTANCE', project_id='demo', user_id='demo'
        )
        allocations.claim(client, owner, now.allocations, generation=now.generation)
        assert still.do(lambda: allocation_steps.move_allocation(m)) == Done()
        record = still.database.migrations.steps(m.row.uuid)[0]
        assert (record.input['instance_generation'], record.tries) == (now.generation + 1, 2)
        assert held(still, m) == MOVED

    def test_a_refusal_is_a_failure_and_nothing_was_changed(self, still: Stage) -> None:
        m = intended(still)
        still.cloud.adapter.inject(Fault.REFUSED, method='POST')
        assert isinstance(still.do(lambda: allocation_steps.move_allocation(m)), Failed)
        assert held(still, m) == NOT_MOVED

    def test_a_consumer_that_placement_was_killed_over_while_it_made_it_is_taken_over(self, still: Stage) -> None:
        m = intended(still)
        owner = allocations.allocation_state.Consumer(
            uuid=m.row.uuid, consumer_type='MIGRATION', project_id='demo', user_id='demo'
        )
        left = allocations.Write(consumer=owner, allocations={}, generation=None).body()
        still.cloud.placement_client.put(f'/allocations/{m.row.uuid}', left)
        assert held(still, m) == NOT_MOVED
        assert still.do(lambda: allocation_steps.move_allocation(m)) == Done()
        assert held(still, m) == MOVED

    def test_write_that_loses_every_race_waits(self, still: Stage) -> None:
        m = intended(still)
        still.cloud.adapter.inject(Fault.CONFLICT, method='POST', times=50)
        assert isinstance(still.do(lambda: allocation_steps.move_allocation(m)), Parked)

    def test_conductor_that_is_no_longer_owner_does_not_write(self, still: Stage) -> None:
        m = again(intended(still))
        with still.cloud.database.engine.writer() as session:
            session.execute(sa.update(models.Migration).values(epoch=9))
        with pytest.raises(exception.NotOwner):
            still.do(lambda: allocation_steps.move_allocation(m))
        assert held(still, m) == NOT_MOVED

    @pytest.mark.parametrize('hosts', [('host3',), ('host1', 'host3'), ('host1', 'a stranger')])
    def test_a_pair_that_fits_no_known_case_is_stuck(self, still: Stage, hosts: tuple[str, ...]) -> None:
        m = again(intended(still))
        write(still, m.row.instance_uuid, *hosts)
        for step in (allocation_steps.move_allocation, allocation_steps.return_allocation):
            found = still.do(lambda step=step: step(m))
            assert isinstance(found, Stuck)
            assert m.row.instance_uuid in str(found.reason)

    def test_allocation_changed_at_the_source_fails_the_move_and_is_left(self, still: Stage) -> None:
        m = again(intended(still))
        write(still, m.row.instance_uuid, 'host1')
        before = held(still, m)
        assert isinstance(still.do(lambda: allocation_steps.move_allocation(m)), Failed)
        assert still.do(lambda: allocation_steps.return_allocation(m)) == Done(
            {'skipped': 'the allocation of the instance was changed before it was moved'}
        )
        assert held(still, m) == before == (['host1'], [])


class TestGiveBack:
    def test_moved_it_is_reverted(self, still: Stage) -> None:
        m = moved(still)
        assert still.do(lambda: allocation_steps.return_allocation(m)) == Done()
        assert held(still, m) == NOT_MOVED

    def test_done_twice_it_is_as_done_once(self, still: Stage) -> None:
        m = moved(still)
        for _ in range(3):
            assert still.do(lambda: allocation_steps.return_allocation(m)) == Done()
        assert held(still, m) == NOT_MOVED

    def test_move_that_was_never_intended_sends_no_request(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        sent = len(still.cloud.adapter.sent)
        assert isinstance(still.do(lambda: allocation_steps.return_allocation(m)), Done)
        assert len(still.cloud.adapter.sent) == sent

    def test_intended_and_not_moved_the_generation_is_burned_so_that_a_late_move_is_too_late(
        self, still: Stage
    ) -> None:
        m = intended(still)
        still.cloud.adapter.inject(Fault.TIMEOUT_LATE, method='POST')
        still.do(lambda: allocation_steps.move_allocation(m))
        assert still.do(lambda: allocation_steps.return_allocation(m)) == Done()
        assert [response.status_code for response in still.cloud.adapter.deliver()] == [409]
        assert held(still, m) == NOT_MOVED

    def test_released_already_it_is_stuck(self, still: Stage) -> None:
        m = release_intended(still)
        still.do(lambda: allocation_steps.release_source_allocation(m))
        assert isinstance(still.do(lambda: allocation_steps.return_allocation(m)), Stuck)
        assert held(still, m) == RELEASED

    @pytest.mark.parametrize('fault', [Fault.TIMEOUT_DONE, Fault.TIMEOUT_NOT_DONE, Fault.ERROR_DONE, Fault.REFUSED])
    def test_trouble_is_looked_into_later(self, still: Stage, fault: Fault) -> None:
        m = moved(still)
        still.cloud.adapter.inject(fault, method='POST')
        assert isinstance(still.do(lambda: allocation_steps.return_allocation(m)), Parked)
        assert still.do(lambda: allocation_steps.return_allocation(m)) == Done()
        assert held(still, m) == NOT_MOVED

    def test_conductor_that_is_no_longer_owner_does_not_write(self, still: Stage) -> None:
        m = moved(still)
        with still.cloud.database.engine.writer() as session:
            session.execute(sa.update(models.Migration).values(epoch=9))
        with pytest.raises(exception.NotOwner):
            still.do(lambda: allocation_steps.return_allocation(m))
        assert held(still, m) == MOVED

    def test_a_deleted_instance_is_not_brought_back_and_the_migration_holds_nothing(self, still: Stage) -> None:
        m = moved(still)
        client, uuid = still.cloud.placement_client, m.row.instance_uuid
        owner = allocations.allocation_state.Consumer(
            uuid=uuid, consumer_type='INSTANCE', project_id='demo', user_id='demo'
        )
        allocations.remove(client, owner, generation=allocations.read(client, uuid).generation or 0)
        m.instance = None
        assert isinstance(still.do(lambda: allocation_steps.return_allocation(m)), Done)
        assert held(still, m) == ([], [])


class TestAPlacementThatIsAway:
    """Each migration that waited for it asked it every second or two, and its timeline showed one try."""

    ACTS: ClassVar[dict[str, tuple[Callable[[Stage], context.MigrationContext], Any, str, str]]] = {
        'move': (intended, allocation_steps.move_allocation, 'move_allocation', 'do'),
        'give back': (undo_intended, allocation_steps.return_allocation, 'move_allocation', 'undo'),
        'release': (release_intended, allocation_steps.release_source_allocation, 'release_source_allocation', 'do'),
    }

    @pytest.mark.parametrize('act', ACTS)
    def test_requests_get_rarer_and_the_log_has_each_reason_once(self, still: Stage, act: str) -> None:
        begin, body, step, direction = self.ACTS[act]
        m = begin(still)
        still.cloud.adapter.inject(Fault.UNREACHABLE, times=1000)
        pauses = []
        for _ in range(12):
            m.ledger.wake_at = None
            assert isinstance(still.do(lambda: body(m)), Parked)
            assert m.ledger.wake_at is not None
            pauses.append(m.ledger.wake_at - m.tools.threads.clock.monotonic())
        for number, pause in enumerate(pauses):
            longest = min(60, 2**number)
            assert longest / 2 <= pause <= longest, pauses
        (record,) = [
            one for one in still.database.migrations.steps(m.row.uuid) if (one.step, one.direction) == (step, direction)
        ]
        assert 'Placement is not reachable' in (record.result or {})['reason']
        known = m.record(step, direction)
        assert known is not None
        assert known.tries == 13, 'and the one that is next'
        tried = [one for one in still.database.migrations.read_log(m.row.uuid) if one.kind.endswith('tried')]
        assert len(tried) < 3, 'a try without news adds nothing to the log'
        m.ledger.of(step if direction == 'do' else f'{direction} {step}', 'Placement').tries = 5000
        assert isinstance(still.do(lambda: body(m)), Parked), 'for days'
        still.cloud.adapter._plans.clear()
        assert still.do(lambda: body(m)) == Done()


class TestRelease:
    def test_release_after_move_is_one_put_with_own_generation(self, still: Stage) -> None:
        m = release_intended(still)
        sent = len(still.cloud.adapter.sent)
        assert still.do(lambda: allocation_steps.release_source_allocation(m)) == Done()
        assert [method for method, _ in still.cloud.adapter.sent[sent:]] == ['PUT']
        assert held(still, m) == RELEASED

    def test_released_already_it_looks_and_finds_it_done(self, still: Stage) -> None:
        m = release_intended(still)
        for _ in range(3):
            assert still.do(lambda: allocation_steps.release_source_allocation(m)) == Done()
        assert held(still, m) == RELEASED

    @pytest.mark.parametrize('fault', [Fault.TIMEOUT_DONE, Fault.TIMEOUT_NOT_DONE, Fault.ERROR_DONE, Fault.CONFLICT])
    def test_trouble_is_looked_into(self, still: Stage, fault: Fault) -> None:
        m = release_intended(still)
        still.cloud.adapter.inject(fault, method='PUT')
        if isinstance(still.do(lambda: allocation_steps.release_source_allocation(m)), Parked):
            assert still.do(lambda: allocation_steps.release_source_allocation(m)) == Done()
        assert held(still, m) == RELEASED

    def test_release_of_unmoved_allocation_is_stuck(self, still: Stage) -> None:
        m = intended(still)
        assert isinstance(still.do(lambda: allocation_steps.release_source_allocation(m)), Stuck)
        assert held(still, m) == NOT_MOVED


@pytest.mark.parametrize(('state', 'act', 'after'), [
    ('intended', allocation_steps.move_allocation, MOVED),
    ('moved', allocation_steps.return_allocation, NOT_MOVED),
    ('moved', allocation_steps.release_source_allocation, RELEASED),
])  # fmt: skip
def test_the_doubled_strategy_has_the_instance_hold_both(still: Stage, state: str, act: object, after: tuple) -> None:
    m = still.adopt(still.accept(strategy='doubled'))
    chosen = still.do(lambda: live_migrate.choose_destination(m))
    m.commit([log.StepRecord('move_allocation', 'do', 'intent', 1, input=chosen)])
    if state == 'moved':
        still.do(lambda: allocation_steps.move_allocation(m))
        assert held(still, m) == (['host1', 'host2'], []) or held(still, m) == (['host2', 'host1'], [])
    assert still.do(lambda: act(m)) == Done()
    if act is allocation_steps.move_allocation:
        assert sorted(held(still, m)[0]) == ['host1', 'host2']
    else:
        assert held(still, m) == after
